use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Id;
use tokio::time::Instant;

use crate::error::Error;

/// Stops calls to a node that does not respond.
///
/// The breaker opens after [`MAX_FAILURES`](Self::MAX_FAILURES) consecutive failures. While it is open, every decision
/// fails at once, and a task probes the node. The first probe that succeeds closes the breaker.
///
/// The task ends with its runtime, and makes no progress while its runtime is not driven. If the node was not probed for
/// a while, one call takes the place of the probe: it is sent although the breaker is open. The task of another runtime
/// then replaces the earlier one.
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
    /// The task that probes the node.
    prober: Option<Prober>,
    /// The number of tasks that were started.
    probers: u64,
    /// When the task made progress, or a call took its place.
    probed_at: Option<Instant>,
}

struct Prober {
    runtime: Id,
    number: u64,
}

/// What a call that finds the breaker open must do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Attendance {
    /// Start a probing task with this number, which must call [`end_probing`](CircuitBreaker::end_probing) when it ends.
    pub(super) starts_prober: Option<u64>,
    /// Take the place of the probe: nobody has probed the node for a while.
    pub(super) is_trial: bool,
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

    /// Returns what a call in this runtime must do, if the node was not probed for `patience`.
    pub(super) fn attend(&self, runtime: Id, patience: Duration) -> Attendance {
        let mut state = self.lock();
        // A success may have closed the breaker since `check`.
        if !self.open.load(Ordering::Acquire) {
            return Attendance::default();
        }
        let is_trial = !mistake!(NoCallIsTrial) && state.probed_at.is_none_or(|at| at.elapsed() >= patience);
        // A task of the same runtime goes on when the runtime is driven.
        let starts = state.prober.as_ref().is_none_or(|prober| is_trial && prober.runtime != runtime);
        if starts {
            state.probers += 1;
            state.prober = Some(Prober { runtime, number: state.probers });
        }
        if starts || is_trial {
            state.probed_at = Some(Instant::now());
        }
        Attendance { starts_prober: starts.then_some(state.probers), is_trial }
    }

    /// Records that a probing task makes progress. Returns whether the task must go on.
    pub(super) fn is_probed_by(&self, number: u64) -> bool {
        let mut state = self.lock();
        let goes_on = state.is_prober(number) && self.open.load(Ordering::Acquire);
        if goes_on {
            state.probed_at = Some(Instant::now());
        }
        goes_on
    }

    pub(super) fn end_probing(&self, number: u64) {
        let mut state = self.lock();
        if !mistake!(ProbingStartsOnce) && state.is_prober(number) {
            state.prober = None;
        }
    }

    /// Records a response. Returns whether that closed the breaker.
    pub(super) fn success(&self) -> bool {
        let mut state = self.lock();
        (state.consecutive_failures, state.last_failure) = (0, None);
        self.open.swap(mistake!(BreakerStaysOpen, self.open.load(Ordering::Acquire), false), Ordering::AcqRel)
    }

    /// Records a call without a response that started at `started_at`. Returns whether that opened the breaker.
    pub(super) fn failure(&self, started_at: Instant, error: &Error) -> bool {
        let mut state = self.lock();
        let is_counted = state.last_failure.as_ref().is_some_and(|(recorded_at, _)| started_at <= *recorded_at);
        if is_counted && !mistake!(EachCallInFlightCounts) {
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

impl BreakerState {
    fn is_prober(&self, number: u64) -> bool {
        self.prober.as_ref().is_some_and(|prober| prober.number == number)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::runtime::{Builder, Handle};
    use tokio::time::{Instant, advance};

    use super::{Attendance, CircuitBreaker};
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
    async fn one_task_at_a_time_probes_and_a_call_takes_its_place() {
        let (breaker, error, patience) =
            (CircuitBreaker::new(), Error::unavailable("no response"), Duration::from_secs(1));
        let other = Builder::new_current_thread().build().expect("a runtime");
        let (here, there) = (Handle::current().id(), other.handle().id());
        assert_eq!(breaker.attend(here, patience), Attendance::default(), "closed");
        for _ in 0..CircuitBreaker::MAX_FAILURES {
            breaker.failure(Instant::now(), &error);
            advance(Duration::from_millis(1)).await;
        }
        let nothing = Attendance::default;
        assert_eq!(breaker.attend(here, patience).starts_prober, Some(1));
        for _ in 0..3 {
            advance(patience * 9 / 10).await;
            assert_eq!([breaker.attend(here, patience), breaker.attend(there, patience)], [nothing(), nothing()]);
            assert!(breaker.is_probed_by(1));
        }
        // The task makes no progress.
        advance(patience).await;
        assert_eq!(breaker.attend(here, patience), Attendance { starts_prober: None, is_trial: true });
        assert_eq!([breaker.attend(here, patience), breaker.attend(there, patience)], [nothing(), nothing()]);
        advance(patience).await;
        assert_eq!(breaker.attend(there, patience), Attendance { starts_prober: Some(2), is_trial: true });
        assert!(!breaker.is_probed_by(1) && breaker.is_probed_by(2));
        // The end of the replaced task is not that of the other one.
        breaker.end_probing(1);
        assert_eq!(breaker.attend(here, patience), nothing());
        breaker.end_probing(2);
        assert_eq!(breaker.attend(here, patience), Attendance { starts_prober: Some(3), is_trial: false });
        breaker.success();
        assert!(!breaker.is_probed_by(3));
        other.shutdown_background();
    }
}
