use http::{HeaderName, Response};
use tonic::Code;

use super::Settle;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Charges gRPC calls that end in one of these codes; all others are released. "At most five failed logins in fifteen
/// minutes" is `OnlyGrpcCodes::new([Code::Unauthenticated])`.
///
/// A code is read where a call ends in its first answer, as tonic's do that return a `Status` instead of a response.
/// What comes in the trailers of a response that has begun is not waited for: such a call counts as `OK`, and so does
/// an answer that is not gRPC's. An error of the service counts as `UNKNOWN`.
///
/// ```
/// use tonic::Code;
/// use tower_ratelimit::response::Grpc;
/// use tower_ratelimit::cost::OnlyGrpcCodes;
/// use tower_ratelimit::{FixedWindow, Memory, PeerIp, Quota, RateLimitLayer};
///
/// let failed = Memory::new(FixedWindow::new(Quota::per_hour(5)));
/// let layer = RateLimitLayer::new(PeerIp::new(), failed)
///     .responder(Grpc::new())
///     .settle(OnlyGrpcCodes::new([Code::Unauthenticated, Code::PermissionDenied]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnlyGrpcCodes {
    /// A bit for each of the seventeen.
    codes: u32,
}

impl OnlyGrpcCodes {
    /// Charges for these.
    #[must_use]
    pub fn new(codes: impl IntoIterator<Item = Code>) -> Self {
        Self { codes: codes.into_iter().fold(0, |codes, code| codes | bit(code)) }
    }
}

impl<B, E> Settle<Response<B>, E> for OnlyGrpcCodes {
    fn settle(&self, charged: u64, answer: Result<&Response<B>, &E>) -> u64 {
        let code = match answer {
            Ok(response) => {
                response.headers().get(GRPC_STATUS).map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()))
            }
            Err(_) => Code::Unknown,
        };
        if self.codes & bit(code) == 0 { 0 } else { charged }
    }
}

fn bit(code: Code) -> u32 {
    1 << (code as u32)
}
