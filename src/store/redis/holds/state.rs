use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::redis::script::{EntryTarget, MAX_EXACT};

/// The part of the expiry after which an update is sent again, if it has no end or has failed.
pub(super) const UPDATE_PATIENCE: u32 = 6;

/// The time at which a hold ends at the latest, made unique by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionDeadline {
    pub(super) at: Instant,
    pub(super) id: u64,
}

/// The life of a session. What is true once stays true.
#[derive(Clone, Copy, Default)]
pub(super) struct Phase {
    /// The server has granted a hold, so it has an entry for the session. Until a reply says so, only the call that creates
    /// the session knows it, and that call may still arrive.
    pub(super) is_granted: bool,
    /// The session accepts no more holds.
    pub(super) is_closed: bool,
    /// The server has no entry for the session any more: an update ended it, or the server has settled it on expiry.
    pub(super) is_over: bool,
}

impl Phase {
    pub(super) const OVER: Self = Self { is_granted: true, is_closed: true, is_over: true };
}

pub(super) struct SessionState {
    /// The id by which the server knows the session.
    pub(super) server_id: u64,
    pub(super) target: Arc<EntryTarget>,
    /// Holds that were sent and not answered.
    pub(super) pending: usize,
    /// Guards that have not settled.
    pub(super) guards: usize,
    /// The sum of the guards' costs.
    pub(super) held: u64,
    /// The part of it that the server does not count, because the session had expired.
    pub(super) uncounted: u64,
    /// The costs that end at the latest at a time.
    pub(super) deadlines: BTreeMap<SessionDeadline, u64>,
    pub(super) last_deadline: u64,
    /// All settlements.
    pub(super) settled: Sums,
    /// The settlements that the server has confirmed.
    pub(super) acknowledged: Sums,
    /// The surcharges in any update that was sent: the server may have applied them.
    pub(super) sent_surcharge: u64,
    /// The number of updates that were sent.
    pub(super) sent_updates: u64,
    /// Surcharges that are charged without the session, because it is over, and since when there are some.
    pub(super) detached_surcharge: u64,
    pub(super) detached_at: Instant,
    /// Updates that were queued and have not ended, and when the last one was queued.
    pub(super) updates: usize,
    pub(super) updating_since: Instant,
    pub(super) phase: Phase,
    /// The call that creates the session has ended.
    pub(super) is_created: bool,
    /// The process and the server may not agree on what the session holds: the reply to a hold is missing, or the server
    /// does not know the session. It accepts no more holds until an update has renamed it.
    pub(super) must_rename: bool,
    /// When the registry's schedule visits the session, if it contains the session.
    pub(super) visited_at: Option<Instant>,
    pub(super) created_at: Instant,
    /// When the last confirmed call was sent: the server's entry lasts at least one expiry from then.
    pub(super) renewed_at: Instant,
    pub(super) retry_at: Instant,
    pub(super) failures: u32,
}

/// Sums over the life of a session.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) released: u64,
    pub(super) charged: u64,
    /// The part of `charged` above the held costs.
    pub(super) surcharge: u64,
}

impl SessionState {
    pub(super) fn new(id: u64, target: Arc<EntryTarget>) -> Self {
        let now = Instant::now();
        Self {
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
        }
    }

    /// Whether the session holds nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.guards == 0 && self.pending == 0
    }

    /// Returns when the next work is due, which may be now.
    pub(super) fn next_visit(&self, now: Instant, expiry: Duration) -> Instant {
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

    pub(super) fn settle(&mut self, held: u64, actual: u64) {
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
    pub(super) fn lose(&mut self) {
        if !self.phase.is_over {
            self.detach(self.settled.surcharge - self.sent_surcharge);
        }
        self.phase = Phase::OVER;
    }

    pub(super) fn detach(&mut self, surcharge: u64) {
        if self.detached_surcharge == 0 {
            (self.detached_at, self.retry_at) = (Instant::now(), Instant::now());
        }
        self.detached_surcharge = self.detached_surcharge.saturating_add(surcharge);
    }
}
