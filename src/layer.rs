use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

use crate::key::ExemptIf;
use crate::observe::{Observer, Observers};
use crate::response::Http;
use crate::service::RateLimit;
use crate::settings::{Settings, Wait, WhenMissing};
use crate::tariff::{CostBy, One, SettleBy};

/// Limits the requests of the service that it wraps: `K` says whose a request is, `A` how much they may have, `R` how a
/// decision looks from outside, `T` what a request costs.
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
/// it then: if the inner service fails or panics, if its response is never read, if the response's future is dropped;
/// unless [`settle`](Self::settle) says otherwise when the service has answered. A refused request is not charged, nor one
/// that is exempt or lacks its key.
///
/// A future that is dropped while a limiter elsewhere (in Redis) is still deciding may or may not be charged. One that is
/// dropped while it waits for its turn gives its charge back, as far as it still counts: the turns of those behind it stay
/// as they were promised, and what room that leaves goes to whoever asks next.
///
/// What the layer wraps is what it charges for. In axum, [`Router::layer`](https://docs.rs/axum/latest/axum/struct.Router.html#method.layer)
/// wraps the fallback too, so a request for a path that does not exist is charged; `Router::route_layer` wraps the routes
/// alone, and lets such a request go to its 404 uncharged and unlimited.
#[derive(Clone)]
#[must_use = "a layer limits nothing until it wraps a service"]
pub struct RateLimitLayer<K, A, R = Http, T = One> {
    settings: Settings<K, A, R, T>,
}

impl<K, A> RateLimitLayer<K, A> {
    /// Limits by the keys that `key` extracts, as `limiter` decides, answering in HTTP. Every request costs one.
    pub fn new(key: K, limiter: A) -> Self {
        let (responder, missing, wait) = (Http::new(), WhenMissing::Refuse, Wait::default());
        let observers = Observers::default();
        Self { settings: Settings { key, limiter, responder, tariff: One, missing, wait, observers } }
    }
}

impl<K, A, R, T> RateLimitLayer<K, A, R, T> {
    /// Sets how decisions look from outside: [`Http`] with options, [`AsError`](crate::response::AsError), a closure.
    pub fn responder<U>(self, responder: U) -> RateLimitLayer<K, A, U, T> {
        let Settings { key, limiter, tariff, missing, wait, observers, .. } = self.settings;
        RateLimitLayer { settings: Settings { key, limiter, responder, tariff, missing, wait, observers } }
    }

    /// Sets what becomes of a request that lacks its key: by default it is refused.
    pub fn when_missing(mut self, missing: WhenMissing) -> Self {
        self.settings.missing = missing;
        self
    }

    /// Lets requests of which `exempt` holds pass under no limit: [`Preflight`](crate::key::Preflight),
    /// [`Paths`](crate::key::Paths), [`PeerIn`](crate::key::PeerIn), or a closure `Fn(&Request) -> bool`. May be called
    /// several times.
    ///
    /// ```
    /// # use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
    /// # let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
    /// use tower_ratelimit::key::{Paths, Preflight};
    ///
    /// let layer = RateLimitLayer::new(PeerIp::new(), limiter)
    ///     .exempt_if(Paths::new(["/health"]))
    ///     .exempt_if(Preflight);
    /// ```
    pub fn exempt_if<P>(self, exempt: P) -> RateLimitLayer<ExemptIf<K, P>, A, R, T> {
        let Settings { key, limiter, responder, tariff, missing, wait, observers } = self.settings;
        let key = ExemptIf::new(key, exempt);
        RateLimitLayer { settings: Settings { key, limiter, responder, tariff, missing, wait, observers } }
    }

    /// Sets what a request costs, from the request: `|request: &Request| -> u64`. A cost of zero charges nothing.
    ///
    /// ```
    /// # use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
    /// # let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
    /// let layer = RateLimitLayer::new(PeerIp::new(), limiter)
    ///     .cost(|request: &http::Request<String>| if request.method() == "POST" { 5 } else { 1 });
    /// ```
    pub fn cost<F>(self, cost: F) -> RateLimitLayer<K, A, R, CostBy<F, T>> {
        self.tariff(|rest| CostBy { cost, rest })
    }

    /// Settles what a request has cost when the service has answered: by [`OnlyFailures`](crate::tariff::OnlyFailures),
    /// [`OnlySuccesses`](crate::tariff::OnlySuccesses), or a closure `|charged: u64, answer: Result<&Response, &Error>| ->
    /// u64`.
    ///
    /// What was charged too much is given back, as far as it still counts; what was charged too little is charged then,
    /// allowed or not. The header fields tell how the key stood before. A future that is dropped before the service has
    /// answered leaves the charge as it was.
    pub fn settle<F>(self, settle: F) -> RateLimitLayer<K, A, R, SettleBy<T, F>> {
        self.tariff(|rest| SettleBy { rest, settle })
    }

    /// Tells `observer` what becomes of each request: see [`observe`](crate::observe). May be called several times; each
    /// observer is told.
    ///
    /// ```
    /// # use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
    /// # let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
    /// use tower_ratelimit::observe::Event;
    ///
    /// let layer = RateLimitLayer::new(PeerIp::new(), limiter).observe(|event: &Event<'_>| {
    ///     if let Event::Failed { error, .. } = event {
    ///         eprintln!("the limiter can't decide: {error}");
    ///     }
    /// });
    /// ```
    pub fn observe(mut self, observer: impl Observer + 'static) -> Self {
        self.settings.observers.add(observer);
        self
    }

    fn tariff<U>(self, change: impl FnOnce(T) -> U) -> RateLimitLayer<K, A, R, U> {
        let Settings { key, limiter, responder, tariff, missing, wait, observers } = self.settings;
        let tariff = change(tariff);
        RateLimitLayer { settings: Settings { key, limiter, responder, tariff, missing, wait, observers } }
    }
}

#[cfg(feature = "timer")]
impl<K, A, R, T> RateLimitLayer<K, A, R, T> {
    /// Lets a request wait for its turn for up to `longest`, instead of refusing it. What can't make it in that time is
    /// refused at once, not after waiting.
    ///
    /// Those who wait for a bucket or a queue are served first come, first served for each key: each is promised its turn when
    /// it asks. Windows and logs promise no turns, several limits only if [all owe until then](crate::Limit), and a blocked
    /// key has none: who waits there asks again when there should be room, and whoever asks first then has it.
    ///
    /// All the time counts that has passed since the first decision, deciding included; a turn that a limiter elsewhere
    /// promises within what was left when it was asked is waited for.
    ///
    /// Without this setting only a [`LeakyQueue`](crate::LeakyQueue) lets requests wait, as long as it must; a `longest` of
    /// zero keeps it from that. Waiting holds no readiness of the inner service, and needs a tokio runtime with its timer.
    pub fn max_wait(mut self, longest: std::time::Duration) -> Self {
        self.settings.wait.longest = Some(longest);
        self
    }

    /// Sets how many requests may wait at a time, over all services of this layer: by default 10 000. One more is refused
    /// at once, and not charged.
    pub fn max_waiters(mut self, waiters: usize) -> Self {
        self.settings.wait.max_waiters = waiters;
        self
    }
}

impl<S, K: Clone, A: Clone, R: Clone, T: Clone> Layer<S> for RateLimitLayer<K, A, R, T> {
    type Service = RateLimit<S, K, A, R, T>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::new(self.settings.clone()))
    }
}

impl<K: fmt::Debug, A: fmt::Debug, R: fmt::Debug, T: fmt::Debug> fmt::Debug for RateLimitLayer<K, A, R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("key", &self.settings.key)
            .field("limiter", &self.settings.limiter)
            .field("responder", &self.settings.responder)
            .field("tariff", &self.settings.tariff)
            .field("missing", &self.settings.missing)
            .field("wait", &self.settings.wait)
            .field("observers", &self.settings.observers)
            .finish()
    }
}
