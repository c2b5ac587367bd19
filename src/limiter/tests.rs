//! `Chained` and `Escalating` on decisions that only `Redis` with leases returns.

use std::future::Ready;

use super::{Acquisition, AdminOperation, Chained, Escalating, Escalation, Limiter, LimiterFuture, Outcome};
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, Decision, LimitSnapshot, LimitStatus, Verdict};
use crate::error::Error;
use crate::quota::Quota;
use crate::store::Memory;

/// A limiter that returns this decision.
#[derive(Clone, Debug)]
struct Fixed(Decision);

impl Limiter<str> for Fixed {
    type Future = Ready<Result<Outcome, Error>>;

    fn acquire(&self, _: &str, _: AcquireOptions) -> Acquisition<Self::Future> {
        Acquisition::Ready(Ok(self.0.clone().into()))
    }

    fn peek(&self, _: &str, _: AcquireOptions) -> LimiterFuture<Decision> {
        LimiterFuture::ready(Ok(self.0.clone()))
    }

    fn administer(&self, _: &str, _: AdminOperation<'_>) -> LimiterFuture<()> {
        LimiterFuture::ready(Ok(()))
    }
}

/// "Whether the request is denied only because of what processes hold by leases."
#[test]
fn chained_denial_is_due_to_leases_only_if_every_denial_is() {
    let decision = |verdict, by_leases| {
        Fixed(Decision::by_policy(Timestamp::EPOCH, verdict).with_denied_by_leases(by_leases).with_estimate(by_leases))
    };
    let denial = Verdict::Denied { retry_after: std::time::Duration::from_secs(1) };
    let (allowed, denied, leased) =
        (|| decision(Verdict::Allowed, false), || decision(denial, false), || decision(denial, true));
    for (chained, expected) in [
        (Chained::new(allowed(), allowed()), [false, false]),
        (Chained::new(denied(), allowed()), [false, false]),
        (Chained::new(leased(), allowed()), [true, true]),
        (Chained::new(allowed(), leased()), [true, true]),
        (Chained::new(leased(), leased()), [true, true]),
        (Chained::new(denied(), leased()), [false, true]),
        (Chained::new(leased(), denied()), [false, true]),
    ] {
        let peeked = chained.peek("alice", AcquireOptions::default()).try_ready().expect("ready").expect("a decision");
        assert_eq!([peeked.is_denied_by_leases(), peeked.is_estimate()], expected, "{chained:?}");
    }
}

/// A client that is denied because other processes hold units has not exceeded its limit.
#[test]
fn escalation_counts_no_denial_by_leases() {
    let denial = Verdict::Denied { retry_after: std::time::Duration::from_secs(1) };
    for (by_leases, expected) in [(false, true), (true, false)] {
        let status = LimitStatus::new("api", denial, LimitSnapshot::new(5, std::time::Duration::from_secs(60)));
        let decision = Decision::from_limit(Timestamp::EPOCH, status).with_denied_by_leases(by_leases);
        let escalation = Escalation::new("api", Quota::per_day(3));
        let counts: Memory<str, _> = Memory::new(escalation.limits());
        let limiter = Escalating::new(Fixed(decision), counts, escalation);
        let decide = || {
            let acquired = limiter.acquire("alice", AcquireOptions::default());
            let Acquisition::Ready(Ok(outcome)) = acquired else { panic!("no decision") };
            outcome.decision.is_blocked()
        };
        assert!(!(0..3).any(|_| decide()), "three denials are allowed");
        assert_eq!(decide(), expected, "denied by leases: {by_leases}");
    }
}
