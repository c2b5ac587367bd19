//! Outages in which the server rejects each call: what becomes of holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::{MS, connect, limit, slow_server};
use crate::limiter::Held;
use crate::observe::Event;
use crate::store::redis::simulation_tests::quota::{Form, Quota};
use crate::store::redis::simulation_tests::world::World;
use crate::store::redis::{Redis, RedisBuilder};
use crate::{AcquireOptions, Limiter};

const EXPIRY: Duration = Duration::from_secs(2);
const QUOTA: Quota = Quota { units: 100, period: 3_600_000_000, form: Form::FixedWindow };

/// Returns a server behind a round trip in milliseconds, its limiter, and a hold of 40 on a key.
async fn hold(expiry: Duration, round_trip: u32) -> (World, Redis<u64>, Held) {
    let world = World::new(slow_server(round_trip), vec![QUOTA]);
    let limiter = builder(&world, 0, expiry).build().expect("limits");
    connect(&limiter).await;
    let outcome = limiter.acquire(&1, AcquireOptions::cost(40).hold()).await.expect("an answer");
    (world, limiter, outcome.held.expect("allowed"))
}

fn builder(world: &World, client: usize, expiry: Duration) -> RedisBuilder<u64> {
    Redis::builder(world.server(client), "api", vec![limit(0, &QUOTA)]).deadline(MS * 50).hold_expiry(expiry)
}

async fn used(limiter: &Redis<u64>) -> u64 {
    let mut peeked = limiter.peek(&1, AcquireOptions::cost(0)).await;
    while peeked.is_err() {
        sleep(MS * 10).await;
        peeked = limiter.peek(&1, AcquireOptions::cost(0)).await;
    }
    100 - peeked.expect("an answer").remaining().expect("a figure")
}

#[tokio::test(start_paused = true)]
async fn hold_lasts_when_rejected_renewals_succeed_before_the_expiry() {
    for percent in (35..=97).step_by(2) {
        let (world, limiter, held) = hold(EXPIRY, 1).await;
        sleep(EXPIRY * 3 / 10).await;
        world.reject(true);
        sleep(EXPIRY * (percent - 30) / 100).await;
        world.reject(false);
        sleep(EXPIRY).await;
        held.release().await.expect("an answer");
        assert_eq!(used(&limiter).await, 0, "rejected from 30 % to {percent} % of the expiry");
    }
}

/// The first outage lasts for longer than the expiry, so Redis charges the held 40. A settlement of 45 charges the other 5.
#[tokio::test(start_paused = true)]
async fn surcharge_of_a_rejected_update_is_charged_after_the_expiry() {
    let (world, limiter, held) = hold(EXPIRY, 1).await;
    world.reject(true);
    held.settle(45).await.expect_err("rejected");
    sleep(EXPIRY * 13 / 10).await;
    world.reject(false);
    sleep(EXPIRY * 3).await;
    assert_eq!(used(&limiter).await, 45);
}

#[tokio::test(start_paused = true)]
async fn surcharge_is_charged_after_a_second_outage_in_which_the_circuit_breaker_was_open() {
    let (world, limiter, held) = hold(EXPIRY / 2, 1).await;
    world.reject(true);
    sleep(EXPIRY * 13 / 10).await;
    world.reject(false);
    sleep(EXPIRY).await;
    assert_eq!(used(&limiter).await, 40);
    world.reject(true);
    for _ in 0..3 {
        limiter.acquire(&2, AcquireOptions::default()).await.expect_err("rejected");
    }
    held.settle(45).await.expect_err("the circuit breaker is open");
    // The next trial comes after at least 100 ms, and the first attempt to charge after a twentieth of the expiry.
    sleep(MS * 90).await;
    world.reject(false);
    sleep(EXPIRY).await;
    assert_eq!(used(&limiter).await, 45);
}

/// A surcharge that an update without a reply carried may have been applied, so a rejected update after it does not charge it
/// again.
#[tokio::test(start_paused = true)]
async fn surcharge_of_a_lost_update_is_not_charged_again() {
    let (world, limiter, held) = hold(EXPIRY, 1).await;
    // The server applies the update so late that the client has given it up.
    world.pause(300_000);
    held.settle(45).await.expect_err("no reply");
    sleep(MS * 250).await;
    assert_eq!(used(&limiter).await, 45);
    world.reject(true);
    sleep(EXPIRY * 3 / 2).await;
    world.reject(false);
    sleep(EXPIRY * 3).await;
    assert_eq!(used(&limiter).await, 45);
}

/// A later update carried the surcharge of the rejected one, and was applied.
#[tokio::test(start_paused = true)]
async fn surcharge_of_overlapping_updates_is_charged_once() {
    let (world, limiter, held) = hold(EXPIRY, 20).await;
    let others = [1, 1].map(|cost| limiter.acquire(&1, AcquireOptions::cost(cost).hold()));
    let [released, kept] = others.map(|other| async { other.await.expect("an answer").held.expect("allowed") });
    let (released, kept) = (released.await, kept.await);
    world.reject(true);
    let settling = tokio::spawn(held.settle(45));
    sleep(MS * 12).await;
    world.reject(false);
    released.release().await.expect("an answer");
    settling.await.expect("no panic").expect_err("rejected");
    world.reject(true);
    sleep(EXPIRY * 3 / 2).await;
    world.reject(false);
    sleep(EXPIRY).await;
    drop(kept);
    assert_eq!(used(&limiter).await, 45 + 1);
}

/// A decision of another process reports the expired hold. A second decision is in flight then.
#[tokio::test(start_paused = true)]
async fn panic_of_an_observer_of_expired_holds_fails_no_decision() {
    let (world, _limiter, _held) = hold(EXPIRY, 20).await;
    let is_emitted = Arc::new(AtomicBool::new(false));
    let emitted = Arc::clone(&is_emitted);
    let other = builder(&world, 1, EXPIRY).observe(move |event: &Event<'_>| {
        if matches!(event, Event::HoldsExpired { .. }) {
            emitted.store(true, Ordering::SeqCst);
            panic!("{event:?}");
        }
    });
    let other = other.build().expect("limits");
    connect(&other).await;
    world.reject(true);
    sleep(EXPIRY * 13 / 10).await;
    world.reject(false);
    let first = tokio::spawn(other.acquire(&1, AcquireOptions::default()));
    sleep(MS * 2).await;
    let second = other.acquire(&2, AcquireOptions::default()).await;
    assert!(second.is_ok() && first.await.expect("no panic").is_ok(), "{second:?}");
    assert!(is_emitted.load(Ordering::SeqCst));
}
