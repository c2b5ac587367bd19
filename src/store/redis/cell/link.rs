use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use redis::{Cmd, RedisError, Value};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use crate::error::Error;
use crate::limiter::LimiterFuture;
use crate::store::inner::runtime::{Sleep, sleep};
use crate::store::redis::connect::{Connection, Failure, no_runtime};
use crate::store::redis::health::ServerHealth;

/// The connection of a `RedisCell`: concurrent commands share it, and each is a call of its own.
///
/// A command is sent once: a missing reply does not prove that the server did not run it.
pub(super) struct CellLink {
    pub(super) health: ServerHealth,
    pub(super) deadline: Duration,
    state: Mutex<LinkState>,
    /// Locked while the connection is checked or opened.
    opening: AsyncMutex<()>,
}

#[derive(Default)]
struct LinkState {
    connection: Option<Arc<dyn Connection>>,
    /// When the first command was sent after the last reply.
    silent_since: Option<Instant>,
}

impl CellLink {
    /// After so many deadlines without a reply the connection is replaced, although all callers may have gone before theirs.
    const MAX_SILENCE: u32 = 4;

    pub(super) fn new(health: ServerHealth, deadline: Duration) -> Self {
        Self { health, deadline, state: Mutex::default(), opening: AsyncMutex::default() }
    }

    /// Sends a command, and reads the reply. A command whose future is dropped before it was sent is not sent.
    pub(super) fn send<T: Send + 'static>(
        self: &Arc<Self>,
        command: Cmd,
        within: Duration,
        read: impl FnOnce(Value) -> Result<T, Error> + Send + 'static,
    ) -> LimiterFuture<T> {
        let timer = sleep(within).ok_or_else(no_runtime);
        match timer.and_then(|timer| self.health.node(0).breaker.check().map(|()| timer)) {
            Err(error) => LimiterFuture::ready(Err(error)),
            Ok(timer) => {
                let link = Arc::clone(self);
                LimiterFuture::pending(async move { read(link.call(command, timer, within).await?) })
            }
        }
    }

    async fn call(&self, command: Cmd, timer: Sleep, within: Duration) -> Result<Value, Error> {
        let (node, started_at, address) = (self.health.node(0), Instant::now(), self.health.server.describe());
        let mut used = None;
        let replied = {
            let calling = pin!(async {
                let reply = used.insert(self.usable_connection().await?).call(0, Arc::new(command)).await;
                reply.map_err(|error| classify(error, address))
            });
            match select(calling, pin!(timer)).await {
                Either::Left((replied, _)) => replied,
                Either::Right(_) => Err(Failure::timed_out(format!(
                    "CL.THROTTLE failed: Redis ({address}) did not reply within the deadline of {within:?}, and the cost \
                     may have been charged; raise `deadline` or check the server"
                ))),
            }
        };
        let failure = replied.as_ref().err();
        if failure.is_none_or(|failure| failure.server_responded) {
            self.state().silent_since = None;
            self.health.record_success(&node);
        } else if let Some(failure) = failure {
            self.health.record_failure(&node, started_at, &failure.error);
        }
        if let (Some(true), Some(used)) = (failure.map(|failure| failure.reconnect), used) {
            used.give_up();
            self.state().connection.take_if(|current| Arc::ptr_eq(current, &used));
        }
        replied.map_err(|failure| failure.error)
    }

    /// Returns the last connection if it is still open, else a new one.
    async fn usable_connection(&self) -> Result<Arc<dyn Connection>, Failure> {
        // Another command uses it.
        if let Some(connection) = self.last_connection().filter(|connection| Arc::strong_count(connection) > 2) {
            return Ok(connection);
        }
        let _opening = self.opening.lock().await;
        if let Some(connection) = self.last_connection()
            && connection.is_open().await
        {
            return Ok(connection);
        }
        let connection: Arc<dyn Connection> = Arc::from(self.health.server.connect(0).await?);
        *self.state() = LinkState { connection: Some(Arc::clone(&connection)), silent_since: Some(Instant::now()) };
        Ok(connection)
    }

    /// Returns the last connection, unless it has been silent for too long.
    fn last_connection(&self) -> Option<Arc<dyn Connection>> {
        let mut state = self.state();
        let silence = state.silent_since.get_or_insert_with(Instant::now).elapsed();
        state.connection.clone().filter(|_| silence < self.deadline * Self::MAX_SILENCE)
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Classifies an error of CL.THROTTLE.
fn classify(error: RedisError, address: &str) -> Failure {
    let detail = error.detail().unwrap_or_default();
    let cause = if detail.contains("nknown command") {
        "this Redis has no CL.THROTTLE; load the module redis-cell, or use Dragonfly"
    } else if detail.contains("wrong type") {
        "a key of the limiter holds another type; choose another prefix"
    } else if error.code() == Some("NOPERM") {
        "the user (ACL) may not run it on the limiter's keys; grant CL.THROTTLE and the keys"
    } else {
        return Failure::of_call(error, address);
    };
    Failure::server_responded(Error::unavailable(format!("CL.THROTTLE ({address}) failed: {cause}")).with_source(error))
}
