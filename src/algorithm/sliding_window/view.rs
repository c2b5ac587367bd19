use super::SlidingWindow;
use crate::algorithm::Counters;

/// The words before the counts: the time at which the key is idle, the newest block, the time of the last charge, and
/// the layout.
pub(super) const HEAD: usize = 4;

/// A state at a time, in the blocks of the quota that wrote it.
pub(super) struct View<'a> {
    /// Block `j` is at `j % kept`. Empty if no block counts.
    counts: &'a [u64],
    pub(super) newest: u64,
    width: u64,
    kept: u64,
    /// The time of the last charge.
    written_at: u64,
    /// The time at which to decide: now, or the time of the last charge if that is later.
    pub(super) at: u64,
    /// The time from now until `at`.
    pub(super) behind: u64,
    /// Whether a window with the same blocks wrote the state, and some block counts.
    pub(super) is_own: bool,
}

/// A block of a state that counts.
pub(super) struct Live {
    /// The block of this window in which it counts.
    pub(super) block: u64,
    pub(super) leaves_at: u64,
    pub(super) count: u64,
}

impl<'a> View<'a> {
    pub(super) fn new(window: &SlidingWindow, state: &'a Counters, now: u64) -> Self {
        let mut view =
            View { counts: &[], newest: 0, width: 0, kept: 1, written_at: 0, at: now, behind: 0, is_own: false };
        let &[idle_at, newest, written_at, layout, ref counts @ ..] = &**state else { return view };
        let at = now.max(written_at);
        if at - now > window.quota.period_micros() + window.width {
            return view;
        }
        (view.at, view.behind) = (at, at - now);
        if idle_at > at {
            (view.width, view.kept) = (layout >> 6, (layout & 63) + 1);
            (view.counts, view.newest, view.written_at) = (counts, newest, written_at);
            view.is_own = layout == window.layout_word() && newest <= at / window.width;
        }
        view
    }

    /// Returns the blocks that count at the view's time, oldest first. An older block expires no later than a newer
    /// block.
    pub(super) fn live<'b>(&'b self, window: &'b SlidingWindow) -> impl Iterator<Item = Live> + Clone + 'b {
        let oldest = self.newest.saturating_sub(self.kept - 1);
        let written = (oldest..=self.newest).zip(self.slots(oldest));
        written.filter_map(move |(written, &count)| {
            if count == 0 {
                return None;
            }
            let (block, leaves_at) =
                if self.is_own { (written, window.leaves_at(written)) } else { self.in_window(window, written) };
            (leaves_at > self.at).then_some(Live { block, leaves_at, count })
        })
    }

    /// Returns the block of `window` in which a block of this state counts, and the time at which it leaves.
    fn in_window(&self, window: &SlidingWindow, written: u64) -> (u64, u64) {
        // The last possible time of a hit in this block. It does not depend on `at`, so that the block is counted in
        // the same new block at all times.
        let last = written.saturating_add(1).saturating_mul(self.width).saturating_sub(1).min(self.written_at);
        let block = last / window.width;
        let old_expiry = written.saturating_add(self.kept).saturating_mul(self.width);
        (block, window.leaves_at(block).min(old_expiry))
    }

    /// Returns what a snapshot needs of the blocks.
    pub(super) fn totals(&self, window: &SlidingWindow) -> Totals {
        let current = self.at / window.width;
        let share = |block: u64| {
            let is_oldest = block.saturating_add(window.blocks) <= current;
            u128::from(if is_oldest { window.width - self.at % window.width } else { window.width })
        };
        let mut totals = Totals { used: 0, weighted: 0, first_leaves_at: self.at, last_leaves_at: None };
        for live in self.live(window) {
            if totals.used == 0 {
                totals.first_leaves_at = live.leaves_at;
            }
            totals.used += u128::from(live.count);
            if window.weighted {
                totals.weighted += u128::from(live.count) * share(live.block);
            }
            totals.last_leaves_at = Some(live.leaves_at);
        }
        totals
    }

    /// Returns the counts of the blocks, starting with `block`.
    fn slots(&self, block: u64) -> impl Iterator<Item = &u64> + Clone {
        let ring = &self.counts[..index(self.kept).min(self.counts.len())];
        let (wrapped, first) = ring.split_at_checked(index(block % self.kept)).unwrap_or_default();
        first.iter().chain(wrapped)
    }
}

/// What a snapshot needs of the blocks that count.
pub(super) struct Totals {
    pub(super) used: u128,
    /// The sum of the counts, each times the microseconds of its block that count. Only in the weighted form.
    pub(super) weighted: u128,
    /// The time at which the oldest block that counts leaves the window.
    pub(super) first_leaves_at: u64,
    pub(super) last_leaves_at: Option<u64>,
}

/// Returns the quotient, at most `u64::MAX`. A division of 128 bits takes longer than all else of a decision.
pub(super) fn quotient(dividend: u128, divisor: u128) -> u64 {
    match (u64::try_from(dividend), u64::try_from(divisor)) {
        (Ok(dividend), Ok(divisor)) => dividend / divisor,
        _ => u64::try_from(dividend / divisor).unwrap_or(u64::MAX),
    }
}

/// Converts a number of at most 61, the maximum number of blocks that count.
#[allow(clippy::cast_possible_truncation, reason = "at most 61")]
pub(super) const fn index(small: u64) -> usize {
    small as usize
}
