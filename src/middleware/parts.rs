//! The bounds between the parts of a rate limit service, stated once.

use std::hash::Hash;

use tower_service::Service;

use super::cost::CostPolicy;
use crate::key::ExtractKey;
use crate::limiter::Limiter;
use crate::response::Respond;

/// The parts of a rate limit service that takes `Request`: inner service, key extractor, limiter, responder and cost
/// policy.
///
/// Implemented for the tuple of the five. Public because a bound of [`ResponseFuture`](super::ResponseFuture) names it;
/// other crates can neither name nor implement it.
#[allow(unreachable_pub, reason = "named by a bound of a public type only")]
pub trait Parts<Request> {
    type Service: Service<Request, Response = Self::InnerResponse, Error = Self::InnerError> + Clone;
    type InnerResponse;
    type InnerError;
    type Extractor: ExtractKey<Request, Key = Self::Key>;
    type Key: Hash + Send + Sync + 'static;
    type Limiter: Limiter<Self::Key> + Clone;
    type Responder: Respond<Request, Self::InnerResponse, Self::InnerError, Response = Self::Response, Context = Self::Context>;
    type Response;
    type Context;
    type CostPolicy: CostPolicy<Request, Self::InnerResponse, Self::InnerError>;
}

impl<Request, S, K, A, R, T> Parts<Request> for (S, K, A, R, T)
where
    S: Service<Request> + Clone,
    K: ExtractKey<Request>,
    A: Limiter<K::Key> + Clone,
    R: Respond<Request, S::Response, S::Error>,
    T: CostPolicy<Request, S::Response, S::Error>,
{
    type Service = S;
    type InnerResponse = S::Response;
    type InnerError = S::Error;
    type Extractor = K;
    type Key = K::Key;
    type Limiter = A;
    type Responder = R;
    type Response = R::Response;
    type Context = R::Context;
    type CostPolicy = T;
}

/// The future of the inner service.
pub(crate) type InnerFuture<Request, P> = <<P as Parts<Request>>::Service as Service<Request>>::Future;

/// The future of the limiter's decision.
pub(crate) type DecisionFuture<Request, P> =
    <<P as Parts<Request>>::Limiter as Limiter<<P as Parts<Request>>::Key>>::Future;

/// The result of the rate limit service.
pub(crate) type ServiceResult<Request, P> = Result<<P as Parts<Request>>::Response, <P as Parts<Request>>::InnerError>;
