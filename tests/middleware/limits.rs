//! Limiters of every shape behind the layer: boxed, shared, of several limits, chosen by the key or at run time.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::key::Global;
use tower_ratelimit::limiter::{Acquisition, BoxLimiter, Limiter, Outcome};
use tower_ratelimit::response::{BoxError, RejectWithError, Rejected};
use tower_ratelimit::{
    AcquireOptions, Detail, DynLimit, Error, FixedWindow, Gcra, Limit, ManualClock, Memory, Quota, RateLimitLayer,
    per_key,
};

/// Whose a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Caller {
    user: u32,
    paid: bool,
    organisation: &'static str,
}

const ADA: Caller = Caller { user: 1, paid: false, organisation: "acme" };
const BOB: Caller = Caller { user: 2, paid: false, organisation: "acme" };
const EVE: Caller = Caller { user: 3, paid: false, organisation: "evil" };

/// The limiter in front of a service that takes callers for requests.
fn limited<A>(limiter: A) -> impl Service<Caller, Response = (), Error = BoxError, Future: Send + 'static> + Clone
where
    A: Limiter<Caller> + Clone + Send + Sync + 'static,
{
    let layer = RateLimitLayer::new(|caller: &Caller| Some(*caller), limiter).responder(RejectWithError);
    layer.layer(service_fn(async |_: Caller| Ok::<_, Infallible>(())))
}

/// How many of `tries` requests pass.
async fn admitted<S: Service<Caller, Error = BoxError>>(service: &mut S, caller: Caller, tries: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..tries {
        let answer = service.ready().await.expect("ready").call(caller).await;
        admitted += usize::from(answer.is_ok());
    }
    admitted
}

fn in_memory<L: tower_ratelimit::store::Limits<tower_ratelimit::store::DefaultHashBuilder>>(
    limits: L,
) -> (Memory<L, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (Memory::builder(limits).max_keys(100).clock(clock.clone()).build().expect("a limiter"), clock)
}

fn a_minute(limit: u64) -> FixedWindow {
    FixedWindow::new(Quota::per_minute(limit))
}

#[tokio::test]
async fn a_boxed_limiter_decides_as_the_one_inside() {
    let (memory, _clock) = in_memory(a_minute(2));
    let boxed: BoxLimiter<Caller> = BoxLimiter::new(memory.clone());
    let mut service = limited(boxed.clone());
    assert_eq!(admitted(&mut service, ADA, 3).await, 2);
    assert_eq!(admitted(&mut service, EVE, 3).await, 2);
    assert_eq!(admitted(&mut limited(boxed), ADA, 3).await, 0, "clones share it");
    assert_eq!(memory.peek(&ADA, AcquireOptions::default()).await.expect("a decision").remaining(), Some(0));
}

/// A decision that is ready at once stays so.
#[tokio::test]
async fn a_boxed_limiter_boxes_no_decision_that_is_ready() {
    let boxed: BoxLimiter<Caller> = BoxLimiter::new(in_memory(a_minute(1)).0);
    assert!(matches!(boxed.acquire(&ADA, AcquireOptions::default()), Acquisition::Ready(Ok(_))));
    assert!(matches!(boxed.acquire(&ADA, AcquireOptions::default()), Acquisition::Ready(Ok(_))));
}

#[tokio::test]
async fn boxed_limiters_of_different_kinds_are_one_type() {
    let kinds: [BoxLimiter<Caller>; 3] = [
        BoxLimiter::new(Memory::new(a_minute(1))),
        BoxLimiter::new(Memory::new(Gcra::new(Quota::per_minute(2)))),
        BoxLimiter::new(Later(Memory::new(a_minute(3)))),
    ];
    for (limit, kind) in (1..).zip(kinds) {
        assert_eq!(admitted(&mut limited(kind), ADA, 5).await, limit);
    }
}

#[tokio::test]
async fn a_shared_limiter_is_a_limiter() {
    let (memory, _clock) = in_memory(a_minute(2));
    let shared = Arc::new(memory);
    assert_eq!(admitted(&mut limited(Arc::clone(&shared)), ADA, 3).await, 2);
    assert_eq!(admitted(&mut limited(shared), ADA, 3).await, 0);
}

/// A limiter whose answer always takes a while.
#[derive(Clone)]
struct Later<L>(L);

impl<L: Limiter<Caller>> Limiter<Caller> for Later<L> {
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>>;

    fn acquire(&self, caller: &Caller, ask: AcquireOptions) -> Acquisition<Self::Future> {
        let decided = self.0.acquire(caller, ask);
        let Acquisition::Ready(decided) = decided else { unreachable!("memory answers at once") };
        Acquisition::Pending(Box::pin(async move {
            tokio::task::yield_now().await;
            decided
        }))
    }
}

#[tokio::test]
async fn a_limiter_that_answers_later_limits_as_well() {
    let (memory, clock) = in_memory(a_minute(2));
    let mut service = limited(Later(memory));
    assert_eq!(admitted(&mut service, ADA, 3).await, 2);
    clock.advance(Duration::from_secs(60));
    assert_eq!(admitted(&mut service, ADA, 3).await, 2);
}

/// Per user and per organisation and in all; and a refusal charges nobody.
#[tokio::test]
async fn several_limits_decide_together_all_or_nothing() {
    let (memory, clock) = in_memory((
        Limit::new("user", a_minute(2)).keyed_by(|caller: &Caller| caller.user),
        Limit::new("organisation", a_minute(3)).keyed_by(|caller: &Caller| caller.organisation),
        Limit::new("everybody", a_minute(4)).keyed_by(|_: &Caller| ()),
    ));
    let mut service = limited(memory.clone());
    assert_eq!(admitted(&mut service, ADA, 9).await, 2, "by the user's limit");
    assert_eq!(admitted(&mut service, BOB, 9).await, 1, "by the organisation's");
    assert_eq!(admitted(&mut service, EVE, 9).await, 1, "by everybody's");

    let left = |decision: &tower_ratelimit::Decision| {
        decision.limits().iter().map(|standing| (standing.name().to_owned(), standing.remaining())).collect::<Vec<_>>()
    };
    let bob = memory.peek(&BOB, AcquireOptions::default().detail(Detail::All)).await.expect("a decision");
    assert_eq!(left(&bob), [("user".into(), 1), ("organisation".into(), 0), ("everybody".into(), 0)]);
    let eve = memory.peek(&EVE, AcquireOptions::default().detail(Detail::All)).await.expect("a decision");
    assert_eq!(left(&eve), [("user".into(), 1), ("organisation".into(), 2), ("everybody".into(), 0)]);

    clock.advance(Duration::from_secs(60));
    assert_eq!(admitted(&mut service, ADA, 9).await, 2);
}

#[tokio::test]
async fn a_refusal_says_which_limit_spoke() {
    let (memory, _clock) =
        in_memory((Limit::new("second", FixedWindow::new(Quota::per_second(1))), Limit::new("minute", a_minute(1))));
    let mut service = limited(memory);
    assert_eq!(admitted(&mut service, ADA, 1).await, 1);
    let error = service.ready().await.expect("ready").call(ADA).await.expect_err("a refusal");
    let rejected = error.downcast_ref::<Rejected>().expect("the limiter's error");
    let decision = rejected.rejection().decision().expect("a decision");
    assert_eq!(decision.most_restrictive().expect("a limit").name(), "minute", "the one to wait longest for");
    assert_eq!(decision.retry_after(), Some(Duration::from_secs(60)));
}

#[tokio::test]
async fn tiers_are_chosen_by_the_key() {
    const FREE: FixedWindow = FixedWindow::new(Quota::per_minute(2));
    const PAID: FixedWindow = FixedWindow::new(Quota::per_minute(5));
    let tier = |caller: &Caller| if caller.paid { PAID } else { FREE };
    let clock = ManualClock::new();
    let limits = Limit::new("tier", per_key(tier)).keyed_by(|caller: &Caller| caller.user);
    let memory = Memory::builder(limits).max_keys(100).clock(clock.clone()).build().expect("a limiter");
    let mut service = limited(memory);

    assert_eq!(admitted(&mut service, ADA, 9).await, 2);
    let upgraded = Caller { paid: true, ..ADA };
    assert_eq!(admitted(&mut service, upgraded, 9).await, 3, "what was used stays used");
    assert_eq!(admitted(&mut service, ADA, 9).await, 0, "and after a downgrade as well");
    assert_eq!(admitted(&mut service, Caller { paid: true, ..BOB }, 9).await, 5);
    clock.advance(Duration::from_secs(60));
    assert_eq!(admitted(&mut service, ADA, 9).await, 2);
}

#[tokio::test]
async fn a_memory_by_key_needs_no_more_than_the_choice() {
    let memory = Memory::per_key(|caller: &Caller| a_minute(u64::from(caller.user)));
    let mut service = limited(memory);
    for caller in [ADA, BOB, EVE] {
        assert_eq!(admitted(&mut service, caller, 9).await, caller.user as usize);
    }
}

#[tokio::test]
async fn limits_can_be_collected_at_run_time() {
    for count in [1, 2, 9] {
        let limits = (0..count).map(|index| DynLimit::new(Limit::new(format!("limit {index}"), a_minute(9 - index))));
        let (memory, _clock) = in_memory(limits.collect::<Vec<DynLimit<Caller>>>());
        let expected = 10 - usize::try_from(count).expect("small");
        assert_eq!(admitted(&mut limited(memory), ADA, 20).await, expected, "{count} limits, and the least holds");
    }
}

#[tokio::test]
async fn one_key_for_all_is_one_limit_for_all() {
    let (memory, _clock) = in_memory(a_minute(2));
    let layer = RateLimitLayer::new(Global, memory).responder(RejectWithError);
    let mut service = layer.layer(service_fn(async |_: Caller| Ok::<_, Infallible>(())));
    assert_eq!(admitted(&mut service, ADA, 1).await, 1);
    assert_eq!(admitted(&mut service, EVE, 5).await, 1);
}

/// Many tasks on clones of one service admit what one would.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_admit_what_one_would() {
    let (memory, _clock) = in_memory((
        Limit::new("user", a_minute(100)).keyed_by(|caller: &Caller| caller.user),
        Limit::new("everybody", a_minute(250)).keyed_by(|_: &Caller| ()),
    ));
    let service = limited(memory);
    let tasks: Vec<_> = [ADA, BOB, EVE]
        .into_iter()
        .cycle()
        .take(12)
        .map(|caller| {
            let mut service = service.clone();
            tokio::spawn(async move { (caller.user, admitted(&mut service, caller, 50).await) })
        })
        .collect();
    let mut by_user = [0; 3];
    for task in tasks {
        let (user, admitted) = task.await.expect("a task");
        by_user[user as usize - 1] += admitted;
    }
    assert_eq!(by_user.iter().sum::<usize>(), 250);
    assert!(by_user.iter().all(|admitted| *admitted <= 100), "{by_user:?}");
}
