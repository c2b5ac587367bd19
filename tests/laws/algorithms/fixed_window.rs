//! The fixed window agrees with the model, field by field, on every schedule: started by the first hit, and aligned to
//! the clock.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::{FixedWindow, Quota, Timestamp};

use crate::algorithm_ext::AlgorithmExt as _;
use crate::cases;
use crate::harness::{Pair, no_windows};
use crate::schedule::{charging_schedule, overlapping_windows, schedule, start, tiers, window};
use crate::span::ticks;

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
