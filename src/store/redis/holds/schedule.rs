use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::session::{Session, SessionDue};

/// The key in Redis, and the parameters of an algorithm that is chosen by the key.
pub(super) type SessionKey = (Arc<[u8]>, Vec<u64>);

/// The sessions of a limiter, by the time of their next visit.
///
/// A session is visited when it must be renewed. So the session that expires first comes first. The updates of many
/// sessions that are due at once are spread over a quarter of the expiry, of which two thirds are left then.
pub(super) struct Schedule {
    /// The sessions that accept more holds, or will when they are renamed. There are several after lost replies.
    pub(super) open: HashMap<SessionKey, Vec<Arc<Session>>>,
    visits: BTreeMap<(Instant, u64), Arc<Session>>,
    /// By key the number of sessions whose creating calls are in flight.
    pub(super) creating: HashMap<Arc<[u8]>, usize>,
    /// When updates were taken last.
    taken_at: Instant,
}

impl Schedule {
    /// The updates that are always taken at once: a call with some of them costs less than some calls.
    const MIN_TAKEN: usize = 16;

    pub(super) fn new() -> Self {
        Self { open: HashMap::new(), visits: BTreeMap::new(), creating: HashMap::new(), taken_at: Instant::now() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.visits.is_empty()
    }

    /// Plans the next visit of a session. Adds the session if it is not in the schedule and `adds` is true.
    pub(super) fn plan(&mut self, session: &Arc<Session>, expiry: Duration, adds: bool) {
        if session.end_creation()
            && let Some(count) = self.creating.get_mut(&session.key)
        {
            *count -= 1;
            if *count == 0 {
                self.creating.remove(&session.key);
            }
        }
        if let Some((planned, next)) = session.plan_visit(expiry, adds) {
            if let Some(planned) = planned {
                self.visits.remove(&(planned, session.id));
            }
            self.visits.insert((next, session.id), Arc::clone(session));
        }
    }

    /// Returns the work that is due, of at most `max` sessions, and at most the share of this time.
    pub(super) fn take_due(&mut self, max: usize, expiry: Duration) -> Vec<(Arc<Session>, SessionDue)> {
        let (now, mut due) = (Instant::now(), Vec::new());
        let max = max.min(self.share(now, expiry));
        while due.len() < max
            && let Some(first) = self.visits.first_entry().filter(|first| first.key().0 <= now)
        {
            let session = first.remove();
            let (work, next) = session.visit(now, expiry);
            match next {
                None => self.forget(&session),
                Some(next) => drop(self.visits.insert((next, session.id), Arc::clone(&session))),
            }
            due.extend(work.map(|work| (session, work)));
        }
        self.taken_at = now;
        due
    }

    /// The time until the next visit. Zero if there is none.
    pub(super) fn until_next(&self) -> Duration {
        let first = self.visits.first_key_value();
        first.map_or(Duration::ZERO, |((next, _), _)| next.saturating_duration_since(Instant::now()))
    }

    /// Returns how many updates may be taken now, so that all sessions together take a quarter of the expiry.
    fn share(&self, now: Instant, expiry: Duration) -> usize {
        let elapsed = now.saturating_duration_since(self.taken_at).as_micros();
        let all = self.visits.len();
        let share = elapsed.saturating_mul(all as u128) / (expiry / 4).as_micros().max(1);
        usize::try_from(share).unwrap_or(all).saturating_add(1).max(Self::MIN_TAKEN)
    }

    fn forget(&mut self, session: &Arc<Session>) {
        let key = (Arc::clone(&session.key), session.params.clone());
        let Some(open) = self.open.get_mut(&key) else { return };
        open.retain(|known| !Arc::ptr_eq(known, session));
        if open.is_empty() {
            self.open.remove(&key);
        }
    }
}
