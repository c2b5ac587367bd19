use super::holds::Holds;
use crate::algorithm::AtomicState;
use crate::sync::{AtomicU64, Backoff, Ordering};

/// The number of slots of a set. With three slots, the version, the fingerprints and states of four words fill two
/// cache lines.
#[cfg(not(loom))]
pub(super) const SLOTS: usize = 3;
/// loom tries every order of every access: fewer slots make fewer orders, of the same code.
#[cfg(loom)]
pub(super) const SLOTS: usize = 1;

/// Returns the indices of the slots.
#[allow(clippy::cast_possible_truncation, reason = "there are three at most")]
pub(super) fn all_slots() -> std::ops::Range<u8> {
    0..SLOTS as u8
}

/// The bit of a version that says that a writer holds the lock.
const LOCKED: u64 = 1;
/// The flag of a set in which a key has a held amount: see `holds`.
pub(super) const HELD: u64 = 1 << 1;
/// The flag of a set that is a candidate set of a blocked key: see [`Table::set_blocked`](super::Table::set_blocked).
pub(super) const BLOCKED: u64 = 1 << 2;
/// The flags of a version. The fast path decides in a set without flags only.
pub(super) const FLAGS: u64 = HELD | BLOCKED;
/// What a version grows by with each change.
const NEXT_VERSION: u64 = 1 << 3;

/// Proves that the thread holds the lock of a set. A function that needs the lock takes a reference.
///
/// Only locking makes a token. It does not name the set: the caller passes the slot or the location that it has locked.
/// It has no size, so no decision takes an instruction for it.
#[derive(Debug)]
#[must_use = "the set stays locked"]
#[allow(unreachable_pub, reason = "named by a hidden trait only")]
pub struct LockToken(());

impl LockToken {
    /// Returns a token for tests of what the lock guards, without a set.
    #[cfg(all(test, not(loom)))]
    pub(crate) const fn without_set() -> Self {
        Self(())
    }
}

/// A few slots under one sequence lock.
///
/// The order of the fields keeps all that a decision reads of other keys in the first cache line. Many processors fetch
/// two lines that are aligned to 128 bytes together.
#[repr(C, align(128))]
pub(super) struct Set<C> {
    version: AtomicU64,
    fingerprints: [AtomicU64; SLOTS],
    cells: [C; SLOTS],
}

impl<C: AtomicState> Set<C> {
    pub(super) fn new(words: usize) -> Self {
        Self {
            version: AtomicU64::new(0),
            fingerprints: std::array::from_fn(|_| AtomicU64::new(0)),
            cells: std::array::from_fn(|_| C::new(words)),
        }
    }

    /// Loads the version that a reading depends on. `validate` and `try_lock` fail with a locked version.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns whether all that was read since `version()` returned `version` is consistent.
    ///
    /// Every load of a reading acquires and every store of a writer releases. So a reader that has loaded any word of a
    /// writer loads at least that writer's locked version here. With relaxed loads it could load the old version.
    #[inline]
    pub(super) fn validate(&self, version: u64) -> bool {
        version & LOCKED == 0 && self.version.load(Ordering::Acquire) == version
    }

    /// Locks the set, unless anything in it has changed since `version` was loaded.
    #[inline]
    pub(super) fn try_lock(&self, version: u64) -> Option<LockToken> {
        // Relaxed on failure: the caller reads nothing of the set before it has loaded the version again.
        let is_locked = version & LOCKED == 0
            && self.version.compare_exchange(version, version | LOCKED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        is_locked.then_some(LockToken(()))
    }

    /// Locks the set, waiting for other threads. Returns the version to unlock with.
    pub(super) fn lock(&self) -> (u64, LockToken) {
        let mut backoff = Backoff::new();
        loop {
            let version = self.version();
            if let Some(token) = self.try_lock(version) {
                return (version, token);
            }
            backoff.wait();
        }
    }

    /// Unlocks after a change, with the flags of `version`.
    #[inline]
    pub(super) fn unlock(&self, version: u64, _: &LockToken) {
        // 61 bits count changes: at one per nanosecond, the sum overflows after 73 years.
        self.version.store(version + NEXT_VERSION, Ordering::Release);
    }

    /// Unlocks after a change, perhaps of the flags.
    #[inline]
    pub(super) fn unlock_with_flags(&self, version: u64, token: &LockToken) {
        self.unlock((version & !FLAGS) | self.flags(), token);
    }

    /// Sets or clears a flag.
    pub(super) fn set_flag(&self, flag: u64, value: bool, _: &LockToken) {
        // Only the thread that holds the lock stores the version, so no change is lost between the load and the store.
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(if value { version | flag } else { version & !flag }, Ordering::Release);
    }

    #[inline]
    pub(super) fn flags(&self) -> u64 {
        self.version.load(Ordering::Relaxed) & FLAGS
    }

    /// Unlocks with nothing changed: readings from before the lock stay valid.
    pub(super) fn unlock_unchanged(&self, version: u64, _: &LockToken) {
        self.version.store(version, Ordering::Release);
    }

    /// Finds the slot of a key.
    ///
    /// With branches: a processor that predicts the slot goes on before the cache line arrives. A selection without
    /// branches would wait for the line each time (row "1000 keys").
    #[inline]
    pub(super) fn find(&self, fingerprint: u64) -> Option<u8> {
        all_slots().find(|&slot| self.fingerprint(slot) == fingerprint)
    }

    #[inline]
    pub(super) fn fingerprint(&self, slot: u8) -> u64 {
        self.fingerprints[usize::from(slot)].load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn cell(&self, slot: u8) -> &C {
        &self.cells[usize::from(slot)]
    }

    /// Finds a slot that is empty or idle at `now`, and whose key has no held amount. An empty slot is idle at any
    /// time, as the first word of its state is zero.
    // Row "insertion" of docs/performance.md.
    #[inline(always)]
    pub(super) fn find_free(&self, now: u64, holds: &Holds) -> Option<u8> {
        all_slots().find(|&slot| self.cell(slot).idle_at() <= now && !self.is_held(slot, holds))
    }

    /// Returns the first time after `now` at which a key of the set is idle.
    pub(super) fn next_idle_at(&self, now: u64) -> u64 {
        let times = self.cells.iter().map(AtomicState::idle_at);
        times.filter(|idle_at| *idle_at > now).min().unwrap_or(u64::MAX)
    }

    /// Returns whether the key in a slot has a held amount.
    #[inline]
    pub(super) fn is_held(&self, slot: u8, holds: &Holds) -> bool {
        self.flags() & HELD != 0 && holds.of(self.fingerprint(slot)) > 0
    }

    /// Sets the flag if a key in a slot has a held amount, and clears it otherwise.
    pub(super) fn update_held(&self, holds: &Holds, token: &LockToken) {
        // Most tables have few held amounts at a time: row "hold and settle" of docs/performance.md.
        let is_any_held = !holds.is_empty(token) && all_slots().any(|slot| holds.of(self.fingerprint(slot)) > 0);
        self.set_flag(HELD, is_any_held, token);
    }

    /// Gives a free slot to a key, in the zero state.
    #[inline]
    pub(super) fn claim(&self, slot: u8, fingerprint: u64, _: &LockToken) {
        self.cell(slot).clear();
        self.fingerprints[usize::from(slot)].store(fingerprint, Ordering::Release);
    }

    /// Empties a slot, without raising the horizon.
    pub(super) fn clear_slot(&self, slot: u8, _: &LockToken) {
        // A horizon is for usage that drains unseen. Here the state lives on in another set, or its usage is dropped on
        // purpose (a reset, an eviction), or kept as an inherited debt.
        self.fingerprints[usize::from(slot)].store(0, Ordering::Release);
        self.cell(slot).clear();
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.cells.iter().map(AtomicState::heap_bytes).sum()
    }

    pub(super) fn count_live(&self, now: u64) -> usize {
        self.cells.iter().filter(|cell| cell.idle_at() > now).count()
    }
}
