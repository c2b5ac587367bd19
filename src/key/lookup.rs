use std::fmt;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Request;
use pin_project::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::sync::POLLED_AFTER_COMPLETION;

/// Looks up a key with an async function, for example a user in a database.
///
/// Extractors are synchronous, so an asynchronous lookup needs this layer outside of the rate limiter. The layer
/// inserts the result into the request's extensions, and [`FromExtension`](super::FromExtension) reads the key from there.
/// The function receives a reference to the request. Its future must not borrow the request, and returns one of
///
/// - `Ok(Some(user))`: the layer forwards the request with the user in its extensions;
/// - `Ok(None)`: the layer forwards the request unchanged. `FromExtension` finds no key then: use
///   [`FromExtension::<User>::new().or(..)`](super::Or) for the key of such requests;
/// - `Err(response)`: the layer returns the response. No limit is charged.
///
/// Return `Ok(None)` for requests without a credential. If the credential is [unusable](super::MissingKey::unusable)
/// (repeated, malformed), return `Err`. Otherwise a client could avoid the limit of its user by sending its
/// credential twice.
///
/// ```
/// use axum::{Router, extract::Request, http::StatusCode, response::IntoResponse, routing::get};
/// use tower_ratelimit::key::{FromExtension, LookupLayer};
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// #[derive(Clone, Copy, PartialEq, Eq, Hash)]
/// struct UserId(u64);
///
/// async fn find_user(token: String) -> Result<Option<UserId>, std::io::Error> {
///     // A database query.
///     # Ok((token == "secret-of-alice").then_some(UserId(1)))
/// }
///
/// let lookup = LookupLayer::new(|request: &Request| {
///     let tokens: Vec<_> = request.headers().get_all("x-api-key").iter().cloned().collect();
///     async move {
///         let token = match &tokens[..] {
///             [] => return Ok(None),
///             [token] => token.to_str().map_err(|_| StatusCode::BAD_REQUEST.into_response())?.to_owned(),
///             _ => return Err(StatusCode::BAD_REQUEST.into_response()),
///         };
///         find_user(token).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE.into_response())
///     }
/// });
/// let by_user = Memory::new(Gcra::new(Quota::per_second(10)));
/// let by_address = Memory::new(Gcra::new(Quota::per_second(100)));
/// let app: Router = Router::new()
///     .route("/", get(async || "hello"))
///     // Known users by their ID, all other clients by their address.
///     .layer(RateLimitLayer::new(FromExtension::<UserId>::new().or(PeerIp::new()), by_user))
///     .layer(lookup)
///     // Limits the number of lookups.
///     .layer(RateLimitLayer::new(PeerIp::new(), by_address));
/// ```
///
/// # Readiness and cancellation
///
/// The service is ready when the inner service is. The instance that became ready is kept during the lookup, and
/// handles the request. An `Err` drops this instance, which releases the resources that its readiness reserved.
/// Dropping the response future during the lookup drops the function's future: the inner service does not receive the
/// request.
#[derive(Clone, Copy)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct LookupLayer<F> {
    lookup: F,
}

impl<F> LookupLayer<F> {
    /// Creates a layer with an async function of `&Request<B>`.
    pub const fn new(lookup: F) -> Self {
        Self { lookup }
    }
}

impl<S, F: Clone> Layer<S> for LookupLayer<F> {
    type Service = Lookup<S, F>;

    fn layer(&self, inner: S) -> Lookup<S, F> {
        Lookup { inner, lookup: self.lookup.clone() }
    }
}

impl_debug!([F] LookupLayer<F> {});

/// The service of [`LookupLayer`].
#[derive(Clone, Copy)]
pub struct Lookup<S, F> {
    inner: S,
    lookup: F,
}

impl_debug!([S: fmt::Debug, F] Lookup<S, F> { inner });

impl<B, S, F, L, T> Service<Request<B>> for Lookup<S, F>
where
    S: Service<Request<B>> + Clone,
    F: Fn(&Request<B>) -> L,
    L: Future<Output = Result<Option<T>, S::Response>>,
    T: Clone + Send + Sync + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = LookupFuture<B, S, L>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let clone = self.inner.clone();
        let service = mem::replace(&mut self.inner, clone);
        let lookup = (self.lookup)(&request);
        LookupFuture { state: State::LookingUp { lookup, pending: Some((service, request)) } }
    }
}

/// The response future of [`Lookup`].
#[pin_project]
#[must_use = "futures do nothing unless polled"]
#[doc(hidden)]
pub struct LookupFuture<B, S: Service<Request<B>>, L> {
    #[pin]
    state: State<B, S, L>,
}

#[pin_project(project = StateProjection)]
#[allow(clippy::large_enum_variant, reason = "a box would cost an allocation a request")]
enum State<B, S: Service<Request<B>>, L> {
    LookingUp {
        #[pin]
        lookup: L,
        /// `None` once the lookup is done.
        pending: Option<(S, Request<B>)>,
    },
    Called {
        #[pin]
        response: S::Future,
    },
}

impl<B, S, L, T> Future for LookupFuture<B, S, L>
where
    S: Service<Request<B>>,
    L: Future<Output = Result<Option<T>, S::Response>>,
    T: Clone + Send + Sync + 'static,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                StateProjection::LookingUp { lookup, pending } => {
                    let found = ready!(lookup.poll(cx));
                    let (mut service, mut request) = pending.take().expect(POLLED_AFTER_COMPLETION);
                    match found {
                        Ok(found) => {
                            found.map(|found| request.extensions_mut().insert(found));
                            let response = service.call(request);
                            state.set(State::Called { response });
                        }
                        Err(response) => return Poll::Ready(Ok(response)),
                    }
                }
                StateProjection::Called { response } => return response.poll(cx),
            }
        }
    }
}

impl_debug!([B, S: Service<Request<B>>, L] LookupFuture<B, S, L> {});
