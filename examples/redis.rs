//! Twenty requests in ten seconds for each client address, shared by all processes that use one Redis.
//!
//! ```text
//! redis-server --port 6379 --save '' &
//! cargo run --example redis
//! PORT=3001 cargo run --example redis        # in another terminal: the same limit
//! curl -i 'http://127.0.0.1:3000/?[1-15]' 'http://127.0.0.1:3001/?[1-15]'
//! ```
//!
//! The last ten of the thirty are answered with 429. While Redis is gone, each process lets ten through by itself: half of the
//! limit, as there are two of them; `/` then says so. `REDIS_URL` is where Redis is, `PORT` another port, and `PORT=0` a free
//! one.

use std::env;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::routing::get;
use axum::{Extension, Router};
use tower_ratelimit::limiter::Fallback;
use tower_ratelimit::{
    Decision, DecisionSource, FixedWindow, Memory, PeerIp, Quota, RateLimitInfo, RateLimitLayer, Redis, RedisServer,
};

const TEN_SECONDS: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() {
    if let Err(error) = run().await {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let shared = Redis::<IpAddr>::new(RedisServer::open(&url)?, "hello", FixedWindow::new(Quota::new(20, TEN_SECONDS)));
    // Not needed, but so a mistake is found at start-up, and not by the first request.
    shared.health_check().await.map_err(|error| {
        format!(
            "Redis can't be used: {}\nStart one with `redis-server` (Debian: apt-get install -y redis-server), or say with \
             REDIS_URL where it is, as in REDIS_URL=redis://127.0.0.1:6379",
            with_causes(&error)
        )
    })?;
    let alone = Memory::new(FixedWindow::new(Quota::new(10, TEN_SECONDS)));

    let app = Router::new()
        .route("/", get(hello))
        .layer(RateLimitLayer::new(PeerIp::new(), Fallback::new(shared, alone)))
        .route("/health", get(async || "ok\n"));

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("can't listen on port {port} ({error}): choose another one with PORT, or PORT=0"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    println!("try: curl -i 'http://{address}/?[1-21]'");

    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

async fn hello(Extension(admission): Extension<RateLimitInfo>) -> &'static str {
    match admission.decision().map(Decision::source) {
        Some(DecisionSource::Fallback) => "Hello! Redis is gone: this process counts by itself.\n",
        _ => "Hello! You are within the limit.\n",
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
