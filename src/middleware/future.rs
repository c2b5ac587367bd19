use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;
use tower_service::Service;

use super::config::Answer;
use super::cost::CostPolicy;
use super::pending::{Patience, Step};
use super::settlement::Bill;
use crate::key::ExtractKey;
use crate::limiter::{Limiter, LimiterFuture};
use crate::response::Respond;
use crate::sync::POLLED_AFTER_COMPLETION;

/// The future of a [`RateLimit`](crate::RateLimit) service's response.
///
/// What dropping it means for the charge is said at [`RateLimitLayer`](crate::RateLimitLayer#what-is-charged).
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<Request, S, K, A, R, T>
where
    S: Service<Request>,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
{
    #[pin]
    state: State<Request, S, K, A, R, T>,
}

/// What is decided at once lies here; all that takes time is boxed, so that the future stays small.
#[pin_project(project = Projection)]
enum State<Request, S, K, A, R, T>
where
    S: Service<Request>,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
{
    Called {
        #[pin]
        response: S::Future,
        mark: Option<R::Context>,
        bill: Option<Box<Bill<K, A, R, T>>>,
    },
    Refused {
        answer: Option<Answer<Request, S, R>>,
    },
    /// Not let through yet.
    Waiting(Pin<Box<Patience<Request, S, K, A, R, T>>>),
    /// Answered; a store elsewhere is still noting what it has cost.
    Settling(Box<Settling<Request, S, R>>),
}

struct Settling<Request, S, R>
where
    S: Service<Request>,
    R: Respond<Request, S::Response, S::Error>,
{
    reply: LimiterFuture<()>,
    answer: Option<Answer<Request, S, R>>,
}

impl<Request, S, K, A, R, T> ResponseFuture<Request, S, K, A, R, T>
where
    S: Service<Request>,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
{
    #[inline]
    pub(crate) fn called(response: S::Future, mark: R::Context) -> Self {
        Self { state: State::Called { response, mark: Some(mark), bill: None } }
    }

    pub(crate) fn to_settle(response: S::Future, mark: R::Context, bill: Bill<K, A, R, T>) -> Self {
        Self { state: State::Called { response, mark: Some(mark), bill: Some(Box::new(bill)) } }
    }

    pub(crate) fn waiting(patience: Patience<Request, S, K, A, R, T>) -> Self {
        Self { state: State::Waiting(Box::pin(patience)) }
    }

    pub(crate) fn refused(answer: Answer<Request, S, R>) -> Self {
        Self { state: State::Refused { answer: Some(answer) } }
    }
}

impl<Request, S, K, A, R, T> Future for ResponseFuture<Request, S, K, A, R, T>
where
    S: Service<Request> + Clone,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
    T: CostPolicy<Request, S::Response, S::Error>,
{
    type Output = Answer<Request, S, R>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                Projection::Called { response, mark, bill: None } => {
                    // The common case, apart: a result that nobody looks at is moved less often.
                    let result = ready!(response.poll(cx));
                    let mark = mark.take().expect(POLLED_AFTER_COMPLETION);
                    return Poll::Ready(match result {
                        Ok(response) => Ok(R::finish(mark, response)),
                        Err(error) => Err(error.into()),
                    });
                }
                Projection::Called { response, mark, bill } => {
                    let result = ready!(response.poll(cx));
                    let unsettled = bill.take().and_then(|bill| bill.settle::<Request, _, _>(result.as_ref()));
                    let mark = mark.take().expect(POLLED_AFTER_COMPLETION);
                    let answer = result.map(|response| R::finish(mark, response)).map_err(Into::into);
                    match unsettled {
                        None => return Poll::Ready(answer),
                        Some(reply) => State::Settling(Box::new(Settling { reply, answer: Some(answer) })),
                    }
                }
                Projection::Refused { answer } => return Poll::Ready(answer.take().expect(POLLED_AFTER_COMPLETION)),
                Projection::Waiting(patience) => match ready!(patience.as_mut().poll(cx)) {
                    Step::Call { response, mark, bill } => State::Called { response, mark: Some(mark), bill },
                    Step::Answer(answer) => State::Refused { answer: Some(answer) },
                },
                Projection::Settling(settling) => {
                    // Whether it was noted or not, the response goes out.
                    let _ = ready!(Pin::new(&mut settling.reply).poll(cx));
                    return Poll::Ready(settling.answer.take().expect(POLLED_AFTER_COMPLETION));
                }
            };
            state.set(next);
        }
    }
}

impl<Request, S, K, A, R, T> fmt::Debug for ResponseFuture<Request, S, K, A, R, T>
where
    S: Service<Request>,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Called { .. } => "called",
            State::Refused { .. } => "refused",
            State::Waiting(_) => "waiting",
            State::Settling(_) => "settling",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
