//! Costs held in Redis: exactly once whatever is lost on the way, and not for longer than somebody renews them.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;
use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, LuaAlgorithm, LuaScript, Step};
use tower_ratelimit::limiter::Held;
use tower_ratelimit::observe::Event;
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{
    AcquireOptions, FixedWindow, Gcra, LazySnapshot, Limit, Limiter, ManualClock, Quota, Redis, RedisServer,
    SlidingLog, SlidingWindow, Timestamp,
};

use crate::helpers::{PATIENCE, acquire, every_algorithm, hold, is_allowed};
use crate::proxy::Proxy;
use crate::server::Server;

const HUNDRED: Quota = Quota::per_day(100);
/// A limiter whose holds expire soon.
const SOON: Duration = Duration::from_millis(600);

fn limiter_on<Key: ?Sized>(
    server: RedisServer,
    expiry: Duration,
    deadline: Duration,
    limits: impl IntoRedisLimits<Key>,
) -> Redis<Key> {
    Redis::builder(server, "api", limits).hold_expiry(expiry).deadline(deadline).build().expect("limits")
}

fn limiter(server: &Server, expiry: Duration) -> Redis<str> {
    limiter_on(server.open(), expiry, PATIENCE, FixedWindow::new(HUNDRED))
}

async fn used<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key) -> u64 {
    let decision = limiter.peek(key, AcquireOptions::cost(0)).await.expect("an answer");
    HUNDRED.limit() - decision.remaining().expect("a figure")
}

/// Waits until so much of the hundred is used, held costs included.
async fn comes_to(limiter: &impl Limiter<str>, key: &str, expected: u64) {
    let until = Instant::now() + PATIENCE;
    loop {
        let used = used(limiter, key).await;
        if used == expected {
            return;
        }
        assert!(Instant::now() < until, "{used} used, not {expected}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Runs until the runtime is shut down, as when its process is killed: nothing is renewed or settled from then on.
fn elsewhere(held: impl Future<Output = Held> + Send + 'static) -> Held {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let held = runtime.block_on(held);
    runtime.shutdown_background();
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_is_renewed_for_as_long_as_its_guard_lives() {
    let server = Server::start();
    let limiter = limiter(&server, SOON);
    let held = hold(&limiter, "alice", 40).await;
    sleep(SOON * 3).await;
    assert_eq!(used(&limiter, "alice").await, 40);
    held.settle(7).await.expect("done");
    assert_eq!(used(&limiter, "alice").await, 7, "it was not settled whole by the server");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_nobody_renews_expires_and_is_settled_whole() {
    let server = Server::start();
    let expired = std::sync::Arc::new(Mutex::new(0));
    let counts = std::sync::Arc::clone(&expired);
    let here = Redis::builder(server.open(), "api", FixedWindow::new(HUNDRED)).hold_expiry(SOON).deadline(PATIENCE);
    let here = here.observe(move |event: &Event<'_>| {
        if let Event::HoldsExpired { store: "api", count, .. } = event {
            *counts.lock().expect("no panic") += count;
        }
    });
    let here: Redis<str> = here.build().expect("limits");
    let there = limiter(&server, SOON);
    let began = Instant::now();
    let held = tokio::task::spawn_blocking(move || elsewhere(async move { hold(&there, "alice", 40).await }));
    let held = held.await.expect("no panic");
    assert_eq!(used(&here, "alice").await, 40);
    let room = acquire(&here, "alice", AcquireOptions::cost(61)).await.expect("an answer").decision;
    assert!(!room.is_allowed() && room.is_estimate());
    here.reset("alice").await.expect("done");
    assert_eq!(used(&here, "alice").await, 40, "a reset leaves what is held");
    // What is held is charged; after a reset it is gone.
    while *expired.lock().expect("no panic") == 0 {
        assert!(began.elapsed() < PATIENCE, "it does not expire");
        sleep(Duration::from_millis(20)).await;
        used(&here, "alice").await;
    }
    assert!(began.elapsed() >= SOON);
    assert_eq!(*expired.lock().expect("no panic"), 1);
    assert_eq!(used(&here, "alice").await, 40);
    here.reset("alice").await.expect("done");
    assert_eq!(used(&here, "alice").await, 0);
    // The guard comes late: only its surcharge is not charged yet.
    held.settle(45).await.expect("an answer");
    comes_to(&here, "alice", 5).await;
    assert_eq!(*expired.lock().expect("no panic"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_after_an_expiry_begins_a_new_session() {
    let server = Server::start();
    let limiter = limiter_on::<str>(server.open(), SOON, PATIENCE, FixedWindow::new(HUNDRED));
    let first = hold(&limiter, "alice", 10).await;
    // The server forgets, which the process does not know.
    server.command(&["FLUSHALL"]);
    let second = hold(&limiter, "alice", 20).await;
    assert_eq!(used(&limiter, "alice").await, 20);
    first.settle(4).await.expect("an answer");
    assert_eq!(used(&limiter, "alice").await, 20, "what the server does not know is not settled");
    second.settle(1).await.expect("done");
    assert_eq!(used(&limiter, "alice").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_lives_until_its_holds_have_expired_and_drained() {
    let server = Server::start();
    let quota = Quota::new(10, Duration::from_secs(20));
    let expiry = Duration::from_secs(30);
    for (name, _) in every_algorithm(&server.open(), quota, None::<&ManualClock>) {
        let limits: Vec<tower_ratelimit::store::RedisLimit<str>> = vec![match name {
            "fixed window" => tower_ratelimit::store::RedisLimit::new(FixedWindow::new(quota)),
            "sliding window" => tower_ratelimit::store::RedisLimit::new(SlidingWindow::new(quota)),
            "sliding log" => tower_ratelimit::store::RedisLimit::new(SlidingLog::new(quota)),
            _ => tower_ratelimit::store::RedisLimit::new(Gcra::new(quota)),
        }];
        server.command(&["FLUSHALL"]);
        let limiter = limiter_on(server.open(), expiry, PATIENCE, limits);
        let held = hold(&limiter, "alice", 5).await;
        let ttl = || server.number(&["PTTL", &server.keys()[0]]);
        // Five of ten in 20 s drain in 10 s; a window ends at most 22 s after.
        assert!(ttl() > 39_000 && ttl() < 54_000, "{name}: {}", ttl());
        assert!(is_allowed(&limiter, "alice").await);
        assert!(ttl() > 39_000 && ttl() < 54_000, "{name}: {}", ttl());
        held.release().await.expect("done");
        assert!(ttl() < 24_000, "{name}: {}", ttl());
        limiter.reset("alice").await.expect("done");
        hold(&limiter, "alice", 5).await.release().await.expect("done");
        assert_eq!(server.keys(), Vec::<String>::new(), "{name}");
    }
    // What is owed and what is held drain one after the other: five in ten seconds each.
    server.command(&["FLUSHALL"]);
    let limiter = limiter_on::<str>(server.open(), Duration::from_secs(1), PATIENCE, Gcra::new(quota));
    let held = hold(&limiter, "alice", 5).await;
    acquire(&limiter, "alice", AcquireOptions::cost(5)).await.expect("an answer");
    let ttl = server.number(&["PTTL", &server.keys()[0]]);
    assert!(ttl > 19_000, "{ttl}");
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sixty_fifth_holder_is_told() {
    let server = Server::start();
    let long = Duration::from_secs(60);
    let mut held = Vec::new();
    for _ in 0..64 {
        held.push(hold(&limiter(&server, long), "alice", 1).await);
    }
    let one_more = limiter(&server, long);
    let full = acquire(&one_more, "alice", AcquireOptions::default().hold()).await.expect_err("no room");
    assert!(full.is_unavailable() && full.to_string().contains("64 sessions"), "{full}");
    assert!(is_allowed(&one_more, "alice").await, "it may decide");
    assert_eq!(used(&one_more, "alice").await, 65);
    held.swap_remove(0).release().await.expect("done");
    hold(&one_more, "alice", 1).await.release().await.expect("done");
    join_all(held.into_iter().map(Held::release)).await.into_iter().for_each(|done| done.expect("done"));
    assert_eq!(used(&one_more, "alice").await, 1);
}

/// How many bytes a key has.
fn length(server: &Server) -> i64 {
    server.number(&["STRLEN", &server.keys()[0]])
}

#[tokio::test]
async fn holds_of_one_process_share_an_entry_and_their_settlements_an_update() {
    let server = Server::start();
    let limiter = limiter(&server, Duration::from_secs(60));
    let first = hold(&limiter, "alice", 1).await;
    let one = length(&server);
    let held = join_all((0..60).map(|_| hold(&limiter, "alice", 1))).await;
    assert_eq!(length(&server), one, "one entry");
    let before = server.number_of("cmdstat_evalsha:calls=");
    let settled = join_all(held.into_iter().map(|held| held.settle(1))).await;
    for done in settled {
        done.expect("done");
    }
    let calls = server.number_of("cmdstat_evalsha:calls=") - before;
    assert!(calls <= 2, "{calls} calls");
    assert_eq!(used(&limiter, "alice").await, 61);
    first.release().await.expect("done");
    assert_eq!(used(&limiter, "alice").await, 60);
    // A key without holds is as small as ever.
    assert_eq!(length(&server), 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_first_holds_at_once_share_few_entries() {
    let server = Server::start();
    let limiter =
        limiter_on::<str>(server.open(), Duration::from_secs(60), PATIENCE, FixedWindow::new(Quota::per_day(1000)));
    let held = join_all((0..300).map(|_| hold(&limiter, "alice", 1))).await;
    // Each entry has 40 bytes.
    assert!(length(&server) <= 88 + 5 * 40, "{} bytes", length(&server));
    drop(held);
    let until = Instant::now() + PATIENCE;
    while length(&server) > 40 {
        assert!(Instant::now() < until, "{} bytes", length(&server));
        sleep(Duration::from_millis(10)).await;
    }
    let left = limiter.peek("alice", AcquireOptions::cost(0)).await.expect("an answer").remaining();
    assert_eq!(left, Some(700), "dropped guards settle whole, each once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_whose_reply_is_lost_is_sent_again_and_made_once() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let through = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
    let expiry = Duration::from_secs(4);
    let limiter = limiter_on::<str>(through, expiry, Duration::from_millis(500), FixedWindow::new(HUNDRED));
    let direct = self::limiter(&server, expiry);
    let mut expected = 0;
    // Below, at and above what is held; alone, and with another hold on the key.
    for (round, actual) in [0, 2, 5, 8, 3, 9].into_iter().enumerate() {
        let other = if round >= 3 { Some(hold(&limiter, "alice", 1).await) } else { None };
        let held = hold(&limiter, "alice", 5).await;
        proxy.cut_next_reply();
        let lost = held.settle(actual).await.expect_err("the reply is lost");
        assert!(lost.is_unavailable() && lost.to_string().contains("tried again"), "{lost}");
        expected += actual;
        // It was carried out, unless the reply that was cut was that of a renewal: then it is sent again, and carried out once.
        comes_to(&direct, "alice", expected + u64::from(other.is_some())).await;
        sleep(Duration::from_millis(500)).await;
        assert_eq!(used(&direct, "alice").await, expected + u64::from(other.is_some()), "round {round}");
        if let Some(other) = other {
            other.release().await.expect("done");
        }
        comes_to(&direct, "alice", expected).await;
    }
    sleep(Duration::from_millis(600)).await;
    assert_eq!(length(&server), 40, "no entry is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_waits_for_a_server_that_does_not_answer() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let through = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
    let limiter =
        limiter_on::<str>(through, Duration::from_secs(20), Duration::from_millis(200), FixedWindow::new(HUNDRED));
    let direct = self::limiter(&server, Duration::from_secs(20));
    let (first, second, third) =
        (hold(&limiter, "alice", 5).await, hold(&limiter, "alice", 6).await, hold(&limiter, "bob", 7).await);
    proxy.shut(true);
    assert!(first.settle(2).await.expect_err("nobody answers").is_unavailable());
    // The breaker opens, and a guard is dropped.
    for _ in 0..4 {
        assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.is_err());
    }
    assert!(second.release().await.expect_err("nobody answers").is_unavailable());
    drop(third);
    assert_eq!((used(&direct, "alice").await, used(&direct, "bob").await), (11, 7));
    proxy.shut(false);
    comes_to(&direct, "alice", 2).await;
    comes_to(&direct, "bob", 7).await;
    let until = Instant::now() + PATIENCE;
    while server.keys().iter().any(|key| server.number(&["STRLEN", key]) > 40) {
        // Probes of the breaker come with decisions.
        let _ = limiter.peek("alice", AcquireOptions::default()).await;
        assert!(Instant::now() < until, "something is held still");
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!((used(&direct, "alice").await, used(&direct, "bob").await), (2, 7));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_nobody_waits_for_is_released() {
    let server = Server::start();
    let limiter = limiter(&server, Duration::from_secs(60));
    let direct = self::limiter(&server, Duration::from_secs(60));
    assert!(is_allowed(&limiter, "warm").await);
    for wait in [0, 1, 2, 5, 10, 20, 50] {
        // Dropped before it is sent, while it travels, when it is answered.
        let asked = limiter.hold("alice", AcquireOptions::cost(9));
        sleep(Duration::from_micros(wait * 100)).await;
        drop(asked);
        comes_to(&direct, "alice", 0).await;
    }
    // KeyedBy the deadline, while the server stands still.
    let hasty = limiter_on::<str>(
        server.open(),
        Duration::from_secs(60),
        Duration::from_millis(400),
        FixedWindow::new(HUNDRED),
    );
    let until = Instant::now() + PATIENCE;
    while acquire(&hasty, "warm", AcquireOptions::default()).await.is_err() {
        assert!(Instant::now() < until, "Redis does not answer");
    }
    server.pause(Duration::from_millis(500));
    let late = acquire(&hasty, "alice", AcquireOptions::cost(9).hold()).await.expect_err("a time-out");
    assert!(late.is_unavailable() && late.to_string().contains("may stay held"), "{late}");
    sleep(Duration::from_millis(300)).await;
    comes_to(&direct, "alice", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_reply_is_lost_ends_with_its_session() {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let through = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
    let limiter =
        limiter_on::<str>(through, Duration::from_secs(60), Duration::from_secs(1), FixedWindow::new(HUNDRED));
    let direct = self::limiter(&server, Duration::from_secs(60));
    // The first of a session, and one that joins others.
    for others in [0, 3] {
        let held = join_all((0..others).map(|_| hold(&limiter, "alice", 1))).await;
        proxy.cut_next_reply();
        assert!(
            acquire(&limiter, "alice", AcquireOptions::cost(9).hold()).await.expect_err("it is lost").is_unavailable()
        );
        // What comes next is not held in a session that is to end.
        let next = hold(&limiter, "alice", 2).await;
        join_all(held.into_iter().map(Held::release)).await.into_iter().for_each(|done| done.expect("done"));
        comes_to(&direct, "alice", 2).await;
        next.release().await.expect("done");
        comes_to(&direct, "alice", 0).await;
    }
}

#[test]
fn guards_work_in_other_runtimes_and_at_shutdown() {
    let server = Server::start();
    let limiter = std::sync::Arc::new(self::limiter(&server, Duration::from_secs(5)));
    let (one, other) = (Runtime::new().expect("a runtime"), Runtime::new().expect("a runtime"));
    let held = one.block_on(hold(&*limiter, "alice", 9));
    other.block_on(async { held.settle(4).await }).expect("done");
    assert_eq!(other.block_on(used(&*limiter, "alice")), 4);
    // Dropped with the runtime that it lives in, by a task that never ends.
    let in_task = one.block_on(hold(&*limiter, "alice", 9));
    one.spawn(async move {
        let _held = in_task;
        std::future::pending::<()>().await;
    });
    let began = Instant::now();
    drop(one);
    assert!(began.elapsed() < Duration::from_secs(4), "a shutdown does not hang");
    // Dropped where there is no runtime.
    let held = other.block_on(hold(&*limiter, "alice", 1));
    drop(held);
    other.block_on(comes_to(&*limiter, "alice", 14));
    let began = Instant::now();
    drop(other);
    assert!(began.elapsed() < Duration::from_secs(4), "a shutdown does not hang");
}

/// Each of several limits is told; a shadow holds only what it would have allowed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_limits_hold_together_or_not_at_all() {
    let server = Server::start();
    let limits = (
        Limit::new("user", Gcra::new(Quota::per_day(10))).keyed_by(|&(user, _): &(u64, u64)| user),
        Limit::new("log", SlidingLog::new(Quota::per_day(20))).keyed_by(|&(_, team): &(u64, u64)| team),
        Limit::new("shadow", FixedWindow::new(Quota::per_day(5))).keyed_by(|_: &(u64, u64)| ()).shadow(),
    );
    let limiter = limiter_on(server.open(), Duration::from_secs(60), PATIENCE, limits);
    let left = async |key: (u64, u64)| {
        let decision = limiter.peek(&key, AcquireOptions::cost(0).all_limits()).await.expect("an answer");
        decision.limits().iter().map(tower_ratelimit::LimitStatus::remaining).collect::<Vec<_>>()
    };
    let first = hold(&limiter, &(1, 1), 4).await;
    assert_eq!(left((1, 1)).await, [6, 16, 1]);
    let second = hold(&limiter, &(1, 1), 6).await;
    assert_eq!(left((1, 1)).await, [0, 10, 1], "the shadow does not hold what it denies");
    assert!(acquire(&limiter, &(1, 1), AcquireOptions::default().hold()).await.expect("an answer").held.is_none());
    let third = hold(&limiter, &(2, 1), 10).await;
    assert!(acquire(&limiter, &(3, 1), AcquireOptions::default().hold()).await.expect("an answer").held.is_none());
    assert_eq!(left((3, 1)).await, [10, 0, 1], "what one limit denies no limit holds");
    second.settle(7).await.expect("done");
    assert_eq!(left((1, 1)).await, [0, 0, 1], "a surcharge");
    third.release().await.expect("done");
    first.settle(2).await.expect("done");
    assert_eq!(left((1, 1)).await, [1, 11, 3]);
}

/// Of user 7 and of all: each user's holds take an entry on the user's key, and those of all one on the common one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_of_many_keys_take_one_entry_on_the_key_they_share() {
    let server = Server::start();
    let limits = (
        Limit::new("user", FixedWindow::new(Quota::per_day(10))).keyed_by(|user: &u64| *user),
        Limit::new("all", FixedWindow::new(Quota::per_day(1000))).keyed_by(|_: &u64| ()),
    );
    let limiter = limiter_on(server.open(), Duration::from_secs(60), PATIENCE, limits);
    let mut held = Vec::new();
    for user in 0..200 {
        held.push(hold(&limiter, &user, 3).await);
    }
    let left = limiter.peek(&0, AcquireOptions::cost(0).all_limits()).await.expect("an answer");
    assert_eq!(left.limits()[1].remaining(), 400);
    for held in held {
        held.settle(1).await.expect("done");
    }
    let left = limiter.peek(&0, AcquireOptions::cost(0).all_limits()).await.expect("an answer");
    assert_eq!((left.limits()[0].remaining(), left.limits()[1].remaining()), (9, 800));
}

/// One for each, whose script can't charge any cost.
#[derive(Debug)]
struct Plain;

impl Algorithm for Plain {
    type State = [u64; 1];

    fn decide(&self, &[used]: &[u64; 1], now: Timestamp, options: ChargeOptions) -> Step<[u64; 1]> {
        if used > 0 && !options.is_forced() {
            return Step::Exceeds;
        }
        Step::Allow { next: [now.after(Duration::from_secs(60)).as_micros()], delay: 0 }
    }

    fn snapshot(&self, &[used]: &[u64; 1], _: Timestamp) -> LazySnapshot {
        let remaining = u64::from(used == 0);
        let minute = Duration::from_secs(60);
        let reset = if used == 0 { Duration::ZERO } else { minute };
        tower_ratelimit::LimitSnapshot { limit: 1, window: minute, remaining, reset, next_token_after: reset }.into()
    }

    fn max_reset(&self) -> Duration {
        Duration::from_secs(60)
    }
}

impl LuaAlgorithm for Plain {
    const SCRIPT: LuaScript = LuaScript::new(
        "plain1",
        "return {
           words = 1, params = 1, promises = false,
           peek = function(s) if s[1] > 0 then return -1 end return 0 end,
           commit = function(s, now) s[1] = now + 60000000 end,
         }",
    );

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        params.push(cost);
    }
}

#[tokio::test]
async fn an_algorithm_without_charge_decides_and_can_not_hold() {
    let server = Server::start();
    let limiter = limiter_on::<str>(server.open(), SOON, PATIENCE, Plain);
    let error = acquire(&limiter, "alice", AcquireOptions::default().hold()).await.expect_err("it can't");
    assert!(error.is_unsupported() && error.to_string().contains("`charge`"), "{error}");
    assert!(is_allowed(&limiter, "alice").await);
    assert!(!is_allowed(&limiter, "alice").await);
}

#[test]
fn an_expiry_out_of_bounds_is_an_error() {
    let server = RedisServer::open("redis://127.0.0.1:1").expect("an address");
    for expiry in [Duration::ZERO, Duration::from_millis(99), Duration::from_secs(86_401)] {
        let built = Redis::<str>::builder(server.clone(), "api", Gcra::new(HUNDRED)).hold_expiry(expiry).build();
        assert!(built.expect_err("it can't be").is_config(), "{expiry:?}");
    }
}

/// The server's clock steps back by an hour: a hold does not last an hour for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_step_back_of_the_clock_a_hold_expires_in_time() {
    let server = Server::start();
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let build = |name: &str| -> Redis<str> {
        let builder = Redis::builder(server.open(), name, SlidingLog::new(HUNDRED)).clock_for_tests(clock.clone());
        builder.hold_expiry(Duration::from_secs(3600)).deadline(PATIENCE).build().expect("limits")
    };
    let (limiter, earlier) = (build("api"), ManualClock::at(Timestamp::from_micros(1_799_990_000_000_000)));
    let held = hold(&limiter, "alice", 40).await;
    let after_step: Redis<str> = Redis::builder(server.open(), "api", SlidingLog::new(HUNDRED))
        .clock_for_tests(earlier.clone())
        .hold_expiry(Duration::from_secs(3600))
        .deadline(PATIENCE)
        .build()
        .expect("limits");
    assert_eq!(used(&after_step, "alice").await, 40);
    earlier.advance(Duration::from_secs(3601));
    // Charged as of its expiry.
    let decision = after_step.peek("alice", AcquireOptions::cost(0)).await.expect("an answer");
    assert_eq!(decision.remaining(), Some(60));
    assert_eq!(decision.reset(), Some(HUNDRED.period().checked_sub(Duration::from_secs(1)).expect("positive")));
    drop(held);
}

/// The fixed window as another version of its script has it: of another name in keys.
#[derive(Clone, Copy, Debug)]
struct OtherVersion(FixedWindow);

impl Algorithm for OtherVersion {
    type State = <FixedWindow as Algorithm>::State;

    fn decide(&self, state: &Self::State, now: Timestamp, options: ChargeOptions) -> Step<Self::State> {
        self.0.decide(state, now, options)
    }

    fn snapshot(&self, state: &Self::State, now: Timestamp) -> LazySnapshot {
        self.0.snapshot(state, now)
    }

    fn max_reset(&self) -> Duration {
        self.0.max_reset()
    }
}

impl LuaAlgorithm for OtherVersion {
    const SCRIPT: LuaScript = LuaScript::new("fixed_window1", include_str!("../../src/algorithm/fixed_window.lua"));

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        self.0.params(cost, params);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_versions_side_by_side_admit_at_most_twice_the_limit() {
    let server = Server::start();
    let new = limiter(&server, Duration::from_secs(60));
    let old =
        limiter_on::<str>(server.open(), Duration::from_secs(60), PATIENCE, OtherVersion(FixedWindow::new(HUNDRED)));
    let mut admitted = 0;
    for round in 0..300 {
        let (ours, theirs) = (AcquireOptions::cost(1 + round % 3), AcquireOptions::cost(1 + round % 2));
        for (limiter, ask) in [(&new, ours), (&old, theirs)] {
            let ask = if round % 5 == 0 { ask.hold() } else { ask };
            let outcome = acquire(limiter, "alice", ask).await.expect("an answer");
            admitted += if outcome.decision.is_allowed() { ask.cost } else { 0 };
            if let Some(held) = outcome.held {
                held.settle(ask.cost).await.expect("done");
            }
        }
    }
    assert_eq!(admitted, 200);
    assert_eq!(server.keys().len(), 2, "{:?}", server.keys());
}
