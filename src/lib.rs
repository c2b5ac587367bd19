//! Exact rate limiting for any tower service: in memory with nothing else to run and nothing to clean up, or in Redis, where
//! any number of processes share the limits.
//!
//! A [`RateLimitLayer`] asks two questions of each request: *whose* is it, and *how much* may they have? What is within the
//! limit goes on to the service. What is not is answered at once, with the exact time after which trying again works.
//!
//! ```
//! use std::net::SocketAddr;
//!
//! use axum::{Router, routing::get};
//! use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
//!
//! async fn serve() -> std::io::Result<()> {
//!     // Ten a second for each client address, bursts of twenty.
//!     let limiter = Memory::new(Gcra::new(Quota::per_second(10)).burst(20));
//!     let app = Router::new()
//!         .route("/", get(async || "hello\n"))
//!         .layer(RateLimitLayer::new(PeerIp::new(), limiter));
//!
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     // The connect info is where `PeerIp` finds the client's address.
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! }
//! ```
//!
//! # The nouns
//!
//! | | | |
//! |---|---|---|
//! | whose | a [key extractor](ExtractKey) | makes a key of the request: an [address](ClientIp), a header field, a user |
//! | how much | a [limiter](Limiter) | an algorithm, bound to a store that remembers the keys: [`Memory`] |
//! | | an [algorithm](algorithm::Algorithm) | a [`Quota`] and a way to count: [`Gcra`], [`SlidingWindow`], ... |
//! | | a [`Limit`] | an algorithm with a name, and the part of the key that it counts by: for several limits at once |
//! | the answer | a [`Decision`] | yes, yes but later, no until later, or never; what remains, and when there is more |
//! | | a [responder](Respond) | what a refusal looks like: [`Http`], an error, a closure |
//!
//! A limiter needs no middleware: [`Memory::check`] answers anybody. Each of the four seams (extractor, limiter, algorithm,
//! responder) is a small trait for parts of your own, with a complete example in its documentation.
//!
//! | Module | |
//! |---|---|
//! | [`key`] | whose request it is: the extractors |
//! | [`algorithm`] | how much a key may have: the algorithms, and what each lets through in the worst case |
//! | [`limit`] | named limits, several of them as one, and an algorithm [chosen by the key](per_key) |
//! | [`limiter`] | the trait between the middleware and the stores, limiters made of limiters, and [holds](limiter::Held) |
//! | [`store`] | where states are remembered |
//! | [`tariff`] | what a request costs, before and after it was answered |
//! | [`response`] | what a decision looks like from outside |
//! | `retry` | clients that come back when they are told to (feature `retry`) |
//! | [`observe`] | what becomes of requests, and what stores live through: for metrics and logs |
//! | `policy` | limits from configuration (feature `serde`) |
//!
//! When a request is charged, and what dropping its future means, is said at
//! [`RateLimitLayer`](RateLimitLayer#what-is-charged).
//!
//! # What is promised
//!
//! - **Exact**: integers and whole microseconds. No algorithm admits more than its documentation says, in any window, and no
//!   quota drifts. A refused request changes nothing.
//! - **`retry_after` is sufficient and minimal**: if nobody else uses the key, the same request succeeds after exactly that
//!   time and not a microsecond earlier. What can never succeed is told [`Never`](Verdict::ExceedsLimit).
//! - **Any number of threads** on one key admit exactly what one would.
//! - **Bounded memory, no janitor**: a hard cap on keys ([`max_keys`](MemoryBuilder::max_keys)), below which nothing is
//!   forgotten. There is no background thread and no sweep.
//! - **Nothing on the way**: a decision in memory is ready at once and allocates nothing (the sliding log apart).
//! - **All or nothing**: of several limits none is charged if one refuses.
//! - **A missing key is not an exemption**: leaving a header out, or sending it twice, does not lift a limit.
//! - **No client is believed**: proxies are [trusted](key::TrustedProxies) explicitly, and of secrets only keyed hashes are
//!   kept.
//! - **tower's contract**: a request goes to the very instance that was made ready; a refusal releases what its readiness
//!   reserved.
//! - **No unsafe code**, and no panic at run time: what can't be is an error when it is built.
//!
//! # Testing your limits
//!
//! Time is a parameter. With a [`ManualClock`] no test sleeps, and none depends on a machine's speed:
//!
//! ```
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! use axum::{Router, body::Body, extract::connect_info::MockConnectInfo, http::Request, routing::get};
//! use tower::ServiceExt;
//! use tower_ratelimit::{Gcra, ManualClock, Memory, PeerIp, Quota, RateLimitLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_ratelimit::Error> {
//! let clock = ManualClock::new();
//! let limiter = Memory::builder(Gcra::new(Quota::per_second(10)).burst(20)).clock(clock.clone()).build()?;
//! let app = Router::new()
//!     .route("/", get(async || "hello\n"))
//!     .layer(RateLimitLayer::new(PeerIp::new(), limiter))
//!     .layer(MockConnectInfo(SocketAddr::from(([192, 0, 2, 1], 50_000))));
//! let get = async || app.clone().oneshot(Request::new(Body::empty())).await.unwrap();
//!
//! let first = get().await;
//! assert_eq!(first.headers()["ratelimit-policy"], r#""default";q=20;w=2"#);
//! assert_eq!(first.headers()["ratelimit"], r#""default";r=19;t=1"#);
//! for _ in 1..20 {
//!     assert_eq!(get().await.status(), 200);
//! }
//!
//! let refused = get().await;
//! assert_eq!(refused.status(), 429);
//! assert_eq!(refused.headers()["retry-after"], "1");
//!
//! // A tenth of a second after which one more passes.
//! clock.advance(Duration::from_millis(100));
//! assert_eq!(get().await.status(), 200);
//! assert_eq!(get().await.status(), 429);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! None is on by default, and each only adds.
//!
//! - **`axum`**: [`PeerIp`] and [`ClientIp`] read axum's `ConnectInfo<SocketAddr>`, and `key::MatchedPath` its routes.
//! - **`metrics`**: `observe::Metrics` counts and measures by the `metrics` facade.
//! - **`redis`**: limits that many processes share, in `Redis`. **`redis-tls`** reaches it by TLS (`RedisTls`),
//!   **`redis-cluster`** spreads it over a cluster, and **`redis-sentinel`** follows the master that Sentinel names.
//!   **`redis-cell`** adds `RedisCell`, one limit by the command `CL.THROTTLE`.
//! - **`retry`**: clients that come back when they are told to: `retry::RetryAfter`, a policy for tower's `Retry`.
//! - **`serde`**: a [`Quota`] is read and written as text, such as `"100/min"`; limits from configuration, in `policy`.
//! - **`timer`**: requests wait for their turn, by tokio's timer: `RateLimitLayer::max_wait`, and a [`LeakyQueue`] behind the
//!   layer.
//! - **`tonic`**: gRPC in tonic 0.14: `response::Grpc` and `response::ByContentType`, `cost::OnlyGrpcCodes`, and the peer's
//!   address for [`PeerIp`] and [`ClientIp`].
//! - **`tonic-tls`**: the peer's address where a server of your own hands tonic its TLS connections.
//! - **`tracing`**: `observe::Tracing` writes events by the `tracing` facade.

// docs.rs shows the feature that each item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod algorithm;
mod clock;
#[cfg(feature = "serde")]
pub mod config;
mod decision;
mod encode;
mod error;
pub mod key;
pub mod limit;
pub mod limiter;
mod middleware;
pub mod observe;
mod quota;
pub mod response;
#[cfg(feature = "retry")]
pub mod retry;
mod runtime;
pub mod store;
mod sync;
mod table;

pub use crate::algorithm::{FixedWindow, Gcra, LeakyBucket, LeakyQueue, SlidingLog, SlidingWindow, TokenBucket};
#[cfg(feature = "timer")]
pub use crate::clock::TokioClock;
pub use crate::clock::{Clock, CoarseClock, ManualClock, SystemClock, Timestamp};
pub use crate::decision::{
    AcquireOptions, Decision, DecisionSource, Detail, LazySnapshot, LimitSnapshot, LimitStatus, Verdict,
};
pub use crate::error::Error;
pub use crate::key::{ClientIp, ExtractKey, PeerIp};
pub use crate::limit::{Limit, per_key};
pub use crate::limiter::{BoxLimiter, Limiter};
pub use crate::middleware::{MissingKeyPolicy, RateLimit, RateLimitLayer, ResponseFuture, cost};
pub use crate::quota::{Quota, QuotaError};
pub use crate::response::{Http, RateLimitInfo, Respond};
#[cfg(feature = "redis-cell")]
pub use crate::store::RedisCell;
#[cfg(feature = "redis-tls")]
pub use crate::store::RedisTls;
pub use crate::store::{DynLimit, Memory, MemoryBuilder};
#[cfg(feature = "redis")]
pub use crate::store::{Redis, RedisBuilder, RedisServer};
pub use crate::table::WhenFull;

/// The examples in README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The guide: pages on choosing algorithms, key extractors, responses, costs, Redis, and more.
///
/// The same pages are in the folder `docs` of the repository.
// A page links to another page by a reference, which the end of the page defines as a file. A definition here comes first, so
// rustdoc uses it, and links to the module.
#[cfg(any(doc, doctest))]
pub mod guide {
    #[doc = include_str!("../docs/choosing.md")]
    pub mod choosing {}

    #[doc = include_str!("../docs/costs.md")]
    pub mod costs {}

    /// [costs]: crate::guide::costs
    /// [redis]: crate::guide::redis
    ///
    #[doc = include_str!("../docs/design.md")]
    pub mod design {}

    /// [keys]: crate::guide::keys
    /// [responses]: crate::guide::responses
    /// [several]: crate::guide::choosing#several-limits
    ///
    #[doc = include_str!("../docs/from-tower-governor.md")]
    pub mod from_tower_governor {}

    #[doc = include_str!("../docs/keys.md")]
    pub mod keys {}

    #[doc = include_str!("../docs/metrics.md")]
    pub mod metrics {}

    #[doc = include_str!("../docs/performance.md")]
    pub mod performance {}

    /// [sizing]: crate::guide::redis_sizing
    /// [call-duration]: crate::guide::redis_sizing#the-duration-of-a-call
    ///
    #[doc = include_str!("../docs/redis.md")]
    pub mod redis {}

    /// [redis]: crate::guide::redis
    ///
    #[doc = include_str!("../docs/redis-sizing.md")]
    pub mod redis_sizing {}

    #[doc = include_str!("../docs/responses.md")]
    pub mod responses {}
}
