//! Clients with a gate before this crate's own server, beside clients without one, over random quotas, bursts and round
//! trips. All times are of tokio's paused clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use http::{Request, Response};
use tokio::time::{Instant, sleep, sleep_until};
use tower::util::BoxCloneService;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::key::Global;
use tower_ratelimit::response::{BoxError, Http};
use tower_ratelimit::retry::{GateLayer, RetryAfter};
use tower_ratelimit::{Gcra, Memory, Quota, RateLimitLayer, TokioClock};

use crate::random::Random;

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

type Client = BoxCloneService<Request<()>, Response<http_body_util::Full<bytes::Bytes>>, BoxError>;

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
        Self { limit, period, burst, round_trip, clients, load, requests: 400, retries: false }
    }

    fn interval(&self) -> Duration {
        self.period.div_f64(self.limit as f64)
    }

    async fn run(self, gate: Option<GateLayer>) -> Outcome {
        let limiter = Memory::builder(Gcra::new(Quota::new(self.limit, self.period)).burst(self.burst));
        let limiter = limiter.max_keys(8).clock(TokioClock::new()).build().expect("a limiter");
        let rejected = Arc::new(AtomicU64::new(0));
        let server =
            RateLimitLayer::new(Global, limiter).responder(Http::new()).layer(service_fn(async |_: Request<()>| {
                Ok::<_, BoxError>(Response::new(http_body_util::Full::<bytes::Bytes>::default()))
            }));
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
                let gate = gate.as_ref().map(|_| GateLayer::new());
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

#[tokio::test(start_paused = true)]
async fn gate_before_own_server() {
    let mut random = Random::new(1);
    for case in 0..60 {
        let world = World::random(&mut random);
        let (without, with) = (world.run(None).await, world.run(Some(GateLayer::new())).await);
        println!("{case} {world:?}\n   {without:?}\n   {with:?}");
    }
    println!("==== twice");
    for case in 0..60 {
        let mut world = World { clients: 1, load: 2.0, ..World::random(&mut random) };
        world.requests = (40.0 / world.interval().as_secs_f64()).clamp(400.0, 8_000.0) as u64;
        let (without, with) = (world.run(None).await, world.run(Some(GateLayer::new())).await);
        println!(
            "{case} {world:?}\n   {without:?}\n   {with:?}  {:.2}% rejected, throughput {:.2}",
            100.0 * with.rejected as f64 / world.requests as f64,
            (with.served as f64 / with.elapsed.as_secs_f64()) / (1.0 / world.interval().as_secs_f64())
        );
    }
    println!("==== more clients");
    for case in 0..40 {
        let mut world = World { retries: true, ..World::random(&mut random) };
        world.clients = world.burst + random.between(1, 20);
        let (without, with) = (world.run(None).await, world.run(Some(GateLayer::new())).await);
        println!("{case} {world:?}\n   {without:?}\n   {with:?}");
    }
}
