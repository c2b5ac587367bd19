//! Observers that note what they are told, and limiters that don't decide.

use std::future::{Future, Ready, ready};
use std::sync::{Arc, Mutex};

use tower_ratelimit::limiter::{Acquisition, Limiter, Outcome};
use tower_ratelimit::observe::{Event, Observer};
use tower_ratelimit::{AcquireOptions, Error};

/// Notes every event, as a line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<String>>>);

impl Observer for Notes {
    fn observe(&self, event: &Event<'_>) {
        let note = match event {
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
        self.0.lock().expect("notes").push(note);
    }
}

impl Notes {
    /// What was told since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().expect("notes"))
    }
}

/// A limiter whose store never answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Broken;

impl<Key: ?Sized> Limiter<Key> for Broken {
    type Future = Ready<Result<Outcome, Error>>;

    fn acquire(&self, _key: &Key, _ask: AcquireOptions) -> Acquisition<Self::Future> {
        Acquisition::Pending(ready(Err(Error::unavailable("there is no store"))))
    }
}

/// Decides as another limiter does, but so many polls later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slowly<L>(pub(crate) L, pub(crate) usize);

impl<Key: ?Sized, L: Limiter<Key>> Limiter<Key> for Slowly<L> {
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>>;

    fn acquire(&self, key: &Key, ask: AcquireOptions) -> Acquisition<Self::Future> {
        let (acquire, polls) = (self.0.acquire(key, ask), self.1);
        Acquisition::Pending(Box::pin(async move {
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
            match acquire {
                Acquisition::Ready(result) => result,
                Acquisition::Pending(future) => future.await,
            }
        }))
    }
}
