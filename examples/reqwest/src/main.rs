//! A reqwest client that stays within a provider's quota, waits for its turn, and retries by `Retry-After`.
//!
//! ```text
//! cargo run -p example-reqwest
//! ```
//!
//! The provider documents ten requests per second, and allows five: the client waits as documented, and retries the
//! requests that the provider rejects. All eight requests succeed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use reqwest::{Client, Request, Response};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use tower_ratelimit::key::Global;
use tower_ratelimit::response::{RejectWithError, Rejection};
use tower_ratelimit::retry::{HttpHint, RetryAfter};
use tower_ratelimit::{Gcra, Http, Memory, Quota, RateLimitLayer, SlidingLog};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let rejected = Arc::new(AtomicUsize::new(0));
    let url = start_provider(Arc::clone(&rejected)).await?;

    let limiter = Memory::new(Gcra::new(Quota::per_second(10)).strict());
    let retry =
        RetryAfter::new().clone_with(Request::try_clone).read_responses(|request: &Request, answer: &Response| {
            HttpHint.read_response(Some(request.method()), answer.status(), answer.headers())
        });
    let client = ServiceBuilder::new()
        .retry(retry)
        .layer(RateLimitLayer::new(Global, limiter).max_wait(Duration::from_secs(30)).responder(RejectWithError))
        .map_err(BoxError::from)
        .service(Client::new());

    let calls = (0..8).map(|_| {
        let (mut client, request) = (client.clone(), Client::new().get(&url).build());
        tokio::spawn(async move { client.ready().await?.call(request?).await })
    });
    let mut succeeded = 0;
    for call in calls.collect::<Vec<_>>() {
        succeeded += usize::from(call.await??.status().is_success());
    }
    println!("{succeeded} of 8 requests succeeded, some after a rejection: {}", rejected.load(Ordering::Relaxed) > 0);
    Ok(())
}

/// Starts a server that stands for the provider, and counts its rejections.
async fn start_provider(rejected: Arc<AtomicUsize>) -> std::io::Result<String> {
    let count = move |_: &axum::http::request::Parts, rejection: &Rejection| {
        rejected.fetch_add(1, Ordering::Relaxed);
        (StatusCode::TOO_MANY_REQUESTS, rejection.to_string())
    };
    let limiter = Memory::new(SlidingLog::new(Quota::per_second(5)));
    let layer = RateLimitLayer::new(Global, limiter).responder(Http::new().render(count));
    let app = Router::new().route("/", get(async || "hello")).layer(layer);

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}
