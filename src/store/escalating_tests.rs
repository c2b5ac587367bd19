//! `Escalating` on decisions that only `Redis` with leases returns.

use std::time::Duration;

use super::Memory;
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, Decision, LimitSnapshot, LimitStatus, Verdict};
use crate::limiter::tests::Fixed;
use crate::limiter::{Escalating, Escalation, Limiter};
use crate::quota::Quota;

/// A client that is denied because other processes hold units has not exceeded its limit.
#[test]
fn escalation_counts_no_denial_by_leases() {
    let denial = Verdict::Denied { retry_after: Duration::from_secs(1) };
    for (by_leases, expected) in [(false, true), (true, false)] {
        let status = LimitStatus::new("api", denial, LimitSnapshot::new(5, Duration::from_secs(60)));
        let decision = Decision::from_limit(Timestamp::EPOCH, status).with_denied_by_leases(by_leases);
        let escalation = Escalation::new("api", Quota::per_day(3));
        let counts: Memory<str, _> = Memory::new(escalation.limits());
        let limiter = Escalating::new(Fixed(decision), counts, escalation);
        let decide = || {
            let acquired = limiter.acquire("alice", AcquireOptions::default());
            let Ok(Ok(outcome)) = acquired.try_ready() else { panic!("no decision") };
            outcome.decision.is_blocked()
        };
        assert!(!(0..3).any(|_| decide()), "three denials are allowed");
        assert_eq!(decide(), expected, "denied by leases: {by_leases}");
    }
}
