//! The circuit breaker during stalls and outages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tower_ratelimit::limiter::Acquisition;
use tower_ratelimit::observe::Event;
use tower_ratelimit::{AcquireOptions, Gcra, Limiter, Redis, RedisServer};

use crate::helpers::{AMPLE, LONG_DEADLINE, acquire};
use crate::proxy::Proxy;
use crate::server::Server;

/// Only a stalled call exceeds this deadline.
const DEADLINE: Duration = Duration::from_secs(1);

/// The observed breaker transitions.
#[derive(Default)]
struct Breaker {
    opened: AtomicUsize,
    closed: Notify,
}

fn observed(proxy: &Proxy) -> (Redis<str>, Arc<Breaker>) {
    let breaker = Arc::<Breaker>::default();
    let seen = Arc::clone(&breaker);
    let server = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
    let builder = Redis::builder(server, "api", Gcra::new(AMPLE)).deadline(DEADLINE);
    let builder = builder.observe(move |event: &Event<'_>| match event {
        Event::Breaker { error: Some(_), .. } => drop(seen.opened.fetch_add(1, Ordering::SeqCst)),
        Event::Breaker { .. } => seen.closed.notify_one(),
        _ => {}
    });
    (builder.build().expect("limits"), breaker)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stall_counts_as_one_failure() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let (limiter, breaker) = observed(&proxy);
    limiter.health_check().await.expect("a working Redis");
    for round in 0..3 {
        assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_ok(), "round {round}");
        proxy.hold(true);
        // The maximum number of batches in flight, and some calls that wait.
        let mut under_way = Vec::new();
        for _ in 0..6 {
            under_way.push(tokio::spawn(limiter.acquire("alice", AcquireOptions::default()).into_future()));
            sleep(Duration::from_millis(5)).await;
        }
        for call in join_all(under_way).await {
            assert!(call.expect("no panic").expect_err("a stall").is_unavailable());
        }
        proxy.hold(false);
        assert!(
            matches!(limiter.acquire("alice", AcquireOptions::default()), Acquisition::Pending(_)),
            "round {round}: the breaker is closed"
        );
        assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_ok(), "round {round}");
    }
    assert_eq!(breaker.opened.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaker_closes_after_an_outage_without_traffic() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let (limiter, breaker) = observed(&proxy);
    for round in 0..3 {
        assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_ok(), "round {round}");
        proxy.shut(true);
        while breaker.opened.load(Ordering::SeqCst) == round {
            assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_err(), "round {round}");
        }
        proxy.shut(false);
        // No call is made in the meantime.
        timeout(LONG_DEADLINE, breaker.closed.notified()).await.expect("a probe without traffic");
    }
    assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_ok());
}

/// The probe task ends with its runtime, and another runtime starts the next one.
#[test]
fn breaker_opened_in_one_runtime_is_closed_by_another() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let (limiter, breaker) = observed(&proxy);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    proxy.shut(true);
    runtime().block_on(async {
        while breaker.opened.load(Ordering::SeqCst) == 0 {
            assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_err());
        }
    });
    proxy.shut(false);
    runtime().block_on(async {
        let _ = acquire(&limiter, "alice", AcquireOptions::default()).await;
        timeout(LONG_DEADLINE, breaker.closed.notified()).await.expect("a probe of the second runtime");
        assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_ok());
    });
}

/// A server behind a proxy, and a limiter with a short deadline.
fn with_short_deadline() -> (Server, Proxy, Redis<str>) {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let redis = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
    let builder = Redis::builder(redis, "api", Gcra::new(AMPLE)).deadline(Duration::from_millis(500));
    (server, proxy, builder.build().expect("limits"))
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Decides until the circuit breaker opens, each time in a `block_on` of its own.
fn open_breaker(runtime: &Runtime, limiter: &Redis<str>) {
    let is_open = || {
        let outcome = runtime.block_on(acquire(limiter, "alice", AcquireOptions::default()));
        outcome.is_err_and(|error| error.to_string().contains("circuit breaker open"))
    };
    while !is_open() {}
}

/// Decides until Redis answers, each time in a `block_on` of its own.
fn recover(runtime: &Runtime, limiter: &Redis<str>) {
    let until = Instant::now() + LONG_DEADLINE;
    while let Err(error) = runtime.block_on(acquire(limiter, "alice", AcquireOptions::default())) {
        assert!(Instant::now() < until, "no recovery: {error}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The task that probes makes no progress while its runtime is not driven. A call takes its place.
#[test]
fn undriven_runtime_recovers() {
    // `block_on` for each call: a call that fails at once drives no task.
    let (_server, proxy, limiter) = with_short_deadline();
    let runtime = current_thread();
    recover(&runtime, &limiter);
    proxy.shut(true);
    open_breaker(&runtime, &limiter);
    proxy.shut(false);
    recover(&runtime, &limiter);

    // The task belongs to a runtime that is parked, while another runtime goes on.
    let (_server, proxy, limiter) = with_short_deadline();
    let (parked, live) = (current_thread(), current_thread());
    recover(&parked, &limiter);
    recover(&live, &limiter);
    proxy.shut(true);
    open_breaker(&parked, &limiter);
    proxy.shut(false);
    live.block_on(async {
        let until = Instant::now() + LONG_DEADLINE;
        while acquire(&limiter, "alice", AcquireOptions::default()).await.is_err() {
            assert!(Instant::now() < until, "no recovery");
            sleep(Duration::from_millis(5)).await;
        }
    });
    recover(&parked, &limiter);
}
