//! A client that keeps to its provider's quota, and survives a provider that is stricter than it says.
//!
//! ```text
//! cargo run --example client
//! ```
//!
//! The provider says that it allows ten requests a second. The client's own limit lets no more through: twelve requests
//! wait for their turns, and none is refused. Then the provider allows but three in a second, and says so with
//! `Retry-After`: what is refused comes back when it is told to, and all requests succeed.

use std::error::Error;
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
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_ratelimit::key::Global;
use tower_ratelimit::response::{Http, RejectWithError, Rejection};
use tower_ratelimit::retry::RetryAfter;
use tower_ratelimit::{Gcra, Memory, Quota, RateLimitLayer, SlidingLog};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    ask(12, 10).await?;
    ask(6, 3).await
}

/// Asks a provider that allows so many a second, as if it allowed ten.
async fn ask(requests: usize, allowed: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
    let refused = Arc::new(AtomicUsize::new(0));
    let url = provide(allowed, Arc::clone(&refused)).await?;

    // Strict: no more than ten in any such time, be it at the start. It is a little longer than the provider's second,
    // as requests may be closer together when they arrive than when they left.
    let limiter = Memory::new(Gcra::new(Quota::new(10, Duration::from_millis(1_200))).strict());
    let client = ServiceBuilder::new()
        // The retries are outside of the limit, so that they count as well.
        .retry(RetryAfter::new().max_retries(5))
        .layer(RateLimitLayer::new(Global, limiter).max_wait(Duration::from_secs(30)).responder(RejectWithError))
        .service(Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>());

    let answers = (0..requests).map(|_| {
        let (mut client, request) = (client.clone(), Request::get(&url).body(Full::default()));
        tokio::spawn(async move { client.ready().await?.call(request?).await })
    });
    let mut succeeded = 0;
    for answer in answers.collect::<Vec<_>>() {
        succeeded += usize::from(answer.await??.status().is_success());
    }
    let refused = refused.load(Ordering::Relaxed);
    println!(
        "a provider of {allowed} a second: {succeeded} of {requests} succeeded, refused on the way: {}",
        refused > 0
    );
    Ok(())
}

/// Stands for somebody else's server. It counts what it refuses.
async fn provide(allowed: u64, refused: Arc<AtomicUsize>) -> std::io::Result<String> {
    let count = move |_: &Parts, refusal: &Rejection| {
        refused.fetch_add(1, Ordering::Relaxed);
        axum::http::Response::builder().status(429).body(refusal.to_string().into()).expect("a response")
    };
    // The log is exact: a client that it never refuses has kept to the quota in every second.
    let limiter = Memory::new(SlidingLog::new(Quota::per_second(allowed)));
    let app = Router::new()
        .route("/", get(async || "answer"))
        .layer(RateLimitLayer::new(Global, limiter).responder(Http::new().render(count)));

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}
