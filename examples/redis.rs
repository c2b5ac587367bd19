//! Twenty requests in ten seconds for each client address, counted in Redis for all server processes together.
//!
//! ```text
//! redis-server --port 6379 --save '' &
//! cargo run --example redis --features redis
//! PORT=3001 cargo run --example redis --features redis        # in another terminal: the same limit
//! curl -i 'http://127.0.0.1:3000/?[1-15]' 'http://127.0.0.1:3001/?[1-15]'
//! ```
//!
//! The last ten of the thirty requests get status 429. While Redis is unavailable, each process allows ten requests
//! by its own limit, half of the shared one, and the response of `/` says so. The variable `REDIS_URL` sets the
//! address of Redis. `PORT` sets another port; `PORT=0` uses a free port.

use std::env;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::routing::get;
use axum::{Extension, Router};
use tower_ratelimit::limiter::Fallback;
use tower_ratelimit::response::Headers;
use tower_ratelimit::{
    Decision, DecisionSource, FixedWindow, Http, Memory, PeerIp, Quota, RateLimitInfo, RateLimitLayer, Redis,
    RedisServer,
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
    // Optional: reports a configuration error at start-up instead of at the first request.
    shared.health_check().await.map_err(|error| {
        format!(
            "cannot use Redis: {}\nStart `redis-server` (Debian: apt-get install -y redis-server), or set REDIS_URL to its \
             address, such as REDIS_URL=redis://127.0.0.1:6379",
            with_causes(&error)
        )
    })?;
    let local = Memory::new(FixedWindow::new(Quota::new(10, TEN_SECONDS)));

    // The handler reads the decision.
    let responder = Http::new().headers(Headers::new().request_extension(true));
    let layer = RateLimitLayer::new(PeerIp::new(), Fallback::new(shared, local)).responder(responder);
    let app = Router::new().route("/", get(hello)).layer(layer).route("/health", get(async || "ok\n"));

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("cannot listen on port {port}: {error}; set PORT to a free port, or to 0"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    println!("try: curl -i 'http://{address}/?[1-21]'");

    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

async fn hello(Extension(info): Extension<RateLimitInfo>) -> &'static str {
    match info.decision().map(Decision::source) {
        Some(DecisionSource::Fallback) => "Hello! Redis is unavailable: this process uses its own limit.\n",
        _ => "Hello! You are within the limit.\n",
    }
}

/// Joins the texts of the error and its causes. The sources of an I/O error repeat its text.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut texts: Vec<_> =
        std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}
