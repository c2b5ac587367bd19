//! Outages in which the server rejects each call: what becomes of holds.

use std::time::Duration;

use tokio::time::sleep;

use super::{MS, connect, limit, slow_server};
use crate::limiter::Held;
use crate::store::redis::Redis;
use crate::store::redis::simulation_tests::quota::{Form, Quota};
use crate::store::redis::simulation_tests::world::World;
use crate::{AcquireOptions, Limiter};

const EXPIRY: Duration = Duration::from_secs(2);
const QUOTA: Quota = Quota { units: 100, period: 3_600_000_000, form: Form::FixedWindow };

/// Returns a server, its limiter, and a hold of 40 on a key.
async fn hold() -> (World, Redis<u64>, Held) {
    let world = World::new(slow_server(1), vec![QUOTA]);
    let limiter = Redis::builder(world.server(0), "api", vec![limit(0, &QUOTA)]).deadline(MS * 50).hold_expiry(EXPIRY);
    let limiter = limiter.build().expect("limits");
    connect(&limiter).await;
    let outcome = limiter.acquire(&1, AcquireOptions::cost(40).hold()).await.expect("an answer");
    (world, limiter, outcome.held.expect("allowed"))
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
        let (world, limiter, held) = hold().await;
        sleep(EXPIRY * 3 / 10).await;
        world.reject(true);
        sleep(EXPIRY * (percent - 30) / 100).await;
        world.reject(false);
        sleep(EXPIRY).await;
        held.release().await.expect("an answer");
        assert_eq!(used(&limiter).await, 0, "rejected from 30 % to {percent} % of the expiry");
    }
}
