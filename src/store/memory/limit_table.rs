use std::any::{Any, TypeId};
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

use super::algorithm_eviction::AlgorithmEviction;
use super::blocks::Blocks;
use super::deadlines::Deadlines;
use super::decide::{self, Charges};
use super::save::{HeldAlgorithms, SavedNames};
use super::transaction_limit::{
    AcquireContext, Capacity, HeldLimit, LimitCharge, LimitRead, LimitResult, TransactionLimit,
};
use super::usage::KeyId;
use crate::algorithm::{Algorithm, State};
use crate::clock::Timestamp;
use crate::decision::{BlockReason, Decision, LazySnapshot};
use crate::error::Error;
use crate::limit::{AlgorithmSelector, Limit, SelectAlgorithm, SubKeyOf};
use crate::limiter::LimitsOfKey;
use crate::store::inner::{
    AtomicState, LimitNumbers, LimitOfKey, LimitReading, ReadMode, ShareRole, limit_id, micros_floor,
    table::{Location, LockToken, LookupError, Reading, SlotIndex, Table, TableFull, fingerprint},
};
use crate::table::WhenFull;

/// A limit with its table.
#[allow(missing_debug_implementations, reason = "hidden, behind the limiter")]
pub struct LimitTable<C: AlgorithmSelector, P> {
    pub(super) limit: Limit<C, P>,
    pub(super) table: Table<CellOf<C>>,
    /// Shared with the limits that replace this one.
    pub(super) blocks: Arc<Blocks>,
    /// Shared with the limits that replace this one, too.
    pub(super) deadlines: Arc<Deadlines>,
    /// Shared with the limits that replace this one, too.
    pub(super) held_algorithms: Arc<HeldAlgorithms<C::Algorithm>>,
    capacity: Capacity,
    has_mark: bool,
    /// The limit is no shadow, and has no mark.
    pub(super) is_plain: bool,
    /// The algorithm's maximum reset in microseconds, which each decision needs: row "hot key" of docs/performance.md.
    /// Zero if the algorithm is chosen by the key.
    max_reset: u64,
}

pub(super) type StateOf<C> = <<C as AlgorithmSelector>::Algorithm as Algorithm>::State;
pub(super) type AtomicStateOf<A> = <<A as Algorithm>::State as State>::AtomicState;
pub(super) type CellOf<C> = AtomicStateOf<<C as AlgorithmSelector>::Algorithm>;

impl<C: AlgorithmSelector, P: 'static> LimitTable<C, P> {
    /// The maximum of `max_reset`: the sum with any time of a clock does not overflow.
    const MAX_RESET: u64 = 1 << 62;

    /// Creates a limit with an empty table.
    ///
    /// # Errors
    ///
    /// Returns an error if the unit of the limit has no name, or if the states could take more than
    /// `capacity.max_heap_bytes` on the heap.
    pub(super) fn new(limit: Limit<C, P>, capacity: Capacity) -> Result<Self, Error> {
        let words = limit.algorithm().fixed().map_or(crate::algorithm::Counters::MAX_WORDS, Algorithm::counter_words);
        let table = Table::with_capacity(capacity.max_keys, words, capacity.when_full);
        Self::from_tables(limit, capacity, table, Arc::default(), Arc::default(), Arc::default())
    }

    /// Creates a limit that can be replaced: with the table of the limit that it replaces, if that has the same type.
    ///
    /// Its states have the maximum number of words, as the number may differ between algorithms of one type.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub(super) fn replacing(limit: Limit<C, P>, capacity: Capacity, of: Option<&dyn Any>) -> Result<Self, Error> {
        let previous = of
            .and_then(|previous| previous.downcast_ref::<Self>())
            .filter(|previous| limit.has_same_sub_key(&previous.limit));
        let words = crate::algorithm::Counters::MAX_WORDS;
        if let Some(Self { limit: previous, table, blocks, deadlines, held_algorithms, .. }) = previous {
            let limit = limit.continuing(previous);
            let (blocks, deadlines) = (Arc::clone(blocks), Arc::clone(deadlines));
            return Self::from_tables(limit, capacity, table.clone(), blocks, deadlines, Arc::clone(held_algorithms));
        }
        let table = Table::with_capacity(capacity.max_keys, words, capacity.when_full);
        Self::from_tables(limit, capacity, table, Arc::default(), Arc::default(), Arc::default())
    }

    fn from_tables(
        limit: Limit<C, P>,
        capacity: Capacity,
        table: Table<CellOf<C>>,
        blocks: Arc<Blocks>,
        deadlines: Arc<Deadlines>,
        held_algorithms: Arc<HeldAlgorithms<C::Algorithm>>,
    ) -> Result<Self, Error> {
        let algorithm = limit.algorithm().fixed();
        let heap = algorithm.map_or(0, Algorithm::max_heap_bytes).saturating_mul(table.state_count());
        if heap > capacity.max_heap_bytes {
            return Err(Error::config(format!(
                "limit {:?}: {} keys could take {heap} bytes on the heap, and the maximum is {}; lower `max_keys`, \
                 raise `max_heap_bytes`, or choose a `SlidingWindow`",
                limit.name(),
                table.capacity(),
                capacity.max_heap_bytes,
            )));
        }
        if let Some(sub_keys) = limit.share_count().filter(|count| *count > table.capacity() as u64) {
            return Err(Error::config(format!(
                "guaranteed share {:?}: there are {sub_keys} sub-keys, and the table has capacity for {} keys; raise \
                 `max_keys`",
                limit.name(),
                table.capacity(),
            )));
        }
        let max_reset =
            limit.algorithm().fixed().map_or(0, |algorithm| micros_floor(algorithm.max_reset()).min(Self::MAX_RESET));
        let has_mark = limit.warn_keys().is_some();
        let is_plain = !limit.is_shadow() && !has_mark;
        Ok(Self { limit, table, blocks, deadlines, held_algorithms, capacity, has_mark, is_plain, max_reset })
    }
}

impl<C: AlgorithmSelector, P> LimitTable<C, P> {
    /// Returns the hash of the sub-key, `None` if the limit does not apply.
    #[inline]
    pub(super) fn key_hash<Key: ?Sized>(&self, key: &Key, hasher: &impl BuildHasher) -> Option<u64>
    where
        P: SubKeyOf<Key>,
        P::SubKey: Hash,
    {
        self.limit.sub_key().with_sub_key(key, |part| hasher.hash_one(part))
    }

    /// Returns the hash of the sub-key of a limit that applies. A condition that has changed its result since then gets
    /// an arbitrary one.
    #[inline]
    fn applying_hash<Key: ?Sized>(&self, context: &AcquireContext<'_, Key, impl BuildHasher>) -> u64
    where
        P: SubKeyOf<Key>,
        P::SubKey: Hash,
    {
        self.key_hash(context.key, context.hasher).unwrap_or_default()
    }

    /// Returns whether the limit is enforced, decides by its states alone, and signals nothing.
    #[inline]
    pub(super) fn allows_fast_path<Key: ?Sized>(&self) -> bool
    where
        P: SubKeyOf<Key>,
    {
        self.is_plain && self.decides_by_states()
    }

    /// As [`allows_fast_path`](Self::allows_fast_path), for one limit of several, which may be a shadow.
    #[inline]
    pub(super) fn allows_fast_path_beside_others<Key: ?Sized>(&self) -> bool
    where
        P: SubKeyOf<Key>,
    {
        !self.has_mark && self.decides_by_states()
    }

    #[inline]
    fn decides_by_states<Key: ?Sized>(&self) -> bool
    where
        P: SubKeyOf<Key>,
    {
        // A request that all limits allow now is within its share, and so needs no free units beside a share.
        !C::Algorithm::HELD_UNTIL_END && (!self.limit.sub_key().keeps_free() || self.limit.share() == ShareRole::Common)
    }

    pub(super) fn eviction_policy<'a>(
        &self,
        algorithm: &'a C::Algorithm,
        now: Timestamp,
    ) -> AlgorithmEviction<'a, C::Algorithm> {
        AlgorithmEviction { algorithm, now, when_full: self.when_full() }
    }

    pub(super) fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// A shadow limit never denies, so its table evicts instead.
    pub(super) fn when_full(&self) -> WhenFull {
        match self.capacity.when_full {
            WhenFull::Deny if self.limit.is_shadow() => WhenFull::Evict,
            // An evicted sub-key would have its whole share again. Without a slot, a request borrows.
            WhenFull::Evict if self.limit.share() == ShareRole::Share => WhenFull::Deny,
            when_full => when_full,
        }
    }

    /// Returns the state that an absent key starts with, if it inherits any debt.
    #[inline]
    fn inherited_debt(&self, location: &Location, algorithm: &C::Algorithm, now: Timestamp) -> Option<StateOf<C>> {
        if location.is_absent() {
            self.table.inherited_debt(location, &self.eviction_policy(algorithm, now))
        } else {
            None
        }
    }

    /// Returns whether a state is so far ahead of `now` that the algorithm would decide as on the zero state. Then the
    /// transaction reads the clock again.
    #[inline]
    pub(super) fn is_ahead(&self, state: &StateOf<C>, now: Timestamp, algorithm: &C::Algorithm) -> bool {
        let idle_at = state.idle_at();
        // An algorithm that selects itself is the same for all keys, so `max_reset` is known.
        if TypeId::of::<C>() == TypeId::of::<C::Algorithm>() {
            idle_at > now.as_micros().wrapping_add(self.max_reset)
        } else {
            is_ahead_of_clock(idle_at, now, algorithm)
        }
    }

    /// Without the lock: frees a slot for an absent key, if a key can be relocated or evicted.
    pub(super) fn evict_for(
        &self,
        location: &Location,
        now: Timestamp,
        algorithm: &C::Algorithm,
    ) -> Result<(), TableFull> {
        self.table.make_space(location, now.as_micros(), &self.eviction_policy(algorithm, now))
    }

    /// Returns the numbers after a charge or a hold, and whether it has crossed the limit's mark.
    #[inline]
    pub(super) fn numbers_after_charge(&self, read: &LimitRead, snapshot: LazySnapshot) -> LimitNumbers {
        read.reading.numbers_after(self.limit.warn_keys(), snapshot, read.location.hash(), read.now)
    }

    /// Decides on a state.
    #[inline]
    fn evaluate<Key: ?Sized, S>(
        &self,
        algorithm: &C::Algorithm,
        state: &StateOf<C>,
        held: u64,
        context: &AcquireContext<'_, Key, S>,
        mode: ReadMode,
        (location, now): (&Location, Timestamp),
    ) -> LimitReading
    where
        P: SubKeyOf<Key>,
    {
        let block = self.blocks.remaining(&self.table, location, context.now, context.clock);
        context.transition(&self.limit, algorithm).read(state, held, block, now, mode)
    }
}

impl<Key: ?Sized, C, P, S> TransactionLimit<Key, S> for LimitTable<C, P>
where
    C: SelectAlgorithm<Key>,
    P: SubKeyOf<Key>,
    P::SubKey: Hash,
    S: BuildHasher,
{
    #[inline]
    fn applies_to(&self, key: &Key) -> bool {
        self.limit.sub_key().applies_to(key)
    }

    fn try_acquire(&self, context: &AcquireContext<'_, Key, S>) -> Result<Decision, LookupError> {
        decide::try_acquire::<false, _, _, _, _>(self, context)
    }

    fn try_hold(&self, context: &AcquireContext<'_, Key, S>) -> Option<(Decision, HeldLimit)> {
        self.try_hold(context)
    }

    fn try_charge<'a>(
        &'a self,
        context: &AcquireContext<'_, Key, S>,
        rest: &[&'a dyn TransactionLimit<Key, S>],
        charges: &mut Charges<'a>,
    ) -> bool {
        decide::try_charge(self, context, rest, charges)
    }

    #[inline]
    fn read(&self, context: &AcquireContext<'_, Key, S>, mode: ReadMode) -> LimitRead {
        let hash = self.applying_hash(context);
        self.end_due_holds(fingerprint(hash), context.now, context.clock);
        let chosen = self.limit.algorithm().select(context.key);
        let algorithm: &C::Algorithm = chosen.borrow();
        let (mut location, mut state) = (Location::EMPTY, CellOf::<C>::empty());
        let Reading { horizon, held } = self.table.read(hash, &mut location, &mut state);
        let now = clamp_to_horizon(Timestamp::from_micros(horizon), context.now, algorithm);
        // Read once more, so possibly of a later state. Then locking fails, and the transaction reads again.
        let idle_at = location.slot().map_or(horizon, |slot| self.table.idle_at(slot));
        let is_ahead = is_ahead_of_clock(idle_at, context.now, algorithm);
        let ahead_by = if is_ahead { micros_floor(algorithm.max_reset()).max(1) } else { 0 };
        let reading = match self.inherited_debt(&location, algorithm, now) {
            None => self.evaluate(algorithm, &state, held, context, mode, (&location, now)),
            Some(state) if self.table.is_current(&location) => {
                self.evaluate(algorithm, &state, held, context, mode, (&location, now))
            }
            // An eviction has changed the debt since the reading. So rare that a recursion does.
            Some(_) => return self.read(context, mode),
        };
        LimitRead { location, now, ahead_by, reading }
    }

    fn is_current(&self, read: &LimitRead) -> bool {
        self.table.is_current(&read.location)
    }

    #[inline]
    fn lock(&self, read: &LimitRead) -> Option<LockToken> {
        self.table.lock(&read.location)
    }

    fn unlock_unchanged(&self, read: &LimitRead, token: &LockToken) {
        self.table.unlock_unchanged(&read.location, token);
    }

    #[inline]
    fn unlock(&self, read: &LimitRead, token: &LockToken) {
        self.table.unlock(&read.location, token);
    }

    fn ensure_slot(
        &self,
        context: &AcquireContext<'_, Key, S>,
        read: &LimitRead,
        token: &LockToken,
    ) -> Option<SlotIndex> {
        let chosen = self.limit.algorithm().select(context.key);
        let policy = self.eviction_policy(chosen.borrow(), read.now);
        self.table.ensure_slot(&read.location, read.now.as_micros(), &policy, token)
    }

    fn make_space(&self, context: &AcquireContext<'_, Key, S>, read: &LimitRead) -> Result<(), TableFull> {
        self.end_due_holds_at(&read.location, context.now, context.clock);
        self.evict_for(&read.location, read.now, self.limit.algorithm().select(context.key).borrow())
    }

    fn is_full_for(&self, context: &AcquireContext<'_, Key, S>, read: &LimitRead) -> Result<(), TableFull> {
        self.end_due_holds_at(&read.location, context.now, context.clock);
        self.table.is_full_for(&read.location, read.now.as_micros(), self.when_full())
    }

    #[inline]
    fn charge(
        &self,
        context: &AcquireContext<'_, Key, S>,
        read: &LimitRead,
        charge: LimitCharge,
        token: &LockToken,
    ) -> LimitResult {
        let LimitRead { reading, now, .. } = read;
        if reading.holds {
            return self.hold(context, read, charge.slot, token);
        }
        let chosen = self.limit.algorithm().select(context.key);
        let transition = context.transition(&self.limit, chosen.borrow());
        let mut state = self.table.state(charge.slot, token);
        let numbers = match transition.charge(&state, reading, *now, charge.delay) {
            Some(next) => {
                let snapshot = |state: &StateOf<C>| transition.snapshot(state, reading.held, context.now);
                self.numbers_after_charge(read, self.table.store(charge.slot, &mut state, next, snapshot, token))
            }
            None => reading.numbers(),
        };
        LimitResult { numbers, deadline: None }
    }

    fn held_limit(
        &self,
        context: &AcquireContext<'_, Key, S>,
        read: &LimitRead,
        result: Option<&LimitResult>,
    ) -> HeldLimit {
        let deadline = result.and_then(|result| result.deadline);
        HeldLimit { deadline, ..self.held_cost(context, read.location.hash(), read.reading.cost) }
    }

    fn reset(&self, context: &AcquireContext<'_, Key, S>) {
        self.table.remove(self.applying_hash(context));
    }

    fn set(&self, context: &AcquireContext<'_, Key, S>, used: u64) -> Result<(), TableFull> {
        let (hash, now) = (self.applying_hash(context), context.now);
        let chosen = self.limit.algorithm().select(context.key);
        let algorithm: &C::Algorithm = chosen.borrow();
        self.table.update(
            hash,
            now.as_micros(),
            Some(&self.eviction_policy(algorithm, now)),
            |table, slot, _, token| {
                table.clear(slot, token);
                algorithm.charge(&mut table.edit(slot, token), now, Duration::ZERO, used);
            },
        )
    }

    fn block(&self, context: &AcquireContext<'_, Key, S>, until: Timestamp, reason: BlockReason) {
        let hash = self.applying_hash(context);
        self.blocks.set(&self.table, hash, context.now, until, reason, self.capacity.max_keys);
    }

    fn key_id(&self, context: &AcquireContext<'_, Key, S>) -> KeyId {
        KeyId::new(fingerprint(self.applying_hash(context)))
    }

    fn saved_names(&self) -> SavedNames {
        self.names_in_file::<P::SubKey>()
    }

    fn name_limit(&self, context: &AcquireContext<'_, Key, S>, limits: &mut LimitsOfKey<'_>) {
        let Some(hash) = self.key_hash(context.key, context.hasher).filter(|_| !self.limit.is_shadow()) else { return };
        let chosen = self.limit.algorithm().select(context.key);
        let algorithm: &C::Algorithm = chosen.borrow();
        limits.add_limit(LimitOfKey {
            name: self.limit.name(),
            id: limit_id((self.table.id(), fingerprint(hash))),
            is_of_store: true,
            cost: self.limit.cost(),
            kept_free: self.limit.kept_free(context.key).unwrap_or_default(),
            share: self.limit.share(),
            max_waiting: algorithm.max_waiting(),
        });
    }
}

/// Returns whether a state is so far ahead of `now` that the algorithm may decide as on the zero state, as after a
/// clock that stepped back.
#[inline]
pub(super) fn is_ahead_of_clock(idle_at: u64, now: Timestamp, algorithm: &impl Algorithm) -> bool {
    idle_at > now.saturating_add(algorithm.max_reset()).as_micros()
}

/// Returns `now`, or the horizon if that is later, unless it is so far ahead that the clock must have stepped back.
#[inline]
pub(super) fn clamp_to_horizon(horizon: Timestamp, now: Timestamp, algorithm: &impl Algorithm) -> Timestamp {
    if horizon > now && horizon.saturating_since(now) <= algorithm.max_reset() { horizon } else { now }
}
