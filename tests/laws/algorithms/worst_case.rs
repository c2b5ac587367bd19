//! The worst case: an adversary chooses the times of its requests. The bound in any half-open window is not exceeded,
//! and it is reached.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::algorithm::{Algorithm, State};
use tower_ratelimit::{AcquireOptions, Decision, FixedWindow, Gcra, Quota, Timestamp, Verdict};

use crate::algorithm_ext::AlgorithmExt as _;
use crate::cases;
use crate::harness::{Pair, Subject};
use crate::model::Spec;
use crate::schedule::{Op, Step, attack, start};
use crate::span::{micros, ticks};

proptest! {
    #![proptest_config(cases(30))]

    #[test]
    fn bucket_bound_is_not_exceeded(
        quota in small_quota(),
        burst in 1u64..30,
        start in start(),
        steps in attack(80),
        share in 0u64..1_024,
    ) {
        let admitted = admitted(Spec::Bucket { quota, burst }, start, steps);
        let period = micros(quota.period());
        for window in [1, period, period * burst / quota.limit(), 1 + period * share / 256] {
            let max = max_in_any(window, &admitted);
            prop_assert!(max <= bucket_bound(quota, burst, window), "{max} in {window} us: {admitted:?}");
        }
    }

    #[test]
    fn strict_bucket_admits_its_limit_in_a_period(quota in small_quota(), start in start(), steps in attack(80)) {
        let strict = Gcra::new(quota).strict();
        let admitted = admitted(Spec::Bucket { quota, burst: strict.max_burst() }, start, steps);
        let max = max_in_any(micros(quota.period()), &admitted);
        prop_assert!(max <= quota.limit(), "{max} in one period: {admitted:?}");
    }

    #[test]
    fn fixed_window_bound_is_not_exceeded(
        quota in small_quota(),
        aligned in any::<bool>(),
        start in start(),
        steps in attack(80),
    ) {
        let admitted = admitted(Spec::FixedWindow { quota, aligned }, start, steps);
        let max = max_in_any(micros(quota.period()), &admitted);
        let bound = if aligned { 2 * quota.limit() } else { 2 * quota.limit() - 1 };
        prop_assert!(max <= bound, "{max} in one period: {admitted:?}");
    }

    /// The adversary takes the whole burst at once, then each token as soon as it is back.
    #[test]
    fn bucket_bound_is_reached(
        quota in small_quota(),
        burst in 1u64..30,
        start in start(),
        share in 0u64..1_024,
    ) {
        let window = 1 + micros(quota.period()) * share / 256;
        let mut subject = Subject::new(&[vec![Spec::Bucket { quota, burst }]], start);
        let mut admitted = 0;
        while subject.now() < start + window && admitted < 1_000 {
            match subject.acquire(AcquireOptions::default()).retry_after() {
                None => admitted += 1,
                Some(wait) => subject.set_clock(subject.now() + micros(wait)),
            }
        }
        if admitted < 1_000 && loses_nothing(quota, burst) {
            prop_assert_eq!(admitted, in_whole_ticks(quota, burst, window));
        }
    }

    /// A token that comes back within a tick is available at the end of the tick.
    #[test]
    fn bucket_bounds_agree_when_tokens_come_in_whole_ticks(
        interval in 1u64..100_000,
        limit in 1u64..100,
        burst in 1u64..30,
        window in 1u64..100_000_000,
    ) {
        let quota = Quota::new(limit, ticks(limit * interval));
        prop_assert_eq!(in_whole_ticks(quota, burst, window), bucket_bound(quota, burst, window));
    }

    #[test]
    fn strict_bucket_bound_is_reached(limit in 1u64..100, interval in 1u64..1_000_000, start in start()) {
        let quota = Quota::new(limit, ticks(limit * interval));
        let mut subject = Subject::new(&[vec![Spec::Bucket { quota, burst: 1 }]], start);
        let mut admitted = 0;
        for request in 0..limit {
            subject.set_clock(start + request * interval);
            admitted += u64::from(subject.acquire(AcquireOptions::default()).is_allowed());
        }
        prop_assert!(subject.now() < start + micros(quota.period()));
        prop_assert_eq!(admitted, limit);
    }

    /// One request starts the window, the rest comes at its end, and the whole next window follows immediately.
    #[test]
    fn fixed_window_bound_is_reached(quota in small_quota(), start in start()) {
        let mut subject = Subject::new(&[vec![Spec::FixedWindow { quota, aligned: false }]], start);
        let mut admitted = vec![];
        let mut acquire = |subject: &mut Subject, cost: u64| {
            prop_assert!(subject.acquire(AcquireOptions::cost(cost)).is_allowed());
            admitted.push((subject.now(), cost));
            Ok(())
        };
        prop_assume!(micros(quota.period()) > 1);
        acquire(&mut subject, 1)?;
        subject.set_clock(start + micros(quota.period()) - 1);
        acquire(&mut subject, quota.limit() - 1)?;
        subject.set_clock(start + micros(quota.period()));
        acquire(&mut subject, quota.limit())?;
        prop_assert_eq!(max_in_any(2, &admitted), 2 * quota.limit() - 1);
    }

    #[test]
    fn aligned_window_bound_is_reached(quota in small_quota(), number in 1u64..1_000) {
        let boundary = micros(quota.period()) * number;
        let mut subject = Subject::new(&[vec![Spec::FixedWindow { quota, aligned: true }]], boundary - 1);
        prop_assert!(subject.acquire(AcquireOptions::cost(quota.limit())).is_allowed());
        subject.set_clock(boundary);
        prop_assert!(subject.acquire(AcquireOptions::cost(quota.limit())).is_allowed());
    }
}

/// Tries every schedule on a grid of a few ticks, and takes the maximum in any window.
#[test]
fn bucket_bound_is_exact_over_all_small_schedules() {
    for (limit, period, burst) in grid() {
        let quota = Quota::new(limit, ticks(period));
        let max = Exhaustive::run(&Gcra::new(quota).burst(burst), 8);
        for (window, &max) in (1..).zip(&max) {
            let case = format!("{max} of {limit} in {period} us with a burst of {burst}, in {window} us");
            assert!(max <= bucket_bound(quota, burst, window), "{case}");
            if loses_nothing(quota, burst) {
                assert_eq!(max, in_whole_ticks(quota, burst, window), "{case}");
            }
        }
    }
}

#[test]
fn fixed_window_bound_is_exact_over_all_small_schedules() {
    for (limit, period, _) in grid().filter(|&(_, period, burst)| period > 1 && burst == 1) {
        let quota = Quota::new(limit, ticks(period));
        let from_first_hit = Exhaustive::run(&FixedWindow::new(quota), 2 * period + 1);
        let aligned = Exhaustive::run(&FixedWindow::new(quota).aligned_to_clock(), 2 * period + 1);
        let in_a_period = usize::try_from(period - 1).expect("a small number");
        assert_eq!(from_first_hit[in_a_period], 2 * limit - 1, "{limit} in {period}");
        assert_eq!(aligned[in_a_period], 2 * limit, "{limit} in {period}, aligned");
    }
}

/// A scheduled start is charged: the next request starts later, even by centuries.
#[test]
fn scheduled_starts_do_not_overlap() {
    let centuries = Duration::from_secs(200 * 365 * 24 * 60 * 60);
    let mut subject = Subject::new(&[vec![Spec::Bucket { quota: Quota::new(1, centuries), burst: 1 }]], 0);
    let delays: Vec<Duration> = (0..4)
        .map(|_| subject.acquire(AcquireOptions::default().max_delay(Duration::MAX)))
        .filter(Decision::is_allowed)
        .map(|decision| decision.delay())
        .collect();
    assert!(delays.windows(2).all(|pair| pair[0] + centuries <= pair[1]), "{delays:?}");
}

/// Returns `(limit, period, burst)`, with periods in ticks.
fn grid() -> impl Iterator<Item = (u64, u64, u64)> {
    (1..=3).flat_map(|limit| (1..=4).flat_map(move |period| (1..=3).map(move |burst| (limit, period, burst))))
}

/// Generates quotas of up to 300 in up to a day, which keeps waits short.
fn small_quota() -> impl Strategy<Value = Quota> {
    let period = prop_oneof![1u64..20, 1u64..2_000_000, Just(60_000_000), Just(86_400_000_000), Just(604_800_000_000)];
    (1u64..300, period).prop_map(|(limit, period)| Quota::new(limit, ticks(period)))
}

/// Returns `ceil(burst + rate * window) - 1`.
fn bucket_bound(quota: Quota, burst: u64, window: u64) -> u64 {
    burst + (window * quota.limit()).div_ceil(micros(quota.period())) - 1
}

/// Returns the bound for requests at whole microseconds: `floor(burst + rate * (window - 1))`.
fn in_whole_ticks(quota: Quota, burst: u64, window: u64) -> u64 {
    burst + (window - 1) * quota.limit() / micros(quota.period())
}

/// Whether a bucket that is emptied at each tick never overflows between two ticks.
fn loses_nothing(quota: Quota, burst: u64) -> bool {
    quota.limit() <= (burst - 1) * micros(quota.period()) || micros(quota.period()).is_multiple_of(quota.limit())
}

/// Applies the attack. Returns the start and cost of each admitted request.
fn admitted(spec: Spec, start: u64, steps: Vec<Step>) -> Vec<(u64, u64)> {
    let mut pair = Pair::new(&[vec![spec]], start);
    let mut admitted = Vec::new();
    for step in steps {
        let Op::Acquire(options) = pair.resolve(step) else {
            pair.step(step);
            continue;
        };
        let decision = pair.step(step).expect("an acquire decides");
        if decision.is_allowed() {
            admitted.push((pair.subject.now() + micros(decision.delay()), options.cost));
        }
    }
    admitted.sort_unstable();
    admitted
}

fn max_in_any(window: u64, admitted: &[(u64, u64)]) -> u64 {
    let from = |(first, &(time, _)): (usize, &(u64, u64))| {
        let inside = admitted[first..].iter().take_while(|&&(other, _)| other < time + window);
        inside.map(|&(_, cost)| cost).sum()
    };
    admitted.iter().enumerate().map(from).max().unwrap_or(0)
}

/// Tries every number of allowed requests at each tick.
struct Exhaustive<'a, A> {
    algorithm: &'a A,
    admitted: Vec<u64>,
    /// The maximum by the length of the window, from one tick on.
    max: Vec<u64>,
}

impl<'a, A: Algorithm> Exhaustive<'a, A> {
    fn run(algorithm: &'a A, horizon: u64) -> Vec<u64> {
        let horizon = usize::try_from(horizon).expect("a small number");
        let mut search = Self { algorithm, admitted: Vec::new(), max: vec![0; horizon] };
        search.next_tick(&A::State::from_numbers(&[]));
        search.max
    }

    fn next_tick(&mut self, state: &A::State) {
        self.record();
        if self.admitted.len() == self.max.len() {
            return;
        }
        let mut state = state.clone();
        // 1200 is a multiple of every period on the grid, so that an aligned window starts there.
        let now = Timestamp::from_micros(1_200 + self.admitted.len() as u64);
        for requests in 0.. {
            self.admitted.push(requests);
            self.next_tick(&state);
            self.admitted.pop();
            if self.algorithm.peek(&state, now, AcquireOptions::default()) != Verdict::Allowed {
                return;
            }
            assert!(requests < 100, "{:?} never denies", self.algorithm);
            self.algorithm.charge(&mut state, now, Duration::ZERO, 1);
        }
    }

    fn record(&mut self) {
        let mut sum = 0;
        for (max, &requests) in self.max.iter_mut().zip(self.admitted.iter().rev()) {
            sum += requests;
            *max = sum.max(*max);
        }
    }
}
