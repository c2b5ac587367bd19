//! `check` and `peek` beside requests in flight: a caller without a guard holds nothing, not even for a moment.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tower_ratelimit::{
    AcquireOptions, Clock, Detail, DynLimit, FixedWindow, Gcra, InFlight, Limit, Limiter, ManualClock, Memory, Quota,
    Timestamp, per_key,
};

use crate::immediate::{acquire, memory, peek};

/// What a [`ProbingClock`] runs.
type Probe = Arc<dyn Fn() + Send + Sync>;

/// A clock that runs a probe whenever a limiter reads the time.
#[derive(Clone)]
struct ProbingClock {
    clock: ManualClock,
    probe: Arc<OnceLock<Probe>>,
    runs: Arc<AtomicBool>,
}

impl Clock for ProbingClock {
    fn now(&self) -> Timestamp {
        if let Some(probe) = self.probe.get()
            && !self.runs.swap(true, Ordering::Relaxed)
        {
            probe();
            self.runs.store(false, Ordering::Relaxed);
        }
        self.clock.now()
    }
}

/// The law, at each time that a limiter reads its clock: only requests with a guard are counted.
#[test]
fn check_holds_nothing_whenever_the_limiter_reads_its_clock() {
    let streams = || Limit::new("streams", InFlight::new(5));
    let brief = || Limit::new("streams", InFlight::new(5).max_duration(Duration::from_secs(60)));
    let rate = || Limit::new("rate", Gcra::new(Quota::per_second(1000)));
    let tiers = || Limit::new("streams", per_key(|_: &u64| InFlight::new(5)));
    let cases: [Vec<DynLimit<u64>>; 5] = [
        vec![DynLimit::new(streams())],
        vec![DynLimit::new(rate()), DynLimit::new(streams())],
        vec![DynLimit::new(brief()), DynLimit::new(rate())],
        vec![DynLimit::new(tiers())],
        vec![DynLimit::new(rate()), DynLimit::new(streams().shadow())],
    ];
    for (case, limits) in cases.into_iter().enumerate() {
        let manual = ManualClock::new();
        let clock = ProbingClock { clock: manual.clone(), probe: Arc::default(), runs: Arc::default() };
        let limiter = memory(limits, &clock);
        let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
        let (probed, log) = (limiter.clone(), Arc::clone(&seen));
        let probe: Probe = Arc::new(move || {
            log.lock().unwrap().push(probed.usage().iter().map(|usage| usage.held).sum());
        });
        assert!(clock.probe.set(probe).is_ok());
        let mut guards = Vec::new();
        for step in 0..60_u64 {
            let expected = guards.len() as u64;
            seen.lock().unwrap().clear();
            // `check` has no guard to return, whatever the options say.
            let options = AcquireOptions::cost(1 + step % 3);
            let options = if step % 2 == 0 { options.keep_guard() } else { options.hold() };
            let decision = limiter.check(&1, options);
            let peeked = peek(&limiter, &1, AcquireOptions::cost(1 + step % 3).detail(Detail::All));
            assert_eq!(decision.is_allowed(), peeked.is_allowed(), "case {case}, step {step}");
            let mut seen = seen.lock().unwrap();
            assert!(seen.len() >= 2, "the clock was read");
            assert!(seen.drain(..).all(|held| held == expected), "case {case}, step {step}: {expected}");
            drop(seen);
            match step % 5 {
                0 | 2 if expected < 5 => {
                    guards.extend(acquire(&limiter, &1, AcquireOptions::default().keep_guard()).held);
                }
                4 => drop(guards.pop()),
                _ => {}
            }
            manual.advance(Duration::from_millis(10));
        }
    }
}

/// The rates beside a limit on requests in flight are charged, and a full limit denies.
#[test]
fn check_charges_the_rates_that_acquire_would_charge() {
    let limits = || (Limit::new("streams", InFlight::new(2)), FixedWindow::new(Quota::per_minute(9)));
    let clock = ManualClock::new();
    let build = || memory::<u64, _>(limits(), &clock);
    let (checked, acquired) = (build(), build());
    let all = AcquireOptions::cost(0).detail(Detail::All);
    for cost in [1, 2, 0, 3, 2, 1, 4, 1] {
        let check = checked.check(&1, cost);
        let outcome = acquire(&acquired, &1, AcquireOptions::cost(cost).keep_guard());
        assert_eq!(check.verdict(), outcome.decision.verdict(), "{cost}");
        drop(outcome);
        assert_eq!(peek(&checked, &1, all).limits(), peek(&acquired, &1, all).limits(), "{cost}");
    }
}

/// Counts the starts of 20 000 that succeed while other threads check and peek.
fn starts(limiter: &impl Limiter<u64>, check: &(dyn Fn() + Sync)) -> u64 {
    let (ends, started) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    check();
                    let _ = peek(limiter, &1, 1);
                }
            });
        }
        for _ in 0..20_000 {
            let held = acquire(limiter, &1, AcquireOptions::default().keep_guard()).held;
            started.fetch_add(u64::from(held.is_some()), Ordering::Relaxed);
        }
        ends.store(true, Ordering::Relaxed);
    });
    started.into_inner()
}

/// A monitor that calls `check` and `peek` makes no start fail.
#[test]
fn check_holds_nothing() {
    let limits = || (Limit::new("streams", InFlight::new(1)), Gcra::new(Quota::per_second(1_000_000)));
    let single = Memory::<u64, _>::new(InFlight::new(1));
    let several = Memory::<u64, _>::new(limits());
    let dynamic = vec![DynLimit::<u64>::new(Limit::new("streams", InFlight::new(1)))];
    let dynamic = Memory::new(dynamic);
    assert_eq!(starts(&single, &|| drop(single.check(&1, 1))), 20_000);
    assert_eq!(starts(&several, &|| drop(several.check(&1, 1))), 20_000);
    assert_eq!(starts(&dynamic, &|| drop(dynamic.check(&1, 1))), 20_000);
}
