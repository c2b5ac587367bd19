//! Atomics and mutexes: from `std`, or from loom in its models.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, loom))]
pub(crate) use self::loom_tests::{explore, report_orders};

/// A lock that threads hold for some tens of nanoseconds. A thread that waits spins, and then yields. A panic does not
/// poison it.
///
/// The mutex of `std` takes two atomic operations instead of one, and parks waiting threads: two threads on one key take
/// twice the time (row "hot key").
pub(crate) struct SpinLock<T>(spin::lock_api::Mutex<T>);

pub(crate) type SpinGuard<'a, T> = spin::lock_api::MutexGuard<'a, T>;

impl<T> SpinLock<T> {
    /// The number of spins of a thread that waits, before it yields for the first time.
    ///
    /// Meanwhile the other thread can take the lock several times. With fewer spins both threads would fetch the cache
    /// lines from each other for every decision, which takes twice the time. A thread holds a lock for some tens of
    /// nanoseconds, unless the scheduler suspends it: then only yielding helps.
    const SPINS: u32 = 64;

    pub(crate) const fn new(value: T) -> Self {
        Self(spin::lock_api::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        match self.0.try_lock() {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> SpinGuard<'_, T> {
        for _ in 0..Self::SPINS {
            std::hint::spin_loop();
        }
        loop {
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
            std::thread::yield_now();
        }
    }
}

/// Panic message of a future that a caller polls again after completion.
pub(crate) const POLLED_AFTER_COMPLETION: &str = "a future was polled after completion";
