//! What the layer, its services and their futures share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tower_service::Service;

use super::cost::CostPolicy;
use crate::decision::{AcquireOptions, Decision};
use crate::error::Error;
use crate::key::Missing;
use crate::limiter::{Held, Outcome};
use crate::observe::{Event, Observers};
use crate::response::{Rejection, Respond};
use crate::runtime::Instant;

#[derive(Clone, Debug)]
pub(crate) struct Settings<K, A, R, T> {
    pub(crate) key: K,
    pub(crate) limiter: A,
    pub(crate) responder: R,
    pub(crate) tariff: T,
    pub(crate) missing: MissingKeyPolicy,
    pub(crate) wait: Wait,
    pub(crate) observers: Observers,
}

/// What a limited service answers with.
pub(crate) type Answer<Request, S, R> = Result<
    <R as Respond<Request, <S as Service<Request>>::Response, <S as Service<Request>>::Error>>::Response,
    <R as Respond<Request, <S as Service<Request>>::Response, <S as Service<Request>>::Error>>::Error,
>;

/// What the layer does with a request whose key is absent.
///
/// A key that is [unusable](crate::key::Missing::unusable) (sent twice, empty, malformed) is refused in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingKeyPolicy {
    /// It is refused: in HTTP with status 400, or 500 where the server is at fault.
    #[default]
    Refuse,
    /// The layer forwards the request under no limit. A client that can leave the key out can then lift the limit.
    Exempt,
}

/// Who waits for how long.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    /// `None` leaves it to the algorithm.
    pub(crate) longest: Option<Duration>,
    pub(crate) max_waiters: usize,
    pub(crate) waiters: Arc<AtomicUsize>,
}

impl Wait {
    pub(crate) const DEFAULT_MAX_WAITERS: usize = 10_000;

    /// For how long a request may wait that has no place yet: not at all if there is none, so that it is refused before it is
    /// charged.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let full = self.waiters.load(Ordering::Relaxed) >= self.max_waiters;
        if full { Some(Duration::ZERO) } else { self.longest }
    }

    /// A permit to wait, if one is free.
    pub(crate) fn seat(&self, observers: &Observers) -> Option<Seat> {
        let taken = self.waiters.fetch_update(Ordering::AcqRel, Ordering::Acquire, |waiters| {
            (waiters < self.max_waiters).then_some(waiters + 1)
        });
        taken.ok().map(|_| self.taken(observers))
    }

    /// A permit for a request that was charged for its scheduled start while a permit was free. Concurrent requests may
    /// exceed `max_waiters` by their number: a charged request is not denied for that.
    pub(crate) fn seat_of_charged(&self, observers: &Observers) -> Seat {
        self.waiters.fetch_add(1, Ordering::AcqRel);
        self.taken(observers)
    }

    fn taken(&self, observers: &Observers) -> Seat {
        observers.tell(|| Event::WaitStarted);
        let waiters = Arc::clone(&self.waiters);
        Seat { waiters, observers: observers.clone(), since: Instant::now() }
    }
}

impl Default for Wait {
    fn default() -> Self {
        // Without a timer nobody can wait: an algorithm must not promise a later turn.
        let longest = if cfg!(feature = "timer") { None } else { Some(Duration::ZERO) };
        Self { longest, max_waiters: Self::DEFAULT_MAX_WAITERS, waiters: Arc::default() }
    }
}

/// A place among those who wait, free again when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    waiters: Arc<AtomicUsize>,
    observers: Observers,
    since: Instant,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.waiters.fetch_sub(1, Ordering::AcqRel);
        self.observers.tell(|| Event::WaitEnded { waited: self.since.elapsed() });
    }
}

impl<K, A, R, T> Settings<K, A, R, T> {
    /// A client can make its credential unusable at will, so no policy exempts that.
    pub(crate) fn refuses(&self, missing: &Missing) -> bool {
        missing.is_unusable() || self.missing == MissingKeyPolicy::Refuse
    }

    #[inline]
    pub(crate) fn ask<Request, S>(&self, cost: u64, patience: Option<Duration>) -> AcquireOptions
    where
        S: Service<Request>,
        R: Respond<Request, S::Response, S::Error>,
        T: CostPolicy<Request, S::Response, S::Error>,
    {
        let mut ask = AcquireOptions::cost(cost);
        ask.max_delay = patience;
        ask.all_limits = self.responder.wants_all_limits();
        ask.all_denials = self.responder.wants_all_denials();
        ask.hold = T::NEEDS_HOLD;
        ask
    }

    /// Lets the responder emit warnings when the service has answered, if anybody observes.
    #[inline]
    pub(crate) fn observe<Request, S>(&self, mark: &mut R::Context)
    where
        S: Service<Request>,
        R: Respond<Request, S::Response, S::Error>,
    {
        if self.observers.are_there() {
            R::observe(mark, &self.observers);
        }
    }
}

/// What a limiter's answer means for a request.
pub(crate) enum Judgement {
    /// It passes, at once or when its turn has come.
    Pass(Decision, Option<Held>),
    /// It may ask again after this time.
    AskAgain(Duration, Decision),
    Refuse(Rejection),
}

/// After how long a waiting request asks again that was denied because of held costs.
const ESTIMATE_RECHECK: Duration = Duration::from_millis(100);

/// `patience` is for how long the request may still wait.
#[inline]
pub(crate) fn judge(result: Result<Outcome, Error>, patience: Option<Duration>) -> Judgement {
    match result {
        Ok(Outcome { decision, held }) if decision.is_allowed() => Judgement::Pass(decision, held),
        Ok(Outcome { decision, .. }) => match (decision.retry_after(), patience) {
            // Nobody knows when a held cost is settled: the request asks again soon, as long as it may wait.
            (Some(wait), Some(patience)) if decision.is_estimate() && !patience.is_zero() => {
                Judgement::AskAgain(wait.min(ESTIMATE_RECHECK).min(patience), decision)
            }
            // UnitCost that promises turns would have promised one, if it came in time.
            (Some(wait), Some(patience)) if wait <= patience && !decision.supports_scheduling() => {
                Judgement::AskAgain(wait, decision)
            }
            _ => Judgement::Refuse(Rejection::OverLimit(decision)),
        },
        Err(error) => Judgement::Refuse(Rejection::Unavailable(error)),
    }
}

/// How a refusal is told.
pub(crate) fn told(refusal: &Rejection, took: Option<Duration>) -> Event<'_> {
    match refusal {
        Rejection::OverLimit(decision) => Event::Decided { decision, took },
        Rejection::MissingKey(missing) => told_missing(missing, false),
        Rejection::Unavailable(error) => Event::Failed { error, took },
    }
}

/// How a missing key is told.
pub(crate) fn told_missing(missing: &Missing, forwarded: bool) -> Event<'_> {
    Event::MissingKey { reason: missing, by_server: missing.is_server_error(), forwarded }
}
