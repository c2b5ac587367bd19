//! Limiters of every type behind the layer: boxed, shared, of several limits, selected by the key or at run time.

use std::sync::Arc;
use std::time::Duration;

use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::key::Global;
use tower_ratelimit::limiter::{LimiterFuture, Outcome};
use tower_ratelimit::response::{BoxError, RejectWithError, Rejected};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, DynLimit, FixedWindow, Gcra, Limit, Limiter, ManualClock, Memory, Quota,
    RateLimitLayer, per_key,
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
async fn boxed_limiter_decides_as_the_inner_limiter() {
    let (memory, _clock) = in_memory(a_minute(2));
    let boxed: BoxLimiter<Caller> = BoxLimiter::new(memory.clone());
    let mut service = limited(boxed.clone());
    assert_eq!(admitted(&mut service, ADA, 3).await, 2);
    assert_eq!(admitted(&mut service, EVE, 3).await, 2);
    assert_eq!(admitted(&mut limited(boxed), ADA, 3).await, 0, "clones share the state");
    assert_eq!(memory.peek(&ADA, AcquireOptions::default()).await.expect("a decision").remaining(), Some(0));
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

#[tokio::test]
async fn arc_of_a_limiter_is_a_limiter() {
    let (memory, _clock) = in_memory(a_minute(2));
    let shared = Arc::new(memory);
    assert_eq!(admitted(&mut limited(Arc::clone(&shared)), ADA, 3).await, 2);
    assert_eq!(admitted(&mut limited(shared), ADA, 3).await, 0);
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
async fn rejection_names_the_most_restrictive_limit() {
    let (memory, _clock) =
        in_memory((Limit::new("second", FixedWindow::new(Quota::per_second(1))), Limit::new("minute", a_minute(1))));
    let mut service = limited(memory);
    assert_eq!(admitted(&mut service, ADA, 1).await, 1);
    let error = service.ready().await.expect("ready").call(ADA).await.expect_err("a rejection");
    let rejected = error.downcast_ref::<Rejected>().expect("the limiter's error");
    let decision = rejected.rejection().decision().expect("a decision");
    assert_eq!(decision.most_restrictive().expect("a limit").name(), "minute", "the limit with the longest wait");
    assert_eq!(decision.retry_after(), Some(Duration::from_secs(60)));
}

#[tokio::test]
async fn per_key_algorithm_is_selected_by_the_key() {
    const FREE: FixedWindow = FixedWindow::new(Quota::per_minute(2));
    const PAID: FixedWindow = FixedWindow::new(Quota::per_minute(5));
    let tier = |caller: &Caller| if caller.paid { PAID } else { FREE };
    let clock = ManualClock::new();
    let limits = Limit::new("tier", per_key(tier)).keyed_by(|caller: &Caller| caller.user);
    let memory = Memory::builder(limits).max_keys(100).clock(clock.clone()).build().expect("a limiter");
    let mut service = limited(memory);

    assert_eq!(admitted(&mut service, ADA, 9).await, 2);
    let upgraded = Caller { paid: true, ..ADA };
    assert_eq!(admitted(&mut service, upgraded, 9).await, 3, "usage is kept");
    assert_eq!(admitted(&mut service, ADA, 9).await, 0, "also after a downgrade");
    assert_eq!(admitted(&mut service, Caller { paid: true, ..BOB }, 9).await, 5);
    clock.advance(Duration::from_secs(60));
    assert_eq!(admitted(&mut service, ADA, 9).await, 2);
}

#[tokio::test]
async fn memory_per_key_builds_from_the_selector() {
    let memory = Memory::per_key(|caller: &Caller| a_minute(u64::from(caller.user)));
    let mut service = limited(memory);
    for caller in [ADA, BOB, EVE] {
        assert_eq!(admitted(&mut service, caller, 9).await, caller.user as usize);
    }
}

#[tokio::test]
async fn dynamic_limits_are_collected_at_run_time() {
    for count in [1, 2, 9] {
        let limits = (0..count).map(|index| DynLimit::new(Limit::new(format!("limit {index}"), a_minute(9 - index))));
        let (memory, _clock) = in_memory(limits.collect::<Vec<DynLimit<Caller>>>());
        let expected = 10 - usize::try_from(count).expect("small");
        assert_eq!(admitted(&mut limited(memory), ADA, 20).await, expected, "{count} limits: the smallest applies");
    }
}

#[tokio::test]
async fn global_key_shares_one_limit() {
    let (memory, _clock) = in_memory(a_minute(2));
    let layer = RateLimitLayer::new(Global, memory).responder(RejectWithError);
    let mut service = layer.layer(service_fn(async |_: Caller| Ok::<_, BoxError>(())));
    assert_eq!(admitted(&mut service, ADA, 1).await, 1);
    assert_eq!(admitted(&mut service, EVE, 5).await, 1);
}
