//! What Redis tells of its calls and its outages, and what memory tells of its room.

use std::time::{Duration, Instant};

use tower_ratelimit::observe::Event;
use tower_ratelimit::{AcquireOptions, FixedWindow, Limiter as _, ManualClock, Memory, Quota, Redis};

use crate::server::Server;
use crate::support::Notes;

#[tokio::test]
async fn redis_tells_of_calls_and_outages() {
    let mut server = Server::start();
    let notes = Notes::default();
    let limiter = Redis::<u64>::builder(server.open(), "api", FixedWindow::new(Quota::per_hour(1000)))
        .deadline(Duration::from_secs(20))
        .observe(notes.clone())
        .build()
        .expect("a limiter");
    limiter.health_check().await.expect("a Redis");

    let asks = (0..200).map(|key| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire(&key, AcquireOptions::default()).await })
    });
    for ask in asks.collect::<Vec<_>>() {
        ask.await.expect("it ends").expect("a decision");
    }
    let told = notes.take();
    let sizes = told.iter().map(|note| {
        let size = note.strip_prefix("batch ").and_then(|note| note.strip_suffix(" ok"));
        size.unwrap_or_else(|| panic!("{note}")).parse::<u64>().expect("a number")
    });
    assert_eq!(sizes.sum::<u64>(), 200, "every decision is in one call: {told:?}");
    assert!(told.len() < 200, "some travel together");

    server.kill();
    for _ in 0..10 {
        limiter.acquire(&1, AcquireOptions::default()).await.expect_err("it is gone");
    }
    let told = notes.take();
    assert_eq!(told.iter().filter(|note| *note == "api open").count(), 1, "{told:?}");

    server.restart();
    let patience = Instant::now() + Duration::from_secs(20);
    while limiter.acquire(&1, AcquireOptions::default()).await.is_err() {
        assert!(Instant::now() < patience, "it does not come back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let told = notes.take();
    assert_eq!(told.iter().filter(|note| *note == "api closed").count(), 1, "{told:?}");
    assert!(!told.iter().any(|note| note == "api open"), "{told:?}");
}

#[test]
fn memory_tells_how_full_it_is() {
    let clock = ManualClock::new();
    let limiter = Memory::builder(FixedWindow::new(Quota::per_hour(1))).max_keys(100).clock(clock.clone()).build();
    let limiter = limiter.expect("a limiter");
    let usage = || {
        let told = std::sync::Mutex::new(Vec::new());
        limiter.report_usage(&|event: &Event<'_>| {
            let Event::Usage { limit, live_keys, capacity, bytes, evicted, .. } = *event else { panic!("{event:?}") };
            assert_eq!(limit, "default");
            assert!(bytes > capacity);
            told.lock().expect("what is told").push((live_keys, capacity, evicted));
        });
        let told = told.into_inner().expect("what is told");
        assert_eq!(told.len(), 1);
        told[0]
    };
    let (live, room, forgotten) = usage();
    assert_eq!((live, forgotten), (0, 0));
    for key in 0..100 {
        limiter.check(&key, AcquireOptions::default());
    }
    assert_eq!(usage(), (100, room, 0));

    // Some 900 too many. Who is forgotten makes room for one other.
    for key in 100..1000 {
        limiter.check(&key, AcquireOptions::default());
    }
    let (live, _, forgotten) = usage();
    assert!(live <= room);
    assert_eq!(live as u64 + forgotten, 1000);

    clock.advance(Duration::from_secs(3600));
    assert_eq!(usage(), (0, room, forgotten));
}

/// Two of one name in one process that can't both be meant: nothing has to be connected for that.
#[test]
fn limiters_at_odds_are_found_when_they_are_built() {
    use tower_ratelimit::{Gcra, Limit, RedisServer};

    fn window(limit: &'static str, quota: u64) -> tower_ratelimit::store::RedisLimit<u64> {
        tower_ratelimit::store::RedisLimit::new(Limit::new(limit, FixedWindow::new(Quota::per_hour(quota))))
    }

    let server = || RedisServer::open("redis://127.0.0.1:1/3").expect("an address");
    let notes = Notes::default();
    let build =
        |server: RedisServer, name: &str, prefix: &str, limits: Vec<tower_ratelimit::store::RedisLimit<u64>>| {
            Redis::builder(server, name, limits).prefix(prefix).observe(notes.clone()).build().expect("a limiter")
        };
    let bucket = tower_ratelimit::store::RedisLimit::new(Limit::new("hour", Gcra::new(Quota::per_hour(10))));

    let first = build(server(), "odds", "p", vec![window("hour", 10)]);
    // The same again, another name, another limit, another prefix, another database, and a clone.
    let others = [
        build(server(), "odds", "p", vec![window("hour", 10)]),
        build(server(), "other", "p", vec![window("hour", 20)]),
        build(server(), "odds", "p", vec![window("day", 20)]),
        build(server(), "odds", "q", vec![window("hour", 20)]),
        build(RedisServer::open("redis://127.0.0.1:1/4").expect("an address"), "odds", "p", vec![window("hour", 20)]),
        first.clone(),
    ];
    assert_eq!(notes.take(), [""; 0]);
    drop(others);

    let told = |limiter: Redis<u64>| {
        drop(limiter);
        notes.take()
    };
    let quota = told(build(server(), "odds", "p", vec![window("hour", 20)]));
    assert_eq!(quota.len(), 1, "{quota:?}");
    assert!(quota[0].contains("\"odds\"") && quota[0].contains("\"hour\"") && quota[0].contains("different quotas"));
    let algorithm = told(build(server(), "odds", "p", vec![bucket]));
    assert_eq!(algorithm.len(), 1, "{algorithm:?}");
    assert!(algorithm[0].contains("different algorithms"), "{algorithm:?}");

    // Who is gone is not at odds with anybody.
    drop(first);
    assert_eq!(told(build(server(), "odds", "p", vec![window("hour", 20)])), [""; 0]);
}
