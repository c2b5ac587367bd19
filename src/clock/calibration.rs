use std::sync::atomic::{AtomicU64, Ordering};

/// Converts a hardware counter to time, and keeps it with a reference clock.
///
/// The time is `base + micros of the counter + correction`. Both clocks drift apart, so the correction is computed
/// again in each *interval* of the counter, which is about a second. One word holds the number of the interval and its
/// correction. So no reader combines the correction of one interval with the counter of another, and a reading takes
/// one load and one multiplication: row "memory clock" of benches/figures.md.
///
/// # The time never steps back
///
/// All readings under one word are before the *end* of its interval: the time at which the counter reaches the next
/// interval. A thread replaces a word only if the reference has reached that end, and the first reading under the new
/// word is the reference. Until then, if the counter was ahead, readings return the end: the time stands still.
#[derive(Debug)]
pub(super) struct Calibration {
    /// Microseconds per tick of the counter, as a fraction of 2^64.
    multiplier: u64,
    /// The time at which the counter was zero, modulo 2^64.
    base: u64,
    /// The number of the interval in the lower [`EPOCH_BITS`], and the correction in microseconds, signed, above.
    word: AtomicU64,
}

/// The length of an interval is 2^20 microseconds of the counter: 1.05 seconds.
const INTERVAL_BITS: u32 = 20;
/// Intervals have different numbers for 35 years of the counter. A correction is less than 2.3 hours.
const EPOCH_BITS: u32 = 30;
const EPOCH_MASK: u64 = (1 << EPOCH_BITS) - 1;
/// The word of a counter that is further from the reference than any correction, for example because the counter ran
/// on during a suspension. No interval has this number, so all further readings come from the reference.
const UNUSABLE: u64 = u64::MAX;

impl Calibration {
    /// Creates a calibration with `nanos` per `ticks` of the counter, for a counter of `raw` at the time `micros`.
    pub(super) fn new(nanos: u64, ticks: u64, raw: u64, micros: u64) -> Self {
        let multiplier = (u128::from(nanos) << 64) / (u128::from(ticks.max(1)) * 1_000);
        let multiplier = u64::try_from(multiplier).unwrap_or(u64::MAX);
        let counted = counted(multiplier, raw);
        let base = micros.wrapping_sub(counted);
        Self { multiplier, base, word: AtomicU64::new(word(counted, 0)) }
    }

    /// Returns the time at which the counter was `raw`. Returns `None` if the calibration is not of that interval.
    #[inline]
    pub(super) fn time(&self, raw: u64) -> Option<u64> {
        // Relaxed: the word orders no other access, and no thread loads an older word after a newer one.
        self.time_under(self.word.load(Ordering::Relaxed), self.counted(raw))
    }

    #[inline]
    fn time_under(&self, word: u64, counted: u64) -> Option<u64> {
        (counted >> INTERVAL_BITS == word & EPOCH_MASK).then(|| self.corrected(word, counted))
    }

    #[inline]
    fn corrected(&self, word: u64, counted: u64) -> u64 {
        self.base.wrapping_add(counted).wrapping_add_signed(word.cast_signed() >> EPOCH_BITS)
    }

    /// Returns the microseconds of the counter.
    #[inline]
    pub(super) fn counted(&self, raw: u64) -> u64 {
        counted(self.multiplier, raw)
    }

    /// Returns the time, and computes the correction of the present interval unless another thread has done so.
    ///
    /// `sample` returns the time of the reference, and the counter at that time or a little later.
    #[cold]
    pub(super) fn recalibrate(&self, sample: impl Fn() -> (u64, u64)) -> u64 {
        loop {
            let current = self.word.load(Ordering::Relaxed);
            let (reference, raw) = sample();
            let counted = self.counted(raw);
            if current == UNUSABLE {
                return reference;
            }
            if let Some(time) = self.time_under(current, counted) {
                return time;
            }
            let end = self.corrected(current, ((current & EPOCH_MASK) + 1) << INTERVAL_BITS);
            if reference < end {
                return end;
            }
            let correction = reference.wrapping_sub(self.base).wrapping_sub(counted).cast_signed();
            let next = word(counted, correction);
            // A thread that was slower returns the time under the new word, not its own reading of the reference: that
            // may be ahead of the counter's next readings.
            if self.word.compare_exchange(current, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return reference;
            }
        }
    }
}

/// Returns the word of the interval that contains `counted`.
fn word(counted: u64, correction: i64) -> u64 {
    let (epoch, stored) = (counted >> INTERVAL_BITS, correction << EPOCH_BITS);
    if epoch < EPOCH_MASK && stored >> EPOCH_BITS == correction { stored.cast_unsigned() | epoch } else { UNUSABLE }
}

#[inline]
fn counted(multiplier: u64, raw: u64) -> u64 {
    ((u128::from(raw) * u128::from(multiplier)) >> 64) as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::thread;

    use super::*;
    use crate::random::Random;

    const SECOND: u64 = 1_000_000;
    /// The time at which the tests start.
    const START: u64 = 1_577_836_800 * SECOND;
    /// The nanoseconds per 2^20 ticks that the calibration assumes, for a counter of 2.6 GHz.
    const NANOS: u64 = 403_298;
    const DRIFTS: [i64; 9] = [-1_000, -300, -50, -1, 0, 1, 50, 300, 1_000];

    /// A counter that is faster than measured by `drift` parts per million, beside a reference in nanoseconds.
    struct Machine {
        calibration: Calibration,
        drift: i64,
        nanos: AtomicU64,
        /// The counter at the reference zero, which a suspension of the machine may change.
        raw: AtomicU64,
    }

    impl Machine {
        fn new(drift: i64) -> Self {
            let raw = 5_000_000_000;
            let calibration = Calibration::new(NANOS, 1 << 20, raw, START);
            Self { calibration, drift, nanos: AtomicU64::new(0), raw: AtomicU64::new(raw) }
        }

        fn raw(&self) -> u64 {
            let nanos = i128::from(self.nanos.load(Ordering::SeqCst));
            let ticks = (nanos << 20) * i128::from(1_000_000 + self.drift) / (i128::from(NANOS) * 1_000_000);
            self.raw.load(Ordering::SeqCst).wrapping_add(u64::try_from(ticks).expect("a short time"))
        }

        fn reference(&self) -> u64 {
            START + self.nanos.load(Ordering::SeqCst) / 1_000
        }

        fn now(&self) -> u64 {
            let time = self.calibration.time(self.raw());
            time.unwrap_or_else(|| self.calibration.recalibrate(|| (self.reference(), self.raw())))
        }

        fn pass(&self, nanos: u64) {
            self.nanos.fetch_add(nanos, Ordering::SeqCst);
        }

        /// The documented distance: the drift during one interval, and the rounding of three numbers.
        fn distance(&self) -> u64 {
            (self.drift.unsigned_abs() << INTERVAL_BITS) / 1_000_000 + 3
        }
    }

    /// Spans of time in nanoseconds, the same in each run: most are short, some are longer than an interval.
    fn spans() -> impl Iterator<Item = u64> {
        let mut random = Random::new(7);
        std::iter::repeat_with(move || match random.below(100) {
            0 => random.below(10_000_000_000),
            1..20 => random.below(100_000_000),
            _ => random.below(100_000),
        })
    }

    #[test]
    fn time_follows_the_reference_and_never_steps_back() {
        for drift in DRIFTS {
            let machine = Machine::new(drift);
            let mut last = 0;
            for span in spans().take(20_000) {
                machine.pass(span);
                let (now, reference) = (machine.now(), machine.reference());
                assert!(now >= last, "{drift} ppm: {} us back", last - now);
                let distance = now.abs_diff(reference);
                assert!(distance <= machine.distance(), "{drift} ppm: {distance} us from the reference");
                last = now;
            }
        }
    }

    /// Each thread passes on the latest time that it has read: no later reading of any thread is earlier.
    #[test]
    fn threads_read_no_time_before_one_that_another_thread_has_read() {
        for drift in DRIFTS {
            let (machine, latest) = (Machine::new(drift), AtomicU64::new(0));
            thread::scope(|scope| {
                for number in 0..3 {
                    let (machine, latest) = (&machine, &latest);
                    scope.spawn(move || {
                        for span in spans().skip(number * 1_000).take(10_000) {
                            machine.pass(span % 50_000_000);
                            let before = latest.load(Ordering::SeqCst);
                            let now = machine.now();
                            assert!(now >= before, "{drift} ppm: {} us back", before - now);
                            latest.fetch_max(now, Ordering::SeqCst);
                        }
                    });
                }
            });
            assert!(machine.now().abs_diff(machine.reference()) <= machine.distance(), "{drift} ppm");
        }
    }

    /// A thread finds the interval over, and another thread calibrates first: before the thread's sample, or after it.
    #[test]
    fn thread_that_calibrates_second_returns_the_time_of_the_first() {
        let machine = Machine::new(-1_000);
        machine.pass(2_000_000_000);
        let before = machine.now();
        machine.pass(200_000_000);
        let second = machine.calibration.recalibrate(|| (machine.reference(), machine.raw()));
        assert!(before <= second && second <= machine.now());

        machine.pass(2_000_000_000);
        let first = Cell::new(0);
        let second = machine.calibration.recalibrate(|| {
            let sample = (machine.reference(), machine.raw());
            if first.get() == 0 {
                machine.pass(200_000_000);
                first.set(machine.now());
            }
            sample
        });
        assert!(first.get() <= second && second <= machine.now());
    }

    /// A suspension of the machine may stop the reference, but not the counter, or set the counter to zero.
    #[test]
    fn time_never_steps_back_after_a_jump_of_the_counter() {
        let hour = (3_600_000_000_000 << 20) / NANOS;
        for jump in [1 << 32, hour, 100 * hour, 1_u64.wrapping_neg() << 32, 4_999_000_000_u64.wrapping_neg()] {
            let machine = Machine::new(50);
            let mut last = 0;
            for (step, span) in spans().take(3_000).enumerate() {
                machine.pass(span.min(20_000_000));
                if step == 1_500 {
                    machine.raw.fetch_add(jump, Ordering::SeqCst);
                }
                let (now, reference) = (machine.now(), machine.reference());
                assert!(now >= last, "a jump by {jump}: {} us back", last - now);
                // Until the reference reaches the end of the interval, the time stands still.
                assert!(now <= reference + machine.distance() + (1 << INTERVAL_BITS));
                assert!(now + machine.distance() >= reference);
                last = now;
            }
            machine.pass(2_000_000_000);
            assert!(machine.now().abs_diff(machine.reference()) <= machine.distance(), "a jump by {jump}");
        }
    }
}
