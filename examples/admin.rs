//! An endpoint for operators: show, block and reset a client, and list the clients that use most of the limit.
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
use axum::http::StatusCode;
use axum::routing::{get, put};
use tower_ratelimit::{AcquireOptions, Error, Gcra, Limiter, Memory, PeerIp, Quota, RateLimitLayer};

/// The extractor of the layer. `CLIENT.key_of(address)` is the key that the layer counts by: an IPv6 /64, for example.
const CLIENT: PeerIp = PeerIp::new();
/// The name of a limit that was not named.
const LIMIT: &str = "default";

type Clients = Memory<IpAddr, Gcra>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter: Clients = Memory::new(Gcra::new(Quota::new(5, Duration::from_secs(10))));
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
async fn show(State(limiter): State<Clients>, Path(address): Path<IpAddr>) -> Result<String, Failure> {
    let decision = limiter.peek(&CLIENT.key_of(address), AcquireOptions::default()).await?;
    Ok(match decision.retry_after_secs() {
        None => format!("{address}: {} requests left\n", decision.remaining().unwrap_or_default()),
        Some(seconds) => format!("{address}: denied for {seconds} s\n"),
    })
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
    limiter.unblock(LIMIT, &key).await?;
    limiter.reset(&key).await?;
    Ok(format!("{address}: reset\n"))
}

/// The table stores hashes of keys. `key_id` returns the id of an address that you know.
async fn top(State(limiter): State<Clients>) -> Result<String, Failure> {
    let line = |key: &tower_ratelimit::store::TopKey| format!("{key:?}\n");
    Ok(limiter.top_keys(LIMIT, 10)?.iter().map(line).collect())
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
