//! A request that is not with the inner service yet.

use std::sync::Arc;
use std::time::Duration;

use crate::decision::{Ask, Decision};
use crate::limiter::{Acquire, Limiter, Receipt};
use crate::observe::{Event, Watch};
use crate::settings::{Seat, Settings};
use crate::timer::Moment;

/// A request that waits for a decision, or to ask for another one.
pub(crate) struct Waiting<Request, Key, K, A, R, T> {
    pub(crate) request: Request,
    pub(crate) key: Key,
    ask: Ask,
    began: Moment,
    pub(crate) settings: Arc<Settings<K, A, R, T>>,
    /// Among those who wait. Dropped before the watch: who waits no longer is told first, and then what came of it.
    seat: Option<Seat>,
    pub(crate) watch: Watch,
}

impl<Request, Key, K, A, R, T> Waiting<Request, Key, K, A, R, T> {
    pub(crate) fn new(request: Request, key: Key, ask: Ask, settings: Arc<Settings<K, A, R, T>>) -> Self {
        let watch = Watch::new(&settings.observers);
        Self { request, key, ask, began: Moment::now(), settings, seat: None, watch }
    }

    pub(crate) fn acquire(&self) -> Acquire<A::Future>
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

    /// Takes a place among those who wait, unless it has one. False if there is none.
    pub(crate) fn sit_down(&mut self) -> bool {
        if self.seat.is_none() {
            self.seat = self.settings.wait.seat(&self.settings.observers);
        }
        self.watch.waiting();
        self.seat.is_some()
    }
}

/// A request that was let through, and has not been forwarded yet. Dropping it gives its charge back.
pub(crate) struct Turn<Request, Key, K, A: Limiter<Key>, R, T>(Option<Let<Request, Key, K, A, R, T>>);

/// What was let through, on what grounds, and what it was charged.
pub(crate) struct Let<Request, Key, K, A, R, T> {
    pub(crate) waiting: Waiting<Request, Key, K, A, R, T>,
    pub(crate) decision: Decision,
    pub(crate) receipt: Option<Receipt>,
}

impl<Request, Key, K, A: Limiter<Key>, R, T> Turn<Request, Key, K, A, R, T> {
    pub(crate) fn new(
        waiting: Waiting<Request, Key, K, A, R, T>,
        decision: Decision,
        receipt: Option<Receipt>,
    ) -> Self {
        Self(Some(Let { waiting, decision, receipt }))
    }

    /// See [`Waiting::sit_down`].
    pub(crate) fn sit_down(&mut self) -> bool {
        self.0.as_mut().is_some_and(|turn| turn.waiting.sit_down())
    }

    /// Takes it out to be forwarded, as charged as it is. Its place among those who wait is free.
    pub(crate) fn take(mut self) -> Let<Request, Key, K, A, R, T> {
        let mut taken = self.0.take().expect("a turn is taken once");
        taken.waiting.stand_up();
        taken
    }

    /// Takes it out to be refused after all, and gives its charge back.
    pub(crate) fn renounce(mut self) -> (Waiting<Request, Key, K, A, R, T>, Decision) {
        let Let { waiting, decision, receipt } = self.0.take().expect("a turn is taken once");
        give_back(&waiting, receipt);
        (waiting, decision)
    }
}

impl<Request, Key, K, A: Limiter<Key>, R, T> Drop for Turn<Request, Key, K, A, R, T> {
    fn drop(&mut self) {
        if let Some(Let { waiting, receipt, .. }) = self.0.take() {
            give_back(&waiting, receipt);
        }
    }
}

fn give_back<Request, Key, K, A: Limiter<Key>, R, T>(
    waiting: &Waiting<Request, Key, K, A, R, T>,
    receipt: Option<Receipt>,
) {
    if let Some(receipt) = receipt {
        let charged = receipt.cost();
        waiting.settings.observers.tell(|| Event::Settled { charged, actual: 0 });
        waiting.settings.limiter.give_back(&waiting.key, receipt).detach();
    }
}
