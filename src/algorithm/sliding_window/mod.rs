mod layout;
mod ring;
#[cfg(all(test, not(loom)))]
mod tests;
mod view;

use std::time::Duration;

#[cfg(feature = "redis")]
use self::layout::rings;
use self::layout::{Counts, HEAD, Layout, MAX_RINGS, index, write_rings};
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
/// - **State**: `N + 7` words. All blocks are aligned to the clock.
/// - **Several periods on one key**: see [below](#several-periods-on-one-key).
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
///
/// # Several periods on one key
///
/// Tiers, and two versions of a service during a deployment, may charge one key by several periods or numbers of blocks. A
/// state then has a ring of `N + 1` counts and 6 words for each of them:
///
/// 1. A request counts its own ring. A charge counts in all rings.
/// 2. A period without a ring takes over the usage from the ring of another period, by the shortest time that covers its
///    own. A block counts from its start on, or from its first hit if it is the newest block, and no longer than in the other
///    ring.
///
/// So your requests keep the bound of their own limit, whatever other limits charge; a request with less usage than its
/// limit in its own period (and one block) is not denied; and a change of quota keeps the usage, but for blocks that are
/// partly older than the new period. A change of the limit alone keeps the ring. A state has at most four rings and 134
/// words: a ring for which there is no place is denied until another ring is idle. A settled hold then counts in the other
/// rings.
///
/// While a deployment lowers a limit, the processes with the larger limit use what both may use: those with the smaller
/// limit are denied while the usage is above their limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
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
                let full_until = if options.cost > 0 { view.full_until(state) } else { None };
                let admits_at = admits_at.max(full_until.unwrap_or(0));
                if admits_at > view.at {
                    return Step::Deny { wait: admits_at - now };
                }
                0
            }
        };
        let Layout { blocks, width } = self.layout;
        let next = CountersEdit::new([now, options.cost, blocks, width], |state, &[now, cost, blocks, width]| {
            let layout = Layout { blocks, width };
            let view = View::new(layout, state, now);
            let (at, is_full) = (view.at, view.full_until(state).is_some());
            let mut rings = [const { None }; MAX_RINGS];
            let others = view.other_layouts(state);
            let own = (!is_full).then_some(layout);
            for (ring, layout) in rings.iter_mut().zip(own.into_iter().chain(others)) {
                let mut counts = Counts::new(&View::new(layout, state, at));
                counts.add(cost);
                *ring = Some((layout, counts));
            }
            write_rings(state, at, &mut rings);
        });
        Step::Allow { next, delay }
    }

    /// Returns the snapshot of any state.
    #[cold]
    #[inline(never)]
    fn snapshot_slow(&self, state: &Counters, now: u64) -> LazySnapshot {
        let view = View::new(self.layout, state, now);
        let totals = view.totals();
        let snapshot = self.snapshot_of(&totals, || view.live(), now);
        let Some(full_until) = view.full_until(state) else { return snapshot };
        let snapshot = snapshot.compute();
        let admits_at =
            self.admits_at(totals.at, snapshot.limit.saturating_sub(1), totals.used, view.live()).max(full_until);
        let reset = snapshot.reset.max(Duration::from_micros(full_until - now));
        snapshot
            .with_remaining(0)
            .with_reset(reset)
            .with_next_token_after(Duration::from_micros(admits_at - now))
            .into()
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

    const STATE_NAME: &'static str = "sliding_window2";

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
        let views = [&*state, from].map(|state| View::new(self.layout, state, now.as_micros()));
        let at = views[0].at.max(views[1].at);
        let others = views[0].other_layouts(state).chain(views[1].other_layouts(from));
        let mut rings = [const { None }; MAX_RINGS];
        let layouts: Vec<_> = [self.layout].into_iter().chain(others).collect();
        for (place, layout) in layouts.iter().enumerate() {
            if !layouts[..place].contains(layout)
                && let Some(ring) = rings.iter_mut().find(|ring| ring.is_none())
            {
                *ring = Some((*layout, Counts::of_both(*layout, [state, from], at)));
            }
        }
        write_rings(state, at, &mut rings);
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
    const SCRIPT: super::LuaScript = super::LuaScript::new("sliding_window3", include_str!("sliding_window.lua"));

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        params.extend([self.quota.limit(), self.layout.width, self.layout.blocks, cost, u64::from(self.weighted)]);
    }

    // A decision reads and writes all blocks: about 4 us, and 0.3 us for each block.
    fn weight(&self) -> u16 {
        u16::try_from(self.layout.blocks.div_ceil(12)).map_or(u16::MAX, |blocks| blocks.saturating_add(1))
    }

    // In Redis the layout is two numbers, the width and the number of blocks for which a hit counts, and there is no sum.
    // The number of further rings is behind the first one's words.
    fn decode_state(&self, numbers: &[u64]) -> Counters {
        let mut words = Vec::new();
        let (mut rest, mut rings) = (numbers, 0);
        while let &[idle_at, newest, ref others @ ..] = rest {
            let is_first = words.is_empty();
            let (written_at, others) = if is_first { others.split_first().unzip() } else { (None, Some(others)) };
            let Some(&[width, kept, first_at, ref others @ ..]) = others else { break };
            let (further, others) = if is_first { others.split_first().unzip() } else { (None, Some(others)) };
            let (others, layout) = (others.unwrap_or_default(), Layout { blocks: kept.saturating_sub(1), width });
            rings = further.copied().unwrap_or(rings);
            // The store's own numbers follow the counts.
            let (counts, others) = others.split_at(usize::try_from(kept).map_or(0, |kept| kept.min(others.len())));
            let total = counts.iter().fold(0, |total: u64, count| total.saturating_add(*count));
            words.extend([idle_at, newest, written_at.copied().unwrap_or(0), layout.word(), total, first_at]);
            words.extend(counts);
            if rings == 0 {
                break;
            }
            (rest, rings) = (others, rings - 1);
        }
        let mut state = Counters::zero(words.len().max(self.counter_words()));
        for (word, number) in state.iter_mut().zip(words) {
            *word = number;
        }
        state
    }

    fn encode_state(&self, state: &Counters, numbers: &mut Vec<u64>) {
        let from = numbers.len();
        let mut further = 0;
        for (layout, ring) in rings(state, 0) {
            let &[idle_at, newest, written_at, _, _, first_at, ref counts @ ..] = ring else { break };
            if numbers.len() == from {
                numbers.extend([idle_at, newest, written_at, layout.width, layout.kept(), first_at, 0]);
            } else {
                numbers.extend([idle_at, newest, layout.width, layout.kept(), first_at]);
                further += 1;
            }
            numbers.extend(counts);
        }
        if let Some(number) = numbers.get_mut(from + 6) {
            *number = further;
        }
    }
}
