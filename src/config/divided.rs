//! The part of one process in a configured limit.

use super::Policy;
use crate::error::Error;

impl Policy {
    /// Returns this policy for one of several processes, none of which sees the others' requests: the fallback of each
    /// process while Redis is unavailable, for example.
    ///
    /// The quota is divided as [`Quota::divided_by`](crate::Quota::divided_by) says. The fields `burst`, `max`,
    /// `max_waiting` and `keep_free` are divided and rounded down; `burst` and `max` are at least one. With more processes
    /// than units of `burst` or `max`, all processes together may therefore admit more at once than the policy says. The
    /// parts of a guaranteed share and of the limits beside it are rounded apart, so the limits may not be able to serve
    /// all shares: building them returns the error of [`guarantee`](crate::Limit::guarantee).
    ///
    #[cfg_attr(not(doctest), doc = include_str!("divided.md"))]
    ///
    /// # Errors
    ///
    /// Returns an error that names the field if `processes` is zero, or if the algorithm rejects its part: a fixed cost
    /// that is larger than the divided burst is found when the limits are built.
    pub fn divided_by(&self, processes: u64) -> Result<Self, Error> {
        if processes == 0 {
            return Err(Error::config(
                "limit divided by 0 processes: no process has a part; name at least one process",
            ));
        }
        let part = |units: u64| units / processes;
        let mut fields = self.fields.clone();
        if let Some(quota) = fields.quota {
            fields.quota = Some(quota.divided_by(processes)?);
        }
        fields.burst = fields.burst.map(|burst| part(burst).max(1));
        fields.max = fields.max.map(|max| part(max).max(max.min(1)));
        fields.max_waiting = fields.max_waiting.map(part);
        for units in fields.keep_free.iter_mut().flat_map(|kept| kept.values_mut()) {
            *units = part(*units);
        }
        Self::try_from(fields)
    }
}
