//! One limit as a transaction sees it: without its algorithm's type.

use std::any::Any;
use std::time::Duration;

use super::deadlines::Deadline;
use super::usage::{KeyId, TopKey, Usage};
use crate::clock::{Clock, Timestamp};
use crate::decision::{AcquireOptions, LazySnapshot, Name, Verdict};
use crate::limiter::LimitsOfKey;
use crate::table::{Location, SlotIndex, TableFull, WhenFull};

/// The capacity of each limit.
#[derive(Clone, Copy, Debug)]
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub struct Capacity {
    pub(super) max_keys: usize,
    pub(super) max_heap_bytes: usize,
    pub(super) when_full: WhenFull,
    pub(super) allow_no_limits: bool,
}

impl Capacity {
    pub(super) const DEFAULT: Self =
        Self { max_keys: 100_000, max_heap_bytes: 1 << 30, when_full: WhenFull::Evict, allow_no_limits: false };
}

/// One limit of a transaction.
pub trait TransactionLimit<Key: ?Sized, S>: LimitInfo {
    /// Reads the state and decides.
    fn read(&self, context: &AcquireContext<'_, Key, S>, mode: ReadMode, read: &mut LimitRead);
    /// Returns whether nothing has changed since the reading.
    fn is_current(&self, read: &LimitRead) -> bool;

    /// Locks what was read. Returns `false`, with nothing locked, if anything has changed since the reading.
    fn lock(&self, read: &LimitRead) -> bool;
    fn unlock_unchanged(&self, read: &LimitRead);
    fn unlock(&self, read: &LimitRead);

    /// Under the lock: returns the key's slot. An absent key gets a free slot; `None` if there is none.
    fn ensure_slot(&self, context: &AcquireContext<'_, Key, S>, read: &LimitRead) -> Option<SlotIndex>;
    /// Without the lock: frees a slot for an absent key, if a key can be relocated or evicted.
    fn make_space(&self, context: &AcquireContext<'_, Key, S>, read: &LimitRead) -> Result<(), TableFull>;
    /// Returns an error if an absent key would be denied because the table is full.
    fn is_full_for(&self, context: &AcquireContext<'_, Key, S>, read: &LimitRead) -> Result<(), TableFull>;
    /// Under the lock: charges the key, and stores the snapshot after it in `read`.
    fn charge(&self, context: &AcquireContext<'_, Key, S>, read: &mut LimitRead, delay: Duration);
    /// Under the lock: holds the cost on the key, and stores the snapshot after it in `read`.
    fn hold(&self, context: &AcquireContext<'_, Key, S>, read: &mut LimitRead);
    /// Returns what the settlement of the hold needs.
    fn held_limit(&self, context: &AcquireContext<'_, Key, S>, read: &LimitRead) -> HeldLimit;
    /// Removes the key's state.
    fn reset(&self, context: &AcquireContext<'_, Key, S>);
    /// Makes the key's state the one after a charge of `used` on a never-seen key.
    fn set(&self, context: &AcquireContext<'_, Key, S>, used: u64) -> Result<(), TableFull>;
    /// Blocks the key until this time. A time that is not in the future removes the block.
    fn block(&self, context: &AcquireContext<'_, Key, S>, until: Timestamp);
    fn key_id(&self, context: &AcquireContext<'_, Key, S>) -> KeyId;
    /// Names the limit and the key's sub-key, unless the limit is a shadow.
    fn name_limit(&self, key: &Key, limits: &mut LimitsOfKey<'_>);
}

/// The operations on a limit that need no key.
pub trait LimitInfo: Send + Sync {
    /// Returns the limit, for a limit that replaces it.
    fn as_any(&self) -> &dyn Any;
    /// Returns the identity of the limit's table, which a limit that replaces it shares.
    fn table_id(&self) -> u64;
    fn name(&self) -> &Name;
    /// Returns whether the limit [holds](crate::algorithm::Algorithm::HELD_UNTIL_END) every cost until the request ends.
    fn is_held_until_end(&self) -> bool;
    /// Ends a hold, and charges `actual`.
    fn settle(&self, limit: &HeldLimit, actual: u64, clock: &dyn Clock) -> Result<(), TableFull>;
    fn usage(&self, clock: &dyn Clock) -> Usage;
    fn top_keys(&self, max: usize, now: Timestamp) -> Vec<TopKey>;
}

/// A limit with a held cost: what its settlement needs in place of the key.
#[allow(missing_debug_implementations, reason = "the algorithm is of any type")]
pub struct HeldLimit {
    pub(super) table: u64,
    pub(super) hash: u64,
    /// The algorithm, if it is chosen by the key.
    pub(super) algorithm: Option<Box<dyn Any + Send + Sync>>,
    /// The held cost.
    pub(super) held: u64,
    /// The cost is the limit's fixed one, so it is settled apart from the request's.
    pub(super) is_fixed: bool,
    /// The cost is held until the request ends, and never charged.
    pub(super) until_end: bool,
    /// The time at which the hold ends at the latest, if there is one.
    pub(super) deadline: Option<Deadline>,
}

/// The key, the options and the time of one acquire call.
#[allow(missing_debug_implementations, reason = "a key may be a secret")]
pub struct AcquireContext<'a, Key: ?Sized, S> {
    pub(super) hasher: &'a S,
    pub(super) key: &'a Key,
    pub(super) now: Timestamp,
    pub(super) options: AcquireOptions,
    pub(super) clock: &'a dyn Clock,
}

impl<Key: ?Sized, S> AcquireContext<'_, Key, S> {
    /// Reads the clock again. The time can be long after [`now`](Self::now) if the thread was descheduled.
    pub(super) fn read_clock(&self) -> Timestamp {
        read_clock(self.clock)
    }
}

/// Reads a clock, up to the latest time that a state can store.
#[inline]
pub(super) fn read_clock(clock: &(impl Clock + ?Sized)) -> Timestamp {
    clock.now().min(Timestamp::MAX)
}

impl<Key: ?Sized, S> Clone for AcquireContext<'_, Key, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Key: ?Sized, S> Copy for AcquireContext<'_, Key, S> {}

/// What a reading must contain besides the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub enum ReadMode {
    /// A snapshot if the limit denies. Otherwise the charge makes one.
    IfDenied,
    /// A snapshot in any case.
    Snapshot,
    /// A snapshot, and the verdict for a caller that accepts [no delay](LimitRead::immediate): for several limits.
    Together,
}

/// Whether a limit counts a request that it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub enum Counting {
    Counts,
    /// The limit counts requests in flight, and the caller keeps no guard: the limit decides, and holds nothing.
    DecidesOnly,
    /// The table has no slot for the key of this shadow, which therefore does not count the request.
    NoSlot,
}

/// The decision of one limit alone, and the location that it was read from.
#[derive(Clone, Copy, Debug)]
pub struct LimitRead {
    pub(super) location: Location,
    /// The time of the decision: the clock's, or for an absent key the horizon if that is later.
    pub(super) now: Timestamp,
    /// The algorithm's maximum reset, if the state is further ahead of the clock than that: either the clock has
    /// stepped back, or it was read too long ago.
    pub(super) ahead_by: Option<Duration>,
    pub(super) verdict: Verdict,
    /// The verdict for a caller that accepts no delay, in [`ReadMode::Together`].
    pub(super) immediate: Verdict,
    pub(super) snapshot: LazySnapshot,
    /// The cost on this limit.
    pub(super) cost: u64,
    /// The cost is held, not charged.
    pub(super) holds: bool,
    /// The amount held on the key.
    pub(super) held: u64,
    /// The time until the key's block ends, zero if it is not blocked.
    pub(super) blocked: Duration,
    pub(super) supports_scheduling: bool,
    pub(super) shadow: bool,
    pub(super) slot: Option<SlotIndex>,
    pub(super) counting: Counting,
    /// The time at which the hold ends at the latest, if there is one.
    pub(super) deadline: Option<Deadline>,
}

impl LimitRead {
    pub(super) const EMPTY: Self = Self {
        location: Location::EMPTY,
        now: Timestamp::EPOCH,
        ahead_by: None,
        verdict: Verdict::ExceedsLimit,
        immediate: Verdict::ExceedsLimit,
        snapshot: LazySnapshot::EMPTY,
        cost: 0,
        holds: false,
        held: 0,
        blocked: Duration::ZERO,
        supports_scheduling: false,
        shadow: false,
        slot: None,
        counting: Counting::Counts,
        deadline: None,
    };

    /// Returns whether the limit counts the request if it is allowed.
    #[inline]
    pub(super) fn counts(&self) -> bool {
        self.counting == Counting::Counts && (!self.shadow || self.verdict.is_allowed())
    }

    /// Returns whether the limit is charged, or holds a cost, if the request is allowed.
    #[inline]
    pub(super) fn will_charge(&self) -> bool {
        self.cost > 0 && self.counts()
    }
}
