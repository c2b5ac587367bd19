use redis::Script as Hashed;

use super::row::RowInfo;

/// The text that decides inside Redis, and its hash: the kernels of a limiter's limits, then the driver.
#[derive(Debug)]
pub(super) struct Script {
    text: String,
    hash: String,
}

impl Script {
    /// The same limits make the same text, whatever their quotas are.
    pub(super) fn of(rows: &[RowInfo]) -> Self {
        let mut text = String::from(include_str!("prelude.lua"));
        if let [row] = rows {
            if let Some(short) = row.kernel.short_cut() {
                text.push_str(short);
                text.push_str(include_str!("short.lua"));
            }
        }
        text.push_str("local kernels = {}\n");
        for (index, row) in rows.iter().enumerate() {
            let index = index + 1;
            match rows.iter().position(|other| other.kernel == row.kernel) {
                Some(first) if first + 1 < index => {
                    text.push_str(&format!("kernels[{index}] = kernels[{}]\n", first + 1));
                }
                _ => {
                    text.push_str(&format!("kernels[{index}] = (function()\n{}\nend)()\n", row.kernel.source()));
                }
            }
        }
        text.push_str(include_str!("driver.lua"));
        let hash = Hashed::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn hash(&self) -> &str {
        &self.hash
    }
}
