//! Exact rate limiting for tower services: in memory, or in Redis with limits shared by many processes.
//!
//! ```sh
//! cargo add tower-ratelimit axum
//! cargo add tokio --features macros,net,rt-multi-thread
//! ```
//!
//! [`RateLimitLayer`] extracts a key from each request and acquires from a limiter. The layer forwards an allowed
//! request to the service. It rejects a denied request with the exact time after which a retry succeeds.
//! The [`guide`] has a page on [algorithms](guide::choosing), [recipes](guide::recipes) and
//! [common pitfalls](guide::pitfalls), and pages on keys, responses, costs, Redis, metrics and performance.
//!
//! ```
//! use std::net::SocketAddr;
//!
//! use axum::{Router, routing::get};
//! use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
//!
//! async fn serve() -> std::io::Result<()> {
//!     // Ten requests per second per client address, bursts of twenty.
//!     let limiter = Memory::new(Gcra::new(Quota::per_second(10)).burst(20));
//!     let app = Router::new()
//!         .route("/", get(async || "hello\n"))
//!         .layer(RateLimitLayer::new(PeerIp::new(), limiter));
//!
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     // `PeerIp` reads the client's address from axum's connect info.
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! }
//! ```
//!
//! # Components
//!
//! | Component | Responsibility |
//! |---|---|
//! | [key extractor](ExtractKey) | makes a key from a request: an [address](ClientIp), a header field, a user |
//! | [limiter](Limiter) | decides about a key: [`Memory`] or `Redis`, each with one or several limits |
//! | [algorithm](algorithm::Algorithm) | decides from a key's state, with a [`Quota`]: [`Gcra`], [`SlidingWindow`] and others |
//! | [`Limit`] | an algorithm with a name and the sub-key by which it counts; several limits are one transaction |
//! | [`Decision`] | allowed, delayed, denied or exceeds limit; with limit, remaining, reset and retry after |
//! | [responder](Respond) | makes a response from a rejection: [`Http`], `Grpc`, an error, a closure |
//!
//! A limiter can be called without the middleware: [`Memory::check`]. Extractor, limiter, algorithm and responder are
//! traits for your own implementations; the documentation of each trait contains a complete example.
//!
//! # Modules
//!
//! | Module | Contents |
//! |---|---|
//! | [`key`] | key extractors and exemptions |
//! | [`algorithm`] | algorithms, and the maximum that each admits |
//! | [`limit`] | named limits, several limits in one limiter, algorithms [chosen by the key](per_key) |
//! | [`limiter`] | the trait between middleware and stores, combinators, and [holds](limiter::Held) |
//! | [`store`] | stores: in memory, in Redis (feature `redis`), and [your own](store::StoreLimits) |
//! | [`cost`] | costs of requests, before and after the response |
//! | [`response`] | HTTP and gRPC responses, response headers |
//! | `retry` | client retry policy that honours `Retry-After` (feature `retry`) |
//! | [`observe`] | events for metrics and logs |
//! | `config` | limits from configuration (feature `serde`) |
//! | `test_util` | tests for a store of your own (feature `test-util`) |
//!
//! [`RateLimitLayer`](RateLimitLayer#what-is-charged) documents when a request is charged, and what happens if its
//! future is dropped.
//!
//! # Guarantees
//!
//! - **Exact**: algorithms count in integers and whole microseconds. No algorithm admits more in any window than its
//!   documentation states, and no rate drifts. A denied request changes nothing.
//! - **`retry_after` is sufficient and minimal**: if no other caller uses the key, the same request succeeds after
//!   exactly that time, and not a microsecond earlier, unless the decision [is an estimate](Decision::is_estimate). A
//!   request that can never succeed [exceeds the limit](Verdict::ExceedsLimit).
//! - **Linearizable**: any number of threads admit exactly what one thread would admit.
//! - **Bounded memory**: [`max_keys`](MemoryBuilder::max_keys) bounds the table; below that bound no key is evicted.
//!   There is no background thread and no sweep.
//! - **Low overhead**: a decision in memory is immediate and allocates nothing, except for the sliding log and for
//!   holds. [Performance](guide::performance) states the times.
//! - **All or nothing**: if one of several limits denies a request, none is charged.
//! - **A missing key is not an exemption**: a client cannot lift a limit by omitting or repeating a header field.
//! - **Client-supplied headers are never trusted** unless the application [configures](key::TrustedProxies) its
//!   proxies. Secrets are stored only as keyed hashes.
//! - **tower's contract**: the service instance that was ready receives the request; a rejection releases the
//!   readiness.
//! - **No unsafe code**, and no panic at run time: an invalid configuration is an error when it is built.
//!
//! # Testing
//!
//! With a [`ManualClock`] a test does not sleep, and does not depend on the machine's speed:
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
//! let denied = get().await;
//! assert_eq!(denied.status(), 429);
//! assert_eq!(denied.headers()["retry-after"], "1");
//!
//! // Ten per second: one more request is allowed after 100 ms.
//! clock.advance(Duration::from_millis(100));
//! assert_eq!(get().await.status(), 200);
//! assert_eq!(get().await.status(), 429);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! `axum` and `timer` are on by default. Features only add items.
//!
//! - **`axum`** (default): [`PeerIp`] and [`ClientIp`] read axum's `ConnectInfo<SocketAddr>`, and `key::MatchedPath` its
//!   routes. Rejections are axum's responses, and closures that answer them may return tuples.
//! - **`bb8`**: `RedisServer::from` takes the `bb8::Pool` that an application has. No other feature names types of bb8
//!   or of the crate redis.
//! - **`metrics`**: `observe::Metrics` records counters, gauges and histograms with the `metrics` facade.
//! - **`redis`**: `Redis`, a limiter whose limits many processes share.
//! - **`redis-cell`**: `RedisCell`, one limit by the command `CL.THROTTLE` of the redis-cell module.
//! - **`redis-cluster`**: Redis Cluster and Valkey Cluster.
//! - **`redis-sentinel`**: connects to the master that Redis Sentinel reports.
//! - **`redis-tls`**: `rediss://` addresses, and `RedisTls` for certificates.
//! - **`retry`**: `retry::RetryAfter`, a policy for tower's `Retry` that honours `Retry-After`, and `retry::GateLayer`,
//!   which pauses all requests to a server that has rejected one.
//! - **`serde`**: `Serialize` and `Deserialize` for [`Quota`] (as text, such as `"100/min"`), and limits from
//!   configuration in `config`.
//! - **`test-util`**: `test_util::check_store` compares a store of your own with [`Memory`]. For dev-dependencies.
//! - **`timer`** (default): requests wait for a delayed start (tokio's timer): `RateLimitLayer::max_wait`, and [`LeakyQueue`]
//!   behind the layer; `limiter::until_ready`; `TokioClock`.
//! - **`tonic`**: gRPC in tonic 0.14: `response::Grpc`, `response::ByContentType`, `cost::OnlyGrpcCodes`, and the
//!   peer's address for [`PeerIp`] and [`ClientIp`].
//! - **`tonic-tls`**: the peer's address on TLS connections that your own server hands to tonic.
//! - **`tracing`**: `observe::Tracing` logs events with the `tracing` facade.

// docs.rs shows the feature that each item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod algorithm;
mod clock;
#[cfg(feature = "serde")]
pub mod config;
mod decision;
mod encode;
mod error;
mod escalation;
pub mod key;
pub mod limit;
pub mod limiter;
mod middleware;
pub mod observe;
mod quota;
mod read_ahead;
pub mod response;
#[cfg(feature = "retry")]
pub mod retry;
mod runtime;
mod scratch;
pub mod store;
mod sync;
mod table;
#[cfg(any(test, feature = "test-util"))]
pub mod test_util;

#[doc(inline)]
pub use crate::algorithm::{
    FixedWindow, Gcra, InFlight, LeakyBucket, LeakyQueue, SlidingLog, SlidingWindow, TokenBucket,
};
#[cfg(feature = "timer")]
pub use crate::clock::TokioClock;
pub use crate::clock::{Clock, CoarseClock, ManualClock, SystemClock, Timestamp};
pub use crate::decision::{
    AcquireOptions, BlockReason, Costs, Decision, DecisionSource, Detail, LazySnapshot, LimitSnapshot, LimitStatus,
    ReservationId, Verdict,
};
pub use crate::error::Error;
#[doc(inline)]
pub use crate::key::{ClientIp, ExtractKey, PeerIp};
#[doc(inline)]
pub use crate::limit::{Limit, per_key};
#[doc(inline)]
pub use crate::limiter::{BoxLimiter, Limiter};
pub use crate::middleware::{
    InFlightBody, InFlightGuard, MissingKeyPolicy, RateLimit, RateLimitLayer, ResponseFuture, cost,
};
pub use crate::quota::{Quota, QuotaError};
pub use crate::read_ahead::{ReadAhead, ReadAheadBody, ReadAheadFuture, ReadAheadLayer};
#[doc(inline)]
pub use crate::response::{Http, RateLimitInfo, Respond};
#[cfg(feature = "redis-cell")]
#[doc(inline)]
pub use crate::store::RedisCell;
#[cfg(feature = "redis-tls")]
#[doc(inline)]
pub use crate::store::RedisTls;
#[doc(inline)]
pub use crate::store::{DynLimit, Memory, MemoryBuilder};
#[cfg(feature = "redis")]
#[doc(inline)]
pub use crate::store::{Redis, RedisBuilder, RedisCredentials, RedisServer};
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
    /// [costs]: crate::guide::costs
    /// [deploy]: crate::guide::recipes#counts-that-survive-a-deploy
    /// [instead]: crate::guide::gateways#what-this-crate-does-not-have
    /// [leases]: crate::guide::leases
    /// [logins]: crate::guide::recipes#logins-by-account-and-address
    /// [escalation]: crate::guide::recipes#longer-blocks-for-repeated-denials
    #[doc = include_str!("../docs/pictures/abuse.md")]
    #[doc = include_str!("../docs/pictures/bucket.md")]
    #[doc = include_str!("../docs/pictures/fixed-window.md")]
    #[doc = include_str!("../docs/pictures/sliding-window.md")]
    #[doc = include_str!("../docs/pictures/sliding-log.md")]
    #[doc = include_str!("../docs/pictures/leaky-queue.md")]
    #[doc = include_str!("../docs/pictures/public-api.md")]
    #[doc = include_str!("../docs/pictures/login-attempts.md")]
    #[doc = include_str!("../docs/pictures/expensive-jobs.md")]
    #[doc = include_str!("../docs/pictures/outbound-client.md")]
    #[doc = include_str!("../docs/pictures/llm-tokens.md")]
    #[doc = include_str!("../docs/pictures/tenants.md")]
    #[doc = include_str!("../docs/pictures/waiting.md")]
    #[doc = include_str!("../docs/pictures/several-limits.md")]
    #[doc = include_str!("../docs/pictures/in-flight.md")]
    ///
    #[doc = include_str!("../docs/choosing.md")]
    pub mod choosing {}

    /// [in-flight]: crate::guide::choosing#requests-in-flight-concurrency
    /// [pitfalls]: crate::guide::pitfalls
    ///
    #[doc = include_str!("../docs/costs.md")]
    pub mod costs {}

    /// [costs]: crate::guide::costs
    /// [leases]: crate::guide::leases
    /// [redis]: crate::guide::redis
    #[doc = include_str!("../docs/pictures/architecture.md")]
    ///
    #[doc = include_str!("../docs/design.md")]
    pub mod design {}

    /// [buckets]: crate::guide::recipes#prometheus-buckets-and-alerts
    /// [keys]: crate::guide::keys
    /// [responses]: crate::guide::responses
    /// [several]: crate::guide::choosing#several-limits
    /// [waiting]: crate::guide::costs#waiting-queueing
    ///
    #[doc = include_str!("../docs/from-tower-governor.md")]
    pub mod from_tower_governor {}

    /// [configuration]: crate::guide::choosing#limits-from-configuration
    /// [reservation]: crate::guide::costs#holds
    /// [tiers]: crate::guide::choosing#tiers
    ///
    #[doc = include_str!("../docs/gateways.md")]
    pub mod gateways {}

    #[doc = include_str!("../docs/keys.md")]
    pub mod keys {}

    /// [choosing]: crate::guide::choosing
    /// [costs]: crate::guide::costs
    /// [redis]: crate::guide::redis
    ///
    #[doc = include_str!("../docs/pictures/leases.md")]
    #[doc = include_str!("../docs/leases.md")]
    pub mod leases {}

    #[doc = include_str!("../docs/metrics.md")]
    pub mod metrics {}

    #[doc = include_str!("../docs/performance.md")]
    pub mod performance {}

    /// [costs]: crate::guide::costs
    /// [keys]: crate::guide::keys
    /// [responses]: crate::guide::responses#cors
    ///
    #[doc = include_str!("../docs/pitfalls.md")]
    pub mod pitfalls {}

    #[doc = include_str!("../docs/recipes.md")]
    pub mod recipes {}

    /// [sizing]: crate::guide::redis_sizing
    /// [leases]: crate::guide::leases
    /// [holds-sizing]: crate::guide::redis_sizing#holds
    /// [call-duration]: crate::guide::redis_sizing#the-duration-of-a-call
    ///
    #[doc = include_str!("../docs/redis.md")]
    pub mod redis {}

    /// [redis]: crate::guide::redis
    ///
    #[doc = include_str!("../docs/redis-sizing.md")]
    pub mod redis_sizing {}

    /// [in-flight]: crate::guide::choosing#requests-in-flight-concurrency
    /// [operations]: crate::guide::keys#operations-on-keys
    /// [pitfalls]: crate::guide::pitfalls
    ///
    #[doc = include_str!("../docs/responses.md")]
    pub mod responses {}
}
