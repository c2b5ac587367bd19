//! `check_algorithm` passes each algorithm, and finds the law that a broken one breaks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, Step};
use tower_ratelimit::test_util::check_algorithm;
use tower_ratelimit::{
    Calendar, FixedWindow, Gcra, InFlight, LazySnapshot, LeakyBucket, LeakyQueue, LimitSnapshot, Quota, SlidingLog,
    SlidingWindow, Timestamp, TokenBucket,
};

#[test]
fn check_algorithm_passes_every_algorithm() {
    let passes = |report: Result<tower_ratelimit::test_util::AlgorithmReport, _>| {
        let report = report.unwrap_or_else(|violation: tower_ratelimit::response::BoxError| panic!("{violation}"));
        assert!(report.allowed > 1_000 && report.denied + report.delayed > 300 && report.exceeding > 100, "{report:?}");
    };
    for quota in [Quota::new(7, Duration::from_secs(1_000)), Quota::per_day(3)] {
        passes(check_algorithm(&Gcra::new(quota)));
        passes(check_algorithm(&Gcra::new(quota).burst(25)));
        passes(check_algorithm(&TokenBucket::new(quota)));
        passes(check_algorithm(&LeakyBucket::new(quota)));
        passes(check_algorithm(&LeakyQueue::new(quota).max_waiting(4)));
        passes(check_algorithm(&FixedWindow::new(quota)));
        passes(check_algorithm(&FixedWindow::new(quota).aligned_to_clock()));
        passes(check_algorithm(&FixedWindow::calendar(
            quota.limit(),
            Calendar::monthly_on(31).utc_offset_minutes(-90),
        )));
        passes(check_algorithm(&SlidingWindow::new(quota)));
        passes(check_algorithm(&SlidingWindow::new(quota).blocks(1).weighted()));
        passes(check_algorithm(&SlidingLog::new(quota)));
    }
    let report = check_algorithm(&InFlight::new(3)).expect("the laws hold");
    assert!(report.allowed > 1_000 && report.exceeding > 100, "{report:?}");
}

/// The mistakes of a cool-down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    Impure,
    NeverIdle,
    DeniesForcedCharges,
    WaitsTooLong,
    WaitsTooShort,
    DeniesAfterAStepBack,
    ForgetsAfterAStepBack,
    ChargesInOneCostOnly,
    Panics,
}

/// After each request, none is allowed for a second.
#[derive(Debug)]
struct CoolDown(Mistake);

const SECOND: u64 = 1_000_000;

impl CoolDown {
    fn wait(&self, open_at: u64, now: Timestamp) -> u64 {
        let wait = open_at.saturating_sub(now.as_micros());
        let longest = match self.0 {
            Mistake::DeniesAfterAStepBack => u64::MAX,
            Mistake::ForgetsAfterAStepBack => SECOND,
            _ => 2 * SECOND,
        };
        if wait > longest { 0 } else { wait }
    }
}

impl Algorithm for CoolDown {
    /// The time at which the next request is allowed, and the number of charges.
    type State = [u64; 2];

    fn decide(&self, &[open_at, count]: &[u64; 2], now: Timestamp, options: ChargeOptions) -> Step<[u64; 2]> {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        assert!(self.0 != Mistake::Panics || open_at < u64::MAX);
        let wait = self.wait(open_at, now);
        let is_forced = options.is_forced();
        if is_forced && self.0 == Mistake::DeniesForcedCharges && wait > 0 {
            return Step::Deny { wait };
        } else if !is_forced && options.cost > 1 + u64::from(self.0 == Mistake::ChargesInOneCostOnly) {
            return Step::Exceeds;
        } else if !is_forced && options.cost > 0 && (wait > 0 || self.0 == Mistake::NeverIdle && count > 0) {
            let is_impure = self.0 == Mistake::Impure && CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
            return Step::Deny {
                wait: match self.0 {
                    Mistake::WaitsTooLong => wait + 1,
                    Mistake::WaitsTooShort => wait.max(2) - 1,
                    _ => wait.max(1) + u64::from(is_impure),
                },
            };
        }
        let start = now.saturating_add(options.forced_delay()).as_micros();
        Step::Allow { next: [start.saturating_add(SECOND), u64::from(options.cost > 0)], delay: 0 }
    }

    fn snapshot(&self, &[open_at, _]: &[u64; 2], now: Timestamp) -> LazySnapshot {
        let wait = Duration::from_micros(self.wait(open_at, now));
        LimitSnapshot::new(1, Duration::from_secs(1)).with_remaining(u64::from(wait.is_zero())).with_reset(wait).into()
    }

    fn max_reset(&self) -> Duration {
        Duration::from_secs(1)
    }
}

#[test]
fn check_algorithm_names_the_broken_law() {
    check_algorithm(&CoolDown(Mistake::None)).expect("the laws hold");
    for (mistake, law) in [
        (Mistake::Impure, "pure"),
        (Mistake::NeverIdle, "idle"),
        (Mistake::DeniesForcedCharges, "forced charges"),
        (Mistake::WaitsTooLong, "exact retry"),
        (Mistake::WaitsTooShort, "exact retry"),
        (Mistake::DeniesAfterAStepBack, "time may step back"),
        (Mistake::ForgetsAfterAStepBack, "time may step back"),
        // A cost of two is allowed at once, and in two parts it is not.
        (Mistake::ChargesInOneCostOnly, "charges can be split"),
        (Mistake::Panics, "no panics"),
    ] {
        let violation = check_algorithm(&CoolDown(mistake)).expect_err("a broken law").to_string();
        assert!(violation.contains(&format!("the law \"{law}\" is broken")), "{mistake:?}: {violation}");
    }
}
