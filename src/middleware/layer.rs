use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use tower_layer::Layer;

use super::config::{Config, MissingKeyPolicy, WaitConfig};
use super::cost::{CostFn, IdempotencyKey, Once, SettleFn, UnitCost};
use super::request_end::{BodyEnd, ResponseEnd};
use super::service::RateLimit;
use crate::key::ExemptIf;
use crate::observe::{FirstRequests, Observer, Observers};
#[cfg(feature = "timer")]
use crate::read_ahead::Bounds;
use crate::response::Http;

/// A tower layer that limits the requests of the service that it wraps.
///
/// | Parameter | Part | Task |
/// |---|---|---|
/// | `K` | [key extractor](crate::key) | extracts the key of a request |
/// | `A` | [limiter](crate::limiter) | decides whether the key may pass |
/// | `R` | [responder](crate::response) | turns decisions into responses |
/// | `T` | [cost policy](crate::cost) | determines the cost of a request |
/// | `E` | request end | tracks the end of a request, for limits on requests [in flight](crate::InFlight) |
///
/// All services that the layer wraps, and all their clones, share one limiter.
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
/// The limiter charges a request when it allows it, before the layer calls the inner service. The charge stays if the
/// inner service fails or panics, or if the response is never read. Denied requests, exempt requests and requests
/// without a key are not charged.
///
/// With [`settle`](Self::settle) the layer *holds* the cost instead ([`Held`](crate::limiter::Held)). When the service
/// has responded, the layer charges the cost that it derives from the response. If the response future is dropped
/// before that, or the service or the responder panics, the layer charges the whole held cost. Nothing is ever refunded.
///
/// The layer charges for every request that reaches it. In axum,
/// [`Router::layer`](https://docs.rs/axum/latest/axum/struct.Router.html#method.layer) wraps the fallback too, so a
/// request for an unknown path is charged. `Router::route_layer` wraps the routes only: a request for an unknown path
/// is neither limited nor charged.
///
/// # Cancellation
///
/// What is charged if the response future is dropped before the request is forwarded:
///
/// | The request waits for | Charged | Held ([`settle`](Self::settle)) |
/// |---|---|---|
/// | a decision by a remote limiter | perhaps: the limiter may have decided already | released |
/// | its start in a queue | no: the start goes to the next request | nothing is held |
/// | the inner service to become ready, after a wait | no: the start goes to the next request, or is lost | passed on or released |
/// | the inner service to become ready, without a wait | yes | released |
///
/// # The inner service is `Clone`
///
/// A waiting request keeps an instance of the inner service, and later requests need another instance. So the inner
/// service must be `Clone`, as the services of axum, tonic, hyper and reqwest are. Wrap a service that is not `Clone`
/// in a [`tower::buffer::Buffer`](https://docs.rs/tower/latest/tower/buffer/index.html): the buffer is `Clone`, and
/// runs the service in a separate task. The error of the service is then a `tower::BoxError`.
///
/// ```
/// use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
/// use tower_ratelimit::key::Global;
/// use tower_ratelimit::response::RejectWithError;
/// use tower_ratelimit::{FixedWindow, Memory, Quota, RateLimitLayer};
///
/// /// A service that cannot be cloned.
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
///     // Inside the limit, so that a rejected request uses no slot of the buffer.
///     .buffer(16)
///     .service(Connection(0));
///
/// assert_eq!(service.ready().await?.call(1).await?, 1);
/// assert_eq!(service.ready().await?.call(2).await?, 3);
/// assert!(service.ready().await?.call(3).await.is_err(), "over the limit");
/// # Ok(())
/// # }
/// ```
#[must_use = "a layer limits nothing until it wraps a service"]
pub struct RateLimitLayer<K, A, R = Http, T = UnitCost, E = ()> {
    config: Config<K, A, R, T>,
    end: PhantomData<fn() -> E>,
}

impl<K, A> RateLimitLayer<K, A> {
    /// Creates a layer with the responder [`Http`], in which every request costs one.
    ///
    /// The key must be `Hash + Send + Sync + 'static`, and the limiter `Clone + Send + Sync + 'static`. The layer finds
    /// the queue of a waiting request by a hash of its key, and asks the limiter from another task.
    pub fn new(extractor: K, limiter: A) -> Self {
        let config = Config {
            extractor,
            limiter,
            responder: Http::new(),
            cost_policy: UnitCost,
            missing_key: MissingKeyPolicy::default(),
            wait: WaitConfig::default(),
            observers: Observers::default(),
            first_requests: FirstRequests::default(),
        };
        Self { config, end: PhantomData }
    }
}

impl<K, A, R, T, E> RateLimitLayer<K, A, R, T, E> {
    /// Sets the responder, which turns decisions into responses.
    ///
    /// [`Http`] with options, [`RejectWithError`](crate::response::RejectWithError), a closure, or another
    /// [responder](crate::response).
    pub fn responder<U>(self, responder: U) -> RateLimitLayer<K, A, U, T, E> {
        self.map_parts(|extractor, _, cost_policy| (extractor, responder, cost_policy))
    }

    /// Sets what the layer does with a request whose key is absent. By default the layer rejects it.
    ///
    /// The layer always rejects an [unusable](crate::key::MissingKey::unusable) key.
    pub fn missing_key(mut self, policy: MissingKeyPolicy) -> Self {
        self.config.missing_key = policy;
        self
    }

    /// Exempts the requests for which the predicate `exempt` is true. Several calls add predicates.
    ///
    /// Predicates are [`Preflight`](crate::key::Preflight), [`ExactPaths`](crate::key::ExactPaths),
    /// [`InNetworks`](crate::key::InNetworks), and closures `Fn(&Request) -> bool`.
    ///
    /// ```
    /// # use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
    /// # let limiter = Memory::<std::net::IpAddr, _>::new(Gcra::new(Quota::per_second(10)));
    /// use tower_ratelimit::key::{ExactPaths, Preflight};
    ///
    /// let layer = RateLimitLayer::new(PeerIp::new(), limiter)
    ///     .exempt_if(ExactPaths::new(["/health"]))
    ///     .exempt_if(Preflight);
    /// ```
    pub fn exempt_if<P>(self, exempt: P) -> RateLimitLayer<ExemptIf<K, P>, A, R, T, E> {
        self.map_parts(|extractor, responder, cost_policy| (ExemptIf::new(extractor, exempt), responder, cost_policy))
    }

    /// Sets the cost of a request: a closure `|request: &Request| -> u64`. A cost of zero charges nothing.
    ///
    /// The closure must name the type of its argument: the compiler cannot infer it here.
    ///
    /// ```
    /// # use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
    /// # let limiter = Memory::<std::net::IpAddr, _>::new(Gcra::new(Quota::per_second(10)));
    /// let layer = RateLimitLayer::new(PeerIp::new(), limiter)
    ///     .cost(|request: &http::Request<String>| if request.method() == "POST" { 5 } else { 1 });
    /// ```
    pub fn cost<F>(self, cost: F) -> RateLimitLayer<K, A, R, CostFn<F, T>, E> {
        self.with_cost_policy(|inner_policy| CostFn { cost, inner_policy })
    }

    /// Settles the cost of a request when the service has responded.
    ///
    /// `settle` is [`OnlyFailures`](super::cost::OnlyFailures), [`OnlySuccesses`](super::cost::OnlySuccesses),
    /// `OnlyGrpcCodes`, or a closure `|held: u64, result: Result<&Response, &Error>| -> u64` that returns the actual
    /// cost.
    ///
    /// The layer holds the cost before it calls the service, and charges the actual cost when the service has
    /// responded: see [`Held`](crate::limiter::Held). The limiter charges a surcharge, the part above the held cost,
    /// even if it exceeds the limit. The response waits until the store has recorded the charge, at most for the store's
    /// deadline. The response headers carry the key's numbers at admission. If the response future is dropped, the layer
    /// charges the whole held cost.
    ///
    /// A hold starts now or is denied. With `max_wait` a denied request waits, and the layer asks again when a request
    /// settles and when the limiter expects capacity. A [`LeakyQueue`](crate::LeakyQueue) holds for one request of a key
    /// at a time, because the next start depends on the settlement: use a bucket or a window for services that respond
    /// slowly.
    pub fn settle<F>(self, settle: F) -> RateLimitLayer<K, A, R, SettleFn<T, F>, E> {
        self.with_cost_policy(|inner_policy| SettleFn { inner_policy, settle })
    }

    /// Charges a request once if its client sends it again with the same id: after a lost connection, for example.
    ///
    /// A request with an [`IdempotencyKey`] that repeats the id of an admitted request of the same key, method and path
    /// passes without a charge, **at most [`repeats`](IdempotencyKey::repeats) times (1 unless set) within
    /// [`remember`](IdempotencyKey::remember) (1 minute unless set)**. Further repeats are charged as requests without an
    /// id. **So a client can pass at most `1 + repeats` times what it is charged**: multiply your limits by that, or leave
    /// this method out, if a limit must be strict.
    ///
    /// The service receives the repeats, and its response is not stored: this method does not make a service idempotent.
    ///
    /// | Request | Charge |
    /// |---|---|
    /// | a repeat with a greater cost | the difference; a smaller cost charges nothing |
    /// | a repeat of a request that settled with cost 0 | the whole cost, and it counts as one of the repeats |
    /// | two requests with one id at the same time | one of them; the other one is its repeat |
    /// | a repeat at another replica that shares the limiter's Redis | none |
    /// | the same id with another method or path, or of another key | the whole cost |
    /// | the repeat of a denied request | the whole cost: a denied request is not remembered |
    /// | no id, or an unusable one: see [`IdempotencyKey`] | the whole cost |
    /// | more ids than the limiter's `max_reservation_ids` (10,000 per key) | the whole cost: the id is not remembered |
    ///
    /// - **In flight**: a repeat takes its place in a limit on requests [in flight](crate::InFlight), with its whole cost.
    /// - **Denials**: a repeat is decided like a request of cost 0. A block denies it, and so does usage above the limit.
    /// - **With [`max_wait`](Self::max_wait)** a repeat waits behind the waiting requests of its key. If the client of a
    ///   waiting request with an id leaves after the limiter has scheduled its start, no other request takes the start: it
    ///   is charged, and a repeat passes.
    /// - **With [`settle`](Self::settle)** the id is remembered when the request settles, with the actual cost. A repeat
    ///   holds only what exceeds that, and its settlement charges only what exceeds it. A request with the same id that
    ///   arrives before is charged like one without an id.
    /// - **A [`DeniedCache`](crate::limiter::DeniedCache)** passes each request with an id to its limiter, also a denied one.
    ///   Put a limit by address outside of this layer.
    /// - **The limiter** must remember ids: [`Memory`](crate::Memory) and `Redis` do. Another limiter returns an error for
    ///   which [`is_unsupported`](crate::Error::is_unsupported) holds, and the layer responds with status 500.
    ///
    /// ```
    /// # use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
    /// # let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
    /// # let limiter: Memory<std::net::IpAddr, _> = limiter;
    /// use tower_ratelimit::cost::IdempotencyKey;
    ///
    /// let layer = RateLimitLayer::new(PeerIp::new(), limiter).once(IdempotencyKey::header());
    /// # let _: axum::Router = axum::Router::new().layer(layer);
    /// ```
    pub fn once(self, key: IdempotencyKey) -> RateLimitLayer<K, A, R, Once<T>, E> {
        self.with_cost_policy(|inner_policy| Once { key, inner_policy })
    }

    /// Tracks requests until their response's body has ended, for limits on requests [in flight](crate::InFlight).
    ///
    /// The requests and responses must be of the types of the crate `http`. The response's body becomes an
    /// [`InFlightBody`](crate::InFlightBody). A request ends when
    ///
    /// - the response's body has ended, has failed or is dropped: in gRPC at the end of the stream, and in any protocol
    ///   when the client disconnects;
    /// - the service fails or panics, or the response future is dropped;
    /// - after an upgrade (WebSocket), the last clone of the [`InFlightGuard`](crate::InFlightGuard) in the request's
    ///   extensions is dropped.
    ///
    /// The layer then releases the held cost, once. Other limits are charged as without this method.
    ///
    /// The server does not notice a lost connection while it has nothing to send. Send keep-alive messages in idle
    /// streams, or enable keep-alive in the server (HTTP/2 pings, TCP keep-alive), or such requests never end.
    pub fn release_on_body_end(self) -> RateLimitLayer<K, A, R, T, BodyEnd> {
        RateLimitLayer { config: self.config, end: PhantomData }
    }

    /// Tracks requests until the service has responded, for limits on requests [in flight](crate::InFlight).
    ///
    /// For services whose responses have no body. In HTTP use [`release_on_body_end`](Self::release_on_body_end): the
    /// body of a response is sent after the service has responded.
    pub fn release_on_response(self) -> RateLimitLayer<K, A, R, T, ResponseEnd> {
        RateLimitLayer { config: self.config, end: PhantomData }
    }

    /// Adds an observer of the layer's events: see [`observe`](crate::observe). Every added observer receives each
    /// event.
    ///
    /// ```
    /// # use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
    /// # let limiter = Memory::<std::net::IpAddr, _>::new(Gcra::new(Quota::per_second(10)));
    /// use tower_ratelimit::observe::Event;
    ///
    /// let layer = RateLimitLayer::new(PeerIp::new(), limiter).observe(|event: &Event<'_>| {
    ///     if let Event::Failed { error, .. } = event {
    ///         eprintln!("the limiter failed: {error}");
    ///     }
    /// });
    /// ```
    pub fn observe(mut self, observer: impl Observer + 'static) -> Self {
        self.config.observers.add(observer);
        self
    }

    fn with_cost_policy<U>(self, wrap: impl FnOnce(T) -> U) -> RateLimitLayer<K, A, R, U, E> {
        self.map_parts(|extractor, responder, cost_policy| (extractor, responder, wrap(cost_policy)))
    }

    fn map_parts<L, U, V>(self, map: impl FnOnce(K, R, T) -> (L, U, V)) -> RateLimitLayer<L, A, U, V, E> {
        let Config { extractor, limiter, responder, cost_policy, missing_key, wait, observers, first_requests } =
            self.config;
        let (extractor, responder, cost_policy) = map(extractor, responder, cost_policy);
        let config =
            Config { extractor, limiter, responder, cost_policy, missing_key, wait, observers, first_requests };
        RateLimitLayer { config, end: PhantomData }
    }
}

#[cfg(feature = "timer")]
impl<K, A, R, T, E> RateLimitLayer<K, A, R, T, E> {
    /// Lets a request wait for up to `max_wait` before the layer rejects it.
    ///
    /// A request that cannot start now waits in a queue, uncharged. The queue belongs to the key, or to the limit that
    /// denied the request if several keys share that limit. While requests wait, a new request of the key joins them.
    /// The queue asks the limiter for one start after another, and gives each to the request that has waited longest. A
    /// request that leaves takes no start with it.
    ///
    /// The layer rejects a request at once if its place in the queue means that it cannot start within `max_wait`. This
    /// is an estimate from the limit's latest decision, corrected by the waits of earlier requests. At the end of `max_wait`
    /// the layer rejects a request that still waits, exactly at that time.
    ///
    /// The client's own deadline bounds the wait if it is earlier: the responders for gRPC read the header
    /// `grpc-timeout` ([`Respond::client_timeout`](crate::response::Respond::client_timeout)).
    ///
    /// Several processes that share a limit in Redis have one queue each. Buckets and queues alternate between the
    /// processes, because each process has a place in the limiter's schedule. Windows and logs serve the process that
    /// asks first.
    ///
    /// While a request waits, the layer reads its body into a bounded buffer, so that the server notices clients that
    /// leave: see [`read_ahead`](Self::read_ahead). For bodies of other crates than axum and tonic, add a
    /// [`ReadAheadLayer`](crate::ReadAheadLayer) outside of this layer.
    ///
    /// Without this setting only a [`LeakyQueue`](crate::LeakyQueue) lets requests wait. A `max_wait` of zero disables
    /// that. A waiting request reserves no capacity of the inner service. Waiting needs a tokio runtime with a timer.
    /// Without one the server is misconfigured: the layer rejects a request that would wait with status 500. tokio tells
    /// by a panic that a runtime has no timer. The layer catches the panic; a program with `panic = "abort"` ends.
    pub fn max_wait(mut self, max_wait: std::time::Duration) -> Self {
        self.config.wait.change(|wait, _, _| *wait = Some(max_wait));
        self
    }

    /// Sets how many requests may wait at a time, over all keys and all services of this layer. The default is 10 000.
    ///
    /// The layer rejects further requests that would have to wait, and does not charge them. A key has at most half of
    /// these places, unless [`max_waiters_per_key`](Self::max_waiters_per_key) is set.
    pub fn max_waiters(mut self, max_waiters: usize) -> Self {
        self.config.wait.change(|_, bounds, _| bounds.max_waiters = max_waiters);
        self
    }

    /// Sets how many requests of one key may wait at a time. The default is half of [`max_waiters`](Self::max_waiters),
    /// and at most 1000, so that one client cannot take all places.
    ///
    /// The whole key counts, also if a limit counts by a part of the key. Requests that wait for different limits are in
    /// different queues, and each queue has this bound. A client that chooses a part of its key, such as the path, can take
    /// all places: let your extractor return known values for such a part, such as the route.
    ///
    /// The last tenth of all places is for keys of which no request waits, if one key may not take these places. For a
    /// layer with one key ([`Global`](crate::key::Global)) set the same number as `max_waiters`.
    pub fn max_waiters_per_key(mut self, max_waiters: usize) -> Self {
        self.config.wait.change(|_, bounds, _| bounds.max_waiters_per_key = Some(max_waiters));
        self
    }

    /// Sets how many bytes of request bodies the layer buffers while requests wait: per request, and in total.
    ///
    /// The defaults are 64 KiB and 64 MiB. With 0 the layer reads nothing. The layer reads the body of a waiting request
    /// so that the server notices that the client of an upload has left: [`ReadAheadLayer`](crate::ReadAheadLayer)
    /// describes why, how bytes are counted, and which clients are not seen to leave. The service receives the body
    /// unchanged.
    ///
    /// The layer knows the bodies of axum and tonic (features `axum` and `tonic`). For other body types, place a
    /// [`ReadAheadLayer`](crate::ReadAheadLayer) outside of this layer.
    ///
    /// If a body fails while its request waits, the wait ends uncharged. The layer emits the events of a client that has
    /// left, and responds as to a request without a key, in HTTP with status 400.
    pub fn read_ahead(mut self, max_bytes_per_request: usize, max_bytes: usize) -> Self {
        self.config.wait.read_ahead = Bounds::new(max_bytes_per_request, max_bytes);
        self
    }

    /// Serves the newest waiting request first.
    ///
    /// For services behind a proxy that hides that clients have left: the oldest requests are those whose clients have
    /// probably left. A new request takes the place of the oldest one if no place is free.
    pub fn newest_first(mut self) -> Self {
        self.config.wait.change(|_, _, newest_first| *newest_first = true);
        self
    }
}

/// A service that the layer can limit: any service that is `Clone`.
///
/// The bound is on the layer, so the compiler reports a service that is not `Clone` where it meets the layer.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "the inner service of a rate limiter must be `Clone`, and `{Self}` is not",
    label = "this service is not `Clone`",
    note = "derive `Clone`, or put a buffer between the layer and the service, whose handle is `Clone`: \
            `ServiceBuilder::buffer(1024)`, or `tower::buffer::Buffer::new(service, 1024)`"
)]
pub trait CloneService {}

#[diagnostic::do_not_recommend]
impl<S: Clone> CloneService for S {}

impl<S: CloneService, K: Clone, A: Clone, R: Clone, T: Clone, E> Layer<S> for RateLimitLayer<K, A, R, T, E> {
    type Service = RateLimit<S, K, A, R, T, E>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::new(self.config.clone()))
    }
}

impl_clone!([K: Clone, A: Clone, R: Clone, T: Clone, E] RateLimitLayer<K, A, R, T, E> { config, end });

impl_debug!([K: fmt::Debug, A: fmt::Debug, R: fmt::Debug, T: fmt::Debug, E] RateLimitLayer<K, A, R, T, E> { config });
