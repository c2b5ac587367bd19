use std::hash::{BuildHasher as _, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use foldhash::quality::RandomState;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::config::{Lease, LeaseClock};
use super::held_lease::{HeldLease, LeaseDue, Moved};
use super::ledger::LeaseReply;
use super::quota::{LeasedLimit, LeasedQuota, QuotaFigures};
use super::slot::LeaseSlot;
use super::spending::LeasePart;
use super::task::LeaseRenewal;
use crate::clock::Timestamp;
use crate::decision::{AcquireOptions, LimitSnapshot};
use crate::error::Error;
use crate::observe::Event;
use crate::store::inner::{Observers, micros_floor};
use crate::store::redis::script::{LimitSet, OwnAlgorithm};

/// The leases of a limiter: one for each limit, sub-key and quota with enough demand.
///
/// Decisions use the slots, without a lock. Everything else is under the lock of `leases`.
pub(crate) struct LeaseBook {
    pub(super) config: Lease,
    limit_set: Arc<LimitSet>,
    pub(super) limits: Vec<LeasedLimit>,
    pub(super) has_shadows: bool,
    pub(super) has_marks: bool,
    pub(super) clock: LeaseClock,
    hasher: RandomState,
    /// The fingerprint selects the set.
    sets: Box<[[LeaseSlot; SET]]>,
    /// The figures of the quota of each slot's key. Empty if all limits have one quota for all keys.
    pub(super) quotas: Box<[ArcSwapOption<QuotaFigures>]>,
    pub(super) leases: Mutex<Leases>,
    /// The slots that became due since the last look.
    due: Mutex<Vec<u32>>,
    pub(super) wake: Notify,
    /// A reply has arrived.
    pub(super) replied: Notify,
    /// The number of the task that renews the leases. Each task has a higher one than those before.
    pub(super) task: AtomicU64,
    /// When the task ran last, by the clock of the leases; 0 for no task.
    pub(super) task_ran_at: AtomicU64,
    /// The runtime of the task, which also sends reports of threads without a runtime.
    pub(super) runtime: Mutex<Option<Handle>>,
    pub(crate) is_closed: AtomicBool,
    limiter: String,
    observers: Observers,
}

#[derive(Default)]
pub(super) struct Leases {
    /// By slot.
    leases: Vec<Option<Box<HeldLease>>>,
    /// The slots with a lease.
    live: Vec<u32>,
}

impl Leases {
    pub(super) fn is_free(&self, slot: u32) -> bool {
        self.leases[slot as usize].is_none()
    }

    /// Returns the lease of a report. By the end of a report that was given up, another lease may have the slot.
    fn of_renewal(&mut self, renewal: &LeaseRenewal) -> Option<&mut HeldLease> {
        self.leases[renewal.slot as usize].as_deref_mut().filter(|lease| lease.id == renewal.id)
    }

    pub(super) fn insert(&mut self, slot: u32, lease: HeldLease) {
        self.leases[slot as usize] = Some(Box::new(lease));
        self.live.push(slot);
    }
}

const SET: usize = 8;

impl LeaseBook {
    /// Returns an error if the settings are invalid, or leases do not support a limit.
    pub(crate) fn new(
        config: Lease,
        limit_set: Arc<LimitSet>,
        clock: LeaseClock,
        limiter: &str,
        observers: &Observers,
    ) -> Result<Self, Error> {
        config.check()?;
        let limits = (0..limit_set.limits.len()).map(|index| LeasedLimit::new(&limit_set, index, &config));
        let limits: Vec<_> = limits.collect::<Result<_, _>>()?;
        // Twice the slots, so that few sets are full before the table is.
        let slots = (config.max_keys * 2).next_power_of_two().max(SET);
        let leases = Leases { leases: (0..slots).map(|_| None).collect(), live: Vec::new() };
        let quotas = if limits.iter().all(|limit| limit.fixed.is_some()) { 0 } else { slots };
        Ok(Self {
            config,
            has_shadows: limits.iter().any(|limit| limit.info.facts.is_shadow),
            has_marks: limits.iter().any(|limit| limit.info.warn_keys.is_some()),
            limit_set,
            limits,
            clock,
            hasher: RandomState::default(),
            sets: (0..slots / SET).map(|_| std::array::from_fn(|_| LeaseSlot::default())).collect(),
            quotas: (0..quotas).map(|_| ArcSwapOption::empty()).collect(),
            leases: Mutex::new(leases),
            due: Mutex::default(),
            wake: Notify::new(),
            replied: Notify::new(),
            task: AtomicU64::new(0),
            task_ran_at: AtomicU64::new(0),
            runtime: Mutex::default(),
            is_closed: AtomicBool::new(false),
            limiter: limiter.to_owned(),
            observers: observers.clone(),
        })
    }

    /// Returns what a decision needs of a limit. `hash` feeds the sub-key, and the parameters of the algorithm if the key
    /// chooses it: a key with another quota has another lease.
    #[inline]
    pub(crate) fn part(&self, limit: usize, options: AcquireOptions, hash: impl FnOnce(&mut dyn Hasher)) -> LeasePart {
        /// The golden ratio. Its multiples are apart, and so are equal sub-keys of several limits.
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let mut hasher = self.hasher.build_hasher();
        hash(&mut hasher);
        let fingerprint = hasher.finish().wrapping_add(STEP.wrapping_mul(limit as u64)).max(1);
        LeasePart { fingerprint, cost: self.limits[limit].info.facts.cost.options(options).cost }
    }

    /// Returns the quota of a key at a limit. `own` is the algorithm that the key chooses.
    pub(crate) fn quota(&self, index: usize, own: OwnAlgorithm) -> Option<Arc<LeasedQuota>> {
        let Some(own) = own else { return self.limits[index].fixed.clone() };
        let now = Timestamp::from_micros(self.clock.now());
        let mut quota = LeasedQuota::new(&self.limit_set, index, &*own, &self.config, now);
        quota.entry.algorithm = Some(own);
        Some(Arc::new(quota))
    }

    /// Returns the reports that are due: of all leases, or of those that became due since the last call.
    pub(super) fn take_due(self: &Arc<Self>, all: bool) -> Vec<LeaseRenewal> {
        let is_closing = self.is_closed.load(Ordering::Acquire);
        let (now, mut renewals) = (self.clock.now(), Vec::new());
        let mut guard = self.leases();
        let Leases { leases, live } = &mut *guard;
        // The order of the locks is `leases`, then `due`.
        let mut visited = std::mem::take(&mut *self.due.lock().unwrap_or_else(PoisonError::into_inner));
        if all {
            visited.clone_from(live);
        }
        let mut has_ended = false;
        for index in visited {
            let slot = self.slot(index);
            let Some(lease) = &mut leases[index as usize] else { continue };
            match lease.due(slot, &self.config, now, is_closing) {
                LeaseDue::Nothing => {}
                LeaseDue::Send(report) => {
                    renewals.push(LeaseRenewal::new(Arc::clone(self), index, lease, report));
                }
                LeaseDue::Drop { rests_until } => {
                    leases[index as usize] = None;
                    slot.rest_until(rests_until);
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

    /// The number of leases.
    pub(crate) fn len(&self) -> usize {
        self.leases().live.len()
    }

    /// Begins to release all leases, and no other begins.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// The next report of each lease does not wait for the reply to the last one, and carries its sums.
    pub(super) fn give_up_reports(&self) {
        self.leases().leases.iter_mut().flatten().for_each(|lease| lease.is_in_flight = false);
    }

    /// Records the reply to a report: see [`LeaseRenewal::finish`].
    pub(super) fn finish(
        &self,
        renewal: &LeaseRenewal,
        reply: LeaseReply,
        server_time: u64,
        figures: Option<LimitSnapshot>,
    ) {
        let slot = self.slot(renewal.slot);
        let mut moved = Moved::default();
        if let Some(lease) = self.leases().of_renewal(renewal) {
            if let Some(figures) = figures {
                let reset = micros_floor(figures.reset);
                slot.set_reported(figures.remaining, server_time.saturating_add(reset));
            }
            moved = lease.finish(slot, &self.config, &renewal.report, reply, self.clock.now());
        }
        self.replied.notify_waiters();
        let Moved { granted, spent, returned, lost } = moved;
        self.observers.emit_in_task(|| Event::LeaseRenewed { store: &self.limiter, granted, spent, returned, lost });
    }

    pub(super) fn fail(&self, renewal: &LeaseRenewal) {
        if let Some(lease) = self.leases().of_renewal(renewal) {
            lease.fail(&self.config, self.clock.now());
        }
        // `release_all` is not woken: it would send the report again at once, as often as it fails.
    }

    /// The slots in which a key can be. The key's own position is first, so that most keys are found by one look.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "parts of a hash, and at most 2^25 slots")]
    pub(super) fn set_of(&self, fingerprint: u64) -> impl Iterator<Item = (u32, &LeaseSlot)> {
        let (set, position) = (fingerprint as usize & (self.sets.len() - 1), (fingerprint >> 32) as usize);
        let slots = &self.sets[set];
        (position..position + SET).map(move |position| {
            let position = position % SET;
            ((set * SET + position) as u32, &slots[position])
        })
    }

    #[inline]
    pub(super) fn find(&self, fingerprint: u64) -> Option<(u32, &LeaseSlot)> {
        self.set_of(fingerprint).find(|(_, slot)| slot.fingerprint() == fingerprint)
    }

    #[inline]
    pub(super) fn slot(&self, index: u32) -> &LeaseSlot {
        let index = index as usize;
        &self.sets[index / SET][index % SET]
    }

    #[cold]
    pub(super) fn push_due(&self, index: u32) {
        self.due.lock().unwrap_or_else(PoisonError::into_inner).push(index);
        self.wake.notify_one();
    }

    pub(super) fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
