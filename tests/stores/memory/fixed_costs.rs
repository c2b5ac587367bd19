//! Limits with a fixed cost beside limits with the cost of the request: requests and tokens in one decision.

use std::time::Duration;

use tower_ratelimit::limiter::{Chained, Held, Reservation};
use tower_ratelimit::{
    AcquireOptions, Detail, DynLimit, FixedWindow, Gcra, LeakyQueue, Limit, LimitStatus, Limiter, ManualClock, Memory,
    Quota, TokenBucket,
};

use crate::immediate::{acquire, ready};

const SECOND: Duration = Duration::from_secs(1);

fn requests(limit: u64) -> Limit<Gcra> {
    Limit::new("requests", Gcra::new(Quota::per_second(limit))).fixed_cost(1)
}

fn tokens(limit: u64) -> Limit<TokenBucket> {
    Limit::new("tokens", TokenBucket::new(Quota::per_minute(limit)))
}

fn hold(limiter: &impl Limiter<str>, cost: u64) -> Held {
    acquire(limiter, "alice", AcquireOptions::cost(cost).hold()).held.expect("the limits allow the hold")
}

/// What each limit has left.
fn remaining(limiter: &impl Limiter<str>) -> Vec<u64> {
    let decision = ready(limiter.peek("alice", AcquireOptions::cost(0).detail(Detail::All)));
    decision.limits().iter().map(LimitStatus::remaining).collect()
}

#[test]
fn fixed_cost_does_not_depend_on_the_cost_of_the_request() {
    let limiter = Memory::builder((requests(5), tokens(1000))).clock(ManualClock::new()).build().unwrap();
    for cost in [0, 1, 100, 700] {
        assert!(limiter.check("alice", cost).is_allowed());
    }
    assert_eq!(remaining(&limiter), [1, 199]);
    let single = Memory::builder(requests(5)).clock(ManualClock::new()).build().unwrap();
    for left in [4, 3, 2] {
        assert_eq!(single.check("alice", 1000).remaining(), Some(left));
    }
}

#[test]
fn request_that_one_limit_denies_is_charged_to_none() {
    let limiter = Memory::builder((requests(2), tokens(1000))).clock(ManualClock::new()).build().unwrap();
    let denied = limiter.check("alice", AcquireOptions::cost(1001).detail(Detail::All));
    assert!(denied.exceeds_limit());
    assert_eq!(remaining(&limiter), [2, 1000]);
    assert!(limiter.check("alice", 10).is_allowed());
    assert!(limiter.check("alice", 10).is_allowed());
    let denied = limiter.check("alice", 10);
    assert_eq!(denied.most_restrictive().map(|limit| limit.name().to_owned()).as_deref(), Some("requests"));
    assert_eq!(denied.retry_after(), Some(SECOND / 2));
    assert_eq!(remaining(&limiter), [0, 980]);
}

#[test]
fn fixed_cost_above_the_limit_exceeds_it() {
    let limiter = Memory::new(Limit::new("requests", FixedWindow::new(Quota::per_second(2))).fixed_cost(3));
    assert!(limiter.check("alice", 0).exceeds_limit());
}

#[test]
fn hold_charges_the_fixed_cost_at_once_and_holds_the_cost_of_the_request() {
    type End = fn(Held);
    let ends: [(End, u64); 4] = [
        (|held| ready(held.settle(30)), 970),
        (|held| ready(held.settle(0)), 1000),
        (|held| ready(held.release()), 1000),
        (drop, 900),
    ];
    for (end, left) in ends {
        let limiter = Memory::builder((requests(5), tokens(1000))).clock(ManualClock::new()).build().unwrap();
        let held = hold(&limiter, 100);
        assert_eq!(held.cost(), 100);
        assert_eq!(remaining(&limiter), [4, 900]);
        let usage = limiter.usage();
        assert_eq!([usage[0].held, usage[1].held], [0, 100]);
        end(held);
        assert_eq!(remaining(&limiter), [4, left]);
    }
}

/// A held cost does not drain, so holding it would turn ten requests per second into ten concurrent ones.
#[test]
fn fixed_cost_drains_while_the_cost_of_the_request_is_held() {
    let clock = ManualClock::new();
    let limiter = Memory::builder((requests(10), tokens(1000))).clock(clock.clone()).build().unwrap();
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.extend((0..10).map(|_| hold(&limiter, 10)));
        assert!(!acquire(&limiter, "alice", AcquireOptions::cost(10).hold()).decision.is_allowed());
        clock.advance(SECOND);
    }
    assert_eq!(remaining(&limiter), [10, 700]);
}

#[test]
fn hold_of_a_queue_with_a_fixed_cost_starts_now() {
    let queue = Limit::new("requests", LeakyQueue::new(Quota::per_second(10))).fixed_cost(1);
    let limiter = Memory::builder((queue, tokens(1000))).clock(ManualClock::new()).build().unwrap();
    let first = acquire(&limiter, "alice", AcquireOptions::cost(10).hold());
    assert_eq!(first.decision.delay(), Duration::ZERO);
    let second = acquire(&limiter, "alice", AcquireOptions::cost(10).hold());
    assert_eq!(second.decision.retry_after(), Some(SECOND / 10));
    assert!(second.held.is_none());
}

#[test]
fn reservation_counts_as_one_request() {
    let limiter = Memory::builder((requests(5), tokens(1000))).clock(ManualClock::new()).build().unwrap();
    let reserved = Reservation::reserve(&limiter, "alice", AcquireOptions::cost(100));
    let (reservation, _) = futures_util::FutureExt::now_or_never(reserved).unwrap().unwrap();
    let mut reservation = reservation.unwrap();
    reservation.spend(250);
    drop(reservation);
    assert_eq!(remaining(&limiter), [4, 750]);
}

#[test]
fn replaced_limit_keeps_its_usage_when_its_fixed_cost_changes() {
    let limits = |cost| vec![DynLimit::new(requests(9).fixed_cost(cost)), DynLimit::new(tokens(1000))];
    let limiter = Memory::builder(limits(1)).clock(ManualClock::new()).build().unwrap();
    assert!(limiter.check("alice", 10).is_allowed());
    limiter.replace(limits(4)).unwrap();
    assert!(limiter.check("alice", 10).is_allowed());
    assert_eq!(remaining(&limiter), [4, 980]);
}

/// The first limiter holds its fixed costs until the second has decided: a denied request is charged nowhere.
#[test]
fn chained_limiters_charge_fixed_costs_of_allowed_requests_only() {
    let clock = ManualClock::new();
    let of = |limits| Memory::builder(limits).clock(clock.clone()).build().unwrap();
    let global = Memory::builder(FixedWindow::new(Quota::per_minute(3))).clock(clock.clone()).build().unwrap();
    let limiter = Chained::new(of((requests(9), tokens(1000))), of((requests(8), tokens(500)))).and(global);
    assert!(acquire(&limiter, "alice", AcquireOptions::cost(1)).decision.is_allowed());
    assert_eq!(remaining(&limiter), [8, 999, 7, 499, 2]);
    // The second limiter denies, then the third.
    assert!(!acquire(&limiter, "alice", AcquireOptions::cost(501)).decision.is_allowed());
    assert!(!acquire(&limiter, "alice", AcquireOptions::cost(3)).decision.is_allowed());
    assert!(!acquire(&limiter, "alice", AcquireOptions::cost(3).hold()).decision.is_allowed());
    assert_eq!(remaining(&limiter), [8, 999, 7, 499, 2]);

    let held = hold(&limiter, 2);
    assert_eq!(remaining(&limiter), [7, 997, 6, 497, 0]);
    // Charged, not held: it drains.
    clock.advance(SECOND);
    assert_eq!(remaining(&limiter)[..1], [9]);
    ready(held.release());
    assert_eq!(remaining(&limiter), [9, 1000, 8, 500, 2]);
}
