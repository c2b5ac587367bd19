use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use pin_project::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::body::{Pace, PacedBody};
use crate::decision::AcquireOptions;
use crate::error::Error;
use crate::key::{ExtractKey, Extracted};
use crate::limiter::Limiter;
use crate::observe::{Direction, Observer, Observers};
use crate::waiting::Caller;

/// A layer that limits the bytes of bodies: see the [module](super). Clones share the limiter.
///
/// To limit both directions, use two layers, with one limiter or with two.
#[derive(Clone, Debug)]
#[must_use]
pub struct PacingLayer<K, L, D> {
    config: Arc<Config<K, L>>,
    direction: PhantomData<fn() -> D>,
}

#[derive(Clone, Debug)]
struct Config<K, L> {
    extractor: K,
    limiter: L,
    max_wait: Duration,
    observers: Observers,
}

/// The direction of a [`PacingLayer`] that limits the bodies of responses.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Downloads;

/// The direction of a [`PacingLayer`] that limits the bodies of requests.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Uploads;

impl<K, L> PacingLayer<K, L, Downloads> {
    /// Limits the bodies of responses by the key of the request.
    pub fn downloads(extractor: K, limiter: L) -> Self {
        Self::new(extractor, limiter)
    }
}

impl<K, L> PacingLayer<K, L, Uploads> {
    /// Limits the bodies of requests by their key.
    pub fn uploads(extractor: K, limiter: L) -> Self {
        Self::new(extractor, limiter)
    }
}

impl<K, L, D> PacingLayer<K, L, D> {
    fn new(extractor: K, limiter: L) -> Self {
        let (max_wait, observers) = (Duration::from_secs(30), Observers::default());
        let config = Config { extractor, limiter, max_wait, observers };
        Self { config: Arc::new(config), direction: PhantomData }
    }

    /// Sets how long a chunk waits at most. A body whose chunk would wait longer ends with an error. The default is 30 s.
    pub fn max_wait(mut self, max_wait: Duration) -> Self
    where
        K: Clone,
        L: Clone,
    {
        Arc::make_mut(&mut self.config).max_wait = max_wait;
        self
    }

    /// Adds an observer, which receives an [`Event::Paced`](crate::observe::Event::Paced) for each chunk: `observe::Metrics`
    /// counts the bytes.
    pub fn observe(mut self, observer: impl Observer + 'static) -> Self
    where
        K: Clone,
        L: Clone,
    {
        Arc::make_mut(&mut self.config).observers.add(observer);
        self
    }
}

impl<S, K, L, D> Layer<S> for PacingLayer<K, L, D> {
    type Service = Pacing<S, K, L, D>;

    fn layer(&self, inner: S) -> Self::Service {
        Pacing { inner, config: Arc::clone(&self.config), direction: PhantomData }
    }
}

/// The service of a [`PacingLayer`].
#[derive(Debug)]
pub struct Pacing<S, K, L, D> {
    inner: S,
    config: Arc<Config<K, L>>,
    direction: PhantomData<fn() -> D>,
}

impl_clone!([S: Clone, K, L, D] Pacing<S, K, L, D> { inner, config, direction });

impl<K, L> Config<K, L> {
    /// Returns the pace of a request's body: `None` if the request is exempt.
    fn pace<B>(&self, request: &Request<B>, direction: Direction) -> Option<Pace>
    where
        K: ExtractKey<Request<B>>,
        L: Limiter<K::Key> + Clone,
    {
        let allow = match self.extractor.extract(request) {
            Extracted::Key(key) => {
                let caller = Caller::<K::Key, K::Key, L>::new(self.limiter.clone(), key);
                let max_wait = self.max_wait;
                Ok(Box::new(move |bytes| caller.until_ready(AcquireOptions::cost(bytes).max_delay(max_wait))) as _)
            }
            Extracted::Exempt => return None,
            Extracted::Missing(missing) => Err(Error::config(format!(
                "pacing a body failed: the request has no key: {missing}; reject such requests by a `RateLimitLayer` with \
                 the same extractor"
            ))),
        };
        Some(Pace::new(allow, direction, self.observers.clone()))
    }
}

impl<B, R, S, K, L> Service<Request<B>> for Pacing<S, K, L, Downloads>
where
    S: Service<Request<B>, Response = Response<R>>,
    K: ExtractKey<Request<B>>,
    L: Limiter<K::Key> + Clone,
{
    type Response = Response<PacedBody<R>>;
    type Error = S::Error;
    type Future = PacingFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let pace = self.config.pace(&request, Direction::Download);
        PacingFuture { response: self.inner.call(request), pace }
    }
}

impl<B, S, K, L> Service<Request<B>> for Pacing<S, K, L, Uploads>
where
    S: Service<Request<PacedBody<B>>>,
    K: ExtractKey<Request<B>>,
    L: Limiter<K::Key> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> S::Future {
        let pace = self.config.pace(&request, Direction::Upload);
        self.inner.call(request.map(|body| PacedBody::new(body, pace)))
    }
}

/// The future of a response whose body is paced.
#[pin_project]
#[allow(missing_debug_implementations, reason = "the inner future may have none")]
pub struct PacingFuture<F> {
    #[pin]
    response: F,
    pace: Option<Pace>,
}

impl<F: Future<Output = Result<Response<R>, E>>, R, E> Future for PacingFuture<F> {
    type Output = Result<Response<PacedBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.response.poll(cx))?;
        let pace = this.pace.take();
        Poll::Ready(Ok(response.map(|body| PacedBody::new(body, pace))))
    }
}
