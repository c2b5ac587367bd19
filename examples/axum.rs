//! An axum server that allows five requests in ten seconds for each client address.
//!
//! ```text
//! cargo run --example axum
//! curl -i http://127.0.0.1:3000/
//! ```
//!
//! The sixth request within ten seconds gets status 429, `Retry-After` and a problem body. `/health` has no limit.
//! The variable `PORT` sets another port; `PORT=0` uses a free port.

use std::env;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tower_ratelimit::{FixedWindow, Memory, PeerIp, Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Memory::new(FixedWindow::new(Quota::new(5, Duration::from_secs(10))));

    let app = Router::new()
        .route("/", get(async || "Hello! You are within the limit.\n"))
        // A layer wraps only the routes that were added before it: `/health` has no limit.
        .layer(RateLimitLayer::new(PeerIp::new(), limiter))
        .route("/health", get(async || "ok\n"));

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("cannot listen on port {port}: {error}; set PORT to a free port, or to 0"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    println!("try: for i in 1 2 3 4 5 6; do curl -i http://{address}/; done");

    // `PeerIp` reads the client's address from the connect info.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
