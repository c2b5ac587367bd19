use super::view::{Live, View};
use crate::algorithm::{Counters, SlidingWindow};

/// The words before the counts: the time at which the key is idle, the newest block, the time of the last charge, the
/// layout, and the sum of the counts, at most `u64::MAX`.
pub(super) const HEAD: usize = 5;

const MAX_KEPT: usize = index(SlidingWindow::MAX_BLOCKS) + 1;

/// The blocks of a window. They are part of the state, because another quota may have written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The number of blocks in a period.
    pub(super) blocks: u64,
    /// The length of a block in microseconds.
    // Stored: a decision took some 70 divisions otherwise (row "sliding window" of docs/performance.md).
    pub(super) width: u64,
}

impl Layout {
    pub(super) const fn from_word(word: u64) -> Self {
        Self { blocks: word & 63, width: word >> 6 }
    }

    pub(super) const fn word(self) -> u64 {
        // `MAX_BLOCKS` fits in six bits, and the longest period in the other 58.
        self.width << 6 | self.blocks
    }

    /// Returns the number of blocks for which a hit counts: its own, and as many full blocks as the period has.
    pub(super) const fn kept(self) -> u64 {
        self.blocks + 1
    }

    /// Returns the longest time until a hit leaves the window.
    pub(super) const fn max_reset(self) -> u64 {
        self.kept() * self.width
    }

    /// Returns the block that contains `at`.
    // Usually that is the newest block of the state, and then the division is not needed: row "sliding window" of
    // docs/performance.md.
    pub(super) fn block_at(self, at: u64, newest: u64) -> u64 {
        let start = newest.checked_mul(self.width).and_then(|start| at.checked_sub(start));
        if start.is_some_and(|offset| offset < self.width) { newest } else { at / self.width }
    }

    pub(super) const fn leaves_at(self, block: u64) -> u64 {
        block.saturating_add(self.kept()).saturating_mul(self.width)
    }
}

/// The hits that count at a time, by blocks of a window.
pub(super) struct Counts {
    /// The current block's count is first.
    pub(super) by_age: [u64; MAX_KEPT],
    pub(super) at: u64,
    pub(super) current: u64,
}

impl Counts {
    pub(super) fn new(view: &View<'_>) -> Self {
        let mut counts = Self { by_age: [0; MAX_KEPT], at: view.at, current: view.current() };
        for Live { block, count, .. } in view.live() {
            let sum = &mut counts.by_age[index(counts.current.saturating_sub(block).min(view.layout.blocks))];
            *sum = sum.saturating_add(count);
        }
        counts
    }

    /// Writes the state with these counts.
    pub(super) fn write(&self, layout: Layout, state: &mut Counters) {
        let Some((head, counts)) = state.split_at_mut_checked(HEAD) else { return };
        counts.fill(0);
        let (mut idle_at, mut total) = (0, 0_u64);
        for (age, &count) in (0..=layout.blocks).zip(&self.by_age) {
            let Some(block) = self.current.checked_sub(age) else { break };
            if count > 0 {
                idle_at = idle_at.max(layout.leaves_at(block));
                total = total.saturating_add(count);
                if let Some(slot) = counts.get_mut(index(block % layout.kept())) {
                    *slot = count;
                }
            }
        }
        head.copy_from_slice(&[idle_at, self.current, self.at, layout.word(), total]);
    }
}

/// Converts a number of at most 61, the maximum number of blocks that count.
#[allow(clippy::cast_possible_truncation, reason = "at most 61")]
pub(super) const fn index(small: u64) -> usize {
    small as usize
}
