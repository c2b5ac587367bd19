use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::time::Duration;

use crate::decision::LimitSnapshot;

/// The id of a key in one limit of one limiter: 48 bits, displayed as 12 hexadecimal digits.
///
/// Keys themselves are not stored. [`Memory::key_id`](super::Memory::key_id) returns the id of a given key. An id is
/// valid in this process only.
///
/// An id can be logged and displayed: it does not reveal the hash under which the table stores the key. It is a
/// truncated `SipHash` of that hash, under a random secret of this process. Among 100 000 keys two have one id with a
/// probability of 2 in 10^5.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(u64);

impl KeyId {
    /// Creates the id of the key with this hash.
    pub(super) fn new(hash: u64) -> Self {
        static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self(SECRET.hash_one(hash) >> 16)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012x}", self.0)
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// A key with much usage: see [`Memory::top_keys`](super::Memory::top_keys).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TopKey {
    /// The key's id.
    pub id: KeyId,
    /// The time until the key is idle, as if its [held](crate::limiter::Held) costs were charged now.
    pub reset: Duration,
    /// The key's snapshot, with held costs. `None` if the algorithm is chosen by the key, as the key is not stored.
    pub figures: Option<LimitSnapshot>,
}

impl TopKey {
    /// Returns the order of keys: by the used share of the limit, then by the time until the key is idle.
    pub(super) fn weight(&self) -> (f64, Duration) {
        #[allow(clippy::cast_precision_loss, reason = "an approximate order suffices")]
        let used = self.figures.map_or(0.0, |figures| {
            (figures.limit - figures.remaining.min(figures.limit)) as f64 / figures.limit.max(1) as f64
        });
        (used, self.reset)
    }
}

/// The memory usage of a limit: see [`Memory::usage`](super::Memory::usage).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The limit's name.
    pub limit: String,
    /// The number of keys that are not idle.
    pub live_keys: usize,
    /// The number of keys that the table can store.
    pub capacity: usize,
    /// The number of bytes that the limit has allocated for its keys: the table, sliding windows' blocks, sliding logs'
    /// hits, blocked keys, held costs and the deadlines of requests in flight.
    pub bytes: usize,
    /// The number of keys that were evicted before they were idle. If it grows,
    /// [`max_keys`](super::MemoryBuilder::max_keys) is too small, or a client floods the limiter with keys.
    pub evicted: u64,
    /// The number of keys with [held](crate::limiter::Held) costs.
    pub held_keys: usize,
    /// The sum of the held costs.
    pub held: u64,
}
