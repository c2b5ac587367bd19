//! Tower's contract where decisions are ready at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::Semaphore;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::Layer;
use tower::limit::ConcurrencyLimit;
use tower_ratelimit::limiter::Limiter;
use tower_ratelimit::response::{RejectWithError, Rejected};
use tower_ratelimit::{MissingKeyPolicy, RateLimitLayer};
use tower_test::mock::{self, Mock, Spawn};

use crate::support::{Failure, Job, Limited, Pool, Says, limited, per_minute, whose};

#[test]
fn an_allowed_request_goes_to_the_very_instance_that_was_made_ready() {
    let pool = Pool::of(1);
    let mut service = limited(pool.service(), Says::yes());
    assert_ready_ok!(service.poll_ready());
    let ready = service.get_ref().get_ref().instance;

    let mut response = task::spawn(service.call(Job::of("a")));
    assert_eq!(assert_ready_ok!(response.poll()), ready);
    assert_eq!(pool.calls(), [(ready, Job::of("a"))]);
    assert_eq!(pool.instances(), 1, "nothing is cloned on the way");
}

#[test]
fn an_exempt_request_goes_to_the_very_instance_that_was_made_ready() {
    let pool = Pool::of(1);
    let mut service = limited(pool.service(), Says::no());
    assert_ready_ok!(service.poll_ready());
    let ready = service.get_ref().get_ref().instance;

    assert_eq!(assert_ready_ok!(task::spawn(service.call(Job::of("exempt"))).poll()), ready);
    assert_eq!(pool.instances(), 1, "nothing is cloned on the way");
}

#[test]
fn a_request_without_a_key_that_is_let_through_goes_to_the_instance_that_was_made_ready() {
    let pool = Pool::of(1);
    let layer = RateLimitLayer::new(whose, Says::no()).responder(RejectWithError).missing_key(MissingKeyPolicy::Exempt);
    let mut service = Spawn::new(layer.layer(pool.service()));
    assert_ready_ok!(service.poll_ready());

    assert_eq!(assert_ready_ok!(task::spawn(service.call(Job::NOBODYS)).poll()), 1);
}

#[test]
fn a_refusal_releases_what_readiness_reserved() {
    fn check<A: Limiter<&'static str> + Clone>(limiter: A, job: Job) {
        let pool = Pool::of(1);
        let mut service = limited(pool.service(), limiter);
        assert_ready_ok!(service.poll_ready());
        assert_eq!(pool.free(), 0, "readiness has reserved the permit");

        let mut response = task::spawn(service.call(job));
        assert_eq!(pool.free(), 1, "released in `call`, before the response is polled");
        let error = assert_ready_err!(response.poll());
        assert!(error.is::<Rejected>());
        assert_eq!(pool.calls(), [], "the inner service has seen nothing");

        // What is left is as it was: not ready, and ready again for the asking.
        assert_ready_ok!(service.poll_ready());
        assert_eq!(pool.free(), 0);
    }

    check(Says::no(), Job::of("a"));
    check(Says::never(), Job::of("a"));
    check(Says::broken(), Job::of("a"));
    check(Says::yes(), Job::NOBODYS);
    check(per_minute(1).0, Job::NOBODYS);
}

#[test]
fn a_refusal_that_is_never_polled_has_released_it_as_well() {
    let pool = Pool::of(1);
    let mut service = limited(pool.service(), Says::no());
    assert_ready_ok!(service.poll_ready());
    drop(service.call(Job::of("a")));
    assert_eq!(pool.free(), 1);
}

#[test]
fn a_refusal_releases_the_permit_of_towers_concurrency_limit() {
    let permits = Arc::new(Semaphore::new(1));
    let pool = Pool::of(usize::MAX);
    let inner = ConcurrencyLimit::with_semaphore(pool.service(), Arc::clone(&permits));
    let (limiter, _clock) = per_minute(1);
    let mut service = limited(inner, limiter);
    let mut neighbour = service.clone();

    assert_ready_ok!(service.poll_ready());
    assert_ready_ok!(task::spawn(service.call(Job::of("a"))).poll());
    assert_ready_ok!(service.poll_ready());
    assert_eq!(permits.available_permits(), 0);
    assert_pending!(neighbour.poll_ready());

    let refused = service.call(Job::of("a"));
    assert!(neighbour.is_woken(), "whoever waits for the permit gets it");
    assert_ready_ok!(neighbour.poll_ready());
    assert_ready_err!(task::spawn(refused).poll());
}

#[test]
fn one_that_was_refused_must_be_made_ready_again() {
    let pool = Pool::of(1);
    let (limiter, _clock) = per_minute(1);
    let mut service = limited(pool.service(), limiter);
    assert_ready_ok!(service.poll_ready());
    assert_ready_err!(task::spawn(service.call(Job::NOBODYS)).poll());

    let called = catch_unwind(AssertUnwindSafe(|| service.call(Job::of("a"))));
    assert!(called.is_err(), "the inner service was called without having been made ready");
}

#[test]
fn poll_ready_waits_for_the_inner_service_and_is_woken_by_it() {
    let (mut service, mut handle) = limited_mock(Says::yes());
    handle.allow(0);
    assert_pending!(service.poll_ready());
    handle.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready());

    let mut response = task::spawn(service.call(Job::of("a")));
    assert_pending!(response.poll());
    let Poll::Ready(Some((job, answer))) = handle.poll_request() else { panic!("the request did not arrive") };
    assert_eq!(job, Job::of("a"));
    answer.send_response("done");
    assert!(response.is_woken());
    assert_eq!(assert_ready_ok!(response.poll()), "done");
}

#[test]
fn poll_ready_hands_on_the_inner_services_error() {
    let (mut service, mut handle) = limited_mock(Says::yes());
    handle.send_error(Failure);
    let error = assert_ready_err!(service.poll_ready());
    assert_eq!(error.downcast_ref(), Some(&Failure), "the service's own error, as it is");
}

#[test]
fn the_response_is_the_inner_services_error() {
    let (mut service, mut handle) = limited_mock(Says::yes());
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call(Job::of("a")));
    let Poll::Ready(Some((_, answer))) = handle.poll_request() else { panic!("the request did not arrive") };
    answer.send_error(Failure);
    assert_eq!(assert_ready_err!(response.poll()).downcast_ref(), Some(&Failure));
}

#[test]
fn a_refused_request_never_reaches_the_inner_service() {
    let (mut service, mut handle) = limited_mock(Says::no());
    assert_ready_ok!(service.poll_ready());
    assert_ready_err!(task::spawn(service.call(Job::of("a"))).poll());
    assert_pending!(handle.poll_request());
}

#[test]
fn clones_share_the_limiter_but_not_readiness() {
    let pool = Pool::of(2);
    let (limiter, _clock) = per_minute(2);
    let mut first = limited(pool.service(), limiter);
    assert_ready_ok!(first.poll_ready());

    let mut second = first.clone();
    assert_eq!(pool.free(), 1, "a clone reserves nothing");
    let called = catch_unwind(AssertUnwindSafe(|| second.call(Job::of("a"))));
    assert!(called.is_err(), "a clone of a ready service is not ready");
    // It was charged before the inner service was called.
    assert_ready_ok!(second.poll_ready());
    assert_eq!(pool.free(), 0, "a clone has a readiness of its own");
    assert_ready_ok!(task::spawn(second.call(Job::of("a"))).poll());

    let error = assert_ready_err!(task::spawn(first.call(Job::of("a"))).poll());
    assert!(error.is::<Rejected>(), "two were charged by the other one");
}

#[test]
fn services_of_one_layer_share_the_limiter() {
    let pool = Pool::of(9);
    let layer = RateLimitLayer::new(whose, per_minute(1).0).responder(RejectWithError);
    let mut services = [layer.layer(pool.service()), layer.clone().layer(pool.service())].map(Spawn::new);
    let mut admitted = 0;
    for service in &mut services {
        assert_ready_ok!(service.poll_ready());
        admitted += usize::from(assert_ready!(task::spawn(service.call(Job::of("a"))).poll()).is_ok());
    }
    assert_eq!(admitted, 1);
}

#[test]
fn the_inner_service_can_be_reached() {
    let pool = Pool::of(1);
    let mut service = RateLimitLayer::new(whose, Says::yes()).responder(RejectWithError).layer(pool.service());
    assert_eq!(service.get_ref().instance, 1);
    service.get_mut().instance = 7;
    assert_eq!(service.into_inner().instance, 7);
}

type Mocked = Mock<Job, &'static str>;

/// The limiter around tower-test's mock.
fn limited_mock(limiter: Says) -> (Limited<Mocked, Says>, mock::Handle<Job, &'static str>) {
    let (mock, handle) = mock::pair();
    (limited(mock, limiter), handle)
}
