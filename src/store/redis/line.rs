//! Group commit: what comes while others are on their way wait, and travel together.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::call::call;
use super::connection::Carrier;
use super::lane::{Lane, Lanes};
use super::neighbours::Presence;
use super::server::RedisServer;
use super::trade::{Parcel, Trade};
use crate::error::Error;
use crate::observe::{Event, Observers};

/// What all lines of a limiter share.
pub(super) struct Core<T> {
    pub(super) name: String,
    pub(super) server: RedisServer,
    pub(super) trade: T,
    pub(super) lanes: Lanes,
    pub(super) deadline: Duration,
    /// What all keys begin with.
    pub(super) prefix: String,
    pub(super) observers: Observers,
    /// Tells others of this process with the same name that it lives.
    pub(super) _presence: Option<Arc<Presence>>,
}

impl<T> Core<T> {
    /// A lane's server has answered.
    pub(super) fn succeeded(&self, lane: &Lane) {
        if lane.breaker.success() {
            self.observers.tell(|| Event::Breaker { store: &self.name, open: None });
        }
    }

    /// A lane's server has not answered.
    pub(super) fn failed(&self, lane: &Lane, error: &Error) {
        if lane.breaker.failure(error) {
            self.observers.tell(|| Event::Breaker { store: &self.name, open: Some(error) });
        }
    }

    /// Tells of a call with so many orders, if anybody listens: then it was known when it began.
    pub(super) fn called(&self, orders: usize, began: Option<Instant>, error: Option<&Error>) {
        if let Some(began) = began {
            self.observers.tell(|| Event::Batch { store: &self.name, orders, took: began.elapsed(), error });
        }
    }
}

/// The parcels of one runtime and lane, and what wakes the task that sends them.
pub(super) struct Line<P> {
    queue: Mutex<Queue<P>>,
    arrived: Notify,
    /// Nobody uses the limiter any more.
    closed: AtomicBool,
}

struct Queue<P> {
    parcels: VecDeque<P>,
    /// The task is gone, with its runtime.
    is_dead: bool,
}

/// The most steps in one call: enough to spread its fixed costs, few enough that the server is not held up.
const MOST_STEPS: usize = 128;

impl<P: Parcel> Line<P> {
    pub(super) fn new() -> Self {
        let queue = Queue { parcels: VecDeque::new(), is_dead: false };
        Self { queue: Mutex::new(queue), arrived: Notify::new(), closed: AtomicBool::new(false) }
    }

    /// Lines a parcel up.
    ///
    /// # Errors
    ///
    /// The parcel again, if nobody will send it.
    pub(super) fn push(&self, parcel: P) -> Result<(), P> {
        let mut queue = self.queue();
        if queue.is_dead {
            return Err(parcel);
        }
        queue.parcels.push_back(parcel);
        let is_first = queue.parcels.len() == 1;
        drop(queue);
        // Otherwise the task knows, or is about to look.
        if is_first {
            self.arrived.notify_one();
        }
        Ok(())
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.arrived.notify_one();
    }

    pub(super) fn is_dead(&self) -> bool {
        self.queue().is_dead
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn is_empty(&self) -> bool {
        self.queue().parcels.is_empty()
    }

    /// The next parcels to travel together, in the order in which they came. What nobody waits for any more is left out.
    fn take(&self) -> Vec<P> {
        let mut queue = self.queue();
        let mut steps = 0;
        let mut taken = Vec::with_capacity(queue.parcels.len().min(MOST_STEPS));
        while let Some(parcel) = queue.parcels.front() {
            steps += parcel.steps();
            if steps > MOST_STEPS && !taken.is_empty() {
                break;
            }
            let parcel = queue.parcels.pop_front().expect("it was just there");
            if !parcel.is_abandoned() {
                taken.push(parcel);
            }
        }
        taken
    }

    /// While nothing is sent, what nobody waits for any more must not pile up.
    fn forget_abandoned(&self) {
        self.queue().parcels.retain(|parcel| !parcel.is_abandoned());
    }

    /// Tells all who wait here that there will be no answer.
    fn fail(&self, error: &Error) {
        let parcels = std::mem::take(&mut self.queue().parcels);
        for parcel in parcels {
            parcel.answer(Err(error.clone()));
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue<P>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many calls are under way at a time: so many that the server has always one to work on while others travel, and while
/// their senders are told. They arrive in the order in which they were sent.
const MOST_CALLS: usize = 4;

/// Sends a line's parcels until nobody uses the limiter any more.
pub(super) fn drive<T: Trade>(
    core: Arc<Core<T>>,
    lane: Arc<Lane>,
    line: Arc<Line<T::Parcel>>,
) -> impl Future<Output = ()> + Send {
    // Made at once: a runtime that is shutting down drops the task before it was ever polled.
    let farewell = Farewell(Arc::clone(&line));
    async move {
        let _farewell = farewell;
        send_all(&core, &lane, &line).await;
    }
}

async fn send_all<T: Trade>(core: &Core<T>, lane: &Lane, line: &Line<T::Parcel>) {
    let mut connection = None;
    let mut calls = FuturesUnordered::new();
    loop {
        while calls.len() < MOST_CALLS && !line.is_empty() {
            if connection.is_none() {
                // What is under way fails by itself, or else is worth waiting for.
                if !calls.is_empty() {
                    break;
                }
                connection = connect(core, lane, line).await;
                continue;
            }
            let parcels = line.take();
            if let (Some(connection), false) = (&connection, parcels.is_empty()) {
                calls.push(call(core, lane, Arc::clone(connection), parcels));
            }
        }
        if calls.is_empty() {
            if line.is_closed() {
                return;
            }
            line.arrived.notified().await;
            continue;
        }
        let wants_more = calls.len() < MOST_CALLS && connection.is_some();
        let breaks = if wants_more {
            let arrived = pin!(line.arrived.notified());
            match select(calls.next(), arrived).await {
                Either::Left((ended, _)) => ended,
                Either::Right(_) => continue,
            }
        } else {
            calls.next().await
        };
        if breaks == Some(true) {
            connection = None;
        }
    }
}

/// Says that a line's task is gone: those who wait are told, and the next to come starts another.
struct Farewell<P: Parcel>(Arc<Line<P>>);

impl<P: Parcel> Drop for Farewell<P> {
    fn drop(&mut self) {
        self.0.queue().is_dead = true;
        self.0.fail(&Error::unavailable("the tokio runtime that carried this limiter's calls was shut down"));
    }
}

/// A connection. Those who wait for it have their own deadlines.
async fn connect<T: Trade>(core: &Core<T>, lane: &Lane, line: &Line<T::Parcel>) -> Option<Arc<Carrier>> {
    if let Some(spare) = lane.take_spare() {
        return Some(Arc::new(Carrier::new(spare)));
    }
    let mut connecting = core.server.connect(lane.index);
    loop {
        let error = match select(&mut connecting, pin!(sleep(core.deadline))).await {
            Either::Left((Ok(connection), _)) => return Some(Arc::new(Carrier::new(Arc::from(connection)))),
            Either::Left((Err(failure), _)) => {
                core.failed(lane, &failure.error);
                line.fail(&failure.error);
                return None;
            }
            Either::Right(_) => Error::unavailable(format!(
                "there was no connection to Redis ({}) within the deadline of {:?}",
                core.server.describe(),
                core.deadline
            )),
        };
        core.failed(lane, &error);
        line.forget_abandoned();
        // From here on it is for the probes to find Redis again: they bring a connection that works.
        if lane.breaker.check().is_err() {
            line.fail(&error);
            return None;
        }
    }
}
