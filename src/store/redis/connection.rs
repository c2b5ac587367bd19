use std::sync::Arc;

use redis::aio::ConnectionLike;
use redis::{Cmd, RedisError, Value};

use crate::limiter::BoxFuture;

/// A connection that many calls share: clones of it send through the same pipe.
pub(super) trait Connection: Send + Sync {
    fn call(&self, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Connection for C {
    fn call(&self, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
        let mut connection = self.clone();
        Box::pin(async move { connection.req_packed_command(&command).await.and_then(Value::extract_error) })
    }
}
