//! Test doubles: an inner service with counted permits, and limiters with fixed or deferred decisions. A server.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, service_fn};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::key::{Extracted, Global, MissingKey};
use tower_ratelimit::limiter::{AdminOperation, LimiterFuture, LimitsOfKey, Outcome};
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Clock, Decision, DecisionSource, DynLimit, Error, FixedWindow, Limit, LimitSnapshot,
    LimitStatus, Limiter, ManualClock, Memory, Quota, RateLimit, RateLimitLayer, Timestamp, Verdict,
};
use tower_test::mock::Spawn;

pub(crate) use crate::tasks::{BoxExecutor, Task, boxed, spawn};

/// A request to [`Counter`]: its key (`None` is a missing key, `exempt` is exempt), and what the service does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TestRequest {
    pub(crate) key: Option<&'static str>,
    pub(crate) act: Act,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Answer,
    Fail,
    /// The future never completes.
    Hang,
    PanicInCall,
    PanicInFuture,
}

impl TestRequest {
    pub(crate) const fn new(key: &'static str) -> Self {
        Self { key: Some(key), act: Act::Answer }
    }

    pub(crate) const WITHOUT_KEY: Self = Self { key: None, act: Act::Answer };

    pub(crate) const fn with_act(self, act: Act) -> Self {
        Self { act, ..self }
    }
}

/// Extracts the key of a [`TestRequest`].
pub(crate) fn key_of(request: &TestRequest) -> Extracted<&'static str> {
    match request.key {
        Some("exempt") => Extracted::Exempt,
        Some(key) => Extracted::Key(key),
        None => Extracted::Missing(MissingKey::from_request("no key")),
    }
}

pub(crate) type KeyFn = fn(&TestRequest) -> Extracted<&'static str>;

/// A replacement of limits, and a block, notify all queues of the process. So the order of two queues within an instant may
/// depend on another test. Tests that notify thousands of times, and tests of such an order, hold this lock.
pub(crate) static NOTIFICATIONS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Serves `app` until the runtime of the test ends.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    spawn(async move { axum::serve(listener, app).await });
    address
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A layer for test requests, with rejections as errors.
pub(crate) type Rejecting = RateLimitLayer<KeyFn, BoxLimiter<&'static str>, RejectWithError>;

pub(crate) fn rejecting(limiter: impl Limiter<&'static str>) -> Rejecting {
    RateLimitLayer::new(key_of as KeyFn, BoxLimiter::new(limiter)).responder(RejectWithError)
}

/// A service behind a limiter, with rejections as errors.
pub(crate) type Limited<S> = Spawn<RateLimit<S, KeyFn, BoxLimiter<&'static str>, RejectWithError>>;

pub(crate) fn limited<S: Clone>(inner: S, limiter: impl Limiter<&'static str>) -> Limited<S> {
    Spawn::new(rejecting(limiter).layer(inner))
}

/// A response over HTTP. Services of these have one type: the compiler generates the code of the layer for each type.
pub(crate) type Page = Response<Full<Bytes>>;
pub(crate) type PageService = BoxCloneSyncService<Request<()>, Page, BoxError>;

/// A service that answers with a page.
pub(crate) fn pages() -> PageService {
    PageService::new(service_fn(async |_: Request<()>| Ok(Page::new(Full::from("hello")))))
}

/// A layer for pages with one limit for all requests.
pub(crate) fn page_layer(limiter: impl Limiter<()>) -> RateLimitLayer<Global, BoxLimiter<()>> {
    RateLimitLayer::new(Global, BoxLimiter::new(limiter))
}

/// A service whose readiness reserves one of a counted number of permits. It panics if it is called without a permit.
///
/// Every clone is an instance with its own number and no permit. A response is the number of the instance.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) instance: usize,
    permit: Option<Permit>,
    pool: Pool,
}

/// The permits, and a record of the calls.
#[derive(Clone, Debug)]
pub(crate) struct Pool(Arc<Mutex<PoolState>>);

#[derive(Debug)]
struct PoolState {
    free: usize,
    instances: usize,
    calls: Vec<(usize, TestRequest)>,
    waiting: Vec<Waker>,
}

#[derive(Debug)]
struct Permit(Pool);

impl Pool {
    pub(crate) fn new(permits: usize) -> Self {
        Self(Arc::new(Mutex::new(PoolState { free: permits, instances: 0, calls: Vec::new(), waiting: Vec::new() })))
    }

    fn with_state<T>(&self, f: impl FnOnce(&mut PoolState) -> T) -> T {
        // Tests panic on purpose: a poisoned lock must not hide the state from later assertions.
        f(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    pub(crate) fn service(&self) -> Counter {
        let instance = self.with_state(|state| {
            state.instances += 1;
            state.instances
        });
        Counter { instance, permit: None, pool: self.clone() }
    }

    pub(crate) fn free(&self) -> usize {
        self.with_state(|state| state.free)
    }

    /// Returns the number of instances ever created.
    pub(crate) fn instances(&self) -> usize {
        self.with_state(|state| state.instances)
    }

    /// Returns the instance and the request of each call, in order.
    pub(crate) fn calls(&self) -> Vec<(usize, TestRequest)> {
        self.with_state(|state| state.calls.clone())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let waiting = self.0.with_state(|state| {
            state.free += 1;
            std::mem::take(&mut state.waiting)
        });
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Clone for Counter {
    fn clone(&self) -> Self {
        self.pool.service()
    }
}

/// The error of the inner service.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the inner service has failed")
    }
}

impl std::error::Error for Failure {}

impl Service<TestRequest> for Counter {
    type Response = usize;
    type Error = BoxError;
    type Future = Working;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.permit.is_none() {
            let granted = self.pool.with_state(|state| {
                let rest = state.free.checked_sub(1);
                if rest.is_none() {
                    state.waiting.push(cx.waker().clone());
                }
                state.free = rest.unwrap_or(0);
                rest.is_some()
            });
            if !granted {
                return Poll::Pending;
            }
            self.permit = Some(Permit(self.pool.clone()));
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: TestRequest) -> Working {
        let permit = self.permit.take().expect("called without having been made ready");
        self.pool.with_state(|state| state.calls.push((self.instance, request)));
        assert!(request.act != Act::PanicInCall, "panic requested in `call`");
        Working { instance: self.instance, act: request.act, _permit: permit }
    }
}

/// The future of [`Counter`], which holds the permit.
#[derive(Debug)]
pub(crate) struct Working {
    instance: usize,
    act: Act,
    _permit: Permit,
}

impl Future for Working {
    type Output = Result<usize, BoxError>;

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.act {
            Act::Answer => Poll::Ready(Ok(self.instance)),
            Act::Fail => Poll::Ready(Err(Failure.into())),
            Act::Hang => Poll::Pending,
            Act::PanicInCall | Act::PanicInFuture => panic!("panic requested"),
        }
    }
}

/// A limiter for keys of any type: each is a number for the limiter inside. So memory is compiled for one type of keys, of
/// which the layer knows nothing.
#[derive(Clone)]
pub(crate) struct ByNumber(pub(crate) BoxLimiter<u32>);

impl ByNumber {
    #[allow(clippy::cast_possible_truncation, reason = "few keys")]
    fn of<Key: Hash + ?Sized>(key: &Key) -> u32 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(key) as u32
    }
}

impl<Key: Hash + ?Sized> Limiter<Key> for ByNumber {
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        self.0.acquire(&Self::of(key), options)
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.0.peek(&Self::of(key), options)
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.0.limits_of(&Self::of(key), limits);
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.0.administer(&Self::of(key), operation)
    }
}

/// A limiter in memory.
pub(crate) fn memory<Key: Hash + ?Sized + 'static>(
    algorithm: impl Algorithm,
    clock: impl Clock + 'static,
) -> BoxLimiter<Key> {
    let limiter = Memory::<u32, _>::builder(algorithm).clock(clock).build().expect("a limit");
    BoxLimiter::new(ByNumber(BoxLimiter::new(limiter)))
}

/// A limiter in memory with several limits, which count by the whole key.
pub(crate) fn several<Key: Hash + ?Sized + 'static>(
    limits: impl IntoIterator<Item = DynLimit<u32>>,
    clock: impl Clock + 'static,
) -> BoxLimiter<Key> {
    let limits = limits.into_iter().collect::<Vec<_>>();
    let limiter = Memory::builder(limits).clock(clock).build().expect("limits");
    BoxLimiter::new(ByNumber(BoxLimiter::new(limiter)))
}

pub(crate) fn limit(name: &'static str, algorithm: impl Algorithm) -> DynLimit<u32> {
    DynLimit::new(Limit::new(name, algorithm))
}

/// A limiter of `limit` a minute for each key, whose clock stands still.
pub(crate) fn named<Key: Hash + ?Sized + 'static>(name: &'static str, limit: u64) -> BoxLimiter<Key> {
    several([self::limit(name, FixedWindow::new(Quota::per_minute(limit)))], ManualClock::new())
}

/// Creates a limiter of `limit` a minute for each key, and its clock.
pub(crate) fn per_minute<Key: Hash + ?Sized + 'static>(limit: u64) -> (BoxLimiter<Key>, ManualClock) {
    let clock = ManualClock::new();
    (memory(FixedWindow::new(Quota::per_minute(limit)), clock.clone()), clock)
}

/// A limiter that returns the same outcome immediately for every key.
#[derive(Clone)]
pub(crate) struct StubLimiter(pub(crate) Result<Decision, Error>);

impl<Key: ?Sized> Limiter<Key> for StubLimiter {
    fn acquire(&self, _key: &Key, _options: AcquireOptions) -> LimiterFuture<Outcome> {
        LimiterFuture::ready(self.0.clone().map(Outcome::from))
    }
}

impl StubLimiter {
    pub(crate) fn allowing() -> Self {
        Self(Ok(decision(Verdict::Allowed)))
    }

    pub(crate) fn denying() -> Self {
        Self(Ok(decision(Verdict::Denied { retry_after: Duration::from_millis(1500) })))
    }

    pub(crate) fn exceeding() -> Self {
        Self(Ok(decision(Verdict::ExceedsLimit)))
    }

    pub(crate) fn failing() -> Self {
        Self(Err(Error::unavailable("connection lost")))
    }

    /// A declared policy in place of a failed store.
    pub(crate) fn from_policy(verdict: Verdict) -> Self {
        Self(Ok(Decision::without_limit(Timestamp::EPOCH, verdict)))
    }

    pub(crate) fn from_source(source: DecisionSource, verdict: Verdict) -> Self {
        Self(Ok(decision(verdict).with_source(source)))
    }
}

/// Returns a decision of one limit named `stub`, with 3 of 5 a minute remaining.
pub(crate) fn decision(verdict: Verdict) -> Decision {
    let snapshot = LimitSnapshot::new(5, Duration::from_secs(60))
        .with_remaining(3)
        .with_reset(Duration::from_secs(40))
        .with_next_token_after(Duration::from_secs(12));
    Decision::from_limit(ManualClock::START, LimitStatus::new("stub", verdict, snapshot))
}

/// A limiter whose decisions are pending until the test completes them.
#[derive(Clone, Default)]
pub(crate) struct RemoteLimiter(Arc<Mutex<VecDeque<PendingDecision>>>);

/// An acquire of [`RemoteLimiter`] without a decision yet.
pub(crate) struct PendingDecision {
    pub(crate) key: &'static str,
    sender: oneshot::Sender<Result<Decision, Error>>,
}

impl RemoteLimiter {
    /// Removes and returns the oldest acquire without a decision.
    pub(crate) fn next_acquire(&self) -> PendingDecision {
        self.0.lock().unwrap().pop_front().expect("the limiter was not called")
    }
}

impl PendingDecision {
    pub(crate) fn complete(self, outcome: StubLimiter) {
        self.sender.send(outcome.0).expect("the acquire is pending");
    }

    /// Whether the caller dropped the acquire.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.sender.is_closed()
    }
}

impl Limiter<&'static str> for RemoteLimiter {
    fn acquire(&self, &key: &&'static str, _: AcquireOptions) -> LimiterFuture<Outcome> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().unwrap().push_back(PendingDecision { key, sender });
        LimiterFuture::pending(async {
            let result = receiver.await.map_err(|_| Error::unavailable("the store closed the connection"))?;
            result.map(Outcome::from)
        })
    }
}
