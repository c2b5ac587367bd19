//! The law of releases: after a settlement, a release, a reset or an expiry in this process, the oldest request that can
//! now start, starts, and it costs few asks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::key::Global;
use tower_ratelimit::limiter::{Held, LimiterFuture, LimitsOfKey, Outcome};
use tower_ratelimit::observe::Event;
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, DynLimit, InFlight, Limit, Limiter, Memory, Quota, RateLimitLayer, SlidingLog,
    TokioClock,
};

use crate::random::Random;
use crate::support::{NOTIFICATIONS, ms, spawn};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    tenant: u64,
    is_bulk: bool,
    is_write: bool,
}

/// What the limits of a run are: requests in flight, with a limit of each kind or without it.
#[derive(Clone, Copy, Debug)]
struct Setup {
    capacity: u64,
    /// The units that are kept free from bulk requests.
    kept: Option<u64>,
    /// The guaranteed share of each of three tenants.
    share: Option<u64>,
    of_tenant: Option<u64>,
    of_writes: Option<u64>,
}

impl Setup {
    fn random(random: &mut Random) -> Self {
        let capacity = 3 + random.below(6);
        let mut some = |below| Some(1 + random.below(2 * below)).filter(|value| *value <= below);
        let share = some(1);
        let [of_tenant, of_writes] = [some(3), some(2)].map(|max| max.filter(|_| share.is_none()));
        Self { capacity, kept: some(2), share, of_tenant, of_writes }
    }

    fn limiter(self) -> BoxLimiter<Call> {
        let mut limits = Vec::new();
        let all = Limit::new("all", InFlight::new(self.capacity)).keyed_by(|_: &Call| ());
        limits.push(match self.kept {
            Some(kept) => DynLimit::new(all.keep_free_by(move |call: &Call| if call.is_bulk { kept } else { 0 })),
            None => DynLimit::new(all),
        });
        limits.extend(self.share.map(|share| {
            DynLimit::new(Limit::new("share", InFlight::new(share)).keyed_by(|call: &Call| call.tenant).guarantee(3))
        }));
        limits
            .extend(self.of_tenant.map(|max| {
                DynLimit::new(Limit::new("tenant", InFlight::new(max)).keyed_by(|call: &Call| call.tenant))
            }));
        limits.extend(self.of_writes.map(|max| {
            let writes = Limit::new("writes", InFlight::new(max)).keyed_by(|_: &Call| ());
            DynLimit::new(writes.only_if(|call: &Call| call.is_write))
        }));
        BoxLimiter::new(Memory::builder(limits).clock(TokioClock::new()).build().expect("limits"))
    }

    /// The model: whether a call can start while these run, and whether it is within its share then. Such a call needs no
    /// units that are kept free.
    fn admits(self, call: Call, running: &BTreeMap<u64, (Call, bool)>) -> Option<bool> {
        let count = |matches: &dyn Fn(&Call, bool) -> bool| {
            running.values().filter(|(other, is_within)| matches(other, *is_within)).count() as u64
        };
        let is_denied = self.of_tenant.is_some_and(|max| count(&|other, _| other.tenant == call.tenant) >= max)
            || call.is_write && self.of_writes.is_some_and(|max| count(&|other, _| other.is_write) >= max);
        let within = count(&|other, is_within| other.tenant == call.tenant && is_within);
        let is_within = self.share.is_some_and(|share| within < share);
        let kept = if is_within { 0 } else { self.kept_from(call).unwrap_or(0) };
        (!is_denied && running.len() as u64 + kept < self.capacity).then_some(is_within)
    }

    fn kept_from(self, call: Call) -> Option<u64> {
        let by_class = self.kept.filter(|_| call.is_bulk);
        by_class.max(self.share.map(|share| 3 * share))
    }
}

enum End {
    /// A handler of the layer ends.
    Inside(Arc<tokio::sync::Notify>),
    /// A guard of the limiter ends.
    Outside(Held),
}

struct Run {
    setup: Setup,
    running: BTreeMap<u64, (Call, bool)>,
    ends: BTreeMap<u64, End>,
    waiting: BTreeMap<u64, Call>,
}

/// For random limits on requests in flight, with classes, shares, tenants and conditions: at each time, no waiting request
/// can start that is older than each other one in its way. As time passes between two events, no request waits that the
/// limits admit.
#[tokio::test(start_paused = true)]
async fn release_wakes_what_it_frees() {
    let _lock = NOTIFICATIONS.lock().await;
    let (mut waited, mut released) = (0, 0);
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let setup = Setup::random(&mut random);
        let limiter = setup.limiter();
        let (started, asks): (Arc<Mutex<Vec<_>>>, Arc<AtomicUsize>) = Default::default();
        let (starts, counted) = (Arc::clone(&started), Arc::clone(&asks));
        let inner = service_fn(move |(number, _, end): (u64, Call, Arc<tokio::sync::Notify>)| {
            starts.lock().unwrap().push(number);
            async move {
                end.notified().await;
                Ok::<_, BoxError>(())
            }
        });
        let layer =
            RateLimitLayer::new(|request: &(u64, Call, Arc<tokio::sync::Notify>)| Some(request.1), limiter.clone())
                .responder(RejectWithError)
                .release_on_response()
                .max_wait(10_000 * SECOND)
                .observe(move |event: &Event<'_>| {
                    counted.fetch_add(usize::from(matches!(event, Event::WaitAsked { .. })), Relaxed);
                });
        let service = layer.layer(inner);
        let mut run = Run { setup, running: BTreeMap::new(), ends: BTreeMap::new(), waiting: BTreeMap::new() };
        for number in 0..40 {
            if random.below(2) == 0 || run.ends.is_empty() {
                let call =
                    Call { tenant: random.below(3), is_bulk: random.below(3) == 0, is_write: random.below(3) == 0 };
                if random.below(3) == 0 {
                    let Ok(outcome) = limiter.hold(&call, AcquireOptions::default()).try_ready() else { continue };
                    if let Some(held) = outcome.expect("memory").held {
                        let is_within = setup.admits(call, &run.running).expect("the model admits it");
                        run.running.insert(number, (call, is_within));
                        run.ends.insert(number, End::Outside(held));
                    }
                } else {
                    let end = Arc::new(tokio::sync::Notify::new());
                    drop(spawn(service.clone().oneshot((number, call, Arc::clone(&end)))));
                    run.waiting.insert(number, call);
                    run.ends.insert(number, End::Inside(end));
                }
            } else {
                let running: Vec<_> = run.running.keys().copied().collect();
                let Some(ending) = running.get(random.index(running.len().max(1))).copied() else {
                    continue;
                };
                run.running.remove(&ending);
                let before = asks.load(Relaxed);
                match run.ends.remove(&ending) {
                    Some(End::Inside(end)) => end.notify_one(),
                    Some(End::Outside(held)) => drop(held),
                    None => unreachable!("each running request has an end"),
                }
                settle(&started, &mut run).await;
                released += 1;
                let asks = asks.load(Relaxed) - before;
                assert!(asks <= 8, "seed {seed}, {setup:?}: {asks} asks after one release");
            }
            // Less than the time after which a queue asks again by itself.
            settle(&started, &mut run).await;
            waited += run.waiting.len();
            for (waiting, call) in &run.waiting {
                assert!(
                    run.setup.admits(*call, &run.running).is_none(),
                    "seed {seed}, step {number}, {setup:?}: {waiting} {call:?} waits behind {:?}",
                    run.running
                );
            }
        }
    }
    assert!(waited > 3_000 && released > 800, "{waited} waited, {released} released");
}

async fn settle(started: &Mutex<Vec<u64>>, run: &mut Run) {
    sleep(ms(3)).await;
    for number in started.lock().unwrap().drain(..) {
        let call = run.waiting.remove(&number).expect("it waits");
        let is_within = run.setup.admits(call, &run.running).expect("the model admits it");
        run.running.insert(number, (call, is_within));
    }
}

/// Two thousand tenants wait behind one common limit, each with a limit of its own. A released unit costs at most two
/// asks, however many wait, and goes to the oldest.
#[tokio::test(start_paused = true)]
async fn release_asks_at_most_twice_for_a_unit() {
    const TENANTS: u32 = 2_000;

    let _lock = NOTIFICATIONS.lock().await;
    for has_shares in [false, true] {
        let all = Limit::new("all", InFlight::new(u64::from(TENANTS) * if has_shares { 4 } else { 2 } + 10))
            .keyed_by(|_: &u32| ());
        let of_tenant = InFlight::new(if has_shares { 2 } else { 4 });
        let tenant = Limit::new("tenant", of_tenant).keyed_by(|tenant: &u32| *tenant);
        let tenant = if has_shares { DynLimit::new(tenant.guarantee(TENANTS.into())) } else { DynLimit::new(tenant) };
        let builder = Memory::builder(vec![DynLimit::new(all), tenant]).max_keys(50_000).clock(TokioClock::new());
        let limiter: Memory<u32, _> = builder.build().expect("limits");
        let hold = |tenant: u32| match limiter.hold(&tenant, AcquireOptions::default()).try_ready() {
            Ok(outcome) => outcome.expect("memory").held.expect("a free unit"),
            Err(_) => unreachable!("memory"),
        };
        // All units are held. With shares, each tenant has its two units, and ten have borrowed one more.
        let tenants = 0..TENANTS;
        let holders = if has_shares { 0 } else { TENANTS };
        let kept: Vec<_> = tenants.clone().chain(tenants.clone()).map(|tenant| hold(holders + tenant)).collect();
        let mut held: Vec<_> =
            (0..10).map(|other| hold(if has_shares { other } else { 2 * TENANTS + other })).collect();
        let (asks, starts): (Arc<AtomicUsize>, Arc<Mutex<Vec<u32>>>) = Default::default();
        let (counted, started) = (Arc::clone(&asks), Arc::clone(&starts));
        let layer = RateLimitLayer::new(|tenant: &u32| Some(*tenant), limiter.clone())
            .responder(RejectWithError)
            .release_on_response()
            .max_wait(10_000 * SECOND)
            .max_waiters(20_000)
            .max_waiters_per_key(20_000)
            .observe(move |event: &Event<'_>| {
                counted.fetch_add(usize::from(matches!(event, Event::WaitAsked { .. })), Relaxed);
            });
        let service = layer.layer(service_fn(move |tenant: u32| {
            started.lock().unwrap().push(tenant);
            std::future::pending::<Result<(), BoxError>>()
        }));
        for tenant in tenants {
            drop(spawn(service.clone().oneshot(tenant)));
        }
        sleep(ms(20)).await;
        let before = asks.load(Relaxed);
        held.drain(..5).for_each(drop);
        sleep(ms(20)).await;
        let asks = asks.load(Relaxed) - before;
        assert_eq!(*starts.lock().unwrap(), [0, 1, 2, 3, 4], "shares: {has_shares}");
        assert!(asks <= 10, "{asks} asks for five units, shares: {has_shares}");
        drop(kept);
    }
}

/// A reset, and the expiry of a request in flight that the limiter notices, wake the requests that they concern.
#[tokio::test(start_paused = true)]
async fn reset_and_expiry_wake_the_requests_of_the_key() {
    let _lock = NOTIFICATIONS.lock().await;
    let log = SlidingLog::new(Quota::per_hour(1));
    let limiter: Memory<u32, _> = Memory::builder(log).clock(TokioClock::new()).build().expect("a limit");
    let layer = RateLimitLayer::new(|tenant: &u32| Some(*tenant), limiter.clone()).responder(RejectWithError);
    let service =
        layer.max_wait(10_000 * SECOND).layer(service_fn(|_: u32| async { Ok::<_, BoxError>(Instant::now()) }));
    service.clone().oneshot(1).await.expect("the first");
    let waiting = spawn(service.clone().oneshot(1));
    sleep(ms(300)).await;
    limiter.reset(&1).await.expect("memory");
    let reset_at = Instant::now();
    assert_eq!(waiting.await.expect("no panic").expect("a start"), reset_at);

    let limit = InFlight::new(1).max_duration(ms(500));
    // One shard: a decision ends the overdue requests of its shard.
    let builder = Memory::<u32, _>::builder(limit).max_keys(20);
    let limiter: Memory<u32, _> = builder.clock(TokioClock::new()).build().expect("a limit");
    let held = limiter.hold(&1, AcquireOptions::default()).await.expect("memory").held.expect("allowed");
    let layer = RateLimitLayer::new(|tenant: &u32| Some(*tenant), limiter.clone()).responder(RejectWithError);
    let service = layer.release_on_response().max_wait(10_000 * SECOND);
    let service = service.layer(service_fn(|_: u32| async { Ok::<_, BoxError>(Instant::now()) }));
    let waiting = spawn(service.oneshot(1));
    sleep(ms(520)).await;
    // A decision on another key finds the overdue request.
    assert!(limiter.hold(&2, AcquireOptions::default()).await.expect("memory").held.is_some());
    let noticed_at = Instant::now();
    assert!(waiting.await.expect("no panic").expect("a start") <= noticed_at);
    drop(held);
}

/// A limiter whose other request ends as soon as it has denied a request.
#[derive(Clone)]
struct EndsAfterDenial {
    inner: BoxLimiter<()>,
    other: Arc<Mutex<Option<Held>>>,
}

impl Limiter<()> for EndsAfterDenial {
    fn acquire(&self, key: &(), options: AcquireOptions) -> LimiterFuture<Outcome> {
        let (decision, other) = (self.inner.acquire(key, options), Arc::clone(&self.other));
        LimiterFuture::pending(async move {
            let outcome = decision.await?;
            let ended = other.lock().unwrap().take_if(|_| !outcome.decision.is_allowed());
            drop(ended);
            Ok(outcome)
        })
    }

    fn limits_of(&self, key: &(), limits: &mut LimitsOfKey<'_>) {
        self.inner.limits_of(key, limits);
    }
}

/// The release finds no queue, so the first request of the new queue must ask at once, whatever its cost.
#[tokio::test(start_paused = true)]
async fn release_between_the_denial_and_the_wait_is_not_missed() {
    for cost in 1..=10 {
        let limiter: Memory<(), _> =
            Memory::builder(InFlight::new(10)).clock(TokioClock::new()).build().expect("limits");
        let other = limiter.acquire(&(), AcquireOptions::cost(11 - cost).keep_guard()).await.expect("a decision");
        let limiter = EndsAfterDenial { inner: BoxLimiter::new(limiter), other: Arc::new(Mutex::new(other.held)) };
        let layer = RateLimitLayer::new(Global, limiter.clone()).responder(RejectWithError).max_wait(30 * SECOND);
        let service =
            layer.release_on_response().cost(move |(): &()| cost).layer(service_fn(async |()| Ok::<_, BoxError>(())));
        let started = Instant::now();
        service.oneshot(()).await.expect("a start");
        assert!(limiter.other.lock().unwrap().is_none(), "the request was denied first");
        assert!(started.elapsed() < Duration::from_millis(10), "{cost}: {:?}", started.elapsed());
    }
}
