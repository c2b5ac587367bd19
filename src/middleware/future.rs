use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;

use super::parts::{InnerFuture, Parts, ServiceResult};
use super::pending::{PendingRequest, Step};
use super::request_end::RequestEnd as _;
use super::settlement::PendingSettlement;
use crate::limiter::LimiterFuture;
use crate::response::Respond as _;
use crate::sync::POLLED_AFTER_COMPLETION;

/// The response future of a [`RateLimit`](crate::RateLimit) service.
///
/// [`RateLimitLayer`](crate::RateLimitLayer#what-is-charged) states what is charged if this future is dropped.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<Request, P: Parts<Request>> {
    #[pin]
    state: State<Request, P>,
    /// What the response of a forwarded request needs. Not in the state: `call` would copy it once more, which takes 31
    /// instructions of the row "service, `Http::without_headers`" of benches/figures.md.
    context: Option<(P::Context, P::Tracker)>,
}

/// Immediate outcomes are stored inline; anything that must wait is boxed to keep the future small.
#[pin_project(project = Projection)]
enum State<Request, P: Parts<Request>> {
    Forwarded {
        #[pin]
        response: InnerFuture<Request, P>,
        settlement: Option<Box<PendingSettlement<Request, P>>>,
    },
    /// The result is known without the inner service: a rejection, or an error before the call.
    Finished { result: Option<ServiceResult<Request, P>> },
    /// The request is not forwarded yet.
    Pending(Box<PendingRequest<Request, P>>),
    /// The service has responded; a remote store is still recording the settlement.
    Settling(Box<(LimiterFuture<()>, Option<ServiceResult<Request, P>>)>),
}

impl<Request, P: Parts<Request>> ResponseFuture<Request, P> {
    #[inline]
    pub(crate) fn forwarded(
        response: InnerFuture<Request, P>,
        context: P::Context,
        tracker: P::Tracker,
        settlement: Option<Box<PendingSettlement<Request, P>>>,
    ) -> Self {
        Self { state: State::Forwarded { response, settlement }, context: Some((context, tracker)) }
    }

    pub(crate) fn pending(request: PendingRequest<Request, P>) -> Self {
        Self { state: State::Pending(Box::new(request)), context: None }
    }

    pub(crate) fn from_step(step: Step<Request, P>) -> Self {
        match step {
            Step::Continue(request) => Self::pending(request),
            Step::Break(future) => future,
        }
    }

    pub(crate) fn finished(result: ServiceResult<Request, P>) -> Self {
        Self { state: State::Finished { result: Some(result) }, context: None }
    }
}

impl<Request, P: Parts<Request>> Future for ResponseFuture<Request, P> {
    type Output = ServiceResult<Request, P>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Projection::Forwarded { response, settlement: None } = this.state.as_mut().project() {
            return response.poll(cx).map(|result| {
                let (context, tracker) = this.context.take().expect(POLLED_AFTER_COMPLETION);
                result.map(|response| P::End::on_response(tracker, P::Responder::map_response(context, response)))
            });
        }
        poll_slow(this.state, this.context, cx)
    }
}

/// Out of line, so that the common case does not save registers for the others: row "service, `Http::without_headers`" of
/// benches/figures.md.
#[inline(never)]
fn poll_slow<Request, P: Parts<Request>>(
    mut state: Pin<&mut State<Request, P>>,
    response_context: &mut Option<(P::Context, P::Tracker)>,
    cx: &mut Context<'_>,
) -> Poll<ServiceResult<Request, P>> {
    loop {
        let next = match state.as_mut().project() {
            Projection::Forwarded { response, settlement } => {
                let result = ready!(response.poll(cx));
                // With the response of the service, before the responder changes it.
                let future = settlement.take().and_then(|settlement| settlement.settle(result.as_ref()));
                let (context, tracker) = response_context.take().expect(POLLED_AFTER_COMPLETION);
                let result = result.map(|response| P::Responder::map_response(context, response));
                let result = result.map(|response| P::End::on_response(tracker, response));
                match future {
                    None => return Poll::Ready(result),
                    Some(future) => State::Settling(Box::new((future, Some(result)))),
                }
            }
            Projection::Finished { result } => {
                return Poll::Ready(result.take().expect(POLLED_AFTER_COMPLETION));
            }
            Projection::Pending(request) => {
                let next = ready!(Pin::new(&mut **request).poll(cx));
                *response_context = next.context;
                next.state
            }
            Projection::Settling(settling) => {
                // The response does not depend on whether the store recorded the settlement.
                let (future, result) = &mut **settling;
                let _ = ready!(Pin::new(future).poll(cx));
                return Poll::Ready(result.take().expect(POLLED_AFTER_COMPLETION));
            }
        };
        state.set(next);
    }
}

impl_debug!([Request, P: Parts<Request>] ResponseFuture<Request, P> {});
