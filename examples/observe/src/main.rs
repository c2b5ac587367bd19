//! Metrics for Prometheus, and a page that shows decisions live.
//!
//! ```text
//! cargo run -p example-observe
//! curl http://127.0.0.1:3000/metrics
//! ```
//!
//! Open `/dashboard` in a browser, and send requests with its buttons or with `curl 'http://127.0.0.1:3000/?[1-30]'`.
//! `/` allows five requests per second, bursts of ten, and 100 requests per minute for each client address. `/queue`
//! forwards two requests per second, and up to eight requests wait. `/health` has no limit. The variable `PORT` sets
//! another port; `PORT=0` uses a free port.

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
    // Install the recorder before the first request: without a recorder nothing is counted.
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
        .merge(Router::new().route("/queue", get(async || "Hello! Your request left the queue.\n")).layer(queued))
        // Routes that are added after the layers have no limit and are not counted.
        .route("/metrics", get(metrics))
        .route("/dashboard", get(async || Html(include_str!("observe.html"))));

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("cannot listen on port {port}: {error}; set PORT to a free port, or to 0"))?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}");
    println!("try: curl 'http://{address}/?[1-30]' and open http://{address}/dashboard");

    // `PeerIp` reads the client's address from the connect info.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
