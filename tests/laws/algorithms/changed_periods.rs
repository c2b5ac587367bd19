//! Readers with different periods and limits share a key: tiers, two versions of a service, or replaced limits.
//!
//! Each reader's own admissions keep the bound of its own limit, whatever the others charge. A reader whose usage is below
//! its limit inside its own period is not denied. A change of the limit keeps the usage.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::{
    AcquireOptions, Clock, DynLimit, FixedWindow, Limit, ManualClock, Memory, Quota, SlidingLog, SlidingWindow,
    Timestamp, per_key,
};

use crate::cases;
use crate::harness::{DAY, WEEK, fixed_window as fixed_window_of};
use crate::model::Spec;
use crate::schedule::{calendar_quota, start};
use crate::span::{micros, ticks};

/// A limit, and what its documentation promises.
#[derive(Clone, Copy, Debug)]
struct Reader<A> {
    algorithm: A,
    quota: Quota,
    /// The maximum cost that is admitted in any window of one period.
    bound: u64,
    /// By how much longer than a period a hit may count.
    slack: u64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Reader(usize),
    /// A cost in 256ths of the limit, at least one.
    Acquire(u64),
    /// Acquires a cost of one until it is denied.
    Saturate,
    /// A number of 256ths of the reader's period.
    Wait(u64),
    UntilRetry,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let next = prop_oneof![
        4 => (0usize..3).prop_map(Step::Reader),
        4 => prop_oneof![3 => Just(0), 1 => 0u64..200].prop_map(Step::Acquire),
        2 => Just(Step::Saturate),
        4 => (0u64..320).prop_map(Step::Wait),
        2 => Just(Step::UntilRetry),
    ];
    vec(next, 1..80)
}

/// Periods with common divisors or none, from a quarter to some sixty times of another one.
fn quota() -> impl Strategy<Value = Quota> {
    let periods = vec![60, 61, 240, 600, 1_000, 3_600, 6_000, 60_000];
    let short = (1u64..25, select(periods)).prop_map(|(limit, period)| Quota::new(limit, ticks(period)));
    prop_oneof![3 => short, 1 => calendar_quota()]
}

fn fixed_window() -> impl Strategy<Value = Reader<FixedWindow>> {
    (quota(), any::<bool>()).prop_map(|(quota, aligned)| {
        let algorithm = fixed_window_of(Spec::FixedWindow { quota, aligned });
        Reader { algorithm, quota, bound: 2 * quota.limit() - u64::from(!aligned), slack: 0 }
    })
}

fn sliding_window() -> impl Strategy<Value = Reader<SlidingWindow>> {
    (quota(), select(vec![1, 2, 3, 4, 6, 10, 12]), any::<bool>()).prop_map(|(quota, blocks, weighted)| {
        let period = micros(quota.period());
        let blocks = if period.is_multiple_of(blocks) { blocks } else { 1 };
        let window = SlidingWindow::new(quota).blocks(blocks);
        let algorithm = if weighted { window.weighted() } else { window };
        let bound = if weighted { 2 * quota.limit() - 1 } else { quota.limit() };
        Reader { algorithm, quota, bound, slack: period / blocks }
    })
}

fn sliding_log() -> impl Strategy<Value = Reader<SlidingLog>> {
    quota().prop_map(|quota| Reader { algorithm: SlidingLog::new(quota), quota, bound: quota.limit(), slack: 0 })
}

/// The limiter, whose limit is chosen by the reader, or replaced.
struct Subject<A> {
    readers: Vec<Reader<A>>,
    limiter: Memory<str, Vec<DynLimit<str>>>,
    clock: ManualClock,
    tier: Arc<AtomicUsize>,
    replaces: bool,
    /// The time, the cost and the reader of each admission.
    admitted: Vec<(u64, u64, usize)>,
}

impl<A: Algorithm + Copy> Subject<A> {
    fn new(readers: &[Reader<A>], start: u64, replaces: bool) -> Self {
        let tier = Arc::new(AtomicUsize::new(0));
        let (chosen, algorithms) =
            (Arc::clone(&tier), readers.iter().map(|reader| reader.algorithm).collect::<Vec<_>>());
        let limit = if replaces {
            DynLimit::new(Limit::new("limit", algorithms[0]))
        } else {
            let algorithm = per_key(move |_: &str| algorithms[chosen.load(Ordering::Relaxed) % algorithms.len()]);
            DynLimit::new(Limit::new("limit", algorithm))
        };
        let clock = ManualClock::at(Timestamp::from_micros(start));
        let limiter = Memory::builder(vec![limit]).max_keys(1).clock(clock.clone()).build().expect("a limit");
        Self { readers: readers.to_vec(), limiter, clock, tier, replaces, admitted: Vec::new() }
    }

    fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    fn reader(&self) -> usize {
        self.tier.load(Ordering::Relaxed)
    }

    /// Returns the cost of all admissions within a time before now.
    fn used_in(&self, span: u64) -> u64 {
        let since = self.now().saturating_sub(span);
        let is_inside = |time: u64| time > since || since == 0;
        self.admitted.iter().filter(|(time, ..)| is_inside(*time)).map(|(_, cost, _)| cost).sum()
    }

    /// Acquires, and checks what a denial says. Returns the time to wait after a denial.
    fn acquire(&mut self, cost: u64) -> Result<Option<u64>, TestCaseError> {
        let reader = self.readers[self.reader()];
        let decision = self.limiter.check("key", AcquireOptions::cost(cost));
        let now = self.now();
        if decision.is_allowed() {
            self.admitted.push((now, cost, self.reader()));
            return Ok(None);
        }
        let used = self.used_in(micros(reader.quota.period()) + reader.slack);
        let max = reader.quota.limit();
        prop_assert!(
            used + cost > max,
            "{reader:?} is denied {cost} at {now} with a usage of {used}: {:?}",
            self.admitted
        );
        Ok(Some(micros(decision.retry_after().expect("a wait"))))
    }

    fn apply(&mut self, step: Step) -> Result<(), TestCaseError> {
        let reader = self.readers[self.reader()];
        match step {
            Step::Reader(next) => {
                let next = next % self.readers.len();
                self.tier.store(next, Ordering::Relaxed);
                if self.replaces {
                    let limit = Limit::new("limit", self.readers[next].algorithm);
                    self.limiter.replace(vec![DynLimit::new(limit)]).expect("a limit");
                }
            }
            Step::Acquire(share) => drop(self.acquire((reader.quota.limit() * share / 256).max(1))?),
            Step::Saturate => while self.acquire(1)?.is_none() {},
            Step::Wait(share) => self.clock.advance(ticks(micros(reader.quota.period()) * share / 256 + share % 3)),
            Step::UntilRetry => {
                if let Some(wait) = self.acquire(1)? {
                    self.clock.advance(ticks(wait));
                    let again = self.acquire(1)?;
                    prop_assert_eq!(again, None, "{:?} is denied after its wait at {}", reader, self.now());
                }
            }
        }
        Ok(())
    }
}

fn assert_keeps_bounds<A: Algorithm + Copy>(
    readers: &[Reader<A>],
    start: u64,
    replaces: bool,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let mut subject = Subject::new(readers, start, replaces);
    for &step in steps {
        subject.apply(step)?;
    }
    for (index, reader) in readers.iter().enumerate() {
        let own: Vec<_> = subject.admitted.iter().filter(|(.., reader)| *reader == index).collect();
        for (first, &&(from, ..)) in own.iter().enumerate() {
            let inside = own[first..].iter().take_while(|(time, ..)| *time < from + micros(reader.quota.period()));
            let sum: u64 = inside.map(|(_, cost, _)| cost).sum();
            prop_assert!(sum <= reader.bound, "{reader:?} admits {sum} from {from}: {own:?}");
        }
    }
    Ok(())
}

/// The usage by one reader is that of another one, while it is inside the periods of both.
fn assert_keeps_usage<A: Algorithm + Copy>(
    readers: &[Reader<A>],
    start: u64,
    replaces: bool,
    wait: u64,
) -> Result<(), TestCaseError> {
    let mut subject = Subject::new(readers, start, replaces);
    let [first, second] = [readers[0], readers[1]];
    let cost = first.quota.limit().min(second.quota.limit());
    prop_assert_eq!(subject.acquire(cost)?, None);
    let shorter = micros(first.quota.period().min(second.quota.period()));
    // A window that is aligned to the clock may end at any time.
    let begins = subject.limiter.check("key", AcquireOptions::cost(0)).reset().map_or(0, micros);
    // In a calendar the usage counts until the calendar's window ends.
    let period = micros(second.quota.period());
    let is_calendar = second.bound == 2 * second.quota.limit() && [DAY, WEEK].contains(&second.quota.period());
    let ends = if is_calendar { period - subject.now() % period } else { u64::MAX };
    subject.clock.advance(ticks((shorter * wait / 256).min(begins.saturating_sub(1)).min(ends - 1)));
    subject.apply(Step::Reader(1))?;
    let remaining = subject.limiter.check("key", AcquireOptions::cost(0)).remaining();
    let kept = second.quota.limit() - cost;
    // A weighted window counts the oldest block in part.
    if second.bound <= second.quota.limit() || second.slack == 0 {
        prop_assert!(
            remaining.is_some_and(|remaining| remaining <= kept),
            "{second:?}: {remaining:?} of {kept} remain"
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn changed_periods_keep_each_bound_fixed_window(
        readers in vec(fixed_window(), 2..=3), start in start(), replaces in any::<bool>(), steps in steps(),
    ) {
        assert_keeps_bounds(&readers, start, replaces, &steps)?;
    }

    #[test]
    fn changed_periods_keep_each_bound_sliding_window(
        readers in vec(sliding_window(), 2..=3), start in start(), replaces in any::<bool>(), steps in steps(),
    ) {
        assert_keeps_bounds(&readers, start, replaces, &steps)?;
    }

    #[test]
    fn changed_periods_keep_each_bound_sliding_log(
        readers in vec(sliding_log(), 2..=3), start in start(), replaces in any::<bool>(), steps in steps(),
    ) {
        assert_keeps_bounds(&readers, start, replaces, &steps)?;
    }

    #[test]
    fn changed_periods_keep_the_usage(
        fixed in vec(fixed_window(), 2), sliding in vec(sliding_window(), 2), logs in vec(sliding_log(), 2),
        start in start(), replaces in any::<bool>(), wait in 0u64..256,
    ) {
        assert_keeps_usage(&fixed, start, replaces, wait)?;
        assert_keeps_usage(&sliding, start, replaces, wait)?;
        assert_keeps_usage(&logs, start, replaces, wait)?;
    }
}
