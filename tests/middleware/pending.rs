//! Tower's contract where a decision is still on its way, and what becomes of a future that is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower_ratelimit::AcquireOptions;
use tower_ratelimit::response::{Rejected, Rejection};

use crate::support::{Act, Elsewhere, Job, Pool, Says, limited, per_minute};

#[test]
fn it_keeps_the_ready_instance_and_forwards_to_it() {
    let (pool, limiter) = (Pool::of(1), Elsewhere::default());
    let mut service = limited(pool.service(), limiter.clone());
    let mut neighbour = service.clone();
    assert_ready_ok!(service.poll_ready());
    let ready = service.get_ref().get_ref().instance;

    let mut response = task::spawn(service.call(Job::of("a")));
    assert_pending!(response.poll());
    assert_eq!(pool.free(), 0, "the permit is kept");
    assert_pending!(neighbour.poll_ready());
    assert_pending!(service.poll_ready());
    assert_ne!(service.get_ref().get_ref().instance, ready, "the service goes on with another instance");

    let question = limiter.asked();
    assert_eq!((question.key, question.ask), ("a", AcquireOptions::default()));
    question.answer(Says::yes());
    assert!(response.is_woken(), "by the decision");
    assert_eq!(assert_ready_ok!(response.poll()), ready);
    assert_eq!(pool.calls(), [(ready, Job::of("a"))]);

    // The permit is the future's until it is dropped; then it goes to those who wait.
    drop(response);
    assert!(neighbour.is_woken());
    assert_ready_ok!(neighbour.poll_ready());
}

#[test]
fn the_service_that_stays_behind_is_not_ready() {
    let (pool, limiter) = (Pool::of(1), Elsewhere::default());
    let mut service = limited(pool.service(), limiter.clone());
    assert_ready_ok!(service.poll_ready());
    let _pending = service.call(Job::of("a"));

    let called = catch_unwind(AssertUnwindSafe(|| service.call(Job::of("exempt"))));
    assert!(called.is_err(), "the readiness went with the first request");
}

#[test]
fn a_refusal_releases_what_readiness_reserved() {
    for (says, limited_by) in [(Says::no(), true), (Says::never(), true), (Says::broken(), false)] {
        let (pool, limiter) = (Pool::of(1), Elsewhere::default());
        let mut service = limited(pool.service(), limiter.clone());
        let mut neighbour = service.clone();
        assert_ready_ok!(service.poll_ready());
        let mut response = task::spawn(service.call(Job::of("a")));
        assert_pending!(response.poll());
        assert_pending!(neighbour.poll_ready());

        limiter.asked().answer(says);
        let error = assert_ready_err!(response.poll());
        let refusal = error.downcast_ref::<Rejected>().expect("the limiter's error").rejection();
        assert_eq!(matches!(refusal, Rejection::OverLimit(_)), limited_by);
        assert_eq!(matches!(refusal, Rejection::Unavailable(_)), !limited_by);
        // The future itself is still there: it keeps nothing.
        assert_eq!(pool.free(), 1);
        assert!(neighbour.is_woken());
        assert_ready_ok!(neighbour.poll_ready());
        assert_eq!(pool.calls(), []);
    }
}

#[test]
fn a_store_that_hangs_up_is_a_refusal_and_no_hang() {
    let (pool, limiter) = (Pool::of(1), Elsewhere::default());
    let mut service = limited(pool.service(), limiter.clone());
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call(Job::of("a")));
    assert_pending!(response.poll());

    drop(limiter.asked());
    let error = assert_ready_err!(response.poll());
    assert_eq!(error.to_string(), "rate limiter unavailable");
    let source = std::error::Error::source(&*error).expect("the cause").to_string();
    assert_eq!(source, "the store hung up");
    assert_eq!(pool.free(), 1);
}

#[test]
fn a_request_without_a_key_or_limit_does_not_ask() {
    let (pool, limiter) = (Pool::of(1), Elsewhere::default());
    let mut service = limited(pool.service(), limiter.clone());
    for (job, admitted) in [(Job::of("exempt"), true), (Job::NOBODYS, false)] {
        assert_ready_ok!(service.poll_ready());
        let answered = tokio_test::assert_ready!(task::spawn(service.call(job)).poll());
        assert_eq!(answered.is_ok(), admitted);
    }
    assert!(catch_unwind(AssertUnwindSafe(|| limiter.asked())).is_err(), "nothing was asked");
}

#[test]
fn the_inner_future_goes_on_where_the_decision_left_off() {
    let (pool, limiter) = (Pool::of(1), Elsewhere::default());
    let mut service = limited(pool.service(), limiter.clone());
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call(Job::of("a").that(Act::Hang)));
    limiter.asked().answer(Says::yes());

    assert_pending!(response.poll());
    assert_eq!(pool.calls().len(), 1, "called as soon as it was decided");
    assert_pending!(response.poll());
    assert_eq!(pool.calls().len(), 1, "and once only");
}

/// Drops a future at each of its stages, and looks whether what readiness reserved is there again.
#[test]
fn dropping_the_future_leaks_no_permit_at_any_stage() {
    for stage in ["not polled", "deciding", "decided", "refused", "calling", "answered"] {
        let (pool, limiter) = (Pool::of(1), Elsewhere::default());
        let mut service = limited(pool.service(), limiter.clone());
        let mut neighbour = service.clone();
        assert_ready_ok!(service.poll_ready());
        assert_pending!(neighbour.poll_ready());
        let act = if stage == "calling" { Act::Hang } else { Act::Answer };
        let mut response = task::spawn(service.call(Job::of("a").that(act)));
        let mut question = Some(limiter.asked());
        let mut answer = |says| question.take().expect("asked once").answer(says);
        match stage {
            "not polled" => {}
            "deciding" => assert_pending!(response.poll()),
            "decided" => answer(Says::yes()),
            "refused" => answer(Says::no()),
            "calling" => {
                answer(Says::yes());
                assert_pending!(response.poll());
            }
            _ => {
                answer(Says::yes());
                assert_ready_ok!(response.poll());
            }
        }
        if stage != "answered" {
            assert_eq!(pool.free(), 0, "{stage}: still reserved");
        }
        drop(response);
        assert_eq!(pool.free(), 1, "{stage}: released");
        assert!(neighbour.is_woken(), "{stage}: whoever waits is told");
        assert_ready_ok!(neighbour.poll_ready());
        if let Some(question) = question {
            assert!(question.is_abandoned(), "{stage}: the decision is abandoned with the future");
        }
    }
}

#[test]
fn dropping_the_future_of_a_ready_decision_leaks_no_permit_either() {
    for (job, polled) in [(Job::of("a"), false), (Job::of("a").that(Act::Hang), true), (Job::of("exempt"), false)] {
        let pool = Pool::of(1);
        let mut service = limited(pool.service(), per_minute(1).0);
        assert_ready_ok!(service.poll_ready());
        let mut response = task::spawn(service.call(job));
        if polled {
            assert_pending!(response.poll());
        }
        assert_eq!(pool.free(), 0);
        drop(response);
        assert_eq!(pool.free(), 1);
    }
}

/// Many requests are decided at once, in any order, on one connection.
#[test]
fn decisions_may_come_in_any_order() {
    let (pool, limiter) = (Pool::of(3), Elsewhere::default());
    let mut service = limited(pool.service(), limiter.clone());
    let mut responses = ["a", "b", "c"].map(|key| {
        assert_ready_ok!(service.poll_ready());
        task::spawn(service.call(Job::of(key)))
    });
    assert_pending!(service.poll_ready());
    let questions = [(); 3].map(|()| limiter.asked());
    for ((question, response), says) in
        questions.into_iter().zip(&mut responses).rev().zip([Says::yes(), Says::no(), Says::yes()])
    {
        let job = Job::of(question.key);
        question.answer(says.clone());
        match says.0 {
            Ok(decision) if decision.is_allowed() => {
                let by = assert_ready_ok!(response.poll());
                assert_eq!(pool.calls().last(), Some(&(by, job)));
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
    assert_eq!(by.len(), 2, "each was kept by an instance of its own");
}
