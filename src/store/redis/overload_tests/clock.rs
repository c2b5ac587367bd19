//! The server's clock is stepped or slewed, while decisions arrive or after a pause: no decision fails by it.

use std::time::Duration;

use tokio::time::sleep;

use super::{Link, MS, OVERLOAD, SPAN, World, capacity, connect, offer, slow_server, start};
use crate::mistake::Mistake;
use crate::random::Random;
use crate::store::redis::Redis;
use crate::store::redis::simulation_tests::runtime;
use crate::{AcquireOptions, Limiter};

const DEADLINE: Duration = Duration::from_millis(50);

/// Returns a time between a millisecond and `1 << powers` milliseconds, of any magnitude.
fn any_time(random: &mut Random, powers: u64) -> Duration {
    let power = random.below(powers + 1);
    MS * u32::try_from(random.below(1 << power) + 1).expect("some days")
}

/// Changes the clock: a step forward or back, or a faster or slower run from now on.
fn change_clock(world: &World, random: &mut Random) {
    let sign = if random.percent(70) { 1 } else { -1 };
    if random.percent(60) {
        let gain = any_time(random, 14);
        world.step_clock(sign * i64::try_from(gain.as_micros()).expect("a short time"));
    } else {
        world.slew_clock(sign * i64::try_from(random.below(11)).expect("a small number"));
    }
}

/// A link with two round trips in half of the deadline.
fn link(random: &mut Random) -> Link {
    Link {
        delay: random.below(5) * 1000,
        jitter: random.below(2) * 1000,
        per_call: 20,
        per_operation: 20,
        slow_reply: None,
    }
}

async fn decide(limiter: &Redis<u64>, key: u64) -> Result<(), String> {
    limiter.acquire(&key, AcquireOptions::default()).await.map(drop).map_err(|error| error.to_string())
}

/// Decides after pauses of up to a day. On a slow link, for which two round trips take longer than the deadline, the pauses
/// are longer than some deadlines.
async fn decide_after_pauses(seed: u64) {
    let mut random = Random::new(seed);
    let is_slow = random.percent(30);
    let link = if is_slow { Link { delay: 17_000, per_call: 20, ..Link::default() } } else { link(&mut random) };
    let (world, limiter) = start(link, DEADLINE);
    connect(&limiter).await;
    for round in 0..40 {
        let age = any_time(&mut random, 26).max(if is_slow { DEADLINE * 5 } else { MS });
        sleep(age).await;
        change_clock(&world, &mut random);
        assert_eq!(decide(&limiter, round).await, Ok(()), "seed {seed}, round {round}, after {age:?}");
    }
}

#[test]
fn server_clock_gains_while_idle() {
    let law = |seeds: u64| (0..seeds).for_each(|seed| runtime().block_on(decide_after_pauses(seed)));
    law(60);
    for mistake in [Mistake::LateDecisionIsNotAskedAgain, Mistake::ClockIsTrustedForEver] {
        mistake.make(|| std::panic::catch_unwind(|| law(60))).expect_err("the law finds the mistake");
    }
}

/// Up to 20 decisions a millisecond, all of which can be made.
#[tokio::test(start_paused = true)]
async fn server_clock_gains_under_load() {
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let (world, limiter) = start(link(&mut random), DEADLINE);
        connect(&limiter).await;
        let per_ms = random.between(1, 20);
        let mut decisions = Vec::new();
        for tick in 0..600 {
            if tick % 150 == 100 {
                change_clock(&world, &mut random);
            }
            for key in 0..per_ms {
                let limiter = limiter.clone();
                decisions.push(tokio::spawn(async move { decide(&limiter, key).await }));
            }
            sleep(MS).await;
        }
        for decision in decisions {
            assert_eq!(decision.await.expect("no panic"), Ok(()), "seed {seed}, {per_ms} a millisecond");
        }
        let counts = world.counts(0);
        assert!(counts.charged >= 600 * per_ms && counts.charged <= 600 * per_ms + 10, "seed {seed}: {counts:?}");
    }
}

/// A clock that changes does not let the server work for nobody.
#[tokio::test(start_paused = true)]
async fn server_clock_gains_over_capacity() {
    for gain in [200_000, 40_000, -200_000] {
        let (world, limiter) = start(slow_server(5), DEADLINE);
        offer(&world, &limiter, OVERLOAD, SPAN / 2).await;
        world.step_clock(gain);
        let goodput = offer(&world, &limiter, OVERLOAD, SPAN / 2).await;
        assert!(goodput.answered * 10 >= capacity(SPAN / 2) * 8, "{gain} us: {goodput:?}");
        assert!(goodput.charged * 100 <= goodput.answered * 103, "{gain} us: {goodput:?}");
    }
}
