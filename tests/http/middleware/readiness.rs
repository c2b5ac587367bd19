//! The contract of `tower::Service` when decisions are immediate.

use std::sync::Arc;
use std::task::Poll;

use tokio::sync::Semaphore;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::Layer;
use tower::limit::ConcurrencyLimit;
use tower_test::mock::{self, Mock, Spawn};

use crate::support::{Limited, Pool, RemoteLimiter, StubLimiter, TestRequest, limited, per_minute, rejecting};

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
