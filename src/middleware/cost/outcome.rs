use http::{HeaderName, Response};

use super::Settle;
use crate::decision::Costs;

/// Charges failures, and releases the held cost of successes.
///
/// These are failures:
///
/// - an HTTP status of 400 or above, including non-standard ones
/// - a `grpc-status` other than 0 in the response headers
/// - an error of the inner service
///
/// A gRPC call that fails after it has sent messages reports the failure in its trailers. The layer settles before it
/// receives trailers, so such a call counts as a success.
///
/// "At most five failed logins in fifteen minutes" thus holds against any number of concurrent attempts: the limiter
/// holds the cost of each attempt when it begins, and releases the cost if the attempt succeeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnlyFailures;

/// Charges successes, and releases the held cost of failures. [`OnlyFailures`] lists what counts as a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnlySuccesses;

impl<B, E> Settle<Response<B>, E> for OnlyFailures {
    fn settle(&self, held: Costs, result: Result<&Response<B>, &E>) -> Costs {
        if is_failure(result) { held } else { Costs::from(0) }
    }
}

impl<B, E> Settle<Response<B>, E> for OnlySuccesses {
    fn settle(&self, held: Costs, result: Result<&Response<B>, &E>) -> Costs {
        if is_failure(result) { Costs::from(0) } else { held }
    }
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

fn is_failure<B, E>(result: Result<&Response<B>, &E>) -> bool {
    let Ok(response) = result else { return true };
    let grpc_status = response.headers().get(GRPC_STATUS);
    response.status().as_u16() >= 400 || grpc_status.is_some_and(|status| status != "0")
}
