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
        if let [row] = rows
            && let Some(fast_path) = row.kernel.fast_path()
        {
            text.push_str(fast_path);
            text.push_str(include_str!("fast_reply.lua"));
        }
        text.push_str("local kernels = {}\n");
        let kernels = rows.iter().enumerate().map(|(index, row)| {
            let kernel = index + 1;
            // Limits of one kernel share it: to make one costs as much as a decision.
            match rows[..index].iter().position(|other| other.kernel == row.kernel) {
                Some(first) => format!("kernels[{kernel}] = kernels[{}]\n", first + 1),
                None => format!("kernels[{kernel}] = (function()\n{}\nend)()\n", row.kernel.source()),
            }
        });
        text.extend(kernels);
        for part in [include_str!("read.lua"), include_str!("holds.lua"), include_str!("driver.lua")] {
            text.push_str(part);
        }
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
