use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::redis::script::{DynLuaAlgorithm, MAX_EXACT, OperationTemplate, to_f64};

/// The holds of one limiter on one key. The module documentation describes the protocol.
pub(crate) struct Session {
    pub(super) id: u64,
    /// The index of the limit.
    pub(crate) limit: usize,
    pub(crate) key: Arc<[u8]>,
    /// The algorithm, if it is chosen by the key.
    pub(crate) algorithm: Option<Arc<dyn DynLuaAlgorithm>>,
    /// The algorithm's parameters, if it is chosen by the key: keys with different algorithms have different sessions.
    pub(super) params: Vec<u64>,
    /// The run time of one step in the script.
    pub(crate) weight: usize,
    /// The costs are held until their requests end, and never charged.
    in_flight: Option<InFlightHolds>,
    /// The template of the session's updates.
    pub(crate) template: Arc<OperationTemplate>,
    state: Mutex<SessionState>,
}

/// What holds until the end of requests.
pub(super) struct InFlightHolds {
    /// The time after which a hold ends, also if the request has not.
    pub(super) max_duration: Option<Duration>,
}

/// The time at which a hold ends at the latest, made unique by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline {
    at: Instant,
    id: u64,
}

#[allow(clippy::struct_excessive_bools, reason = "the flags are independent")]
struct SessionState {
    /// Holds that were sent and not answered.
    pending: usize,
    /// Guards that have not settled.
    guards: usize,
    /// The sum of the guards' costs.
    held: u64,
    /// The part of it that the server does not count, because the session had expired.
    uncounted: u64,
    /// The costs that end at the latest at a time.
    deadlines: BTreeMap<Deadline, u64>,
    last_deadline: u64,
    /// All settlements.
    settled: Sums,
    /// The settlements that the server has confirmed.
    acknowledged: Sums,
    /// The surcharges in any update that was sent: the server may have applied them.
    sent_surcharge: u64,
    /// Surcharges that are charged without the session, because it is over.
    detached_surcharge: u64,
    /// Updates that were sent and not answered.
    updates: usize,
    /// The server has granted a hold, so it has an entry for the session.
    is_confirmed: bool,
    /// The session accepts no more holds.
    is_closed: bool,
    /// The server has no entry for the session any more: an update ended it, or the server has settled it on expiry.
    is_over: bool,
    /// The registry's list of renewed sessions contains the session.
    is_listed: bool,
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

/// Returns a random id of 52 bits (exact in a double), not zero.
pub(crate) fn random_id() -> u64 {
    // The operating system provides the keys of the hasher.
    (RandomState::new().build_hasher().finish() >> 12) | 1
}

/// The sums that one update carries.
#[derive(Clone, Copy)]
pub(super) struct Snapshot {
    sums: Sums,
    surcharge_before: u64,
    held: u64,
    ends: bool,
    sent_at: Instant,
}

impl Snapshot {
    pub(super) fn encode(&self, id: u64) -> [f64; 5] {
        let [id, released, charged, held] = [id, self.sums.released, self.sums.charged, self.held].map(to_f64);
        [id, released, charged, f64::from(u8::from(self.ends)), held]
    }
}

/// The work that is due for a session.
pub(super) enum Due {
    Nothing,
    Update,
    /// A surcharge, to be charged without the session.
    Charge(u64),
    /// The session is over; the registry removes it.
    Remove,
}

impl Session {
    pub(super) fn new(
        limit: usize,
        (key, params): (Arc<[u8]>, Vec<u64>),
        algorithm: Option<Arc<dyn DynLuaAlgorithm>>,
        weight: usize,
        in_flight: Option<InFlightHolds>,
        template: Arc<OperationTemplate>,
    ) -> Self {
        let now = Instant::now();
        let state = SessionState {
            pending: 0,
            guards: 0,
            held: 0,
            uncounted: 0,
            deadlines: BTreeMap::new(),
            last_deadline: 0,
            settled: Sums::default(),
            acknowledged: Sums::default(),
            sent_surcharge: 0,
            detached_surcharge: 0,
            updates: 0,
            is_confirmed: false,
            is_closed: false,
            is_over: false,
            is_listed: false,
            created_at: now,
            renewed_at: now,
            retry_at: now,
            failures: 0,
        };
        let (id, state) = (random_id(), Mutex::new(state));
        Self { id, limit, key, algorithm, params, weight, in_flight, template, state }
    }

    /// Adds a pending hold, unless the session accepts none.
    pub(super) fn join(&self, expiry: Duration) -> bool {
        let mut state = self.state();
        // The margin of a tenth covers the time until the hold reaches the server.
        let is_open = !state.is_closed && state.renewed_at.elapsed() < expiry * 9 / 10;
        state.pending += usize::from(is_open);
        is_open
    }

    /// Returns the id as a hold sends it: negative if the hold creates the session on the server.
    pub(super) fn signed_id(&self) -> f64 {
        let id = to_f64(self.id);
        if self.state().is_confirmed { id } else { -id }
    }

    /// Returns whether the costs are held until their requests end.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// The server granted a pending hold. Returns the time at which the hold ends at the latest, if there is one.
    pub(super) fn hold_granted(&self, cost: u64, sent_at: Instant) -> Option<Deadline> {
        let mut state = self.state();
        state.pending -= 1;
        state.guards += 1;
        state.held = state.held.saturating_add(cost);
        state.is_confirmed = true;
        state.renewed_at = state.renewed_at.max(sent_at);
        let at = sent_at.checked_add(self.in_flight.as_ref()?.max_duration?)?;
        state.last_deadline += 1;
        let deadline = Deadline { at, id: state.last_deadline };
        state.deadlines.insert(deadline, cost);
        Some(deadline)
    }

    /// The server did not grant a pending hold, or not on this limit.
    pub(super) fn hold_not_granted(&self) {
        self.state().pending -= 1;
    }

    /// The reply to a pending hold is missing, so the server may have granted it.
    ///
    /// The session accepts no more holds. Its last update ends the server's entry, and that releases what may be held.
    pub(super) fn hold_unknown(&self) {
        let mut state = self.state();
        state.pending -= 1;
        state.is_closed = true;
    }

    /// The server does not know the session any more.
    ///
    /// Requests in flight have not ended by that: the next update holds their costs again, if there is room.
    pub(super) fn lose(&self) {
        let mut state = self.state();
        if self.is_in_flight() && state.guards > 0 {
            state.is_closed = true;
        } else {
            state.lose();
        }
    }

    /// Settles one guard, unless its deadline has passed.
    pub(crate) fn settle(&self, held: u64, actual: u64, deadline: Option<Deadline>) {
        let mut state = self.state();
        if deadline.is_none_or(|deadline| state.deadlines.remove(&deadline).is_some()) {
            state.settle(held, if self.is_in_flight() { 0 } else { actual });
        }
    }

    /// Returns the work that is due now.
    pub(super) fn due(&self, now: Instant, expiry: Duration) -> Due {
        let mut state = self.state();
        while let Some(overdue) = state.deadlines.first_entry().filter(|first| first.key().at <= now) {
            let held = overdue.remove();
            state.settle(held, 0);
        }
        if state.detached_surcharge > 0 {
            return Due::Charge(std::mem::take(&mut state.detached_surcharge));
        }
        let is_idle = state.guards == 0 && state.pending == 0;
        if state.is_over {
            state.is_listed = !is_idle || state.updates > 0;
            return if state.is_listed { Due::Nothing } else { Due::Remove };
        }
        // By then the server has settled the session on expiry.
        if is_idle && now > state.renewed_at + expiry * 2 {
            state.is_listed = false;
            return Due::Remove;
        }
        let is_behind = is_idle || state.settled != state.acknowledged;
        let is_due = is_behind || now >= state.renewed_at + expiry / 3;
        if is_due && state.updates == 0 && now >= state.retry_at { Due::Update } else { Due::Nothing }
    }

    /// Marks the session as listed. Returns whether it was not.
    pub(super) fn mark_listed(&self) -> bool {
        !std::mem::replace(&mut self.state().is_listed, true)
    }

    /// Whether the session accepts no more holds.
    pub(super) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Adds an update in flight.
    pub(super) fn start_update(&self) {
        self.state().updates += 1;
    }

    /// Ends an update in flight. After a failure the next update waits: twice as long after each, up to a third of the
    /// expiry.
    pub(super) fn end_update(&self, has_failed: bool, tick: Duration, expiry: Duration) {
        let mut state = self.state();
        state.updates -= 1;
        if has_failed {
            state.failures = state.failures.saturating_add(1);
        }
        if state.failures > 0 {
            let pause = tick * 2_u32.saturating_pow(state.failures.min(8) - 1);
            state.retry_at = Instant::now() + pause.min(expiry / 3);
        }
    }

    /// Returns the sums for an update that is about to be sent, or `None` if the session is over.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        let mut state = self.state();
        if state.is_over {
            return None;
        }
        let surcharge_before = state.sent_surcharge;
        state.sent_surcharge = state.settled.surcharge;
        // The entry must outlive an unconfirmed surcharge: without the entry the server cannot know whether it applied
        // it.
        let is_confirmed = state.acknowledged.surcharge == state.settled.surcharge;
        let ends = state.guards == 0 && state.pending == 0 && is_confirmed;
        state.is_closed |= ends;
        let (sums, held) = (state.settled, state.held);
        Some(Snapshot { sums, surcharge_before, held, ends, sent_at: Instant::now() })
    }

    /// The server has applied an update, and does not count the part `uncounted` of the held costs. Returns by how much
    /// that part has grown.
    pub(super) fn acknowledge(&self, snapshot: &Snapshot, uncounted: u64) -> u64 {
        let mut state = self.state();
        let newly_uncounted = uncounted.saturating_sub(state.uncounted);
        state.uncounted = uncounted;
        let (acknowledged, sums) = (&mut state.acknowledged, &snapshot.sums);
        acknowledged.released = acknowledged.released.max(sums.released);
        acknowledged.charged = acknowledged.charged.max(sums.charged);
        acknowledged.surcharge = acknowledged.surcharge.max(sums.surcharge);
        state.renewed_at = state.renewed_at.max(snapshot.sent_at);
        state.failures = 0;
        if snapshot.ends {
            state.end();
        }
        newly_uncounted
    }

    /// The server has no entry for an update: it had settled the session on expiry.
    ///
    /// The surcharges that only this update carried were not applied, so they are charged without the session.
    /// Surcharges that an earlier, unanswered update carried may have been applied, so they are not charged again.
    ///
    /// Returns by how much the held cost that the server does not count has grown: requests in flight have not ended.
    pub(super) fn update_missed(&self, snapshot: &Snapshot, expiry: Duration) -> u64 {
        let mut state = self.state();
        if self.is_in_flight() && state.guards > 0 {
            state.is_closed = true;
            state.retry_at = Instant::now() + expiry / 3;
            return snapshot.held.saturating_sub(std::mem::replace(&mut state.uncounted, snapshot.held));
        }
        if !state.is_confirmed && state.created_at.elapsed() < expiry {
            // The hold that creates the session may still arrive. A later update must then end what it holds.
            state.retry_at = Instant::now() + expiry / 10;
            return 0;
        }
        let unsent_before = snapshot.sums.surcharge - snapshot.surcharge_before;
        state.detached_surcharge = state.detached_surcharge.saturating_add(unsent_before);
        state.lose();
        0
    }

    fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionState {
    fn settle(&mut self, held: u64, actual: u64) {
        let surcharge = actual.saturating_sub(held);
        self.guards -= 1;
        self.held = self.held.saturating_sub(held);
        if self.is_over {
            self.detached_surcharge = self.detached_surcharge.saturating_add(surcharge);
            return;
        }
        let settled = &mut self.settled;
        settled.released = settled.released.saturating_add(held);
        settled.charged = settled.charged.saturating_add(actual);
        settled.surcharge = settled.surcharge.saturating_add(surcharge);
        // A new session starts before the sums leave the range in which doubles are exact.
        self.is_closed |= self.settled.released.max(self.settled.charged) >= MAX_EXACT / 2;
        self.retry_at = Instant::now();
    }

    /// The server's entry is gone before the session ended it: surcharges that no update carried are charged without
    /// it.
    fn lose(&mut self) {
        if !self.is_over {
            let unsent = self.settled.surcharge - self.sent_surcharge;
            self.detached_surcharge = self.detached_surcharge.saturating_add(unsent);
        }
        self.end();
    }

    fn end(&mut self) {
        self.is_over = true;
        self.is_closed = true;
    }
}
