//! The bounds between the parts of a rate limit service, stated once.

use std::hash::Hash;

use tower_service::Service;

use super::cost::CostPolicy;
use super::request_end::RequestEnd;
use crate::decision::Costs;
use crate::key::ExtractKey;
use crate::limiter::Limiter;
use crate::response::Respond;

/// The parts of a rate limit service that takes `Request`: inner service, key extractor, limiter, responder, cost policy,
/// and what tracks the end of requests.
///
/// Implemented for the tuple of the six. Public because a bound of [`ResponseFuture`](super::ResponseFuture) names it;
/// other crates can neither name nor implement it. The compiler names it only to a program that writes the tuple itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` are not the parts of a rate limit service for requests of type `{Request}`",
    label = "a part does not fit",
    note = "the response future of a service is `<RateLimit<S, K, A, ..> as Service<Request>>::Future`: service, key \
            extractor, limiter, responder, cost policy and request end"
)]
pub trait Parts<Request> {
    type Service: Service<Request, Response = Self::InnerResponse, Error = Self::InnerError> + Clone;
    type InnerResponse;
    type InnerError;
    type Extractor: ExtractKey<Request, Key = Self::Key>;
    type Key: Hash + Send + Sync + 'static;
    type Limiter: Limiter<Self::Key> + Clone;
    type Responder: Respond<Request, Self::InnerResponse, Self::InnerError, Response = Self::Responded, Context = Self::Context>;
    type Responded;
    type Context;
    type End: RequestEnd<Request, Self::Responded, Response = Self::Response, Tracker = Self::Tracker>;
    type Response;
    type Tracker: Default;
    type CostPolicy: CostPolicy<Request, Self::InnerResponse, Self::InnerError, Cost = Self::Cost>;
    type Cost: Into<Costs> + Copy;
}

#[diagnostic::do_not_recommend]
impl<Request, S, K, A, R, T, E> Parts<Request> for (S, K, A, R, T, E)
where
    S: Service<Request> + Clone,
    K: ExtractKey<Request>,
    A: Limiter<K::Key> + Clone,
    R: Respond<Request, S::Response, S::Error>,
    T: CostPolicy<Request, S::Response, S::Error>,
    E: RequestEnd<Request, R::Response>,
{
    type Service = S;
    type InnerResponse = S::Response;
    type InnerError = S::Error;
    type Extractor = K;
    type Key = K::Key;
    type Limiter = A;
    type Responder = R;
    type Responded = R::Response;
    type Context = R::Context;
    type End = E;
    type Response = E::Response;
    type Tracker = E::Tracker;
    type CostPolicy = T;
    type Cost = T::Cost;
}

/// The future of the inner service.
pub(crate) type InnerFuture<Request, P> = <<P as Parts<Request>>::Service as Service<Request>>::Future;

/// The result of the rate limit service.
pub(crate) type ServiceResult<Request, P> = Result<<P as Parts<Request>>::Response, <P as Parts<Request>>::InnerError>;
