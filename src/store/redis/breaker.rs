use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::error::Error;

/// Whether Redis is worth asking.
///
/// It opens after some calls in a row that were not answered. While it is open every decision fails at once, at no cost, and
/// from time to time a probe looks whether Redis is back; one that succeeds closes it.
pub(super) struct Breaker {
    open: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failures: u32,
    error: Option<Error>,
    /// When the next probe may begin.
    probe_at: Option<Instant>,
}

impl Breaker {
    /// So many calls in a row: a single lost connection is repaired by the next call.
    const FAILURES: u32 = 3;
    /// Between two probes.
    pub(super) const PAUSE: Duration = Duration::from_millis(200);

    pub(super) fn new() -> Self {
        Self { open: AtomicBool::new(false), state: Mutex::default() }
    }

    /// The error to fail with, if it is open.
    #[inline]
    pub(super) fn check(&self) -> Result<(), Error> {
        if !self.open.load(Ordering::Acquire) {
            return Ok(());
        }
        let state = self.lock();
        let error = Error::unavailable("Redis does not answer: until it does, it is not asked");
        Err(match &state.error {
            Some(cause) => error.with_source(cause.clone()),
            None => error,
        })
    }

    /// Whether a probe is due. Whoever is told so has to make it.
    pub(super) fn take_probe(&self) -> bool {
        let mut state = self.lock();
        let now = Instant::now();
        if !self.open.load(Ordering::Acquire) || state.probe_at.is_some_and(|at| at > now) {
            return false;
        }
        state.probe_at = Some(now + Self::PAUSE);
        true
    }

    /// A call was answered. Returns whether that has closed it.
    pub(super) fn success(&self) -> bool {
        let mut state = self.lock();
        *state = State::default();
        self.open.swap(false, Ordering::AcqRel)
    }

    /// A call was not answered. Returns whether that has opened it.
    pub(super) fn failure(&self, error: &Error) -> bool {
        let mut state = self.lock();
        state.failures = state.failures.saturating_add(1);
        state.error = Some(error.clone());
        let opens = state.failures >= Self::FAILURES && !self.open.load(Ordering::Acquire);
        if opens {
            state.probe_at = Some(Instant::now() + Self::PAUSE);
            self.open.store(true, Ordering::Release);
        }
        opens
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
