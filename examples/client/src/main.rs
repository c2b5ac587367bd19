//! A client that stays within the quota of a provider, and retries if the provider's limit is lower than documented.
//!
//! ```text
//! cargo run -p example-client
//! ```
//!
//! The provider documents ten requests per second. The client's own limit delays its twelve requests, so that the
//! provider rejects none. Then the provider allows only three per second, and rejects others with `Retry-After`. The
//! client retries the rejected requests after that time, and all requests succeed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::http::request::Parts;
use axum::routing::get;
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tower_ratelimit::key::Global;
use tower_ratelimit::response::{RejectWithError, Rejection};
use tower_ratelimit::retry::RetryAfter;
use tower_ratelimit::{Gcra, Http, Memory, Quota, RateLimitLayer, SlidingLog};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    send(12, 10).await?;
    send(6, 3).await
}

/// Sends requests to a provider that allows `allowed` per second, with a client that expects ten per second.
async fn send(requests: usize, allowed: u64) -> Result<(), BoxError> {
    let rejected = Arc::new(AtomicUsize::new(0));
    let url = start_provider(allowed, Arc::clone(&rejected)).await?;

    // `strict`: at most ten in any such period, also at the start. The period is longer than the provider's second,
    // because requests may arrive closer together than the client sent them.
    let limiter = Memory::new(Gcra::new(Quota::new(10, Duration::from_millis(1_200))).strict());
    let client = ServiceBuilder::new()
        // Outside of the limit: the limit counts retries too.
        .retry(RetryAfter::new().max_retries(5))
        .layer(RateLimitLayer::new(Global, limiter).max_wait(Duration::from_secs(30)).responder(RejectWithError))
        .map_err(BoxError::from)
        .service(Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>());

    let responses = (0..requests).map(|_| {
        let (mut client, request) = (client.clone(), Request::get(&url).body(Full::default()));
        tokio::spawn(async move { client.ready().await?.call(request?).await })
    });
    let mut succeeded = 0;
    for response in responses.collect::<Vec<_>>() {
        succeeded += usize::from(response.await??.status().is_success());
    }
    let rejected = rejected.load(Ordering::Relaxed);
    println!(
        "limit of {allowed} per second: {succeeded} of {requests} requests succeeded, some after a rejection: {}",
        rejected > 0
    );
    Ok(())
}

/// Starts a server that stands for the provider, and counts its rejections.
async fn start_provider(allowed: u64, rejected: Arc<AtomicUsize>) -> std::io::Result<String> {
    let count = move |_: &Parts, rejection: &Rejection| {
        rejected.fetch_add(1, Ordering::Relaxed);
        axum::http::Response::builder().status(429).body(rejection.to_string().into()).expect("a response")
    };
    // The sliding log is exact: a client without rejections stayed within the quota in every second.
    let limiter = Memory::new(SlidingLog::new(Quota::per_second(allowed)));
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(RateLimitLayer::new(Global, limiter).responder(Http::new().render(count)));

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}
