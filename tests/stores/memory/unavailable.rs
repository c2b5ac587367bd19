//! `FailOpen` and `Fallback`: they decide only while the store is unavailable, whether it answers immediately or later.

use std::future::ready;

use tower_ratelimit::limiter::{AdminOperation, FailOpen, Fallback, LimiterFuture, Outcome};

use crate::immediate::memory;
use tower_ratelimit::{
    AcquireOptions, Clock as _, Decision, DecisionSource, Error, FixedWindow, Limiter, ManualClock, Quota,
};

/// A store whose every call fails, or allows.
#[derive(Clone, Copy)]
struct Store {
    error: Option<fn() -> Error>,
    is_pending: bool,
}

fn unavailable() -> Error {
    Error::unavailable("the store is unavailable")
}

fn misconfigured() -> Error {
    Error::config("the store is misconfigured")
}

fn unsupported() -> Error {
    Error::unsupported("the store cannot do that")
}

impl Store {
    fn result<T: From<Decision>>(self) -> Result<T, Error> {
        match self.error {
            Some(error) => Err(error()),
            None => Ok(Decision::from_limits(ManualClock::new().now(), Vec::new()).into()),
        }
    }
}

impl Limiter<str> for Store {
    fn acquire(&self, _: &str, _: AcquireOptions) -> LimiterFuture<Outcome> {
        let result = self.result();
        if self.is_pending { LimiterFuture::pending(ready(result)) } else { LimiterFuture::ready(result) }
    }

    fn peek(&self, _: &str, _: AcquireOptions) -> LimiterFuture<Decision> {
        let result = self.result();
        if self.is_pending { LimiterFuture::pending(ready(result)) } else { LimiterFuture::ready(result) }
    }

    fn administer(&self, _: &str, _: AdminOperation<'_>) -> LimiterFuture<()> {
        LimiterFuture::ready(self.result::<Decision>().map(drop))
    }
}

/// The decision of an acquire call, and that of a peek.
async fn both(limiter: &impl Limiter<str>) -> [Result<Decision, Error>; 2] {
    let acquired = limiter.acquire("alice", AcquireOptions::default()).await;
    [acquired.map(|outcome| outcome.decision), limiter.peek("alice", AcquireOptions::default()).await]
}

fn stores(error: Option<fn() -> Error>) -> [Store; 2] {
    [false, true].map(|is_pending| Store { error, is_pending })
}

#[tokio::test]
async fn fail_open_allows_only_while_the_store_is_unavailable() {
    for store in stores(Some(unavailable)) {
        for decision in both(&FailOpen::new(store)).await {
            let decision = decision.expect("a decision by policy");
            assert_eq!((decision.is_allowed(), decision.source()), (true, DecisionSource::NoLimit));
        }
    }
    for store in stores(None) {
        for decision in both(&FailOpen::new(store)).await {
            assert_eq!(decision.expect("the store decides").source(), DecisionSource::Store);
        }
    }
    for store in [misconfigured, unsupported].into_iter().flat_map(|error| stores(Some(error))) {
        for decision in both(&FailOpen::new(store)).await {
            assert!(!decision.expect_err("the store is available").is_unavailable());
        }
    }
}

#[tokio::test]
async fn fallback_decides_only_while_the_primary_limiter_is_unavailable() {
    let remote = Store { error: None, is_pending: true };
    for store in stores(Some(unavailable)) {
        let clock = ManualClock::new();
        let local = FixedWindow::new(Quota::per_minute(2));
        let local = memory::<str, _>(local, &clock);
        let limiter = Fallback::new(store, local);
        for (round, remaining) in [1, 0].into_iter().enumerate() {
            let [acquired, peeked] = both(&limiter).await.map(|decision| decision.expect("the fallback decides"));
            assert_eq!((acquired.source(), acquired.remaining()), (DecisionSource::Fallback, Some(remaining)));
            assert_eq!((peeked.source(), peeked.is_allowed()), (DecisionSource::Fallback, round == 0));
        }
        for decision in both(&Fallback::new(store, remote)).await {
            let decision = decision.expect("the fallback decides");
            assert_eq!((decision.is_allowed(), decision.source()), (true, DecisionSource::Fallback));
        }
        // No limit of the fallback decided either.
        for decision in both(&Fallback::new(store, FailOpen::new(store))).await {
            let decision = decision.expect("a decision by policy");
            assert_eq!((decision.source(), decision.is_exempt()), (DecisionSource::NoLimit, false));
        }
        for decision in both(&Fallback::new(store, store)).await {
            assert!(decision.expect_err("neither decides").is_unavailable());
        }
    }
    for store in stores(None) {
        for decision in both(&Fallback::new(store, remote)).await {
            assert_eq!(decision.expect("the primary limiter decides").source(), DecisionSource::Store);
        }
    }
    for store in [misconfigured, unsupported].into_iter().flat_map(|error| stores(Some(error))) {
        for decision in both(&Fallback::new(store, remote)).await {
            assert!(!decision.expect_err("the primary limiter is available").is_unavailable());
        }
    }
}
