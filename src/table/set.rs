use super::holds::Holds;
use crate::algorithm::AtomicState;
use crate::sync::{AtomicU64, Backoff, Ordering};

/// With three slots a version, the fingerprints and cells of four words fill two cache lines.
#[cfg(not(loom))]
pub(super) const SLOTS: usize = 3;
/// loom tries every order of every access: fewer slots, the same code.
#[cfg(loom)]
pub(super) const SLOTS: usize = 1;

/// The slots' indices.
#[allow(clippy::cast_possible_truncation, reason = "there are three at most")]
pub(super) fn all_slots() -> std::ops::Range<u8> {
    0..SLOTS as u8
}

/// A few slots under one sequence lock.
///
/// In this order: what a decision reads of other keys is all in the first cache line. Two lines that are aligned to both
/// are what many processors fetch together.
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

    /// The version that a reading starts from. An odd one vouches for nothing: `is_at` and `lock` fail with it.
    #[inline(always)]
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether what was read since `version()` returned `version` is consistent.
    ///
    /// Every load of a reading acquires and every store of a writer releases: a reader who saw anything of a writer sees
    /// here at least that writer's odd version.
    #[inline(always)]
    pub(super) fn is_at(&self, version: u64) -> bool {
        version & 1 == 0 && self.version.load(Ordering::Acquire) == version
    }

    #[inline(always)]
    pub(super) fn lock(&self, version: u64) -> bool {
        version & 1 == 0
            && self.version.compare_exchange(version, version + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Waits for the lock, and returns the version to unlock with.
    pub(super) fn lock_whenever(&self) -> u64 {
        let mut backoff = Backoff::new();
        loop {
            let version = self.version();
            if self.lock(version) {
                return version;
            }
            backoff.wait();
        }
    }

    #[inline(always)]
    pub(super) fn unlock(&self, version: u64) {
        self.version.store(version + 2, Ordering::Release);
    }

    #[inline(always)]
    pub(super) fn unlock_unchanged(&self, version: u64) {
        self.version.store(version, Ordering::Release);
    }

    /// By branches, though which slot it is nobody can foretell: a processor that guesses right reads on while the line is still
    /// on its way, and to select a slot without them would wait for it each time.
    #[inline(always)]
    pub(super) fn find(&self, fingerprint: u64) -> Option<u8> {
        all_slots().find(|&slot| self.fingerprint(slot) == fingerprint)
    }

    #[inline(always)]
    pub(super) fn fingerprint(&self, slot: u8) -> u64 {
        self.fingerprints[usize::from(slot)].load(Ordering::Acquire)
    }

    #[inline(always)]
    pub(super) fn cell(&self, slot: u8) -> &C {
        &self.cells[usize::from(slot)]
    }

    /// A slot that is empty or idle at `now`, and whose key has nothing held: empty ones, whose first word is zero, are idle
    /// at any time.
    #[inline(always)]
    pub(super) fn free_slot(&self, now: u64, holds: &Holds) -> Option<u8> {
        all_slots().find(|&slot| self.cell(slot).idle_at() <= now && holds.of(self.fingerprint(slot)) == 0)
    }

    /// Under the lock: gives an idle slot to a new key, in the zero state.
    #[inline(always)]
    pub(super) fn occupy(&self, slot: u8, fingerprint: u64) {
        self.cell(slot).clear();
        self.fingerprints[usize::from(slot)].store(fingerprint, Ordering::Release);
    }

    /// Under the lock: empties a slot, with no trace in the horizon.
    pub(super) fn vacate(&self, slot: u8) {
        self.fingerprints[usize::from(slot)].store(0, Ordering::Release);
        self.cell(slot).clear();
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.cells.iter().map(AtomicState::heap_bytes).sum()
    }

    pub(super) fn live(&self, now: u64) -> usize {
        self.cells.iter().filter(|cell| cell.idle_at() > now).count()
    }
}
