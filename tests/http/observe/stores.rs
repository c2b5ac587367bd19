//! Events of stores: calls and outages of Redis, usage of memory, and conflicting limiters.

use std::time::{Duration, Instant};

use tower_ratelimit::observe::Event;
use tower_ratelimit::{AcquireOptions, FixedWindow, Limiter as _, ManualClock, Memory, Quota, Redis};

use crate::server::Server;
use crate::support::RecordedEvents;

#[tokio::test]
async fn redis_emits_batches_and_circuit_breaker_events() {
    let mut server = Server::start();
    let events = RecordedEvents::default();
    let limiter = Redis::<u64>::builder(server.open(), "api", FixedWindow::new(Quota::per_hour(1000)))
        .deadline(Duration::from_secs(20))
        .observe(events.clone())
        .build()
        .expect("a limiter");
    limiter.health_check().await.expect("a Redis");

    let requests = (0..200).map(|key| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire(&key, AcquireOptions::default()).await })
    });
    for request in requests.collect::<Vec<_>>() {
        let _ = request.await.expect("no panic").expect("a decision");
    }
    let recorded = events.take();
    let sizes = recorded.iter().map(|event| {
        let size = event.strip_prefix("batch ").and_then(|event| event.strip_suffix(" ok"));
        size.unwrap_or_else(|| panic!("{event}")).parse::<u64>().expect("a number")
    });
    // An operation that the server refuses as late is sent once more, in another batch.
    assert!(sizes.sum::<u64>() >= 200, "every decision is in a batch: {recorded:?}");
    assert!(recorded.len() < 200, "some decisions share a batch");

    server.kill();
    for _ in 0..10 {
        limiter.acquire(&1, AcquireOptions::default()).await.expect_err("Redis is stopped");
    }
    let recorded = events.take();
    assert_eq!(recorded.iter().filter(|event| *event == "api open").count(), 1, "{recorded:?}");

    server.restart();
    let deadline = Instant::now() + Duration::from_secs(20);
    while limiter.acquire(&1, AcquireOptions::default()).await.is_err() {
        assert!(Instant::now() < deadline, "the circuit breaker stays open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let recorded = events.take();
    assert_eq!(recorded.iter().filter(|event| *event == "api closed").count(), 1, "{recorded:?}");
    assert!(!recorded.iter().any(|event| event == "api open"), "{recorded:?}");
}

#[test]
fn memory_report_emits_the_usage() {
    let clock = ManualClock::new();
    let limiter = Memory::builder(FixedWindow::new(Quota::per_hour(1))).max_keys(100).clock(clock.clone()).build();
    let limiter = limiter.expect("a limiter");
    let usage = || {
        let recorded = std::sync::Mutex::new(Vec::new());
        limiter.report_usage(&|event: &Event<'_>| {
            let Event::Usage { limit, live_keys, capacity, bytes, evicted, .. } = *event else { panic!("{event:?}") };
            assert_eq!(limit, "default");
            assert!(bytes > 0);
            recorded.lock().expect("no thread panics").push((live_keys, capacity, evicted));
        });
        let recorded = recorded.into_inner().expect("no thread panics");
        assert_eq!(recorded.len(), 1);
        recorded[0]
    };
    let (live, capacity, evicted) = usage();
    assert_eq!((live, evicted), (0, 0));
    for key in 0..100 {
        let _ = limiter.check(&key, AcquireOptions::default());
    }
    assert_eq!(usage(), (100, capacity, 0));

    // About 900 more keys than the capacity: each evicted key frees the slot of one new key.
    for key in 100..1000 {
        let _ = limiter.check(&key, AcquireOptions::default());
    }
    let (live, _, evicted) = usage();
    assert!(live <= capacity);
    assert_eq!(live as u64 + evicted, 1000);

    clock.advance(Duration::from_secs(3600));
    assert_eq!(usage(), (0, capacity, evicted));
}

/// Two limiters of one name in one process with different quotas or algorithms. No connection is needed.
#[test]
fn conflicting_limiters_emit_a_warning_when_built() {
    use tower_ratelimit::{Gcra, Limit, RedisServer};

    fn window(limit: &'static str, quota: u64) -> tower_ratelimit::store::RedisLimit<u64> {
        tower_ratelimit::store::RedisLimit::new(Limit::new(limit, FixedWindow::new(Quota::per_hour(quota))))
    }

    let server = || RedisServer::open("redis://127.0.0.1:1/3").expect("an address");
    let events = RecordedEvents::default();
    let build =
        |server: RedisServer, name: &str, prefix: &str, limits: Vec<tower_ratelimit::store::RedisLimit<u64>>| {
            Redis::builder(server, name, limits).prefix(prefix).observe(events.clone()).build().expect("a limiter")
        };
    let bucket = tower_ratelimit::store::RedisLimit::new(Limit::new("hour", Gcra::new(Quota::per_hour(10))));

    let first = build(server(), "odds", "p", vec![window("hour", 10)]);
    // No conflict: the same limiter, another name, limit, prefix or database, and a clone.
    let others = [
        build(server(), "odds", "p", vec![window("hour", 10)]),
        build(server(), "other", "p", vec![window("hour", 20)]),
        build(server(), "odds", "p", vec![window("day", 20)]),
        build(server(), "odds", "q", vec![window("hour", 20)]),
        build(RedisServer::open("redis://127.0.0.1:1/4").expect("an address"), "odds", "p", vec![window("hour", 20)]),
        first.clone(),
    ];
    assert_eq!(events.take(), [""; 0]);
    drop(others);

    let events_of = |limiter: Redis<u64>| {
        drop(limiter);
        events.take()
    };
    let quota = events_of(build(server(), "odds", "p", vec![window("hour", 20)]));
    assert_eq!(quota.len(), 1, "{quota:?}");
    assert!(quota[0].contains("\"odds\"") && quota[0].contains("\"hour\"") && quota[0].contains("different quotas"));
    let algorithm = events_of(build(server(), "odds", "p", vec![bucket]));
    assert_eq!(algorithm.len(), 1, "{algorithm:?}");
    assert!(algorithm[0].contains("different algorithms"), "{algorithm:?}");

    // A dropped limiter does not conflict.
    drop(first);
    assert_eq!(events_of(build(server(), "odds", "p", vec![window("hour", 20)])), [""; 0]);
}
