//! The bound of holds in Redis: with each request placed at its start, the settled costs of any window stay within the
//! algorithm's bound.
//!
//! The bounds are those of the documentation and do not depend on the implementation of holds.

use std::time::Duration;

use tower_ratelimit::limiter::{Held, Outcome};
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{
    AcquireOptions, FixedWindow, Gcra, LeakyQueue, Limiter, ManualClock, Quota, Redis, SlidingLog, SlidingWindow,
    TokenBucket,
};

use crate::helpers::{LONG_DEADLINE, ONE_DAY};
use crate::random::Random;
use crate::server::Server;

const PERIOD: Duration = Duration::from_secs(3);
const FIVE: Quota = Quota::new(5, PERIOD);

/// The settled cost of a request that started at `start`.
#[derive(Clone, Copy, Debug)]
struct Settled {
    start: u64,
    cost: u64,
}

/// Random acquires and holds. Holds are settled below or at their held cost, or released.
async fn trace(limiter: &Redis<str>, clock: &ManualClock, seed: u64) -> Vec<Settled> {
    let (mut random, mut settled, mut held): (_, Vec<Settled>, Vec<(u64, Held)>) =
        (Random(seed), Vec::new(), Vec::new());
    let mut now = 0;
    for _ in 0..1_500 {
        let pause = [0, 1, 70_000, 600_000][usize::try_from(random.below(4)).unwrap()];
        clock.advance(Duration::from_micros(pause));
        now += pause;
        match random.below(4) {
            0 => {
                let cost = 1 + random.below(3);
                let options = AcquireOptions::cost(cost).max_delay(Duration::ZERO);
                let outcome = limiter.acquire("key", options).await.expect("an answer");
                if outcome.decision.is_allowed() {
                    settled.push(Settled { start: now, cost });
                }
            }
            1 | 2 => {
                let options = AcquireOptions::cost(1 + random.below(3));
                let Outcome { held: guard, .. } = limiter.hold("key", options).await.expect("an answer");
                held.extend(guard.map(|guard| (now, guard)));
            }
            _ if !held.is_empty() => {
                let (start, guard) = held.swap_remove(usize::try_from(random.below(held.len() as u64)).unwrap());
                let cost = random.below(guard.cost() + 1);
                settled.push(Settled { start, cost });
                guard.settle(cost).await.expect("settled");
            }
            _ => {}
        }
    }
    for (start, guard) in held {
        let cost = guard.cost();
        settled.push(Settled { start, cost });
        guard.settle(cost).await.expect("settled");
    }
    settled.sort_by_key(|settled| settled.start);
    settled
}

/// Checks every window that begins and ends with a request. `bound` is the maximum in a closed window of this length.
fn check_bound(name: &str, settled: &[Settled], bound: impl Fn(u64) -> u64) {
    let mut most = 0;
    for (index, first) in settled.iter().enumerate() {
        let mut sum = 0;
        for last in &settled[index..] {
            sum += last.cost;
            let span = last.start - first.start;
            assert!(sum <= bound(span), "{name}: {sum} in {span} us from {}, at most {}", first.start, bound(span));
            most = most.max(sum);
        }
    }
    assert!(most > 20, "{name}: too little was admitted to prove the bound");
}

async fn check(server: &Server, name: &str, limits: impl IntoRedisLimits<str> + Clone, bound: impl Fn(u64) -> u64) {
    for seed in 1..=2 {
        let clock = ManualClock::new();
        let limiter = Redis::builder(server.open(), &format!("{name}{seed}"), limits.clone());
        let limiter = limiter.clock_for_tests(clock.clone()).hold_expiry(ONE_DAY).deadline(LONG_DEADLINE);
        let settled = trace(&limiter.build().expect("limits"), &clock, seed).await;
        check_bound(name, &settled, &bound);
    }
}

#[tokio::test]
async fn settled_costs_stay_within_the_bound_in_redis() {
    let (server, period) = (Server::start(), u64::try_from(PERIOD.as_micros()).unwrap());
    // Burst and rate. A start may be a microsecond early or late.
    let bucket = |burst: u64| move |span: u64| burst + (span + 1) * 5 / period;
    check(&server, "gcra", Gcra::new(FIVE).burst(7), bucket(7)).await;
    check(&server, "token", TokenBucket::new(FIVE), bucket(5)).await;
    check(&server, "queue", LeakyQueue::new(FIVE).max_waiting(4), bucket(5)).await;
    // The maximum in any half-open window of one period.
    let windows = |most: u64| move |span: u64| most * (span / period + 1);
    check(&server, "strict", SlidingWindow::new(FIVE).blocks(3), windows(5)).await;
    check(&server, "log", SlidingLog::new(FIVE), windows(5)).await;
    check(&server, "fixed", FixedWindow::new(FIVE), windows(2 * 5 - 1)).await;
    check(&server, "aligned", FixedWindow::new(FIVE).aligned_to_clock(), windows(2 * 5)).await;
    check(&server, "weighted", SlidingWindow::new(FIVE).blocks(1).weighted(), windows(2 * 5 - 1)).await;
}
