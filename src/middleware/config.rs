//! The configuration that the layer, its services and their futures share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::cost::CostPolicy as _;
use super::parts::{Parts, ServiceResult};
use super::queue::{Asked, Bounds, Class, Queues, Start, limits_of_guard};
use super::request_end::RequestEnd as _;
use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;
use crate::key::{ExtractKey as _, MissingKey};
use crate::limiter::{Held, LimitOfKey, Limiter, LimitsOfKey, Outcome, ReleaseOnDrop};
use crate::observe::{Event, FirstRequests, Observers};
use crate::read_ahead;
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
    pub(crate) first_requests: FirstRequests,
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

impl MissingKeyPolicy {
    /// Whether the layer rejects a request without a key. No policy exempts an unusable key: clients can send one at
    /// will.
    pub(crate) fn rejects(self, missing: &MissingKey) -> bool {
        missing.is_unusable() || self == Self::Reject
    }
}

/// The options of the first acquire call for a request.
#[inline]
pub(crate) fn acquire_options<Request, P: Parts<Request>>(
    config: &ConfigOf<Request, P>,
    request: &Request,
    cost: P::Cost,
    max_delay: Option<Duration>,
) -> AcquireOptions {
    let mut options = AcquireOptions::from(cost.into());
    options.max_delay = max_delay;
    options.detail = config.responder.detail();
    options.hold = P::CostPolicy::NEEDS_HOLD;
    options.keeps_guard = P::End::TRACKS;
    options.call_id = config.cost_policy.once(request);
    options
}

/// The maximum delay of the first ask.
///
/// A request that has to wait joins a queue uncharged, so the first ask accepts no delay, unless only the limiter knows
/// whether requests may wait. The limiter charges the start that it schedules, so the ask then accepts no start after
/// the client's own deadline.
#[inline]
pub(crate) fn first_delay<Request, P: Parts<Request>>(
    config: &ConfigOf<Request, P>,
    request: &Request,
    key: &P::Key,
) -> Option<Duration> {
    let timeout = || config.responder.client_timeout(request).filter(|_| are_queues(key, &config.limiter));
    config.wait.first_delay.or_else(timeout)
}

/// Whether all limits of a key are queues. Any other limit that schedules would let a request wait that accepts a delay.
fn are_queues<Key: ?Sized>(key: &Key, limiter: &impl Limiter<Key>) -> bool {
    let (mut queues, mut others) = (0, 0);
    let mut count = |limit: LimitOfKey<'_>| *(if limit.max_waiting.is_some() { &mut queues } else { &mut others }) += 1;
    limiter.limits_of(key, &mut LimitsOfKey::new(&mut count));
    queues > 0 && others == 0
}

/// Lets the responder emit warnings when the service has responded, if there are observers.
#[inline]
pub(crate) fn observe_context<Request, P: Parts<Request>>(config: &ConfigOf<Request, P>, context: &mut P::Context) {
    if config.observers.is_some() {
        P::Responder::observe(context, &config.observers);
    }
}

/// Emits a warning if the extractor counts many of the first requests by the address of one proxy.
#[cold]
#[inline(never)]
pub(crate) fn observe_first<Request, P: Parts<Request>>(config: &ConfigOf<Request, P>, request: &Request) {
    if config.first_requests.count_request()
        && let Some(proxy) = config.extractor.proxy(request)
        && config.first_requests.is_due(proxy)
    {
        config.observers.warn(
            "one limit for all clients: many requests with `X-Forwarded-For` come from one private address, which \
             `PeerIp` counts by; behind a proxy use `ClientIp` with the proxy's network",
        );
    }
}

/// Shows the developer why all responses of a layer are errors, if no observer does.
fn warn_of_misconfiguration(observers: &Observers, rejection: &Rejection) {
    if !cfg!(debug_assertions) || observers.is_some() || !rejection.is_misconfigured() {
        return;
    }
    let cause: &dyn fmt::Display = match rejection {
        Rejection::MissingKey(missing) => missing,
        Rejection::Unavailable(error) => error,
        Rejection::OverLimit(_) => return,
    };
    observers.warn(&format!("server misconfigured: {cause}"));
}

/// How many requests may wait at a time, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct WaitConfig {
    /// With `None` the limiter bounds the wait: only a queue among the algorithms lets requests wait then.
    pub(crate) max_wait: Option<Duration>,
    pub(crate) bounds: Bounds,
    /// For the bodies of waiting requests.
    pub(crate) read_ahead: read_ahead::Bounds,
    /// Shared by all services of the layer.
    pub(crate) queues: Arc<Queues>,
    /// `None` if only the limiter knows whether requests may wait: see [`first_delay`].
    first_delay: Option<Duration>,
}

impl WaitConfig {
    /// The maximum delay of the first ask while requests wait: no delay if no further request may wait.
    pub(crate) fn while_active(&self, first_delay: Option<Duration>) -> Option<Duration> {
        if self.queues.is_full(self.bounds) { Some(Duration::ZERO) } else { first_delay }
    }

    /// Whether a request that the limiter denied may wait.
    pub(crate) fn lets_denied_wait(&self) -> bool {
        self.max_wait.is_some_and(|max_wait| !max_wait.is_zero())
    }

    /// Changes the configuration of one layer. Its clones keep their own queues and counts.
    #[cfg(feature = "timer")]
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Option<Duration>, &mut Bounds, &mut bool)) {
        let mut newest_first = self.queues.newest_first;
        change(&mut self.max_wait, &mut self.bounds, &mut newest_first);
        self.queues = Arc::new(Queues::new(newest_first));
        let limiter_decides = self.max_wait.is_none() && self.bounds.max_waiters > 0;
        self.first_delay = if limiter_decides { None } else { Some(Duration::ZERO) };
    }
}

impl Default for WaitConfig {
    fn default() -> Self {
        Self {
            max_wait: None,
            bounds: Bounds::DEFAULT,
            read_ahead: read_ahead::Bounds::default(),
            queues: Arc::new(Queues::new(false)),
            first_delay: None,
        }
    }
}

/// What the layer does with a request after the limiter's result.
pub(crate) enum Disposition {
    /// The request may start now.
    Admit(Decision, Option<Held>),
    /// The limiter has scheduled a later start, or denied the request, which may wait.
    Wait(Asked),
    Reject(Rejection),
}

/// Determines the disposition of a request.
#[inline]
pub(crate) fn classify<Request, P: Parts<Request>>(
    result: Result<Outcome, Error>,
    key: &P::Key,
    config: &ConfigOf<Request, P>,
) -> Disposition {
    dispose(result, P::End::TRACKS, config.wait.lets_denied_wait(), &|| limits_of_guard(key, &config.limiter))
}

/// Apart from [`classify`], which the compiler generates for each type of a layer.
#[inline]
fn dispose(
    result: Result<Outcome, Error>,
    keeps_guard: bool,
    lets_denied_wait: bool,
    limits: &dyn Fn() -> Option<Vec<u64>>,
) -> Disposition {
    let checked = result.and_then(|outcome| outcome.check_guard(keeps_guard));
    match checked.map(|outcome| outcome.waking(limits)) {
        Ok(Outcome { decision, held }) if decision.is_allowed() => {
            if decision.delay().is_zero() {
                Disposition::Admit(decision, held)
            } else {
                // A verdict stores its microseconds in 62 bits, so the sum does not overflow.
                let at = Instant::now() + decision.delay();
                // The queue sets the class.
                let (class, held) = (Class::default(), ReleaseOnDrop::new(held));
                Disposition::Wait(Asked::Scheduled(Start { at, class, decision, held }))
            }
        }
        Ok(Outcome { decision, .. }) if lets_denied_wait && !decision.exceeds_limit() => {
            Disposition::Wait(Asked::Denied(decision))
        }
        Ok(Outcome { decision, .. }) => Disposition::Reject(Rejection::OverLimit(decision)),
        Err(error) => Disposition::Reject(Rejection::Unavailable(error)),
    }
}

/// Answers a request that the layer does not forward.
pub(crate) fn rejected<Request, P: Parts<Request>>(
    config: &ConfigOf<Request, P>,
    request: Request,
    rejection: Rejection,
) -> ServiceResult<Request, P> {
    warn_of_misconfiguration(&config.observers, &rejection);
    let response = config.responder.on_rejected(request, rejection)?;
    Ok(P::End::on_response(P::Tracker::default(), response))
}

/// Emits the event of an admitted request.
#[inline]
pub(crate) fn emit_decided(observers: &Observers, decision: &Decision) {
    observers.emit(|| Event::decided(decision, None));
}

/// Returns the decision on an admitted request, if a limit applied.
#[inline]
pub(crate) fn applied(decision: &Decision) -> Option<&Decision> {
    (!decision.is_exempt()).then_some(decision)
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
    Event::missing_key(missing, missing.is_server_error(), forwarded)
}
