//! An endpoint for operators: show, block and reset a client, and the usage of each limit with its busiest keys, as JSON.
//!
//! ```text
//! cargo run --example admin
//! curl -i http://127.0.0.1:3000/                                   # as a client
//! curl http://127.0.0.1:3000/admin/127.0.0.1                       # show
//! curl -X PUT http://127.0.0.1:3000/admin/127.0.0.1/block/60       # block for a minute
//! curl -X DELETE http://127.0.0.1:3000/admin/127.0.0.1             # lift the block, and reset the usage
//! curl http://127.0.0.1:3000/admin
//! ```
//!
//! Serve such an endpoint on an internal port, or behind your authentication. The variable `PORT` sets another port;
//! `PORT=0` uses a free port.

use std::env;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use axum::routing::{get, put};
use tower_ratelimit::{
    AcquireOptions, Detail, Error, FixedWindow, Gcra, Limit, LimitStatus, Limiter, Memory, PeerIp, Quota,
    RateLimitLayer,
};

/// The extractor of the layer. `CLIENT.key_of(address)` is the key that the layer counts by: an IPv6 /64, for example.
const CLIENT: PeerIp = PeerIp::new();
const LIMIT: &str = "requests";
/// A bucket refills while a client is served, so its numbers do not say what the client used. This shadow counts it.
const USED: &str = "used today";
/// More than a client can use in a day.
const MANY: u64 = 1_000_000_000;

type Clients = Memory<IpAddr, (Limit<Gcra>, Limit<FixedWindow>)>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter: Clients = Memory::new((
        Limit::new(LIMIT, Gcra::new(Quota::new(5, Duration::from_secs(10)))),
        Limit::new(USED, FixedWindow::new(Quota::per_day(MANY)).aligned_to_clock()).shadow(),
    ));
    let admin = Router::new()
        .route("/admin", get(top))
        .route("/admin/{address}", get(show).delete(reset))
        .route("/admin/{address}/block/{seconds}", put(block))
        .with_state(limiter.clone());
    let app = Router::new()
        .route("/", get(async || "Hello! You are within the limit.\n"))
        .layer(RateLimitLayer::new(CLIENT, limiter))
        .merge(admin);

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// `peek` decides without charging.
async fn show(State(limiter): State<Clients>, Path(address): Path<IpAddr>) -> Result<Json, Failure> {
    let decision = limiter.peek(&CLIENT.key_of(address), AcquireOptions::default().detail(Detail::All)).await?;
    let remaining = |name| decision.limits().iter().find(|limit| limit.name() == name).map(LimitStatus::remaining);
    let (left, used) = (remaining(LIMIT).unwrap_or_default(), MANY - remaining(USED).unwrap_or(MANY));
    let wait = decision.retry_after_secs().unwrap_or_default();
    Ok(json(format!(
        "{{\"client\":\"{address}\",\"used_today\":{used},\"remaining\":{left},\"retry_after\":{wait}}}\n"
    )))
}

async fn block(
    State(limiter): State<Clients>,
    Path((address, seconds)): Path<(IpAddr, u64)>,
) -> Result<String, Failure> {
    limiter.block(LIMIT, &CLIENT.key_of(address), Duration::from_secs(seconds)).await?;
    Ok(format!("{address}: blocked for {seconds} s\n"))
}

async fn reset(State(limiter): State<Clients>, Path(address): Path<IpAddr>) -> Result<String, Failure> {
    let key = CLIENT.key_of(address);
    limiter.block(LIMIT, &key, Duration::ZERO).await?;
    limiter.reset(&key).await?;
    Ok(format!("{address}: reset\n"))
}

/// The usage of each limit, and the ids of its busiest keys: the table stores hashes of keys. `key_id` returns the id of an
/// address that you know.
async fn top(State(limiter): State<Clients>) -> Result<Json, Failure> {
    let mut limits = Vec::new();
    for usage in limiter.usage() {
        let busiest: Vec<_> = limiter.top_keys(&usage.limit, 10)?.iter().map(|key| format!("\"{}\"", key.id)).collect();
        let (name, keys, capacity, busiest) = (&usage.limit, usage.live_keys, usage.capacity, busiest.join(","));
        limits
            .push(format!("{{\"limit\":\"{name}\",\"keys\":{keys},\"capacity\":{capacity},\"busiest\":[{busiest}]}}"));
    }
    Ok(json(format!("[{}]\n", limits.join(","))))
}

type Json = ([(HeaderName, &'static str); 1], String);

fn json(text: String) -> Json {
    ([(CONTENT_TYPE, "application/json")], text)
}

/// The text of an error is for operators: it names the cause and the remedy.
struct Failure(Error);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl axum::response::IntoResponse for Failure {
    fn into_response(self) -> axum::response::Response {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", self.0)).into_response()
    }
}
