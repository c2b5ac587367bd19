//! The contract of `tower::Service` while a decision is pending, and after a future is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower_ratelimit::AcquireOptions;
use tower_ratelimit::response::{Rejected, Rejection};

use crate::support::{Act, Pool, RemoteLimiter, StubLimiter, TestRequest, limited, per_minute};

#[test]
fn pending_request_keeps_the_ready_instance_and_forwards_to_it() {
    let (pool, limiter) = (Pool::new(1), RemoteLimiter::default());
    let mut service = limited(pool.service(), limiter.clone());
    let mut neighbour = service.clone();
    assert_ready_ok!(service.poll_ready());
    let ready = service.get_ref().get_ref().instance;

    let mut response = task::spawn(service.call(TestRequest::new("a")));
    assert_pending!(response.poll());
    assert_eq!(pool.free(), 0, "the permit is kept");
    assert_pending!(neighbour.poll_ready());
    assert_pending!(service.poll_ready());
    assert_ne!(service.get_ref().get_ref().instance, ready, "the service continues with another instance");

    let pending_decision = limiter.next_acquire();
    assert_eq!((pending_decision.key, pending_decision.options), ("a", AcquireOptions::default()));
    pending_decision.complete(StubLimiter::allowing());
    assert!(response.is_woken(), "by the decision");
    assert_eq!(assert_ready_ok!(response.poll()), ready);
    assert_eq!(pool.calls(), [(ready, TestRequest::new("a"))]);

    // The future owns the permit until it is dropped; then a waiting instance receives it.
    drop(response);
    assert!(neighbour.is_woken());
    assert_ready_ok!(neighbour.poll_ready());
}

#[test]
fn service_is_not_ready_after_a_pending_call() {
    let (pool, limiter) = (Pool::new(1), RemoteLimiter::default());
    let mut service = limited(pool.service(), limiter.clone());
    assert_ready_ok!(service.poll_ready());
    let _pending = service.call(TestRequest::new("a"));

    let called = catch_unwind(AssertUnwindSafe(|| service.call(TestRequest::new("exempt"))));
    assert!(called.is_err(), "the first request took the readiness");
}

#[test]
fn pending_rejection_releases_the_reserved_readiness() {
    for (outcome, is_over_limit) in
        [(StubLimiter::denying(), true), (StubLimiter::exceeding(), true), (StubLimiter::failing(), false)]
    {
        let (pool, limiter) = (Pool::new(1), RemoteLimiter::default());
        let mut service = limited(pool.service(), limiter.clone());
        let mut neighbour = service.clone();
        assert_ready_ok!(service.poll_ready());
        let mut response = task::spawn(service.call(TestRequest::new("a")));
        assert_pending!(response.poll());
        assert_pending!(neighbour.poll_ready());

        limiter.next_acquire().complete(outcome);
        let error = assert_ready_err!(response.poll());
        let rejection = error.downcast_ref::<Rejected>().expect("the limiter's error").rejection();
        assert_eq!(matches!(rejection, Rejection::OverLimit(_)), is_over_limit);
        assert_eq!(matches!(rejection, Rejection::Unavailable(_)), !is_over_limit);
        // The completed future is not dropped yet, and holds no permit.
        assert_eq!(pool.free(), 1);
        assert!(neighbour.is_woken());
        assert_ready_ok!(neighbour.poll_ready());
        assert_eq!(pool.calls(), []);
    }
}

#[test]
fn closed_store_connection_is_a_rejection() {
    let (pool, limiter) = (Pool::new(1), RemoteLimiter::default());
    let mut service = limited(pool.service(), limiter.clone());
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call(TestRequest::new("a")));
    assert_pending!(response.poll());

    drop(limiter.next_acquire());
    let error = assert_ready_err!(response.poll());
    assert_eq!(error.to_string(), "rate limiter unavailable");
    let source = std::error::Error::source(&*error).expect("the cause").to_string();
    assert_eq!(source, "the store closed the connection");
    assert_eq!(pool.free(), 1);
}

#[test]
fn exempt_or_missing_key_does_not_call_the_limiter() {
    let (pool, limiter) = (Pool::new(1), RemoteLimiter::default());
    let mut service = limited(pool.service(), limiter.clone());
    for (request, admitted) in [(TestRequest::new("exempt"), true), (TestRequest::WITHOUT_KEY, false)] {
        assert_ready_ok!(service.poll_ready());
        let answered = tokio_test::assert_ready!(task::spawn(service.call(request)).poll());
        assert_eq!(answered.is_ok(), admitted);
    }
    assert!(catch_unwind(AssertUnwindSafe(|| limiter.next_acquire())).is_err(), "the limiter was not called");
}

#[test]
fn inner_service_is_called_once_in_the_poll_of_the_decision() {
    let (pool, limiter) = (Pool::new(1), RemoteLimiter::default());
    let mut service = limited(pool.service(), limiter.clone());
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call(TestRequest::new("a").with_act(Act::Hang)));
    limiter.next_acquire().complete(StubLimiter::allowing());

    assert_pending!(response.poll());
    assert_eq!(pool.calls().len(), 1, "called as soon as it was decided");
    assert_pending!(response.poll());
    assert_eq!(pool.calls().len(), 1, "only once");
}

/// Drops the future at each of its stages, and checks that the reserved permit is free again.
#[test]
fn dropped_pending_future_leaks_no_permit_at_any_stage() {
    for stage in ["not polled", "deciding", "decided", "rejected", "calling", "completed"] {
        let (pool, limiter) = (Pool::new(1), RemoteLimiter::default());
        let mut service = limited(pool.service(), limiter.clone());
        let mut neighbour = service.clone();
        assert_ready_ok!(service.poll_ready());
        assert_pending!(neighbour.poll_ready());
        let act = if stage == "calling" { Act::Hang } else { Act::Answer };
        let mut response = task::spawn(service.call(TestRequest::new("a").with_act(act)));
        let mut pending_decision = Some(limiter.next_acquire());
        let mut complete = |outcome| pending_decision.take().expect("one acquire").complete(outcome);
        match stage {
            "not polled" => {}
            "deciding" => assert_pending!(response.poll()),
            "decided" => complete(StubLimiter::allowing()),
            "rejected" => complete(StubLimiter::denying()),
            "calling" => {
                complete(StubLimiter::allowing());
                assert_pending!(response.poll());
            }
            _ => {
                complete(StubLimiter::allowing());
                assert_ready_ok!(response.poll());
            }
        }
        if stage != "completed" {
            assert_eq!(pool.free(), 0, "{stage}: still reserved");
        }
        drop(response);
        assert_eq!(pool.free(), 1, "{stage}: released");
        assert!(neighbour.is_woken(), "{stage}: the waiting instance is woken");
        assert_ready_ok!(neighbour.poll_ready());
        if let Some(pending_decision) = pending_decision {
            assert!(pending_decision.is_abandoned(), "{stage}: the acquire is dropped with the future");
        }
    }
}

#[test]
fn dropped_future_of_an_immediate_decision_leaks_no_permit() {
    for (request, polled) in [
        (TestRequest::new("a"), false),
        (TestRequest::new("a").with_act(Act::Hang), true),
        (TestRequest::new("exempt"), false),
    ] {
        let pool = Pool::new(1);
        let mut service = limited(pool.service(), per_minute(1).0);
        assert_ready_ok!(service.poll_ready());
        let mut response = task::spawn(service.call(request));
        if polled {
            assert_pending!(response.poll());
        }
        assert_eq!(pool.free(), 0);
        drop(response);
        assert_eq!(pool.free(), 1);
    }
}

#[test]
fn pending_decisions_complete_in_any_order() {
    let (pool, limiter) = (Pool::new(3), RemoteLimiter::default());
    let mut service = limited(pool.service(), limiter.clone());
    let mut responses = ["a", "b", "c"].map(|key| {
        assert_ready_ok!(service.poll_ready());
        task::spawn(service.call(TestRequest::new(key)))
    });
    assert_pending!(service.poll_ready());
    let pending_decisions = [(); 3].map(|()| limiter.next_acquire());
    for ((pending_decision, response), outcome) in pending_decisions.into_iter().zip(&mut responses).rev().zip([
        StubLimiter::allowing(),
        StubLimiter::denying(),
        StubLimiter::allowing(),
    ]) {
        let request = TestRequest::new(pending_decision.key);
        pending_decision.complete(outcome.clone());
        match outcome.0 {
            Ok(decision) if decision.is_allowed() => {
                let by = assert_ready_ok!(response.poll());
                assert_eq!(pool.calls().last(), Some(&(by, request)));
            }
            _ => {
                let error = assert_ready_err!(response.poll());
                let rejected = error.downcast_ref::<Rejected>().expect("the limiter's error");
                assert_eq!(rejected.rejection().retry_after(), Some(Duration::from_millis(1500)));
            }
        }
    }
    let mut by: Vec<_> = pool.calls().into_iter().map(|(instance, _)| instance).collect();
    by.dedup();
    assert_eq!(by.len(), 2, "each request kept its own instance");
}
