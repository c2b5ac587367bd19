//! Waiting for limits in Redis: a release wakes what it frees, and paced bodies share a rate.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, Response};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tower::{BoxError, Layer, ServiceExt, service_fn};
use tower_ratelimit::limiter::Held;
use tower_ratelimit::observe::Event;
use tower_ratelimit::pacing::PacingLayer;
use tower_ratelimit::response::RejectWithError;
use tower_ratelimit::store::Lease;
use tower_ratelimit::{
    AcquireOptions, Detail, InFlight, Limit, Limiter as _, ManualClock, Quota, RateLimitLayer, Redis, RedisServer,
    TokenBucket,
};

use crate::helpers::{LONG_DEADLINE, ONE_DAY};
use crate::random::Random;
use crate::server::Server;

#[derive(Clone, Copy, Debug, Hash)]
struct Call {
    tenant: u64,
    is_bulk: bool,
}

/// At most four calls at a time, of which bulk calls leave one free, and two of a tenant.
fn limiter(server: RedisServer) -> Redis<Call> {
    let all = Limit::new("all", InFlight::new(4)).keyed_by(|_: &Call| ());
    let limits = (
        all.keep_free_by(|call: &Call| u64::from(call.is_bulk)),
        Limit::new("tenant", InFlight::new(2)).keyed_by(|call: &Call| call.tenant),
    );
    Redis::builder(server, "api", limits)
        .clock_for_tests(ManualClock::new())
        .hold_expiry(ONE_DAY)
        .deadline(LONG_DEADLINE)
        .build()
        .expect("limits")
}

/// The model: whether a call can start beside these.
fn admits(call: Call, running: &BTreeMap<u64, (Call, End)>) -> bool {
    let of_tenant = running.values().filter(|(other, _)| other.tenant == call.tenant).count();
    of_tenant < 2 && running.len() + usize::from(call.is_bulk) < 4
}

/// How a running call ends.
enum End {
    /// A handler of the layer ends.
    Inside(Arc<Notify>),
    /// A guard of the limiter ends.
    Outside(Held),
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Waits,
    Started(u64),
}

/// The next event. Tokio's paused clock stands while this waits, because a blocking task runs. Then it advances by the
/// milliseconds of a timer, and not by the time after which a queue asks again by itself.
async fn next(events: &Arc<std::sync::Mutex<mpsc::Receiver<Seen>>>, context: &dyn Fn() -> String) -> Seen {
    for _ in 0..5 {
        let events = Arc::clone(events);
        let seen = tokio::task::spawn_blocking(move || events.lock().unwrap().recv_timeout(Duration::from_secs(10)));
        if let Ok(seen) = seen.await.expect("no panic") {
            return seen;
        }
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    panic!("no call starts or waits: {}", context())
}

/// The clock of the queues stands, so no queue asks again by itself: only a release starts the calls that wait. They start
/// in order of arrival, but for those that their own limit denies.
#[test]
fn release_wakes_what_it_frees_in_redis() {
    let server = Server::start();
    let real = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (mut waited, mut released) = (0, 0);
    for seed in 0..8 {
        server.command(&["FLUSHALL"]);
        let limiter = limiter(server.open());
        // The tasks of the limiter run in real time.
        real.block_on(async { limiter.health_check().await.expect("a working Redis") });
        let paused = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        let counts = paused.block_on(run(seed, &limiter, &real));
        (waited, released) = (waited + counts.0, released + counts.1);
    }
    assert!(waited > 60 && released > 60, "{waited} waited, {released} released");
}

async fn run(seed: u64, limiter: &Redis<Call>, real: &Runtime) -> (usize, usize) {
    // The limiter's tasks have another clock. They would take the driver of a queue for stalled once their clock is later.
    tokio::time::advance(ONE_DAY).await;
    let (send, events) = mpsc::channel();
    let (starts, events) = (send.clone(), Arc::new(std::sync::Mutex::new(events)));
    let layer = RateLimitLayer::new(|request: &(u64, Call, Arc<Notify>)| Some(request.1), limiter.clone())
        .responder(RejectWithError)
        .release_on_response()
        .max_wait(Duration::from_secs(10_000))
        .observe(move |event: &Event<'_>| {
            if let Event::WaitStarted = event {
                send.send(Seen::Waits).expect("the test runs");
            }
        });
    let service = layer.layer(service_fn(move |(number, _, end): (u64, Call, Arc<Notify>)| {
        starts.send(Seen::Started(number)).expect("the test runs");
        async move {
            end.notified().await;
            Ok::<_, BoxError>(())
        }
    }));
    let (mut random, mut counts) = (Random::new(seed), (0, 0));
    let mut running: BTreeMap<u64, (Call, End)> = BTreeMap::new();
    let mut waiting: BTreeMap<u64, (Call, Arc<Notify>)> = BTreeMap::new();
    for number in 0..50 {
        let call = Call { tenant: random.below(3), is_bulk: random.below(3) == 0 };
        if random.below(2) == 0 || running.is_empty() {
            let end = Arc::new(Notify::new());
            drop(tokio::spawn(service.clone().oneshot((number, call, Arc::clone(&end)))));
            match next(&events, &|| format!("seed {seed}, step {number}: {call:?} arrives")).await {
                Seen::Started(started) => {
                    assert!(started == number && admits(call, &running), "seed {seed}: {started} of {number} starts");
                    running.insert(number, (call, End::Inside(end)));
                }
                Seen::Waits => {
                    waiting.insert(number, (call, end));
                    counts.0 += 1;
                }
            }
        } else if random.below(4) == 0 {
            let handle = real.handle().clone();
            let limiter = limiter.clone();
            let options = AcquireOptions::default();
            let outcome = tokio::task::spawn_blocking(move || {
                handle.block_on(async { limiter.hold(&call, options).await.expect("an answer") })
            });
            let outcome = outcome.await.expect("no panic");
            assert_eq!(outcome.held.is_some(), admits(call, &running), "seed {seed}");
            running.extend(outcome.held.map(|held| (number, (call, End::Outside(held)))));
        } else {
            let index = random.index(running.len());
            let ending = *running.keys().nth(index).expect("a running call");
            match running.remove(&ending).expect("it runs").1 {
                End::Inside(end) => end.notify_one(),
                End::Outside(held) => {
                    let handle = real.handle().clone();
                    let release = tokio::task::spawn_blocking(move || handle.block_on(held.release().into_future()));
                    release.await.expect("no panic").expect("released");
                }
            }
            counts.1 += 1;
        }
        if !waiting.values().any(|(call, _)| admits(*call, &running)) {
            until_held(limiter, real, running.len() as u64).await;
        }
        // Of several calls that can start now, the release of each unit starts the oldest in its way.
        while waiting.values().any(|(call, _)| admits(*call, &running)) {
            let context = || {
                let running: Vec<_> = running.iter().map(|(number, (call, _))| (number, call)).collect();
                let waiting: Vec<_> = waiting.iter().map(|(number, (call, _))| (number, call)).collect();
                format!("seed {seed}, step {number}: {waiting:?} wait, {running:?} run")
            };
            let Seen::Started(started) = next(&events, &context).await else { panic!("no call arrives") };
            let (call, end) = waiting.remove(&started).expect("it waits");
            assert!(admits(call, &running), "seed {seed}, step {number}: {started} {call:?} starts");
            let is_older = |(other, (of, _)): (&u64, &(Call, _))| {
                *other < started && of.tenant == call.tenant && of.is_bulk == call.is_bulk
            };
            assert!(!waiting.iter().any(is_older), "seed {seed}, step {number}: {started} overtakes");
            running.insert(started, (call, End::Inside(end)));
        }
    }
    // The guards end in the runtime in which the limiter's tasks run.
    let handle = real.handle().clone();
    drop(tokio::task::spawn_blocking(move || {
        let _entered = handle.enter();
        drop(running);
    }));
    counts
}

/// Waits until so many units are held in Redis: the layer releases them in the background.
async fn until_held(limiter: &Redis<Call>, real: &Runtime, held: u64) {
    let (limiter, handle) = (limiter.clone(), real.handle().clone());
    let wait = async move {
        let call = Call { tenant: 9, is_bulk: false };
        loop {
            let peeked = limiter.peek(&call, AcquireOptions::default().detail(Detail::All)).await.expect("an answer");
            if peeked.limits().iter().any(|limit| limit.name() == "all" && limit.remaining() == 4 - held) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::task::spawn_blocking(move || handle.block_on(wait)).await.expect("no panic");
}

/// Two processes pace the bodies of one key by Redis, with leases and without: each body is whole, and together they pass no
/// more than the burst and the rate. The time is real, so the test requires no speed.
#[tokio::test]
async fn paced_bodies_share_a_rate_in_redis_with_leases_and_without() {
    const RATE: u64 = 200_000;
    for with_leases in [false, true] {
        let server = Server::start();
        let granted = Arc::new(AtomicU64::new(0));
        let mut bodies = Vec::new();
        let mut passed = 0;
        let started = Instant::now();
        let services: Vec<_> = (0..2)
            .map(|_| {
                let counted = Arc::clone(&granted);
                // Leases serve costs of a small part of the burst.
                let bucket = TokenBucket::new(Quota::per_second(RATE)).burst(RATE);
                let mut builder = Redis::<String>::builder(server.open(), "bytes", bucket).deadline(LONG_DEADLINE);
                if with_leases {
                    builder = builder.lease(Lease::new(Duration::from_millis(200)));
                }
                let builder = builder.observe(move |event: &Event<'_>| {
                    if let Event::LeaseRenewed { granted, .. } = event {
                        counted.fetch_add(*granted, Ordering::Relaxed);
                    }
                });
                let limiter = builder.build().expect("a limit");
                let alice = |_: &Request<()>| Some("alice".to_owned());
                let layer = PacingLayer::downloads(alice, limiter).max_wait(Duration::from_secs(600));
                layer.layer(service_fn(|_: Request<()>| async {
                    Ok::<_, BoxError>(Response::new(Body::from(vec![7_u8; 150_000])))
                }))
            })
            .collect();
        // Until a lease was granted, if there are any.
        while passed < 600_000 || with_leases && granted.load(Ordering::Relaxed) == 0 && passed < 20_000_000 {
            for service in services.iter().cycle().take(4) {
                let service = service.clone();
                bodies.push(tokio::spawn(async move {
                    let response = service.oneshot(Request::new(())).await.expect("a response");
                    to_bytes(Body::new(response.into_body()), usize::MAX).await.expect("the whole body")
                }));
            }
            for body in bodies.drain(..) {
                let bytes: Bytes = body.await.expect("no panic");
                assert!(bytes.len() == 150_000 && bytes.iter().all(|byte| *byte == 7), "{} bytes", bytes.len());
                passed += bytes.len() as u64;
            }
        }
        let least = Duration::from_micros((passed - RATE) * 1_000_000 / RATE);
        assert!(started.elapsed() >= least, "leases: {with_leases}, {passed} bytes in {:?}", started.elapsed());
        assert_eq!(granted.load(Ordering::Relaxed) > 0, with_leases);
    }
}
