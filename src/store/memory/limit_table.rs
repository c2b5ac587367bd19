use std::any::Any;
use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use super::part::{LimitPart, Part};
use super::plain;
use super::save::SavedNames;
use super::table::{Block, Eviction, Table, TableFull, fingerprint};
use super::transaction_limit::{AcquireContext, Capacity, NotDecided, TransactionLimit};
use super::when_full::WhenFull;
use crate::algorithm::{Algorithm, ChargeOptions, Counters, State, Step};
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, BlockReason, Decision};
use crate::error::Error;
use crate::limit::{AlgorithmSelector, Limit, SelectAlgorithm, SubKeyOf};
use crate::limiter::{Held, LimitsOfKey};
use crate::store::inner::{
    AlgorithmExt as _, HeldEntry, InLine, LimitOfKey, ShareRole, capacity_released, limit_id, micros_floor,
};

/// A limit with its table.
#[allow(missing_debug_implementations, reason = "hidden, behind the limiter")]
pub struct LimitTable<C: AlgorithmSelector, P> {
    pub(super) limit: Limit<C, P>,
    /// Shared with the limits that replace this one.
    pub(super) table: Table<C::Algorithm>,
    /// What a full table does. A shadow limit never denies, so its table evicts. An evicted sub-key of a share would have
    /// its whole share again, or lose a part of it: without a slot, a request borrows.
    pub(super) when_full: WhenFull,
    pub(super) has_mark: bool,
    /// The limit is no shadow, and has no mark.
    pub(super) is_plain: bool,
}

pub(super) type StateOf<C> = <<C as AlgorithmSelector>::Algorithm as Algorithm>::State;

impl<C: AlgorithmSelector, P: 'static> LimitTable<C, P> {
    /// Creates a limit with an empty table.
    ///
    /// # Errors
    ///
    /// Returns an error if the unit of the limit has no name, or if the states could take more than
    /// `capacity.max_heap_bytes` on the heap.
    pub(super) fn new(limit: Limit<C, P>, capacity: Capacity) -> Result<Self, Error> {
        let words = limit.algorithm().fixed().map_or(Counters::MAX_WORDS, Algorithm::counter_words);
        let table = Table::with_capacity(capacity.max_keys, words, capacity.when_full);
        Self::from_table(limit, capacity, table)
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
        let words = Counters::MAX_WORDS;
        if let Some(Self { limit: previous, table, .. }) = previous {
            return Self::from_table(limit.continuing(previous), capacity, table.clone());
        }
        let table = Table::with_capacity(capacity.max_keys, words, capacity.when_full);
        Self::from_table(limit, capacity, table)
    }

    fn from_table(limit: Limit<C, P>, capacity: Capacity, table: Table<C::Algorithm>) -> Result<Self, Error> {
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
        let has_mark = limit.warn_keys().is_some();
        let is_plain = !limit.is_shadow() && !has_mark;
        let when_full = match capacity.when_full {
            WhenFull::Deny if limit.is_shadow() => WhenFull::Evict,
            _ if limit.share() == ShareRole::Share => WhenFull::Deny,
            when_full => when_full,
        };
        Ok(Self { limit, table, when_full, has_mark, is_plain })
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

    pub(super) fn eviction_policy<'a>(
        &self,
        algorithm: &'a C::Algorithm,
        now: Timestamp,
    ) -> Eviction<'a, C::Algorithm> {
        Eviction { algorithm: Some(algorithm), now, when_full: self.when_full }
    }

    /// Returns the record of a hold, which has a number and a deadline, or zeros.
    pub(super) fn entry(&self, key: u64, amount: u64, (id, at): (u64, u64), charge_before: u64) -> HeldEntry {
        let (table, cost, until_end) = (self.table.id(), self.limit.cost(), C::Algorithm::HELD_UNTIL_END);
        HeldEntry { table, key, id, at, amount, cost, charge_before, until_end }
    }

    /// Returns the algorithm once more, for a hold, if the key chooses it.
    pub(super) fn own_algorithm<Key: ?Sized>(&self, key: &Key, options: &AcquireOptions) -> Option<C::Algorithm>
    where
        C: SelectAlgorithm<Key>,
    {
        if options.hold && !C::Algorithm::HELD_UNTIL_END { self.limit.algorithm().select_owned(key) } else { None }
    }

    /// Wakes the requests that wait for the capacity of keys whose holds have ended. Not under a lock.
    pub(super) fn announce(&self, ended: &[u64]) {
        if !ended.is_empty() {
            capacity_released(ended.iter().map(|hash| limit_id((self.table.id(), *hash))));
        }
    }

    /// Charges a key without asking, as of `now`, or of the horizon if that is later and the key is absent.
    pub(super) fn charge(
        &self,
        hash: u64,
        cost: u64,
        now: Timestamp,
        keys: &mut super::table::Keys<C::Algorithm>,
        algorithm: &C::Algorithm,
    ) -> Result<(), TableFull> {
        let (slot, now) = if let Some(slot) = keys.find(hash) {
            (slot, now)
        } else {
            let now = keys.time_of_absent(now, algorithm);
            match keys.insert(hash, now, &self.eviction_policy(algorithm, now), self.table.info()) {
                Ok(slot) => (slot, now),
                // A shadow for whose key there is no slot counts nothing.
                Err(_) if self.limit.is_shadow() => return Ok(()),
                Err(full) => return Err(full),
            }
        };
        let (state, options) = (keys.state_mut(slot), ChargeOptions::within(cost, Some(Duration::ZERO)));
        // Nearly always allowed, as the cost was held. Row "hold and settle" of benches/figures.md.
        match algorithm.decide_in_line(state, now, options, InLine) {
            Some(Step::Allow { next, delay: 0 }) => state.apply(next),
            _ => algorithm.charge(state, now, Duration::ZERO, cost),
        }
        Ok(())
    }
}

impl<C: AlgorithmSelector, P> LimitTable<C, P> {
    /// Decides alone, if it needs no transaction.
    pub(super) fn try_complete_alone<Key, S>(
        &self,
        context: &AcquireContext<'_, Key, S>,
        held: Option<&mut Held>,
    ) -> Option<Decision>
    where
        Key: ?Sized,
        C: SelectAlgorithm<Key>,
        P: SubKeyOf<Key> + Send + Sync + 'static,
        P::SubKey: Hash,
        S: BuildHasher,
    {
        if !context.options.hold && self.is_plain && plain::decides_by_states::<Key, _, _>(self) {
            return plain::try_complete(self, context);
        }
        plain::try_alone(self, context, held)
    }

    /// Returns the fingerprint of the sub-key of a limit that applies. A condition that has changed its result since then
    /// gets an arbitrary one.
    fn fingerprint_of<Key: ?Sized>(&self, context: &AcquireContext<'_, Key, impl BuildHasher>) -> u64
    where
        P: SubKeyOf<Key>,
        P::SubKey: Hash,
    {
        fingerprint(self.key_hash(context.key, context.hasher).unwrap_or_default())
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

    fn try_acquire(&self, context: &AcquireContext<'_, Key, S>) -> Result<Decision, NotDecided> {
        plain::try_acquire(self, context)
    }

    fn try_complete(&self, context: &AcquireContext<'_, Key, S>, held: Option<&mut Held>) -> Option<Decision> {
        self.try_complete_alone(context, held)
    }

    fn with_part(&self, context: &AcquireContext<'_, Key, S>, f: &mut dyn FnMut(&dyn Part)) -> bool {
        let part = LimitPart::new(self, context);
        part.map(|part| f(&part)).is_some()
    }

    fn reset(&self, context: &AcquireContext<'_, Key, S>) {
        let hash = self.fingerprint_of(context);
        self.table.lock(hash).remove(hash, self.table.info());
    }

    fn set(&self, context: &AcquireContext<'_, Key, S>, used: u64) -> Result<(), TableFull> {
        let hash = self.fingerprint_of(context);
        let chosen = self.limit.algorithm().select(context.key);
        let algorithm: &C::Algorithm = chosen.borrow();
        let mut keys = self.table.lock(hash);
        let now = keys.decide_at(context.now, context.clock);
        let slot = keys.insert(hash, now, &self.eviction_policy(algorithm, now), self.table.info())?;
        let mut state = self.table.info().zero.clone();
        algorithm.charge(&mut state, now, Duration::ZERO, used);
        *keys.state_mut(slot) = state;
        Ok(())
    }

    fn surcharge(&self, context: &AcquireContext<'_, Key, S>, cost: u64) -> Result<(), TableFull> {
        let hash = self.fingerprint_of(context);
        let chosen = self.limit.algorithm().select(context.key);
        let mut keys = self.table.lock(hash);
        let now = keys.decide_at(context.now, context.clock);
        self.charge(hash, cost, now, &mut keys, chosen.borrow())
    }

    fn block(&self, context: &AcquireContext<'_, Key, S>, until: Timestamp, reason: BlockReason) {
        let (hash, now) = (self.fingerprint_of(context), context.now);
        let duration = until.saturating_since(now);
        let block = Block { until: until.as_micros(), duration: reason.pack(micros_floor(duration)) };
        let block = (!duration.is_zero()).then_some(block);
        self.table.lock(hash).set_block(hash, block, now, self.table.info());
    }

    fn key_hash(&self, context: &AcquireContext<'_, Key, S>) -> u64 {
        self.fingerprint_of(context)
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
