//! The baseline: the least work that a keyed GCRA decision can take.
//!
//! One probe in a fixed table and one compare-and-swap on the theoretical arrival time. The baseline is not a
//! limiter: it never evicts, it returns only a `bool`, and it takes two keys with the same hash for one key.

use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicU64, Ordering};

use tower_ratelimit::{Clock, Timestamp};

/// The least work that a time can take: the processor's counter and one multiplication. It drifts.
pub(crate) struct RawClock {
    counter: quanta::Clock,
    multiplier: u64,
}

impl RawClock {
    pub(crate) fn new() -> Self {
        let counter = quanta::Clock::new();
        let nanos = counter.delta_as_nanos(0, 1 << 40);
        Self { counter, multiplier: ((u128::from(nanos) << 24) / 1_000) as u64 }
    }
}

impl Clock for RawClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(((u128::from(self.counter.raw()) * u128::from(self.multiplier)) >> 64) as u64)
    }
}

pub(crate) struct Baseline<C> {
    slots: Box<[Slot]>,
    hasher: foldhash::quality::RandomState,
    clock: C,
    interval: u64,
    tolerance: u64,
}

#[repr(align(16))]
#[derive(Default)]
struct Slot {
    fingerprint: AtomicU64,
    tat: AtomicU64,
}

impl<C: Clock> Baseline<C> {
    /// Creates a table with capacity for at least twice `keys`. `interval` and `tolerance` are in microseconds.
    pub(crate) fn new(keys: usize, interval: u64, tolerance: u64, clock: C) -> Self {
        let slots = (keys * 2).next_power_of_two();
        Self {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            hasher: foldhash::quality::RandomState::default(),
            clock,
            interval,
            tolerance,
        }
    }

    #[inline]
    pub(crate) fn allows(&self, key: &(impl Hash + ?Sized)) -> bool {
        let hash = self.hasher.hash_one(key);
        let mask = self.slots.len() - 1;
        let mut index = hash as usize & mask;
        let slot = loop {
            let slot = &self.slots[index];
            let stored = slot.fingerprint.load(Ordering::Relaxed);
            if stored == hash {
                break slot;
            }
            if stored == 0 {
                slot.fingerprint.store(hash, Ordering::Relaxed);
                break slot;
            }
            index = (index + 1) & mask;
        };
        let now = self.clock.now().as_micros();
        let mut tat = slot.tat.load(Ordering::Relaxed);
        loop {
            let next = tat.max(now) + self.interval;
            if next > now + self.tolerance {
                return false;
            }
            match slot.tat.compare_exchange_weak(tat, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(current) => tat = current,
            }
        }
    }
}
