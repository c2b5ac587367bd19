use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::decision::AcquireOptions;
use crate::store::inner::micros_floor;
use crate::store::redis::random_id::random_id;
use crate::store::redis::script::{
    DynLuaAlgorithm, EntryTarget, LimitSet, MAX_EXACT, Operation, OwnAlgorithm, Update, to_f64,
};

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

/// The time at which a hold ends at the latest, made unique by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionDeadline {
    at: Instant,
    id: u64,
}

/// The life of a session. What is true once stays true.
#[derive(Clone, Copy, Default)]
struct Phase {
    /// The server has granted a hold, so it has an entry for the session. Until a reply says so, only the call that creates
    /// the session knows it, and that call may still arrive.
    is_granted: bool,
    /// The session accepts no more holds.
    is_closed: bool,
    /// The server has no entry for the session any more: an update ended it, or the server has settled it on expiry.
    is_over: bool,
}

impl Phase {
    const OVER: Self = Self { is_granted: true, is_closed: true, is_over: true };
}

struct SessionState {
    /// The id by which the server knows the session.
    server_id: u64,
    target: Arc<SessionTarget>,
    /// Holds that were sent and not answered.
    pending: usize,
    /// Guards that have not settled.
    guards: usize,
    /// The sum of the guards' costs.
    held: u64,
    /// The part of it that the server does not count, because the session had expired.
    uncounted: u64,
    /// The costs that end at the latest at a time.
    deadlines: BTreeMap<SessionDeadline, u64>,
    last_deadline: u64,
    /// All settlements.
    settled: Sums,
    /// The settlements that the server has confirmed.
    acknowledged: Sums,
    /// The surcharges in any update that was sent: the server may have applied them.
    sent_surcharge: u64,
    /// The number of updates that were sent.
    sent_updates: u64,
    /// Surcharges that are charged without the session, because it is over, and since when there are some.
    detached_surcharge: u64,
    detached_at: Instant,
    /// Updates that were queued and have not ended, and when the last one was queued.
    updates: usize,
    updating_since: Instant,
    phase: Phase,
    /// The call that creates the session has ended.
    is_created: bool,
    /// The process and the server may not agree on what the session holds: the reply to a hold is missing, or the server
    /// does not know the session. It accepts no more holds until an update has renamed it.
    must_rename: bool,
    /// When the registry's schedule visits the session, if it contains the session.
    visited_at: Option<Instant>,
    created_at: Instant,
    /// When the last confirmed call was sent: the server's entry lasts at least one expiry from then.
    renewed_at: Instant,
    retry_at: Instant,
    failures: u32,
}

/// Sums over the life of a session.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    released: u64,
    charged: u64,
    /// The part of `charged` above the held costs.
    surcharge: u64,
}

/// The part of the expiry after which an update is sent again, if it has no end or has failed.
const UPDATE_PATIENCE: u32 = 6;

/// The sums that one update carries.
#[derive(Clone, Copy)]
pub(super) struct SessionSnapshot {
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

impl SessionSnapshot {
    pub(super) fn encode(&self) -> Update<f64> {
        let Sums { released, charged, .. } = self.sums;
        let ends = if self.ends { 1 } else { 2 * u64::from(self.renames) };
        Update { id: self.id, released, charged, ends, held: self.held }.map(to_f64)
    }
}

impl Session {
    pub(super) fn new((key, params): (Arc<[u8]>, Vec<u64>), is_in_flight: bool, target: Arc<SessionTarget>) -> Self {
        let (id, now) = (random_id(), Instant::now());
        let state = SessionState {
            server_id: id,
            target,
            pending: 0,
            guards: 0,
            held: 0,
            uncounted: 0,
            deadlines: BTreeMap::new(),
            last_deadline: 0,
            settled: Sums::default(),
            acknowledged: Sums::default(),
            sent_surcharge: 0,
            sent_updates: 0,
            detached_surcharge: 0,
            detached_at: now,
            updates: 0,
            updating_since: now,
            phase: Phase::default(),
            is_created: false,
            must_rename: false,
            visited_at: None,
            created_at: now,
            renewed_at: now,
            retry_at: now,
            failures: 0,
        };
        Self { id, key, params, is_in_flight, state: Mutex::new(state) }
    }

    /// The limit of the latest hold.
    pub(crate) fn target(&self) -> Arc<SessionTarget> {
        Arc::clone(&self.state().target)
    }

    /// Sets the limit of a hold that joins, unless a hold under later limits has joined before.
    pub(super) fn join_target(
        &self,
        generation: u64,
        target: impl FnOnce() -> Arc<SessionTarget>,
    ) -> Arc<SessionTarget> {
        let mut state = self.state();
        if state.target.limits.generation < generation {
            state.target = target();
        }
        Arc::clone(&state.target)
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

    /// Whether the session accepts no more holds.
    pub(super) fn is_closed(&self) -> bool {
        self.state().phase.is_closed
    }

    /// Adds an update in flight.
    pub(super) fn start_update(&self) {
        let mut state = self.state();
        state.updates += 1;
        state.updating_since = Instant::now();
    }

    /// Ends an update in flight. The next update waits: after a lost one twice as long each time, up to a sixth of the
    /// expiry: several fit between the first one and the expiry.
    pub(super) fn end_update(&self, end: UpdateEnd, tick: Duration, expiry: Duration) {
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
    pub(super) fn snapshot(&self) -> Option<SessionSnapshot> {
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
    pub(super) fn update_rejected(&self, snapshot: &SessionSnapshot) {
        let mut state = self.state();
        if state.sent_updates == snapshot.number {
            state.sent_surcharge = snapshot.surcharge_before;
        }
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

    /// The server has applied an update, and does not count the part `uncounted` of the held costs. Returns by how much
    /// that part has grown.
    pub(super) fn acknowledge(&self, snapshot: &SessionSnapshot, uncounted: u64) -> u64 {
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
    pub(super) fn update_missed(&self, snapshot: &SessionSnapshot, expiry: Duration) -> u64 {
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

    fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionState {
    /// Whether the session holds nothing.
    fn is_idle(&self) -> bool {
        self.guards == 0 && self.pending == 0
    }

    /// Returns when the next work is due, which may be now.
    fn next_visit(&self, now: Instant, expiry: Duration) -> Instant {
        let next = if self.detached_surcharge > 0 {
            self.retry_at
        } else if self.phase.is_over && self.is_idle() && self.updates == 0 {
            now
        } else if self.phase.is_over {
            // The ends of its guards and updates move the visit.
            now + expiry
        } else {
            let must_rename = self.must_rename && self.pending == 0 && self.uncounted == 0;
            let is_behind = self.is_idle() || self.settled != self.acknowledged || must_rename;
            let due = if is_behind { self.retry_at } else { self.retry_at.max(self.renewed_at + expiry / 3) };
            // An update in a runtime that is not driven does not end, so another one takes its place.
            if self.updates == 0 { due } else { due.max(self.updating_since + expiry / UPDATE_PATIENCE) }
        };
        self.deadlines.first_key_value().map_or(next, |(first, _)| next.min(first.at))
    }

    fn settle(&mut self, held: u64, actual: u64) {
        let surcharge = actual.saturating_sub(held);
        self.guards -= 1;
        self.held = self.held.saturating_sub(held);
        if self.phase.is_over {
            self.detach(surcharge);
            return;
        }
        let settled = &mut self.settled;
        settled.released = settled.released.saturating_add(held);
        settled.charged = settled.charged.saturating_add(actual);
        settled.surcharge = settled.surcharge.saturating_add(surcharge);
        // A new session starts before the sums leave the range in which doubles are exact.
        if self.settled.released.max(self.settled.charged) >= MAX_EXACT / 2 {
            self.phase.is_closed = true;
        }
        self.retry_at = Instant::now();
    }

    /// The server's entry is gone before the session ended it: surcharges that no update carried are charged without
    /// it.
    fn lose(&mut self) {
        if !self.phase.is_over {
            self.detach(self.settled.surcharge - self.sent_surcharge);
        }
        self.phase = Phase::OVER;
    }

    fn detach(&mut self, surcharge: u64) {
        if self.detached_surcharge == 0 {
            (self.detached_at, self.retry_at) = (Instant::now(), Instant::now());
        }
        self.detached_surcharge = self.detached_surcharge.saturating_add(surcharge);
    }
}

/// The work that is due for a session.
pub(super) enum SessionDue {
    Update,
    /// A surcharge, to be charged without the session.
    Charge(u64),
}

/// How an update ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpdateEnd {
    Confirmed,
    /// It was sent, and has no reply.
    Lost,
    NotSent,
}

/// The limit by which the updates of a session are made: the limit of its latest hold.
///
/// Holds before and after a replacement of the limits share a session, so that a process has one on each key.
pub(crate) struct SessionTarget {
    pub(crate) limits: Arc<LimitSet>,
    pub(crate) entry: EntryTarget,
    /// The time after which a request in flight ends, also if it has not.
    pub(super) max_duration: Option<Duration>,
}

impl SessionTarget {
    pub(super) fn new(
        limits: &Arc<LimitSet>,
        index: usize,
        own: &OwnAlgorithm,
        algorithm: &dyn DynLuaAlgorithm,
        expiry: Duration,
    ) -> Self {
        let limit = &limits.limits[index];
        let mut template = limit.template(index, Operation::Update, algorithm, 0, micros_floor(expiry));
        template.uses_fast_path = limits.limits.len() == 1 && algorithm.uses_fast_path(AcquireOptions::cost(1).hold());
        Self {
            limits: Arc::clone(limits),
            entry: EntryTarget {
                limit: index,
                algorithm: own.clone(),
                weight: usize::from(algorithm.weight()),
                template: Arc::new(template),
            },
            max_duration: algorithm.max_hold_duration().filter(|_| limit.held_until_end),
        }
    }
}
