//! What a decision looks like from outside.
//!
//! | Responder | A refusal is | For |
//! |---|---|---|
//! | [`Http`] | 429 with `Retry-After`, rate limit fields and a problem body | servers whose response body is made from bytes (axum's is) |
//! | [`AnyBody`] | the same, in a [`Body`] around the service's own | servers with any other body |
//! | `Grpc` | a gRPC status, with `RetryInfo` and `QuotaFailure` (feature `tonic`) | gRPC servers: tonic |
//! | `ByContentType` | the one or the other | servers that speak both on one port |
//! | [`AsError`] | a [`Rejected`] error | clients, services that are not HTTP |
//! | a closure `Fn(Request, Refusal) -> Response` | what it returns | all else |

mod admission;
mod any_body;
mod body;
#[cfg(feature = "tonic")]
mod by_content_type;
mod closure;
mod draft;
mod error;
mod fields;
#[cfg(feature = "tonic")]
mod grpc;
mod http;
mod partition;
mod problem;
mod refusal;
mod seam;
mod tell;
mod text;

pub use self::admission::Admission;
pub use self::any_body::AnyBody;
pub use self::body::Body;
#[cfg(feature = "tonic")]
pub use self::by_content_type::ByContentType;
pub use self::error::{AsError, BoxError, Rejected};
pub use self::fields::LegacyReset;
#[cfg(feature = "tonic")]
pub use self::grpc::Grpc;
pub use self::http::Http;
pub use self::partition::{Partition, PartitionBy};
pub use self::problem::{Problem, Render};
pub use self::refusal::Refusal;
pub use self::seam::Respond;
pub use self::tell::HttpMark;
