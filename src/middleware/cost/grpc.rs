use http::{HeaderName, Response};
use tonic::Code;

use super::Settle;
use crate::decision::Costs;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Charges gRPC calls that end with one of these codes, and releases the held cost of all others.
///
/// "At most five failed logins in an hour":
///
/// ```
/// use tonic::Code;
/// use tower_ratelimit::cost::OnlyGrpcCodes;
/// use tower_ratelimit::response::Grpc;
/// use tower_ratelimit::{FixedWindow, Memory, PeerIp, Quota, RateLimitLayer};
///
/// let failed = Memory::<std::net::IpAddr, _>::new(FixedWindow::new(Quota::per_hour(5)));
/// let layer = RateLimitLayer::new(PeerIp::new(), failed)
///     .responder(Grpc::new())
///     .settle(OnlyGrpcCodes::new([Code::Unauthenticated, Code::PermissionDenied]));
/// ```
///
/// The code comes from the response headers, where tonic puts it if a method returns a `Status` instead of a response.
/// The layer settles before it receives trailers, so a call whose code is in the trailers counts as `OK`. A response
/// that is not gRPC counts as `OK` too. An error of the inner service counts as `UNKNOWN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnlyGrpcCodes {
    /// One bit for each of the 17 codes.
    codes: u32,
}

impl OnlyGrpcCodes {
    /// Charges calls that end with one of `codes`.
    pub fn new(codes: impl IntoIterator<Item = Code>) -> Self {
        Self { codes: codes.into_iter().fold(0, |codes, code| codes | bit(code)) }
    }
}

impl<B, E> Settle<Response<B>, E> for OnlyGrpcCodes {
    fn settle(&self, held: Costs, result: Result<&Response<B>, &E>) -> Costs {
        let code = match result {
            Ok(response) => {
                response.headers().get(GRPC_STATUS).map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()))
            }
            Err(_) => Code::Unknown,
        };
        if self.codes & bit(code) == 0 { Costs::from(0) } else { held }
    }
}

fn bit(code: Code) -> u32 {
    1 << (code as u32)
}
