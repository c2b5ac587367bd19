use std::fmt;
use std::hash::BuildHasher;

/// The hasher that [`Memory`](super::Memory) uses unless it is given another: foldhash (quality), seeded at random for each
/// limiter.
///
/// Clients see neither hashes nor the seed, so they have nothing to compute colliding keys from. But foldhash is not a
/// cryptographic hash: its documentation promises no resistance against somebody who can observe hashes, such as by the time
/// that decisions take. Two keys of one hash share a state, so one could use up the quota of the other. Where clients choose
/// their keys freely and this matters, use [`sip_hash`](super::MemoryBuilder::sip_hash).
#[derive(Clone, Default)]
pub struct DefaultHashBuilder(foldhash::quality::RandomState);

impl BuildHasher for DefaultHashBuilder {
    type Hasher = <foldhash::quality::RandomState as BuildHasher>::Hasher;

    #[inline]
    fn build_hasher(&self) -> Self::Hasher {
        self.0.build_hasher()
    }
}

impl fmt::Debug for DefaultHashBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The seed is a secret.
        f.debug_struct("DefaultHashBuilder").finish_non_exhaustive()
    }
}
