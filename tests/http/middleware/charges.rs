//! Charges, as documented on the layer: an admitted request is charged whatever happens to it later, and no other is.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower_ratelimit::{AcquireOptions, BoxLimiter, Limiter};

use crate::support::{Act, Pool, RemoteLimiter, StubLimiter, TestRequest, limited, per_minute};

/// Returns the remaining tokens of `key`.
fn remaining(limiter: &BoxLimiter<&'static str>, key: &'static str) -> u64 {
    let peeked = limiter.peek(&key, AcquireOptions::default()).try_ready().expect("memory answers immediately");
    peeked.expect("memory can peek").remaining().expect("a limit was consulted")
}

/// Sends requests through a service of 5 a minute for each key. Returns the remaining tokens of `a`.
fn remaining_after(request: TestRequest, then: impl FnOnce(&mut dyn FnMut(TestRequest))) -> u64 {
    let (limiter, _clock) = per_minute(5);
    let pool = Pool::new(9);
    let mut service = limited(pool.service(), limiter.clone());
    let mut send = |request| {
        assert_ready_ok!(service.poll_ready());
        // Some requests panic on purpose.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let mut response = task::spawn(service.call(request));
            let _ = response.poll();
        }));
    };
    send(request);
    then(&mut send);
    assert_eq!(pool.free(), 9, "no permit is lost");
    remaining(&limiter, "a")
}

#[test]
fn request_stays_charged_when_it_fails_hangs_or_panics() {
    for act in [Act::Answer, Act::Fail, Act::Hang, Act::PanicInCall, Act::PanicInFuture] {
        assert_eq!(remaining_after(TestRequest::new("a").with_act(act), |_| {}), 4, "{act:?}");
    }
}

#[test]
fn key_is_not_charged_for_other_exempt_or_missing_keys() {
    for request in [TestRequest::new("b"), TestRequest::new("exempt"), TestRequest::WITHOUT_KEY] {
        assert_eq!(remaining_after(request, |_| {}), 5, "{request:?}");
    }
}

#[test]
fn denied_request_is_not_charged() {
    let (limiter, clock) = per_minute(1);
    let pool = Pool::new(1);
    let mut service = limited(pool.service(), limiter.clone());
    let mut send = |key| {
        assert_ready_ok!(service.poll_ready());
        tokio_test::assert_ready!(task::spawn(service.call(TestRequest::new(key))).poll())
    };
    assert!(send("a").is_ok());
    let before = limiter.peek(&"a", AcquireOptions::default()).try_ready().expect("ready").expect("a decision");
    for _ in 0..10 {
        assert!(send("a").is_err());
    }
    let after = limiter.peek(&"a", AcquireOptions::default()).try_ready().expect("ready").expect("a decision");
    assert_eq!(before, after, "denials change nothing");
    clock.advance(before.retry_after().expect("a wait"));
    assert!(send("a").is_ok(), "denials do not extend the wait");
}

#[test]
fn request_is_charged_in_call_before_the_response_is_polled() {
    let (limiter, _clock) = per_minute(5);
    let pool = Pool::new(1);
    let mut service = limited(pool.service(), limiter.clone());
    assert_ready_ok!(service.poll_ready());
    let unpolled = service.call(TestRequest::new("a"));
    assert_eq!(remaining(&limiter, "a"), 4, "in `call`, not when the response is polled");
    drop(unpolled);
    assert_eq!(remaining(&limiter, "a"), 4, "a dropped response is not refunded");
}

#[test]
fn poll_ready_does_not_charge() {
    let (limiter, _clock) = per_minute(5);
    let pool = Pool::new(1);
    let mut service = limited(pool.service(), limiter.clone());
    for _ in 0..10 {
        assert_ready_ok!(service.poll_ready());
    }
    assert_eq!(remaining(&limiter, "a"), 5);
}

/// The limiter and the services that share it work after a panic of the inner service.
#[test]
fn limiter_works_after_a_panic_of_the_inner_service() {
    let remaining = remaining_after(TestRequest::new("a").with_act(Act::PanicInCall), |send| {
        send(TestRequest::new("a").with_act(Act::PanicInFuture));
        send(TestRequest::new("a"));
    });
    assert_eq!(remaining, 2);
}

#[test]
fn pending_acquire_is_called_once_when_polled_often() {
    let (pool, limiter) = (Pool::new(1), RemoteLimiter::default());
    let mut service = limited(pool.service(), limiter.clone());
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call(TestRequest::new("a")));
    for _ in 0..3 {
        assert_pending!(response.poll());
    }
    limiter.next_acquire().complete(StubLimiter::denying());
    assert_ready_err!(response.poll());
    assert!(catch_unwind(AssertUnwindSafe(|| limiter.next_acquire())).is_err(), "one acquire only");
}
