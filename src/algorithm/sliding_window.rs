use std::time::Duration;

use super::{Algorithm, ChargeOptions, Counters, Start, Step};
use crate::clock::{Timestamp, micros_floor};
use crate::decision::{LazySnapshot, LimitSnapshot};
use crate::error::Error;
use crate::quota::Quota;

/// So many in any window, counted in blocks of time: a sliding window in a fixed number of words.
///
/// **Strict** (the default): in any window of one period at most `limit` are admitted, exactly. It counts the current block
/// and as many full ones as the period has, so a hit may count for one block longer than a period: it is conservative by
/// at most one block, and never admits too much.
///
/// **[Weighted](Self::weighted)**: the oldest block counts by the share of it that the window still covers, as if its hits
/// were spread evenly. In any window of one period at most `2 limit - 1` are admitted, with however many blocks: no weighted
/// counter is strict. With one block it is the well-known estimate from the current and the previous window.
///
/// - **Closed form**, with `N` blocks of width `b`, block `j` the current one: strict, admit if the sum of blocks `j - N` to
///   `j` plus `cost` is at most `limit`; weighted, with block `j - N` counted by the share `1 - (now mod b) / b`.
///   `retry_after` is exact for both; for the weighted form it may lie in a later block.
/// - **State**: `N + 5` words. All windows are aligned to the clock.
/// - **After a change of quota** or of the number of blocks, a former block counts in the new block that holds its last
///   microsecond, or the last charge if that was earlier. Until the next charge under the new quota it counts no longer than
///   it would have counted before; after that charge it counts as long as the new block.
/// - **Source**: the blocks are the classic ring of counters; the weighted form is how several content delivery networks
///   count.
/// - **Choose it** strict where the bound must hold and the limit is too large for a [`SlidingLog`](super::SlidingLog);
///   weighted where a smooth estimate will do.
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
}

impl SlidingWindow {
    /// The most blocks that a period can be divided into.
    pub const MAX_BLOCKS: u64 = 60;

    /// `quota.limit()` in any window of `quota.period()`: strict, in ten blocks, or if the period's microseconds can't be
    /// divided by ten, in the largest number below that divides them.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        let mut blocks = 10;
        while !quota.period_micros().is_multiple_of(blocks) {
            blocks -= 1;
        }
        Self { quota, blocks, weighted: false }
    }

    /// Sets the number of blocks: the more, the finer, and the more words a key takes.
    ///
    /// # Panics
    ///
    /// If `blocks` is not in 1 to [`MAX_BLOCKS`](Self::MAX_BLOCKS), does not divide the period into whole microseconds, or
    /// makes blocks of a weighted window so long that its estimate can't be exact. In a `const` the compiler shows the
    /// panic; [`try_blocks`](Self::try_blocks) never panics.
    #[must_use]
    #[track_caller]
    pub const fn blocks(self, blocks: u64) -> Self {
        Self { blocks, ..self }.expect()
    }

    /// As [`blocks`](Self::blocks), never panicking.
    ///
    /// # Errors
    ///
    /// If `blocks` is not in 1 to [`MAX_BLOCKS`](Self::MAX_BLOCKS), does not divide the period into whole microseconds, or
    /// makes blocks of a weighted window so long that its estimate can't be exact.
    pub fn try_blocks(self, blocks: u64) -> Result<Self, Error> {
        Self { blocks, ..self }.check()
    }

    /// Counts the oldest block by the share of it that the window still covers.
    ///
    /// # Panics
    ///
    /// If the limit times a block's length in microseconds is over 2^53: choose more blocks. In a `const` the compiler
    /// shows the panic; [`try_weighted`](Self::try_weighted) never panics.
    #[must_use]
    #[track_caller]
    pub const fn weighted(self) -> Self {
        Self { weighted: true, ..self }.expect()
    }

    /// As [`weighted`](Self::weighted), never panicking.
    ///
    /// # Errors
    ///
    /// If the limit times a block's length in microseconds is over 2^53: choose more blocks.
    pub fn try_weighted(self) -> Result<Self, Error> {
        Self { weighted: true, ..self }.check()
    }

    /// The quota.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    const fn problem(&self) -> Option<&'static str> {
        if self.blocks == 0 || self.blocks > Self::MAX_BLOCKS {
            Some("a sliding window has 1 to 60 blocks")
        } else if !self.quota.period_micros().is_multiple_of(self.blocks) {
            Some(
                "a sliding window's blocks must be a whole number of microseconds: choose a number that divides the period",
            )
        } else if self.weighted && self.quota.limit() > (1 << 53) / self.width() {
            Some(
                "a weighted window's limit times its blocks' length in microseconds must be at most 2^53: choose more blocks, \
                 or the strict form",
            )
        } else {
            None
        }
    }

    #[track_caller]
    const fn expect(self) -> Self {
        match self.problem() {
            None => self,
            Some(problem) => panic!("{}", problem),
        }
    }

    fn check(self) -> Result<Self, Error> {
        match self.problem() {
            None => Ok(self),
            Some(problem) => {
                let Self { quota, blocks, .. } = self;
                Err(Error::config(format!("{problem}; the quota is {quota}, the number of blocks {blocks}")))
            }
        }
    }

    const fn width(&self) -> u64 {
        self.quota.period_micros() / self.blocks
    }

    /// How many blocks a hit counts in: the one it falls into, and as many full ones as the period has.
    const fn kept(&self) -> u64 {
        self.blocks + 1
    }

    /// The width and the number of blocks in one word: they tell whether a state was written by a window like this one.
    const fn geometry(&self) -> u64 {
        self.width() << 6 | self.blocks
    }

    fn view<'a>(&self, state: &'a Counters, now: u64) -> View<'a> {
        let mut view = View { counts: &[], newest: 0, width: 0, kept: 1, written_at: 0, at: now, behind: 0 };
        let &[fresh_at, newest, written_at, geometry, ref counts @ ..] = &**state else { return view };
        let at = now.max(written_at);
        if at - now > self.quota.period_micros() + self.width() {
            return view;
        }
        (view.at, view.behind) = (at, at - now);
        if fresh_at > at {
            (view.width, view.kept) = (geometry >> 6, (geometry & 63) + 1);
            (view.counts, view.newest, view.written_at) = (counts, newest, written_at);
        }
        view
    }

    /// The blocks that still count at the view's time, oldest first. An older block never expires later than a newer one.
    fn live<'a>(&'a self, view: &'a View<'_>) -> impl Iterator<Item = Live> + Clone + 'a {
        let oldest = view.newest.saturating_sub(view.kept - 1);
        let written = (oldest..=view.newest).zip(view.slots(oldest));
        written.filter_map(move |(written, &count)| {
            if count == 0 {
                return None;
            }
            // No hit of the block is later than its last microsecond, nor than the last charge: neither depends on `at`. In a
            // state of this window it is the block itself.
            let last = written.saturating_add(1).saturating_mul(view.width).saturating_sub(1).min(view.written_at);
            let block = last / self.width();
            let formerly_leaves_at = written.saturating_add(view.kept).saturating_mul(view.width);
            let leaves_at = self.leaves_at(block).min(formerly_leaves_at);
            (leaves_at > view.at).then_some(Live { block, leaves_at, count })
        })
    }

    /// What still counts, in blocks of this window.
    fn counts(&self, view: &View<'_>) -> Counts {
        let mut counts = Counts { by_age: [0; KEPT], at: view.at, current: view.at / self.width() };
        for Live { block, count, .. } in self.live(view) {
            let sum = &mut counts.by_age[index(counts.current.saturating_sub(block).min(self.blocks))];
            *sum = sum.saturating_add(count);
        }
        counts
    }

    fn write(&self, state: &mut Counters, new: &Counts) {
        let words = &mut **state;
        let Some((head, counts)) = words.split_at_mut_checked(HEAD) else { return };
        counts.fill(0);
        let mut fresh_at = 0;
        for (age, &count) in (0..=self.blocks).zip(&new.by_age) {
            let Some(block) = new.current.checked_sub(age) else { break };
            if count > 0 {
                fresh_at = fresh_at.max(self.leaves_at(block));
                if let Some(slot) = counts.get_mut(index(block % self.kept())) {
                    *slot = count;
                }
            }
        }
        head.copy_from_slice(&[fresh_at, new.current, new.at, self.geometry()]);
    }

    const fn leaves_at(&self, block: u64) -> u64 {
        block.saturating_add(self.kept()).saturating_mul(self.width())
    }

    /// The wait from `view.at` until `cost`, at most the limit, is admitted if nobody else asks.
    fn wait(&self, view: &View<'_>, cost: u64) -> u64 {
        let room = u128::from(self.quota.limit().saturating_sub(cost));
        let mut used: u128 = self.live(view).map(|live| u128::from(live.count)).sum();
        let mut from = view.at;
        let mut blocks = self.live(view);
        while used > room {
            let Some(oldest) = blocks.next() else { break };
            if self.weighted {
                // Former blocks may have gone over into the same block of this window: they count by the same share.
                let same = blocks.clone().take_while(|live| live.block == oldest.block);
                let sharing = same.fold(u128::from(oldest.count), |sum, live| sum + u128::from(live.count));
                if let Some(room) = (room + sharing).checked_sub(used) {
                    let admits_at = self.admits_at(oldest.block, sharing, room).max(from);
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

    /// From when on the share of `sharing`, all of this block, is at most `room`, which is less.
    fn admits_at(&self, block: u64, sharing: u128, room: u128) -> u64 {
        // sharing * (width - into) <= room * width, and the quotient is below the width.
        let left = room * u128::from(self.width()) / sharing;
        self.leaves_at(block).saturating_sub(u64::try_from(left).unwrap_or(u64::MAX))
    }

    fn remaining(&self, view: &View<'_>) -> u64 {
        let (width, current) = (self.width(), view.at / self.width());
        let share = |block: u64| {
            let is_oldest = block.saturating_add(self.blocks) <= current;
            u128::from(if self.weighted && is_oldest { width - view.at % width } else { width })
        };
        let used: u128 = self.live(view).map(|live| u128::from(live.count) * share(live.block)).sum();
        let used = used.div_ceil(u128::from(width));
        u128::from(self.quota.limit()).saturating_sub(used).try_into().unwrap_or(u64::MAX)
    }
}

/// The words before the counts: the moment from which on the state is as good as new, the newest block, the time of the last
/// charge, the geometry.
const HEAD: usize = 4;
const KEPT: usize = index(SlidingWindow::MAX_BLOCKS) + 1;

/// What a state says at a moment, in the blocks that it was written in.
struct View<'a> {
    /// Block `j` at `j % kept`; empty if nothing counts any more.
    counts: &'a [u64],
    newest: u64,
    width: u64,
    kept: u64,
    /// The time of the last charge.
    written_at: u64,
    /// The moment to decide at: now, or the newest time that the state has seen.
    at: u64,
    /// How far that moment lies ahead of now.
    behind: u64,
}

impl View<'_> {
    /// The slots of the blocks from this one on.
    fn slots(&self, block: u64) -> impl Iterator<Item = &u64> + Clone {
        let ring = &self.counts[..index(self.kept).min(self.counts.len())];
        let (wrapped, first) = ring.split_at_checked(index(block % self.kept)).unwrap_or_default();
        first.iter().chain(wrapped)
    }
}

/// A block of a state that still counts.
struct Live {
    /// The block of this window that it counts in.
    block: u64,
    leaves_at: u64,
    count: u64,
}

/// What counts at a moment, in blocks of this window.
struct Counts {
    /// The current block's count first.
    by_age: [u64; KEPT],
    at: u64,
    current: u64,
}

/// Of what is at most the number of blocks kept.
#[allow(clippy::cast_possible_truncation, reason = "at most 61")]
const fn index(small: u64) -> usize {
    small as usize
}

impl Algorithm for SlidingWindow {
    type State = Counters;

    fn decide(&self, state: &Counters, now: Timestamp, options: ChargeOptions) -> Step<Counters> {
        let view = self.view(state, now.as_micros());
        let delay = match options.start {
            Start::After(delay) => micros_floor(delay),
            Start::Within(_) if options.cost > self.quota.limit() => return Step::Exceeds,
            Start::Within(_) => match self.wait(&view, options.cost) {
                0 => 0,
                wait => return Step::Deny { wait: wait + view.behind },
            },
        };
        let mut counts = self.counts(&view);
        counts.by_age[0] = counts.by_age[0].saturating_add(options.cost);
        let mut next = Counters::zero(state.len());
        self.write(&mut next, &counts);
        Step::Allow { next, delay }
    }

    /// The greater of both counts, block by block.
    fn carry_over_debt(&self, state: &mut Counters, from: &Counters, now: Timestamp) {
        let [own, other] = [&*state, from].map(|state| self.counts(&self.view(state, now.as_micros())));
        let (mut newer, older) = if own.at >= other.at { (own, other) } else { (other, own) };
        let apart = newer.current - older.current;
        for age in apart..=self.blocks {
            let count = &mut newer.by_age[index(age)];
            *count = (*count).max(older.by_age[index(age - apart)]);
        }
        self.write(state, &newer);
    }

    fn snapshot(&self, state: &Counters, now: Timestamp) -> LazySnapshot {
        let view = self.view(state, now.as_micros());
        let limit = self.quota.limit();
        let remaining = self.remaining(&view);
        let reset = self.live(&view).last().map_or(0, |newest| newest.leaves_at - view.at + view.behind);
        let next_token_after = if remaining < limit { self.wait(&view, remaining + 1) + view.behind } else { reset };
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
        Duration::from_micros(self.quota.period_micros() + self.width())
    }

    fn counter_words(&self) -> usize {
        HEAD + index(self.kept())
    }
}

#[cfg(feature = "redis")]
impl super::LuaAlgorithm for SlidingWindow {
    const SCRIPT: super::LuaScript = super::LuaScript::new("sliding_window2", include_str!("sliding_window.lua"));

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        params.extend([self.quota.limit(), self.width(), self.blocks, cost, u64::from(self.weighted)]);
    }

    // Each decision reads and writes all blocks: about 4 us, and a third of one for each block.
    fn weight(&self) -> u16 {
        u16::try_from(self.blocks.div_ceil(12)).map_or(u16::MAX, |blocks| blocks.saturating_add(1))
    }

    // In Redis the geometry is two numbers: the width, and how many blocks a hit counts in.
    fn decode_state(&self, numbers: &[u64]) -> Counters {
        let &[fresh_at, newest, written_at, width, kept, ref counts @ ..] = numbers else {
            return Counters::zero(self.counter_words());
        };
        // What follows is the store's.
        let counts = &counts[..usize::try_from(kept).map_or(0, |kept| kept.min(counts.len()))];
        let mut state = Counters::zero((HEAD + counts.len()).max(self.counter_words()));
        state[..HEAD].copy_from_slice(&[fresh_at, newest, written_at, width << 6 | kept.saturating_sub(1)]);
        for (word, count) in state[HEAD..].iter_mut().zip(counts) {
            *word = *count;
        }
        state
    }

    fn encode_state(&self, state: &Counters, numbers: &mut Vec<u64>) {
        let &[fresh_at, newest, written_at, geometry, ref counts @ ..] = &**state else { return };
        let kept = (geometry & 63) + 1;
        numbers.extend([fresh_at, newest, written_at, geometry >> 6, kept]);
        numbers.extend(&counts[..index(kept).min(counts.len())]);
    }
}
