use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::time::{Instant, sleep};

use super::config::ClientConfig;
use super::load_control::LoadControl;
use super::queue::OperationQueue;
use crate::error::Error;
use crate::limiter::BoxFuture;
use crate::store::redis::connect::{CONNECT_TIMEOUT, Connection, Failure};
use crate::store::redis::health::NodeState;

/// The connection of a worker task, or the attempt to open it.
pub(super) struct Link<'a> {
    config: &'a Arc<ClientConfig>,
    node: &'a Arc<NodeState>,
    queue: &'a OperationQueue,
    connection: Option<Arc<dyn Connection>>,
    opened_at: Instant,
    /// The last connection was lost by a call.
    is_lost: bool,
    connecting: Option<Attempt>,
}

/// An attempt to open a connection.
struct Attempt {
    result: BoxFuture<Result<Box<dyn Connection>, Failure>>,
    started_at: Instant,
}

impl<'a> Link<'a> {
    /// A connection that ended earlier is not replaced before a call needs it: the server may end each one at once.
    const MIN_LIFE: Duration = Duration::from_secs(1);

    pub(super) fn new(config: &'a Arc<ClientConfig>, node: &'a Arc<NodeState>, queue: &'a OperationQueue) -> Self {
        Self { config, node, queue, connection: None, opened_at: Instant::now(), is_lost: false, connecting: None }
    }

    pub(super) fn connection(&self) -> Option<&Arc<dyn Connection>> {
        self.connection.as_ref()
    }

    /// A call has lost the connection.
    pub(super) fn lose(&mut self) {
        (self.connection, self.is_lost) = (None, true);
    }

    /// Chooses the connection for a call, while no other call is in flight: the node's idle connection, else the last one,
    /// if it is still open, else a new one.
    ///
    /// A probe has tested the idle connection after the last call. The last connection may have been lost in the outage
    /// before the probe, without an end of file: its next call would fail by the deadline.
    ///
    /// The server may have closed an idle connection, or restarted. So a connection is checked before the first of several
    /// concurrent calls: operations that were not sent on a closed connection can be sent on another one, and nothing is
    /// ever sent twice.
    pub(super) async fn prepare(&mut self, control: &mut LoadControl) {
        if let Some(connection) = idle_connection(self.node).await {
            control.reset_connection(self.is_lost);
            self.set(connection);
        } else if let Some(connection) = &self.connection
            && (mistake!(ClosedConnectionIsUsed) || connection.is_open().await)
        {
            self.is_lost = false;
        } else {
            self.connection = None;
            control.reset_connection(self.is_lost);
            self.connect().await;
        }
    }

    /// Waits for operations. If the server closes the connection meanwhile, opens another one, so that the next operation
    /// does not wait for that.
    pub(super) async fn wait_while_idle(
        &mut self,
        control: &mut LoadControl,
        mut waiting: Pin<&mut impl Future<Output = ()>>,
    ) {
        if let Some(connection) = &self.connection {
            if let Either::Left(_) = select(waiting.as_mut(), connection.closed()).await {
                return;
            }
            if self.opened_at.elapsed() >= Self::MIN_LIFE {
                let mut attempt = self.attempt();
                match select(waiting.as_mut(), &mut attempt.result).await {
                    Either::Left(_) => {
                        self.connecting = Some(attempt);
                        return;
                    }
                    Either::Right((Ok(connection), _)) => {
                        control.reset_connection(false);
                        self.set(Arc::from(connection));
                        return;
                    }
                    // The next call tries again, and reports the error.
                    Either::Right((Err(_), _)) => self.connection = None,
                }
            }
        }
        waiting.await;
    }

    fn set(&mut self, connection: Arc<dyn Connection>) {
        (self.connection, self.opened_at, self.is_lost) = (Some(connection), Instant::now(), false);
    }

    /// Returns the attempt that is under way, unless it is too old, or a new one.
    fn attempt(&mut self) -> Attempt {
        let under_way = self.connecting.take().filter(|attempt| attempt.started_at.elapsed() < CONNECT_TIMEOUT);
        under_way.unwrap_or_else(|| self.new_attempt())
    }

    fn new_attempt(&self) -> Attempt {
        let result = self.config.health.server.connect(self.node.index);
        Attempt { result, started_at: Instant::now() }
    }

    /// Opens a connection. Callers meanwhile wait by their own deadlines.
    async fn connect(&mut self) {
        let (config, health) = (self.config, &self.config.health);
        // An earlier attempt may fail because the server was not reachable when it began.
        let mut may_retry = self.connecting.is_some();
        let mut attempt = self.attempt();
        loop {
            let started_at = Instant::now();
            let error = match select(&mut attempt.result, pin!(sleep(config.deadline))).await {
                Either::Left((Ok(connection), _)) => return self.set(Arc::from(connection)),
                Either::Left((Err(_), _)) if may_retry => {
                    (attempt, may_retry) = (self.new_attempt(), false);
                    continue;
                }
                Either::Left((Err(failure), _)) => {
                    health.record_failure(self.node, started_at, &failure.error);
                    self.queue.fail_all(&failure.error);
                    return;
                }
                Either::Right(_) => Error::unavailable(format!(
                    "connecting to Redis ({}) failed: no connection within the deadline of {:?}; check that the server \
                     is reachable",
                    health.server.describe(),
                    config.deadline
                )),
            };
            health.record_failure(self.node, started_at, &error);
            self.queue.drop_cancelled();
            if self.node.breaker.check().is_err() {
                // The probing task connects too, and leaves its connection as the node's idle one. But its runtime may
                // not be driven, so the next call goes on with this attempt.
                self.queue.fail_all(&error);
                self.connecting = Some(attempt);
                return;
            }
            if let Some(connection) = idle_connection(self.node).await {
                return self.set(connection);
            }
        }
    }
}

async fn idle_connection(node: &NodeState) -> Option<Arc<dyn Connection>> {
    if mistake!(TestedConnectionIsNotUsed) {
        return None;
    }
    let connection = node.take_idle()?;
    connection.is_open().await.then_some(connection)
}
