use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower_service::Service;

use crate::future::ResponseFuture;
use crate::key::{ExtractKey, Extracted};
use crate::limiter::{Acquire, Limiter};
use crate::response::{Admission, Refusal, Respond};
use crate::settings::{Settings, WhenMissing, judge};

/// The service that [`RateLimitLayer`](crate::RateLimitLayer) makes.
///
/// It is ready when the inner service is. A decision that is ready at once forwards the request to the very instance that
/// was made ready; one that is still on its way keeps that instance; a refusal drops it, and so releases what its
/// readiness reserved.
#[derive(Debug)]
pub struct RateLimit<S, K, A, R> {
    inner: S,
    settings: Arc<Settings<K, A, R>>,
}

impl<S, K, A, R> RateLimit<S, K, A, R> {
    pub(crate) fn new(inner: S, settings: Arc<Settings<K, A, R>>) -> Self {
        Self { inner, settings }
    }

    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Clone, K, A, R> RateLimit<S, K, A, R> {
    /// Takes the instance that was made ready, and leaves a fresh one.
    fn take_ready(&mut self) -> S {
        let fresh = self.inner.clone();
        mem::replace(&mut self.inner, fresh)
    }
}

impl<Request, S, K, A, R> Service<Request> for RateLimit<S, K, A, R>
where
    S: Service<Request> + Clone,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
{
    type Response = R::Response;
    type Error = R::Error;
    type Future = ResponseFuture<Request, S, K, A, R>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let key = match self.settings.key.extract(&request) {
            Extracted::Key(key) => key,
            Extracted::Missing(missing) if self.settings.missing == WhenMissing::Refuse => {
                return self.refuse(request, Refusal::MissingKey(missing));
            }
            Extracted::Missing(_) | Extracted::Exempt => return self.forward(request, Admission::Exempt),
        };
        match self.settings.limiter.acquire(&key, self.settings.ask::<Request, S>()) {
            Acquire::Ready(result) => match judge(result) {
                Ok(admission) => self.forward(request, admission),
                Err(refusal) => self.refuse(request, refusal),
            },
            Acquire::Pending(decision) => {
                ResponseFuture::deciding(decision, self.take_ready(), request, Arc::clone(&self.settings))
            }
        }
    }
}

impl<S, K, A, R> RateLimit<S, K, A, R> {
    #[inline]
    fn forward<Request>(&mut self, mut request: Request, admission: Admission) -> ResponseFuture<Request, S, K, A, R>
    where
        S: Service<Request>,
        K: ExtractKey<Request>,
        A: Limiter<K::Key>,
        R: Respond<Request, S::Response, S::Error>,
    {
        let mark = self.settings.responder.admit(&mut request, admission);
        ResponseFuture::called(self.inner.call(request), mark)
    }

    fn refuse<Request>(&mut self, request: Request, refusal: Refusal) -> ResponseFuture<Request, S, K, A, R>
    where
        S: Service<Request> + Clone,
        K: ExtractKey<Request>,
        A: Limiter<K::Key>,
        R: Respond<Request, S::Response, S::Error>,
    {
        drop(self.take_ready());
        ResponseFuture::refused(self.settings.responder.refuse(request, refusal))
    }
}

impl<S: Clone, K, A, R> Clone for RateLimit<S, K, A, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), settings: Arc::clone(&self.settings) }
    }
}
