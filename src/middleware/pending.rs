//! A request that is not forwarded yet: it awaits a decision, a retry, its scheduled start or the inner service.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project::pin_project;
use tower_service::Service as _;

use super::config::{ConfigOf, Disposition, Waiter, classify, observe_context, rejection_event};
use super::parts::{DecisionFuture, InnerFuture, Parts, ServiceResult};
use super::settlement::PendingSettlement;
use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;
use crate::limiter::{Acquisition, Limiter as _, ReleaseOnDrop};
use crate::observe::{Event, OutcomeGuard};
use crate::response::{Rejection, Respond as _};
use crate::runtime::{Instant, Sleep, sleep};
use crate::sync::POLLED_AFTER_COMPLETION;

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
    started_at: Instant,
    config: Arc<ConfigOf<Request, P>>,
    /// Declared before `outcome`: when the request is dropped, `WaitEnded` is emitted before the terminal event.
    permit: Option<Waiter>,
    outcome: OutcomeGuard,
}

/// An allowed request that is not forwarded yet.
pub(crate) struct ScheduledRequest<Request, P: Parts<Request>> {
    deferred: Deferred<Request, P>,
    decision: Decision,
    /// Released if the request is not forwarded, because the inner service then did no work.
    held: ReleaseOnDrop,
}

impl<Request, P: Parts<Request>> Deferred<Request, P> {
    pub(crate) fn new(
        request: Request,
        key: P::Key,
        options: AcquireOptions,
        config: Arc<ConfigOf<Request, P>>,
    ) -> Self {
        let outcome = OutcomeGuard::new(&config.observers);
        Self { request, key, options, started_at: Instant::now(), config, permit: None, outcome }
    }

    fn acquire(&self) -> Acquisition<DecisionFuture<Request, P>> {
        let mut options = self.options;
        options.max_delay = self.remaining_wait();
        self.config.limiter.acquire(&self.key, options)
    }

    /// For how long the request may still wait.
    fn remaining_wait(&self) -> Option<Duration> {
        self.options.max_delay.map(|max_delay| max_delay.saturating_sub(self.started_at.elapsed()))
    }

    /// Acquires a permit to wait, unless the request has one. Returns false if no permit is free.
    fn acquire_permit(&mut self) -> bool {
        if self.permit.is_none() {
            self.permit = self.config.wait.try_acquire_permit(&self.config.observers);
        }
        self.outcome.start_wait();
        self.permit.is_some()
    }

    /// Acquires a permit for a scheduled start that is already charged.
    fn acquire_permit_when_charged(&mut self) {
        if self.permit.is_none() {
            self.permit = Some(self.config.wait.acquire_permit_when_charged(&self.config.observers));
        }
        self.outcome.start_wait();
    }

    fn release_permit(&mut self) {
        self.permit = None;
    }
}

impl<Request, P: Parts<Request>> PendingRequest<Request, P> {
    pub(crate) fn awaiting_decision(
        decision: DecisionFuture<Request, P>,
        mut deferred: WithService<P::Service, Deferred<Request, P>>,
    ) -> Self {
        deferred.request.outcome.start_decision();
        Self::AwaitingDecision { decision, deferred: Some(deferred) }
    }

    /// Asks the limiter again.
    fn retry(deferred: WithService<P::Service, Deferred<Request, P>>) -> Self {
        match deferred.request.acquire() {
            Acquisition::Pending(decision) => Self::awaiting_decision(decision, deferred),
            Acquisition::Ready(result) => {
                Self::on_disposition(classify(result, deferred.request.remaining_wait()), deferred)
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
                request.outcome.start_wait();
                let held = ReleaseOnDrop::new(held);
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
                    return Self::finish_rejected(request, Rejection::Unavailable(Error::without_timer()));
                };
                request.acquire_permit_when_charged();
                let request = ScheduledRequest { deferred: request, decision, held };
                Self::AwaitingStart { sleep, scheduled: Some(WithService { service, is_ready: false, request }) }
            }
        }
    }

    fn finish_rejected(mut deferred: Deferred<Request, P>, rejection: Rejection) -> Self {
        deferred.release_permit();
        deferred.outcome.finish(|elapsed| rejection_event(&rejection, elapsed));
        let result = deferred.config.responder.on_rejected(deferred.request, rejection);
        Self::Done { output: Some(PendingOutput::Finished(result)) }
    }

    fn forward(scheduled: WithService<P::Service, ScheduledRequest<Request, P>>) -> Self {
        let WithService { mut service, request: scheduled, .. } = scheduled;
        let ScheduledRequest { mut deferred, decision, held } = scheduled;
        deferred.release_permit();
        let Deferred { mut request, config, outcome, .. } = deferred;
        outcome.finish(|elapsed| Event::Decided { decision: &decision, elapsed });
        let mut context = config.responder.on_allowed(&mut request, Some(&decision));
        observe_context::<Request, P>(&config, &mut context);
        // From here on, dropping the guard charges the whole held cost, also if `call` panics.
        let held = held.into_held();
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
                    let mut deferred = deferred.take().expect(POLLED_AFTER_COMPLETION);
                    deferred.request.outcome.finish_decision();
                    Self::on_disposition(classify(result, deferred.request.remaining_wait()), deferred)
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
                            Self::Done { output: Some(PendingOutput::Finished(Err(error))) }
                        }
                    }
                }
            };
            self.set(next);
        }
    }
}
