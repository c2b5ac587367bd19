use std::fmt;

/// What requests cost: put together by [`RateLimitLayer::cost`](crate::RateLimitLayer::cost) and
/// [`RateLimitLayer::settle`](crate::RateLimitLayer::settle).
pub trait Tariff<Request, Response, Error> {
    /// Whether [`settle`](Self::settle) ever says anything but what was charged.
    const SETTLES: bool;

    /// What is charged before the request is let through. Zero charges nothing.
    fn cost(&self, request: &Request) -> u64;

    /// What the request has cost, when the service has answered.
    fn settle(&self, charged: u64, answer: Result<&Response, &Error>) -> u64;
}

/// Every request costs one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct One;

impl<Request, Response, Error> Tariff<Request, Response, Error> for One {
    const SETTLES: bool = false;

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
pub struct CostBy<F, T> {
    pub(crate) cost: F,
    pub(crate) rest: T,
}

impl<Request, Response, Error, F, T> Tariff<Request, Response, Error> for CostBy<F, T>
where
    F: Fn(&Request) -> u64,
    T: Tariff<Request, Response, Error>,
{
    const SETTLES: bool = T::SETTLES;

    fn cost(&self, request: &Request) -> u64 {
        (self.cost)(request)
    }

    fn settle(&self, charged: u64, answer: Result<&Response, &Error>) -> u64 {
        self.rest.settle(charged, answer)
    }
}

/// A request has cost what its answer says.
#[derive(Clone)]
pub struct SettleBy<T, F> {
    pub(crate) rest: T,
    pub(crate) settle: F,
}

impl<Request, Response, Error, T, F> Tariff<Request, Response, Error> for SettleBy<T, F>
where
    T: Tariff<Request, Response, Error>,
    F: Settles<Response, Error>,
{
    const SETTLES: bool = true;

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
pub trait Settles<Response, Error> {
    /// What the request has cost, of which `charged` was charged beforehand.
    fn settle(&self, charged: u64, answer: Result<&Response, &Error>) -> u64;
}

impl<Response, Error, F> Settles<Response, Error> for F
where
    F: Fn(u64, Result<&Response, &Error>) -> u64,
{
    fn settle(&self, charged: u64, answer: Result<&Response, &Error>) -> u64 {
        self(charged, answer)
    }
}

impl<F, T> fmt::Debug for CostBy<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CostBy").finish_non_exhaustive()
    }
}

impl<T, F> fmt::Debug for SettleBy<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettleBy").finish_non_exhaustive()
    }
}
