//! The settlement of a held cost after the service has responded.

use std::sync::Arc;

use super::config::ConfigOf;
use super::cost::CostPolicy;
use super::in_flight::InFlightGuard;
use super::parts::Parts;
use super::request_end::RequestEnd;
use crate::decision::Costs;
use crate::limiter::{Held, LimiterFuture};
use crate::observe::{Observers, WarningKind};

/// Tracks a request in flight. Returns the rest of the held cost, which the response settles.
pub(crate) fn track<Request, P: Parts<Request>>(
    config: &ConfigOf<Request, P>,
    request: &mut Request,
    held: Option<Held>,
) -> (P::Tracker, Option<Held>) {
    let Some((charged, in_flight)) = held.map(|held| held.split_observed(&config.observers)) else {
        return Default::default();
    };
    let tracker = match in_flight {
        Some(held) if <P::End as RequestEnd<Request, P::Responded>>::TRACKS => {
            P::End::track(request, InFlightGuard::new(held))
        }
        // Without a limit on requests in flight.
        _ => P::Tracker::default(),
    };
    (tracker, charged)
}

/// The held cost of a forwarded request.
///
/// Dropped before the service has responded, it settles the whole held cost: the guard does that when it is dropped.
pub(crate) struct PendingSettlement<Request, P: Parts<Request>> {
    config: Arc<ConfigOf<Request, P>>,
    held: Held,
}

impl<Request, P: Parts<Request>> PendingSettlement<Request, P> {
    pub(crate) fn new(config: Arc<ConfigOf<Request, P>>, held: Held) -> Self {
        Self { config, held }
    }

    /// Settles the actual cost. Returns the future if the store is still recording it.
    pub(crate) fn settle(self, result: Result<&P::InnerResponse, &P::InnerError>) -> Option<LimiterFuture<()>> {
        // If the policy panics, dropping `self` settles the whole held cost.
        let actual = self.config.cost_policy.settle(self.held.costs(), result);
        settle(self.held, actual, &self.config.observers)
    }
}

/// Apart from [`PendingSettlement::settle`], which the compiler generates for each type of a layer.
fn settle(held: Held, actual: Costs, observers: &Observers) -> Option<LimiterFuture<()>> {
    if let Err(error) = held.check_units(actual) {
        observers.warn_once(WarningKind::UnknownUnit, || Some(format!("settling a request failed: {error}")));
    }
    // An error is ignored: the hold then expires in the store, and the response does not depend on it.
    held.settle(actual).try_ready().err()
}
