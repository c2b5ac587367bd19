use tower_layer::Layer;

use super::bounds::Bounds;
use super::drain::Drain;
use super::service::ReadAhead;

/// A tower layer that reads request bodies while their requests wait, so that clients that leave are noticed.
///
/// [`RateLimitLayer`](crate::RateLimitLayer) does this by itself for the bodies of axum and tonic while a request waits
/// ([`read_ahead`](crate::RateLimitLayer::read_ahead)). You need this layer for other body types, such as hyper's
/// `Incoming`, and for requests that wait in other layers, such as tower's `ConcurrencyLimit`.
///
/// Over HTTP/1.1 the server reads a connection only while somebody polls the request's body. A request that waits polls
/// no body. If the body has not arrived whole with the fields of the request, the server does not notice that the client
/// has disconnected: the request keeps its place in the queue, and takes its start. Most uploads are such requests.
///
/// Place this layer **outside** of the rate limiter. While the response is pending, the layer reads the body into a
/// buffer. When the inner service polls the body, it receives the buffered frames, and then the rest. All frames,
/// errors, size hints and the end are unchanged. From then on the layer reads nothing.
///
/// ```
/// use std::time::Duration;
///
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use hyper::body::{Bytes, Incoming};
/// use tower::{BoxError, ServiceBuilder, service_fn};
/// use tower_ratelimit::key::Global;
/// use tower_ratelimit::{Gcra, Memory, Quota, RateLimitLayer, ReadAheadBody, ReadAheadLayer};
///
/// async fn handler(request: Request<ReadAheadBody<Incoming>>) -> Result<Response<Full<Bytes>>, BoxError> {
///     // ... read the body ...
///     Ok(Response::new(Full::from("received")))
/// }
///
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
/// let service = ServiceBuilder::new()
///     .layer(ReadAheadLayer::new().map_body(|body: ReadAheadBody<Incoming>| body))
///     .layer(RateLimitLayer::new(Global, limiter).max_wait(Duration::from_secs(5)))
///     .service(service_fn(handler));
/// # fn takes_incoming<S: tower::Service<Request<Incoming>>>(_: S) {}
/// # takes_incoming(service);
/// ```
///
/// # When reading ends
///
/// | Event | Effect |
/// |---|---|
/// | the service polls or drops the body, or responds | the layer reads nothing more, unless it discards the body: see `drain_rejected` |
/// | the body has ended | the server watches the connection by itself, and drops the request when the client leaves |
/// | the body fails, or the connection is cut within the body | the layer drops the inner service's future, and responds with status 400 and the default body |
/// | the buffer of the request is full: [`max_bytes_per_request`](Self::max_bytes_per_request) | the layer reads nothing more of this request |
/// | the buffers of all requests are full: [`max_bytes`](Self::max_bytes) | the layer reads nothing more of this request |
///
/// # Clients that are not seen to leave
///
/// - The body is larger than the buffer.
/// - The client has sent a second request behind the first (pipelining): the server does not read past it.
/// - The request has the field `Expect`. The layer leaves its body alone: reading would ask the client for the body
///   before the limiter has decided.
///
/// Remedies are [`newest_first`](crate::RateLimitLayer::newest_first), larger bounds, or a proxy that buffers requests
/// and closes its connection when the client leaves. [Costs, holds and waiting](crate::guide::costs#waiting-queueing)
/// has the figures.
///
/// The layer also reads while a service works that has not yet polled the body. A body error then ends the request.
///
/// # Body types
///
/// The body's data must be [`Bytes`](bytes::Bytes), because the layer copies it: a frame of one byte may otherwise keep a
/// read buffer of many kilobytes. By default the inner service takes the same body type `B` as without the layer, which
/// must implement `From<ReadAheadBody<B>>`. The bodies of axum and tonic do (features `axum` and `tonic`). For other
/// types use [`map_body`](Self::map_body).
#[derive(Clone)]
#[must_use = "a layer reads nothing until it wraps a service"]
pub struct ReadAheadLayer<M = SameBody> {
    pub(super) into_body: M,
    pub(super) bounds: Bounds,
    pub(super) drain: Option<Drain>,
}

/// The inner service takes the body type that it takes without the layer.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct SameBody;

/// The inner service takes the body that a function makes.
#[derive(Clone, Copy)]
#[doc(hidden)]
pub struct MapBody<F>(pub(super) F);

impl_debug!([F] MapBody<F> {});

impl ReadAheadLayer {
    /// Creates a layer with the default bounds.
    pub fn new() -> Self {
        Self { into_body: SameBody, bounds: Bounds::default(), drain: None }
    }
}

impl<M> ReadAheadLayer<M> {
    /// Sets the maximum number of bytes that the layer buffers for one request. The default is 64 KiB.
    ///
    /// A frame counts as its length and 320 bytes. The frame that reaches the bound is kept whole, so a request may
    /// exceed the bound by one frame. With 0 the layer reads nothing.
    pub fn max_bytes_per_request(mut self, max_bytes: usize) -> Self {
        self.bounds.max_bytes_per_request = max_bytes;
        self
    }

    /// Sets the maximum number of bytes that the layer buffers for all requests. The default is 64 MiB.
    ///
    /// All services of the layer and of its clones share the bound. It counts as
    /// [`max_bytes_per_request`](Self::max_bytes_per_request) does, and may be exceeded by one frame for each thread.
    pub fn max_bytes(mut self, max_bytes: usize) -> Self {
        self.bounds.max_bytes = max_bytes;
        self
    }

    /// Also reads the bodies of rejected requests over HTTP/1, and discards them. Off by default.
    ///
    /// The rate limiter rejects a request before its body is read, and the server then closes the connection. A client that
    /// sends all of a body before it reads can see a broken connection instead of the response with its `Retry-After`:
    /// Python's `urllib` always does with 10 MB. With this method such clients receive the response.
    ///
    /// The layer discards a body behind the head of a response with `Connection: close`, which the crate's responders add,
    /// if the service has read nothing of the body. The layer never discards the body of a request with `Expect`, nor one
    /// that is longer than `max_bytes_per_request`. A flood of uploads is bounded: at most 100 bodies are read at a time,
    /// each for 10 seconds, and together `max_bytes_per_second` and at the start one second more, or one body if a body may be
    /// longer. A body without a length counts as `max_bytes_per_request`. Above a bound, the server closes the connection, as without this method.
    ///
    /// ```
    /// use axum::Router;
    /// use axum::routing::post;
    /// use tower_ratelimit::key::Global;
    /// use tower_ratelimit::{Gcra, Memory, Quota, RateLimitLayer, ReadAheadLayer};
    ///
    /// # async fn upload() {}
    /// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
    /// let app: Router = Router::new()
    ///     .route("/", post(upload))
    ///     .layer(RateLimitLayer::new(Global, limiter))
    ///     // Bodies of up to 16 MB, and 50 MB in a second.
    ///     .layer(ReadAheadLayer::new().drain_rejected(16_000_000, 50_000_000));
    /// ```
    #[cfg(feature = "timer")]
    pub fn drain_rejected(mut self, max_bytes_per_request: u64, max_bytes_per_second: u64) -> Self {
        self.drain = Some(Drain::new(max_bytes_per_request, max_bytes_per_second));
        self
    }

    /// Sets the body that the inner service takes: a function of a [`ReadAheadBody`](crate::ReadAheadBody).
    ///
    /// ```
    /// use hyper::body::Incoming;
    /// use tower_ratelimit::{ReadAheadBody, ReadAheadLayer};
    ///
    /// // The inner service takes `Request<ReadAheadBody<Incoming>>`.
    /// let layer = ReadAheadLayer::new().map_body(|body: ReadAheadBody<Incoming>| body);
    /// ```
    pub fn map_body<F>(self, into_body: F) -> ReadAheadLayer<MapBody<F>> {
        ReadAheadLayer { into_body: MapBody(into_body), bounds: self.bounds, drain: self.drain }
    }

    /// Returns how many bytes the layer buffers now, for all requests.
    pub fn buffered_bytes(&self) -> usize {
        self.bounds.used()
    }
}

impl_default!(ReadAheadLayer);

impl<S, M: Clone> Layer<S> for ReadAheadLayer<M> {
    type Service = ReadAhead<S, M>;

    fn layer(&self, inner: S) -> Self::Service {
        ReadAhead { inner, layer: self.clone() }
    }
}

impl_debug!([M] ReadAheadLayer<M> { bounds });
