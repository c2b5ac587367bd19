//! Which nodes respond: a circuit breaker per node.
//!
//! Calls that a node did not answer open its breaker. While the breaker is open, operations fail at once, but for one call in
//! 200 ms, which tests the node.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use super::connect::{Connector, Failure};
use super::random_id::random_id;
use crate::error::Error;
use crate::observe::{Event, ShedCause};
use crate::store::inner::{Observers, micros_floor};

/// The server of one limiter, and the state of its nodes.
pub(crate) struct ServerHealth {
    /// The limiter's name in events.
    pub(crate) limiter: String,
    pub(crate) server: Arc<dyn Connector>,
    pub(crate) observers: Observers,
    first_node: Arc<NodeState>,
    /// Created on first use. Only a cluster has more than one node.
    other_nodes: RwLock<Vec<Arc<NodeState>>>,
}

/// The state of one Redis node. Each node has its own, so a dead node does not delay the calls to others.
pub(crate) struct NodeState {
    pub(crate) index: usize,
    pub(crate) breaker: CircuitBreaker,
}

impl NodeState {
    fn new(index: usize) -> Self {
        Self { index, breaker: CircuitBreaker::new() }
    }
}

impl ServerHealth {
    pub(crate) fn new(limiter: String, server: Arc<dyn Connector>, observers: Observers) -> Self {
        Self { limiter, server, observers, first_node: Arc::new(NodeState::new(0)), other_nodes: RwLock::default() }
    }

    pub(crate) fn node(&self, index: usize) -> Arc<NodeState> {
        let Some(other) = index.checked_sub(1) else { return Arc::clone(&self.first_node) };
        if let Some(node) = self.other_nodes.read().unwrap_or_else(PoisonError::into_inner).get(other) {
            return Arc::clone(node);
        }
        let mut others = self.other_nodes.write().unwrap_or_else(PoisonError::into_inner);
        while others.len() <= other {
            let node = Arc::new(NodeState::new(others.len() + 1));
            others.push(node);
        }
        Arc::clone(&others[other])
    }

    /// Records the end of a call that started at `started_at`. A failure to which the server responded shows that the node
    /// works.
    pub(crate) fn record_end(&self, node: &NodeState, started_at: Instant, failure: Option<&Failure>) {
        if let Some(failure) = failure.filter(|failure| !failure.server_responded) {
            self.record_failure(node, started_at, &failure.error);
        } else if node.breaker.success() {
            self.observers.emit_in_task(|| Event::Breaker { store: &self.limiter, error: None });
        }
    }

    /// Records that a node did not respond to a call that started at `started_at`.
    ///
    /// A misconfigured runtime is not a failure of the node: other runtimes may use the same limiter.
    pub(crate) fn record_failure(&self, node: &NodeState, started_at: Instant, error: &Error) {
        if !error.is_config() && node.breaker.failure(started_at, error) {
            self.observers.emit_in_task(|| Event::Breaker { store: &self.limiter, error: Some(error) });
        }
    }

    /// Emits an event for a call with `size` operations, if an observer existed when the call started.
    pub(crate) fn record_call(&self, size: usize, started_at: Option<std::time::Instant>, error: Option<&Error>) {
        if let Some(started_at) = started_at {
            let store = &self.limiter;
            self.observers.emit_in_task(|| Event::Batch { store, size, elapsed: started_at.elapsed(), error });
        }
    }

    /// Emits an event for decisions that were dropped uncharged, because they could not be answered in time.
    pub(crate) fn record_shed(&self, cause: ShedCause, count: usize) {
        if count > 0 {
            self.observers.emit_in_task(|| Event::Shed { store: &self.limiter, cause, count });
        }
    }
}

/// Stops calls to a node that does not respond.
///
/// The breaker opens after [`MAX_FAILURES`](Self::MAX_FAILURES) consecutive failures. While it is open, calls fail at once,
/// but for one call in [`TRIAL_INTERVAL`](Self::TRIAL_INTERVAL), which tests the node. The first call that the node answers
/// closes the breaker.
///
/// A failure counts only if its call started after the previous counted failure was recorded. Calls that were in flight
/// together thus count as one failure. Otherwise one stall, or one lost connection, would open the breaker: many calls
/// are in flight.
pub(crate) struct CircuitBreaker {
    open: AtomicBool,
    state: Mutex<BreakerState>,
}

struct BreakerState {
    consecutive_failures: u32,
    /// The time at which the last counted failure was recorded.
    counted_at: Option<Instant>,
    last_cause: Option<Error>,
    next_trial: Instant,
}

impl CircuitBreaker {
    /// A single lost connection must not open the breaker: the next call replaces the connection.
    const MAX_FAILURES: u32 = 3;
    /// The mean time between two trials.
    pub(crate) const TRIAL_INTERVAL: Duration = Duration::from_millis(200);

    fn new() -> Self {
        let state =
            BreakerState { consecutive_failures: 0, counted_at: None, last_cause: None, next_trial: Instant::now() };
        Self { open: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// Returns an error if the breaker is open, unless the call is a trial.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.open.load(Ordering::Acquire) { self.check_open() } else { Ok(()) }
    }

    #[cold]
    fn check_open(&self) -> Result<(), Error> {
        let mut state = self.lock();
        let now = Instant::now();
        if now >= state.next_trial {
            state.next_trial = now + Self::trial_interval();
            return Ok(());
        }
        let error = Error::unavailable(
            "circuit breaker open: the last calls to Redis have failed; see the source of this error for the last cause",
        );
        Err(match &state.last_cause {
            Some(cause) => error.with_source(cause.clone()),
            None => error,
        })
    }

    /// Records a response. Returns whether that closed the breaker.
    fn success(&self) -> bool {
        let mut state = self.lock();
        (state.consecutive_failures, state.counted_at, state.last_cause) = (0, None, None);
        self.open.swap(false, Ordering::AcqRel)
    }

    /// Records a call without a response that started at `started_at`. Returns whether that opened the breaker.
    fn failure(&self, started_at: Instant, error: &Error) -> bool {
        let mut state = self.lock();
        state.last_cause = Some(error.clone());
        if state.counted_at.is_some_and(|counted_at| started_at <= counted_at) && !mistake!(EachCallInFlightCounts) {
            return false;
        }
        let now = Instant::now();
        state.counted_at = Some(now);
        state.consecutive_failures = state.consecutive_failures.saturating_add(1);
        let opens = state.consecutive_failures >= Self::MAX_FAILURES && !self.open.swap(true, Ordering::AcqRel);
        if opens {
            state.next_trial = now + Self::trial_interval();
        }
        opens
    }

    /// From a half to one and a half intervals: the processes of a service choose different times for their trials.
    fn trial_interval() -> Duration {
        Self::TRIAL_INTERVAL / 2 + Duration::from_micros(random_id() % micros_floor(Self::TRIAL_INTERVAL))
    }

    fn lock(&self) -> MutexGuard<'_, BreakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, advance};

    use super::CircuitBreaker;
    use crate::error::Error;

    fn open() -> CircuitBreaker {
        let breaker = CircuitBreaker::new();
        breaker.state.lock().expect("no panic").consecutive_failures = CircuitBreaker::MAX_FAILURES;
        assert!(breaker.failure(Instant::now(), &Error::unavailable("no response")));
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_concurrent_calls_count_once() {
        let (breaker, error) = (CircuitBreaker::new(), Error::unavailable("no response"));
        let step = Duration::from_millis(10);
        for _ in 0..CircuitBreaker::MAX_FAILURES {
            assert!(breaker.check().is_ok());
            // A call that starts at the time of a failure counts as concurrent.
            advance(step).await;
            let started_at = [Instant::now(), Instant::now() + step / 2];
            advance(step).await;
            let opened: Vec<_> = (0..10).map(|call| breaker.failure(started_at[call % 2], &error)).collect();
            assert!(opened[1..].iter().all(|opened| !opened), "one of ten calls counts: {opened:?}");
        }
        assert!(breaker.check().is_err());
        assert!(breaker.success() && breaker.check().is_ok());
        assert!(!breaker.failure(Instant::now(), &error), "a success resets the count");
    }

    /// The breakers of 1,000 processes open at the same time, and each process decides all the time. The trials spread
    /// evenly: a server that recovers gets no more of them at once than at any other time.
    #[tokio::test(start_paused = true)]
    async fn trials_of_1000_processes_spread() {
        let (breakers, step) = ((0..1_000).map(|_| open()).collect::<Vec<_>>(), Duration::from_millis(1));
        let mut trials = Vec::new();
        for _ in 0..2_000 {
            trials.push(breakers.iter().filter(|breaker| breaker.check().is_ok()).count());
            advance(step).await;
        }
        let second: usize = trials[1_000..].iter().sum();
        assert!((4_500..6_500).contains(&second), "five for each process: {second}");
        for ten in trials.windows(10) {
            assert!(ten.iter().sum::<usize>() < 200, "in 10 ms: {ten:?}");
        }
        assert!(trials[..100].iter().all(|count| *count == 0), "none before half of the interval");
        assert!(trials[300..].chunks(20).all(|trials| trials.iter().sum::<usize>() > 10), "{trials:?}");
    }
}
