use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;

/// Stops calls to a node that does not respond.
///
/// The breaker opens after [`MAX_FAILURES`](Self::MAX_FAILURES) consecutive failures. While it is open, every decision
/// fails at once, and a task probes the node. The first probe that succeeds closes the breaker.
///
/// A failure counts only if its call started after the previous counted failure was recorded. Calls that were in flight
/// together thus count as one failure. Otherwise one stall, or one lost connection, would open the breaker: many calls
/// are in flight.
pub(crate) struct CircuitBreaker {
    open: AtomicBool,
    state: Mutex<BreakerState>,
}

#[derive(Default)]
struct BreakerState {
    consecutive_failures: u32,
    /// The time at which the last counted failure was recorded, and its error.
    last_failure: Option<(Instant, Error)>,
    /// A task probes the node.
    is_probed: bool,
}

impl CircuitBreaker {
    /// A single lost connection must not open the breaker: the next call replaces the connection.
    const MAX_FAILURES: u32 = 3;
    /// The time between two probes.
    pub(super) const PROBE_INTERVAL: Duration = Duration::from_millis(200);

    pub(super) fn new() -> Self {
        Self { open: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Returns an error if the breaker is open.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.open.load(Ordering::Acquire) {
            return Ok(());
        }
        let error =
            Error::unavailable("circuit breaker open: Redis is not responding; check that the server is reachable");
        Err(match &self.lock().last_failure {
            Some((_, cause)) => error.with_source(cause.clone()),
            None => error,
        })
    }

    /// Whether the caller must start a probing task, which must call `end_probing` when it ends.
    pub(super) fn begin_probing(&self) -> bool {
        let mut state = self.lock();
        let begins = self.open.load(Ordering::Acquire) && !state.is_probed;
        state.is_probed |= begins;
        begins
    }

    pub(super) fn end_probing(&self) {
        self.lock().is_probed = false;
    }

    /// Records a response. Returns whether that closed the breaker.
    pub(super) fn success(&self) -> bool {
        let mut state = self.lock();
        (state.consecutive_failures, state.last_failure) = (0, None);
        self.open.swap(false, Ordering::AcqRel)
    }

    /// Records a call without a response that started at `started_at`. Returns whether that opened the breaker.
    pub(super) fn failure(&self, started_at: Instant, error: &Error) -> bool {
        let mut state = self.lock();
        if state.last_failure.as_ref().is_some_and(|(recorded_at, _)| started_at <= *recorded_at) {
            return false;
        }
        state.consecutive_failures = state.consecutive_failures.saturating_add(1);
        state.last_failure = Some((Instant::now(), error.clone()));
        state.consecutive_failures >= Self::MAX_FAILURES && !self.open.swap(true, Ordering::AcqRel)
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

    #[tokio::test(start_paused = true)]
    async fn begin_probing_is_true_once_while_open() {
        let (breaker, error) = (CircuitBreaker::new(), Error::unavailable("no response"));
        assert!(!breaker.begin_probing());
        for _ in 0..CircuitBreaker::MAX_FAILURES {
            breaker.failure(Instant::now(), &error);
            advance(Duration::from_millis(1)).await;
        }
        assert!(breaker.begin_probing() && !breaker.begin_probing());
        breaker.end_probing();
        assert!(breaker.begin_probing());
    }
}
