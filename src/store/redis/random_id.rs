use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns a random id of 52 bits (exact in a double), not zero.
pub(crate) fn random_id() -> u64 {
    #[cfg(test)]
    if let Some(id) = super::simulation_tests::next_id() {
        return id;
    }
    // The operating system provides the keys of the hasher.
    (RandomState::new().build_hasher().finish() >> 12) | 1
}
