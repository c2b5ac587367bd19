//! Gates: a client pauses all requests to a server that has rejected one.
//!
//! [`RetryAfter`](super::RetryAfter) acts on one request: of ten concurrent requests, each receives the same 429. A gate
//! acts on all requests to one origin, or of any other [key](GateLayer::keyed_by), of one process.
//!
//! | Response | Gate |
//! |---|---|
//! | a rejection | closes for the time that the server states, or for one second if the server states none; for one hour at most |
//! | a rejection, and more is available in less than a second: `RateLimit` with `r=0` and without `t` | spaces the requests that wait |
//! | a response after which nothing remains for a time | closes until the time may be over: servers round it up to a second |
//! | any other response | stays as it is |
//!
//! A 429 without a time also closes the gate for a second, and [`RetryAfter`](super::RetryAfter) repeats its request. The
//! servers of this crate send such a 429 for a cost that exceeds the limit for good. In gRPC they forbid the retry by a
//! pushback of -1.
//!
//! A gate is open while no request waits and no time is in force. Otherwise requests wait in order of arrival. After a
//! pause one request starts, and its response lets two start, then four, as far as the server states that more remains:
//! so a server that still rejects requests rejects one. If the server does not state that more remains, and no time,
//! requests start at a distance that the gate learns from rejections. A response that arrives late changes nothing: a
//! pause only gets longer.
//!
//! ```
//! use http::{Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_ratelimit::response::BoxError;
//! use tower_ratelimit::retry::RetryAfter;
//! use tower_ratelimit::retry::gate::GateLayer;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), BoxError> {
//! # let http = service_fn(async |_: Request<()>| Ok::<_, BoxError>(Response::new(())));
//! // The retries are outside of the gate, so that they wait in order as well.
//! let mut client = ServiceBuilder::new().retry(RetryAfter::new()).layer(GateLayer::new()).service(http);
//! let response = client.ready().await?.call(Request::new(())).await?;
//! assert_eq!(response.status(), 200);
//! # Ok(())
//! # }
//! ```
//!
//! With hyper's client, requests and responses have the types of the crate `http`, which the gate reads by itself:
//!
#![cfg_attr(not(doctest), doc = include_str!("hyper.md"))]
//!
//! With reqwest, closures read its requests and responses:
//!
#![cfg_attr(not(doctest), doc = include_str!("reqwest.md"))]

mod future;
mod layer;
mod pace;
mod signal;
mod state;

pub use self::future::GateFuture;
pub use self::layer::{ByOrigin, Gate, GateClosed, GateKey, GateLayer};
pub use self::signal::{GateSignal, ReadGateSignal};
