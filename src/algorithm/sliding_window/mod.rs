mod layout;
mod ring;
#[cfg(all(test, not(loom)))]
mod tests;
mod view;

use std::time::Duration;

use self::layout::{Counts, HEAD, Layout, index};
use self::ring::Ring;
use self::view::{Live, Totals, View, quotient, saturating_u64};
use super::{Algorithm, ChargeOptions, Counters, CountersEdit, ShareCapacity, ShareFamily, Start, Step};
use crate::clock::{Timestamp, micros_floor};
use crate::decision::LazySnapshot;
use crate::error::Error;
use crate::quota::Quota;

/// A sliding window that counts in blocks of time, in a fixed number of words.
///
/// ![Decisions with a quota of ten in ten seconds, on four patterns of traffic][picture-sliding-window]
///
#[doc = include_str!("../../../docs/pictures/sliding-window.md")]
///
/// **Strict** (the default): in any window of one period at most `limit` are admitted, exactly. The window counts the
/// current block and as many full blocks as the period has. So a hit counts for up to one block longer than a period,
/// and the window never admits too much.
///
/// **[Weighted](Self::weighted)**: the oldest block counts by the fraction of it that the window covers, as if its
/// hits were evenly distributed. In any window of one period at most `2 limit - 1` are admitted, with any number of
/// blocks: no weighted counter is strict. With one block this is the well-known estimate from the current and the
/// previous window.
///
/// - **Closed form**, with `N` blocks of width `b` and the current block `j`: strict, admit if the sum of blocks
///   `j - N` to `j` plus `cost` is at most `limit`; weighted, with block `j - N` counted by the fraction
///   `1 - (now mod b) / b`. `retry_after` is exact in both forms; in the weighted form it may be in a later block.
/// - **State**: `N + 6` words. All blocks are aligned to the clock.
/// - **After a change of quota** or of the number of blocks, an old block counts in the new block that contains the
///   old block's last microsecond, or the last charge if that was earlier. Until the next charge under the new quota
///   the old block expires no later than before; after that charge it expires with the new block.
/// - **Source**: a ring of counters; several content delivery networks use the weighted form.
/// - **Choose it** in the strict form for an exact bound with a limit too large for a
///   [`SlidingLog`](super::SlidingLog); in the weighted form for a smooth estimate.
///
/// ```
/// use tower_ratelimit::{Quota, SlidingWindow};
///
/// // 120 in any minute, counted in blocks of 6 seconds.
/// const API: SlidingWindow = SlidingWindow::new(Quota::per_minute(120));
/// // The estimate from this minute and the last.
/// const ESTIMATE: SlidingWindow = SlidingWindow::new(Quota::per_minute(120)).blocks(1).weighted();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    quota: Quota,
    layout: Layout,
    weighted: bool,
}

impl SlidingWindow {
    /// The maximum number of blocks in a period.
    pub const MAX_BLOCKS: u64 = 60;

    /// Admits `quota.limit()` in any window of `quota.period()`, in the strict form.
    ///
    /// The number of blocks is the largest number up to ten that divides the period's microseconds.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        let mut blocks = 10;
        while !quota.period_micros().is_multiple_of(blocks) {
            blocks -= 1;
        }
        Self { quota, layout: Layout { blocks, width: quota.period_micros() / blocks }, weighted: false }
    }

    /// Sets the number of blocks. More blocks are more precise, and take more words per key.
    ///
    /// # Panics
    ///
    /// Panics if `blocks` is not in 1 to [`MAX_BLOCKS`](Self::MAX_BLOCKS), does not divide the period into whole
    /// microseconds, or makes the blocks of a weighted window too long for an exact estimate. In a `const` the compiler
    /// reports it. To handle the error, use [`try_blocks`](Self::try_blocks).
    #[must_use]
    #[track_caller]
    pub const fn blocks(self, blocks: u64) -> Self {
        self.with_blocks(blocks).unwrap_or_panic()
    }

    /// Works as [`blocks`](Self::blocks), and returns an error instead of panicking.
    ///
    /// # Errors
    ///
    /// Returns an error if `blocks` is not in 1 to [`MAX_BLOCKS`](Self::MAX_BLOCKS), does not divide the period into
    /// whole microseconds, or makes the blocks of a weighted window too long for an exact estimate.
    pub fn try_blocks(self, blocks: u64) -> Result<Self, Error> {
        self.with_blocks(blocks).validate()
    }

    /// Counts the oldest block by the fraction of it that the window covers.
    ///
    /// # Panics
    ///
    /// Panics if the limit times a block's length in microseconds is over 2^53; more blocks avoid that. In a `const`
    /// the compiler reports it. To handle the error, use [`try_weighted`](Self::try_weighted).
    #[must_use]
    #[track_caller]
    pub const fn weighted(self) -> Self {
        Self { weighted: true, ..self }.unwrap_or_panic()
    }

    /// Works as [`weighted`](Self::weighted), and returns an error instead of panicking.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit times a block's length in microseconds is over 2^53; more blocks avoid that.
    pub fn try_weighted(self) -> Result<Self, Error> {
        Self { weighted: true, ..self }.validate()
    }

    /// Returns the quota.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    const fn with_blocks(self, blocks: u64) -> Self {
        let width = match self.quota.period_micros().checked_div(blocks) {
            Some(width) => width,
            None => 0,
        };
        Self { layout: Layout { blocks, width }, ..self }
    }

    const fn validate_const(&self) -> Option<&'static str> {
        let Layout { blocks, width } = self.layout;
        if blocks == 0 || blocks > Self::MAX_BLOCKS {
            Some("a sliding window has 1 to 60 blocks")
        } else if !self.quota.period_micros().is_multiple_of(blocks) {
            Some(
                "a sliding window's blocks must take a whole number of microseconds; choose a number that divides the period",
            )
        } else if self.weighted && self.quota.limit() > (1 << 53) / width {
            Some(
                "a weighted window's limit times its blocks' length in microseconds must be at most 2^53; choose more blocks \
                 or the strict form",
            )
        } else {
            None
        }
    }

    #[track_caller]
    const fn unwrap_or_panic(self) -> Self {
        match self.validate_const() {
            None => self,
            Some(problem) => panic!("{}", problem),
        }
    }

    fn validate(self) -> Result<Self, Error> {
        match self.validate_const() {
            None => Ok(self),
            Some(problem) => {
                let Self { quota, layout: Layout { blocks, .. }, .. } = self;
                Err(Error::config(format!("{problem}; the quota is {quota}, the number of blocks {blocks}")))
            }
        }
    }

    /// Decides on any state.
    #[cold]
    #[inline(never)]
    fn decide_slow(&self, state: &Counters, now: u64, options: ChargeOptions) -> Step<Counters> {
        let view = View::new(self.layout, state, now);
        let delay = match options.start {
            Start::After(delay) => micros_floor(delay),
            Start::Within(_) => {
                let used = view.live().map(|live| u128::from(live.count)).sum();
                // `decide` has denied a cost above the limit.
                let spare = self.quota.limit() - options.cost;
                let admits_at = self.admits_at(view.at, spare, used, view.live());
                if admits_at > view.at {
                    return Step::Deny { wait: admits_at - now };
                }
                0
            }
        };
        let Layout { blocks, width } = self.layout;
        let next = CountersEdit::new([now, options.cost, blocks, width], |state, &[now, cost, blocks, width]| {
            let layout = Layout { blocks, width };
            let mut counts = Counts::new(&View::new(layout, state, now));
            counts.by_age[0] = counts.by_age[0].saturating_add(cost);
            counts.write(layout, state);
        });
        Step::Allow { next, delay }
    }

    /// Returns the snapshot of any state.
    #[cold]
    #[inline(never)]
    fn snapshot_slow(&self, state: &Counters, now: u64) -> LazySnapshot {
        let view = View::new(self.layout, state, now);
        self.snapshot_of(&view.totals(), || view.live(), now)
    }

    /// Returns the time, from `at` on, from which at most `spare` counts. At `at` the blocks contain `used`.
    #[inline(never)]
    fn admits_at(&self, at: u64, spare: u64, mut used: u128, mut blocks: impl Iterator<Item = Live> + Clone) -> u64 {
        let (spare, mut from) = (u128::from(spare), at);
        while used > spare {
            let Some(oldest) = blocks.next() else { break };
            if self.weighted {
                // Several old blocks may count in the same new block, and then count by the same fraction.
                let same = blocks.clone().take_while(|live| live.block == oldest.block);
                let sharing = same.fold(u128::from(oldest.count), |sum, live| sum + u128::from(live.count));
                if let Some(spare) = (spare + sharing).checked_sub(used) {
                    let admits_at = self.drained_to(oldest.block, sharing, spare).max(from);
                    if admits_at < oldest.leaves_at {
                        return admits_at;
                    }
                }
            }
            used = used.saturating_sub(oldest.count.into());
            from = oldest.leaves_at;
        }
        from
    }

    /// Returns the time from which the fraction of `sharing`, the count of this block, is at most `spare`, which is
    /// less.
    fn drained_to(&self, block: u64, sharing: u128, spare: u128) -> u64 {
        // sharing * (width - offset_in_block) <= spare * width, and the quotient is below the width.
        let left = quotient(spare * u128::from(self.layout.width), sharing);
        self.layout.leaves_at(block).saturating_sub(left)
    }

    /// Returns the snapshot of a state with these totals. `live` returns its blocks.
    #[inline]
    fn snapshot_of<L: Iterator<Item = Live> + Clone>(
        &self,
        totals: &Totals,
        live: impl FnOnce() -> L,
        now: u64,
    ) -> LazySnapshot {
        let limit = self.quota.limit();
        let used = if self.weighted { totals.weighted(self.layout) } else { saturating_u64(totals.used) };
        let remaining = limit.saturating_sub(used);
        let reset = if totals.used == 0 { 0 } else { totals.last_leaves_at.saturating_sub(now) };
        let next_token_after = if remaining == limit {
            reset
        } else if !self.weighted && used <= limit {
            // The oldest block holds at least one.
            totals.first_leaves_at.saturating_sub(now)
        } else {
            let spare = limit.saturating_sub(remaining + 1);
            self.admits_at(totals.at, spare, totals.used, live()) - now
        };
        LazySnapshot::from_micros([limit, self.quota.period_micros(), remaining, reset, next_token_after])
    }
}

impl Algorithm for SlidingWindow {
    type State = Counters;

    const STATE_NAME: &'static str = "sliding_window1";

    fn decide(&self, state: &Counters, now: Timestamp, options: ChargeOptions) -> Step<Counters> {
        let (limit, cost, now) = (self.quota.limit(), options.cost, now.as_micros());
        if !options.is_forced() && cost > limit {
            return Step::Exceeds;
        }
        let Some(ring) = Ring::new(self.layout, state, now) else { return self.decide_slow(state, now, options) };
        let totals = ring.totals();
        let delay = match options.start {
            Start::After(delay) => micros_floor(delay),
            Start::Within(_) if totals.used <= u128::from(limit - cost) => 0,
            Start::Within(_) => {
                let admits_at = self.admits_at(ring.at, limit - cost, totals.used, ring.live());
                if admits_at > ring.at {
                    return Step::Deny { wait: admits_at - now };
                }
                0
            }
        };
        let next = match ring.charged(totals, cost) {
            Some(totals) => ring.charge(cost).with_snapshot(self.snapshot_of(&totals, || ring.live_after(cost), now)),
            None => ring.charge(cost),
        };
        Step::Allow { next, delay }
    }

    /// Keeps the larger of both counts, block by block.
    fn carry_over_debt(&self, state: &mut Counters, from: &Counters, now: Timestamp) {
        let [own, other] = [&*state, from].map(|state| Counts::new(&View::new(self.layout, state, now.as_micros())));
        let (mut newer, older) = if own.at >= other.at { (own, other) } else { (other, own) };
        let apart = newer.current - older.current;
        for age in apart..=self.layout.blocks {
            let count = &mut newer.by_age[index(age)];
            *count = (*count).max(older.by_age[index(age - apart)]);
        }
        newer.write(self.layout, state);
    }

    fn snapshot(&self, state: &Counters, now: Timestamp) -> LazySnapshot {
        let now = now.as_micros();
        match Ring::new(self.layout, state, now) {
            Some(ring) => self.snapshot_of(&ring.totals(), || ring.live(), now),
            None => self.snapshot_slow(state, now),
        }
    }

    fn max_reset(&self) -> Duration {
        Duration::from_micros(self.layout.max_reset())
    }

    fn counter_words(&self) -> usize {
        HEAD + index(self.layout.kept())
    }

    fn share_capacity(&self) -> Option<ShareCapacity> {
        let (limit, period) = (self.quota.limit(), self.quota.period_micros());
        let family = ShareFamily::Window { period, blocks: self.layout.blocks };
        (!self.weighted).then_some(ShareCapacity { family, limit, period, max: limit })
    }
}

#[cfg(feature = "redis")]
impl super::LuaAlgorithm for SlidingWindow {
    const SCRIPT: super::LuaScript = super::LuaScript::new("sliding_window2", include_str!("sliding_window.lua"));

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        params.extend([self.quota.limit(), self.layout.width, self.layout.blocks, cost, u64::from(self.weighted)]);
    }

    // A decision reads and writes all blocks: about 4 us, and 0.3 us for each block.
    fn weight(&self) -> u16 {
        u16::try_from(self.layout.blocks.div_ceil(12)).map_or(u16::MAX, |blocks| blocks.saturating_add(1))
    }

    // In Redis the layout is two numbers: the width, and the number of blocks for which a hit counts.
    fn decode_state(&self, numbers: &[u64]) -> Counters {
        let &[idle_at, newest, written_at, width, kept, ref counts @ ..] = numbers else {
            return Counters::zero(self.counter_words());
        };
        // The store's own numbers follow the counts.
        let counts = &counts[..usize::try_from(kept).map_or(0, |kept| kept.min(counts.len()))];
        let mut state = Counters::zero((HEAD + counts.len()).max(self.counter_words()));
        let layout = Layout { blocks: kept.saturating_sub(1), width };
        let total = counts.iter().fold(0, |total: u64, count| total.saturating_add(*count));
        state[..HEAD].copy_from_slice(&[idle_at, newest, written_at, layout.word(), total]);
        for (word, count) in state[HEAD..].iter_mut().zip(counts) {
            *word = *count;
        }
        state
    }

    fn encode_state(&self, state: &Counters, numbers: &mut Vec<u64>) {
        let &[idle_at, newest, written_at, word, _, ref counts @ ..] = &**state else { return };
        let layout = Layout::from_word(word);
        let kept = layout.kept();
        numbers.extend([idle_at, newest, written_at, layout.width, kept]);
        numbers.extend(&counts[..index(kept).min(counts.len())]);
    }
}
