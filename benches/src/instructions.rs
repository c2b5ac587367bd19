//! Repeats one kind of decision, so that `scripts/instructions` can count its instructions.
//!
//! Uses only items that all compared revisions of the crate have. The case `leased` starts a Redis.

#[path = "../../tests/servers/process.rs"]
mod process;
#[path = "../../tests/servers/server.rs"]
mod server;

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response};
use tower::{Layer, Service};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;
use tower_ratelimit::response::Headers;
use tower_ratelimit::store::Lease;
use tower_ratelimit::{
    AcquireOptions, Costs, DecisionSource, DynLimit, FixedWindow, Gcra, Http, InFlight, Limit, Limiter, ManualClock,
    Memory, PeerIp, Quota, RateLimit, RateLimitLayer, Redis, ReservationId, SlidingLog, SlidingWindow,
};

/// Allows every request of a run.
const PLENTY: Gcra = Gcra::new(Quota::per_second(1_000_000)).burst(1 << 32);

/// Denies every request of a run but the first.
const NOTHING: Gcra = Gcra::new(Quota::per_day(1));

/// `tower_governor`, without and with headers. Its clock is the system's.
macro_rules! governed {
    ($($headers:ident)?) => {{
        let mut config = GovernorConfigBuilder::default().key_extractor(PeerIpKeyExtractor)$(.$headers())?;
        let config = config.period(Duration::from_nanos(1)).burst_size(u32::MAX).finish();
        GovernorLayer::new(Arc::new(config.expect("a configuration"))).layer(EmptyService)
    }};
}

/// Decides about one key by limits with settings.
macro_rules! settings {
    ($count:expr, $limits:expr, $options:expr) => {{
        let limiter = Memory::builder($limits).clock(ManualClock::new()).build().expect("limits");
        let options = $options;
        repeat($count, |index: u64| black_box(&limiter).check(black_box(&7_u64), options(index)).is_allowed());
    }};
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, case, count, ..] = &arguments[..] else { panic!("usage: instructions CASE COUNT") };
    // `cargo bench` without arguments measures nothing here.
    let Ok(count) = count.parse::<u64>() else { return };
    match case.as_str() {
        "hot" => repeat(count, decide(PLENTY, |_| 7)),
        "read" => {
            let limiter = Memory::builder(PLENTY).clock(ManualClock::new()).build().expect("a limit");
            repeat(count, |_| {
                let decision = limiter.check(black_box(&7_u64), AcquireOptions::default());
                black_box(decision.most_restrictive().map(|limit| limit.snapshot()));
                decision.is_allowed()
            });
        }
        // A thousand keys while another key is blocked.
        "beside-block" => {
            let limiter = Memory::builder(PLENTY).clock(ManualClock::new()).build().expect("a limit");
            drop(limiter.block("default", &u64::MAX, Duration::from_secs(3600)));
            repeat(count, |index| {
                let key = index.wrapping_mul(0x9E37_79B9) % 1000;
                black_box(&limiter).check(black_box(&key), AcquireOptions::default()).is_allowed()
            });
        }
        "denied" => repeat(count, decide(NOTHING, |_| 7)),
        "thousand-keys" => repeat(count, decide(PLENTY, |index| index.wrapping_mul(0x9E37_79B9) % 1000)),
        "million-keys" => {
            let limiter =
                Memory::builder(PLENTY).max_keys(1_000_000).clock(ManualClock::new()).build().expect("a limit");
            let decide = |key: u64| limiter.check(black_box(&key), AcquireOptions::default()).is_allowed();
            // One insertion of each key is not counted in the difference of two runs.
            assert!((0..1_000_000).all(decide));
            repeat(count, |index| decide((index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % 1_000_000));
        }
        "fixed-window" => repeat(count, decide(FixedWindow::new(Quota::per_day(1 << 40)), |_| 7)),
        "sliding-window" => repeat(count, decide(SlidingWindow::new(Quota::per_day(1 << 40)), |_| 7)),
        "sliding-window-weighted" => {
            repeat(
                count,
                decide(SlidingWindow::new(Quota::per_day(1 << 10)).blocks(1).weighted(), |index| index % 1000),
            );
        }
        "sliding-log" => repeat(count, decide(SlidingLog::new(Quota::per_second(100)), |index| index % 100)),
        "insertion" => repeat(count, decide(PLENTY, |index| index)),
        "three-limits" => {
            let limits = (
                Limit::new("a", PLENTY),
                Limit::new("b", PLENTY).keyed_by(|key: &u64| key % 3),
                Limit::new("c", PLENTY).keyed_by(|_: &u64| ()),
            );
            let limiter = Memory::builder(limits).clock(ManualClock::new()).build().expect("limits");
            repeat(count, |_| black_box(&limiter).check(black_box(&7), AcquireOptions::default()).is_allowed());
        }
        "two-limits" => {
            let limits = (Limit::new("a", PLENTY), Limit::new("b", PLENTY));
            let limiter = Memory::builder(limits).clock(ManualClock::new()).build().expect("limits");
            repeat(count, |_| black_box(&limiter).check(black_box(&7_u64), AcquireOptions::default()).is_allowed());
        }
        "shadow" => {
            let limits = (Limit::new("a", PLENTY), Limit::new("b", PLENTY).shadow());
            let limiter = Memory::builder(limits).clock(ManualClock::new()).build().expect("limits");
            repeat(count, |_| black_box(&limiter).check(black_box(&7_u64), AcquireOptions::default()).is_allowed());
        }
        "condition" => {
            let first = Limit::new("a", PLENTY).keyed_by(|key: &u64| *key);
            let second = Limit::new("b", PLENTY).keyed_by(|key: &u64| *key).only_if(|key: &u64| *key > 7);
            settings!(count, (first, second), |_: u64| 1);
        }
        "mark" => settings!(count, Limit::new("a", PLENTY).warn_at(0.8), |_: u64| 1),
        "kept-units" => {
            let limit = Limit::new("a", PLENTY).keyed_by(|key: &u64| *key).keep_free_by(|_: &u64| 5);
            settings!(count, limit, |_: u64| 1);
        }
        "unit" => settings!(count, Limit::new("a", PLENTY).cost_of("input"), |_: u64| Costs::new().add("input", 1)),
        // A share that allows each request, and one whose tenant borrows.
        "share" | "borrow" => {
            let share = Gcra::new(Quota::per_second(1)).burst(if case == "share" { 1 << 20 } else { 1 });
            let share = Limit::new("share", share).keyed_by(|key: &u64| *key).guarantee(4);
            settings!(count, (share, Limit::new("all", PLENTY).keyed_by(|_: &u64| ())), |_: u64| 1);
        }
        "once" => {
            let limiter = Memory::builder(PLENTY).clock(ManualClock::new()).build().expect("a limit");
            repeat(count, |index| {
                let id = ReservationId::new(index.to_be_bytes());
                let options = AcquireOptions::cost(1).once(id, 1, Duration::from_secs(60));
                black_box(&limiter).check(black_box(&(index % 100)), options).is_allowed()
            });
        }
        "hold-and-settle" => {
            let limiter = Memory::builder(PLENTY).clock(ManualClock::new()).build().expect("a limit");
            repeat(count, |_| match limiter.hold(black_box(&7_u64), 2).try_ready() {
                Ok(Ok(outcome)) => outcome.held.is_some_and(|held| held.settle(1).try_ready().is_ok()),
                _ => false,
            });
        }
        "in-flight" => {
            let limiter = Memory::builder(InFlight::new(100)).clock(ManualClock::new()).build().expect("a limit");
            repeat(count, |_| {
                let options = AcquireOptions::default().keep_guard();
                match limiter.acquire(black_box(&7_u64), options).try_ready() {
                    Ok(Ok(outcome)) => outcome.held.is_some(),
                    _ => false,
                }
            });
        }
        "one-limit-dynamic" => {
            let limits: Vec<DynLimit<u64>> = vec![DynLimit::new(Limit::new("a", PLENTY))];
            let limiter = Memory::builder(limits).clock(ManualClock::new()).build().expect("limits");
            repeat(count, |_| black_box(&limiter).check(black_box(&7), AcquireOptions::default()).is_allowed());
        }
        "three-limits-dynamic" => {
            let limits: Vec<DynLimit<u64>> = vec![
                DynLimit::new(Limit::new("a", PLENTY)),
                DynLimit::new(Limit::new("b", PLENTY).keyed_by(|key: &u64| key % 3)),
                DynLimit::new(Limit::new("c", PLENTY).keyed_by(|_: &u64| ())),
            ];
            let limiter = Memory::builder(limits).clock(ManualClock::new()).build().expect("limits");
            repeat(count, |_| black_box(&limiter).check(black_box(&7), AcquireOptions::default()).is_allowed());
        }
        "acquired" => {
            let limiter = Memory::builder(PLENTY).build().expect("a limit");
            repeat(count, |_| acquire(&limiter, 7));
        }
        "leased" => leased(count),
        "service" => service(count, limited(PLENTY, Http::new())),
        "service-beside-queue" => service_beside_queue(count),
        "service-with-extension" => {
            service(count, limited(PLENTY, Http::new().headers(Headers::new().request_extension(true))))
        }
        "service-minimal" => service(count, limited(PLENTY, Http::without_headers())),
        "service-rejected" => service(count, limited(NOTHING, Http::new())),
        "service-rejected-minimal" => service(count, limited(NOTHING, Http::without_headers())),
        "service-bare" => service(count, EmptyService),
        "service-governor" => service(count, governed!()),
        "service-governor-headers" => service(count, governed!(use_headers)),
        other => panic!("no case named {other}"),
    }
}

/// The function whose instructions are counted. The set-up before it, such as calibrating a clock, is not counted.
#[inline(never)]
fn repeat(count: u64, mut decide: impl FnMut(u64) -> bool) {
    let mut allowed = 0_u64;
    for index in 0..count {
        allowed += u64::from(decide(index));
    }
    black_box(allowed);
}

fn decide<A: tower_ratelimit::algorithm::Algorithm>(algorithm: A, key: impl Fn(u64) -> u64) -> impl Fn(u64) -> bool {
    let limiter = Memory::builder(algorithm).max_keys(200_000).clock(ManualClock::new()).build().expect("a limit");
    move |index| limiter.check(black_box(&key(index)), AcquireOptions::default()).is_allowed()
}

/// Decides by a limiter that has the result at once, with the clock that users have.
fn acquire(limiter: &impl Limiter<u64>, key: u64) -> bool {
    match limiter.acquire(black_box(&key), AcquireOptions::default()).try_ready() {
        Ok(outcome) => outcome.is_ok_and(|outcome| outcome.decision.is_allowed()),
        Err(_) => false,
    }
}

/// Decides by a lease. No task runs meanwhile, so nothing renews it.
fn leased(count: u64) {
    let server = server::Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let limiter = Redis::<u64>::builder(server.open(), "leased", PLENTY)
        .lease(Lease::new(Duration::from_secs(20)))
        .deadline(Duration::from_secs(10))
        .build()
        .expect("a limit");
    runtime.block_on(async {
        // A high cost, for a large lease, and few decisions, so that they do not use up the bucket.
        while limiter.acquire(&7, AcquireOptions::cost(1 << 20)).await.expect("a decision").decision.source()
            != DecisionSource::Lease
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let _entered = runtime.enter();
    repeat(count, |_| {
        // Redis would decide later.
        assert!(acquire(&limiter, 7));
        true
    });
}

#[derive(Clone)]
struct EmptyService;

impl Service<Request<Body>> for EmptyService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        black_box(&request);
        ready(Ok(Response::new(Body::empty())))
    }
}

/// The default responder, or the minimal one.
fn limited<R: Clone>(algorithm: Gcra, responder: R) -> RateLimit<EmptyService, PeerIp, Memory<IpAddr, Gcra>, R> {
    let limiter = Memory::builder(algorithm).clock(ManualClock::new()).build().expect("a limit");
    RateLimitLayer::new(PeerIp::new(), limiter).responder(responder).layer(EmptyService)
}

/// Calls the service for one key, while a request of another key waits.
fn service_beside_queue(count: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _entered = runtime.enter();
    let limiter = Memory::builder(PLENTY).clock(ManualClock::new()).build().expect("a limit");
    let other = SocketAddr::from(([203, 0, 113, 8], 4711));
    let used = limiter.set_usage("default", &PeerIp::new().key_of(other.ip()), 1 << 32).try_ready();
    assert!(matches!(used, Ok(Ok(()))));
    let layer = RateLimitLayer::new(PeerIp::new(), limiter).max_wait(Duration::from_secs(1));
    let mut limited = layer.layer(EmptyService);
    // The runtime never runs, so the request waits until the end.
    let mut waiting = Box::pin(limited.call(request_of(other)));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    service(count, limited);
}

fn request_of(peer: SocketAddr) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(peer));
    request
}

fn service(count: u64, mut service: impl Service<Request<Body>>) {
    let (peer, mut cx) = (SocketAddr::from(([203, 0, 113, 7], 4711)), Context::from_waker(Waker::noop()));
    repeat(count, |_| {
        let request = request_of(peer);
        assert!(service.poll_ready(&mut cx).is_ready());
        let mut response = pin!(service.call(request));
        response.as_mut().poll(&mut cx).map(|response| black_box(response).is_ok()).is_ready()
    });
}
