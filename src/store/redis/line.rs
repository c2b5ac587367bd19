//! Group commit: orders that come while others are on their way wait, and travel together.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{ErrorKind, ServerErrorKind};
use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::batch::Batch;
use super::breaker::Breaker;
use super::connection::Connection;
use super::failure::Failure;
use super::neighbours::Presence;
use super::order::Order;
use super::row::RowInfo;
use super::script::Script;
use super::server::RedisServer;
use crate::clock::Clock;
use crate::error::Error;
use crate::observe::{Event, Observers};

/// What all lines of a limiter share.
pub(super) struct Core {
    pub(super) name: String,
    pub(super) server: RedisServer,
    pub(super) rows: Vec<RowInfo>,
    pub(super) script: Script,
    pub(super) breaker: Breaker,
    pub(super) deadline: Duration,
    /// A key that probes write.
    pub(super) probe_key: String,
    /// For tests: decides by this clock instead of the server's.
    pub(super) clock: Option<Arc<dyn Clock>>,
    pub(super) observers: Observers,
    /// Tells others of this process with the same name that it lives.
    pub(super) _presence: Arc<Presence>,
    /// A connection that a probe has made and tried, and the runtime it belongs to.
    pub(super) spare: Mutex<Option<(Id, Arc<dyn Connection>)>>,
}

impl Core {
    /// Redis has answered.
    pub(super) fn succeeded(&self) {
        if self.breaker.success() {
            self.observers.tell(|| Event::Breaker { store: &self.name, open: None });
        }
    }

    /// Redis has not answered.
    pub(super) fn failed(&self, error: &Error) {
        if self.breaker.failure(error) {
            self.observers.tell(|| Event::Breaker { store: &self.name, open: Some(error) });
        }
    }

    /// Tells of a call with so many orders, if anybody listens: then it was known when it began.
    fn called(&self, orders: usize, began: Option<Instant>, error: Option<&Error>) {
        if let Some(began) = began {
            self.observers.tell(|| Event::Batch { store: &self.name, orders, took: began.elapsed(), error });
        }
    }

    fn keep_spare(&self, connection: Box<dyn Connection>) {
        *self.spare() = Some((Handle::current().id(), Arc::from(connection)));
    }

    fn take_spare(&self) -> Option<Arc<dyn Connection>> {
        let (runtime, connected) = self.spare().take()?;
        (runtime == Handle::current().id()).then_some(connected)
    }

    fn spare(&self) -> MutexGuard<'_, Option<(Id, Arc<dyn Connection>)>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The orders of one runtime, and what wakes the task that sends them.
#[derive(Default)]
pub(super) struct Line {
    queue: Mutex<Queue>,
    arrived: Notify,
    /// Nobody uses the limiter any more.
    closed: AtomicBool,
}

#[derive(Default)]
struct Queue {
    orders: VecDeque<Order>,
    /// The task is gone, with its runtime.
    is_dead: bool,
}

impl Line {
    /// Lines an order up.
    ///
    /// # Errors
    ///
    /// The order again, if nobody will send it.
    pub(super) fn push(&self, order: Order) -> Result<(), Order> {
        let mut queue = self.queue();
        if queue.is_dead {
            return Err(order);
        }
        queue.orders.push_back(order);
        let is_first = queue.orders.len() == 1;
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
        self.queue().orders.is_empty()
    }

    /// The next orders to travel together, in the order in which they came. What nobody waits for any more is left out.
    fn take(&self) -> Vec<Order> {
        let mut queue = self.queue();
        let mut steps = 0;
        let mut taken = Vec::with_capacity(queue.orders.len().min(Batch::MOST_STEPS));
        while let Some(order) = queue.orders.front() {
            steps += order.shapes().len() * order.key_ends.len();
            if steps > Batch::MOST_STEPS && !taken.is_empty() {
                break;
            }
            let order = queue.orders.pop_front().expect("it was just there");
            if !order.is_abandoned() {
                taken.push(order);
            }
        }
        taken
    }

    /// While nothing is sent, what nobody waits for any more must not pile up.
    fn forget_abandoned(&self) {
        self.queue().orders.retain(|order| !order.is_abandoned());
    }

    /// Tells all who wait here that there will be no answer.
    fn fail(&self, error: &Error) {
        let orders = std::mem::take(&mut self.queue().orders);
        for order in orders {
            let _ = order.reply.send(Err(error.clone()));
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many calls are under way at a time: with two, the server works on one while the other travels.
const MOST_CALLS: usize = 2;

/// Sends a line's orders until nobody uses the limiter any more.
pub(super) fn drive(core: Arc<Core>, line: Arc<Line>) -> impl Future<Output = ()> + Send {
    // Made at once: a runtime that is shutting down drops the task before it was ever polled.
    let farewell = Farewell(Arc::clone(&line));
    async move {
        let _farewell = farewell;
        send_orders(&core, &line).await;
    }
}

async fn send_orders(core: &Core, line: &Line) {
    let mut connection = None;
    let mut calls = FuturesUnordered::new();
    loop {
        while calls.len() < MOST_CALLS && !line.is_empty() {
            if connection.is_none() {
                // What is under way fails by itself, or else is worth waiting for.
                if !calls.is_empty() {
                    break;
                }
                connection = connect(core, line).await;
                continue;
            }
            let orders = line.take();
            if let (Some(connection), false) = (&connection, orders.is_empty()) {
                calls.push(call(core, Arc::clone(connection), orders));
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
struct Farewell(Arc<Line>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.queue().is_dead = true;
        self.0.fail(&Error::unavailable("the tokio runtime that carried this limiter's calls was shut down"));
    }
}

/// A connection. Those who wait for it have their own deadlines.
async fn connect(core: &Core, line: &Line) -> Option<Arc<dyn Connection>> {
    if let Some(spare) = core.take_spare() {
        return Some(spare);
    }
    let mut connecting = core.server.connect();
    loop {
        let error = match select(&mut connecting, pin!(sleep(core.deadline))).await {
            Either::Left((Ok(connection), _)) => return Some(Arc::from(connection)),
            Either::Left((Err(failure), _)) => {
                core.failed(&failure.error);
                line.fail(&failure.error);
                return None;
            }
            Either::Right(_) => Error::unavailable(format!(
                "there was no connection to Redis ({}) within the deadline of {:?}",
                core.server.describe(),
                core.deadline
            )),
        };
        core.failed(&error);
        line.forget_abandoned();
        // From here on it is for the probes to find Redis again: they bring a connection that works.
        if core.breaker.check().is_err() {
            line.fail(&error);
            return None;
        }
    }
}

/// One call of the script: sends a batch, and answers its orders. Returns whether the connection is of no use any more.
async fn call(core: &Core, connection: Arc<dyn Connection>, orders: Vec<Order>) -> bool {
    let (size, began) = (orders.len(), core.observers.are_there().then(Instant::now));
    let now = core.clock.as_ref().map(crate::clock::Clock::now);
    let batch = Batch::of(orders, &core.rows, now);
    let exchange = async {
        let reply = connection.call(Arc::new(batch.command(&core.script, true))).await;
        match reply {
            // A restart, a fail-over or SCRIPT FLUSH empties the script cache: normal operation.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                connection.call(Arc::new(batch.command(&core.script, false))).await
            }
            reply => reply,
        }
    };
    let failure = match timeout(core.deadline, exchange).await {
        Ok(Ok(reply)) => match batch.answer(&core.rows, &reply) {
            Ok(()) => {
                core.succeeded();
                core.called(size, began, None);
                return false;
            }
            Err(error) => Failure { error, breaks: false, answered: true },
        },
        Ok(Err(error)) => {
            let failure = Failure::of(error);
            batch.fail(&failure.error);
            failure
        }
        Err(_) => {
            let failure = Failure::timed_out(late(core));
            batch.fail(&failure.error);
            failure
        }
    };
    core.called(size, began, Some(&failure.error));
    if !failure.answered {
        core.failed(&failure.error);
    }
    failure.breaks
}

/// What is said of a call that took too long.
pub(super) fn late(core: &Core) -> String {
    format!(
        "Redis ({}) did not answer within the deadline of {:?}; what was asked may have been charged",
        core.server.describe(),
        core.deadline
    )
}

/// Looks whether Redis is there and takes writes, and loads the script. Its connection is for the next line that needs one.
pub(super) async fn probe(core: &Core) -> Result<(), Error> {
    let connection = core.server.connect().await.map_err(|failure| failure.error)?;
    let mut write = redis::cmd("SET");
    write.arg(&core.probe_key).arg("").arg("PX").arg(1);
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(core.script.text());
    for command in [write, load] {
        if let Err(error) = connection.call(Arc::new(command)).await {
            return Err(Failure::of(error).error);
        }
    }
    core.keep_spare(connection);
    Ok(())
}
