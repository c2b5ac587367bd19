//! What every limiter does, whatever its store and its algorithm: one suite for all. Time is driven by hand.

use std::time::Duration;

use tower_ratelimit::algorithm::LuaAlgorithm;
use tower_ratelimit::limiter::{Acquisition, BoxFuture, Chained, FailOpen, Fallback, Outcome};
use tower_ratelimit::store::{DefaultHashBuilder, IntoRedisLimits, LimitsFor};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Decision, Detail, Error, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limit, Limiter,
    ManualClock, Memory, Quota, Redis, RedisCell, RedisServer, SlidingLog, SlidingWindow, TokenBucket, Verdict,
    per_key,
};

use crate::cell;
use crate::deployments::Deployments;
use crate::helpers::{A_DAY, PATIENCE, PLENTY, acquire, hold};
use crate::server::Server;

/// Ten in ten seconds.
const TEN: Quota = Quota::new(10, Duration::from_secs(10));
const MICROSECOND: Duration = Duration::from_micros(1);

/// Who asks: a user in a team, with a tier.
type Key = (u64, u64, u64);
const ALICE: Key = (1, 1, 0);
const BOB: Key = (2, 1, 0);

/// A limiter, its clock, and what it is called in failures.
struct Rig {
    name: String,
    limiter: BoxLimiter<Key>,
    clock: ManualClock,
    /// A queue's later turns are taken, where others refuse.
    queues: bool,
    /// What was charged can be given back, blocked and set. Not so in the module, whose clock is its own as well.
    has_it_all: bool,
    quota: Quota,
}

/// The module, with what it has: ten in a time in which nothing comes back.
struct Module {
    server: Server,
}

impl Module {
    fn start() -> Self {
        Self { server: cell::with_module() }
    }

    fn rig(&self) -> Rig {
        let quota = Quota::per_day(10);
        let limiter = RedisCell::builder(self.server.open(), "api", quota).deadline(PATIENCE).build().expect("a quota");
        let limiter = BoxLimiter::new(limiter);
        Rig {
            name: "redis-cell".to_owned(),
            limiter,
            clock: ManualClock::new(),
            queues: false,
            has_it_all: false,
            quota,
        }
    }
}

/// A store that never answers.
struct Gone;

impl Limiter<Key> for Gone {
    type Future = BoxFuture<Result<Outcome, Error>>;

    fn acquire(&self, _: &Key, _: AcquireOptions) -> Acquisition<Self::Future> {
        Acquisition::Pending(Box::pin(async { Err(Error::unavailable("it is gone")) }))
    }

    fn peek(&self, _: &Key, _: AcquireOptions) -> tower_ratelimit::limiter::LimiterFuture<Decision> {
        tower_ratelimit::limiter::LimiterFuture::ready(Err(Error::unavailable("it is gone")))
    }
}

/// The same limits in each store.
fn stores<L>(deployments: &Deployments, name: &str, limits: &L) -> Vec<Rig>
where
    L: LimitsFor<Key, DefaultHashBuilder> + IntoRedisLimits<Key> + Clone + Send + Sync + 'static,
    Memory<L, ManualClock>: Limiter<Key> + Clone + Send + Sync + 'static,
{
    let rig = |store: &str, build: &dyn Fn(ManualClock) -> BoxLimiter<Key>| {
        let clock = ManualClock::new();
        let limiter = build(clock.clone());
        let queues = name.contains("queue");
        Rig { name: format!("{name} in {store}"), limiter, clock, queues, has_it_all: true, quota: TEN }
    };
    let memory =
        |clock: ManualClock| Memory::builder(limits.clone()).max_keys(100).clock(clock).build().expect("limits");
    let redis_on = |server: &RedisServer, store: &str, clock: ManualClock| {
        on(server, &format!("{name} {store}"), limits.clone(), &clock)
    };
    let redis = |store: &str, clock: ManualClock| redis_on(&deployments.alone(), store, clock);
    let mut rigs = vec![
        rig("memory", &|clock| BoxLimiter::new(memory(clock))),
        rig("Redis with a fallback", &|clock| {
            BoxLimiter::new(Fallback::new(redis("first", clock.clone()), memory(clock)))
        }),
        rig("Redis that fails open", &|clock| BoxLimiter::new(FailOpen::new(redis("open", clock)))),
        rig("memory behind what is gone", &|clock| BoxLimiter::new(OverGone::over(memory(clock)))),
    ];
    for (deployment, server) in deployments.each() {
        rigs.push(rig(deployment, &|clock| BoxLimiter::new(redis_on(&server, deployment, clock))));
    }
    rigs
}

fn on(server: &RedisServer, name: &str, limits: impl IntoRedisLimits<Key>, clock: &ManualClock) -> Redis<Key> {
    let builder = Redis::builder(server.clone(), name, limits).clock_for_tests(clock.clone());
    builder.hold_expiry(A_DAY).deadline(PATIENCE).build().expect("limits")
}

/// A fallback whose first limiter is gone: what reaches both is told by the second, so that it can be looked at.
struct OverGone<L>(Fallback<Gone, L>, L);

impl<L: Limiter<Key> + Clone> OverGone<L> {
    fn over(second: L) -> Self {
        Self(Fallback::new(Gone, second.clone()), second)
    }
}

impl<L: Limiter<Key> + Clone + Send + Sync + 'static> Limiter<Key> for OverGone<L> {
    type Future = <Fallback<Gone, L> as Limiter<Key>>::Future;

    fn acquire(&self, key: &Key, ask: AcquireOptions) -> Acquisition<Self::Future> {
        self.0.acquire(key, ask)
    }

    fn peek(&self, key: &Key, ask: AcquireOptions) -> tower_ratelimit::limiter::LimiterFuture<Decision> {
        self.0.peek(key, ask)
    }

    fn set(&self, limit: &str, key: &Key, used: u64) -> tower_ratelimit::limiter::LimiterFuture<()> {
        self.1.set(limit, key, used)
    }

    fn block(&self, limit: &str, key: &Key, span: Duration) -> tower_ratelimit::limiter::LimiterFuture<()> {
        self.1.block(limit, key, span)
    }

    fn reset(&self, key: &Key) -> tower_ratelimit::limiter::LimiterFuture<()> {
        self.1.reset(key)
    }
}

fn one<A: LuaAlgorithm + Clone + Send + Sync + 'static>(
    deployments: &Deployments,
    name: &str,
    algorithm: A,
) -> Vec<Rig> {
    let limit = Limit::new("default", algorithm).keyed_by(|&(user, _, _): &Key| user);
    let mut rigs = stores(deployments, name, &limit);
    // With another limit that never speaks. A queue promises no turns there: it is another limiter.
    if !name.contains("queue") {
        let plenty = Limit::new("plenty", FixedWindow::new(PLENTY)).keyed_by(|&(user, _, _): &Key| user);
        for (deployment, server) in deployments.each() {
            let clock = ManualClock::new();
            let first = on(&server, &format!("{name} in two phases"), limit.clone(), &clock);
            let second = on(&server, &format!("{name} plenty"), plenty.clone(), &clock);
            let limiter = BoxLimiter::new(Chained::new(first, second));
            let name = format!("{name} in two phases on {deployment}");
            rigs.push(Rig { name, limiter, clock, queues: false, has_it_all: true, quota: TEN });
        }
    }
    rigs
}

/// Every algorithm, with ten to have at once, in each store.
fn everything(deployments: &Deployments) -> Vec<Rig> {
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

/// Everything, and the module, for what that has.
fn everything_and(module: &Module, deployments: &Deployments) -> Vec<Rig> {
    let mut all = everything(deployments);
    all.push(module.rig());
    all
}

impl Rig {
    async fn ask(&self, key: Key, cost: u64) -> Outcome {
        acquire(&self.limiter, &key, AcquireOptions::cost(cost))
            .await
            .unwrap_or_else(|error| panic!("{}: {error:?}", self.name))
    }

    async fn allows(&self, key: Key, cost: u64) -> bool {
        self.ask(key, cost).await.decision.is_allowed()
    }

    async fn peek(&self, key: Key, cost: u64) -> Decision {
        self.limiter
            .peek(&key, AcquireOptions::cost(cost))
            .await
            .unwrap_or_else(|error| panic!("{}: {error:?}", self.name))
    }

    async fn left(&self, key: Key) -> u64 {
        self.peek(key, 0).await.remaining().expect("a figure")
    }

    /// Takes all that there is.
    async fn exhaust(&self, key: Key) {
        for _ in 0..10 {
            assert!(self.allows(key, 1).await, "{}", self.name);
        }
    }
}

#[tokio::test]
async fn a_fresh_key_has_the_whole_quota_and_not_one_more() {
    let (module, deployments) = (Module::start(), Deployments::start());
    for rig in everything_and(&module, &deployments) {
        for left in (0..10).rev() {
            let outcome = rig.ask(ALICE, 1).await;
            assert!(outcome.decision.is_allowed(), "{}", rig.name);
            assert!(outcome.held.is_none(), "{}", rig.name);
            assert_eq!(outcome.decision.remaining(), Some(left), "{}", rig.name);
            let standing = outcome.decision.most_restrictive().expect("a limit");
            assert_eq!(
                (standing.name(), standing.limit(), standing.window()),
                ("default", 10, rig.quota.period()),
                "{}",
                rig.name
            );
        }
        let refused = rig.ask(ALICE, 1).await;
        assert!(!refused.decision.is_allowed(), "{}", rig.name);
        assert!(rig.allows(BOB, 1).await, "{}: another key is another count", rig.name);
    }
}

#[tokio::test]
async fn a_refusal_charges_nothing_and_its_wait_is_sufficient_and_minimal() {
    let deployments = Deployments::start();
    for rig in everything(&deployments) {
        for cost in [1, 4, 10] {
            rig.limiter.reset(&ALICE).await.expect("done");
            rig.clock.advance(TEN.period() * 3);
            rig.exhaust(ALICE).await;
            let first = rig.peek(ALICE, cost).await;
            for _ in 0..20 {
                let refused = rig.ask(ALICE, cost).await.decision;
                assert_eq!(refused.verdict(), first.verdict(), "{}", rig.name);
                assert_eq!(refused.remaining(), Some(0), "{}", rig.name);
            }
            let wait = first.retry_after().unwrap_or_else(|| panic!("{}: {first:?}", rig.name));
            rig.clock.advance(wait.checked_sub(MICROSECOND).expect("a wait"));
            let early = rig.ask(ALICE, cost).await.decision;
            assert_eq!(early.retry_after(), Some(MICROSECOND), "{} at {cost}", rig.name);
            rig.clock.advance(MICROSECOND);
            assert!(rig.allows(ALICE, cost).await, "{} at {cost}", rig.name);
        }
    }
}

#[tokio::test]
async fn after_its_reset_a_key_is_as_good_as_new() {
    let deployments = Deployments::start();
    for rig in everything(&deployments) {
        rig.exhaust(ALICE).await;
        let reset = rig.peek(ALICE, 1).await.reset().expect("a figure");
        rig.clock.advance(reset.checked_sub(MICROSECOND).expect("a time"));
        assert!(rig.left(ALICE).await < 10 || rig.peek(ALICE, 0).await.reset() == Some(MICROSECOND), "{}", rig.name);
        rig.clock.advance(MICROSECOND);
        assert_eq!(
            (rig.left(ALICE).await, rig.peek(ALICE, 0).await.reset()),
            (10, Some(Duration::ZERO)),
            "{}",
            rig.name
        );
    }
}

#[tokio::test]
async fn a_cost_counts_as_so_many_and_one_of_zero_as_none() {
    let (module, deployments) = (Module::start(), Deployments::start());
    for rig in everything_and(&module, &deployments) {
        assert!(rig.allows(ALICE, 0).await && rig.left(ALICE).await == 10, "{}", rig.name);
        assert!(rig.allows(ALICE, 7).await && rig.left(ALICE).await == 3, "{}", rig.name);
        assert!(!rig.allows(ALICE, 4).await && rig.left(ALICE).await == 3, "{}", rig.name);
        assert!(rig.allows(ALICE, 3).await && rig.left(ALICE).await == 0, "{}", rig.name);
        assert!(rig.allows(ALICE, 0).await, "{}: what costs nothing passes at the limit too", rig.name);
    }
}

#[tokio::test]
async fn what_never_fits_is_refused_for_good_and_charges_nothing() {
    let (module, deployments) = (Module::start(), Deployments::start());
    for rig in everything_and(&module, &deployments) {
        for cost in [11, 1 << 40, 1 << 53, u64::MAX] {
            let decision = rig.ask(ALICE, cost).await.decision;
            assert_eq!(decision.verdict(), Verdict::ExceedsLimit, "{} at {cost}", rig.name);
            assert_eq!(decision.retry_after(), None, "{}", rig.name);
        }
        assert_eq!(rig.left(ALICE).await, 10, "{}", rig.name);
    }
}

#[tokio::test]
async fn a_released_hold_charges_nothing() {
    let deployments = Deployments::start();
    for rig in everything(&deployments) {
        let held = hold(&rig.limiter, &ALICE, 4).await;
        assert_eq!((held.cost(), rig.left(ALICE).await), (4, 6), "{}", rig.name);
        held.release().await.expect("done");
        assert_eq!(rig.left(ALICE).await, 10, "{}", rig.name);
        // It does not drain, however long it lasts, and then there is no more than there ever was.
        let held = hold(&rig.limiter, &ALICE, 4).await;
        rig.clock.advance(TEN.period() * 4);
        assert_eq!(rig.left(ALICE).await, 6, "{}", rig.name);
        held.release().await.expect("done");
        rig.exhaust(ALICE).await;
        assert!(!rig.allows(ALICE, 1).await, "{}", rig.name);
    }
}

#[tokio::test]
async fn a_hold_is_settled_at_its_actual_cost() {
    let deployments = Deployments::start();
    for rig in everything(&deployments) {
        hold(&rig.limiter, &ALICE, 4).await.settle(1).await.expect("done");
        assert_eq!(rig.left(ALICE).await, 9, "{}", rig.name);
        // A queue holds only for a request that need not wait.
        let bob = if rig.queues { BOB } else { ALICE };
        hold(&rig.limiter, &bob, 2).await.settle(2).await.expect("done");
        assert_eq!(rig.left(bob).await, if rig.queues { 8 } else { 7 }, "{}", rig.name);
        rig.limiter.set("default", &ALICE, 0).await.expect("done");
        // Above the held cost, and above what is left.
        hold(&rig.limiter, &ALICE, 1).await.settle(12).await.expect("done");
        assert!(!rig.allows(ALICE, 1).await && rig.left(ALICE).await == 0, "{}", rig.name);
    }
}

#[tokio::test]
async fn looking_changes_nothing_and_tells_what_asking_would() {
    let (module, deployments) = (Module::start(), Deployments::start());
    for rig in everything_and(&module, &deployments) {
        for cost in [1, 3, 3, 3, 1, 20] {
            let seen = rig.peek(ALICE, cost).await;
            for _ in 0..3 {
                let again = rig.peek(ALICE, cost).await;
                assert_eq!(
                    (again.is_allowed(), again.remaining()),
                    (seen.is_allowed(), seen.remaining()),
                    "{}",
                    rig.name
                );
                // KeyedBy a clock that stands still, all of it is the same.
                assert!(again == seen || !rig.has_it_all, "{}: {again:?} {seen:?}", rig.name);
            }
            let decision = rig.ask(ALICE, cost).await.decision;
            assert_eq!(
                (decision.is_allowed(), decision.exceeds_limit()),
                (seen.is_allowed(), seen.exceeds_limit()),
                "{}",
                rig.name
            );
            assert!(decision.verdict() == seen.verdict() || !rig.has_it_all, "{}", rig.name);
        }
    }
}

#[tokio::test]
async fn a_key_is_reset_set_blocked_and_forgiven() {
    let (module, deployments) = (Module::start(), Deployments::start());
    for rig in everything_and(&module, &deployments) {
        rig.exhaust(ALICE).await;
        rig.limiter.reset(&ALICE).await.expect("done");
        assert_eq!(rig.left(ALICE).await, 10, "{}", rig.name);
        if !rig.has_it_all {
            let held = acquire(&rig.limiter, &ALICE, AcquireOptions::default().hold()).await;
            assert!(held.expect_err("it can't").is_unsupported());
            assert!(rig.limiter.set("default", &ALICE, 7).await.expect_err("it can't").is_unsupported());
            assert!(rig.limiter.block("default", &ALICE, TEN.period()).await.expect_err("it can't").is_unsupported());
            continue;
        }
        rig.limiter.set("default", &ALICE, 7).await.expect("done");
        assert_eq!(rig.left(ALICE).await, 3, "{}", rig.name);
        rig.limiter.set("default", &ALICE, 0).await.expect("done");
        assert_eq!(rig.left(ALICE).await, 10, "{}", rig.name);

        rig.limiter.block("default", &ALICE, Duration::from_secs(300)).await.expect("done");
        assert_eq!(rig.ask(ALICE, 1).await.decision.retry_after(), Some(Duration::from_secs(300)), "{}", rig.name);
        assert!(rig.allows(BOB, 1).await, "{}", rig.name);
        rig.limiter.reset(&ALICE).await.expect("done");
        rig.clock.advance(Duration::from_secs(299));
        assert!(!rig.allows(ALICE, 1).await, "{}: a reset does not lift a block", rig.name);
        rig.limiter.unblock("default", &ALICE).await.expect("done");
        assert!(rig.allows(ALICE, 1).await, "{}", rig.name);
        rig.limiter.block("default", &ALICE, Duration::from_secs(5)).await.expect("done");
        rig.clock.advance(Duration::from_secs(5));
        assert!(rig.allows(ALICE, 1).await, "{}: a block ends", rig.name);
    }
}

#[tokio::test]
async fn the_largest_of_everything_is_held() {
    let deployments = Deployments::start();
    for rig in everything(&deployments) {
        rig.limiter.set("default", &ALICE, u64::MAX).await.expect("done");
        assert!(!rig.allows(ALICE, 1).await, "{}", rig.name);
        rig.limiter.reset(&ALICE).await.expect("done");
        hold(&rig.limiter, &ALICE, 1).await.settle(u64::MAX).await.expect("done");
        assert!(!rig.allows(ALICE, 1).await, "{}", rig.name);
        rig.limiter.block("default", &BOB, Duration::MAX).await.expect("done");
        assert!(!rig.allows(BOB, 1).await, "{}", rig.name);
        rig.limiter.unblock("default", &BOB).await.expect("done");
        let ask = AcquireOptions::default().max_delay(Duration::MAX).detail(Detail::All);
        assert!(acquire(&rig.limiter, &BOB, ask).await.expect("an answer").decision.is_allowed(), "{}", rig.name);
    }
}

#[tokio::test]
async fn an_unknown_limit_is_an_error_of_configuration() {
    let deployments = Deployments::start();
    for rig in everything(&deployments) {
        assert!(rig.limiter.set("other", &ALICE, 1).await.expect_err("no such limit").is_config(), "{}", rig.name);
        assert!(rig.limiter.block("other", &ALICE, TEN.period()).await.expect_err("no such limit").is_config());
        assert!(rig.limiter.unblock("other", &ALICE).await.expect_err("no such limit").is_config());
    }
}

#[tokio::test]
async fn a_queue_gives_later_turns_to_those_who_wait() {
    let deployments = Deployments::start();
    for rig in everything(&deployments) {
        let delays: Vec<_> = (0..3).map(|_| rig.ask(ALICE, 1)).collect();
        let mut seen = Vec::new();
        for delay in delays {
            seen.push(delay.await.decision.delay());
        }
        let turns = if rig.queues { [0, 1, 2] } else { [0; 3] };
        assert_eq!(seen, turns.map(Duration::from_secs), "{}", rig.name);
    }
}

#[tokio::test]
async fn several_limits_are_charged_all_or_none() {
    let deployments = Deployments::start();
    let user = Limit::new("user", Gcra::new(Quota::per_hour(3))).keyed_by(|&(user, _, _): &Key| user);
    let team = Limit::new("team", SlidingLog::new(Quota::per_hour(4))).keyed_by(|&(_, team, _): &Key| team);
    let all = Limit::new("all", FixedWindow::new(Quota::per_day(5))).keyed_by(|_: &Key| ());
    let mut rigs = stores(&deployments, "several", &(user.clone(), team.clone(), all.clone()));
    // One by one, those that decide in two phases decide alike.
    for (deployment, server) in deployments.each() {
        let clock = ManualClock::new();
        let limiter = Chained::new(
            on(&server, "user", user.clone(), &clock),
            Chained::new(on(&server, "team", team.clone(), &clock), on(&server, "all", all.clone(), &clock)),
        );
        let name = format!("in two phases on {deployment}");
        rigs.push(Rig { name, limiter: BoxLimiter::new(limiter), clock, queues: false, has_it_all: true, quota: TEN });
    }
    for rig in rigs {
        for _ in 0..3 {
            assert!(rig.allows(ALICE, 1).await, "{}", rig.name);
        }
        // The user's limit refuses: the others are not charged.
        let refused = acquire(&rig.limiter, &ALICE, AcquireOptions::default().detail(Detail::All))
            .await
            .expect("an answer")
            .decision;
        assert_eq!(
            refused.most_restrictive().map(|standing| standing.name().to_owned()).as_deref(),
            Some("user"),
            "{}",
            rig.name
        );
        let left: Vec<_> =
            refused.limits().iter().map(|standing| (standing.name().to_owned(), standing.remaining())).collect();
        assert_eq!(left, [("user".to_owned(), 0), ("team".to_owned(), 1), ("all".to_owned(), 2)], "{}", rig.name);
        assert!(rig.allows(BOB, 1).await, "{}", rig.name);
        // Now the team's does, and its wait is what it takes.
        let refused = rig.ask(BOB, 1).await.decision;
        assert_eq!(
            refused.most_restrictive().map(|standing| standing.name().to_owned()).as_deref(),
            Some("team"),
            "{}",
            rig.name
        );
        rig.clock.advance(refused.retry_after().expect("a time"));
        let held = hold(&rig.limiter, &BOB, 1).await;
        // And what is released, all of them have again.
        let elsewhere = (9, 9, 0);
        assert!(!rig.allows(elsewhere, 1).await, "{}", rig.name);
        held.release().await.expect("done");
        assert!(rig.allows(elsewhere, 1).await, "{}", rig.name);
    }
}

#[tokio::test]
async fn a_shadow_is_told_and_does_not_count() {
    let deployments = Deployments::start();
    let limits = (
        Limit::new("real", Gcra::new(Quota::per_hour(5))).keyed_by(|&(user, _, _): &Key| user),
        Limit::new("shadow", FixedWindow::new(Quota::per_hour(2))).keyed_by(|&(user, _, _): &Key| user).shadow(),
    );
    for rig in stores(&deployments, "shadow", &limits) {
        for asked in 1..=5 {
            let decision = rig.ask(ALICE, 1).await.decision;
            assert!(decision.is_allowed(), "{}", rig.name);
            assert_eq!(decision.shadow_refusals().count(), usize::from(asked > 2), "{}", rig.name);
        }
        assert!(!rig.allows(ALICE, 1).await, "{}", rig.name);
    }
}

#[tokio::test]
async fn a_key_chooses_its_tier() {
    let deployments = Deployments::start();
    let tiers = per_key(|&(_, _, tier): &Key| FixedWindow::new(Quota::per_hour(2 + tier * 3)));
    let limits = Limit::new("default", tiers).keyed_by(|&(user, _, _): &Key| user);
    for rig in stores(&deployments, "tiers", &limits) {
        for (user, tier) in [(1, 0), (2, 1), (3, 2)] {
            let key = (user, 0, tier);
            for _ in 0..2 + tier * 3 {
                assert!(rig.allows(key, 1).await, "{}", rig.name);
            }
            assert!(!rig.allows(key, 1).await, "{}", rig.name);
        }
        // What was used stays used in another tier.
        assert_eq!(rig.left((1, 0, 2)).await, 6, "{}", rig.name);
    }
}

#[tokio::test]
async fn what_a_limiter_does_not_have_it_says() {
    /// It decides, and nothing else.
    struct Bare;
    impl Limiter<Key> for Bare {
        type Future = BoxFuture<Result<Outcome, Error>>;

        fn acquire(&self, _: &Key, _: AcquireOptions) -> Acquisition<Self::Future> {
            Acquisition::Ready(Err(Error::unavailable("it is gone")))
        }
    }
    let memory = Memory::new(Gcra::new(TEN));
    let (open, back) = (FailOpen::new(Bare), Fallback::new(Bare, memory));
    assert!(open.peek(&ALICE, AcquireOptions::default()).await.expect_err("it can't").is_unsupported());
    assert!(open.reset(&ALICE).await.expect_err("it can't").is_unsupported());
    assert!(back.set("default", &ALICE, 1).await.expect_err("the first one can't").is_unsupported());
    // What the second one holds is released there.
    hold(&back, &ALICE, 3).await.release().await.expect("done");
}

#[test]
fn what_can_not_be_is_an_error_when_it_is_built() {
    let server = tower_ratelimit::RedisServer::open("redis://127.0.0.1:1").expect("an address");
    let gcra = || Gcra::new(TEN);
    let build = |name: &str, limits: Vec<tower_ratelimit::store::RedisLimit<str>>, deadline: Duration| {
        Redis::builder(server.clone(), name, limits).deadline(deadline).build().map(|_| ())
    };
    let limit = |name: &'static str| tower_ratelimit::store::RedisLimit::new(Limit::new(name, gcra()));
    assert!(build("api", vec![limit("a"), limit("b")], PATIENCE).is_ok());
    for wrong in [
        build("", vec![limit("a")], PATIENCE),
        build("api", vec![], PATIENCE),
        build("api", vec![limit("a"), limit("a")], PATIENCE),
        build("api", vec![limit("a")], Duration::ZERO),
    ] {
        assert!(wrong.expect_err("it can't be").is_config());
    }
}
