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
use super::queues::Queues;
use super::state::{Effects, Moved, Next, Queue};
use crate::error::Error;
use crate::limiter::{LimiterFuture, Outcome, ReleaseOnDrop, Released};
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
    in_flight: VecDeque<(AskOrder, LimiterFuture<Outcome>)>,
    #[pin]
    sleep: Option<Sleep>,
}

impl Driver {
    pub(super) fn new(queues: Weak<Queues>, id: u64, token: u64) -> Self {
        Self { queues, id, token, in_flight: VecDeque::new(), sleep: None }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        loop {
            let Some(queues) = this.queues.upgrade() else { return Poll::Ready(()) };
            let mut index = 0;
            while let Some((_, future)) = this.in_flight.get_mut(index) {
                match poll_caught(future, cx) {
                    Poll::Ready(result) => {
                        if let Some((order, _)) = this.in_flight.remove(index) {
                            queues.answer(*this.id, *this.token, order, result);
                        }
                    }
                    Poll::Pending => index += 1,
                }
            }
            let now = Instant::now();
            let step = queues.step(*this.id, *this.token, now, cx.waker());
            match step {
                Next::Ask(order) => {
                    if let Some(other) = queues.queue_with_earlier(*this.id, &order) {
                        queues.yield_to(*this.id, *this.token, other, order);
                    } else {
                        let (ask, options) = (Arc::clone(&order.ticket.ask), order.options);
                        // A panic is caught when the future is polled.
                        let asked = LimiterFuture::pending(async move { ask.acquire(options).await });
                        this.in_flight.push_back((order, asked));
                    }
                }
                Next::Sleep(until) => {
                    // A sleeping task must not keep the layer alive.
                    drop(queues);
                    let span = until.map(|until| until.saturating_duration_since(now));
                    this.sleep.set(span.and_then(|span| sleep(span.min(MAX_SLEEP))));
                    let Some(sleep) = this.sleep.as_mut().as_pin_mut() else { return Poll::Pending };
                    ready!(sleep.poll(cx));
                }
                Next::Finished => return Poll::Ready(()),
            }
        }
    }
}

/// A panic of the limiter fails one request, not all that wait.
fn poll_caught(future: &mut LimiterFuture<Outcome>, cx: &mut Context<'_>) -> Poll<Result<Outcome, Error>> {
    let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut *future).poll(cx)));
    let panicked = || Error::unavailable("waiting failed: the limiter panicked; see the panic message");
    polled.unwrap_or_else(|_| Poll::Ready(Err(panicked())))
}

/// Timers accept a limited time only. The driver then sleeps again.
const MAX_SLEEP: Duration = Duration::from_secs(60 * 60 * 24);

#[pin_project::pinned_drop]
impl PinnedDrop for Driver {
    /// If the runtime shuts down, another runtime's request drives the queue, or the queue ends with its requests.
    fn drop(self: Pin<&mut Self>) {
        let this = self.project();
        if let Some(queues) = this.queues.upgrade() {
            queues.leave_driver(*this.id, *this.token);
            let orders = this.in_flight.drain(..).map(|(order, _)| order);
            orders.flat_map(|order| order.released).for_each(Released::pass_on);
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
                (None, queue.wake_driver(Instant::now()))
            } else {
                if !runtime::has_timer() {
                    return false;
                }
                let token = Self::next_number();
                queue.driver = Some(token);
                (Some(token), None)
            }
        };
        // After the lock: a runtime that shuts down drops the task at once, and `leave_driver` takes the lock.
        if let Some(token) = token {
            runtime::spawn(Driver::new(Arc::downgrade(self), id, token));
        }
        waker.into_iter().for_each(Waker::wake);
        true
    }

    /// Replaces a driver that has missed its next step by one in this runtime. Returns when to look again.
    pub(super) fn replace_stalled_driver(self: &Arc<Self>, id: u64) -> Duration {
        let now = Instant::now();
        let (stalled, again) = {
            let shard = self.lock(id);
            let Some(queue) = shard.get(&id) else { return MAX_SLEEP };
            (queue.driver.filter(|_| queue.is_stalled(now)), queue.look_again_after(now))
        };
        if let Some(token) = stalled {
            self.leave_driver(id, token);
            self.ensure_driver(id);
        }
        again
    }

    /// Hands over due starts, and returns what the driver must do next.
    fn step(self: &Arc<Self>, id: u64, token: u64, now: Instant, waker: &Waker) -> Next {
        let next = self.change(id, |queue, effects| {
            if queue.driver != Some(token) {
                return Next::Finished;
            }
            let next = queue.step(now, effects);
            // Under the lock under which nothing was found to do: a release after that finds the waker.
            match &mut queue.driver_waker {
                Some(known) => known.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
            next
        });
        next.unwrap_or(Next::Finished)
    }

    /// Records the result of an ask.
    fn answer(self: &Arc<Self>, id: u64, token: u64, order: AskOrder, result: Result<Outcome, Error>) {
        order
            .ticket
            .ask
            .observers()
            .emit(|| Event::WaitAsked { admitted: matches!(&result, Ok(outcome) if outcome.decision.is_allowed()) });
        // Before the lock: an error releases the guard, which wakes queues.
        let result = result.and_then(|outcome| outcome.check_guard(order.options.keeps_guard));
        let unheard = self.as_driver(id, token, (order, result), |queue, (order, result), effects| {
            queue.on_result(order, result, Instant::now(), effects);
        });
        if let Some((order, result)) = unheard {
            drop(ReleaseOnDrop::new(result.ok().and_then(|outcome| outcome.held)));
            order.released.into_iter().for_each(Released::pass_on);
        }
    }

    /// Gives up an ask, because another queue has an earlier request of the limit.
    fn yield_to(self: &Arc<Self>, id: u64, token: u64, other: u64, order: AskOrder) {
        let unheard = self.as_driver(id, token, order, |queue, order, effects| queue.yield_to(other, order, effects));
        unheard.into_iter().flat_map(|order| order.released).for_each(Released::pass_on);
    }

    /// Changes the queue by what the driver has asked for. Returns it if another driver drives the queue, which has given up
    /// the ask.
    fn as_driver<T>(
        self: &Arc<Self>,
        id: u64,
        token: u64,
        asked: T,
        change: impl FnOnce(&mut Queue, T, &mut Effects),
    ) -> Option<T> {
        let mut asked = Some(asked);
        self.change(id, |queue, effects| {
            if queue.driver == Some(token)
                && let Some(asked) = asked.take()
            {
                change(queue, asked, effects);
            }
        });
        asked
    }

    /// Moves a request to another queue. The request keeps its order of arrival.
    pub(super) fn move_to_queue(self: &Arc<Self>, mut moved: Moved) {
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
            self.update(&mut shard, id);
        }
        self.ensure_driver(id);
    }

    /// Prepares a queue without its driver for another one, which its next polled request spawns.
    fn leave_driver(self: &Arc<Self>, id: u64, token: u64) {
        self.change(id, |queue, effects| {
            if queue.driver == Some(token) {
                queue.leave_driver(Instant::now());
                effects.wakers.extend(queue.waiters.iter().filter_map(|waiter| waiter.ticket.take_waker()));
                if queue.waiters.is_empty() {
                    effects.unused.extend(queue.starts.drain(..));
                }
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::{Arrival, Ask, Asked, Bounds};
    use super::*;
    use crate::clock::Timestamp;
    use crate::decision::{AcquireOptions, Decision, Verdict};
    use crate::limiter::LimitOfKey;
    use crate::observe::Observers;

    const QUEUE: u64 = 7;

    /// A request of the queue.
    struct OfQueue(Observers);

    impl Ask for OfQueue {
        fn acquire(&self, _: AcquireOptions) -> LimiterFuture<Outcome> {
            LimiterFuture::pending(std::future::pending())
        }

        fn visit(&self, _: &mut dyn FnMut(&LimitOfKey<'_>, u64)) {}

        fn own_queue(&self) -> u64 {
            QUEUE
        }

        fn observers(&self) -> &Observers {
            &self.0
        }
    }

    /// A driver that was replaced while it looked for earlier requests in other queues: its successor has given up the ask.
    #[tokio::test(start_paused = true)]
    async fn replaced_driver_withdraws_no_ask() {
        let (queues, options) = (Arc::new(Queues::new(false)), AcquireOptions::default());
        let arrival = Arrival {
            ask: Arc::new(OfQueue(Observers::default())),
            class: Queues::class(&QUEUE, options),
            options,
            max_wait: Some(Duration::from_secs(60)),
            arrived_at: Instant::now(),
        };
        let verdict = Verdict::Denied { retry_after: Duration::from_millis(50) };
        let denied = Asked::Denied(Decision::without_limit(Timestamp::EPOCH, verdict));
        let waiting = queues.join(arrival, denied, Bounds::DEFAULT);
        let token = queues.lock(QUEUE).get(&QUEUE).and_then(|queue| queue.driver).expect("a driver");
        let due_at = Instant::now() + Duration::from_secs(1);
        let Next::Ask(order) = queues.step(QUEUE, token, due_at, Waker::noop()) else { panic!("an ask is due") };
        queues.leave_driver(QUEUE, token);
        queues.yield_to(QUEUE, token, QUEUE + 1, order);
        assert_eq!(queues.lock(QUEUE).get(&QUEUE).map(|queue| queue.pace.under_way), Some(0));
        drop(waiting);
    }
}
