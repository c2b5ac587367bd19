use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::{Instant, timeout};

use super::connector::MIN_CONNECT_TIMEOUT;

/// Lets one caller at a time open a connection that callers of several runtimes share.
///
/// If that takes longer than [`MIN_CONNECT_TIMEOUT`], perhaps nothing drives the runtime of the caller. Then the next caller
/// opens a connection too.
#[derive(Default)]
pub(crate) struct Opening(Mutex<OpeningState>);

#[derive(Clone, Default)]
struct OpeningState {
    turn: Arc<AsyncMutex<()>>,
    /// When the last caller began.
    began_at: Option<Instant>,
}

impl Opening {
    /// Waits until no other caller opens a connection. The caller opens one while it has the guard.
    pub(crate) async fn begin(&self) -> OwnedMutexGuard<()> {
        loop {
            let OpeningState { turn, began_at } = self.state().clone();
            let left =
                MIN_CONNECT_TIMEOUT.saturating_sub(began_at.map_or(Duration::ZERO, |began_at| began_at.elapsed()));
            let begun = timeout(left, Arc::clone(&turn).lock_owned()).await;
            let mut state = self.state();
            let is_last = Arc::ptr_eq(&state.turn, &turn);
            if let Ok(guard) = begun {
                if is_last {
                    state.began_at = Some(Instant::now());
                }
                return guard;
            }
            // A caller whose runtime is not driven may wait, and get its turn, but does not begin.
            if is_last && state.began_at.is_none_or(|began_at| began_at.elapsed() >= MIN_CONNECT_TIMEOUT) {
                *state = OpeningState::default();
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, OpeningState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use tokio::time::{Instant, timeout};

    use super::{MIN_CONNECT_TIMEOUT, Opening};

    #[tokio::test(start_paused = true)]
    async fn opening_passes_a_caller_by_that_nothing_drives() {
        let (opening, began_at) = (Opening::default(), Instant::now());
        let stopped = opening.begin().await;
        let mut waiting = pin!(opening.begin());
        assert!(waiting.as_mut().now_or_never().is_none());
        let mut next = timeout(Duration::from_secs(60), opening.begin()).await.expect("a turn");
        assert_eq!(began_at.elapsed(), MIN_CONNECT_TIMEOUT);
        // The waiting caller, which nothing polls, gets a turn that is over.
        drop(stopped);
        for _ in 0..3 {
            drop(next);
            next = opening.begin().now_or_never().expect("no other caller");
        }
    }
}
