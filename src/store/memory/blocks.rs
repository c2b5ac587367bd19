//! The blocked keys of a limit, with the ends of their blocks.
//!
//! A blocked key may have no state, so the blocks are in a table of their own. A flag of the limit's table says in which
//! sets a key may be blocked. Keys of other sets are decided as if there were no blocks.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, Timestamp};
use crate::decision::BlockReason;
use crate::store::inner::{
    AtomicState, latest_end,
    sync::AtomicU64,
    table::{EvictionPolicy, Location, SavedItem, Table, fingerprint},
};
use crate::table::WhenFull;

/// For how long a flag outlasts the last block of its set, in microseconds. A clock that steps back by less finds the
/// block again.
const KEPT_MICROS: u64 = 60_000_000;

/// The blocks of a limit.
#[derive(Default)]
pub(super) struct Blocks {
    /// The end of each key's block, and its [duration and reason](BlockReason::pack). Created with the first block.
    table: OnceLock<Table<[AtomicU64; 2]>>,
    /// For each set of the limit's table with a flag, the latest end of a block of its keys. Its lock serialises the
    /// changes of flags.
    flagged: Mutex<HashMap<usize, u64>>,
}

impl Blocks {
    /// Returns the time until the block of a key ends, and its reason, if the key is blocked. `states` is the limit's table.
    #[inline]
    pub(super) fn remaining<C: AtomicState>(
        &self,
        states: &Table<C>,
        location: &Location,
        now: Timestamp,
        clock: &dyn Clock,
    ) -> Option<(Duration, BlockReason)> {
        if location.may_be_blocked() { self.look_up_flagged(states, location, now, clock) } else { None }
    }

    #[cold]
    fn look_up_flagged<C: AtomicState>(
        &self,
        states: &Table<C>,
        location: &Location,
        now: Timestamp,
        clock: &dyn Clock,
    ) -> Option<(Duration, BlockReason)> {
        let remaining = self.look_up(location.hash(), now);
        if remaining.is_none() {
            // A decision can ask for a later time, at which a block will have ended.
            let ended = now.min(clock.now()).as_micros().saturating_sub(KEPT_MICROS);
            let mut flagged = self.flagged();
            for set in location.candidate_sets() {
                if flagged.get(&set).is_none_or(|end| *end <= ended) {
                    flagged.remove(&set);
                    states.clear_blocked(set);
                }
            }
        }
        remaining
    }

    fn look_up(&self, hash: u64, now: Timestamp) -> Option<(Duration, BlockReason)> {
        let mut state = <[AtomicU64; 2]>::empty();
        self.table.get()?.read(hash, &mut { Location::EMPTY }, &mut state);
        let until = Timestamp::from_micros(state[0]);
        (until > now && !is_stale(&state, now)).then(|| (until.saturating_since(now), BlockReason::unpack(state[1]).1))
    }

    /// Blocks a key until this time. A time that is not in the future removes its block.
    pub(super) fn set<C: AtomicState>(
        &self,
        states: &Table<C>,
        hash: u64,
        now: Timestamp,
        until: Timestamp,
        reason: BlockReason,
        max_keys: usize,
    ) {
        if until > now {
            let duration = until.as_micros() - now.as_micros();
            self.insert(states, hash, [until.as_micros(), reason.pack(duration)], now, max_keys);
        } else if let Some(table) = self.table.get() {
            let mut flagged = self.flagged();
            let sets = states.candidate_sets(fingerprint(hash));
            table.remove(hash);
            let mut latest = [0; 2];
            table.for_each_live(now.as_micros(), |fingerprint, end, _| {
                for set in states.candidate_sets(fingerprint) {
                    // The lock on `flagged` keeps other threads from writing blocks, so the walk leaves out no blocked
                    // key.
                    if let Some(index) = sets.iter().position(|of_key| *of_key == set) {
                        latest[index] = end.max(latest[index]);
                    }
                }
            });
            for (set, end) in sets.into_iter().zip(latest) {
                if end > 0 {
                    flagged.insert(set, end);
                } else {
                    flagged.remove(&set);
                    states.clear_blocked(set);
                }
            }
        }
    }

    /// Blocks a key until `block[0]`, a time in the future. `block[1]` is the duration and the reason.
    fn insert<C: AtomicState>(&self, states: &Table<C>, hash: u64, block: [u64; 2], now: Timestamp, max_keys: usize) {
        let mut flagged = self.flagged();
        let table = self.table.get_or_init(|| Table::with_capacity(max_keys, 1, WhenFull::Evict));
        let blocked = table.update(hash, now.as_micros(), Some(&BlockEviction { now }), |table, slot, _, token| {
            *table.edit(slot, token) = block;
        });
        debug_assert!(blocked.is_ok(), "a table that evicts has space");
        for set in states.candidate_sets(fingerprint(hash)) {
            let end = flagged.entry(set).or_default();
            *end = block[0].max(*end);
        }
        // Last: a decision that sees the flag finds the block. This also changes the versions, so decisions that were
        // read before start again.
        states.set_blocked(hash);
    }

    /// Runs `f` on each blocked key, with the end and the duration of its block.
    ///
    /// # Errors
    ///
    /// Returns the first error of `f`.
    pub(super) fn save<E>(&self, now: Timestamp, mut f: impl FnMut(u64, [u64; 2]) -> Result<(), E>) -> Result<(), E> {
        let Some(table) = self.table.get() else { return Ok(()) };
        table.read_all(now.as_micros(), |item| match item {
            SavedItem::Key { fingerprint, words: &[until, duration], .. } if !is_stale(&[until, duration], now) => {
                f(fingerprint, [until, duration])
            }
            _ => Ok(()),
        })
    }

    /// Blocks a key as [`save`](Self::save) has passed it.
    pub(super) fn restore<C: AtomicState>(
        &self,
        states: &Table<C>,
        fingerprint: u64,
        block: [u64; 2],
        now: Timestamp,
        max_keys: usize,
    ) {
        if Timestamp::from_micros(block[0]) > now {
            self.insert(states, fingerprint, block, now, max_keys);
        }
    }

    pub(super) fn flagged(&self) -> MutexGuard<'_, HashMap<usize, u64>> {
        self.flagged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.get().map_or(0, Table::bytes) + self.flagged().capacity() * 8 / 7 * (size_of::<(usize, u64)>() + 1)
    }
}

/// Returns whether the clock has stepped back by more than the duration of a block since the block was set.
fn is_stale(&[until, duration]: &[u64; 2], now: Timestamp) -> bool {
    Timestamp::from_micros(until) > latest_end(now, BlockReason::unpack(duration).0)
}

/// The eviction policy of blocks: the block that ends first is evicted, and before it a block that does not count.
struct BlockEviction {
    now: Timestamp,
}

impl EvictionPolicy<[u64; 2]> for BlockEviction {
    fn usage_rank(&self, block: &[u64; 2]) -> (u64, u64) {
        (0, if is_stale(block, self.now) { 0 } else { block[0] })
    }

    /// The table evicts without carrying over.
    fn carry_over(&self, _state: &mut [u64; 2], _from: &[u64; 2]) {}

    fn when_full(&self) -> WhenFull {
        WhenFull::Evict
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_000_000);

    fn after(seconds: u64) -> Timestamp {
        START.saturating_add(Duration::from_secs(seconds))
    }

    /// A limit's table with its blocks. The keys are hashes.
    struct Fixture {
        states: Table<[AtomicU64; 2]>,
        blocks: Blocks,
        max_blocks: usize,
    }

    impl Fixture {
        /// `max_keys` of the limit, and the maximum of blocks.
        fn new(max_keys: usize, max_blocks: usize) -> Self {
            let states = Table::with_capacity(max_keys, 1, WhenFull::Evict);
            Self { states, blocks: Blocks::default(), max_blocks }
        }

        fn set(&self, hash: u64, until: Timestamp) {
            self.blocks.set(&self.states, hash, START, until, BlockReason::Administrator, self.max_blocks);
        }

        fn location(&self, hash: u64) -> Location {
            let mut location = Location::EMPTY;
            self.states.read(hash, &mut location, &mut <[AtomicU64; 2]>::empty());
            location
        }

        fn remaining(&self, hash: u64, now: Timestamp) -> Option<Duration> {
            let remaining = self.blocks.remaining(&self.states, &self.location(hash), now, &Fixed(now));
            remaining.map(|(remaining, _)| remaining)
        }

        fn is_flagged(&self, hash: u64) -> bool {
            self.location(hash).may_be_blocked()
        }
    }

    #[derive(Debug)]
    struct Fixed(Timestamp);

    impl Clock for Fixed {
        fn now(&self) -> Timestamp {
            self.0
        }
    }

    /// A number as the hash of a key.
    fn hash(key: u64) -> u64 {
        key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn only_keys_of_the_same_sets_leave_the_fast_path() {
        let all = Fixture::new(10_000, 100);
        all.set(hash(1), after(60));
        assert!(all.is_flagged(hash(1)));
        let flagged = (2..10_000).filter(|&key| all.is_flagged(hash(key))).count();
        // Each key is in its first set's version only: 2 of 3798 sets.
        assert!((1..20).contains(&flagged), "{flagged} of 10 000 keys");
    }

    /// The first decision a minute after the end of a block restores the fast path.
    #[test]
    fn flag_is_cleared_after_the_end_of_the_last_block() {
        let all = Fixture::new(100, 100);
        all.set(hash(1), after(60));
        all.set(hash(2), after(30));
        assert_eq!(all.remaining(hash(2), after(29)), Some(Duration::from_secs(1)));
        assert_eq!(all.remaining(hash(2), after(30)), None);
        assert_eq!(all.remaining(hash(2), after(29)), Some(Duration::from_secs(1)), "the clock has stepped back");
        assert_eq!(all.remaining(hash(2), after(90)), None);
        assert!(!all.is_flagged(hash(2)));
        assert!(all.is_flagged(hash(1)));
        assert_eq!(all.remaining(hash(1), after(120)), None);
        assert!(!all.is_flagged(hash(1)));
    }

    #[test]
    fn flag_is_cleared_when_the_last_block_is_lifted() {
        // Two keys of the same sets.
        let all = Fixture::new(1, 100);
        let other = (2..100_000).find(|&key| {
            let sets = |key| {
                let mut sets = all.location(hash(key)).candidate_sets();
                sets.sort_unstable();
                sets
            };
            sets(key) == sets(1)
        });
        let other = other.expect("there are 38 sets");
        all.set(hash(1), after(60));
        all.set(hash(other), after(30));
        all.set(hash(1), START);
        assert!(all.is_flagged(hash(1)), "the other key is blocked");
        assert_eq!(all.remaining(hash(other), START), Some(Duration::from_secs(30)));
        all.set(hash(other), START);
        assert!(!all.is_flagged(hash(1)));
        // A key that is not blocked.
        all.set(hash(3), START);
        assert!(!all.is_flagged(hash(3)));
    }

    #[test]
    fn shortened_block_ends_with_its_new_end() {
        let all = Fixture::new(100, 100);
        all.set(hash(1), after(3600));
        all.set(hash(1), after(10));
        assert_eq!(all.remaining(hash(1), START), Some(Duration::from_secs(10)));
        assert_eq!(all.remaining(hash(1), after(10)), None);
        all.set(hash(1), after(40));
        assert_eq!(all.remaining(hash(1), after(10)), Some(Duration::from_secs(30)));
    }

    /// Without blocked keys, a limit takes no memory for them.
    #[test]
    fn table_is_created_with_the_first_block() {
        let all = Fixture::new(100, 100);
        all.set(hash(1), START);
        all.set(hash(1), Timestamp::EPOCH);
        assert_eq!(all.blocks.bytes(), 0);
        all.set(hash(1), after(60));
        assert!(all.blocks.bytes() >= 100 * size_of::<[u64; 2]>());
    }

    /// With more blocked keys than the capacity, the blocks that end first are dropped.
    #[test]
    fn block_that_ends_first_is_evicted() {
        let all = Fixture::new(1, 1);
        all.set(hash(1), after(100_000));
        for key in 2..1_000 {
            all.set(hash(key), after(key));
        }
        assert_eq!(all.remaining(hash(1), START), Some(Duration::from_secs(100_000)));
        let kept = (2..1_000).filter(|&key| all.remaining(hash(key), START).is_some()).count();
        assert!((50..200).contains(&kept), "{kept} of the smallest table's slots");
        let newest = (900..1_000).filter(|&key| all.remaining(hash(key), START).is_some()).count();
        assert!(newest > 80, "{newest} of the hundred blocks that end last");
    }
}
