//! The client of a `RedisCell`: each command is a call of its own, and concurrent commands share a connection.
//!
//! One worker task per runtime keeps the connection. It takes all waiting commands, sends them back to back, and
//! completes them when all have replies. A command is sent once: a missing reply does not prove that the server did not
//! run it.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use redis::{Cmd, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::command::classify;
use crate::error::Error;
use crate::runtime::{Sleep, sleep};
use crate::store::redis::connect::{Connection, Failure, no_runtime};
use crate::store::redis::health::ServerHealth;

/// The maximum number of commands in one batch.
const MAX_BATCH: usize = 512;

pub(super) struct CellClient {
    pub(super) health: Arc<ServerHealth>,
    pub(super) deadline: Duration,
    /// One worker for each runtime. A worker ends with its runtime, or when the limiter drops this sender.
    workers: Mutex<Vec<(Id, mpsc::UnboundedSender<QueuedCommand>)>>,
}

struct QueuedCommand {
    command: Arc<Cmd>,
    reply: oneshot::Sender<Result<Value, Error>>,
}

/// A command that was queued.
pub(super) struct PendingReply {
    reply: oneshot::Receiver<Result<Value, Error>>,
    timer: Sleep,
    deadline: Duration,
}

impl PendingReply {
    /// Waits for the reply until the deadline. A command that was not sent by then is cancelled.
    pub(super) async fn wait(self) -> Result<Value, Error> {
        match select(self.reply, pin!(self.timer)).await {
            Either::Left((Ok(result), _)) => result,
            Either::Left((Err(_), _)) => Err(worker_ended()),
            Either::Right(_) => Err(Error::unavailable(timeout_message(self.deadline))),
        }
    }
}

impl CellClient {
    /// The worker of the first attempt may have ended. If a new worker has ended as well, the runtime is shutting down.
    const MAX_ATTEMPTS: usize = 2;

    pub(super) fn new(health: ServerHealth, deadline: Duration) -> Self {
        Self { health: Arc::new(health), deadline, workers: Mutex::default() }
    }

    /// Queues a command.
    ///
    /// # Errors
    ///
    /// At once if the circuit breaker is open, or no worker task can run.
    pub(super) fn submit(&self, command: Cmd) -> Result<PendingReply, Error> {
        let timer = sleep(self.deadline).ok_or_else(no_runtime)?;
        self.health.check_breaker(&self.health.node(0))?;
        let (sender, reply) = oneshot::channel();
        let mut queued = QueuedCommand { command: Arc::new(command), reply: sender };
        for _ in 0..Self::MAX_ATTEMPTS {
            match self.worker()?.send(queued) {
                Ok(()) => return Ok(PendingReply { reply, timer, deadline: self.deadline }),
                Err(returned) => queued = returned.0,
            }
        }
        Err(worker_ended())
    }

    /// Returns the queue of the current runtime. Spawns its worker task on first use.
    fn worker(&self) -> Result<mpsc::UnboundedSender<QueuedCommand>, Error> {
        let runtime = Handle::try_current().map_err(|_| no_runtime())?;
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|(_, queue)| !queue.is_closed());
        if let Some((_, queue)) = workers.iter().find(|(id, _)| *id == runtime.id()) {
            return Ok(queue.clone());
        }
        let (queue, commands) = mpsc::unbounded_channel();
        runtime.spawn(run_worker(Arc::clone(&self.health), self.deadline, commands));
        workers.push((runtime.id(), queue.clone()));
        Ok(queue)
    }
}

async fn run_worker(
    health: Arc<ServerHealth>,
    deadline: Duration,
    mut commands: mpsc::UnboundedReceiver<QueuedCommand>,
) {
    let node = health.node(0);
    let mut connection: Option<Arc<dyn Connection>> = None;
    let mut batch = Vec::new();
    while commands.recv_many(&mut batch, MAX_BATCH).await > 0 {
        let started_at = Instant::now();
        connection = match usable_connection(connection.take(), &health, deadline).await {
            Ok(connection) => Some(connection),
            Err(failure) => {
                health.record_failure(&node, started_at, &failure.error);
                for queued in batch.drain(..) {
                    let _ = queued.reply.send(Err(failure.error.clone()));
                }
                continue;
            }
        };
        // A cancelled command must not be sent: its caller believes that nothing is charged.
        let sent: Vec<_> = batch.drain(..).filter(|queued| !queued.reply.is_closed()).collect();
        let Some(open) = connection.clone() else { continue };
        let started_at = Instant::now();
        let calls = sent.into_iter().map(|queued| send(&*open, queued, deadline));
        let failures: Vec<_> = join_all(calls).await;
        if failures.iter().any(Option::is_none) {
            health.record_success(&node);
        } else if let Some(failure) = failures.iter().flatten().find(|failure| !failure.server_responded) {
            health.record_failure(&node, started_at, &failure.error);
        }
        if failures.iter().flatten().any(|failure| failure.reconnect) {
            connection = None;
        }
    }
}

/// Returns the last connection or the node's idle one, if it is still open, else a new one.
///
/// The server may have closed an idle connection, so a connection without calls in flight is checked before the next
/// call.
async fn usable_connection(
    last: Option<Arc<dyn Connection>>,
    health: &ServerHealth,
    deadline: Duration,
) -> Result<Arc<dyn Connection>, Failure> {
    for connection in [last, health.node(0).take_idle()].into_iter().flatten() {
        if connection.is_open().await {
            return Ok(connection);
        }
    }
    // A server that needs longer to connect opens the breaker. A probe, which has more time, then leaves an idle
    // connection.
    match timeout(deadline, health.server.connect(0)).await {
        Ok(connected) => connected.map(Arc::from),
        Err(_) => Err(Failure::timed_out(format!(
            "connecting to Redis ({}) failed: no connection within the deadline of {deadline:?}; check that the server \
             is reachable",
            health.server.describe()
        ))),
    }
}

/// Sends one command, and completes it. Returns the failure, if any.
async fn send(connection: &dyn Connection, queued: QueuedCommand, deadline: Duration) -> Option<Failure> {
    let failure = match timeout(deadline, connection.call(0, queued.command)).await {
        Ok(Ok(value)) => {
            let _ = queued.reply.send(Ok(value));
            return None;
        }
        Ok(Err(error)) => classify(error),
        Err(_) => Failure::timed_out(timeout_message(deadline)),
    };
    let _ = queued.reply.send(Err(failure.error.clone()));
    Some(failure)
}

fn timeout_message(deadline: Duration) -> String {
    format!(
        "CL.THROTTLE failed: no reply within the deadline of {deadline:?}, and the cost may have been charged; raise \
         `deadline` or check the server"
    )
}

fn worker_ended() -> Error {
    Error::unavailable(
        "the call to Redis was lost: its worker task ended, because the runtime is shutting down; end all requests \
         before their tokio runtime",
    )
}
