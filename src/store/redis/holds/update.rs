use std::sync::Arc;

use super::registry::HoldRegistry;
use super::session::{Session, Snapshot};

/// An update of a session, from its queueing to its reply. An update that is dropped before [`finish`](Self::finish)
/// has failed, and the registry sends another one.
pub(crate) struct SessionUpdate {
    pub(crate) session: Arc<Session>,
    /// The sums, taken when the update is sent. `None` if another update of the same call carries them.
    snapshot: Option<Snapshot>,
    registry: Arc<HoldRegistry>,
}

impl SessionUpdate {
    pub(super) fn new(session: Arc<Session>, registry: Arc<HoldRegistry>) -> Self {
        session.start_update();
        Self { session, snapshot: None, registry }
    }

    /// Takes all settlements until now, if this is the first update of the session in its call.
    ///
    /// Settlements that arrive while the update is queued thus travel with it.
    pub(crate) fn load(&mut self, is_first: bool) {
        self.snapshot = if is_first { self.session.snapshot() } else { None };
    }

    /// The session's id, so that a batch can find several updates of one session.
    pub(crate) fn session_id(&self) -> u64 {
        self.session.id
    }

    /// Returns the numbers to send, or `None` if this update sends nothing.
    pub(crate) fn encode(&self) -> Option<[f64; 5]> {
        self.snapshot.map(|snapshot| snapshot.encode(self.session.id))
    }

    /// Records the reply: whether the server has an entry for the session, and which part of the costs in flight it
    /// does not count.
    pub(crate) fn finish(mut self, is_known: bool, uncounted: u64) {
        if let Some(snapshot) = self.snapshot.take() {
            self.registry.emit_uncounted(if is_known {
                self.session.acknowledge(&snapshot, uncounted)
            } else {
                self.session.update_missed(&snapshot, self.registry.expiry)
            });
            self.registry.track(&self.session);
        }
    }
}

impl Drop for SessionUpdate {
    fn drop(&mut self) {
        let has_failed = self.snapshot.take().is_some();
        self.session.end_update(has_failed, self.registry.tick(), self.registry.expiry);
    }
}
