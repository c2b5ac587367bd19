//! Twenty requests in ten seconds for each client address, counted in PostgreSQL for all server processes together.
//!
//! ```text
//! cargo run -p postgres -- host=127.0.0.1 user=postgres
//! PORT=3001 cargo run -p postgres -- host=127.0.0.1 user=postgres    # in another terminal: the same limit
//! curl -i 'http://127.0.0.1:3000/?[1-15]' 'http://127.0.0.1:3001/?[1-15]'
//! ```
//!
//! The last ten of the thirty requests get status 429. While PostgreSQL is unavailable, each process allows ten requests by
//! its own limit, and the response of `/` says so. `store.rs` is the limiter, in less than 300 lines, and `schema.sql` the
//! table with its functions. `PORT=0` uses a free port.

mod store;

use std::env;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::routing::get;
use axum::{Extension, Router};
use tower_ratelimit::limiter::Fallback;
use tower_ratelimit::response::Headers;
use tower_ratelimit::store::StoreLimits;
use tower_ratelimit::{
    Decision, DecisionSource, FixedWindow, Http, Limit, Memory, PeerIp, Quota, RateLimitInfo, RateLimitLayer,
};

use self::store::Postgres;

const TEN_SECONDS: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() {
    if let Err(error) = run().await {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let config = env::args().skip(1).collect::<Vec<_>>().join(" ").parse()?;
    let limit = Limit::new("hello", FixedWindow::new(Quota::new(20, TEN_SECONDS)));
    let shared =
        Postgres::<IpAddr>::new(config, "hello", StoreLimits::new(limit)?).deadline(Duration::from_millis(500));
    let shared = Arc::new(shared);
    let created = shared.create_table().await;
    if let Err(error) = &created {
        eprintln!("{error}\nUntil then, each process allows ten requests.");
    }
    let local = Memory::new(Limit::new("hello", FixedWindow::new(Quota::new(10, TEN_SECONDS))));

    let cleaned = Arc::clone(&shared);
    let mut has_table = created.is_ok();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(TEN_SECONDS).await;
            has_table = has_table || cleaned.create_table().await.is_ok();
            // A full batch means that there may be more.
            while matches!(cleaned.remove_expired().await, Ok(1000)) {}
        }
    });

    // The handler reads the decision.
    let responder = Http::new().headers(Headers::new().request_extension(true));
    let limiter = Fallback::new(shared, local);
    let layer = RateLimitLayer::new(PeerIp::new(), limiter).responder(responder);
    let app = Router::new().route("/", get(hello)).layer(layer);

    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

async fn hello(Extension(info): Extension<RateLimitInfo>) -> &'static str {
    match info.decision().map(Decision::source) {
        Some(DecisionSource::Fallback) => "hello, by this process's limit\n",
        _ => "hello, by the shared limit\n",
    }
}
