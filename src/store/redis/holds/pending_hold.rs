use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use super::registry::HoldRegistry;
use super::session::Session;

/// The sessions in which an operation holds, one per limit that holds, from its sending to its reply.
///
/// If the guard is dropped before one of its methods is called, the reply is missing, and the hold may have been
/// granted.
pub(crate) struct PendingHold {
    sessions: Vec<Arc<Session>>,
    sent_at: Instant,
    registry: Arc<HoldRegistry>,
}

impl PendingHold {
    pub(super) fn new(registry: Arc<HoldRegistry>) -> Self {
        Self { sessions: Vec::new(), sent_at: Instant::now(), registry }
    }

    /// Adds the next limit's session, which the hold has joined.
    pub(super) fn push(&mut self, session: Arc<Session>) {
        self.sessions.push(session);
    }

    /// Returns for each of `limits` limits the id of its session, 0 for a limit that charges.
    pub(crate) fn ids(&self, limits: usize) -> Vec<f64> {
        let mut ids = vec![0.0; limits];
        for session in &self.sessions {
            ids[session.limit] = session.signed_id();
        }
        ids
    }

    /// The hold was granted, on the limits in `held_on`. With `holds_all` the caller has asked for a hold.
    pub(crate) fn granted(mut self, holds_all: bool, cost: u64, held_on: &[bool]) -> Grant {
        let mut held = Vec::with_capacity(self.sessions.len());
        for session in self.sessions.drain(..) {
            let is_held = held_on.get(session.limit) == Some(&true);
            if is_held && cost > 0 {
                session.hold_granted(cost, self.sent_at);
                self.registry.open(&session);
            } else {
                session.hold_not_granted();
            }
            if is_held {
                held.push(session);
            }
        }
        Grant { holds_all, cost, sessions: held, registry: Arc::clone(&self.registry) }
    }

    /// The hold was denied, or not sent.
    pub(crate) fn denied(mut self) {
        for session in self.sessions.drain(..) {
            session.hold_not_granted();
        }
    }

    /// The hold was not granted, because the server does not know the sessions in `unknown`.
    pub(crate) fn expired(mut self, unknown: &[bool]) {
        for session in self.sessions.drain(..) {
            session.hold_not_granted();
            if unknown.get(session.limit) == Some(&true) {
                session.lose();
            }
        }
    }
}

impl Drop for PendingHold {
    fn drop(&mut self) {
        for session in self.sessions.drain(..) {
            session.hold_unknown();
            self.registry.track(&session);
        }
    }
}

/// A granted hold on its way to the caller. Dropped before the caller receives it, it releases the cost.
pub(crate) struct Grant {
    /// Whether the caller has asked for a hold, and not only for the hold of requests in flight.
    pub(crate) holds_all: bool,
    pub(crate) cost: u64,
    /// One session for each limit on which the cost is held.
    sessions: Vec<Arc<Session>>,
    registry: Arc<HoldRegistry>,
}

impl Grant {
    pub(crate) fn registry(&self) -> &Arc<HoldRegistry> {
        &self.registry
    }

    /// Returns the sessions, which the caller must settle.
    pub(crate) fn into_sessions(mut self) -> Vec<Arc<Session>> {
        std::mem::take(&mut self.sessions)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let sessions = std::mem::take(&mut self.sessions);
        if self.cost > 0 && !sessions.is_empty() {
            for session in &sessions {
                session.settle(self.cost, 0);
            }
            self.registry.update(&sessions);
        }
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant").field("cost", &self.cost).finish_non_exhaustive()
    }
}
