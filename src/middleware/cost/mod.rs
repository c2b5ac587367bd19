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
//! | a closure `Fn(u64, Result<&Response, &Error>)` | the cost that it returns for the held cost and the result: a `u64`, or [`Costs`](crate::Costs) in units |

#[cfg(feature = "tonic")]
mod grpc;
mod idempotency_key;
mod outcome;

#[cfg(feature = "tonic")]
pub use self::grpc::OnlyGrpcCodes;
pub use self::idempotency_key::{IdempotencyKey, Once};
pub use self::outcome::{OnlyFailures, OnlySuccesses};

use crate::decision::{CallId, Costs};

/// The cost of requests: [`UnitCost`], changed by [`RateLimitLayer::cost`](crate::RateLimitLayer::cost) and
/// [`RateLimitLayer::settle`](crate::RateLimitLayer::settle).
#[doc(hidden)]
pub trait CostPolicy<Request, Response, Error> {
    /// Whether the actual cost is known only after the service has responded, so that the layer must hold the cost.
    const NEEDS_HOLD: bool;

    /// A number, or [`Costs`] in units.
    type Cost: Into<Costs> + Copy;

    /// Returns the cost to charge or hold before the layer calls the service.
    fn cost(&self, request: &Request) -> Self::Cost;

    /// Returns the id of a request that is charged once: see [`RateLimitLayer::once`](crate::RateLimitLayer::once).
    #[inline]
    fn once(&self, _request: &Request) -> Option<CallId> {
        None
    }

    /// Returns the actual costs of a request for which the layer has held `held`.
    fn settle(&self, held: Costs, result: Result<&Response, &Error>) -> Costs;
}

/// A cost policy in which every request costs one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitCost;

impl<Request, Response, Error> CostPolicy<Request, Response, Error> for UnitCost {
    const NEEDS_HOLD: bool = false;

    type Cost = u64;

    #[inline]
    fn cost(&self, _request: &Request) -> u64 {
        1
    }

    #[inline]
    fn settle(&self, held: Costs, _result: Result<&Response, &Error>) -> Costs {
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

impl<Request, Response, Error, F, C, T> CostPolicy<Request, Response, Error> for CostFn<F, T>
where
    F: Fn(&Request) -> C,
    C: Into<Costs> + Copy,
    T: CostPolicy<Request, Response, Error>,
{
    const NEEDS_HOLD: bool = T::NEEDS_HOLD;

    type Cost = C;

    fn cost(&self, request: &Request) -> C {
        (self.cost)(request)
    }

    #[inline]
    fn once(&self, request: &Request) -> Option<CallId> {
        self.inner_policy.once(request)
    }

    fn settle(&self, held: Costs, result: Result<&Response, &Error>) -> Costs {
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

    type Cost = T::Cost;

    fn cost(&self, request: &Request) -> T::Cost {
        self.inner_policy.cost(request)
    }

    #[inline]
    fn once(&self, request: &Request) -> Option<CallId> {
        self.inner_policy.once(request)
    }

    fn settle(&self, held: Costs, result: Result<&Response, &Error>) -> Costs {
        self.settle.settle(held, result)
    }
}

/// Returns the actual costs of a request from the service's response. Closures
/// `|held: u64, result: Result<&Response, &Error>|` that return a `u64` or [`Costs`] implement it.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot settle the cost of a request by a `{Response}`",
    note = "settle by `OnlyFailures`, `OnlySuccesses` or a closure \
            `|held: u64, result: Result<&{Response}, &{Error}>|` that returns a `u64` or `Costs`"
)]
pub trait Settle<Response, Error> {
    /// Returns the actual costs of a request for which the layer has held `held`.
    fn settle(&self, held: Costs, result: Result<&Response, &Error>) -> Costs;
}

impl<Response, Error, F, C> Settle<Response, Error> for F
where
    F: Fn(u64, Result<&Response, &Error>) -> C,
    C: Into<Costs>,
{
    fn settle(&self, held: Costs, result: Result<&Response, &Error>) -> Costs {
        self(held.number().unwrap_or(0), result).into()
    }
}

impl_debug!([F, T] CostFn<F, T> {});

impl_debug!([T, F] SettleFn<T, F> {});
