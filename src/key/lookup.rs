use std::fmt;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Request;
use pin_project::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::sync::POLLED_AFTER_COMPLETION;

/// Finds out by an async function whose a request is: which user has a token, by a database. What it finds is put into
/// the request's extensions, where [`Extension`](super::Extension) reads the key.
///
/// An extractor answers at once, and costs nothing but its work. What has to wait goes into this layer, outside of the
/// limiter. The function sees the request, and its future, which must not borrow it, ends in one of
///
/// - `Ok(Some(user))`: the request goes on, with the user in its extensions;
/// - `Ok(None)`: the request goes on as it came. `Extension` then finds nothing: say
///   [`Extension::<User>::new().or(..)`](super::Or) for what such a request counts by;
/// - `Err(response)`: that is the answer. The request goes no further, and no limit is charged.
///
/// `Ok(None)` is for requests without a credential. If the request holds one that is
/// [unusable](super::MissingKey::unusable) (sent twice, malformed), return `Err`: else a client leaves the limit of its
/// user by sending its credential twice.
///
/// ```
/// use axum::{Router, extract::Request, http::StatusCode, response::IntoResponse, routing::get};
/// use tower_ratelimit::key::{Extension, LookupLayer};
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// #[derive(Clone, Copy, PartialEq, Eq, Hash)]
/// struct UserId(u64);
///
/// async fn user_who_has(token: String) -> Result<Option<UserId>, std::io::Error> {
///     // A question to a database.
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
///         user_who_has(token).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE.into_response())
///     }
/// });
/// let by_user = Memory::new(Gcra::new(Quota::per_second(10)));
/// let by_address = Memory::new(Gcra::new(Quota::per_second(100)));
/// let app: Router = Router::new()
///     .route("/", get(async || "hello"))
///     // Known users by who they are, all others by their address.
///     .layer(RateLimitLayer::new(Extension::<UserId>::new().or(PeerIp::new()), by_user))
///     .layer(lookup)
///     // Looking up costs something as well.
///     .layer(RateLimitLayer::new(PeerIp::new(), by_address));
/// ```
///
/// # Tower's contract
///
/// It is ready when the inner service is, and the very instance that was made ready waits for the lookup and gets the
/// request. An `Err` drops it, and so releases what its readiness reserved. Dropping the response's future while it
/// still looks up drops the function's future: the inner service, and with it the limiter, never sees the request.
#[derive(Clone, Copy)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct LookupLayer<F> {
    lookup: F,
}

impl<F> LookupLayer<F> {
    /// Looks up by `lookup`, an async function of `&Request<B>`.
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

impl<F> fmt::Debug for LookupLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LookupLayer").finish_non_exhaustive()
    }
}

/// The service that [`LookupLayer`] makes.
#[derive(Clone, Copy)]
pub struct Lookup<S, F> {
    inner: S,
    lookup: F,
}

impl<S: fmt::Debug, F> fmt::Debug for Lookup<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup").field("inner", &self.inner).finish_non_exhaustive()
    }
}

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
        let fresh = self.inner.clone();
        let service = mem::replace(&mut self.inner, fresh);
        let lookup = (self.lookup)(&request);
        LookupFuture { state: State::LookingUp { lookup, waiting: Some((service, request)) } }
    }
}

/// The answer of a [`Lookup`].
#[pin_project]
#[must_use = "futures do nothing unless they are polled"]
pub struct LookupFuture<B, S: Service<Request<B>>, L> {
    #[pin]
    state: State<B, S, L>,
}

#[pin_project(project = StateProjection)]
#[allow(clippy::large_enum_variant, reason = "a box would cost more than the room")]
enum State<B, S: Service<Request<B>>, L> {
    LookingUp {
        #[pin]
        lookup: L,
        /// Until the lookup is done.
        waiting: Option<(S, Request<B>)>,
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
                StateProjection::LookingUp { lookup, waiting } => {
                    let found = ready!(lookup.poll(cx));
                    let (mut service, mut request) = waiting.take().expect(POLLED_AFTER_COMPLETION);
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

impl<B, S: Service<Request<B>>, L> fmt::Debug for LookupFuture<B, S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LookupFuture").finish_non_exhaustive()
    }
}
