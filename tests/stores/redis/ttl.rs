//! Every key expires when it is idle, whichever operation wrote it.
//!
//! A decision is one script call, and the client calls only documented commands.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tower_ratelimit::{
    AcquireOptions, Clock as _, FixedWindow, Gcra, LeakyQueue, Limit, Limiter, ManualClock, Quota, Redis, SlidingLog,
    SlidingWindow, SystemClock, Timestamp,
};

use crate::helpers::{acquire, every_algorithm, every_algorithm_of_a_period, hold, redis_limiter};
use crate::load::until;
use crate::server::Server;

/// Requires that every key has a TTL of at most `bound` plus one second.
fn check_ttls(server: &Server, bound: Duration, after: &str) {
    // Most writes keep the TTL of the key, so TTLs are up to a second longer than needed.
    let bound = bound + Duration::from_secs(1);
    for key in server.keys() {
        let ttl = server.number(&["PTTL", &key]);
        // The key may have expired between the two commands.
        assert_ne!(ttl, -1, "{after}: {key} never expires");
        let bound = i64::try_from(bound.as_millis()).expect("a short time") + 2;
        assert!(ttl <= bound, "{after}: {key} has a TTL of {ttl} ms, at most {bound}");
    }
}

async fn reset_of(limiter: &impl Limiter<str>, key: &str) -> Duration {
    limiter.peek(key, AcquireOptions::cost(0)).await.expect("an answer").reset().expect("a figure")
}

#[tokio::test]
async fn ttl_of_each_key_ends_when_the_key_is_idle() {
    let server = Server::start();
    let quota = Quota::new(10, Duration::from_secs(1_000));
    for (name, limiter) in every_algorithm_of_a_period(&server.open(), quota, None::<&ManualClock>) {
        server.command(&["FLUSHALL"]);
        let began = Instant::now();
        for cost in [1, 3, 2, 9, 1] {
            let outcome = acquire(&limiter, "alice", AcquireOptions::cost(cost)).await.expect("an answer");
            // The figure starts at the time of the decision, and Redis counts from the write of the script, which is
            // later on a busy machine.
            let bound = outcome.decision.reset().expect("a figure") + began.elapsed();
            check_ttls(&server, bound, &format!("{name}, acquire {cost}"));
            assert_eq!(server.keys().len(), 1, "{name}");
            // The TTL is no shorter either: the TTL read before is at least the time needed after.
            let ttl = server.number(&["PTTL", &server.keys()[0]]);
            let needed = i64::try_from(reset_of(&limiter, "alice").await.as_millis()).expect("short");
            assert!(ttl >= needed, "{name}: {ttl} ms left, {needed} needed");
        }
        hold(&limiter, "bob", 4).await.settle(2).await.expect("done");
        check_ttls(&server, Duration::from_secs(2_000), &format!("{name}, settled below the held cost"));
        hold(&limiter, "carol", 1).await.settle(25).await.expect("done");
        check_ttls(
            &server,
            // The session of a surcharge ends shortly after its settlement. Until then the TTL covers a hold expiry as
            // well.
            reset_of(&limiter, "carol").await.max(Duration::from_secs(2_031)),
            &format!("{name}, settled above the held cost"),
        );
        limiter.set_usage("default", "dave", 7).await.expect("done");
        check_ttls(&server, Duration::from_secs(2_500), &format!("{name}, set"));
        // A block alone, and on a key with a state.
        server.command(&["FLUSHALL"]);
        for span in [300, 700] {
            let (began, span) = (Instant::now(), Duration::from_secs(span));
            limiter.block("default", "erin", span).await.expect("done");
            check_ttls(&server, span + began.elapsed(), &format!("{name}, block"));
        }
        limiter.block("default", "erin", Duration::ZERO).await.expect("done");
        assert_eq!(server.keys(), Vec::<String>::new(), "{name}: an unblocked key is deleted");
        let _ = acquire(&limiter, "erin", AcquireOptions::default()).await.expect("an answer");
        limiter.reset("erin").await.expect("done");
        assert_eq!(server.keys(), Vec::<String>::new(), "{name}: a reset key is deleted");
        let began = Instant::now();
        limiter.block("default", "erin", Duration::from_secs(500)).await.expect("done");
        limiter.reset("erin").await.expect("done");
        check_ttls(&server, Duration::from_secs(500) + began.elapsed(), &format!("{name}, reset under a block"));
        assert_eq!(server.keys().len(), 1, "{name}: a reset keeps the block");
    }
}

/// Charges a key at another time and under another quota, and then again at the server's time, for each algorithm.
///
/// The key must have a TTL of its state's lifetime, and at most two seconds more. `longest` is the lifetime of what the first
/// quota counts, if that is longer.
async fn check_ttl_covers_the_state(first_at: Option<Timestamp>, first_quota: Quota, longest: Duration) {
    let server = Server::start();
    let clock = first_at.map(ManualClock::at);
    let quota = Quota::new(10, Duration::from_secs(10));
    let first = every_algorithm(&server.open(), first_quota, clock.as_ref());
    let second = every_algorithm(&server.open(), quota, None::<&ManualClock>);
    for ((name, first), (_, second)) in first.into_iter().zip(second) {
        server.command(&["FLUSHALL"]);
        for cost in [1, 2, 1] {
            assert!(
                acquire(&first, "alice", AcquireOptions::cost(cost)).await.expect("an answer").decision.is_allowed()
            );
        }
        let [key] = &*server.keys() else { panic!("{name}: one key") };
        // With a manual clock, keys have a TTL of a day.
        assert!(clock.is_none() || server.number(&["PTTL", key]) > 80_000_000, "{name}");
        for _ in 0..3 {
            let began = Instant::now();
            let decision = acquire(&second, "alice", AcquireOptions::default()).await.expect("an answer").decision;
            assert!(decision.is_allowed(), "{name}");
            let ttl = server.number(&["PTTL", key]);
            let bound = decision.reset().expect("a figure").max(longest) + began.elapsed() + Duration::from_secs(2);
            assert!(u128::try_from(ttl).is_ok_and(|ttl| ttl <= bound.as_millis()), "{name}: {ttl} ms, {bound:?}");
        }
    }
}

/// The server's clock steps back by an hour. A state that far ahead is discarded.
#[tokio::test]
async fn ttl_is_bounded_after_a_clock_step_back() {
    let ahead = SystemClock::new().now().saturating_add(Duration::from_secs(3600));
    check_ttl_covers_the_state(Some(ahead), Quota::new(10, Duration::from_secs(10)), Duration::ZERO).await;
}

/// The period is changed from an hour to ten seconds. What the hour counts is kept, in a window of one block for two hours.
#[tokio::test]
async fn ttl_is_bounded_after_a_shorter_period() {
    check_ttl_covers_the_state(None, Quota::per_hour(10), 2 * Duration::from_secs(3_600)).await;
}

/// A write extends the key's expiry by a second more than is needed, so that the writes of the next second keep it.
#[tokio::test]
async fn writes_extend_the_expiry_once_per_second() {
    let server = Server::start();
    for (name, limiter) in every_algorithm(&server.open(), Quota::per_hour(1_000_000), None::<&ManualClock>) {
        server.command(&["CONFIG", "RESETSTAT"]);
        let began = Instant::now();
        for _ in 0..50 {
            let _ = acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer");
        }
        let calls = calls(&server).into_iter();
        let extended = calls.filter(|(name, _)| ["PSETEX", "PEXPIRE"].contains(&name.as_str())).map(|(_, count)| count);
        // The first write, and those after each second; a block of a sliding window may begin in between.
        let most = 3 + began.elapsed().as_secs();
        let extended: u64 = extended.sum();
        assert!(extended <= most, "{name}: {extended} of 50 writes, at most {most}");
    }
}

#[tokio::test]
async fn denied_and_free_requests_write_no_key() {
    let server = Server::start();
    for (name, limiter) in every_algorithm(&server.open(), Quota::per_hour(10), None::<&ManualClock>) {
        let _ = limiter.peek("alice", AcquireOptions::default()).await.expect("an answer");
        let _ = acquire(&limiter, "alice", AcquireOptions::cost(0)).await.expect("an answer");
        assert!(
            acquire(&limiter, "alice", AcquireOptions::cost(11)).await.expect("an answer").decision.exceeds_limit()
        );
        limiter.reset("alice").await.expect("done");
        limiter.block("default", "alice", Duration::ZERO).await.expect("done");
        limiter.set_usage("default", "alice", 0).await.expect("done");
        assert_eq!(server.keys(), Vec::<String>::new(), "{name}");
    }
}

#[tokio::test]
async fn database_is_empty_when_all_keys_are_idle() {
    let server = Server::start();
    let quota = Quota::new(5, Duration::from_millis(50));
    for (_, limiter) in every_algorithm_of_a_period(&server.open(), quota, None::<&ManualClock>) {
        for key in ["a", "b", "c"] {
            for _ in 0..7 {
                let _ = acquire(&limiter, key, AcquireOptions::default()).await.expect("an answer");
            }
            limiter.block("default", key, Duration::from_millis(60)).await.expect("done");
        }
    }
    use_every_limiter(&server).await;
    // Redis counts expired keys until it removes them.
    until("no key", async || server.number(&["DBSIZE"]) == 0).await;
}

async fn use_every_limiter(server: &Server) {
    let quota = Quota::new(3, Duration::from_millis(60));
    let limits = (
        Limit::new("queue", LeakyQueue::new(quota)).keyed_by(|key: &u64| *key),
        Limit::new("log", SlidingLog::new(quota)).keyed_by(|key: &u64| key % 2),
        Limit::new("window", SlidingWindow::new(quota)).keyed_by(|_: &u64| ()),
        Limit::new("shadow", FixedWindow::new(quota)).keyed_by(|_: &u64| ()).shadow(),
    );
    let limiter = redis_limiter(server.open(), "all", limits);
    let mut held = Vec::new();
    for key in 0..12 {
        let outcome = acquire(&limiter, &(key % 4), AcquireOptions::default().hold()).await.expect("an answer");
        held.extend(outcome.held);
    }
    for (index, held) in held.into_iter().enumerate() {
        held.settle([0, 3][index % 2]).await.expect("done");
    }
    limiter.set_usage("log", &1, 9).await.expect("done");
    limiter.block("window", &1, Duration::from_millis(30)).await.expect("done");
    limiter.reset(&1).await.expect("done");
}

/// The number of calls of each command.
pub(crate) fn calls(server: &Server) -> Vec<(String, u64)> {
    let text = server.command(&["INFO", "commandstats"]);
    let lines = text.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
    let counts = lines.map(|(name, rest)| {
        let count = rest.split(',').next().and_then(|count| count.parse().ok()).expect("a number");
        (name.to_uppercase(), count)
    });
    counts.collect()
}

#[tokio::test]
async fn only_documented_commands_are_called() {
    // Redis before 7.0 counts the subcommands of SCRIPT, CONFIG and CLIENT together.
    const DOCUMENTED: [&str; 16] = [
        "GET",
        "EVALSHA",
        "EVAL",
        "TIME",
        "MGET",
        "EXISTS",
        "PSETEX",
        "DEL",
        "PEXPIRE",
        "LRANGE",
        "LINDEX",
        "LSET",
        "LTRIM",
        "RPUSH",
        "SCRIPT|LOAD",
        "SCRIPT",
    ];
    let server = Server::start();
    // The commands of this test, of probes and of connection set-up.
    let others =
        ["SET", "INFO", "CONFIG|RESETSTAT", "CONFIG", "QUIT", "CLIENT|SETINFO", "CLIENT|SETNAME", "CLIENT", "PING"];
    server.command(&["CONFIG", "RESETSTAT"]);
    for (_, limiter) in every_algorithm(&server.open(), Quota::per_hour(10), None::<&ManualClock>) {
        for cost in [1, 2, 0, 9, 1] {
            let _ = acquire(&limiter, "alice", AcquireOptions::cost(cost)).await.expect("an answer");
            let outcome = acquire(&limiter, "alice", AcquireOptions::cost(cost / 2).hold()).await.expect("an answer");
            if let Some(held) = outcome.held {
                held.settle(1).await.expect("done");
            }
        }
        let _ = limiter.peek("alice", AcquireOptions::default()).await.expect("an answer");
        limiter.set_usage("default", "alice", 9).await.expect("done");
        limiter.block("default", "alice", Duration::from_secs(1)).await.expect("done");
        limiter.reset("alice").await.expect("done");
    }
    use_every_limiter(&server).await;
    redis_limiter::<str>(server.open(), "api", Gcra::new(Quota::per_hour(10)))
        .health_check()
        .await
        .expect("a working Redis");
    let called: BTreeSet<_> = calls(&server).into_iter().map(|(name, _)| name).collect();
    let unknown: Vec<_> =
        called.iter().filter(|name| !DOCUMENTED.contains(&name.as_str()) && !others.contains(&name.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// The number of script calls of the server.
pub(crate) fn scripts(server: &Server) -> u64 {
    calls(server).into_iter().filter(|(name, _)| name.starts_with("EVAL")).map(|(_, count)| count).sum()
}

#[tokio::test]
async fn decision_is_one_script_call_and_concurrent_ones_share_calls() {
    let server = Server::start();
    let limiter: Redis<str> = redis_limiter(server.open(), "api", Gcra::new(Quota::per_hour(1_000_000)));
    let _ = acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer");
    server.command(&["CONFIG", "RESETSTAT"]);
    for _ in 0..50 {
        let _ = acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer");
    }
    assert_eq!(scripts(&server), 50);
    server.command(&["CONFIG", "RESETSTAT"]);
    let calls = (0..512).map(|_| acquire(&limiter, "alice", AcquireOptions::default()));
    futures_util::future::join_all(calls).await;
    let together = scripts(&server);
    // On a slow machine the client makes its batches smaller, down to four decisions.
    assert!(together <= 128, "{together} calls for 512 decisions");
}
