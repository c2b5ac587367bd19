//! Goodput under overload with impatient clients: two processes, each with its own connections, share a limit in Redis.
//!
//! In real time, so the load is short: set `GOODPUT_SECONDS` for a longer one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::key::Global;
use tower_ratelimit::limiter::BoxFuture;
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{
    FixedWindow, Gcra, LeakyQueue, Quota, RateLimitLayer, Redis, RedisServer, SlidingLog, SlidingWindow,
};

use crate::helpers::redis_limiter;
use crate::server::Server;

/// The rate, in requests per second.
const RATE: u32 = 20;
const CLIENT_TIMEOUT: Duration = Duration::from_millis(1500);
const MAX_WAIT: Duration = Duration::from_secs(3);

fn seconds() -> u32 {
    std::env::var("GOODPUT_SECONDS").map_or(5, |text| text.parse().expect("GOODPUT_SECONDS: a number"))
}

/// Returns the requests that both processes forwarded in each second.
async fn served(processes: [Redis<()>; 2], started: Instant) -> Vec<usize> {
    let counts: Arc<Vec<AtomicUsize>> = Arc::new((0..=seconds()).map(|_| AtomicUsize::new(0)).collect());
    let services = processes.map(|limiter| {
        let counts = Arc::clone(&counts);
        let inner = service_fn(move |()| {
            let second = usize::try_from(started.elapsed().as_secs()).expect("a short time");
            if let Some(count) = counts.get(second) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            std::future::ready(Ok::<_, BoxError>(()))
        });
        RateLimitLayer::new(Global, limiter).responder(RejectWithError).max_wait(MAX_WAIT).layer(inner)
    });
    // 1.5 times the rate, alternately to both processes.
    for index in 0..seconds() * RATE * 3 / 2 {
        sleep_until(started + Duration::from_secs(1) * index * 2 / (RATE * 3)).await;
        let call: BoxFuture<Result<(), BoxError>> = Box::pin(services[index as usize % 2].clone().oneshot(()));
        tokio::spawn(timeout(CLIENT_TIMEOUT, call));
    }
    sleep_until(started + Duration::from_secs(1) * seconds()).await;
    counts.iter().take(seconds() as usize).map(|count| count.load(Ordering::Relaxed)).collect()
}

fn two<L: IntoRedisLimits<()>>(server: &RedisServer, name: &str, limit: impl Fn() -> L) -> [Redis<()>; 2] {
    [(); 2].map(|()| redis_limiter(server.clone(), name, limit()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goodput_with_impatient_clients_of_two_processes() {
    let redis = Server::start();
    let server = redis.open();
    let quota = Quota::per_second(RATE.into());
    let limiters = [
        ("LeakyQueue", two(&server, "queue", || LeakyQueue::new(quota).max_waiting(100))),
        ("Gcra, burst 1", two(&server, "gcra", || Gcra::new(quota).burst(1))),
        ("Gcra, burst 20", two(&server, "burst", || Gcra::new(quota))),
        ("FixedWindow", two(&server, "window", || FixedWindow::new(quota))),
        ("SlidingWindow", two(&server, "sliding", || SlidingWindow::new(quota).blocks(50))),
        ("SlidingLog", two(&server, "log", || SlidingLog::new(quota))),
    ];
    let started = Instant::now();
    let loads: Vec<_> =
        limiters.into_iter().map(|(name, processes)| (name, tokio::spawn(served(processes, started)))).collect();
    for (name, load) in loads {
        let spans = load.await.expect("the load");
        println!("{name:<16} served per second, of {RATE}: {spans:?}");
        // Windows of one second are not aligned to the seconds of the test, so the test sums the whole time.
        let (total, of) = (spans.iter().sum::<usize>(), (RATE * seconds()) as usize);
        assert!(total * 100 >= of * 80, "{name}: {spans:?}");
    }
}
