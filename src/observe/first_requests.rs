use std::hash::{BuildHasher as _, Hash};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use foldhash::fast::FixedState;

use super::observers::print;

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
    has_printed: AtomicBool,
}

impl FirstRequests {
    const MAX_REQUESTS: u32 = 1000;
    const MIN_WARNINGS: u32 = 50;

    /// Prints the message, unless the layer has printed one.
    pub(crate) fn print_misconfiguration(&self, cause: impl std::fmt::Display) {
        if !self.0.has_printed.swap(true, Ordering::Relaxed) {
            print(&format!("server misconfigured: {cause}"));
        }
    }

    /// Counts a request. Returns its warning if it is time to emit that: once.
    pub(crate) fn observe<Key: Hash>(
        &self,
        key: &Key,
        warning: impl FnOnce() -> Option<&'static str>,
    ) -> Option<&'static str> {
        let Found { requests, with_warning, key: of_first, .. } = &*self.0;
        if requests.load(Ordering::Relaxed) >= Self::MAX_REQUESTS {
            return None;
        }
        // Concurrent requests may exceed the maximum by a few, which only lengthens the search.
        requests.fetch_add(1, Ordering::Relaxed);
        let warning = warning()?;
        // Never 0, which is the mark of no key.
        let hash = FixedState::default().hash_one(key) | 1;
        match of_first.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
            Err(first) if first != hash => {
                requests.store(Self::MAX_REQUESTS, Ordering::Relaxed);
                None
            }
            _ => {
                let count = with_warning.fetch_add(1, Ordering::Relaxed) + 1;
                if count >= Self::MIN_WARNINGS {
                    requests.store(Self::MAX_REQUESTS, Ordering::Relaxed);
                }
                (count == Self::MIN_WARNINGS).then_some(warning)
            }
        }
    }
}
