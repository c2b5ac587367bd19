//! How a request joins a queue.

use std::sync::Arc;

use super::config::ConfigOf;
use super::parts::Parts;
use super::queue::{
    self, Arrival, Asked, JoinError, KeyAsk, Queues, Start, StartHold, Waiting, queue_of, visit_queues,
};
use super::settlement::keeps_guard;
use crate::decision::{AcquireOptions, Decision};
use crate::limiter::{Held, LimitOfKey, limit_id};
use crate::observe::Event;
use crate::response::{Rejection, Respond as _};
use crate::runtime::Instant;

/// Returns the queue that a new request of a key must join, if others wait.
#[cold]
#[inline(never)]
pub(crate) fn existing_queue<Request, P: Parts<Request>>(config: &ConfigOf<Request, P>, key: &P::Key) -> Option<u64> {
    let visit = &|visit: &mut dyn FnMut(&LimitOfKey<'_>, u64, Option<u64>)| visit_queues(key, &config.limiter, visit);
    queue::existing_queue(limit_id(key), &config.wait.queues, visit)
}

/// Lets a request join the queue `id`, if there is one. Returns the key otherwise.
pub(crate) fn join_existing<Request, P: Parts<Request>>(
    config: &Arc<ConfigOf<Request, P>>,
    request: &Request,
    key: P::Key,
    options: AcquireOptions,
    id: u64,
) -> Result<Result<Waiting, Rejection>, P::Key> {
    let (ask, arrival) = arrival::<Request, P>(config, request, key, options, Instant::now());
    match config.wait.queues.join(id, arrival, Asked::No, config.wait.bounds()) {
        Ok(waiting) => Ok(Ok(waiting)),
        Err(JoinError::NoQueue) => Err(Arc::into_inner(ask).expect("no queue has the request").key),
        Err(JoinError::Refused { rejection, is_queue }) => {
            observe_refusal::<Request, P>(config, is_queue);
            Ok(Err(rejection))
        }
    }
}

/// The decision after which a request joins a queue.
pub(crate) enum WaitCause {
    Denied(Decision),
    Scheduled(Decision, Option<Held>),
}

/// Lets a request join the queue of the limit that denied or delayed it. An error is for the responder.
pub(crate) fn join_after<Request, P: Parts<Request>>(
    config: &Arc<ConfigOf<Request, P>>,
    request: &Request,
    key: P::Key,
    options: AcquireOptions,
    cause: WaitCause,
    arrived_at: Instant,
) -> Result<Waiting, Rejection> {
    let (ask, arrival) = arrival::<Request, P>(config, request, key, options, arrived_at);
    let (id, asked) = match cause {
        WaitCause::Denied(decision) => (queue_of(&*ask, &decision), Asked::Denied(decision)),
        WaitCause::Scheduled(decision, held) => {
            // A verdict stores its microseconds in 62 bits, so the sum does not overflow.
            let at = Instant::now() + decision.delay();
            let id = queue_of(&*ask, &decision);
            (id, Asked::Scheduled(Start { at, class: arrival.class, decision, held: StartHold::new(held) }))
        }
    };
    match config.wait.queues.join(id, arrival, asked, config.wait.bounds()) {
        Ok(waiting) => Ok(waiting),
        Err(JoinError::Refused { rejection, is_queue }) => {
            observe_refusal::<Request, P>(config, is_queue);
            Err(rejection)
        }
        Err(JoinError::NoQueue) => unreachable!("a decided request creates its queue"),
    }
}

fn arrival<Request, P: Parts<Request>>(
    config: &Arc<ConfigOf<Request, P>>,
    request: &Request,
    key: P::Key,
    options: AcquireOptions,
    arrived_at: Instant,
) -> (Arc<KeyAsk<P::Key, P::Key, P::Limiter>>, Arrival) {
    let class = Queues::class(&key, options.costs(), options.charged_once(), keeps_guard::<Request, P>());
    let (limiter, observers) = (config.limiter.clone(), config.observers.clone());
    let ask = Arc::new(KeyAsk::new(key, limiter, observers));
    // A client can shorten its wait, and not prolong it.
    let max_wait = [config.wait.max_wait(), config.responder.client_timeout(request)].into_iter().flatten().min();
    (Arc::clone(&ask), Arrival { ask, class, options, max_wait, arrived_at })
}

fn observe_refusal<Request, P: Parts<Request>>(config: &ConfigOf<Request, P>, is_queue: bool) {
    if is_queue {
        config.observers.emit(|| Event::WaitRefused);
    }
}
