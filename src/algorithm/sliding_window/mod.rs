mod view;

use std::time::Duration;

use self::view::{HEAD, Live, View, index, quotient};
use super::{Algorithm, ChargeOptions, Counters, Start, Step};
use crate::clock::{Timestamp, micros_floor};
use crate::decision::{LazySnapshot, LimitSnapshot};
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
/// - **State**: `N + 5` words. All blocks are aligned to the clock.
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
    blocks: u64,
    weighted: bool,
    /// The length of a block in microseconds.
    // Stored: a decision took some 70 divisions otherwise (row "sliding window" of docs/performance.md).
    width: u64,
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
        Self { quota, blocks, weighted: false, width: quota.period_micros() / blocks }
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

    #[cfg(feature = "simulate")]
    pub(crate) const fn block_count(&self) -> u64 {
        self.blocks
    }

    const fn with_blocks(self, blocks: u64) -> Self {
        let width = match self.quota.period_micros().checked_div(blocks) {
            Some(width) => width,
            None => 0,
        };
        Self { blocks, width, ..self }
    }

    const fn validate_const(&self) -> Option<&'static str> {
        if self.blocks == 0 || self.blocks > Self::MAX_BLOCKS {
            Some("a sliding window has 1 to 60 blocks")
        } else if !self.quota.period_micros().is_multiple_of(self.blocks) {
            Some(
                "a sliding window's blocks must take a whole number of microseconds; choose a number that divides the period",
            )
        } else if self.weighted && self.quota.limit() > (1 << 53) / self.width {
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
                let Self { quota, blocks, .. } = self;
                Err(Error::config(format!("{problem}; the quota is {quota}, the number of blocks {blocks}")))
            }
        }
    }

    /// Returns the number of blocks for which a hit counts: its own, and as many full blocks as the period has.
    const fn kept(&self) -> u64 {
        self.blocks + 1
    }

    /// Returns width and number of blocks in one word. They are part of the state, because another quota may have
    /// written it.
    const fn layout_word(&self) -> u64 {
        self.width << 6 | self.blocks
    }

    /// Returns the hits that count, by blocks of this window.
    fn counts(&self, view: &View<'_>) -> Counts {
        let mut counts = Counts { by_age: [0; MAX_LIVE_BLOCKS], at: view.at, current: view.at / self.width };
        for Live { block, count, .. } in view.live(self) {
            let sum = &mut counts.by_age[index(counts.current.saturating_sub(block).min(self.blocks))];
            *sum = sum.saturating_add(count);
        }
        counts
    }

    fn write(&self, state: &mut Counters, new: &Counts) {
        let words = &mut **state;
        let Some((head, counts)) = words.split_at_mut_checked(HEAD) else { return };
        counts.fill(0);
        let mut idle_at = 0;
        for (age, &count) in (0..=self.blocks).zip(&new.by_age) {
            let Some(block) = new.current.checked_sub(age) else { break };
            if count > 0 {
                idle_at = idle_at.max(self.leaves_at(block));
                if let Some(slot) = counts.get_mut(index(block % self.kept())) {
                    *slot = count;
                }
            }
        }
        head.copy_from_slice(&[idle_at, new.current, new.at, self.layout_word()]);
    }

    /// Returns the state after a charge of `cost`.
    fn charged(&self, state: &Counters, view: &View<'_>, cost: u64) -> Counters {
        if !view.is_own {
            let mut counts = self.counts(view);
            counts.by_age[0] = counts.by_age[0].saturating_add(cost);
            let mut next = Counters::zero(state.len());
            self.write(&mut next, &counts);
            return next;
        }
        // The blocks of the state are those of this window: only the blocks since the last charge change.
        let (mut next, current, kept) = (state.clone(), view.at / self.width, self.kept());
        let Some((head, counts)) = next.split_at_mut_checked(HEAD) else { return next };
        for block in view.newest.saturating_add(1).max(current.saturating_sub(self.blocks))..=current {
            if let Some(slot) = counts.get_mut(index(block % kept)) {
                *slot = 0;
            }
        }
        if let Some(slot) = counts.get_mut(index(current % kept)) {
            *slot = slot.saturating_add(cost);
        }
        head.copy_from_slice(&[self.leaves_at(current), current, view.at, self.layout_word()]);
        next
    }

    const fn leaves_at(&self, block: u64) -> u64 {
        block.saturating_add(self.kept()).saturating_mul(self.width)
    }

    /// Returns the wait from `view.at` until a `cost` of at most the limit is admitted, without other charges.
    fn wait(&self, view: &View<'_>, cost: u64) -> u64 {
        self.wait_with(view, cost, view.live(self).map(|live| u128::from(live.count)).sum())
    }

    /// Works as [`wait`](Self::wait), with `used`, the sum of the blocks that count.
    fn wait_with(&self, view: &View<'_>, cost: u64, mut used: u128) -> u64 {
        let spare = u128::from(self.quota.limit().saturating_sub(cost));
        if used <= spare {
            return 0;
        }
        let mut from = view.at;
        let mut blocks = view.live(self);
        while used > spare {
            let Some(oldest) = blocks.next() else { break };
            if self.weighted {
                // Several old blocks may count in the same new block, and then count by the same fraction.
                let same = blocks.clone().take_while(|live| live.block == oldest.block);
                let sharing = same.fold(u128::from(oldest.count), |sum, live| sum + u128::from(live.count));
                if let Some(spare) = (spare + sharing).checked_sub(used) {
                    let admits_at = self.admits_at(oldest.block, sharing, spare).max(from);
                    if admits_at < oldest.leaves_at {
                        return admits_at - view.at;
                    }
                }
            }
            used -= u128::from(oldest.count);
            from = oldest.leaves_at;
        }
        from.saturating_sub(view.at)
    }

    /// Returns the time from which the fraction of `sharing`, the count of this block, is at most `spare`, which is
    /// less.
    fn admits_at(&self, block: u64, sharing: u128, spare: u128) -> u64 {
        // sharing * (width - offset_in_block) <= spare * width, and the quotient is below the width.
        let left = quotient(spare * u128::from(self.width), sharing);
        self.leaves_at(block).saturating_sub(left)
    }
}

const MAX_LIVE_BLOCKS: usize = index(SlidingWindow::MAX_BLOCKS) + 1;

/// The hits that count at a time, by blocks of this window.
struct Counts {
    /// The current block's count is first.
    by_age: [u64; MAX_LIVE_BLOCKS],
    at: u64,
    current: u64,
}

impl Algorithm for SlidingWindow {
    type State = Counters;

    fn decide(&self, state: &Counters, now: Timestamp, options: ChargeOptions) -> Step<Counters> {
        let view = View::new(self, state, now.as_micros());
        let delay = match options.start {
            Start::After(delay) => micros_floor(delay),
            Start::Within(_) if options.cost > self.quota.limit() => return Step::Exceeds,
            Start::Within(_) => match self.wait(&view, options.cost) {
                0 => 0,
                wait => return Step::Deny { wait: wait + view.behind },
            },
        };
        Step::Allow { next: self.charged(state, &view, options.cost), delay }
    }

    /// Keeps the larger of both counts, block by block.
    fn carry_over_debt(&self, state: &mut Counters, from: &Counters, now: Timestamp) {
        let [own, other] = [&*state, from].map(|state| self.counts(&View::new(self, state, now.as_micros())));
        let (mut newer, older) = if own.at >= other.at { (own, other) } else { (other, own) };
        let apart = newer.current - older.current;
        for age in apart..=self.blocks {
            let count = &mut newer.by_age[index(age)];
            *count = (*count).max(older.by_age[index(age - apart)]);
        }
        self.write(state, &newer);
    }

    fn snapshot(&self, state: &Counters, now: Timestamp) -> LazySnapshot {
        let view = View::new(self, state, now.as_micros());
        let limit = self.quota.limit();
        let totals = view.totals(self);
        let used = if self.weighted {
            quotient(totals.weighted + u128::from(self.width - 1), u128::from(self.width))
        } else {
            u64::try_from(totals.used).unwrap_or(u64::MAX)
        };
        let remaining = limit.saturating_sub(used);
        let reset = totals.last_leaves_at.map_or(0, |leaves_at| leaves_at - view.at + view.behind);
        let next_token_after = if remaining == limit {
            reset
        } else if !self.weighted && used <= limit {
            // The oldest block holds at least one.
            totals.first_leaves_at - view.at + view.behind
        } else {
            self.wait_with(&view, remaining + 1, totals.used) + view.behind
        };
        LimitSnapshot {
            limit,
            window: self.quota.period(),
            remaining,
            reset: Duration::from_micros(reset),
            next_token_after: Duration::from_micros(next_token_after),
        }
        .into()
    }

    fn max_reset(&self) -> Duration {
        Duration::from_micros(self.quota.period_micros() + self.width)
    }

    fn counter_words(&self) -> usize {
        HEAD + index(self.kept())
    }
}

#[cfg(feature = "redis")]
impl super::LuaAlgorithm for SlidingWindow {
    const SCRIPT: super::LuaScript = super::LuaScript::new("sliding_window2", include_str!("sliding_window.lua"));

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        params.extend([self.quota.limit(), self.width, self.blocks, cost, u64::from(self.weighted)]);
    }

    // A decision reads and writes all blocks: about 4 us, and 0.3 us for each block.
    fn weight(&self) -> u16 {
        u16::try_from(self.blocks.div_ceil(12)).map_or(u16::MAX, |blocks| blocks.saturating_add(1))
    }

    // In Redis the layout is two numbers: the width, and the number of blocks for which a hit counts.
    fn decode_state(&self, numbers: &[u64]) -> Counters {
        let &[idle_at, newest, written_at, width, kept, ref counts @ ..] = numbers else {
            return Counters::zero(self.counter_words());
        };
        // The store's own numbers follow the counts.
        let counts = &counts[..usize::try_from(kept).map_or(0, |kept| kept.min(counts.len()))];
        let mut state = Counters::zero((HEAD + counts.len()).max(self.counter_words()));
        state[..HEAD].copy_from_slice(&[idle_at, newest, written_at, width << 6 | kept.saturating_sub(1)]);
        for (word, count) in state[HEAD..].iter_mut().zip(counts) {
            *word = *count;
        }
        state
    }

    fn encode_state(&self, state: &Counters, numbers: &mut Vec<u64>) {
        let &[idle_at, newest, written_at, layout, ref counts @ ..] = &**state else { return };
        let kept = (layout & 63) + 1;
        numbers.extend([idle_at, newest, written_at, layout >> 6, kept]);
        numbers.extend(&counts[..index(kept).min(counts.len())]);
    }
}
