//! Client retry policy that honours `Retry-After` (feature `retry`).
//!
//! [`RetryAfter`] is a policy for tower's [`Retry`](tower::retry::Retry). It reads the delay from a rejection, waits,
//! and retries:
//!
//! | Reader | Source of the delay |
//! |---|---|
//! | [`HttpHint`] | `Retry-After`, `RateLimit` (`t` of the items with `r=0`), the [fields of providers](#fields-of-providers), the status of a gRPC response |
//! | `GrpcHint` | `grpc-retry-pushback-ms`, otherwise `google.rpc.RetryInfo` (feature `tonic`) |
//! | a closure `Fn(&Request, Result<&Response, &Error>) -> RetryHint` | any part of the response |
//!
//! The policy clones requests to send them again. [`RetryAfter::clone_with`] shows how to clone the requests of
//! reqwest, which are not `Clone`.
//!
//! The client bounds the length and the number of its waits, whatever the server sends.
//!
//! A [gate] beside the policy pauses all requests to a server that has rejected one.
//!
//! [`idempotency_key`] creates an id for each request, so that a server with
//! [`RateLimitLayer::once`](crate::RateLimitLayer::once) charges its retries once.
//!
//! A client with its own rate limit is rarely rejected. The layer limits clients as it limits servers: in this
//! example the layer delays requests, and returns an error if the delay exceeds `max_wait`. The retries are outside
//! of the layer, so that the limit counts them.
//!
//! ```
//! use std::time::Duration;
//!
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_ratelimit::key::Global;
//! use tower_ratelimit::response::{BoxError, RejectWithError};
//! use tower_ratelimit::retry::RetryAfter;
//! use tower_ratelimit::{Gcra, Memory, Quota, RateLimitLayer, TokioClock};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! // An HTTP client, and a server that rejects every other request.
//! let requests = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
//! let http = service_fn(move |_: Request<()>| {
//!     let rejects = requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2 == 0;
//!     let answer = Response::builder().status(if rejects { 429 } else { 200 }).header("retry-after", "2");
//!     async move { Ok::<_, BoxError>(answer.body(())?) }
//! });
//!
//! // The server allows ten requests per second, and the delay of the network varies by 10 ms: the margin is
//! // 10 * 10 ms. This example runs in tokio's virtual time, and so does the limiter.
//! let quota = Quota::new(10, Duration::from_millis(1_100));
//! let limiter = Memory::builder(Gcra::new(quota).strict()).clock(TokioClock::new()).build()?;
//! let mut client = ServiceBuilder::new()
//!     .retry(RetryAfter::new().max_retries(5))
//!     .layer(RateLimitLayer::new(Global, limiter).max_wait(Duration::from_secs(30)).responder(RejectWithError))
//!     .service(http);
//!
//! let answer = client.ready().await?.call(Request::new(())).await?;
//! assert_eq!(answer.status(), 200);
//! # Ok(())
//! # }
//! ```

#![doc = include_str!("providers.md")]

mod fields;
pub mod gate;
#[cfg(feature = "tonic")]
mod grpc;
mod hint;
mod http;
mod idempotency;
mod policy;
mod reading;
mod request;
mod times;

#[cfg(feature = "tonic")]
pub use self::grpc::GrpcHint;
pub use self::hint::RetryHint;
pub use self::http::HttpHint;
pub use self::idempotency::idempotency_key;
pub use self::policy::RetryAfter;
// Bounds, default types and associated types of `RetryAfter`: nameable for generic code, not documented. Closures
// implement both traits.
#[doc(hidden)]
pub use self::{
    hint::{ReadRetryHint, ResponsesOnly},
    policy::RetryDelay,
    request::{ByClone, CloneRequest},
};
