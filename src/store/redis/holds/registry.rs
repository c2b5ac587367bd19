use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, sleep};

use super::pending_hold::PendingHold;
use super::schedule::{Schedule, SessionKey};
use super::session::{Session, SessionDue};
use super::update::SessionUpdate;
use crate::decision::AcquireOptions;
use crate::error::Error;
use crate::observe::Event;
use crate::store::inner::{BoxFuture, Observers, micros_floor, runtime};
use crate::store::redis::script::{
    DynLuaAlgorithm, EntryTarget, LimitSet, Operation, OwnAlgorithm, limit_has_no_algorithm,
};

/// Queues operations on sessions. The client implements it.
///
/// The returned futures wait for the reply. An update is sent even if its future is dropped; a charge is not.
pub(crate) trait HoldTransport: Send + Sync {
    fn send_update(&self, update: SessionUpdate) -> Result<BoxFuture<Result<(), Error>>, Error>;

    fn send_charge(&self, session: &Session, cost: u64) -> Result<BoxFuture<Result<(), Error>>, Error>;
}

/// The sessions of a limiter, and the tasks that renew them. Both outlive a replacement of the limits.
pub(crate) struct HoldRegistry {
    /// The time without renewal after which the server settles a session.
    pub(crate) expiry: Duration,
    limiter: String,
    observers: Observers,
    transport: Weak<dyn HoldTransport>,
    sessions: Mutex<Sessions>,
}

struct Sessions {
    schedule: Schedule,
    /// The runtimes that run a renewal task.
    renewing_runtimes: Vec<Id>,
}

/// The sessions that one call creates. Holds of this call on the same key share a session.
#[derive(Default)]
pub(crate) struct NewSessions(HashMap<SessionKey, Arc<Session>>);

impl HoldRegistry {
    /// The maximum number of sessions that calls in flight create on a key: a key has 64 of all processes.
    const MAX_CREATING: usize = 4;

    pub(crate) fn new(
        expiry: Duration,
        limiter: &str,
        observers: &Observers,
        transport: Weak<dyn HoldTransport>,
    ) -> Self {
        Self {
            expiry,
            limiter: limiter.to_owned(),
            observers: observers.clone(),
            transport,
            sessions: Mutex::new(Sessions { schedule: Schedule::new(), renewing_runtimes: Vec::new() }),
        }
    }

    /// The maximum time between two visits of a renewal task.
    pub(super) fn tick(&self) -> Duration {
        (self.expiry / 20).clamp(Duration::from_millis(5), Duration::from_millis(500))
    }

    /// Chooses the session in which an operation holds, for each limit that holds a cost. The key of a limit that does not
    /// apply is empty.
    pub(crate) fn join_sessions<'a>(
        self: &Arc<Self>,
        key: impl Fn(usize) -> &'a [u8],
        algorithms: &[OwnAlgorithm],
        limits: &Arc<LimitSet>,
        options: AcquireOptions,
        new: &mut NewSessions,
    ) -> Result<PendingHold, Error> {
        let mut pending = PendingHold::new(Arc::clone(self));
        for (index, limit) in limits.limits.iter().enumerate() {
            let own = algorithms.get(index).unwrap_or(&None);
            let algorithm = limit.algorithm(own).ok_or_else(limit_has_no_algorithm)?;
            if key(index).is_empty() || !limit.options(options).hold {
                pending.sessions.push(None);
                continue;
            }
            let mut params = Vec::new();
            let max_duration = algorithm.max_hold_duration();
            if own.is_some() {
                algorithm.params(0, &mut params);
                params.extend(max_duration.map(micros_floor));
            }
            let key = (Arc::<[u8]>::from(key(index)), params);
            // `join` counts a pending hold, so it must succeed for one session only.
            let join = |sessions: &Vec<Arc<Session>>| sessions.iter().find(|open| open.join(self.expiry)).cloned();
            let open = self.sessions().schedule.open.get(&key).and_then(join);
            let known = open.or_else(|| new.0.get(&key).filter(|new| new.join(self.expiry)).cloned());
            let target = || self.target(limits, index, own, algorithm);
            let session = known.unwrap_or_else(|| {
                let session = Arc::new(Session::new(key.clone(), limit.held_until_end, target()));
                session.join(self.expiry);
                *self.sessions().schedule.creating.entry(Arc::clone(&key.0)).or_default() += 1;
                new.0.insert(key, Arc::clone(&session));
                session
            });
            session.join_target(limits.generation, target);
            pending.sessions.push(Some((session, max_duration.filter(|_| limit.held_until_end))));
        }
        Ok(pending)
    }

    /// Returns the target of the updates of a session under these limits.
    fn target(
        &self,
        limits: &Arc<LimitSet>,
        limit: usize,
        own: &OwnAlgorithm,
        algorithm: &dyn DynLuaAlgorithm,
    ) -> Arc<EntryTarget> {
        let expiry = micros_floor(self.expiry);
        let mut template = limits.limits[limit].template(limit, Operation::Update, algorithm, 0, expiry);
        template.uses_fast_path = limits.limits.len() == 1 && algorithm.uses_fast_path(AcquireOptions::cost(1).hold());
        let (weight, template) = (usize::from(algorithm.weight()), Arc::new(template));
        Arc::new(EntryTarget { limits: Arc::clone(limits), limit, algorithm: own.clone(), weight, template })
    }

    /// Whether calls in flight create as many sessions on one of these keys as they may.
    pub(crate) fn creates_enough<'a>(&self, mut keys: impl Iterator<Item = &'a [u8]>) -> bool {
        let creating = &self.sessions().schedule.creating;
        keys.any(|key| creating.get(key).is_some_and(|count| *count >= Self::MAX_CREATING))
    }

    /// Makes a session that the server has confirmed available to other holds.
    pub(super) fn open(self: &Arc<Self>, session: &Arc<Session>) {
        let key = (Arc::clone(&session.key), session.params.clone());
        let mut sessions = self.sessions();
        let open = sessions.schedule.open.entry(key).or_default();
        open.retain(|known| !known.state().phase.is_closed);
        if !open.iter().any(|known| Arc::ptr_eq(known, session)) {
            open.push(Arc::clone(session));
        }
        drop(sessions);
        self.track(session);
    }

    /// Adds a session to the schedule, and makes sure that a task of this runtime renews.
    ///
    /// Outside of a runtime only the first happens: a task of another runtime sends the updates, or the session
    /// expires.
    pub(crate) fn track(self: &Arc<Self>, session: &Arc<Session>) {
        let mut sessions = self.sessions();
        sessions.schedule.plan(session, self.expiry, true);
        self.ensure_task(sessions);
    }

    /// Plans the next visit of a session again, if the session is in the schedule.
    pub(super) fn revisit(&self, session: &Arc<Session>) {
        self.sessions().schedule.plan(session, self.expiry, false);
    }

    /// Makes sure that a task of this runtime renews.
    fn ensure_task(self: &Arc<Self>, mut sessions: MutexGuard<'_, Sessions>) {
        let Ok(runtime) = Handle::try_current() else { return };
        if sessions.renewing_runtimes.contains(&runtime.id()) || !runtime::has_timer() {
            return;
        }
        let Some(transport) = self.transport.upgrade() else { return };
        sessions.renewing_runtimes.push(runtime.id());
        // Unlocked before `spawn`: a runtime that shuts down drops the task, and with it `RenewalTask`, within `spawn`.
        drop(sessions);
        let task = RenewalTask { registry: Arc::clone(self), runtime: runtime.id(), ran_at: Instant::now() };
        runtime.spawn(task.run(transport));
    }

    /// Sends what a session has settled.
    pub(super) fn update(self: &Arc<Self>, session: &Arc<Session>) {
        self.track(session);
        if let Some(transport) = self.transport.upgrade() {
            drop(transport.send_update(SessionUpdate::new(session, self, None)));
        }
    }

    /// Returns the work that is due now, of at most `max` sessions, and the time until the next visit. `None` if there is
    /// no session; the task of this runtime then ends.
    pub(super) fn take_due(&self, runtime: Id, max: usize) -> Option<(Vec<(Arc<Session>, SessionDue)>, Duration)> {
        let mut sessions = self.sessions();
        let due = sessions.schedule.take_due(max, self.expiry);
        if due.is_empty() && sessions.schedule.is_empty() {
            sessions.schedule.open.clear();
            // Under the lock under which no session was found: a session that comes after this starts another task.
            sessions.renewing_runtimes.retain(|renewing| *renewing != runtime);
            return None;
        }
        Some((due, sessions.schedule.until_next()))
    }

    /// Emits an event if the server has settled holds on expiry.
    pub(crate) fn emit_expired(&self, count: usize) {
        if count > 0 {
            self.observers.emit_in_task(|| Event::HoldsExpired { store: &self.limiter, count });
        }
    }

    /// Emits an event if the server does not count requests in flight whose hold had expired.
    pub(super) fn emit_uncounted(&self, cost: u64) {
        if cost > 0 {
            self.observers.emit_in_task(|| Event::InFlightUncounted { store: &self.limiter, cost });
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task of one runtime that renews the sessions of a limiter, and sends the settlements that were not sent.
///
/// Each runtime that holds costs has such a task, because a runtime may be parked. The tasks share one schedule.
pub(super) struct RenewalTask {
    pub(super) registry: Arc<HoldRegistry>,
    pub(super) runtime: Id,
    pub(super) ran_at: Instant,
}

impl RenewalTask {
    /// The maximum number of updates in flight. Further sessions wait in the schedule.
    const MAX_IN_FLIGHT: usize = 10_000;
    const MIN_PAUSE: Duration = Duration::from_millis(5);

    pub(super) async fn run(mut self, transport: Arc<dyn HoldTransport>) {
        // Each update has a clone until it ends.
        let (in_flight, mut pause) = (Arc::new(()), Self::MIN_PAUSE);
        loop {
            sleep(pause).await;
            if std::mem::replace(&mut self.ran_at, Instant::now()).elapsed() > self.registry.expiry / 3 {
                self.registry.observers.emit_in_task(|| Event::Warning {
                    message: "renewing holds is late, and they may expire: nothing has driven the tokio runtime in which \
                              they were made; make holds in a runtime that runs until they end",
                });
            }
            let room = Self::MAX_IN_FLIGHT.saturating_sub(Arc::strong_count(&in_flight) - 1);
            let Some((due, until_next)) = self.registry.take_due(self.runtime, room) else { return };
            for (session, due) in due {
                match due {
                    SessionDue::Charge(cost) => {
                        // Sent once: a charge without a reply may have been applied, and a second one could charge
                        // twice.
                        if let Ok(reply) = transport.send_charge(&session, cost) {
                            // A charge whose future is dropped is not sent.
                            drop(tokio::spawn(reply));
                        } else {
                            session.charge_not_sent(cost, self.registry.tick(), self.registry.expiry);
                            self.registry.track(&session);
                        }
                    }
                    SessionDue::Update => {
                        let update = SessionUpdate::new(&session, &self.registry, Some(&in_flight));
                        drop(transport.send_update(update));
                    }
                }
            }
            // Work that becomes due earlier waits for at most a tick.
            pause = until_next.clamp(Self::MIN_PAUSE, self.registry.tick());
        }
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        self.registry.sessions().renewing_runtimes.retain(|renewing| *renewing != self.runtime);
    }
}
