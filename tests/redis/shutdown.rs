//! A runtime that is dropped while calls are under way: the process ends by itself.

use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::runtime::{Builder, Runtime};
use tower::{ServiceExt as _, service_fn};
use tower_ratelimit::key::Global;
use tower_ratelimit::limiter::{AdminOperation, Chained, Reservation};
use tower_ratelimit::response::RejectWithError;
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{
    AcquireOptions, FixedWindow, LeakyQueue, Limit, Limiter, Quota, RateLimitLayer, Redis, RedisCell, RedisServer,
};

use crate::helpers::patient;
use crate::server::Server;

/// The scenario that a child process runs, and the address of its Redis.
const SCENARIO: &str = "RUNTIME_DROP_SCENARIO";
const REDIS: &str = "RUNTIME_DROP_REDIS";

const SCENARIOS: [(&str, fn(&str)); 6] = [
    ("layer", a_request_waits_in_the_layer),
    ("reservation", a_reservation_lives),
    ("current thread", a_reservation_lives_on_one_thread),
    ("spawn_blocking", a_blocking_task_asks_after_the_shutdown),
    ("two phases", a_two_phase_decision_is_under_way),
    ("cell", a_blocking_task_asks_a_cell_after_the_shutdown),
];

#[test]
fn runtime_drop_terminates() {
    if let Ok(scenario) = std::env::var(SCENARIO) {
        let (_, run) = SCENARIOS.iter().find(|(name, _)| *name == scenario).expect("a scenario");
        return run(&std::env::var(REDIS).expect("an address"));
    }
    let server = Server::start();
    let children = SCENARIOS.map(|(scenario, _)| {
        let child = Command::new(std::env::current_exe().expect("this test's own path"))
            .args(["--exact", "shutdown::runtime_drop_terminates", "--nocapture"])
            .env(SCENARIO, scenario)
            .env(REDIS, server.address())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        (scenario, child.expect("this test again"))
    });
    let patience = Instant::now() + Duration::from_secs(20);
    let ended = children.map(|(scenario, mut child)| {
        loop {
            if let Some(status) = child.try_wait().expect("its state") {
                return (scenario, status.success());
            }
            if Instant::now() > patience {
                child.kill().expect("it was running");
                child.wait().expect("it has ended");
                return (scenario, false);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    assert_eq!(ended, SCENARIOS.map(|(scenario, _)| (scenario, true)), "each child ends by itself, without a panic");
}

fn two_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn limiter<Key: ?Sized>(redis: &str, limits: impl IntoRedisLimits<Key>) -> Redis<Key> {
    patient(RedisServer::open(redis).expect("an address"), "api", limits)
}

fn a_request_waits_in_the_layer(redis: &str) {
    let limiter: Redis<()> = limiter(redis, LeakyQueue::new(Quota::per_hour(1)).max_waiting(5));
    let runtime = two_threads();
    let request = runtime.block_on(async {
        limiter.health_check().await.expect("a working Redis");
        let layer = RateLimitLayer::new(Global, limiter).responder(RejectWithError);
        let service = tower::Layer::layer(&layer, service_fn(async |()| Ok::<_, tower::BoxError>(())));
        service.clone().oneshot(()).await.expect("the first has its turn at once");
        // One waits inside the runtime, and one outlives it.
        let (mut inside, mut outside) = (Box::pin(service.clone().oneshot(())), Box::pin(service.oneshot(())));
        for request in [&mut inside, &mut outside] {
            assert!(tokio::time::timeout(Duration::from_millis(100), request).await.is_err(), "it waits");
        }
        tokio::spawn(inside);
        [outside]
    });
    drop(runtime);
    drop(request);
}

fn a_reservation_lives(redis: &str) {
    reserves_and_drops(redis, two_threads());
}

fn a_reservation_lives_on_one_thread(redis: &str) {
    reserves_and_drops(redis, Builder::new_current_thread().enable_all().build().expect("a runtime"));
}

fn reserves_and_drops(redis: &str, runtime: Runtime) {
    let limiter: Redis<u64> = limiter(redis, FixedWindow::new(Quota::per_hour(1000)));
    let outside = runtime.block_on(async {
        for key in 0..3 {
            let (reservation, _) =
                Reservation::reserve(&limiter, &key, AcquireOptions::cost(3)).await.expect("an answer");
            let reservation = reservation.expect("it is allowed");
            tokio::spawn(async move {
                std::future::pending::<()>().await;
                drop(reservation);
            });
        }
        Reservation::reserve(&limiter, &4, AcquireOptions::cost(3)).await.expect("an answer").0
    });
    let context = runtime.handle().clone();
    drop(runtime);
    // What the context of a runtime that is gone is good for.
    let _context = context.enter();
    drop(outside);
    let error = limiter.set_usage("default", &1, 2).now_or_never().expect("at once").expect_err("nothing carries it");
    assert!(error.is_unavailable() && error.to_string().contains("the runtime is shutting down"), "{error}");
}

fn a_blocking_task_asks_after_the_shutdown(redis: &str) {
    asks_after_the_shutdown(limiter(redis, FixedWindow::new(Quota::per_hour(1000))));
}

fn a_blocking_task_asks_a_cell_after_the_shutdown(redis: &str) {
    let server = RedisServer::open(redis).expect("an address");
    asks_after_the_shutdown::<RedisCell<u64>>(RedisCell::new(server, "api", Quota::per_hour(1000)));
}

fn asks_after_the_shutdown<L: Limiter<u64> + Clone + Send + 'static>(limiter: L) {
    let runtime = two_threads();
    let ((is_down, goes_on), (told, hears)) = (mpsc::channel(), mpsc::channel());
    runtime.spawn_blocking(move || {
        let under_way = limiter.acquire(&1, AcquireOptions::default());
        goes_on.recv().expect("the shutdown");
        let _ = told.send((
            limiter.acquire(&1, AcquireOptions::default()).into_future().now_or_never(),
            limiter.administer(&1, AdminOperation::Reset).now_or_never(),
            limiter.acquire(&2, AcquireOptions::default()).into_future().now_or_never(),
        ));
        drop(under_way);
    });
    runtime.shutdown_background();
    is_down.send(()).expect("the blocking task");
    let (first, reset, again) = hears.recv().expect("answers");
    for error in [first.map(|result| result.map(drop)), reset, again.map(|result| result.map(drop))] {
        let error = error.expect("at once").expect_err("nothing carries it");
        assert!(error.is_unavailable() && error.to_string().contains("the runtime is shutting down"), "{error}");
    }
}

fn a_two_phase_decision_is_under_way(redis: &str) {
    // It accepts connections, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = format!("redis://{}", silent.local_addr().expect("its address"));
    let first: Redis<u64> = limiter(redis, Limit::new("user", FixedWindow::new(Quota::per_hour(1000))));
    let second: Redis<u64> = limiter(&silent, Limit::new("all", FixedWindow::new(Quota::per_hour(1000))));
    let runtime = two_threads();
    runtime.block_on(async {
        first.health_check().await.expect("a working Redis");
        let limiter = Chained::new(first, second);
        let decisions: Vec<_> =
            (0..3).map(|_| tokio::spawn(limiter.acquire(&1, AcquireOptions::default()).into_future())).collect();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(decisions.iter().all(|decision| !decision.is_finished()), "the second is still asked");
    });
    drop(runtime);
}
