//! The blocked keys of a limit, with the ends of their blocks.

use std::sync::atomic::{AtomicU64 as Until, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::algorithm::AtomicState;
use crate::clock::{Timestamp, latest_end};
use crate::sync::AtomicU64;
use crate::table::{EvictionPolicy, Location, Table, WhenFull};

/// The blocks of a limit.
#[derive(Default)]
pub(super) struct Blocks {
    /// The end and the duration of each key's block. Created with the first block.
    table: OnceLock<Table<[AtomicU64; 2]>>,
    /// The latest end of a block. Later decisions read no blocks.
    until: Until,
    /// Serialises changes, so that `until` is the latest end.
    changing: Mutex<()>,
}

impl Blocks {
    /// Returns whether any key is blocked.
    #[inline]
    pub(super) fn any(&self, now: Timestamp) -> bool {
        self.until.load(Ordering::Relaxed) > now.as_micros()
    }

    /// Returns the time until a key's block ends, if the key is blocked.
    #[inline]
    pub(super) fn remaining(&self, hash: u64, now: Timestamp) -> Option<Duration> {
        if self.any(now) { self.look_up(hash, now) } else { None }
    }

    #[cold]
    fn look_up(&self, hash: u64, now: Timestamp) -> Option<Duration> {
        let mut state = <[AtomicU64; 2]>::empty();
        self.table.get()?.read(hash, &mut { Location::EMPTY }, &mut state);
        let until = Timestamp::from_micros(state[0]);
        (until > now && !is_stale(&state, now)).then(|| until.saturating_since(now))
    }

    /// Blocks a key until this time. A time that is not in the future removes its block.
    pub(super) fn set(&self, hash: u64, now: Timestamp, until: Timestamp, max_keys: usize) {
        let _one = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if until > now {
            let table = self.table.get_or_init(|| Table::with_capacity(max_keys, 1, WhenFull::Evict));
            let previous = self.look_up(hash, now).map(|remaining| now.saturating_add(remaining).as_micros());
            let duration = until.as_micros() - now.as_micros();
            let blocked = table.update(hash, now.as_micros(), Some(&BlockEviction { now }), |table, slot, _| {
                *table.edit(slot) = [until.as_micros(), duration];
            });
            debug_assert!(blocked.is_ok(), "a table that evicts has space");
            self.until.fetch_max(until.as_micros(), Ordering::Relaxed);
            if previous > Some(until.as_micros()) {
                self.find_latest(table, now);
            }
        } else if let Some(table) = self.table.get() {
            table.remove(hash);
            self.find_latest(table, now);
        }
    }

    /// Computes the latest end again, after a block was removed or shortened.
    fn find_latest(&self, table: &Table<[AtomicU64; 2]>, now: Timestamp) {
        let mut latest = 0;
        table.for_each_live(now.as_micros(), |_, end, _| latest = latest.max(end));
        self.until.store(latest, Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.get().map_or(0, Table::bytes)
    }
}

/// Returns whether the clock has stepped back by more than the duration of a block since the block was set.
fn is_stale(&[until, duration]: &[u64; 2], now: Timestamp) -> bool {
    Timestamp::from_micros(until) > latest_end(now, duration)
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

    /// Without blocked keys, decisions take the fast path.
    #[test]
    fn no_key_is_blocked_after_the_last_block_has_ended() {
        let blocks = Blocks::default();
        assert!(!blocks.any(START));
        blocks.set(1, START, after(60), 100);
        blocks.set(2, START, after(30), 100);
        assert!(blocks.any(START));
        assert_eq!(blocks.remaining(2, after(29)), Some(Duration::from_secs(1)));
        assert_eq!(blocks.remaining(2, after(30)), None);
        assert!(blocks.any(after(59)));
        assert!(!blocks.any(after(60)));
    }

    #[test]
    fn no_key_is_blocked_after_the_last_block_was_lifted() {
        let blocks = Blocks::default();
        blocks.set(1, START, after(60), 100);
        blocks.set(2, START, after(30), 100);
        blocks.set(1, START, START, 100);
        assert!(blocks.any(after(29)));
        assert!(!blocks.any(after(30)), "the other block ends earlier");
        assert_eq!(blocks.remaining(2, START), Some(Duration::from_secs(30)));
        blocks.set(2, START, START, 100);
        assert!(!blocks.any(START));
        // Key 3 was not blocked.
        blocks.set(3, START, START, 100);
        assert!(!blocks.any(START));
    }

    #[test]
    fn shortened_block_ends_with_its_new_end() {
        let blocks = Blocks::default();
        blocks.set(1, START, after(3600), 100);
        blocks.set(2, START, after(20), 100);
        blocks.set(1, START, after(10), 100);
        assert_eq!(blocks.remaining(1, START), Some(Duration::from_secs(10)));
        assert!(blocks.any(after(19)));
        assert!(!blocks.any(after(20)));
        blocks.set(1, START, after(40), 100);
        assert!(blocks.any(after(39)));
    }

    /// Without blocked keys, a limit takes no memory for them.
    #[test]
    fn table_is_created_with_the_first_block() {
        let blocks = Blocks::default();
        blocks.set(1, START, START, 100);
        blocks.set(1, START, Timestamp::EPOCH, 100);
        assert_eq!(blocks.bytes(), 0);
        blocks.set(1, START, after(60), 100);
        assert!(blocks.bytes() >= 100 * size_of::<[u64; 2]>());
    }

    /// With more blocked keys than the capacity, the blocks that end first are dropped.
    #[test]
    fn block_that_ends_first_is_evicted() {
        let blocks = Blocks::default();
        // Not below one another, as keys are hashes.
        let hash = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        blocks.set(hash(1), START, after(100_000), 1);
        for key in 2..1_000 {
            blocks.set(hash(key), START, after(key), 1);
        }
        assert_eq!(blocks.remaining(hash(1), START), Some(Duration::from_secs(100_000)));
        let kept = (2..1_000).filter(|&key| blocks.remaining(hash(key), START).is_some()).count();
        assert!((50..200).contains(&kept), "{kept} of the smallest table's slots");
        let newest = (900..1_000).filter(|&key| blocks.remaining(hash(key), START).is_some()).count();
        assert!(newest > 80, "{newest} of the hundred blocks that end last");
    }
}
