//! A request that is not with the inner service yet.

use std::sync::Arc;
use std::time::Duration;

use super::config::{Seat, Settings};
use crate::decision::{AcquireOptions, Decision};
use crate::limiter::{Acquisition, Held, Limiter};
use crate::observe::OutcomeGuard;
use crate::runtime::Instant;

/// A request that waits for a decision, or to ask for another one.
pub(crate) struct Waiting<Request, Key, K, A, R, T> {
    pub(crate) request: Request,
    pub(crate) key: Key,
    ask: AcquireOptions,
    began: Instant,
    pub(crate) settings: Arc<Settings<K, A, R, T>>,
    /// Among those who wait. Dropped before the watch: who waits no longer is told first, and then what came of it.
    seat: Option<Seat>,
    pub(crate) watch: OutcomeGuard,
}

impl<Request, Key, K, A, R, T> Waiting<Request, Key, K, A, R, T> {
    pub(crate) fn new(request: Request, key: Key, ask: AcquireOptions, settings: Arc<Settings<K, A, R, T>>) -> Self {
        let watch = OutcomeGuard::new(&settings.observers);
        Self { request, key, ask, began: Instant::now(), settings, seat: None, watch }
    }

    pub(crate) fn acquire(&self) -> Acquisition<A::Future>
    where
        A: Limiter<Key>,
    {
        let mut ask = self.ask;
        ask.max_delay = self.patience();
        self.settings.limiter.acquire(&self.key, ask)
    }

    /// For how long it may still wait.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.ask.max_delay.map(|longest| longest.saturating_sub(self.began.elapsed()))
    }

    /// Gives up its place among those who wait, if it has one.
    pub(crate) fn stand_up(&mut self) {
        self.seat = None;
    }

    /// Takes a permit to wait for a scheduled start that was charged.
    pub(crate) fn wait_for_start(&mut self) {
        if self.seat.is_none() {
            self.seat = Some(self.settings.wait.seat_of_charged(&self.settings.observers));
        }
        self.watch.waiting();
    }

    /// Takes a place among those who wait, unless it has one. False if there is none.
    pub(crate) fn sit_down(&mut self) -> bool {
        if self.seat.is_none() {
            self.seat = self.settings.wait.seat(&self.settings.observers);
        }
        self.watch.waiting();
        self.seat.is_some()
    }
}

/// An allowed request that is not forwarded yet, with its decision and what is held for it.
pub(crate) struct Turn<Request, Key, K, A, R, T> {
    pub(crate) waiting: Waiting<Request, Key, K, A, R, T>,
    pub(crate) decision: Decision,
    /// Dropped without being forwarded, a request costs nothing that is held for it.
    pub(crate) held: NotForwarded,
}

/// Held for a request that is not forwarded yet: released when dropped.
pub(crate) struct NotForwarded(Option<Held>);

impl NotForwarded {
    pub(crate) fn new(held: Option<Held>) -> Self {
        Self(held)
    }

    /// The request is forwarded.
    pub(crate) fn take(mut self) -> Option<Held> {
        self.0.take()
    }
}

impl Drop for NotForwarded {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            held.release().detach();
        }
    }
}
