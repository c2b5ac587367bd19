//! One limit as a transaction sees it: without its algorithm's type.

use std::any::Any;
use std::io;

use super::hasher::KeyHasher;
use super::part::Part;
use super::save::{FileWriter, SavedLimit, SavedNames};
use super::table::TableFull;
use super::usage::{TopKey, Usage};
use super::when_full::WhenFull;
use crate::clock::{Clock, Timestamp};
use crate::decision::{AcquireOptions, Costs, Decision};
use crate::error::Error;
use crate::limiter::Held;
use crate::store::inner::{HeldEntry, Name};

/// The capacity of each limit.
#[derive(Clone, Copy, Debug)]
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
pub trait TransactionLimit<Key: ?Sized>: Send + Sync {
    /// Returns the limit, for a limit that replaces it.
    fn as_any(&self) -> &dyn Any;
    /// Returns the operations on the limit that need no key.
    fn info(&self) -> &dyn LimitInfo;
    /// Decides alone on the fast path. An error charges nothing.
    fn try_acquire(&self, context: &AcquireContext<'_, Key>) -> Result<Decision, NotDecided>;
    /// Decides alone, if it needs no transaction.
    fn try_complete(&self, context: &AcquireContext<'_, Key>, held: Option<&mut Held>) -> Option<Decision>;
    /// Runs `f` on the limit's part in a decision. Returns `false` if the limit does not apply to the key.
    fn with_part(&self, context: &AcquireContext<'_, Key>, f: &mut dyn FnMut(&dyn Part)) -> bool;
    /// Returns what identifies the limit in a file of saved counts: its name, its algorithm and its sub-key.
    fn saved_names(&self) -> SavedNames;
}

/// Why the fast path has not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// As wide as a word of a decision: in a `Result`, a smaller error would split the word into pieces (row "hot key").
#[repr(u64)]
pub enum NotDecided {
    /// The key is absent, or the complete case must decide.
    Uncommon,
    /// The transaction must decide.
    NotApplicable,
}

/// The operations on a limit that need no key.
pub trait LimitInfo: Send + Sync {
    /// Returns the identity of the limit's table, which a limit that replaces it shares.
    fn table_id(&self) -> u64;
    fn name(&self) -> &Name;
    /// Calls `visit` with the limit's name, with whether it denies requests, and with the unit of its cost.
    fn describe(&self, visit: &mut dyn FnMut(&str, bool, Option<&'static str>));
    /// Returns whether the limit [holds](crate::algorithm::Algorithm::HELD_UNTIL_END) every cost until the request ends.
    fn is_held_until_end(&self) -> bool;
    /// Ends a hold, and charges `actual` at the time `now`, or later if the last decision was later.
    fn settle(&self, entry: &HeldEntry, actual: u64, now: &mut Timestamp, clock: &dyn Clock) -> Result<(), TableFull>;
    fn usage(&self, clock: &dyn Clock) -> Usage;
    fn top_keys(&self, max: usize, now: Timestamp) -> Vec<TopKey>;
    /// Writes the states and blocks into a file, beside decisions.
    fn save(&self, names: &SavedNames, now: Timestamp, file: &mut FileWriter<'_>) -> io::Result<()>;
    /// Inserts the states and the blocks of a file.
    fn restore(&self, saved: SavedLimit<'_>, now: Timestamp) -> Result<(), Error>;
    /// Removes what was restored. No other thread uses the limit yet.
    fn clear(&self);
}

/// The key, the options and the time of one acquire call.
#[allow(missing_debug_implementations, reason = "a key may be a secret")]
pub struct AcquireContext<'a, Key: ?Sized> {
    pub(super) hasher: &'a KeyHasher,
    pub(super) key: &'a Key,
    pub(super) now: Timestamp,
    pub(super) options: AcquireOptions,
    pub(super) clock: &'a dyn Clock,
    /// What was charged for the request before, if it repeats a remembered id.
    pub(super) charge_before: Option<&'a Costs>,
}

/// Reads a clock, up to the latest time that a state can store.
#[inline]
pub(super) fn read_clock(clock: &(impl Clock + ?Sized)) -> Timestamp {
    clock.now().min(Timestamp::MAX)
}

impl<Key: ?Sized> Clone for AcquireContext<'_, Key> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Key: ?Sized> Copy for AcquireContext<'_, Key> {}
