//! The cost of a request: before the service is called, and after it has responded.
//!
//! The limiter charges the cost before the layer calls the inner service, so a limit holds against any number of
//! concurrent requests. With [`settle`](crate::RateLimitLayer::settle) the layer [holds](crate::limiter::Held) the cost
//! instead, and charges the actual cost when the service has responded.
//!
//! | `settle` | Charges |
//! |---|---|
//! | [`OnlyFailures`] | failed requests: failed logins, bad requests |
//! | [`OnlySuccesses`] | successful requests: paid calls |
//! | `OnlyGrpcCodes` | calls that end with one of these gRPC codes (feature `tonic`) |
//! | a closure `Fn(u64, Result<&Response, &Error>) -> u64` | the cost that it returns for the held cost and the result |

#[cfg(feature = "tonic")]
mod grpc;
mod outcome;

#[cfg(feature = "tonic")]
pub use self::grpc::OnlyGrpcCodes;
pub use self::outcome::{OnlyFailures, OnlySuccesses};
use std::fmt;

/// The cost of requests: [`UnitCost`], changed by [`RateLimitLayer::cost`](crate::RateLimitLayer::cost) and
/// [`RateLimitLayer::settle`](crate::RateLimitLayer::settle).
#[doc(hidden)]
pub trait CostPolicy<Request, Response, Error> {
    /// Whether the actual cost is known only after the service has responded, so that the layer must hold the cost.
    const NEEDS_HOLD: bool;

    /// Returns the cost to charge or hold before the layer calls the service.
    fn cost(&self, request: &Request) -> u64;

    /// Returns the actual cost of a request for which the layer has held `held`.
    fn settle(&self, held: u64, result: Result<&Response, &Error>) -> u64;
}

/// A cost policy in which every request costs one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitCost;

impl<Request, Response, Error> CostPolicy<Request, Response, Error> for UnitCost {
    const NEEDS_HOLD: bool = false;

    #[inline]
    fn cost(&self, _request: &Request) -> u64 {
        1
    }

    #[inline]
    fn settle(&self, held: u64, _result: Result<&Response, &Error>) -> u64 {
        held
    }
}

/// A cost policy in which a closure returns the cost of a request.
#[derive(Clone)]
#[doc(hidden)]
pub struct CostFn<F, T> {
    pub(crate) cost: F,
    pub(crate) inner_policy: T,
}

impl<Request, Response, Error, F, T> CostPolicy<Request, Response, Error> for CostFn<F, T>
where
    F: Fn(&Request) -> u64,
    T: CostPolicy<Request, Response, Error>,
{
    const NEEDS_HOLD: bool = T::NEEDS_HOLD;

    fn cost(&self, request: &Request) -> u64 {
        (self.cost)(request)
    }

    fn settle(&self, held: u64, result: Result<&Response, &Error>) -> u64 {
        self.inner_policy.settle(held, result)
    }
}

/// A cost policy that settles the cost of a request by the service's response.
#[derive(Clone)]
#[doc(hidden)]
pub struct SettleFn<T, F> {
    pub(crate) inner_policy: T,
    pub(crate) settle: F,
}

impl<Request, Response, Error, T, F> CostPolicy<Request, Response, Error> for SettleFn<T, F>
where
    T: CostPolicy<Request, Response, Error>,
    F: Settle<Response, Error>,
{
    const NEEDS_HOLD: bool = true;

    fn cost(&self, request: &Request) -> u64 {
        self.inner_policy.cost(request)
    }

    fn settle(&self, held: u64, result: Result<&Response, &Error>) -> u64 {
        self.settle.settle(held, result)
    }
}

/// Returns the actual cost of a request from the service's response. Closures
/// `|held: u64, result: Result<&Response, &Error>| -> u64` implement it.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot settle the cost of a request by a `{Response}`",
    note = "settle by `OnlyFailures`, `OnlySuccesses` or a closure \
            `|held: u64, result: Result<&{Response}, &{Error}>|` that returns a `u64`"
)]
pub trait Settle<Response, Error> {
    /// Returns the actual cost of a request for which the layer has held `held`.
    fn settle(&self, held: u64, result: Result<&Response, &Error>) -> u64;
}

impl<Response, Error, F> Settle<Response, Error> for F
where
    F: Fn(u64, Result<&Response, &Error>) -> u64,
{
    fn settle(&self, held: u64, result: Result<&Response, &Error>) -> u64 {
        self(held, result)
    }
}

impl<F, T> fmt::Debug for CostFn<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CostFn").finish_non_exhaustive()
    }
}

impl<T, F> fmt::Debug for SettleFn<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettleFn").finish_non_exhaustive()
    }
}
