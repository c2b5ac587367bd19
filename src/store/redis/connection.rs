use std::sync::Arc;

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisError, Value};

use crate::limiter::BoxFuture;

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
