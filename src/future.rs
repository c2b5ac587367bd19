use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;
use tower_service::Service;

use crate::key::ExtractKey;
use crate::limiter::{Acquire, Limiter, Receipt, Reply};
use crate::response::{Admission, Refusal, Respond};
use crate::settings::{Judgement, Settings, judge};
use crate::tariff::Tariff;
use crate::timer::{Sleep, sleep};
use crate::turn::{Let, Turn, Waiting};

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

type Answer<R, Request, T, E> = Result<<R as Respond<Request, T, E>>::Response, <R as Respond<Request, T, E>>::Error>;

#[pin_project(project = Projection)]
enum State<Request, S, K, A, R, T>
where
    S: Service<Request>,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
{
    /// A decision is on its way. Until then the service is kept: a ready one, or if the request has waited before, a fresh one.
    Deciding {
        #[pin]
        decision: A::Future,
        held: Option<HeldWaiting<Request, S, K, A, R, T>>,
    },
    /// Nothing is to be had yet, and no turn was promised: to ask again. The service is fresh, and reserves nothing.
    Retrying {
        #[pin]
        sleep: Sleep,
        held: Option<HeldWaiting<Request, S, K, A, R, T>>,
    },
    /// The turn has not come yet. The service is fresh, and reserves nothing.
    Delayed {
        #[pin]
        sleep: Sleep,
        held: Option<HeldTurn<Request, S, K, A, R, T>>,
    },
    /// The turn has come; the service is getting ready.
    Readying {
        held: Option<HeldTurn<Request, S, K, A, R, T>>,
    },
    Called {
        #[pin]
        response: S::Future,
        mark: Option<R::Mark>,
        bill: Option<Bill<K::Key, K, A, R, T>>,
    },
    /// Answered; a store elsewhere is still noting what it has cost.
    Settling {
        reply: Reply<()>,
        answer: Option<Answer<R, Request, S::Response, S::Error>>,
    },
    Refused {
        answer: Option<Answer<R, Request, S::Response, S::Error>>,
    },
}

/// A request that is not forwarded yet, with the service to forward it to.
struct Held<S, W> {
    service: S,
    is_ready: bool,
    what: W,
}

type HeldWaiting<Request, S, K, A, R, T> = Held<S, Waiting<Request, <K as ExtractKey<Request>>::Key, K, A, R, T>>;
type HeldTurn<Request, S, K, A, R, T> = Held<S, Turn<Request, <K as ExtractKey<Request>>::Key, K, A, R, T>>;

/// What to settle when the service has answered.
struct Bill<Key, K, A, R, T> {
    settings: Arc<Settings<K, A, R, T>>,
    key: Key,
    receipt: Receipt,
}

impl<Request, S, K, A, R, T> ResponseFuture<Request, S, K, A, R, T>
where
    S: Service<Request>,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
{
    pub(crate) fn deciding(decision: A::Future, service: S, what: Waiting<Request, K::Key, K, A, R, T>) -> Self {
        Self { state: State::Deciding { decision, held: Some(Held { service, is_ready: true, what }) } }
    }

    #[inline]
    pub(crate) fn called(response: S::Future, mark: R::Mark) -> Self {
        Self { state: State::Called { response, mark: Some(mark), bill: None } }
    }

    pub(crate) fn to_settle(
        response: S::Future,
        mark: R::Mark,
        settings: Arc<Settings<K, A, R, T>>,
        key: K::Key,
        receipt: Receipt,
    ) -> Self {
        Self { state: State::Called { response, mark: Some(mark), bill: Some(Bill { settings, key, receipt }) } }
    }

    pub(crate) fn refused(answer: Result<R::Response, R::Error>) -> Self {
        Self { state: State::Refused { answer: Some(answer) } }
    }
}

impl<Request, S, K, A, R, T> ResponseFuture<Request, S, K, A, R, T>
where
    S: Service<Request> + Clone,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
    T: Tariff<Request, S::Response, S::Error>,
{
    /// `service` is a fresh one.
    pub(crate) fn judged(judgement: Judgement, service: S, what: Waiting<Request, K::Key, K, A, R, T>) -> Self {
        Self { state: State::judged(judgement, Held { service, is_ready: false, what }) }
    }
}

impl<Request, S, K, A, R, T> State<Request, S, K, A, R, T>
where
    S: Service<Request> + Clone,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
    T: Tariff<Request, S::Response, S::Error>,
{
    fn asked(held: HeldWaiting<Request, S, K, A, R, T>) -> Self {
        match held.what.acquire() {
            Acquire::Pending(decision) => Self::Deciding { decision, held: Some(held) },
            Acquire::Ready(result) => Self::judged(judge(result, held.what.patience()), held),
        }
    }

    fn judged(judgement: Judgement, held: HeldWaiting<Request, S, K, A, R, T>) -> Self {
        let Held { service, is_ready, mut what } = held;
        match judgement {
            Judgement::Refuse(refusal) => {
                drop(service);
                Self::refused(what, refusal)
            }
            Judgement::AskAgain(wait, decision) => {
                let service = fresh(service, is_ready);
                if let (true, Some(sleep)) = (what.sit_down(), sleep(wait)) {
                    what.spend(wait);
                    return Self::Retrying { sleep, held: Some(Held { service, is_ready: false, what }) };
                }
                Self::refused(what, Refusal::Limited(decision))
            }
            Judgement::Pass(decision, receipt) => {
                let delay = decision.delay();
                let turn = Turn::new(what, decision, receipt);
                if delay.is_zero() {
                    let held = Held { service, is_ready, what: turn };
                    return if is_ready { Self::called(held) } else { Self::Readying { held: Some(held) } };
                }
                let service = fresh(service, is_ready);
                let mut held = Held { service, is_ready: false, what: turn };
                if let (true, Some(sleep)) = (held.what.sit_down(), sleep(delay)) {
                    return Self::Delayed { sleep, held: Some(held) };
                }
                let (what, decision) = held.what.renounce();
                Self::refused(what, Refusal::Limited(decision.refused_for(delay)))
            }
        }
    }

    fn refused(what: Waiting<Request, K::Key, K, A, R, T>, refusal: Refusal) -> Self {
        Self::Refused { answer: Some(what.settings.responder.refuse(what.request, refusal)) }
    }

    fn called(held: HeldTurn<Request, S, K, A, R, T>) -> Self {
        let Held { mut service, what, .. } = held;
        let Let { waiting: Waiting { mut request, key, settings, .. }, decision, receipt } = what.take();
        let mark = settings.responder.admit(&mut request, Admission::Decided(decision));
        let response = service.call(request);
        let bill = receipt.filter(|_| T::SETTLES).map(|receipt| Bill { settings, key, receipt });
        Self::Called { response, mark: Some(mark), bill }
    }
}

/// Lets go of a ready service, and of what its readiness reserved.
fn fresh<S: Clone>(service: S, is_ready: bool) -> S {
    if is_ready { service.clone() } else { service }
}

impl<Key, K, A, R, T> Bill<Key, K, A, R, T> {
    /// Settles, and says if that is still going on.
    fn settle<Request, Response, Error>(self, answer: Result<&Response, &Error>) -> Option<Reply<()>>
    where
        A: Limiter<Key>,
        T: Tariff<Request, Response, Error>,
    {
        let charged = self.receipt.cost();
        let actual = self.settings.tariff.settle(charged, answer);
        if actual == charged {
            return None;
        }
        // A store that can't note it now leaves the charge as it was: the response is not held up for that.
        self.settings.limiter.settle(&self.key, self.receipt, actual).try_ready().err()
    }
}

impl<Request, S, K, A, R, T> Future for ResponseFuture<Request, S, K, A, R, T>
where
    S: Service<Request> + Clone,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
    T: Tariff<Request, S::Response, S::Error>,
{
    type Output = Result<R::Response, R::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                Projection::Called { response, mark, bill } => {
                    let result = ready!(response.poll(cx));
                    let unsettled = match bill.take() {
                        Some(bill) => bill.settle::<Request, _, _>(result.as_ref()),
                        None => None,
                    };
                    let mark = mark.take().expect(POLLED_AGAIN);
                    let answer = result.map(|response| R::finish(mark, response)).map_err(Into::into);
                    match unsettled {
                        None => return Poll::Ready(answer),
                        Some(reply) => State::Settling { reply, answer: Some(answer) },
                    }
                }
                Projection::Refused { answer } => return Poll::Ready(answer.take().expect(POLLED_AGAIN)),
                Projection::Settling { reply, answer } => {
                    // Whether it was noted or not, the response goes out.
                    let _ = ready!(Pin::new(reply).poll(cx));
                    return Poll::Ready(answer.take().expect(POLLED_AGAIN));
                }
                Projection::Deciding { decision, held } => {
                    let result = ready!(decision.poll(cx));
                    let held = held.take().expect(POLLED_AGAIN);
                    State::judged(judge(result, held.what.patience()), held)
                }
                Projection::Retrying { sleep, held } => {
                    ready!(sleep.poll(cx));
                    State::asked(held.take().expect(POLLED_AGAIN))
                }
                Projection::Delayed { sleep, held } => {
                    ready!(sleep.poll(cx));
                    State::Readying { held: held.take() }
                }
                Projection::Readying { held } => {
                    let service = &mut held.as_mut().expect(POLLED_AGAIN).service;
                    match ready!(service.poll_ready(cx)) {
                        Ok(()) => State::called(held.take().expect(POLLED_AGAIN)),
                        Err(error) => {
                            *held = None;
                            return Poll::Ready(Err(error.into()));
                        }
                    }
                }
            };
            state.set(next);
        }
    }
}

const POLLED_AGAIN: &str = "a response's future was polled after it was ready";

impl<Request, S, K, A, R, T> fmt::Debug for ResponseFuture<Request, S, K, A, R, T>
where
    S: Service<Request>,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Deciding { .. } => "deciding",
            State::Retrying { .. } => "waiting to ask again",
            State::Delayed { .. } => "waiting for its turn",
            State::Readying { .. } => "getting ready",
            State::Called { .. } => "called",
            State::Settling { .. } => "settling",
            State::Refused { .. } => "refused",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
