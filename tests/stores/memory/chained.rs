//! `Chained`: two limiters decide each request as one limiter with all limits does.
//!
//! A denied or abandoned request charges nothing and leaves nothing held.

use std::future::{Future, poll_fn, ready};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tower_ratelimit::limiter::{
    AdminOperation, Chained, DeniedCache, FailOpen, Fallback, Held, LimiterFuture, LimitsOfKey, Outcome,
};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Clock as _, Decision, DecisionSource, Error, FixedWindow, Limit, Limiter, ManualClock,
    Memory, Quota, Verdict, WhenFull,
};

use crate::immediate::memory;

/// (user, team).
type Key = (u64, u64);
const ALICE: Key = (1, 1);
const BOB: Key = (2, 1);

const HOUR: Duration = Duration::from_secs(3600);

fn of_user(limit: u64, clock: &ManualClock) -> impl Limiter<Key> + Clone {
    let limit = Limit::new("user", FixedWindow::new(Quota::new(limit, HOUR))).keyed_by(|&(user, _): &Key| user);
    memory(limit, clock)
}

fn of_team(limit: u64, clock: &ManualClock) -> impl Limiter<Key> + Clone {
    let limit = Limit::new("team", FixedWindow::new(Quota::new(limit, HOUR))).keyed_by(|&(_, team): &Key| team);
    memory(limit, clock)
}

/// A limiter whose results take this many polls, as those of a remote store.
#[derive(Clone)]
pub(crate) struct Remote<L>(pub(crate) L, pub(crate) u32);

async fn later(mut polls: u32) {
    poll_fn(|cx| {
        if polls == 0 {
            return Poll::Ready(());
        }
        polls -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl<L: Clone + Send + 'static> Remote<L> {
    fn reply<T: Unpin + Send + 'static>(
        &self,
        f: impl FnOnce(&L) -> LimiterFuture<T> + Send + 'static,
    ) -> LimiterFuture<T> {
        let (limiter, polls) = (self.0.clone(), self.1);
        LimiterFuture::pending(async move {
            later(polls).await;
            let reply = f(&limiter);
            reply.await
        })
    }
}

impl<Key: Copy + Send + 'static, L: Limiter<Key> + Clone + Send + 'static> Limiter<Key> for Remote<L> {
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let (limiter, key, polls) = (self.0.clone(), *key, self.1);
        LimiterFuture::pending(async move {
            later(polls).await;
            let acquired = limiter.acquire(&key, options);
            let Outcome { decision, held, .. } = acquired.await?;
            Ok(Outcome::new(decision, held.map(|held| settled_after(held, polls))))
        })
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        let key = *key;
        self.reply(move |limiter| limiter.peek(&key, options))
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.0.limits_of(key, limits);
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        let key = *key;
        match operation {
            AdminOperation::SetUsage { limit, used } => {
                let limit = limit.to_owned();
                self.reply(move |limiter| limiter.administer(&key, AdminOperation::SetUsage { limit: &limit, used }))
            }
            AdminOperation::Block { limit, duration, reason } => {
                let limit = limit.to_owned();
                self.reply(move |limiter| {
                    limiter.administer(&key, AdminOperation::Block { limit: &limit, duration, reason })
                })
            }
            AdminOperation::Reset => self.reply(move |limiter| limiter.administer(&key, AdminOperation::Reset)),
            other => panic!("unexpected operation {other:?}"),
        }
    }
}

/// A guard whose settlement takes this many polls.
fn settled_after(held: Held, polls: u32) -> Held {
    held.map_settle(move |held, actual| {
        LimiterFuture::pending(async move {
            later(polls).await;
            held.settle(actual).await
        })
    })
}

/// A store that never answers or fails immediately, and counts its calls.
#[derive(Clone, Default)]
struct UnavailableLimiter {
    hangs: bool,
    calls: Arc<AtomicU64>,
}

impl Limiter<Key> for UnavailableLimiter {
    fn acquire(&self, _: &Key, _: AcquireOptions) -> LimiterFuture<Outcome> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.hangs {
            return LimiterFuture::pending(std::future::pending());
        }
        LimiterFuture::ready(Err(Error::unavailable("the store is unavailable")))
    }
}

async fn acquire(limiter: &impl Limiter<Key>, key: Key, options: AcquireOptions) -> Outcome {
    limiter.acquire(&key, options).await.expect("an answer")
}

/// Lets the runtime run the settlements of dropped guards.
async fn settle_in_background() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

async fn remaining_of(limiter: &impl Limiter<Key>, key: Key) -> u64 {
    limiter.peek(&key, AcquireOptions::cost(0)).await.expect("an answer").remaining().expect("a figure")
}

#[tokio::test]
async fn failure_of_one_limiter_leaves_the_other_uncharged() {
    let clock = ManualClock::new();
    let user = of_user(10, &clock);
    let gone = UnavailableLimiter::default;
    for limiter in [
        BoxLimiter::new(Chained::new(user.clone(), gone())),
        BoxLimiter::new(Chained::new(Remote(user.clone(), 2), gone())),
        BoxLimiter::new(Chained::new(gone(), user.clone())),
    ] {
        assert!(
            limiter
                .acquire(&ALICE, AcquireOptions::default())
                .await
                .expect_err("one limiter is unavailable")
                .is_unavailable()
        );
        assert_eq!(remaining_of(&user, ALICE).await, 10);
    }
    // Around the chained limiters, `Fallback` decides with its secondary limiter alone.
    let limiter = Fallback::new(Chained::new(user.clone(), gone()), of_user(1, &clock));
    let outcome = acquire(&limiter, ALICE, AcquireOptions::default()).await;
    assert_eq!((outcome.decision.source(), outcome.decision.is_allowed()), (DecisionSource::Fallback, true));
    limiter.reset(&ALICE).await.expect_err("one limiter is unavailable");
    // A hold of the secondary limiter is released like any other.
    let held = limiter.hold(&ALICE, AcquireOptions::default()).await.expect("an answer").held.expect("a guard");
    assert!(!acquire(&limiter, ALICE, AcquireOptions::default()).await.decision.is_allowed());
    held.release().await.expect("done");
    assert!(acquire(&limiter, ALICE, AcquireOptions::default()).await.decision.is_allowed());
    // A fallback for one of the two limiters is visible in the decision.
    let limiter = Chained::new(user.clone(), FailOpen::new(gone()));
    let outcome = acquire(&limiter, ALICE, AcquireOptions::default().hold()).await;
    assert_eq!((outcome.decision.source(), outcome.decision.remaining()), (DecisionSource::NoLimit, Some(9)));
    outcome.held.expect("a guard").release().await.expect("done");
    assert_eq!(remaining_of(&user, ALICE).await, 10);
}

/// Polls a future this many times and drops it.
fn poll_and_drop<F: Future>(future: F, polls: usize) -> bool {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    (0..polls).any(|_| future.as_mut().poll(&mut cx).is_ready())
}

#[tokio::test]
async fn drop_between_the_limiters_releases_what_the_first_holds() {
    let clock = ManualClock::new();
    let user = of_user(10, &clock);
    let gone = UnavailableLimiter { hangs: true, calls: Arc::default() };
    for (polls, limiter) in [
        (0, BoxLimiter::new(Chained::new(user.clone(), gone.clone()))),
        (1, BoxLimiter::new(Chained::new(user.clone(), gone.clone()))),
        (5, BoxLimiter::new(Chained::new(Remote(user.clone(), 2), gone.clone()))),
        (5, BoxLimiter::new(Chained::new(user.clone(), of_team(9, &clock)).and(gone.clone()))),
        (9, BoxLimiter::new(Chained::new(user.clone(), Chained::new(Remote(of_team(9, &clock), 2), gone.clone())))),
    ] {
        let calls = gone.calls.load(Ordering::SeqCst);
        let Err(decision) = limiter.acquire(&ALICE, AcquireOptions::cost(4)).try_ready() else {
            panic!("the limiter must not be ready")
        };
        assert!(!poll_and_drop(decision, polls));
        assert_eq!(gone.calls.load(Ordering::SeqCst), calls + 1, "the second limiter was called");
        // A pending release needs several polls.
        settle_in_background().await;
        assert_eq!(remaining_of(&user, ALICE).await, 10);
    }
}

#[tokio::test]
async fn drop_while_the_first_releases_still_releases() {
    let clock = ManualClock::new();
    let (user, team) = (of_user(10, &clock), of_team(1, &clock));
    let limiter = Chained::new(Remote(user.clone(), 3), team);
    assert!(acquire(&limiter, BOB, AcquireOptions::default()).await.decision.is_allowed());
    // The first limiter answers in the fourth poll, and then its hold must be released.
    for polls in 4..7 {
        let Err(decision) = limiter.acquire(&ALICE, AcquireOptions::default()).try_ready() else {
            panic!("a remote limiter is pending")
        };
        assert!(!poll_and_drop(decision, polls));
        settle_in_background().await;
        assert_eq!(remaining_of(&user, ALICE).await, 10);
    }
}

/// A denial due to another request's hold is an estimate, so no cache may hold it.
#[tokio::test]
async fn cache_around_the_first_does_not_cache_a_denial_due_to_a_hold() {
    let clock = ManualClock::new();
    let (user, team) = (of_user(1, &clock), of_team(5, &clock));
    team.administer(&ALICE, AdminOperation::SetUsage { limit: "team", used: 5 }).await.expect("done");
    let cached = DeniedCache::with_clock(user, 100, clock.clone());
    let limiter = Chained::new(cached, Remote(team.clone(), 3));
    let Err(in_flight) = limiter.acquire(&ALICE, AcquireOptions::default()).try_ready() else {
        panic!("a remote limiter is pending")
    };
    let denied = acquire(&limiter, ALICE, AcquireOptions::default()).await.decision;
    assert_eq!(denied.most_restrictive().map(tower_ratelimit::LimitStatus::name), Some("user"));
    assert!(denied.is_estimate());
    let again = acquire(&limiter, ALICE, AcquireOptions::default()).await.decision;
    assert_eq!(again.source(), DecisionSource::Store);
    assert!(!in_flight.await.expect("an answer").decision.is_allowed());
    team.administer(&ALICE, AdminOperation::Reset).await.expect("done");
    assert!(acquire(&limiter, ALICE, AcquireOptions::default()).await.decision.is_allowed());
}

/// A denial stays a store's denial although the limiter that allowed cannot be peeked.
#[tokio::test]
async fn denial_keeps_its_source_when_the_other_limiter_fails() {
    /// It allows once and is unavailable afterwards.
    #[derive(Clone)]
    struct AllowsOnce;
    impl Limiter<Key> for AllowsOnce {
        fn acquire(&self, _: &Key, _: AcquireOptions) -> LimiterFuture<Outcome> {
            LimiterFuture::ready(Ok(Decision::from_limits(ManualClock::new().now(), Vec::new()).into()))
        }

        fn peek(&self, _: &Key, _: AcquireOptions) -> LimiterFuture<Decision> {
            LimiterFuture::ready(Err(Error::unavailable("the store is unavailable")))
        }
    }
    let clock = ManualClock::new();
    for limiter in [
        BoxLimiter::new(Chained::new(AllowsOnce, of_team(1, &clock))),
        BoxLimiter::new(Chained::new(FailOpen::new(AllowsOnce), of_team(1, &clock))),
    ] {
        assert!(acquire(&limiter, ALICE, AcquireOptions::default()).await.decision.is_allowed());
        let denied = acquire(&limiter, ALICE, AcquireOptions::default()).await.decision;
        assert_eq!((denied.source(), denied.retry_after()), (DecisionSource::Store, Some(HOUR)));
    }
    // A decision without figures takes precedence like one with figures.
    let deny_all = Chained::new(of_user(5, &clock), DenyAll);
    let denied = acquire(&deny_all, ALICE, AcquireOptions::default()).await.decision;
    assert_eq!((denied.source(), denied.retry_after()), (DecisionSource::NoLimit, Some(HOUR)));
}

/// A request over one limit is denied by it, as by one limiter, although the table of the other limit is full.
#[tokio::test]
async fn denial_by_a_limit_is_exact_beside_a_full_table() {
    let clock = ManualClock::new();
    let user = FixedWindow::new(Quota::new(9, 2 * HOUR));
    let full = Memory::builder(Limit::new("user", user).keyed_by(|&(user, _): &Key| user));
    let full = full.max_keys(1).when_full(WhenFull::Deny).clock(clock.clone()).build().expect("a limit");
    let is_allowed = |user| full.check(&(user, 9), AcquireOptions::default()).is_allowed();
    let absent = (100..1_000).find(|user| !is_allowed(*user)).expect("a full table");
    let team = of_team(1, &clock);
    assert!(acquire(&team, (absent, 1), AcquireOptions::default()).await.decision.is_allowed());
    for limiter in [
        BoxLimiter::new(Chained::new(team.clone(), full.clone())),
        BoxLimiter::new(Chained::new(full.clone(), team.clone())),
    ] {
        let denied = acquire(&limiter, (absent, 1), AcquireOptions::default()).await.decision;
        let by = denied.most_restrictive().map(|limit| limit.name().to_owned());
        assert_eq!((denied.source(), denied.retry_after()), (DecisionSource::Store, Some(HOUR)));
        assert_eq!((denied.is_estimate(), by.as_deref()), (false, Some("team")));
        let denied = acquire(&limiter, (absent, 2), AcquireOptions::default()).await.decision;
        assert_eq!((denied.source(), denied.is_estimate()), (DecisionSource::NoLimit, true));
    }
}

/// A limiter that denies every request by policy.
#[derive(Clone)]
struct DenyAll;

impl Limiter<Key> for DenyAll {
    fn acquire(&self, _: &Key, _: AcquireOptions) -> LimiterFuture<Outcome> {
        let verdict = Verdict::Denied { retry_after: HOUR };
        LimiterFuture::ready(Ok(Decision::without_limit(ManualClock::new().now(), verdict).into()))
    }
}

/// A store whose every call fails, immediately or later.
#[derive(Clone)]
struct FailingStore {
    is_pending: bool,
}

impl Limiter<Key> for FailingStore {
    fn acquire(&self, _: &Key, _: AcquireOptions) -> LimiterFuture<Outcome> {
        LimiterFuture::ready(Err(Error::unavailable("the store is unavailable")))
    }

    fn administer(&self, _: &Key, _: AdminOperation<'_>) -> LimiterFuture<()> {
        let error = Err(Error::unavailable("the store is unavailable"));
        if self.is_pending { LimiterFuture::pending(ready(error)) } else { LimiterFuture::ready(error) }
    }
}

/// The first limiter may have the limit, so the second one's limit of that name is not changed.
#[tokio::test]
async fn operation_fails_while_the_first_limiter_is_unavailable() {
    let clock = ManualClock::new();
    let team = of_team(6, &clock);
    for is_pending in [false, true] {
        let limiter = Chained::new(FailingStore { is_pending }, team.clone());
        assert!(limiter.set_usage("team", &ALICE, 5).await.expect_err("unknown limits").is_unavailable());
        assert!(limiter.block("team", &ALICE, HOUR).await.expect_err("unknown limits").is_unavailable());
        assert!(limiter.block("team", &ALICE, Duration::ZERO).await.expect_err("unknown limits").is_unavailable());
        assert!(acquire(&team, ALICE, AcquireOptions::cost(0)).await.decision.is_allowed());
        assert_eq!(remaining_of(&team, ALICE).await, 6);
        // An operation fails also if the second limiter is the unavailable one, unless the first has the limit.
        let limiter = Chained::new(team.clone(), FailingStore { is_pending });
        assert!(limiter.set_usage("user", &ALICE, 5).await.expect_err("unknown limits").is_unavailable());
        assert!(limiter.reset(&ALICE).await.expect_err("one limiter is unavailable").is_unavailable());
        limiter.set_usage("team", &ALICE, 0).await.expect("done");
    }
}

/// A limiter that allows and records what is settled.
#[derive(Clone, Default)]
struct RecordingLimiter {
    settled: Arc<std::sync::Mutex<Vec<u64>>>,
    holds: bool,
}

impl Limiter<Key> for RecordingLimiter {
    fn acquire(&self, _: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        if options.hold && !self.holds {
            return LimiterFuture::ready(Err(Error::unsupported("this limiter can't hold costs")));
        }
        let settled = Arc::clone(&self.settled);
        let held = options.hold.then(|| {
            Held::new(options.cost, move |actual| {
                settled.lock().expect("notes").push(actual);
                LimiterFuture::ready(Ok(()))
            })
        });
        LimiterFuture::ready(Ok(Outcome::new(Decision::from_limits(ManualClock::new().now(), Vec::new()), held)))
    }
}

#[tokio::test]
async fn limiter_without_holds_is_an_error_as_first_and_works_as_last() {
    let clock = ManualClock::new();
    let team = of_team(5, &clock);
    let first = Chained::new(RecordingLimiter::default(), team.clone());
    assert!(
        first.acquire(&ALICE, AcquireOptions::default()).await.expect_err("the limiter cannot hold").is_unsupported()
    );
    assert_eq!(remaining_of(&team, ALICE).await, 5);
    let last = Chained::new(team.clone(), RecordingLimiter::default());
    assert!(acquire(&last, ALICE, AcquireOptions::default()).await.decision.is_allowed());
    assert_eq!(remaining_of(&team, ALICE).await, 4);
    // Both limiters must hold a cost that the caller holds.
    assert!(last.hold(&ALICE, AcquireOptions::default()).await.expect_err("the limiter cannot hold").is_unsupported());
    settle_in_background().await;
    assert_eq!(remaining_of(&team, ALICE).await, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_never_exceed_either_limit() {
    let clock = ManualClock::new();
    for polls in [0, 1] {
        let (user, team) = (of_user(50, &clock), of_team(120, &clock));
        let limiter = Chained::new(Remote(user.clone(), polls), Remote(team.clone(), polls));
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..16 {
            let limiter = limiter.clone();
            tasks.spawn(async move {
                let mut allowed = [0; 4];
                for _ in 0..100 {
                    let outcome = acquire(&limiter, (task % 4, 1), AcquireOptions::default()).await;
                    allowed[usize::try_from(task % 4).unwrap()] += u64::from(outcome.decision.is_allowed());
                }
                allowed
            });
        }
        let mut allowed = [0; 4];
        while let Some(own) = tasks.join_next().await {
            let own = own.expect("a task");
            allowed = [0, 1, 2, 3].map(|user| allowed[user] + own[user]);
        }
        assert!(allowed.iter().all(|user| *user <= 50) && allowed.iter().sum::<u64>() <= 120, "{allowed:?}");
        settle_in_background().await;
        // Denied requests are neither charged nor held.
        assert_eq!(remaining_of(&team, ALICE).await, 120 - allowed.iter().sum::<u64>());
        for (number, allowed) in (0..4).zip(allowed) {
            assert_eq!(remaining_of(&user, (number, 1)).await, 50 - allowed);
        }
    }
}
