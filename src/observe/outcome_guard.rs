use std::time::Duration;

use super::event::{Event, Stage};
use super::observers::Observers;
use crate::runtime::Instant;

/// Sees to it that of a request that is not decided at once exactly one end is told: if no other, that it was abandoned.
pub(crate) struct OutcomeGuard {
    observers: Observers,
    stage: Stage,
    /// Since when the decision has been on its way.
    asked_at: Option<Instant>,
    took: Option<Duration>,
}

impl OutcomeGuard {
    pub(crate) fn new(observers: &Observers) -> Self {
        Self { observers: observers.clone(), stage: Stage::Deciding, asked_at: None, took: None }
    }

    /// A decision is on its way.
    pub(crate) fn deciding(&mut self) {
        if self.observers.are_there() {
            self.stage = Stage::Deciding;
            self.asked_at = Some(Instant::now());
        }
    }

    /// The decision is there.
    pub(crate) fn decided(&mut self) {
        if let Some(asked_at) = self.asked_at.take() {
            self.took = Some(self.took.unwrap_or_default() + asked_at.elapsed());
        }
    }

    /// The request waits, for its turn or for the service.
    pub(crate) fn waiting(&mut self) {
        self.stage = Stage::Waiting;
    }

    /// Tells how the request has ended, with the time that deciding took.
    pub(crate) fn end<'a>(mut self, event: impl FnOnce(Option<Duration>) -> Event<'a>) {
        let took = self.took;
        std::mem::take(&mut self.observers).tell(|| event(took));
    }
}

impl Drop for OutcomeGuard {
    fn drop(&mut self) {
        let stage = self.stage;
        self.observers.tell(|| Event::Abandoned { stage });
    }
}
