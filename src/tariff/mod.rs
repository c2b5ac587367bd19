//! What a request costs: before it is let through, and after it was answered.
//!
//! A request is charged before the inner service is called: that is what holds a limit against any number of concurrent
//! requests. What it turns out to have cost is settled when the service has answered: what was charged too much is given
//! back as far as it still counts, what was charged too little is charged then, allowed or not.
//!
//! | Settle by | A request stays charged if |
//! |---|---|
//! | [`OnlyFailures`] | it failed: failed logins, bad requests |
//! | [`OnlySuccesses`] | it succeeded: paid calls |
//! | `OnlyCodes` | it ended in one of these gRPC codes (feature `tonic`) |
//! | a closure `Fn(charged, Result<&Response, &Error>) -> u64` | and at what, as the closure says |

#[cfg(feature = "tonic")]
mod grpc;
mod outcome;
mod seam;

#[cfg(feature = "tonic")]
pub use self::grpc::OnlyCodes;
pub use self::outcome::{OnlyFailures, OnlySuccesses};
pub use self::seam::{CostBy, One, SettleBy, Settles, Tariff};
