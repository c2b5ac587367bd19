//! Renewals of many holds: none expires, and decisions do not wait behind them.

use std::time::Duration;

use futures_util::future::join_all;

use super::{Link, MS, connect, offer, slow_server, start};
use crate::limiter::Held;
use crate::store::redis::{Redis, RedisBuilder};
use crate::{AcquireOptions, Limiter};

const EXPIRY: Duration = RedisBuilder::<u64>::DEFAULT_HOLD_EXPIRY;

/// Holds on so many keys.
async fn hold(limiter: &Redis<u64>, count: u64) -> Vec<Held> {
    connect(limiter).await;
    let mut held = Vec::new();
    for first in (0..count).step_by(40) {
        let holds = (first..first + 40).map(|key| limiter.acquire(&key, AcquireOptions::default().hold()));
        held.extend(
            join_all(holds).await.into_iter().map(|outcome| outcome.expect("an answer").held.expect("allowed")),
        );
    }
    held
}

/// All holds begin within a second, so all are due for renewal at about the same time. The server needs 0.8 s for all of
/// them, as for 100,000 holds at 8 us each: an operation of the few takes as much longer.
#[tokio::test(start_paused = true)]
async fn renewals_of_many_holds() {
    let (world, limiter) = start(Link { per_operation: 100, ..slow_server(1) }, MS * 50);
    let held = hold(&limiter, 8_000).await;
    let first = world.calls();
    tokio::time::sleep(EXPIRY * 11 / 10).await;
    let counts = world.counts(first);
    assert_eq!((counts.expired_sessions, held.len()), (0, 8_000));
    // Each is renewed three times per expiry.
    assert!((23_200..=28_800).contains(&counts.updates), "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn decisions_beside_renewals_are_answered() {
    for (round_trip, deadline) in [(0, 50), (25, 60)] {
        let (world, limiter) = start(Link { per_operation: 125, ..slow_server(round_trip) }, MS * deadline);
        let held = hold(&limiter, 8_000).await;
        let goodput = offer(&world, &limiter, 1, EXPIRY * 2 / 5).await;
        assert_eq!([goodput.answered, goodput.charged], [goodput.offered; 2], "{round_trip} ms: {goodput:?}");
        assert!(goodput.p99 <= MS * (round_trip + 6), "{round_trip} ms: {goodput:?}");
        drop(held);
    }
}
