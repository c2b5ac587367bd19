//! A runtime that is dropped while calls are in flight: the process ends.

use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::{Builder, Runtime};
use tower::{ServiceExt as _, service_fn};
use tower_ratelimit::key::Global;
use tower_ratelimit::limiter::{AdminOperation, Chained, LimiterFuture, Reservation};
use tower_ratelimit::response::RejectWithError;
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{
    AcquireOptions, Error, FixedWindow, LeakyQueue, Limit, Limiter, Quota, RateLimitLayer, Redis, RedisCell,
    RedisServer,
};

use crate::helpers::redis_limiter;
use crate::process::{Process, TIMEOUT};
use crate::server::Server;

/// The scenario that a child process runs, and the address of its Redis.
const SCENARIO: &str = "RUNTIME_DROP_SCENARIO";
const REDIS: &str = "RUNTIME_DROP_REDIS";

const SCENARIOS: [(&str, fn(&str)); 6] = [
    ("layer", request_waits_in_the_layer),
    ("reservation", reservation_is_open),
    ("current thread", reservation_is_open_on_one_thread),
    ("spawn_blocking", blocking_task_acquires_after_the_shutdown),
    ("chained", chained_decision_is_in_flight),
    ("cell", blocking_task_acquires_from_a_cell_after_the_shutdown),
];

#[test]
fn dropped_runtime_terminates_the_process() {
    if let Ok(scenario) = std::env::var(SCENARIO) {
        let (_, run) = SCENARIOS.iter().find(|(name, _)| *name == scenario).expect("a scenario");
        return run(&std::env::var(REDIS).expect("an address"));
    }
    let server = Server::start();
    let children = SCENARIOS.map(|(scenario, _)| {
        let mut command = Command::new(std::env::current_exe().expect("this test's own path"));
        command.args(["--exact", "shutdown::dropped_runtime_terminates_the_process", "--nocapture"]);
        command.env(SCENARIO, scenario).env(REDIS, server.address()).stdin(Stdio::null()).stdout(Stdio::null());
        (scenario, Process::start(&mut command))
    });
    let ended = children
        .map(|(scenario, mut child)| (scenario, child.status_within(TIMEOUT).is_some_and(|status| status.success())));
    assert_eq!(ended, SCENARIOS.map(|(scenario, _)| (scenario, true)), "each child ends, without a panic");
}

fn two_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn limiter<Key: ?Sized>(redis: &str, limits: impl IntoRedisLimits<Key>) -> Redis<Key> {
    redis_limiter(RedisServer::open(redis).expect("an address"), "api", limits)
}

fn request_waits_in_the_layer(redis: &str) {
    let limiter: Redis<()> = limiter(redis, LeakyQueue::new(Quota::per_hour(1)).max_waiting(5));
    let runtime = two_threads();
    let request = runtime.block_on(async {
        limiter.health_check().await.expect("a working Redis");
        let layer = RateLimitLayer::new(Global, limiter).responder(RejectWithError);
        let service = tower::Layer::layer(&layer, service_fn(async |()| Ok::<_, tower::BoxError>(())));
        service.clone().oneshot(()).await.expect("the first request starts immediately");
        // One request waits inside the runtime, and one outlives the runtime.
        let (mut inside, mut outside) = (Box::pin(service.clone().oneshot(())), Box::pin(service.oneshot(())));
        for request in [&mut inside, &mut outside] {
            assert!(tokio::time::timeout(Duration::from_millis(100), request).await.is_err(), "the request waits");
        }
        tokio::spawn(inside);
        [outside]
    });
    drop(runtime);
    drop(request);
}

fn reservation_is_open(redis: &str) {
    reserve_and_drop(redis, two_threads());
}

fn reservation_is_open_on_one_thread(redis: &str) {
    reserve_and_drop(redis, Builder::new_current_thread().enable_all().build().expect("a runtime"));
}

fn reserve_and_drop(redis: &str, runtime: Runtime) {
    let limiter: Redis<u64> = limiter(redis, FixedWindow::new(Quota::per_hour(1000)));
    let outside = runtime.block_on(async {
        for key in 0..3 {
            let (reservation, _) =
                Reservation::reserve(&limiter, &key, AcquireOptions::cost(3)).await.expect("an answer");
            let reservation = reservation.expect("the reservation is allowed");
            tokio::spawn(async move {
                std::future::pending::<()>().await;
                drop(reservation);
            });
        }
        Reservation::reserve(&limiter, &4, AcquireOptions::cost(3)).await.expect("an answer").0
    });
    let context = runtime.handle().clone();
    drop(runtime);
    // Operations in the context of a shut-down runtime.
    let _context = context.enter();
    drop(outside);
    let error = limiter
        .set_usage("default", &1, 2)
        .now_or_never()
        .expect("a ready result")
        .expect_err("the runtime is shut down");
    assert!(error.is_unavailable() && error.to_string().contains("the runtime is shutting down"), "{error}");
}

fn blocking_task_acquires_after_the_shutdown(redis: &str) {
    acquire_after_the_shutdown(limiter(redis, FixedWindow::new(Quota::per_hour(1000))));
}

fn blocking_task_acquires_from_a_cell_after_the_shutdown(redis: &str) {
    let server = RedisServer::open(redis).expect("an address");
    acquire_after_the_shutdown::<RedisCell>(RedisCell::new(server, "api", Quota::per_hour(1000)));
}

fn acquire_after_the_shutdown<L: Limiter<u64> + Clone + Send + 'static>(limiter: L) {
    let runtime = two_threads();
    let ((is_down, resume), (sender, receiver)) = (mpsc::channel(), mpsc::channel());
    runtime.spawn_blocking(move || {
        let under_way = limiter.acquire(&1, AcquireOptions::default());
        resume.recv().expect("the shutdown");
        let _ = sender.send([
            until_failed(|| limiter.acquire(&1, AcquireOptions::default())),
            until_failed(|| limiter.administer(&1, AdminOperation::Reset)),
            until_failed(|| limiter.acquire(&2, AcquireOptions::default())),
        ]);
        drop(under_way);
    });
    runtime.shutdown_background();
    is_down.send(()).expect("the blocking task");
    for error in receiver.recv().expect("answers") {
        assert!(error.is_unavailable() && error.to_string().contains("the runtime is shutting down"), "{error}");
    }
}

/// Calls until a call is an error at once: the shutdown drops the limiter's task in another thread.
fn until_failed<T>(call: impl Fn() -> LimiterFuture<T>) -> Error {
    loop {
        if let Some(Err(error)) = call().now_or_never() {
            return error;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn chained_decision_is_in_flight(redis: &str) {
    // This server accepts connections and never replies.
    let unresponsive = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let unresponsive = format!("redis://{}", unresponsive.local_addr().expect("its address"));
    let first: Redis<u64> = limiter(redis, Limit::new("user", FixedWindow::new(Quota::per_hour(1000))));
    let second: Redis<u64> = limiter(&unresponsive, Limit::new("all", FixedWindow::new(Quota::per_hour(1000))));
    let runtime = two_threads();
    runtime.block_on(async {
        first.health_check().await.expect("a working Redis");
        let limiter = Chained::new(first, second);
        for _ in 0..3 {
            tokio::spawn(limiter.acquire(&1, AcquireOptions::default()));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    });
    drop(runtime);
}
