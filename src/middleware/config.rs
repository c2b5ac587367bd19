//! The configuration that the layer, its services and their futures share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::cost::CostPolicy as _;
use super::parts::Parts;
use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;
use crate::key::MissingKey;
use crate::limiter::{Held, Outcome};
use crate::observe::{Event, Observers};
use crate::response::{Rejection, Respond as _};
use crate::runtime::Instant;

#[derive(Clone, Debug)]
pub(crate) struct Config<K, A, R, T> {
    pub(crate) extractor: K,
    pub(crate) limiter: A,
    pub(crate) responder: R,
    pub(crate) cost_policy: T,
    pub(crate) missing_key: MissingKeyPolicy,
    pub(crate) wait: WaitConfig,
    pub(crate) observers: Observers,
}

/// The configuration of a service with these parts.
pub(crate) type ConfigOf<Request, P> = Config<
    <P as Parts<Request>>::Extractor,
    <P as Parts<Request>>::Limiter,
    <P as Parts<Request>>::Responder,
    <P as Parts<Request>>::CostPolicy,
>;

/// What the layer does with a request whose key is absent.
///
/// The layer always rejects a request whose key is [unusable](crate::key::MissingKey::unusable): sent twice, empty or
/// malformed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingKeyPolicy {
    /// The layer rejects the request: in HTTP with status 400, or with 500 if the server is misconfigured.
    #[default]
    Reject,
    /// The layer forwards the request without a limit. If clients can omit the key, they can then bypass the limit.
    Exempt,
}

impl<K, A, R, T> Config<K, A, R, T> {
    /// Whether the layer rejects a request without a key. No policy exempts an unusable key: clients can send one at
    /// will.
    pub(crate) fn rejects(&self, missing: &MissingKey) -> bool {
        missing.is_unusable() || self.missing_key == MissingKeyPolicy::Reject
    }
}

/// The options of the first acquire call for a request.
#[inline]
pub(crate) fn acquire_options<Request, P: Parts<Request>>(
    config: &ConfigOf<Request, P>,
    cost: u64,
    max_delay: Option<Duration>,
) -> AcquireOptions {
    let mut options = AcquireOptions::cost(cost);
    options.max_delay = max_delay;
    options.detail = config.responder.detail();
    options.hold = P::CostPolicy::NEEDS_HOLD;
    options
}

/// Lets the responder emit warnings when the service has responded, if there are observers.
#[inline]
pub(crate) fn observe_context<Request, P: Parts<Request>>(config: &ConfigOf<Request, P>, context: &mut P::Context) {
    if config.observers.is_some() {
        P::Responder::observe(context, &config.observers);
    }
}

/// How many requests may wait at a time, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct WaitConfig {
    /// With `None` the algorithm determines the delay.
    pub(crate) max_delay: Option<Duration>,
    pub(crate) max_waiters: usize,
    /// Shared by all services of the layer.
    pub(crate) waiters: Arc<AtomicUsize>,
}

impl WaitConfig {
    pub(crate) const DEFAULT_MAX_WAITERS: usize = 10_000;

    /// The maximum delay of a new request: zero if no permit is free, so that the limiter denies the request and does
    /// not charge it for a start that it could not wait for.
    pub(crate) fn max_delay(&self) -> Option<Duration> {
        let is_full = self.waiters.load(Ordering::Relaxed) >= self.max_waiters;
        if is_full { Some(Duration::ZERO) } else { self.max_delay }
    }

    /// Acquires a permit to wait, if one is free.
    pub(crate) fn try_acquire_permit(&self, observers: &Observers) -> Option<Waiter> {
        let acquired = self.waiters.fetch_update(Ordering::AcqRel, Ordering::Acquire, |waiters| {
            (waiters < self.max_waiters).then_some(waiters + 1)
        });
        acquired.ok().map(|_| self.waiter(observers))
    }

    /// Acquires a permit for a request that was charged for its scheduled start while a permit was free.
    ///
    /// Concurrent requests may exceed `max_waiters` by their number, because a charged request must not be denied for
    /// that.
    pub(crate) fn acquire_permit_when_charged(&self, observers: &Observers) -> Waiter {
        self.waiters.fetch_add(1, Ordering::AcqRel);
        self.waiter(observers)
    }

    fn waiter(&self, observers: &Observers) -> Waiter {
        observers.emit(|| Event::WaitStarted);
        let waiters = Arc::clone(&self.waiters);
        Waiter { waiters, observers: observers.clone(), started_at: Instant::now() }
    }
}

impl Default for WaitConfig {
    fn default() -> Self {
        Self { max_delay: None, max_waiters: Self::DEFAULT_MAX_WAITERS, waiters: Arc::default() }
    }
}

/// A bound that no type satisfies, on methods that need the feature `timer`.
#[cfg(not(feature = "timer"))]
#[allow(unreachable_pub, reason = "named by a bound of public methods only")]
#[diagnostic::on_unimplemented(
    message = "waiting needs the feature `timer` of tower-ratelimit, which is off",
    note = "enable it in Cargo.toml: `tower-ratelimit = {{ .., features = [\"timer\"] }}`"
)]
pub trait NeedsFeatureTimer {}

/// A permit to wait. Dropping it releases the permit and emits `WaitEnded`.
#[derive(Debug)]
pub(crate) struct Waiter {
    waiters: Arc<AtomicUsize>,
    observers: Observers,
    started_at: Instant,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.waiters.fetch_sub(1, Ordering::AcqRel);
        self.observers.emit(|| Event::WaitEnded { waited: self.started_at.elapsed() });
    }
}

/// What the layer does with a request after the limiter's result.
pub(crate) enum Disposition {
    /// The request is allowed, now or at its scheduled start.
    Admit(Decision, Option<Held>),
    /// The request may ask the limiter again after this time.
    RetryAfter(Duration, Decision),
    Reject(Rejection),
}

/// The interval at which a waiting request asks again if held costs make its wait an estimate.
const ESTIMATE_RECHECK: Duration = Duration::from_millis(100);

/// Determines the disposition of a request that may still wait for `max_delay`.
#[inline]
pub(crate) fn classify(result: Result<Outcome, Error>, max_delay: Option<Duration>) -> Disposition {
    match result {
        Ok(Outcome { decision, held }) if decision.is_allowed() => Disposition::Admit(decision, held),
        Ok(Outcome { decision, .. }) => match (decision.retry_after(), max_delay) {
            // A held cost may be settled at any time, so the request asks again soon, as long as it may wait.
            (Some(wait), Some(max_delay)) if decision.is_estimate() && !max_delay.is_zero() => {
                Disposition::RetryAfter(wait.min(ESTIMATE_RECHECK).min(max_delay), decision)
            }
            // A limiter that supports scheduling has denied every start within `max_delay`.
            (Some(wait), Some(max_delay)) if wait <= max_delay && !decision.supports_scheduling() => {
                Disposition::RetryAfter(wait, decision)
            }
            _ => Disposition::Reject(Rejection::OverLimit(decision)),
        },
        Err(error) => Disposition::Reject(Rejection::Unavailable(error)),
    }
}

/// The event of a rejected request.
pub(crate) fn rejection_event(rejection: &Rejection, elapsed: Option<Duration>) -> Event<'_> {
    match rejection {
        Rejection::OverLimit(decision) => Event::Decided { decision, elapsed },
        Rejection::MissingKey(missing) => missing_key_event(missing, false),
        Rejection::Unavailable(error) => Event::Failed { error, elapsed },
    }
}

/// The event of a request without a key.
pub(crate) fn missing_key_event(missing: &MissingKey, forwarded: bool) -> Event<'_> {
    Event::MissingKey { reason: missing, server_error: missing.is_server_error(), forwarded }
}
