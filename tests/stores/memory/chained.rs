//! `Chained`: two limiters decide each request as one limiter with all limits does.
//!
//! A denied or abandoned request charges nothing and leaves nothing held.

use std::convert::Infallible;
use std::future::{Future, poll_fn, ready};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::key::{Header, KeyText};
use tower_ratelimit::limiter::{
    AdminOperation, Chained, DeniedCache, FailOpen, Fallback, Held, LimiterFuture, Outcome,
};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Clock as _, Decision, DecisionSource, Detail, DynLimit, Error, FixedWindow, Gcra,
    LeakyQueue, Limit, Limiter, ManualClock, Memory, Quota, RateLimitLayer, SlidingLog, SlidingWindow, TokenBucket,
    Verdict,
};

use crate::random::Random;

/// (user, team).
type Key = (u64, u64);
const ALICE: Key = (1, 1);
const BOB: Key = (2, 1);

const HOUR: Duration = Duration::from_secs(3600);

fn of_user(limit: u64, clock: &ManualClock) -> impl Limiter<Key> + Clone {
    let limit = Limit::new("user", FixedWindow::new(Quota::new(limit, HOUR))).keyed_by(|&(user, _): &Key| user);
    Memory::builder(limit).clock(clock.clone()).build().expect("limits")
}

fn of_team(limit: u64, clock: &ManualClock) -> impl Limiter<Key> + Clone {
    let limit = Limit::new("team", FixedWindow::new(Quota::new(limit, HOUR))).keyed_by(|&(_, team): &Key| team);
    Memory::builder(limit).clock(clock.clone()).build().expect("limits")
}

/// A limiter whose results take this many polls, as those of a remote store.
#[derive(Clone)]
struct Remote<L>(L, u32);

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

impl<L: Limiter<Key> + Clone> Remote<L> {
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

impl<L: Limiter<Key> + Clone> Limiter<Key> for Remote<L> {
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

/// The content of a decision except its scheduling support, which chained limiters lack.
fn content(decision: &Decision) -> (Verdict, Option<String>, Option<u64>, Vec<String>) {
    let every = decision.limits().iter().map(|standing| format!("{standing:?}")).collect();
    (
        decision.verdict(),
        decision.most_restrictive().map(|standing| standing.name().to_owned()),
        decision.remaining(),
        every,
    )
}

/// Requires equal decisions of one limiter with both limits and of two chained limiters on a random trace.
async fn check_equal_decisions(seed: u64, whole: BoxLimiter<Key>, parts: BoxLimiter<Key>, clock: &ManualClock) {
    let mut random = Random(seed);
    let mut guards = Vec::new();
    for step in 0..4_000 {
        if random.below(2) == 0 {
            clock.advance(Duration::from_micros(
                [1, 100_000, 700_000, 9_000_000][usize::try_from(random.below(4)).unwrap()],
            ));
        }
        let key = (random.below(3), random.below(2));
        let context = format!("{seed} {step} {key:?}");
        match random.below(30) {
            0 => {
                whole.reset(&key).await.expect("done");
                parts.reset(&key).await.expect("done");
            }
            1 => {
                let (limit, used) = (["user", "team"][usize::try_from(random.below(2)).unwrap()], random.below(6));
                whole.set_usage(limit, &key, used).await.expect("done");
                parts.set_usage(limit, &key, used).await.expect("done");
            }
            2 => {
                let limit = ["user", "team"][usize::try_from(random.below(2)).unwrap()];
                let span = Duration::from_millis(random.below(3_000));
                whole.block(limit, &key, span).await.expect("done");
                parts.block(limit, &key, span).await.expect("done");
            }
            3..=8 if !guards.is_empty() => {
                let index = usize::try_from(random.below(guards.len() as u64)).unwrap();
                let (ours, theirs): (Held, Held) = guards.swap_remove(index);
                assert_eq!(ours.cost(), theirs.cost(), "{context}");
                let actual = random.below(ours.cost() + 2);
                ours.settle(actual).await.expect("done");
                theirs.settle(actual).await.expect("done");
            }
            kind => {
                let mut options =
                    AcquireOptions::cost([1, 1, 1, 2, 3, 0, 9][usize::try_from(random.below(7)).unwrap()]);
                options = options.detail(if random.below(2) == 0 { Detail::All } else { Detail::MostRestrictive });
                if random.below(4) == 0 && guards.len() < 3 {
                    options = options.hold();
                }
                let immediate = options.max_delay(Duration::ZERO);
                if kind == 9 {
                    let from_whole = whole.peek(&key, immediate).await.expect("an answer");
                    let from_chained = parts.peek(&key, options).await.expect("an answer");
                    assert_eq!(content(&from_whole), content(&from_chained), "{context}");
                    continue;
                }
                // Chained limiters decide without delay, whatever delay the caller accepts.
                let (from_whole, from_chained) =
                    (acquire(&whole, key, immediate).await, acquire(&parts, key, options).await);
                assert_eq!(content(&from_whole.decision), content(&from_chained.decision), "{context} {options:?}");
                assert!(
                    !from_chained.decision.supports_scheduling() && from_chained.decision.delay().is_zero(),
                    "{context}"
                );
                assert_eq!(from_whole.decision.is_estimate(), from_chained.decision.is_estimate(), "{context}");
                assert_eq!(from_whole.held.is_some(), from_chained.held.is_some(), "{context}");
                settle_in_background().await;
                guards.extend(from_whole.held.zip(from_chained.held));
            }
        }
    }
}

macro_rules! agree {
    ($($name:ident: $user:expr, $team:expr;)+) => {$(
        #[tokio::test]
        async fn $name() {
            for seed in 1..=4 {
                let clock = ManualClock::new();
                let user = || Limit::new("user", $user).keyed_by(|&(user, _): &Key| user);
                let team = || Limit::new("team", $team).keyed_by(|&(_, team): &Key| team);
                let whole = Memory::builder((user(), team())).max_keys(100).clock(clock.clone()).build().expect("limits");
                let first = Memory::builder(user()).max_keys(100).clock(clock.clone()).build().expect("limits");
                let second = Memory::builder(team()).max_keys(100).clock(clock.clone()).build().expect("limits");
                let parts = if seed % 2 == 0 {
                    BoxLimiter::new(Chained::new(first, second))
                } else {
                    BoxLimiter::new(Chained::new(Remote(first, 2), Remote(second, 1)))
                };
                check_equal_decisions(seed, BoxLimiter::new(whole), parts, &clock).await;
            }
        }
    )+};
}

const FIVE: Quota = Quota::new(5, Duration::from_secs(3));
const SEVEN: Quota = Quota::new(7, Duration::from_millis(5_001));

agree! {
    two_buckets_agree_with_one_limiter: Gcra::new(FIVE), TokenBucket::new(SEVEN).burst(9);
    a_window_and_a_log_agree_with_one_limiter: FixedWindow::new(FIVE), SlidingLog::new(SEVEN);
    two_windows_agree_with_one_limiter: SlidingWindow::new(FIVE), SlidingWindow::new(SEVEN).blocks(1).weighted();
    queues_agree_with_one_limiter_at_once: LeakyQueue::new(FIVE), LeakyQueue::new(SEVEN).max_waiting(2);
}

#[tokio::test]
async fn denial_by_the_second_releases_what_the_first_holds() {
    let clock = ManualClock::new();
    let (user, team) = (of_user(10, &clock), of_team(3, &clock));
    let limiter = Chained::new(user.clone(), Remote(team.clone(), 3));
    for expected in [Verdict::Allowed, Verdict::Denied { retry_after: HOUR }, Verdict::Denied { retry_after: HOUR }] {
        let outcome = acquire(&limiter, ALICE, AcquireOptions::cost(2).detail(Detail::All)).await;
        assert_eq!(outcome.decision.verdict(), expected);
        // The figures are those of a key that was not charged.
        let figures = outcome.decision.limits().iter().map(|standing| (standing.name(), standing.remaining()));
        assert_eq!(figures.collect::<Vec<_>>(), [("user", 8), ("team", 1)]);
        assert_eq!((remaining_of(&user, ALICE).await, remaining_of(&team, ALICE).await), (8, 1));
    }
}

#[tokio::test]
async fn denial_by_the_first_charges_nothing_to_the_second() {
    let clock = ManualClock::new();
    let calls = Arc::new(AtomicU64::new(0));
    let second = UnavailableLimiter { hangs: false, calls: Arc::clone(&calls) };
    let limiter = Chained::new(of_user(1, &clock), FailOpen::new(second));
    assert!(acquire(&limiter, ALICE, AcquireOptions::default()).await.decision.is_allowed());
    assert!(!acquire(&limiter, ALICE, AcquireOptions::default()).await.decision.is_allowed());
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn retry_after_suffices_for_both_limiters() {
    let clock = ManualClock::new();
    let user =
        Memory::builder(Limit::new("user", Gcra::new(Quota::per_second(1)))).clock(clock.clone()).build().unwrap();
    let team =
        Memory::builder(Limit::new("team", Gcra::new(Quota::per_minute(1)))).clock(clock.clone()).build().unwrap();
    for limiter in [
        BoxLimiter::<Key>::new(Chained::new(user.clone(), team.clone())),
        BoxLimiter::new(Chained::new(Remote(team, 1), Remote(user, 1))),
    ] {
        limiter.reset(&ALICE).await.expect("done");
        assert!(acquire(&limiter, ALICE, AcquireOptions::default()).await.decision.is_allowed());
        settle_in_background().await;
        let denied = acquire(&limiter, ALICE, AcquireOptions::default()).await.decision;
        assert_eq!(denied.retry_after(), Some(Duration::from_secs(60)));
        assert_eq!(denied.most_restrictive().map(|standing| standing.name().to_owned()), Some("team".to_owned()));
    }
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

/// A limiter that denies every request by policy.
#[derive(Clone)]
struct DenyAll;

impl Limiter<Key> for DenyAll {
    fn acquire(&self, _: &Key, _: AcquireOptions) -> LimiterFuture<Outcome> {
        let verdict = Verdict::Denied { retry_after: HOUR };
        LimiterFuture::ready(Ok(Decision::without_limit(ManualClock::new().now(), verdict).into()))
    }
}

#[tokio::test]
async fn scheduled_start_is_denied_until_its_time() {
    let clock = ManualClock::new();
    let queue = Limit::new("queue", LeakyQueue::new(Quota::per_second(1)));
    let queue = Memory::builder(queue).clock(clock.clone()).build().expect("limits");
    let limiter = Chained::new(queue, of_team(2, &clock));
    let delayed = AcquireOptions::default().max_delay(Duration::from_secs(5));
    assert!(acquire(&limiter, ALICE, delayed).await.decision.is_allowed());
    // The other limit would count the scheduled start from now.
    let denied = acquire(&limiter, ALICE, delayed).await.decision;
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
    assert!(!denied.supports_scheduling());
    clock.advance(Duration::from_secs(1));
    assert!(acquire(&limiter, ALICE, delayed).await.decision.is_allowed());
}

#[tokio::test]
async fn three_limiters_hold_all_or_none_and_are_settled_alike() {
    let clock = ManualClock::new();
    let (user, team) = (of_user(5, &clock), of_team(6, &clock));
    let all = Limit::new("all", SlidingLog::new(Quota::per_hour(7))).keyed_by(|_: &Key| ());
    let all = Memory::builder(all).clock(clock.clone()).build().expect("limits");
    let limiter = Chained::new(user.clone(), Remote(team.clone(), 1)).and(all.clone());
    let lefts =
        async || [remaining_of(&user, ALICE).await, remaining_of(&team, ALICE).await, remaining_of(&all, ALICE).await];
    let held = acquire(&limiter, ALICE, AcquireOptions::cost(4).hold()).await.held.expect("a guard");
    assert_eq!((held.cost(), lefts().await), (4, [1, 2, 3]));
    held.settle(2).await.expect("done");
    assert_eq!(lefts().await, [3, 4, 5]);
    let held = acquire(&limiter, ALICE, AcquireOptions::cost(1).hold()).await.held.expect("a guard");
    held.settle(3).await.expect("done");
    assert_eq!(lefts().await, [0, 1, 2]);
    // One remains for Bob's team, and two remain globally.
    assert!(!acquire(&limiter, BOB, AcquireOptions::cost(2)).await.decision.is_allowed());
    settle_in_background().await;
    let outcome = acquire(&limiter, BOB, AcquireOptions::default().detail(Detail::All).hold()).await;
    let names = outcome.decision.limits().iter().map(|standing| (standing.name(), standing.remaining()));
    assert_eq!(names.collect::<Vec<_>>(), [("user", 4), ("team", 0), ("all", 1)]);
    outcome.held.expect("a guard").release().await.expect("done");
    assert_eq!((remaining_of(&user, BOB).await, lefts().await), (5, [0, 1, 2]));
    limiter.reset(&ALICE).await.expect("done");
    assert_eq!(lefts().await, [5, 6, 7]);
}

#[tokio::test]
async fn operations_apply_to_the_limiter_that_has_the_limit() {
    let clock = ManualClock::new();
    let (user, team) = (of_user(5, &clock), of_team(6, &clock));
    for limiter in [
        BoxLimiter::new(Chained::new(user.clone(), team.clone())),
        BoxLimiter::new(Chained::new(Remote(user.clone(), 1), Remote(team.clone(), 1))),
    ] {
        limiter.set_usage("user", &ALICE, 3).await.expect("done");
        limiter.set_usage("team", &ALICE, 2).await.expect("done");
        assert_eq!((remaining_of(&user, ALICE).await, remaining_of(&team, ALICE).await), (2, 4));
        limiter.block("team", &ALICE, HOUR * 2).await.expect("done");
        assert_eq!(acquire(&limiter, ALICE, AcquireOptions::default()).await.decision.retry_after(), Some(HOUR * 2));
        limiter.block("team", &ALICE, Duration::ZERO).await.expect("done");
        let held = acquire(&limiter, ALICE, AcquireOptions::default().hold()).await.held.expect("a guard");
        held.release().await.expect("done");
        assert!(limiter.set_usage("other", &ALICE, 1).await.expect_err("no such limit").is_config());
        assert!(limiter.block("other", &ALICE, HOUR).await.expect_err("no such limit").is_config());
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

#[tokio::test]
async fn decision_lists_the_limits_that_the_options_ask_for() {
    let clock = ManualClock::new();
    for (detail, when_allowed, when_denied) in
        [(Detail::MostRestrictive, 1, 1), (Detail::AllIfDenied, 1, 2), (Detail::All, 2, 2)]
    {
        for limiter in [
            BoxLimiter::new(Chained::new(of_user(1, &clock), of_team(5, &clock))),
            BoxLimiter::new(Chained::new(of_team(5, &clock), of_user(1, &clock))),
        ] {
            for expected in [when_allowed, when_denied] {
                let decision = acquire(&limiter, ALICE, AcquireOptions::default().detail(detail)).await.decision;
                assert_eq!(decision.limits().len(), expected, "{detail:?}");
                assert_eq!(decision.most_restrictive().map(|limit| limit.name().to_owned()), Some("user".to_owned()));
            }
        }
    }
    // Shadows are always listed.
    let trial = Limit::new("trial", FixedWindow::new(Quota::per_hour(9))).shadow();
    let trial = Memory::builder(trial).clock(clock.clone()).build().expect("a limit");
    let limiter = Chained::new(of_user(1, &clock), trial);
    for _ in 0..2 {
        let decision = acquire(&limiter, ALICE, AcquireOptions::default()).await.decision;
        let names: Vec<_> = decision.limits().iter().map(|limit| limit.name().to_owned()).collect();
        assert_eq!(names, ["user", "trial"]);
    }
}

/// Requires that nested chains list what one limiter with all of the limits lists: all, or the most restrictive one and
/// the shadows.
#[tokio::test]
async fn nested_chain_lists_what_one_limiter_lists() {
    let (mut all, mut some) = (0, 0);
    for seed in 0..200 {
        let (clock, mut random) = (ManualClock::new(), Random(seed));
        let specs: Vec<_> = (0..4).map(|_| (1 + random.below(5), random.below(3) == 0, random.below(3) == 0)).collect();
        let limit = |index: usize| -> DynLimit<Key> {
            let (quota, is_shadow, by_team) = specs[index];
            let limit = Limit::new(format!("limit {index}"), FixedWindow::new(Quota::new(quota, HOUR)));
            let limit = limit.keyed_by(move |&(user, team): &Key| if by_team { team } else { user });
            DynLimit::new(if is_shadow { limit.shadow() } else { limit })
        };
        let memory = |limits: std::ops::Range<usize>| {
            let limits: Vec<_> = limits.map(limit).collect();
            Arc::new(Memory::builder(limits).max_keys(100).clock(clock.clone()).build().expect("limits"))
        };
        let whole = memory(0..4);
        let parts = match seed % 4 {
            0 => BoxLimiter::new(Chained::new(memory(0..2), memory(2..4))),
            1 => BoxLimiter::new(Chained::new(memory(0..1), memory(1..3)).and(memory(3..4))),
            2 => BoxLimiter::new(Chained::new(memory(0..1), Chained::new(memory(1..2), memory(2..4)))),
            _ => BoxLimiter::new(Chained::new(memory(0..2), memory(2..3)).and(memory(3..4))),
        };
        for _ in 0..30 {
            let key = (random.below(2), random.below(2));
            let options = AcquireOptions::cost(1 + random.below(2) * random.below(2)).max_delay(Duration::ZERO);
            let options = options.detail([Detail::MostRestrictive, Detail::AllIfDenied, Detail::All][random.index(3)]);
            let (from_whole, from_parts) = if random.below(4) == 0 {
                (
                    whole.peek(&key, options).await.expect("an answer"),
                    parts.peek(&key, options).await.expect("an answer"),
                )
            } else {
                (acquire(&whole, key, options).await.decision, acquire(&parts, key, options).await.decision)
            };
            settle_in_background().await;
            assert_eq!(content(&from_whole), content(&from_parts), "{seed} {specs:?} {key:?} {options:?}");
            let lists_all = match options.detail {
                Detail::AllIfDenied => !from_whole.is_allowed(),
                detail => detail == Detail::All,
            };
            let shadows = specs.iter().filter(|(_, is_shadow, _)| *is_shadow).count();
            let expected = if lists_all { 4 } else { (shadows + 1).min(4) };
            assert_eq!(from_parts.limits().len(), expected, "{seed} {specs:?} {key:?} {options:?}: {from_parts:?}");
            *(if lists_all { &mut all } else { &mut some }) += 1;
        }
    }
    assert!(all > 1_000 && some > 1_000, "{all} list all, {some} do not");
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
async fn allowed_by_both_is_charged_exactly_once() {
    let clock = ManualClock::new();
    for polls in [0, 2] {
        let (user, team) = (of_user(10, &clock), of_team(9, &clock));
        let limiter = Chained::new(Remote(user.clone(), polls), Remote(team.clone(), polls));
        let outcome = acquire(&limiter, ALICE, AcquireOptions::cost(4)).await;
        assert!(outcome.decision.is_allowed() && outcome.held.is_none());
        settle_in_background().await;
        assert_eq!((remaining_of(&user, ALICE).await, remaining_of(&team, ALICE).await), (6, 5));
        // Each limiter settles a hold once, and a dropped guard settles the whole cost.
        let held = acquire(&limiter, ALICE, AcquireOptions::cost(2).hold()).await.held.expect("a guard");
        assert_eq!((remaining_of(&user, ALICE).await, remaining_of(&team, ALICE).await), (4, 3));
        drop(held);
        settle_in_background().await;
        assert_eq!((remaining_of(&user, ALICE).await, remaining_of(&team, ALICE).await), (4, 3));
        clock.advance(HOUR);
        assert_eq!(
            (remaining_of(&user, ALICE).await, remaining_of(&team, ALICE).await),
            (10, 9),
            "nothing remains held"
        );
    }
    // The first limiter holds and settles the whole cost; the second decides.
    let noting = RecordingLimiter { holds: true, ..RecordingLimiter::default() };
    let limiter = Chained::new(noting.clone(), of_team(5, &clock));
    assert!(acquire(&limiter, ALICE, AcquireOptions::cost(3)).await.decision.is_allowed());
    assert!(!acquire(&limiter, ALICE, AcquireOptions::cost(3)).await.decision.is_allowed());
    assert_eq!(*noting.settled.lock().expect("notes"), [3, 0]);
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

#[tokio::test]
async fn chained_limiters_decide_behind_the_layer() {
    let clock = ManualClock::new();
    let limit = |name: &'static str, limit| Limit::new(name, FixedWindow::new(Quota::new(limit, HOUR)));
    let user = Memory::builder(limit("user", 2)).clock(clock.clone()).build().expect("limits");
    let all = limit("all", 3).keyed_by(|_: &KeyText| ());
    let all = Memory::builder(all).clock(clock.clone()).build().expect("limits");
    let layer = RateLimitLayer::new(Header::from_static("user"), Chained::new(user, all));
    let inner = service_fn(|_: Request<Body>| ready(Ok::<_, Infallible>(Response::new(Body::empty()))));
    let mut service = layer.layer(inner);
    let mut statuses = Vec::new();
    for user in ["alice", "alice", "alice", "bob", "bob"] {
        let request = Request::builder().header("user", user).body(Body::empty()).expect("a request");
        let response = service.ready().await.expect("ready").call(request).await.expect("a response");
        statuses.push(response.status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 429, 200, 429]);
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
