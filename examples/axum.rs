//! Five requests in ten seconds for each client address, in an axum server.
//!
//! ```text
//! cargo run --example axum
//! curl -i http://127.0.0.1:3000/
//! ```
//!
//! The sixth `curl` within ten seconds is answered with 429, the exact `Retry-After` and a problem body. `/health` is
//! under no limit. `PORT` chooses another port; `PORT=0` lets the system choose a free one.

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
        // A layer wraps the routes that are there when it is added: what comes after it is exempt.
        .layer(RateLimitLayer::new(PeerIp::new(), limiter))
        .route("/health", get(async || "ok\n"));

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("can't listen on port {port} ({error}): choose another one with PORT, or PORT=0"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    println!("try: for i in 1 2 3 4 5 6; do curl -i http://{address}/; done");

    // The connect info is where `PeerIp` finds the client's address.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
