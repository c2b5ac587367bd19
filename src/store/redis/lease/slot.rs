use std::sync::atomic::AtomicBool;

use crate::store::inner::sync::{AtomicU32, AtomicU64, Ordering};

/// The part of a lease that decisions read and change, without a lock.
///
/// # Protocol
///
/// `units` holds the generation of the lease (32 bits) and the remainder (32 bits). A decision subtracts its cost by one
/// compare-and-swap (on each limit's slot), *then* reads the clock, and then checks two things (for each slot):
///
/// - The deadline has not passed. A thread that was suspended after the subtraction finds that it has.
/// - The generation is unchanged since the subtraction. Each report begins a new one, in the same atomic operation that
///   reads the remainder. So the unit is in no report that was sent before the clock reading: it is charged after it was
///   spent. (A unit that is charged first would drain before it is spent.)
///
/// If one of them fails, the decision is Redis's. Each unit returns to the remainder only if the generation is
/// unchanged. Otherwise a report has counted it as spent.
///
/// The remainder of a slot without a lease is 0. A slot gets another key only then, and begins a new generation before
/// it gets units.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct LeaseSlot {
    /// The hash of the key; 0 for none.
    fingerprint: AtomicU64,
    units: AtomicU64,
    /// The end of spending, by the process's clock.
    deadline: AtomicU64,
    /// The units that were asked for and not spent here, for the size of the next grant.
    demand: AtomicU64,
    /// The end of the window in which `demand` is counted, or [`LEASED`].
    window_end: AtomicU64,
    /// The remaining and the time of idleness that Redis reported last, for estimates.
    reported_remaining: AtomicU64,
    reported_idle_at: AtomicU64,
    /// A decision that leaves this or less wakes the renewal task.
    low_mark: AtomicU32,
    /// The renewal task was asked to look at the slot.
    is_due: AtomicBool,
    /// The last report has found too little room for the wanted units.
    is_short: AtomicBool,
    /// A lease has cost more than it has saved. The key gets no other one before the end of the window.
    is_resting: AtomicBool,
    /// The usage was at the limit's mark after the last decision of a limit with a mark.
    is_near: AtomicBool,
}

/// A cost that a decision has taken from a lease, and has not spent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TakenUnits {
    cost: u64,
    /// The units after the subtraction.
    after: u64,
}

impl TakenUnits {
    /// The remainder.
    pub(super) fn left(self) -> u32 {
        (self.after & REMAINDER) as u32
    }
}

const REMAINDER: u64 = u32::MAX as u64;
const GENERATION: u64 = REMAINDER + 1;

/// The end of the window of a key with a lease.
const LEASED: u64 = u64::MAX;

fn is_same_generation(units: u64, others: u64) -> bool {
    units / GENERATION == others / GENERATION
}

/// The maximum remainder.
pub(super) const MAX_UNITS: u64 = REMAINDER >> 1;

impl LeaseSlot {
    #[inline]
    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint.load(Ordering::Acquire)
    }

    /// Takes a cost, if the lease of this key has it.
    ///
    /// The caller must read the clock after that, and then spend the cost ([`may_spend`](Self::may_spend)) or
    /// [give it back](Self::give_back). A decision of several limits takes the cost of each, and reads the clock once.
    #[inline]
    pub(super) fn take(&self, fingerprint: u64, cost: u64) -> Option<TakenUnits> {
        let mut units = self.units.load(Ordering::Acquire);
        loop {
            // After the units: if they belong to another key by now, so does the fingerprint.
            if units & REMAINDER < cost || self.fingerprint() != fingerprint {
                return None;
            }
            // At most the remainder, so the generation stays.
            let after = units - cost;
            match self.units.compare_exchange_weak(units, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(TakenUnits { cost, after }),
                Err(current) => units = current,
            }
        }
    }

    /// Returns whether a cost may be spent at `now`, a time that was read after the cost was taken.
    #[inline]
    pub(super) fn may_spend(&self, taken: TakenUnits, now: u64) -> bool {
        now < self.deadline.load(Ordering::Acquire)
            && is_same_generation(self.units.load(Ordering::Acquire), taken.after)
    }

    /// Returns a cost to the remainder, unless a report has counted it as spent.
    pub(super) fn give_back(&self, taken: TakenUnits) {
        let give_back = |units: u64| is_same_generation(units, taken.after).then(|| units + taken.cost);
        let _ = self.units.fetch_update(Ordering::AcqRel, Ordering::Acquire, give_back);
    }

    /// Begins a new generation with at most `keep` of the remainder. Returns the remainder before, and what is kept.
    pub(super) fn begin_generation(&self, keep: u64) -> (u64, u64) {
        let next = |units: u64| {
            // Wraps after 2^32 reports, and no decision is suspended for as long as these take.
            let generation = (units / GENERATION + 1) & REMAINDER;
            generation * GENERATION + (units & REMAINDER).min(keep)
        };
        let mut units = self.units.load(Ordering::Acquire);
        while let Err(current) =
            self.units.compare_exchange_weak(units, next(units), Ordering::AcqRel, Ordering::Acquire)
        {
            units = current;
        }
        (units & REMAINDER, (units & REMAINDER).min(keep))
    }

    /// Adds granted units. With them, all units may be spent until `deadline`.
    pub(super) fn grant(&self, units: u64, deadline: u64) {
        self.deadline.fetch_max(deadline, Ordering::AcqRel);
        // No carry into the generation: a lease has at most `MAX_UNITS`, with those that decisions may give back.
        let granted = self.units.fetch_add(units, Ordering::AcqRel) & REMAINDER;
        let low_mark = u32::try_from((granted + units) / 4).unwrap_or(u32::MAX);
        self.low_mark.store(low_mark, Ordering::Relaxed);
    }

    pub(super) fn remaining(&self) -> u64 {
        self.units.load(Ordering::Acquire) & REMAINDER
    }

    pub(super) fn has_passed(&self, now: u64) -> bool {
        now >= self.deadline.load(Ordering::Acquire)
    }

    /// Whether a remainder is so small that the lease should be renewed.
    #[inline]
    pub(super) fn is_low(&self, left: u32) -> bool {
        left <= self.low_mark.load(Ordering::Relaxed)
    }

    /// Marks the slot as due. Returns whether it was not.
    #[inline]
    pub(super) fn mark_due(&self) -> bool {
        // Read first: while little is left each decision comes here, and swaps would move the line between processors.
        !self.is_due.load(Ordering::Relaxed) && !self.is_due.swap(true, Ordering::Relaxed)
    }

    pub(super) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    pub(super) fn clear_due(&self) {
        self.is_due.store(false, Ordering::Relaxed);
    }

    /// Whether the last report has found too little room for the wanted units.
    pub(super) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    pub(super) fn set_short(&self, is_short: bool) {
        self.is_short.store(is_short, Ordering::Relaxed);
    }

    /// Gives the slot to a key without a lease. The caller must exclude other calls, and the slot must have no lease.
    pub(super) fn assign(&self, fingerprint: u64) {
        self.begin_generation(0);
        self.fingerprint.store(fingerprint, Ordering::Release);
        self.demand.store(0, Ordering::Relaxed);
        self.is_near.store(false, Ordering::Relaxed);
        self.rest_until(0);
    }

    /// Counts a decision that the lease could not make.
    pub(super) fn add_demand(&self, cost: u64) {
        self.demand.fetch_add(cost.min(MAX_UNITS), Ordering::Relaxed);
    }

    /// Returns the counted demand, and begins to count anew.
    pub(super) fn take_demand(&self) -> u64 {
        self.demand.swap(0, Ordering::Relaxed)
    }

    /// Counts a decision on a key without a lease. Returns the demand in the current window of this duration.
    pub(super) fn count_demand(&self, cost: u64, now: u64, duration: u64) -> u64 {
        if self.is_cold(now) {
            self.demand.store(0, Ordering::Relaxed);
            self.is_resting.store(false, Ordering::Relaxed);
            self.window_end.store(now + duration, Ordering::Relaxed);
        }
        let cost = cost.min(MAX_UNITS);
        self.demand.fetch_add(cost, Ordering::Relaxed).saturating_add(cost)
    }

    /// Marks the slot as leased, with this demand. Returns the start of the window in which it was counted.
    pub(super) fn lease(&self, demand: u64, duration: u64) -> u64 {
        self.demand.store(demand, Ordering::Relaxed);
        self.window_end.swap(LEASED, Ordering::Relaxed).saturating_sub(duration)
    }

    /// The lease has ended, and has cost more than it has saved, unless `end` is 0. The key gets no other one until `end`.
    pub(super) fn rest_until(&self, end: u64) {
        self.clear_due();
        self.set_short(false);
        self.is_resting.store(end > 0, Ordering::Relaxed);
        self.window_end.store(end, Ordering::Relaxed);
    }

    /// Whether a lease has cost more than it has saved lately.
    pub(super) fn is_resting(&self, now: u64) -> bool {
        self.is_resting.load(Ordering::Relaxed) && !self.is_cold(now)
    }

    pub(super) fn is_leased(&self) -> bool {
        self.window_end.load(Ordering::Relaxed) == LEASED
    }

    /// Whether there was no demand lately, on a key without a lease.
    pub(super) fn is_cold(&self, now: u64) -> bool {
        now >= self.window_end.load(Ordering::Relaxed)
    }

    /// Stores whether the usage is at the limit's mark. Returns whether it was after the last decision.
    pub(super) fn replace_near(&self, is_near: bool) -> bool {
        self.is_near.swap(is_near, Ordering::Relaxed)
    }

    /// Stores the figures of a reply.
    pub(super) fn set_reported(&self, remaining: u64, idle_at: u64) {
        self.reported_remaining.store(remaining, Ordering::Relaxed);
        self.reported_idle_at.store(idle_at, Ordering::Relaxed);
    }

    /// Returns the remaining and the time of idleness that Redis reported last.
    #[inline]
    pub(super) fn reported(&self) -> (u64, u64) {
        (self.reported_remaining.load(Ordering::Relaxed), self.reported_idle_at.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const KEY: u64 = 7;

    /// A slot with units until the time 100.
    fn leased(units: u64) -> LeaseSlot {
        let slot = LeaseSlot::default();
        slot.assign(KEY);
        slot.grant(units, 100);
        slot
    }

    /// Spends a cost, as a decision of one limit does. Returns what is left.
    fn spend(slot: &LeaseSlot, fingerprint: u64, cost: u64, now: impl FnOnce() -> u64) -> Option<u32> {
        let taken = slot.take(fingerprint, cost)?;
        if slot.may_spend(taken, now()) {
            return Some(taken.left());
        }
        slot.give_back(taken);
        None
    }

    #[test]
    fn spends_what_it_has_until_the_deadline() {
        let slot = leased(3);
        assert_eq!(spend(&slot, KEY, 2, || 99), Some(1));
        assert_eq!(spend(&slot, KEY, 2, || 99), None, "too few are left");
        assert_eq!(spend(&slot, KEY + 1, 1, || 99), None, "another key");
        assert_eq!(spend(&slot, KEY, 1, || 100), None, "the deadline");
        assert_eq!(slot.remaining(), 1, "the unit was given back");
    }

    /// A thread is suspended between the subtraction and the clock, and a report counts its unit as spent.
    #[test]
    fn report_between_the_subtraction_and_the_clock_ends_the_decision() {
        let slot = leased(3);
        let spent = spend(&slot, KEY, 1, || {
            assert_eq!(slot.begin_generation(u64::MAX), (2, 2));
            50
        });
        assert_eq!(spent, None);
        assert_eq!(slot.remaining(), 2, "the unit was reported as spent, so it is not given back");
    }

    #[test]
    fn grant_between_the_subtraction_and_the_clock_is_harmless() {
        let slot = leased(3);
        let spent = spend(&slot, KEY, 1, || {
            slot.grant(5, 200);
            150
        });
        assert_eq!(spent, Some(2), "the renewed lease covers the unit");
        assert_eq!(slot.remaining(), 7);
    }

    #[test]
    fn another_key_takes_over_without_units() {
        let slot = leased(3);
        let spent = spend(&slot, KEY, 1, || {
            slot.begin_generation(0);
            slot.assign(KEY + 1);
            slot.grant(5, 200);
            50
        });
        assert_eq!(spent, None);
        assert_eq!(slot.remaining(), 5);
    }

    #[test]
    fn threads_spend_each_unit_once() {
        let slot = leased(10_000);
        let spent: u32 = std::thread::scope(|scope| {
            let spend = || (0..10_000).map(|_| u32::from(spend(&slot, KEY, 1, || 50).is_some())).sum::<u32>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(spend)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!((spent, slot.remaining()), (10_000, 0));
    }
}
