//! The decision over any number of limits, of any types: all limits allow, or none is charged.
//!
//! # Protocol
//!
//! An optimistic transaction reads every limit without a lock. To deny, it validates that all readings were valid at
//! one moment. To charge, it locks exactly what it read, in the limits' order, and starts again if anything has
//! changed. All locks are held before the first charge, and until the last one. So no other thread sees a part of the
//! charges. A lock that is not free is not waited for, so there is no deadlock. The common order of limits and of sets
//! lets one of two transactions succeed.

use std::convert::Infallible;
use std::hash::BuildHasher;
use std::marker::PhantomData;
use std::time::Duration;

pub(super) use super::transaction_limit::{AcquireContext, HeldLimit, LimitStep};
use super::transaction_limit::{LimitCharge, TransactionLimit};
use crate::clock::Timestamp;
use crate::decision::{Decision, LimitStatus, Verdict};
use crate::store::inner::{
    Counting, DecisionPart, LimitReading, Plan, ReadMode, ShareRole,
    sync::Backoff,
    table::{LockToken, TableFull},
};

/// Decides over all limits, and charges or holds the cost if all of them allow.
///
/// `limits` are those that apply, and `steps` has one element for each of them. Returns the limits on which the cost is held as well.
#[inline]
pub(super) fn acquire<Key: ?Sized, S: BuildHasher, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    steps: &mut [LimitStep],
    context: &AcquireContext<'_, Key, S>,
) -> (Decision, Vec<HeldLimit>) {
    let (mut context, mut backoff) = (*context, Backoff::new());
    let plan = loop {
        let plan = read_all(limits, steps, &mut context, ReadMode::IfDenied);
        let context = &context;
        if plan.verdict.is_allowed()
            && readings(steps).any(|reading| reading.counting == Counting::DecidesOnly)
            // Such a limit charges nothing, so `LockedLimits::plan` asks for no slot, and would not notice that there
            // is none.
            && let Some(full) = find_full(limits, steps, context, |reading| reading.counting == Counting::DecidesOnly)
        {
            return (table_full_decision(full, context.now), Vec::new());
        }
        if readings(steps).all(|reading| plan.charge_of(reading).is_none()) {
            if is_consistent(limits, steps) {
                break plan;
            }
        } else {
            let charged = LockedLimits::lock(limits, steps).map(|mut locked| {
                locked.plan(&plan, context)?;
                locked.charge(context);
                Ok(())
            });
            match charged {
                Some(Ok(())) => break plan,
                Some(Err(LimitFull { index })) => {
                    // The locks were dropped with `locked`. `make_space` waits for locks, so it must be called without
                    // any.
                    if let Err(full) = limits[index].make_space(context, &steps[index].read) {
                        let reading = &steps[index].read.reading;
                        // Without a slot in the table of shares, the request borrows.
                        if !reading.shadow && reading.share != ShareRole::Share {
                            return (table_full_decision(full, context.now), Vec::new());
                        }
                        steps[index].has_no_slot = true;
                    }
                    // No other thread holds a set, so nothing is waited for (floods in benches/NOTES.md).
                    continue;
                }
                None => {}
            }
        }
        backoff.wait();
    };
    let held = if plan.holds { held_limits(limits, steps, &plan, &context) } else { Vec::new() };
    (decide(limits, steps, &plan, &context), held)
}

/// Moves the limits that apply to the front, in their order, and returns them: those over which to decide.
#[inline]
pub(super) fn applying<'a, 'l, Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &'a mut [&'l L],
    context: &AcquireContext<'_, Key, S>,
) -> &'a [&'l L] {
    let mut count = 0;
    for index in 0..limits.len() {
        if limits[index].applies_to(context.key) {
            limits.swap(count, index);
            count += 1;
        }
    }
    &limits[..count]
}

/// Returns the limits on which the cost is held.
#[cold]
fn held_limits<Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    steps: &[LimitStep],
    plan: &Plan,
    context: &AcquireContext<'_, Key, S>,
) -> Vec<HeldLimit> {
    let is_holding = |step: &LimitStep| step.read.reading.holds && plan.counts(&step.read.reading);
    let holding = limits.iter().zip(steps).filter(|(_, step)| is_holding(step));
    holding.map(|(limit, step)| limit.held_limit(context, &step.read, step.result.as_ref())).collect()
}

/// Denies a key for which the table has no slot.
#[cold]
fn table_full_decision(full: TableFull, now: Timestamp) -> Decision {
    let wait = Timestamp::from_micros(full.until).saturating_since(now);
    // Zero if the keys of the sets are idle and have held amounts: the time of their settlement is unknown. An estimate,
    // also because a key of these sets may move to another set before.
    let wait = if wait.is_zero() { Duration::from_secs(1) } else { wait };
    Decision::by_policy(now, Verdict::Denied { retry_after: wait }).with_estimate(true)
}

/// Returns an error if the table of an enforced limit has no slot for the key, of those that are `selected`.
#[cold]
fn find_full<Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    steps: &[LimitStep],
    context: &AcquireContext<'_, Key, S>,
    selected: impl Fn(&LimitReading) -> bool,
) -> Option<TableFull> {
    let is_selected = |reading: &LimitReading| {
        reading.cost > 0 && !reading.shadow && reading.share != ShareRole::Share && selected(reading)
    };
    let mut selected = limits.iter().zip(steps).filter(|(_, step)| is_selected(&step.read.reading));
    selected.find_map(|(limit, step)| limit.is_full_for(context, &step.read).err())
}

/// Returns the decision of [`acquire`] without charging.
pub(super) fn peek<Key: ?Sized, S: BuildHasher, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    steps: &mut [LimitStep],
    context: &AcquireContext<'_, Key, S>,
) -> Decision {
    let (mut context, mut backoff) = (*context, Backoff::new());
    loop {
        let plan = read_all(limits, steps, &mut context, ReadMode::Snapshot);
        let context = &context;
        if is_consistent(limits, steps) {
            if let Some(index) = share_without_slot(limits, steps, &plan, context) {
                steps[index].has_no_slot = true;
                continue;
            }
            let full = if plan.verdict.is_allowed() { find_full(limits, steps, context, |_| true) } else { None };
            return full
                .map_or_else(|| decide(limits, steps, &plan, context), |full| table_full_decision(full, context.now));
        }
        backoff.wait();
    }
}

/// Returns the index of a share whose table has no slot for the key: the request borrows.
fn share_without_slot<Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    steps: &[LimitStep],
    plan: &Plan,
    context: &AcquireContext<'_, Key, S>,
) -> Option<usize> {
    let charged =
        |step: &LimitStep| step.read.reading.share == ShareRole::Share && plan.charge_of(&step.read.reading).is_some();
    let index = steps.iter().position(charged)?;
    limits[index].is_full_for(context, &steps[index].read).is_err().then_some(index)
}

#[inline]
fn readings(steps: &[LimitStep]) -> impl Iterator<Item = &LimitReading> + Clone {
    steps.iter().map(|step| &step.read.reading)
}

/// Reads all limits, and returns what they decide together.
#[inline]
fn read_all<Key: ?Sized, S: BuildHasher, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    steps: &mut [LimitStep],
    context: &mut AcquireContext<'_, Key, S>,
    mode: ReadMode,
) -> Plan {
    let mode = if limits.len() > 1 { ReadMode::Together } else { mode };
    read_all_fresh(limits, steps, context, mode);
    let read_later =
        |steps: &mut [LimitStep], blocked| Ok::<_, Infallible>(read_later(limits, steps, context, blocked));
    let Ok(plan) = Plan::of(steps, context.options, read_later);
    plan
}

/// Reads all limits as of the end of a block.
#[cold]
fn read_later<Key: ?Sized, S: BuildHasher, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    steps: &mut [LimitStep],
    context: &AcquireContext<'_, Key, S>,
    blocked: Duration,
) -> Vec<LimitReading> {
    let end = AcquireContext { now: context.now.saturating_add(blocked), ..*context };
    let read = limits.iter().zip(steps).map(|(limit, step)| {
        let later = limit.read(&end, ReadMode::Together);
        // The last reading is the one that is validated.
        step.read.location = later.location;
        later.reading
    });
    read.collect()
}

/// Reads all limits soon after the clock was read.
///
/// A thread can be descheduled between the two. By then other threads can have charged at times so far ahead that the
/// states seem to be from a clock that stepped back. Decided like that, the charges of the other threads would be
/// dropped.
#[inline]
fn read_all_fresh<Key: ?Sized, S: BuildHasher, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    steps: &mut [LimitStep],
    context: &mut AcquireContext<'_, Key, S>,
    mode: ReadMode,
) {
    // If a limit's maximum reset is a few microseconds, no reading may be fast enough.
    const MAX_TRIES: u32 = 100;
    for _ in 0..MAX_TRIES {
        for (limit, step) in limits.iter().zip(&mut *steps) {
            step.read = limit.read(context, mode);
            if step.has_no_slot {
                step.read.reading = step.read.reading.without_slot();
            }
        }
        let Some(max_reset) = steps.iter().map(|step| step.read.ahead_by).filter(|ahead_by| *ahead_by > 0).min() else {
            return;
        };
        let now = context.read_clock();
        // The first time was fresh: the states really are from a clock that was ahead, and do not count.
        if now.saturating_since(context.now) <= Duration::from_micros(max_reset) {
            return;
        }
        context.now = now;
    }
}

/// Returns whether all readings were valid at one moment. One reading is consistent by itself.
fn is_consistent<Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized>(limits: &[&L], steps: &[LimitStep]) -> bool {
    limits.len() == 1 || limits.iter().zip(steps).all(|(limit, step)| limit.is_current(&step.read))
}

/// Builds the decision.
#[inline]
fn decide<Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    steps: &[LimitStep],
    plan: &Plan,
    context: &AcquireContext<'_, Key, S>,
) -> Decision {
    let key = PhantomData;
    let parts = limits.iter().zip(steps).map(|(&limit, step)| DecidedLimit { limit, step, plan, key });
    plan.decide(context.now, context.options, parts)
}

/// One limit of a decision that was made.
struct DecidedLimit<'a, Key: ?Sized, S, L: ?Sized> {
    limit: &'a L,
    step: &'a LimitStep,
    plan: &'a Plan,
    key: PhantomData<fn(&Key, &S)>,
}

impl<Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized> DecisionPart for DecidedLimit<'_, Key, S, L> {
    #[inline]
    fn is_shadow(&self) -> bool {
        self.step.read.reading.shadow
    }

    #[inline]
    fn is_borrowing(&self) -> bool {
        self.step.read.reading.borrows
    }

    #[inline]
    fn verdict(&self) -> Verdict {
        self.plan.verdict_of(&self.step.read.reading)
    }

    #[inline]
    fn remaining(&self) -> u64 {
        self.step.numbers().snapshot.compute().remaining
    }

    #[inline]
    fn into_status(self) -> LimitStatus {
        let (numbers, name) = (self.step.numbers(), self.limit.name().clone());
        LimitStatus::from_verdict(name, self.verdict(), numbers.snapshot, self.is_shadow())
            .with_block(self.step.read.reading.block())
            .with_borrowing(self.is_borrowing())
            .with_uncounted(self.step.has_no_slot && self.is_shadow())
            .with_near(numbers.near)
    }
}

/// The locks on all that was read. Dropping unlocks, also if an algorithm panics.
struct LockedLimits<'a, Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized> {
    limits: &'a [&'a L],
    steps: &'a mut [LimitStep],
    /// The token of all locks.
    token: LockToken,
    key: PhantomData<fn(&Key, &S)>,
}

/// The index of a limit whose table is full.
struct LimitFull {
    index: usize,
}

impl<'a, Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized> LockedLimits<'a, Key, S, L> {
    /// Returns `None`, with nothing locked, if anything has changed since the readings.
    #[inline]
    fn lock(limits: &'a [&'a L], steps: &'a mut [LimitStep]) -> Option<Self> {
        let mut token = None;
        for (index, (limit, step)) in limits.iter().zip(&*steps).enumerate() {
            let Some(locked) = limit.lock(&step.read) else {
                for (limit, step) in limits.iter().zip(&*steps).take(index) {
                    limit.unlock_unchanged(&step.read, token.as_ref()?);
                }
                return None;
            };
            token = Some(locked);
        }
        // Without limits there is no token, and nothing to charge.
        Some(Self { limits, steps, token: token?, key: PhantomData })
    }

    /// Plans what each limit is charged, and finds a slot for its key.
    ///
    /// If a later limit has no free slot, the slots of the earlier ones are idle, and so free.
    #[inline]
    fn plan(&mut self, plan: &Plan, context: &AcquireContext<'_, Key, S>) -> Result<(), LimitFull> {
        for (index, (limit, LimitStep { read, charge, .. })) in self.limits.iter().zip(&mut *self.steps).enumerate() {
            *charge = match plan.charge_of(&read.reading) {
                None => None,
                Some(delay) => {
                    let slot = read.location.slot().or_else(|| limit.ensure_slot(context, read, &self.token));
                    Some(LimitCharge { slot: slot.ok_or(LimitFull { index })?, delay })
                }
            };
        }
        Ok(())
    }

    /// Charges each limit as planned.
    #[inline]
    fn charge(&mut self, context: &AcquireContext<'_, Key, S>) {
        for (limit, LimitStep { read, charge, result, .. }) in self.limits.iter().zip(&mut *self.steps) {
            *result = charge.map(|charge| limit.charge(context, read, charge, &self.token));
        }
    }
}

impl<Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized> Drop for LockedLimits<'_, Key, S, L> {
    #[inline]
    fn drop(&mut self) {
        for (limit, step) in self.limits.iter().zip(&*self.steps) {
            limit.unlock(&step.read, &self.token);
        }
    }
}
