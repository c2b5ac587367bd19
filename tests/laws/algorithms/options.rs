//! The options and results of one decision, and the default methods of `Algorithm`.

use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, Counters, HitLog, Start, Step};
use tower_ratelimit::{AcquireOptions, FixedWindow, LazySnapshot, Quota, SlidingLog, Timestamp, Verdict};

use crate::algorithm_ext::AlgorithmExt as _;
use crate::harness::no_windows;
use crate::span::ticks;

/// An algorithm with the default methods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WithDefaults<A>(pub(crate) A);

impl<A: Algorithm> Algorithm for WithDefaults<A> {
    type State = A::State;

    fn decide(&self, state: &A::State, now: Timestamp, options: ChargeOptions) -> Step<A::State> {
        self.0.decide(state, now, options)
    }

    fn snapshot(&self, state: &A::State, now: Timestamp) -> LazySnapshot {
        self.0.snapshot(state, now)
    }

    fn max_reset(&self) -> Duration {
        self.0.max_reset()
    }
}

/// A window whose reset does not determine its usage.
fn window(limit: u64, period: u64) -> WithDefaults<FixedWindow> {
    WithDefaults(FixedWindow::new(Quota::new(limit, ticks(period))))
}

#[test]
fn forced_charge_has_its_delay_and_an_acquire_has_none() {
    let forced = ChargeOptions::forced(3, ticks(7));
    assert_eq!((forced.cost, forced.start, forced.is_forced()), (3, Start::After(ticks(7)), true));
    assert_eq!(forced.forced_delay(), ticks(7));
    for options in [AcquireOptions::cost(3), AcquireOptions::cost(3).max_delay(ticks(7))] {
        let charge = ChargeOptions::from(options);
        assert_eq!((charge.cost, charge.start), (3, Start::Within(options.max_delay)));
        assert_eq!((charge.is_forced(), charge.forced_delay()), (false, Duration::ZERO));
    }
}

#[test]
fn step_has_the_verdict_of_its_kind() {
    let verdict = |step: Step<[u64; 1]>| step.verdict();
    assert_eq!(verdict(Step::Allow { next: [1], delay: 0 }), Verdict::Allowed);
    assert_eq!(verdict(Step::Allow { next: [1], delay: 1 }), Verdict::AllowedAfter(ticks(1)));
    assert_eq!(verdict(Step::deny_for(Duration::from_nanos(7_999))), Verdict::Denied { retry_after: ticks(7) });
    assert_eq!(verdict(Step::Exceeds), Verdict::ExceedsLimit);
}

#[test]
fn default_methods_have_the_documented_values() {
    let defaults = window(3, 10);
    assert_eq!((defaults.counter_words(), defaults.max_heap_bytes()), (Counters::MAX_WORDS, 0));
    assert_eq!(
        (defaults.supports_scheduling(), defaults.max_hold_duration(), defaults.max_waiting()),
        (false, None, None)
    );
}

#[test]
fn charge_of_zero_changes_nothing() {
    let (window, now) = (window(3, 10), Timestamp::from_micros(100));
    let mut state = no_windows();
    window.charge(&mut state, now, ticks(5), 0);
    assert_eq!(state, no_windows());
    window.charge(&mut state, now, ticks(5), 2);
    assert_eq!(window.snapshot(&state, now).compute().remaining, 1);
}

/// "Of two that are idle at the same time the one with less remaining."
#[test]
fn default_carry_over_keeps_the_larger_usage_of_two_that_are_idle_at_the_same_time() {
    let (window, now) = (window(5, 10), Timestamp::from_micros(100));
    let charged = |cost| {
        let mut state = no_windows();
        window.charge(&mut state, now, Duration::ZERO, cost);
        state
    };
    for (own, other, remaining) in [(1, 3, 2), (3, 1, 2), (2, 2, 3), (0, 4, 1), (4, 0, 1), (7, 5, 0)] {
        let mut state = charged(own);
        window.carry_over_debt(&mut state, &charged(other), now);
        assert_eq!(window.snapshot(&state, now).compute().remaining, remaining, "{own} and {other}");
    }
}

/// The held costs count as if they were charged at the time of the peek, and the state itself does not change.
#[test]
fn default_peek_with_held_counts_the_held_costs() {
    let (window, now) = (window(5, 10), Timestamp::from_micros(100));
    let mut state = no_windows();
    window.charge(&mut state, Timestamp::from_micros(96), Duration::ZERO, 2);
    for (held, cost, verdict) in [
        (0, 3, Verdict::Allowed),
        (1, 2, Verdict::Allowed),
        (1, 3, Verdict::Denied { retry_after: ticks(6) }),
        (9, 1, Verdict::Denied { retry_after: ticks(6) }),
        (0, 6, Verdict::ExceedsLimit),
    ] {
        let (peeked, snapshot) = window.peek_with_held(&state, now, AcquireOptions::cost(cost).into(), held);
        assert_eq!((peeked, snapshot.compute().remaining), (verdict, 3_u64.saturating_sub(held)), "{held}, {cost}");
    }
}

/// Without held costs, a peek with held costs is a peek: also on a state that another quota wrote.
#[test]
fn peek_with_nothing_held_is_a_peek() {
    let quota = |period| Quota::new(3, ticks(period));
    let (short, long) = (SlidingLog::new(quota(100)), SlidingLog::new(quota(1_000)));
    let mut state = HitLog::default();
    for time in [1_000, 1_010, 1_020] {
        short.charge(&mut state, Timestamp::from_micros(time), Duration::ZERO, 1);
    }
    for time in [1_030, 1_099, 1_100, 1_119, 1_120, 1_200] {
        let (now, options) = (Timestamp::from_micros(time), AcquireOptions::cost(2));
        let (verdict, snapshot) = long.peek_with_held(&state, now, options.into(), 0);
        assert_eq!(verdict, long.peek(&state, now, options), "at {time}");
        assert_eq!(snapshot.compute(), long.snapshot(&state, now).compute(), "at {time}");
    }
}
