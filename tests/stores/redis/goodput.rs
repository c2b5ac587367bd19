//! Goodput under overload with impatient clients: two processes share a limit in Redis.
//!
//! In real time, so the load is short: set `GOODPUT_SECONDS` for a measurement.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep_until, timeout};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::key::Global;
use tower_ratelimit::limiter::{LimiterFuture, LimitsOfKey, Outcome};
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{
    AcquireOptions, FixedWindow, Gcra, LeakyQueue, Limiter, Quota, RateLimitLayer, Redis, RedisServer, SlidingLog,
    SlidingWindow,
};

use crate::exactness::in_runtimes;
use crate::helpers::redis_limiter;
use crate::server::Server;

/// The rate, in requests per second. Both processes together send 1.5 times as many.
const RATE: u32 = 20;
const CLIENT_TIMEOUT: Duration = Duration::from_millis(1500);
const MAX_WAIT: Duration = Duration::from_secs(3);

/// The time of the load, and the length of the windows in which the test counts.
fn times() -> (u64, u64) {
    match std::env::var("GOODPUT_SECONDS") {
        Ok(text) => (text.parse().expect("GOODPUT_SECONDS: a number"), 15),
        Err(_) => (6, 3),
    }
}

/// Each limit, and the part of its rate that it admits at the most: a hit in a sliding window of blocks counts for up
/// to a block longer than the period.
fn limits(server: &RedisServer) -> [(&'static str, f64, Redis<()>); 6] {
    let quota = Quota::per_second(RATE.into());
    [
        ("LeakyQueue", 1.0, redis_limiter(server.clone(), "queue", LeakyQueue::new(quota).max_waiting(100))),
        ("Gcra, burst 1", 1.0, redis_limiter(server.clone(), "gcra", Gcra::new(quota).burst(1))),
        ("Gcra, burst 20", 1.0, redis_limiter(server.clone(), "burst", Gcra::new(quota))),
        ("FixedWindow", 1.0, redis_limiter(server.clone(), "window", FixedWindow::new(quota))),
        ("SlidingWindow", 50.0 / 51.0, redis_limiter(server.clone(), "sliding", SlidingWindow::new(quota).blocks(50))),
        ("SlidingLog", 1.0, redis_limiter(server.clone(), "log", SlidingLog::new(quota))),
    ]
}

/// Records the starts that Redis has admitted, by its clock.
#[derive(Clone)]
struct Recording {
    inner: Redis<()>,
    admitted: Arc<Mutex<Vec<u64>>>,
}

impl Limiter<()> for Recording {
    fn acquire(&self, key: &(), options: AcquireOptions) -> LimiterFuture<Outcome> {
        let (decision, admitted) = (self.inner.acquire(key, options), Arc::clone(&self.admitted));
        LimiterFuture::pending(async move {
            let outcome = decision.await?;
            let start = outcome.decision.decided_at().saturating_add(outcome.decision.delay());
            if outcome.decision.is_allowed() {
                admitted.lock().unwrap().push(start.as_micros());
            }
            Ok(outcome)
        })
    }

    fn limits_of(&self, key: &(), limits: &mut LimitsOfKey<'_>) {
        self.inner.limits_of(key, limits);
    }
}

/// One of two processes. Returns the starts that Redis admitted, and the times at which requests were served.
async fn load(limiter: Redis<()>, started: Instant, seconds: u64) -> (Vec<u64>, Vec<u64>) {
    let (admitted, served) = (Arc::default(), Arc::new(Mutex::new(Vec::new())));
    let limiter = Recording { inner: limiter, admitted: Arc::clone(&admitted) };
    let recorded = Arc::clone(&served);
    let inner = service_fn(move |()| {
        recorded.lock().unwrap().push(u64::try_from(started.elapsed().as_micros()).expect("a short time"));
        std::future::ready(Ok::<_, BoxError>(()))
    });
    let service = RateLimitLayer::new(Global, limiter).responder(RejectWithError).max_wait(MAX_WAIT).layer(inner);
    for index in 0..u32::try_from(seconds).expect("a short time") * RATE * 3 / 4 {
        sleep_until(started + Duration::from_secs(1) * index * 4 / (RATE * 3)).await;
        let call: std::pin::Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>> =
            Box::pin(service.clone().oneshot(()));
        tokio::spawn(timeout(CLIENT_TIMEOUT, call));
    }
    sleep_until(started + Duration::from_secs(seconds)).await;
    let take = |times: &Mutex<Vec<u64>>| std::mem::take(&mut *times.lock().unwrap());
    (take(&admitted), take(&served))
}

/// The loads of one process on all limits: for each the starts that were admitted, and the times at which requests were
/// served.
async fn process(server: &Server, started: Instant) -> Vec<(Vec<u64>, Vec<u64>)> {
    let loads = limits(&server.open()).map(|(_, _, limiter)| tokio::spawn(load(limiter, started, times().0)));
    join_all(loads).await.into_iter().map(|load| load.expect("the load")).collect()
}

/// Two processes on one `LeakyQueue` start at least one interval apart, by the clock of Redis.
///
/// A run of `GOODPUT_SECONDS` also measures: in each window, each limit serves 95 % of its part of the rate.
/// `middleware: goodput` has this law in virtual time.
#[test]
fn goodput_with_impatient_clients_of_two_processes() {
    let (seconds, window) = times();
    let redis = Server::start();
    let started = Instant::now() + Duration::from_millis(100);
    let processes = in_runtimes(2, async |_| process(&redis, started).await);
    let mut starts: Vec<_> = processes.iter().flat_map(|process| process[0].0.clone()).collect();
    starts.sort_unstable();
    let least = starts.windows(2).map(|pair| pair[1] - pair[0]).min();
    assert!(
        least.is_none_or(|least| least >= 1_000_000 / u64::from(RATE)),
        "starts of two processes are {least:?} microseconds apart"
    );
    for (index, (name, part, _)) in limits(&redis.open()).into_iter().enumerate() {
        let served: Vec<_> = processes.iter().flat_map(|process| &process[index].1).collect();
        let in_window = |number: u64| served.iter().filter(|&&&time| time / (window * 1_000_000) == number).count();
        let windows: Vec<_> = (0..seconds / window).map(in_window).collect();
        println!("{name:<16} served per {window} s, of {}: {windows:?}", u64::from(RATE) * window);
        let least = 0.95 * part * f64::from(RATE) * f64::from(u32::try_from(window).expect("a short time"));
        let is_enough = |&served: &usize| f64::from(u32::try_from(served).expect("few")) >= least;
        assert!(seconds <= 6 || windows.iter().all(is_enough), "{name}: less than its part");
    }
}
