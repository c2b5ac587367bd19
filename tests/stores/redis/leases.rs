//! Leases: exact, whatever is lost, and with their documented delays.
//!
//! The tests run in virtual time: the clock of each test advances with its decisions. So leases need no speed of the
//! machine. Only the task that renews them waits in real time, and the helpers wait for its reports.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use tokio::time::sleep;
use tower_ratelimit::store::{IntoRedisLimits, Lease, RedisLimit};
use tower_ratelimit::{
    AcquireOptions, Calendar, Clock as _, Decision, DecisionSource, Error, FixedWindow, Gcra, InFlight, LeakyQueue,
    Limit, Limiter as _, ManualClock, Quota, Redis, RedisBuilder, RedisServer, SystemClock, Timestamp, per_key,
};

use crate::helpers::{LONG_DEADLINE, ONE_DAY, acquire};
use crate::process::wait_until;
use crate::server::Server;

pub(crate) const DURATION: Duration = Duration::from_millis(200);
pub(crate) const LIMIT: u64 = 4_000;
/// A quota that does not refill during a test.
pub(crate) const QUOTA: Quota = Quota::per_day(LIMIT);

/// After so many decisions of a test its clock advances by [`STEP`].
const DECISIONS_PER_STEP: u64 = 8;
/// So small that many steps pass between two looks of the task at the leases, which takes a sixteenth of the duration.
const STEP: Duration = DURATION.checked_div(64).expect("not zero");
/// After so many decisions, or steps without decisions, a test gives up.
pub(crate) const MAX_ROUNDS: u64 = 100_000;

thread_local! {
    static CLOCK: RefCell<ManualClock> = RefCell::new(ManualClock::at(SystemClock::new().now()));
    static DECISIONS: Cell<u64> = const { Cell::new(0) };
}

/// The clock of this thread's test. The limiters and the server decide by it.
pub(crate) fn clock() -> ManualClock {
    CLOCK.with_borrow(Clone::clone)
}

/// Uses the clock of another thread's test.
pub(crate) fn use_clock(clock: ManualClock) {
    CLOCK.set(clock);
}

/// A limiter without leases in the time of the test.
pub(crate) fn direct<Key: ?Sized>(server: RedisServer, limits: impl IntoRedisLimits<Key>) -> RedisBuilder<Key> {
    Redis::builder(server, "api", limits).clock_for_tests(clock()).hold_expiry(ONE_DAY).deadline(LONG_DEADLINE)
}

pub(crate) fn leased(server: RedisServer, limits: impl IntoRedisLimits<str>) -> Redis<str> {
    direct(server, limits).lease(Lease::new(DURATION)).build().expect("limits")
}

/// Lets time pass, and waits for the reports that the limiter has sent.
pub(crate) async fn step(limiter: &Redis<str>, key: &str) {
    clock().advance(STEP);
    // The task waits for a tick in real time.
    sleep(Duration::from_millis(1)).await;
    // Its reports are before the peek on the connection.
    let _ = limiter.peek(key, AcquireOptions::default()).await;
}

/// Lets a time pass in steps.
pub(crate) async fn pass(span: Duration, limiter: &Redis<str>, key: &str) {
    let began = clock().now();
    while clock().now().saturating_since(began) < span {
        step(limiter, key).await;
    }
}

/// Acquires. Time passes with the decisions of the test.
pub(crate) async fn try_acquire(limiter: &Redis<str>, key: &str, options: AcquireOptions) -> Result<Decision, Error> {
    let number = DECISIONS.get() + 1;
    DECISIONS.set(number);
    if number.is_multiple_of(DECISIONS_PER_STEP) {
        step(limiter, key).await;
    }
    acquire(limiter, key, options).await.map(|outcome| outcome.decision)
}

pub(crate) async fn decide(limiter: &Redis<str>, key: &str, options: AcquireOptions) -> Decision {
    try_acquire(limiter, key, options).await.expect("an answer")
}

/// What some decisions have admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) direct: u64,
    pub(crate) leased: u64,
}

impl Admitted {
    pub(crate) fn all(self) -> u64 {
        self.direct + self.leased
    }
}

/// Acquires `count` times, and counts what is admitted.
pub(crate) async fn acquire_many(limiter: &Redis<str>, key: &str, count: u64, admitted: &mut Admitted) {
    for _ in 0..count {
        let decision = decide(limiter, key, AcquireOptions::default()).await;
        if decision.is_allowed() && decision.source() == DecisionSource::Lease {
            admitted.leased += 1;
        } else if decision.is_allowed() {
            admitted.direct += 1;
        }
    }
}

/// Acquires until a decision comes from a lease.
pub(crate) async fn until_leased(limiter: &Redis<str>, key: &str) -> Admitted {
    let mut admitted = Admitted::default();
    for _ in 0..MAX_ROUNDS {
        acquire_many(limiter, key, 1, &mut admitted).await;
        if admitted.leased > 0 {
            return admitted;
        }
    }
    panic!("no lease after {admitted:?}");
}

/// Acquires in rounds, until more than a hundred units were spent from leases.
pub(crate) async fn until_many_leased(limiters: &[Redis<str>], key: &str, admitted: &mut Admitted) {
    for _ in 0..MAX_ROUNDS {
        if admitted.leased > 100 {
            return;
        }
        for limiter in limiters {
            acquire_many(limiter, key, 10, admitted).await;
        }
    }
    panic!("few leases for {key}: {admitted:?}");
}

/// Returns how much Redis admits without leases.
pub(crate) async fn rest(server: RedisServer, limits: impl IntoRedisLimits<str>, key: &str) -> u64 {
    let direct = direct::<str>(server, limits).build().expect("limits");
    let peeked = direct.peek(key, AcquireOptions::cost(0)).await.expect("an answer");
    peeked.remaining().expect("a figure")
}

/// Each window of a calendar admits its limit, whenever the leases were granted that a process spends in it.
#[tokio::test]
async fn leases_admit_the_limit_in_each_calendar_window() {
    let calendar = Calendar::monthly_on(31).utc_offset_minutes(-150);
    let end = calendar.window_at(clock().now()).end;
    use_clock(ManualClock::at(Timestamp::from_micros(end.as_micros() - 1_000_000)));
    let (server, limit) = (Server::start(), FixedWindow::calendar(LIMIT, calendar));
    let limiters = [(); 2].map(|()| leased(server.open(), limit));
    let (mut admitted, mut leased) = ([0; 2], [0; 2]);
    // So few decisions that the limit is not used up before the boundary: a lease that saves nothing ends.
    while clock().now() < end.saturating_add(Duration::from_secs(1)) {
        for limiter in &limiters {
            let decision = decide(limiter, "alice", AcquireOptions::default()).await;
            let window = usize::from(decision.decided_at() >= end);
            admitted[window] += u64::from(decision.is_allowed());
            leased[window] += u64::from(decision.is_allowed() && decision.source() == DecisionSource::Lease);
            let until = decision.most_restrictive().expect("a limit").snapshot().window;
            let present = calendar.window_at(decision.decided_at());
            assert_eq!(until, Some(present.end.saturating_since(present.start)));
        }
    }
    for limiter in &limiters {
        limiter.close().await.expect("an answer");
    }
    let left = rest(server.open(), limit, "alice").await;
    assert!(leased.iter().all(|leased| *leased > 100), "{leased:?}");
    assert!(admitted[0] <= LIMIT && admitted[1] + left <= LIMIT, "{admitted:?}, {left} left");
    // What was spent before the boundary, and reported after it, is charged in the second window.
    assert!(admitted[1] + left >= LIMIT - LIMIT / 4, "{admitted:?}, {left} left");
}

#[tokio::test]
async fn several_runtimes_and_threads_share_leases() {
    let server = Server::start();
    let limiter = leased(server.open(), FixedWindow::new(QUOTA));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (limiter, clock) = (limiter.clone(), clock());
            std::thread::spawn(move || {
                use_clock(clock);
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                let mut admitted = Admitted::default();
                runtime.block_on(acquire_many(&limiter, "alice", LIMIT / 8, &mut admitted));
                admitted
            })
        })
        .collect();
    let mut admitted = Admitted::default();
    for thread in threads {
        let of_thread = tokio::task::spawn_blocking(|| thread.join()).await.expect("a task").expect("no panic");
        admitted.direct += of_thread.direct;
        admitted.leased += of_thread.leased;
    }
    assert!(admitted.leased > 0, "{admitted:?}");
    limiter.close().await.expect("an answer");
    let left = rest(server.open(), FixedWindow::new(QUOTA), "alice").await;
    // A lease whose renewal ended with its runtime may have expired.
    assert!(admitted.all() + left <= LIMIT, "{admitted:?}, {left} left");
}

#[tokio::test]
async fn leased_decisions_have_figures() {
    let server = Server::start();
    let limiter = leased(server.open(), FixedWindow::new(QUOTA));
    let admitted = until_leased(&limiter, "alice").await;
    let decision = acquire(&limiter, "alice", AcquireOptions::default()).await.expect("an answer").decision;
    assert_eq!(decision.source(), DecisionSource::Lease);
    let status = decision.most_restrictive().expect("a limit");
    assert_eq!((status.limit(), status.window()), (LIMIT, Some(Duration::from_secs(86_400))));
    // The whole quota, less what was spent and what the estimate does not know.
    assert!(status.remaining() <= LIMIT - admitted.all(), "{decision:?}");
    assert!(status.remaining() > LIMIT / 2, "{decision:?}");
    assert!(status.reset() > Duration::from_secs(86_000) && status.reset() <= Duration::from_secs(86_400));
}

fn one<L>(limit: L) -> Vec<RedisLimit<str>>
where
    L: IntoRedisLimits<str>,
{
    limit.into_limits()
}

#[test]
fn unsupported_limits_are_errors() {
    let server = RedisServer::open("redis://127.0.0.1").expect("an address");
    let error = |lease: Lease, limits: Vec<RedisLimit<str>>| {
        let error = Redis::builder(server.clone(), "api", limits).lease(lease).build().expect_err("an error");
        assert!(error.is_config());
        error.to_string()
    };
    let lease = Lease::new(DURATION);
    assert!(error(lease, one(LeakyQueue::new(QUOTA))).contains("is a queue"));
    assert!(error(lease, one(InFlight::new(10))).contains("requests in flight"));
    let two = (Limit::new("a", Gcra::new(QUOTA)), Limit::new("b", LeakyQueue::new(QUOTA)));
    assert!(error(lease, one(two)).contains("the limit \"b\" is a queue"));
    assert!(error(lease, one(per_key(|_: &str| LeakyQueue::new(QUOTA)))).contains("is a queue"));
    let gcra = || one(Gcra::new(QUOTA));
    assert!(error(Lease::new(Duration::from_millis(9)), gcra()).contains("its duration is 9ms"));
    assert!(error(lease.max_share(0.0), gcra()).contains("`max_share` is 0"));
    assert!(error(lease.max_share(f64::NAN), gcra()).contains("`max_share` is NaN"));
    assert!(error(lease.margin(DURATION / 2), gcra()).contains("its margin is 100ms"));
    assert!(error(lease.max_keys(0), gcra()).contains("`max_keys` is 0"));
    // Leases hold 1000 units, and serve costs of at most an eighth of them.
    let with_cost = |cost| one((Limit::new("a", Gcra::new(QUOTA)), Limit::new("b", Gcra::new(QUOTA)).fixed_cost(cost)));
    assert!(
        error(lease, with_cost(126)).contains("the fixed cost of the limit \"b\" is 126, and leases serve at most")
    );
    Redis::builder(server.clone(), "api", with_cost(125)).lease(lease).build().expect("a cost that leases serve");
}

/// Under a new secret all keys have other names. The leases on the old ones end, so each secret admits the limit once.
#[tokio::test]
async fn rotate_secret_ends_leases() {
    let server = Server::start();
    let builder = direct(server.open(), FixedWindow::new(QUOTA)).lease(Lease::new(DURATION));
    let limiter = builder.hash_keys([1; 16]).build().expect("limits");
    let (mut before, mut after) = (Admitted::default(), Admitted::default());
    until_many_leased(std::slice::from_ref(&limiter), "alice", &mut before).await;
    limiter.rotate_secret([2; 16]).expect("a secret");
    let next = decide(&limiter, "alice", AcquireOptions::default()).await;
    assert_eq!(next.source(), DecisionSource::Store, "{next:?}");
    after.direct += 1;
    until_many_leased(std::slice::from_ref(&limiter), "alice", &mut after).await;
    limiter.close().await.expect("an answer");
    // The leases were released, so what they had not spent is free.
    for (secret, admitted) in [([1; 16], before), ([2; 16], after)] {
        let other = direct::<str>(server.open(), FixedWindow::new(QUOTA)).hash_keys(secret).build().expect("limits");
        let left = other.peek("alice", AcquireOptions::cost(0)).await.expect("an answer");
        assert_eq!(admitted.all() + left.remaining().expect("a figure"), LIMIT, "{before:?} before, {after:?} after");
    }
}

/// A limiter that is closed has no leases again, whatever replaces its limits.
#[tokio::test]
async fn closed_limiter_has_no_leases_after_replace() {
    let server = Server::start();
    let limiter = leased(server.open(), FixedWindow::new(QUOTA));
    let mut admitted = Admitted::default();
    until_many_leased(std::slice::from_ref(&limiter), "alice", &mut admitted).await;
    limiter.close().await.expect("an answer");
    let (before, mut closed) = (admitted.all(), Admitted::default());
    for _ in 0..2 {
        limiter.replace(FixedWindow::new(QUOTA)).expect("limits");
        acquire_many(&limiter, "alice", 500, &mut closed).await;
    }
    assert_eq!(closed, Admitted { direct: 1_000, leased: 0 });
    assert_eq!(rest(server.open(), FixedWindow::new(QUOTA), "alice").await, LIMIT - before - 1_000);
}

/// Nothing runs after `close`, as at the end of a process.
#[test]
fn close_waits_for_the_leases_of_limits_that_were_replaced() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (server, ending, other, mut admitted) = (Server::start(), runtime(), runtime(), Admitted::default());
    ending.block_on(async {
        let limiter = leased(server.open(), FixedWindow::new(QUOTA));
        until_many_leased(std::slice::from_ref(&limiter), "alice", &mut admitted).await;
        limiter.replace(FixedWindow::new(QUOTA)).expect("limits");
        limiter.close().await.expect("released");
    });
    drop(ending);
    let left = other.block_on(rest(server.open(), FixedWindow::new(QUOTA), "alice"));
    assert_eq!(admitted.all() + left, LIMIT);
}

/// A thread that watches a file has no runtime.
#[test]
fn rotate_secret_outside_of_a_runtime_releases_leases() {
    let (server, runtime) = (Server::start(), tokio::runtime::Runtime::new().expect("a runtime"));
    let build = |builder: RedisBuilder<str>| builder.hash_keys([1; 16]).build().expect("limits");
    let limiter = build(direct(server.open(), FixedWindow::new(QUOTA)).lease(Lease::new(DURATION)));
    let other = build(direct(server.open(), FixedWindow::new(QUOTA)));
    let mut admitted = Admitted::default();
    runtime.block_on(until_many_leased(std::slice::from_ref(&limiter), "alice", &mut admitted));
    limiter.rotate_secret([2; 16]).expect("a secret");
    // The time of the test stops, so no lease expires.
    wait_until("the leases are released", || {
        let left = runtime.block_on(async { other.peek("alice", AcquireOptions::cost(0)).await }).expect("an answer");
        admitted.all() + left.remaining().expect("a figure") == LIMIT
    });
}

/// A runtime that nothing drives does not renew leases. A call on another one takes over.
#[test]
fn parked_runtime_does_not_keep_the_leases() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (server, parked, driven) = (Server::start(), runtime(), runtime());
    let limiter = parked.block_on(async { leased(server.open(), FixedWindow::new(QUOTA)) });
    parked.block_on(until_leased(&limiter, "alice"));
    for _ in 0..3 {
        // The lease ends. So does the report that may wait on the parked runtime.
        clock().advance(DURATION * 2);
        let by_driven = driven.block_on(until_leased(&limiter, "alice"));
        let mut more = Admitted::default();
        driven.block_on(acquire_many(&limiter, "alice", 200, &mut more));
        assert!(more.leased > 100, "{more:?} after {by_driven:?}");
    }
    driven.block_on(limiter.close()).expect("an answer");
}

/// A runtime that runs only during each call renews leases then.
#[test]
fn leases_of_a_runtime_that_runs_during_calls_only() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = Server::start();
    let limiter = runtime.block_on(async { leased(server.open(), FixedWindow::new(QUOTA)) });
    let mut admitted = Admitted::default();
    for _ in 0..1_000 {
        runtime.block_on(acquire_many(&limiter, "alice", 1, &mut admitted));
    }
    println!("{admitted:?}");
    assert!(admitted.leased > 100, "{admitted:?}");
    runtime.block_on(limiter.close()).expect("an answer");
    let left = runtime.block_on(rest(server.open(), FixedWindow::new(QUOTA), "alice"));
    assert!(admitted.all() + left <= LIMIT, "{admitted:?}, {left} left");
}
