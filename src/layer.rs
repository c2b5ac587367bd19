use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

use crate::response::Http;
use crate::service::RateLimit;
use crate::settings::{Settings, WhenMissing};

/// Limits the requests of the service that it wraps: `K` says whose a request is, `A` how much they may have, `R` how a
/// decision looks from outside.
///
/// All services that it makes, and all clones of them, share the limiter: it is made before the layer, once.
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)).burst(20));
/// let app: Router = Router::new()
///     .route("/", get(async || "hello"))
///     .layer(RateLimitLayer::new(PeerIp::new(), limiter));
/// ```
///
/// # What is charged
///
/// A request is charged when it is let through, before the inner service is called. It stays charged whatever becomes of
/// it then: if the inner service fails or panics, if its response is never read, if the response's future is dropped. A
/// refused request is not charged, nor one that is exempt or lacks its key.
///
/// A future that is dropped while a limiter elsewhere (in Redis) is still deciding may or may not be charged.
#[derive(Clone)]
#[must_use = "a layer limits nothing until it wraps a service"]
pub struct RateLimitLayer<K, A, R = Http> {
    settings: Settings<K, A, R>,
}

impl<K, A> RateLimitLayer<K, A> {
    /// Limits by the keys that `key` extracts, as `limiter` decides, answering in HTTP.
    pub fn new(key: K, limiter: A) -> Self {
        Self { settings: Settings { key, limiter, responder: Http::new(), missing: WhenMissing::Refuse } }
    }
}

impl<K, A, R> RateLimitLayer<K, A, R> {
    /// Sets how decisions look from outside: [`Http`] with options, [`AsError`](crate::response::AsError), a closure.
    pub fn responder<T>(self, responder: T) -> RateLimitLayer<K, A, T> {
        let Settings { key, limiter, missing, .. } = self.settings;
        RateLimitLayer { settings: Settings { key, limiter, responder, missing } }
    }

    /// Sets what becomes of a request that lacks its key: by default it is refused.
    pub fn when_missing(mut self, missing: WhenMissing) -> Self {
        self.settings.missing = missing;
        self
    }
}

impl<S, K: Clone, A: Clone, R: Clone> Layer<S> for RateLimitLayer<K, A, R> {
    type Service = RateLimit<S, K, A, R>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::new(self.settings.clone()))
    }
}

impl<K: fmt::Debug, A: fmt::Debug, R: fmt::Debug> fmt::Debug for RateLimitLayer<K, A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("key", &self.settings.key)
            .field("limiter", &self.settings.limiter)
            .field("responder", &self.settings.responder)
            .field("missing", &self.settings.missing)
            .finish()
    }
}
