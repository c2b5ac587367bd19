//! Twenty requests in ten seconds for each client address, counted in a Redis Cluster for all server processes
//! together.
//!
//! ```text
//! for port in 7001 7002 7003; do
//!     redis-server --port $port --save '' --cluster-enabled yes --cluster-config-file $port.conf &
//! done
//! redis-cli --cluster create 127.0.0.1:7001 127.0.0.1:7002 127.0.0.1:7003 --cluster-yes
//! export REDIS_URLS=redis://127.0.0.1:7001,redis://127.0.0.1:7002,redis://127.0.0.1:7003
//! cargo run --example cluster --features redis-cluster
//! PORT=3001 cargo run --example cluster --features redis-cluster        # in another terminal: the same limit
//! curl -i 'http://127.0.0.1:3000/?[1-15]' 'http://127.0.0.1:3001/?[1-15]'
//! ```
//!
//! The last ten of the thirty requests get status 429. While the node that counts a client is unavailable, each
//! process allows ten requests by its own limit, half of the shared one, and the response of `/` says so. The
//! variable `REDIS_URLS` lists some of the nodes, separated by commas. `PORT` sets another port; `PORT=0` uses a free
//! port.

use std::env;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::routing::get;
use axum::{Extension, Router};
use tower_ratelimit::limiter::Fallback;
use tower_ratelimit::response::Headers;
use tower_ratelimit::{
    DecisionSource, FixedWindow, Http, Memory, PeerIp, Quota, RateLimitInfo, RateLimitLayer, Redis, RedisServer,
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
    let urls = env::var("REDIS_URLS").unwrap_or_else(|_| "redis://127.0.0.1:7001".to_owned());
    let cluster = RedisServer::cluster(urls.split(',').map(str::trim))?;
    let shared = Redis::<IpAddr>::new(cluster, "hello", FixedWindow::new(Quota::new(20, TEN_SECONDS)));
    // Optional: reports a configuration error at start-up instead of at the first request.
    shared.health_check().await.map_err(|error| {
        format!(
            "cannot use the cluster: {}\nStart one as in the first lines of examples/cluster.rs; set REDIS_URLS to some of \
             its nodes, such as REDIS_URLS=redis://127.0.0.1:7001,redis://127.0.0.1:7002",
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
    match info.decision().map(tower_ratelimit::Decision::source) {
        Some(DecisionSource::Fallback) => "Hello! The cluster is unavailable: this process uses its own limit.\n",
        _ => "Hello! You are within the limit.\n",
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
