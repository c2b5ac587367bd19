//! A client that pauses all requests to a server that has rejected one, beside a client that does not.
//!
//! ```text
//! cargo run -p example-gate
//! cargo run -p example-gate -- http://127.0.0.1:8080/ 50
//! ```
//!
//! Without arguments the program starts a server with this crate's limit of 50 requests per second and bursts of five. With
//! arguments it sends to another server with the given rate. Both clients send 0.9, 2 and 10 times the rate in an open loop,
//! for `SECONDS` (4 by default) each. Per 10,000 requests the program prints how many the server has served and rejected, and
//! how many were not sent, because of the gate or an error; and the mean time of the served requests. Both clients send
//! while the server accepts requests. Only the one with a gate stops sending when it does not.

use std::env;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use reqwest::{Client, Request, Response};
use tokio::time::{Instant, sleep_until};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, ServiceExt};
use tower_ratelimit::key::Global;
use tower_ratelimit::retry::HttpHint;
use tower_ratelimit::retry::gate::GateLayer;
use tower_ratelimit::{Gcra, Memory, Quota, RateLimitLayer};

/// Returns the numbers of requests that were served and rejected by the server, and of those that were not sent, and the
/// mean time of the served requests.
async fn send(url: &str, per_second: f64, seconds: f64, gate: bool) -> Result<([u32; 3], Duration), BoxError> {
    let gate = gate.then(|| {
        GateLayer::new()
            .keyed_by(|request: &Request| request.url().origin())
            .with_reader(|response: &Response| HttpHint.gate_signal(response.status(), response.headers()))
            .max_wait(Duration::from_secs(2))
    });
    let client = ServiceBuilder::new().option_layer(gate).map_err(BoxError::from).service(Client::new());
    // Without the types of the layers: the compiler cannot compare them in a spawned task.
    let client = BoxCloneSyncService::new(client);
    let (start, mut requests) = (Instant::now(), tokio::task::JoinSet::new());
    for number in (0_u32..).take_while(|number| f64::from(*number) < per_second * seconds) {
        sleep_until(start + Duration::from_secs_f64(f64::from(number) / per_second)).await;
        let (client, request) = (client.clone(), Client::new().get(url).build()?);
        let offered = Instant::now();
        requests.spawn(async move {
            client.oneshot(request).await.map(|response| (response.status().as_u16(), offered.elapsed()))
        });
    }
    let (mut counts, mut time) = ([0; 3], Duration::ZERO);
    while let Some(result) = requests.join_next().await {
        counts[match result? {
            Ok((200, elapsed)) => {
                time += elapsed;
                0
            }
            Ok(_) => 1,
            Err(_) => 2,
        }] += 1;
    }
    let mean = time / counts[0].max(1);
    Ok((counts, mean))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut arguments = env::args().skip(1);
    let (url, rate) = match (arguments.next(), arguments.next()) {
        (Some(url), Some(rate)) => (url, rate.parse()?),
        _ => (start_server(50).await?, 50.0),
    };
    let seconds: f64 = env::var("SECONDS").map_or(Ok(4.0), |seconds| seconds.parse())?;
    println!("load   gate     served  rejected  not sent  ms");
    for factor in [0.9, 2.0, 10.0] {
        for gate in [false, true] {
            let (counts, time) = send(&url, factor * rate, seconds, gate).await?;
            let all = f64::from(counts.iter().sum::<u32>());
            let [served, rejected, not_sent] = counts.map(|count| 10_000.0 * f64::from(count) / all);
            let gate = if gate { "with" } else { "without" };
            let millis = time.as_secs_f64() * 1_000.0;
            println!("{factor:>4}   {gate:<7} {served:>7.0}   {rejected:>7.0}   {not_sent:>7.0}  {millis:.1}");
            // The server's window ends, so that each line starts alike.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    Ok(())
}

async fn start_server(per_second: u64) -> std::io::Result<String> {
    let limiter = Memory::new(Gcra::new(Quota::per_second(per_second)).burst(5));
    let app = Router::new().route("/", get(async || "hello")).layer(RateLimitLayer::new(Global, limiter));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}
