use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

use super::config::{MissingKeyPolicy, Settings, Wait};
use super::cost::{CostFn, SettleFn, UnitCost};
use super::service::RateLimit;
use crate::key::ExemptIf;
use crate::observe::{Observer, Observers};
use crate::response::Http;

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
/// A request is charged when it is allowed, before the inner service is called. It stays charged if the inner service fails
/// or panics, or if the response is never read. A denied request is not charged, nor one that is exempt or has no key.
///
/// With [`settle`](Self::settle) the layer *holds* the cost instead ([`Held`](crate::limiter::Held)). When the service has
/// responded, it charges what the response says. If the response's future is dropped before, or the service panics, it
/// charges the whole held cost. Nothing is ever refunded.
///
/// # Cancellation
///
/// If the future is dropped while a limiter elsewhere (in Redis) decides, the request may stay charged. If it is dropped while
/// the request waits for a scheduled start, the charge stays, and the starts of others do not change. If it is dropped while
/// the request waits to ask again, nothing was charged.
///
/// What the layer wraps is what it charges for. In axum, [`Router::layer`](https://docs.rs/axum/latest/axum/struct.Router.html#method.layer)
/// wraps the fallback too, so a request for a path that does not exist is charged; `Router::route_layer` wraps the routes
/// alone, and lets such a request go to its 404 uncharged and unlimited.
///
/// # The inner service is `Clone`
///
/// A request that waits keeps an instance of the inner service, and later requests need another instance. So the inner
/// service must be `Clone`, as the services of axum, tonic, hyper and reqwest are. A service that is not `Clone` needs
/// a [`tower::buffer::Buffer`](https://docs.rs/tower/latest/tower/buffer/index.html) around it: the buffer is `Clone`,
/// and runs the service in a task of its own. The service's error then is a `tower::BoxError`.
///
/// ```
/// use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
/// use tower_ratelimit::key::Global;
/// use tower_ratelimit::response::RejectWithError;
/// use tower_ratelimit::{FixedWindow, Memory, Quota, RateLimitLayer};
///
/// /// Holds what must not be cloned.
/// struct Connection(u32);
///
/// impl Service<u32> for Connection {
///     type Response = u32;
///     type Error = BoxError;
///     type Future = std::future::Ready<Result<u32, BoxError>>;
///
///     fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), BoxError>> {
///         std::task::Poll::Ready(Ok(()))
///     }
///
///     fn call(&mut self, number: u32) -> Self::Future {
///         self.0 += number;
///         std::future::ready(Ok(self.0))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let limiter = Memory::new(FixedWindow::new(Quota::per_minute(2)));
/// let mut service = ServiceBuilder::new()
///     .layer(RateLimitLayer::new(Global, limiter).responder(RejectWithError))
///     // Inside of the limit, so that a rejected request takes no place in the buffer.
///     .buffer(16)
///     .service(Connection(0));
///
/// assert_eq!(service.ready().await?.call(1).await?, 1);
/// assert_eq!(service.ready().await?.call(2).await?, 3);
/// assert!(service.ready().await?.call(3).await.is_err(), "over the limit");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a layer limits nothing until it wraps a service"]
pub struct RateLimitLayer<K, A, R = Http, T = UnitCost> {
    settings: Settings<K, A, R, T>,
}

impl<K, A> RateLimitLayer<K, A> {
    /// Limits by the keys that `key` extracts, as `limiter` decides, answering in HTTP. Every request costs one.
    pub fn new(key: K, limiter: A) -> Self {
        let (responder, missing, wait) = (Http::new(), MissingKeyPolicy::Refuse, Wait::default());
        let observers = Observers::default();
        Self { settings: Settings { key, limiter, responder, tariff: UnitCost, missing, wait, observers } }
    }
}

impl<K, A, R, T> RateLimitLayer<K, A, R, T> {
    /// Sets how decisions look from outside: [`Http`] with options, [`RejectWithError`](crate::response::RejectWithError), a closure.
    pub fn responder<U>(self, responder: U) -> RateLimitLayer<K, A, U, T> {
        let Settings { key, limiter, tariff, missing, wait, observers, .. } = self.settings;
        RateLimitLayer { settings: Settings { key, limiter, responder, tariff, missing, wait, observers } }
    }

    /// Sets what the layer does with a request whose key is absent: by default the layer refuses the request.
    ///
    /// A key that is [unusable](crate::key::MissingKey::unusable) is always refused.
    pub fn missing_key(mut self, missing: MissingKeyPolicy) -> Self {
        self.settings.missing = missing;
        self
    }

    /// Lets requests of which `exempt` holds pass under no limit: [`Preflight`](crate::key::Preflight),
    /// [`ExactPaths`](crate::key::ExactPaths), [`ClientNetworks`](crate::key::ClientNetworks), [`PeerNetworks`](crate::key::PeerNetworks), or a closure
    /// `Fn(&Request) -> bool`. May be called several times.
    ///
    /// ```
    /// # use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
    /// # let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
    /// use tower_ratelimit::key::{ExactPaths, Preflight};
    ///
    /// let layer = RateLimitLayer::new(PeerIp::new(), limiter)
    ///     .exempt_if(ExactPaths::new(["/health"]))
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
    pub fn cost<F>(self, cost: F) -> RateLimitLayer<K, A, R, CostFn<F, T>> {
        self.tariff(|rest| CostFn { cost, rest })
    }

    /// Settle what a request has cost when the service has answered: by [`OnlyFailures`](super::cost::OnlyFailures),
    /// [`OnlySuccesses`](super::cost::OnlySuccesses), or a closure `|charged: u64, answer: Result<&Response, &Error>| ->
    /// u64`.
    ///
    /// The layer holds the cost at admission and charges what this says when the service has responded: see
    /// [`Held`](crate::limiter::Held). More than the held cost is charged without asking. Header fields carry the key's numbers
    /// at admission. A response future that is dropped before charges the whole held cost.
    ///
    /// A hold starts now or is denied: a request of a layer that settles is never scheduled. With `max_wait` it asks again
    /// when there should be room. A [`LeakyQueue`](crate::LeakyQueue) holds for one request of a key at a time, as its next
    /// start follows the settlement: use a bucket or a window where responses take long.
    pub fn settle<F>(self, settle: F) -> RateLimitLayer<K, A, R, SettleFn<T, F>> {
        self.tariff(|rest| SettleFn { rest, settle })
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
    /// zero keeps it from that. Waiting holds no readiness of the inner service, and needs a tokio runtime with its timer:
    /// outside of one, a request that would wait for a scheduled start is denied, although it was charged for that start.
    pub fn max_wait(mut self, longest: std::time::Duration) -> Self {
        self.settings.wait.longest = Some(longest);
        self
    }

    /// Sets how many requests may wait at a time, over all services of this layer: by default 10 000. UnitCost more is refused
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
