use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{LazyLock, Mutex, PoisonError};

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;

/// The default hasher of [`Memory`](super::Memory): foldhash (quality), with a random seed for each limiter.
///
/// Clients see neither hashes nor the seed, so they cannot compute colliding keys. But foldhash is not a cryptographic
/// hash: its documentation promises no resistance against a client that can observe hashes, for example by timing
/// decisions. Two keys with one hash share a state, so one client could use up the quota of another. If clients choose
/// their keys freely and this matters, use another [`hasher`](super::MemoryBuilder::hasher).
#[derive(Clone)]
#[doc(hidden)]
pub struct DefaultHashBuilder {
    state: SeedableRandomState,
    /// What `state` was made from: the seed of this hasher, and the shared seed.
    seed: [u64; 2],
}

impl DefaultHashBuilder {
    /// Returns the seed, which is a secret.
    pub(super) fn seed(&self) -> [u64; 2] {
        self.seed
    }

    /// Creates the hasher with this seed.
    pub(super) fn from_seed(seed @ [own, shared]: [u64; 2]) -> Self {
        Self { state: SeedableRandomState::with_seed(own, shared_seed(shared)), seed }
    }
}

impl Default for DefaultHashBuilder {
    fn default() -> Self {
        // The operating system seeds `RandomState`.
        static SHARED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));
        Self::from_seed([RandomState::new().hash_one(1), *SHARED])
    }
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

impl BuildHasher for DefaultHashBuilder {
    type Hasher = <SeedableRandomState as BuildHasher>::Hasher;

    #[inline]
    fn build_hasher(&self) -> Self::Hasher {
        self.state.build_hasher()
    }
}

impl fmt::Debug for DefaultHashBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The seed is a secret.
        f.debug_struct("DefaultHashBuilder").finish_non_exhaustive()
    }
}
