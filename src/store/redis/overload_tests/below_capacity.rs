//! Below capacity, load control changes nothing: every decision is made, in as few calls as the callers allow.

use std::sync::{Arc, Mutex};

use tokio::time::sleep;

use super::{
    Form, LINKS, Link, MS, QUOTA, Quota, SPAN, connect, connect_by, offer, offer_each, slow_server, start, start_with,
};
use crate::AcquireOptions;
use crate::limiter::Limiter;

#[tokio::test(start_paused = true)]
async fn all_decisions_below_capacity_are_answered() {
    for (round_trip, deadline) in LINKS {
        for per_ms in [1, 10] {
            let (world, limiter) = start(slow_server(round_trip), MS * deadline);
            let goodput = offer(&world, &limiter, per_ms, SPAN).await;
            assert_eq!([goodput.answered, goodput.charged], [goodput.offered; 2], "{round_trip} ms, {per_ms}/ms");
            // Half of the decisions wait for the round trip, the service of two batches, and two ticks of the timer.
            assert!(goodput.p50 <= MS * (round_trip + 4), "{round_trip} ms: {goodput:?}");
        }
    }
}

/// At 0.8 of the capacity nothing is shed. A hold and its settlement are two operations, and so are the start and the end of a
/// request in flight. The server works on a decision of three limits, or of a log, three times as long. (The weights of windows
/// and logs, which make calls smaller, are those of the algorithms; the service times are those of the simulation.)
#[tokio::test(start_paused = true)]
async fn all_kinds_of_decisions_below_capacity_are_answered() {
    let window = Quota { units: 1_000_000, period: 60_000_000, form: Form::FixedWindow };
    let in_flight = Quota { form: Form::InFlight, ..QUOTA };
    let sliding = Quota { form: Form::SlidingWindow { blocks: 10 }, ..window };
    // The log of a large limit weighs so much that a call has one decision: a far server is then never at its capacity.
    let log = Quota { units: 100, form: Form::SlidingLog, ..window };
    let once = |number: u64| AcquireOptions::default().once(&number.to_string(), 1, SPAN);
    let plain = |_| AcquireOptions::default();
    let kinds: [(&[Quota], fn(u64) -> AcquireOptions, u64, u64); 8] = [
        (&[QUOTA], |_| AcquireOptions::default().hold(), 8, 50),
        (&[QUOTA], once, 15, 50),
        (&[window], plain, 15, 50),
        (&[sliding], plain, 15, 50),
        (&[log], plain, 5, 150),
        (&[QUOTA, window, QUOTA], plain, 5, 150),
        (&[QUOTA, sliding, log], plain, 5, 150),
        (&[in_flight], |_| AcquireOptions::default().keep_guard(), 8, 50),
    ];
    for (round_trip, deadline) in LINKS {
        for (kind, (quotas, options, per_ms, per_operation)) in kinds.into_iter().enumerate() {
            // Each kind on the near link and on one of the far ones.
            if (round_trip == 25 && kind % 2 == 0) || (round_trip == 200 && kind % 2 == 1) {
                continue;
            }
            let link = Link { per_operation, ..slow_server(round_trip) };
            let (world, limiter) = start_with(quotas, link, MS * deadline);
            connect_by(&limiter, options(0)).await;
            let goodput = offer_each(&world, per_ms, SPAN / 2, |number| {
                let (options, decision) = (options(number), limiter.acquire(&number, options(number)));
                let has_guard = options.hold || quotas[0].form == Form::InFlight;
                Box::pin(async move {
                    let Ok(outcome) = decision.await else { return false };
                    let Some(held) = outcome.held else { return !has_guard };
                    held.settle(1).await.is_ok()
                })
            });
            let goodput = goodput.await;
            assert_eq!(goodput.answered, goodput.offered, "{round_trip} ms, kind {kind}: {goodput:?}");
        }
    }
}

/// Holds that one key denies create a session each, of which a few may be in flight. They hold up no other key.
#[tokio::test(start_paused = true)]
async fn denied_holds_of_a_key_hold_up_no_others() {
    for (round_trip, deadline) in LINKS {
        let (world, limiter) = start(slow_server(round_trip), MS * deadline);
        connect(&limiter).await;
        let goodput = offer_each(&world, 8, SPAN / 2, |number| {
            let is_denied = number % 9 == 0;
            let (key, cost) = if is_denied { (0, 2_000_000) } else { (number, 1) };
            let decision = limiter.acquire(&key, AcquireOptions::cost(cost).hold());
            Box::pin(async move {
                match decision.await {
                    Ok(outcome) if is_denied => outcome.held.is_none(),
                    Ok(outcome) => outcome.held.expect("a hold").settle(1).await.is_ok(),
                    // As many denied holds as are in flight are answered in a round trip, the others too late.
                    Err(_) => is_denied,
                }
            })
        });
        let goodput = goodput.await;
        assert_eq!(goodput.answered, goodput.offered, "{round_trip} ms: {goodput:?}");
    }
}

/// While the calls that create a session on a key are in flight, a few others may create one.
#[tokio::test(start_paused = true)]
async fn holds_on_one_key_create_few_sessions() {
    for (round_trip, deadline) in LINKS {
        let (world, limiter) = start(slow_server(round_trip), MS * deadline);
        connect(&limiter).await;
        let held = Arc::<Mutex<Vec<_>>>::default();
        let goodput = offer_each(&world, 2, MS * 1_000, |_| {
            let (decision, held) = (limiter.acquire(&7, AcquireOptions::default().hold()), Arc::clone(&held));
            Box::pin(async move {
                let outcome = decision.await;
                let is_answered = outcome.is_ok();
                held.lock().expect("no panic").extend(outcome);
                is_answered
            })
        });
        let goodput = goodput.await;
        let sessions = world.counts(0).sessions;
        assert!((1..=4).contains(&sessions), "{round_trip} ms: {sessions} sessions, {goodput:?}");
    }
}

/// Calls whose replies are lost create no session any more: a later hold on their key is sent beside other calls.
#[tokio::test(start_paused = true)]
async fn lost_calls_create_no_sessions() {
    for (round_trip, deadline) in LINKS {
        let (world, limiter) = start(slow_server(round_trip), MS * deadline);
        connect(&limiter).await;
        world.pause(u64::from(deadline) * 2_000);
        let lost = offer_each(&world, 1, MS * deadline / 2, |_| {
            let decision = limiter.acquire(&7, AcquireOptions::default().hold());
            Box::pin(async move { decision.await.is_ok() })
        });
        assert_eq!(lost.await.answered, 0, "{round_trip} ms");
        sleep(MS * 3 * deadline).await;
        connect(&limiter).await;
        let goodput = offer_each(&world, 8, SPAN, |number| {
            let is_hold = number % 9 == 0;
            let options = if is_hold { AcquireOptions::default().hold() } else { AcquireOptions::default() };
            let decision = limiter.acquire(&if is_hold { 7 } else { number }, options);
            Box::pin(async move { decision.await.is_ok_and(|outcome| outcome.held.is_some() == is_hold) })
        });
        let goodput = goodput.await;
        assert_eq!(goodput.answered, goodput.offered, "{round_trip} ms: {goodput:?}");
    }
}

/// Runs callers that start their next decision when they have the last one. Returns the number of calls, and how many
/// decisions were answered at most between two requests.
async fn calls_of(callers: u64, decisions_each: u64, link: Link) -> (usize, usize) {
    let (world, limiter) = start(link, MS * 500);
    connect(&limiter).await;
    let first = world.calls();
    let caller = |caller| {
        let (world, limiter) = (world.clone(), limiter.clone());
        tokio::spawn(async move {
            let mut requests = Vec::new();
            for decision in 0..decisions_each {
                let key = caller * decisions_each + decision;
                let _ = limiter.check(&key, 1).await.expect("no decision is dropped");
                requests.push(world.requests());
            }
            requests
        })
    };
    let mut requests = Vec::new();
    for task in (0..callers).map(caller).collect::<Vec<_>>() {
        requests.extend(task.await.expect("no panic"));
    }
    // The last answers are behind the last request.
    requests.retain(|request| *request < world.requests());
    let counts = world.counts(first);
    assert_eq!(counts.charged, callers * decisions_each, "each decision is charged once");
    requests.sort_unstable();
    let longest = requests.chunk_by(|one, other| one == other).map(<[u64]>::len).max().unwrap_or(0);
    (counts.calls, longest)
}

#[tokio::test(start_paused = true)]
async fn concurrent_callers_share_two_calls() {
    for (round_trip, callers) in [(0, 1), (0, 7), (1, 1), (1, 7), (25, 1), (25, 32)] {
        let (calls, _) = calls_of(callers, 50, slow_server(round_trip)).await;
        let most = if callers == 1 { 50 } else { 105 };
        assert!((50..=most).contains(&calls), "{callers} callers, {round_trip} ms: {calls} calls");
    }
}

/// A call of one decision does not show that its caller is alone, if another call is in flight.
#[tokio::test(start_paused = true)]
async fn callers_ready_at_the_same_time_share_a_call_beside_others() {
    let (world, limiter) = start(slow_server(25), MS * 500);
    connect(&limiter).await;
    let first = world.calls();
    let decide = |key| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.check(&key, 1).await })
    };
    let mut decisions = Vec::new();
    for key in [1, 2] {
        decisions.push(decide(key));
        sleep(MS).await;
    }
    let third = limiter.acquire(&3, AcquireOptions::default());
    // It has woken the worker, which is ready to run before the fourth caller.
    decisions.push(decide(4));
    assert!(third.await.expect("an answer").decision.is_allowed());
    for decision in decisions {
        assert!(decision.await.expect("no panic").expect("an answer").is_allowed());
    }
    assert_eq!(world.calls() - first, 3);
}

/// The client works on one of the calls while the server runs the other.
#[tokio::test(start_paused = true)]
async fn many_callers_of_a_near_server_share_two_calls() {
    // Timers end at whole milliseconds. The replies to two calls never come together, because a call takes one.
    let link = Link { per_call: 1_000, ..Link::default() };
    for callers in [8, 16, 32, 64] {
        let (calls, _) = calls_of(callers, 50, link).await;
        assert!((95..=125).contains(&calls), "{callers} callers: {calls} calls");
    }
}

/// A link whose replies arrive at the next whole millisecond, so together.
fn replies_together() -> Link {
    Link { per_call: 10, ..Link::default() }
}

/// The calls of one portion are sent before the next portion is answered.
#[tokio::test(start_paused = true)]
async fn a_call_is_sent_before_the_next_portion_is_answered() {
    for callers in [512, 700] {
        let (_, longest) = calls_of(callers, 50, replies_together()).await;
        assert!((1..=128).contains(&longest), "{callers} callers: {longest}");
    }
}
