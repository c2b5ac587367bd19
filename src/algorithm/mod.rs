//! How much a key may have: the seam, the kernels and their named fronts.
//!
//! | Type | Most admitted in any window of one period | State | When to choose it |
//! |---|---|---|---|
//! | [`Gcra`], [`TokenBucket`], [`LeakyBucket`] | `burst + limit - 1` | 4 words | the default: smooth, exact, cheap |
//! | [`FixedWindow`], from the first hit | `2 limit - 1` | 4 words | "so many, then wait for the reset" |
//! | [`FixedWindow`], aligned to the clock | `2 limit` | 4 words | quotas that renew on the hour, at midnight UTC |
//!
//! The three names of the bucket are one kernel and decide identically: choose the one that you look for.

mod bucket;
mod fixed_window;
mod front;
mod gcra;
mod leaky_bucket;
mod leaky_queue;
mod seam;
mod sliding_log;
mod sliding_window;
mod state;
mod token_bucket;

pub use self::fixed_window::FixedWindow;
pub use self::gcra::Gcra;
pub use self::leaky_bucket::LeakyBucket;
pub use self::leaky_queue::LeakyQueue;
pub use self::seam::{Algorithm, Charge};
pub use self::sliding_log::SlidingLog;
pub use self::sliding_window::SlidingWindow;
pub(crate) use self::state::Cell;
pub use self::state::{Blocks, Log, State};
pub use self::token_bucket::TokenBucket;
