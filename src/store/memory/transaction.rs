//! The decision over any number of limits, of any types: all limits allow, or none is charged.
//!
//! # Protocol
//!
//! An optimistic transaction reads every limit without a lock. To deny, it validates that all readings were valid at
//! one moment. To charge, it locks exactly what it read, in the limits' order, and starts again if anything has
//! changed. All locks are held before the first charge, and until the last one. So no other thread sees a part of the
//! charges. The common order of limits and of sets prevents deadlock.

use std::hash::BuildHasher;
use std::marker::PhantomData;
use std::time::Duration;

pub(super) use super::transaction_limit::{AcquireContext, HeldLimit, LimitRead};
use super::transaction_limit::{Counting, ReadMode, TransactionLimit};
use crate::clock::Timestamp;
use crate::decision::{Decision, LimitStatus, Verdict};
use crate::sync::Backoff;
use crate::table::TableFull;

/// Decides over all limits, and charges or holds the cost if all of them allow.
///
/// `reads` has one element for each limit. Returns the limits on which the cost is held as well.
#[inline]
pub(super) fn acquire<Key: ?Sized, S: BuildHasher, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    reads: &mut [LimitRead],
    context: &AcquireContext<'_, Key, S>,
) -> (Decision, Vec<HeldLimit>) {
    let decision = charge(limits, reads, context);
    let mut held = Vec::new();
    if decision.is_allowed() {
        let holding = limits.iter().zip(reads).filter(|(_, read)| read.holds && read.counts());
        held.extend(holding.map(|(limit, read)| limit.held_limit(context, read)));
    }
    (decision, held)
}

#[inline]
fn charge<Key: ?Sized, S: BuildHasher, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    reads: &mut [LimitRead],
    context: &AcquireContext<'_, Key, S>,
) -> Decision {
    let (mut context, mut backoff) = (*context, Backoff::new());
    loop {
        let verdict = read_all(limits, reads, &mut context, ReadMode::IfDenied);
        let context = &context;
        if verdict.is_allowed()
            && reads.iter().any(|read| read.counting == Counting::DecidesOnly)
            && let Some(full) = find_full(limits, reads, context, |read| read.counting == Counting::DecidesOnly)
        {
            return table_full_decision(full, context.now);
        }
        if !verdict.is_allowed() || !reads.iter().any(LimitRead::will_charge) {
            if is_consistent(limits, reads) {
                return decide(limits, reads, context);
            }
        } else {
            let charged = LockedLimits::lock(limits, reads).map(|mut locked| {
                locked.ensure_slots(context)?;
                locked.charge(context, delay(verdict));
                Ok(())
            });
            match charged {
                Some(Ok(())) => return decide(limits, reads, context),
                Some(Err(LimitFull { index })) => {
                    if let Err(full) = limits[index].make_space(context, &reads[index]) {
                        if !reads[index].shadow {
                            return table_full_decision(full, context.now);
                        }
                        reads[index].counting = Counting::NoSlot;
                    }
                }
                None => {}
            }
        }
        backoff.wait();
    }
}

/// Denies a key for which the table has no slot.
#[cold]
fn table_full_decision(full: TableFull, now: Timestamp) -> Decision {
    let wait = Timestamp::from_micros(full.until).saturating_since(now);
    // Zero if the keys of the sets are idle and have held amounts: the time of their settlement is unknown.
    let wait = if wait.is_zero() { Duration::from_secs(1) } else { wait };
    Decision::by_policy(now, Verdict::Denied { retry_after: wait }).with_estimate(full.all_held)
}

/// Returns an error if the table of an enforced limit has no slot for the key, of those that are `selected`.
#[cold]
fn find_full<Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    reads: &[LimitRead],
    context: &AcquireContext<'_, Key, S>,
    selected: impl Fn(&LimitRead) -> bool,
) -> Option<TableFull> {
    let mut selected = limits.iter().zip(reads).filter(|(_, read)| read.cost > 0 && !read.shadow && selected(read));
    selected.find_map(|(limit, read)| limit.is_full_for(context, read).err())
}

/// Returns the decision of [`acquire`] without charging.
pub(super) fn peek<Key: ?Sized, S: BuildHasher, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    reads: &mut [LimitRead],
    context: &AcquireContext<'_, Key, S>,
) -> Decision {
    let (mut context, mut backoff) = (*context, Backoff::new());
    loop {
        let verdict = read_all(limits, reads, &mut context, ReadMode::Snapshot);
        let context = &context;
        if is_consistent(limits, reads) {
            let full = if verdict.is_allowed() { find_full(limits, reads, context, |_| true) } else { None };
            return full.map_or_else(|| decide(limits, reads, context), |full| table_full_decision(full, context.now));
        }
        backoff.wait();
    }
}

/// Reads all limits, and returns the verdict over those that are enforced.
#[inline]
fn read_all<Key: ?Sized, S: BuildHasher, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    reads: &mut [LimitRead],
    context: &mut AcquireContext<'_, Key, S>,
    mode: ReadMode,
) -> Verdict {
    let mode = if limits.len() > 1 { ReadMode::Together } else { mode };
    read_all_fresh(limits, reads, context, mode);
    if reads.iter().all(|read| read.verdict == Verdict::Allowed) {
        if mode == ReadMode::Together && !all_support_scheduling(reads) {
            for read in reads.iter_mut() {
                read.supports_scheduling = false;
            }
        }
        return Verdict::Allowed;
    }
    if mode == ReadMode::Together {
        if !reads.iter().any(|read| read.holds)
            && !context.options.hold
            && context.options.max_delay.is_none_or(|max_delay| !max_delay.is_zero())
            && let Some(blocked) = enforced(reads).map(|read| read.blocked).max().filter(|blocked| !blocked.is_zero())
        {
            return read_after_blocks(limits, reads, context, blocked);
        }
        if !can_schedule(reads) {
            for read in &mut *reads {
                (read.verdict, read.supports_scheduling) = (read.immediate, false);
            }
        }
    }
    enforced(reads).fold(Verdict::Allowed, |verdict, read| verdict.stricter_of(read.verdict))
}

/// Decides for a caller that accepts a delay, on a key that is blocked for so long: as of the end of the block.
///
/// Until then nothing is allowed, and from then on starts can be scheduled again. So the wait that each limit returns
/// now for a caller that accepts no delay can be too long.
#[cold]
fn read_after_blocks<Key: ?Sized, S: BuildHasher, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    reads: &mut [LimitRead],
    context: &AcquireContext<'_, Key, S>,
    blocked: Duration,
) -> Verdict {
    let later = AcquireContext { now: context.now.saturating_add(blocked), ..*context };
    let mut after = vec![LimitRead::EMPTY; limits.len()];
    for (limit, read) in limits.iter().zip(&mut after) {
        limit.read(&later, ReadMode::Together, read);
    }
    let can_schedule = can_schedule(&after);
    for (read, after) in reads.iter_mut().zip(after) {
        let verdict = if can_schedule { after.verdict } else { after.immediate };
        let verdict = match verdict {
            Verdict::Denied { retry_after } => Verdict::Denied { retry_after: retry_after + blocked },
            Verdict::ExceedsLimit => Verdict::ExceedsLimit,
            _ if read.blocked.is_zero() => Verdict::Allowed,
            _ => Verdict::Denied { retry_after: read.blocked },
        };
        if !read.shadow {
            read.verdict = verdict;
        }
        // The last reading is the one that is validated.
        read.location = after.location;
        read.supports_scheduling = false;
    }
    enforced(reads).fold(Verdict::Allowed, |verdict, read| verdict.stricter_of(read.verdict))
}

/// Reads all limits soon after the clock was read.
///
/// A thread can be descheduled between the two. By then other threads can have charged at times so far ahead that the
/// states seem to be from a clock that stepped back. Decided like that, the charges of the other threads would be
/// dropped.
#[inline]
fn read_all_fresh<Key: ?Sized, S: BuildHasher, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    reads: &mut [LimitRead],
    context: &mut AcquireContext<'_, Key, S>,
    mode: ReadMode,
) {
    // If a limit's maximum reset is a few microseconds, no reading may be fast enough.
    const MAX_TRIES: u32 = 100;
    for _ in 0..MAX_TRIES {
        for (limit, read) in limits.iter().zip(&mut *reads) {
            limit.read(context, mode, read);
        }
        let Some(max_reset) = reads.iter().filter_map(|read| read.ahead_by).min() else { return };
        let now = context.read_clock();
        if now.saturating_since(context.now) <= max_reset {
            return;
        }
        context.now = now;
    }
}

fn enforced(reads: &[LimitRead]) -> impl Iterator<Item = &LimitRead> + Clone {
    reads.iter().filter(|read| !read.shadow)
}

/// Returns whether several limits schedule the latest of their starts.
///
/// Each limit must support it and must not be idle before that start. A limit that is idle before would have capacity
/// until then, and a charge at the start would take that capacity from every other request. Resets and starts come
/// nearer at the same pace, so the result stays the same until a limit is charged, and the wait of a denial is exact in
/// both cases.
fn can_schedule(reads: &[LimitRead]) -> bool {
    let start = enforced(reads).fold(Verdict::Allowed, |start, read| start.stricter_of(read.immediate));
    match start {
        Verdict::Denied { retry_after: start } => {
            all_support_scheduling(reads) && enforced(reads).all(|read| read.snapshot.compute().reset >= start)
        }
        _ => all_support_scheduling(reads),
    }
}

/// Returns whether each limit supports scheduling. A request whose cost is held, also by a shadow, must start now.
fn all_support_scheduling(reads: &[LimitRead]) -> bool {
    reads.iter().all(|read| !read.holds && (read.shadow || read.supports_scheduling))
}

/// Returns whether all readings were valid at one moment. One reading is consistent by itself.
fn is_consistent<Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized>(limits: &[&L], reads: &[LimitRead]) -> bool {
    limits.len() == 1 || limits.iter().zip(reads).all(|(limit, read)| limit.is_current(read))
}

fn delay(verdict: Verdict) -> Duration {
    if let Verdict::AllowedAfter(delay) = verdict { delay } else { Duration::ZERO }
}

/// Builds the decision from the readings.
#[inline]
fn decide<Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    reads: &[LimitRead],
    context: &AcquireContext<'_, Key, S>,
) -> Decision {
    let shadows = reads.iter().any(|read| read.shadow);
    let is_denied = || reads.iter().any(|read| !read.verdict.is_allowed());
    if reads.is_empty() || reads.len() > 1 && context.options.lists_all(shadows, is_denied) || shadows {
        return merge_limits(limits, reads, context);
    }
    let index = most_restrictive(reads);
    let supports_scheduling = reads.iter().all(|read| read.supports_scheduling);
    Decision::from_store(context.now, supports_scheduling, status(limits[index], &reads[index]))
        .with_estimate(is_estimate(reads))
}

/// Returns the index of the limit that determines the answer: the longest wait, or if all limits allow immediately the
/// least remaining. Of equals, the first one.
#[inline]
fn most_restrictive(reads: &[LimitRead]) -> usize {
    if reads.len() == 1 {
        return 0;
    }
    // The remaining of each limit is computed once: row "three limits, dynamic" of docs/performance.md.
    let strictness = |read: &LimitRead| match read.verdict {
        Verdict::Allowed => (0, Duration::ZERO),
        Verdict::AllowedAfter(delay) => (1, delay),
        Verdict::Denied { retry_after } => (2, retry_after),
        Verdict::ExceedsLimit => (3, Duration::ZERO),
    };
    let rank = |read: &LimitRead| (strictness(read), std::cmp::Reverse(read.snapshot.compute().remaining));
    let mut strictest = (0, rank(&reads[0]));
    for (index, read) in reads.iter().enumerate().skip(1) {
        let rank = rank(read);
        if rank > strictest.1 {
            strictest = (index, rank);
        }
    }
    strictest.0
}

fn is_estimate(reads: &[LimitRead]) -> bool {
    enforced(reads).any(|read| read.held > 0 && !read.verdict.is_allowed())
}

/// Builds a decision that lists all limits.
#[cold]
fn merge_limits<Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized>(
    limits: &[&L],
    reads: &[LimitRead],
    context: &AcquireContext<'_, Key, S>,
) -> Decision {
    let supports_scheduling = enforced(reads).all(|read| read.supports_scheduling);
    let statuses = limits.iter().zip(reads).map(|(limit, read)| status(*limit, read));
    Decision::combine(context.now, true, statuses)
        .with_scheduling(supports_scheduling)
        .with_estimate(is_estimate(reads))
}

#[inline]
fn status<Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized>(limit: &L, read: &LimitRead) -> LimitStatus {
    LimitStatus::from_verdict(limit.name().clone(), read.verdict, read.snapshot, read.shadow)
        .with_uncounted(read.counting == Counting::NoSlot)
}

/// The locks on all that was read. Dropping unlocks, also if an algorithm panics.
struct LockedLimits<'a, Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized> {
    limits: &'a [&'a L],
    reads: &'a mut [LimitRead],
    key: PhantomData<fn(&Key, &S)>,
}

/// The index of a limit whose table is full.
struct LimitFull {
    index: usize,
}

impl<'a, Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized> LockedLimits<'a, Key, S, L> {
    /// Returns `None`, with nothing locked, if anything has changed since the readings.
    #[inline]
    fn lock(limits: &'a [&'a L], reads: &'a mut [LimitRead]) -> Option<Self> {
        for (index, (limit, read)) in limits.iter().zip(&*reads).enumerate() {
            if !limit.lock(read) {
                for (limit, read) in limits.iter().zip(&*reads).take(index) {
                    limit.unlock_unchanged(read);
                }
                return None;
            }
        }
        Some(Self { limits, reads, key: PhantomData })
    }

    /// Finds a slot for the key of each limit.
    ///
    /// If a later limit has no free slot, the slots of the earlier ones are idle, and so free.
    #[inline]
    fn ensure_slots(&mut self, context: &AcquireContext<'_, Key, S>) -> Result<(), LimitFull> {
        for (index, (limit, read)) in self.limits.iter().zip(&mut *self.reads).enumerate() {
            if read.will_charge() {
                read.slot = read.location.slot().or_else(|| limit.ensure_slot(context, read));
                if read.slot.is_none() {
                    return Err(LimitFull { index });
                }
            }
        }
        Ok(())
    }

    /// Charges each limit, or holds the cost on it. Stores the snapshots after that in the readings.
    #[inline]
    fn charge(&mut self, context: &AcquireContext<'_, Key, S>, delay: Duration) {
        for (limit, read) in self.limits.iter().zip(&mut *self.reads).filter(|(_, read)| read.will_charge()) {
            if read.holds {
                limit.hold(context, read);
            } else {
                // A shadow counts the request at the start that it would have scheduled.
                let delay = if read.shadow { self::delay(read.verdict) } else { delay };
                limit.charge(context, read, delay);
            }
        }
    }
}

impl<Key: ?Sized, S, L: TransactionLimit<Key, S> + ?Sized> Drop for LockedLimits<'_, Key, S, L> {
    #[inline]
    fn drop(&mut self) {
        for (limit, read) in self.limits.iter().zip(&*self.reads) {
            limit.unlock(read);
        }
    }
}
