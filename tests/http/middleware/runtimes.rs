//! Requests of one layer in several runtimes, of which only one runs: the others are parked (nothing drives them) or
//! dropped. A blocked runtime is like a parked one.
//!
//! Each runtime has a paused clock of its own, so the tests take no time. The clock of a parked runtime stands.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _, sink, stream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep};
use tower::ServiceExt;
use tower_ratelimit::waiting::{LimitedSink, LimitedStream, until_ready};
use tower_ratelimit::{AcquireOptions, BoxLimiter, FixedWindow, Gcra, InFlight, Quota, SlidingLog};

use crate::load::{Call, CallService, Remote, SECOND, in_flight, inner, layer, limited, memory};
use crate::random::Random;
use crate::support::{ms, spawn};

/// How much later than due a request starts or ends if its queue's driver does not run.
const GRACE: Duration = Duration::from_millis(101);

/// Returns by how much the clocks of two runtimes differ: they begin when the runtimes are created.
fn skew(one: &Runtime, other: &Runtime) -> Duration {
    let [one, other] = [one, other].map(|runtime| runtime.block_on(async { Instant::now() }));
    one.max(other) - one.min(other)
}

fn paused() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime")
}

/// The first request of a limit of five a second starts in a runtime that then parks, with the driver of the queue.
#[test]
fn request_starts_and_ends_in_time_while_the_runtime_of_the_driver_is_parked() {
    for (quota, expected) in [(Quota::per_second(5), true), (Quota::per_minute(1), false)] {
        let service = limited(layer(memory(Gcra::new(quota).burst(1))).max_wait(2 * SECOND), inner());
        let [parked, running] = [(); 2].map(|()| paused());
        let late = GRACE + skew(&parked, &running);
        let leaves = parked.block_on(async {
            service.clone().oneshot(CALL).await.expect("the first");
            let waiting = spawn(service.clone().oneshot(CALL));
            tokio::task::yield_now().await;
            waiting.abort_handle()
        });
        running.block_on(async {
            leaves.abort();
            let began = Instant::now();
            let waiting = service.clone().oneshot(CALL).await;
            let (is_ok, waited) = (waiting.is_ok(), began.elapsed());
            assert_eq!(is_ok, expected, "{waited:?}");
            if expected {
                assert!(waited <= ms(600) + late, "its interval, after that of the parked request: {waited:?}");
            }
            assert!(waited <= 2 * SECOND + late, "{waited:?}");
        });
        drop(parked);
    }
}

/// How the requests of a run wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Layer,
    UntilReady,
    Stream,
    Sink,
}

/// Waits for one start. Returns whether there is one.
async fn wait(way: Way, service: CallService, limiter: BoxLimiter<u32>) -> bool {
    match way {
        Way::Layer => service.oneshot(CALL).await.is_ok(),
        Way::UntilReady => {
            let options = AcquireOptions::default().max_delay(MAX_WAIT);
            until_ready(&limiter, &0, options).await.is_ok_and(|decision| decision.is_allowed())
        }
        Way::Stream => LimitedStream::new(stream::iter([()]), limiter, 0).next().await.is_some_and(|item| item.is_ok()),
        Way::Sink => LimitedSink::new(sink::drain(), limiter, 0).send(()).await.is_ok(),
    }
}

/// Each call works for 100 ms.
const CALL: Call = Call::of(0).work(ms(100));

/// The longest wait of a request of the layer, and of `until_ready`.
const MAX_WAIT: Duration = Duration::from_secs(4);

/// The state of a runtime while the last one runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing drives it: its thread is blocked, or does other work.
    Parked,
    Dropped,
    /// Parks while its requests wait, and runs again for a moment.
    Revived,
}

fn limiters() -> Vec<(&'static str, BoxLimiter<u32>)> {
    let quota = Quota::per_second(10);
    let in_flight = || memory(InFlight::new(3));
    vec![
        ("bucket", memory(Gcra::new(quota).burst(1))),
        ("log", memory(SlidingLog::new(quota))),
        ("window", memory(FixedWindow::new(quota))),
        ("in flight", in_flight()),
        ("bucket behind a link", BoxLimiter::new(Remote::new(memory(Gcra::new(quota).burst(1)), ms(5)))),
        ("in flight behind a link", BoxLimiter::new(Remote::new(in_flight(), ms(5)))),
    ]
}

/// Each request of the runtime that runs ends: it starts, or is rejected by its deadline, however it waits. Requests of other
/// runtimes take at most one start each.
#[test]
fn requests_end_in_time_whatever_other_runtimes_do() {
    for seed in 0..120 {
        let mut random = Random::new(seed);
        for (name, limiter) in limiters() {
            // A stream or a sink holds no cost.
            let ways = if name.starts_with("in flight") { 1 } else { 4 };
            let way = [Way::Layer, Way::UntilReady, Way::Stream, Way::Sink][random.index(ways)];
            check(seed, &format!("{name}, {way:?}"), &limiter, way, &mut random);
        }
    }
}

fn check(seed: u64, name: &str, limiter: &BoxLimiter<u32>, way: Way, random: &mut Random) {
    let ends = Arc::new(Mutex::new(Vec::new()));
    let service = in_flight(layer(limiter.clone()).max_wait(MAX_WAIT), inner());
    let states = [State::Parked, State::Dropped, State::Revived];
    let others: Vec<_> = (0..=random.below(3)).map(|_| (states[random.index(3)], paused())).collect();
    let running = paused();
    let late = GRACE + others.iter().map(|(_, other)| skew(other, &running)).max().unwrap_or_default();
    let arrive = |runtime: &Runtime, count: u64, live: bool| {
        runtime.block_on(async {
            for _ in 0..count {
                let (service, limiter, ends) = (service.clone(), limiter.clone(), Arc::clone(&ends));
                drop(spawn(async move {
                    let began = Instant::now();
                    let is_ok = wait(way, service, limiter).await;
                    ends.lock().unwrap().push((live, is_ok, began.elapsed()));
                }));
            }
            tokio::task::yield_now().await;
        });
    };
    let mut in_live = 0;
    for _ in 0..random.below(4) + 2 {
        let other = &others[random.index(others.len())];
        arrive(&other.1, random.below(3), false);
        let count = random.below(4);
        arrive(&running, count, true);
        in_live += count;
    }
    let mut parked = Vec::new();
    let mut revived = Vec::new();
    for (state, runtime) in others {
        match state {
            State::Parked => parked.push(runtime),
            State::Dropped => drop(runtime),
            State::Revived => revived.push(runtime),
        }
    }
    running.block_on(async { sleep(ms(random.below(500))).await });
    for runtime in &revived {
        runtime.block_on(async { sleep(ms(30)).await });
    }
    running.block_on(async { sleep(8 * SECOND).await });
    let ends = ends.lock().unwrap();
    let live: Vec<_> = ends.iter().filter(|(live, ..)| *live).collect();
    assert_eq!(live.len() as u64, in_live, "seed {seed}, {name}: requests without an end");
    assert!(live.iter().all(|(.., waited)| *waited <= MAX_WAIT + ms(100) + late), "seed {seed}, {name}: {live:?}");
    // A bucket, a log or a window admits ten in a second, of which each request of another runtime takes one at most.
    if !name.starts_with("in flight") {
        let served = live.iter().filter(|(_, is_ok, _)| *is_ok).count();
        assert_eq!(served, live.len(), "seed {seed}, {name}: {live:?}");
    }
    drop(parked);
}
