use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::level_filters::LevelFilter;
use tracing::{Level, Span, debug, enabled, field, info, trace, warn};

use super::event::Event;
use super::observer::Observer;
use crate::decision::{Decision, DecisionSource};

/// Writes events by the [`tracing`](::tracing) facade (feature `tracing`), to the target `tower_ratelimit`.
///
/// | Level | |
/// |---|---|
/// | `WARN` | something is misconfigured: a request without a key by the server's fault, one that costs more than its limit can ever hold, limits that are at odds or share a name (each once); the store does not answer any more |
/// | `INFO` | it answers again |
/// | `DEBUG` | a request was refused, failed or was abandoned |
/// | `TRACE` | a request was let through; waiting, settling, calls of the store, memory |
///
/// Fields have few values, times and amounts aside, and no event carries a key. What is said of a request that lacks its key
/// may repeat what its client has sent: it is written only if [`reasons`](Self::reasons) are asked for.
///
/// There is no span for a decision: in memory it takes less time than a span. But if the span around the request (of
/// `tower_http::trace::TraceLayer`, say) has empty fields `ratelimit.outcome` and `ratelimit.limit`, they are filled.
///
/// ```
/// use tower_ratelimit::observe::Tracing;
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
/// let layer = RateLimitLayer::new(PeerIp::new(), limiter).observe(Tracing::new("api"));
/// ```
#[derive(Clone, Debug)]
pub struct Tracing {
    limiter: Arc<str>,
    reasons: bool,
    said: Arc<Said>,
}

/// What was said already, and need not be said as loudly again.
#[derive(Debug, Default)]
struct Said {
    misassembled: AtomicBool,
    never: AtomicBool,
    /// Until the store answers again.
    degraded: AtomicBool,
}

impl Tracing {
    /// Events with the field `limiter` of this value, which tells several layers apart.
    #[must_use]
    pub fn new(limiter: &str) -> Self {
        Self { limiter: limiter.into(), reasons: false, said: Arc::default() }
    }

    /// Whether to write why a request lacks its key where that is the client's fault. What the ready-made extractors say holds
    /// nothing of the request; what your own closures say may.
    #[must_use]
    pub fn reasons(mut self, on: bool) -> Self {
        self.reasons = on;
        self
    }

    fn decided(&self, event: &Event<'_>, decision: &Decision, took: Option<std::time::Duration>) {
        let limiter = &*self.limiter;
        let (limit, source) = (event.limit(), event.source());
        let outcome = event.outcome();
        if decision.exceeds_limit() && is_first(&self.said.never) {
            warn!(
                target: TARGET, limiter, limit,
                "a request costs more than its limit can ever hold, and is refused for good: raise the limit's burst, or lower \
                 the cost"
            );
        }
        match decision.source() {
            DecisionSource::Fallback | DecisionSource::Policy if is_first(&self.said.degraded) => {
                warn!(target: TARGET, limiter, source, "the store can't decide: something else does in its place");
            }
            DecisionSource::Store if self.said.degraded.load(Ordering::Relaxed) => self.recovered(),
            _ => {}
        }
        if decision.is_allowed() {
            trace!(target: TARGET, limiter, limit, outcome, source, took = took.map(field::debug), "request let through");
        } else {
            let retry_after = decision.retry_after().map(field::debug);
            let took = took.map(field::debug);
            debug!(target: TARGET, limiter, limit, outcome, source, retry_after, took, "request refused");
        }
        if enabled!(target: TARGET, Level::TRACE) {
            for shadow in decision.shadow_denials() {
                trace!(target: TARGET, limiter, limit = shadow.name(), "a shadow limit would have refused it");
            }
        }
    }

    fn recovered(&self) {
        if self.said.degraded.swap(false, Ordering::Relaxed) {
            info!(target: TARGET, limiter = &*self.limiter, "the store decides again");
        }
    }

    fn missing(&self, reason: &dyn std::fmt::Display, by_server: bool, forwarded: bool) {
        let limiter = &*self.limiter;
        let reason = (by_server || self.reasons).then(|| field::display(reason));
        if by_server && is_first(&self.said.misassembled) {
            warn!(target: TARGET, limiter, reason, forwarded, "requests have no key, by the server's fault");
        } else {
            debug!(target: TARGET, limiter, reason, by_server, forwarded, "request without a key");
        }
    }
}

const TARGET: &str = "tower_ratelimit";

fn is_first(said: &AtomicBool) -> bool {
    !said.load(Ordering::Relaxed) && !said.swap(true, Ordering::Relaxed)
}

impl Observer for Tracing {
    fn observe(&self, event: &Event<'_>) {
        // Where nobody listens, this is all that it costs.
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
            Event::Decided { decision, took } => self.decided(event, decision, took),
            Event::Exempt => trace!(target: TARGET, limiter, "request exempt"),
            Event::MissingKey { reason, by_server, forwarded } => self.missing(reason, by_server, forwarded),
            Event::Failed { error, took } => {
                let took = took.map(field::debug);
                if is_first(&self.said.degraded) {
                    warn!(target: TARGET, limiter, %error, took, "the limiter can't decide, and refuses");
                } else {
                    debug!(target: TARGET, limiter, %error, took, "request refused: the limiter can't decide");
                }
            }
            Event::Abandoned { stage } => debug!(target: TARGET, limiter, ?stage, "request abandoned"),
            Event::WaitStarted => trace!(target: TARGET, limiter, "request waits for its turn"),
            Event::WaitEnded { waited } => trace!(target: TARGET, limiter, ?waited, "request waits no longer"),
            Event::Settled { held, actual } => trace!(target: TARGET, limiter, held, actual, "hold settled"),
            Event::Batch { store, orders, took, error } => {
                let error = error.map(field::display);
                trace!(target: TARGET, limiter, store, orders, ?took, error, "store called");
            }
            Event::Breaker { store, open: Some(error) } => {
                warn!(target: TARGET, limiter, store, %error, "the store does not answer, and is not asked any more");
            }
            Event::Breaker { store, open: None } => info!(target: TARGET, limiter, store, "the store answers again"),
            Event::HoldsExpired { store, count } => {
                warn!(target: TARGET, limiter, store, count, "held costs expired, and were settled whole");
            }
            Event::Usage { limit, live_keys, room, bytes, forgotten, held_keys, held } => {
                trace!(target: TARGET, limiter, limit, live_keys, room, bytes, forgotten, held_keys, held, "memory");
            }
            Event::Warning { message } => warn!(target: TARGET, limiter, "{message}"),
        }
    }
}
