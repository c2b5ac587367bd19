use std::sync::Arc;

use super::config::Lease;
use super::ledger::{Change, LeaseReply, LeaseReport, Ledger};
use super::quota::LeasedQuota;
use super::slot::{LeaseSlot, MAX_UNITS};
use crate::store::redis::random_id::random_id;
use crate::store::redis::script::LEASE_IDS;

/// The least wanted grant. A lease without units ends below this demand.
const MIN_DEMAND: u64 = 4;

/// The decisions that take the server as long as one report: benches/NOTES.md has the figures.
pub(super) const REPORT_WORK: u64 = 5;

/// The reports that a lease makes without saving anything, before it ends. So a short pause does not end it.
const CREDIT_REPORTS: u64 = 4;

/// After a lease that has cost more than it has saved, the key gets no other one for so many durations.
const REST_DURATIONS: u64 = 16;

/// The lease on one key.
pub(super) struct HeldLease {
    pub(super) id: u64,
    /// The name of the key in Redis.
    pub(super) key: Arc<[u8]>,
    pub(super) quota: Arc<LeasedQuota>,
    ledger: Ledger,
    /// A report is queued or sent, and its end is not known yet.
    pub(super) is_in_flight: bool,
    /// When the demand was counted last.
    counted_at: u64,
    /// No report is made before this time.
    next_at: u64,
    /// The units that the last report wanted.
    wanted: u64,
    /// The units that Redis held after the last reply.
    held: u64,
    /// The cost of the decision that began the lease.
    cost: u64,
    /// The decisions that the lease has made, less the work of its reports.
    credit: u64,
    /// The lease has cost more than it has saved, and ends.
    is_ending: bool,
}

/// The work that is due for a lease.
pub(super) enum LeaseDue {
    Nothing,
    Send(LeaseReport),
    /// Nothing is held and nothing is wanted: the lease can be dropped. The key gets no other one before this time.
    Drop {
        rests_until: u64,
    },
}

/// What a reply has changed, for metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    pub(super) granted: u64,
    pub(super) spent: u64,
    pub(super) returned: u64,
    pub(super) lost: u64,
}

impl HeldLease {
    /// A lease without units, for decisions of this cost. Its demand was counted since `counted_at`.
    pub(super) fn new(key: Arc<[u8]>, quota: Arc<LeasedQuota>, cost: u64, counted_at: u64) -> Self {
        Self {
            id: LEASE_IDS + random_id(),
            key,
            quota,
            ledger: Ledger::default(),
            is_in_flight: false,
            counted_at,
            next_at: 0,
            wanted: 0,
            held: 0,
            cost: cost.max(1),
            credit: CREDIT_REPORTS * REPORT_WORK,
            is_ending: false,
        }
    }

    /// Returns the work that is due. With `is_closing` all units are released.
    pub(super) fn due(&mut self, slot: &LeaseSlot, config: &Lease, now: u64, is_closing: bool) -> LeaseDue {
        if self.is_in_flight || (now < self.next_at && !is_closing) {
            return LeaseDue::Nothing;
        }
        // Sent again as it was, as long as its grant could still be spent. Later, a new report carries its sums.
        if !is_closing && let Some(report) = self.ledger.report_again(config.usable_micros(), now) {
            self.is_in_flight = true;
            return LeaseDue::Send(report);
        }
        let elapsed = now.saturating_sub(self.counted_at);
        let is_half_over = elapsed >= config.duration_micros() / 2;
        let is_dry = slot.is_due() && elapsed >= config.tick_micros();
        if !is_half_over && !is_dry && !is_closing {
            return LeaseDue::Nothing;
        }
        slot.clear_due();
        // For the demand only. The report counts by the remainder that `begin_generation` returns.
        let spent = self.ledger.spent_since(slot.remaining());
        let demand = slot.take_demand().saturating_add(spent);
        if self.ledger.is_settled() && (is_closing || self.is_ending || demand < MIN_DEMAND) {
            let rests_until = if self.is_ending { now + REST_DURATIONS * config.duration_micros() } else { 0 };
            return LeaseDue::Drop { rests_until };
        }
        self.pay_report(spent);
        let want = if is_closing || self.is_ending { 0 } else { self.want(demand, elapsed, config) };
        // After the deadline no unit can be spent, so all are released.
        let keep = if slot.has_passed(now) { 0 } else { want };
        let (remaining, kept) = slot.begin_generation(keep);
        (self.counted_at, self.wanted, self.is_in_flight) = (now, want, true);
        LeaseDue::Send(self.ledger.report(remaining, kept, want, now))
    }

    /// Compares the work of the next report with what the lease has saved. `spent` units were spent since the last one.
    fn pay_report(&mut self, spent: u64) {
        let credit = self.credit.saturating_add(spent / self.cost).min(CREDIT_REPORTS * REPORT_WORK);
        self.is_ending |= credit < REPORT_WORK;
        self.credit = credit.saturating_sub(REPORT_WORK);
    }

    /// The units that cover the demand for one duration, and a quarter more.
    ///
    /// Half of the last amount is the least while there is demand, so that a short pause does not end the lease.
    fn want(&self, demand: u64, elapsed: u64, config: &Lease) -> u64 {
        if demand == 0 {
            return 0;
        }
        let elapsed = u128::from(elapsed.max(config.tick_micros()));
        let expected = u128::from(demand) * u128::from(config.duration_micros()) * 5 / 4 / elapsed;
        let expected = u64::try_from(expected).unwrap_or(MAX_UNITS);
        expected.max(self.wanted / 2).max(MIN_DEMAND).min(self.quota.max_held)
    }

    /// Applies a reply.
    pub(super) fn finish(
        &mut self,
        slot: &LeaseSlot,
        config: &Lease,
        report: &LeaseReport,
        reply: LeaseReply,
        now: u64,
    ) -> Moved {
        if self.ledger.pending().is_none_or(|pending| pending.sequence != report.sequence) {
            // The report was given up, and a later one carries its sums.
            return Moved::default();
        }
        self.is_in_flight = false;
        if !matches!(reply, LeaseReply::Applied { .. }) {
            // Before the ledger, so that nothing is spent that belongs to no account.
            slot.begin_generation(0);
        }
        let Some(change) = self.ledger.reply(report.sequence, reply, config.usable_micros(), now) else {
            return Moved::default();
        };
        let held = if let LeaseReply::Applied { held, .. } = reply { held } else { 0 };
        let (before, spent) = (std::mem::replace(&mut self.held, held), report.unconfirmed);
        match change {
            Change::Granted { units, deadline } => {
                slot.grant(units, deadline);
                let granted = held.saturating_sub(report.keep);
                // Without room, others decide in Redis, and a lease needs no call in each tick.
                let is_short = granted + report.keep < self.wanted / 2;
                slot.set_short(is_short);
                self.next_at = now + if is_short { config.duration_micros() / 4 } else { 0 };
                Moved { granted, spent, returned: before.saturating_sub(spent + report.keep), lost: 0 }
            }
            Change::Stop => {
                let (remaining, _) = slot.begin_generation(0);
                self.ledger.stop(remaining);
                slot.set_short(true);
                Moved { granted: 0, spent, returned: before.saturating_sub(spent + held), lost: 0 }
            }
            Change::Lost => {
                self.next_at = now + if reply == LeaseReply::Expired { 0 } else { config.duration_micros() };
                let spent = spent.min(before);
                Moved { granted: 0, spent, returned: 0, lost: before - spent }
            }
        }
    }

    /// The report was not answered. It is sent again after a tick.
    pub(super) fn fail(&mut self, config: &Lease, now: u64) {
        self.is_in_flight = false;
        self.next_at = now + config.tick_micros();
    }
}
