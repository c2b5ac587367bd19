//! How a request joins a queue.

use std::sync::Arc;

use super::config::ConfigOf;
use super::parts::Parts;
use super::queue::{self, Arrival, Asked, KeyAsk, Queues, Refused, Waiting, visit_queues};
use crate::decision::AcquireOptions;
use crate::limiter::{LimitOfKey, limit_id};
use crate::observe::{Event, Observers};
use crate::response::{Rejection, Respond as _};
use crate::runtime::Instant;

/// Returns the queue that a new request of a key must join, if others wait.
#[cold]
#[inline(never)]
pub(crate) fn existing_queue<Request, P: Parts<Request>>(
    config: &ConfigOf<Request, P>,
    key: &P::Key,
    cost: P::Cost,
) -> Option<u64> {
    let options = AcquireOptions::from(cost.into());
    let visit = &|visit: &mut dyn FnMut(&LimitOfKey<'_>, u64)| visit_queues(key, &config.limiter, visit);
    queue::existing_queue(limit_id(key), options, &config.wait.queues, visit)
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
    match config.wait.queues.join_existing(id, arrival, config.wait.bounds) {
        Some(joined) => Ok(joined.map_err(|refused| rejection_of(refused, &config.observers))),
        None => Err(Arc::into_inner(ask).expect("no queue has the request").key),
    }
}

/// Lets a request join the queue of the limit that denied or delayed it. An error is for the responder.
pub(crate) fn join_after<Request, P: Parts<Request>>(
    config: &Arc<ConfigOf<Request, P>>,
    request: &Request,
    key: P::Key,
    options: AcquireOptions,
    asked: Asked,
    arrived_at: Instant,
) -> Result<Waiting, Rejection> {
    let (_, arrival) = arrival::<Request, P>(config, request, key, options, arrived_at);
    let joined = config.wait.queues.join(arrival, asked, config.wait.bounds);
    joined.map_err(|refused| rejection_of(refused, &config.observers))
}

fn arrival<Request, P: Parts<Request>>(
    config: &ConfigOf<Request, P>,
    request: &Request,
    key: P::Key,
    options: AcquireOptions,
    arrived_at: Instant,
) -> (Arc<KeyAsk<P::Key, P::Key, P::Limiter>>, Arrival) {
    let class = Queues::class(&key, options);
    let ask = Arc::new(KeyAsk::new(key, config.limiter.clone(), config.observers.clone()));
    // A client can shorten its wait, and not prolong it.
    let max_wait = [config.wait.max_wait, config.responder.client_timeout(request)].into_iter().flatten().min();
    (Arc::clone(&ask), Arrival { ask, class, options, max_wait, arrived_at })
}

fn rejection_of(Refused { rejection, is_queue }: Refused, observers: &Observers) -> Rejection {
    if is_queue {
        observers.emit(|| Event::WaitRefused);
    }
    rejection
}
