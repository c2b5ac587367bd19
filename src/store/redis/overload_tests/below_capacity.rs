//! Below capacity, load control changes nothing: every decision is made, in as few calls as the callers allow.

use super::{LINKS, MS, SPAN, connect, offer, slow_server};
use crate::store::redis::overload_tests::simulation::Simulation;
use crate::{AcquireOptions, Limiter};

#[tokio::test(start_paused = true)]
async fn all_decisions_below_capacity_are_answered() {
    for (round_trip, deadline) in LINKS {
        for per_ms in [1, 10] {
            let simulation = Simulation::new(slow_server(round_trip));
            let goodput = offer(&simulation, &simulation.limiter(MS * deadline), per_ms, SPAN).await;
            assert_eq!([goodput.answered, goodput.charged], [goodput.offered; 2], "{round_trip} ms, {per_ms}/ms");
            // Half of the decisions wait for the round trip, the service of two batches, and two ticks of the timer.
            assert!(goodput.p50 <= MS * (round_trip + 4), "{round_trip} ms: {goodput:?}");
        }
    }
}

/// Runs callers that start their next decision when they have the last one. Returns the number of calls.
async fn calls_of(callers: u64, decisions_each: u64, round_trip: u32) -> u64 {
    let simulation = Simulation::new(slow_server(round_trip));
    let limiter = simulation.limiter(MS * 500);
    connect(&limiter).await;
    let before = simulation.state().calls;
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                for decision in 0..decisions_each {
                    let key = caller * decisions_each + decision;
                    limiter.acquire(&key, AcquireOptions::default()).await.expect("no decision is dropped");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let state = simulation.state();
    assert_eq!(state.charged, callers * decisions_each + 1, "each decision is charged once");
    state.calls - before
}

#[tokio::test(start_paused = true)]
async fn concurrent_callers_share_one_call() {
    for round_trip in [0, 1, 25] {
        for callers in [1, 8, 32] {
            assert_eq!(calls_of(callers, 50, round_trip).await, 50, "{callers} callers, {round_trip} ms");
        }
    }
}
