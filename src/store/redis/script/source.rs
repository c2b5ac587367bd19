use redis::Script as Hashed;

use crate::store::redis::bound_limit::RowInfo;

/// The text that decides inside Redis, and its hash: the kernels of a limiter's limits, then the driver.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    hash: String,
}

impl Script {
    /// The same limits make the same text, whatever their quotas are.
    pub(crate) fn of(rows: &[RowInfo]) -> Self {
        let mut text = String::from(include_str!("prelude.lua"));
        if let [row] = rows
            && let Some(short) = row.kernel.fast_path()
        {
            text.push_str(short);
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

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }
}
