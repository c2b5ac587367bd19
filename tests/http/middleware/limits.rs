//! Limiters of every type behind the layer: boxed, shared, of several limits, selected by the key or at run time.

use std::time::Duration;

use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::limiter::{LimiterFuture, Outcome};
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, FixedWindow, Gcra, Limiter, ManualClock, Memory, Quota, RateLimitLayer,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Caller {
    user: u32,
    paid: bool,
    organisation: &'static str,
}

const ADA: Caller = Caller { user: 1, paid: false, organisation: "acme" };
const BOB: Caller = Caller { user: 2, paid: false, organisation: "acme" };
const EVE: Caller = Caller { user: 3, paid: false, organisation: "evil" };

/// Builds a limited service whose requests are callers.
fn limited<A>(limiter: A) -> impl Service<Caller, Response = (), Error = BoxError, Future: Send + 'static> + Clone
where
    A: Limiter<Caller> + Clone,
{
    let layer = RateLimitLayer::new(|caller: &Caller| Some(*caller), limiter).responder(RejectWithError);
    layer.layer(service_fn(async |_: Caller| Ok::<_, BoxError>(())))
}

/// Sends `tries` requests. Returns the number of admitted ones.
async fn admitted<S: Service<Caller, Error = BoxError>>(service: &mut S, caller: Caller, tries: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..tries {
        let answer = service.ready().await.expect("ready").call(caller).await;
        admitted += usize::from(answer.is_ok());
    }
    admitted
}

fn in_memory<Key: ?Sized, L>(limits: L) -> (Memory<Key, L>, ManualClock)
where
    L: tower_ratelimit::store::MemoryLimits<Key, tower_ratelimit::store::DefaultHashBuilder>,
{
    let clock = ManualClock::new();
    (Memory::builder(limits).max_keys(100).clock(clock.clone()).build().expect("a limiter"), clock)
}

fn a_minute(limit: u64) -> FixedWindow {
    FixedWindow::new(Quota::per_minute(limit))
}

#[tokio::test]
async fn boxed_limiter_returns_immediate_decisions_unboxed() {
    let boxed: BoxLimiter<Caller> = BoxLimiter::new(in_memory(a_minute(1)).0);
    assert!(matches!(boxed.acquire(&ADA, AcquireOptions::default()).try_ready(), Ok(Ok(_))));
    assert!(matches!(boxed.acquire(&ADA, AcquireOptions::default()).try_ready(), Ok(Ok(_))));
}

#[tokio::test]
async fn boxed_limiters_of_different_types_are_one_type() {
    let kinds: [BoxLimiter<Caller>; 3] = [
        BoxLimiter::new(Memory::new(a_minute(1))),
        BoxLimiter::new(Memory::new(Gcra::new(Quota::per_minute(2)))),
        BoxLimiter::new(Deferred(Memory::new(a_minute(3)))),
    ];
    for (limit, kind) in (1..).zip(kinds) {
        assert_eq!(admitted(&mut limited(kind), ADA, 5).await, limit);
    }
}

/// A limiter whose decisions are always pending at first.
#[derive(Clone)]
struct Deferred<L>(L);

impl<L: Limiter<Caller>> Limiter<Caller> for Deferred<L> {
    fn acquire(&self, caller: &Caller, options: AcquireOptions) -> LimiterFuture<Outcome> {
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
    let (memory, clock) = in_memory(a_minute(2));
    let mut service = limited(Deferred(memory));
    assert_eq!(admitted(&mut service, ADA, 3).await, 2);
    clock.advance(Duration::from_secs(60));
    assert_eq!(admitted(&mut service, ADA, 3).await, 2);
}

#[tokio::test]
async fn memory_per_key_builds_from_the_selector() {
    let memory = Memory::per_key(|caller: &Caller| a_minute(u64::from(caller.user)));
    let mut service = limited(memory);
    for caller in [ADA, BOB, EVE] {
        assert_eq!(admitted(&mut service, caller, 9).await, caller.user as usize);
    }
}
