//! One limit's part in a transaction.

use std::any::Any;
use std::time::Duration;

use super::usage::{KeyId, TopKey, Usage};
use crate::clock::{Clock, Timestamp};
use crate::decision::{AcquireOptions, LazySnapshot, Name, Verdict};
use crate::limiter::LimitsOfKey;
use crate::table::{Full, Place, Spot, WhenFull};

/// The room that each limit has.
#[derive(Clone, Copy, Debug)]
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub struct Room {
    pub(super) max_keys: usize,
    pub(super) max_heap_bytes: usize,
    pub(super) when_full: WhenFull,
    pub(super) allow_no_limits: bool,
}

/// One limit's share in a transaction, whatever its algorithm and the part of the key that it counts by.
pub trait Share<Key: ?Sized, S>: Holding {
    /// Reads and peeks.
    fn look(&self, asked: &Asked<'_, Key, S>, needed: Needed, look: &mut Look);
    fn is_current(&self, look: &Look) -> bool;

    fn lock(&self, look: &Look) -> bool;
    fn unlock_unchanged(&self, look: &Look);
    fn unlock(&self, look: &Look);

    /// Under the lock: the slot for the key, an empty one for a new key. `None` if there is no room.
    fn place(&self, asked: &Asked<'_, Key, S>, look: &Look) -> Option<Place>;
    /// Without the lock: makes room for a key that found none, unless nobody is to be forgotten for it.
    fn make_room(&self, asked: &Asked<'_, Key, S>, look: &Look) -> Result<(), Full>;
    /// Whether the key would be refused for want of room.
    fn is_full_for(&self, look: &Look) -> Result<(), Full>;
    /// Under the lock: charges the key in its place. Notes how it stands then.
    fn charge(&self, asked: &Asked<'_, Key, S>, look: &mut Look, delay: Duration);
    /// Under the lock: holds the cost on the key in its place. Notes how it stands then.
    fn hold(&self, asked: &Asked<'_, Key, S>, look: &mut Look);
    /// What is needed to settle the hold that was just made.
    fn held_limit(&self, asked: &Asked<'_, Key, S>, look: &Look) -> HeldLimit;
    fn reset(&self, asked: &Asked<'_, Key, S>);
    /// Makes the state one in which so much was just charged.
    fn set(&self, asked: &Asked<'_, Key, S>, used: u64) -> Result<(), Full>;
    /// Refuses the key until then; with the epoch, no longer.
    fn block(&self, asked: &Asked<'_, Key, S>, until: Timestamp);
    fn key_id(&self, asked: &Asked<'_, Key, S>) -> KeyId;
    /// Names the limit and the key's sub-key, unless the limit is a shadow.
    fn name_limit(&self, key: &Key, limits: &mut LimitsOfKey<'_>);
}

/// What can be said of a limit's table without a key.
pub trait Holding: Send + Sync {
    /// The row itself, for its heir.
    fn as_any(&self) -> &dyn Any;
    /// Which table it has: that of the row that it is the heir of, or one of its own.
    fn table_id(&self) -> u64;
    fn name(&self) -> &Name;
    /// Ends a hold of `held`, and charges `actual`.
    fn settle(&self, limit: &HeldLimit, held: u64, actual: u64, clock: &dyn Clock) -> Result<(), Full>;
    fn usage(&self, now: Timestamp) -> Usage;
    fn top_keys(&self, most: usize, now: Timestamp) -> Vec<TopKey>;
}

/// A limit on which a cost is held: what must be known to settle it without the key.
#[allow(missing_debug_implementations, reason = "the algorithm is of any type")]
pub struct HeldLimit {
    pub(super) table: u64,
    pub(super) hash: u64,
    /// The key's algorithm, where it is chosen by the key.
    pub(super) algorithm: Option<Box<dyn Any + Send + Sync>>,
}

/// What is asked in a transaction, for whom, when.
#[allow(missing_debug_implementations, reason = "a key may be a secret")]
pub struct Asked<'a, Key: ?Sized, S> {
    pub(super) hasher: &'a S,
    pub(super) key: &'a Key,
    pub(super) now: Timestamp,
    pub(super) ask: AcquireOptions,
    pub(super) clock: &'a dyn Clock,
}

impl<Key: ?Sized, S> Asked<'_, Key, S> {
    /// The time right now, which may be long after it was [asked](Self::now) if the thread was descheduled.
    pub(super) fn read_clock(&self) -> Timestamp {
        read(self.clock)
    }
}

/// The time, as far as limiters in memory tell it.
#[inline(always)]
pub(super) fn read(clock: &(impl Clock + ?Sized)) -> Timestamp {
    clock.now().min(Timestamp::MAX)
}

impl<Key: ?Sized, S> Clone for Asked<'_, Key, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Key: ?Sized, S> Copy for Asked<'_, Key, S> {}

/// What is needed of a look beside its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub enum Needed {
    /// A reading if the limit refuses: else the commit makes one.
    Rejection,
    /// A reading in any case.
    LazySnapshot,
    /// A reading, and the verdict [at once](Look::at_once): to decide together with other limits.
    Together,
}

/// What one limit says by itself, and what it read that from.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub(super) spot: Spot,
    /// The time to decide at: that of the clock, or for a key that is not there the sets' horizon if that is later.
    pub(super) now: Timestamp,
    /// For how long the limit remembers anything, if what was read is further ahead of the clock than that: then either the clock
    /// has stepped back, or it was read too long ago.
    pub(super) ahead_of: Option<Duration>,
    pub(super) verdict: Verdict,
    /// The verdict on who accepts no delay, where that was [needed](Needed::Together).
    pub(super) at_once: Verdict,
    pub(super) reading: LazySnapshot,
    /// What is held on the key.
    pub(super) held: u64,
    /// For how long the limit has blocked the key, zero if it has not.
    pub(super) blocked: Duration,
    pub(super) supports_scheduling: bool,
    pub(super) shadow: bool,
    pub(super) place: Option<Place>,
}

impl Room {
    pub(super) const DEFAULT: Self =
        Self { max_keys: 100_000, max_heap_bytes: 1 << 30, when_full: WhenFull::Evict, allow_no_limits: false };
}

impl Look {
    /// Whether the row is charged if the decision is to let the request through.
    pub(super) fn is_charged(&self) -> bool {
        !self.shadow || self.verdict.is_allowed()
    }
}

impl Look {
    pub(super) const BLANK: Self = Self {
        spot: Spot::BLANK,
        now: Timestamp::EPOCH,
        ahead_of: None,
        verdict: Verdict::ExceedsLimit,
        at_once: Verdict::ExceedsLimit,
        reading: LazySnapshot::EMPTY,
        held: 0,
        blocked: Duration::ZERO,
        supports_scheduling: false,
        shadow: false,
        place: None,
    };
}
