//! Reads a shard for a file, beside decisions.

use std::ops::Range;

use super::shard::{Keys, Shard};
use crate::algorithm::{Algorithm, State};
use crate::clock::Timestamp;

/// What the reading of a table finds. The number of a kind is its tag in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::memory) enum SavedKind {
    /// A key that is not idle, or has a held amount: by its fingerprint, the words of its state.
    Key = 1,
    /// A debt that new keys of a set inherit: by the number of the set, the words of a state.
    Debt = 2,
    /// By the fingerprint of a key, the end and the duration of its block.
    Block = 3,
}

/// One item of a table. The words of a state come from [`State::to_stored`].
#[derive(Clone, Copy, Debug)]
pub(in crate::store::memory) struct SavedItem<'a> {
    pub(in crate::store::memory) kind: SavedKind,
    pub(in crate::store::memory) id: u64,
    pub(in crate::store::memory) held: u64,
    pub(in crate::store::memory) words: &'a [u64],
}

impl<A: Algorithm> Shard<A> {
    /// Reads the shard in parts, as [`Table::read_all`](super::Table::read_all) describes. `first_set` is the number of its
    /// first set in the table.
    ///
    /// A key that moves between two parts could be in neither, so the reading starts again. After a few times it takes the
    /// whole shard at once.
    pub(super) fn read_all<E>(
        &self,
        first_set: usize,
        now: u64,
        f: &mut impl FnMut(SavedItem<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        /// The number of sets that a part has: the lock is held for some microseconds.
        const PART: usize = 64;
        const MAX_STARTS: usize = 4;
        let mut found = Found::default();
        for start in 1.. {
            let (mut next, mut moves) = (0, None);
            loop {
                found.clear();
                let keys = self.lock();
                if moves.is_some_and(|moves| moves != keys.moves) {
                    break;
                }
                moves = Some(keys.moves);
                let part = if start < MAX_STARTS { PART } else { usize::MAX };
                let end = next.max(keys.sets.len()).min(next.saturating_add(part));
                keys.for_each_used(next..end, now, |fingerprint, held, state| {
                    found.add(SavedKind::Key, fingerprint, held, |words| state.to_stored(words));
                });
                let is_last = end >= keys.sets.len();
                if is_last {
                    keys.read_rest(first_set, now, &mut found);
                }
                drop(keys);
                found.items().try_for_each(&mut *f)?;
                if is_last {
                    return Ok(());
                }
                next = end;
            }
        }
        Ok(())
    }
}

/// What one hold of the lock has read.
#[derive(Default)]
struct Found {
    words: Vec<u64>,
    items: Vec<(SavedKind, u64, u64, Range<usize>)>,
}

impl Found {
    fn clear(&mut self) {
        self.words.clear();
        self.items.clear();
    }

    fn add(&mut self, kind: SavedKind, id: u64, held: u64, write: impl FnOnce(&mut Vec<u64>)) {
        let start = self.words.len();
        write(&mut self.words);
        self.items.push((kind, id, held, start..self.words.len()));
    }

    fn items(&self) -> impl Iterator<Item = SavedItem<'_>> {
        self.items.iter().map(|(kind, id, held, range)| {
            let words = self.words.get(range.clone()).unwrap_or_default();
            SavedItem { kind: *kind, id: *id, held: *held, words }
        })
    }
}

impl<A: Algorithm> Keys<A> {
    fn read_rest(&self, first_set: usize, now: u64, found: &mut Found) {
        for (set, debt) in self.debts.iter().enumerate().filter(|(_, debt)| debt.idle_at() > now) {
            found.add(SavedKind::Debt, (first_set + set) as u64, 0, |words| debt.to_stored(words));
        }
        let now = Timestamp::from_micros(now);
        let blocks = self.extras.iter().flat_map(|extras| extras.blocks());
        for (fingerprint, block) in blocks.filter(|(_, block)| block.remaining(now).is_some()) {
            found.add(SavedKind::Block, fingerprint, 0, |words| words.extend([block.until, block.duration]));
        }
    }
}
