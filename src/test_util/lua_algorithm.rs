//! The Lua implementation of an algorithm, compared with the one in Rust.

use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::LuaAlgorithm;
use crate::clock::{Clock, ManualClock, Timestamp};
use crate::decision::{AcquireOptions, LimitStatus};
use crate::limiter::Limiter;
use crate::random::Random;
use crate::response::BoxError;
use crate::store::{Memory, Redis, RedisServer};

const TRACES: u64 = 20;
const STEPS: u64 = 60;

/// Compares the decisions of an algorithm in Redis with those in memory, field by field, on random requests, holds and
/// times. Returns how many requests were decided.
///
/// The keys begin with the prefix `check`, and expire after a day. The server must be one for tests.
///
/// # Errors
///
/// Returns the first difference with what leads to it, or the first error of the server.
pub async fn check_lua_algorithm<A: LuaAlgorithm + Clone>(
    algorithm: &A,
    server: &RedisServer,
) -> Result<u64, BoxError> {
    // A name that no earlier run has used: what the server stores is not removed.
    let run = crate::clock::SystemClock::new().now().as_micros();
    let mut decided = 0;
    for seed in 0..TRACES {
        let (mut random, mut steps, mut guards) = (Random::new(seed), Vec::new(), Vec::new());
        let clock = ManualClock::at(Timestamp::from_micros((1 << 50) + random.below(1 << 40)));
        let memory: Memory<str, _> = Memory::builder(algorithm.clone()).clock(clock.clone()).build()?;
        let redis = Redis::builder(server.clone(), &format!("{run}-{seed}"), algorithm.clone()).prefix("check");
        let mut redis = redis.hold_expiry(Duration::from_secs(24 * 60 * 60)).deadline(Duration::from_secs(30));
        redis.settings.clock = Some(Arc::new(clock.clone()));
        let redis: Redis<str> = redis.build()?;
        let limit = memory.check("never seen", 0).most_restrictive().map_or(1, LimitStatus::limit);
        let max_reset = crate::clock::micros_floor(algorithm.max_reset()).clamp(1, 1 << 45);
        for _ in 0..STEPS {
            let span = random.choose(&[1, max_reset / 16, 2 * max_reset]);
            clock.advance(Duration::from_micros(random.below(span + 1)));
            let cost = [1, 1, random.below(limit.saturating_add(2)), limit.saturating_add(1)][random.index(4)];
            let delay = Duration::from_micros(random.below(max_reset));
            let options = AcquireOptions::cost(cost).keep_guard();
            let options = options.max_delay([None, Some(Duration::ZERO), Some(delay)][random.index(3)]);
            let options = if random.below(4) == 0 { options.hold() } else { options };
            steps.push(format!("at {:?}: {options:?}", clock.now()));
            let [in_memory, in_redis] = [memory.acquire("key", options).await?, redis.acquire("key", options).await?];
            if in_memory.decision != in_redis.decision {
                return Err(format!(
                    "the decision in Redis differs: {:?}\nin memory: {:?}\nafter these requests:\n{}",
                    in_redis.decision,
                    in_memory.decision,
                    steps.join("\n")
                )
                .into());
            }
            guards.extend(in_memory.held.zip(in_redis.held));
            if random.below(3) == 0
                && let Some((one, other)) = guards.pop()
            {
                let actual = random.below(one.cost().saturating_mul(2).saturating_add(1));
                steps.push(format!("settled with {actual}"));
                one.settle(actual).await?;
                other.settle(actual).await?;
            }
            decided += 1;
        }
    }
    Ok(decided)
}
