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

    /// Loads the version that a reading depends on. `validate` and `try_lock` fail with an odd version.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns whether all that was read since `version()` returned `version` is consistent.
    ///
    /// Every load of a reading acquires and every store of a writer releases. So a reader that has loaded any word of a
    /// writer loads at least that writer's odd version here. With relaxed loads it could load the old version.
    #[inline]
    pub(super) fn validate(&self, version: u64) -> bool {
        version & 1 == 0 && self.version.load(Ordering::Acquire) == version
    }

    /// Locks the set, unless anything in it has changed since `version` was loaded.
    #[inline]
    pub(super) fn try_lock(&self, version: u64) -> bool {
        version & 1 == 0
            && self.version.compare_exchange(version, version + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Locks the set, waiting for other threads. Returns the version to unlock with.
    pub(super) fn lock(&self) -> u64 {
        let mut backoff = Backoff::new();
        loop {
            let version = self.version();
            if self.try_lock(version) {
                return version;
            }
            backoff.wait();
        }
    }

    /// Unlocks after a change.
    #[inline]
    pub(super) fn unlock(&self, version: u64) {
        self.version.store(version + 2, Ordering::Release);
    }

    /// Unlocks with nothing changed: readings from before the lock stay valid.
    pub(super) fn unlock_unchanged(&self, version: u64) {
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
        all_slots().find(|&slot| self.cell(slot).idle_at() <= now && holds.of(self.fingerprint(slot)) == 0)
    }

    /// Under the lock: gives a free slot to a key, in the zero state.
    #[inline]
    pub(super) fn claim(&self, slot: u8, fingerprint: u64) {
        self.cell(slot).clear();
        self.fingerprints[usize::from(slot)].store(fingerprint, Ordering::Release);
    }

    /// Under the lock: empties a slot, without raising the horizon.
    pub(super) fn clear_slot(&self, slot: u8) {
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
