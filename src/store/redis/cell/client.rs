//! The client of a `RedisCell`: each command is a call of its own, and concurrent commands share a connection.
//!
//! A task of its own sends each command, so that a command whose caller has gone still finds out that the connection
//! is lost. A command is sent once: a missing reply does not prove that the server did not run it.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use redis::{Cmd, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use tokio::time::{Instant, timeout_at};

use super::command::classify;
use crate::error::Error;
use crate::limiter::LimiterFuture;
use crate::store::inner::runtime::{Sleep, sleep};
use crate::store::redis::connect::{Connection, Failure, no_runtime};
use crate::store::redis::health::ServerHealth;

pub(super) struct CellClient {
    pub(super) health: Arc<ServerHealth>,
    pub(super) deadline: Duration,
    /// One for each runtime, in the order of their first use.
    connections: Mutex<Vec<(Id, SharedSlot)>>,
}

/// The connection of one runtime. The lock is held while the connection is checked or opened.
type SharedSlot = Arc<AsyncMutex<Option<Arc<dyn Connection>>>>;

impl CellClient {
    /// The maximum number of runtimes whose connections are kept. A runtime that has ended is not distinguished from an
    /// idle one.
    const MAX_RUNTIMES: usize = 256;

    pub(super) fn new(health: ServerHealth, deadline: Duration) -> Self {
        Self { health: Arc::new(health), deadline, connections: Mutex::default() }
    }

    /// Spawns a task that sends a command, and waits for the reply until the deadline. A command that was not sent by
    /// then is cancelled.
    ///
    /// The future fails at once if the circuit breaker is open, or if there is no tokio runtime with a timer.
    pub(super) fn submit(&self, command: Cmd) -> LimiterFuture<Value> {
        match self.spawn(command) {
            Err(error) => LimiterFuture::ready(Err(error)),
            Ok((reply, timer)) => {
                let deadline = self.deadline;
                LimiterFuture::pending(async move {
                    match select(reply, pin!(timer)).await {
                        Either::Left((Ok(result), _)) => result,
                        Either::Left((Err(_), _)) => Err(Error::unavailable(
                            "the call to Redis was lost: the runtime is shutting down; end all requests before their \
                             tokio runtime",
                        )),
                        Either::Right(_) => Err(timeout(deadline)),
                    }
                })
            }
        }
    }

    fn spawn(&self, command: Cmd) -> Result<(oneshot::Receiver<Result<Value, Error>>, Sleep), Error> {
        let timer = sleep(self.deadline).ok_or_else(no_runtime)?;
        let runtime = Handle::try_current().map_err(|_| no_runtime())?;
        self.health.node(0).breaker.check()?;
        let (caller, reply) = oneshot::channel();
        let (health, slot, deadline) = (Arc::clone(&self.health), self.slot_of(runtime.id()), self.deadline);
        runtime.spawn(async move {
            let result = send(&health, &slot, Arc::new(command), &caller, deadline).await;
            let _ = caller.send(result);
        });
        Ok((reply, timer))
    }

    fn slot_of(&self, runtime: Id) -> SharedSlot {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, slot)) = connections.iter().find(|(id, _)| *id == runtime) {
            return Arc::clone(slot);
        }
        if connections.len() >= Self::MAX_RUNTIMES {
            connections.remove(0);
        }
        let slot = SharedSlot::default();
        connections.push((runtime, Arc::clone(&slot)));
        slot
    }
}

/// Sends one command, and records for the circuit breaker whether the server responded.
async fn send(
    health: &Arc<ServerHealth>,
    slot: &SharedSlot,
    command: Arc<Cmd>,
    caller: &oneshot::Sender<Result<Value, Error>>,
    deadline: Duration,
) -> Result<Value, Error> {
    let (node, started_at) = (health.node(0), Instant::now());
    let until = started_at + deadline;
    // A server that needs longer to connect opens the breaker. A probe, which has more time, then leaves an idle
    // connection.
    let connected = timeout_at(until, usable_connection(health, slot)).await.unwrap_or_else(|_| {
        Err(Failure::timed_out(format!(
            "connecting to Redis ({}) failed: no connection within the deadline of {deadline:?}; check that the server \
             is reachable",
            health.server.describe()
        )))
    });
    let connection = match connected {
        Ok(connection) => connection,
        Err(failure) => {
            health.record_failure(&node, started_at, &failure.error);
            return Err(failure.error);
        }
    };
    // A cancelled command must not be sent: its caller relies on nothing being charged.
    if caller.is_closed() {
        return Err(Error::unavailable("the call to Redis was not sent: its caller has gone"));
    }
    let failure = match timeout_at(until, connection.call(0, command)).await {
        Ok(Ok(value)) => {
            health.record_success(&node);
            return Ok(value);
        }
        Ok(Err(error)) => classify(error, health.server.describe()),
        Err(_) => Failure::unusable(timeout(deadline)),
    };
    if failure.reconnect {
        slot.lock().await.take_if(|current| Arc::ptr_eq(current, &connection));
    }
    if !failure.server_responded {
        health.record_failure(&node, started_at, &failure.error);
    }
    Err(failure.error)
}

/// Returns the last connection of the runtime, if it is still open, else a new one.
///
/// The server may have closed an idle connection, so a connection without calls in flight is checked before the next
/// call. A call in flight shares the connection.
async fn usable_connection(health: &ServerHealth, slot: &SharedSlot) -> Result<Arc<dyn Connection>, Failure> {
    let mut slot = slot.lock().await;
    if let Some(connection) = slot.take() {
        if Arc::strong_count(&connection) > 1 || connection.is_open().await {
            return Ok(Arc::clone(slot.insert(connection)));
        }
    }
    let connection = health.server.connect(0).await.map(Arc::from)?;
    Ok(Arc::clone(slot.insert(connection)))
}

fn timeout(deadline: Duration) -> Error {
    Error::unavailable(format!(
        "CL.THROTTLE failed: no reply within the deadline of {deadline:?}, and the cost may have been charged; raise \
         `deadline` or check the server"
    ))
}
