use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Request;
use tower_layer::Layer;
use tower_service::Service;

use super::future::GateFuture;
use super::signal::ReadGateSignal;
use super::state::Gates;
use crate::retry::http::HttpHint;

/// Returns the key of a request's gate.
///
/// A closure `Fn(&Request) -> Key` implements the trait.
pub trait GateKey<Request> {
    /// The type of the keys.
    type Key: Hash;

    /// Returns the key of a request.
    fn key(&self, request: &Request) -> Self::Key;
}

impl<Request, Key: Hash, F: Fn(&Request) -> Key> GateKey<Request> for F {
    type Key = Key;

    fn key(&self, request: &Request) -> Key {
        self(request)
    }
}

/// One gate per origin: the scheme, host and port of the request's URI, however it spells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByOrigin;

impl<B> GateKey<Request<B>> for ByOrigin {
    type Key = (Option<http::uri::Scheme>, Option<String>, Option<u16>);

    fn key(&self, request: &Request<B>) -> Self::Key {
        let uri = request.uri();
        let default_port = match uri.scheme_str() {
            Some("http") => Some(80),
            Some("https") => Some(443),
            _ => None,
        };
        (uri.scheme().cloned(), uri.host().map(str::to_ascii_lowercase), uri.port_u16().or(default_port))
    }
}

/// Lets the requests of a client wait after a rejection, in order, until the server accepts requests again.
///
/// The [module](super) states the rules. All services of a layer and of its clones share the gates.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct GateLayer<K = ByOrigin, R = HttpHint> {
    key: K,
    reader: R,
    max_wait: Duration,
    gates: Arc<Gates>,
}

impl GateLayer {
    /// Creates a layer with a gate per origin, which reads HTTP responses with [`HttpHint`].
    pub fn new() -> Self {
        Self { key: ByOrigin, reader: HttpHint, max_wait: Duration::from_secs(60), gates: Arc::default() }
    }
}

impl_default!(GateLayer);

impl<K, R> GateLayer<K, R> {
    /// Sets the key of the gates, `Fn(&Request) -> Key`: for example an API key, or `|_: &Request| ()` for one gate.
    ///
    /// The layer stores a hash of the key. If two keys have the same hash, their requests wait for each other.
    pub fn keyed_by<L>(self, key: L) -> GateLayer<L, R> {
        GateLayer { key, reader: self.reader, max_wait: self.max_wait, gates: self.gates }
    }

    /// Sets the reader of the responses, `Fn(&Response) -> GateSignal`.
    pub fn with_reader<Q>(self, reader: Q) -> GateLayer<K, Q> {
        GateLayer { key: self.key, reader, max_wait: self.max_wait, gates: self.gates }
    }

    /// Sets the maximum wait of a request. The default is one minute.
    ///
    /// A request that would wait longer fails with [`GateClosed`]. The request fails at once if the gate stays closed
    /// for longer.
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }
}

impl<S, K: Clone, R: Clone> Layer<S> for GateLayer<K, R> {
    type Service = Gate<S, K, R>;

    fn layer(&self, inner: S) -> Self::Service {
        Gate { inner, layer: self.clone() }
    }
}

/// The service of [`GateLayer`].
///
/// # Errors
///
/// A [`GateClosed`] in the error type of the inner service, which must implement `From<GateClosed>`. A
/// [`BoxError`](crate::response::BoxError) does, and `downcast_ref` finds the value. For any other error type, as
/// the errors of hyper and reqwest, add `.map_err(BoxError::from)` between the layer and the service.
///
/// # Cancellation
///
/// If the future of a request is dropped, the request leaves the queue, and its start goes to the next request. The
/// futures must be polled: a request whose future is not polled gives up its start after a second.
#[derive(Clone, Debug)]
pub struct Gate<S, K = ByOrigin, R = HttpHint> {
    inner: S,
    layer: GateLayer<K, R>,
}

impl<S, Request, K, R> Service<Request> for Gate<S, K, R>
where
    S: Service<Request, Error: From<GateClosed>> + Clone,
    K: GateKey<Request>,
    R: ReadGateSignal<S::Response> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = GateFuture<S, Request, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let GateLayer { key, reader, max_wait, gates } = &self.layer;
        match gates.arrive(gates.hash(&key.key(&request))) {
            Ok(pass) => GateFuture::start(self.inner.call(request), pass, reader.clone()),
            Err(waiter) => {
                // A waiting request holds no readiness of the inner service. The instance that `poll_ready` made ready
                // goes: it may hold a permit, for which the request would wait later without end.
                self.inner = self.inner.clone();
                GateFuture::wait(self.inner.clone(), request, waiter, *max_wait, reader.clone())
            }
        }
    }
}

/// The error of a request for which the gate stays closed longer than the request may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateClosed {
    retry_after: Duration,
}

impl GateClosed {
    pub(super) const fn new(retry_after: Duration) -> Self {
        Self { retry_after }
    }

    /// Returns the time until the server accepts requests again, as far as its responses say. Other requests may be
    /// waiting then.
    pub const fn retry_after(&self) -> Duration {
        self.retry_after
    }
}

impl fmt::Display for GateClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request not sent: the server rejects requests; retry after {:?}", self.retry_after)
    }
}

impl std::error::Error for GateClosed {}
