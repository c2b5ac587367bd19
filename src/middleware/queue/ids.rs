//! The queues in which the requests of one key can wait.

use std::hash::Hash;

use super::ticket::Ask;
use crate::decision::{AcquireOptions, Decision, DecisionSource, ShareRole};
use crate::limiter::{LimitOfKey, Limiter, LimitsOfKey, limit_id};

/// Visits the limits that apply to a key, with the queue of each.
///
/// Requests from which a limit keeps different numbers of units free wait in different queues: a head that its own class
/// denies must not hold up others. For the same reason, each share has a queue of its own for each limit beside it.
pub(crate) fn visit_queues<Key: ?Sized>(
    key: &Key,
    limiter: &(impl Limiter<Key> + ?Sized),
    visit: &mut dyn FnMut(&LimitOfKey<'_>, u64),
) {
    let (mut share, mut has_common) = (None, false);
    limiter.limits_of(
        key,
        &mut LimitsOfKey::new(&mut |limit| {
            has_common |= limit.share == ShareRole::Common;
            if limit.share == ShareRole::Share {
                share = Some(limit.id);
            }
        }),
    );
    let share = share.filter(|_| has_common);
    limiter.limits_of(
        key,
        &mut LimitsOfKey::new(&mut |limit| {
            let share = share.filter(|_| limit.share == ShareRole::Common);
            let queue = match (limit.kept_free, share) {
                (0, None) => limit.id,
                of_class => limit_id((limit.id, of_class)),
            };
            visit(&limit, queue);
        }),
    );
}

/// Returns the limits whose waiting requests the guard of a hold must wake: those of no store, and the key itself for a
/// limiter that names none. `None` if a store wakes the requests of all limits.
pub(crate) fn limits_of_guard<Key: Hash + ?Sized>(
    key: &Key,
    limiter: &(impl Limiter<Key> + ?Sized),
) -> Option<Vec<u64>> {
    let (mut limits, mut is_of_store) = (Vec::new(), false);
    limiter.limits_of(
        key,
        &mut LimitsOfKey::new(&mut |limit| {
            if limit.is_of_store {
                is_of_store = true;
            } else {
                limits.push(limit.id);
            }
        }),
    );
    (!is_of_store || !limits.is_empty()).then(|| {
        limits.push(limit_id(key));
        limits
    })
}

/// Returns the queue of the limit that denied a request, or the queue of the key if the denial names no limit.
///
/// The limits of a fallback come last, and can have the same names.
pub(crate) fn queue_of(ask: &(impl Ask + ?Sized), denied: &Decision) -> u64 {
    let (mut found, is_fallback) = (None, denied.source() == DecisionSource::Fallback);
    if let Some(denying) = denied.most_restrictive() {
        ask.visit(&mut |limit, queue| {
            if limit.name == denying.name() && (found.is_none() || is_fallback) {
                found = Some(queue);
            }
        });
    }
    found.unwrap_or_else(|| ask.own_queue())
}

impl dyn Ask {
    /// Returns the cost of the request on the limit of this queue.
    pub(super) fn cost_in(&self, queue: u64, options: AcquireOptions) -> u64 {
        let mut cost = options.cost;
        self.visit(&mut |limit, of_limit| {
            if of_limit == queue {
                cost = limit.cost_of(options);
            }
        });
        cost
    }

    /// Returns the limits whose releases can end the wait in this queue, with the units that the request needs there. A
    /// denial names its limit, and the limits of a fallback can have the same names.
    pub(super) fn needs_in(&self, queue: u64, options: AcquireOptions) -> Vec<(u64, u64)> {
        let mut denying = None;
        self.visit(&mut |limit, of_limit| {
            if of_limit == queue {
                denying = Some((limit.name.to_owned(), limit.share));
            }
        });
        let Some((name, role)) = denying else { return vec![(queue, options.cost)] };
        let mut needs = Vec::new();
        self.visit(&mut |limit, _| {
            let cost = limit.cost_of(options);
            if limit.name == name {
                needs.push((limit.id, cost.saturating_add(limit.kept_free)));
            } else if role == ShareRole::Common && limit.share == ShareRole::Share {
                needs.push((limit.id, cost));
            }
        });
        needs
    }

    /// Returns how many requests may wait, if a limit bounds that.
    pub(super) fn max_waiting(&self) -> Option<u64> {
        let mut least = None;
        self.visit(&mut |limit, _| least = [least, limit.max_waiting].into_iter().flatten().min());
        least
    }
}
