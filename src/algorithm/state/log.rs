use std::collections::VecDeque;

use super::{Cell, State};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// A state of hits, each with its time and its weight, oldest first: the one state that lies on the heap.
///
/// `Log::default()` is the zero state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a user's own algorithm may keep a log")]
pub struct Log {
    /// The moment from which on the state is as good as new, in microseconds since the epoch.
    pub fresh_at: u64,
    /// For how long a hit counts, in microseconds: the period that the last charge was made under.
    pub period: u64,
    /// The hits: the time in microseconds since the epoch, and the weight.
    pub hits: VecDeque<(u64, u64)>,
}

impl State for Log {
    type Cell = LogCell;
}

/// Readers hold the mutex only while they read. A writer also holds the set's lock, so the mutex alone keeps a reading
/// whole, and the set's version tells whose log it was.
#[derive(Debug)]
#[allow(unreachable_pub, reason = "the hidden half of a sealed trait")]
pub struct LogCell {
    fresh_at: AtomicU64,
    log: Mutex<Log>,
}

impl LogCell {
    /// A user's algorithm that panicked has left a log that is whole: it is used on.
    fn with<R>(&self, f: impl FnOnce(&mut Log) -> R) -> R {
        f(&mut self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

impl Cell for LogCell {
    type State = Log;

    fn new(_words: usize) -> Self {
        Self { fresh_at: AtomicU64::new(0), log: Mutex::new(Log::default()) }
    }

    fn read<R>(&self, valid: impl FnOnce() -> bool, f: impl FnOnce(&Log) -> R) -> Option<R> {
        self.with(|log| valid().then(|| f(log)))
    }

    fn read_zero<R>(&self, f: impl FnOnce(&Log) -> R) -> R {
        f(&Log::default())
    }

    fn write<R>(&self, f: impl FnOnce(&mut Log) -> R) -> R {
        self.with(|log| {
            let result = f(log);
            self.fresh_at.store(log.fresh_at, Ordering::Release);
            result
        })
    }

    fn clear(&self) {
        self.fresh_at.store(0, Ordering::Release);
        // The room stays, for the next tenant: it is bounded like a log's.
        self.with(|log| {
            log.hits.clear();
            (log.fresh_at, log.period) = (0, 0);
        });
    }

    fn copy_from(&self, other: &Self) {
        let moved = other.with(std::mem::take);
        self.fresh_at.store(moved.fresh_at, Ordering::Release);
        self.with(|log| *log = moved);
    }

    fn fresh_at(&self) -> u64 {
        self.fresh_at.load(Ordering::Acquire)
    }
}
