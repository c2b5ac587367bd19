//! Below capacity, load control changes nothing: every decision is made, in as few calls as the callers allow.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::simulation::{Link, Simulation};
use super::{LINKS, MS, SPAN, connect, offer, slow_server};

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

/// Runs callers that start their next decision when they have the last one. Returns for each call how many decisions had been
/// answered when it was sent.
async fn calls_of(callers: u64, decisions_each: u64, link: Link) -> Vec<u64> {
    let simulation = Simulation::new(link);
    let limiter = simulation.limiter(MS * 500);
    connect(&limiter).await;
    simulation.state().answered_before.clear();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (limiter, answered) = (limiter.clone(), Arc::clone(&simulation.state().answered));
            tokio::spawn(async move {
                for decision in 0..decisions_each {
                    let key = caller * decisions_each + decision;
                    let _ = limiter.check(&key, 1).await.expect("no decision is dropped");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let mut state = simulation.state();
    assert_eq!(state.charged, callers * decisions_each + 1, "each decision is charged once");
    std::mem::take(&mut state.answered_before)
}

#[tokio::test(start_paused = true)]
async fn concurrent_callers_share_one_call() {
    for (round_trip, callers) in [(0, 1), (0, 7), (1, 1), (1, 7), (25, 1), (25, 32)] {
        let calls = calls_of(callers, 50, slow_server(round_trip)).await.len();
        assert_eq!(calls, 50, "{callers} callers, {round_trip} ms");
    }
}

/// The client works on one of the calls while the server runs the other.
#[tokio::test(start_paused = true)]
async fn many_callers_of_a_near_server_share_two_calls() {
    // Timers end at whole milliseconds. The replies to two calls never come together, because a call takes one.
    let link = Link { per_call: MS, per_operation: Duration::ZERO, ..slow_server(0) };
    for callers in [8, 16, 32, 64] {
        let calls = calls_of(callers, 50, link).await.len();
        assert!((95..=125).contains(&calls), "{callers} callers: {calls} calls");
    }
}

/// A link whose replies arrive at the next whole millisecond, so together.
fn replies_together() -> Link {
    Link { per_call: Duration::from_micros(10), per_operation: Duration::ZERO, ..slow_server(0) }
}

/// The calls of one portion are sent before the next portion is answered.
#[tokio::test(start_paused = true)]
async fn a_call_is_sent_before_the_next_portion_is_answered() {
    for callers in [512, 700] {
        let answered = calls_of(callers, 50, replies_together()).await;
        let longest = answered.windows(2).map(|calls| calls[1] - calls[0]).max();
        assert!(longest.is_some_and(|longest| longest <= 128), "{callers} callers: {longest:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_end_together_are_sent_as_one() {
    for callers in [8, 16, 32] {
        let calls = calls_of(callers, 90, replies_together()).await.len();
        assert!((90..=105).contains(&calls), "{callers} callers: {calls} calls");
    }
}
