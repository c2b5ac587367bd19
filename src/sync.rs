//! The atomics, as they are or as loom's, which tries every order of them.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};

/// Waits a little for another thread's turn to end.
pub(crate) struct Backoff(u32);

impl Backoff {
    /// Rounds of spinning before the thread yields: a turn inside a set takes some tens of nanoseconds, unless the
    /// thread that has it was descheduled, and then only yielding helps.
    #[cfg(not(loom))]
    const ROUNDS: u32 = 6;

    /// In each so many times: long enough for the other thread to take several turns before it loses the cache lines again, where
    /// two that fetch them from each other for each turn take twice the time.
    #[cfg(not(loom))]
    const SPINS: u32 = 64;

    pub(crate) const fn new() -> Self {
        Self(0)
    }

    #[cfg(not(loom))]
    #[cold]
    pub(crate) fn wait(&mut self) {
        if self.0 < Self::ROUNDS {
            for _ in 0..Self::SPINS {
                std::hint::spin_loop();
            }
            self.0 += 1;
        } else {
            std::thread::yield_now();
        }
    }

    /// loom may let two threads wait in turn, round after round, while the third, whose turn to end they wait for,
    /// never goes on. Real schedulers don't: after so many rounds the rest of a run is one fair order.
    #[cfg(loom)]
    const ROUNDS: u32 = 6;

    #[cfg(loom)]
    pub(crate) fn wait(&mut self) {
        self.0 += 1;
        if self.0 > Self::ROUNDS {
            loom::skip_branch();
        }
        loom::thread::yield_now();
    }
}

/// Panic message of a future that a caller polls again after completion.
pub(crate) const POLLED_AFTER_COMPLETION: &str = "a future was polled after completion";
