use std::sync::Arc;
use std::time::Duration;

use super::config::Lease;
use super::slot::MAX_UNITS;
use crate::calendar::Calendar;
use crate::clock::Timestamp;
use crate::decision::AcquireOptions;
use crate::error::Error;
use crate::escalation::Escalation;
use crate::store::inner::{LimitCost, ShareRole, StateEncoding, micros_floor};
use crate::store::redis::script::{DynLuaAlgorithm, EntryTarget, LimitInfo, LimitSet, MIN_GRANT, Operation};

/// A limit of a limiter with leases.
pub(super) struct LeasedLimit {
    pub(super) info: LimitInfo,
    /// The quota, if it is the same for all keys.
    pub(super) fixed: Option<Arc<LeasedQuota>>,
}

impl LeasedLimit {
    /// Returns an error if leases do not support the limit.
    pub(super) fn new(limits: &Arc<LimitSet>, index: usize, lease: &Lease) -> Result<Self, Error> {
        let info = &limits.limits[index];
        let (facts, name) = (&info.facts, info.facts.name.as_str());
        let counts_denials = matches!(facts.cost, LimitCost::OfUnit(unit) if Escalation::is_count(name, unit.name()));
        let problems = [
            (info.held_until_end, "counts requests in flight, which have no quota to lease"),
            (facts.is_conditional, "applies only to some requests"),
            (facts.keeps_free, "keeps units free from some requests"),
            (facts.share.role == ShareRole::Share, "is a guaranteed share"),
            (counts_denials, "counts the denials of an escalation, which each process must know at once"),
            (facts.is_queue, "is a queue, whose starts are one after the other"),
        ];
        if let Some((_, problem)) = problems.iter().find(|(has_problem, _)| *has_problem) {
            return Err(Error::config(format!(
                "invalid lease: the limit {name:?} {problem}; remove `lease`, or make the limit a limiter of its own, and \
                 combine the two with `limiter::Chained`"
            )));
        }
        let algorithm = info.fixed_algorithm.as_ref();
        let fixed =
            algorithm.map(|fixed| LeasedQuota::new(limits, index, fixed.fixed_algorithm(), lease, Timestamp::EPOCH));
        if let (LimitCost::Fixed(cost), Some(LeasedQuota { figures, .. })) = (facts.cost, &fixed)
            && cost > figures.max_cost
        {
            return Err(Error::config(format!(
                "invalid lease: the fixed cost of the limit {name:?} is {cost}, and leases serve at most an eighth of \
                 `max_share` of the limit, {}; remove `lease`, or raise `max_share` or the burst",
                figures.max_cost
            )));
        }
        Ok(Self { info: info.clone(), fixed: fixed.map(Arc::new) })
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
        limits: &Arc<LimitSet>,
        index: usize,
        algorithm: &dyn DynLuaAlgorithm,
        lease: &Lease,
        now: Timestamp,
    ) -> Self {
        let limit = &limits.limits[index];
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
                limits: Arc::clone(limits),
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
