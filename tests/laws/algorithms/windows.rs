//! The leaky queue agrees with a slow and simple model. The worst cases of windows and logs, and what a log stores.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::algorithm::{Algorithm, HitLog};
use tower_ratelimit::{
    AcquireOptions, Clock, FixedWindow, Gcra, LeakyBucket, LeakyQueue, ManualClock, Memory, Quota, SlidingLog,
    SlidingWindow, TokenBucket, Verdict,
};

use crate::algorithm_ext::AlgorithmExt as _;

fn quota(limit: u64, period: u64) -> Quota {
    Quota::new(limit, Duration::from_micros(period))
}

proptest! {
    /// The model is the next free time as an exact fraction.
    #[test]
    fn leaky_queue_agrees_with_the_model(
        limit in 1..8_u64,
        period in prop_oneof![Just(7_u64), Just(1_000), Just(1_000_000), Just(7_000_000)],
        waiting in 0..6_u64,
        requests in proptest::collection::vec((0..9_u64, 0..400_u64, proptest::option::of(0..300_u64)), 1..60),
    ) {
        let clock = ManualClock::new();
        let queue = LeakyQueue::new(quota(limit, period)).max_waiting(waiting);
        let limiter = Memory::builder(queue).clock(clock.clone()).build().expect("a limiter");
        // The unit is `1 / limit` of a tick: the spacing of `period / limit` ticks is then a whole number.
        let (unit, spacing) = (u128::from(limit), u128::from(period));
        let mut next_free = 0_u128;
        for (cost, gap, max_delay) in requests {
            clock.advance(Duration::from_micros(gap * period / 100));
            let now = u128::from(clock.now().as_micros()) * unit;
            let delay = next_free.saturating_sub(now);
            let options = AcquireOptions::cost(cost);
            let max_delay_ticks = max_delay.map(|share| share * period / 100);
            let options = max_delay_ticks.map_or(options, |ticks| options.max_delay(Duration::from_micros(ticks)));
            // A request is denied until the queue has space and until the delay is at most the accepted delay.
            let ticks = |span: u128| u64::try_from(span.div_ceil(unit)).expect("a short time");
            let space_after = (delay + u128::from(cost) * spacing).saturating_sub(u128::from(waiting + 1) * spacing);
            let accepted_after = max_delay_ticks.map_or(0, |max_delay| ticks(delay).saturating_sub(max_delay));
            let expected = if cost > waiting + 1 {
                Verdict::ExceedsLimit
            } else {
                match (ticks(space_after).max(accepted_after), ticks(delay)) {
                    (0, 0) => Verdict::Allowed,
                    (0, delay) => Verdict::AllowedAfter(Duration::from_micros(delay)),
                    (wait, _) => Verdict::Denied { retry_after: Duration::from_micros(wait) },
                }
            };
            prop_assert_eq!(limiter.check("key", options).verdict(), expected);
            if expected.is_allowed() && cost > 0 {
                next_free = next_free.max(now) + u128::from(cost) * spacing;
            }
        }
    }
}

/// Sends a request of cost 1 at each of these times. Returns the times of the admitted requests.
fn admitted(algorithm: impl Algorithm, times: &[u64]) -> Vec<u64> {
    let clock = ManualClock::new();
    let limiter = Memory::builder(algorithm).max_keys(1).clock(clock.clone()).build().expect("a limiter");
    let at = |&time: &u64| {
        clock.set(ManualClock::START.saturating_add(Duration::from_micros(time)));
        limiter.check("key", AcquireOptions::default().max_delay(Duration::ZERO)).is_allowed()
    };
    times.iter().copied().filter(|time| at(time)).collect()
}

/// Returns the maximum number of admissions in any half-open window of the period.
fn max_in_a_window(admitted: &[u64], period: u64) -> usize {
    let within = |from: u64| admitted.iter().filter(|&&time| (from..from + period).contains(&time)).count();
    admitted.iter().map(|&from| within(from)).max().unwrap_or(0)
}

/// Tries all schedules of 0 or `burst` requests at each tick. Returns the maximum number of admissions in a window.
fn max_over_all_schedules(algorithm: impl Algorithm + Copy, period: u64, ticks: u32, burst: u64) -> usize {
    let choices = 2_u64.pow(ticks);
    let schedule = |choice: u64| -> Vec<u64> {
        let ticks = (0..u64::from(ticks)).filter(|tick| choice >> tick & 1 == 1);
        ticks.flat_map(|tick| std::iter::repeat_n(tick, usize::try_from(burst).expect("small"))).collect()
    };
    (0..choices).map(|choice| max_in_a_window(&admitted(algorithm, &schedule(choice)), period)).max().unwrap_or(0)
}

#[test]
fn sliding_log_and_strict_window_admit_exactly_the_limit_in_any_window() {
    for limit in 1..=3 {
        assert_eq!(
            max_over_all_schedules(SlidingLog::new(quota(limit, 4)), 4, 10, limit),
            usize::try_from(limit).expect("small")
        );
        for blocks in [1, 2, 4] {
            let strict = SlidingWindow::new(quota(limit, 4)).blocks(blocks);
            assert_eq!(
                max_over_all_schedules(strict, 4, 10, limit),
                usize::try_from(limit).expect("small"),
                "{blocks} blocks"
            );
        }
    }
}

#[test]
fn weighted_window_reaches_and_never_exceeds_twice_the_limit_less_one() {
    for limit in 1..=3_u64 {
        let bound = usize::try_from(2 * limit - 1).expect("small");
        for blocks in [1, 2, 4] {
            let weighted = SlidingWindow::new(quota(limit, 4)).blocks(blocks).weighted();
            assert!(max_over_all_schedules(weighted, 4, 10, limit) <= bound, "{limit} in {blocks} blocks");
        }
        // The bound is reached: the whole limit at the end of a block, then one by one as the estimate allows.
        let (period, limit) = (1_000_000, limit * 10);
        for blocks in [1_u64, 2, 5] {
            let weighted = SlidingWindow::new(quota(limit, period)).blocks(blocks).weighted();
            let width = period / blocks;
            // After the period, the share of the first block decreases to zero.
            let times = std::iter::repeat_n(width - 1, usize::try_from(limit).expect("small"))
                .chain((0..=width).map(|tick| period + tick * (width / 1_000).max(1)).take(1_001))
                .collect::<Vec<_>>();
            let max = max_in_a_window(&admitted(weighted, &times), period);
            assert_eq!(max, usize::try_from(2 * limit - 1).expect("small"), "{limit} in {blocks} blocks");
        }
    }
}

/// 20, 100, 100 and 20 requests in consecutive half minutes, spaced evenly, at a limit of 120 a minute. The table lists
/// the maximum that each algorithm admits within one minute.
#[test]
fn algorithms_admit_their_documented_maximum_of_bursts_in_half_minutes() {
    let half = 30_000_000;
    let evenly = |index: u64, count: u64| (0..count).map(move |request| index * half + request * half / count);
    let times: Vec<u64> =
        [20, 100, 100, 20].into_iter().zip(0..).flat_map(|(count, index)| evenly(index, count)).collect();
    let quota = Quota::per_minute(120);
    let max = |admitted: &[u64]| max_in_a_window(admitted, 2 * half);
    let table = [
        ("fixed window, aligned", max(&admitted(FixedWindow::new(quota).aligned_to_clock(), &times)), 200),
        ("fixed window, from the first hit", max(&admitted(FixedWindow::new(quota), &times)), 200),
        ("gcra", max(&admitted(Gcra::new(quota), &times)), 200),
        ("token bucket", max(&admitted(TokenBucket::new(quota), &times)), 200),
        ("leaky bucket", max(&admitted(LeakyBucket::new(quota), &times)), 200),
        // These admit one request each half second; requests come each 300 milliseconds.
        ("gcra, strict", max(&admitted(Gcra::new(quota).strict(), &times)), 100),
        ("leaky queue without waiting", max(&admitted(LeakyQueue::new(quota).max_waiting(0), &times)), 100),
        (
            "sliding window, weighted, one block",
            max(&admitted(SlidingWindow::new(quota).blocks(1).weighted(), &times)),
            159,
        ),
        ("sliding window, weighted, ten blocks", max(&admitted(SlidingWindow::new(quota).weighted(), &times)), 120),
        ("sliding window, strict", max(&admitted(SlidingWindow::new(quota), &times)), 120),
        ("sliding log", max(&admitted(SlidingLog::new(quota), &times)), 120),
    ];
    for (name, max, expected) in table {
        assert_eq!(max, expected, "{name}");
    }
}

#[test]
fn sliding_log_stores_at_most_its_limit_when_overcharged() {
    let algorithm = SlidingLog::new(quota(3, 1_000));
    let mut log = HitLog::default();
    for tick in 0..100 {
        algorithm.charge(&mut log, ManualClock::START.saturating_add(Duration::from_micros(tick)), Duration::ZERO, 5);
        assert!(log.hits().len() <= 3);
    }
    let error =
        Memory::<u64, _>::builder(SlidingLog::new(Quota::per_hour(100_000))).build().expect_err("too much memory");
    assert!(error.is_config() && error.to_string().contains("max_heap_bytes"), "{error}");
    assert!(Memory::<u64, _>::builder(SlidingLog::new(Quota::per_hour(100_000))).max_keys(100).build().is_ok());
}

/// A log takes the documented 16 bytes a hit: it reserves no capacity beyond the limit and stores no hit of weight 0.
#[test]
fn sliding_log_reserves_no_more_than_its_limit() {
    let at = |tick| ManualClock::START.saturating_add(Duration::from_micros(tick));
    for limit in [1, 3, 5, 6, 7, 100] {
        let algorithm = SlidingLog::new(quota(limit, 1_000));
        let (mut log, mut other) = (HitLog::default(), HitLog::default());
        for tick in 0..limit {
            algorithm.charge(&mut log, at(tick), Duration::ZERO, 1);
            algorithm.charge(&mut other, at(tick + tick % 2), Duration::ZERO, 1 + tick % 2);
        }
        assert_eq!(log.hits().len() as u64, limit);
        assert!(log.hits().capacity() as u64 <= limit, "{} of {limit}", log.hits().capacity());
        assert_eq!(algorithm.max_heap_bytes() as u64, limit * 16);
        algorithm.carry_over_debt(&mut log, &other, at(limit));
        assert!(log.hits().len() as u64 <= limit);
        assert!(log.hits().iter().all(|&(_, weight)| weight > 0), "{log:?}");
    }
    // Costs above 1, so that both logs together have more hits than the limit.
    let algorithm = SlidingLog::new(quota(3, 1_000));
    let (mut log, mut other) = (HitLog::default(), HitLog::default());
    for tick in [0, 2, 4] {
        algorithm.charge(&mut log, at(tick), Duration::ZERO, 2);
        algorithm.charge(&mut other, at(tick + 1), Duration::ZERO, if tick == 4 { 1 } else { 2 });
    }
    algorithm.carry_over_debt(&mut log, &other, at(5));
    assert_eq!((log.hits().len(), log.hits().iter().map(|&(_, weight)| weight).sum::<u64>()), (3, 6), "{log:?}");
}

#[test]
fn invalid_windows_are_errors_when_built() {
    let window = SlidingWindow::new(Quota::per_minute(100));
    for blocks in [0, 61, 7_000] {
        assert!(window.try_blocks(blocks).expect_err("invalid number of blocks").to_string().contains("1 to 60"));
    }
    let odd = SlidingWindow::new(Quota::new(10, Duration::from_micros(13)));
    assert!(odd.try_blocks(2).expect_err("13 is odd").to_string().contains("divides the period"));
    assert!(format!("{odd:?}").contains("blocks: 1,"), "{odd:?}");
    assert!(window.try_blocks(60).is_ok() && window.try_blocks(1).is_ok());
    let pair = |limit| SlidingWindow::new(quota(limit, 2)).blocks(1);
    assert!(pair(1 << 52).try_weighted().is_ok() && pair((1 << 52) + 1).try_weighted().is_err());
    let day = SlidingWindow::new(Quota::per_day(10_000_000)).blocks(1);
    assert!(day.try_weighted().expect_err("too long").to_string().contains("choose more blocks"));
    assert!(
        SlidingLog::try_new(Quota::per_day(1_000_001))
            .expect_err("too many hits")
            .to_string()
            .contains("SlidingWindow")
    );
}
