//! What a limiter has held in Redis, and the task that looks after it.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::clock::micros_floor;
use crate::error::Error;
use crate::limiter::{Held, LimiterFuture};
use crate::observe::{Event, Observers};
use crate::runtime;
use crate::store::redis::bound_limit::RowInfo;
use crate::store::redis::client::config::Core;
use crate::store::redis::client::operation::{Operation, Order, Shape, Steps};
use crate::store::redis::client::protocol::Calls;
use crate::store::redis::client::trade::{Answer, Done};
use crate::store::redis::client::{Lines, lost};
use crate::store::redis::holds::session::{Bound, Due, Grant, Session, Update};
use crate::store::redis::script::replay::Twin;
use crate::store::redis::server::no_runtime;

/// The sessions of a limiter.
pub(crate) struct Holds {
    /// After this time without renewal the server settles whole what is held.
    pub(crate) expiry: Duration,
    name: String,
    observers: Observers,
    lines: Weak<Lines<Calls>>,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    /// KeyedBy key, and where the algorithm is chosen by the key, by its parameters: those that take more holds.
    open: HashMap<SessionKey, Arc<Session>>,
    /// All that something is or may be to be done for.
    listed: Vec<Arc<Session>>,
    /// The runtimes in which a task looks after them.
    keepers: Vec<Id>,
}

type SessionKey = (Arc<[u8]>, Vec<u64>);

/// The sessions that a call begins.
#[derive(Default)]
pub(crate) struct NewSessions(HashMap<SessionKey, Arc<Session>>);

impl Holds {
    pub(crate) fn new(expiry: Duration, name: &str, observers: &Observers, lines: Weak<Lines<Calls>>) -> Self {
        let (name, observers) = (name.to_owned(), observers.clone());
        Self { expiry, name, observers, lines, sessions: Mutex::default() }
    }

    /// How often the task looks what is due.
    pub(crate) fn tick(&self) -> Duration {
        (self.expiry / 20).clamp(Duration::from_millis(5), Duration::from_millis(500))
    }

    /// Chooses the sessions that an order holds in.
    pub(crate) fn bind(
        self: &Arc<Self>,
        order: &Order,
        rows: &[RowInfo],
        new: &mut NewSessions,
    ) -> Result<Bound, Error> {
        let mut bound = Bound::new(Arc::clone(self));
        for (limit, row) in rows.iter().enumerate() {
            let (twin, own) = (order.twin(limit, row)?, order.twins.get(limit).and_then(Option::as_ref));
            let mut params = Vec::new();
            if own.is_some() {
                twin.params(0, &mut params);
            }
            let key = (Arc::<[u8]>::from(order.key(limit)), params);
            let open = self.sessions().open.get(&key).filter(|open| open.join(self.expiry)).cloned();
            let known = open.or_else(|| new.0.get(&key).filter(|new| new.join(self.expiry)).cloned());
            bound.push(known.unwrap_or_else(|| {
                let shape = Arc::new(self.update_shape(limit, row, twin));
                let weight = usize::from(twin.weight());
                let session = Arc::new(Session::new(limit, key.clone(), own.cloned(), weight, shape));
                session.join(self.expiry);
                new.0.insert(key, Arc::clone(&session));
                session
            }));
        }
        Ok(bound)
    }

    fn update_shape(&self, limit: usize, row: &RowInfo, twin: &dyn Twin) -> Shape {
        let first = micros_floor(self.expiry);
        operation(Operation::Update, limit, row, twin, 0, first)
    }

    /// A session has an entry on the server: it takes more holds, and is looked after.
    pub(crate) fn open(self: &Arc<Self>, session: &Arc<Session>) {
        let key = (Arc::clone(&session.key), session.params.clone());
        let mut sessions = self.sessions();
        let known = sessions.open.entry(key).or_insert_with(|| Arc::clone(session));
        if known.is_closed() {
            *known = Arc::clone(session);
        }
        drop(sessions);
        self.keep(session);
    }

    /// Sees to it that a session is looked after.
    pub(crate) fn keep(self: &Arc<Self>, session: &Arc<Session>) {
        let mut sessions = self.sessions();
        if session.list() {
            sessions.listed.push(Arc::clone(session));
        }
        let (Ok(runtime), Some(_)) = (Handle::try_current(), runtime::sleep(Duration::ZERO)) else { return };
        let Some(lines) = self.lines.upgrade() else { return };
        if sessions.keepers.contains(&runtime.id()) {
            return;
        }
        sessions.keepers.push(runtime.id());
        // A runtime that is shutting down drops the task at once.
        drop(sessions);
        let keeper = Keeper { holds: Arc::clone(self), runtime: runtime.id() };
        runtime.spawn(keeper.look_after(lines));
    }

    /// Sends what some sessions have settled, or leaves it to the task.
    pub(crate) fn update(self: &Arc<Self>, sessions: &[Arc<Session>]) {
        for session in sessions {
            self.keep(session);
        }
        if let Some(lines) = self.lines.upgrade() {
            drop(self.send_update(&lines, sessions));
        }
    }

    fn send_update(
        self: &Arc<Self>,
        lines: &Lines<Calls>,
        sessions: &[Arc<Session>],
    ) -> Result<oneshot::Receiver<Answer>, Error> {
        let updates = sessions.iter().map(|session| Update::new(Arc::clone(session), Arc::clone(self))).collect();
        let rows = &lines.core.trade.rows;
        lines.push(|reply| Ok(Order::on_sessions(sessions.iter(), rows, Steps::Update(updates), reply)))
    }

    /// Charges what sessions can't settle: once at most, as nothing tells whether a charge without an answer was made.
    fn charge(lines: &Lines<Calls>, sessions: &[Arc<Session>], cost: u64) -> Result<oneshot::Receiver<Answer>, Error> {
        let rows = &lines.core.trade.rows;
        let shapes = sessions.iter().filter_map(|session| {
            let row = &rows[session.limit];
            let twin = row.twin(session.twin.as_ref())?;
            Some(Arc::new(operation(Operation::Charge, session.limit, row, twin, cost, cost)))
        });
        let steps = Steps::Operate(shapes.collect());
        lines.push(|reply| Ok(Order::on_sessions(sessions.iter(), rows, steps, reply)))
    }

    /// What is due now. `None` if there is nothing to look after; then the task of this runtime is over.
    fn due(&self, runtime: Id) -> Option<Vec<(Arc<Session>, Due)>> {
        let (mut due, now) = (Vec::new(), Instant::now());
        let mut sessions = self.sessions();
        sessions.open.retain(|_, session| !session.is_closed());
        sessions.listed.retain(|session| match session.due(now, self.expiry) {
            Due::Forget => false,
            Due::Nothing => true,
            work => {
                due.push((Arc::clone(session), work));
                true
            }
        });
        if sessions.listed.is_empty() {
            sessions.open.clear();
            sessions.keepers.retain(|keeper| *keeper != runtime);
            return None;
        }
        Some(due)
    }

    /// So many holds on keys of this limiter were settled whole, as nobody renewed them.
    pub(crate) fn expired(&self, count: usize) {
        if count > 0 {
            self.observers.emit(|| Event::HoldsExpired { store: &self.name, count });
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation on one limit.
pub(crate) fn operation(
    operation: Operation,
    limit: usize,
    row: &RowInfo,
    twin: &dyn Twin,
    cost: u64,
    first: u64,
) -> Shape {
    let mut params = Vec::new();
    twin.params(cost, &mut params);
    params.push(u64::from(row.shadow));
    let limit = u16::try_from(limit + 1).unwrap_or(u16::MAX);
    Shape { operation, limit, first, second: 0, cost, params, uses_fast_path: false }
}

/// The guard of what was granted.
pub(crate) fn guard(lines: &Arc<Lines<Calls>>, grant: Grant) -> Held {
    let (lines, cost) = (Arc::clone(lines), grant.cost);
    let holds = Arc::clone(&grant.holds);
    let sessions = grant.take();
    Held::new(cost, move |actual| {
        if cost == 0 && actual == 0 {
            return LimiterFuture::ready(Ok(()));
        }
        let sent = if cost == 0 {
            Holds::charge(&lines, &sessions, actual)
        } else {
            for session in &sessions {
                session.settle(cost, actual);
                holds.keep(session);
            }
            holds.send_update(&lines, &sessions)
        };
        match sent {
            Err(error) => LimiterFuture::ready(Err(not_settled(error))),
            Ok(answer) => LimiterFuture::pending(async move { settled(&lines.core, answer).await }),
        }
    })
}

async fn settled(core: &Core<Calls>, answer: oneshot::Receiver<Answer>) -> Result<(), Error> {
    let Some(timer) = runtime::sleep(core.deadline) else { return Err(not_settled(no_runtime())) };
    match select(answer, pin!(timer)).await {
        Either::Left((Ok(Ok(_)), _)) => Ok(()),
        Either::Left((Ok(Err(error)), _)) => Err(not_settled(error)),
        Either::Left((Err(_), _)) => Err(not_settled(lost())),
        Either::Right(_) => Err(not_settled(Error::unavailable(format!(
            "Redis ({}) did not answer within the deadline of {:?}",
            core.server.describe(),
            core.deadline
        )))),
    }
}

fn not_settled(error: Error) -> Error {
    Error::unavailable(
        "settling a held cost is not confirmed yet: Redis did not answer; it is tried again until the hold expires, and then \
         settled whole",
    )
    .with_source(error)
}

/// Looks after the sessions of a limiter from within a runtime.
struct Keeper {
    holds: Arc<Holds>,
    runtime: Id,
}

impl Keeper {
    async fn look_after(self, lines: Arc<Lines<Calls>>) {
        loop {
            sleep(self.holds.tick()).await;
            let Some(due) = self.holds.due(self.runtime) else { return };
            for (session, due) in due {
                let sessions = [session];
                match due {
                    Due::Charge(cost) => {
                        if let Ok(answer) = Holds::charge(&lines, &sessions, cost) {
                            // What nobody waits for is not sent.
                            tokio::spawn(answer);
                        }
                    }
                    _ => drop(self.holds.send_update(&lines, &sessions)),
                }
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.holds.sessions().keepers.retain(|keeper| *keeper != self.runtime);
    }
}

/// What came of a hold.
pub(crate) fn outcome(lines: &Arc<Lines<Calls>>, done: Done) -> Result<crate::limiter::Outcome, Error> {
    match done {
        Done::Decided(decision, grant) => {
            let held = grant.map(|grant| guard(lines, grant));
            Ok(crate::limiter::Outcome { decision, held })
        }
        Done::SessionExpired | Done::Operated => Err(Error::unavailable(
            "hold failed: Redis has lost what this process held on the key, twice in a row; ask again",
        )),
    }
}
