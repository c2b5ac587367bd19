//! Atomics and mutexes: from `std`, or from loom in its models.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};

/// A lock that threads hold for some tens of nanoseconds. A thread that waits spins, and then yields. A panic does not
/// poison it.
///
/// The mutex of `std` takes two atomic operations instead of one, and parks waiting threads: two threads on one key take
/// twice the time (row "hot key").
pub(crate) struct SpinLock<T>(spin::lock_api::Mutex<T>);

pub(crate) type SpinGuard<'a, T> = spin::lock_api::MutexGuard<'a, T>;

impl<T> SpinLock<T> {
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
        let mut backoff = Backoff::new();
        loop {
            backoff.wait();
            if let Some(guard) = self.0.try_lock() {
                return guard;
            }
        }
    }
}

/// Waits for another thread to release a lock: first spins, then yields.
struct Backoff(u32);

impl Backoff {
    /// The number of rounds that spin; later rounds yield.
    ///
    /// A thread holds a lock for some tens of nanoseconds, unless the scheduler suspends it: then only yielding helps.
    #[cfg(not(loom))]
    const ROUNDS: u32 = 1;

    /// The number of spins in each round.
    ///
    /// During one round the other thread can take the lock several times. With shorter rounds both threads would fetch
    /// the cache lines from each other for every decision, which takes twice the time.
    #[cfg(not(loom))]
    const SPINS: u32 = 64;

    const fn new() -> Self {
        Self(0)
    }

    #[cfg(not(loom))]
    #[cold]
    fn wait(&mut self) {
        if self.0 < Self::ROUNDS {
            for _ in 0..Self::SPINS {
                std::hint::spin_loop();
            }
            self.0 += 1;
        } else {
            std::thread::yield_now();
        }
    }

    /// The number of rounds that loom explores.
    ///
    /// loom may schedule two waiting threads alternately without ever running the thread that holds the lock. Real
    /// schedulers do not, so loom abandons the execution after this many rounds.
    #[cfg(loom)]
    const ROUNDS: u32 = 6;

    #[cfg(loom)]
    fn wait(&mut self) {
        self.0 += 1;
        if self.0 > Self::ROUNDS {
            loom::skip_branch();
        }
        loom::thread::yield_now();
    }
}

/// Panic message of a future that a caller polls again after completion.
pub(crate) const POLLED_AFTER_COMPLETION: &str = "a future was polled after completion";

/// Runs a model in all orders of its atomic accesses with up to `preemptions` preemptions, and returns the number of
/// orders. The environment variable `MORE_PREEMPTIONS` adds to the preemptions of all models, for a longer run.
#[cfg(all(test, loom))]
pub(crate) fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) -> u64 {
    let more = std::env::var("MORE_PREEMPTIONS").map_or(0, |more| more.parse().expect("a number"));
    let orders = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = std::sync::Arc::clone(&orders);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions + more);
    // The default is too small for threads that wait for each other.
    builder.max_branches = 10_000;
    builder.check(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
    orders.load(std::sync::atomic::Ordering::Relaxed)
}

/// Prints the number of orders of a model.
#[cfg(all(test, loom))]
pub(crate) fn report_orders(orders: u64) {
    println!("{orders} orders");
    assert!(orders > 2, "a model with a single order checks nothing");
}
