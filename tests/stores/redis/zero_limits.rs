//! Limits of zero.

use std::time::Duration;

use tower_ratelimit::store::RedisLimit;
use tower_ratelimit::{
    AcquireOptions, Decision, DynLimit, FixedWindow, Gcra, InFlight, LeakyBucket, LeakyQueue, Limit, ManualClock,
    Memory, Quota, SlidingLog, SlidingWindow, TokenBucket, per_key,
};

use crate::helpers::{acquire, redis_limiter};
use crate::random::Random;
use crate::server::Server;

/// A tenant whose plan may have no units.
struct Tenant {
    id: u64,
    has_units: bool,
}

/// Calls a macro with the name and a constructor, by the quota, of each algorithm.
macro_rules! for_each_algorithm {
    ($limits:ident) => {
        vec![
            $limits!("gcra", Gcra::new),
            $limits!("token-bucket", |quota| TokenBucket::new(quota).burst(3)),
            $limits!("leaky-bucket", LeakyBucket::new),
            $limits!("leaky-queue", |quota| LeakyQueue::new(quota).max_waiting(2)),
            $limits!("fixed-window", FixedWindow::new),
            $limits!("sliding-window", SlidingWindow::new),
            $limits!("weighted", |quota| SlidingWindow::new(quota).weighted()),
            $limits!("sliding-log", SlidingLog::new),
            $limits!("in-flight", |quota: Quota| InFlight::new(quota.limit())),
        ]
    };
}

macro_rules! tiers {
    ($kind:ident, $algorithm:expr) => {{
        let algorithm = $algorithm;
        let tier = move |tenant: &Tenant| algorithm(Quota::per_hour(if tenant.has_units { 4 } else { 0 }));
        $kind::new(Limit::new("tier", per_key(tier)).keyed_by(|tenant: &Tenant| tenant.id))
    }};
}

macro_rules! in_memory {
    ($name:expr, $algorithm:expr) => {
        ($name, tiers!(DynLimit, $algorithm))
    };
}

macro_rules! in_redis {
    ($name:expr, $algorithm:expr) => {
        tiers!(RedisLimit, $algorithm)
    };
}

/// The law: in a tier of zero, each request with a cost exceeds the limit, whatever the tenant has used in another tier; a
/// cost of zero passes; and the other tier decides as if the tier of zero had not been asked.
#[tokio::test]
async fn limit_of_zero_exceeds_each_cost_in_memory_and_redis() {
    let server = Server::start();
    let mut random = Random::new(9);
    for ((name, memory), redis) in for_each_algorithm!(in_memory).into_iter().zip(for_each_algorithm!(in_redis)) {
        let memory = Memory::builder(vec![memory]).max_keys(100).clock(ManualClock::new()).build().expect("limits");
        let redis = redis_limiter(server.open(), name, vec![redis]);
        let holds = name == "in-flight";
        for _ in 0..60 {
            let tenant = Tenant { id: random.below(3), has_units: random.below(2) == 0 };
            let cost = random.choose(&[0, 1, 1, 2, 5, u64::MAX]);
            let mut options = AcquireOptions::cost(cost).max_delay(Duration::from_secs(random.choose(&[0, 7_200])));
            if holds {
                options = options.hold();
            }
            let in_memory = acquire(&memory, &tenant, options).await.expect("a decision");
            let in_redis = acquire(&redis, &tenant, options).await.expect("a decision");
            let numbers = |decision: &Decision| (decision.is_allowed(), decision.remaining());
            for decision in [&in_memory.decision, &in_redis.decision] {
                if !tenant.has_units {
                    assert_eq!(decision.exceeds_limit(), cost > 0, "{name}, cost {cost}: {decision:?}");
                    assert_eq!(decision.remaining(), Some(0), "{name}, cost {cost}: {decision:?}");
                    assert!(cost == 0 || decision.retry_after().is_none(), "{name}, cost {cost}: {decision:?}");
                }
            }
            // The release of a place in Redis may come after the next request.
            if !holds {
                assert_eq!(numbers(&in_memory.decision), numbers(&in_redis.decision), "{name}, cost {cost}");
            }
        }
    }
}
