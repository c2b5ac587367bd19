//! Clients that come back when they are told to (feature `retry`).
//!
//! [`RetryAfter`] is a policy for tower's [`Retry`](tower::retry::Retry). It reads off a refusal when to come back,
//! waits for that long and asks again:
//!
//! | Read by | From |
//! |---|---|
//! | [`HttpHint`] | `Retry-After` (seconds or a date), else `RateLimit` (`t` of what has `r=0`); of a gRPC answer its status |
//! | `GrpcHint` | `grpc-retry-pushback-ms`, else `google.rpc.RetryInfo` (feature `tonic`) |
//! | a closure `Fn(&Request, Result<&Response, &Error>) -> RetryHint` | what it looks at |
//!
//! Requests are cloned to be sent again. [`RetryAfter::clone_with`] shows a client whose requests are not `Clone`:
//! reqwest's.
//!
//! No server is believed beyond what the client has said it would bear: neither in how long it waits, nor in how often
//! it asks.
//!
//! A client that keeps to its own limit is refused seldom. The layer limits clients as it does servers: here by
//! waiting, with an error for what can't have its turn in time. The retries are outside of it, so that they count as
//! well.
//!
//! ```
//! use std::time::Duration;
//!
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_ratelimit::key::Global;
//! use tower_ratelimit::response::{RejectWithError, BoxError};
//! use tower_ratelimit::retry::RetryAfter;
//! use tower_ratelimit::{Gcra, Memory, Quota, RateLimitLayer};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! // Stands for an HTTP client, and a server that refuses every other request.
//! let requests = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
//! let http = service_fn(move |_: Request<()>| {
//!     let refuses = requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2 == 0;
//!     let answer = Response::builder().status(if refuses { 429 } else { 200 }).header("retry-after", "2");
//!     async move { Ok::<_, BoxError>(answer.body(())?) }
//! });
//!
//! // The provider allows ten a second.
//! let limiter = Memory::new(Gcra::new(Quota::per_second(10)).strict());
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

#[cfg(feature = "tonic")]
mod grpc;
mod hint;
mod http;
mod policy;
mod request;

#[cfg(feature = "tonic")]
pub use self::grpc::GrpcHint;
pub use self::hint::{ReadRetryHint, RetryHint};
pub use self::http::HttpHint;
pub use self::policy::{RetryAfter, RetryDelay};
pub use self::request::{ByClone, CloneRequest};
