use std::sync::Arc;

use super::registry::HoldRegistry;
use super::session::{Session, SessionSnapshot, SessionTarget, UpdateEnd};
use crate::store::redis::script::Update;

/// An update of a session, from its queueing to its reply. An update that is dropped before [`finish`](Self::finish)
/// has failed, and the registry sends another one.
pub(crate) struct SessionUpdate {
    pub(crate) session: Arc<Session>,
    /// The limit by which the update is made.
    pub(crate) target: Arc<SessionTarget>,
    /// The sums, taken when the update is sent. `None` if another update of the same call carries them.
    snapshot: Option<SessionSnapshot>,
    registry: Arc<HoldRegistry>,
    end: UpdateEnd,
    /// Counts the updates of a renewal task that have not ended.
    _in_flight: Option<Arc<()>>,
}

impl SessionUpdate {
    pub(super) fn new(session: Arc<Session>, registry: Arc<HoldRegistry>, in_flight: Option<Arc<()>>) -> Self {
        session.start_update();
        let target = session.target();
        Self { session, target, snapshot: None, registry, end: UpdateEnd::NotSent, _in_flight: in_flight }
    }

    /// Takes all settlements until now, if this is the first update of the session in its call.
    ///
    /// Settlements that arrive while the update is queued thus travel with it.
    pub(crate) fn load(&mut self, is_first: bool) {
        self.snapshot = if is_first { self.session.snapshot() } else { None };
        // From here on the server may receive the update.
        self.end = UpdateEnd::Lost;
    }

    /// Returns the numbers to send, or `None` if this update sends nothing.
    pub(crate) fn encode(&self) -> Option<Update<f64>> {
        self.snapshot.as_ref().map(SessionSnapshot::encode)
    }

    /// The server has replied that it has run nothing of the call.
    pub(crate) fn reject(&self) {
        if let Some(snapshot) = &self.snapshot {
            self.session.update_rejected(snapshot);
        }
    }

    /// Records the reply: whether the server has an entry for the session, and which part of the costs in flight it
    /// does not count.
    pub(crate) fn finish(mut self, is_known: bool, uncounted: u64) {
        self.end = UpdateEnd::Confirmed;
        if let Some(snapshot) = self.snapshot.take() {
            self.registry.emit_uncounted(if is_known {
                self.session.acknowledge(&snapshot, uncounted)
            } else {
                self.session.update_missed(&snapshot, self.registry.expiry)
            });
        }
    }
}

impl Drop for SessionUpdate {
    fn drop(&mut self) {
        self.session.end_update(self.end, self.registry.tick(), self.registry.expiry);
        self.registry.track(&self.session);
    }
}
