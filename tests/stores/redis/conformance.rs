//! One suite for every store and every algorithm, on a manual clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tower_ratelimit::algorithm::LuaAlgorithm;
use tower_ratelimit::limiter::{AdminOperation, Chained, FailOpen, Fallback, LimiterFuture, Outcome};
use tower_ratelimit::store::{DefaultHashBuilder, IntoRedisLimits, MemoryLimits};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Decision, Detail, Error, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limit, Limiter,
    ManualClock, Memory, Quota, Redis, RedisCell, RedisServer, SlidingLog, SlidingWindow, TokenBucket, Verdict,
    per_key,
};

use crate::cell;
use crate::deployments::Deployments;
use crate::helpers::{AMPLE, LONG_DEADLINE, ONE_DAY, acquire, hold};
use crate::server::Server;

/// Ten per ten seconds.
const TEN: Quota = Quota::new(10, Duration::from_secs(10));
const MICROSECOND: Duration = Duration::from_micros(1);

/// (user, team, tier).
type Key = (u64, u64, u64);
const ALICE: Key = (1, 1, 0);
const BOB: Key = (2, 1, 0);

/// A limiter, its clock, and its name in failures.
struct Fixture {
    name: String,
    limiter: BoxLimiter<Key>,
    clock: ManualClock,
    /// Whether it schedules later starts where other algorithms deny.
    queues: bool,
    /// Whether it supports holds, blocks and `set`. The redis-cell module does not, and uses its own clock.
    has_all_operations: bool,
    quota: Quota,
}

/// The redis-cell module with a quota that does not refill during a test.
struct CellModule {
    server: Server,
}

impl CellModule {
    fn start() -> Self {
        Self { server: cell::with_module() }
    }

    fn fixture(&self) -> Fixture {
        let quota = Quota::per_day(10);
        let limiter =
            RedisCell::builder(self.server.open(), "api", quota).deadline(LONG_DEADLINE).build().expect("a quota");
        let limiter = BoxLimiter::new(limiter);
        Fixture {
            name: "redis-cell".to_owned(),
            limiter,
            clock: ManualClock::new(),
            queues: false,
            has_all_operations: false,
            quota,
        }
    }
}

/// A store that is always unavailable.
struct Unavailable;

impl Limiter<Key> for Unavailable {
    fn acquire(&self, _: &Key, _: AcquireOptions) -> LimiterFuture<Outcome> {
        LimiterFuture::pending(async { Err(Error::unavailable("the store is unavailable")) })
    }

    fn peek(&self, _: &Key, _: AcquireOptions) -> tower_ratelimit::limiter::LimiterFuture<Decision> {
        tower_ratelimit::limiter::LimiterFuture::ready(Err(Error::unavailable("the store is unavailable")))
    }
}

/// The same limits in each store.
fn stores<L>(deployments: &Deployments, name: &str, limits: &L) -> Vec<Fixture>
where
    L: MemoryLimits<Key, DefaultHashBuilder> + IntoRedisLimits<Key> + Clone + Send + Sync + 'static,
    Memory<Key, L>: Limiter<Key> + Clone,
{
    let fixture = |store: &str, build: &dyn Fn(ManualClock) -> BoxLimiter<Key>| {
        let clock = ManualClock::new();
        let limiter = build(clock.clone());
        let queues = name.contains("queue");
        Fixture { name: format!("{name} in {store}"), limiter, clock, queues, has_all_operations: true, quota: TEN }
    };
    let memory =
        |clock: ManualClock| Memory::builder(limits.clone()).max_keys(100).clock(clock).build().expect("limits");
    let redis_on = |server: &RedisServer, store: &str, clock: ManualClock| {
        on(server, &format!("{name} {store}"), limits.clone(), &clock)
    };
    let redis = |store: &str, clock: ManualClock| redis_on(&deployments.alone(), store, clock);
    let mut fixtures = vec![
        fixture("memory", &|clock| BoxLimiter::new(memory(clock))),
        fixture("Redis with a fallback", &|clock| {
            BoxLimiter::new(Fallback::new(redis("first", clock.clone()), memory(clock)))
        }),
        fixture("Redis that fails open", &|clock| BoxLimiter::new(FailOpen::new(redis("open", clock)))),
        fixture("memory behind an unavailable store", &|clock| BoxLimiter::new(OverUnavailable::over(memory(clock)))),
    ];
    for (deployment, server) in deployments.each() {
        fixtures.push(fixture(deployment, &|clock| BoxLimiter::new(redis_on(&server, deployment, clock))));
    }
    fixtures
}

/// A limiter whose name is unique, because tests share the deployments.
fn on(server: &RedisServer, name: &str, limits: impl IntoRedisLimits<Key>, clock: &ManualClock) -> Redis<Key> {
    static LIMITERS: AtomicU64 = AtomicU64::new(0);
    let name = format!("{name} {}", LIMITERS.fetch_add(1, Ordering::Relaxed));
    let builder = Redis::builder(server.clone(), &name, limits).clock_for_tests(clock.clone());
    builder.hold_expiry(ONE_DAY).deadline(LONG_DEADLINE).build().expect("limits")
}

/// A fallback whose primary store is unavailable. Operations that reach both limiters go to the secondary one only.
struct OverUnavailable<L>(Fallback<Unavailable, L>, L);

impl<L: Limiter<Key> + Clone> OverUnavailable<L> {
    fn over(second: L) -> Self {
        Self(Fallback::new(Unavailable, second.clone()), second)
    }
}

impl<L: Limiter<Key> + Clone> Limiter<Key> for OverUnavailable<L> {
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        self.0.acquire(key, options)
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> tower_ratelimit::limiter::LimiterFuture<Decision> {
        self.0.peek(key, options)
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> tower_ratelimit::limiter::LimiterFuture<()> {
        self.1.administer(key, operation)
    }
}

fn one<A: LuaAlgorithm + Clone + Send + Sync + 'static>(
    deployments: &Deployments,
    name: &str,
    algorithm: A,
) -> Vec<Fixture> {
    let limit = Limit::new("default", algorithm).keyed_by(|&(user, _, _): &Key| user);
    let mut fixtures = stores(deployments, name, &limit);
    // Chained with a limit that never denies. A queue does not schedule in a chain.
    if !name.contains("queue") {
        let plenty = Limit::new("plenty", FixedWindow::new(AMPLE)).keyed_by(|&(user, _, _): &Key| user);
        for (deployment, server) in deployments.each() {
            let clock = ManualClock::new();
            let first = on(&server, &format!("{name} chained"), limit.clone(), &clock);
            let second = on(&server, &format!("{name} plenty"), plenty.clone(), &clock);
            let limiter = BoxLimiter::new(Chained::new(first, second));
            let name = format!("{name} chained on {deployment}");
            fixtures.push(Fixture { name, limiter, clock, queues: false, has_all_operations: true, quota: TEN });
        }
    }
    fixtures
}

/// Every algorithm in each store, with a burst of ten.
fn every_fixture(deployments: &Deployments) -> Vec<Fixture> {
    let mut all = one(deployments, "gcra", Gcra::new(TEN));
    all.extend(one(deployments, "token bucket", TokenBucket::new(TEN)));
    all.extend(one(deployments, "leaky bucket", LeakyBucket::new(TEN)));
    all.extend(one(deployments, "leaky queue", LeakyQueue::new(TEN).max_waiting(9)));
    all.extend(one(deployments, "fixed window", FixedWindow::new(TEN)));
    all.extend(one(deployments, "aligned window", FixedWindow::new(TEN).aligned_to_clock()));
    all.extend(one(deployments, "sliding window", SlidingWindow::new(TEN)));
    all.extend(one(deployments, "weighted window", SlidingWindow::new(TEN).blocks(1).weighted()));
    all.extend(one(deployments, "sliding log", SlidingLog::new(TEN)));
    all
}

/// Every algorithm in each store, and the redis-cell module.
fn every_fixture_and_cell(module: &CellModule, deployments: &Deployments) -> Vec<Fixture> {
    let mut all = every_fixture(deployments);
    all.push(module.fixture());
    all
}

impl Fixture {
    async fn acquire(&self, key: Key, cost: u64) -> Outcome {
        acquire(&self.limiter, &key, AcquireOptions::cost(cost))
            .await
            .unwrap_or_else(|error| panic!("{}: {error:?}", self.name))
    }

    async fn allows(&self, key: Key, cost: u64) -> bool {
        self.acquire(key, cost).await.decision.is_allowed()
    }

    async fn peek(&self, key: Key, cost: u64) -> Decision {
        self.limiter
            .peek(&key, AcquireOptions::cost(cost))
            .await
            .unwrap_or_else(|error| panic!("{}: {error:?}", self.name))
    }

    async fn remaining_of(&self, key: Key) -> u64 {
        self.peek(key, 0).await.remaining().expect("a figure")
    }

    /// Acquires until the key is denied.
    async fn exhaust(&self, key: Key) {
        for _ in 0..10 {
            assert!(self.allows(key, 1).await, "{}", self.name);
        }
    }
}

#[tokio::test]
async fn new_key_has_exactly_the_quota() {
    let (module, deployments) = (CellModule::start(), Deployments::shared());
    for fixture in every_fixture_and_cell(&module, &deployments) {
        for remaining in (0..10).rev() {
            let outcome = fixture.acquire(ALICE, 1).await;
            assert!(outcome.decision.is_allowed(), "{}", fixture.name);
            assert!(outcome.held.is_none(), "{}", fixture.name);
            assert_eq!(outcome.decision.remaining(), Some(remaining), "{}", fixture.name);
            let status = outcome.decision.most_restrictive().expect("a limit");
            assert_eq!(
                (status.name(), status.limit(), status.window()),
                ("default", 10, Some(fixture.quota.period())),
                "{}",
                fixture.name
            );
        }
        let denied = fixture.acquire(ALICE, 1).await;
        assert!(!denied.decision.is_allowed(), "{}", fixture.name);
        assert!(fixture.allows(BOB, 1).await, "{}: each key has its own usage", fixture.name);
    }
}

#[tokio::test]
async fn denial_charges_nothing_and_retry_after_is_sufficient_and_minimal() {
    let deployments = Deployments::shared();
    for fixture in every_fixture(&deployments) {
        for cost in [1, 4, 10] {
            fixture.limiter.reset(&ALICE).await.expect("done");
            fixture.clock.advance(TEN.period() * 3);
            fixture.exhaust(ALICE).await;
            let first = fixture.peek(ALICE, cost).await;
            for _ in 0..20 {
                let denied = fixture.acquire(ALICE, cost).await.decision;
                assert_eq!(denied.verdict(), first.verdict(), "{}", fixture.name);
                assert_eq!(denied.remaining(), Some(0), "{}", fixture.name);
            }
            let wait = first.retry_after().unwrap_or_else(|| panic!("{}: {first:?}", fixture.name));
            fixture.clock.advance(wait.checked_sub(MICROSECOND).expect("a wait"));
            let early = fixture.acquire(ALICE, cost).await.decision;
            assert_eq!(early.retry_after(), Some(MICROSECOND), "{} at {cost}", fixture.name);
            fixture.clock.advance(MICROSECOND);
            assert!(fixture.allows(ALICE, cost).await, "{} at {cost}", fixture.name);
        }
    }
}

#[tokio::test]
async fn key_is_idle_after_its_reset_time() {
    let deployments = Deployments::shared();
    for fixture in every_fixture(&deployments) {
        fixture.exhaust(ALICE).await;
        let reset = fixture.peek(ALICE, 1).await.reset().expect("a figure");
        fixture.clock.advance(reset.checked_sub(MICROSECOND).expect("a time"));
        assert!(
            fixture.remaining_of(ALICE).await < 10 || fixture.peek(ALICE, 0).await.reset() == Some(MICROSECOND),
            "{}",
            fixture.name
        );
        fixture.clock.advance(MICROSECOND);
        assert_eq!(
            (fixture.remaining_of(ALICE).await, fixture.peek(ALICE, 0).await.reset()),
            (10, Some(Duration::ZERO)),
            "{}",
            fixture.name
        );
    }
}

#[tokio::test]
async fn cost_is_charged_and_cost_zero_is_free() {
    let (module, deployments) = (CellModule::start(), Deployments::shared());
    for fixture in every_fixture_and_cell(&module, &deployments) {
        assert!(fixture.allows(ALICE, 0).await && fixture.remaining_of(ALICE).await == 10, "{}", fixture.name);
        assert!(fixture.allows(ALICE, 7).await && fixture.remaining_of(ALICE).await == 3, "{}", fixture.name);
        assert!(!fixture.allows(ALICE, 4).await && fixture.remaining_of(ALICE).await == 3, "{}", fixture.name);
        assert!(fixture.allows(ALICE, 3).await && fixture.remaining_of(ALICE).await == 0, "{}", fixture.name);
        assert!(fixture.allows(ALICE, 0).await, "{}: cost zero is allowed at the limit", fixture.name);
    }
}

#[tokio::test]
async fn cost_above_the_limit_exceeds_it_and_charges_nothing() {
    let (module, deployments) = (CellModule::start(), Deployments::shared());
    for fixture in every_fixture_and_cell(&module, &deployments) {
        for cost in [11, 1 << 40, 1 << 53, u64::MAX] {
            let decision = fixture.acquire(ALICE, cost).await.decision;
            assert_eq!(decision.verdict(), Verdict::ExceedsLimit, "{} at {cost}", fixture.name);
            assert_eq!(decision.retry_after(), None, "{}", fixture.name);
        }
        assert_eq!(fixture.remaining_of(ALICE).await, 10, "{}", fixture.name);
    }
}

#[tokio::test]
async fn released_hold_charges_nothing() {
    let deployments = Deployments::shared();
    for fixture in every_fixture(&deployments) {
        let held = hold(&fixture.limiter, &ALICE, 4).await;
        assert_eq!((held.cost(), fixture.remaining_of(ALICE).await), (4, 6), "{}", fixture.name);
        held.release().await.expect("done");
        assert_eq!(fixture.remaining_of(ALICE).await, 10, "{}", fixture.name);
        // Held cost does not drain. A late release does not exceed the burst.
        let held = hold(&fixture.limiter, &ALICE, 4).await;
        fixture.clock.advance(TEN.period() * 4);
        assert_eq!(fixture.remaining_of(ALICE).await, 6, "{}", fixture.name);
        held.release().await.expect("done");
        fixture.exhaust(ALICE).await;
        assert!(!fixture.allows(ALICE, 1).await, "{}", fixture.name);
    }
}

#[tokio::test]
async fn hold_is_settled_at_its_actual_cost() {
    let deployments = Deployments::shared();
    for fixture in every_fixture(&deployments) {
        hold(&fixture.limiter, &ALICE, 4).await.settle(1).await.expect("done");
        assert_eq!(fixture.remaining_of(ALICE).await, 9, "{}", fixture.name);
        // A queue holds only for a request that need not wait.
        let bob = if fixture.queues { BOB } else { ALICE };
        hold(&fixture.limiter, &bob, 2).await.settle(2).await.expect("done");
        assert_eq!(fixture.remaining_of(bob).await, if fixture.queues { 8 } else { 7 }, "{}", fixture.name);
        fixture.limiter.set_usage("default", &ALICE, 0).await.expect("done");
        // Above the held cost and above what remains.
        hold(&fixture.limiter, &ALICE, 1).await.settle(12).await.expect("done");
        assert!(!fixture.allows(ALICE, 1).await && fixture.remaining_of(ALICE).await == 0, "{}", fixture.name);
    }
}

#[tokio::test]
async fn peek_does_not_charge_and_returns_what_acquire_returns() {
    let (module, deployments) = (CellModule::start(), Deployments::shared());
    for fixture in every_fixture_and_cell(&module, &deployments) {
        for cost in [1, 3, 3, 3, 1, 20] {
            let seen = fixture.peek(ALICE, cost).await;
            for _ in 0..3 {
                let again = fixture.peek(ALICE, cost).await;
                assert_eq!(
                    (again.is_allowed(), again.remaining()),
                    (seen.is_allowed(), seen.remaining()),
                    "{}",
                    fixture.name
                );
                // On a stopped clock, all figures are equal.
                assert!(again == seen || !fixture.has_all_operations, "{}: {again:?} {seen:?}", fixture.name);
            }
            let decision = fixture.acquire(ALICE, cost).await.decision;
            assert_eq!(
                (decision.is_allowed(), decision.exceeds_limit()),
                (seen.is_allowed(), seen.exceeds_limit()),
                "{}",
                fixture.name
            );
            assert!(decision.verdict() == seen.verdict() || !fixture.has_all_operations, "{}", fixture.name);
        }
    }
}

#[tokio::test]
async fn reset_set_block_and_unblock_change_the_key() {
    let (module, deployments) = (CellModule::start(), Deployments::shared());
    for fixture in every_fixture_and_cell(&module, &deployments) {
        fixture.exhaust(ALICE).await;
        fixture.limiter.reset(&ALICE).await.expect("done");
        assert_eq!(fixture.remaining_of(ALICE).await, 10, "{}", fixture.name);
        if !fixture.has_all_operations {
            let held = acquire(&fixture.limiter, &ALICE, AcquireOptions::default().hold()).await;
            assert!(held.expect_err("unsupported").is_unsupported());
            assert!(fixture.limiter.set_usage("default", &ALICE, 7).await.expect_err("unsupported").is_unsupported());
            assert!(
                fixture.limiter.block("default", &ALICE, TEN.period()).await.expect_err("unsupported").is_unsupported()
            );
            continue;
        }
        fixture.limiter.set_usage("default", &ALICE, 7).await.expect("done");
        assert_eq!(fixture.remaining_of(ALICE).await, 3, "{}", fixture.name);
        fixture.limiter.set_usage("default", &ALICE, 0).await.expect("done");
        assert_eq!(fixture.remaining_of(ALICE).await, 10, "{}", fixture.name);

        fixture.limiter.block("default", &ALICE, Duration::from_secs(300)).await.expect("done");
        let blocked = fixture.acquire(ALICE, 1).await.decision;
        assert_eq!(blocked.retry_after(), Some(Duration::from_secs(300)), "{}", fixture.name);
        assert!(blocked.is_blocked(), "{}", fixture.name);
        assert!(!fixture.acquire(BOB, 11).await.decision.is_blocked(), "{}", fixture.name);
        assert!(fixture.allows(BOB, 1).await, "{}", fixture.name);
        fixture.limiter.reset(&ALICE).await.expect("done");
        fixture.clock.advance(Duration::from_secs(299));
        assert!(!fixture.allows(ALICE, 1).await, "{}: a reset does not lift a block", fixture.name);
        fixture.limiter.block("default", &ALICE, Duration::ZERO).await.expect("done");
        assert!(fixture.allows(ALICE, 1).await, "{}", fixture.name);
        fixture.limiter.block("default", &ALICE, Duration::from_secs(5)).await.expect("done");
        fixture.clock.advance(Duration::from_secs(5));
        assert!(fixture.allows(ALICE, 1).await, "{}: a block ends", fixture.name);
    }
}

#[tokio::test]
async fn largest_limit_cost_and_delay_are_supported() {
    let deployments = Deployments::shared();
    for fixture in every_fixture(&deployments) {
        fixture.limiter.set_usage("default", &ALICE, u64::MAX).await.expect("done");
        assert!(!fixture.allows(ALICE, 1).await, "{}", fixture.name);
        fixture.limiter.reset(&ALICE).await.expect("done");
        hold(&fixture.limiter, &ALICE, 1).await.settle(u64::MAX).await.expect("done");
        assert!(!fixture.allows(ALICE, 1).await, "{}", fixture.name);
        fixture.limiter.block("default", &BOB, Duration::MAX).await.expect("done");
        assert!(!fixture.allows(BOB, 1).await, "{}", fixture.name);
        fixture.limiter.block("default", &BOB, Duration::ZERO).await.expect("done");
        let options = AcquireOptions::default().max_delay(Duration::MAX).detail(Detail::All);
        assert!(
            acquire(&fixture.limiter, &BOB, options).await.expect("an answer").decision.is_allowed(),
            "{}",
            fixture.name
        );
    }
}

#[tokio::test]
async fn unknown_limit_is_a_configuration_error() {
    let deployments = Deployments::shared();
    for fixture in every_fixture(&deployments) {
        assert!(
            fixture.limiter.set_usage("other", &ALICE, 1).await.expect_err("no such limit").is_config(),
            "{}",
            fixture.name
        );
        assert!(fixture.limiter.block("other", &ALICE, TEN.period()).await.expect_err("no such limit").is_config());
        assert!(fixture.limiter.block("other", &ALICE, Duration::ZERO).await.expect_err("no such limit").is_config());
    }
}

#[tokio::test]
async fn queue_schedules_later_starts_for_waiting_callers() {
    let deployments = Deployments::shared();
    for fixture in every_fixture(&deployments) {
        let delays: Vec<_> = (0..3).map(|_| fixture.acquire(ALICE, 1)).collect();
        let mut seen = Vec::new();
        for delay in delays {
            seen.push(delay.await.decision.delay());
        }
        let turns = if fixture.queues { [0, 1, 2] } else { [0; 3] };
        assert_eq!(seen, turns.map(Duration::from_secs), "{}", fixture.name);
    }
}

#[tokio::test]
async fn several_limits_charge_all_or_none() {
    let deployments = Deployments::shared();
    let user = Limit::new("user", Gcra::new(Quota::per_hour(3))).keyed_by(|&(user, _, _): &Key| user);
    let team = Limit::new("team", SlidingLog::new(Quota::per_hour(4))).keyed_by(|&(_, team, _): &Key| team);
    let all = Limit::new("all", FixedWindow::new(Quota::per_day(5))).keyed_by(|_: &Key| ());
    let mut fixtures = stores(&deployments, "several", &(user.clone(), team.clone(), all.clone()));
    // In sequence, chained limiters decide alike.
    for (deployment, server) in deployments.each() {
        let clock = ManualClock::new();
        let limiter = Chained::new(
            on(&server, "user", user.clone(), &clock),
            Chained::new(on(&server, "team", team.clone(), &clock), on(&server, "all", all.clone(), &clock)),
        );
        let name = format!("chained on {deployment}");
        fixtures.push(Fixture {
            name,
            limiter: BoxLimiter::new(limiter),
            clock,
            queues: false,
            has_all_operations: true,
            quota: TEN,
        });
    }
    for fixture in fixtures {
        for _ in 0..3 {
            assert!(fixture.allows(ALICE, 1).await, "{}", fixture.name);
        }
        // The user's limit denies, so the other limits are not charged.
        let denied = acquire(&fixture.limiter, &ALICE, AcquireOptions::default().detail(Detail::All))
            .await
            .expect("an answer")
            .decision;
        assert_eq!(
            denied.most_restrictive().map(|status| status.name().to_owned()).as_deref(),
            Some("user"),
            "{}",
            fixture.name
        );
        let remaining: Vec<_> =
            denied.limits().iter().map(|status| (status.name().to_owned(), status.remaining())).collect();
        assert_eq!(
            remaining,
            [("user".to_owned(), 0), ("team".to_owned(), 1), ("all".to_owned(), 2)],
            "{}",
            fixture.name
        );
        assert!(fixture.allows(BOB, 1).await, "{}", fixture.name);
        // The team's limit denies, and its wait is exact.
        let denied = fixture.acquire(BOB, 1).await.decision;
        assert_eq!(
            denied.most_restrictive().map(|status| status.name().to_owned()).as_deref(),
            Some("team"),
            "{}",
            fixture.name
        );
        fixture.clock.advance(denied.retry_after().expect("a time"));
        let held = hold(&fixture.limiter, &BOB, 1).await;
        // A release restores the tokens of every limit.
        let elsewhere = (9, 9, 0);
        assert!(!fixture.allows(elsewhere, 1).await, "{}", fixture.name);
        held.release().await.expect("done");
        assert!(fixture.allows(elsewhere, 1).await, "{}", fixture.name);
    }
}

#[tokio::test]
async fn shadow_limit_is_reported_and_never_denies() {
    let deployments = Deployments::shared();
    let limits = (
        Limit::new("real", Gcra::new(Quota::per_hour(5))).keyed_by(|&(user, _, _): &Key| user),
        Limit::new("shadow", FixedWindow::new(Quota::per_hour(2))).keyed_by(|&(user, _, _): &Key| user).shadow(),
    );
    for fixture in stores(&deployments, "shadow", &limits) {
        for asked in 1..=5 {
            let decision = fixture.acquire(ALICE, 1).await.decision;
            assert!(decision.is_allowed(), "{}", fixture.name);
            assert_eq!(decision.shadow_denials().count(), usize::from(asked > 2), "{}", fixture.name);
        }
        assert!(!fixture.allows(ALICE, 1).await, "{}", fixture.name);
    }
}

/// Checks that a shadow decides each request of a trace like the same limit alone.
///
/// The enforced limit delays requests, or denies them. The shadow counts the requests of all users together.
async fn check_shadow<A>(deployments: &Deployments, name: &str, algorithm: A)
where
    A: LuaAlgorithm + Clone + Send + Sync + 'static,
{
    let enforced = Limit::new("enforced", LeakyQueue::new(TEN).max_waiting(9)).keyed_by(|&(user, _, _): &Key| user);
    let limit = Limit::new("alone", algorithm).keyed_by(|&(_, team, _): &Key| team);
    for fixture in stores(deployments, name, &(enforced, limit.clone().shadow())) {
        let alone = Memory::builder(limit.clone()).clock(fixture.clock.clone()).build().expect("limits");
        let (mut delayed, mut denied) = (0, 0);
        for step in 0..120_u64 {
            fixture
                .clock
                .advance(Duration::from_millis([0, 1, 0, 150, 0, 0, 0, 40][usize::try_from(step % 8).unwrap()]));
            let (key, cost) = (if step % 11 > 8 { BOB } else { ALICE }, 1 + u64::from(step % 7 == 0));
            let decision = fixture.acquire(key, cost).await.decision;
            let expected = if decision.is_allowed() {
                alone.acquire(&key, AcquireOptions::cost(cost)).await.expect("an answer").decision
            } else {
                alone.peek(&key, AcquireOptions::cost(cost)).await.expect("an answer")
            };
            let expected = expected.most_restrictive().expect("a limit");
            let shadow = decision.limits().iter().find(|status| status.is_shadow()).expect("the shadow");
            assert_eq!(
                (shadow.verdict(), shadow.remaining(), shadow.reset()),
                (expected.verdict(), expected.remaining(), expected.reset()),
                "{} step {step}",
                fixture.name
            );
            delayed += u32::from(matches!(decision.verdict(), Verdict::AllowedAfter(_)));
            denied += u32::from(!decision.is_allowed());
        }
        assert!(delayed > 10 && denied > 10, "{}: {delayed} delayed, {denied} denied", fixture.name);
    }
}

#[tokio::test]
async fn shadow_beside_waiting() {
    let deployments = Deployments::shared();
    let limits = (
        Limit::new("enforced", LeakyQueue::new(Quota::per_second(10)).max_waiting(10)).keyed_by(|key: &Key| key.0),
        Limit::new("all", Gcra::new(Quota::per_second(1000))).keyed_by(|_: &Key| ()).shadow(),
    );
    for fixture in stores(&deployments, "shadow of 1000/s", &limits) {
        // Ten requests wait.
        for _ in 0..11 {
            assert!(fixture.allows(ALICE, 1).await, "{}", fixture.name);
        }
        // An idle user.
        let decision = fixture.acquire(BOB, 1).await.decision;
        assert_eq!(decision.verdict(), Verdict::Allowed, "{}", fixture.name);
        assert_eq!(decision.shadow_denials().count(), 0, "{}", fixture.name);
    }
    let thousand = Quota::per_second(1000);
    check_shadow(&deployments, "gcra beside a queue", Gcra::new(thousand).burst(12)).await;
    check_shadow(&deployments, "window beside a queue", SlidingWindow::new(Quota::per_second(15))).await;
    check_shadow(&deployments, "log beside a queue", SlidingLog::new(Quota::per_second(15))).await;
    check_shadow(&deployments, "queue beside a queue", LeakyQueue::new(Quota::per_second(4)).max_waiting(5)).await;
}

#[tokio::test]
async fn key_selects_its_tier() {
    let deployments = Deployments::shared();
    let tiers = per_key(|&(_, _, tier): &Key| FixedWindow::new(Quota::per_hour(2 + tier * 3)));
    let limits = Limit::new("default", tiers).keyed_by(|&(user, _, _): &Key| user);
    for fixture in stores(&deployments, "tiers", &limits) {
        for (user, tier) in [(1, 0), (2, 1), (3, 2)] {
            let key = (user, 0, tier);
            for _ in 0..2 + tier * 3 {
                assert!(fixture.allows(key, 1).await, "{}", fixture.name);
            }
            assert!(!fixture.allows(key, 1).await, "{}", fixture.name);
        }
        // Usage is kept when the tier changes.
        assert_eq!(fixture.remaining_of((1, 0, 2)).await, 6, "{}", fixture.name);
    }
}

#[tokio::test]
async fn operation_without_an_implementation_is_unsupported() {
    /// A limiter without optional operations.
    struct Minimal;
    impl Limiter<Key> for Minimal {
        fn acquire(&self, _: &Key, _: AcquireOptions) -> LimiterFuture<Outcome> {
            LimiterFuture::ready(Err(Error::unavailable("the store is unavailable")))
        }
    }
    let memory = Memory::new(Gcra::new(TEN));
    let (open, back) = (FailOpen::new(Minimal), Fallback::new(Minimal, memory));
    assert!(open.peek(&ALICE, AcquireOptions::default()).await.expect_err("unsupported").is_unsupported());
    assert!(open.reset(&ALICE).await.expect_err("unsupported").is_unsupported());
    assert!(back.set_usage("default", &ALICE, 1).await.expect_err("the first limiter lacks `set`").is_unsupported());
    // A hold of the secondary limiter is released there.
    hold(&back, &ALICE, 3).await.release().await.expect("done");
}

#[test]
fn invalid_configuration_is_a_build_error() {
    let server = tower_ratelimit::RedisServer::open("redis://127.0.0.1:1").expect("an address");
    let gcra = || Gcra::new(TEN);
    let build = |name: &str, limits: Vec<tower_ratelimit::store::RedisLimit<str>>, deadline: Duration| {
        Redis::builder(server.clone(), name, limits).deadline(deadline).build().map(|_| ())
    };
    let limit = |name: &'static str| tower_ratelimit::store::RedisLimit::new(Limit::new(name, gcra()));
    assert!(build("api", vec![limit("a"), limit("b")], LONG_DEADLINE).is_ok());
    for invalid in [
        build("", vec![limit("a")], LONG_DEADLINE),
        build("api", vec![], LONG_DEADLINE),
        build("api", vec![limit("a"), limit("a")], LONG_DEADLINE),
        build("api", vec![limit("a")], Duration::ZERO),
    ] {
        assert!(invalid.expect_err("invalid configuration").is_config());
    }
}
