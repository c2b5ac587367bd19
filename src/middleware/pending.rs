//! A request that is not forwarded yet: it awaits a decision, its start in a queue, or the inner service.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tower_service::Service as _;

use super::config::{
    ConfigOf, Disposition, acquire_options, applied, classify, decided_event, observe_context, rejected,
    rejection_event,
};
use super::join::{WaitCause, join_after};
use super::parts::{InnerFuture, Parts, ServiceResult};
use super::queue::{GrantedStart, StartHold, Waiting};
use super::settlement::{PendingSettlement, track};
use crate::decision::Decision;
use crate::key::MissingKey;
use crate::limiter::{Held, LimiterFuture, Outcome};
use crate::observe::{Event, Observers, OutcomeGuard, WaitEnd};
use crate::read_ahead::{BodyReader, ReadEnd, StartReading, start_reading};
use crate::response::{Rejection, Respond as _};
use crate::runtime::Instant;
use crate::sync::POLLED_AFTER_COMPLETION;

/// A request that is not forwarded yet, as a state machine.
///
/// While a request waits, its service is a fresh clone, so that it reserves no capacity of the inner service.
pub(crate) enum PendingRequest<Request, P: Parts<Request>> {
    /// The limiter decides. The service is the ready instance.
    AwaitingDecision {
        decision: LimiterFuture<Outcome>,
        undecided: Option<(P::Key, WithService<P::Service, Deferred<Request, P>>)>,
    },
    /// The request waits in a queue.
    AwaitingStart {
        waiting: Waiting,
        deferred: Option<WithService<P::Service, Deferred<Request, P>>>,
    },
    /// The request may start; the inner service is not ready yet.
    AwaitingReady {
        /// Declared before the request: an unused start is passed on before the terminal event.
        start: Option<GrantedStart>,
        deferred: Option<WithService<P::Service, Deferred<Request, P>>>,
    },
    Done {
        output: Option<PendingOutput<Request, P>>,
    },
}

/// The reason of a rejection, with status 400.
const BODY_FAILED: &str = "the body of the request has failed";

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
    pub(crate) tracker: P::Tracker,
    pub(crate) settlement: Option<Box<PendingSettlement<Request, P>>>,
}

/// A request with the instance of the inner service to which it will be forwarded.
pub(crate) struct WithService<S, R> {
    pub(crate) service: S,
    pub(crate) is_ready: bool,
    pub(crate) request: R,
}

/// A request that is not forwarded yet.
pub(crate) struct Deferred<Request, P: Parts<Request>> {
    request: Request,
    cost: P::Cost,
    config: Arc<ConfigOf<Request, P>>,
    start_reading: StartReading<Request>,
    progress: Progress,
}

/// What the layer has done for a request that is not forwarded yet, whatever the types of the layer.
struct Progress {
    started_at: Instant,
    /// Declared before `outcome`: when the request is dropped, `WaitEnded` is emitted before the terminal event.
    wait: Option<Wait>,
    outcome: OutcomeGuard,
    /// Reads the body while the request waits.
    reader: Option<BodyReader>,
}

impl Progress {
    fn new(observers: &Observers) -> Self {
        Self { started_at: Instant::now(), wait: None, outcome: OutcomeGuard::new(observers), reader: None }
    }

    fn start_wait(&mut self, observers: &Observers) {
        self.wait = Some(Wait::new(observers));
        self.outcome.start_wait();
    }

    /// Reads the body ahead. Returns whether the body has failed: the client has probably left.
    fn reads_failure(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(Poll::Ready(end)) = self.reader.as_ref().map(|reader| reader.poll(cx)) else { return false };
        self.reader = None;
        end == ReadEnd::Failed
    }

    fn reject_wait(&mut self) {
        if let Some(wait) = self.wait.take() {
            wait.end(WaitEnd::Rejected);
        }
    }

    /// Emits the events of a request that starts. Returns its decision with the time that it has waited.
    fn serve(self, mut decision: Decision) -> Decision {
        if let Some(wait) = self.wait {
            decision = decision.into_delayed(wait.elapsed());
            wait.end(WaitEnd::Served);
        }
        self.outcome.finish(|elapsed| decided_event(&decision, elapsed));
        decision
    }

    fn reject(self, rejection: &Rejection) {
        self.outcome.finish(|elapsed| rejection_event(rejection, elapsed));
    }

    /// Ends the wait as if the client had left. Returns the response for a client that has sent an invalid body.
    fn leave(self) -> Rejection {
        // The order of the fields: `WaitEnded` is emitted before the terminal event.
        drop(self);
        Rejection::MissingKey(MissingKey::from_request(BODY_FAILED))
    }
}

impl<Request, P: Parts<Request>> Deferred<Request, P> {
    pub(crate) fn new(request: Request, cost: P::Cost, config: Arc<ConfigOf<Request, P>>) -> Self
    where
        Request: 'static,
    {
        let progress = Progress::new(&config.observers);
        Self { request, cost, config, start_reading: start_reading::<Request>, progress }
    }

    /// The request waits from now on.
    fn start_wait(&mut self) {
        self.progress.start_wait(&self.config.observers);
        self.progress.reader = (self.start_reading)(&mut self.request, &self.config.wait.read_ahead);
    }
}

/// The wait of a request. Emits `WaitEnded` once.
struct Wait {
    observers: Observers,
    started_at: Instant,
    end: WaitEnd,
}

impl Wait {
    fn new(observers: &Observers) -> Self {
        observers.emit(|| Event::WaitStarted);
        Self { observers: observers.clone(), started_at: Instant::now(), end: WaitEnd::Left }
    }

    fn elapsed(&self) -> Duration {
        self.started_at.elapsed()
    }

    fn end(mut self, end: WaitEnd) {
        self.end = end;
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.observers.emit(|| Event::WaitEnded { waited: self.started_at.elapsed(), end: self.end });
    }
}

impl<Request, P: Parts<Request>> PendingRequest<Request, P> {
    pub(crate) fn awaiting_decision(
        decision: LimiterFuture<Outcome>,
        key: P::Key,
        mut deferred: WithService<P::Service, Deferred<Request, P>>,
    ) -> Self {
        deferred.request.progress.outcome.start_decision();
        Self::AwaitingDecision { decision, undecided: Some((key, deferred)) }
    }

    /// The request has joined a queue. Its service must hold no readiness.
    pub(crate) fn awaiting_start(
        waiting: Waiting,
        mut deferred: WithService<P::Service, Deferred<Request, P>>,
    ) -> Self {
        deferred.request.start_wait();
        Self::AwaitingStart { waiting, deferred: Some(deferred) }
    }

    pub(crate) fn on_disposition(
        disposition: Disposition,
        key: P::Key,
        deferred: WithService<P::Service, Deferred<Request, P>>,
    ) -> Self {
        let cause = match disposition {
            Disposition::Admit(decision, held) => {
                let start = GrantedStart::immediate(decision, StartHold::new(held));
                if deferred.is_ready {
                    return Self::forward(start, deferred);
                }
                return Self::AwaitingReady { start: Some(start), deferred: Some(deferred) };
            }
            Disposition::Reject(rejection) => {
                let WithService { service, request, .. } = deferred;
                drop(service);
                return Self::finish_rejected(request, rejection);
            }
            Disposition::Wait(decision) => WaitCause::Denied(decision),
            Disposition::Schedule(decision, held) => WaitCause::Scheduled(decision, held),
        };
        let WithService { service, is_ready, request } = deferred;
        let service = release_readiness(service, is_ready);
        let Deferred { request: ref inner, ref config, cost, ref progress, .. } = request;
        // The queue sets the delay that each of its asks accepts.
        let options = acquire_options::<Request, P>(config, inner, cost, None);
        match join_after::<Request, P>(config, inner, key, options, cause, progress.started_at) {
            Ok(waiting) => Self::awaiting_start(waiting, WithService { service, is_ready: false, request }),
            Err(rejection) => {
                drop(service);
                Self::finish_rejected(request, rejection)
            }
        }
    }

    fn on_waited(
        waited: Result<GrantedStart, Rejection>,
        mut deferred: WithService<P::Service, Deferred<Request, P>>,
    ) -> Self {
        let rejection = match waited {
            Ok(start) => return Self::AwaitingReady { start: Some(start), deferred: Some(deferred) },
            Err(rejection) => rejection,
        };
        deferred.request.progress.reject_wait();
        let WithService { service, request, .. } = deferred;
        drop(service);
        Self::finish_rejected(request, rejection)
    }

    fn on_body_failure(deferred: WithService<P::Service, Deferred<Request, P>>) -> Self {
        let WithService { service, request: Deferred { request, config, progress, .. }, .. } = deferred;
        drop(service);
        let result = rejected::<Request, P>(&config, request, progress.leave());
        Self::Done { output: Some(PendingOutput::Finished(result)) }
    }

    fn finish_rejected(deferred: Deferred<Request, P>, rejection: Rejection) -> Self {
        deferred.progress.reject(&rejection);
        let result = rejected::<Request, P>(&deferred.config, deferred.request, rejection);
        Self::Done { output: Some(PendingOutput::Finished(result)) }
    }

    fn forward(start: GrantedStart, deferred: WithService<P::Service, Deferred<Request, P>>) -> Self {
        let WithService { mut service, request: Deferred { request, config, progress, .. }, .. } = deferred;
        let (decision, held) = start.into_parts();
        let decision = progress.serve(decision);
        let forwarded = forward(&config, &mut service, request, &decision, held.into_held());
        Self::Done { output: Some(PendingOutput::Forwarded(forwarded)) }
    }
}

/// Forwards an admitted request, whose decision was emitted, with its held cost.
///
/// The guards come first: if the responder or the inner service panics, dropping them charges the whole held cost, and
/// emits the events that end the request.
pub(crate) fn forward<Request, P: Parts<Request>>(
    config: &Arc<ConfigOf<Request, P>>,
    service: &mut P::Service,
    mut request: Request,
    decision: &Decision,
    held: Option<Held>,
) -> Forwarded<Request, P> {
    let (tracker, held) = track::<Request, P>(config, &mut request, held);
    let settlement = held.map(|held| Box::new(PendingSettlement::new(Arc::clone(config), held)));
    let mut context = config.responder.on_allowed(&mut request, applied(decision));
    observe_context::<Request, P>(config, &mut context);
    let response = service.call(request);
    Forwarded { response, context, tracker, settlement }
}

/// Replaces a ready service by a fresh clone, which releases the capacity that the ready one had reserved.
fn release_readiness<S: Clone>(service: S, is_ready: bool) -> S {
    if is_ready { service.clone() } else { service }
}

/// No field is pinned in place.
impl<Request, P: Parts<Request>> Unpin for PendingRequest<Request, P> {}

impl<Request, P: Parts<Request>> Future for PendingRequest<Request, P> {
    type Output = PendingOutput<Request, P>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let next = match this {
                Self::Done { output } => return Poll::Ready(output.take().expect(POLLED_AFTER_COMPLETION)),
                Self::AwaitingDecision { decision, undecided } => {
                    let result = ready!(Pin::new(decision).poll(cx));
                    let (key, mut deferred) = undecided.take().expect(POLLED_AFTER_COMPLETION);
                    deferred.request.progress.outcome.finish_decision();
                    let disposition = classify::<Request, P>(result, &key, &deferred.request.config);
                    Self::on_disposition(disposition, key, deferred)
                }
                Self::AwaitingStart { waiting, deferred } => {
                    if let Poll::Ready(waited) = waiting.poll(cx) {
                        Self::on_waited(waited, deferred.take().expect(POLLED_AFTER_COMPLETION))
                    } else if deferred.as_mut().is_some_and(|deferred| deferred.request.progress.reads_failure(cx)) {
                        Self::on_body_failure(deferred.take().expect(POLLED_AFTER_COMPLETION))
                    } else {
                        return Poll::Pending;
                    }
                }
                Self::AwaitingReady { start, deferred } => {
                    let service = &mut deferred.as_mut().expect(POLLED_AFTER_COMPLETION).service;
                    match ready!(service.poll_ready(cx)) {
                        Ok(()) => {
                            let start = start.take().expect(POLLED_AFTER_COMPLETION);
                            Self::forward(start, deferred.take().expect(POLLED_AFTER_COMPLETION))
                        }
                        Err(error) => {
                            // Passes the start on before the caller receives the error.
                            *start = None;
                            *deferred = None;
                            Self::Done { output: Some(PendingOutput::Finished(Err(error))) }
                        }
                    }
                }
            };
            *this = next;
        }
    }
}
