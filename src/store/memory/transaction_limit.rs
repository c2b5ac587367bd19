//! One limit as a transaction sees it: without its algorithm's type.

use std::any::Any;
use std::io;
use std::time::Duration;

use super::deadlines::Deadline;
use super::decide::Charges;
use super::save::{FileWriter, SavedLimit, SavedNames};
use super::usage::{KeyId, TopKey, Usage};
use crate::clock::{Clock, Timestamp};
use crate::decision::{AcquireOptions, BlockReason, Costs, Decision};
use crate::error::Error;
use crate::limit::{AlgorithmSelector, Limit, SubKeyOf};
use crate::limiter::LimitsOfKey;
use crate::store::inner::{
    HasReading, LimitCost, LimitNumbers, LimitReading, Name, ReadMode, Transition,
    table::{Location, LockToken, LookupError, SlotIndex, TableFull},
};
use crate::table::WhenFull;

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
    /// Returns whether the limit applies to `key`. The other methods are for keys to which it does.
    fn applies_to(&self, key: &Key) -> bool;
    /// Decides alone on the fast path. An error charges nothing.
    fn try_acquire(&self, context: &AcquireContext<'_, Key, S>) -> Result<Decision, LookupError>;

    /// Holds the cost alone, without the transaction. `None`, with nothing held, leaves the request to the transaction.
    fn try_hold(&self, context: &AcquireContext<'_, Key, S>) -> Option<(Decision, HeldLimit)>;

    /// Charges this limit and `rest` on the fast path, and adds them to `charges`. Returns `false`, with nothing charged,
    /// unless all of them allow the request immediately.
    ///
    /// Each limit is locked before the next one is read, so all are locked before the first is charged.
    fn try_charge<'a>(
        &'a self,
        context: &AcquireContext<'_, Key, S>,
        rest: &[&'a dyn TransactionLimit<Key, S>],
        charges: &mut Charges<'a>,
    ) -> bool;

    /// Reads the state and decides.
    fn read(&self, context: &AcquireContext<'_, Key, S>, mode: ReadMode) -> LimitRead;
    /// Returns whether nothing has changed since the reading.
    fn is_current(&self, read: &LimitRead) -> bool;

    /// Locks what was read. Returns `None`, with nothing locked, if anything has changed since the reading.
    fn lock(&self, read: &LimitRead) -> Option<LockToken>;
    fn unlock_unchanged(&self, read: &LimitRead, token: &LockToken);
    fn unlock(&self, read: &LimitRead, token: &LockToken);

    /// Returns the key's slot. An absent key gets a free slot; `None` if there is none.
    fn ensure_slot(
        &self,
        context: &AcquireContext<'_, Key, S>,
        read: &LimitRead,
        token: &LockToken,
    ) -> Option<SlotIndex>;
    /// Without the lock: frees a slot for an absent key, if a key can be relocated or evicted.
    fn make_space(&self, context: &AcquireContext<'_, Key, S>, read: &LimitRead) -> Result<(), TableFull>;
    /// Returns an error if an absent key would be denied because the table is full.
    fn is_full_for(&self, context: &AcquireContext<'_, Key, S>, read: &LimitRead) -> Result<(), TableFull>;
    /// Charges the key, or holds the cost on it, as the reading says.
    fn charge(
        &self,
        context: &AcquireContext<'_, Key, S>,
        read: &LimitRead,
        charge: LimitCharge,
        token: &LockToken,
    ) -> LimitResult;
    /// Returns what the settlement of the hold needs.
    fn held_limit(
        &self,
        context: &AcquireContext<'_, Key, S>,
        read: &LimitRead,
        result: Option<&LimitResult>,
    ) -> HeldLimit;
    /// Removes the key's state.
    fn reset(&self, context: &AcquireContext<'_, Key, S>);
    /// Makes the key's state the one after a charge of `used` on a never-seen key.
    fn set(&self, context: &AcquireContext<'_, Key, S>, used: u64) -> Result<(), TableFull>;
    /// Blocks the key until this time. A time that is not in the future removes the block.
    fn block(&self, context: &AcquireContext<'_, Key, S>, until: Timestamp, reason: BlockReason);
    fn key_id(&self, context: &AcquireContext<'_, Key, S>) -> KeyId;
    /// Names the limit, unless it is a shadow or does not apply.
    fn name_limit(&self, context: &AcquireContext<'_, Key, S>, limits: &mut LimitsOfKey<'_>);
    /// Returns what identifies the limit in a file of saved counts: its name, its algorithm and its sub-key.
    fn saved_names(&self) -> SavedNames;
}

/// The operations on a limit that need no key.
pub trait LimitInfo: Send + Sync {
    /// Returns the limit, for a limit that replaces it.
    fn as_any(&self) -> &dyn Any;
    /// Returns the identity of the limit's table, which a limit that replaces it shares.
    fn table_id(&self) -> u64;
    fn name(&self) -> &Name;
    /// Returns the unit of the limit's cost, if there is one.
    fn unit(&self) -> Option<&'static str>;
    /// Returns whether the limit [holds](crate::algorithm::Algorithm::HELD_UNTIL_END) every cost until the request ends.
    fn is_held_until_end(&self) -> bool;
    /// Returns whether the limit is a guaranteed share.
    fn is_share(&self) -> bool;
    /// Ends a hold, and charges `actual`.
    fn settle(&self, limit: &HeldLimit, actual: u64, clock: &dyn Clock) -> Result<(), TableFull>;
    fn usage(&self, clock: &dyn Clock) -> Usage;
    fn top_keys(&self, max: usize, now: Timestamp) -> Vec<TopKey>;
    /// Writes the states and blocks into a file, beside decisions.
    fn save(&self, names: &SavedNames, now: Timestamp, file: &mut FileWriter<'_>) -> io::Result<()>;
    /// Inserts the states of a file.
    fn restore_keys(&self, saved: SavedLimit<'_>, now: Timestamp) -> Result<(), Error>;
    /// Blocks the keys that were blocked, as far as a file says.
    fn restore_blocks(&self, saved: SavedLimit<'_>, now: Timestamp);
    /// Removes the states of a limit that no other thread uses yet.
    fn clear(&self);
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
    /// The kind of the cost. A fixed one is settled apart from the request's.
    pub(super) cost: LimitCost,
    /// What was charged for the request before. The settlement charges only what exceeds it.
    pub(super) credit: u64,
    /// The cost is held until the request ends, and never charged.
    pub(super) until_end: bool,
    /// The time at which the hold ends at the latest, if there is one.
    pub(super) deadline: Option<Deadline>,
    /// The expiry of a hold with an id that has expired: the time of the charge.
    pub(super) expired_at: Option<Timestamp>,
}

/// What a settlement charges on each limit.
pub(super) enum Charge {
    Nothing,
    Held,
    /// The actual costs of the request, beyond what was charged for it before.
    Actual(Costs),
    Number(u64),
}

impl Charge {
    pub(super) fn on(&self, limit: &HeldLimit) -> u64 {
        match self {
            _ if limit.until_end => 0,
            Self::Nothing => 0,
            Self::Held => limit.held,
            Self::Actual(actual) => limit.cost.actual_beyond(limit.credit, actual, limit.held),
            Self::Number(charge) => *charge,
        }
    }
}

/// The key, the options and the time of one acquire call.
#[allow(missing_debug_implementations, reason = "a key may be a secret")]
pub struct AcquireContext<'a, Key: ?Sized, S> {
    pub(super) hasher: &'a S,
    pub(super) key: &'a Key,
    pub(super) now: Timestamp,
    pub(super) options: AcquireOptions,
    pub(super) clock: &'a dyn Clock,
    /// What was charged for the request before, if it repeats a remembered id.
    pub(super) credit: Option<&'a Costs>,
}

impl<Key: ?Sized, S> AcquireContext<'_, Key, S> {
    /// Returns the part of a limit in the decision, with the algorithm for the key.
    #[inline]
    pub(super) fn transition<'a, C, P>(
        &self,
        limit: &Limit<C, P>,
        algorithm: &'a C::Algorithm,
    ) -> Transition<'a, C::Algorithm>
    where
        C: AlgorithmSelector,
        P: SubKeyOf<Key>,
    {
        let transition = limit.transition(algorithm, self.key, self.options);
        match self.credit {
            None => transition,
            Some(charged) => transition.less(limit.credit_of(*charged)),
        }
    }

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

/// One limit of a decision: what was read, what is planned, and what resulted. Each part is made once, by the function
/// that its type names, and in this order.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitStep {
    pub(super) read: LimitRead,
    /// `None` before the plan, and if nothing is charged.
    pub(super) charge: Option<LimitCharge>,
    /// `None` before the charge, and if nothing is charged.
    pub(super) result: Option<LimitResult>,
    /// The limit is a shadow or a share, and its table has no slot for the key. This holds for all later readings.
    pub(super) has_no_slot: bool,
}

/// What was read of one limit: made by [`TransactionLimit::read`].
#[derive(Clone, Copy, Debug)]
pub struct LimitRead {
    pub(super) location: Location,
    /// The time of the decision: the clock's, or for an absent key the horizon if that is later.
    pub(super) now: Timestamp,
    /// The algorithm's maximum reset in microseconds, if the state is further ahead of the clock than that, otherwise
    /// zero. Either the clock has stepped back, or it was read too long ago.
    pub(super) ahead_by: u64,
    pub(super) reading: LimitReading,
}

/// What one limit is charged: made after locking, from the [`Plan`](crate::decision::Plan) of all readings.
#[derive(Clone, Copy, Debug)]
pub struct LimitCharge {
    /// The slot of the key.
    pub(super) slot: SlotIndex,
    /// The time until the start of the request.
    pub(super) delay: Duration,
}

/// What the charge of one limit has resulted in: made by [`TransactionLimit::charge`].
#[derive(Clone, Copy, Debug)]
pub struct LimitResult {
    /// The numbers after the charge.
    pub(super) numbers: LimitNumbers,
    /// The time at which the hold ends at the latest, if there is one.
    pub(super) deadline: Option<Deadline>,
}

impl HasReading for LimitStep {
    #[inline]
    fn reading(&self) -> &LimitReading {
        &self.read.reading
    }

    #[inline]
    fn reading_mut(&mut self) -> &mut LimitReading {
        &mut self.read.reading
    }
}

impl LimitStep {
    pub(super) const EMPTY: Self = Self {
        read: LimitRead { location: Location::EMPTY, now: Timestamp::EPOCH, ahead_by: 0, reading: LimitReading::EMPTY },
        charge: None,
        result: None,
        has_no_slot: false,
    };

    /// Returns the numbers after the decision.
    #[inline]
    pub(super) fn numbers(&self) -> LimitNumbers {
        self.result.map_or(self.read.reading.numbers(), |result| result.numbers)
    }
}
