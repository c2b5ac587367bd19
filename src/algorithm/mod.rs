//! Rate limiting algorithms, and the trait for your own.
//!
//! # Choosing an algorithm
//!
//! With a limit of `L` in a period `W`, and a burst of `B` (`L` unless set):
//!
//! | Type | Maximum admitted in any window of one period | State, words | Choose it for |
//! |---|---|---|---|
//! | [`Gcra`] | `B + L - 1`, so `2L - 1` unless set, `L` if strict | 4 | the default: smooth, exact, fast |
//! | [`TokenBucket`] | as `Gcra`, which it equals | 4 | terms of tokens that are refilled |
//! | [`LeakyBucket`] | as `Gcra`, which it equals | 4 | terms of a level that drains |
//! | [`LeakyQueue`] | `L + 1` departures in a closed interval, evenly spaced | 4 | callers that wait instead of being denied |
//! | [`FixedWindow`] | `2L - 1` from the first hit, `2L` aligned to the clock or a calendar | 4 | quotas that users know as "so many per hour" |
//! | [`SlidingWindow`], strict | `L`, exactly; a hit counts up to one block too long | blocks + 7 | an exact bound with a large limit |
//! | [`SlidingWindow`], weighted | `2L - 1`, with any number of blocks | blocks + 7 | a smooth estimate |
//! | [`SlidingLog`] | `L`, exactly, and denies nothing below the limit | 2 per hit, on the heap | an exact bound with a small limit |
//!
//! [`InFlight`] has no period: it bounds how many requests are in flight at once. Choose it beside a rate, for streams
//! and slow requests.
//!
//! Each algorithm has a Lua implementation of the same transition, which Redis runs in a script.
//!
//! # Comparison on the same requests
//!
//! The quota is four in eight seconds, with at most one request per second: `#` is allowed, `.` is denied, `-` is no
//! request, and a digit is allowed after that many seconds. The first row has a request each second, the second row has
//! a pause after the first request:
//!
//! ```
//! # use std::time::Duration;
//! # use tower_ratelimit::algorithm::Algorithm;
//! # use tower_ratelimit::*;
//! # fn timeline(algorithm: impl Algorithm, requests: &str) -> String {
//! #     let clock = ManualClock::new();
//! #     let limiter = Memory::builder(algorithm).clock(clock.clone()).build().unwrap();
//! #     let second = |request: char| {
//! #         let verdict = (request != '-').then(|| limiter.check("key", AcquireOptions::default()).verdict());
//! #         clock.advance(Duration::from_secs(1));
//! #         match verdict {
//! #             None => '-',
//! #             Some(Verdict::Allowed) => '#',
//! #             Some(Verdict::AllowedAfter(delay)) => char::from_digit(delay.as_secs() as u32, 10).unwrap(),
//! #             Some(_) => '.',
//! #         }
//! #     };
//! #     requests.chars().map(second).collect()
//! # }
//! let quota = Quota::new(4, Duration::from_secs(8));
//! let each_second = "????????????????????????????????";
//! let after_pause = "?----???????????????????????????";
//!
//! let bucket = Gcra::new(quota); // also named TokenBucket and LeakyBucket
//! assert_eq!(timeline(bucket, each_second), "#######.#.#.#.#.#.#.#.#.#.#.#.#.");
//! assert_eq!(timeline(bucket, after_pause), "#----#######.#.#.#.#.#.#.#.#.#.#");
//!
//! let strict = Gcra::new(quota).strict();
//! assert_eq!(timeline(strict, each_second), "#.#.#.#.#.#.#.#.#.#.#.#.#.#.#.#.");
//! assert_eq!(timeline(strict, after_pause), "#----#.#.#.#.#.#.#.#.#.#.#.#.#.#");
//!
//! let queue = LeakyQueue::new(quota).max_waiting(3);
//! assert_eq!(timeline(queue, each_second), "#123456.6.6.6.6.6.6.6.6.6.6.6.6.");
//! assert_eq!(timeline(queue, after_pause), "#----#123456.6.6.6.6.6.6.6.6.6.6");
//!
//! let fixed = FixedWindow::new(quota);
//! assert_eq!(timeline(fixed, each_second), "####....####....####....####....");
//! assert_eq!(timeline(fixed, after_pause), "#----#######....####....####....");
//!
//! let blocks = SlidingWindow::new(quota).blocks(4);
//! assert_eq!(timeline(blocks, each_second), "####......####......####......##");
//! assert_eq!(timeline(blocks, after_pause), "#----###..#...#.##..#...#.##..#.");
//!
//! let weighted = SlidingWindow::new(quota).blocks(1).weighted();
//! assert_eq!(timeline(weighted, each_second), "####......#.#.#.#..#..#.#..#..#.");
//! assert_eq!(timeline(weighted, after_pause), "#----###..#.#.#.#..#..#.#..#..#.");
//!
//! let log = SlidingLog::new(quota);
//! assert_eq!(timeline(log, each_second), "####....####....####....####....");
//! assert_eq!(timeline(log, after_pause), "#----####....####....####....###");
//! ```

pub(crate) mod bucket;
pub(crate) mod fixed_window;
pub(crate) mod in_flight;
pub(crate) mod leaky_queue;
#[cfg(feature = "redis")]
mod lua;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
mod state;
#[cfg(test)]
mod tests;

#[cfg(feature = "redis")]
pub(crate) use self::lua::StateEncoding;
#[cfg(feature = "redis")]
pub use self::lua::{LuaAlgorithm, LuaScript};
pub use self::state::State;
#[allow(unused_imports, reason = "few features use them, and the documentation links to them")]
pub(crate) use self::{
    bucket::{Gcra, LeakyBucket, TokenBucket},
    fixed_window::FixedWindow,
    in_flight::InFlight,
    leaky_queue::LeakyQueue,
    sliding_log::SlidingLog,
    sliding_window::SlidingWindow,
};
// States of the algorithms of this crate.
#[doc(hidden)]
pub use self::state::{Counters, CountersEdit, HitLog, HitLogEdit};
use self::state::{KeptFor, Reach};
use crate::clock::{Timestamp, micros_floor};
use crate::decision::{AcquireOptions, LazySnapshot, Verdict};
use std::fmt;
use std::time::Duration;

/// A rate limiting algorithm: a pure function of a state, a time and a cost.
///
/// A store keeps one state for each key and runs the algorithm on it. A state is a few words. Zero words are the state
/// of a never-seen key. The first word is the time, in microseconds since the epoch, from which on the state is *idle*:
/// equal to the state of a never-seen key. A store may drop an idle state. The other words belong to the algorithm.
///
/// An algorithm has no clock, takes no lock and does no I/O. It must not call a limiter: in memory it runs under a lock.
///
/// # Laws
///
/// Stores rely on these laws, which `test_util::check_algorithm` (feature `test-util`) checks:
///
/// - **Pure**: [`decide`](Self::decide) and [`snapshot`](Self::snapshot) depend on their arguments only.
/// - **Idle**: at and after the time in the first word, every result equals the zero state's result.
/// - **Forced charges**: a decision whose [`start`](ChargeOptions::start) is [`Start::After`] is [`Step::Allow`], and
///   may leave the key in debt. Where an unforced decision allows the cost after the same delay, both make the same
///   next state.
/// - **Exact retry**: without other traffic, the same request is allowed at `now + wait`, at every later time, and not
///   a microsecond earlier.
/// - **Time may step back** a little, as threads read their clocks before they decide: then decide as at the newest
///   time in the state. If time stepped back by more than [`max_reset`](Self::max_reset), decide as on the zero state:
///   a clock that was wrong once must not lock a key.
/// - **Charges can be split**: if a cost is allowed, any part of it can be charged later, in any order with the passing
///   of time, and the rest is still allowed. [Holds](crate::limiter::Held) are exact because of this.
/// - **No panics**, whatever the state's words, the time and the cost are.
///
/// # Example
///
/// A cool-down: after each request, none is allowed for the given time.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, Step};
/// use tower_ratelimit::{AcquireOptions, LazySnapshot, LimitSnapshot, ManualClock, Memory, Timestamp};
///
/// #[derive(Debug)]
/// struct CoolDown(Duration);
///
/// impl Algorithm for CoolDown {
///     // The time from which on the next request is allowed.
///     type State = [u64; 1];
///
///     fn decide(&self, &[open_at]: &[u64; 1], now: Timestamp, options: ChargeOptions) -> Step<[u64; 1]> {
///         let wait = Timestamp::from_micros(open_at).saturating_since(now);
///         if !options.is_forced() && options.cost > 1 {
///             Step::Exceeds
///         } else if !options.is_forced() && !wait.is_zero() && wait <= 2 * self.0 {
///             Step::deny_for(wait)
///         } else {
///             let start = now.saturating_add(options.forced_delay());
///             Step::Allow { next: [start.saturating_add(self.0).as_micros()], delay: 0 }
///         }
///     }
///
///     fn snapshot(&self, &[open_at]: &[u64; 1], now: Timestamp) -> LazySnapshot {
///         let wait = Timestamp::from_micros(open_at).saturating_since(now);
///         let remaining = u64::from(wait.is_zero());
///         LimitSnapshot::new(1, self.0).with_remaining(remaining).with_reset(wait).with_next_token_after(wait).into()
///     }
///
///     fn max_reset(&self) -> Duration {
///         self.0
///     }
/// }
///
/// let clock = ManualClock::new();
/// let limiter = Memory::builder(CoolDown(Duration::from_secs(3))).clock(clock.clone()).build()?;
/// assert!(limiter.check("alice", AcquireOptions::default()).is_allowed());
/// clock.advance(Duration::from_secs(1));
/// let denied = limiter.check("alice", AcquireOptions::default());
/// assert_eq!(denied.retry_after(), Some(Duration::from_secs(2)));
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
pub trait Algorithm: fmt::Debug + Send + Sync + 'static {
    /// The state of a key: `[u64; N]`.
    type State: State;

    /// Whether a store [holds](crate::limiter::Held) the cost of every request until the request ends, and charges
    /// nothing, as for [`InFlight`].
    ///
    /// The usage of a key is then the sum of its held costs, and `peek_with_held` decides.
    #[doc(hidden)]
    const HELD_UNTIL_END: bool = false;

    /// Whether the algorithm is a queue, as [`LeakyQueue`] is: it delays requests by default, one start after the other.
    ///
    /// A lease cannot serve a queue, so a limiter with both is an error when it is built.
    #[doc(hidden)]
    const IS_QUEUE: bool = false;

    /// The name of what the words of a state mean, for [stores of your own](crate::store::StoreLimits).
    ///
    /// The name is a part of each state's key. Choose another name, such as `cool_down2` after `cool_down1`, if you change
    /// the meaning. Without a name the algorithm runs in [`Memory`](crate::Memory) and in Redis only.
    const STATE_NAME: &'static str = "";

    /// Decides one request, and returns the state after it. Changes nothing.
    ///
    /// If the cost is zero, [`Step::Allow`] may carry any next state: no store writes it.
    fn decide(&self, state: &Self::State, now: Timestamp, options: ChargeOptions) -> Step<Self::State>;

    /// Returns the result of [`decide`](Self::decide) in the common case, and `None` in any other case.
    ///
    /// Only algorithms of this crate implement it: no other crate can name the type `InLine`. Without it, the call of the
    /// complete case, though not made, costs the common case its registers: 170 instructions instead of 126 for row "hot
    /// key" of benches/figures.md.
    #[doc(hidden)]
    #[inline]
    fn decide_in_line(
        &self,
        state: &Self::State,
        now: Timestamp,
        options: ChargeOptions,
        _: InLine,
    ) -> Option<Step<Self::State>> {
        Some(self.decide(state, now, options))
    }

    /// Returns the numbers of a state for headers: limit, remaining, reset.
    fn snapshot(&self, state: &Self::State, now: Timestamp) -> LazySnapshot;

    /// Returns the snapshot of the next state that [`decide`](Self::decide) has returned at this time, unless it exists only
    /// after the edit.
    ///
    /// Only algorithms of this crate implement it, as `decide_in_line`.
    #[doc(hidden)]
    #[inline]
    fn snapshot_of_next(&self, next: &<Self::State as State>::Next, now: Timestamp, _: InLine) -> Option<LazySnapshot> {
        match Self::State::next_state(next) {
            Some(state) => Some(self.snapshot(state, now)),
            None => Self::State::next_snapshot(next),
        }
    }

    /// Returns the maximum time until a state within the limit is idle.
    fn max_reset(&self) -> Duration;

    /// Returns the verdict and the snapshot as if `held` were charged at `now`: for a key with
    /// [held](crate::limiter::Held) costs.
    ///
    /// The default charges a copy of the state.
    #[doc(hidden)]
    fn peek_with_held(
        &self,
        state: &Self::State,
        now: Timestamp,
        options: ChargeOptions,
        held: u64,
    ) -> (Verdict, LazySnapshot) {
        let mut state = state.clone();
        self.charge(&mut state, now, Duration::ZERO, held);
        (self.peek(&state, now, options), self.snapshot(&state, now))
    }

    /// Makes `state` one with at least the usage of `from` as well: for a key that
    /// [carries over](crate::WhenFull::CarryOver) the usage of an evicted one.
    ///
    /// The default keeps the state that is idle later, or of two that are idle at the same time the one with less
    /// remaining. That suffices if the time to idle determines the usage.
    #[doc(hidden)]
    fn carry_over_debt(&self, state: &mut Self::State, from: &Self::State, now: Timestamp) {
        let usage = |state| {
            let figures = self.snapshot(state, now).compute();
            (figures.reset, figures.limit.saturating_sub(figures.remaining))
        };
        if usage(from) > usage(state) {
            *state = from.clone();
        }
    }

    /// Returns the number of words of a state of type [`Counters`]. Stores ignore it for other states.
    ///
    /// If the algorithm is chosen by the key or can be replaced, a state has [`MAX_WORDS`](Counters::MAX_WORDS) words,
    /// and an algorithm with other settings may have written it.
    #[doc(hidden)]
    fn counter_words(&self) -> usize {
        Counters::MAX_WORDS
    }

    /// Returns the maximum number of bytes that a key takes on the heap, in a [`HitLog`].
    #[doc(hidden)]
    fn max_heap_bytes(&self) -> usize {
        0
    }

    /// Returns whether [`decide`](Self::decide) may allow a request after a delay.
    ///
    /// Several limits schedule a later start only if each of them can, and none of them is idle before the start that the
    /// others demand (by the [`reset`](crate::LimitSnapshot::reset) of its state, without held costs). A charge for the
    /// later start is then the same as a charge now.
    fn supports_scheduling(&self) -> bool {
        false
    }

    /// Returns after what time a store ends a hold whose request has not ended, if
    /// [`HELD_UNTIL_END`](Self::HELD_UNTIL_END) is set.
    #[doc(hidden)]
    fn max_hold_duration(&self) -> Option<Duration> {
        None
    }

    /// Returns how many requests of a key may wait under a layer in one process, if the algorithm bounds that, as
    /// [`LeakyQueue`] does.
    #[doc(hidden)]
    fn max_waiting(&self) -> Option<u64> {
        None
    }

    /// Returns what a [guaranteed share](crate::Limit::guarantee) and the limits beside it compare, for an algorithm of
    /// this crate that can guarantee shares.
    #[doc(hidden)]
    fn share_capacity(&self) -> Option<ShareCapacity> {
        None
    }
}

/// What stores need of all algorithms, by [`decide`](Algorithm::decide).
pub(crate) trait AlgorithmExt: Algorithm {
    /// Returns the verdict on a request without charging it.
    fn peek(&self, state: &Self::State, now: Timestamp, options: ChargeOptions) -> Verdict {
        self.decide(state, now, options).verdict()
    }

    /// Charges `cost` unconditionally, for a request that starts after `delay`.
    fn charge(&self, state: &mut Self::State, now: Timestamp, delay: Duration, cost: u64) {
        if cost == 0 {
            return;
        }
        if let Step::Allow { next, .. } = self.decide(state, now, ChargeOptions::forced(cost, delay)) {
            state.apply(next);
        }
    }
}

impl<A: Algorithm + ?Sized> AlgorithmExt for A {}

mod sealed {
    /// The argument of [`Algorithm::decide_in_line`](super::Algorithm::decide_in_line).
    #[allow(unnameable_types, reason = "sealed")]
    #[derive(Clone, Copy, Debug)]
    pub struct InLine;

    /// The result of [`Algorithm::share_capacity`](super::Algorithm::share_capacity).
    #[allow(unnameable_types, reason = "sealed")]
    #[derive(Clone, Copy, Debug)]
    pub struct ShareCapacity {
        pub(crate) family: ShareFamily,
        /// The rate: the limit in a period of so many microseconds.
        pub(crate) limit: u64,
        pub(crate) period: u64,
        /// The maximum cost.
        pub(crate) max: u64,
    }

    /// A share and the limits beside it are of one family: what both charge also leaves both in the same way.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum ShareFamily {
        Bucket,
        Window { period: u64, blocks: u64 },
        Log { period: u64 },
        Flights { max_duration: u64 },
    }
}
pub(crate) use self::sealed::{InLine, ShareCapacity, ShareFamily};

/// The options of one [`decide`](Algorithm::decide) call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChargeOptions {
    /// The cost.
    pub cost: u64,
    /// When the request may start.
    pub start: Start,
}

/// When a request may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "algorithms match on it")]
pub enum Start {
    /// The request starts after at most this delay, or is denied. With `None` the algorithm chooses: a queue delays,
    /// every other algorithm denies.
    Within(Option<Duration>),
    /// The request starts after this delay: the charge is forced.
    After(Duration),
}

impl ChargeOptions {
    /// Creates the options of a forced charge.
    pub const fn forced(cost: u64, delay: Duration) -> Self {
        Self { cost, start: Start::After(delay) }
    }

    /// Creates the options of a request that the caller charges.
    #[inline]
    pub(crate) const fn within(cost: u64, max_delay: Option<Duration>) -> Self {
        Self { cost, start: Start::Within(max_delay) }
    }

    /// Returns whether the charge is forced.
    #[inline]
    pub const fn is_forced(self) -> bool {
        matches!(self.start, Start::After(_))
    }

    /// Returns the delay of a forced charge, zero for any other.
    pub const fn forced_delay(self) -> Duration {
        match self.start {
            Start::After(delay) => delay,
            Start::Within(_) => Duration::ZERO,
        }
    }

    /// Returns whether the caller accepts no delay.
    #[inline]
    pub(crate) fn is_immediate(self) -> bool {
        match self.start {
            Start::Within(max_delay) => max_delay.is_none_or(|max_delay| max_delay.is_zero()),
            Start::After(_) => false,
        }
    }
}

impl From<AcquireOptions> for ChargeOptions {
    #[inline]
    fn from(options: AcquireOptions) -> Self {
        Self { cost: options.cost, start: Start::Within(options.max_delay) }
    }
}

/// The result of one [`decide`](Algorithm::decide) call. Times are in microseconds.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums, reason = "algorithms make them")]
pub enum Step<S: State> {
    /// The request is allowed.
    Allow {
        /// The state after the charge.
        next: S::Next,
        /// The time until the request starts.
        delay: u64,
    },
    /// The request is denied.
    Deny {
        /// The time after which the same request is allowed, at least 1.
        wait: u64,
    },
    /// The cost exceeds what the limit can ever allow.
    Exceeds,
}

impl<S: State> Step<S> {
    /// Creates a denial. Fractions of a microsecond are dropped.
    pub fn deny_for(wait: Duration) -> Self {
        Self::Deny { wait: micros_floor(wait) }
    }

    /// Returns the verdict.
    pub fn verdict(&self) -> Verdict {
        match *self {
            Self::Allow { delay: 0, .. } => Verdict::Allowed,
            Self::Allow { delay, .. } => Verdict::AllowedAfter(Duration::from_micros(delay)),
            Self::Deny { wait } => Verdict::Denied { retry_after: Duration::from_micros(wait) },
            Self::Exceeds => Verdict::ExceedsLimit,
        }
    }
}
