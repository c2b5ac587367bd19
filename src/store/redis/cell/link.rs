use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use redis::{Cmd, RedisError, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::error::Error;
use crate::store::inner::runtime::sleep;
use crate::store::redis::connect::{Connection, Failure, no_runtime};
use crate::store::redis::health::ServerHealth;

/// The connection of a `RedisCell`: concurrent commands share it, and each is a call of its own.
///
/// A command is sent once: a missing reply does not prove that the server did not run it.
pub(super) struct CellLink {
    pub(super) health: ServerHealth,
    pub(super) deadline: Duration,
    /// Locked while the connection is checked or opened.
    connection: Mutex<Option<Arc<dyn Connection>>>,
    /// The commands since the last reply whose callers have gone.
    abandoned: AtomicU32,
}

/// Counts a command whose caller goes before the reply.
struct Abandoned<'a>(&'a AtomicU32);

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl CellLink {
    /// After so many commands without a reply, the connection is replaced, although no command has reached its deadline.
    const MAX_ABANDONED: u32 = 64;

    pub(super) fn new(health: ServerHealth, deadline: Duration) -> Self {
        Self { health, deadline, connection: Mutex::default(), abandoned: AtomicU32::new(0) }
    }

    /// Sends a command, and waits for the reply. A command whose future is dropped before it was sent is not sent.
    ///
    /// # Errors
    ///
    /// At once if the circuit breaker is open, or if there is no tokio runtime with a timer.
    pub(super) fn call(
        self: &Arc<Self>,
        command: Cmd,
        within: Duration,
    ) -> Result<impl Future<Output = Result<Value, Error>> + Send + 'static, Error> {
        let timer = sleep(within).ok_or_else(no_runtime)?;
        let node = self.health.node(0);
        node.breaker.check()?;
        let (link, started_at) = (Arc::clone(self), Instant::now());
        Ok(async move {
            let mut used = None;
            let abandoned = Abandoned(&link.abandoned);
            let replied = {
                let calling = pin!(async {
                    let connection = link.usable_connection().await?;
                    let reply = used.insert(connection).call(0, Arc::new(command)).await;
                    reply.map_err(|error| classify(error, link.health.server.describe()))
                });
                match select(calling, pin!(timer)).await {
                    Either::Left((result, _)) => result,
                    Either::Right(_) => Err(Failure::timed_out(format!(
                        "CL.THROTTLE failed: Redis ({}) did not reply within the deadline of {within:?}, and the cost may \
                         have been charged; raise `deadline` or check the server",
                        link.health.server.describe()
                    ))),
                }
            };
            std::mem::forget(abandoned);
            link.abandoned.store(0, Ordering::Relaxed);
            let failure = match replied {
                Ok(value) => {
                    link.health.record_success(&node);
                    return Ok(value);
                }
                Err(failure) => failure,
            };
            if let (true, Some(used)) = (failure.reconnect, used) {
                used.give_up();
                link.connection.lock().await.take_if(|current| Arc::ptr_eq(current, &used));
            }
            if failure.server_responded {
                link.health.record_success(&node);
            } else {
                link.health.record_failure(&node, started_at, &failure.error);
            }
            Err(failure.error)
        })
    }

    /// Returns the last connection if it is still open, else a new one.
    async fn usable_connection(&self) -> Result<Arc<dyn Connection>, Failure> {
        let mut current = self.connection.lock().await;
        if let Some(connection) = &*current
            && self.abandoned.load(Ordering::Relaxed) < Self::MAX_ABANDONED
            // Another command uses it.
            && (Arc::strong_count(connection) > 1 || connection.is_open().await)
        {
            return Ok(Arc::clone(connection));
        }
        let connection = Arc::from(self.health.server.connect(0).await?);
        self.abandoned.store(0, Ordering::Relaxed);
        Ok(Arc::clone(current.insert(connection)))
    }
}

/// Classifies an error of CL.THROTTLE.
fn classify(error: RedisError, address: &str) -> Failure {
    let detail = error.detail().unwrap_or_default();
    let cause = if detail.contains("nknown command") {
        "this Redis has no CL.THROTTLE; load the module redis-cell, or use Dragonfly"
    } else if detail.contains("wrong type") || error.code() == Some("WRONGTYPE") {
        "a key of the limiter holds another type; choose another prefix"
    } else if error.code() == Some("NOPERM") {
        "the user (ACL) may not run it on the limiter's keys; grant CL.THROTTLE and the keys"
    } else {
        let failure = Failure::of_call(error.clone(), address);
        if !failure.server_responded {
            return failure;
        }
        "Redis returned an error; see the source of this error"
    };
    Failure::server_responded(Error::unavailable(format!("CL.THROTTLE ({address}) failed: {cause}")).with_source(error))
}
