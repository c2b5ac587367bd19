//! `Observed` emits the events that a layer emits for the same calls.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::key::Global;
use tower_ratelimit::limiter::Observed;
use tower_ratelimit::observe::{Event, Observer as _, Stage};
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Decision, Error, FixedWindow, InFlight, Limit, Limiter, ManualClock, Memory, Quota,
    RateLimitLayer, Timestamp, Verdict,
};

use crate::support::{Deferred, FailingLimiter, RecordedEvents};

/// What a caller does with an admitted request.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The request is charged.
    Charge,
    /// The cost is held, and settled.
    Settle(u64),
    /// The cost is held, and the guard is dropped.
    Drop,
}

/// Each number is the cost of one request.
const COSTS: [u64; 6] = [1, 2, 9, 1, 1, 1];

fn limiters() -> [BoxLimiter<()>; 5] {
    let rate = || FixedWindow::new(Quota::per_hour(4));
    let memory = || Memory::builder(rate()).clock(ManualClock::new()).build().expect("a limiter");
    let in_flight = (Limit::new("rate", rate()), Limit::new("in-flight", InFlight::new(3)).fixed_cost(1));
    let in_flight = Memory::builder(in_flight).clock(ManualClock::new()).build().expect("a limiter");
    let inapplicable = Limit::new("rate", rate()).keyed_by(|&()| ()).only_if(|()| false);
    let inapplicable = Memory::builder(inapplicable).clock(ManualClock::new()).build().expect("a limiter");
    [
        BoxLimiter::new(memory()),
        BoxLimiter::new(Deferred(BoxLimiter::new(memory()), 2)),
        BoxLimiter::new(FailingLimiter),
        BoxLimiter::new(in_flight),
        BoxLimiter::new(inapplicable),
    ]
}

/// Without the time that a request took, which differs.
fn comparable(events: &RecordedEvents) -> Vec<String> {
    let cut = |line: String| line.split(", lasted").next().unwrap_or_default().to_owned();
    events.take().into_iter().map(cut).collect()
}

/// Polls a future once.
async fn is_ready(mut future: Pin<&mut (impl Future + ?Sized)>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
}

async fn by_layer(limiter: BoxLimiter<()>, end: End) -> Vec<String> {
    let events = RecordedEvents::default();
    let layer = RateLimitLayer::new(Global, limiter).responder(RejectWithError).observe(events.clone());
    let layer = layer.cost(|cost: &u64| *cost).release_on_response();
    // A cost that is held is settled by the response, if there is one.
    let (actual, responds) = match end {
        End::Charge => (None, true),
        End::Settle(actual) => (Some(actual), true),
        End::Drop => (Some(0), false),
    };
    let page = service_fn(move |_: u64| async move {
        if !responds {
            std::future::pending::<()>().await;
        }
        Ok::<_, BoxError>(())
    });
    let mut service: BoxCloneSyncService<u64, (), BoxError> = match actual {
        None => BoxCloneSyncService::new(layer.layer(page)),
        Some(actual) => {
            let settled = layer.settle(move |_: u64, _: Result<&(), &BoxError>| actual);
            BoxCloneSyncService::new(settled.layer(page))
        }
    };
    for cost in COSTS {
        let mut call = service.ready().await.expect("ready").call(cost);
        for _ in 0..5 {
            if is_ready(call.as_mut()).await {
                break;
            }
        }
    }
    comparable(&events)
}

async fn by_hand(limiter: BoxLimiter<()>, end: End) -> Vec<String> {
    let events = RecordedEvents::default();
    let limiter = Observed::new(limiter, events.clone());
    for cost in COSTS {
        let options = AcquireOptions::cost(cost).keep_guard();
        let options = if matches!(end, End::Charge) { options } else { options.hold() };
        let Ok(outcome) = limiter.acquire(&(), options).await else { continue };
        match (outcome.held, end) {
            (Some(held), End::Settle(actual)) => held.settle(actual).await.expect("settled"),
            (held, _) => drop(held),
        }
    }
    comparable(&events)
}

#[tokio::test]
async fn observed_limiter_emits_the_events_of_the_layer() {
    for end in [End::Charge, End::Settle(0), End::Settle(3), End::Drop] {
        let mut outcomes = std::collections::BTreeSet::new();
        for (of_layer, observed) in limiters().into_iter().zip(limiters()) {
            let expected = by_layer(of_layer, end).await;
            // The layer ends the parts of a guard in another order.
            let sorted = |mut events: Vec<String>| {
                events.sort();
                events
            };
            let events = sorted(by_hand(observed, end).await);
            outcomes.extend(events.iter().map(|line| line.split([' ', ',']).next().unwrap_or_default().to_owned()));
            assert_eq!(events, sorted(expected), "{end:?}");
        }
        for outcome in ["allowed", "exempt", "exceeds_limit", "failed", "InFlightStarted", "InFlightEnded"] {
            assert!(outcomes.contains(outcome), "{end:?}: no {outcome} in {outcomes:?}");
        }
        assert_eq!(outcomes.contains("denied"), !matches!(end, End::Settle(0)), "{end:?}");
        assert_eq!(outcomes.contains("settled"), !matches!(end, End::Charge), "{end:?}");
    }
}

#[tokio::test]
async fn dropped_decision_of_an_observed_limiter_is_abandoned() {
    let (events, second) = (RecordedEvents::default(), RecordedEvents::default());
    let memory = Memory::new(FixedWindow::new(Quota::per_hour(4)));
    let limiter = Observed::new(Deferred(BoxLimiter::new(memory), 2), events.clone()).observe(second.clone());
    let Err(decision) = limiter.acquire(&(), AcquireOptions::default()).try_ready() else {
        panic!("the decision is pending")
    };
    {
        let mut decision = pin!(decision);
        assert!(!is_ready(decision.as_mut()).await);
        assert_eq!(events.take(), [""; 0]);
    }
    assert_eq!(events.take(), ["abandoned Deciding"]);
    let _ = limiter.check(&(), 1).await.expect("a decision");
    assert_eq!(events.take(), ["allowed by default in store, pended"]);
    assert_eq!(second.take(), ["abandoned Deciding", "allowed by default in store, pended"]);
    let _unsupported = limiter.peek(&(), AcquireOptions::default()).await;
    assert_eq!(events.take(), [""; 0]);
}

/// A middleware of a user's own can emit each event that the layer emits for a request.
#[test]
fn events_can_be_built() {
    let events = RecordedEvents::default();
    let (decision, error) =
        (Decision::without_limit(Timestamp::EPOCH, Verdict::Allowed), Error::unavailable("no reply"));
    for (event, expected) in [
        (Event::decided(&decision, None), "allowed by none in no_limit"),
        (Event::Exempt, "exempt"),
        (Event::missing_key(&"no key", false, false), "missing_key"),
        (Event::missing_key(&"no key", false, true), "missing_key_exempt"),
        (Event::failed(&error, None), "failed"),
        (Event::abandoned(Stage::Deciding), "abandoned Deciding"),
        (Event::settled(None, 3, 1), "settled 3 -> 1"),
        (Event::in_flight_started(1), "InFlightStarted { cost: 1 }"),
        (Event::in_flight_ended(1, std::time::Duration::ZERO), "InFlightEnded { cost: 1, lasted: 0ns }"),
        (Event::warning("two limits"), "warning: two limits"),
    ] {
        events.observe(&event);
        assert_eq!(events.take(), [expected]);
    }
}
