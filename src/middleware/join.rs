//! How a request joins a queue.

use std::sync::Arc;
use std::time::Duration;

use super::config::{ConfigOf, WaitConfig};
use super::parts::Parts;
use super::queue::{
    self, Arrival, Ask, Asked, Class, JoinError, KeyAsk, Queues, Start, StartHold, Waiting, queue_of, visit_queues,
};
use crate::decision::{AcquireOptions, Decision};
use crate::limiter::{Held, LimitOfKey, limit_id};
use crate::observe::{Event, Observers};
use crate::response::{Rejection, Respond as _};
use crate::runtime::Instant;

/// Returns the queue that a new request of a key must join, if others wait.
#[cold]
#[inline(never)]
pub(crate) fn existing_queue<Request, P: Parts<Request>>(config: &ConfigOf<Request, P>, key: &P::Key) -> Option<u64> {
    let visit = &|visit: &mut dyn FnMut(&LimitOfKey<'_>, u64)| visit_queues(key, &config.limiter, visit);
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
    let class = Queues::class(&key, options);
    let ask = Arc::new(KeyAsk::new(key, config.limiter.clone(), config.observers.clone()));
    let timeout = config.responder.client_timeout(request);
    let arrival = arrival(Arc::<KeyAsk<_, _, _>>::clone(&ask), class, options, &config.wait, timeout, Instant::now());
    match join(&config.wait, &config.observers, id, arrival, Asked::No) {
        Some(joined) => Ok(joined),
        None => Err(Arc::into_inner(ask).expect("no queue has the request").key),
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
    let class = Queues::class(&key, options);
    let ask = Arc::new(KeyAsk::new(key, config.limiter.clone(), config.observers.clone()));
    let timeout = config.responder.client_timeout(request);
    let arrival = arrival(ask, class, options, &config.wait, timeout, arrived_at);
    join_by_cause(&config.wait, &config.observers, arrival, cause)
}

// The compiler generates the functions above for each type of a layer, and those below once.

fn arrival(
    ask: Arc<dyn Ask>,
    class: Class,
    options: AcquireOptions,
    wait: &WaitConfig,
    client_timeout: Option<Duration>,
    arrived_at: Instant,
) -> Arrival {
    // A client can shorten its wait, and not prolong it.
    let max_wait = [wait.max_wait(), client_timeout].into_iter().flatten().min();
    Arrival { ask, class, options, max_wait, arrived_at }
}

fn join_by_cause(
    wait: &WaitConfig,
    observers: &Observers,
    arrival: Arrival,
    cause: WaitCause,
) -> Result<Waiting, Rejection> {
    let (id, asked) = match cause {
        WaitCause::Denied(decision) => (queue_of(&*arrival.ask, &decision), Asked::Denied(decision)),
        WaitCause::Scheduled(decision, held) => {
            // A verdict stores its microseconds in 62 bits, so the sum does not overflow.
            let at = Instant::now() + decision.delay();
            let id = queue_of(&*arrival.ask, &decision);
            (id, Asked::Scheduled(Start { at, class: arrival.class, decision, held: StartHold::new(held) }))
        }
    };
    join(wait, observers, id, arrival, asked).expect("a decided request creates its queue")
}

/// Returns `None` if there is no queue.
fn join(
    wait: &WaitConfig,
    observers: &Observers,
    id: u64,
    arrival: Arrival,
    asked: Asked,
) -> Option<Result<Waiting, Rejection>> {
    match wait.queues.join(id, arrival, asked, wait.bounds()) {
        Ok(waiting) => Some(Ok(waiting)),
        Err(JoinError::NoQueue) => None,
        Err(JoinError::Refused { rejection, is_queue }) => {
            if is_queue {
                observers.emit(|| Event::WaitRefused);
            }
            Some(Err(rejection))
        }
    }
}
