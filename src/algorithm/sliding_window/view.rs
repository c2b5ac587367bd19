use super::layout::{Layout, index};

/// Any state at a time, in the blocks of the quota that wrote it.
pub(super) struct View<'a> {
    /// The blocks of the window that reads.
    pub(super) layout: Layout,
    /// The blocks of the window that wrote the state.
    written: Layout,
    /// Block `j` is at `j % kept`. Empty if no block counts.
    counts: &'a [u64],
    newest: u64,
    /// The time of the last charge.
    written_at: u64,
    /// The time at which to decide: now, or the time of the last charge if that is later.
    pub(super) at: u64,
}

/// A block of a state that counts.
#[derive(Clone, Copy)]
pub(super) struct Live {
    /// The block of this window in which it counts.
    pub(super) block: u64,
    pub(super) leaves_at: u64,
    pub(super) count: u64,
}

impl<'a> View<'a> {
    pub(super) fn new(layout: Layout, state: &'a [u64], now: u64) -> Self {
        let idle = |at| Self { layout, written: layout, counts: &[], newest: 0, written_at: 0, at };
        let &[idle_at, newest, written_at, word, _, ref counts @ ..] = state else { return idle(now) };
        let at = now.max(written_at);
        if at - now > layout.max_reset() {
            return idle(now);
        }
        if idle_at <= at {
            return idle(at);
        }
        let written = Layout::from_word(word);
        let counts = &counts[..index(written.kept()).min(counts.len())];
        Self { layout, written, counts, newest, written_at, at }
    }

    /// Returns the block that contains the view's time.
    pub(super) fn current(&self) -> u64 {
        self.layout.block_at(self.at, self.newest)
    }

    /// Returns the blocks that count at the view's time, oldest first. An older block expires no later than a newer
    /// block.
    pub(super) fn live(&self) -> impl Iterator<Item = Live> + Clone {
        let oldest = self.newest.saturating_sub(self.written.blocks);
        let first = index(oldest % self.written.kept());
        let (wrapped, first) = self.counts.split_at_checked(first).unwrap_or_default();
        let written = (oldest..=self.newest).zip(first.iter().chain(wrapped)).filter(|(_, count)| **count > 0);
        written.filter_map(|(written, &count)| {
            // The last possible time of a hit in this block. It does not depend on `at`, so that the block is counted
            // in the same new block at all times.
            let last = written.saturating_add(1).saturating_mul(self.written.width).saturating_sub(1);
            let block = last.min(self.written_at) / self.layout.width;
            let leaves_at = self.layout.leaves_at(block).min(self.written.leaves_at(written));
            (leaves_at > self.at).then_some(Live { block, leaves_at, count })
        })
    }

    /// Returns what a snapshot needs of the blocks.
    pub(super) fn totals(&self) -> Totals {
        let Self { at, .. } = *self;
        let mut totals =
            Totals { used: 0, oldest: 0, first_leaves_at: at, last_leaves_at: at, at, current: self.current() };
        for live in self.live() {
            if totals.used == 0 {
                totals.first_leaves_at = live.leaves_at;
            }
            totals.used += u128::from(live.count);
            if live.block.saturating_add(self.layout.blocks) <= totals.current {
                totals.oldest += u128::from(live.count);
            }
            totals.last_leaves_at = live.leaves_at;
        }
        totals
    }
}

/// What a snapshot needs of the blocks that count.
#[derive(Clone, Copy)]
pub(super) struct Totals {
    pub(super) used: u128,
    /// The part of `used` in the oldest block of the window.
    pub(super) oldest: u128,
    /// The time at which the oldest block that counts leaves the window.
    pub(super) first_leaves_at: u64,
    /// The time at which the newest block that counts leaves the window.
    pub(super) last_leaves_at: u64,
    /// The time at which to decide, and its block.
    pub(super) at: u64,
    pub(super) current: u64,
}

impl Totals {
    /// Returns the hits that count in the weighted form.
    pub(super) fn weighted(&self, Layout { width, .. }: Layout) -> u64 {
        let left = u128::from(width - (self.at - self.current * width));
        // Rounded up, because a part of a hit must count: `admits_at` waits until the exact product is small enough.
        // No overflow: at most 61 counts of 64 bits, times less than 2^53 microseconds.
        let oldest = quotient(self.oldest * left + u128::from(width - 1), u128::from(width));
        saturating_u64(self.used.saturating_sub(self.oldest)).saturating_add(oldest)
    }
}

/// Returns the quotient, at most `u64::MAX`. A division of 128 bits takes longer than all else of a decision.
pub(super) fn quotient(dividend: u128, divisor: u128) -> u64 {
    match (u64::try_from(dividend), u64::try_from(divisor)) {
        (Ok(dividend), Ok(divisor)) => dividend / divisor,
        _ => saturating_u64(dividend / divisor),
    }
}

pub(super) fn saturating_u64(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
