//! Reference models of the algorithms, written for readability: exact rationals, no packed words.

mod bucket;
mod combined;
mod hits;
mod rings;
mod window;

use tower_ratelimit::{LimitSnapshot, Quota, Verdict};

pub(crate) use self::bucket::Bucket;
pub(crate) use self::combined::{Combined, Expected};
pub(crate) use self::hits::Hits;
pub(crate) use self::rings::Rings;
pub(crate) use self::window::Window;

/// The maximum time for which a state counts: 200 years.
pub(crate) const MAX_PERIOD: u64 = 73_050 * 24 * 60 * 60 * 1_000_000;

/// The configuration of one limit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spec {
    Bucket { quota: Quota, burst: u64 },
    FixedWindow { quota: Quota, aligned: bool },
    SlidingWindow { quota: Quota, blocks: u64, weighted: bool },
    SlidingLog { quota: Quota },
}

/// The model of one limit for one key. Times are microseconds since the epoch.
pub(crate) trait Model {
    /// Changes the configuration, and keeps the usage.
    fn set_spec(&mut self, spec: Spec);

    /// Returns the verdict on a request of `cost` that accepts a delay of up to `max_delay`.
    fn verdict(&self, now: u64, cost: u64, max_delay: u64) -> Verdict;

    fn snapshot(&self, now: u64) -> LimitSnapshot;

    /// Charges a request that was decided at `now` and starts after `delay`, allowed or not.
    fn charge(&mut self, now: u64, delay: u64, cost: u64);

    /// Returns the limit as if `held` were charged now.
    fn with_held(&self, now: u64, held: u64) -> Box<dyn Model>;

    fn reset(&mut self);

    fn supports_scheduling(&self) -> bool;

    /// Returns the newest time in the state: zero for a key that was never seen.
    fn newest(&self) -> u64;

    /// Returns by how much the clock may step back before the state no longer counts.
    fn time_to_full(&self) -> u64;
}
