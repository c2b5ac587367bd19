//! loom models of a queue: joining, leaving, handing over, waking and shutdown, in all orders.
//!
//! All code is that of production, from the futures of waiting requests to the task that drives a queue. Only the
//! limiter is a model. No time passes, so a request that waits for the end of an interval waits forever, and loom
//! reports a lost wake-up as a deadlock.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::{Arrival, Ask, Asked, Bounds, Queues, Waiting};
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, Decision, Verdict};
use crate::limiter::{Held, LimitOfKey, LimiterFuture, Outcome, capacity_released};
use crate::observe::Observers;
use crate::runtime::{Instant, block_on, shut_down};
use crate::sync::{explore, report_orders};

/// Checks `f` in all orders with up to `preemptions` preemptions.
fn model(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    report_orders(explore(preemptions, f));
}

const BOUNDS: Bounds = Bounds { max_waiters: 10, max_waiters_per_key: Some(10) };
const QUEUE: u64 = 7;
const OTHER_QUEUE: u64 = 8;

/// A limiter that holds a slot for each request. To deny, it only reads: that orders no other access.
#[derive(Clone)]
struct Slots {
    free: Arc<AtomicUsize>,
    /// The queue of the limit that denies.
    queue: u64,
    /// Whether a decision takes a while before and after it is made.
    is_remote: bool,
    observers: Observers,
}

impl Slots {
    /// A limiter whose slots are all taken.
    fn new() -> Self {
        Self { free: Arc::new(AtomicUsize::new(0)), queue: QUEUE, is_remote: false, observers: Observers::default() }
    }

    fn release(&self) {
        self.free.fetch_add(1, Ordering::Release);
    }

    fn free(&self) -> usize {
        self.free.load(Ordering::Acquire)
    }

    fn take(&self) -> Outcome {
        let decision = |verdict| Decision::without_limit(Timestamp::EPOCH, verdict);
        let taken = self.free.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |free| free.checked_sub(1));
        if taken.is_err() {
            let retry_after = Duration::from_secs(1);
            return decision(Verdict::Denied { retry_after }).with_estimate(true).into();
        }
        let slots = self.clone();
        let held = Held::new(1, move |_| {
            slots.release();
            // As a store does when a hold ends.
            capacity_released([slots.queue]);
            LimiterFuture::ready(Ok(()))
        });
        Outcome { decision: decision(Verdict::Allowed), held: Some(held) }
    }
}

impl Ask for Slots {
    fn acquire(&self, _options: AcquireOptions) -> LimiterFuture<Outcome> {
        if !self.is_remote {
            return LimiterFuture::ready(Ok(self.take()));
        }
        let slots = self.clone();
        LimiterFuture::pending(async move {
            yield_once().await;
            let outcome = slots.take();
            yield_once().await;
            Ok(outcome)
        })
    }

    fn visit(&self, _: &mut dyn FnMut(&LimitOfKey<'_>, u64)) {}

    fn own_queue(&self) -> u64 {
        self.queue
    }

    fn observers(&self) -> &Observers {
        &self.observers
    }
}

/// Is ready when it is polled again.
async fn yield_once() {
    let mut is_first = true;
    poll_fn(|cx| {
        if std::mem::take(&mut is_first) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

fn arrival(slots: &Slots) -> Arrival {
    let options = AcquireOptions::default().hold();
    Arrival {
        ask: Arc::new(slots.clone()),
        class: Queues::class(&"key", options),
        options,
        max_wait: Some(Duration::from_secs(1000)),
        arrived_at: Instant::now(),
    }
}

/// A request that the layer forwards: it asks the limiter, unless others wait, and joins the queue if it is denied.
/// Returns `None` if it starts at once, and releases its slot then.
fn arrive(queues: &Arc<Queues>, slots: &Slots) -> Option<Waiting> {
    if queues.is_active() && queues.exists(QUEUE) {
        if let Some(joined) = queues.join_existing(QUEUE, arrival(slots), BOUNDS) {
            return Some(joined.unwrap_or_else(|_| unreachable!("the queue is not full")));
        }
    }
    let outcome = slots.take();
    let Some(held) = outcome.held else {
        let joined = queues.join(arrival(slots), Asked::Denied(outcome.decision), BOUNDS);
        return Some(joined.unwrap_or_else(|_| unreachable!("the queue is not full")));
    };
    drop(held);
    capacity_released([QUEUE]);
    None
}

/// The start of a model: no slot is free, and nothing waits.
fn without_a_slot() -> (Arc<Queues>, Slots) {
    (Arc::new(Queues::new(false)), Slots::new())
}

/// Frees a slot, and wakes the queue as the end of a request does.
fn release(slots: &Slots) {
    slots.release();
    capacity_released([QUEUE]);
}

/// Waits for the start, and releases its slot.
fn serve(waiting: Option<Waiting>) {
    let Some(mut waiting) = waiting else { return };
    match block_on(poll_fn(|cx| waiting.poll(cx))) {
        Ok(start) => drop(start.into_parts()),
        Err(_) => unreachable!("the limiter admits it"),
    }
    capacity_released([QUEUE]);
}

/// Waits until nothing waits, no queue is left, and all slots are free. Otherwise loom reports too many branches.
#[allow(clippy::needless_pass_by_value, reason = "the drivers end with the queues")]
fn assert_ends(queues: Arc<Queues>, slots: &Slots, capacity: usize) {
    // The drivers may still run, until they notice that nothing waits.
    while queues.is_active() || queues.waiting.load(Ordering::Acquire) != 0 || slots.free() != capacity {
        thread::yield_now();
    }
}

/// The only slot is released while a request is denied and joins: the release is seen by the request or by the queue.
#[test]
fn release_while_a_request_joins_is_not_lost() {
    for is_remote in [false, true] {
        model(2, move || {
            let (queues, mut slots) = without_a_slot();
            slots.is_remote = is_remote;
            let release = {
                let slots = slots.clone();
                thread::spawn(move || release(&slots))
            };
            serve(arrive(&queues, &slots));
            release.join().expect("no panic");
            assert_ends(queues, &slots, 1);
        });
    }
}

/// A request leaves while the slot is released and handed over: another request that stays receives it.
#[test]
fn start_of_a_request_that_leaves_reaches_the_next() {
    model(2, || {
        let (queues, slots) = without_a_slot();
        let [first, second] = [(); 2].map(|()| arrive(&queues, &slots));
        let leave = thread::spawn(move || drop(first));
        release(&slots);
        serve(second);
        leave.join().expect("no panic");
        assert_ends(queues, &slots, 1);
    });
}

/// The last request leaves while the slot is released: the slot is free afterwards.
#[test]
fn slot_is_free_after_the_last_request_has_left() {
    model(3, || {
        let (queues, slots) = without_a_slot();
        let waiting = arrive(&queues, &slots);
        let leave = thread::spawn(move || drop(waiting));
        release(&slots);
        leave.join().expect("no panic");
        assert_ends(queues, &slots, 1);
    });
}

/// A request joins while the queue ends, because the one before it is served.
#[test]
fn request_that_joins_while_the_queue_ends_is_served() {
    model(2, || {
        let (queues, slots) = without_a_slot();
        let first = arrive(&queues, &slots);
        release(&slots);
        let second = {
            let (queues, slots) = (Arc::clone(&queues), slots.clone());
            thread::spawn(move || serve(arrive(&queues, &slots)))
        };
        serve(first);
        second.join().expect("no panic");
        assert_ends(queues, &slots, 1);
    });
}

/// The runtime of the driver shuts down while a request waits: the request's own future spawns another driver.
#[test]
fn request_is_served_after_the_runtime_of_the_driver_has_shut_down() {
    model(2, || {
        let (queues, slots) = without_a_slot();
        let waiting = arrive(&queues, &slots);
        let other = {
            let slots = slots.clone();
            thread::spawn(move || {
                shut_down();
                release(&slots);
            })
        };
        serve(waiting);
        other.join().expect("no panic");
        assert_ends(queues, &slots, 1);
    });
}

/// A request that another limit denies moves to its queue, while it leaves.
#[test]
fn request_that_leaves_while_it_moves_waits_nowhere() {
    model(2, || {
        let (queues, slots) = without_a_slot();
        let mut moving = slots.clone();
        moving.queue = OTHER_QUEUE;
        let waiting = arrive(&queues, &moving);
        thread::spawn(move || drop(waiting)).join().expect("no panic");
        assert_ends(queues, &slots, 0);
    });
}

/// The only slot is released while a request moves to the queue of another limit: one of the two queues sees it.
#[test]
fn release_while_a_request_moves_is_not_lost() {
    model(2, || {
        let (queues, slots) = without_a_slot();
        let mut moving = slots.clone();
        moving.queue = OTHER_QUEUE;
        let waiting = arrive(&queues, &moving);
        let release = {
            let slots = slots.clone();
            thread::spawn(move || {
                slots.release();
                capacity_released([QUEUE, OTHER_QUEUE]);
            })
        };
        serve(waiting);
        release.join().expect("no panic");
        assert_ends(queues, &slots, 1);
    });
}
