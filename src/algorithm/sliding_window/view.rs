use super::layout::{Layout, full_until, index, rings};

/// Any state at a time: the ring of the window that reads, or else the ring of another period from which that window
/// takes over the usage.
pub(super) struct View<'a> {
    /// The blocks of the window that reads.
    pub(super) layout: Layout,
    /// The blocks of the ring.
    written: Layout,
    /// Block `j` is at `j % kept`. Empty if no block counts.
    counts: &'a [u64],
    pub(super) newest: u64,
    /// A time that no hit of the newest block is before.
    pub(super) first_at: u64,
    /// The time at which to decide: now, or the time of the last charge if that is later.
    pub(super) at: u64,
    /// Whether the state counts: the clock has not stepped back by more than the window's time.
    pub(super) counts_state: bool,
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
        let at = now.max(state.get(2).copied().unwrap_or(0));
        let counts_state = at - now <= layout.max_reset();
        let at = if counts_state { at } else { now };
        // The ring with the shortest time that covers this window has the finest blocks.
        let rank = |&(written, _): &(Layout, &[u64])| {
            let span = written.max_reset();
            let covers = span >= layout.max_reset();
            (written != layout, !covers, if covers { span } else { u64::MAX - span })
        };
        let counts_any = counts_state && state.first().is_some_and(|idle_at| *idle_at > at);
        // Also of idle rings: otherwise another ring would be read as soon as this ring is idle, and denials would last longer.
        let ring = rings(state, 0).filter(|_| counts_any).min_by_key(rank).filter(|(_, ring)| ring[0] > at);
        let (written, newest, first_at, counts) = match ring {
            Some((written, &[_, newest, _, _, _, first_at, ref counts @ ..])) => (written, newest, first_at, counts),
            _ => (layout, 0, 0, &[][..]),
        };
        Self { layout, written, counts, newest, first_at, at, counts_state }
    }

    /// Returns when there is a place for the window's ring in the state.
    pub(super) fn full_until(&self, state: &[u64]) -> Option<u64> {
        if self.counts_state { full_until(state, self.at, self.layout) } else { None }
    }

    /// Returns the layouts of the rings of other windows.
    pub(super) fn other_layouts(&self, state: &[u64]) -> impl Iterator<Item = Layout> {
        let (own, counts_state) = (self.layout, self.counts_state);
        rings(state, self.at).map(|(layout, _)| layout).filter(move |layout| counts_state && *layout != own)
    }

    /// Whether the ring has the layout of the window that reads.
    pub(super) fn is_own(&self) -> bool {
        self.written == self.layout
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
            // The first possible time of a hit in this block: the hits may be as old, and must not count for longer.
            let start = written.saturating_mul(self.written.width);
            let first = if written == self.newest { start.max(self.first_at) } else { start };
            let block = first / self.layout.width;
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
