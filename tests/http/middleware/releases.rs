//! The law of releases: after a settlement, a release, a reset or an expiry in this process, the oldest request that can
//! now start, starts, and it costs few asks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tower::{ServiceExt, service_fn};
use tower_ratelimit::limiter::{Chained, Fallback, Held, LimiterFuture, LimitsOfKey, Outcome};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Clock as _, Decision, DynLimit, InFlight, Limit, LimitSnapshot, LimitStatus, Limiter,
    Memory, TokioClock, Verdict,
};

use crate::load::{Call, CallService, Counts, SECOND, in_flight, inner, layer, memory, of_all, recorder, several};
use crate::random::Random;
use crate::support::{NOTIFICATIONS, ms, spawn};

/// The key of a call says its tenant, and its kind.
fn tenant(key: u32) -> u32 {
    key % 4
}

fn is_bulk(key: u32) -> bool {
    key & 4 != 0
}

fn is_write(key: u32) -> bool {
    key & 8 != 0
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
    /// The limits have a fallback of the same limits.
    has_fallback: bool,
}

impl Setup {
    fn random(random: &mut Random) -> Self {
        let capacity = 3 + random.below(6);
        let mut some = |below| Some(1 + random.below(2 * below)).filter(|value| *value <= below);
        let share = some(1);
        let [of_tenant, of_writes] = [some(3), some(2)].map(|max| max.filter(|_| share.is_none()));
        Self { capacity, kept: some(2), share, of_tenant, of_writes, has_fallback: random.below(3) == 0 }
    }

    fn limiter(self) -> BoxLimiter<u32> {
        let [primary, secondary] = [(); 2].map(|()| self.memory());
        if self.has_fallback { BoxLimiter::new(Fallback::new(primary, secondary)) } else { primary }
    }

    fn memory(self) -> BoxLimiter<u32> {
        let by_tenant = |name, max| {
            let by_tenant: fn(&u32) -> u32 = |key| tenant(*key);
            Limit::new(name, InFlight::new(max)).keyed_by(by_tenant)
        };
        let mut limits = vec![match self.kept {
            Some(kept) => {
                let all = Limit::new("all", InFlight::new(self.capacity)).keyed_by(|_: &u32| ());
                DynLimit::new(all.keep_free_by(move |key: &u32| if is_bulk(*key) { kept } else { 0 }))
            }
            None => of_all(InFlight::new(self.capacity)),
        }];
        limits.extend(self.share.map(|share| DynLimit::new(by_tenant("share", share).guarantee(3))));
        limits.extend(self.of_tenant.map(|max| DynLimit::new(by_tenant("tenant", max))));
        limits.extend(self.of_writes.map(|max| {
            let writes = Limit::new("writes", InFlight::new(max)).keyed_by(|_: &u32| ());
            DynLimit::new(writes.only_if(|key: &u32| is_write(*key)))
        }));
        several(limits)
    }

    /// The model: whether a call can start while these run, and whether it is within its share then. Such a call needs no
    /// units that are kept free.
    fn admits(self, call: u32, running: &BTreeMap<u32, (u32, bool)>) -> Option<bool> {
        let count = |matches: &dyn Fn(u32, bool) -> bool| {
            running.values().filter(|(other, is_within)| matches(*other, *is_within)).count() as u64
        };
        let of_tenant = |other| tenant(other) == tenant(call);
        let is_denied = self.of_tenant.is_some_and(|max| count(&|other, _| of_tenant(other)) >= max)
            || is_write(call) && self.of_writes.is_some_and(|max| count(&|other, _| is_write(other)) >= max);
        let within = count(&|other, is_within| of_tenant(other) && is_within);
        let is_within = self.share.is_some_and(|share| within < share);
        let kept = if is_within { 0 } else { self.kept_from(call).unwrap_or(0) };
        (!is_denied && running.len() as u64 + kept < self.capacity).then_some(is_within)
    }

    fn kept_from(self, call: u32) -> Option<u64> {
        let by_class = self.kept.filter(|_| is_bulk(call));
        by_class.max(self.share.map(|share| 3 * share))
    }
}

enum End {
    /// A handler of the layer ends.
    Inside,
    /// A guard of the limiter ends.
    Outside(Held),
}

struct Run {
    setup: Setup,
    running: BTreeMap<u32, (u32, bool)>,
    ends: BTreeMap<u32, End>,
    waiting: BTreeMap<u32, u32>,
}

/// For random limits on requests in flight, with classes, shares, tenants, conditions and a fallback: at each time, no waiting request
/// can start that is older than each other one in its way. As time passes between two events, no request waits that the
/// limits admit.
#[tokio::test(start_paused = true)]
async fn release_wakes_what_it_frees() {
    const CALLS: usize = 40;

    let _lock = NOTIFICATIONS.lock().await;
    let (mut waited, mut released) = (0, 0);
    for seed in 0..180 {
        let mut random = Random::new(seed);
        let setup = Setup::random(&mut random);
        let limiter = setup.limiter();
        let counts = Arc::new(Counts::default());
        let started = Arc::new(Mutex::new(Vec::new()));
        let ends: Arc<[Notify; CALLS]> = Arc::new([const { Notify::const_new() }; CALLS]);
        let (starts, ending) = (Arc::clone(&started), Arc::clone(&ends));
        let inner = CallService::new(service_fn(move |call: Call| {
            starts.lock().unwrap().push(call.number);
            let ending = Arc::clone(&ending);
            async move {
                ending[call.number as usize].notified().await;
                Ok(Instant::now())
            }
        }));
        let service = in_flight(counts.of(layer(limiter.clone()).max_wait(10_000 * SECOND)), inner);
        let mut run = Run { setup, running: BTreeMap::new(), ends: BTreeMap::new(), waiting: BTreeMap::new() };
        for number in (0..).take(CALLS) {
            if random.below(2) == 0 || run.ends.is_empty() {
                let tenant = u32::try_from(random.below(3)).expect("small");
                let [bulk, write] = [4, 8].map(|bit| if random.below(3) == 0 { bit } else { 0 });
                let key = tenant + bulk + write;
                if random.below(3) == 0 {
                    let Ok(outcome) = limiter.hold(&key, AcquireOptions::default()).try_ready() else { continue };
                    if let Some(held) = outcome.expect("memory").held {
                        let is_within = setup.admits(key, &run.running).expect("the model admits it");
                        run.running.insert(number, (key, is_within));
                        run.ends.insert(number, End::Outside(held));
                    }
                } else {
                    drop(spawn(service.clone().oneshot(Call { number, ..Call::of(key) })));
                    run.waiting.insert(number, key);
                    run.ends.insert(number, End::Inside);
                }
            } else {
                let running: Vec<_> = run.running.keys().copied().collect();
                let Some(ending) = running.get(random.index(running.len().max(1))).copied() else {
                    continue;
                };
                run.running.remove(&ending);
                let before = counts.asks.load(Relaxed);
                match run.ends.remove(&ending) {
                    Some(End::Inside) => ends[ending as usize].notify_one(),
                    Some(End::Outside(held)) => drop(held),
                    None => unreachable!("each running request has an end"),
                }
                settle(&started, &mut run).await;
                released += 1;
                let asks = counts.asks.load(Relaxed) - before;
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

async fn settle(started: &Mutex<Vec<u32>>, run: &mut Run) {
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
        let all = of_all(InFlight::new(u64::from(TENANTS) * if has_shares { 4 } else { 2 } + 10));
        let of_tenant = InFlight::new(if has_shares { 2 } else { 4 });
        let tenant = Limit::new("tenant", of_tenant).keyed_by(|tenant: &u32| *tenant);
        let tenant = if has_shares { DynLimit::new(tenant.guarantee(TENANTS.into())) } else { DynLimit::new(tenant) };
        let builder = Memory::builder(vec![all, tenant]).max_keys(50_000).clock(TokioClock::new());
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
        let (counts, (calls, inner)) = (Arc::new(Counts::default()), recorder());
        let layer = counts.of(layer(limiter.clone()).max_wait(10_000 * SECOND));
        let service = in_flight(layer.max_waiters(20_000).max_waiters_per_key(20_000), inner);
        for tenant in tenants {
            drop(spawn(service.clone().oneshot(Call::of(tenant).work(Duration::MAX))));
        }
        sleep(ms(20)).await;
        let before = counts.asks.load(Relaxed);
        held.drain(..5).for_each(drop);
        sleep(ms(20)).await;
        let asks = counts.asks.load(Relaxed) - before;
        let started: Vec<_> = calls.lock().unwrap().iter().map(|(_, call)| call.key).collect();
        assert_eq!(started, [0, 1, 2, 3, 4], "shares: {has_shares}");
        assert!(asks <= 10, "{asks} asks for five units, shares: {has_shares}");
        drop(kept);
    }
}

/// The expiry of a request in flight that the limiter notices wakes the requests that it concerns.
#[tokio::test(start_paused = true)]
async fn expiry_wakes_the_requests_of_the_key() {
    let _lock = NOTIFICATIONS.lock().await;
    let limit = InFlight::new(1).max_duration(ms(500));
    // One shard: a decision ends the overdue requests of its shard.
    let builder = Memory::<u32, _>::builder(limit).max_keys(20);
    let limiter: Memory<u32, _> = builder.clock(TokioClock::new()).build().expect("a limit");
    let held = limiter.hold(&1, AcquireOptions::default()).await.expect("memory").held.expect("allowed");
    let service = in_flight(layer(limiter.clone()).max_wait(10_000 * SECOND), inner());
    let waiting = spawn(service.oneshot(Call::of(1)));
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
    inner: BoxLimiter<u32>,
    other: Arc<Mutex<Option<Held>>>,
}

impl Limiter<u32> for EndsAfterDenial {
    fn acquire(&self, key: &u32, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let (decision, other) = (self.inner.acquire(key, options), Arc::clone(&self.other));
        LimiterFuture::pending(async move {
            let outcome = decision.await?;
            let ended = other.lock().unwrap().take_if(|_| !outcome.decision.is_allowed());
            drop(ended);
            Ok(outcome)
        })
    }

    fn limits_of(&self, key: &u32, limits: &mut LimitsOfKey<'_>) {
        self.inner.limits_of(key, limits);
    }
}

/// The release finds no queue, so the first request of the new queue must ask at once, whatever its cost.
#[tokio::test(start_paused = true)]
async fn release_between_the_denial_and_the_wait_is_not_missed() {
    for cost in 1..=10 {
        let inner_limiter = memory(InFlight::new(10));
        let other = inner_limiter.acquire(&0, AcquireOptions::cost(11 - cost).keep_guard()).await.expect("a decision");
        let limiter = EndsAfterDenial { inner: inner_limiter, other: Arc::new(Mutex::new(other.held)) };
        let service = in_flight(layer(limiter.clone()).max_wait(30 * SECOND), inner());
        let started = Instant::now();
        service.oneshot(Call::of(0).cost(cost)).await.expect("a start");
        assert!(limiter.other.lock().unwrap().is_none(), "the request was denied first");
        assert!(started.elapsed() < Duration::from_millis(10), "{cost}: {:?}", started.elapsed());
    }
}

/// A limit in flight of a user's own, which names itself.
#[derive(Clone, Default)]
struct OneSlot(Arc<AtomicBool>);

impl Limiter<u32> for OneSlot {
    fn acquire(&self, _: &u32, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let is_taken = self.0.swap(true, Relaxed);
        let verdict = if is_taken { Verdict::Denied { retry_after: 500 * SECOND } } else { Verdict::Allowed };
        let status = LimitStatus::new("slot", verdict, LimitSnapshot::new(1, SECOND));
        let slot = Arc::clone(&self.0);
        let release = move || {
            slot.store(false, Relaxed);
            LimiterFuture::ready(Ok(()))
        };
        let held = (!is_taken).then(|| Held::until_end(options.cost, release));
        LimiterFuture::ready(Ok(Outcome::new(Decision::from_limit(TokioClock::new().now(), status), held)))
    }

    fn limits_of(&self, _: &u32, limits: &mut LimitsOfKey<'_>) {
        limits.add("slot", &());
    }
}

/// The end of a request wakes those that wait for a limit of a user's own, also if the limiter has limits of a store.
#[tokio::test(start_paused = true)]
async fn end_wakes_the_requests_that_wait_for_a_limit_beside_a_store() {
    let _lock = NOTIFICATIONS.lock().await;
    let slot = OneSlot::default();
    for limiter in [
        BoxLimiter::new(slot.clone()),
        BoxLimiter::new(Chained::new(slot.clone(), memory(InFlight::new(9)))),
        BoxLimiter::new(Chained::new(memory(InFlight::new(9)), slot.clone())),
    ] {
        let (calls, inner) = recorder();
        let service = in_flight(layer(limiter).max_wait(600 * SECOND), inner);
        let started = Instant::now();
        let first = spawn(service.clone().oneshot(Call::of(0).work(5 * SECOND)));
        sleep(ms(10)).await;
        let second = spawn(service.oneshot(Call::of(1).work(SECOND)));
        first.await.expect("no panic").expect("a start");
        second.await.expect("no panic").expect("a start");
        let starts: Vec<_> = calls.lock().unwrap().iter().map(|(at, _)| at.duration_since(started)).collect();
        assert_eq!(starts, [Duration::ZERO, 5 * SECOND]);
    }
}
