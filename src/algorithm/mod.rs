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
//! | [`FixedWindow`] | `2L - 1` from the first hit, `2L` aligned to the clock | 4 | quotas that users know as "so many per hour" |
//! | [`SlidingWindow`], strict | `L`, exactly; a hit counts up to one block too long | blocks + 5 | an exact bound with a large limit |
//! | [`SlidingWindow`], weighted | `2L - 1`, with any number of blocks | blocks + 5 | a smooth estimate |
//! | [`SlidingLog`] | `L`, exactly, and denies nothing below the limit | 2 per hit, on the heap | an exact bound with a small limit |
//!
//! Each algorithm has a Lua implementation of the same transition, which Redis runs in a script.
//!
//! # Comparison on the same requests
//!
//! The quota is four in eight seconds, with at most one request per second: `#` is allowed, `.` is denied, `-` is no
//! request, and a digit is allowed after that many seconds. The first row has a request each second, the second row has a
//! pause after the first request:
//!
//! ```
//! # use std::time::Duration;
//! # use tower_ratelimit::algorithm::{Algorithm, *};
//! # use tower_ratelimit::{AcquireOptions, ManualClock, Memory, Quota, Verdict};
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
//! let bucket = Gcra::new(quota); // TokenBucket and LeakyBucket decide the same
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

mod bucket;
mod fixed_window;
mod leaky_queue;
#[cfg(feature = "redis")]
mod lua;
mod sliding_log;
mod sliding_window;
mod state;

pub use self::bucket::{Gcra, LeakyBucket, TokenBucket};
pub use self::fixed_window::FixedWindow;
pub use self::leaky_queue::LeakyQueue;
#[cfg(feature = "redis")]
pub(crate) use self::lua::StateEncoding;
#[cfg(feature = "redis")]
pub use self::lua::{LuaAlgorithm, LuaScript};
pub use self::sliding_log::SlidingLog;
pub use self::sliding_window::SlidingWindow;
pub(crate) use self::state::AtomicState;
pub use self::state::{Counters, HitLog, State};
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, LazySnapshot, Verdict};
use std::fmt;
use std::time::Duration;

/// Decides from a state, a time and a cost: pure functions, without clock, lock or I/O.
///
/// A store keeps one state a key and runs the algorithm on it. A state is a few words whose zeros are a key never
/// seen, and whose first word is the moment (in microseconds since the epoch) from which on it is as good as that: a
/// store may drop it then. The other words are the algorithm's own.
///
/// # The laws
///
/// A store leans on these, and so does everything that is promised of decisions:
///
/// - **Peeking is pure**: [`peek`](Self::peek) and [`snapshot`](Self::snapshot) depend on nothing but their arguments.
/// - **As good as new**: at and after the first word's moment, every answer equals that for the zero state.
/// - **Commit after peek**: a commit right after an allowing peek makes the state that the peek promised. A commit
///   without one charges all the same, and may leave the key in debt.
/// - **Retry is exact**: without other traffic the same ask succeeds at `now + retry_after`, not a tick earlier,
///   and at every later time.
/// - **Time may step back** by a little (threads read their clocks before they take their turn): then decide as at
///   the newest time in the state. If it stepped back by more than [`max_reset`](Self::max_reset), the
///   state is as new: a key is never locked because a clock was wrong once.
/// - **Charges can be split**: where there is room for a cost, charging any part of it later, in any order with the passing of
///   time, leaves room for the rest. That is what makes [holds](crate::limiter::Held) exact.
/// - **No panics**, whatever the state's words, the time and the cost are.
///
/// # Example
///
/// A quota that renews with a cool-down after each hit: one request, then none for the given time.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::algorithm::Algorithm;
/// use tower_ratelimit::{AcquireOptions, LimitSnapshot, Limiter, ManualClock, Memory, LazySnapshot, Timestamp, Verdict};
///
/// #[derive(Debug)]
/// struct CoolDown(Duration);
///
/// impl Algorithm for CoolDown {
///     // The moment from which on the next hit may come.
///     type State = [u64; 1];
///
///     fn peek(&self, &[open_at]: &[u64; 1], now: Timestamp, ask: AcquireOptions) -> Verdict {
///         let wait = Timestamp::from_micros(open_at).saturating_since(now);
///         if ask.cost > 1 {
///             Verdict::ExceedsLimit
///         } else if wait.is_zero() || wait > self.0 {
///             Verdict::Allowed
///         } else {
///             Verdict::Denied { retry_after: wait }
///         }
///     }
///
///     fn charge(&self, state: &mut [u64; 1], now: Timestamp, delay: Duration, cost: u64) {
///         if cost > 0 {
///             *state = [now.saturating_add(delay).saturating_add(self.0).as_micros()];
///         }
///     }
///
///     fn snapshot(&self, &[open_at]: &[u64; 1], now: Timestamp) -> LazySnapshot {
///         let wait = Timestamp::from_micros(open_at).saturating_since(now);
///         let remaining = u64::from(wait.is_zero());
///         LimitSnapshot { limit: 1, window: self.0, remaining, reset: wait, next_token_after: wait }.into()
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
/// let refused = limiter.check("alice", AcquireOptions::default());
/// assert_eq!(refused.retry_after(), Some(Duration::from_secs(2)));
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
pub trait Algorithm: fmt::Debug + Send + Sync + 'static {
    /// What is remembered of a key: `[u64; N]`, or [`Counters`], or a [`HitLog`].
    type State: State;

    /// What asking would be answered. Changes nothing.
    fn peek(&self, state: &Self::State, now: Timestamp, ask: AcquireOptions) -> Verdict;

    /// Charges `cost` for a request that was decided at `now` and has its turn after `delay`.
    fn charge(&self, state: &mut Self::State, now: Timestamp, delay: Duration, cost: u64);

    /// Whether [`try_at_once`](Self::try_at_once) ever says anything.
    #[doc(hidden)]
    const DECIDES_AT_ONCE: bool = false;

    /// What [`peek`](Self::peek) and [`commit`](Self::commit) come to one after another, in the common case and in one go.
    #[doc(hidden)]
    #[inline(always)]
    fn try_at_once(&self, _state: &Self::State, _now: Timestamp, _ask: AcquireOptions) -> AtOnce<Self::State> {
        AtOnce::Unsaid
    }

    /// A state as good as new, of which [`try_at_once`](Self::try_at_once) has something to say.
    #[doc(hidden)]
    #[inline(always)]
    fn new_at_once(&self) -> Option<Self::State> {
        None
    }

    /// The figures of a state that was charged or denied at once, at this moment.
    #[doc(hidden)]
    #[inline(always)]
    fn reading_at_once(&self, state: &Self::State, now: Timestamp) -> LazySnapshot {
        self.snapshot(state, now)
    }

    /// What remains of one that was charged.
    #[doc(hidden)]
    #[inline(always)]
    fn remaining_at_once(&self, charged: &Self::State, now: Timestamp) -> u64 {
        self.snapshot(charged, now).compute().remaining
    }

    /// What [`peek`](Self::peek) would answer, and the figures, if `held` were charged at `now`: for a key that costs are
    /// [held](crate::limiter::Held) on.
    ///
    /// The default charges a copy of the state.
    fn peek_with_held(
        &self,
        state: &Self::State,
        now: Timestamp,
        ask: AcquireOptions,
        held: u64,
    ) -> (Verdict, LazySnapshot) {
        let mut state = state.clone();
        self.charge(&mut state, now, Duration::ZERO, held);
        (self.peek(&state, now, ask), self.snapshot(&state, now))
    }

    /// The figures of a state.
    fn snapshot(&self, state: &Self::State, now: Timestamp) -> LazySnapshot;

    /// The longest time from a state within the limit until it is as good as new.
    fn max_reset(&self) -> Duration;

    /// Makes `state` one that owes at least what `from` owes, too: for a key that
    /// [inherits](crate::WhenFull::CarryOver) from another.
    ///
    /// The default keeps the state that is as good as new later, and the other one where that is the fuller of two that are so
    /// at the same time: enough where that moment says all that is owed.
    fn carry_over_debt(&self, state: &mut Self::State, from: &Self::State, now: Timestamp) {
        let owes = |state| {
            let figures = self.snapshot(state, now).compute();
            (figures.reset, figures.limit.saturating_sub(figures.remaining))
        };
        if owes(from) > owes(state) {
            *state = from.clone();
        }
    }

    /// How many words a state has, if it is one of [`Counters`]. For other states it says nothing.
    ///
    /// Where the algorithm is chosen by the key or can be replaced, a state has [`MAX_WORDS`](Counters::MAX_WORDS), and
    /// may have been written by one with other settings.
    fn counter_words(&self) -> usize {
        Counters::MAX_WORDS
    }

    /// How many bytes a key may take on the heap: those of a [`HitLog`].
    fn max_heap_bytes(&self) -> usize {
        0
    }

    /// Whether [`peek`](Self::peek) may answer [`Verdict::AllowedAfter`]: whether a turn that comes later can be
    /// promised now.
    ///
    /// Several limits promise a later turn only if each of them can, and each owes at least until then already (by its
    /// [`reset`](crate::LimitSnapshot::reset)): so that to charge it for that turn is to charge it now.
    fn supports_scheduling(&self) -> bool {
        false
    }
}

/// What [`Algorithm::try_at_once`] says.
#[doc(hidden)]
#[derive(Debug)]
#[allow(clippy::exhaustive_enums, reason = "hidden")]
pub enum AtOnce<S> {
    /// Allowed at once: the state after the charge.
    Charged(S),
    /// Refused for so many microseconds.
    Denied(u64),
    /// Not the common case.
    Unsaid,
}
