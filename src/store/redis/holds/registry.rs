use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, sleep};

use super::pending_hold::PendingHold;
use super::session::{Due, InFlightHolds, Session};
use super::update::SessionUpdate;
use crate::clock::micros_floor;
use crate::decision::AcquireOptions;
use crate::error::Error;
use crate::limiter::BoxFuture;
use crate::observe::{Event, Observers};
use crate::runtime;
use crate::store::redis::script::{DynLuaAlgorithm, LimitInfo, Operation, limit_has_no_algorithm};

/// Queues operations on sessions. The client implements it.
///
/// The returned futures wait for the reply. An update is sent even if its future is dropped; a charge is not.
pub(crate) trait HoldTransport: Send + Sync {
    fn send_update(
        &self,
        sessions: &[Arc<Session>],
        updates: Vec<SessionUpdate>,
    ) -> Result<BoxFuture<Result<(), Error>>, Error>;

    fn send_charge(&self, sessions: &[Arc<Session>], cost: u64) -> Result<BoxFuture<Result<(), Error>>, Error>;
}

/// The sessions of a limiter, and the tasks that renew them.
pub(crate) struct HoldRegistry {
    /// The time without renewal after which the server settles a session.
    pub(crate) expiry: Duration,
    limiter: String,
    observers: Observers,
    transport: Weak<dyn HoldTransport>,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    /// The sessions that accept more holds.
    open: HashMap<SessionKey, Arc<Session>>,
    /// The sessions that the renewal task visits.
    listed: Vec<Arc<Session>>,
    /// The runtimes that run a renewal task.
    renewing_runtimes: Vec<Id>,
}

/// The key in Redis, and the parameters of an algorithm that is chosen by the key.
type SessionKey = (Arc<[u8]>, Vec<u64>);

/// The sessions that one call creates. Holds of this call on the same key share a session.
#[derive(Default)]
pub(crate) struct NewSessions(HashMap<SessionKey, Arc<Session>>);

impl HoldRegistry {
    pub(crate) fn new(
        expiry: Duration,
        limiter: &str,
        observers: &Observers,
        transport: Weak<dyn HoldTransport>,
    ) -> Self {
        let (limiter, observers) = (limiter.to_owned(), observers.clone());
        Self { expiry, limiter, observers, transport, sessions: Mutex::default() }
    }

    /// The interval of the renewal task.
    pub(super) fn tick(&self) -> Duration {
        (self.expiry / 20).clamp(Duration::from_millis(5), Duration::from_millis(500))
    }

    /// Chooses the session in which an operation holds, for each limit that holds a cost.
    pub(crate) fn join_sessions<'a>(
        self: &Arc<Self>,
        key: impl Fn(usize) -> &'a [u8],
        algorithms: &[Option<Arc<dyn DynLuaAlgorithm>>],
        limits: &[LimitInfo],
        options: AcquireOptions,
        new: &mut NewSessions,
    ) -> Result<PendingHold, Error> {
        let mut pending = PendingHold::new(Arc::clone(self));
        for (index, limit) in limits.iter().enumerate() {
            let own = algorithms.get(index).and_then(Option::as_ref);
            let algorithm = limit.algorithm(own).ok_or_else(limit_has_no_algorithm)?;
            if !limit.options(options).hold {
                pending.push(None);
                continue;
            }
            let mut params = Vec::new();
            let max_duration = algorithm.max_hold_duration();
            if own.is_some() {
                algorithm.params(0, &mut params);
                params.extend(max_duration.map(micros_floor));
            }
            let key = (Arc::<[u8]>::from(key(index)), params);
            let open = self.sessions().open.get(&key).filter(|open| open.join(self.expiry)).cloned();
            let known = open.or_else(|| new.0.get(&key).filter(|new| new.join(self.expiry)).cloned());
            let session = known.unwrap_or_else(|| {
                let template = limit.template(index, Operation::Update, algorithm, 0, micros_floor(self.expiry));
                let weight = usize::from(algorithm.weight());
                let in_flight = limit.held_until_end.then_some(InFlightHolds { max_duration });
                let session = Session::new(index, key.clone(), own.cloned(), weight, in_flight, Arc::new(template));
                let session = Arc::new(session);
                session.join(self.expiry);
                new.0.insert(key, Arc::clone(&session));
                session
            });
            pending.push(Some(session));
        }
        Ok(pending)
    }

    /// Makes a session that the server has confirmed available to other holds.
    pub(super) fn open(self: &Arc<Self>, session: &Arc<Session>) {
        let key = (Arc::clone(&session.key), session.params.clone());
        let mut sessions = self.sessions();
        let known = sessions.open.entry(key).or_insert_with(|| Arc::clone(session));
        if known.is_closed() {
            *known = Arc::clone(session);
        }
        drop(sessions);
        self.track(session);
    }

    /// Lists a session for renewal, and makes sure that a task of this runtime renews.
    ///
    /// Outside of a runtime only the first happens: a task of another runtime sends the updates, or the session
    /// expires.
    pub(crate) fn track(self: &Arc<Self>, session: &Arc<Session>) {
        let mut sessions = self.sessions();
        if session.mark_listed() {
            sessions.listed.push(Arc::clone(session));
        }
        let (Ok(runtime), Some(_)) = (Handle::try_current(), runtime::sleep(Duration::ZERO)) else { return };
        let Some(transport) = self.transport.upgrade() else { return };
        if sessions.renewing_runtimes.contains(&runtime.id()) {
            return;
        }
        sessions.renewing_runtimes.push(runtime.id());
        // Unlocked before `spawn`: a runtime that shuts down drops the task, and with it `RenewalTask`, within `spawn`.
        drop(sessions);
        let task = RenewalTask { registry: Arc::clone(self), runtime: runtime.id() };
        runtime.spawn(task.run(transport));
    }

    /// Sends what some sessions have settled. If that fails, the renewal task sends it.
    pub(super) fn update(self: &Arc<Self>, sessions: &[Arc<Session>]) {
        for session in sessions {
            self.track(session);
        }
        if let Some(transport) = self.transport.upgrade() {
            drop(self.send_update(&*transport, sessions));
        }
    }

    /// Queues one update for each of these sessions.
    pub(crate) fn send_update(
        self: &Arc<Self>,
        transport: &dyn HoldTransport,
        sessions: &[Arc<Session>],
    ) -> Result<BoxFuture<Result<(), Error>>, Error> {
        let new = |session: &Arc<Session>| SessionUpdate::new(Arc::clone(session), Arc::clone(self));
        transport.send_update(sessions, sessions.iter().map(new).collect())
    }

    /// Returns the work that is due now, or `None` if no session is listed; the task of this runtime then ends.
    fn due(&self, runtime: Id) -> Option<Vec<(Arc<Session>, Due)>> {
        let (mut due, now) = (Vec::new(), Instant::now());
        let mut sessions = self.sessions();
        sessions.open.retain(|_, session| !session.is_closed());
        sessions.listed.retain(|session| match session.due(now, self.expiry) {
            Due::Remove => false,
            Due::Nothing => true,
            work => {
                due.push((Arc::clone(session), work));
                true
            }
        });
        if sessions.listed.is_empty() {
            sessions.open.clear();
            sessions.renewing_runtimes.retain(|renewing| *renewing != runtime);
            return None;
        }
        Some(due)
    }

    /// Emits an event if the server has settled holds on expiry.
    pub(crate) fn emit_expired(&self, count: usize) {
        if count > 0 {
            self.observers.emit(|| Event::HoldsExpired { store: &self.limiter, count });
        }
    }

    /// Emits an event if the server does not count requests in flight whose hold had expired.
    pub(super) fn emit_uncounted(&self, cost: u64) {
        if cost > 0 {
            self.observers.emit(|| Event::InFlightUncounted { store: &self.limiter, cost });
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task of one runtime that renews the sessions of a limiter.
struct RenewalTask {
    registry: Arc<HoldRegistry>,
    runtime: Id,
}

impl RenewalTask {
    async fn run(self, transport: Arc<dyn HoldTransport>) {
        loop {
            sleep(self.registry.tick()).await;
            let Some(due) = self.registry.due(self.runtime) else { return };
            for (session, due) in due {
                let sessions = [session];
                match due {
                    Due::Charge(cost) => {
                        // Tried once: a charge without a reply may have been applied, and a second one could charge
                        // twice.
                        if let Ok(reply) = transport.send_charge(&sessions, cost) {
                            // A charge whose future is dropped is not sent.
                            tokio::spawn(reply);
                        }
                    }
                    _ => drop(self.registry.send_update(&*transport, &sessions)),
                }
            }
        }
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        self.registry.sessions().renewing_runtimes.retain(|renewing| *renewing != self.runtime);
    }
}
