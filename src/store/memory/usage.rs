use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::time::Duration;

use crate::decision::LimitSnapshot;

/// Stands for a key in one limit of one limiter: 48 bits, shown as 12 hexadecimal digits.
///
/// Keys themselves are not stored. [`Memory::key_id`](super::Memory::key_id) returns the id of a key that you know. An id is
/// valid within this process only.
///
/// An id can be logged and shown: it does not reveal the hash under which the table finds the key. It is a second hash of that
/// one, by `SipHash` under a random secret of this process, and cut. Among 100 000 keys two have one id with a probability of
/// 2 in 10^5.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(u64);

impl KeyId {
    /// Of the key with this hash.
    pub(super) fn of(hash: u64) -> Self {
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

/// A key that uses much of a limit: see [`Memory::top_keys`](super::Memory::top_keys).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TopKey {
    /// Which key it is.
    pub id: KeyId,
    /// The time until it is as good as new.
    pub reset: Duration,
    /// Its figures. `None` where the algorithm is chosen by the key, which is not known here.
    pub figures: Option<LimitSnapshot>,
}

impl TopKey {
    /// The share of the limit that is used, then the time until the key is idle.
    pub(super) fn weight(&self) -> (f64, Duration) {
        #[allow(clippy::cast_precision_loss, reason = "to put them in order, roughly will do")]
        let used = self.figures.map_or(0.0, |figures| {
            (figures.limit - figures.remaining.min(figures.limit)) as f64 / figures.limit.max(1) as f64
        });
        (used, self.reset)
    }
}

/// What a limit takes in memory: see [`Memory::usage`](super::Memory::usage).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The limit's name.
    pub limit: String,
    /// Keys that are remembered and not as good as new.
    pub live_keys: usize,
    /// For how many keys there is room.
    pub capacity: usize,
    /// All bytes that the limit has allocated for its keys: the table, sliding windows' blocks, sliding logs' hits, blocked keys
    /// and held costs.
    pub bytes: usize,
    /// How many keys were forgotten since it was made that were not as good as new, as there was no room for them all. If it
    /// grows, [`max_keys`](super::MemoryBuilder::max_keys) is too small, or somebody floods it with keys.
    pub evicted: u64,
    /// On how many keys costs are [held](crate::limiter::Held).
    pub held_keys: usize,
    /// The sum of the held costs.
    pub held: u64,
}
