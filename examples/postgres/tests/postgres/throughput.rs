//! Decisions per second, beside Redis: `scripts/postgres throughput`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tower_ratelimit::store::StoreLimits;
use tower_ratelimit::{AcquireOptions, Gcra, Limiter, Quota, Redis};

use crate::random::Random;
use crate::server::Server;
use crate::{create_table, limiter, redis_server, runtime};

const TASKS: u64 = 32;
const TIME: Duration = Duration::from_secs(5);

/// No request is denied: each is read and written.
fn limit() -> Gcra {
    Gcra::new(Quota::per_second(1_000_000))
}

/// Returns the decisions per second of concurrent tasks, on one key or on many.
async fn measure(limiter: Arc<impl Limiter<u64>>, keys: u64) -> u128 {
    let (begin, mut tasks) = (Instant::now(), JoinSet::new());
    for task in 0..TASKS {
        let limiter = Arc::clone(&limiter);
        tasks.spawn(async move {
            let mut decisions = 0_u128;
            let mut random = Random::new(task);
            while begin.elapsed() < TIME {
                let outcome = limiter.acquire(&random.below(keys), AcquireOptions::default()).await;
                decisions += u128::from(outcome.expect("a decision").decision.is_allowed());
            }
            decisions
        });
    }
    let decisions: u128 = tasks.join_all().await.into_iter().sum();
    decisions * 1_000 / begin.elapsed().as_millis()
}

#[test]
#[ignore = "a measurement: scripts/postgres throughput"]
fn throughput() {
    let server = Server::start();
    create_table(&server);
    let in_redis = redis_server::Server::start();
    runtime().block_on(async {
        let postgres = Arc::new(limiter(&server.config(), "speed", StoreLimits::new(limit()).expect("a limit")));
        let redis =
            Arc::new(Redis::<u64>::builder(in_redis.open(), "speed", limit()).deadline(TIME).build().expect("limits"));
        for (name, keys) in [("one key", 1), ("10000 keys", 10_000)] {
            let (of_postgres, of_redis) = (measure(postgres.clone(), keys).await, measure(redis.clone(), keys).await);
            println!("{name}: {of_postgres} decisions per second in PostgreSQL, {of_redis} in Redis");
        }
    });
}
