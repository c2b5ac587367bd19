//! The same trace through memory and through Redis: the same decisions, field by field, and the same receipts.
//!
//! Time is virtual: both read it from one clock that is driven by hand.

use std::time::Duration;

use futures_util::future::join_all;
use tower_ratelimit::algorithm::Scripted;
use tower_ratelimit::limiter::{Outcome, Receipt};
use tower_ratelimit::store::{IntoRedisLimits, LimitsFor};
use tower_ratelimit::{
    Ask, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limit, Limiter, ManualClock, Memory, Quota, Redis, RedisServer,
    SlidingLog, SlidingWindow, TokenBucket, per_key,
};

use crate::nodes::Nodes;
use crate::server::Server;

#[derive(Clone, Copy, Debug)]
struct Caller {
    user: u64,
    team: u64,
    tier: usize,
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

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

const STEPS: usize = 6_000;

/// Runs one trace, through one Redis and through a cluster.
async fn compare<L>(name: &str, limits: L, seed: u64, steps: usize)
where
    L: LimitsFor<Caller, tower_ratelimit::store::DefaultHashBuilder> + IntoRedisLimits<Caller> + Clone,
{
    let (alone, cluster) = (Server::start(), Nodes::start());
    compare_on(alone.open(), name, limits.clone(), seed, steps).await;
    compare_on(cluster.open(), name, limits, seed, steps / 6).await;
}

async fn compare_on<L>(server: RedisServer, name: &str, limits: L, seed: u64, steps: usize)
where
    L: LimitsFor<Caller, tower_ratelimit::store::DefaultHashBuilder> + IntoRedisLimits<Caller> + Clone,
{
    let clock = ManualClock::new();
    let memory = Memory::builder(limits.clone()).clock(clock.clone()).build().expect("limits");
    let redis = Redis::builder(server, name, limits)
        .clock_for_tests(clock.clone())
        .deadline(Duration::from_secs(20))
        .build()
        .expect("limits");
    let mut dice = Dice(seed);
    let mut receipts: Vec<(Caller, Receipt, Receipt)> = Vec::new();
    let mut step = 0;
    while step < steps {
        advance(&clock, &mut dice);
        let caller = caller(&mut dice);
        match dice.below(40) {
            0 => {
                let ask = ask(&mut dice);
                let there = redis.peek(&caller, ask).await.expect("an answer");
                assert_eq!(memory.peek(&caller, ask).await.expect("an answer"), there, "{name} {seed} {step} peek");
            }
            1 => {
                memory.reset(&caller).await.expect("done");
                redis.reset(&caller).await.expect("done");
            }
            2 => {
                let span = Duration::from_millis(dice.below(4_000));
                let limit = limit_of(&memory, &mut dice, &caller).await;
                memory.block(&limit, &caller, span).await.expect("done");
                redis.block(&limit, &caller, span).await.expect("done");
            }
            3 => {
                let used = dice.below(9);
                let limit = limit_of(&memory, &mut dice, &caller).await;
                memory.set(&limit, &caller, used).await.expect("done");
                redis.set(&limit, &caller, used).await.expect("done");
            }
            4..=11 if !receipts.is_empty() => {
                let index = usize::try_from(dice.below(receipts.len() as u64)).expect("small");
                let (caller, ours, theirs) = receipts.swap_remove(index);
                // Some are settled under another tier than they were charged in.
                let caller = Caller { tier: if dice.one_in(3) { 2 } else { caller.tier }, ..caller };
                let actual = dice.below(ours.cost() + 3);
                memory.settle(&caller, ours, actual).await.expect("done");
                redis.settle(&caller, theirs, actual).await.expect("done");
            }
            _ => {
                // Several at one moment: they travel together.
                let count = if dice.one_in(4) { 1 + dice.below(6) } else { 1 };
                let asks: Vec<_> = (0..count)
                    .map(|_| {
                        let caller = if dice.one_in(2) { caller } else { self::caller(&mut dice) };
                        (caller, ask(&mut dice))
                    })
                    .collect();
                let there =
                    join_all(asks.iter().map(|(caller, ask)| IntoFuture::into_future(redis.acquire(caller, *ask))));
                for ((caller, ask), there) in asks.iter().zip(there.await) {
                    let here = memory.acquire_now(caller, *ask);
                    let there = there.expect("an answer");
                    assert_eq!(here.decision, there.decision, "{name} {seed} {step} {caller:?} {ask:?}");
                    assert_eq!(here.receipt, there.receipt, "{name} {seed} {step} {caller:?} {ask:?}");
                    step += 1;
                    if let (Outcome { receipt: Some(ours), .. }, Outcome { receipt: Some(theirs), .. }) = (here, there)
                        && receipts.len() < 40
                    {
                        receipts.push((*caller, ours, theirs));
                    }
                }
            }
        }
    }
}

/// From no time at all to one after which everything is new.
fn advance(clock: &ManualClock, dice: &mut Dice) {
    let micros = match dice.below(12) {
        0..=3 => 0,
        4 => dice.below(4),
        5..=8 => dice.below(300_000),
        9 | 10 => dice.below(2_000_000),
        _ => dice.below(9_000_000),
    };
    clock.advance(Duration::from_micros(micros));
}

fn caller(dice: &mut Dice) -> Caller {
    let tier = if dice.one_in(10) { usize::try_from(dice.below(3)).expect("small") } else { 0 };
    Caller { user: dice.below(3), team: dice.below(2), tier }
}

fn ask(dice: &mut Dice) -> Ask {
    let mut ask = Ask::cost([1, 1, 1, 1, 2, 3, 0, 7][usize::try_from(dice.below(8)).expect("small")]);
    ask.max_delay = match dice.below(6) {
        0 => Some(Duration::ZERO),
        1 => Some(Duration::from_micros(dice.below(3_000_000))),
        _ => None,
    };
    ask.every_limit = dice.one_in(3);
    ask.every_refusal = dice.one_in(3);
    ask
}

/// The name of one of the limits.
async fn limit_of(memory: &impl Limiter<Caller>, dice: &mut Dice, caller: &Caller) -> String {
    let decision = memory.peek(caller, Ask::default().every_limit()).await.expect("an answer");
    let names: Vec<_> = decision.standings().iter().map(|standing| standing.name().to_owned()).collect();
    names[usize::try_from(dice.below(names.len() as u64)).expect("small")].clone()
}

/// One algorithm, in three tiers.
async fn alone<A: Scripted + Clone>(name: &str, tiers: [A; 3]) {
    for seed in 1..=2 {
        let (first, tiers) = (tiers[0].clone(), tiers.clone());
        compare(name, Limit::new("one", first).by(|caller: &Caller| caller.user), seed, STEPS).await;
        let chosen = per_key(move |caller: &Caller| tiers[caller.tier].clone());
        compare(name, Limit::new("tiers", chosen).by(|caller: &Caller| caller.user), 10 + seed, STEPS).await;
    }
}

fn quotas() -> [Quota; 3] {
    [Quota::new(5, Duration::from_secs(3)), Quota::new(7, Duration::from_millis(1001)), Quota::per_minute(4)]
}

#[tokio::test]
async fn gcra() {
    let [a, b, c] = quotas();
    alone("gcra", [Gcra::new(a), Gcra::new(b).burst(3), Gcra::new(c).burst(9)]).await;
}

#[tokio::test]
async fn token_bucket() {
    let [a, b, c] = quotas();
    alone("token", [TokenBucket::new(a).burst(9), TokenBucket::new(b), TokenBucket::new(c)]).await;
}

#[tokio::test]
async fn leaky_bucket() {
    let [a, b, c] = quotas();
    alone("leaky", [LeakyBucket::new(a).strict(), LeakyBucket::new(b), LeakyBucket::new(c)]).await;
}

#[tokio::test]
async fn leaky_queue() {
    let [a, b, c] = quotas();
    alone("queue", [LeakyQueue::new(a), LeakyQueue::new(b).max_waiting(2), LeakyQueue::new(c).max_waiting(0)]).await;
}

#[tokio::test]
async fn fixed_window() {
    let [a, b, c] = quotas();
    alone("fixed", [FixedWindow::new(a), FixedWindow::new(b).aligned_to_clock(), FixedWindow::new(c)]).await;
}

#[tokio::test]
async fn sliding_window() {
    let [a, b, c] = quotas();
    alone("strict", [SlidingWindow::new(a), SlidingWindow::new(b).blocks(7), SlidingWindow::new(c).blocks(3)]).await;
}

#[tokio::test]
async fn weighted_window() {
    let [a, b, c] = quotas();
    let weighted = |quota| SlidingWindow::new(quota).blocks(1).weighted();
    alone("weighted", [weighted(a), weighted(b), SlidingWindow::new(c).blocks(6).weighted()]).await;
}

#[tokio::test]
async fn sliding_log() {
    let [a, b, c] = quotas();
    alone("log", [SlidingLog::new(a), SlidingLog::new(b), SlidingLog::new(c)]).await;
}

/// Rates whose products pass 2^53, where Lua has to count in digits.
#[tokio::test]
async fn fine_rates() {
    let fine = [
        Quota::new(999_983, Duration::from_micros(999_999_937)),
        Quota::new(999_999_937, Duration::from_micros(999_983)),
        Quota::new(67_108_859, Duration::from_micros(67_108_863)),
    ];
    alone("fine", fine.map(|quota| Gcra::new(quota).burst(5))).await;
}

#[tokio::test]
async fn several_together() {
    let [a, b, c] = quotas();
    for seed in 21..=26 {
        let limits = (
            Limit::new("user", Gcra::new(a)).by(|caller: &Caller| caller.user),
            Limit::new("log", SlidingLog::new(b)).by(|caller: &Caller| caller.team),
            Limit::new("all", SlidingWindow::new(c)).by(|_: &Caller| ()),
            Limit::new("shadow", FixedWindow::new(a)).by(|caller: &Caller| caller.team).shadow(),
        );
        compare("mixed", limits, seed, STEPS).await;
    }
}

#[tokio::test]
async fn several_that_promise_turns() {
    let [a, b, _] = quotas();
    for seed in 31..=36 {
        let limits = (
            Limit::new("queue", LeakyQueue::new(a)).by(|caller: &Caller| caller.user),
            Limit::new("bucket", Gcra::new(b)).by(|caller: &Caller| caller.team),
            Limit::new("shadow", LeakyQueue::new(b)).by(|caller: &Caller| caller.user).shadow(),
        );
        compare("turns", limits, seed, STEPS).await;
    }
}
