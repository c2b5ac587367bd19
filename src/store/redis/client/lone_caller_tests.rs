//! A lone caller polls the worker: see `shared_worker`. In virtual time.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_util::future::{FutureExt, join_all};
use redis::{Cmd, RedisError, Value};
use tokio::runtime::{Builder, Runtime};
use tokio::task::consume_budget;
use tokio::time::{Instant, sleep};

use super::worker::LONE_CALLS;
use crate::store::inner::BoxFuture;
use crate::store::redis::connect::{Connection, Connector};
use crate::store::redis::simulation_tests::limit;
use crate::store::redis::simulation_tests::quota::{Form, Quota};
use crate::store::redis::simulation_tests::world::{Link, World};
use crate::store::redis::{Redis, RedisServer};
use crate::{AcquireOptions, Limiter};

const ROUND_TRIP: Duration = Duration::from_millis(10);
const QUOTA: Quota = Quota { units: 1_000, period: 1_000, form: Form::TokenBucket { burst: 1_000_000 } };

type OnCall = Arc<dyn Fn() + Send + Sync>;

/// A server or a connection that runs a function at each call, in the poll of the worker.
struct Watched<T: ?Sized>(OnCall, Arc<T>);

impl Connector for Watched<dyn Connector> {
    fn connect(&self, node: usize, within: Duration) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>> {
        let (on_call, connecting) = (Arc::clone(&self.0), self.1.connect(node, within));
        Box::pin(async move { Ok(Arc::new(Watched(on_call, connecting.await?)) as Arc<dyn Connection>) })
    }

    fn describe(&self) -> &str {
        self.1.describe()
    }
}

impl Connection for Watched<dyn Connection> {
    fn call(&self, slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
        (self.0)();
        self.1.call(slot, command)
    }

    fn is_open(&self) -> BoxFuture<bool> {
        self.1.is_open()
    }
}

/// Returns a limiter whose worker takes the next caller to be alone.
async fn lone(on_call: OnCall) -> (World, Redis<u64>) {
    let world = World::new(Link { delay: 5_000, ..Link::default() }, vec![QUOTA]);
    let server = RedisServer(Arc::new(Watched(on_call, world.server(0).0)));
    let limiter = Redis::builder(server, "api", vec![limit(0, &QUOTA)]).deadline(ROUND_TRIP * 10).build();
    let limiter = limiter.expect("limits");
    for _ in 0..LONE_CALLS {
        assert!(limiter.acquire(&0, AcquireOptions::default()).await.is_ok());
    }
    (world, limiter)
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

#[tokio::test(start_paused = true)]
async fn acquire_of_a_lone_caller_sends_its_call() {
    let calls = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&calls);
    let (_world, limiter) = lone(Arc::new(move || _ = count.fetch_add(1, Ordering::SeqCst))).await;
    let decisions = [1, 2].map(|key| (limiter.acquire(&key, AcquireOptions::default()), calls.load(Ordering::SeqCst)));
    assert_eq!(decisions.each_ref().map(|(_, calls)| *calls), [LONE_CALLS + 1; 2], "the second wakes the worker task");
    assert!(join_all(decisions.map(|(decision, _)| decision)).await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn settlement_of_a_lone_caller_sends_its_call() {
    let calls = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&calls);
    let (_world, limiter) = lone(Arc::new(move || _ = count.fetch_add(1, Ordering::SeqCst))).await;
    let outcome = limiter.acquire(&1, AcquireOptions::cost(2).hold()).await.expect("an answer");
    let settled = outcome.held.expect("allowed").settle(1);
    assert_eq!(calls.load(Ordering::SeqCst), LONE_CALLS + 2);
    settled.await.expect("an answer");
}

#[tokio::test(start_paused = true)]
async fn lone_caller_without_budget_is_answered_in_one_round_trip() {
    let (_world, limiter) = lone(Arc::new(|| ())).await;
    let started_at = Instant::now();
    while consume_budget().now_or_never().is_some() {}
    assert!(limiter.acquire(&1, AcquireOptions::default()).await.is_ok());
    assert!(started_at.elapsed() < ROUND_TRIP * 2, "{:?}", started_at.elapsed());
}

#[tokio::test(start_paused = true)]
async fn panic_of_the_worker_in_a_lone_caller_ends_the_worker() {
    let panics = Arc::new(AtomicBool::new(false));
    let must_panic = Arc::clone(&panics);
    let on_call = move || assert!(!must_panic.swap(false, Ordering::SeqCst), "a mistake of the test");
    let (_world, limiter) = lone(Arc::new(on_call)).await;
    panics.store(true, Ordering::SeqCst);
    let started_at = Instant::now();
    let sent = limiter.acquire(&1, AcquireOptions::default());
    assert!(!panics.load(Ordering::SeqCst), "the caller polls the worker");
    let queued = limiter.acquire(&1, AcquireOptions::default());
    for lost in [sent, queued] {
        let error = lost.await.expect_err("the call is lost").to_string();
        assert!(error.contains("panic message"), "{error}");
    }
    assert_eq!(started_at.elapsed(), Duration::ZERO);
    assert!(limiter.acquire(&1, AcquireOptions::default()).await.is_ok(), "another worker decides");
}

#[tokio::test(start_paused = true)]
async fn decision_within_the_poll_of_a_lone_caller_is_sent_at_once() {
    let (own, inner) = (Arc::new(OnceLock::<Redis<u64>>::new()), Arc::new(Mutex::new(None)));
    let (limiter, decisions) = (Arc::clone(&own), Arc::clone(&inner));
    let on_call = move || {
        if let Some(limiter) = limiter.get() {
            let mut decision = decisions.lock().expect("no panic");
            decision.get_or_insert_with(|| limiter.acquire(&2, AcquireOptions::default()));
        }
    };
    let (_world, limiter) = lone(Arc::new(on_call)).await;
    assert!(own.set(limiter.clone()).is_ok());
    let started_at = Instant::now();
    let outer = limiter.acquire(&1, AcquireOptions::default());
    let inner = inner.lock().expect("no panic").take().expect("the caller polls the worker");
    assert!(outer.await.is_ok() && inner.await.is_ok());
    assert!(started_at.elapsed() < ROUND_TRIP * 2, "{:?}", started_at.elapsed());
}

#[tokio::test(start_paused = true)]
async fn callers_behind_a_lone_caller_that_has_gone_are_answered() {
    let (world, limiter) = lone(Arc::new(|| ())).await;
    let first = world.calls();
    drop(limiter.acquire(&1, AcquireOptions::default()));
    sleep(ROUND_TRIP * 2).await;
    assert_eq!(world.counts(first).charged, 1, "it was sent");
    for others in [1, 10] {
        let started_at = Instant::now();
        drop(limiter.acquire(&1, AcquireOptions::default()));
        let answers = join_all((0..others).map(|key| limiter.acquire(&key, AcquireOptions::default()))).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert!(started_at.elapsed() < ROUND_TRIP * 2, "{others} others: {:?}", started_at.elapsed());
        sleep(ROUND_TRIP * 2).await;
    }
}

#[test]
fn connection_of_a_lone_caller_ends_with_its_runtime() {
    let on_call: OnCall = Arc::new(|| ());
    let (first, second) = (runtime(), runtime());
    let (_world, limiter) = first.block_on(lone(Arc::clone(&on_call)));
    assert_eq!(Arc::strong_count(&on_call), 3, "this test, the server and its connection");
    drop(first);
    assert_eq!(Arc::strong_count(&on_call), 2);
    // The simulated network has ended.
    second.block_on(limiter.acquire(&1, AcquireOptions::default())).expect_err("no connection");
}
