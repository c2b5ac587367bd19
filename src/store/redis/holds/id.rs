use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns a random id of 52 bits (exact in a double), not zero.
pub(crate) fn random_id() -> u64 {
    // The operating system provides the keys of the hasher.
    (RandomState::new().build_hasher().finish() >> 12) | 1
}
