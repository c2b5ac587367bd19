//! Documents rejected requests in OpenAPI: the status 429, its body and its header fields, with utoipa and with aide.
//!
//! ```text
//! cargo run -p example-openapi
//! curl -i -X POST http://127.0.0.1:3000/orders      # twice: the second one is rejected
//! curl http://127.0.0.1:3000/utoipa.json
//! curl http://127.0.0.1:3000/aide.json
//! ```
//!
//! Copy `with_utoipa.rs` or `with_aide.rs`: each documents what `Http::new()` answers. If you change the responder, change
//! the documentation. The variable `PORT` sets another port; `PORT=0` uses a free port.

mod with_aide;
mod with_utoipa;

use std::env;
use std::net::SocketAddr;

use axum::routing::{get, post};
use axum::{Json, Router};
use tower_ratelimit::{FixedWindow, Memory, PeerIp, Quota, RateLimitLayer};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

async fn order() -> &'static str {
    "created\n"
}

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let limit = RateLimitLayer::new(PeerIp::new(), Memory::new(FixedWindow::new(Quota::per_hour(1))));
    let app = Router::new()
        .route("/orders", post(order).layer(limit))
        .route("/utoipa.json", get(async || Json(with_utoipa::document())))
        .route("/aide.json", get(async || Json(with_aide::document())));

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
