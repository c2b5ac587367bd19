//! The contract of `tower::Service` when decisions are immediate.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::Semaphore;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::Layer;
use tower::limit::ConcurrencyLimit;
use tower_ratelimit::response::Rejected;
use tower_ratelimit::{Limiter, MissingKeyPolicy};
use tower_test::mock::{self, Mock, Spawn};

use crate::support::{Failure, Limited, Pool, StubLimiter, TestRequest, limited, per_minute, rejecting};

#[test]
fn admitted_request_goes_to_the_instance_that_was_made_ready() {
    let lenient = rejecting(StubLimiter::denying()).missing_key(MissingKeyPolicy::Exempt);
    for (layer, request) in [
        (rejecting(StubLimiter::allowing()), TestRequest::new("a")),
        (rejecting(StubLimiter::denying()), TestRequest::new("exempt")),
        (lenient, TestRequest::WITHOUT_KEY),
    ] {
        let pool = Pool::new(1);
        let mut service = Spawn::new(layer.layer(pool.service()));
        assert_ready_ok!(service.poll_ready());
        let ready = service.get_ref().get_ref().instance;
        assert_eq!(assert_ready_ok!(task::spawn(service.call(request)).poll()), ready);
        assert_eq!(pool.calls(), [(ready, request)]);
        assert_eq!(pool.instances(), 1, "the service is not cloned");
    }
}

#[test]
fn immediate_rejection_releases_the_reserved_readiness() {
    fn check(limiter: impl Limiter<&'static str>, request: TestRequest) {
        let pool = Pool::new(1);
        let mut service = limited(pool.service(), limiter);
        assert_ready_ok!(service.poll_ready());
        assert_eq!(pool.free(), 0, "readiness has reserved the permit");

        let mut response = task::spawn(service.call(request));
        assert_eq!(pool.free(), 1, "released in `call`, before the response is polled");
        let error = assert_ready_err!(response.poll());
        assert!(error.is::<Rejected>());
        assert_eq!(pool.calls(), [], "the inner service was not called");

        // The service is not ready, and can be made ready again.
        assert_ready_ok!(service.poll_ready());
        assert_eq!(pool.free(), 0);
    }

    check(StubLimiter::denying(), TestRequest::new("a"));
    check(StubLimiter::exceeding(), TestRequest::new("a"));
    check(StubLimiter::failing(), TestRequest::new("a"));
    check(StubLimiter::allowing(), TestRequest::WITHOUT_KEY);
    check(per_minute(1).0, TestRequest::WITHOUT_KEY);
}

#[test]
fn rejection_releases_the_permit_of_a_concurrency_limit() {
    let permits = Arc::new(Semaphore::new(1));
    let pool = Pool::new(usize::MAX);
    let inner = ConcurrencyLimit::with_semaphore(pool.service(), Arc::clone(&permits));
    let (limiter, _clock) = per_minute(1);
    let mut service = limited(inner, limiter);
    let mut neighbour = service.clone();

    assert_ready_ok!(service.poll_ready());
    assert_ready_ok!(task::spawn(service.call(TestRequest::new("a"))).poll());
    assert_ready_ok!(service.poll_ready());
    assert_eq!(permits.available_permits(), 0);
    assert_pending!(neighbour.poll_ready());

    let rejected = service.call(TestRequest::new("a"));
    assert!(neighbour.is_woken(), "the waiting instance receives the permit");
    assert_ready_ok!(neighbour.poll_ready());
    assert_ready_err!(task::spawn(rejected).poll());
}

#[test]
fn service_is_not_ready_after_a_rejection() {
    let pool = Pool::new(1);
    let (limiter, _clock) = per_minute(1);
    let mut service = limited(pool.service(), limiter);
    assert_ready_ok!(service.poll_ready());
    assert_ready_err!(task::spawn(service.call(TestRequest::WITHOUT_KEY)).poll());

    let called = catch_unwind(AssertUnwindSafe(|| service.call(TestRequest::new("a"))));
    assert!(called.is_err(), "the inner service was called without having been made ready");
}

#[test]
fn poll_ready_is_woken_by_the_inner_service() {
    let (mut service, mut handle) = limited_mock(StubLimiter::allowing());
    handle.allow(0);
    assert_pending!(service.poll_ready());
    handle.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready());

    let mut response = task::spawn(service.call(TestRequest::new("a")));
    assert_pending!(response.poll());
    let Poll::Ready(Some((request, answer))) = handle.poll_request() else { panic!("the request did not arrive") };
    assert_eq!(request, TestRequest::new("a"));
    answer.send_response("done");
    assert!(response.is_woken());
    assert_eq!(assert_ready_ok!(response.poll()), "done");
}

#[test]
fn poll_ready_returns_the_error_of_the_inner_service() {
    let (mut service, mut handle) = limited_mock(StubLimiter::allowing());
    handle.send_error(Failure);
    let error = assert_ready_err!(service.poll_ready());
    assert_eq!(error.downcast_ref(), Some(&Failure), "the service's own error, as it is");
}

#[test]
fn response_is_the_error_of_the_inner_service() {
    let (mut service, mut handle) = limited_mock(StubLimiter::allowing());
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call(TestRequest::new("a")));
    let Poll::Ready(Some((_, answer))) = handle.poll_request() else { panic!("the request did not arrive") };
    answer.send_error(Failure);
    assert_eq!(assert_ready_err!(response.poll()).downcast_ref(), Some(&Failure));
}

#[test]
fn clones_share_the_limiter_but_not_readiness() {
    let pool = Pool::new(2);
    let (limiter, _clock) = per_minute(2);
    let mut first = limited(pool.service(), limiter);
    assert_ready_ok!(first.poll_ready());

    let mut second = first.clone();
    assert_eq!(pool.free(), 1, "a clone reserves nothing");
    let called = catch_unwind(AssertUnwindSafe(|| second.call(TestRequest::new("a"))));
    assert!(called.is_err(), "a clone of a ready service is not ready");
    // That call was charged before the inner service panicked.
    assert_ready_ok!(second.poll_ready());
    assert_eq!(pool.free(), 0, "a clone has its own readiness");
    assert_ready_ok!(task::spawn(second.call(TestRequest::new("a"))).poll());

    let error = assert_ready_err!(task::spawn(first.call(TestRequest::new("a"))).poll());
    assert!(error.is::<Rejected>(), "the clone used both");
}

#[test]
fn services_of_one_layer_share_the_limiter() {
    let pool = Pool::new(9);
    let layer = rejecting(per_minute(1).0);
    let mut services = [layer.layer(pool.service()), layer.clone().layer(pool.service())].map(Spawn::new);
    let mut admitted = 0;
    for service in &mut services {
        assert_ready_ok!(service.poll_ready());
        admitted += usize::from(assert_ready!(task::spawn(service.call(TestRequest::new("a"))).poll()).is_ok());
    }
    assert_eq!(admitted, 1);
}

#[test]
fn inner_service_is_accessible() {
    let pool = Pool::new(1);
    let mut service = rejecting(StubLimiter::allowing()).layer(pool.service());
    assert_eq!(service.get_ref().instance, 1);
    service.get_mut().instance = 7;
    assert_eq!(service.into_inner().instance, 7);
}

type Mocked = Mock<TestRequest, &'static str>;

/// The limiter around tower-test's mock.
fn limited_mock(limiter: StubLimiter) -> (Limited<Mocked>, mock::Handle<TestRequest, &'static str>) {
    let (mock, handle) = mock::pair();
    (limited(mock, limiter), handle)
}
