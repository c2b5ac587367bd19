//! How much a key may have: the seam, the kernels and their named fronts.
//!
//! # Which one?
//!
//! With a limit of `L` in a period `W` and a burst of `B` (`L` unless set):
//!
//! | Type | Most admitted in any window of one period | State, words | Choose it |
//! |---|---|---|---|
//! | [`Gcra`] | `B + L - 1`, so `2L - 1` unless set, `L` if strict | 4 | if in doubt: smooth, exact, cheap |
//! | [`TokenBucket`] | the same: it is the same bucket | 4 | if you think in tokens that come back |
//! | [`LeakyBucket`] | the same: it is the same bucket | 4 | if you think in a level that drains |
//! | [`LeakyQueue`] | `L + 1` departures in a closed interval, evenly spaced | 4 | if callers should wait for their turn |
//! | [`FixedWindow`] | `2L - 1` from the first hit, `2L` aligned to the clock | 4 | if people are told when the count starts anew |
//! | [`SlidingWindow`], strict | `L`, exactly; conservative by one block | blocks + 5 | if the bound must hold and the limit is large |
//! | [`SlidingWindow`], weighted | `2L - 1`, with however many blocks | blocks + 5 | if a smooth estimate will do |
//! | [`SlidingLog`] | `L`, exactly, and never refuses too much | 2 a hit, on the heap | if the bound must be exact and the limit is small |
//!
//! In Redis each of them decides by one call of a script, which implements the same transition.
//!
//! # What they do with the same requests
//!
//! Four in eight seconds. One request a second at most; `#` is allowed, `.` refused, `-` no request, and a digit allowed after
//! so many seconds. First a request each second, then one that is followed by a pause:
//!
//! ```
//! # use std::time::Duration;
//! # use tower_ratelimit::algorithm::{Algorithm, *};
//! # use tower_ratelimit::{Ask, ManualClock, Memory, Quota, Verdict};
//! # fn timeline(algorithm: impl Algorithm, requests: &str) -> String {
//! #     let clock = ManualClock::new();
//! #     let limiter = Memory::builder(algorithm).clock(clock.clone()).build().unwrap();
//! #     let second = |request: char| {
//! #         let verdict = (request != '-').then(|| limiter.decide("key", Ask::default()).verdict());
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
//! let bucket = Gcra::new(quota); // likewise TokenBucket and LeakyBucket
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
mod front;
mod gcra;
mod leaky_bucket;
mod leaky_queue;
#[cfg(feature = "redis")]
mod scripted;
mod seam;
mod sliding_log;
mod sliding_window;
mod state;
mod token_bucket;

pub use self::fixed_window::FixedWindow;
pub use self::gcra::Gcra;
pub use self::leaky_bucket::LeakyBucket;
pub use self::leaky_queue::LeakyQueue;
#[cfg(feature = "redis")]
pub(crate) use self::scripted::Layout;
#[cfg(feature = "redis")]
pub use self::scripted::{Kernel, Scripted};
pub use self::seam::{Algorithm, AtOnce};
pub use self::sliding_log::SlidingLog;
pub use self::sliding_window::SlidingWindow;
pub(crate) use self::state::Cell;
pub use self::state::{Blocks, Log, State};
pub use self::token_bucket::TokenBucket;
