use std::sync::Arc;

use redis::{Cmd, RedisError, Value};

use crate::store::inner::BoxFuture;

/// A connection that many concurrent calls share.
///
/// Calls are sent in the order in which their futures are first polled, each without waiting for earlier replies.
pub(crate) trait Connection: Send + Sync {
    /// Sends a command whose keys are all in this cluster slot.
    fn call(&self, slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>>;

    /// Whether the connection is still open, as far as the client knows without asking the server.
    ///
    fn is_open(&self) -> BoxFuture<bool>;

    /// A call has found that the connection is lost.
    fn give_up(&self) {}
}
