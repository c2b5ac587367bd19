//! The fast path of limits whose types are known: one limit, or several limits in a tuple.
//!
//! The operation is the same for a present and an absent key: find the entry, decide, lock what was read, store,
//! unlock. What the fast path does not handle, it leaves to the [transaction](super::transaction): a lone shadow limit, limits
//! with a mark, limits that keep units free, keys beside blocked keys or held costs in a set of the table, costs in units,
//! readings from a clock that stepped back, and with several limits every request that is not allowed immediately.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use super::limit_table::{AtomicStateOf, CellOf, LimitTable};
use super::transaction::{self, AcquireContext, HeldLimit, LimitStep};
use super::transaction_limit::TransactionLimit;
use crate::algorithm::{Algorithm, ChargeOptions, State, Step};
use crate::clock::Timestamp;
use crate::decision::{Decision, LazySnapshot, LimitStatus, Verdict};
use crate::limit::{AlgorithmSelector, SelectAlgorithm, SubKeyOf};
use crate::store::inner::{
    AtomicState, InLine, Name, ShareRole, StatusList,
    sync::Backoff,
    table::{Entry, LockedEntry, LookupError, StoreError, TableEntry},
};

/// Why an entry was not decided. Nothing was charged.
enum EntryError {
    /// The fast path does not apply.
    NotApplicable,
    /// The complete case must decide.
    Uncommon,
    Store(StoreError),
}

impl From<StoreError> for EntryError {
    #[inline]
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Decides one request on a present key. An error charges nothing.
///
/// This function has no loop, and lends nothing to a function that is not in line. So all that it reads stays in
/// registers, and the decision is written once, where the caller needs it.
// Without inlining, row "hot key" of docs/performance.md takes 1.55 times as long.
#[inline(always)]
pub(super) fn try_acquire<const COMPLETE: bool, Key, C, P, S>(
    limit: &LimitTable<C, P>,
    context: &AcquireContext<'_, Key, S>,
) -> Result<Decision, LookupError>
where
    Key: ?Sized,
    C: SelectAlgorithm<Key>,
    P: SubKeyOf<Key>,
    P::SubKey: Hash,
    S: BuildHasher,
{
    if context.options.hold || context.options.has_units() || !limit.allows_fast_path::<Key>() {
        return Err(LookupError::NotApplicable);
    }
    let mut state = CellOf::<C>::empty();
    let hash = limit.key_hash(context.key, context.hasher).ok_or(LookupError::NotApplicable)?;
    let entry = limit.table.find(hash, &mut state)?;
    match acquire_entry::<COMPLETE, _, _, _, _, _>(limit, context, entry, &mut state) {
        Ok(decision) => Ok(decision),
        Err(EntryError::Store(_)) => Err(LookupError::Contended),
        Err(EntryError::Uncommon) => Err(LookupError::Uncommon),
        Err(EntryError::NotApplicable) => Err(LookupError::NotApplicable),
    }
}

/// Decides one request on an entry, present or vacant, and stores the next state.
///
/// In line is the common case: a request that is allowed immediately, or denied. The complete case is out of line.
// Rows "hot key" (126 instructions instead of 222) and "1000 keys" of docs/performance.md.
#[inline(always)]
fn acquire_entry<'a, const COMPLETE: bool, Key, C, P, S, E>(
    limit: &'a LimitTable<C, P>,
    context: &AcquireContext<'_, Key, S>,
    entry: E,
    state: &mut <CellOf<C> as AtomicState>::Snapshot<'a>,
) -> Result<Decision, EntryError>
where
    Key: ?Sized,
    C: SelectAlgorithm<Key>,
    E: TableEntry<'a, CellOf<C>>,
{
    let &AcquireContext { now, .. } = context;
    let options = limit.limit.options(context.options);
    let chosen = limit.limit.algorithm().select(context.key);
    let algorithm: &C::Algorithm = chosen.borrow();
    if limit.is_ahead(state, now, algorithm) {
        return Err(EntryError::NotApplicable);
    }
    let charge = ChargeOptions::from(options);
    let step = if COMPLETE {
        algorithm.decide(state, now, charge)
    } else {
        algorithm.decide_in_line(state, now, charge, InLine).ok_or(EntryError::Uncommon)?
    };
    let (wait, snapshot) = match step {
        Step::Allow { next, delay: 0 } if options.cost > 0 => (0, store(entry, state, next, algorithm, now)?),
        // `from_wait` reads zero as allowed, and an algorithm of a user's own may deny for no time.
        Step::Deny { wait } => (wait.max(1), algorithm.snapshot(state, now)),
        _ if !COMPLETE => return Err(EntryError::Uncommon),
        step => {
            let verdict = step.verdict();
            let snapshot = match step {
                Step::Allow { next, .. } if options.cost > 0 => store(entry, state, next, algorithm, now)?,
                _ => algorithm.snapshot(state, now),
            };
            let status = LimitStatus::from_verdict(limit.limit.name_handle().clone(), verdict, snapshot, false);
            return Ok(Decision::from_store(now, algorithm.supports_scheduling(), status));
        }
    };
    // Built in one place: two would keep the drop of a decision that is not used. Row "hot key" of docs/performance.md.
    let status = LimitStatus::from_wait(limit.limit.name_handle().clone(), wait, snapshot);
    Ok(Decision::from_store(now, algorithm.supports_scheduling(), status))
}

/// Locks what was read, stores the next state and unlocks. Returns the snapshot of that state.
// Row "insertion" of docs/performance.md: 677 instructions instead of 754.
#[inline(always)]
fn store<'a, A: Algorithm>(
    entry: impl TableEntry<'a, AtomicStateOf<A>>,
    present: &mut <AtomicStateOf<A> as AtomicState>::Snapshot<'a>,
    next: <A::State as State>::Next,
    algorithm: &A,
    now: Timestamp,
) -> Result<LazySnapshot, StoreError> {
    // Before the lock: the compiler then knows that the state is of this quota, and drops a snapshot that is not used.
    // Row "hot key" of docs/performance.md.
    match preview(algorithm, &next, now) {
        Some(snapshot) => {
            let is_same = |state: &A::State| snapshot.compute() == algorithm.snapshot(state, now).compute();
            entry.store(present, next, |state| debug_assert!(is_same(state), "the snapshot of another state"))?;
            Ok(snapshot)
        }
        None => entry.store(present, next, |state| algorithm.snapshot(state, now)),
    }
}

/// Returns the snapshot of the next state, unless it can be taken only after the edit.
#[inline]
fn preview<A: Algorithm>(algorithm: &A, next: &<A::State as State>::Next, now: Timestamp) -> Option<LazySnapshot> {
    match A::State::next_state(next) {
        Some(state) => Some(algorithm.snapshot(state, now)),
        None => A::State::next_snapshot(next),
    }
}

/// Decides any request on one limit, after [`try_acquire`] returned `error`.
#[inline(never)]
pub(super) fn acquire_slow<Key, C, P, S>(
    limit: &LimitTable<C, P>,
    context: AcquireContext<'_, Key, S>,
    mut error: LookupError,
) -> (Decision, Vec<HeldLimit>)
where
    Key: ?Sized,
    C: SelectAlgorithm<Key>,
    P: SubKeyOf<Key>,
    P::SubKey: Hash,
    S: BuildHasher,
{
    // Apart from the loop, and returned from here: row "insertion" of docs/performance.md.
    if error == LookupError::NotFound {
        match try_insert(limit, &context) {
            Ok(decision) => return (decision, Vec::new()),
            Err(next) => error = next,
        }
    }
    let mut backoff = Backoff::new();
    while matches!(error, LookupError::Uncommon | LookupError::Contended) {
        if error == LookupError::Contended {
            backoff.wait();
        }
        match try_acquire::<true, _, _, _, _>(limit, &context) {
            Ok(decision) => return (decision, Vec::new()),
            Err(next) => error = next,
        }
    }
    let (mut limits, mut steps) = ([limit], [LimitStep::EMPTY]);
    let limits = transaction::applying(&mut limits, &context);
    transaction::acquire(limits, &mut steps[..limits.len()], &context)
}

/// Decides one request on an absent key.
// Not retried here if another thread was faster: the transaction reads and retries by itself.
// In line: row "insertion" of docs/performance.md.
#[inline(always)]
fn try_insert<Key, C, P, S>(
    limit: &LimitTable<C, P>,
    context: &AcquireContext<'_, Key, S>,
) -> Result<Decision, LookupError>
where
    Key: ?Sized,
    C: SelectAlgorithm<Key>,
    P: SubKeyOf<Key>,
    P::SubKey: Hash,
    S: BuildHasher,
{
    let hash = limit.key_hash(context.key, context.hasher).ok_or(LookupError::NotApplicable)?;
    loop {
        let mut state = CellOf::<C>::empty();
        let entry = limit.table.find_vacant(hash, context.now.as_micros(), &mut state);
        let entry = entry.ok_or(LookupError::NotApplicable)?;
        let location = entry.location();
        match acquire_entry::<false, _, _, _, _, _>(limit, context, entry, &mut state) {
            Ok(decision) => return Ok(decision),
            Err(EntryError::Store(StoreError::Full)) => {
                let chosen = limit.limit.algorithm().select(context.key);
                // If the table is full, the transaction denies.
                limit.evict_for(&location, context.now, chosen.borrow()).map_err(|_| LookupError::NotApplicable)?;
            }
            Err(EntryError::Store(StoreError::Changed) | EntryError::NotApplicable | EntryError::Uncommon) => {
                return Err(LookupError::NotApplicable);
            }
        }
    }
}

/// One limit of several that would allow the request immediately.
pub(super) struct Prepared<'a, Chosen, A: Algorithm> {
    entry: Entry<'a, <A::State as State>::AtomicState>,
    next: <A::State as State>::Next,
    preview: Option<LazySnapshot>,
    name: &'a Name,
    /// A share, and the limits beside a share, schedule nothing. A shadow does not prevent the others from it.
    schedules: Schedules,
    chosen: Chosen,
}

/// Whether a limit that allows the request now schedules later starts, and whether it is a shadow.
#[derive(Clone, Copy)]
struct Schedules {
    never: bool,
    is_shadow: bool,
}

impl<'a, Chosen: Borrow<A>, A: Algorithm> Prepared<'a, Chosen, A> {
    /// Finds the entry and decides. `None` leaves the request to the transaction.
    // Row "three limits" of docs/performance.md: 526 instructions instead of 1146.
    #[inline(always)]
    pub(super) fn new<const SHADOWS: bool, Key, C, P, S>(
        limit: &'a LimitTable<C, P>,
        context: &AcquireContext<'_, Key, S>,
        state: &mut <AtomicStateOf<A> as AtomicState>::Snapshot<'a>,
    ) -> Option<Self>
    where
        Key: ?Sized,
        C: SelectAlgorithm<Key, Selected<'a> = Chosen> + AlgorithmSelector<Algorithm = A>,
        P: SubKeyOf<Key>,
        P::SubKey: Hash,
        S: BuildHasher,
    {
        if !(if SHADOWS { limit.allows_fast_path_beside_others::<Key>() } else { limit.allows_fast_path::<Key>() }) {
            return None;
        }
        let entry = limit.table.find(limit.key_hash(context.key, context.hasher)?, state).ok()?;
        let chosen = limit.limit.algorithm().select(context.key);
        if limit.is_ahead(state, context.now, chosen.borrow()) {
            return None;
        }
        let options = limit.limit.options(context.options);
        if options.cost == 0 {
            return None;
        }
        match chosen.borrow().decide_in_line(state, context.now, options.into(), InLine) {
            Some(Step::Allow { next, delay: 0 }) => {
                // As in `store`: row "three limits" of docs/performance.md.
                let preview = preview(chosen.borrow(), &next, context.now);
                let schedules = Schedules {
                    never: limit.limit.share() != ShareRole::None,
                    is_shadow: SHADOWS && limit.limit.is_shadow(),
                };
                Some(Self { entry, next, preview, name: limit.limit.name_handle(), schedules, chosen })
            }
            _ => None,
        }
    }

    /// Locks the entry. `None` if it has changed since the reading.
    #[inline]
    pub(super) fn lock(self) -> Option<LockedLimit<'a, Chosen, A>> {
        let Self { entry, next, preview, name, schedules, chosen } = self;
        Some(LockedLimit { entry: entry.lock().ok()?, next, preview, name, schedules, chosen })
    }
}

/// One limit of several, locked. No limit is charged before all are locked.
pub(super) struct LockedLimit<'a, Chosen, A: Algorithm> {
    entry: LockedEntry<'a, AtomicStateOf<A>>,
    next: <A::State as State>::Next,
    preview: Option<LazySnapshot>,
    name: &'a Name,
    schedules: Schedules,
    chosen: Chosen,
}

impl<'a, Chosen: Borrow<A>, A: Algorithm> LockedLimit<'a, Chosen, A> {
    /// Charges the limit, which stays locked until the first value is dropped.
    // Row "three limits" of docs/performance.md: 1181 instructions without, as all numbers are then computed.
    #[inline(always)]
    pub(super) fn charge(
        self,
        now: Timestamp,
        present: &mut <AtomicStateOf<A> as AtomicState>::Snapshot<'a>,
    ) -> (LockedEntry<'a, AtomicStateOf<A>>, Charged<'a>) {
        let Self { entry, next, preview, name, schedules, chosen } = self;
        let algorithm: &A = chosen.borrow();
        let snapshot = match preview {
            Some(snapshot) => {
                entry.store(present, next, |_| ());
                snapshot
            }
            None => entry.store(present, next, |state| algorithm.snapshot(state, now)),
        };
        let Schedules { never, is_shadow } = schedules;
        let supports_scheduling = is_shadow || !never && algorithm.supports_scheduling();
        (entry, Charged { name, snapshot, is_shadow, supports_scheduling })
    }
}

/// One limit of several, charged.
pub(super) struct Charged<'a> {
    name: &'a Name,
    snapshot: LazySnapshot,
    pub(super) is_shadow: bool,
    pub(super) supports_scheduling: bool,
}

impl Charged<'_> {
    #[inline]
    pub(super) fn remaining(&self) -> u64 {
        self.snapshot.compute().remaining
    }

    #[inline]
    pub(super) fn status(&self) -> LimitStatus {
        LimitStatus::from_verdict(self.name.clone(), Verdict::Allowed, self.snapshot, self.is_shadow)
    }
}

/// Builds the decision of limits that were charged, and that the decision lists: all, or as there are shadows.
pub(super) fn listed(charged: &[Charged<'_>], now: Timestamp, supports_scheduling: bool, lists_all: bool) -> Decision {
    let statuses = charged.iter().map(Charged::status).collect();
    Decision::of_listed(now, supports_scheduling, statuses, lists_all)
}

/// What a decision over limits of any types has charged on the fast path.
#[allow(missing_debug_implementations, unreachable_pub, reason = "named by a hidden trait only")]
pub struct Charges<'a> {
    /// The most restrictive limit so far, and its remaining.
    least: Option<(u64, Charged<'a>)>,
    /// The limits in the reverse order, if the decision lists them.
    listed: Option<StatusList>,
    supports_scheduling: bool,
}

impl<'a> Charges<'a> {
    /// Returns the charges before the first one. `lists` says whether the decision lists limits.
    #[inline]
    pub(super) fn none(lists: bool) -> Self {
        Self { least: None, listed: lists.then(StatusList::new), supports_scheduling: true }
    }

    /// Adds a limit. The limits are charged from the last to the first: of equals, the first is the most restrictive.
    #[inline]
    fn add(&mut self, charged: Charged<'a>) {
        self.supports_scheduling &= charged.supports_scheduling;
        if let Some(listed) = &mut self.listed {
            listed.push(charged.status());
            return;
        }
        let remaining = charged.remaining();
        if self.least.as_ref().is_none_or(|(least, _)| remaining <= *least) {
            self.least = Some((remaining, charged));
        }
    }

    pub(super) fn into_decision(self, now: Timestamp, lists_all: bool) -> Option<Decision> {
        if let Some(mut listed) = self.listed {
            listed.reverse();
            return Some(Decision::of_listed(now, self.supports_scheduling, listed, lists_all));
        }
        let (_, least) = self.least?;
        Some(Decision::from_store(now, self.supports_scheduling, least.status()))
    }
}

/// Charges a limit and the `rest`, unless one of them does not allow the request immediately.
///
/// Each limit waits on the stack, locked, for the next one: so its types stay known, and nothing is allocated. No lock is
/// released before all are held, so no other thread reads one limit as it was before the charges and another one as after
/// them. A lock that is not free is not waited for, so the order of the locks cannot deadlock.
// Row "three limits, dynamic" of docs/performance.md: the transaction takes five times the instructions.
#[inline]
pub(super) fn try_charge<'a, Key, C, P, S>(
    limit: &'a LimitTable<C, P>,
    context: &AcquireContext<'_, Key, S>,
    rest: &[&'a dyn TransactionLimit<Key, S>],
    charges: &mut Charges<'a>,
) -> bool
where
    Key: ?Sized,
    C: SelectAlgorithm<Key>,
    P: SubKeyOf<Key>,
    P::SubKey: Hash,
    S: BuildHasher,
{
    let mut state = CellOf::<C>::empty();
    let Some(locked) = Prepared::new::<true, _, _, _, _>(limit, context, &mut state).and_then(Prepared::lock) else {
        return false;
    };
    if let Some((next, rest)) = rest.split_first()
        && !next.try_charge(context, rest, charges)
    {
        locked.entry.unlock_unchanged();
        return false;
    }
    let (entry, charged) = locked.charge(context.now, &mut state);
    drop(entry);
    charges.add(charged);
    true
}
