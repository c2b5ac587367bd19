use std::any::Any;
use std::hash::Hash;
use std::time::Duration;

use super::part::{LimitPart, Part};
use super::plain;
use super::save::SavedNames;
use super::table::{Eviction, Keys, Table, TableFull, fingerprint};
use super::transaction_limit::{AcquireContext, Capacity, LimitInfo, NotDecided, TransactionLimit};
use super::when_full::WhenFull;
use crate::algorithm::{Algorithm, ChargeOptions, Counters, State, Step};
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;
use crate::limit::{AlgorithmSelector, Limit, SelectAlgorithm, SubKeyOf};
use crate::limiter::Held;
use crate::store::inner::{AlgorithmExt as _, HeldEntry, InLine, ShareRole, capacity_released, limit_id};

/// A limit with its table, and the part of the key by which it counts.
#[allow(missing_debug_implementations, reason = "hidden, behind the limiter")]
pub struct KeyedTable<C: AlgorithmSelector, P> {
    sub_key: P,
    pub(super) table: LimitTable<C>,
}

/// A limit with its table: all but the sub-key, so that the compiler generates the code once for all sub-keys.
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub struct LimitTable<C: AlgorithmSelector> {
    pub(super) limit: Limit<C, ()>,
    /// Shared with the limits that replace this one.
    pub(super) table: Table<C::Algorithm>,
    /// What a full table does. A shadow limit never denies, so its table evicts. An evicted sub-key of a share would have
    /// its whole share again, or lose a part of it: without a slot, a request borrows.
    pub(super) when_full: WhenFull,
    pub(super) has_mark: bool,
    /// The limit is enforced, decides by its states alone, and signals nothing.
    pub(super) is_plain: bool,
}

pub(super) type StateOf<C> = <<C as AlgorithmSelector>::Algorithm as Algorithm>::State;

impl<C: AlgorithmSelector, P: 'static> KeyedTable<C, P> {
    /// Creates a limit with an empty table.
    ///
    /// # Errors
    ///
    /// Returns an error if the unit of the limit has no name, or if the states could take more than
    /// `capacity.max_heap_bytes` on the heap.
    pub(super) fn new<Key: ?Sized>(limit: Limit<C, P>, capacity: Capacity) -> Result<Self, Error>
    where
        P: SubKeyOf<Key>,
    {
        let words = limit.algorithm().fixed().map_or(Counters::MAX_WORDS, Algorithm::counter_words);
        Self::with_table(limit, capacity, words, None)
    }

    /// Creates a limit that can be replaced: with the table of the limit that it replaces, if that has the same type.
    ///
    /// Its states have the maximum number of words, as the number may differ between algorithms of one type.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub(super) fn replacing<Key: ?Sized>(
        limit: Limit<C, P>,
        capacity: Capacity,
        of: Option<&dyn Any>,
    ) -> Result<Self, Error>
    where
        P: SubKeyOf<Key>,
    {
        let previous = of.and_then(|previous| previous.downcast_ref::<Self>()).map(|previous| &previous.table);
        Self::with_table(limit, capacity, Counters::MAX_WORDS, previous)
    }

    fn with_table<Key: ?Sized>(
        limit: Limit<C, P>,
        capacity: Capacity,
        words: usize,
        previous: Option<&LimitTable<C>>,
    ) -> Result<Self, Error>
    where
        P: SubKeyOf<Key>,
    {
        let (limit, sub_key) = limit.replace_sub_key(());
        let table = LimitTable::new(limit, sub_key.facts().keeps_free, capacity, words, previous)?;
        Ok(Self { sub_key, table })
    }

    /// Returns the fingerprint of the sub-key, `None` if the limit does not apply.
    #[inline]
    pub(super) fn key_hash<Key: ?Sized>(&self, context: &AcquireContext<'_, Key>) -> Option<u64>
    where
        P: SubKeyOf<Key>,
        P::SubKey: Hash,
    {
        self.sub_key.with_sub_key(context.key, |part| fingerprint(context.hasher.hash_one(part)))
    }

    /// Returns the units that the limit keeps free from requests of `key` that borrow, if it keeps any free.
    #[inline]
    pub(super) fn kept_free<Key: ?Sized>(&self, key: &Key) -> Option<u64>
    where
        P: SubKeyOf<Key>,
    {
        self.table.limit.share.kept_free(self.sub_key.kept_free(key))
    }
}

impl<C: AlgorithmSelector> LimitTable<C> {
    fn new(
        limit: Limit<C, ()>,
        keeps_free: bool,
        capacity: Capacity,
        words: usize,
        previous: Option<&Self>,
    ) -> Result<Self, Error> {
        let (limit, table) = match previous.filter(|previous| limit.has_same_sub_key(&previous.limit)) {
            Some(previous) => (limit.continuing(&previous.limit), previous.table.clone()),
            None => (limit, Table::with_capacity(capacity.max_keys, words, capacity.when_full)),
        };
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
        // A request that all limits allow now is within its share, and so needs no free units beside a share.
        let decides_by_states = !C::Algorithm::HELD_UNTIL_END && (!keeps_free || limit.share() == ShareRole::Common);
        let is_plain = decides_by_states && !limit.is_shadow() && !has_mark;
        let when_full = match capacity.when_full {
            WhenFull::Deny if limit.is_shadow() => WhenFull::Evict,
            _ if limit.share() == ShareRole::Share => WhenFull::Deny,
            when_full => when_full,
        };
        Ok(Self { limit, table, when_full, has_mark, is_plain })
    }

    /// Returns how the table evicts as of `now`. Without an algorithm, by the time at which a key is idle.
    pub(super) fn eviction<'a>(
        &'a self,
        algorithm: Option<&'a C::Algorithm>,
        now: Timestamp,
    ) -> Eviction<'a, C::Algorithm> {
        Eviction { algorithm, now, when_full: self.when_full, info: self.table.info() }
    }

    /// Returns the record of a hold, which has a number and a deadline, or zeros.
    pub(super) fn entry(&self, key: u64, amount: u64, (id, at): (u64, u64), charge_before: u64) -> HeldEntry {
        let (table, cost) = (self.table.id(), self.limit.cost());
        let kind = HeldEntry::kind_of(cost, C::Algorithm::HELD_UNTIL_END);
        HeldEntry { table, key, id, at, amount, cost, charge_before, kind }
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
        keys: &mut Keys<C::Algorithm>,
        algorithm: &C::Algorithm,
    ) -> Result<(), TableFull> {
        let (slot, now) = if let Some(slot) = keys.find(hash) {
            (slot, now)
        } else {
            let now = keys.time_of_absent(now, algorithm);
            match keys.insert(hash, &self.eviction(Some(algorithm), now)) {
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

impl<Key: ?Sized, C, P> TransactionLimit<Key> for KeyedTable<C, P>
where
    C: SelectAlgorithm<Key>,
    P: SubKeyOf<Key>,
    P::SubKey: Hash,
{
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn info(&self) -> &dyn LimitInfo {
        &self.table
    }

    fn try_acquire(&self, context: &AcquireContext<'_, Key>) -> Result<Decision, NotDecided> {
        plain::try_acquire(self, context)
    }

    fn try_complete(&self, context: &AcquireContext<'_, Key>, held: Option<&mut Held>) -> Option<Decision> {
        plain::try_complete(self, context, held)
    }

    fn with_part(&self, context: &AcquireContext<'_, Key>, f: &mut dyn FnMut(&dyn Part)) -> bool {
        let hash = self.key_hash(context);
        hash.map(|hash| f(&LimitPart::new(self, context, hash))).is_some()
    }

    fn saved_names(&self) -> SavedNames {
        self.table.names_in_file::<P::SubKey>()
    }
}
