use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::state::{SessionDeadline, SessionState, UPDATE_PATIENCE};
use crate::store::redis::random_id::random_id;
use crate::store::redis::script::{EntryTarget, to_f64};

/// The holds of one limiter on one key. The module documentation describes the protocol.
pub(crate) struct Session {
    /// The first id.
    pub(crate) id: u64,
    /// The key in Redis. It names the limit and the kind of its algorithm.
    pub(crate) key: Arc<[u8]>,
    /// The algorithm's parameters, if it is chosen by the key: keys with different algorithms have different sessions.
    pub(super) params: Vec<u64>,
    /// The costs are held until their requests end, and never charged.
    pub(crate) is_in_flight: bool,
    state: Mutex<SessionState>,
}

impl Session {
    pub(super) fn new((key, params): (Arc<[u8]>, Vec<u64>), is_in_flight: bool, target: Arc<EntryTarget>) -> Self {
        let id = random_id();
        Self { id, key, params, is_in_flight, state: Mutex::new(SessionState::new(id, target)) }
    }

    /// The limit of the latest hold.
    pub(crate) fn target(&self) -> Arc<EntryTarget> {
        Arc::clone(&self.state().target)
    }

    /// Sets the limit of a hold that joins, unless a hold under later limits has joined before.
    pub(super) fn join_target(&self, generation: u64, target: impl FnOnce() -> Arc<EntryTarget>) {
        let mut state = self.state();
        if state.target.limits.generation < generation {
            state.target = target();
        }
    }

    /// Adds a pending hold, unless the session accepts none.
    pub(super) fn join(&self, expiry: Duration) -> bool {
        let mut state = self.state();
        // The margin of a tenth covers the time until the hold reaches the server.
        let is_open = !state.phase.is_closed && !state.must_rename && state.renewed_at.elapsed() < expiry * 9 / 10;
        state.pending += usize::from(is_open);
        is_open
    }

    /// The call that creates the session has ended. Returns whether this is the first end.
    pub(super) fn end_creation(&self) -> bool {
        !std::mem::replace(&mut self.state().is_created, true)
    }

    /// Returns the id as a hold sends it: negative if the hold creates the session on the server.
    pub(super) fn signed_id(&self) -> f64 {
        let state = self.state();
        let id = to_f64(state.server_id);
        if state.phase.is_granted { id } else { -id }
    }

    /// The server granted a pending hold. Returns the time at which the hold ends at the latest, if there is one.
    pub(super) fn hold_granted(
        &self,
        cost: u64,
        sent_at: Instant,
        max_duration: Option<Duration>,
    ) -> Option<SessionDeadline> {
        let mut state = self.state();
        state.pending -= 1;
        state.guards += 1;
        state.held = state.held.saturating_add(cost);
        state.phase.is_granted = true;
        state.renewed_at = state.renewed_at.max(sent_at);
        let at = sent_at.checked_add(max_duration?)?;
        state.last_deadline += 1;
        let deadline = SessionDeadline { at, id: state.last_deadline };
        state.deadlines.insert(deadline, cost);
        Some(deadline)
    }

    /// The server did not grant a pending hold, or not on this limit.
    pub(super) fn hold_not_granted(&self) {
        self.state().pending -= 1;
    }

    /// The reply to a pending hold is missing, so the server may have granted it, or may still grant it.
    pub(super) fn hold_unknown(&self) {
        let mut state = self.state();
        state.pending -= 1;
        state.must_rename = true;
    }

    /// The server does not know the session any more.
    ///
    /// Requests in flight have not ended by that: the next update holds their costs again, if there is room.
    pub(super) fn lose(&self) {
        let mut state = self.state();
        if self.is_in_flight && state.guards > 0 {
            state.must_rename = true;
        } else {
            state.lose();
        }
    }

    /// Settles one guard, unless its deadline has passed.
    pub(crate) fn settle(&self, held: u64, actual: u64, deadline: Option<SessionDeadline>) {
        let mut state = self.state();
        if deadline.is_none_or(|deadline| state.deadlines.remove(&deadline).is_some()) {
            state.settle(held, if self.is_in_flight { 0 } else { actual });
        }
    }

    /// Returns the work that is due now. The caller removes the session from the schedule, and adds it again for the next
    /// visit.
    pub(super) fn visit(&self, now: Instant, expiry: Duration) -> (Option<SessionDue>, Option<Instant>) {
        let mut state = self.state();
        while let Some(overdue) = state.deadlines.first_entry().filter(|first| first.key().at <= now) {
            let held = overdue.remove();
            state.settle(held, 0);
        }
        // An update in a runtime that is parked does not end. The reply to any other one may bring a surcharge.
        let has_update = state.updates > 0 && now < state.updating_since + expiry * 2;
        // The server has settled an idle session on expiry by then.
        let has_ended = !has_update && (state.phase.is_over || now > state.renewed_at + expiry * 2);
        state.visited_at = None;
        if state.detached_surcharge == 0 && state.is_idle() && has_ended {
            return (None, None);
        }
        let next = state.next_visit(now, expiry);
        let (due, next) = if next > now {
            (None, next)
        } else if state.detached_surcharge == 0 {
            (Some(SessionDue::Update), now + expiry / UPDATE_PATIENCE)
        } else {
            let surcharge = std::mem::take(&mut state.detached_surcharge);
            (Some(SessionDue::Charge(surcharge)), state.next_visit(now, expiry))
        };
        state.visited_at = Some(next);
        (due, Some(next))
    }

    /// Moves the next visit to the time of the next work, unless it is earlier. Returns the previous time and the new one,
    /// or `None` if nothing changes. `adds` is whether a session that is not in the schedule is added.
    pub(super) fn plan_visit(&self, expiry: Duration, adds: bool) -> Option<(Option<Instant>, Instant)> {
        let mut state = self.state();
        if state.visited_at.is_none() && !adds {
            return None;
        }
        let next = state.next_visit(Instant::now(), expiry);
        if state.visited_at.is_some_and(|planned| planned <= next) {
            return None;
        }
        Some((state.visited_at.replace(next), next))
    }

    /// A surcharge was not sent. The session charges it later, but not for longer than the expiry: a dropped limiter must
    /// not wait for a server that is gone.
    pub(super) fn charge_not_sent(&self, surcharge: u64, tick: Duration, expiry: Duration) {
        let mut state = self.state();
        if state.detached_at.elapsed() < expiry {
            state.detached_surcharge = state.detached_surcharge.saturating_add(surcharge);
            state.retry_at = Instant::now() + tick;
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The work that is due for a session.
pub(super) enum SessionDue {
    Update,
    /// A surcharge, to be charged without the session.
    Charge(u64),
}
