//! A request on its way to be let through: a decision is made elsewhere, or its turn has not come yet.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;
use tower_service::Service;

use super::config::{Answer, Judgement, judge, told};
use super::cost::CostPolicy;
use super::scheduled::{NotForwarded, Turn, Waiting};
use super::settlement::Bill;
use crate::key::ExtractKey;
use crate::limiter::{Acquisition, Limiter};
use crate::observe::Event;
use crate::response::{RateLimitInfo, Rejection, Respond};
use crate::runtime::{Sleep, sleep};
use crate::sync::POLLED_AFTER_COMPLETION;

/// The states of a request that is not forwarded yet.
#[pin_project(project = Projection)]
pub(crate) enum Patience<Request, S, K, A, R, T>
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
    Done {
        step: Option<Step<Request, S, K, A, R, T>>,
    },
}

/// What it comes to.
pub(crate) enum Step<Request, S, K, A, R, T>
where
    S: Service<Request>,
    K: ExtractKey<Request>,
    R: Respond<Request, S::Response, S::Error>,
{
    /// It was forwarded.
    Call { response: S::Future, mark: R::Context, bill: Option<Box<Bill<K, A, R, T>>> },
    /// It was refused, or the service has failed.
    Answer(Answer<Request, S, R>),
}

/// A request that is not forwarded yet, with the service to forward it to.
pub(crate) struct Held<S, W> {
    pub(crate) service: S,
    pub(crate) is_ready: bool,
    pub(crate) what: W,
}

type HeldWaiting<Request, S, K, A, R, T> = Held<S, Waiting<Request, <K as ExtractKey<Request>>::Key, K, A, R, T>>;
type HeldTurn<Request, S, K, A, R, T> = Held<S, Turn<Request, <K as ExtractKey<Request>>::Key, K, A, R, T>>;

impl<Request, S, K, A, R, T> Patience<Request, S, K, A, R, T>
where
    S: Service<Request> + Clone,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
    T: CostPolicy<Request, S::Response, S::Error>,
{
    pub(crate) fn deciding(decision: A::Future, held: HeldWaiting<Request, S, K, A, R, T>) -> Self {
        Self::Deciding { decision, held: Some(held) }
    }

    fn asked(mut held: HeldWaiting<Request, S, K, A, R, T>) -> Self {
        match held.what.acquire() {
            Acquisition::Pending(decision) => {
                held.what.watch.deciding();
                Self::deciding(decision, held)
            }
            Acquisition::Ready(result) => Self::judged(judge(result, held.what.patience()), held),
        }
    }

    pub(crate) fn judged(judgement: Judgement, held: HeldWaiting<Request, S, K, A, R, T>) -> Self {
        let Held { service, is_ready, mut what } = held;
        match judgement {
            Judgement::Refuse(refusal) => {
                drop(service);
                Self::refused(what, refusal)
            }
            Judgement::AskAgain(wait, decision) => {
                let service = fresh(service, is_ready);
                if let (true, Some(sleep)) = (what.sit_down(), sleep(wait)) {
                    return Self::Retrying { sleep, held: Some(Held { service, is_ready: false, what }) };
                }
                Self::refused(what, Rejection::OverLimit(decision))
            }
            Judgement::Pass(decision, guard) => {
                let delay = decision.delay();
                what.watch.waiting();
                let guard = NotForwarded::new(guard);
                if delay.is_zero() {
                    let held = Held { service, is_ready, what: Turn { waiting: what, decision, held: guard } };
                    return if is_ready { Self::called(held) } else { Self::Readying { held: Some(held) } };
                }
                let service = fresh(service, is_ready);
                let Some(sleep) = sleep(delay) else {
                    return Self::refused(what, Rejection::OverLimit(decision.into_denied(delay)));
                };
                what.wait_for_start();
                let what = Turn { waiting: what, decision, held: guard };
                Self::Delayed { sleep, held: Some(Held { service, is_ready: false, what }) }
            }
        }
    }

    fn refused(mut what: Waiting<Request, K::Key, K, A, R, T>, refusal: Rejection) -> Self {
        what.stand_up();
        what.watch.end(|took| told(&refusal, took));
        Self::Done { step: Some(Step::Answer(what.settings.responder.refuse(what.request, refusal))) }
    }

    fn called(held: HeldTurn<Request, S, K, A, R, T>) -> Self {
        let Held { mut service, what, .. } = held;
        let Turn { mut waiting, decision, held } = what;
        waiting.stand_up();
        let Waiting { mut request, settings, watch, .. } = waiting;
        watch.end(|took| Event::Decided { decision: &decision, took });
        let mut mark = settings.responder.admit(&mut request, RateLimitInfo::Decided(decision));
        settings.observe::<Request, S>(&mut mark);
        // From here on dropping it settles the whole: also if the service panics.
        let held = held.take();
        let response = service.call(request);
        let bill = held.map(|held| Box::new(Bill::new(settings, held)));
        Self::Done { step: Some(Step::Call { response, mark, bill }) }
    }
}

/// Lets go of a ready service, and of what its readiness reserved.
fn fresh<S: Clone>(service: S, is_ready: bool) -> S {
    if is_ready { service.clone() } else { service }
}

impl<Request, S, K, A, R, T> Future for Patience<Request, S, K, A, R, T>
where
    S: Service<Request> + Clone,
    K: ExtractKey<Request>,
    A: Limiter<K::Key>,
    R: Respond<Request, S::Response, S::Error>,
    T: CostPolicy<Request, S::Response, S::Error>,
{
    type Output = Step<Request, S, K, A, R, T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let next = match self.as_mut().project() {
                Projection::Done { step } => return Poll::Ready(step.take().expect(POLLED_AFTER_COMPLETION)),
                Projection::Deciding { decision, held } => {
                    let result = ready!(decision.poll(cx));
                    let mut held = held.take().expect(POLLED_AFTER_COMPLETION);
                    held.what.watch.decided();
                    Self::judged(judge(result, held.what.patience()), held)
                }
                Projection::Retrying { sleep, held } => {
                    ready!(sleep.poll(cx));
                    Self::asked(held.take().expect(POLLED_AFTER_COMPLETION))
                }
                Projection::Delayed { sleep, held } => {
                    ready!(sleep.poll(cx));
                    Self::Readying { held: held.take() }
                }
                Projection::Readying { held } => {
                    let service = &mut held.as_mut().expect(POLLED_AFTER_COMPLETION).service;
                    match ready!(service.poll_ready(cx)) {
                        Ok(()) => Self::called(held.take().expect(POLLED_AFTER_COMPLETION)),
                        Err(error) => {
                            // What is held is released.
                            *held = None;
                            Self::Done { step: Some(Step::Answer(Err(error.into()))) }
                        }
                    }
                }
            };
            self.set(next);
        }
    }
}
