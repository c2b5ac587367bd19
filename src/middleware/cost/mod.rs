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
//! | `OnlyGrpcCodes` | it ended in one of these gRPC codes (feature `tonic`) |
//! | a closure `Fn(charged, Result<&Response, &Error>) -> u64` | and at what, as the closure says |

#[cfg(feature = "tonic")]
mod grpc;
mod outcome;

#[cfg(feature = "tonic")]
pub use self::grpc::OnlyGrpcCodes;
pub use self::outcome::{OnlyFailures, OnlySuccesses};
use std::fmt;

/// What requests cost: put together by [`RateLimitLayer::cost`](crate::RateLimitLayer::cost) and
/// [`RateLimitLayer::settle`](crate::RateLimitLayer::settle).
pub trait CostPolicy<Request, Response, Error> {
    /// Whether [`settle`](Self::settle) ever says anything but what was charged.
    const NEEDS_HOLD: bool;

    /// What is charged before the request is let through. Zero charges nothing.
    fn cost(&self, request: &Request) -> u64;

    /// What the request has cost, when the service has answered.
    fn settle(&self, charged: u64, answer: Result<&Response, &Error>) -> u64;
}

/// Every request costs one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitCost;

impl<Request, Response, Error> CostPolicy<Request, Response, Error> for UnitCost {
    const NEEDS_HOLD: bool = false;

    #[inline]
    fn cost(&self, _request: &Request) -> u64 {
        1
    }

    #[inline]
    fn settle(&self, charged: u64, _answer: Result<&Response, &Error>) -> u64 {
        charged
    }
}

/// A request costs what a closure says.
#[derive(Clone)]
pub struct CostFn<F, T> {
    pub(crate) cost: F,
    pub(crate) rest: T,
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

    fn settle(&self, charged: u64, answer: Result<&Response, &Error>) -> u64 {
        self.rest.settle(charged, answer)
    }
}

/// A request has cost what its answer says.
#[derive(Clone)]
pub struct SettleFn<T, F> {
    pub(crate) rest: T,
    pub(crate) settle: F,
}

impl<Request, Response, Error, T, F> CostPolicy<Request, Response, Error> for SettleFn<T, F>
where
    T: CostPolicy<Request, Response, Error>,
    F: Settle<Response, Error>,
{
    const NEEDS_HOLD: bool = true;

    fn cost(&self, request: &Request) -> u64 {
        self.rest.cost(request)
    }

    fn settle(&self, charged: u64, answer: Result<&Response, &Error>) -> u64 {
        self.settle.settle(charged, answer)
    }
}

/// Says from a service's answer what a request has cost. Closures do:
/// `|charged: u64, answer: Result<&Response, &Error>| -> u64`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't settle what a request has cost from a `{Response}`",
    note = "settle by `OnlyFailures`, `OnlySuccesses` or a closure `|charged: u64, answer: Result<&{Response}, &{Error}>|` \
            that returns a `u64`"
)]
pub trait Settle<Response, Error> {
    /// What the request has cost, of which `charged` was charged beforehand.
    fn settle(&self, charged: u64, answer: Result<&Response, &Error>) -> u64;
}

impl<Response, Error, F> Settle<Response, Error> for F
where
    F: Fn(u64, Result<&Response, &Error>) -> u64,
{
    fn settle(&self, charged: u64, answer: Result<&Response, &Error>) -> u64 {
        self(charged, answer)
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
