//! How a request joins a queue.

use std::hash::Hash;
use std::sync::Arc;

use super::config::ConfigOf;
use super::parts::Parts;
use super::queue::{Arrival, Ask, Asked, JoinError, QueueIds, Queues, Start, StartHold, Waiting, visit_limits};
use super::settlement::keeps_guard;
use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;
use crate::limiter::{Acquisition, BoxFuture, Held, Limiter, Outcome};
use crate::observe::{Event, Observers};
use crate::response::{Rejection, Respond as _};
use crate::runtime::Instant;

/// The key and the limiter of a waiting request.
pub(crate) struct KeyAsk<Key, A> {
    key: Key,
    limiter: A,
    observers: Observers,
    /// The queue of the key, for a denial that names no limit.
    own_queue: u64,
}

impl<Key, A> Ask for KeyAsk<Key, A>
where
    Key: Hash + Send + Sync + 'static,
    A: Limiter<Key>,
{
    fn acquire(&self, options: AcquireOptions) -> Acquisition<BoxFuture<Result<Outcome, Error>>> {
        match self.limiter.acquire(&self.key, options) {
            Acquisition::Ready(result) => Acquisition::Ready(result),
            Acquisition::Pending(future) => Acquisition::Pending(Box::pin(future)),
        }
    }

    fn queues(&self) -> QueueIds {
        QueueIds::of(&self.key, &self.limiter)
    }

    fn queue_of(&self, denied: &Decision) -> u64 {
        let Some(denying) = denied.most_restrictive() else { return self.own_queue };
        let mut found = self.own_queue;
        visit_limits(&self.key, &self.limiter, &mut |limit| {
            if limit.name == denying.name() {
                found = limit.id;
            }
        });
        found
    }

    fn cost_in(&self, queue: u64, options: AcquireOptions) -> u64 {
        let mut cost = options.cost;
        visit_limits(&self.key, &self.limiter, &mut |limit| {
            if limit.id == queue {
                cost = limit.cost.options(options).cost;
            }
        });
        cost
    }

    fn max_waiting(&self) -> Option<u64> {
        let mut least = None;
        visit_limits(&self.key, &self.limiter, &mut |limit| {
            least = [least, limit.max_waiting].into_iter().flatten().min();
        });
        least
    }

    fn observers(&self) -> &Observers {
        &self.observers
    }
}

/// Returns the queues in which requests of a key can wait.
pub(crate) fn queue_ids<Request, P: Parts<Request>>(config: &ConfigOf<Request, P>, key: &P::Key) -> QueueIds {
    QueueIds::of(key, &config.limiter)
}

/// Returns the queue that a new request of a key must join, if others wait.
#[cold]
#[inline(never)]
pub(crate) fn existing_queue<Request, P: Parts<Request>>(config: &ConfigOf<Request, P>, key: &P::Key) -> Option<u64> {
    let queues = &config.wait.queues;
    queue_ids::<Request, P>(config, key).as_slice().iter().copied().find(|id| queues.exists(*id))
}

/// Lets a request join the queue `id`, if there is one. Returns the key otherwise.
pub(crate) fn join_existing<Request, P: Parts<Request>>(
    config: &Arc<ConfigOf<Request, P>>,
    request: &Request,
    key: P::Key,
    options: AcquireOptions,
    id: u64,
) -> Result<Result<Waiting, Rejection>, P::Key> {
    let arrival = arrival::<Request, P>(config, request, key, options, Instant::now());
    match config.wait.queues.join(id, arrival, Asked::No, config.wait.bounds()) {
        Ok(waiting) => Ok(Ok(waiting)),
        Err(JoinError::NoQueue(arrival)) => Err(arrival.ask.key),
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
    let arrival = arrival::<Request, P>(config, request, key, options, arrived_at);
    let (id, asked) = match cause {
        WaitCause::Denied(decision) => (arrival.ask.queue_of(&decision), Asked::Denied(decision)),
        WaitCause::Scheduled(decision, held) => {
            // A verdict stores its microseconds in 62 bits, so the sum does not overflow.
            let at = Instant::now() + decision.delay();
            let held = StartHold::new(held, || arrival.ask.queues());
            let id = arrival.ask.queue_of(&decision);
            (id, Asked::Scheduled(Start { at, class: arrival.class, decision, held }))
        }
    };
    match config.wait.queues.join(id, arrival, asked, config.wait.bounds()) {
        Ok(waiting) => Ok(waiting),
        Err(JoinError::Refused { rejection, is_queue }) => {
            observe_refusal::<Request, P>(config, is_queue);
            Err(rejection)
        }
        Err(JoinError::NoQueue(_)) => unreachable!("a decided request creates its queue"),
    }
}

fn arrival<Request, P: Parts<Request>>(
    config: &Arc<ConfigOf<Request, P>>,
    request: &Request,
    key: P::Key,
    options: AcquireOptions,
    arrived_at: Instant,
) -> Arrival<KeyAsk<P::Key, P::Limiter>> {
    let class = Queues::class(&key, options.costs(), options.charged_once(), keeps_guard::<Request, P>());
    let (limiter, observers) = (config.limiter.clone(), config.observers.clone());
    let ask = KeyAsk { key, limiter, observers, own_queue: class.own_queue() };
    // A client can shorten its wait, and not prolong it.
    let max_wait = [config.wait.max_wait(), config.responder.client_timeout(request)].into_iter().flatten().min();
    Arrival { ask, class, options, max_wait, arrived_at }
}

fn observe_refusal<Request, P: Parts<Request>>(config: &ConfigOf<Request, P>, is_queue: bool) {
    if is_queue {
        config.observers.emit(|| Event::WaitRefused);
    }
}
