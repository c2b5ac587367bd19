use super::view::{Live, View};
use crate::algorithm::{Counters, SlidingWindow};

/// The words of a ring before its counts: the time at which the ring is idle, the newest block, the time of the last charge,
/// the layout, the sum of the counts (at most `u64::MAX`), and a time that no hit of the newest block is before.
///
/// A state is a ring for each period that charges the key, at most [`MAX_RINGS`]. The ring that is idle last is first. The
/// time of the last charge is in the first ring only.
pub(super) const HEAD: usize = 6;

/// The maximum number of rings in a state.
pub(super) const MAX_RINGS: usize = 4;

pub(super) const MAX_KEPT: usize = index(SlidingWindow::MAX_BLOCKS) + 1;

/// The blocks of a window. They are part of the state, because another quota may have written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The number of blocks in a period.
    pub(super) blocks: u64,
    /// The length of a block in microseconds.
    // Stored: a decision took some 70 divisions otherwise (row "sliding window" of benches/figures.md).
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
    // benches/figures.md.
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
    /// A time that no hit of the current block is before.
    pub(super) first_at: u64,
}

impl Counts {
    pub(super) fn new(view: &View<'_>) -> Self {
        let current = view.current();
        let first_at =
            if view.is_own() && view.newest == current { view.first_at } else { current * view.layout.width };
        let mut counts = Self { by_age: [0; MAX_KEPT], at: view.at, current, first_at };
        for Live { block, count, .. } in view.live() {
            let sum = &mut counts.by_age[index(counts.current.saturating_sub(block).min(view.layout.blocks))];
            *sum = sum.saturating_add(count);
        }
        counts
    }

    /// Returns the larger of the counts of two states, block by block.
    pub(super) fn of_both(layout: Layout, states: [&[u64]; 2], at: u64) -> Self {
        let [mut counts, other] = states.map(|state| Self::new(&View::new(layout, state, at)));
        if other.by_age[0] > 0 && (counts.by_age[0] == 0 || other.first_at < counts.first_at) {
            counts.first_at = other.first_at;
        }
        for (count, other) in counts.by_age.iter_mut().zip(other.by_age) {
            *count = (*count).max(other);
        }
        counts
    }

    /// Adds a hit now.
    pub(super) fn add(&mut self, cost: u64) {
        if self.by_age[0] == 0 {
            self.first_at = self.at;
        }
        self.by_age[0] = self.by_age[0].saturating_add(cost);
    }

    /// Returns the time at which no count counts any more.
    pub(super) fn idle_at(&self, layout: Layout) -> u64 {
        let age = (0..=layout.blocks).zip(&self.by_age).find(|(_, count)| **count > 0).map(|(age, _)| age);
        age.and_then(|age| self.current.checked_sub(age)).map_or(0, |block| layout.leaves_at(block))
    }

    /// Writes a ring of zeros with these counts.
    fn write(&self, layout: Layout, ring: &mut [u64]) {
        let Some((head, counts)) = ring.split_at_mut_checked(HEAD) else { return };
        let mut total = 0_u64;
        for (age, &count) in (0..=layout.blocks).zip(&self.by_age) {
            let Some(block) = self.current.checked_sub(age) else { break };
            if count > 0 {
                total = total.saturating_add(count);
                if let Some(slot) = counts.get_mut(index(block % layout.kept())) {
                    *slot = count;
                }
            }
        }
        head.copy_from_slice(&[self.idle_at(layout), self.current, 0, layout.word(), total, self.first_at]);
    }
}

/// Returns the rings of a state that are not idle at a time, each with its layout.
pub(super) fn rings(state: &[u64], at: u64) -> impl Iterator<Item = (Layout, &[u64])> {
    let mut rest = state;
    std::iter::from_fn(move || {
        let layout = Layout::from_word(*rest.get(3)?);
        let words = HEAD + index(layout.kept());
        let ring = rest.get(..words).filter(|ring| layout.width > 0 && ring[0] > at)?;
        rest = &rest[words..];
        Some((layout, ring))
    })
}

/// Writes a state of these rings. A ring that does not fit is left out: see [`full_until`].
pub(super) fn write_rings(state: &mut Counters, at: u64, rings: &mut [Option<(Layout, Counts)>]) {
    rings.sort_by_key(|ring| std::cmp::Reverse(ring.as_ref().map_or(0, |(layout, counts)| counts.idle_at(*layout))));
    let (mut words, mut end) = ([0; Counters::MAX_WORDS], 0);
    for (layout, counts) in rings.iter().flatten() {
        let next = end + HEAD + index(layout.kept());
        if let Some(ring) = words.get_mut(end..next) {
            counts.write(*layout, ring);
            end = next;
        }
    }
    words[2] = at;
    state.grow(end);
    let words = &words[..state.len()];
    state.copy_from_slice(words);
}

/// Returns when a ring of this layout fits into the state, if none of the state has the layout, and there is no place.
pub(super) fn full_until(state: &[u64], at: u64, own: Layout) -> Option<u64> {
    let (mut words, mut full_until) = (HEAD + index(own.kept()), None);
    for (place, (layout, ring)) in rings(state, at).enumerate() {
        if layout == own {
            return None;
        }
        words += ring.len();
        // Of the rings that are idle last, the first one that does not fit beside the new ring: all later rings are idle by then.
        if place + 1 == MAX_RINGS || words > Counters::MAX_WORDS {
            full_until = full_until.or(Some(ring[0]));
        }
    }
    full_until
}

/// Converts a number of at most 61, the maximum number of blocks that count.
#[allow(clippy::cast_possible_truncation, reason = "at most 61")]
pub(super) const fn index(small: u64) -> usize {
    small as usize
}
