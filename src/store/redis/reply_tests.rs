//! A server whose replies are arbitrary bytes: no reply may make the client panic, or leave a call unanswered.
//!
//! Runs in virtual time. Used by the fuzz target `replies`, and by a test below.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::time::{sleep, timeout};

use super::connect::{Connection, Connector};
use super::{Lease, Redis, RedisServer};
use crate::store::RedisLimit;
use crate::store::inner::BoxFuture;
use crate::{
    AcquireOptions, Decision, Detail, Error, FixedWindow, Gcra, InFlight, Limit, Limiter, Quota, SlidingLog,
    SlidingWindow, per_key,
};

/// Numbers at the boundaries of the client's arithmetic, besides small ones.
const NUMBERS: [f64; 16] = [
    0.0,
    1.0,
    -1.0,
    -2.0,
    3.0,
    1e6,
    -1e6,
    1.8e15,
    9_007_199_254_740_992.0,
    -9_007_199_254_740_992.0,
    -9_007_199_254_740_991.0,
    -9_007_199_254_740_988.0,
    1e19,
    -1e19,
    f64::NAN,
    f64::INFINITY,
];

/// The rest of the input, from which all replies are taken.
#[derive(Clone)]
struct AnyServer(Arc<Mutex<Vec<u8>>>);

impl AnyServer {
    /// Takes up to `count` bytes from the input.
    fn take(&self, count: usize) -> Vec<u8> {
        let mut rest = self.0.lock().expect("no panic");
        let count = count.min(rest.len());
        rest.drain(..count).collect()
    }

    fn byte(&self) -> Option<u8> {
        self.take(1).first().copied()
    }

    /// Returns the next reply, or `None` if none will come.
    fn reply(&self, keys: u16) -> Option<Result<Value, RedisError>> {
        let kind = self.byte()?;
        let length = usize::from(self.byte()?);
        match kind % 4 {
            0 => None,
            1 => Some(redis::parse_redis_value(&self.take(length)).and_then(Value::extract_error)),
            2 => Some(Ok(Value::BulkString(self.take(length)))),
            _ => Some(Ok(Value::BulkString(self.script_reply(keys, length % 64)))),
        }
    }

    /// A reply of the right form, as documented in `driver.lua`.
    fn script_reply(&self, keys: u16, results: usize) -> Vec<u8> {
        let number = || match self.byte().unwrap_or(0) {
            index @ 0..16 => NUMBERS[usize::from(index)],
            small => f64::from(small) * 1000.0,
        };
        let mut reply = number().to_le_bytes().to_vec();
        let flags = u16::from(self.byte().unwrap_or(0));
        for header in [flags, u16::try_from(results).unwrap_or(0), keys] {
            reply.extend(header.to_le_bytes());
        }
        for _ in 0..results {
            reply.extend(number().to_le_bytes());
        }
        let mut states = Vec::new();
        for _ in 0..keys {
            let shape = self.byte().unwrap_or(0);
            let before = states.len();
            for _ in 0..shape % 16 {
                states.extend(number().to_le_bytes());
            }
            // One more byte marks a key with held costs.
            states.resize(states.len() + usize::from(shape / 128), 0);
            reply.extend(u16::try_from(states.len() - before).unwrap_or(0).to_le_bytes());
        }
        reply.extend(states);
        reply
    }
}

/// The number of keys of a script call; 0 for any other command.
fn key_count(command: &Cmd) -> u16 {
    let text = command.args_iter().nth(2).and_then(|count| match count {
        redis::Arg::Simple(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    });
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Connection for AnyServer {
    fn call(&self, _slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
        let server = self.clone();
        Box::pin(async move {
            match server.reply(key_count(&command)) {
                Some(reply) => reply,
                None => std::future::pending().await,
            }
        })
    }

    fn call_all(&self, commands: Pipeline) -> BoxFuture<Result<Vec<Value>, RedisError>> {
        let calls: Vec<_> = commands.cmd_iter().map(|command| self.call(0, Arc::new(command.clone()))).collect();
        Box::pin(try_join_all(calls))
    }

    fn is_open(&self) -> BoxFuture<bool> {
        Box::pin(std::future::ready(true))
    }
}

impl Connector for AnyServer {
    fn connect(&self, _node: usize, _within: Duration) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>> {
        let connection = self.clone();
        Box::pin(async move { Ok(Arc::new(connection) as Arc<dyn Connection>) })
    }

    fn describe(&self) -> &'static str {
        "any replies"
    }
}

/// Calls a limiter whose server replies with `input`, and waits for each answer.
///
/// # Panics
///
/// Panics if the client panics, or if a call is not answered.
pub fn check(input: &[u8]) {
    let Some((&kind, replies)) = input.split_first() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let server = RedisServer(Arc::new(AnyServer(Arc::new(Mutex::new(replies.to_vec())))));
    runtime.expect("a runtime").block_on(async {
        match kind % 6 {
            0 => call_all(&build(server, bucket(), None)).await,
            1 => call_all(&build(server, bucket(), Some(Lease::new(Duration::from_millis(100))))).await,
            2 => call_all(&build(server, per_key(|_: &str| bucket()), None)).await,
            3 => call_all(&build(server, SlidingLog::new(Quota::per_second(10)), None)).await,
            4 => call_all(&build(server, several(), None)).await,
            _ => {
                #[cfg(feature = "redis-cell")]
                call_redis_cell(server).await;
            }
        }
    });
}

fn bucket() -> Gcra {
    Gcra::new(Quota::per_second(10)).burst(20)
}

fn several() -> Vec<RedisLimit<str>> {
    vec![
        RedisLimit::new(Limit::new("bucket", bucket())),
        RedisLimit::new(Limit::new("window", FixedWindow::new(Quota::per_minute(100)))),
        RedisLimit::new(Limit::new("blocks", SlidingWindow::new(Quota::per_hour(1000)).weighted())),
        RedisLimit::new(Limit::new("log", SlidingLog::new(Quota::per_second(5))).shadow()),
        RedisLimit::new(Limit::new("at once", InFlight::new(3).max_duration(Duration::from_secs(1)))),
    ]
}

fn build(server: RedisServer, limits: impl super::IntoRedisLimits<str>, lease: Option<Lease>) -> Redis<str> {
    let builder = Redis::builder(server, "api", limits);
    let builder = if let Some(lease) = lease { builder.lease(lease) } else { builder };
    builder.build().expect("valid settings")
}

async fn call_all(limiter: &Redis<str>) {
    let options = AcquireOptions::default().detail(Detail::All);
    let mut held = Vec::new();
    for _ in 0..3 {
        // Polled together, so that they share a call.
        let (one, same, other, hold, peek) = tokio::join!(
            answered(limiter.acquire("a", options)),
            answered(limiter.acquire("a", AcquireOptions::cost(3))),
            answered(limiter.acquire("b", options)),
            answered(limiter.acquire("a", options.hold())),
            answered(limiter.peek("b", options)),
        );
        for outcome in [one, same, other, hold].into_iter().flatten() {
            use_decision(&outcome.decision);
            held.extend(outcome.held);
        }
        if let Some(decision) = peek {
            use_decision(&decision);
        }
        let settled = held.pop().map(|guard| guard.settle(2));
        if let Some(settled) = settled {
            answered(settled).await;
        }
        let block = limiter.block("bucket", "a", Duration::from_secs(1));
        tokio::join!(answered(limiter.set_usage("bucket", "b", 5)), answered(block), answered(limiter.reset("b")));
        sleep(Duration::from_millis(150)).await;
    }
    drop(held);
    answered(limiter.health_check()).await;
    answered(limiter.close()).await;
}

#[cfg(feature = "redis-cell")]
async fn call_redis_cell(server: RedisServer) {
    let limiter = super::RedisCell::builder(server, "api", Quota::per_second(10)).burst(20).build();
    let limiter = limiter.expect("valid settings");
    for _ in 0..3 {
        if let Some(outcome) = answered(limiter.acquire("a", AcquireOptions::default())).await {
            use_decision(&outcome.decision);
        }
        if let Some(decision) = answered(limiter.peek("a", AcquireOptions::default())).await {
            use_decision(&decision);
        }
        answered(limiter.reset("a")).await;
    }
}

/// Waits for an answer. Every call has one by its deadline, also if the server is silent.
async fn answered<T>(call: impl IntoFuture<Output = Result<T, Error>>) -> Option<T> {
    let answer = timeout(Duration::from_secs(60), call).await.expect("an answer by the deadline");
    if let Err(error) = &answer {
        let text = error.to_string();
        assert!(!text.contains("panicked") && !text.contains("worker task ended"), "{text}");
    }
    answer.ok()
}

/// Computes all that a decision shows.
fn use_decision(decision: &Decision) {
    let _ = (format!("{decision:?}"), decision.retry_after(), decision.reset(), decision.remaining());
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::check;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_reply_is_answered(
            kind in 0..6u8,
            replies in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 1..60)), 0..12),
        ) {
            let mut input = vec![kind];
            for (reply, bytes) in replies {
                input.push(reply);
                input.extend(bytes);
            }
            check(&input);
        }

        #[test]
        fn any_script_reply_is_answered(
            kind in 0..6u8,
            replies in proptest::collection::vec((1..40u8, proptest::collection::vec(0..24u8, 30)), 1..12),
        ) {
            let mut input = vec![kind];
            for (results, numbers) in replies {
                input.extend([3, results]);
                input.extend(numbers);
            }
            check(&input);
        }
    }

    /// The package has no folder `fuzz`, the repository has it.
    #[test]
    fn replies_of_the_corpus_are_answered() {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
        if !fuzz.exists() {
            return;
        }
        let inputs: Vec<_> = fuzz.join("corpus/replies").read_dir().expect("a corpus").collect();
        assert!(!inputs.is_empty());
        for input in inputs {
            check(&std::fs::read(input.expect("a file").path()).expect("an input"));
        }
    }
}
