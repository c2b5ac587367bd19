use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

/// Returns a random id of 52 bits (exact in a double), not zero.
pub(crate) fn random_id() -> u64 {
    #[cfg(test)]
    if let Some(id) = super::simulation_tests::next_id() {
        return id;
    }
    // The operating system provides the keys of the hasher once for each thread, so the threads of a forked process have the
    // same keys as those of its parent.
    (RandomState::new().hash_one((std::process::id(), Instant::now())) >> 12) | 1
}
