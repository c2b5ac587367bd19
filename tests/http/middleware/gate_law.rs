//! Clients with a gate before this crate's own server, beside clients without one, over random quotas, bursts and round
//! trips. All times are of tokio's paused clock.
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use http::Request;
use tokio::time::{Instant, sleep, sleep_until};
use tower::util::BoxCloneService;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::response::BoxError;
use tower_ratelimit::retry::RetryAfter;
use tower_ratelimit::retry::gate::GateLayer;
use tower_ratelimit::{Gcra, Quota, TokioClock};

use crate::random::Random;
use crate::support::{Page, memory, page_layer, pages};

/// A server with one limit, and clients that send evenly, each by itself.
#[derive(Clone, Copy, Debug)]
struct World {
    limit: u64,
    period: Duration,
    burst: u64,
    round_trip: Duration,
    clients: u64,
    /// The offered rate, as a part of the limit's.
    load: f64,
    requests: u64,
    retries: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    /// The requests that were served in the end.
    served: u64,
    /// The rejections that the server sent.
    rejected: u64,
    /// The time of the served requests.
    latency: Duration,
    elapsed: Duration,
}

type Client = BoxCloneService<Request<()>, Page, BoxError>;

impl World {
    /// One client, or bursts of at least the number of clients.
    fn random(random: &mut Random) -> Self {
        let limit = random.between(1, 500);
        let period = Duration::from_millis(random.choose(&[1_000, 1_000, 7_300, 60_000, 600_000]));
        let max_burst = random.choose(&[1, 5, 50]);
        let burst = random.between(1, max_burst);
        let clients = if random.percent(50) { 1 } else { random.between(1, burst) };
        let round_trip = Duration::from_millis(random.between(1, 100));
        let load = 0.3 + 0.65 * random.share();
        Self { limit, period, burst, round_trip, clients, load, requests: 200, retries: false }
    }

    fn interval(&self) -> Duration {
        self.period / u32::try_from(self.limit).expect("small")
    }

    async fn run(self, gate: bool) -> Outcome {
        let limiter = memory(Gcra::new(Quota::new(self.limit, self.period)).burst(self.burst), TokioClock::new());
        let rejected = Arc::new(AtomicU64::new(0));
        let server = page_layer(limiter).layer(pages());
        let counted = Arc::clone(&rejected);
        let http = service_fn(move |request: Request<()>| {
            let (server, counted) = (server.clone(), Arc::clone(&counted));
            async move {
                sleep(self.round_trip / 2).await;
                let response = server.oneshot(request).await?;
                counted.fetch_add(u64::from(response.status() == 429), Ordering::Relaxed);
                sleep(self.round_trip / 2).await;
                Ok::<_, BoxError>(response)
            }
        });
        let begin = Instant::now();
        let clients: Vec<Client> = (0..self.clients)
            .map(|_| {
                // Each client is a process with a gate of its own.
                let gate = gate.then(GateLayer::new);
                let retry = self.retries.then(RetryAfter::new);
                let service = ServiceBuilder::new().option_layer(gate).map_err(BoxError::from).service(http.clone());
                match retry {
                    Some(retry) => BoxCloneService::new(ServiceBuilder::new().retry(retry).service(service)),
                    None => BoxCloneService::new(service),
                }
            })
            .collect();
        let calls = (0..self.requests).map(|number| {
            let client = clients[usize::try_from(number % self.clients).expect("small")].clone();
            // All clients send at once, then again after the time for as many units.
            let round = u32::try_from(number / self.clients * self.clients).expect("small");
            let at = begin + self.interval().mul_f64(f64::from(round) / self.load);
            async move {
                sleep_until(at).await;
                let response = client.oneshot(Request::new(())).await;
                response.is_ok_and(|response| response.status() == 200).then(|| at.elapsed())
            }
        });
        let latencies: Vec<_> = join_all(calls).await.into_iter().flatten().collect();
        Outcome {
            served: latencies.len() as u64,
            rejected: rejected.load(Ordering::Relaxed),
            latency: latencies.iter().sum(),
            elapsed: begin.elapsed(),
        }
    }
}

/// Never slowed for nothing: within the rate, a client with a gate is served as one without.
#[tokio::test(start_paused = true)]
async fn gate_before_own_server() {
    let mut random = Random::new(1);
    let mut compared = 0;
    for _ in 0..40 {
        let world = World::random(&mut random);
        let (without, with) = (world.run(false).await, world.run(true).await);
        // Timers are exact to a millisecond: at a few milliseconds and a burst of one, also the control is rejected.
        if without.rejected > 0 {
            continue;
        }
        compared += 1;
        assert_eq!((with.served, with.rejected), (world.requests, 0), "{world:?}");
        let timers = Duration::from_millis(world.requests);
        assert!(with.latency <= without.latency.mul_f64(1.05) + timers, "{world:?}: {with:?} beside {without:?}");
        assert!(with.elapsed <= without.elapsed.mul_f64(1.05), "{world:?}: {with:?} beside {without:?}");
    }
    assert!(compared >= 30, "{compared}");
}

/// At twice the rate, the server rejects at most 2 % of the requests of a client with a gate, and is busy.
#[tokio::test(start_paused = true)]
async fn gate_at_twice_the_rate_of_own_server() {
    let mut random = Random::new(2);
    for _ in 0..8 {
        let mut world = World { clients: 1, load: 2.0, ..World::random(&mut random) };
        world.limit = world.limit.min(200);
        let offered_in_20_s = 40.0 / world.interval().as_secs_f64();
        world.requests = offered_in_20_s.clamp(400.0, 4_000.0) as u64;
        let (without, with) = (world.run(false).await, world.run(true).await);
        assert!(with.rejected * 50 <= world.requests, "{world:?}: {with:?}");
        let capacity = |outcome: Outcome| outcome.elapsed.as_secs_f64() / world.interval().as_secs_f64();
        assert!(with.served as f64 >= 0.7 * capacity(with), "{world:?}: {with:?}");
        assert!(with.served >= without.served, "{world:?}: {with:?} beside {without:?}");
    }
}

/// Clients that share a limit without a burst for all of them, with retries: as many are served in the end, and fewer
/// rejections are sent.
#[tokio::test(start_paused = true)]
async fn gates_of_many_clients_before_own_server() {
    let mut random = Random::new(3);
    let mut sums = [Outcome::default(); 2];
    for _ in 0..8 {
        let mut world = World { retries: true, requests: 300, ..World::random(&mut random) };
        world.clients = world.burst + random.between(1, 20);
        for (sum, gate) in sums.iter_mut().zip([false, true]) {
            let outcome = world.run(gate).await;
            sum.served += outcome.served;
            sum.rejected += outcome.rejected;
        }
    }
    let [without, with] = sums;
    assert!(with.served * 100 >= without.served * 98, "{with:?} beside {without:?}");
    assert!(with.rejected < without.rejected, "{with:?} beside {without:?}");
}
