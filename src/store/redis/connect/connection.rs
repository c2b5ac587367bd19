use std::sync::Arc;

use redis::{Cmd, Pipeline, RedisError, Value};

use crate::limiter::BoxFuture;

/// A connection that many calls share: clones of it send through the same pipe.
pub(crate) trait Connection: Send + Sync {
    /// Sends a command whose keys are all in this slot.
    fn call(&self, slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>>;

    /// Sends several commands at once. Each has its own reply, which may be an error of the server's.
    fn pipe(&self, commands: Arc<Pipeline>) -> BoxFuture<Result<Vec<Value>, RedisError>>;

    /// Whether the connection is still open, as far as is known without asking the server. For one with no call under way.
    fn is_open(&self) -> BoxFuture<bool>;
}
