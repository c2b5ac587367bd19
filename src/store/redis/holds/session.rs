//! Sessions: what a limiter of this process has held on one key. `holds.lua` says what the server keeps of each.
//!
//! A session counts what its guards have settled since it began, in two sums that only grow: what was released (the held costs)
//! and what was charged (the actual ones). An update carries both, so the server does what it has not done yet, however often and
//! in whatever order updates arrive. Pending settlements of one session travel as one update.
//!
//! A session's entry on the server is made once: by the holds of one call, whose session nobody else knows until they are
//! answered. A hold of a session that the server does not know any more is not granted.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::redis::client::operation::{EXACT, Shape};
use crate::store::redis::holds::registry::Holds;
use crate::store::redis::script::replay::Twin;

pub(crate) struct Session {
    pub(crate) id: u64,
    /// The limit's index.
    pub(crate) limit: usize,
    pub(crate) key: Arc<[u8]>,
    /// The algorithm, where it is chosen by the key.
    pub(crate) twin: Option<Arc<dyn Twin>>,
    /// Tells the algorithm, where it is chosen by the key.
    pub(crate) params: Vec<u64>,
    /// How long the script works on one of its steps.
    pub(crate) weight: usize,
    /// What all its updates have in common.
    pub(crate) shape: Arc<Shape>,
    state: Mutex<State>,
}

#[allow(clippy::struct_excessive_bools, reason = "each may change without the others")]
struct State {
    /// Holds on their way.
    pending: usize,
    /// Guards that have not settled.
    guards: usize,
    /// What was settled.
    sums: Sums,
    /// What the server is known to have done of that.
    acknowledged: Sums,
    /// What of the surcharges it may have done.
    sent_surcharge: u64,
    /// The surcharges that the session can't settle any more: they are charged without it.
    apart: u64,
    /// Updates on their way.
    updates: usize,
    /// The server has an entry, as far as is known.
    is_confirmed: bool,
    /// It takes no more holds.
    is_closed: bool,
    /// The server has no entry any more, as it was told to end it, or settled whole what was held.
    is_over: bool,
    /// It is among those that are looked after.
    is_listed: bool,
    /// The hold that begins it is sent by now.
    began_at: Instant,
    /// When the server was last asked for what it has answered: the entry does not expire before one expiry after it.
    renewed_at: Instant,
    retry_at: Instant,
    failures: u32,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    released: u64,
    charged: u64,
    /// How much of what was charged is beyond what was held.
    surcharge: u64,
}

/// A number that nobody else has: 52 bits, not zero.
fn random_id() -> u64 {
    // Its keys come from the operating system.
    (RandomState::new().build_hasher().finish() >> 12) | 1
}

/// What an update carries.
#[derive(Clone, Copy)]
pub(crate) struct Snapshot {
    sums: Sums,
    surcharge_before: u64,
    ends: bool,
    sent_at: Instant,
}

/// What is to be done for a session.
pub(crate) enum Due {
    Nothing,
    Update,
    /// A charge that the session can't make any more.
    Charge(u64),
    /// It is over.
    Forget,
}

impl Session {
    pub(crate) fn new(
        limit: usize,
        (key, params): (Arc<[u8]>, Vec<u64>),
        twin: Option<Arc<dyn Twin>>,
        weight: usize,
        shape: Arc<Shape>,
    ) -> Self {
        let now = Instant::now();
        let state = State {
            pending: 0,
            guards: 0,
            sums: Sums::default(),
            acknowledged: Sums::default(),
            sent_surcharge: 0,
            apart: 0,
            updates: 0,
            is_confirmed: false,
            is_closed: false,
            is_over: false,
            is_listed: false,
            began_at: now,
            renewed_at: now,
            retry_at: now,
            failures: 0,
        };
        Self { id: random_id(), limit, key, twin, params, weight, shape, state: Mutex::new(state) }
    }

    /// Joins one more hold to it, unless it takes none.
    pub(crate) fn join(&self, expiry: Duration) -> bool {
        let mut state = self.state();
        // A little before the server lets it expire: a hold that is sent now arrives later.
        let is_open = !state.is_closed && state.renewed_at.elapsed() < expiry * 9 / 10;
        state.pending += usize::from(is_open);
        is_open
    }

    /// The id as a hold carries it.
    fn signed_id(&self) -> f64 {
        let id = crate::store::redis::client::operation::double(self.id);
        if self.state().is_confirmed { id } else { -id }
    }

    /// A hold was granted.
    fn granted(&self, sent_at: Instant) {
        let mut state = self.state();
        state.pending -= 1;
        state.guards += 1;
        state.is_confirmed = true;
        state.renewed_at = state.renewed_at.max(sent_at);
    }

    /// A hold was not granted, or not on this limit.
    fn not_granted(&self) {
        self.state().pending -= 1;
    }

    /// Nobody knows whether a hold was granted: the session ends with its last guard, and with it what may be held.
    fn may_be_granted(&self) {
        let mut state = self.state();
        state.pending -= 1;
        state.is_closed = true;
    }

    /// The server does not know it any more.
    fn is_gone(&self) {
        self.state().lose();
    }

    /// A guard settles.
    pub(crate) fn settle(&self, held: u64, actual: u64) {
        let mut state = self.state();
        let surcharge = actual.saturating_sub(held);
        state.guards -= 1;
        if state.is_over {
            state.apart = state.apart.saturating_add(surcharge);
            return;
        }
        let sums = &mut state.sums;
        sums.released = sums.released.saturating_add(held);
        sums.charged = sums.charged.saturating_add(actual);
        sums.surcharge = sums.surcharge.saturating_add(surcharge);
        // So far doubles count exactly.
        state.is_closed |= state.sums.released.max(state.sums.charged) >= EXACT / 2;
        state.retry_at = Instant::now();
    }

    /// What to do for it now.
    pub(crate) fn due(&self, now: Instant, expiry: Duration) -> Due {
        let mut state = self.state();
        if state.apart > 0 {
            return Due::Charge(std::mem::take(&mut state.apart));
        }
        let is_idle = state.guards == 0 && state.pending == 0;
        if state.is_over {
            state.is_listed = !is_idle || state.updates > 0;
            return if state.is_listed { Due::Nothing } else { Due::Forget };
        }
        // Long after the server has settled whole what was held.
        if is_idle && now > state.renewed_at + expiry * 2 {
            state.is_listed = false;
            return Due::Forget;
        }
        let is_behind = is_idle || state.sums != state.acknowledged;
        let is_due = is_behind || now >= state.renewed_at + expiry / 3;
        if is_due && state.updates == 0 && now >= state.retry_at { Due::Update } else { Due::Nothing }
    }

    /// Whether it is not looked after yet, and is from now on.
    pub(crate) fn list(&self) -> bool {
        !std::mem::replace(&mut self.state().is_listed, true)
    }

    fn is_over(&self) -> bool {
        self.state().is_over
    }

    /// Whether it takes no more holds.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    fn snapshot(&self) -> Snapshot {
        let mut state = self.state();
        let surcharge_before = state.sent_surcharge;
        state.sent_surcharge = state.sums.surcharge;
        // An entry is kept until it is known that it was surcharged: if it is gone, nothing tells whether it was.
        let is_known = state.acknowledged.surcharge == state.sums.surcharge;
        let ends = state.guards == 0 && state.pending == 0 && is_known;
        state.is_closed |= ends;
        Snapshot { sums: state.sums, surcharge_before, ends, sent_at: Instant::now() }
    }

    /// The server has done what an update carried.
    fn acknowledge(&self, snapshot: &Snapshot) {
        let mut state = self.state();
        let (known, sums) = (&mut state.acknowledged, &snapshot.sums);
        known.released = known.released.max(sums.released);
        known.charged = known.charged.max(sums.charged);
        known.surcharge = known.surcharge.max(sums.surcharge);
        state.renewed_at = state.renewed_at.max(snapshot.sent_at);
        state.failures = 0;
        if snapshot.ends {
            state.end();
        }
    }

    /// The server has no entry for an update: it had settled whole what was held. The surcharges that only this update carried
    /// were not made; one that an earlier update without an answer carried may have been, and is not made again.
    fn missed(&self, snapshot: &Snapshot, holds: &Holds) {
        let mut state = self.state();
        if !state.is_confirmed && state.began_at.elapsed() < holds.expiry {
            // The hold that begins it may be on its way still: then what it holds is to end, too.
            state.retry_at = Instant::now() + holds.expiry / 10;
            return;
        }
        state.apart = state.apart.saturating_add(snapshot.sums.surcharge - snapshot.surcharge_before);
        state.lose();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The entry is gone before it was told to end.
    fn lose(&mut self) {
        if !self.is_over {
            self.apart = self.apart.saturating_add(self.sums.surcharge - self.sent_surcharge);
        }
        self.end();
    }

    fn end(&mut self) {
        self.is_over = true;
        self.is_closed = true;
    }
}

/// An update of a session on its way. Dropped before it is done it has failed, and is sent again.
pub(crate) struct Update {
    pub(crate) session: Arc<Session>,
    /// What it carries, once it is sent; nothing if another one of the same call carries all.
    snapshot: Option<Snapshot>,
    holds: Arc<Holds>,
}

impl Update {
    pub(crate) fn new(session: Arc<Session>, holds: Arc<Holds>) -> Self {
        session.state().updates += 1;
        Self { session, snapshot: None, holds }
    }

    /// Takes along all that was settled until now, unless another one does.
    pub(crate) fn load(&mut self, is_first: bool) {
        self.snapshot = (is_first && !self.session.is_over()).then(|| self.session.snapshot());
    }

    /// What the server needs, if it is to be sent.
    pub(crate) fn numbers(&self) -> Option<[f64; 4]> {
        let Snapshot { sums, ends, .. } = self.snapshot?;
        let [id, released, charged] =
            [self.session.id, sums.released, sums.charged].map(crate::store::redis::client::operation::double);
        Some([id, released, charged, f64::from(u8::from(ends))])
    }

    /// It was carried out, or there was no entry.
    pub(crate) fn done(mut self, is_known: bool) {
        if let Some(snapshot) = self.snapshot.take() {
            if is_known {
                self.session.acknowledge(&snapshot);
            } else {
                self.session.missed(&snapshot, &self.holds);
            }
            self.holds.keep(&self.session);
        }
    }
}

impl Drop for Update {
    fn drop(&mut self) {
        let mut state = self.session.state();
        state.updates -= 1;
        if self.snapshot.take().is_some() {
            state.failures = state.failures.saturating_add(1);
        }
        if state.failures > 0 {
            let pause = self.holds.tick() * 2_u32.saturating_pow(state.failures.min(8) - 1);
            state.retry_at = Instant::now() + pause.min(self.holds.expiry / 3);
        }
    }
}

/// The sessions that an order is to hold in, for each limit. Dropped before it is answered, nobody knows what became of it.
pub(crate) struct Bound {
    sessions: Vec<Arc<Session>>,
    sent_at: Instant,
    holds: Arc<Holds>,
}

impl Bound {
    pub(crate) fn new(holds: Arc<Holds>) -> Self {
        Self { sessions: Vec::new(), sent_at: Instant::now(), holds }
    }

    /// Adds the next limit's session, which a hold has joined.
    pub(crate) fn push(&mut self, session: Arc<Session>) {
        self.sessions.push(session);
    }

    pub(crate) fn ids(&self) -> Vec<f64> {
        self.sessions.iter().map(|session| session.signed_id()).collect()
    }

    /// It was granted, on the limits that `takes` names.
    pub(crate) fn granted(mut self, cost: u64, takes: &[bool]) -> Grant {
        let mut held = Vec::with_capacity(takes.len());
        for (session, takes) in self.sessions.drain(..).zip(takes) {
            if *takes && cost > 0 {
                session.granted(self.sent_at);
                self.holds.open(&session);
            } else {
                session.not_granted();
            }
            if *takes {
                held.push(session);
            }
        }
        Grant { cost, sessions: held, holds: Arc::clone(&self.holds) }
    }

    /// It was not granted. Nothing was done.
    pub(crate) fn refused(mut self) {
        for session in self.sessions.drain(..) {
            session.not_granted();
        }
    }

    /// It was not granted, as the server does not know some of the sessions any more.
    pub(crate) fn expired(mut self, unknown: &[bool]) {
        for (session, unknown) in self.sessions.drain(..).zip(unknown) {
            session.not_granted();
            if *unknown {
                session.is_gone();
            }
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        for session in self.sessions.drain(..) {
            session.may_be_granted();
            self.holds.keep(&session);
        }
    }
}

/// A cost that is held. Dropped before anybody has it, it is released.
pub(crate) struct Grant {
    pub(crate) cost: u64,
    /// One for each limit that it is held on.
    pub(crate) sessions: Vec<Arc<Session>>,
    pub(crate) holds: Arc<Holds>,
}

impl Grant {
    /// The sessions, which whoever takes them must settle.
    pub(crate) fn take(mut self) -> Vec<Arc<Session>> {
        std::mem::take(&mut self.sessions)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.cost > 0 {
            let sessions = std::mem::take(&mut self.sessions);
            for session in &sessions {
                session.settle(self.cost, 0);
            }
            self.holds.update(&sessions);
        }
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grant").field("cost", &self.cost).finish_non_exhaustive()
    }
}
