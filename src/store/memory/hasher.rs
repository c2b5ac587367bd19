use std::fmt;
use std::hash::BuildHasher;

/// The hasher that [`Memory`](super::Memory) uses unless it is given another: fast, and seeded at random for each limiter,
/// so that nobody outside can choose keys that fall together.
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
