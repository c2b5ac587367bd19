//! The commands of a batch travel in one pipeline, and each has its own reply. In virtual time.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Pipeline, RedisError, Value, parse_redis_value};
use tokio::time::sleep;

use super::connect::{Connection, Connector};
use super::{RedisCell, RedisServer};
use crate::store::inner::BoxFuture;
use crate::{AcquireOptions, Limiter, Quota};

/// A server that has no memory for one key.
struct FullForOneKey;

impl Connection for FullForOneKey {
    fn call(&self, _: u16, _: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
        unreachable!("`RedisCell` sends pipelines")
    }

    fn call_all(&self, commands: Pipeline) -> BoxFuture<Result<Vec<Value>, RedisError>> {
        let reply = |command: &Cmd| {
            let is_full = String::from_utf8_lossy(&command.get_packed_command()).contains(":full");
            let reply = if is_full { "-OOM full\r\n" } else { "*5\r\n:0\r\n:20\r\n:19\r\n:-1\r\n:1\r\n" };
            parse_redis_value(reply.as_bytes())
        };
        let replies = commands.cmd_iter().map(reply).collect();
        Box::pin(async move {
            sleep(Duration::from_millis(1)).await;
            replies
        })
    }

    fn is_open(&self) -> BoxFuture<bool> {
        Box::pin(ready(true))
    }
}

impl Connector for FullForOneKey {
    fn connect(&self, _: usize, _: Duration) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>> {
        Box::pin(ready(Ok(Arc::new(Self) as Arc<dyn Connection>)))
    }

    fn describe(&self) -> &'static str {
        "a full server"
    }
}

/// A command that fails beside others is no outage.
#[tokio::test(start_paused = true)]
async fn commands_on_other_keys_are_answered_beside_one_that_fails() {
    let limiter = RedisCell::new(RedisServer(Arc::new(FullForOneKey)), "api", Quota::per_second(10));
    for round in 0..10 {
        let calls = ["a", "full", "b"].map(|key| limiter.acquire(key, AcquireOptions::default()));
        let are_ok: Vec<_> = join_all(calls).await.iter().map(Result::is_ok).collect();
        assert_eq!(are_ok, [true, false, true], "round {round}");
    }
}
