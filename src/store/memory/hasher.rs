use std::fmt;
use std::hash::BuildHasher;

/// The default hasher of [`Memory`](super::Memory): foldhash (quality), with a random seed for each limiter.
///
/// Clients see neither hashes nor the seed, so they cannot compute colliding keys. But foldhash is not a cryptographic
/// hash: its documentation promises no resistance against a client that can observe hashes, for example by timing
/// decisions. Two keys with one hash share a state, so one client could use up the quota of another. If clients choose
/// their keys freely and this matters, use [`sip_hash`](super::MemoryBuilder::sip_hash).
#[derive(Clone, Default)]
#[doc(hidden)]
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
