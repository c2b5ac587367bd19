//! What the limits promise, written for the eye: exact rationals, no packing, no speed.

mod bucket;
mod combined;
mod hits;
mod window;

use tower_ratelimit::{LimitSnapshot, Quota, Verdict};

pub(crate) use self::bucket::Bucket;
pub(crate) use self::combined::{Combined, Expected};
pub(crate) use self::hits::Hits;
pub(crate) use self::window::Window;

/// The longest time that anything is remembered: 200 years.
pub(crate) const LONGEST: u64 = 73_050 * 24 * 60 * 60 * 1_000_000;

/// What one limit is held to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spec {
    Bucket { quota: Quota, burst: u64 },
    Window { quota: Quota, aligned: bool },
    Counters { quota: Quota, blocks: u64, weighted: bool },
    HitLog { quota: Quota },
}

/// One limit for one key. Times are microseconds since the epoch.
pub(crate) trait Model {
    /// Holds the key to another quota from now on.
    fn hold_to(&mut self, spec: Spec);

    /// The verdict on `cost` for one who would wait for up to `patience`.
    fn verdict(&self, now: u64, cost: u64, patience: u64) -> Verdict;

    fn figures(&self, now: u64) -> LimitSnapshot;

    /// Charges a request that was decided at `now` for a turn after `delay`, allowed or not.
    fn charge(&mut self, now: u64, delay: u64, cost: u64);

    /// The same limit if `held` were charged now.
    fn with_held(&self, now: u64, held: u64) -> Box<dyn Model>;

    fn forget(&mut self);

    fn supports_scheduling(&self) -> bool;

    /// The newest time that the state has seen: zero for a key never seen.
    fn newest(&self) -> u64;

    /// KeyedBy how much the clock may step back before the state counts as new.
    fn time_to_full(&self) -> u64;
}
