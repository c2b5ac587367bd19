//! Holds in Redis are settled exactly once whatever reply is lost, and expire when they are not renewed.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use tokio::runtime::{Builder, Runtime};
use tower_ratelimit::DecisionSource::Lease;
use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, LuaAlgorithm, LuaScript, Step};
use tower_ratelimit::limiter::{Held, Outcome};
use tower_ratelimit::observe::Event;
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{
    AcquireOptions, Detail, FixedWindow, Gcra, InFlight, LazySnapshot, Limit, Limiter, ManualClock, Quota, Redis,
    RedisServer, SlidingLog, SlidingWindow, Timestamp,
};

use crate::helpers::{LONG_DEADLINE, acquire, every_algorithm, hold, is_allowed};
use crate::ids::LossyServer;
use crate::law_checks::InLua;
use crate::leases::{self, MAX_ROUNDS, leased, step};
use crate::load::until;
use crate::process::wait_until;
use crate::server::Server;
use crate::ttl::scripts;

const HUNDRED: Quota = Quota::per_day(100);
/// A short hold expiry.
const SHORT_EXPIRY: Duration = Duration::from_millis(600);

fn limiter_on<Key: ?Sized>(
    server: RedisServer,
    expiry: Duration,
    deadline: Duration,
    limits: impl IntoRedisLimits<Key>,
) -> Redis<Key> {
    Redis::builder(server, "api", limits).hold_expiry(expiry).deadline(deadline).build().expect("limits")
}

fn limiter(server: &Server, expiry: Duration) -> Redis<str> {
    limiter_on(server.open(), expiry, LONG_DEADLINE, FixedWindow::new(HUNDRED))
}

async fn used<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key) -> u64 {
    let decision = limiter.peek(key, AcquireOptions::cost(0)).await.expect("an answer");
    HUNDRED.limit() - decision.remaining().expect("a figure")
}

/// Lets three times the expiry pass on the server's clock, in steps between which the process renews its holds.
pub(crate) fn pass_expiries(server: &Server, clock: &ManualClock, expiry: Duration) {
    for _ in 0..6 {
        let before = scripts(server);
        // The first one may have been sent before the last step.
        wait_until("the next renewals", || scripts(server) >= before + 2);
        clock.advance(expiry / 2);
    }
}

/// Waits until this much of the hundred is used, held costs included.
async fn wait_for_usage(limiter: &impl Limiter<str>, key: &str, expected: u64) {
    until("the usage", async || used(limiter, key).await == expected).await;
}

/// Holds in a runtime that is then shut down, like a killed process: the hold is neither renewed nor settled.
fn in_a_runtime_that_is_shut_down(held: impl Future<Output = Held> + Send + 'static) -> Held {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let held = runtime.block_on(held);
    runtime.shutdown_background();
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_without_renewal_expires_at_its_whole_cost() {
    let (server, clock) = (Server::start(), ManualClock::new());
    let expired = std::sync::Arc::new(Mutex::new(0));
    let counts = std::sync::Arc::clone(&expired);
    let [here, there] = [(); 2].map(|()| {
        Redis::builder(server.open(), "api", FixedWindow::new(HUNDRED))
            .hold_expiry(SHORT_EXPIRY)
            .deadline(LONG_DEADLINE)
            .clock_for_tests(clock.clone())
    });
    let here = here.observe(move |event: &Event<'_>| {
        if let Event::HoldsExpired { store: "api", count, .. } = event {
            *counts.lock().expect("no panic") += count;
        }
    });
    let [here, there]: [Redis<str>; 2] = [here.build(), there.build()].map(|limiter| limiter.expect("limits"));
    let held = tokio::task::spawn_blocking(move || {
        in_a_runtime_that_is_shut_down(async move { hold(&there, "alice", 40).await })
    });
    let held = held.await.expect("no panic");
    assert_eq!(used(&here, "alice").await, 40);
    let capacity_check = acquire(&here, "alice", AcquireOptions::cost(61)).await.expect("an answer").decision;
    assert!(!capacity_check.is_allowed() && capacity_check.is_estimate());
    here.reset("alice").await.expect("done");
    assert_eq!(used(&here, "alice").await, 40, "a reset keeps held costs");
    // The expired hold is charged. The reset removes earlier charges.
    clock.advance(SHORT_EXPIRY / 2);
    assert_eq!((used(&here, "alice").await, *expired.lock().expect("no panic")), (40, 0));
    clock.advance(SHORT_EXPIRY / 2);
    assert_eq!(used(&here, "alice").await, 40);
    assert_eq!(*expired.lock().expect("no panic"), 1);
    assert_eq!(used(&here, "alice").await, 40);
    here.reset("alice").await.expect("done");
    assert_eq!(used(&here, "alice").await, 0);
    // A settlement after the expiry charges only the surcharge.
    held.settle(45).await.expect("an answer");
    wait_for_usage(&here, "alice", 5).await;
    assert_eq!(*expired.lock().expect("no panic"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_ttl_covers_the_expiry_and_drain_of_its_holds() {
    let server = Server::start();
    let quota = Quota::new(10, Duration::from_secs(2_000));
    let expiry = Duration::from_secs(3_000);
    for (name, _) in every_algorithm(&server.open(), quota, None::<&ManualClock>) {
        let limits: Vec<tower_ratelimit::store::RedisLimit<str>> = vec![match name {
            "fixed window" => tower_ratelimit::store::RedisLimit::new(FixedWindow::new(quota)),
            "sliding window" => tower_ratelimit::store::RedisLimit::new(SlidingWindow::new(quota)),
            "sliding log" => tower_ratelimit::store::RedisLimit::new(SlidingLog::new(quota)),
            _ => tower_ratelimit::store::RedisLimit::new(Gcra::new(quota)),
        }];
        server.command(&["FLUSHALL"]);
        let limiter = limiter_on(server.open(), expiry, LONG_DEADLINE, limits);
        let held = hold(&limiter, "alice", 5).await;
        let ttl = || server.number(&["PTTL", &server.keys()[0]]);
        // Five of ten in 2000 s drain in 1000 s. A window ends at most 2200 s later.
        assert!(ttl() > 3_900_000 && ttl() < 5_400_000, "{name}: {}", ttl());
        assert!(is_allowed(&limiter, "alice").await);
        assert!(ttl() > 3_900_000 && ttl() < 5_400_000, "{name}: {}", ttl());
        held.release().await.expect("done");
        assert!(ttl() < 2_400_000, "{name}: {}", ttl());
        limiter.reset("alice").await.expect("done");
        hold(&limiter, "alice", 5).await.release().await.expect("done");
        assert_eq!(server.keys(), Vec::<String>::new(), "{name}");
    }
    // Charged and held costs drain one after the other: five in 1000 s each.
    server.command(&["FLUSHALL"]);
    let limiter = limiter_on::<str>(server.open(), Duration::from_secs(1), LONG_DEADLINE, Gcra::new(quota));
    let held = hold(&limiter, "alice", 5).await;
    let _ = acquire(&limiter, "alice", AcquireOptions::cost(5)).await.expect("an answer");
    let ttl = server.number(&["PTTL", &server.keys()[0]]);
    assert!(ttl > 1_900_000, "{ttl}");
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_beyond_64_sessions_of_a_key_is_an_error() {
    let server = Server::start();
    let long = Duration::from_secs(60);
    let mut held = Vec::new();
    for _ in 0..64 {
        held.push(hold(&limiter(&server, long), "alice", 1).await);
    }
    let one_more = limiter(&server, long);
    let full = acquire(&one_more, "alice", AcquireOptions::default().hold()).await.expect_err("no room");
    assert!(full.is_unavailable() && full.to_string().contains("64 sessions"), "{full}");
    let once = AcquireOptions::default().once("7f3a", 1, long).hold();
    let full = acquire(&one_more, "alice", once).await.expect_err("no room, with the id of a request");
    assert!(full.is_unavailable() && full.to_string().contains("64 sessions"), "{full}");
    assert!(is_allowed(&one_more, "alice").await, "decisions need no session");
    assert_eq!(used(&one_more, "alice").await, 65);
    held.swap_remove(0).release().await.expect("done");
    hold(&one_more, "alice", 1).await.release().await.expect("done");
    join_all(held.into_iter().map(Held::release)).await.into_iter().for_each(|done| done.expect("done"));
    assert_eq!(used(&one_more, "alice").await, 1);
}

/// Each round loses the reply to a hold, and the process has one guard more. Redis soon holds what the guards hold, in few
/// entries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_without_a_reply_is_released_while_older_guards_live() {
    async fn check(name: &str, limits: impl IntoRedisLimits<str> + Clone) {
        let server = LossyServer::with(limits);
        let (guards, mut lost) = (Mutex::new(Vec::new()), 0);
        for round in 1..=10 {
            let hold = || async {
                let outcome = acquire(&server.limiter, "alice", AcquireOptions::cost(3).hold()).await?;
                guards.lock().expect("no panic").push(outcome.held.expect("the limit allows the hold"));
                Ok::<_, tower_ratelimit::Error>(())
            };
            lost += u64::from(server.lose_a_reply(hold).await);
            wait_for_usage(&server.direct, "alice", 3 * round).await;
        }
        assert!(lost > 7, "{name}: {lost} replies were lost");
        // Of 40 bytes each, behind at most 168 bytes.
        assert!(length(&server.server) <= 168 + 5 * 40, "{name}: {} bytes", length(&server.server));
        let guards = guards.into_inner().expect("no panic");
        // The last cut may meet these replies. Then the process repeats the settlements.
        drop(join_all(guards.into_iter().map(Held::release)).await);
        wait_for_usage(&server.direct, "alice", 0).await;
    }
    check("fast path of requests in flight", InFlight::new(100)).await;
    check("fast path of buckets", Gcra::new(HUNDRED)).await;
    check("windows", FixedWindow::new(HUNDRED)).await;
    check("lists", SlidingLog::new(HUNDRED)).await;
    check("several limits", (Limit::new("a", InFlight::new(100)), Limit::new("b", Gcra::new(HUNDRED)))).await;
}

/// The length of the first key's value in bytes, of a log of its header.
fn length(server: &Server) -> i64 {
    let length = "return #(redis.call('TYPE', KEYS[1]).ok == 'list' and redis.call('LINDEX', KEYS[1], 0) or \
                  redis.call('GET', KEYS[1]))";
    server.number(&["EVAL", length, "1", &server.keys()[0]])
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
    // A key without holds has its original length.
    assert_eq!(length(&server), 48);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_first_holds_share_few_entries() {
    let server = Server::start();
    let limiter = limiter_on::<str>(
        server.open(),
        Duration::from_secs(60),
        LONG_DEADLINE,
        FixedWindow::new(Quota::per_day(1000)),
    );
    let held = join_all((0..300).map(|_| hold(&limiter, "alice", 1))).await;
    // Each entry has 40 bytes.
    assert!(length(&server) <= 88 + 5 * 40, "{} bytes", length(&server));
    drop(held);
    until("no entry", async || length(&server) <= 48).await;
    let remaining = limiter.peek("alice", AcquireOptions::cost(0)).await.expect("an answer").remaining();
    assert_eq!(remaining, Some(700), "dropped guards settle their whole cost once");
}

/// The first settlement finds that Redis has lost the session, which ends. The next one has nothing to say, so its key takes
/// no part in the call that it shares with a decision, whatever another process holds on that key.
#[tokio::test]
async fn settlement_of_a_lost_session_disturbs_no_decision() {
    async fn check(server: &Server, limits: impl IntoRedisLimits<str> + Clone) {
        let limiter = || limiter_on::<str>(server.open(), Duration::from_secs(60), LONG_DEADLINE, limits.clone());
        let (limiter, other_process) = (limiter(), limiter());
        let (first, second) = (hold(&limiter, "alice", 2).await, hold(&limiter, "alice", 3).await);
        server.command(&["FLUSHALL"]);
        let _ = first.settle(1).await;
        let _held = hold(&other_process, "alice", 5).await;
        // On one thread both are in one call.
        let (_, decided) = join(second.settle(1), acquire(&limiter, "bob", AcquireOptions::default())).await;
        assert_eq!(decided.expect("an answer").decision.remaining(), Some(99));
    }
    let server = Server::start();
    check(&server, Gcra::new(HUNDRED)).await;
    check(&server, FixedWindow::new(HUNDRED)).await;
    check(&server, (Limit::new("one", Gcra::new(HUNDRED)), Limit::new("two", Gcra::new(HUNDRED)))).await;
}

/// The caller never received the guard. Its cost is released; the request itself counts, like any request whose reply
/// was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_that_is_dropped_before_its_reply_keeps_the_fixed_cost_at_most() {
    let server = Server::start();
    let limits = (
        Limit::new("requests", FixedWindow::new(Quota::per_day(9))).fixed_cost(1),
        Limit::new("tokens", FixedWindow::new(Quota::per_day(1000))),
    );
    let limiter = limiter_on::<str>(server.open(), Duration::from_secs(60), LONG_DEADLINE, limits);
    let remaining = async || {
        let options = AcquireOptions::cost(0).detail(Detail::All);
        let decision = limiter.peek("alice", options).await.expect("an answer");
        decision.limits().iter().map(tower_ratelimit::LimitStatus::remaining).collect::<Vec<_>>()
    };
    assert_eq!(remaining().await, [9, 1000]);
    drop(limiter.hold("alice", AcquireOptions::cost(100)));
    let held = limiter.hold("alice", AcquireOptions::cost(1));
    held.await.expect("an answer").held.expect("allowed").release().await.expect("done");
    until("the release of the tokens", async || remaining().await[1] == 1000).await;
    assert!((7..=8).contains(&remaining().await[0]));
}

#[test]
fn guards_work_in_other_runtimes_and_at_shutdown() {
    let server = Server::start();
    let limiter = std::sync::Arc::new(self::limiter(&server, Duration::from_secs(5)));
    let (one, other) = (Runtime::new().expect("a runtime"), Runtime::new().expect("a runtime"));
    let held = one.block_on(hold(&*limiter, "alice", 9));
    other.block_on(async { held.settle(4).await }).expect("done");
    assert_eq!(other.block_on(used(&*limiter, "alice")), 4);
    // Dropped with its runtime, by a task that never ends.
    let in_task = one.block_on(hold(&*limiter, "alice", 9));
    one.spawn(async move {
        let _held = in_task;
        std::future::pending::<()>().await;
    });
    let began = Instant::now();
    drop(one);
    assert!(began.elapsed() < LONG_DEADLINE, "the shutdown hangs");
    // Dropped outside of a runtime.
    let held = other.block_on(hold(&*limiter, "alice", 1));
    drop(held);
    other.block_on(wait_for_usage(&*limiter, "alice", 14));
    let began = Instant::now();
    drop(other);
    assert!(began.elapsed() < LONG_DEADLINE, "the shutdown hangs");
}

/// The limits of a user and of all users: each user's holds take one entry on the user's key, and all holds one entry
/// on the shared key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_of_many_keys_take_one_entry_on_the_key_they_share() {
    let server = Server::start();
    let limits = (
        Limit::new("user", FixedWindow::new(Quota::per_day(10))).keyed_by(|user: &u64| *user),
        Limit::new("all", FixedWindow::new(Quota::per_day(1000))).keyed_by(|_: &u64| ()),
    );
    let limiter = limiter_on(server.open(), Duration::from_secs(60), LONG_DEADLINE, limits);
    let mut held = Vec::new();
    for user in 0..200 {
        held.push(hold(&limiter, &user, 3).await);
    }
    let remaining = limiter.peek(&0, AcquireOptions::cost(0).detail(Detail::All)).await.expect("an answer");
    assert_eq!(remaining.limits()[1].remaining(), 400);
    for held in held {
        held.settle(1).await.expect("done");
    }
    let remaining = limiter.peek(&0, AcquireOptions::cost(0).detail(Detail::All)).await.expect("an answer");
    assert_eq!((remaining.limits()[0].remaining(), remaining.limits()[1].remaining()), (9, 800));
}

/// An algorithm without `charge` in its script.
#[derive(Debug)]
struct WithoutCharge;

impl Algorithm for WithoutCharge {
    type State = [u64; 1];

    fn decide(&self, &[used]: &[u64; 1], now: Timestamp, options: ChargeOptions) -> Step<[u64; 1]> {
        if used > 0 && !options.is_forced() {
            return Step::Exceeds;
        }
        Step::Allow { next: [now.saturating_add(Duration::from_secs(60)).as_micros()], delay: 0 }
    }

    fn snapshot(&self, &[used]: &[u64; 1], _: Timestamp) -> LazySnapshot {
        let remaining = u64::from(used == 0);
        let minute = Duration::from_secs(60);
        let reset = if used == 0 { Duration::ZERO } else { minute };
        let idle = tower_ratelimit::LimitSnapshot::new(1, minute);
        idle.with_remaining(remaining).with_reset(reset).with_next_token_after(reset).into()
    }

    fn max_reset(&self) -> Duration {
        Duration::from_secs(60)
    }
}

impl LuaAlgorithm for WithoutCharge {
    const SCRIPT: LuaScript = LuaScript::new(
        "plain1",
        "return {
           words = 1, params = 1, supports_scheduling = false,
           peek = function(s) if s[1] > 0 then return -1 end return 0 end,
           commit = function(s, now) s[1] = now + 60000000 end,
         }",
    );

    fn params(&self, cost: u64, params: &mut Vec<u64>) {
        params.push(cost);
    }
}

#[tokio::test]
async fn algorithm_without_charge_decides_and_cannot_hold() {
    let server = Server::start();
    let limiter = limiter_on::<str>(server.open(), SHORT_EXPIRY, LONG_DEADLINE, WithoutCharge);
    let error = acquire(&limiter, "alice", AcquireOptions::default().hold()).await.expect_err("unsupported");
    assert!(error.is_unsupported() && error.to_string().contains("`charge`"), "{error}");
    assert!(is_allowed(&limiter, "alice").await);
    assert!(!is_allowed(&limiter, "alice").await);
}

#[test]
fn hold_expiry_out_of_bounds_is_an_error() {
    let server = RedisServer::open("redis://127.0.0.1:1").expect("an address");
    for expiry in [Duration::ZERO, Duration::from_millis(99), Duration::from_secs(86_401)] {
        let built = Redis::<str>::builder(server.clone(), "api", Gcra::new(HUNDRED)).hold_expiry(expiry).build();
        assert!(built.expect_err("invalid expiry").is_config(), "{expiry:?}");
    }
}

/// The server's clock steps back by an hour, which does not extend a hold by an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_expires_in_time_after_a_clock_step_back() {
    let server = Server::start();
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let build = |name: &str| -> Redis<str> {
        let builder = Redis::builder(server.open(), name, SlidingLog::new(HUNDRED)).clock_for_tests(clock.clone());
        builder.hold_expiry(Duration::from_secs(3600)).deadline(LONG_DEADLINE).build().expect("limits")
    };
    let (limiter, earlier) = (build("api"), ManualClock::at(Timestamp::from_micros(1_799_990_000_000_000)));
    let held = hold(&limiter, "alice", 40).await;
    let after_step: Redis<str> = Redis::builder(server.open(), "api", SlidingLog::new(HUNDRED))
        .clock_for_tests(earlier.clone())
        .hold_expiry(Duration::from_secs(3600))
        .deadline(LONG_DEADLINE)
        .build()
        .expect("limits");
    assert_eq!(used(&after_step, "alice").await, 40);
    earlier.advance(Duration::from_secs(3601));
    // Charged at the time of its expiry.
    let decision = after_step.peek("alice", AcquireOptions::cost(0)).await.expect("an answer");
    assert_eq!(decision.remaining(), Some(60));
    assert_eq!(decision.reset(), Some(HUNDRED.period().checked_sub(Duration::from_secs(1)).expect("positive")));
    drop(held);
}

/// The old version has another name in keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_script_versions_admit_at_most_twice_the_limit() {
    let server = Server::start();
    let new = limiter(&server, Duration::from_secs(60));
    let old =
        limiter_on::<str>(server.open(), Duration::from_secs(60), LONG_DEADLINE, InLua::<0>(FixedWindow::new(HUNDRED)));
    let mut admitted = 0;
    for round in 0..300 {
        let (ours, theirs) = (AcquireOptions::cost(1 + round % 3), AcquireOptions::cost(1 + round % 2));
        for (limiter, options) in [(&new, ours), (&old, theirs)] {
            let options = if round % 5 == 0 { options.hold() } else { options };
            let outcome = acquire(limiter, "alice", options).await.expect("an answer");
            admitted += if outcome.decision.is_allowed() { options.cost } else { 0 };
            if let Some(held) = outcome.held {
                held.settle(options.cost).await.expect("done");
            }
        }
    }
    assert_eq!(admitted, 200);
    assert_eq!(server.keys().len(), 2, "{:?}", server.keys());
}

/// `block_on` for each call: nothing drives the task that renews. Holds expire, and the next hold says so. The observer
/// drops the guards.
#[test]
fn hold_in_an_undriven_runtime_emits_a_warning() {
    let thread = std::thread::spawn(hold_in_an_undriven_runtime);
    wait_until("the end of a thread whose observer drops a guard", || thread.is_finished());
    thread.join().expect("no panic");
}

fn hold_in_an_undriven_runtime() {
    let server = Server::start();
    let warnings = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let guards = std::sync::Arc::new(Mutex::new(Vec::new()));
    let (seen, to_drop) = (std::sync::Arc::clone(&warnings), std::sync::Arc::clone(&guards));
    let builder = Redis::builder(server.open(), "api", SlidingLog::new(HUNDRED)).hold_expiry(SHORT_EXPIRY);
    let builder = builder.deadline(LONG_DEADLINE).observe(move |event: &Event<'_>| {
        if let Event::Warning { message, .. } = event {
            seen.lock().expect("no panic").push((*message).to_owned());
            to_drop.lock().expect("no panic").clear();
        }
    });
    let limiter: Redis<str> = builder.build().expect("limits");
    let undriven = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let first = undriven.block_on(hold(&limiter, "alice", 40));
    guards.lock().expect("no panic").push(first);
    std::thread::sleep(SHORT_EXPIRY / 2);
    let second = undriven.block_on(hold(&limiter, "bob", 1));
    let warnings = warnings.lock().expect("no panic").clone();
    assert!(warnings.iter().any(|warning| warning.contains("nothing has driven the tokio runtime")), "{warnings:?}");
    drop(second);
}

/// The error names the cause, and nothing is held.
#[tokio::test]
async fn hold_and_settlement_without_memory_name_the_cause() {
    let server = Server::start();
    let limiter = limiter(&server, Duration::from_secs(60));
    let (_older, held) = (hold(&limiter, "alice", 1).await, hold(&limiter, "alice", 10).await);
    let one = length(&server);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let failed = acquire(&limiter, "alice", AcquireOptions::default().hold()).await.expect_err("no memory");
    assert!(failed.to_string().contains("out of memory"), "{failed}");
    let unconfirmed = held.settle(4).await.expect_err("no memory");
    assert!(!unconfirmed.to_string().contains("did not reply"), "{unconfirmed}");
    let source = std::error::Error::source(&unconfirmed).expect("a cause").to_string();
    assert!(source.contains("out of memory"), "{source}");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let _held = hold(&limiter, "alice", 1).await;
    wait_for_usage(&limiter, "alice", 6).await;
    assert_eq!(length(&server), one, "the hold that was rejected left an entry");
}

/// Leases and holds have bounds of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_64_processes_leave_room_for_holds() {
    let server = Server::start();
    let day = || FixedWindow::new(Quota::per_day(1_000_000));
    let lessees: Vec<_> = (0..64).map(|_| leased(server.open(), day())).collect();
    let request = |limiter| acquire(limiter, "alice", AcquireOptions::default());
    let mut count = 0;
    for _ in 0..MAX_ROUNDS {
        count = 0;
        for limiter in &lessees {
            let outcomes = join_all((0..16).map(|_| request(limiter))).await;
            let is_leased = |outcome: Result<Outcome, _>| outcome.expect("an answer").decision.source() == Lease;
            count += usize::from(outcomes.into_iter().any(is_leased));
        }
        if count == lessees.len() {
            break;
        }
        step(&lessees[0], "alice").await;
    }
    assert_eq!(count, lessees.len());
    let process = || leases::direct::<str>(server.open(), day()).build().expect("limits");
    let mut held = Vec::new();
    for _ in 0..64 {
        held.push(hold(&process(), "alice", 1).await);
    }
    let one_more = process();
    let full = acquire(&one_more, "alice", AcquireOptions::default().hold()).await.expect_err("no room");
    assert!(full.to_string().contains("64 sessions"), "{full}");
    assert!(is_allowed(&one_more, "alice").await, "the value of the key is valid");
    join_all(held.into_iter().map(Held::release)).await.into_iter().for_each(|done| done.expect("done"));
    for lessee in lessees {
        lessee.close().await.expect("released");
    }
}
