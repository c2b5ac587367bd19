//! A request that is not forwarded yet: it awaits a decision, a retry, its scheduled start or the inner service.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project::pin_project;
use tower_service::Service as _;

use super::config::{Answer, Judgement, judge, told};
use super::cost::CostPolicy;
use super::scheduled::{NotForwarded, Turn, Waiting};
use super::settlement::Bill;
use crate::key::ExtractKey;
use crate::limiter::{Acquisition, Limiter};
use crate::observe::Event;
use crate::response::{Rejection, Respond};
use crate::runtime::{Sleep, sleep};

/// A request that is not forwarded yet, as a state machine.
///
/// While a request sleeps, its service is a fresh clone, so that it reserves no capacity of the inner service.
#[pin_project(project = Projection)]
pub(crate) enum PendingRequest<Request, P: Parts<Request>> {
    /// The limiter decides. The service is the ready instance, or a fresh one if the request has waited before.
    AwaitingDecision {
        #[pin]
        decision: DecisionFuture<Request, P>,
        deferred: Option<WithService<P::Service, Deferred<Request, P>>>,
    },
    /// The limiter denied the request and scheduled no start: it asks again after the sleep.
    AwaitingRetry {
        #[pin]
        sleep: Sleep,
        deferred: Option<WithService<P::Service, Deferred<Request, P>>>,
    },
    /// The request is charged for a start in the future.
    AwaitingStart {
        #[pin]
        sleep: Sleep,
        scheduled: Option<WithService<P::Service, ScheduledRequest<Request, P>>>,
    },
    /// The request may start; the inner service is not ready yet.
    AwaitingReady {
        scheduled: Option<WithService<P::Service, ScheduledRequest<Request, P>>>,
    },
    Done {
        output: Option<PendingOutput<Request, P>>,
    },
}

/// How a pending request ends.
pub(crate) enum PendingOutput<Request, P: Parts<Request>> {
    /// The request was forwarded.
    Forwarded(Forwarded<Request, P>),
    /// The request was rejected, or the inner service failed before the call.
    Finished(ServiceResult<Request, P>),
}

/// The call of the inner service, and what its response needs.
pub(crate) struct Forwarded<Request, P: Parts<Request>> {
    pub(crate) response: InnerFuture<Request, P>,
    pub(crate) context: P::Context,
    pub(crate) settlement: Option<Box<PendingSettlement<Request, P>>>,
}

/// A request with the instance of the inner service to which it will be forwarded.
pub(crate) struct WithService<S, R> {
    pub(crate) service: S,
    pub(crate) is_ready: bool,
    pub(crate) request: R,
}

/// A request without a decision, or with a denial after which it asks again.
pub(crate) struct Deferred<Request, P: Parts<Request>> {
    request: Request,
    key: P::Key,
    options: AcquireOptions,
    started_at: Moment,
    config: Arc<ConfigOf<Request, P>>,
    /// Declared before `outcome`: when the request is dropped, `WaitEnded` is emitted before the terminal event.
    permit: Option<Waiter>,
    outcome: OutcomeGuard,
}

/// An allowed request that is not forwarded yet.
pub(crate) struct ScheduledRequest<Request, P: Parts<Request>> {
    deferred: Deferred<Request, P>,
    decision: Decision,
    held: NotForwarded,
}

/// The held cost of a request that is not forwarded yet: dropping it releases the cost.
///
/// Without it, dropping the guard would charge a request that the inner service never received.
struct NotForwarded(Option<Held>);

impl NotForwarded {
    fn into_forwarded(mut self) -> Option<Held> {
        self.0.take()
    }
}

impl Drop for NotForwarded {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            held.release().detach();
        }
    }
}

impl<Request, P: Parts<Request>> Deferred<Request, P> {
    pub(crate) fn new(
        request: Request,
        key: P::Key,
        options: AcquireOptions,
        config: Arc<ConfigOf<Request, P>>,
    ) -> Self {
        let outcome = OutcomeGuard::new(&config.observers);
        Self { request, key, options, started_at: Moment::now(), config, permit: None, outcome }
    }

    fn asked(mut held: HeldWaiting<Request, S, K, A, R, T>) -> Self {
        match held.what.acquire() {
            Acquisition::Pending(decision) => {
                held.what.watch.start_decision();
                Self::deciding(decision, held)
            }
        }
    }

    pub(crate) fn on_disposition(
        disposition: Disposition,
        deferred: WithService<P::Service, Deferred<Request, P>>,
    ) -> Self {
        let WithService { service, is_ready, mut request } = deferred;
        match disposition {
            Disposition::Reject(rejection) => {
                drop(service);
                Self::finish_rejected(request, rejection)
            }
            Disposition::RetryAfter(wait, decision) => {
                let service = release_readiness(service, is_ready);
                if let (true, Some(sleep)) = (request.acquire_permit(), sleep(wait)) {
                    let deferred = WithService { service, is_ready: false, request };
                    return Self::AwaitingRetry { sleep, deferred: Some(deferred) };
                }
                Self::finish_rejected(request, Rejection::OverLimit(decision))
            }
            Disposition::Admit(decision, held) => {
                let delay = decision.delay();
                what.watch.start_wait();
                let guard = NotForwarded::new(guard);
                if delay.is_zero() {
                    let request = ScheduledRequest { deferred: request, decision, held };
                    let scheduled = WithService { service, is_ready, request };
                    if is_ready {
                        return Self::forward(scheduled);
                    }
                    return Self::AwaitingReady { scheduled: Some(scheduled) };
                }
                let service = release_readiness(service, is_ready);
                let Some(sleep) = sleep(delay) else {
                    return Self::finish_rejected(request, Rejection::OverLimit(decision.into_denied(delay)));
                };
                request.acquire_permit_when_charged();
                let request = ScheduledRequest { deferred: request, decision, held };
                Self::AwaitingStart { sleep, scheduled: Some(WithService { service, is_ready: false, request }) }
            }
        }
    }

    fn refused(mut what: Waiting<Request, K::Key, K, A, R, T>, refusal: Rejection) -> Self {
        what.stand_up();
        what.watch.finish(|elapsed| told(&refusal, elapsed));
        Self::Done { step: Some(Step::Answer(what.settings.responder.on_rejected(what.request, refusal))) }
    }

    fn called(held: HeldTurn<Request, S, K, A, R, T>) -> Self {
        let Held { mut service, what, .. } = held;
        let Turn { mut waiting, decision, held } = what;
        waiting.stand_up();
        let Waiting { mut request, settings, watch, .. } = waiting;
        watch.finish(|elapsed| Event::Decided { decision: &decision, elapsed });
        let mut mark = settings.responder.on_allowed(&mut request, Some(&decision));
        settings.observe::<Request, S>(&mut mark);
        // From here on dropping it settles the whole: also if the service panics.
        let held = held.take();
        let response = service.call(request);
        let settlement = held.map(|held| Box::new(PendingSettlement::new(config, held)));
        Self::Done { output: Some(PendingOutput::Forwarded(Forwarded { response, context, settlement })) }
    }
}

/// Replaces a ready service by a fresh clone, which releases the capacity that the ready one had reserved.
fn release_readiness<S: Clone>(service: S, is_ready: bool) -> S {
    if is_ready { service.clone() } else { service }
}

impl<Request, P: Parts<Request>> Future for PendingRequest<Request, P> {
    type Output = PendingOutput<Request, P>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let next = match self.as_mut().project() {
                Projection::Done { output } => return Poll::Ready(output.take().expect(POLLED_AFTER_COMPLETION)),
                Projection::AwaitingDecision { decision, deferred } => {
                    let result = ready!(decision.poll(cx));
                    let mut held = held.take().expect(POLLED_AGAIN);
                    held.what.watch.finish_decision();
                    Self::judged(judge(result, held.what.patience()), held)
                }
                Projection::AwaitingRetry { sleep, deferred } => {
                    ready!(sleep.poll(cx));
                    Self::retry(deferred.take().expect(POLLED_AFTER_COMPLETION))
                }
                Projection::AwaitingStart { sleep, scheduled } => {
                    ready!(sleep.poll(cx));
                    Self::AwaitingReady { scheduled: scheduled.take() }
                }
                Projection::AwaitingReady { scheduled } => {
                    let service = &mut scheduled.as_mut().expect(POLLED_AFTER_COMPLETION).service;
                    match ready!(service.poll_ready(cx)) {
                        Ok(()) => Self::forward(scheduled.take().expect(POLLED_AFTER_COMPLETION)),
                        Err(error) => {
                            // Releases the held cost before the caller receives the error.
                            *scheduled = None;
                            Self::Done { output: Some(PendingOutput::Finished(Err(error.into()))) }
                        }
                    }
                }
            };
            self.set(next);
        }
    }
}
