//! An observer of the near-limit signal.

use std::sync::{Arc, Mutex};

use tower_ratelimit::observe::{Event, Observer};

/// The names of the limits in the events `NearLimit`.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<String>>>);

impl Observer for Events {
    fn observe(&self, event: &Event<'_>) {
        if let Event::NearLimit { limit, .. } = event {
            self.0.lock().expect("no panic").push((*limit).to_owned());
        }
    }
}

impl Events {
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}
