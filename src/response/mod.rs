//! What a decision looks like from outside.
//!
//! | Responder | A refusal is | For |
//! |---|---|---|
//! | [`Http`] | 429 with `Retry-After`, rate limit fields and a problem body | servers whose response body is made from bytes (axum's is) |
//! | [`AnyBody`] | the same, in a [`Body`] around the service's own | servers with any other body |
//! | [`AsError`] | a [`Rejected`] error | clients, services that are not HTTP |
//! | a closure `Fn(Request, Refusal) -> Response` | what it returns | all else |

mod admission;
mod any_body;
mod body;
mod closure;
mod error;
mod fields;
mod http;
mod problem;
mod refusal;
mod seam;
mod text;

pub use self::admission::Admission;
pub use self::any_body::AnyBody;
pub use self::body::Body;
pub use self::error::{AsError, BoxError, Rejected};
pub use self::fields::LegacyReset;
pub use self::http::{Http, HttpMark};
pub use self::problem::{Problem, Render};
pub use self::refusal::Refusal;
pub use self::seam::Respond;
