//! The parts of one process in configured limits.

use super::Policy;
use super::key_parts::limit_facts;
use crate::error::Error;
use crate::limit::check_limits;

impl Policy {
    /// Returns the policies for one of several processes, none of which sees the others' requests: the fallback of each
    /// process while Redis is unavailable, for example. Pass all policies of a limiter.
    ///
    /// Each quota is divided as [`Quota::divided_by`](crate::Quota::divided_by) says, and the limit of a calendar is rounded
    /// down. The fields `burst`, `max`, `max_waiting` and `keep_free` are divided and rounded down; `burst` and `max` are at least one. With more processes
    /// than units of `burst` or `max`, all processes together may therefore admit more at once than the policy says.
    ///
    #[cfg_attr(not(doctest), doc = include_str!("divided.md"))]
    ///
    /// # Errors
    ///
    /// Returns an error
    ///
    /// - if `processes` is zero;
    /// - that names the field, if the algorithm rejects its part: a fixed cost that is larger than the divided burst is
    ///   found when the limits are built;
    /// - if the parts cannot [guarantee](crate::Limit::guarantee) a share. Each number is rounded alone, so this can happen
    ///   if a share has a smaller burst or quota than there are processes, or another period than a limit beside it.
    pub fn divide(policies: &[Self], processes: u64) -> Result<Vec<Self>, Error> {
        if processes == 0 {
            return Err(Error::config(
                "limits divided by 0 processes: no process has a part; name at least one process",
            ));
        }
        let parts = policies.iter().map(|policy| policy.part(processes)).collect::<Result<Vec<_>, _>>()?;
        if parts.iter().any(|part| part.guarantee().is_some()) {
            let facts: Vec<_> = parts.iter().map(limit_facts).collect();
            check_limits(&facts).map_err(|error| {
                Error::config(format!("limits divided by {processes} processes: {error}; or divide by fewer processes"))
                    .with_source(error)
            })?;
        }
        Ok(parts)
    }

    fn part(&self, processes: u64) -> Result<Self, Error> {
        let part = |units: u64| units / processes;
        let mut fields = self.fields.clone();
        if let Some(quota) = fields.quota {
            fields.quota = Some(quota.divided_by(processes, fields.window.is_some())?);
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
