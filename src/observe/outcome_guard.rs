use std::time::Duration;

use super::event::{Event, Stage, WaitEnd};
use super::observers::Observers;
use crate::runtime::Instant;

/// Drop guard: emits exactly one terminal event of a deferred request, `Abandoned` unless `finish` is called. Before it, the
/// guard emits the end of the wait of a request that waits.
pub(crate) struct OutcomeGuard {
    observers: Observers,
    stage: Stage,
    /// When the pending decision was requested.
    requested_at: Option<Instant>,
    /// The time that the finished decisions of the request took.
    elapsed: Option<Duration>,
    waits_since: Option<Instant>,
}

impl OutcomeGuard {
    pub(crate) fn new(observers: &Observers) -> Self {
        let (observers, stage) = (observers.clone(), Stage::Deciding);
        Self { observers, stage, requested_at: None, elapsed: None, waits_since: None }
    }

    /// The layer polls a pending decision from now on.
    pub(crate) fn start_decision(&mut self) {
        if self.observers.is_some() {
            self.stage = Stage::Deciding;
            self.requested_at = Some(Instant::now());
        }
    }

    /// The pending decision is ready.
    pub(crate) fn finish_decision(&mut self) {
        if let Some(requested_at) = self.requested_at.take() {
            self.elapsed = Some(self.elapsed.unwrap_or_default() + requested_at.elapsed());
        }
    }

    /// The request waits for its scheduled start, for a retry or for the inner service from now on.
    pub(crate) fn start_wait(&mut self) {
        self.observers.emit(|| Event::WaitStarted);
        (self.stage, self.waits_since) = (Stage::Waiting, Some(Instant::now()));
    }

    /// Ends the wait. Returns how long it lasted, if the request has waited.
    pub(crate) fn end_wait(&mut self, end: WaitEnd) -> Option<Duration> {
        let waited = self.waits_since.take()?.elapsed();
        self.observers.emit(|| Event::WaitEnded { waited, end });
        Some(waited)
    }

    /// Emits the terminal event, which receives the time that the decisions took.
    pub(crate) fn finish<'a>(mut self, event: impl FnOnce(Option<Duration>) -> Event<'a>) {
        let elapsed = self.elapsed;
        // Without observers, `drop` emits nothing.
        std::mem::take(&mut self.observers).emit(|| event(elapsed));
    }
}

impl Drop for OutcomeGuard {
    fn drop(&mut self) {
        self.end_wait(WaitEnd::Left);
        let stage = self.stage;
        self.observers.emit(|| Event::Abandoned { stage });
    }
}
