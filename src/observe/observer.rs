use std::sync::Arc;

use super::event::Event;

/// Receives events. A closure `Fn(&Event)` is an observer.
///
/// The layer and the stores call the observer while they handle requests: an observer must neither block nor panic.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use tower_ratelimit::observe::{Event, Observer};
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// /// Counts the denied requests.
/// #[derive(Default)]
/// struct Denied(AtomicU64);
///
/// impl Observer for Denied {
///     fn observe(&self, event: &Event<'_>) {
///         if let Event::Decided { decision, .. } = event {
///             self.0.fetch_add(u64::from(!decision.is_allowed()), Ordering::Relaxed);
///         }
///     }
/// }
///
/// let denied = Arc::new(Denied::default());
/// let limiter = Memory::<std::net::IpAddr, _>::new(Gcra::new(Quota::per_second(10)));
/// let layer = RateLimitLayer::new(PeerIp::new(), limiter).observe(denied.clone());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an observer",
    note = "an observer is a type that implements `Observer`, an `Arc` of one, or a closure `|event: &Event<'_>|`"
)]
pub trait Observer: Send + Sync {
    /// Receives one event.
    fn observe(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Send + Sync> Observer for F {
    fn observe(&self, event: &Event<'_>) {
        self(event);
    }
}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn observe(&self, event: &Event<'_>) {
        (**self).observe(event);
    }
}
