//! The near-limit signal in Redis. `differential` compares the statuses with those of memory.

use std::time::Duration;

use tower_ratelimit::limiter::{Held, Observed};
use tower_ratelimit::{
    AcquireOptions, DecisionSource, Detail, FixedWindow, Gcra, Limit, LimitStatus, ManualClock, Memory, Quota, Redis,
    SlidingLog,
};

use crate::helpers::{LONG_DEADLINE, ONE_DAY, acquire};
use crate::leases::{decide, direct, leased, until_leased};
use crate::near_events::Events;
use crate::random::Random;
use crate::server::Server;

/// Random charges, holds and settlements of four users, who cross the marks of a bucket, of a log and of a common window.
#[tokio::test]
async fn events_in_redis_are_those_in_memory() {
    let (server, clock) = (Server::start(), ManualClock::new());
    let period = Duration::from_secs(4);
    let limits = || {
        (
            Limit::new("bucket", Gcra::new(Quota::new(6, period))).keyed_by(|user: &u64| *user).warn_at(0.8),
            Limit::new("log", SlidingLog::new(Quota::new(7, period))).keyed_by(|user: &u64| *user).warn_at(0.5),
            Limit::new("all", FixedWindow::new(Quota::new(20, period))).keyed_by(|_: &u64| ()).warn_at(0.7),
        )
    };
    let [of_memory, of_redis] = [(); 2].map(|()| Events::default());
    let memory = Memory::builder(limits()).clock(clock.clone()).build().expect("limits");
    let redis = Redis::builder(server.open(), "near", limits()).clock_for_tests(clock.clone());
    let redis = redis.hold_expiry(ONE_DAY).deadline(LONG_DEADLINE).build().expect("limits");
    let memory = Observed::new(memory, of_memory.clone());
    let redis = Observed::new(redis, of_redis.clone());
    let (mut random, mut held, mut crossings, mut events) = (Random::new(5), Vec::new(), 0, 0);
    for step in 0..2_000 {
        clock.advance(Duration::from_micros(random.below(1_000_000)));
        if !held.is_empty() && random.below(4) == 0 {
            let (ours, theirs): (Held, Held) = held.swap_remove(random.index(held.len()));
            let actual = random.below(4);
            ours.settle(actual).await.expect("done");
            theirs.settle(actual).await.expect("done");
            continue;
        }
        let options = AcquireOptions::cost(1 + random.below(2)).detail(Detail::All);
        let options = if random.below(4) == 0 { options.hold() } else { options };
        let user = random.below(4);
        let ours = acquire(&memory, &user, options).await.expect("an answer");
        let theirs = acquire(&redis, &user, options).await.expect("an answer");
        assert_eq!(ours.decision, theirs.decision, "{step}");
        crossings += ours.decision.limits().iter().filter(|limit| limit.crossed_mark()).count();
        held.extend(ours.held.zip(theirs.held));
        let expected = of_memory.take();
        assert_eq!(expected, of_redis.take(), "{step}");
        events += expected.len();
    }
    assert!(events > 30 && crossings > 2 * events, "{crossings} {events}");
}

/// The decisions of both kinds together see the mark, also if most of the usage is that of another process.
#[tokio::test]
async fn leased_decisions_signal_the_mark_by_their_estimate() {
    let server = Server::start();
    let limits = || Limit::new("api", FixedWindow::new(Quota::per_day(4_000))).warn_at(0.5);
    let limiter = leased(server.open(), limits());
    until_leased(&limiter, "alice").await;
    let first = decide(&limiter, "alice", AcquireOptions::default()).await;
    assert!(first.is_allowed() && !first.is_near_limit());
    let other = direct::<str>(server.open(), limits()).build().expect("limits");
    assert!(acquire(&other, "alice", AcquireOptions::cost(2_500)).await.expect("an answer").decision.is_allowed());
    let (mut crossed, mut is_near) = (Vec::new(), false);
    for _ in 0..400 {
        let decision = decide(&limiter, "alice", AcquireOptions::default()).await;
        assert!(decision.is_allowed());
        if decision.limits().iter().any(LimitStatus::crossed_mark) {
            crossed.push(decision.source());
        }
        is_near = decision.is_near_limit();
    }
    assert_eq!(crossed, [DecisionSource::Lease], "after a report, once");
    assert!(is_near);
}
