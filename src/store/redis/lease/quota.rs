use std::sync::Arc;
use std::time::Duration;

use super::config::Lease;
use super::slot::MAX_UNITS;
use crate::calendar::Calendar;
use crate::clock::Timestamp;
use crate::decision::AcquireOptions;
use crate::error::Error;
use crate::escalation::Escalation;
use crate::store::inner::{LimitCost, Name, ShareRole, StateEncoding, WarnKeys, micros_floor};
use crate::store::redis::script::{DynLuaAlgorithm, EntryTarget, LimitInfo, MIN_GRANT, Operation};

/// A limit of a limiter with leases.
pub(super) struct LeasedLimit {
    pub(super) name: Name,
    pub(super) is_shadow: bool,
    pub(super) cost: LimitCost,
    /// The mark of the near-limit signal, if the limit has one.
    pub(super) warn_keys: Option<Arc<WarnKeys>>,
    /// The quota, if it is the same for all keys.
    pub(super) fixed: Option<Arc<LeasedQuota>>,
}

impl LeasedLimit {
    pub(super) fn new(index: usize, limit: &LimitInfo, lease: &Lease) -> Self {
        let algorithm = limit.fixed_algorithm.as_ref();
        let fixed =
            algorithm.map(|fixed| Arc::new(LeasedQuota::new(index, limit, fixed.algorithm(), lease, Timestamp::EPOCH)));
        let (name, warn_keys) = (limit.facts.name.clone(), limit.warn_keys.clone());
        Self { name, is_shadow: limit.facts.is_shadow, cost: limit.facts.cost, warn_keys, fixed }
    }
}

/// The quota of a key at one limit, as leases need it.
pub(crate) struct LeasedQuota {
    /// The limit of the reports, whose template has the parameters for a cost of 1.
    pub(crate) entry: EntryTarget,
    /// The units that all leases on the key hold together at most.
    pub(super) max_held: u64,
    pub(super) figures: QuotaFigures,
}

/// The figures of a quota for decisions. Times are in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QuotaFigures {
    pub(super) limit: u64,
    pub(super) window: u64,
    /// The calendar of the windows.
    calendar: Option<Calendar>,
    pub(super) supports_scheduling: bool,
    /// The largest cost that leases serve: an eighth of the units that they hold together. A lease that holds fewer such
    /// costs saves no work. Redis decides larger costs, which are no demand for leases; `lease.lua` has the same bound.
    pub(super) max_cost: u64,
}

impl LeasedQuota {
    pub(super) fn new(
        index: usize,
        limit: &LimitInfo,
        algorithm: &dyn DynLuaAlgorithm,
        lease: &Lease,
        now: Timestamp,
    ) -> Self {
        let idle = match limit.script.state_encoding() {
            StateEncoding::Full => algorithm.replay(&mut Vec::new(), now, AcquireOptions::cost(0), None, 0),
            StateEncoding::Header => algorithm.replay_view([0; 3], now),
        };
        let idle = idle.compute();
        let max_held = lease.max_held(idle.limit).min(MAX_UNITS);
        let mut template = limit.template(index, Operation::Lease, algorithm, 1, lease.duration_micros());
        template.arg2 = i64::try_from(max_held).unwrap_or(i64::MAX);
        Self {
            entry: EntryTarget {
                limit: index,
                algorithm: None,
                // To find the size of a grant takes several decisions.
                weight: usize::from(algorithm.weight()).max(1) * 4,
                template: Arc::new(template),
            },
            max_held,
            figures: QuotaFigures {
                limit: idle.limit,
                window: idle.window.map_or(0, micros_floor),
                calendar: algorithm.calendar(),
                supports_scheduling: algorithm.supports_scheduling(),
                max_cost: if max_held < MIN_GRANT { 0 } else { (max_held / 8).max(1) },
            },
        }
    }
}

impl QuotaFigures {
    /// Returns the length of the window at a time: months differ.
    #[inline]
    pub(super) fn window_at(&self, at: u64) -> u64 {
        self.calendar.map_or(self.window, |calendar| {
            let (start, end) = calendar.window(at);
            end - start
        })
    }

    /// The time in which `cost` becomes available, at least a microsecond.
    pub(super) fn time_of(&self, cost: u64) -> Duration {
        let micros = u128::from(self.window) * u128::from(cost) / u128::from(self.limit.max(1));
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX).max(1))
    }
}

/// Checks that leases support the limits.
pub(crate) fn check_limits(limits: &[LimitInfo], lease: &Lease) -> Result<(), Error> {
    for (index, limit) in limits.iter().enumerate() {
        let problem = if limit.held_until_end {
            "counts requests in flight, which have no quota to lease"
        } else if limit.facts.is_conditional {
            "applies only to some requests"
        } else if limit.facts.keeps_free {
            "keeps units free from some requests"
        } else if limit.facts.share == ShareRole::Share {
            "is a guaranteed share"
        } else if matches!(limit.facts.cost, LimitCost::OfUnit(unit) if Escalation::is_count(limit.facts.name.as_str(), unit.name()))
        {
            "counts the denials of an escalation, which each process must know at once"
        } else if limit.facts.is_queue {
            "is a queue, whose starts are one after the other"
        } else {
            check_fixed_cost(index, limit, lease)?;
            continue;
        };
        return Err(Error::config(format!(
            "invalid lease: the limit {:?} {problem}; remove `lease`, or make the limit a limiter of its own, and combine \
             the two with `limiter::Chained`",
            limit.facts.name.as_str()
        )));
    }
    Ok(())
}

/// Checks that leases can serve a fixed cost, if the quota is the same for all keys.
fn check_fixed_cost(index: usize, limit: &LimitInfo, lease: &Lease) -> Result<(), Error> {
    let (LimitCost::Fixed(cost), Some(fixed)) = (limit.facts.cost, &limit.fixed_algorithm) else { return Ok(()) };
    let max_cost = LeasedQuota::new(index, limit, fixed.algorithm(), lease, Timestamp::EPOCH).figures.max_cost;
    if cost <= max_cost {
        return Ok(());
    }
    Err(Error::config(format!(
        "invalid lease: the fixed cost of the limit {:?} is {cost}, and leases serve at most an eighth of `max_share` of \
         the limit, {max_cost}; remove `lease`, or raise `max_share` or the burst",
        limit.facts.name.as_str()
    )))
}
