//! What is charged, as the layer's documentation declares: what is let through, whatever becomes of it then, and
//! nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower_ratelimit::{AcquireOptions, FixedWindow, Limiter, ManualClock, Memory, MissingKeyPolicy};

use crate::support::{Act, Elsewhere, Job, Pool, Says, limited, per_minute, whose};

type PerMinute = Memory<FixedWindow, ManualClock>;

/// What is left of `key`'s 5 a minute.
fn left(limiter: &PerMinute, key: &'static str) -> u64 {
    let peeked = limiter.peek(&key, AcquireOptions::default()).try_ready().expect("memory answers at once");
    peeked.expect("memory can peek").remaining().expect("a limit was consulted")
}

/// Sends one job through a service of 5 a minute for each key, and returns what is left of `a`'s.
fn left_after(job: Job, then: impl FnOnce(&mut dyn FnMut(Job))) -> u64 {
    let (limiter, _clock) = per_minute(5);
    let pool = Pool::of(9);
    let mut service = limited(pool.service(), limiter.clone());
    let mut send = |job| {
        assert_ready_ok!(service.poll_ready());
        // What is thrown here was asked for.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let mut response = task::spawn(service.call(job));
            let _ = response.poll();
        }));
    };
    send(job);
    then(&mut send);
    assert_eq!(pool.free(), 9, "and no permit is lost");
    left(&limiter, "a")
}

#[test]
fn a_request_stays_charged_whatever_becomes_of_it() {
    for act in [Act::Answer, Act::Fail, Act::Hang, Act::PanicInCall, Act::PanicInFuture] {
        assert_eq!(left_after(Job::of("a").that(act), |_| {}), 4, "{act:?}");
    }
}

#[test]
fn other_keys_the_exempt_and_the_missing_are_not_charged_to_it() {
    for job in [Job::of("b"), Job::of("exempt"), Job::NOBODYS] {
        assert_eq!(left_after(job, |_| {}), 5, "{job:?}");
    }
}

#[test]
fn a_refused_request_is_not_charged() {
    let (limiter, clock) = per_minute(1);
    let pool = Pool::of(1);
    let mut service = limited(pool.service(), limiter.clone());
    let mut send = |key| {
        assert_ready_ok!(service.poll_ready());
        tokio_test::assert_ready!(task::spawn(service.call(Job::of(key))).poll())
    };
    assert!(send("a").is_ok());
    let before = limiter.peek(&"a", AcquireOptions::default()).try_ready().expect("ready").expect("a decision");
    for _ in 0..10 {
        assert!(send("a").is_err());
    }
    let after = limiter.peek(&"a", AcquireOptions::default()).try_ready().expect("ready").expect("a decision");
    assert_eq!(before, after, "ten refusals change nothing");
    clock.advance(before.retry_after().expect("a wait"));
    assert!(send("a").is_ok(), "and lengthen no wait");
}

#[test]
fn it_is_charged_before_the_inner_service_is_called() {
    let (limiter, _clock) = per_minute(5);
    let pool = Pool::of(1);
    let mut service = limited(pool.service(), limiter.clone());
    assert_ready_ok!(service.poll_ready());
    let unpolled = service.call(Job::of("a"));
    assert_eq!(left(&limiter, "a"), 4, "in `call`, not when the response is polled");
    drop(unpolled);
    assert_eq!(left(&limiter, "a"), 4, "and dropping the response gives nothing back");
}

#[test]
fn asking_for_readiness_charges_nothing() {
    let (limiter, _clock) = per_minute(5);
    let pool = Pool::of(1);
    let mut service = limited(pool.service(), limiter.clone());
    for _ in 0..10 {
        assert_ready_ok!(service.poll_ready());
    }
    assert_eq!(left(&limiter, "a"), 5);
}

#[test]
fn a_missing_key_that_is_let_through_is_not_charged() {
    let (limiter, _clock) = per_minute(5);
    let layer = tower_ratelimit::RateLimitLayer::new(whose, limiter.clone())
        .responder(tower_ratelimit::response::RejectWithError)
        .missing_key(MissingKeyPolicy::Exempt);
    let mut service = tower_test::mock::Spawn::new(tower::Layer::layer(&layer, Pool::of(1).service()));
    for _ in 0..10 {
        assert_ready_ok!(service.poll_ready());
        assert_ready_ok!(task::spawn(service.call(Job::NOBODYS)).poll());
    }
    assert_eq!(left(&limiter, "a"), 5);
}

/// Panics inside leave the limiter, and the services that share it, in order.
#[test]
fn a_panic_inside_harms_nobody_else() {
    let left = left_after(Job::of("a").that(Act::PanicInCall), |send| {
        send(Job::of("a").that(Act::PanicInFuture));
        send(Job::of("a"));
    });
    assert_eq!(left, 2);
}

/// A decision made elsewhere is asked for once, however often its future is polled.
#[test]
fn a_pending_decision_is_asked_for_once() {
    let (pool, limiter) = (Pool::of(1), Elsewhere::default());
    let mut service = limited(pool.service(), limiter.clone());
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call(Job::of("a")));
    for _ in 0..3 {
        assert_pending!(response.poll());
    }
    limiter.asked().answer(Says::no());
    assert_ready_err!(response.poll());
    assert!(catch_unwind(AssertUnwindSafe(|| limiter.asked())).is_err(), "there was one question");
}
