//! Limiters of every type behind the layer: boxed, shared, of several limits, selected by the key or at run time.

use std::time::Duration;

use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::limiter::{LimiterFuture, Outcome};
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, FixedWindow, Gcra, Limiter, ManualClock, Memory, Quota, RateLimitLayer,
};

/// Builds a limited service whose requests are numbers of users.
fn limited<A>(limiter: A) -> impl Service<u32, Response = (), Error = BoxError, Future: Send + 'static> + Clone
where
    A: Limiter<u32> + Clone,
{
    let layer = RateLimitLayer::new(|user: &u32| Some(*user), limiter).responder(RejectWithError);
    layer.layer(service_fn(async |_: u32| Ok::<_, BoxError>(())))
}

/// Sends `tries` requests. Returns the number of admitted ones.
async fn admitted<S: Service<u32, Error = BoxError>>(service: &mut S, caller: u32, tries: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..tries {
        let answer = service.ready().await.expect("ready").call(caller).await;
        admitted += usize::from(answer.is_ok());
    }
    admitted
}

fn a_minute(limit: u64) -> FixedWindow {
    FixedWindow::new(Quota::per_minute(limit))
}

#[tokio::test]
async fn boxed_limiter_returns_immediate_decisions_unboxed() {
    let boxed: BoxLimiter<u32> = BoxLimiter::new(Memory::new(a_minute(1)));
    assert!(matches!(boxed.acquire(&1, AcquireOptions::default()).try_ready(), Ok(Ok(_))));
    assert!(matches!(boxed.acquire(&1, AcquireOptions::default()).try_ready(), Ok(Ok(_))));
}

#[tokio::test]
async fn boxed_limiters_of_different_types_are_one_type() {
    let kinds: [BoxLimiter<u32>; 3] = [
        BoxLimiter::new(Memory::new(a_minute(1))),
        BoxLimiter::new(Memory::new(Gcra::new(Quota::per_minute(2)))),
        BoxLimiter::new(Deferred(Memory::new(a_minute(3)))),
    ];
    for (limit, kind) in (1..).zip(kinds) {
        assert_eq!(admitted(&mut limited(kind), 1, 5).await, limit);
    }
}

/// A limiter whose decisions are always pending at first.
#[derive(Clone)]
struct Deferred<L>(L);

impl<L: Limiter<u32>> Limiter<u32> for Deferred<L> {
    fn acquire(&self, caller: &u32, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let decided = self.0.acquire(caller, options);
        let Ok(decided) = decided.try_ready() else { unreachable!("memory answers immediately") };
        LimiterFuture::pending(async move {
            tokio::task::yield_now().await;
            decided
        })
    }
}

#[tokio::test]
async fn layer_limits_when_decisions_are_pending() {
    let clock = ManualClock::new();
    let memory = Memory::builder(a_minute(2)).clock(clock.clone()).build().expect("a limiter");
    let mut service = limited(Deferred(memory));
    assert_eq!(admitted(&mut service, 1, 3).await, 2);
    clock.advance(Duration::from_secs(60));
    assert_eq!(admitted(&mut service, 1, 3).await, 2);
}

#[tokio::test]
async fn memory_per_key_builds_from_the_selector() {
    let memory = Memory::per_key(|user: &u32| a_minute(u64::from(*user)));
    let mut service = limited(memory);
    for user in [1, 2, 3] {
        assert_eq!(admitted(&mut service, user, 9).await, user as usize);
    }
}
