use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisError, Value};

use crate::limiter::BoxFuture;

/// A connection that a line sends all its calls through.
pub(super) struct Carrier {
    connection: Arc<dyn Connection>,
    is_lost: AtomicBool,
}

impl Carrier {
    pub(super) fn new(connection: Arc<dyn Connection>) -> Self {
        Self { connection, is_lost: AtomicBool::new(false) }
    }

    /// Notes that it was lost. Returns whether that is news: all calls under way fail by it.
    pub(super) fn lose(&self) -> bool {
        !self.is_lost.swap(true, Ordering::AcqRel)
    }
}

impl Deref for Carrier {
    type Target = dyn Connection;

    fn deref(&self) -> &Self::Target {
        &*self.connection
    }
}

/// A connection that many calls share: clones of it send through the same pipe.
pub(super) trait Connection: Send + Sync {
    /// Sends a command whose keys are all in this slot.
    fn call(&self, slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>>;

    /// Sends several commands at once. Each has its own reply, which may be an error of the server's.
    fn pipe(&self, commands: Arc<Pipeline>) -> BoxFuture<Result<Vec<Value>, RedisError>>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Connection for C {
    fn call(&self, _slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_command(&command).await.and_then(Value::extract_error) })
    }

    fn pipe(&self, commands: Arc<Pipeline>) -> BoxFuture<Result<Vec<Value>, RedisError>> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_commands(&commands, 0, commands.len()).await })
    }
}
