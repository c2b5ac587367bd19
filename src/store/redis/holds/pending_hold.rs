use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::registry::HoldRegistry;
use super::session::Session;
use super::state::SessionDeadline;
use crate::decision::Costs;
use crate::store::inner::LimitCost;
use crate::store::redis::script::LimitInfo;

/// The sessions in which an operation holds, one for each limit that holds a cost, from its sending to its reply.
///
/// If the guard is dropped before one of its methods is called, the reply is missing, and the hold may have been
/// granted.
pub(crate) struct PendingHold {
    /// With the time at which a hold ends at the latest.
    pub(super) sessions: Vec<Option<(Arc<Session>, Option<Duration>)>>,
    sent_at: Instant,
    registry: Arc<HoldRegistry>,
}

impl PendingHold {
    pub(super) fn new(registry: Arc<HoldRegistry>) -> Self {
        Self { sessions: Vec::new(), sent_at: Instant::now(), registry }
    }

    pub(crate) fn ids(&self) -> Vec<f64> {
        self.sessions.iter().map(|session| session.as_ref().map_or(0.0, |(session, _)| session.signed_id())).collect()
    }

    /// The hold was granted. `held` has the cost for each limit that holds one, `charges_before` what the request was
    /// charged before, if it repeats an id.
    pub(crate) fn granted(mut self, held: &[Option<u64>], limits: &[LimitInfo], charges_before: &[u64]) -> Grant {
        let mut holds = Vec::with_capacity(held.len());
        let charges_before = charges_before.iter().copied().chain(std::iter::repeat(0));
        // Drained, so that `drop` finds no session without a reply.
        for (((session, held), limit), charge_before) in
            self.sessions.drain(..).zip(held).zip(limits).zip(charges_before)
        {
            let Some((session, max_duration)) = session else { continue };
            let deadline = if let Some(held) = held.filter(|held| *held > 0) {
                let deadline = session.hold_granted(held, self.sent_at, max_duration);
                self.registry.open(&session);
                deadline
            } else {
                session.hold_not_granted();
                self.registry.revisit(&session);
                None
            };
            let (kind, is_fixed) = (limit.facts.cost, !session.is_in_flight && limit.facts.cost.is_fixed());
            // A cost of 0 needs no settlement, unless the actual cost differs.
            let held = held.filter(|held| *held > 0 || !is_fixed && !session.is_in_flight);
            holds.extend(held.map(|held| GrantedHold { session, held, charge_before, kind, is_fixed, deadline }));
        }
        Grant { holds, registry: Arc::clone(&self.registry) }
    }

    /// The hold was denied, or not sent.
    pub(crate) fn denied(self) {
        self.expired(&[]);
    }

    /// The hold was not granted, because the server does not know the sessions in `unknown`.
    pub(crate) fn expired(mut self, unknown: &[bool]) {
        for (index, session) in self.sessions.drain(..).enumerate() {
            let Some((session, _)) = session else { continue };
            session.hold_not_granted();
            if unknown.get(index) == Some(&true) {
                session.lose();
            }
            self.registry.revisit(&session);
        }
    }
}

impl Drop for PendingHold {
    fn drop(&mut self) {
        for (session, _) in self.sessions.drain(..).flatten() {
            session.hold_unknown();
            self.registry.track(&session);
        }
    }
}

/// A granted hold on its way to the caller. Dropped before the caller receives it, it releases the cost.
pub(crate) struct Grant {
    holds: Vec<GrantedHold>,
    pub(crate) registry: Arc<HoldRegistry>,
}

/// The part of a granted hold on one limit.
pub(crate) struct GrantedHold {
    pub(crate) session: Arc<Session>,
    pub(crate) held: u64,
    /// What the request was charged before. The settlement charges only what exceeds it.
    charge_before: u64,
    kind: LimitCost,
    /// The cost is the limit's fixed one, so it is settled apart from the request's.
    pub(crate) is_fixed: bool,
    /// The time at which the hold ends at the latest, if there is one.
    deadline: Option<SessionDeadline>,
}

impl Grant {
    /// Returns the holds, which the caller must settle.
    pub(crate) fn into_holds(mut self) -> Vec<GrantedHold> {
        std::mem::take(&mut self.holds)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        for hold in self.holds.iter().filter(|hold| hold.held > 0) {
            hold.settle(0);
            self.registry.update(&hold.session);
        }
    }
}

impl GrantedHold {
    pub(crate) fn settle(&self, actual: u64) {
        self.session.settle(self.held, actual, self.deadline);
    }

    /// Returns the actual cost on this limit.
    pub(crate) fn actual(&self, actual: &Costs) -> u64 {
        self.kind.actual_beyond(self.charge_before, actual, self.held)
    }
}
