//! Reads a shard for a file, beside decisions.

use std::ops::Range;

use super::extras::Block;
use super::shard::{Keys, Shard};
use crate::algorithm::{Algorithm, State};
use crate::clock::Timestamp;

/// What the reading of a table finds. The words come from [`State::to_stored`].
#[derive(Clone, Copy, Debug)]
pub(in crate::store::memory) enum SavedItem<'a> {
    /// A key that is not idle, or has a held amount.
    Key {
        fingerprint: u64,
        held: u64,
        words: &'a [u64],
    },
    /// A debt that new keys of a set inherit.
    Debt {
        set: usize,
        words: &'a [u64],
    },
    Block {
        fingerprint: u64,
        block: Block,
    },
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
                    let words = found.add(state);
                    found.keys.push((fingerprint, held, words));
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
    keys: Vec<(u64, u64, Range<usize>)>,
    debts: Vec<(usize, Range<usize>)>,
    blocks: Vec<(u64, Block)>,
}

impl Found {
    fn clear(&mut self) {
        self.words.clear();
        self.keys.clear();
        self.debts.clear();
        self.blocks.clear();
    }

    fn add(&mut self, state: &impl State) -> Range<usize> {
        let start = self.words.len();
        state.to_stored(&mut self.words);
        start..self.words.len()
    }

    fn items(&self) -> impl Iterator<Item = SavedItem<'_>> {
        let words = |range: &Range<usize>| self.words.get(range.clone()).unwrap_or_default();
        let keys = self.keys.iter().map(move |(fingerprint, held, range)| SavedItem::Key {
            fingerprint: *fingerprint,
            held: *held,
            words: words(range),
        });
        let debts = self.debts.iter().map(move |(set, range)| SavedItem::Debt { set: *set, words: words(range) });
        let blocks = self.blocks.iter().map(|&(fingerprint, block)| SavedItem::Block { fingerprint, block });
        keys.chain(debts).chain(blocks)
    }
}

impl<A: Algorithm> Keys<A> {
    fn read_rest(&self, first_set: usize, now: u64, found: &mut Found) {
        for (set, debt) in self.debts.iter().enumerate().filter(|(_, debt)| debt.idle_at() > now) {
            let words = found.add(debt);
            found.debts.push((first_set + set, words));
        }
        let now = Timestamp::from_micros(now);
        if let Some(extras) = &self.extras {
            found.blocks.extend(extras.blocks().filter(|(_, block)| block.remaining(now).is_some()));
        }
    }
}
