//! An observer that records events, a limiter that fails, and a limiter with pending decisions.

use std::future::ready;
use std::sync::{Arc, Mutex};

use tower_ratelimit::limiter::{LimiterFuture, Outcome};
use tower_ratelimit::observe::{Event, Observer};
use tower_ratelimit::{AcquireOptions, BoxLimiter, Error, Limiter};

/// An observer that records every event as a line of text.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordedEvents(Arc<Mutex<Vec<String>>>);

impl Observer for RecordedEvents {
    fn observe(&self, event: &Event<'_>) {
        let line = match event {
            Event::Decided { elapsed, .. } => {
                let (outcome, limit) = (event.outcome().expect("an end"), event.limit().unwrap_or("none"));
                let pended = if elapsed.is_some() { ", pended" } else { "" };
                format!("{outcome} by {limit} in {}{pended}", event.source().expect("a source"))
            }
            Event::Abandoned { stage, .. } => format!("abandoned {stage:?}"),
            Event::Settled { held, actual, .. } => format!("settled {held} -> {actual}"),
            Event::WaitEnded { waited, .. } => format!("waited {waited:?}"),
            Event::WaitStarted => "waits".to_owned(),
            Event::Batch { size, error, .. } => {
                format!("batch {size} {}", if error.is_some() { "failed" } else { "ok" })
            }
            Event::Breaker { store, error, .. } => {
                format!("{store} {}", if error.is_some() { "open" } else { "closed" })
            }
            Event::Warning { message, .. } => format!("warning: {message}"),
            other => other.outcome().map_or_else(|| format!("{other:?}"), str::to_owned),
        };
        self.0.lock().expect("no thread panics").push(line);
    }
}

impl RecordedEvents {
    /// Removes and returns the events since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("no thread panics"))
    }
}

/// A limiter whose decisions always fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailingLimiter;

impl<Key: ?Sized> Limiter<Key> for FailingLimiter {
    fn acquire(&self, _key: &Key, _options: AcquireOptions) -> LimiterFuture<Outcome> {
        LimiterFuture::pending(ready(Err(Error::unavailable("the store is unreachable"))))
    }
}

/// Decides as the inner limiter, after a number of pending polls.
#[derive(Clone, Debug)]
pub(crate) struct Deferred<Key: ?Sized>(pub(crate) BoxLimiter<Key>, pub(crate) usize);

impl<Key: ?Sized + 'static> Limiter<Key> for Deferred<Key> {
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let (acquire, polls) = (self.0.acquire(key, options), self.1);
        LimiterFuture::pending(async move {
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
            match acquire.try_ready() {
                Ok(result) => result,
                Err(future) => future.await,
            }
        })
    }
}
