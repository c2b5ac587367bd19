//! A page on which to compare limits: their decisions on generated traffic, or on a pasted log.
//!
//! ```text
//! playground
//! ```
//!
//! Open the printed address in a browser. The page needs no network: the server runs the simulation with the limiter
//! that a service uses, and draws the charts. The variable `PORT` sets another port; `PORT=0` uses a free port.

mod run;
mod traffic;

use std::env;

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};

/// The largest pasted log: 4 MiB.
const MAX_BODY: usize = 4 << 20;

/// The page loads nothing from elsewhere.
const CONTENT_POLICY: &str =
    "default-src 'none'; connect-src 'self'; img-src data:; script-src 'unsafe-inline'; style-src 'unsafe-inline'";

async fn page() -> impl IntoResponse {
    ([(CONTENT_SECURITY_POLICY, CONTENT_POLICY)], Html(include_str!("page.html")))
}

/// Runs the simulations of a request, on a thread that may block.
async fn run(body: Bytes) -> Response {
    let result = tokio::task::spawn_blocking(move || run::run(&body)).await;
    match result {
        Ok(Ok(answer)) => ([(CONTENT_TYPE, "application/json")], answer.to_string()).into_response(),
        Ok(Err(error)) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = Router::new().route("/", get(page)).route("/run", post(run)).layer(DefaultBodyLimit::max(MAX_BODY));

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("cannot listen on port {port}: {error}; set PORT to a free port, or to 0"))?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
