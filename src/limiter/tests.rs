//! `Chained` on decisions that only `Redis` with leases returns.

use super::{AdminOperation, Chained, Limiter, LimiterFuture, Outcome};
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, Decision, Verdict};

/// A limiter that returns this decision.
#[derive(Clone, Debug)]
pub(crate) struct Fixed(pub(crate) Decision);

impl Limiter<str> for Fixed {
    fn acquire(&self, _: &str, _: AcquireOptions) -> LimiterFuture<Outcome> {
        LimiterFuture::ready(Ok(self.0.clone().into()))
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
        Fixed(
            Decision::without_limit(Timestamp::EPOCH, verdict)
                .with_denied_by_leases(by_leases)
                .with_estimate(by_leases),
        )
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
