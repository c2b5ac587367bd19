//! Exact rate limiting for tower services: in memory, or in Redis with limits shared by many processes.
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
//! The [`guide`] leads you from the first limit to production: [algorithms](guide::choosing),
//! [key extractors](guide::keys), a [cookbook](guide::recipes), [operating](guide::operating), [Redis](guide::redis) and
//! [common pitfalls](guide::pitfalls).
//!
//! # What a request passes
//!
//! ```text
//! request
//!    │
//!    v
//! key extractor   PeerIp, ClientIp, Credential, .. ── no key ──> 400
//!    │
//!    v
//! limiter         Memory or Redis, any algorithm   ── denied ──> 429, Retry-After
//!    │                                             ── delayed ─> waits in a queue
//!    v
//! your service    ──> response with RateLimit
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
//! You can call a limiter without the middleware: [`Memory::check`]. In your tests, a [`ManualClock`] moves the time: see
//! [testing your limits](guide::testing_your_limits).
//!
//! Extractor, limiter, algorithm and responder are traits for your own implementations. The documentation of each trait
//! contains a complete example.
//!
//! | Item | Contents |
//! |---|---|
//! | [`key`] | key extractors and exemptions |
//! | [`algorithm`] | algorithms, and the maximum that each admits |
//! | [`Limit`] | named limits, several limits in one limiter, algorithms [chosen by the key](per_key) |
//! | [`limiter`] | the trait between middleware and stores, combinators, and [holds](limiter::Held) |
//! | [`store`] | stores: in memory, in Redis (feature `redis`), and [your own](store::StoreLimits) |
//! | [`cost`] | costs of requests, before and after the response |
//! | [`response`] | HTTP and gRPC responses, response headers |
//! | `retry` | client retry policy that honours `Retry-After` (feature `retry`) |
//! | [`observe`] | events for metrics and logs |
//! | `config`, `routes` | limits from configuration, and of all routes in one file (feature `serde`) |
//! | `waiting`, `pacing` | jobs, items and bytes that wait for a limiter (feature `timer`) |
//! | `test_util` | tests for a store or an algorithm of your own (feature `test-util`) |
//!
//! [`RateLimitLayer`](RateLimitLayer#what-is-charged) documents when a request is charged, and what happens if its
//! future is dropped.
//!
//! # Guarantees
//!
//! - **Exact**: algorithms count in integers and whole microseconds. No algorithm admits more in any window than its
//!   documentation states, and no rate drifts. A denied request changes nothing.
//! - **`retry_after` is sufficient and minimal**: if no other caller uses the key, the same request succeeds after
//!   exactly that time, and not a microsecond earlier. The decision tells you if its wait
//!   [is an estimate](Decision::is_estimate). A request that can never succeed
//!   [exceeds the limit](Verdict::ExceedsLimit).
//! - **Linearizable**: any number of threads admit exactly what one thread would admit.
//! - **Bounded memory**: [`max_keys`](MemoryBuilder::max_keys) bounds the table. Below that bound no key is evicted.
//!   There is no background thread.
//! - **Low overhead**: a decision on one key in memory takes some tens of nanoseconds, and allocates nothing. (New keys,
//!   sliding logs, fixed windows of several periods on one key, ids, and long lists with shadows or marks allocate.)
//!   [Performance](guide::performance) compares other limiters.
//! - **All or nothing**: if one of several limits denies a request, none is charged.
//! - **A missing key is not an exemption**: a client cannot lift a limit by omitting or repeating a header field.
//! - **Client-supplied headers are never trusted** unless you [configure](key::TrustedProxies) your proxies. Secrets are
//!   stored only as keyed hashes.
//! - **tower's contract**: the service instance that was ready receives the request. A rejection releases the readiness.
//! - **No unsafe code**, and no panic at run time, except in constructors that document one, such as [`Gcra::new`] and
//!   [`Quota::per_day`]. For numbers from a database use `try_new`.
//!
//! # Features
//!
//! `axum` and `timer` are on by default. Features only add items.
//!
//! - **`axum`** (default): [`PeerIp`] and [`ClientIp`] read axum's `ConnectInfo<SocketAddr>`, and `key::MatchedPath` its
//!   routes. Rejections are axum's responses, and closures that answer them may return tuples.
//! - **`bb8`**: `RedisServer::from` takes the `bb8::Pool` that your application has. No other feature names types of bb8
//!   or of the crate redis.
//! - **`metrics`**: `observe::Metrics` records counters, gauges and histograms with the `metrics` facade.
//! - **`redis`**: `Redis`, a limiter whose limits many processes share.
//! - **`redis-cell`**: `RedisCell`, one limit by the command `CL.THROTTLE` of the redis-cell module.
//! - **`redis-cluster`**: Redis Cluster and Valkey Cluster.
//! - **`redis-sentinel`**: connects to the master that Redis Sentinel reports.
//! - **`redis-tls`**: `rediss://` addresses, and `RedisTls` for certificates.
//! - **`retry`**: `retry::RetryAfter`, a policy for tower's `Retry` that honours `Retry-After`, and `retry::gate::GateLayer`,
//!   which pauses all requests to a server that has rejected one.
//! - **`serde`**: `Serialize` and `Deserialize` for [`Quota`] (as text, such as `"100/min"`), and limits from
//!   configuration in `config`, and limits of all routes in one file in `routes`.
//! - **`time-zones`**: `Calendar::zone`, calendar windows in the time zones of the IANA database. Depends on the crate jiff,
//!   and contains the database.
//! - **`test-util`**: `test_util::check_store` compares a store of your own with [`Memory`], and `check_algorithm` checks the
//!   laws of an algorithm of your own. For dev-dependencies.
//! - **`timer`** (default): requests wait for a delayed start (tokio's timer): `RateLimitLayer::max_wait`, and [`LeakyQueue`]
//!   behind the layer; `waiting::until_ready`; `pacing::PacingLayer`; `ReadAheadLayer::drain_rejected`; `TokioClock`.
//! - **`tonic`**: gRPC in tonic 0.14: `response::Grpc`, `Http::grpc`, `cost::OnlyGrpcCodes`, and the
//!   peer's address for [`PeerIp`] and [`ClientIp`].
//! - **`tonic-tls`**: the peer's address on TLS connections that your own server hands to tonic.
//! - **`tracing`**: `observe::Tracing` logs events with the `tracing` facade.

// docs.rs shows the feature that each item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(all(feature = "redis", test))]
#[macro_use]
#[path = "../tests/mistake.rs"]
mod mistake;
#[cfg(all(feature = "redis", not(test)))]
macro_rules! mistake {
    ($name:ident) => {
        false
    };
    ($name:ident, $wrong:expr, $right:expr) => {
        $right
    };
}

#[macro_use]
mod impls;

pub mod algorithm;
mod calendar;
mod clock;
#[cfg(feature = "serde")]
pub mod config;
mod decision;
mod encode;
mod error;
mod escalation;
pub mod key;
mod limit;
pub mod limiter;
mod middleware;
pub mod observe;
#[cfg(feature = "timer")]
pub mod pacing;
mod quota;
#[cfg(any(test, feature = "test-util"))]
mod random;
mod read_ahead;
pub mod response;
#[cfg(feature = "retry")]
pub mod retry;
#[cfg(feature = "serde")]
pub mod routes;
mod runtime;
mod scratch;
pub mod store;
mod sync;
#[cfg(any(all(test, not(loom)), feature = "test-util"))]
pub mod test_util;
#[cfg(feature = "timer")]
pub mod waiting;

pub use crate::algorithm::bucket::{Gcra, LeakyBucket, TokenBucket};
pub use crate::algorithm::fixed_window::FixedWindow;
pub use crate::algorithm::in_flight::InFlight;
pub use crate::algorithm::leaky_queue::LeakyQueue;
pub use crate::algorithm::sliding_log::SlidingLog;
pub use crate::algorithm::sliding_window::SlidingWindow;
pub use crate::calendar::{Calendar, Weekday};
#[cfg(feature = "timer")]
pub use crate::clock::TokioClock;
pub use crate::clock::{Clock, CoarseClock, ManualClock, SystemClock, Timestamp};
pub use crate::decision::{
    AcquireOptions, BlockReason, Costs, Decision, DecisionSource, Detail, LazySnapshot, LimitSnapshot, LimitStatus,
    ReservationId, Verdict,
};
pub use crate::error::Error;
pub use crate::key::extract::ExtractKey;
pub use crate::key::ip::{ClientIp, PeerIp};
pub use crate::limit::Limit;
pub use crate::limit::per_key::per_key;
// Bounds and types of the methods of `Limit`: nameable for generic code, not documented.
#[doc(hidden)]
pub use crate::limit::{
    AlgorithmSelector, IntoLimit, KeepFree, KeyedBy, OnlyIf, PerKey, SelectAlgorithm, SubKeyOf, WholeKey,
};
pub use crate::limiter::boxed::BoxLimiter;
pub use crate::limiter::contract::Limiter;
pub use crate::middleware::{
    InFlightBody, InFlightGuard, MissingKeyPolicy, RateLimit, RateLimitLayer, ResponseFuture, cost,
};
pub use crate::quota::{Quota, QuotaError};
pub use crate::read_ahead::{ReadAhead, ReadAheadBody, ReadAheadFuture, ReadAheadLayer};
pub use crate::response::http::Http;
pub use crate::response::info::RateLimitInfo;
pub use crate::response::respond::Respond;
pub use crate::store::memory::{DynLimit, Memory, MemoryBuilder, WhenFull};
#[cfg(feature = "redis-cell")]
pub use crate::store::redis::RedisCell;
#[cfg(feature = "redis-tls")]
pub use crate::store::redis::RedisTls;
#[cfg(feature = "redis")]
pub use crate::store::redis::{Redis, RedisBuilder, RedisCredentials, RedisServer};

// A page links to another page by a reference, which the end of the page defines as a file. A definition here comes first, so
// rustdoc uses it, and links to the module. `tests/docs` tests the examples, which need more dependencies than this package.
#[cfg(all(doc, not(doctest)))]
pub mod guide {
    //! The guide, page by page.
    //!
    //! [choosing]: crate::guide::choosing
    //! [configuration]: crate::guide::configuration
    //! [costs]: crate::guide::costs
    //! [from-governor]: crate::guide::from_governor
    //! [from-tower-governor]: crate::guide::from_tower_governor
    //! [gateways]: crate::guide::gateways
    //! [keys]: crate::guide::keys
    //! [kubernetes]: crate::guide::kubernetes
    //! [leases]: crate::guide::leases
    //! [limits]: crate::guide::limits
    //! [metrics]: crate::guide::metrics
    //! [operating]: crate::guide::operating
    //! [performance]: crate::guide::performance
    //! [pitfalls]: crate::guide::pitfalls
    //! [recipes]: crate::guide::recipes
    //! [redis]: crate::guide::redis
    //! [redis-sizing]: crate::guide::redis_sizing
    //! [responses]: crate::guide::responses
    //! [testing-your-limits]: crate::guide::testing_your_limits
    //!
    #![doc = include_str!("../docs/README.md")]

    /// [configuration]: crate::guide::configuration
    /// [costs]: crate::guide::costs
    /// [in-flight]: crate::guide::limits#requests-in-flight-concurrency
    /// [instead]: crate::guide::gateways#what-this-crate-does-not-have
    /// [logins]: crate::guide::recipes#logins-by-account-and-address
    /// [monthly]: crate::guide::recipes#a-monthly-quota-from-a-billing-day
    /// [shares]: crate::guide::limits#guaranteed-shares
    /// [waiting]: crate::guide::costs#waiting-queueing
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
    ///
    #[doc = include_str!("../docs/choosing.md")]
    pub mod choosing {}

    /// [limits]: crate::guide::limits
    /// [tiers]: crate::guide::limits#tiers
    /// [policy]: crate::config::Policy
    /// [routes]: crate::routes
    ///
    #[doc = include_str!("../docs/configuration.md")]
    pub mod configuration {}

    /// [held]: crate::guide::redis#costs-that-are-held
    /// [jobs]: crate::guide::recipes#a-fair-job-queue
    /// [pitfalls]: crate::guide::pitfalls#waiting-and-disconnected-clients
    /// [stream]: crate::guide::recipes#a-stream-with-a-reservation-id
    ///
    #[doc = include_str!("../docs/costs.md")]
    pub mod costs {}

    /// [capacity]: crate::guide::operating#memory-and-capacity
    /// [performance]: crate::guide::performance
    ///
    #[doc = include_str!("../docs/from-governor.md")]
    pub mod from_governor {}

    /// [keys]: crate::guide::keys#clients-behind-proxies
    /// [responses]: crate::guide::responses
    /// [several]: crate::guide::limits#several-limits
    ///
    #[doc = include_str!("../docs/from-tower-governor.md")]
    pub mod from_tower_governor {}

    /// [configuration]: crate::guide::configuration
    /// [reservation]: crate::guide::costs#holds
    /// [tiers]: crate::guide::limits#tiers
    /// [envoy]: https://docs.rs/crate/tower-ratelimit/latest/source/docs/envoy.yaml
    ///
    #[doc = include_str!("../docs/gateways.md")]
    pub mod gateways {}

    /// [in-flight]: crate::guide::limits#requests-in-flight-concurrency
    /// [leases]: crate::guide::leases
    /// [metrics]: crate::guide::metrics
    /// [websocket]: crate::guide::recipes#websocket-and-sse-messages
    #[doc = include_str!("../docs/pictures/calendar.md")]
    ///
    #[doc = include_str!("../docs/everyday.md")]
    pub mod everyday {}

    #[doc = include_str!("../docs/keys.md")]
    pub mod keys {}

    /// [choosing]: crate::guide::choosing
    /// [costs]: crate::guide::costs
    #[doc = include_str!("../docs/pictures/leases.md")]
    ///
    #[doc = include_str!("../docs/leases.md")]
    pub mod leases {}

    /// [costs]: crate::guide::costs
    /// [escalation]: crate::guide::recipes#longer-blocks-for-repeated-denials
    /// [handler]: crate::guide::recipes#a-limiter-in-a-handler
    /// [held]: crate::guide::redis#costs-that-are-held
    /// [operating]: crate::guide::operating#metrics-of-a-limiter-without-the-layer
    /// [performance]: crate::guide::performance#what-a-setting-costs
    /// [redis-keys]: crate::guide::keys#keys-in-redis
    /// [streams]: crate::guide::recipes#streams-of-a-language-model
    /// [users]: crate::guide::recipes#users-anonymous-clients-and-writes
    #[doc = include_str!("../docs/pictures/several-limits.md")]
    #[doc = include_str!("../docs/pictures/in-flight.md")]
    ///
    #[doc = include_str!("../docs/limits.md")]
    pub mod limits {}

    /// [buckets]: crate::guide::operating#prometheus-buckets-and-alerts
    /// [near]: crate::guide::limits#near-limit-signal
    /// [paced]: crate::guide::everyday#bytes-per-second
    /// [dashboard]: https://docs.rs/crate/tower-ratelimit/latest/source/docs/grafana.json
    ///
    #[doc = include_str!("../docs/metrics.md")]
    pub mod metrics {}

    /// [choosing]: crate::guide::choosing
    /// [configuration]: crate::guide::configuration
    /// [metrics]: crate::guide::metrics
    /// [processes]: crate::guide::kubernetes
    /// [alerts]: https://docs.rs/crate/tower-ratelimit/latest/source/docs/alerts.yml
    ///
    #[doc = include_str!("../docs/operating.md")]
    pub mod operating {}

    /// [sizing]: crate::guide::redis_sizing
    ///
    #[doc = include_str!("../docs/performance.md")]
    pub mod performance {}

    /// [caches]: crate::guide::responses#caches
    /// [in-flight]: crate::guide::limits#requests-in-flight-concurrency
    /// [keys]: crate::guide::keys#clients-behind-proxies
    /// [nested]: crate::guide::recipes#nested-routers
    /// [redis]: crate::guide::redis
    /// [responses]: crate::guide::responses#cors
    ///
    #[doc = include_str!("../docs/pitfalls.md")]
    pub mod pitfalls {}

    /// [calendar]: crate::guide::everyday#calendar-windows
    /// [tiers]: crate::guide::limits#tiers
    /// [ids]: crate::guide::costs#reservation-ids
    /// [kubernetes]: crate::guide::kubernetes
    /// [margin]: crate::guide::choosing#outbound-client
    /// [operating]: crate::guide::operating
    /// [responses]: crate::guide::responses
    /// [several]: crate::guide::limits
    ///
    #[doc = include_str!("../docs/recipes.md")]
    pub mod recipes {}

    /// [ids]: crate::guide::costs#reservation-ids
    /// [leases]: crate::guide::leases
    /// [processes]: crate::guide::kubernetes#redis
    /// [sizing]: crate::guide::redis_sizing
    ///
    #[doc = include_str!("../docs/redis.md")]
    pub mod redis {}

    /// [held]: crate::guide::redis#costs-that-are-held
    /// [keys]: crate::guide::keys#clients-behind-proxies
    /// [leases]: crate::guide::leases
    /// [redis]: crate::guide::redis
    /// [upgrades]: crate::guide::redis#upgrades-and-rolling-deployments
    ///
    #[doc = include_str!("../docs/kubernetes.md")]
    pub mod kubernetes {}

    /// [callers]: crate::guide::performance#redis
    /// [held]: crate::guide::redis#costs-that-are-held
    ///
    #[doc = include_str!("../docs/redis-sizing.md")]
    pub mod redis_sizing {}

    /// [gate]: crate::guide::recipes#a-pause-after-a-429
    /// [handler]: crate::guide::recipes#a-limiter-in-a-handler
    /// [in-flight]: crate::guide::limits#requests-in-flight-concurrency
    /// [messages]: crate::guide::recipes#websocket-and-sse-messages
    /// [methods]: crate::guide::recipes#limits-per-method-in-tonic
    /// [operations]: crate::guide::operating#operations-on-a-key
    /// [reqwest]: crate::guide::recipes#a-reqwest-client
    ///
    #[doc = include_str!("../docs/responses.md")]
    pub mod responses {}

    /// [shadow]: crate::guide::limits#shadow-limits
    /// [simulation]: crate::guide::choosing#simulation
    ///
    #[doc = include_str!("../docs/testing-your-limits.md")]
    pub mod testing_your_limits {}
}
