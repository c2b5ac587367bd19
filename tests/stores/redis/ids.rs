//! What the tests of ids share: limiters with a clock of the test, in Redis and in memory.

use std::time::Duration;

use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{AcquireOptions, BoxLimiter, Limiter, ManualClock, Quota, Redis, RedisServer};

use crate::helpers::LONG_DEADLINE;
use crate::reservation_model::{LIMIT, MAX_IDS};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HUNDRED: Quota = Quota::per_day(LIMIT);

pub(crate) async fn left<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key) -> u64 {
    let peeked = limiter.peek(key, AcquireOptions::cost(0)).await.expect("an answer");
    peeked.remaining().expect("a number")
}

/// A limiter in Redis. The clock moves much faster than holds are renewed.
pub(crate) fn with_clock(
    server: RedisServer,
    name: &str,
    limits: impl IntoRedisLimits<str>,
    clock: &ManualClock,
) -> BoxLimiter<str> {
    let builder = Redis::builder(server, name, limits).deadline(LONG_DEADLINE).clock_for_tests(clock.clone());
    let builder = builder.hold_expiry(24 * 60 * MINUTE);
    BoxLimiter::new(builder.max_reservation_ids(MAX_IDS).build().expect("limits"))
}

/// The limits in Redis and in memory, as `BoxLimiter`s: `(server, name, clock, limits)`.
macro_rules! in_redis_and_memory {
    ($server:expr, $name:expr, $clock:expr, $limits:expr) => {
        (
            $crate::ids::with_clock($server.open(), &$name, $limits, $clock),
            tower_ratelimit::BoxLimiter::<str>::new(
                tower_ratelimit::Memory::builder($limits)
                    .clock($clock.clone())
                    .max_reservation_ids($crate::reservation_model::MAX_IDS)
                    .build()
                    .expect("limits"),
            ),
        )
    };
}
pub(crate) use in_redis_and_memory;
