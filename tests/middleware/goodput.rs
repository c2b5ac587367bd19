//! Goodput under overload: requests arrive whatever happens to earlier ones (open loop), and clients give up.

use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::key::Global;
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{
    BoxLimiter, FixedWindow, Gcra, LeakyQueue, Memory, Quota, RateLimitLayer, SlidingLog, SlidingWindow, TokioClock,
};

const SECOND: Duration = Duration::from_secs(1);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn memory<Key: std::hash::Hash + 'static>(algorithm: impl Algorithm) -> BoxLimiter<Key> {
    BoxLimiter::new(Memory::builder(algorithm).max_keys(100).clock(TokioClock::new()).build().expect("a limit"))
}

/// The algorithms of the acceptance, at ten a second.
fn every_algorithm() -> Vec<(&'static str, BoxLimiter<()>)> {
    let quota = Quota::per_second(10);
    vec![
        ("LeakyQueue", memory(LeakyQueue::new(quota).max_waiting(100))),
        ("Gcra, burst 1", memory(Gcra::new(quota).burst(1))),
        ("Gcra, burst 20", memory(Gcra::new(quota).burst(20))),
        ("FixedWindow", memory(FixedWindow::new(quota))),
        ("SlidingWindow", memory(SlidingWindow::new(quota))),
        ("SlidingLog", memory(SlidingLog::new(quota))),
    ]
}

/// An open loop: requests at a constant rate, from clients that give up.
struct Load {
    per_second: u32,
    patience: Duration,
    time: Duration,
}

/// Sends the load, and returns the number of requests that were forwarded in each 15 s.
async fn goodput<S>(load: &Load, service: S, forwarded: &Arc<Mutex<Vec<Instant>>>) -> Vec<usize>
where
    S: Service<(), Error = BoxError, Future: Send> + Clone + Send + 'static,
    S::Response: Send,
{
    let started = Instant::now();
    let requests = load.per_second * u32::try_from(load.time.as_secs()).expect("a short time");
    let patience = load.patience;
    for index in 0..requests {
        sleep_until(started + SECOND * index / load.per_second).await;
        let mut service = service.clone();
        tokio::spawn(async move {
            let call = async { service.ready().await?.call(()).await };
            let _ = timeout(patience, call).await;
        });
    }
    sleep_until(started + load.time).await;
    let mut spans = vec![0; usize::try_from(load.time.as_secs() / 15).expect("a short time")];
    for at in forwarded.lock().unwrap().iter() {
        let span = usize::try_from((*at - started).as_secs() / 15).expect("a short time");
        if let Some(count) = spans.get_mut(span) {
            *count += 1;
        }
    }
    spans
}

type Recorded = Arc<Mutex<Vec<Instant>>>;

/// A service that records the time of each call.
fn recorder()
-> (Recorded, impl Service<(), Response = (), Error = BoxError, Future = Ready<Result<(), BoxError>>> + Clone) {
    let calls = Recorded::default();
    let recorded = Arc::clone(&calls);
    let service = service_fn(move |()| {
        recorded.lock().unwrap().push(Instant::now());
        ready(Ok(()))
    });
    (calls, service)
}

const OVERLOAD: Load = Load { per_second: 15, patience: Duration::from_secs(5), time: Duration::from_secs(90) };

#[tokio::test(start_paused = true)]
async fn goodput_with_impatient_clients() {
    let mut failed = Vec::new();
    for (name, limiter) in every_algorithm() {
        let (calls, inner) = recorder();
        let layer = RateLimitLayer::new(Global, limiter).responder(RejectWithError).max_wait(10 * SECOND);
        let mut service = layer.layer(inner);
        let spans = goodput(&OVERLOAD, service.clone(), &calls).await;
        println!("{name:<16} {spans:?}");
        if spans.iter().any(|&served| served < 143) {
            failed.push(name);
        }
        // All clients have given up: the next request waits for at most one interval, of a window a whole one.
        sleep(ms(5001)).await;
        let before = Instant::now();
        service.ready().await.expect("ready").call(()).await.expect("a start");
        let interval = if name.contains("ind") || name.contains("Log") { ms(1100) } else { ms(100) };
        assert!(before.elapsed() <= interval, "{name}: {:?}", before.elapsed());
        sleep(30 * SECOND).await;
    }
    assert!(failed.is_empty(), "goodput below 95 %: {failed:?}");
}
