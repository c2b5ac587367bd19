//! Leases beside `Memory`, Redis without leases, and trypema's hybrid mode: decisions of one client thread, one after the
//! other.
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::runtime::Runtime;
use tower_ratelimit::store::Lease;
use tower_ratelimit::{AcquireOptions, Gcra, Limiter, Memory, Quota, Redis};
use trypema::RateLimit;
use trypema::hybrid::HybridRateLimiterProvider;
use trypema::redis::RedisKey;

use crate::harness::{Harness, median};
use crate::server::Server;

/// A limit above the rate of any contestant.
const QUOTA: Quota = Quota::per_second(20_000_000);

pub(super) fn run(harness: &Harness, runtime: &Runtime) {
    for (scenario, keys, millis) in [("redis leases hot", 1, 200), ("redis leases spread", 10_000, 3_000)] {
        if harness.wants(scenario) {
            compare(harness, runtime, scenario, keys, Duration::from_millis(millis));
        }
    }
}

/// Makes enough demand for a lease on each key: several decisions at a time.
async fn demand(limiter: &Redis<u64>, keys: u64) {
    for first in (0..keys).step_by(50) {
        let decisions = (0..400).map(|number| (first + number % 50) % keys);
        let decisions: Vec<_> =
            decisions.map(|key| tokio::spawn(limiter.acquire(&key, AcquireOptions::default()))).collect();
        for decision in decisions {
            let _ = decision.await.expect("no panic").expect("a decision");
        }
    }
}

fn compare(harness: &Harness, runtime: &Runtime, scenario: &str, keys: u64, duration: Duration) {
    let (rounds, span) = if harness.is_quick() { (3, 300) } else { (7, 1_000) };
    let span = Duration::from_millis(span);
    let server = Server::start();
    let redis = |name: &str| {
        let builder = Redis::<u64>::builder(server.open(), name, Gcra::new(QUOTA));
        builder.deadline(Duration::from_secs(5))
    };
    let leased = redis("leased").lease(Lease::new(duration)).build().expect("limits");
    let direct = redis("direct").build().expect("limits");
    let memory = Memory::<u64, _>::new(Gcra::new(QUOTA));
    let hybrid = runtime.block_on(Hybrid::new(&server, keys));
    // Until every key has its lease.
    for _ in 0..2 {
        runtime.block_on(demand(&leased, keys));
        runtime.block_on(decide(&leased, keys, Duration::from_secs(1)));
    }
    let mut rates = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..rounds {
        rates[0].push(runtime.block_on(decide(&leased, keys, span)));
        rates[1].push(runtime.block_on(decide(&memory, keys, span)));
        rates[2].push(runtime.block_on(decide(&direct, keys, span)));
        rates[3].push(runtime.block_on(hybrid.decide(span)));
    }
    let [leased, memory, direct, hybrid] = rates.map(median);
    let values = [("leases", leased), ("memory", memory), ("redis", direct), ("trypema_hybrid", hybrid)];
    harness.report(scenario, json!({ "keys": keys, "lease_ms": duration.as_millis() }), "decisions/s", &values);
}

/// Returns the decisions per second. Yields to the client's tasks every 1000 decisions.
async fn decide(limiter: &impl Limiter<u64>, keys: u64, span: Duration) -> f64 {
    let (began, mut count) = (Instant::now(), 0_u64);
    while began.elapsed() < span {
        for _ in 0..1_000 {
            // Every key in turn.
            match limiter.acquire(&(count % keys), AcquireOptions::default()).try_ready() {
                Ok(outcome) => assert!(outcome.expect("a decision").decision.is_allowed()),
                Err(decision) => {
                    assert!(decision.await.expect("a decision").decision.is_allowed());
                }
            }
            count += 1;
        }
        tokio::task::yield_now().await;
    }
    count as f64 / began.elapsed().as_secs_f64()
}

/// trypema's hybrid limiter with its defaults: counts in the process, and synchronizes with Redis in the background.
struct Hybrid {
    limiter: std::sync::Arc<HybridRateLimiterProvider>,
    keys: Vec<RedisKey>,
    rate: RateLimit,
}

impl Hybrid {
    async fn new(server: &Server, keys: u64) -> Self {
        use trypema::RateLimiterBuilder as _;
        let client = redis::Client::open(server.address()).expect("an address");
        let connection = client.get_connection_manager().await.expect("a connection");
        let keys = (0..keys).map(|key| RedisKey::try_from(format!("key{key}")).expect("a key")).collect();
        let limiter = HybridRateLimiterProvider::builder(connection).build().expect("a limiter");
        Self { limiter, keys, rate: RateLimit::max() }
    }

    /// Returns the decisions per second.
    async fn decide(&self, span: Duration) -> f64 {
        let (began, mut count) = (Instant::now(), 0);
        while began.elapsed() < span {
            for _ in 0..1_000 {
                let key = &self.keys[count % self.keys.len()];
                let local = self.limiter.absolute().try_inc(key.as_key_ref(), 1).expect("a decision");
                if local.is_none() {
                    self.limiter.absolute().inc(key, &self.rate, 1).await.expect("a decision");
                }
                count += 1;
            }
            tokio::task::yield_now().await;
        }
        count as f64 / began.elapsed().as_secs_f64()
    }
}
