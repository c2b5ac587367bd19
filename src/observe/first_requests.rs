use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// The search for one proxy among the first requests of a layer.
///
/// Clones share the search. It ends with a warning, with a second proxy, or after [`MAX_REQUESTS`](Self::MAX_REQUESTS), so
/// a healthy server searches for a moment only. Clones also print at most one cause of a misconfiguration.
#[derive(Clone, Debug, Default)]
pub(crate) struct FirstRequests(Arc<Found>);

#[derive(Debug, Default)]
struct Found {
    requests: AtomicU32,
    with_proxy: AtomicU32,
    proxy: OnceLock<IpAddr>,
}

impl FirstRequests {
    const MAX_REQUESTS: u32 = 1000;
    const MIN_REQUESTS: u32 = 50;

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

    /// Counts a request of this proxy. Returns whether it is time to emit the warning: once.
    pub(crate) fn is_due(&self, proxy: IpAddr) -> bool {
        let found = &*self.0;
        let is_only = *found.proxy.get_or_init(|| proxy) == proxy;
        let count = if is_only { found.with_proxy.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
        if !is_only || count >= Self::MIN_REQUESTS {
            found.requests.store(Self::MAX_REQUESTS, Ordering::Relaxed);
        }
        count == Self::MIN_REQUESTS
    }
}
