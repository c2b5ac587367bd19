//! The laws of leases.

use std::collections::BTreeMap;

use super::callers::{Answer, Observed};
use super::laws::Broken;
use super::model::{LeaseLog, Verdict};
use super::quota::Admissions;
use super::server::Server;
use super::world::Link;

impl Broken<'_> {
    /// The decisions of the server and those by leases, at the times at which they were made, keep each limit. So a
    /// unit of a lease is spent once, while the server holds it.
    pub(super) fn leases_keep_the_limits(&mut self) {
        let run = self.run;
        // Usage drains by the server's clock.
        if run.scenario.has_clock_fault() || run.has_lost_data {
            return;
        }
        let by_server = run.executions.iter().filter(|done| done.kind == "decide" && done.verdict == Verdict::Allowed);
        let by_server = by_server.map(|done| (run.calls[done.call].ran_at, done.key, done.cost));
        let by_leases = run.observed.iter().filter(|call| matches!(call.answer, Answer::Leased));
        let mut admitted: Vec<_> =
            by_server.chain(by_leases.map(|call| (call.ended_at, call.call.key, call.call.cost))).collect();
        admitted.sort_unstable();
        for (limit, quota) in run.scenario.quotas.iter().enumerate() {
            let mut of_keys: BTreeMap<u64, Admissions> = BTreeMap::new();
            for &(at, key, cost) in &admitted {
                let number = if limit == 0 { key } else { 0 };
                if of_keys.entry(number).or_default().add(quota, at, cost) {
                    self.report("leases keep the limits", || {
                        format!("limit {limit}, key {number} at {at} us: {quota:?}")
                    });
                    return;
                }
            }
        }
    }

    /// A process spends the units of a lease while the server holds them. Each spent unit is charged once; if the lease
    /// expires, the unspent ones are charged too.
    pub(super) fn leases_are_charged_once(&mut self) {
        let run = self.run;
        if run.has_lost_data {
            return;
        }
        let mut spent: BTreeMap<(usize, usize, u64), u64> = BTreeMap::new();
        for call in run.observed.iter().filter(|call| matches!(call.answer, Answer::Leased)) {
            for limit in 0..run.scenario.quotas.len() {
                let owner = (call.call.client, limit, if limit == 0 { call.call.key } else { 0 });
                *spent.entry(owner).or_default() += call.call.cost;
                let at = Server::EPOCH + call.ended_at;
                let is_held = |lease: &LeaseLog| lease.terms.iter().any(|(from, until)| (*from..*until).contains(&at));
                if !run.store.leases.get(&owner).is_some_and(is_held) {
                    self.report("units of leases are spent while the server holds them", || {
                        format!("{owner:?}: {call:?}")
                    });
                }
            }
        }
        for (owner, lease) in &run.store.leases {
            let spent = spent.remove(owner).unwrap_or(0);
            if lease.charged < spent || lease.charged > spent && !lease.has_expired {
                self.report("spent units of leases are charged once", || {
                    format!("{owner:?}: {} charged of {spent}, expired: {}", lease.charged, lease.has_expired)
                });
            }
        }
    }

    /// Once a limiter is closed, the server holds nothing for its leases, and makes all decisions. Closing takes at most
    /// twice the deadline after the last confirmation.
    pub(super) fn closed_limiters_hold_no_leases(&mut self) {
        let run = self.run;
        let deadline = run.scenario.deadline * 1000;
        for closed in &run.closed {
            // A fail-over may bring back what was released.
            if closed.is_confirmed && closed.leased > 0 && !run.has_lost_data {
                self.report("a closed limiter holds nothing for leases", || format!("{closed:?}"));
            }
            let stalled: u64 = run.stalls.iter().map(|(from, until)| until - from).sum();
            let leases = run.store.leases.keys().filter(|(client, ..)| *client == closed.client).count() as u64;
            if closed.ended_at - closed.began_at > (1 + leases) * 2 * deadline + 10_000 + stalled {
                self.report("closing ends", || format!("{closed:?}"));
            }
            let is_after = |call: &&Observed| {
                closed.is_confirmed && call.call.client == closed.client && call.asked_at > closed.ended_at
            };
            let leased = run.observed.iter().filter(is_after).find(|call| matches!(call.answer, Answer::Leased));
            if let Some(call) = leased {
                self.report("a closed limiter decides nothing by leases", || format!("{closed:?}: {call:?}"));
            }
        }
    }

    /// Without a fault, on a link that is fast for its duration, no lease expires: limiters that are idle, closed or
    /// dropped release the units. Unless surcharges have taken the room of a lease: then it is not renewed.
    pub(super) fn undisturbed_leases_are_released(&mut self) {
        let run = self.run;
        let Some((duration, _)) = run.scenario.lease else { return };
        let Link { delay, jitter, .. } = run.scenario.link;
        if !run.scenario.faults.is_empty() || !run.scenario.is_fast() || duration * 1000 <= 10 * (delay + jitter) {
            return;
        }
        for closed in run.closed.iter().filter(|closed| !closed.is_confirmed) {
            self.report("without a fault closing is confirmed", || format!("{closed:?}"));
        }
        for (owner, _) in run.store.leases.iter().filter(|(_, lease)| lease.has_expired && !lease.was_stopped) {
            self.report("without a fault no lease expires", || format!("{owner:?}, {:?}", run.scenario.lease_end));
        }
    }
}
