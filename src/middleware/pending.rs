//! A request that is not forwarded yet: it awaits a decision, its start in a queue, or the inner service.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tower_service::Service as _;

use super::config::{
    ConfigOf, Disposition, acquire_options, applied, classify, observe_context, rejected, rejection_event,
};
use super::future::ResponseFuture;
use super::join::join_after;
use super::parts::Parts;
use super::queue::{GrantedStart, Waiting};
use super::settlement::{PendingSettlement, track};
use crate::decision::Decision;
use crate::key::MissingKey;
use crate::limiter::{Held, LimiterFuture, Outcome, ReleaseOnDrop};
use crate::observe::{Event, Observers, OutcomeGuard, WaitEnd};
use crate::read_ahead::{BodyReader, ReadEnd, StartReading, start_reading};
use crate::response::{Rejection, Respond as _};
use crate::runtime::Instant;
use crate::sync::POLLED_AFTER_COMPLETION;

/// A request that is not forwarded yet, as a state machine.
///
/// While a request waits, its service is a fresh clone, so that it reserves no capacity of the inner service.
pub(crate) struct PendingRequest<Request, P: Parts<Request>> {
    /// Declared before the request: an unused start is passed on before the terminal event.
    stage: Stage<P::Key>,
    /// `None` after the end.
    deferred: Option<Deferred<Request, P>>,
}

enum Stage<Key> {
    /// The limiter decides. The service is the ready instance.
    Deciding { decision: LimiterFuture<Outcome>, key: Option<Key> },
    /// The request waits in a queue.
    Queued(Waiting),
    /// The request may start; the inner service is not ready yet.
    Admitted(Option<GrantedStart>),
}

/// The reason of a rejection, with status 400.
const BODY_FAILED: &str = "the body of the request has failed";

/// What follows a step of a pending request: the next stage, or the future of a request that was forwarded or is finished.
pub(crate) type Step<Request, P> = ControlFlow<ResponseFuture<Request, P>, PendingRequest<Request, P>>;

/// A request that is not forwarded yet, with the instance of the inner service to which the layer will forward it.
pub(crate) struct Deferred<Request, P: Parts<Request>> {
    service: P::Service,
    is_ready: bool,
    request: Request,
    cost: P::Cost,
    config: Arc<ConfigOf<Request, P>>,
    start_reading: StartReading<Request>,
    progress: Progress,
}

/// What the layer has done for a request that is not forwarded yet, whatever the types of the layer.
struct Progress {
    started_at: Instant,
    outcome: OutcomeGuard,
    /// Reads the body while the request waits.
    reader: Option<BodyReader>,
}

impl Progress {
    fn new(observers: &Observers) -> Self {
        Self { started_at: Instant::now(), outcome: OutcomeGuard::new(observers), reader: None }
    }

    /// Reads the body ahead. Returns whether the body has failed: the client has probably left.
    fn reads_failure(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(Poll::Ready(end)) = self.reader.as_ref().map(|reader| reader.poll(cx)) else { return false };
        self.reader = None;
        end == ReadEnd::Failed
    }

    /// Emits the events of a request that starts. Returns its decision with the time that it has waited.
    fn serve(mut self, mut decision: Decision) -> Decision {
        if let Some(waited) = self.outcome.end_wait(WaitEnd::Served) {
            decision = decision.into_delayed(waited);
        }
        self.outcome.finish(|elapsed| Event::decided(&decision, elapsed));
        decision
    }

    fn reject(mut self, rejection: &Rejection) {
        self.outcome.end_wait(WaitEnd::Rejected);
        self.outcome.finish(|elapsed| rejection_event(rejection, elapsed));
    }

    /// Ends the wait as if the client had left.
    fn leave(self, _: &Rejection) {
        drop(self);
    }
}

impl<Request, P: Parts<Request>> Deferred<Request, P> {
    pub(crate) fn new(
        service: P::Service,
        is_ready: bool,
        request: Request,
        cost: P::Cost,
        config: Arc<ConfigOf<Request, P>>,
    ) -> Self
    where
        Request: 'static,
    {
        let progress = Progress::new(&config.observers);
        Self { service, is_ready, request, cost, config, start_reading: start_reading::<Request>, progress }
    }

    /// The request waits from now on.
    fn start_wait(&mut self) {
        self.progress.outcome.start_wait();
        self.progress.reader = (self.start_reading)(&mut self.request, &self.config.wait.read_ahead);
    }
}

impl<Request, P: Parts<Request>> PendingRequest<Request, P> {
    pub(crate) fn awaiting_decision(
        decision: LimiterFuture<Outcome>,
        key: P::Key,
        mut deferred: Deferred<Request, P>,
    ) -> Self {
        deferred.progress.outcome.start_decision();
        Self { stage: Stage::Deciding { decision, key: Some(key) }, deferred: Some(deferred) }
    }

    /// The request has joined a queue. Its service must hold no readiness.
    pub(crate) fn awaiting_start(waiting: Waiting, mut deferred: Deferred<Request, P>) -> Self {
        deferred.start_wait();
        Self { stage: Stage::Queued(waiting), deferred: Some(deferred) }
    }

    pub(crate) fn on_disposition(
        disposition: Disposition,
        key: P::Key,
        mut deferred: Deferred<Request, P>,
    ) -> Step<Request, P> {
        let asked = match disposition {
            Disposition::Admit(decision, held) => {
                let start = GrantedStart::immediate(decision, ReleaseOnDrop::new(held));
                return if deferred.is_ready {
                    Self::forward(start, deferred)
                } else {
                    Self::admitted(start, deferred)
                };
            }
            Disposition::Reject(rejection) => return Self::finish(rejection, deferred, Progress::reject),
            Disposition::Wait(asked) => asked,
        };
        if std::mem::take(&mut deferred.is_ready) {
            // A fresh clone releases the capacity that the ready service has reserved.
            deferred.service = deferred.service.clone();
        }
        let Deferred { ref request, ref config, cost, ref progress, .. } = deferred;
        // The queue sets the delay that each of its asks accepts.
        let options = acquire_options::<Request, P>(config, request, cost, None);
        match join_after::<Request, P>(config, request, key, options, asked, progress.started_at) {
            Ok(waiting) => Step::Continue(Self::awaiting_start(waiting, deferred)),
            Err(rejection) => Self::finish(rejection, deferred, Progress::reject),
        }
    }

    fn take_deferred(&mut self) -> Deferred<Request, P> {
        self.deferred.take().expect(POLLED_AFTER_COMPLETION)
    }

    fn admitted(start: GrantedStart, deferred: Deferred<Request, P>) -> Step<Request, P> {
        Step::Continue(Self { stage: Stage::Admitted(Some(start)), deferred: Some(deferred) })
    }

    fn finish(rejection: Rejection, deferred: Deferred<Request, P>, end: fn(Progress, &Rejection)) -> Step<Request, P> {
        let Deferred { service, request, config, progress, .. } = deferred;
        drop(service);
        end(progress, &rejection);
        Step::Break(ResponseFuture::finished(rejected::<Request, P>(&config, request, rejection)))
    }

    fn forward(start: GrantedStart, deferred: Deferred<Request, P>) -> Step<Request, P> {
        let Deferred { mut service, request, config, progress, .. } = deferred;
        let (decision, held) = start.into_parts();
        let decision = progress.serve(decision);
        Step::Break(forward(&config, &mut service, request, &decision, held.into_held()))
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
) -> ResponseFuture<Request, P> {
    let (tracker, held) = track::<Request, P>(config, &mut request, held);
    let settlement = held.map(|held| Box::new(PendingSettlement::new(Arc::clone(config), held)));
    let mut context = config.responder.on_allowed(&mut request, applied(decision));
    observe_context::<Request, P>(config, &mut context);
    ResponseFuture::forwarded(service.call(request), context, tracker, settlement)
}

/// No field is pinned in place.
impl<Request, P: Parts<Request>> Unpin for PendingRequest<Request, P> {}

impl<Request, P: Parts<Request>> Future for PendingRequest<Request, P> {
    type Output = ResponseFuture<Request, P>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let deferred = this.deferred.as_mut().expect(POLLED_AFTER_COMPLETION);
            let step = match &mut this.stage {
                Stage::Deciding { decision, key } => {
                    let result = ready!(Pin::new(decision).poll(cx));
                    deferred.progress.outcome.finish_decision();
                    let key = key.take().expect(POLLED_AFTER_COMPLETION);
                    let disposition = classify::<Request, P>(result, &key, &deferred.config);
                    Self::on_disposition(disposition, key, this.take_deferred())
                }
                Stage::Queued(waiting) => match waiting.poll(cx) {
                    Poll::Ready(Ok(start)) => Self::admitted(start, this.take_deferred()),
                    Poll::Ready(Err(rejection)) => Self::finish(rejection, this.take_deferred(), Progress::reject),
                    Poll::Pending if deferred.progress.reads_failure(cx) => {
                        // For a client that has sent an invalid body.
                        let rejection = Rejection::MissingKey(MissingKey::from_request(BODY_FAILED));
                        Self::finish(rejection, this.take_deferred(), Progress::leave)
                    }
                    Poll::Pending => return Poll::Pending,
                },
                Stage::Admitted(start) => match ready!(deferred.service.poll_ready(cx)) {
                    Ok(()) => Self::forward(start.take().expect(POLLED_AFTER_COMPLETION), this.take_deferred()),
                    Err(error) => {
                        // Passes the start on before the caller receives the error.
                        *start = None;
                        drop(this.take_deferred());
                        Step::Break(ResponseFuture::finished(Err(error)))
                    }
                },
            };
            match step {
                Step::Continue(next) => *this = next,
                Step::Break(future) => return Poll::Ready(future),
            }
        }
    }
}
