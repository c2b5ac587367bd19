//! A bounded hash table of the states of one limit.
//!
//! A key is a 64-bit hash, stored whole: the *fingerprint*. The fingerprint determines a *shard* of the table, and two
//! candidate *sets* of three slots in the shard. The key's state is in a slot of one of these sets, or the key is absent.
//!
//! # Locks
//!
//! Each shard has one lock. All that belongs to a key is in its shard: the state, what is held on the key, its block, and
//! the debt that it inherits. A decision locks the shard, decides, writes and unlocks. Several limits lock their shards in
//! the order of their tables' ids, decide and write while all are locked.
//!
//! # Time
//!
//! A decision reads the clock before it locks, because the reading then overlaps with other work: row "hot key" of
//! benches/figures.md, 1.3 times as long under the lock. A shard stores the time of its last decision. If that is later
//! than the reading, another thread was faster, or the clock has stepped back: the decision reads the clock again, under
//! the lock. So the times of the decisions in a shard have the order of its lock, except where the clock itself steps back.
//!
//! # Horizon
//!
//! A slot with a state that is idle at the time of an insertion is free: there is no sweep. The shard stores the *horizon*:
//! the latest time at which a dropped state became idle. An absent key is decided at the horizon if that is later than the
//! time, as after a small step back of the clock. Without it, the usage of the dropped state would be available twice.
//!
//! # Size
//!
//! A shard starts without sets, and doubles up to its bound. The number of the first set is a few bits of the fingerprint;
//! the number of the second set differs from it in other bits, and always in the lowest. So when the shard doubles, the keys of a
//! set go to this set or to one other, in the same slots: the pause is bounded by the size of a shard.

mod deadlines;
mod eviction;
mod extras;
mod saving;
mod set;
mod shard;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(super) use self::eviction::{Eviction, TableFull};
pub(super) use self::extras::Block;
pub(super) use self::saving::{SavedItem, SavedKind};
pub(super) use self::set::SlotIndex;
use self::shard::Shard;
pub(super) use self::shard::{Keys, ShardGuard};
use super::when_full::WhenFull;
use crate::algorithm::{Algorithm, State};

/// A bounded hash table. Clones share one table.
pub(super) struct Table<A: Algorithm> {
    shards: Arc<[Shard<A>]>,
    shared: Arc<TableInfo<A::State>>,
}

/// What all shards of a table share.
pub(super) struct TableInfo<S> {
    id: u64,
    /// The number of sets up to which a shard grows, a power of two.
    max_sets: usize,
    /// The number of words of a state whose type does not determine it.
    pub(super) words: usize,
    /// The zero state with these words, on which an absent key is decided.
    pub(super) zero: S,
    /// New keys inherit the usage of evicted keys.
    carries_debt: bool,
    /// Until then no search for moves is made, because one has failed. Zero if a key was removed since.
    // Relaxed: a thread that misses a change searches in vain, or gives up a search for at most `MAX_HINT`.
    full_until: AtomicU64,
}

impl<A: Algorithm> Table<A> {
    /// Creates a table with a capacity of at least `keys` live keys, whatever their hashes are.
    ///
    /// A state whose type does not determine its number of words has `words` words.
    pub(super) fn with_capacity(keys: usize, words: usize, when_full: WhenFull) -> Self {
        // Not an atomic of the model checker, as it orders no other access.
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let (shards, max_sets) = shape(keys);
        let mut zero = A::State::empty();
        zero.clear(words);
        let shared = TableInfo {
            id: NEXT_ID.fetch_add(1, Relaxed),
            max_sets,
            words,
            zero,
            carries_debt: when_full == WhenFull::CarryOver,
            full_until: AtomicU64::new(0),
        };
        Self { shards: (0..shards).map(|_| Shard::new()).collect(), shared: Arc::new(shared) }
    }

    /// Returns the identity of the table, which its clones share. Locks are taken in its order.
    pub(super) fn id(&self) -> u64 {
        self.shared.id
    }

    pub(super) fn info(&self) -> &TableInfo<A::State> {
        &self.shared
    }

    /// Returns the maximum number of slots.
    pub(super) fn capacity(&self) -> usize {
        self.set_count() * set::SLOTS
    }

    /// Returns the maximum number of sets, to which inherited debts belong.
    pub(super) fn set_count(&self) -> usize {
        self.shards.len() * self.shared.max_sets
    }

    /// Returns the maximum number of states: one for each slot, and the inherited debts.
    pub(super) fn state_count(&self) -> usize {
        self.capacity() + if self.shared.carries_debt { self.set_count() } else { 0 }
    }

    /// Locks the shard of a key.
    // Part of each decision: row "hot key" of benches/figures.md.
    #[inline]
    pub(super) fn lock(&self, fingerprint: u64) -> ShardGuard<'_, A> {
        self.shards[bounded_index(fingerprint, self.shards.len())].lock()
    }

    /// Locks one shard after the other.
    pub(super) fn locked_shards(&self) -> impl Iterator<Item = ShardGuard<'_, A>> {
        self.shards.iter().map(Shard::lock)
    }

    /// Returns the number of allocated bytes. Reads the whole table.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.shards) + self.locked_shards().map(|keys| keys.bytes()).sum::<usize>()
    }

    /// Lets new keys of a set, or of all sets, inherit at least this debt. A table that carries no debt ignores it.
    pub(super) fn inherit_debt(&self, set: Option<usize>, debt: &A::State, policy: &Eviction<'_, A>) {
        if !self.shared.carries_debt {
            return;
        }
        match set {
            // A damaged file can name a set that does not exist.
            Some(set) => {
                if let Some(shard) = self.shards.get(set / self.shared.max_sets) {
                    shard.lock().inherit_debt(Some(set % self.shared.max_sets), debt, policy);
                }
            }
            None => {
                self.locked_shards().for_each(|mut keys| keys.inherit_debt(None, debt, policy));
            }
        }
    }

    /// Runs `f` on every key that is not idle at `now` or has a held amount, and on the inherited debts. Decisions go on
    /// meanwhile. A key may be passed more than once: the last time counts.
    ///
    /// Each item is of one moment after the call. All charges from before the call are contained.
    ///
    /// # Errors
    ///
    /// Returns the first error of `f`.
    pub(super) fn read_all<E>(&self, now: u64, mut f: impl FnMut(SavedItem<'_>) -> Result<(), E>) -> Result<(), E> {
        for (index, shard) in self.shards.iter().enumerate() {
            shard.read_all(index * self.shared.max_sets, now, &mut f)?;
        }
        Ok(())
    }
}

impl<A: Algorithm> Clone for Table<A> {
    fn clone(&self) -> Self {
        Self { shards: Arc::clone(&self.shards), shared: Arc::clone(&self.shared) }
    }
}

/// Returns the number of shards, and the maximum number of sets of each, for a capacity in keys.
///
/// With two candidate sets of three slots, and relocation, a shard fills to over 93 % before an insertion fails: 0.376 sets
/// for each key fill it to 88.7 %, and 38 sets more are for small shards, where chance weighs more. The keys are not
/// divided evenly: a shard has space for the mean number and seven times the standard deviation. So the probability that
/// any shard is full below the capacity is below 10^-9.
fn shape(keys: usize) -> (usize, usize) {
    let sets_for =
        |keys: usize| (keys / 125).saturating_mul(47).saturating_add(keys % 125 * 47 / 125).saturating_add(38);
    // A shard of few keys has more slack, one of many keys a longer pause when it doubles.
    let max_sets = match keys {
        0..=400 => return (1, sets_for(keys).next_power_of_two()),
        401..=20_000 => 256,
        20_001..=300_000 => 512,
        _ => 1024,
    };
    // The largest mean for which the sets suffice.
    let mean = (1..=max_sets * set::SLOTS).rev().find(|mean| {
        let deviation = mean.isqrt() + 1;
        sets_for(mean + 7 * deviation) <= max_sets
    });
    (keys.div_ceil(mean.unwrap_or(1)), max_sets)
}

/// Returns the fingerprint of a hash. Zero marks an empty slot, so the fingerprint of the hash 0 is 1.
#[inline]
pub(super) fn fingerprint(hash: u64) -> u64 {
    hash.max(1)
}

/// Returns a number below `bound`, from the upper bits of `hash`.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the upper half of a product with `bound` is below it")]
fn bounded_index(hash: u64, bound: usize) -> usize {
    ((u128::from(hash) * bound as u128) >> 64) as usize
}
