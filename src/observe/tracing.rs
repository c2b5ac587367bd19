use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing::{Level, Span, debug, enabled, field, info, trace, warn};

use super::event::Event;
use super::observer::Observer;
use crate::decision::{Decision, DecisionSource, LimitStatus};
use crate::error::Error;

/// Writes events with the [`tracing`](::tracing) facade (feature `tracing`), to the target `tower_ratelimit`.
///
/// | Level | Events |
/// |---|---|
/// | `WARN` | misconfiguration (each kind once): a request without a key because of the server, also if it is exempt; a configuration error of the limiter; a cost that exceeds its limit; limits that conflict or share a name; a store that stopped responding; expired holds; requests in flight that are not counted |
/// | `INFO` | a store that responds again: its circuit breaker closes, or the store itself decides (not a lease); each block of an `Escalating` limiter |
/// | `DEBUG` | rejected, failed and abandoned requests; keys that come near a limit |
/// | `TRACE` | forwarded requests; waits, settlements, calls to the store, memory usage |
///
/// Fields have few distinct values, apart from times and amounts, and no event carries a key. The reason why a
/// request has no key may repeat text of the client: enable [`log_reasons`](Self::log_reasons) to write it.
///
/// There is no span for a decision, because a decision in memory takes less time than a span. If the current span
/// (for example of `tower_http::trace::TraceLayer`) has empty fields `ratelimit.outcome` and `ratelimit.limit`, this
/// observer records both.
///
/// ```
/// use tower_ratelimit::observe::Tracing;
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// let limiter = Memory::<std::net::IpAddr, _>::new(Gcra::new(Quota::per_second(10)));
/// let layer = RateLimitLayer::new(PeerIp::new(), limiter).observe(Tracing::new("api"));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Tracing {
    limiter: Arc<str>,
    log_reasons: bool,
    logged: Arc<LoggedOnce>,
}

/// The warnings that were logged, and are not repeated.
#[derive(Debug, Default)]
struct LoggedOnce {
    misconfigured: AtomicBool,
    /// The limiter failed because of a misconfiguration.
    failing: AtomicBool,
    exceeds_limit: AtomicBool,
    /// Reset when the store decides again.
    degraded: AtomicBool,
}

impl Tracing {
    /// Creates an observer whose events carry the field `limiter` with this value, to distinguish layers.
    pub fn new(limiter: &str) -> Self {
        Self { limiter: limiter.into(), log_reasons: false, logged: Arc::default() }
    }

    /// Sets whether to write why a request of a client has no key.
    ///
    /// The reasons of the ready-made extractors contain no text of the request. Those of custom extractors may.
    pub fn log_reasons(mut self, on: bool) -> Self {
        self.log_reasons = on;
        self
    }

    fn decided(&self, event: &Event<'_>, decision: &Decision, elapsed: Option<Duration>) {
        let limiter = &*self.limiter;
        let (limit, source, outcome) = (event.limit(), event.source(), event.outcome());
        // A limit of zero is a plan without units.
        let can_allow = |limit: &LimitStatus| limit.limit() > 0;
        if decision.exceeds_limit()
            && decision.most_restrictive().is_none_or(can_allow)
            && first_time(&self.logged.exceeds_limit)
        {
            warn!(
                target: TARGET, limiter, limit,
                "request rejected for good: its cost exceeds the limit; raise the limit's burst or lower the cost"
            );
        }
        match decision.source() {
            // A full table denies without a limit, as often as clients want.
            DecisionSource::NoLimit if !decision.is_allowed() => {}
            DecisionSource::Fallback | DecisionSource::NoLimit if first_time(&self.logged.degraded) => {
                warn!(target: TARGET, limiter, source, "store unavailable: a fallback or a policy decides instead");
            }
            DecisionSource::Store => self.recovered(),
            _ => {}
        }
        let elapsed = elapsed.map(field::debug);
        if decision.is_allowed() {
            trace!(target: TARGET, limiter, limit, outcome, source, elapsed, "request allowed");
        } else {
            let retry_after = decision.retry_after().map(field::debug);
            debug!(target: TARGET, limiter, limit, outcome, source, retry_after, elapsed, "request denied");
        }
        if enabled!(target: TARGET, Level::TRACE) {
            for shadow in decision.shadow_denials() {
                trace!(target: TARGET, limiter, limit = shadow.name(), "a shadow limit would deny the request");
            }
        }
    }

    fn recovered(&self) {
        let degraded = &self.logged.degraded;
        if degraded.load(Ordering::Relaxed) && degraded.swap(false, Ordering::Relaxed) {
            info!(target: TARGET, limiter = &*self.limiter, "store available again");
        }
    }

    fn missing_key(&self, reason: &dyn Display, server_error: bool, forwarded: bool) {
        let limiter = &*self.limiter;
        let reason = (server_error || self.log_reasons).then(|| field::display(reason));
        // For a forwarded request the layer emits a warning.
        if server_error && !forwarded && first_time(&self.logged.misconfigured) {
            warn!(target: TARGET, limiter, reason, "requests have no key: the server is misconfigured");
        } else {
            debug!(target: TARGET, limiter, reason, server_error, forwarded, "request without a key");
        }
    }

    fn failed(&self, error: &Error, elapsed: Option<Duration>) {
        let (limiter, elapsed) = (&*self.limiter, elapsed.map(field::debug));
        if error.is_conflict() {
            debug!(target: TARGET, limiter, %error, elapsed, "request rejected: conflict of a reservation id");
        } else if error.is_misconfigured() && first_time(&self.logged.failing) {
            warn!(target: TARGET, limiter, %error, elapsed, "requests are rejected: the server is misconfigured");
        } else if !error.is_misconfigured() && first_time(&self.logged.degraded) {
            warn!(target: TARGET, limiter, %error, elapsed, "limiter unavailable: requests are rejected");
        } else {
            debug!(target: TARGET, limiter, %error, elapsed, "request rejected: the limiter failed");
        }
    }
}

const TARGET: &str = "tower_ratelimit";

/// Sets the flag, and returns whether it was clear.
fn first_time(flag: &AtomicBool) -> bool {
    !flag.load(Ordering::Relaxed) && !flag.swap(true, Ordering::Relaxed)
}

impl Observer for Tracing {
    fn observe(&self, event: &Event<'_>) {
        if LevelFilter::current() == LevelFilter::OFF {
            return;
        }
        let limiter = &*self.limiter;
        if let Some(outcome) = event.outcome() {
            let span = Span::current();
            span.record("ratelimit.outcome", outcome);
            if let Some(limit) = event.limit() {
                span.record("ratelimit.limit", limit);
            }
        }
        match *event {
            Event::Decided { decision, elapsed } => self.decided(event, decision, elapsed),
            Event::Exempt => trace!(target: TARGET, limiter, "request exempt"),
            Event::MissingKey { reason, server_error, forwarded } => {
                self.missing_key(&reason, server_error, forwarded);
            }
            Event::Failed { error, elapsed } => self.failed(error, elapsed),
            Event::Abandoned { stage } => debug!(target: TARGET, limiter, ?stage, "request abandoned"),
            Event::WaitStarted => trace!(target: TARGET, limiter, "request waits"),
            Event::WaitEnded { waited, end } => {
                trace!(target: TARGET, limiter, ?waited, end = end.name(), "wait ended");
            }
            Event::WaitRefused => trace!(target: TARGET, limiter, "queue full or too long: the request does not wait"),
            Event::WaitAsked { admitted } => trace!(target: TARGET, limiter, admitted, "queue asked for a start"),
            Event::Settled { unit, held, actual } => {
                trace!(target: TARGET, limiter, unit, held, actual, "hold settled");
            }
            Event::InFlightStarted { cost } => trace!(target: TARGET, limiter, cost, "request in flight"),
            Event::InFlightEnded { cost, lasted } => {
                trace!(target: TARGET, limiter, cost, ?lasted, "request in flight ended");
            }
            Event::Paced { direction, error: Some(error), .. } => {
                debug!(target: TARGET, limiter, direction = direction.name(), %error, "paced body ends with an error");
            }
            Event::Paced { direction, limit, bytes, waited, .. } => {
                trace!(target: TARGET, limiter, direction = direction.name(), limit, bytes, ?waited, "bytes passed");
            }
            Event::NearLimit { limit } => debug!(target: TARGET, limiter, limit, "a key is near its limit"),
            Event::ShadowUncounted { limit } => {
                trace!(target: TARGET, limiter, limit, "a shadow limit has no slot for the key: not counted");
            }
            Event::Escalated { limit, duration, step } => {
                info!(target: TARGET, limiter, limit, ?duration, step, "key blocked: it was denied too often");
            }
            Event::Batch { store, size, elapsed, error } => {
                let error = error.map(field::display);
                trace!(target: TARGET, limiter, store, size, ?elapsed, error, "store called");
            }
            Event::Breaker { store, error: Some(error) } => {
                warn!(target: TARGET, limiter, store, %error, "circuit breaker open: the store does not respond");
            }
            Event::Breaker { store, error: None } => {
                info!(target: TARGET, limiter, store, "circuit breaker closed: the store responds again");
            }
            Event::Shed { store, cause, count } => {
                debug!(target: TARGET, limiter, store, cause = cause.name(), count, "decisions dropped uncharged");
            }
            Event::HoldsExpired { store, count } => {
                warn!(target: TARGET, limiter, store, count, "holds expired: the store settled them in full");
            }
            Event::LeaseRenewed { store, granted, spent, returned, lost } => {
                trace!(target: TARGET, limiter, store, granted, spent, returned, lost, "lease reported");
            }
            Event::InFlightUncounted { store, cost } => {
                warn!(
                    target: TARGET, limiter, store, cost,
                    "requests in flight are not counted: their holds have expired, and there is no room"
                );
            }
            Event::Usage { limit, live_keys, capacity, bytes, evicted, held_keys, held } => {
                trace!(
                    target: TARGET, limiter, limit, live_keys, capacity, bytes, evicted, held_keys, held,
                    "memory usage"
                );
            }
            Event::Warning { message } => warn!(target: TARGET, limiter, "{message}"),
        }
    }
}
