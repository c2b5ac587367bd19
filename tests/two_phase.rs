//! Two limiters as one, in two phases: request by request they decide as one limiter with all limits does. A denied or
//! abandoned request charges nothing and leaves nothing held.

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
    Acquisition, BoxFuture, Chained, DeniedCache, FailOpen, Fallback, Held, LimiterFuture, Outcome,
};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Clock as _, Decision, DecisionSource, Detail, Error, FixedWindow, Gcra, LeakyQueue,
    Limit, Limiter, ManualClock, Memory, Quota, RateLimitLayer, SlidingLog, SlidingWindow, TokenBucket, Verdict,
};

/// A user in a team.
type Key = (u64, u64);
const ALICE: Key = (1, 1);
const BOB: Key = (2, 1);

const HOUR: Duration = Duration::from_secs(3600);

fn of_user(limit: u64, clock: &ManualClock) -> impl Limiter<Key> + Clone + Send + Sync + 'static {
    let limit = Limit::new("user", FixedWindow::new(Quota::new(limit, HOUR))).keyed_by(|&(user, _): &Key| user);
    Memory::builder(limit).clock(clock.clone()).build().expect("limits")
}

fn of_team(limit: u64, clock: &ManualClock) -> impl Limiter<Key> + Clone + Send + Sync + 'static {
    let limit = Limit::new("team", FixedWindow::new(Quota::new(limit, HOUR))).keyed_by(|&(_, team): &Key| team);
    Memory::builder(limit).clock(clock.clone()).build().expect("limits")
}

/// A limiter that answers everything later, as one elsewhere does: each answer takes so many polls.
#[derive(Clone)]
struct Elsewhere<L>(L, u32);

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

impl<L: Limiter<Key> + Clone + Send + Sync + 'static> Elsewhere<L> {
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

impl<L: Limiter<Key> + Clone + Send + Sync + 'static> Limiter<Key> for Elsewhere<L> {
    type Future = BoxFuture<Result<Outcome, Error>>;

    fn acquire(&self, key: &Key, ask: AcquireOptions) -> Acquisition<Self::Future> {
        let (limiter, key, polls) = (self.0.clone(), *key, self.1);
        Acquisition::Pending(Box::pin(async move {
            later(polls).await;
            let acquired = limiter.acquire(&key, ask);
            let Outcome { decision, held } = acquired.await?;
            Ok(Outcome { decision, held: held.map(|held| settled_later(held, polls)) })
        }))
    }

    fn peek(&self, key: &Key, ask: AcquireOptions) -> LimiterFuture<Decision> {
        let key = *key;
        self.reply(move |limiter| limiter.peek(&key, ask))
    }

    fn set(&self, limit: &str, key: &Key, used: u64) -> LimiterFuture<()> {
        let (limit, key) = (limit.to_owned(), *key);
        self.reply(move |limiter| limiter.set(&limit, &key, used))
    }

    fn block(&self, limit: &str, key: &Key, span: Duration) -> LimiterFuture<()> {
        let (limit, key) = (limit.to_owned(), *key);
        self.reply(move |limiter| limiter.block(&limit, &key, span))
    }

    fn reset(&self, key: &Key) -> LimiterFuture<()> {
        let key = *key;
        self.reply(move |limiter| limiter.reset(&key))
    }
}

/// A guard whose settlement takes so many polls.
fn settled_later(held: Held, polls: u32) -> Held {
    Held::new(held.cost(), move |actual| {
        LimiterFuture::pending(async move {
            later(polls).await;
            held.settle(actual).await
        })
    })
}

/// A store that never answers, or fails at once, and counts who asks.
#[derive(Clone, Default)]
struct Gone {
    hangs: bool,
    asked: Arc<AtomicU64>,
}

impl Limiter<Key> for Gone {
    type Future = BoxFuture<Result<Outcome, Error>>;

    fn acquire(&self, _: &Key, _: AcquireOptions) -> Acquisition<Self::Future> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.hangs {
            return Acquisition::Pending(Box::pin(std::future::pending()));
        }
        Acquisition::Ready(Err(Error::unavailable("it is gone")))
    }
}

async fn ask(limiter: &impl Limiter<Key>, key: Key, ask: AcquireOptions) -> Outcome {
    limiter.acquire(&key, ask).await.expect("an answer")
}

/// Lets the runtime settle what was dropped.
async fn settle_in_background() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

async fn left(limiter: &impl Limiter<Key>, key: Key) -> u64 {
    limiter.peek(&key, AcquireOptions::cost(0)).await.expect("an answer").remaining().expect("a figure")
}

/// Numbers that look random, and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// What a decision says, but for whether turns are promised: in two phases none are.
fn says(decision: &Decision) -> (Verdict, Option<String>, Option<u64>, Vec<String>) {
    let every = decision.limits().iter().map(|standing| format!("{standing:?}")).collect();
    (
        decision.verdict(),
        decision.most_restrictive().map(|standing| standing.name().to_owned()),
        decision.remaining(),
        every,
    )
}

/// The same trace through one limiter with both limits, and through two of one each.
async fn agrees(seed: u64, whole: BoxLimiter<Key>, parts: BoxLimiter<Key>, clock: &ManualClock) {
    let mut dice = Dice(seed);
    let mut guards = Vec::new();
    for step in 0..4_000 {
        if dice.below(2) == 0 {
            clock.advance(Duration::from_micros(
                [1, 100_000, 700_000, 9_000_000][usize::try_from(dice.below(4)).unwrap()],
            ));
        }
        let key = (dice.below(3), dice.below(2));
        let place = format!("{seed} {step} {key:?}");
        match dice.below(30) {
            0 => {
                whole.reset(&key).await.expect("done");
                parts.reset(&key).await.expect("done");
            }
            1 => {
                let (limit, used) = (["user", "team"][usize::try_from(dice.below(2)).unwrap()], dice.below(6));
                whole.set(limit, &key, used).await.expect("done");
                parts.set(limit, &key, used).await.expect("done");
            }
            2 => {
                let limit = ["user", "team"][usize::try_from(dice.below(2)).unwrap()];
                let span = Duration::from_millis(dice.below(3_000));
                whole.block(limit, &key, span).await.expect("done");
                parts.block(limit, &key, span).await.expect("done");
            }
            3..=8 if !guards.is_empty() => {
                let index = usize::try_from(dice.below(guards.len() as u64)).unwrap();
                let (ours, theirs): (Held, Held) = guards.swap_remove(index);
                assert_eq!(ours.cost(), theirs.cost(), "{place}");
                let actual = dice.below(ours.cost() + 2);
                ours.settle(actual).await.expect("done");
                theirs.settle(actual).await.expect("done");
            }
            kind => {
                let mut asked = AcquireOptions::cost([1, 1, 1, 2, 3, 0, 9][usize::try_from(dice.below(7)).unwrap()]);
                asked.detail = [Detail::MostRestrictive, Detail::All][dice.below(2) as usize];
                asked.hold = dice.below(4) == 0 && guards.len() < 3;
                let at_once = asked.max_delay(Duration::ZERO);
                if kind == 9 {
                    let here = whole.peek(&key, at_once).await.expect("an answer");
                    let there = parts.peek(&key, asked).await.expect("an answer");
                    assert_eq!(says(&here), says(&there), "{place}");
                    continue;
                }
                // Whatever delay they would accept.
                let (here, there) = (ask(&whole, key, at_once).await, ask(&parts, key, asked).await);
                assert_eq!(says(&here.decision), says(&there.decision), "{place} {asked:?}");
                assert!(!there.decision.supports_scheduling() && there.decision.delay().is_zero(), "{place}");
                assert_eq!(here.decision.is_estimate(), there.decision.is_estimate(), "{place}");
                assert_eq!(here.held.is_some(), there.held.is_some(), "{place}");
                settle_in_background().await;
                guards.extend(here.held.zip(there.held));
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
                let whole = Memory::builder((user(), team())).clock(clock.clone()).build().expect("limits");
                let first = Memory::builder(user()).clock(clock.clone()).build().expect("limits");
                let second = Memory::builder(team()).clock(clock.clone()).build().expect("limits");
                let parts = if seed % 2 == 0 {
                    BoxLimiter::new(Chained::new(first, second))
                } else {
                    BoxLimiter::new(Chained::new(Elsewhere(first, 2), Elsewhere(second, 1)))
                };
                agrees(seed, BoxLimiter::new(whole), parts, &clock).await;
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
    let limiter = Chained::new(user.clone(), Elsewhere(team.clone(), 3));
    for expected in [Verdict::Allowed, Verdict::Denied { retry_after: HOUR }, Verdict::Denied { retry_after: HOUR }] {
        let outcome = ask(&limiter, ALICE, AcquireOptions::cost(2).detail(Detail::All)).await;
        assert_eq!(outcome.decision.verdict(), expected);
        // Its figures are those of a key that was not charged.
        let figures = outcome.decision.limits().iter().map(|standing| (standing.name(), standing.remaining()));
        assert_eq!(figures.collect::<Vec<_>>(), [("user", 8), ("team", 1)]);
        assert_eq!((left(&user, ALICE).await, left(&team, ALICE).await), (8, 1));
    }
}

#[tokio::test]
async fn who_is_refused_by_the_first_takes_nothing_from_the_second() {
    let clock = ManualClock::new();
    let asked = Arc::new(AtomicU64::new(0));
    let second = Gone { hangs: false, asked: Arc::clone(&asked) };
    let limiter = Chained::new(of_user(1, &clock), FailOpen::new(second));
    assert!(ask(&limiter, ALICE, AcquireOptions::default()).await.decision.is_allowed());
    assert!(!ask(&limiter, ALICE, AcquireOptions::default()).await.decision.is_allowed());
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_wait_is_long_enough_for_both() {
    let clock = ManualClock::new();
    let user =
        Memory::builder(Limit::new("user", Gcra::new(Quota::per_second(1)))).clock(clock.clone()).build().unwrap();
    let team =
        Memory::builder(Limit::new("team", Gcra::new(Quota::per_minute(1)))).clock(clock.clone()).build().unwrap();
    for limiter in [
        BoxLimiter::<Key>::new(Chained::new(user.clone(), team.clone())),
        BoxLimiter::new(Chained::new(Elsewhere(team, 1), Elsewhere(user, 1))),
    ] {
        limiter.reset(&ALICE).await.expect("done");
        assert!(ask(&limiter, ALICE, AcquireOptions::default()).await.decision.is_allowed());
        settle_in_background().await;
        let refused = ask(&limiter, ALICE, AcquireOptions::default()).await.decision;
        assert_eq!(refused.retry_after(), Some(Duration::from_secs(60)));
        assert_eq!(refused.most_restrictive().map(|standing| standing.name().to_owned()), Some("team".to_owned()));
    }
}

#[tokio::test]
async fn one_that_fails_leaves_the_other_uncharged() {
    let clock = ManualClock::new();
    let user = of_user(10, &clock);
    let gone = Gone::default;
    for limiter in [
        BoxLimiter::new(Chained::new(user.clone(), gone())),
        BoxLimiter::new(Chained::new(Elsewhere(user.clone(), 2), gone())),
        BoxLimiter::new(Chained::new(gone(), user.clone())),
    ] {
        assert!(limiter.acquire(&ALICE, AcquireOptions::default()).await.expect_err("one is gone").is_unavailable());
        assert_eq!(left(&user, ALICE).await, 10);
    }
    // A limiter behind them then decides by itself.
    let limiter = Fallback::new(Chained::new(user.clone(), gone()), of_user(1, &clock));
    let outcome = ask(&limiter, ALICE, AcquireOptions::default()).await;
    assert_eq!((outcome.decision.source(), outcome.decision.is_allowed()), (DecisionSource::Fallback, true));
    limiter.reset(&ALICE).await.expect_err("one is gone");
    // A hold by the stand-in is released like any other.
    let held = limiter.hold(&ALICE, AcquireOptions::default()).await.expect("an answer").held.expect("a guard");
    assert!(!ask(&limiter, ALICE, AcquireOptions::default()).await.decision.is_allowed());
    held.release().await.expect("done");
    assert!(ask(&limiter, ALICE, AcquireOptions::default()).await.decision.is_allowed());
    // And one that stands in for a part is told.
    let limiter = Chained::new(user.clone(), FailOpen::new(gone()));
    let outcome = ask(&limiter, ALICE, AcquireOptions::default().hold()).await;
    assert_eq!((outcome.decision.source(), outcome.decision.remaining()), (DecisionSource::Policy, Some(9)));
    outcome.held.expect("a guard").release().await.expect("done");
    assert_eq!(left(&user, ALICE).await, 10);
}

/// Polls so many times, and drops it.
fn abandon<F: Future>(future: F, polls: usize) -> bool {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    (0..polls).any(|_| future.as_mut().poll(&mut cx).is_ready())
}

#[tokio::test]
async fn drop_between_the_phases_releases_what_the_first_holds() {
    let clock = ManualClock::new();
    let user = of_user(10, &clock);
    let gone = Gone { hangs: true, asked: Arc::default() };
    for (polls, limiter) in [
        (0, BoxLimiter::new(Chained::new(user.clone(), gone.clone()))),
        (1, BoxLimiter::new(Chained::new(user.clone(), gone.clone()))),
        (5, BoxLimiter::new(Chained::new(Elsewhere(user.clone(), 2), gone.clone()))),
        (5, BoxLimiter::new(Chained::new(user.clone(), of_team(9, &clock)).and(gone.clone()))),
        (9, BoxLimiter::new(Chained::new(user.clone(), Chained::new(Elsewhere(of_team(9, &clock), 2), gone.clone())))),
    ] {
        let asked = gone.asked.load(Ordering::SeqCst);
        let Acquisition::Pending(decision) = limiter.acquire(&ALICE, AcquireOptions::cost(4)) else {
            panic!("it hangs")
        };
        assert!(!abandon(decision, polls));
        assert_eq!(gone.asked.load(Ordering::SeqCst), asked + 1, "the second one was asked");
        // What is released elsewhere takes its time.
        settle_in_background().await;
        assert_eq!(left(&user, ALICE).await, 10);
    }
}

#[tokio::test]
async fn drop_while_the_first_releases_still_releases() {
    let clock = ManualClock::new();
    let (user, team) = (of_user(10, &clock), of_team(1, &clock));
    let limiter = Chained::new(Elsewhere(user.clone(), 3), team);
    assert!(ask(&limiter, BOB, AcquireOptions::default()).await.decision.is_allowed());
    // The first one answers in the fourth poll, and its hold has to be released from then on.
    for polls in 4..7 {
        let Acquisition::Pending(decision) = limiter.acquire(&ALICE, AcquireOptions::default()) else {
            panic!("it is elsewhere")
        };
        assert!(!abandon(decision, polls));
        settle_in_background().await;
        assert_eq!(left(&user, ALICE).await, 10);
    }
}

/// A denial due to another request's hold is an estimate, and no cache may remember it.
#[tokio::test]
async fn cache_around_the_first_does_not_remember_a_denial_due_to_a_hold() {
    let clock = ManualClock::new();
    let (user, team) = (of_user(1, &clock), of_team(5, &clock));
    team.set("team", &ALICE, 5).await.expect("done");
    let cached = DeniedCache::with_clock(user, 100, clock.clone());
    let limiter = Chained::new(cached, Elsewhere(team.clone(), 3));
    let Acquisition::Pending(on_its_way) = limiter.acquire(&ALICE, AcquireOptions::default()) else {
        panic!("it is elsewhere")
    };
    let refused = ask(&limiter, ALICE, AcquireOptions::default()).await.decision;
    assert_eq!(refused.most_restrictive().map(tower_ratelimit::LimitStatus::name), Some("user"));
    assert!(refused.is_estimate());
    let again = ask(&limiter, ALICE, AcquireOptions::default()).await.decision;
    assert_eq!(again.source(), DecisionSource::Store);
    assert!(!on_its_way.await.expect("an answer").decision.is_allowed());
    team.reset(&ALICE).await.expect("done");
    assert!(ask(&limiter, ALICE, AcquireOptions::default()).await.decision.is_allowed());
}

/// That the one which allows can't be asked any more does not make it a policy's refusal.
#[tokio::test]
async fn who_has_refused_is_told() {
    /// It allows, and is gone then.
    #[derive(Clone)]
    struct Once;
    impl Limiter<Key> for Once {
        type Future = BoxFuture<Result<Outcome, Error>>;

        fn acquire(&self, _: &Key, _: AcquireOptions) -> Acquisition<Self::Future> {
            Acquisition::Ready(Ok(Decision::from_limits(ManualClock::new().now(), Vec::new()).into()))
        }

        fn peek(&self, _: &Key, _: AcquireOptions) -> LimiterFuture<Decision> {
            LimiterFuture::ready(Err(Error::unavailable("it is gone")))
        }
    }
    let clock = ManualClock::new();
    for limiter in [
        BoxLimiter::new(Chained::new(Once, of_team(1, &clock))),
        BoxLimiter::new(Chained::new(FailOpen::new(Once), of_team(1, &clock))),
    ] {
        assert!(ask(&limiter, ALICE, AcquireOptions::default()).await.decision.is_allowed());
        let refused = ask(&limiter, ALICE, AcquireOptions::default()).await.decision;
        assert_eq!((refused.source(), refused.retry_after()), (DecisionSource::Store, Some(HOUR)));
    }
    // One without figures has the same say as one with them.
    let shut = Chained::new(of_user(5, &clock), Shut);
    let refused = ask(&shut, ALICE, AcquireOptions::default()).await.decision;
    assert_eq!((refused.source(), refused.retry_after()), (DecisionSource::Policy, Some(HOUR)));
}

/// It refuses everybody, without any limit.
#[derive(Clone)]
struct Shut;

impl Limiter<Key> for Shut {
    type Future = BoxFuture<Result<Outcome, Error>>;

    fn acquire(&self, _: &Key, _: AcquireOptions) -> Acquisition<Self::Future> {
        let verdict = Verdict::Denied { retry_after: HOUR };
        Acquisition::Ready(Ok(Decision::by_policy(ManualClock::new().now(), verdict).into()))
    }
}

#[tokio::test]
async fn a_later_turn_is_not_promised_but_waited_for() {
    let clock = ManualClock::new();
    let queue = Limit::new("queue", LeakyQueue::new(Quota::per_second(1)));
    let queue = Memory::builder(queue).clock(clock.clone()).build().expect("limits");
    let limiter = Chained::new(queue, of_team(2, &clock));
    let patient = AcquireOptions::default().max_delay(Duration::from_secs(5));
    assert!(ask(&limiter, ALICE, patient).await.decision.is_allowed());
    // Its turn would be counted by the other limit for now.
    let refused = ask(&limiter, ALICE, patient).await.decision;
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(1)));
    assert!(!refused.supports_scheduling());
    clock.advance(Duration::from_secs(1));
    assert!(ask(&limiter, ALICE, patient).await.decision.is_allowed());
}

#[tokio::test]
async fn three_limiters_hold_all_or_none_and_are_settled_alike() {
    let clock = ManualClock::new();
    let (user, team) = (of_user(5, &clock), of_team(6, &clock));
    let all = Limit::new("all", SlidingLog::new(Quota::per_hour(7))).keyed_by(|_: &Key| ());
    let all = Memory::builder(all).clock(clock.clone()).build().expect("limits");
    let limiter = Chained::new(user.clone(), Elsewhere(team.clone(), 1)).and(all.clone());
    let lefts = async || [left(&user, ALICE).await, left(&team, ALICE).await, left(&all, ALICE).await];
    let held = ask(&limiter, ALICE, AcquireOptions::cost(4).hold()).await.held.expect("a guard");
    assert_eq!((held.cost(), lefts().await), (4, [1, 2, 3]));
    held.settle(2).await.expect("done");
    assert_eq!(lefts().await, [3, 4, 5]);
    let held = ask(&limiter, ALICE, AcquireOptions::cost(1).hold()).await.held.expect("a guard");
    held.settle(3).await.expect("done");
    assert_eq!(lefts().await, [0, 1, 2]);
    // Bob's team has one left, and all two.
    assert!(!ask(&limiter, BOB, AcquireOptions::cost(2)).await.decision.is_allowed());
    settle_in_background().await;
    let outcome = ask(&limiter, BOB, AcquireOptions::default().detail(Detail::All).hold()).await;
    let names = outcome.decision.limits().iter().map(|standing| (standing.name(), standing.remaining()));
    assert_eq!(names.collect::<Vec<_>>(), [("user", 4), ("team", 0), ("all", 1)]);
    outcome.held.expect("a guard").release().await.expect("done");
    assert_eq!((left(&user, BOB).await, lefts().await), (5, [0, 1, 2]));
    limiter.reset(&ALICE).await.expect("done");
    assert_eq!(lefts().await, [5, 6, 7]);
}

#[tokio::test]
async fn operations_find_the_limiter_that_has_the_limit() {
    let clock = ManualClock::new();
    let (user, team) = (of_user(5, &clock), of_team(6, &clock));
    for limiter in [
        BoxLimiter::new(Chained::new(user.clone(), team.clone())),
        BoxLimiter::new(Chained::new(Elsewhere(user.clone(), 1), Elsewhere(team.clone(), 1))),
    ] {
        limiter.set("user", &ALICE, 3).await.expect("done");
        limiter.set("team", &ALICE, 2).await.expect("done");
        assert_eq!((left(&user, ALICE).await, left(&team, ALICE).await), (2, 4));
        limiter.block("team", &ALICE, HOUR * 2).await.expect("done");
        assert_eq!(ask(&limiter, ALICE, AcquireOptions::default()).await.decision.retry_after(), Some(HOUR * 2));
        limiter.unblock("team", &ALICE).await.expect("done");
        let held = ask(&limiter, ALICE, AcquireOptions::default().hold()).await.held.expect("a guard");
        held.release().await.expect("done");
        assert!(limiter.set("other", &ALICE, 1).await.expect_err("no such limit").is_config());
        assert!(limiter.block("other", &ALICE, HOUR).await.expect_err("no such limit").is_config());
    }
}

/// A limiter that allows, and says what it was asked to settle.
#[derive(Clone, Default)]
struct Noting {
    settled: Arc<std::sync::Mutex<Vec<u64>>>,
    holds: bool,
}

impl Limiter<Key> for Noting {
    type Future = BoxFuture<Result<Outcome, Error>>;

    fn acquire(&self, _: &Key, ask: AcquireOptions) -> Acquisition<Self::Future> {
        if ask.hold && !self.holds {
            return Acquisition::Ready(Err(Error::unsupported("this limiter can't hold costs")));
        }
        let settled = Arc::clone(&self.settled);
        let held = ask.hold.then(|| {
            Held::new(ask.cost, move |actual| {
                settled.lock().expect("notes").push(actual);
                LimiterFuture::ready(Ok(()))
            })
        });
        Acquisition::Ready(Ok(Outcome { decision: Decision::from_limits(ManualClock::new().now(), Vec::new()), held }))
    }
}

#[tokio::test]
async fn allowed_by_both_is_charged_exactly_once() {
    let clock = ManualClock::new();
    for polls in [0, 2] {
        let (user, team) = (of_user(10, &clock), of_team(9, &clock));
        let limiter = Chained::new(Elsewhere(user.clone(), polls), Elsewhere(team.clone(), polls));
        let outcome = ask(&limiter, ALICE, AcquireOptions::cost(4)).await;
        assert!(outcome.decision.is_allowed() && outcome.held.is_none());
        settle_in_background().await;
        assert_eq!((left(&user, ALICE).await, left(&team, ALICE).await), (6, 5));
        // A hold is settled once on each, and dropping the guard settles it whole.
        let held = ask(&limiter, ALICE, AcquireOptions::cost(2).hold()).await.held.expect("a guard");
        assert_eq!((left(&user, ALICE).await, left(&team, ALICE).await), (4, 3));
        drop(held);
        settle_in_background().await;
        assert_eq!((left(&user, ALICE).await, left(&team, ALICE).await), (4, 3));
        clock.advance(HOUR);
        assert_eq!((left(&user, ALICE).await, left(&team, ALICE).await), (10, 9), "nothing is held any more");
    }
    // The first limiter holds and settles the whole cost; the second decides.
    let noting = Noting { holds: true, ..Noting::default() };
    let limiter = Chained::new(noting.clone(), of_team(5, &clock));
    assert!(ask(&limiter, ALICE, AcquireOptions::cost(3)).await.decision.is_allowed());
    assert!(!ask(&limiter, ALICE, AcquireOptions::cost(3)).await.decision.is_allowed());
    assert_eq!(*noting.settled.lock().expect("notes"), [3, 0]);
}

#[tokio::test]
async fn limiter_that_cannot_hold_is_an_error_in_the_first_place_and_works_in_the_last() {
    let clock = ManualClock::new();
    let team = of_team(5, &clock);
    let first = Chained::new(Noting::default(), team.clone());
    assert!(first.acquire(&ALICE, AcquireOptions::default()).await.expect_err("it cannot hold").is_unsupported());
    assert_eq!(left(&team, ALICE).await, 5);
    let last = Chained::new(team.clone(), Noting::default());
    assert!(ask(&last, ALICE, AcquireOptions::default()).await.decision.is_allowed());
    assert_eq!(left(&team, ALICE).await, 4);
    // Both must hold what the caller wants held.
    assert!(last.hold(&ALICE, AcquireOptions::default()).await.expect_err("it cannot hold").is_unsupported());
    settle_in_background().await;
    assert_eq!(left(&team, ALICE).await, 4);
}

#[tokio::test]
async fn behind_the_layer_it_is_a_limiter_as_any() {
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
async fn any_number_at_once_get_no_more_than_both_allow() {
    let clock = ManualClock::new();
    for polls in [0, 1] {
        let (user, team) = (of_user(50, &clock), of_team(120, &clock));
        let limiter = Chained::new(Elsewhere(user.clone(), polls), Elsewhere(team.clone(), polls));
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..16 {
            let limiter = limiter.clone();
            tasks.spawn(async move {
                let mut allowed = [0; 4];
                for _ in 0..100 {
                    let outcome = ask(&limiter, (task % 4, 1), AcquireOptions::default()).await;
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
        // Nothing is charged or held that was not let through.
        assert_eq!(left(&team, ALICE).await, 120 - allowed.iter().sum::<u64>());
        for (number, allowed) in (0..4).zip(allowed) {
            assert_eq!(left(&user, (number, 1)).await, 50 - allowed);
        }
    }
}
