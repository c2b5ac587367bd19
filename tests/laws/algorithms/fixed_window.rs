//! The fixed window agrees with the model, field by field, on every schedule: started by the first hit, and aligned to
//! the clock.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::{AcquireOptions, FixedWindow, Quota, Timestamp};

use crate::algorithm_ext::AlgorithmExt as _;
use crate::cases;
use crate::harness::{Pair, Subject, no_windows};
use crate::model::Spec;
use crate::schedule::{Op, charging_schedule, overlapping_windows, schedule, start, tiers, window};
use crate::span::ticks;

const SECOND: u64 = 1_000_000;

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn fixed_window_agrees_with_the_model(tiers in tiers(window()), start in start(), steps in schedule(60)) {
        Pair::new(&[tiers], start).compare_all(steps)?;
    }

    #[test]
    fn fixed_window_agrees_when_overlapping_windows_change(
        tiers in overlapping_windows(),
        start in start(),
        steps in charging_schedule(80),
    ) {
        Pair::new(&[tiers], start).compare_all(steps)?;
    }
}

/// A hold is charged to the window in which it is settled, not to the window in which it began.
#[test]
fn hold_is_charged_in_the_window_in_which_it_is_settled() {
    for aligned in [false, true] {
        let spec = Spec::FixedWindow { quota: Quota::new(5, Duration::from_secs(10)), aligned };
        let mut subject = Subject::new(&[vec![spec]], 0);
        let _ = subject.acquire(AcquireOptions::cost(2));
        subject.apply(Op::Hold(AcquireOptions::cost(3)));
        assert_eq!(subject.peek(AcquireOptions::default()).remaining(), Some(0));
        subject.set_clock(12 * SECOND);
        assert_eq!(subject.peek(AcquireOptions::default()).remaining(), Some(2), "a hold outlasts its window");
        subject.apply(Op::Settle { which: 0, actual: 1 });
        assert_eq!(subject.peek(AcquireOptions::default()).remaining(), Some(4));
    }
}

/// A change to windows that are aligned to the clock: the usage before counts until its window ends, and that since the
/// change in the calendar's window.
#[test]
fn usage_of_an_earlier_window_counts_until_it_ends() {
    let previous = Spec::FixedWindow { quota: Quota::new(5, Duration::from_secs(7)), aligned: false };
    let aligned = Spec::FixedWindow { quota: Quota::new(2, Duration::from_secs(10)), aligned: true };
    let mut subject = Subject::new(&[vec![previous, aligned]], SECOND);
    let _ = subject.acquire(AcquireOptions::cost(1));
    subject.apply(Op::Tier(1));
    assert_eq!(subject.peek(AcquireOptions::cost(2)).retry_after(), Some(Duration::from_secs(7)));
    assert_eq!(subject.acquire(AcquireOptions::cost(1)).reset(), Some(Duration::from_secs(9)));
    assert_eq!(subject.acquire(AcquireOptions::cost(1)).retry_after(), Some(Duration::from_secs(7)));
    assert_eq!(subject.peek(AcquireOptions::cost(2)).retry_after(), Some(Duration::from_secs(9)));
}

/// The effective time is the newest time in the state, as for every algorithm.
#[test]
fn fixed_window_does_not_start_before_the_newest_time_of_its_state() {
    let window = |seconds| Spec::FixedWindow { quota: Quota::new(5, Duration::from_secs(seconds)), aligned: false };
    let mut subject = Subject::new(&[vec![window(10), window(3)]], 0);
    let _ = subject.acquire(AcquireOptions::default());
    subject.set_clock(9 * SECOND);
    let _ = subject.acquire(AcquireOptions::default());
    subject.apply(Op::Tier(1));
    subject.set_clock(8 * SECOND);
    let decision = subject.acquire(AcquireOptions::default());
    assert_eq!((decision.remaining(), decision.reset()), (Some(4), Some(Duration::from_secs(4))));
}

/// A charge under an aligned quota extends the window only if the calendar window ends later: else the window ends at
/// its original end.
#[test]
fn window_keeps_its_original_end_when_the_calendar_window_ends_no_later() {
    let quota = |period| Quota::new(9, ticks(period));
    let (own, aligned) = (FixedWindow::new(quota(100)), FixedWindow::new(quota(50)).aligned_to_clock());
    let mut state = no_windows();
    own.charge(&mut state, Timestamp::from_micros(1_000), Duration::ZERO, 1);
    aligned.charge(&mut state, Timestamp::from_micros(1_010), Duration::ZERO, 1);
    let remaining = |time| own.snapshot(&state, Timestamp::from_micros(time)).compute().remaining;
    assert_eq!([1_060, 1_099, 1_100].map(remaining), [7, 7, 9]);
}
