//! A limited gRPC service is called by the name of the service itself.

use tonic::server::NamedService;

use super::service::RateLimit;

impl<S: NamedService, K, A, R, T> NamedService for RateLimit<S, K, A, R, T> {
    const NAME: &'static str = S::NAME;
}
