//! Goodput under overload: requests arrive whatever happens to earlier ones (open loop), and clients give up.

use std::future::{Ready, ready};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::key::Global;
use tower_ratelimit::limiter::{LimiterFuture, LimitsOfKey, Outcome};
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, FixedWindow, Gcra, LeakyQueue, Limit, Limiter, Memory, Quota, RateLimitLayer,
    SlidingLog, SlidingWindow, TokioClock,
};

use crate::support::{ms, spawn};

const SECOND: Duration = Duration::from_secs(1);

fn memory<Key: std::hash::Hash + 'static>(algorithm: impl Algorithm) -> BoxLimiter<Key> {
    BoxLimiter::new(Memory::builder(algorithm).max_keys(100).clock(TokioClock::new()).build().expect("a limit"))
}

/// Every kind of algorithm, at ten a second, and its longest interval between starts.
fn every_algorithm() -> Vec<(&'static str, Duration, BoxLimiter<()>)> {
    let quota = Quota::per_second(10);
    vec![
        ("LeakyQueue", ms(101), memory(LeakyQueue::new(quota).max_waiting(100))),
        ("Gcra, burst 1", ms(101), memory(Gcra::new(quota).burst(1))),
        ("Gcra, burst 20", ms(101), memory(Gcra::new(quota).burst(20))),
        ("FixedWindow", ms(1001), memory(FixedWindow::new(quota))),
        // A hit counts for up to a block longer than the period: 50 blocks admit at least 9.8 a second.
        ("SlidingWindow", ms(1021), memory(SlidingWindow::new(quota).blocks(50))),
        ("SlidingLog", ms(1001), memory(SlidingLog::new(quota))),
    ]
}

/// The length of each test of overload: 45 s of virtual time, or `GOODPUT_SECONDS`.
fn time_of_load() -> Duration {
    let seconds = std::env::var("GOODPUT_SECONDS").map_or(45, |text| text.parse().expect("GOODPUT_SECONDS: a number"));
    Duration::from_secs(seconds)
}

/// Sends requests at a constant rate, from clients that give up after `client_timeout`.
pub(crate) async fn open_loop<S, R>(
    service: S,
    per_second: u32,
    client_timeout: Duration,
    time: Duration,
    request: impl Fn(u32) -> R,
) where
    S: Service<R, Error = BoxError, Future: Send> + Clone + Send + 'static,
    S::Response: Send,
    R: Send + 'static,
{
    let started = Instant::now();
    let requests = per_second * u32::try_from(time.as_secs()).expect("a short time");
    for index in 0..requests {
        sleep_until(started + SECOND * index / per_second).await;
        let (mut service, request) = (service.clone(), request(index));
        spawn(async move {
            let call = async { service.ready().await?.call(request).await };
            let _ = timeout(client_timeout, call).await;
        });
    }
    sleep_until(started + time).await;
}

pub(crate) type Calls<R> = Arc<Mutex<Vec<(Instant, R)>>>;

/// A service that records the time and the request of each call.
pub(crate) fn recorder<R>()
-> (Calls<R>, impl Service<R, Response = (), Error = BoxError, Future = Ready<Result<(), BoxError>>> + Clone) {
    let calls = Calls::default();
    let recorded = Arc::clone(&calls);
    let service = service_fn(move |request| {
        recorded.lock().unwrap().push((Instant::now(), request));
        ready(Ok(()))
    });
    (calls, service)
}

/// Counts the calls in each span of time.
pub(crate) fn per_span<R>(calls: &Calls<R>, started: Instant, span: Duration, time: Duration) -> Vec<usize> {
    let mut spans = vec![0; usize::try_from(time.as_millis() / span.as_millis()).expect("a short time")];
    for (at, _) in calls.lock().unwrap().iter() {
        let index = usize::try_from((*at - started).as_millis() / span.as_millis()).expect("a short time");
        if let Some(count) = spans.get_mut(index) {
            *count += 1;
        }
    }
    spans
}

/// 1.5 times the rate, from clients that give up after 5 s, with waits of up to 10 s.
#[tokio::test(start_paused = true)]
async fn goodput_with_impatient_clients() {
    let (mut failed, time) = (Vec::new(), time_of_load());
    for (name, interval, limiter) in every_algorithm() {
        let (calls, inner) = recorder();
        let layer = RateLimitLayer::new(Global, limiter).responder(RejectWithError).max_wait(10 * SECOND);
        let mut service = layer.layer(inner);
        let started = Instant::now();
        open_loop(service.clone(), 15, 5 * SECOND, time, |_| ()).await;
        let spans = per_span(&calls, started, 15 * SECOND, time);
        println!("{name:<16} served per 15 s: {spans:?}");
        if spans.iter().any(|&served| served < 143) {
            failed.push(name);
        }
        // Nothing waits any more: the next request waits for at most one interval.
        sleep(ms(5001)).await;
        let before = Instant::now();
        service.ready().await.expect("ready").call(()).await.expect("a start");
        assert!(before.elapsed() <= interval, "{name}: {:?}", before.elapsed());
    }
    assert!(failed.is_empty(), "goodput below 95 %: {failed:?}");
}

/// A limiter that takes `delay` for each decision, and counts the acquires.
#[derive(Clone)]
pub(crate) struct Remote<L> {
    inner: L,
    delay: Duration,
    asks: Arc<AtomicU64>,
}

impl<L> Remote<L> {
    pub(crate) fn new(inner: L, delay: Duration) -> Self {
        Self { inner, delay, asks: Arc::default() }
    }
}

impl<Key, L> Limiter<Key> for Remote<L>
where
    Key: Clone + Send + Sync + 'static,
    L: Limiter<Key> + Clone + Send + Sync + 'static,
{
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        self.asks.fetch_add(1, Ordering::Relaxed);
        let (inner, delay, key) = (self.inner.clone(), self.delay, key.clone());
        LimiterFuture::pending(async move {
            sleep(delay / 2).await;
            let Ok(result) = inner.acquire(&key, options).try_ready() else { panic!("a limiter in memory") };
            sleep(delay / 2).await;
            result
        })
    }

    fn limits_of(&self, key: &Key, limits: &mut LimitsOfKey<'_>) {
        self.inner.limits_of(key, limits);
    }
}

fn bucket(quota: Quota, burst: u64) -> Memory<(), Gcra> {
    Memory::builder(Gcra::new(quota).burst(burst)).max_keys(100).clock(TokioClock::new()).build().expect("a limit")
}

#[tokio::test(start_paused = true)]
async fn queue_over_a_slow_link_serves_the_whole_rate() {
    let limiter = Remote::new(bucket(Quota::per_second(5000), 1), ms(25));
    let layer = RateLimitLayer::new(Global, limiter).responder(RejectWithError).max_wait(SECOND);
    let (calls, inner) = recorder();
    let service = layer.max_waiters(20_000).max_waiters_per_key(20_000).layer(inner);
    let (started, time) = (Instant::now(), Duration::from_secs(4));
    open_loop(service, 7500, SECOND, time, |_| ()).await;
    let spans = per_span(&calls, started, SECOND, time);
    println!("5000 a second over 25 ms: {spans:?}");
    // The first second includes the growth of the number of asks under way.
    assert!(spans[1..].iter().all(|&served| served >= 4750), "{spans:?}");
}

/// Two processes with links of 0.2 and 25 ms (a timer's tick is 1 ms) share a bucket.
#[tokio::test(start_paused = true)]
async fn queues_with_a_fast_and_a_slow_link_share_a_bucket() {
    let shared = bucket(Quota::per_second(10), 1);
    let time = Duration::from_secs(60);
    let mut loads = Vec::new();
    for delay in [Duration::from_micros(200), ms(25)] {
        let limiter = Remote::new(shared.clone(), delay);
        let (calls, inner) = recorder();
        let service =
            RateLimitLayer::new(Global, limiter).responder(RejectWithError).max_wait(10 * SECOND).layer(inner);
        loads.push((calls, spawn(open_loop(service, 15, 5 * SECOND, time, |_| ()))));
    }
    let mut served = Vec::new();
    for (calls, load) in loads {
        load.await.expect("the load");
        served.push(calls.lock().unwrap().len());
    }
    println!("fast and slow link, of 600: {served:?}");
    assert!(served.iter().all(|&served| served >= 240), "{served:?}");
}

/// Costs of 10 and of 1 arrive equally often. In one process they are served equally often. In two, the small costs demand
/// less than half of the capacity, and the large ones receive the rest. No client leaves, and no bound applies.
#[tokio::test(start_paused = true)]
async fn large_cost_is_served() {
    let time = Duration::from_secs(60);
    let (calls, inner) = recorder();
    let layer = RateLimitLayer::new(Global, bucket(Quota::per_second(10), 20)).responder(RejectWithError);
    let service = layer.max_wait(500 * SECOND).cost(|cost: &u64| *cost).layer(inner);
    open_loop(service, 4, 500 * SECOND, time, |index| if index % 2 == 0 { 1 } else { 10 }).await;
    let of_cost = |cost| calls.lock().unwrap().iter().filter(|(_, other)| *other == cost).count();
    println!("one process, costs 1 and 10: {} and {}", of_cost(1), of_cost(10));
    assert!(of_cost(10).abs_diff(of_cost(1)) <= 1, "{} and {}", of_cost(1), of_cost(10));

    let shared = bucket(Quota::per_second(10), 20);
    let mut loads = Vec::new();
    for cost in [1, 10] {
        let (calls, inner) = recorder();
        let layer = RateLimitLayer::new(Global, shared.clone()).responder(RejectWithError).max_wait(500 * SECOND);
        let service = layer.cost(|cost: &u64| *cost).layer(inner);
        loads.push((calls, spawn(open_loop(service, 4, 500 * SECOND, time, move |_| cost))));
    }
    let mut served = Vec::new();
    for (calls, load) in loads {
        load.await.expect("the load");
        served.push(calls.lock().unwrap().len());
    }
    println!("two processes, costs 1 and 10: {served:?}");
    // 600 units in a minute, and the burst.
    assert!(served[1] * 10 >= 300 && served[0] + served[1] * 10 >= 570, "{served:?}");
}

/// A thousand users of one organisation wait for the organisation's limit.
#[tokio::test(start_paused = true)]
async fn users_of_one_organisation_ask_fewer_than_three_times_per_start() {
    for (name, window) in [("bucket", false), ("window", true)] {
        let organisation = |_: &u32| 7_u32;
        let user = Limit::new("user", Gcra::new(Quota::per_second(5)));
        let limiter: BoxLimiter<u32> = if window {
            let limits =
                (user, Limit::new("organisation", FixedWindow::new(Quota::per_second(50))).keyed_by(organisation));
            BoxLimiter::new(Memory::builder(limits).clock(TokioClock::new()).build().expect("limits"))
        } else {
            let limits = (user, Limit::new("organisation", Gcra::new(Quota::per_second(50))).keyed_by(organisation));
            BoxLimiter::new(Memory::builder(limits).clock(TokioClock::new()).build().expect("limits"))
        };
        let limiter = Remote::new(limiter, Duration::ZERO);
        let asks = Arc::clone(&limiter.asks);
        let (calls, inner) = recorder();
        let layer = RateLimitLayer::new(|user: &u32| Some(*user), limiter).responder(RejectWithError);
        let service = layer.max_wait(30 * SECOND).max_waiters(2_000).layer(inner);
        let warm_up = 50;
        open_loop(service.clone(), 50, 30 * SECOND, SECOND, |index| index).await;
        for user in warm_up..1_050_u32 {
            let mut service = service.clone();
            spawn(async move { service.call(user).await });
            if user % 10 == 0 {
                sleep(ms(1)).await;
            }
        }
        sleep(25 * SECOND).await;
        let (starts, asks) = (calls.lock().unwrap().len(), asks.load(Ordering::Relaxed));
        println!("{name}: {starts} starts, {asks} asks");
        assert_eq!(starts, 1_050);
        assert!(asks < 3 * 1_050, "{name}: {asks} asks for {starts} starts");
    }
}

/// The limit of the organisation of all users: ten starts a second.
fn organisation() -> BoxLimiter<u32> {
    let limit = Limit::new("organisation", Gcra::new(Quota::per_second(10)).burst(1)).keyed_by(|_: &u32| 7_u32);
    BoxLimiter::new(Memory::builder(limit).max_keys(100).clock(TokioClock::new()).build().expect("a limit"))
}

/// The same limit, and one for each user. Limits of which one is idle schedule no starts.
fn user_and_organisation() -> BoxLimiter<u32> {
    let user = Limit::new("user", Gcra::new(Quota::per_second(5)));
    let organisation = Limit::new("organisation", Gcra::new(Quota::per_second(10)).burst(1));
    let limits = (user, organisation.keyed_by(|_: &u32| 7_u32));
    BoxLimiter::new(Memory::builder(limits).max_keys(10_000).clock(TokioClock::new()).build().expect("limits"))
}

/// Returns what two processes with links of 0.2 and 25 ms served in each 15 s. Each request has a user of its own.
async fn served_of_one_organisation(
    shared: BoxLimiter<u32>,
    client_timeout: Duration,
    time: Duration,
) -> [Vec<usize>; 2] {
    let (started, mut loads) = (Instant::now(), Vec::new());
    for (process, delay) in [Duration::from_micros(200), ms(25)].into_iter().enumerate() {
        let (calls, inner) = recorder();
        let limiter = Remote::new(shared.clone(), delay);
        let layer = RateLimitLayer::new(|user: &u32| Some(*user), limiter).responder(RejectWithError);
        let service = layer.max_wait(2 * client_timeout).layer(inner);
        let user = move |index| index * 2 + u32::try_from(process).expect("0 or 1");
        loads.push((calls, spawn(open_loop(service, 15, client_timeout, time, user))));
    }
    let mut served = Vec::new();
    for (calls, load) in loads {
        load.await.expect("the load");
        served.push(per_span(&calls, started, 15 * SECOND, time));
    }
    served.try_into().expect("two processes")
}

/// Users of one organisation cannot use each other's starts. No process is left without starts, whatever its link, and no
/// start is lost to a client that is about to give up.
#[tokio::test(start_paused = true)]
async fn queues_of_many_users_share_the_limit_of_their_organisation() {
    let time = time_of_load();
    for (name, limiter) in [("one limit", organisation as fn() -> _), ("two limits", user_and_organisation)] {
        for client_timeout in [5 * SECOND, 500 * SECOND] {
            let served = served_of_one_organisation(limiter(), client_timeout, time).await;
            println!("{name}, users that wait {client_timeout:?}: fast and slow link, of 150 per 15 s: {served:?}");
            for (fast, slow) in served[0].iter().zip(&served[1]) {
                let total = fast + slow;
                assert!(total >= 143, "{name}: goodput below 95 %: {served:?}");
                assert!(fast * 10 >= total && slow * 10 >= total, "{name}: below 10 %: {served:?}");
            }
        }
    }
}

/// One process: its clients give up, and each has a key of its own.
#[tokio::test(start_paused = true)]
async fn goodput_with_impatient_users_of_one_organisation() {
    let time = time_of_load();
    for (per_second, client_timeout) in [(15, 5 * SECOND), (15, SECOND), (40, SECOND), (40, ms(60))] {
        for (name, limiter) in [("one limit", organisation()), ("two limits", user_and_organisation())] {
            let (calls, inner) = recorder();
            let layer = RateLimitLayer::new(|user: &u32| Some(*user), limiter).responder(RejectWithError);
            let service = layer.max_wait(10 * SECOND).layer(inner);
            let started = Instant::now();
            open_loop(service, per_second, client_timeout, time, |index| index).await;
            let spans = per_span(&calls, started, 15 * SECOND, time);
            println!("{name}, {per_second} users a second that wait {client_timeout:?}: served per 15 s: {spans:?}");
            assert!(spans.iter().all(|&served| served >= 143), "{name}, {per_second}, {client_timeout:?}: {spans:?}");
        }
    }
}
