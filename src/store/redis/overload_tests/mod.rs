//! Open-loop load on a simulated server with a fixed service time, in virtual time.

mod below_capacity;
mod lost_replies;
mod renewals;
mod simulation;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use self::simulation::{Link, Simulation};
use crate::store::redis::Redis;
use crate::{AcquireOptions, Limiter};

const MS: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct Goodput {
    offered: u64,
    answered: u64,
    charged: u64,
    p50: Duration,
    p99: Duration,
}

/// Waits until the limiter has a connection.
async fn connect(limiter: &Redis<u64>) {
    while limiter.acquire(&0, AcquireOptions::default()).await.is_err() {
        sleep(MS).await;
    }
}

/// Starts decisions at a fixed rate, and waits until all have ended.
async fn offer(simulation: &Simulation, limiter: &Redis<u64>, per_ms: u64, span: Duration) -> Goodput {
    connect(limiter).await;
    let before = simulation.state().charged;
    let times = Arc::new(Mutex::new(Vec::new()));
    let (mut offered, started_at, mut tasks) = (0, Instant::now(), Vec::new());
    while started_at.elapsed() < span {
        for _ in 0..per_ms {
            offered += 1;
            let (decision, times) =
                (limiter.acquire(&(offered % 10_000), AcquireOptions::default()), Arc::clone(&times));
            let began = Instant::now();
            tasks.push(tokio::spawn(async move {
                if decision.await.is_ok() {
                    times.lock().expect("no panic").push(began.elapsed());
                }
            }));
        }
        sleep(MS).await;
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    let mut times = std::mem::take(&mut *times.lock().expect("no panic"));
    times.sort();
    let quantile = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    let state = simulation.state();
    Goodput {
        offered,
        answered: times.len() as u64,
        charged: state.charged - before,
        p50: quantile(50),
        p99: quantile(99),
    }
}

/// The decisions that a plain pipelined client answers in time: one call per decision, first in, first out.
fn plain(link: Link, deadline: Duration, per_ms: u64, span: Duration) -> u64 {
    let service = link.per_call + link.per_operation;
    let (mut free_at, mut answered) = (Duration::ZERO, 0);
    for tick in 0..u32::try_from(span.as_millis()).expect("a short span") {
        let sent = MS * tick;
        for _ in 0..per_ms {
            free_at = free_at.max(sent + link.round_trip / 2) + service;
            answered += u64::from(free_at + link.round_trip / 2 <= sent + deadline);
        }
    }
    answered
}

fn slow_server(round_trip: u32) -> Link {
    Link {
        round_trip: MS * round_trip,
        jitter: Duration::ZERO,
        per_call: Duration::from_micros(20),
        per_operation: Duration::from_micros(50),
        slow_reply: None,
    }
}

/// The decisions of the slow server in calls of at most a millisecond: 19 in 0.97 ms.
fn capacity(span: Duration) -> u64 {
    19 * u64::try_from(span.as_micros()).expect("a short span") / 970
}

const SPAN: Duration = Duration::from_secs(1);
/// Decisions per millisecond: twice the capacity.
const OVERLOAD: u64 = 40;
const LINKS: [(u32, u32); 3] = [(0, 50), (25, 50), (200, 500)];

#[tokio::test(start_paused = true)]
async fn goodput_over_capacity() {
    for (round_trip, deadline) in LINKS {
        let link = slow_server(round_trip);
        let simulation = Simulation::new(link);
        let limiter = simulation.limiter(MS * deadline);
        // The server needs 1.6 ms for one of the first batches. The limiter measures that first.
        offer(&simulation, &limiter, OVERLOAD, SPAN).await;
        simulation.state().longest = Duration::ZERO;
        let goodput = offer(&simulation, &limiter, OVERLOAD, SPAN).await;
        let (possible, plain) = (capacity(SPAN), plain(link, MS * deadline, OVERLOAD, SPAN));
        assert!(
            goodput.answered * 10 >= possible.max(plain) * 8,
            "{round_trip} ms: {goodput:?} of {possible}, {plain}"
        );
        assert!(goodput.charged * 100 <= goodput.answered * 102, "{round_trip} ms: {goodput:?}");
        assert!(goodput.p99 <= MS * deadline, "{round_trip} ms: {goodput:?}");
        let longest = simulation.state().longest;
        assert!(longest <= MS * 3 / 2, "a batch occupies the server for about a millisecond: {longest:?}");
    }
}

/// Runs a stall of the server while decisions arrive, one per millisecond. Returns the charged decisions, and for each
/// decision whether it was answered.
async fn stall(link: Link, deadline: Duration, span: Duration) -> (u64, Vec<bool>) {
    let simulation = Simulation::new(link);
    let limiter = simulation.limiter(deadline);
    connect(&limiter).await;
    let before = simulation.state().charged;
    let mut decisions = Vec::new();
    for tick in 0..600 {
        if tick == 300 {
            simulation.stall(span);
        }
        decisions.push(tokio::spawn(limiter.acquire(&tick, AcquireOptions::default()).into_future()));
        sleep(MS).await;
    }
    let mut answered = Vec::new();
    for decision in decisions {
        answered.push(decision.await.expect("no panic").is_ok());
    }
    sleep(deadline * 4).await;
    let charged = simulation.state().charged - before;
    (charged, answered)
}

#[tokio::test(start_paused = true)]
async fn stalled_server_charges_no_decision_that_is_late() {
    for (round_trip, deadline) in LINKS {
        // Each decision of the first half of the stall is late.
        let span = MS * (deadline + deadline / 2);
        let (charged, answered) = stall(slow_server(round_trip), MS * deadline, span).await;
        let answered = answered.iter().filter(|answered| **answered).count() as u64;
        assert!(answered < 600 && charged <= answered + 5, "{round_trip} ms: {answered} answered, {charged} charged");
    }
}

#[tokio::test(start_paused = true)]
async fn decisions_after_a_stall_are_answered() {
    let (_, answered) = stall(slow_server(0), MS * 50, MS * 100).await;
    // A stalled connection is replaced after twice the deadline.
    assert!(answered[..299].iter().all(|answered| *answered));
    assert!(answered[300 + 110..].iter().all(|answered| *answered), "{:?}", &answered[400..]);
    let (_, answered) = stall(slow_server(0), MS * 50, MS * 30).await;
    let failed = answered.iter().filter(|answered| !**answered).count();
    assert!(failed <= 8, "a stall that is shorter than the deadline: {failed} failed");
}

#[tokio::test(start_paused = true)]
async fn round_trip_above_the_deadline_charges_little() {
    let simulation = Simulation::new(slow_server(60));
    let limiter = simulation.limiter(MS * 50);
    let mut failed = 0;
    for key in 0..2_000 {
        let decision = tokio::spawn(limiter.acquire(&key, AcquireOptions::default()).into_future());
        sleep(MS).await;
        failed += u64::from(decision.is_finished());
    }
    let charged = simulation.state().charged;
    // The first call is sent without knowledge of the link. After that the script makes no decision of a probe.
    assert!(charged <= 80, "{charged} charged");
    assert!(failed > 1_500, "without a call in flight that could succeed, decisions fail at once: {failed}");
}

#[tokio::test(start_paused = true)]
async fn settlements_are_sent_under_overload() {
    let simulation = Simulation::new(slow_server(0));
    let limiter = simulation.limiter(MS * 50);
    connect(&limiter).await;
    let mut held = Vec::new();
    for key in 0..50_u64 {
        let outcome = limiter.acquire(&key, AcquireOptions::default().hold()).await.expect("an answer");
        held.push(outcome.held.expect("allowed"));
    }
    let mut failed = 0;
    for _ in 0..300 {
        for key in 0..OVERLOAD {
            drop(tokio::spawn(limiter.acquire(&key, AcquireOptions::default()).into_future()));
        }
        if let Some(held) = held.pop() {
            failed += u64::from(held.settle(1).await.is_err());
        } else {
            break;
        }
    }
    assert_eq!(failed, 0, "each settlement is confirmed within the deadline");
    assert!(simulation.state().updates >= 50);
}
