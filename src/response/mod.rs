//! Building HTTP and gRPC responses from decisions.
//!
//! | Responder | A rejection is | For |
//! |---|---|---|
//! | [`Http`] | status 429 with `Retry-After`, rate limit headers and a problem body | servers whose response body implements `From<Bytes>` and `Default` (axum) |
//! | [`MapBody`] | the same, in a [`ResponseBody`] around the service's own body | servers with any other body |
//! | `Grpc` | a gRPC status, with `RetryInfo` and `QuotaFailure` (feature `tonic`) | gRPC servers (tonic) |
//! | `Http::grpc` | the answer of `Grpc` or of `Http`, by the request | servers with gRPC and HTTP on one port |
//! | [`RejectWithError`] | the [`Rejection`] as the error | clients, and services that are not HTTP |
//! | a closure `Fn(Request, Rejection) -> Response` | what the closure returns | everything else |
//!
//! The answer to a rejected `HEAD` request has no body. The layer sends the response of a closure as it is, so a closure
//! in the last row must return a response without a body to `HEAD`: over HTTP/2, clients report another one as a
//! protocol error. Closures of [`Http::render`] need not distinguish methods.

#[cfg(feature = "axum")]
mod axum;
mod body;
mod closure;
#[cfg(feature = "tonic")]
mod grpc;
#[cfg(feature = "tonic")]
mod grpc_timeout;
mod headers;
pub(crate) mod http;
pub(crate) mod info;
mod map_body;
mod problem;
mod reject_with_error;
mod rejection;
pub(crate) mod respond;

pub use self::body::ResponseBody;
#[cfg(feature = "tonic")]
pub use self::grpc::Grpc;
pub use self::headers::{Headers, ResetFormat};
pub(crate) use self::http::Http;
pub use self::map_body::MapBody;
pub use self::problem::Problem;
// Bounds that closures, `Problem` and `From<Rejection>` satisfy: nameable for generic code, not documented.
#[doc(hidden)]
pub use self::problem::Render;
#[doc(hidden)]
pub use self::reject_with_error::FromRejection;
pub use self::reject_with_error::{BoxError, RejectWithError};
pub use self::rejection::Rejection;
pub(crate) use self::respond::Respond;
