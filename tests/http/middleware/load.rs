//! What the tests of queues share: calls, services, limiters and loads. Each has one type, so that the compiler generates the
//! code of the layer for few types.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{LimiterFuture, LimitsOfKey, Outcome};
use tower_ratelimit::observe::{Event, WaitEnd};
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{AcquireOptions, BoxLimiter, DynLimit, Limit, Limiter, Memory, RateLimitLayer, TokioClock};

use crate::support::{Task, spawn};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A request of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) key: u32,
    /// Distinguishes the calls of one key.
    pub(crate) number: u32,
    pub(crate) cost: u64,
    /// How long the service works on it.
    pub(crate) work: Duration,
}

impl Call {
    pub(crate) const fn of(key: u32) -> Self {
        Self { key, number: 0, cost: 1, work: Duration::ZERO }
    }

    /// A call of the key that all calls have if keys are not the subject.
    pub(crate) const fn number(number: u32) -> Self {
        Self { number, ..Self::of(0) }
    }

    pub(crate) const fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    pub(crate) const fn work(self, work: Duration) -> Self {
        Self { work, ..self }
    }
}

/// A service that responds with the time at which it was called.
pub(crate) type CallService = BoxCloneSyncService<Call, Instant, BoxError>;

pub(crate) type CallLayer = RateLimitLayer<fn(&Call) -> Option<u32>, BoxLimiter<u32>, RejectWithError>;

pub(crate) fn layer(limiter: impl Limiter<u32>) -> CallLayer {
    let key_of: fn(&Call) -> Option<u32> = |call| Some(call.key);
    RateLimitLayer::new(key_of, BoxLimiter::new(limiter)).responder(RejectWithError)
}

fn cost_of(call: &Call) -> u64 {
    call.cost
}

/// Each call is charged its cost.
pub(crate) fn limited(layer: CallLayer, inner: CallService) -> CallService {
    CallService::new(layer.cost(cost_of).layer(inner))
}

/// The cost of a call is held until the service has responded, and then released.
pub(crate) fn held(layer: CallLayer, inner: CallService) -> CallService {
    CallService::new(layer.cost(cost_of).settle(|_: u64, _: Result<&Instant, &BoxError>| 0).layer(inner))
}

/// A call is in flight until the service has responded.
pub(crate) fn in_flight(layer: CallLayer, inner: CallService) -> CallService {
    CallService::new(layer.cost(cost_of).release_on_response().layer(inner))
}

pub(crate) type Calls = Arc<Mutex<Vec<(Instant, Call)>>>;

/// A service that works as long as each call says, and records the calls.
pub(crate) fn recorder() -> (Calls, CallService) {
    let calls = Calls::default();
    let recorded = Arc::clone(&calls);
    let service = service_fn(move |call: Call| {
        let started = Instant::now();
        recorded.lock().unwrap().push((started, call));
        async move {
            if !call.work.is_zero() {
                sleep(call.work).await;
            }
            Ok(started)
        }
    });
    (calls, CallService::new(service))
}

pub(crate) fn inner() -> CallService {
    recorder().1
}

/// Counts the calls in each span of time.
pub(crate) fn per_span(calls: &Calls, started: Instant, span: Duration, time: Duration) -> Vec<usize> {
    let mut spans = vec![0; usize::try_from(time.as_millis() / span.as_millis()).expect("a short time")];
    for (at, _) in calls.lock().unwrap().iter() {
        let index = usize::try_from((*at - started).as_millis() / span.as_millis()).expect("a short time");
        if let Some(count) = spans.get_mut(index) {
            *count += 1;
        }
    }
    spans
}

/// A limiter in memory, on tokio's clock.
pub(crate) fn memory(algorithm: impl Algorithm) -> BoxLimiter<u32> {
    BoxLimiter::new(Memory::builder(algorithm).clock(TokioClock::new()).build().expect("a limit"))
}

/// A limiter in memory with several limits, on tokio's clock.
pub(crate) fn several(limits: Vec<DynLimit<u32>>) -> BoxLimiter<u32> {
    BoxLimiter::new(Memory::builder(limits).clock(TokioClock::new()).build().expect("limits"))
}

/// A limit of each key.
pub(crate) fn of_each(algorithm: impl Algorithm) -> DynLimit<u32> {
    DynLimit::new(Limit::new("each", algorithm))
}

/// A limit of all keys together.
pub(crate) fn of_all(algorithm: impl Algorithm) -> DynLimit<u32> {
    let no_sub_key: fn(&u32) = |_| ();
    DynLimit::new(Limit::new("all", algorithm).keyed_by(no_sub_key))
}

/// A limiter behind a link: it decides half of `delay` after it was asked, and the answer takes the other half.
#[derive(Clone)]
pub(crate) struct Remote {
    inner: BoxLimiter<u32>,
    delay: Duration,
    pub(crate) asks: Arc<AtomicUsize>,
}

impl Remote {
    pub(crate) fn new(inner: BoxLimiter<u32>, delay: Duration) -> Self {
        Self { inner, delay, asks: Arc::default() }
    }
}

impl Limiter<u32> for Remote {
    fn acquire(&self, key: &u32, options: AcquireOptions) -> LimiterFuture<Outcome> {
        self.asks.fetch_add(1, Relaxed);
        let (inner, delay, key) = (self.inner.clone(), self.delay, *key);
        LimiterFuture::pending(async move {
            sleep(delay / 2).await;
            let Ok(result) = inner.acquire(&key, options).try_ready() else { panic!("a limiter in memory") };
            sleep(delay / 2).await;
            result
        })
    }

    fn limits_of(&self, key: &u32, limits: &mut LimitsOfKey<'_>) {
        self.inner.limits_of(key, limits);
    }
}

/// Sends calls at a constant rate, from clients that give up after `client_timeout`, whatever happens to earlier calls.
pub(crate) async fn open_loop(
    service: CallService,
    per_second: u32,
    client_timeout: Duration,
    time: Duration,
    call: impl Fn(u32) -> Call,
) {
    let started = Instant::now();
    for index in 0..per_second * u32::try_from(time.as_secs()).expect("a short time") {
        sleep_until(started + SECOND * index / per_second).await;
        drop(send(service.clone(), call(index), client_timeout));
    }
    sleep_until(started + time).await;
}

fn send(mut service: CallService, call: Call, client_timeout: Duration) -> Task<()> {
    spawn(async move {
        let call = async { service.ready().await?.call(call).await };
        let _ = timeout(client_timeout, call).await;
    })
}

/// What the events of a layer say of its waiting requests.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) asks: AtomicUsize,
    pub(crate) admitted: AtomicUsize,
    pub(crate) refused: AtomicUsize,
    pub(crate) served: AtomicUsize,
    pub(crate) rejected: AtomicUsize,
    pub(crate) left: AtomicUsize,
}

impl Counts {
    /// Adds an observer that counts.
    pub(crate) fn of(self: &Arc<Self>, layer: CallLayer) -> CallLayer {
        let counts = Arc::clone(self);
        layer.observe(move |event: &Event<'_>| {
            let count = match event {
                Event::WaitAsked { admitted, .. } => {
                    counts.admitted.fetch_add(usize::from(*admitted), Relaxed);
                    &counts.asks
                }
                Event::WaitRefused => &counts.refused,
                Event::WaitEnded { end: WaitEnd::Served, .. } => &counts.served,
                Event::WaitEnded { end: WaitEnd::Rejected, .. } => &counts.rejected,
                Event::WaitEnded { end: WaitEnd::Left, .. } => &counts.left,
                _ => return,
            };
            count.fetch_add(1, Relaxed);
        })
    }
}
