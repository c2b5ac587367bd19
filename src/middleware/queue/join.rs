//! How a request joins a queue, and the bounds.

use std::sync::Arc;
use std::time::Duration;

use super::ids::queue_of;
use super::queues::Queues;
use super::state::{Effects, MAX_STEP, Queue};
use super::ticket::{Ask, Class, Start, Ticket};
use super::waiters::Waiter;
use super::waiting::Waiting;
use crate::decision::{AcquireOptions, Decision};
use crate::response::Rejection;
use crate::runtime::Instant;
use crate::sync::Ordering;

/// The bounds that a layer configures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) max_waiters: usize,
    /// `None` if it follows from `max_waiters`.
    pub(crate) max_waiters_per_key: Option<usize>,
}

impl Bounds {
    const MAX_PER_KEY: usize = 1_000;

    /// For callers that bound themselves.
    #[cfg(feature = "timer")]
    pub(crate) const NONE: Self = Self { max_waiters: usize::MAX, max_waiters_per_key: Some(usize::MAX) };

    pub(crate) const DEFAULT: Self = Self { max_waiters: 10_000, max_waiters_per_key: None };

    fn max_per_key(self) -> usize {
        self.max_waiters_per_key.unwrap_or_else(|| self.max_waiters.div_ceil(2).min(Self::MAX_PER_KEY))
    }

    /// Returns how many requests may wait in all, for another request of a key of which `of_key` requests wait.
    ///
    /// The last tenth of the places is for keys of which no request waits, so that a few keys cannot take all places.
    fn max_in_all(self, of_key: usize) -> usize {
        let kept = (self.max_waiters / 10).min(self.max_waiters.saturating_sub(self.max_per_key()));
        if of_key == 0 { self.max_waiters } else { self.max_waiters - kept }
    }
}

/// A request that cannot start now.
pub(crate) struct Arrival {
    pub(crate) ask: Arc<dyn Ask>,
    pub(crate) class: Class,
    pub(crate) options: AcquireOptions,
    /// The maximum wait of the layer or of the client. `None` if the limiter bounds the wait.
    pub(crate) max_wait: Option<Duration>,
    pub(crate) arrived_at: Instant,
}

/// What the limiter decided for a request that joins a queue.
pub(crate) enum Asked {
    Denied(Decision),
    /// The limiter bounds the wait by itself and has scheduled a start.
    Scheduled(Start),
}

/// Why a request does not wait.
pub(crate) struct Refused {
    pub(crate) rejection: Rejection,
    /// Whether requests wait already: the queue is full or too long.
    pub(crate) is_queue: bool,
}

impl Queues {
    /// Lets a request join the queue of the limit that has denied or scheduled the request.
    pub(crate) fn join(self: &Arc<Self>, arrival: Arrival, asked: Asked, bounds: Bounds) -> Result<Waiting, Refused> {
        let (Asked::Denied(decision) | Asked::Scheduled(Start { decision, .. })) = &asked;
        let id = queue_of(&*arrival.ask, decision);
        self.join_in(id, arrival, Some(asked), bounds).expect("a decided request creates its queue")
    }

    /// Lets a request that the limiter was not asked for join the queue `id`.
    ///
    /// Returns `None` if there is no queue, or the cost is zero or exceeds the limit: the limiter must be asked.
    pub(crate) fn join_existing(
        self: &Arc<Self>,
        id: u64,
        arrival: Arrival,
        bounds: Bounds,
    ) -> Option<Result<Waiting, Refused>> {
        self.join_in(id, arrival, None, bounds)
    }

    fn join_in(
        self: &Arc<Self>,
        id: u64,
        mut arrival: Arrival,
        mut asked: Option<Asked>,
        bounds: Bounds,
    ) -> Option<Result<Waiting, Refused>> {
        arrival.class.cost = arrival.ask.cost_in(id, arrival.options);
        if let Some(Asked::Scheduled(start)) = &mut asked {
            start.class = arrival.class;
        }
        let mut effects = Effects::default();
        let joined = {
            let mut shard = self.lock(id);
            let existing = shard.get(&id);
            // A cost of zero does not wait, and one above the limit never starts: the limiter answers at once.
            let fits = |queue: &Queue| arrival.class.cost > 0 && !queue.forecast.exceeds_limit(arrival.class.cost);
            if asked.is_none() && !existing.is_some_and(fits) {
                return None;
            }
            let queue = self.find_or_create(&mut shard, id);
            let joined = self.join_queue(queue, arrival, asked, bounds, &mut effects);
            self.update(&mut shard, id);
            joined
        };
        self.finish(effects);
        // Also if the request was refused: its start may wait for another request.
        self.ensure_driver(id);
        Some(joined.map(|(ticket, due_in)| Waiting::new(Arc::clone(self), ticket, due_in)))
    }

    /// Inserts a request into a queue, unless the queue is full or too long for it.
    fn join_queue(
        &self,
        queue: &mut Queue,
        arrival: Arrival,
        asked: Option<Asked>,
        bounds: Bounds,
        effects: &mut Effects,
    ) -> Result<(Arc<Ticket>, Duration), Refused> {
        let Arrival { ask, class, options, max_wait, arrived_at } = arrival;
        let now = Instant::now();
        let has_waiters = !queue.waiters.is_empty();
        let deadline = max_wait.map(|max_wait| arrived_at.checked_add(max_wait).unwrap_or(now + FAR));
        let remaining = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let scheduled = match asked {
            None => None,
            Some(Asked::Denied(decision)) => {
                queue.denied_before_joining(decision, class, arrived_at);
                None
            }
            Some(Asked::Scheduled(start)) => {
                let wait = start.at.saturating_duration_since(now);
                queue.add_first_start(start, arrived_at, now);
                Some(wait)
            }
        };
        let of_limiter = ask.max_waiting().filter(|_| scheduled.is_none() && bounds.max_waiters < usize::MAX);
        let of_limiter = of_limiter.and_then(|waiting| queue.forecast.time_for(waiting));
        let longest = [remaining, of_limiter].into_iter().flatten().min();
        let wait = scheduled.or_else(|| queue.wait_of_new(class, now));
        let excess = wait.zip(longest).and_then(|(wait, longest)| wait.checked_sub(longest));
        if let Some(excess) = excess.filter(|excess| !excess.is_zero()) {
            return Err(refused(queue, class, Some(excess), has_waiters, now));
        }
        if scheduled.is_some() {
            // The start is charged already, so no bound applies.
            self.waiting.fetch_add(1, Ordering::AcqRel);
        } else if !self.take_place(queue, class, bounds, now, effects) {
            return Err(refused(queue, class, wait, has_waiters, now));
        }
        let ticket = Arc::new(Ticket::new(queue.id, Self::next_number(), ask));
        queue.waiters.insert(Waiter { ticket: Arc::clone(&ticket), class, options, arrived_at, deadline });
        let due_in = [wait.or(Some(MAX_STEP)), remaining].into_iter().flatten().min().unwrap_or(MAX_STEP);
        Ok((ticket, due_in))
    }

    /// Counts a new request, if the bounds allow it. With `newest_first` the oldest request gives its place.
    fn take_place(&self, queue: &mut Queue, class: Class, bounds: Bounds, now: Instant, effects: &mut Effects) -> bool {
        let of_key = queue.waiters.of_key(class.key);
        if of_key >= bounds.max_per_key() && !(self.newest_first && queue.reject_oldest(Some(class.key), now, effects))
        {
            return false;
        }
        // A rejected request has freed its place, although `finish` counts it later.
        let max_in_all = bounds.max_in_all(of_key).saturating_add(effects.ended);
        let counted = self
            .waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |waiting| (waiting < max_in_all).then_some(waiting + 1));
        if counted.is_ok() {
            return true;
        }
        // A key with a waiting request takes no place of another key.
        let of_key = (of_key > 0).then_some(class.key);
        let has_place = self.newest_first && bounds.max_waiters > 0 && queue.reject_oldest(of_key, now, effects);
        if has_place {
            self.waiting.fetch_add(1, Ordering::AcqRel);
        }
        has_place
    }
}

/// A time later than any deadline of a request.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// Returns the denial of a request that does not join a queue.
fn refused(queue: &Queue, class: Class, retry_after: Option<Duration>, is_queue: bool, now: Instant) -> Refused {
    // The wait of a denial is exact if nothing waits, unless the denial is of a start that is scheduled too late.
    let is_exact = |decision: &Decision| !is_queue && !decision.is_allowed() && !decision.supports_scheduling();
    let wait = retry_after.filter(|_| !queue.latest.as_ref().is_some_and(|(decision, ..)| is_exact(decision)));
    let denial = queue.latest_denial(class, wait, now).expect("a queue has a decision from its beginning");
    let is_estimate = is_queue || denial.is_estimate();
    Refused { rejection: Rejection::OverLimit(denial.with_estimate(is_estimate)), is_queue }
}
