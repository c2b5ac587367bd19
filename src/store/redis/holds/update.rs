use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::registry::HoldRegistry;
use super::session::Session;
use super::state::{Phase, Sums, UPDATE_PATIENCE};
use crate::store::redis::script::{EntryTarget, to_f64};

/// An update of a session, from its queueing to its reply. An update that is dropped before [`finish`](Self::finish)
/// has failed, and the registry sends another one.
pub(crate) struct SessionUpdate {
    pub(crate) session: Arc<Session>,
    /// The limit by which the update is made.
    pub(crate) target: Arc<EntryTarget>,
    /// The sums, taken when the update is sent. `None` if another update of the same call carries them.
    snapshot: Option<SessionSnapshot>,
    registry: Arc<HoldRegistry>,
    end: UpdateEnd,
    /// Counts the updates of a renewal task that have not ended.
    _in_flight: Option<Arc<()>>,
}

impl SessionUpdate {
    /// An update that has a clone of `in_flight` until it ends. If it cannot be queued, the session is still in the schedule.
    pub(crate) fn new(session: &Arc<Session>, registry: &Arc<HoldRegistry>, in_flight: Option<&Arc<()>>) -> Self {
        let mut state = session.state();
        state.updates += 1;
        state.updating_since = Instant::now();
        Self {
            session: Arc::clone(session),
            target: Arc::clone(&state.target),
            snapshot: None,
            registry: Arc::clone(registry),
            end: UpdateEnd::NotSent,
            _in_flight: in_flight.cloned(),
        }
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
    pub(crate) fn encode(&self) -> Option<[f64; 5]> {
        let SessionSnapshot { sums: Sums { released, charged, .. }, id, ends, renames, held, .. } = self.snapshot?;
        let ends = if ends { 1 } else { 2 * u64::from(renames) };
        Some([id, released, charged, ends, held].map(to_f64))
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

/// The sums that one update carries.
#[derive(Clone, Copy)]
struct SessionSnapshot {
    sums: Sums,
    surcharge_before: u64,
    /// The number of the update.
    number: u64,
    held: u64,
    /// The id by which the server knows the session before the update.
    id: u64,
    ends: bool,
    renames: bool,
    sent_at: Instant,
}

/// How an update ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UpdateEnd {
    Confirmed,
    /// It was sent, and has no reply.
    Lost,
    NotSent,
}

impl Session {
    /// Ends an update in flight. The next update waits: after a lost one twice as long each time, up to a sixth of the
    /// expiry: several fit between the first one and the expiry.
    fn end_update(&self, end: UpdateEnd, tick: Duration, expiry: Duration) {
        let mut state = self.state();
        state.updates -= 1;
        if end == UpdateEnd::Lost {
            state.failures = state.failures.saturating_add(1);
        }
        if state.failures > 0 || end == UpdateEnd::NotSent {
            let pause = tick * 2_u32.saturating_pow(state.failures.clamp(1, 8) - 1);
            state.retry_at = Instant::now() + pause.min(expiry / UPDATE_PATIENCE);
        }
    }

    /// Returns the sums for an update that is about to be sent, or `None` if the session is over.
    fn snapshot(&self) -> Option<SessionSnapshot> {
        let mut state = self.state();
        if state.phase.is_over {
            return None;
        }
        let surcharge_before = state.sent_surcharge;
        state.sent_surcharge = state.settled.surcharge;
        state.sent_updates += 1;
        // The entry must outlive an unconfirmed surcharge: without the entry the server cannot know whether it applied
        // it.
        let is_confirmed = state.acknowledged.surcharge == state.settled.surcharge;
        let ends = state.guards == 0 && state.pending == 0 && is_confirmed;
        if ends {
            state.phase.is_closed = true;
        }
        let renames = state.must_rename && state.pending == 0;
        let (sums, number, held, id) = (state.settled, state.sent_updates, state.held, state.server_id);
        Some(SessionSnapshot { sums, surcharge_before, number, held, id, ends, renames, sent_at: Instant::now() })
    }

    /// The server has rejected an update, so it has not applied the surcharges that only this update carried.
    fn update_rejected(&self, snapshot: &SessionSnapshot) {
        let mut state = self.state();
        if state.sent_updates == snapshot.number {
            state.sent_surcharge = snapshot.surcharge_before;
        }
    }

    /// The server has applied an update, and does not count the part `uncounted` of the held costs. Returns by how much
    /// that part has grown.
    fn acknowledge(&self, snapshot: &SessionSnapshot, uncounted: u64) -> u64 {
        let mut state = self.state();
        let newly_uncounted = uncounted.saturating_sub(state.uncounted);
        state.uncounted = uncounted;
        let (acknowledged, sums) = (&mut state.acknowledged, &snapshot.sums);
        // Replies to updates of several runtimes may come in any order.
        acknowledged.released = acknowledged.released.max(sums.released);
        acknowledged.charged = acknowledged.charged.max(sums.charged);
        acknowledged.surcharge = acknowledged.surcharge.max(sums.surcharge);
        state.renewed_at = state.renewed_at.max(snapshot.sent_at);
        state.failures = 0;
        // A session that the server does not count whole may have no entry. The next update tries again.
        if snapshot.renames && snapshot.id == state.server_id && uncounted == 0 {
            (state.server_id, state.must_rename) = (snapshot.id + 1, false);
        }
        if snapshot.ends {
            state.phase = Phase::OVER;
        }
        newly_uncounted
    }

    /// The server has no entry for an update: it had settled the session on expiry.
    ///
    /// The surcharges that only this update carried were not applied, so they are charged without the session.
    /// Surcharges that an earlier, unanswered update carried may have been applied, so they are not charged again.
    ///
    /// Returns by how much the held cost that the server does not count has grown: requests in flight have not ended.
    fn update_missed(&self, snapshot: &SessionSnapshot, expiry: Duration) -> u64 {
        let mut state = self.state();
        if snapshot.id != state.server_id {
            // Another update has renamed the session.
            return 0;
        }
        if self.is_in_flight && state.guards > 0 {
            state.must_rename = true;
            state.retry_at = Instant::now() + expiry / 3;
            return snapshot.held.saturating_sub(std::mem::replace(&mut state.uncounted, snapshot.held));
        }
        if !state.phase.is_granted && state.created_at.elapsed() < expiry {
            // The hold that creates the session may still arrive. A later update must then end what it holds.
            state.retry_at = Instant::now() + expiry / 10;
            return 0;
        }
        let unsent_before = snapshot.sums.surcharge - snapshot.surcharge_before;
        state.detach(unsent_before);
        state.lose();
        0
    }
}
