use std::hash::{BuildHasher as _, Hash};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use foldhash::fast::FixedState;

/// The search for a wrong setting among the first requests of a layer: all that have a warning have one key.
///
/// Clones share the search. It ends with a warning, with a second key, or after [`MAX_REQUESTS`](Self::MAX_REQUESTS), so
/// a healthy server searches for a moment only. Clones also print at most one cause of a misconfiguration.
#[derive(Clone, Debug, Default)]
pub(crate) struct FirstRequests(Arc<Found>);

#[derive(Debug, Default)]
struct Found {
    requests: AtomicU32,
    with_warning: AtomicU32,
    /// The hash of the key of the first request with a warning, or 0.
    key: AtomicU64,
}

impl FirstRequests {
    const MAX_REQUESTS: u32 = 1000;
    const MIN_WARNINGS: u32 = 50;

    /// Counts a request. Returns whether the search goes on.
    #[inline]
    pub(crate) fn count_request(&self) -> bool {
        let requests = &self.0.requests;
        let goes_on = requests.load(Ordering::Relaxed) < Self::MAX_REQUESTS;
        if goes_on {
            // Concurrent requests may exceed the maximum by a few, which only lengthens the search.
            requests.fetch_add(1, Ordering::Relaxed);
        }
        goes_on
    }

    /// Counts a warning about a request of a key with this hash. Returns whether it is time to emit it: once.
    pub(crate) fn is_due(&self, hash_of_key: u64) -> bool {
        let Found { requests, with_warning, key: of_first, .. } = &*self.0;
        match of_first.compare_exchange(0, hash_of_key, Ordering::Relaxed, Ordering::Relaxed) {
            Err(first) if first != hash_of_key => {
                requests.store(Self::MAX_REQUESTS, Ordering::Relaxed);
                false
            }
            _ => {
                let count = with_warning.fetch_add(1, Ordering::Relaxed) + 1;
                if count >= Self::MIN_WARNINGS {
                    requests.store(Self::MAX_REQUESTS, Ordering::Relaxed);
                }
                count == Self::MIN_WARNINGS
            }
        }
    }

    /// The hash of a key. Never 0, which is the mark of no key.
    pub(crate) fn hash_of(key: &impl Hash) -> u64 {
        FixedState::default().hash_one(key) | 1
    }
}
