use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::clock::LeaseClock;
use super::config::Lease;
use super::held_lease::{Due, HeldLease, MIN_DEMAND, Moved, Terms};
use super::ledger::Report;
use super::renewal::{LeaseRenewal, RenewalReply};
use super::slot::{Slot, Spent};
use crate::algorithm::StateEncoding;
use crate::clock::Timestamp;
use crate::decision::{
    AcquireOptions, Decision, DecisionSource, LazySnapshot, LimitSnapshot, LimitStatus, Name, Verdict,
};
use crate::observe::{Event, Observers};
use crate::store::DefaultHashBuilder;
use crate::store::redis::script::{LimitInfo, Operation, OperationTemplate};

/// The limit whose quota is leased.
pub(crate) struct LeasedLimit {
    pub(crate) name: Name,
    /// The figures of an idle key.
    pub(crate) idle: LimitSnapshot,
    pub(crate) supports_scheduling: bool,
    /// The template of reports, with parameters for a cost of 1.
    pub(crate) template: Arc<OperationTemplate>,
    /// The run time of a report in the script.
    pub(crate) weight: usize,
}

impl LeasedLimit {
    /// Returns `None` if the limit does not support leases.
    pub(crate) fn new(limit: &LimitInfo, lease: &Lease) -> Option<Self> {
        let algorithm = limit.fixed_algorithm.as_ref()?.algorithm();
        let idle = match limit.script.state_encoding() {
            StateEncoding::Full => {
                algorithm.replay(&mut Vec::new(), Timestamp::EPOCH, AcquireOptions::cost(0), None, 0)
            }
            StateEncoding::Header => algorithm.replay_view([0; 3], Timestamp::EPOCH),
        };
        let idle = idle.compute();
        let mut template = limit.template(0, Operation::Lease, algorithm, 1, lease.duration_micros());
        template.arg2 = i64::try_from(lease.max_held(idle.limit)).unwrap_or(i64::MAX);
        Some(Self {
            name: limit.name.clone(),
            idle,
            supports_scheduling: algorithm.supports_scheduling(),
            template: Arc::new(template),
            // To find the size of a grant takes several decisions.
            weight: usize::from(algorithm.weight()).max(1) * 4,
        })
    }
}

/// The leases of a limiter.
///
/// Decisions use the slots, without a lock. Everything else is under the lock of `leases`.
pub(crate) struct LeaseBook {
    pub(super) limit: LeasedLimit,
    pub(super) terms: Terms,
    clock: LeaseClock,
    hasher: DefaultHashBuilder,
    /// Sets of [`SET`] slots. The fingerprint selects the set.
    slots: Box<[Slot]>,
    leases: Mutex<Leases>,
    /// The slots that became due since the last look.
    due: Mutex<Vec<u32>>,
    pub(super) wake: Notify,
    /// A reply has arrived.
    replied: Notify,
    /// A task renews the leases.
    pub(super) has_task: AtomicBool,
    is_closed: AtomicBool,
    limiter: String,
    observers: Observers,
}

#[derive(Default)]
struct Leases {
    /// By slot.
    leases: Vec<Option<Box<HeldLease>>>,
    /// The slots with a lease.
    live: Vec<u32>,
}

const SET: usize = 8;

impl LeaseBook {
    pub(crate) fn new(
        lease: &Lease,
        limit: LeasedLimit,
        clock: LeaseClock,
        limiter: &str,
        observers: &Observers,
    ) -> Self {
        // Twice the slots, so that few sets are full before the table is.
        let slots = (lease.keys() * 2).next_power_of_two().max(SET);
        let leases = Leases { leases: (0..slots).map(|_| None).collect(), live: Vec::new() };
        Self {
            terms: Terms::new(lease, limit.idle.limit),
            limit,
            clock,
            hasher: DefaultHashBuilder::default(),
            slots: (0..slots).map(|_| Slot::new()).collect(),
            leases: Mutex::new(leases),
            due: Mutex::default(),
            wake: Notify::new(),
            replied: Notify::new(),
            has_task: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            limiter: limiter.to_owned(),
            observers: observers.clone(),
        }
    }

    /// Returns the hash of a sub-key, never 0.
    pub(crate) fn fingerprint(&self, sub_key: &str) -> u64 {
        self.hasher.hash_one(sub_key).max(1)
    }

    /// Decides by the lease, if it has the cost.
    pub(crate) fn spend(&self, fingerprint: u64, cost: u64) -> Option<Decision> {
        let (index, slot) = self.find(fingerprint)?;
        let spent = slot.spend(fingerprint, cost, || self.clock.now())?;
        if slot.is_low(spent.left) && slot.mark_due() {
            self.push_due(index);
        }
        Some(self.decision(slot, spent))
    }

    /// Counts a decision that is made in Redis. If there is enough demand, a lease on `key` begins. Returns whether the
    /// key has a lease.
    pub(crate) fn count_demand(&self, fingerprint: u64, cost: u64, key: impl FnOnce() -> Option<Arc<[u8]>>) -> bool {
        if self.is_closed.load(Ordering::Relaxed) {
            return false;
        }
        let now = self.clock.now();
        let Some((index, slot)) = self.find(fingerprint) else {
            self.watch(fingerprint, cost, now);
            return false;
        };
        if slot.is_leased() {
            slot.add_demand(cost);
            if slot.mark_due() {
                self.push_due(index);
            }
        } else if slot.count_demand(cost, now, self.terms.duration) >= MIN_DEMAND
            && let Some(key) = key()
        {
            self.begin(index, fingerprint, key);
        }
        slot.is_leased()
    }

    /// Begins to count the demand on a key, if its set has a slot of a cold key.
    fn watch(&self, fingerprint: u64, cost: u64, now: u64) {
        let Ok(leases) = self.leases.try_lock() else { return };
        let first = self.set_of(fingerprint);
        let free = (first..first + SET).find(|&index| leases.leases[index].is_none() && self.slots[index].is_cold(now));
        if let Some(index) = free
            && self.find(fingerprint).is_none()
        {
            let slot = &self.slots[index];
            slot.assign(fingerprint);
            slot.count_demand(cost, now, self.terms.duration);
        }
    }

    fn begin(&self, index: u32, fingerprint: u64, key: Arc<[u8]>) {
        let slot = &self.slots[index as usize];
        let mut leases = self.leases();
        if slot.fingerprint() != fingerprint || leases.leases[index as usize].is_some() {
            return;
        }
        let lease = HeldLease::new(key, slot.lease(self.terms.duration));
        leases.leases[index as usize] = Some(Box::new(lease));
        leases.live.push(index);
        drop(leases);
        if slot.mark_due() {
            self.push_due(index);
        }
    }

    /// Returns the reports that are due: of all leases, or of those that became due since the last call.
    pub(super) fn take_due(self: &Arc<Self>, all: bool) -> Vec<LeaseRenewal> {
        let is_closing = self.is_closed.load(Ordering::Acquire);
        let (now, mut renewals) = (self.clock.now(), Vec::new());
        let mut guard = self.leases();
        let Leases { leases, live } = &mut *guard;
        let mut visited = std::mem::take(&mut *self.due.lock().unwrap_or_else(PoisonError::into_inner));
        if all {
            visited.clone_from(live);
        }
        let mut has_ended = false;
        for index in visited {
            let slot = &self.slots[index as usize];
            let Some(lease) = &mut leases[index as usize] else { continue };
            match lease.due(slot, &self.terms, now, is_closing) {
                Due::Nothing => {}
                Due::Send(report) => {
                    let (id, key) = (lease.id, Arc::clone(&lease.key));
                    renewals.push(LeaseRenewal::new(Arc::clone(self), index, id, report, key));
                }
                Due::Drop => {
                    leases[index as usize] = None;
                    slot.end_lease();
                    has_ended = true;
                }
            }
        }
        if has_ended {
            live.retain(|index| leases[*index as usize].is_some());
        }
        drop(guard);
        renewals
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leases().live.is_empty()
    }

    /// Begins to release all leases, and no other begins.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Waits for a reply, or a short time.
    pub(super) async fn replied(&self, at_most: Duration) {
        let _ = tokio::time::timeout(at_most, self.replied.notified()).await;
    }

    pub(super) fn finish(&self, index: u32, report: &Report, reply: &RenewalReply) {
        let slot = &self.slots[index as usize];
        let mut moved = Moved::default();
        if let Some(lease) = &mut self.leases().leases[index as usize] {
            if let Some(figures) = reply.figures {
                let reset = u64::try_from(figures.reset.as_micros()).unwrap_or(u64::MAX);
                slot.set_reported(figures.remaining, reply.now.saturating_add(reset));
            }
            moved = lease.finish(slot, &self.terms, report, reply.reply, self.clock.now());
        }
        self.replied.notify_waiters();
        let Moved { granted, spent, returned, lost } = moved;
        self.observers.emit(|| Event::LeaseRenewed { store: &self.limiter, granted, spent, returned, lost });
    }

    pub(super) fn fail(&self, index: u32) {
        if let Some(lease) = &mut self.leases().leases[index as usize] {
            lease.fail(&self.terms, self.clock.now());
        }
        self.replied.notify_waiters();
    }

    fn set_of(&self, fingerprint: u64) -> usize {
        let sets = self.slots.len() / SET;
        #[allow(clippy::cast_possible_truncation, reason = "a part of a hash")]
        let set = fingerprint as usize & (sets - 1);
        set * SET
    }

    fn find(&self, fingerprint: u64) -> Option<(u32, &Slot)> {
        let first = self.set_of(fingerprint);
        let position = self.slots[first..first + SET].iter().position(|slot| slot.fingerprint() == fingerprint)?;
        let index = first + position;
        #[allow(clippy::cast_possible_truncation, reason = "at most 2^25 slots")]
        Some((index as u32, &self.slots[index]))
    }

    fn push_due(&self, index: u32) {
        self.due.lock().unwrap_or_else(PoisonError::into_inner).push(index);
        self.wake.notify_one();
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decision(&self, slot: &Slot, spent: Spent) -> Decision {
        let (reported, idle_at) = slot.reported();
        let limit = self.limit.idle.limit;
        let remaining = reported.saturating_add(spent.left.into()).min(limit);
        let window = u64::try_from(self.limit.idle.window.as_micros()).unwrap_or(u64::MAX);
        let snapshot = LazySnapshot::new([limit, window, remaining, idle_at, spent.at], snapshot);
        let status = LimitStatus::from_verdict(self.limit.name.clone(), Verdict::Allowed, snapshot, false);
        let decided_at = Timestamp::from_micros(spent.at);
        Decision::from_store(decided_at, self.limit.supports_scheduling, status).with_source(DecisionSource::Lease)
    }
}

/// The figures of a leased decision: estimates.
fn snapshot(&[limit, window, remaining, idle_at, at]: &[u64; 5]) -> LimitSnapshot {
    let next_token = if remaining < limit { window / limit.max(1) } else { 0 };
    LimitSnapshot {
        limit,
        window: Duration::from_micros(window),
        remaining,
        reset: Duration::from_micros(idle_at.saturating_sub(at)),
        next_token_after: Duration::from_micros(next_token),
    }
}
