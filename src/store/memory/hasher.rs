use std::any::Any;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{LazyLock, Mutex, PoisonError};

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;

/// The hasher of a limiter's keys.
// The default has a variant of its own: row "memory two limits" of benches/figures.md takes as long as with the hasher in the
// type of the limiter.
pub(super) enum KeyHasher {
    Default(SeededHasher),
    Other(Box<dyn OtherHasher>),
}

impl KeyHasher {
    #[inline]
    pub(super) fn hash_one<T: Hash + ?Sized>(&self, key: &T) -> u64 {
        match self {
            Self::Default(hasher) => hasher.state.hash_one(key),
            Self::Other(other) => hash_other(&**other, key),
        }
    }
}

impl Default for KeyHasher {
    fn default() -> Self {
        // The operating system seeds `RandomState`.
        static SHARED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));
        Self::Default(SeededHasher::from_seed([RandomState::new().hash_one(1), *SHARED]))
    }
}

/// Foldhash (quality), with a random seed for each limiter.
///
/// Clients see neither hashes nor the seed, so they cannot compute colliding keys. But foldhash is not a cryptographic
/// hash: its documentation promises no resistance against a client that can observe hashes, for example by timing
/// decisions. Two keys with one hash share a state, so one client could use up the quota of another. If clients choose
/// their keys freely and this matters, use another [`hasher`](super::MemoryBuilder::hasher).
pub(super) struct SeededHasher {
    pub(super) state: SeedableRandomState,
    /// What `state` was made from: the seed of this hasher, and the shared seed. It is a secret.
    pub(super) seed: [u64; 2],
}

impl SeededHasher {
    /// Creates the hasher with this seed.
    pub(super) fn from_seed(seed @ [own, shared]: [u64; 2]) -> Self {
        Self { state: SeedableRandomState::with_seed(own, shared_seed(shared)), seed }
    }
}

/// A hasher of a user's own.
pub(super) trait OtherHasher: Any + Send + Sync {
    /// Returns the hash of what `write` writes.
    fn hash(&self, write: &mut dyn FnMut(&mut dyn Hasher)) -> u64;
}

impl<S: BuildHasher + Any + Send + Sync> OtherHasher for S {
    fn hash(&self, write: &mut dyn FnMut(&mut dyn Hasher)) -> u64 {
        let mut hasher = self.build_hasher();
        write(&mut hasher);
        hasher.finish()
    }
}

// Not in line, as the other clocks: see `MemoryClock`.
#[cold]
#[inline(never)]
fn hash_other<T: Hash + ?Sized>(other: &dyn OtherHasher, key: &T) -> u64 {
    other.hash(&mut |mut hasher| key.hash(&mut hasher))
}

/// Returns the shared seed that this number determines.
///
/// The hasher takes a static reference, so a seed is never freed: 64 bytes for the process, and for each process whose
/// counts it has restored.
fn shared_seed(number: u64) -> &'static SharedSeed {
    static SEEDS: Mutex<Vec<(u64, &SharedSeed)>> = Mutex::new(Vec::new());
    let mut seeds = SEEDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, seed)) = seeds.iter().find(|(of, _)| *of == number) {
        return seed;
    }
    let seed: &'static SharedSeed = Box::leak(Box::new(SharedSeed::from_u64(number)));
    seeds.push((number, seed));
    seed
}
