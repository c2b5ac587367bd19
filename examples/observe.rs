//! What a limiter decides, as metrics for Prometheus and on a page that shows them live.
//!
//! ```text
//! cargo run --example observe
//! curl http://127.0.0.1:3000/metrics
//! ```
//!
//! Open `/dashboard` in a browser, and send requests with its buttons, or with `curl 'http://127.0.0.1:3000/?[1-30]'`. `/`
//! lets five a second pass for each client address, and bursts of ten; `/queue` lets up to eight wait for their turn, two a
//! second; `/health` is under no limit. `PORT` chooses another port; `PORT=0` lets the system choose a free one.

use std::env;
use std::net::SocketAddr;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::Html;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusBuilder;
use tower_ratelimit::key::ExactPaths;
use tower_ratelimit::observe::Metrics;
use tower_ratelimit::{FixedWindow, Gcra, LeakyQueue, Limit, Memory, PeerIp, Quota, RateLimitLayer};

const SECONDS: [f64; 9] = [0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Before the first request: what is counted while there is no recorder goes nowhere.
    let prometheus = PrometheusBuilder::new().set_buckets(&SECONDS)?.install_recorder()?;

    let limiter = Memory::new((
        Limit::new("second", Gcra::new(Quota::per_second(5)).burst(10)),
        Limit::new("minute", FixedWindow::new(Quota::per_minute(100))),
    ));
    let pages = Metrics::new("pages");
    let limited = RateLimitLayer::new(PeerIp::new(), limiter.clone())
        .exempt_if(ExactPaths::new(["/health"]))
        .observe(pages.clone());

    let queue = Memory::new(LeakyQueue::new(Quota::per_second(2)).max_waiting(8));
    let queued = RateLimitLayer::new(PeerIp::new(), queue).observe(Metrics::new("queue"));

    let metrics = async move || {
        // How full the memory is, is asked for when the page is.
        limiter.report_usage(&pages);
        ([(CONTENT_TYPE, "text/plain; version=0.0.4")], prometheus.render())
    };
    let app = Router::new()
        .route("/", get(async || "Hello! You are within the limit.\n"))
        .route("/health", get(async || "ok\n"))
        .layer(limited)
        .merge(Router::new().route("/queue", get(async || "Hello! It was your turn.\n")).layer(queued))
        // What comes after the layers is under no limit, and counted by none.
        .route("/metrics", get(metrics))
        .route("/dashboard", get(async || Html(include_str!("observe.html"))));

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("can't listen on port {port} ({error}): choose another one with PORT, or PORT=0"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    println!("try: curl 'http://{address}/?[1-30]' and open http://{address}/dashboard");

    // The connect info is where `PeerIp` finds the client's address.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
