use std::time::Duration;

use super::{Algorithm, Blocks, Charge};
use crate::clock::Timestamp;
use crate::decision::{Ask, Figures, Reading, Verdict};
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
/// - **After a change of quota** or of the number of blocks, the counts of live blocks go over into the new blocks that hold
///   their ends. A charge from before it is given back as far as it would still count before, and from the oldest hits first.
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

    fn view(&self, state: &Blocks, now: u64) -> View {
        let width = self.width();
        let mut view = View { counts: [0; KEPT], at: now, current: now / width, behind: 0 };
        let &[fresh_at, newest, written_at, geometry, ref counts @ ..] = &**state else { return view };
        let at = now.max(written_at);
        if at - now > self.quota.period_micros() + width {
            return view;
        }
        (view.at, view.current, view.behind) = (at, at / width, at - now);
        if fresh_at <= at || counts.is_empty() {
            return view;
        }
        let (old_width, old_kept) = (geometry >> 6, (geometry & 63) + 1);
        for block in newest.saturating_sub(old_kept - 1)..=newest {
            let count = count_at(counts, block, old_kept);
            let ends_at = block.saturating_add(1).saturating_mul(old_width);
            let leaves_at = block.saturating_add(old_kept).saturating_mul(old_width);
            if count == 0 || leaves_at <= at {
                continue;
            }
            // Under one geometry this is the block itself.
            let block = ends_at.saturating_sub(1).min(at) / width;
            let age = view.current - block;
            if age <= self.blocks {
                view.add(age, count);
            }
        }
        view
    }

    fn write(&self, state: &mut Blocks, view: &View) {
        let words = &mut **state;
        let Some((head, counts)) = words.split_at_mut_checked(HEAD) else { return };
        counts.fill(0);
        let mut fresh_at = 0;
        for (age, &count) in (0..=self.blocks).zip(&view.counts) {
            let Some(block) = view.current.checked_sub(age) else { break };
            if count > 0 {
                fresh_at = fresh_at.max(self.leaves_at(block));
                if let Some(slot) = counts.get_mut(index(block % self.kept())) {
                    *slot = count;
                }
            }
        }
        head.copy_from_slice(&[fresh_at, view.current, view.at, self.geometry()]);
    }

    const fn leaves_at(&self, block: u64) -> u64 {
        block.saturating_add(self.kept()).saturating_mul(self.width())
    }

    /// The wait from `view.at` until `cost`, at most the limit, is admitted if nobody else asks.
    fn wait(&self, view: &View, cost: u64) -> u64 {
        let limit = self.quota.limit();
        let into = view.at % self.width();
        // After `passed` more blocks have begun, those of an age of over `blocks - passed` have left.
        for passed in 0..=self.blocks {
            let start = if passed == 0 { into } else { 0 };
            let oldest_age = self.blocks - passed;
            let oldest = view.counts[index(oldest_age)];
            let younger = view.counts[..index(oldest_age)].iter().fold(cost, |sum, &count| sum.saturating_add(count));
            let Some(room) = limit.checked_sub(younger) else { continue };
            let from = if self.weighted {
                self.admits_from(oldest, room).max(start)
            } else if oldest <= room {
                start
            } else {
                continue;
            };
            if from < self.width() {
                return (passed * self.width() + from).saturating_sub(into);
            }
        }
        self.kept() * self.width() - into
    }

    /// How far into a block the share that still counts of `oldest` is down to `room`.
    fn admits_from(&self, oldest: u64, room: u64) -> u64 {
        if oldest <= room {
            return 0;
        }
        // oldest * (width - from) <= room * width; with room < oldest the quotient is below the width.
        let left = u128::from(room) * u128::from(self.width()) / u128::from(oldest);
        self.width() - u64::try_from(left).unwrap_or(u64::MAX).min(self.width())
    }

    fn remaining(&self, view: &View) -> u64 {
        let width = u128::from(self.width());
        let younger: u128 = view.counts[..index(self.blocks)].iter().map(|&count| u128::from(count)).sum();
        let oldest = u128::from(view.counts[index(self.blocks)]);
        let share = if self.weighted { width - u128::from(view.at % self.width()) } else { width };
        let used = (younger * width + oldest * share).div_ceil(width);
        u128::from(self.quota.limit()).saturating_sub(used).try_into().unwrap_or(u64::MAX)
    }
}

/// The words before the counts: the moment from which on the state is as good as new, the newest block, the time of the last
/// charge, the geometry.
const HEAD: usize = 4;
const KEPT: usize = index(SlidingWindow::MAX_BLOCKS) + 1;

/// What a state says at a moment.
struct View {
    /// By age: the current block's first.
    counts: [u64; KEPT],
    /// The moment to decide at: now, or the newest time that the state has seen.
    at: u64,
    /// The block of that moment.
    current: u64,
    /// How far that moment lies ahead of now.
    behind: u64,
}

impl View {
    fn add(&mut self, age: u64, count: u64) {
        let sum = &mut self.counts[index(age)];
        *sum = sum.saturating_add(count);
    }
}

/// Of what is at most the number of blocks kept.
#[allow(clippy::cast_possible_truncation, reason = "at most 61")]
const fn index(small: u64) -> usize {
    small as usize
}

fn count_at(counts: &[u64], block: u64, kept: u64) -> u64 {
    counts.get(index(block % kept)).copied().unwrap_or(0)
}

impl Algorithm for SlidingWindow {
    type State = Blocks;

    fn peek(&self, state: &Blocks, now: Timestamp, ask: Ask) -> Verdict {
        if ask.cost > self.quota.limit() {
            return Verdict::Never;
        }
        let view = self.view(state, now.as_micros());
        match self.wait(&view, ask.cost) {
            0 => Verdict::Allowed,
            wait => Verdict::Denied { retry_after: Duration::from_micros(wait + view.behind) },
        }
    }

    fn commit(&self, state: &mut Blocks, now: Timestamp, _delay: Duration, cost: u64) {
        if cost > 0 {
            let mut view = self.view(state, now.as_micros());
            view.counts[0] = view.counts[0].saturating_add(cost);
            self.write(state, &view);
        }
    }

    fn give_back(&self, state: &mut Blocks, now: Timestamp, charge: Charge, amount: u64) {
        let mut view = self.view(state, now.as_micros());
        if charge.until.as_micros() <= view.at {
            return;
        }
        let block = charge.at.as_micros() / self.width();
        let Some(oldest) = view.current.checked_sub(block) else { return };
        // Under one geometry the block is known. After another one the charge went over into this block or a later one: the
        // oldest hits are credited first, as they leave first.
        let youngest = if self.leaves_at(block) == charge.until.as_micros() { oldest } else { 0 };
        let mut amount = amount.min(charge.cost);
        for age in (youngest..=oldest.min(self.blocks)).rev() {
            let count = &mut view.counts[index(age)];
            let credit = amount.min(*count);
            (*count, amount) = (*count - credit, amount - credit);
        }
        self.write(state, &view);
    }

    /// The greater of both counts, block by block.
    fn inherit(&self, state: &mut Blocks, from: &Blocks, now: Timestamp) {
        let (own, other) = (self.view(state, now.as_micros()), self.view(from, now.as_micros()));
        let (mut newer, older) = if own.at >= other.at { (own, other) } else { (other, own) };
        let apart = newer.current - older.current;
        for age in 0..=self.blocks.saturating_sub(apart) {
            let count = &mut newer.counts[index((age + apart).min(self.blocks))];
            *count = (*count).max(older.counts[index(age)]);
        }
        self.write(state, &newer);
    }

    fn reading(&self, state: &Blocks, now: Timestamp) -> Reading {
        let view = self.view(state, now.as_micros());
        let limit = self.quota.limit();
        let remaining = self.remaining(&view);
        let youngest = (0..=self.blocks).find(|&age| view.counts[index(age)] > 0);
        let reset = youngest.map_or(0, |age| {
            self.leaves_at(view.current.saturating_sub(age)).saturating_sub(view.at).saturating_add(view.behind)
        });
        let more_after = if remaining < limit { self.wait(&view, remaining + 1) + view.behind } else { reset };
        Figures {
            limit,
            window: self.quota.period(),
            remaining,
            reset: Duration::from_micros(reset),
            more_after: Duration::from_micros(more_after),
        }
        .into()
    }

    fn longest_reset(&self) -> Duration {
        Duration::from_micros(self.quota.period_micros() + self.width())
    }

    fn state_words(&self) -> usize {
        HEAD + index(self.kept())
    }
}

#[cfg(feature = "redis")]
impl super::Scripted for SlidingWindow {
    const KERNEL: super::Kernel = super::Kernel::new("sliding_window1", include_str!("sliding_window.lua"));

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        params.extend([self.quota.limit(), self.width(), self.blocks, cost, u64::from(self.weighted)]);
    }

    // In Redis the geometry is two numbers: the width, and how many blocks a hit counts in.
    fn state_of(&self, numbers: &[u64]) -> Blocks {
        let &[fresh_at, newest, written_at, width, kept, ref counts @ ..] = numbers else {
            return Blocks::zero(self.state_words());
        };
        // What follows is the store's.
        let counts = &counts[..usize::try_from(kept).map_or(0, |kept| kept.min(counts.len()))];
        let mut state = Blocks::zero((HEAD + counts.len()).max(self.state_words()));
        state[..HEAD].copy_from_slice(&[fresh_at, newest, written_at, width << 6 | kept.saturating_sub(1)]);
        for (word, count) in state[HEAD..].iter_mut().zip(counts) {
            *word = *count;
        }
        state
    }

    fn numbers_of(&self, state: &Blocks, numbers: &mut Vec<u64>) {
        let &[fresh_at, newest, written_at, geometry, ref counts @ ..] = &**state else { return };
        let kept = (geometry & 63) + 1;
        numbers.extend([fresh_at, newest, written_at, geometry >> 6, kept]);
        numbers.extend(&counts[..index(kept).min(counts.len())]);
    }
}
