use http::{HeaderName, Response};

use super::Settle;

/// Charges failures; what succeeded is released.
///
/// In HTTP a failure is a status of 400 or above (also one that no standard knows), in gRPC a `grpc-status` other than 0 in the response's headers, and in
/// either an error of the inner service. (A gRPC call that sent messages before it failed tells so in its trailers, after
/// the response has begun: it counts as a success.)
///
/// "At most five failed logins in fifteen minutes" thus holds against any number of concurrent attempts: each is held
/// when it begins, and released if it succeeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnlyFailures;

/// Charges successes; what failed is released. What counts as a failure is said at [`OnlyFailures`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnlySuccesses;

impl<B, E> Settle<Response<B>, E> for OnlyFailures {
    fn settle(&self, charged: u64, answer: Result<&Response<B>, &E>) -> u64 {
        if has_failed(answer) { charged } else { 0 }
    }
}

impl<B, E> Settle<Response<B>, E> for OnlySuccesses {
    fn settle(&self, charged: u64, answer: Result<&Response<B>, &E>) -> u64 {
        if has_failed(answer) { 0 } else { charged }
    }
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

fn has_failed<B, E>(answer: Result<&Response<B>, &E>) -> bool {
    let Ok(response) = answer else { return true };
    let status = response.status();
    let grpc = response.headers().get(GRPC_STATUS);
    status.as_u16() >= 400 || grpc.is_some_and(|status| status != "0")
}
