use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;
use tower_service::Service;

use crate::key::ExtractKey;
use crate::limiter::Limiter;
use crate::response::Respond;
use crate::settings::{Settings, judge};

/// The future of a [`RateLimit`](crate::RateLimit) service's response.
///
/// What dropping it means for the charge is said at [`RateLimitLayer`](crate::RateLimitLayer#what-is-charged).
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<Request, S, K, A, R>
where
    S: Service<Request>,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
{
    #[pin]
    state: State<Request, S, A::Future, K, A, R, R::Mark, R::Response, R::Error>,
}

#[pin_project(project = Projection)]
enum State<Request, S, D, K, A, R, M, T, E>
where
    S: Service<Request>,
{
    /// A decision is on its way. Until then the ready service is kept.
    Deciding {
        #[pin]
        decision: D,
        waiting: Option<Waiting<Request, S>>,
        settings: Arc<Settings<K, A, R>>,
    },
    Called {
        #[pin]
        response: S::Future,
        mark: Option<M>,
    },
    Refused {
        response: Option<Result<T, E>>,
    },
}

/// A request, and the service that is ready for it.
struct Waiting<Request, S> {
    request: Request,
    ready: S,
}

impl<Request, S, K, A, R> ResponseFuture<Request, S, K, A, R>
where
    S: Service<Request>,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
{
    pub(crate) fn deciding(decision: A::Future, ready: S, request: Request, settings: Arc<Settings<K, A, R>>) -> Self {
        Self { state: State::Deciding { decision, waiting: Some(Waiting { request, ready }), settings } }
    }

    #[inline]
    pub(crate) fn called(response: S::Future, mark: R::Mark) -> Self {
        Self { state: State::Called { response, mark: Some(mark) } }
    }

    pub(crate) fn refused(response: Result<R::Response, R::Error>) -> Self {
        Self { state: State::Refused { response: Some(response) } }
    }
}

impl<Request, S, K, A, R> Future for ResponseFuture<Request, S, K, A, R>
where
    S: Service<Request>,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
{
    type Output = Result<R::Response, R::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                Projection::Called { response, mark } => {
                    let result = ready!(response.poll(cx));
                    let mark = mark.take().expect(POLLED_AGAIN);
                    return Poll::Ready(result.map(|response| R::finish(mark, response)).map_err(Into::into));
                }
                Projection::Refused { response } => return Poll::Ready(response.take().expect(POLLED_AGAIN)),
                Projection::Deciding { decision, waiting, settings } => {
                    let result = ready!(decision.poll(cx));
                    let Waiting { mut request, mut ready } = waiting.take().expect(POLLED_AGAIN);
                    match judge(result) {
                        Ok(admission) => {
                            let mark = settings.responder.admit(&mut request, admission);
                            State::Called { response: ready.call(request), mark: Some(mark) }
                        }
                        Err(refusal) => {
                            drop(ready);
                            State::Refused { response: Some(settings.responder.refuse(request, refusal)) }
                        }
                    }
                }
            };
            state.set(next);
        }
    }
}

const POLLED_AGAIN: &str = "a response's future was polled after it was ready";

impl<Request, S, K, A, R> fmt::Debug for ResponseFuture<Request, S, K, A, R>
where
    S: Service<Request>,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Deciding { .. } => "deciding",
            State::Called { .. } => "called",
            State::Refused { .. } => "refused",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
