//! The task that drives a queue: it asks the limiter, and hands over starts at their time.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use pin_project::pin_project;

use super::asks::AskOrder;
use super::queues::{Queues, Shard};
use super::rules::Rule;
use super::state::{Effects, Moved, Next, Queue};
use crate::error::Error;
use crate::limiter::{Acquisition, BoxFuture, Outcome};
use crate::observe::Event;
use crate::runtime::{self, Instant, Sleep, sleep};
use crate::sync::Ordering;

/// The future of the task. It ends with the queue, and with the layer.
#[pin_project(PinnedDrop)]
pub(super) struct Driver {
    queues: Weak<Queues>,
    id: u64,
    token: u64,
    /// In the order in which they were sent.
    in_flight: VecDeque<(AskOrder, AskFuture)>,
    #[pin]
    sleep: Option<Sleep>,
    is_finished: bool,
}

impl Driver {
    pub(super) fn new(queues: Weak<Queues>, id: u64, token: u64) -> Self {
        Self { queues, id, token, in_flight: VecDeque::new(), sleep: None, is_finished: false }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        loop {
            let Some(queues) = this.queues.upgrade() else {
                *this.is_finished = true;
                return Poll::Ready(());
            };
            let mut index = 0;
            while let Some((_, future)) = this.in_flight.get_mut(index) {
                match poll_caught(future, cx) {
                    Poll::Ready(result) => {
                        if let Some((order, _)) = this.in_flight.remove(index) {
                            queues.answer(*this.id, *this.token, &order, result);
                        }
                    }
                    Poll::Pending => index += 1,
                }
            }
            let now = Instant::now();
            let step = queues.step(*this.id, *this.token, now, cx.waker());
            match step {
                Next::Ask(order) => match acquire_caught(&order) {
                    Acquisition::Ready(result) => queues.answer(*this.id, *this.token, &order, result),
                    Acquisition::Pending(mut future) => match poll_caught(&mut future, cx) {
                        Poll::Ready(result) => queues.answer(*this.id, *this.token, &order, result),
                        Poll::Pending => this.in_flight.push_back((order, future)),
                    },
                },
                Next::Sleep(until) => {
                    // A sleeping task must not keep the layer alive.
                    drop(queues);
                    let span = until.map(|until| until.saturating_duration_since(now));
                    this.sleep.set(span.and_then(|span| sleep(span.min(MAX_SLEEP))));
                    let Some(sleep) = this.sleep.as_mut().as_pin_mut() else { return Poll::Pending };
                    ready!(sleep.poll(cx));
                }
                Next::Finished => {
                    *this.is_finished = true;
                    return Poll::Ready(());
                }
            }
        }
    }
}

type AskFuture = BoxFuture<Result<Outcome, Error>>;

/// Asks the limiter. A panic of the limiter fails one request, not all that wait.
fn acquire_caught(order: &AskOrder) -> Acquisition<AskFuture> {
    let acquired = catch_unwind(AssertUnwindSafe(|| order.ticket.ask.acquire(order.options)));
    acquired.unwrap_or_else(|_| Acquisition::Ready(Err(limiter_panicked())))
}

fn poll_caught(future: &mut AskFuture, cx: &mut Context<'_>) -> Poll<Result<Outcome, Error>> {
    let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
    polled.unwrap_or_else(|_| Poll::Ready(Err(limiter_panicked())))
}

fn limiter_panicked() -> Error {
    Error::unavailable("waiting failed: the limiter panicked; see the panic message")
}

/// Timers accept a limited time only. The driver then sleeps again.
const MAX_SLEEP: Duration = Duration::from_secs(60 * 60 * 24);

#[pin_project::pinned_drop]
impl PinnedDrop for Driver {
    /// The runtime shuts down: another runtime's request drives the queue, or the queue ends with its requests.
    fn drop(self: Pin<&mut Self>) {
        let this = self.project();
        if !*this.is_finished
            && let Some(queues) = this.queues.upgrade()
        {
            queues.driver_dropped(*this.id, *this.token);
        }
    }
}

impl Queues {
    /// Spawns the task of a queue that has none, or wakes it. Returns false if there is no runtime with a timer.
    pub(super) fn ensure_driver(self: &Arc<Self>, id: u64) -> bool {
        let (token, waker) = {
            let mut shard = self.lock(id);
            let Some(queue) = shard.get_mut(&id) else { return true };
            if queue.driver.is_some() {
                (None, queue.driver_waker.take())
            } else {
                if !runtime::has_timer() {
                    return false;
                }
                let token = self.next_number();
                queue.driver = Some(token);
                (Some(token), None)
            }
        };
        // After the lock: a runtime that shuts down drops the task at once, and `driver_dropped` takes the lock.
        if let Some(token) = token {
            runtime::spawn(Driver::new(Arc::downgrade(self), id, token));
        }
        waker.into_iter().for_each(Waker::wake);
        true
    }

    /// Hands over due starts, and returns what the driver must do next.
    fn step(self: &Arc<Self>, id: u64, token: u64, now: Instant, waker: &Waker) -> Next {
        loop {
            let mut effects = Effects::default();
            let next = {
                let mut shard = self.lock(id);
                let Some(queue) = driven_by(&mut shard, id, token) else { return Next::Finished };
                let next = queue.step(now, &mut effects);
                // Under the lock under which nothing was found to do: a release after that finds the waker.
                match (&next, &mut queue.driver_waker) {
                    (Next::Finished, _) => self.remove(&mut shard, id),
                    (_, Some(known)) => known.clone_from(waker),
                    (_, none) => *none = Some(waker.clone()),
                }
                next
            };
            self.finish(effects);
            let Next::Ask(order) = &next else { return next };
            let Some(other) = self.queue_with_earlier(id, order) else { return next };
            let mut effects = Effects::default();
            if let Some(queue) = driven_by(&mut self.lock(id), id, token) {
                queue.yield_to(other, order, &mut effects);
            }
            self.finish_moves(effects);
        }
    }

    /// Returns another queue of the request's limits in which an earlier request waits.
    ///
    /// Without this rule the queue of a limit that schedules starts would use up a limit that it shares with others: the
    /// limiter schedules none for a request with an idle limit, so this request would always come too late.
    fn queue_with_earlier(&self, id: u64, order: &AskOrder) -> Option<u64> {
        if !self.has_other_queues() || !Rule::EarlierElsewhere.is_on() {
            return None;
        }
        let is_earlier = |other: &u64| {
            let sequence = order.ticket.sequence;
            *other != id
                && self.may_exist(*other)
                // The lock on the own shard is released: with two locks, two drivers could wait for each other.
                && self.lock(*other).get(other).is_some_and(|queue| queue.waiters.has_before(sequence))
        };
        order.ticket.ask.queues().as_slice().iter().copied().find(is_earlier)
    }

    /// Records the result of an ask.
    fn answer(self: &Arc<Self>, id: u64, token: u64, order: &AskOrder, result: Result<Outcome, Error>) {
        order
            .ticket
            .ask
            .observers()
            .emit(|| Event::WaitAsked { admitted: matches!(&result, Ok(outcome) if outcome.decision.is_allowed()) });
        let now = Instant::now();
        let mut effects = Effects::default();
        if let Some(queue) = driven_by(&mut self.lock(id), id, token) {
            queue.on_result(order, result, now, &mut effects);
        }
        self.finish_moves(effects);
    }

    fn finish_moves(self: &Arc<Self>, mut effects: Effects) {
        let moved = std::mem::take(&mut effects.moved);
        self.finish(effects);
        for moved in moved {
            self.move_to_queue(moved);
        }
    }

    /// Moves a request to another queue. The request keeps its order of arrival.
    fn move_to_queue(self: &Arc<Self>, mut moved: Moved) {
        let waiter = &mut moved.waiter;
        let id = waiter.ticket.queue();
        waiter.class.cost = waiter.ticket.ask.cost_in(id, waiter.options);
        {
            let mut shard = self.lock(id);
            if waiter.ticket.is_closed() {
                drop(shard);
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                return;
            }
            self.find_or_create(&mut shard, id).insert_moved(moved, Instant::now());
        }
        self.ensure_driver(id);
    }

    /// Prepares a queue whose driver was dropped for another one, which its next polled request spawns.
    fn driver_dropped(&self, id: u64, token: u64) {
        let mut effects = Effects::default();
        {
            let mut shard = self.lock(id);
            let Some(queue) = shard.get_mut(&id).filter(|queue| queue.driver == Some(token)) else { return };
            queue.driver = None;
            queue.driver_waker = None;
            queue.abort();
            queue.wake_waiters(&mut effects);
            if queue.waiters.is_empty() {
                effects.unused = queue.take_starts();
                self.remove(&mut shard, id);
            }
        }
        self.finish(effects);
    }
}

/// Returns the queue, if it has not ended and this driver drives it.
fn driven_by(shard: &mut Shard, id: u64, token: u64) -> Option<&mut Queue> {
    shard.get_mut(&id).filter(|queue| queue.driver == Some(token))
}
