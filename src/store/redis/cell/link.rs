use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::error::Error;
use crate::limiter::LimiterFuture;
use crate::store::inner::runtime::{Sleep, sleep};
use crate::store::redis::connect::{Connection, Failure, Opening, no_runtime, runtime_ends};
use crate::store::redis::health::ServerHealth;

/// The connection of a `RedisCell`: concurrent commands share it, and each is a call of its own.
///
/// A command is sent once: a missing reply does not prove that the server did not run it.
pub(super) struct CellLink {
    pub(super) health: ServerHealth,
    pub(super) deadline: Duration,
    state: Mutex<LinkState>,
    /// Locked while the connection is checked or opened.
    opening: Opening,
}

#[derive(Default)]
struct LinkState {
    connection: Option<Arc<dyn Connection>>,
    /// The number of commands sent since the last reply, and when the first of them was sent.
    unanswered: Option<(u64, Instant)>,
}

impl CellLink {
    /// After so many deadlines and [`MAX_UNANSWERED`](Self::MAX_UNANSWERED) commands without a reply, the connection is
    /// replaced, although all callers may have gone before their deadlines.
    const MAX_SILENCE: u32 = 4;
    /// The callers of fewer commands may have gone before replies that the server sent, and a pause came after them.
    const MAX_UNANSWERED: u64 = 64;

    pub(super) fn new(health: ServerHealth, deadline: Duration) -> Self {
        Self { health, deadline, state: Mutex::default(), opening: Opening::default() }
    }

    /// Sends a command, and reads the reply. A command whose future is dropped before it was sent is not sent.
    pub(super) fn send<T: Send + 'static>(
        self: &Arc<Self>,
        command: Cmd,
        within: Duration,
        read: impl FnOnce(Value) -> Result<T, Error> + Send + 'static,
    ) -> Result<LimiterFuture<T>, Error> {
        let timer = sleep(within).ok_or_else(no_runtime)?;
        self.health.node(0).breaker.check()?;
        let link = Arc::clone(self);
        Ok(LimiterFuture::pending(async move { read(link.call(command, timer, within).await?) }))
    }

    async fn call(self: &Arc<Self>, command: Cmd, timer: Sleep, within: Duration) -> Result<Value, Error> {
        let (health, started_at) = (&self.health, Instant::now());
        let mut used = None;
        let replied = {
            let calling = pin!(async {
                let connection = used.insert(self.usable_connection().await?);
                self.state().unanswered.get_or_insert_with(|| (0, Instant::now())).0 += 1;
                let reply = connection.call(0, Arc::new(command)).await;
                reply.map_err(|error| Failure::of("the call", error, health.server.describe()))
            });
            match select(calling, pin!(timer)).await {
                Either::Left((replied, _)) => replied,
                Either::Right(_) => Err(Failure::unusable(Error::unavailable(
                    health.timeout_message(within, "the cost may have been charged"),
                ))),
            }
        };
        let failure = replied.as_ref().err();
        health.record_end(&health.node(0), started_at, failure);
        if failure.is_none_or(|failure| !failure.reconnect) {
            self.state().unanswered = None;
        } else if let Some(used) = used {
            used.give_up();
            self.state().connection.take_if(|current| Arc::ptr_eq(current, &used));
        }
        replied.map_err(|failure| failure.error)
    }

    /// Returns the last connection if it is still open, else a new one.
    async fn usable_connection(self: &Arc<Self>) -> Result<Arc<dyn Connection>, Failure> {
        // Another command uses it.
        if let Some(connection) = self.last_connection().filter(|connection| Arc::strong_count(connection) > 2) {
            return Ok(connection);
        }
        let opening = self.opening.begin().await;
        if let Some(connection) = self.last_connection()
            && connection.is_open().await
        {
            return Ok(connection);
        }
        let Ok(runtime) = Handle::try_current() else { return Err(Failure::unusable(no_runtime())) };
        let link = Arc::clone(self);
        // A task: if opening takes longer than the deadline, the connection serves a later command.
        let opened = runtime.spawn(async move {
            let _opening = opening;
            let connection = link.health.server.open(0, link.deadline).await?;
            *link.state() = LinkState { connection: Some(Arc::clone(&connection)), unanswered: None };
            Ok(connection)
        });
        opened.await.unwrap_or_else(|_| Err(Failure::unusable(runtime_ends())))
    }

    /// Returns the last connection, unless it has been silent for too long.
    fn last_connection(&self) -> Option<Arc<dyn Connection>> {
        let state = self.state();
        let is_silent = state.unanswered.is_some_and(|(commands, since)| {
            commands >= Self::MAX_UNANSWERED && since.elapsed() >= self.deadline.saturating_mul(Self::MAX_SILENCE)
        });
        state.connection.clone().filter(|_| !is_silent)
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
