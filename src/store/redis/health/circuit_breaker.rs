use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;

/// A circuit breaker: whether Redis is worth asking.
///
/// It opens after some failures in a row. While it is open, every decision fails at once, at no cost, and a task probes Redis;
/// the first probe that succeeds closes it.
///
/// A failure counts only if its call began after the last failure that was counted. Calls that were under way together are
/// thus one failure, whether the server stalled or the connection was lost.
pub(crate) struct Breaker {
    open: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failures: u32,
    /// When the last counted failure was noticed, and its error.
    last: Option<(Instant, Error)>,
    /// A task probes the server.
    is_probed: bool,
}

impl Breaker {
    /// The number of failures in a row that open the breaker: the next call repairs a single lost connection.
    const FAILURES: u32 = 3;
    /// The time between two probes.
    pub(crate) const PAUSE: Duration = Duration::from_millis(200);

    pub(crate) fn new() -> Self {
        Self { open: AtomicBool::new(false), state: Mutex::default() }
    }

    /// The error to fail with, if it is open.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.open.load(Ordering::Acquire) {
            return Ok(());
        }
        let error = Error::unavailable("Redis does not answer: until it does, it is not asked");
        Err(match &self.lock().last {
            Some((_, cause)) => error.with_source(cause.clone()),
            None => error,
        })
    }

    /// Whether a probing task is needed. If so, the caller must start it, and call `end_probing` when the task ends.
    pub(crate) fn begin_probing(&self) -> bool {
        let mut state = self.lock();
        let begins = self.open.load(Ordering::Acquire) && !state.is_probed;
        state.is_probed |= begins;
        begins
    }

    pub(crate) fn end_probing(&self) {
        self.lock().is_probed = false;
    }

    /// Records an answered call. Returns whether that has closed the breaker.
    pub(crate) fn success(&self) -> bool {
        let mut state = self.lock();
        (state.failures, state.last) = (0, None);
        self.open.swap(false, Ordering::AcqRel)
    }

    /// Records a call that began at `began` and was not answered. Returns whether that has opened the breaker.
    pub(crate) fn failure(&self, began: Instant, error: &Error) -> bool {
        let mut state = self.lock();
        if state.last.as_ref().is_some_and(|(noticed, _)| began < *noticed) {
            return false;
        }
        state.failures = state.failures.saturating_add(1);
        state.last = Some((Instant::now(), error.clone()));
        state.failures >= Self::FAILURES && !self.open.swap(true, Ordering::AcqRel)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, advance};

    use super::Breaker;
    use crate::error::Error;

    #[tokio::test(start_paused = true)]
    async fn failures_of_calls_under_way_together_count_once() {
        let (breaker, error) = (Breaker::new(), Error::unavailable("no answer"));
        let step = Duration::from_millis(10);
        for _ in 0..Breaker::FAILURES {
            assert!(breaker.check().is_ok());
            let began = [Instant::now(), Instant::now() + step / 2];
            advance(step).await;
            let opened: Vec<_> = (0..10).map(|call| breaker.failure(began[call % 2], &error)).collect();
            assert!(opened[1..].iter().all(|opened| !opened), "one of ten calls counts: {opened:?}");
        }
        assert!(breaker.check().is_err());
        assert!(breaker.success() && breaker.check().is_ok());
        assert!(!breaker.failure(Instant::now(), &error), "a success starts the count anew");
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_open_breaker_is_probed_and_by_one_task() {
        let (breaker, error) = (Breaker::new(), Error::unavailable("no answer"));
        assert!(!breaker.begin_probing());
        for _ in 0..Breaker::FAILURES {
            breaker.failure(Instant::now(), &error);
            advance(Duration::from_millis(1)).await;
        }
        assert!(breaker.begin_probing() && !breaker.begin_probing());
        breaker.end_probing();
        assert!(breaker.begin_probing());
    }
}
