//! What the Lua scripts receive: parameters equal the definition, and a state survives the way to Redis and back.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::algorithm::{Algorithm, Counters, HitLog, LuaAlgorithm};
use tower_ratelimit::{
    AcquireOptions, FixedWindow, Gcra, InFlight, LeakyBucket, LeakyQueue, LimitSnapshot, Quota, SlidingLog,
    SlidingWindow, Timestamp, TokenBucket,
};

use crate::algorithm_ext::AlgorithmExt as _;
use crate::cases;
use crate::harness::no_windows;
use crate::span::{micros, ticks};

/// Charges: a wait in 256ths of the period, a delay in microseconds, and a cost.
type Charges = Vec<(u64, u64, u64)>;

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn bucket_parameters_equal_the_definition(quota in quota(), burst in 1u64..100, cost in 0u64..120) {
        check_bucket(&params(&Gcra::new(quota).burst(burst), cost), quota, burst, cost, 0)?;
        check_bucket(&params(&TokenBucket::new(quota).burst(burst), cost), quota, burst, cost, 0)?;
        check_bucket(&params(&LeakyBucket::new(quota).burst(burst), cost), quota, burst, cost, 0)?;
        check_bucket(&params(&LeakyQueue::new(quota).max_waiting(burst - 1), cost), quota, burst, cost, 1)?;
    }

    #[test]
    fn window_parameters_equal_the_definition(quota in quota(), blocks in 1u64..=6, cost in any::<u64>()) {
        let (limit, period) = (quota.limit(), micros(quota.period()));
        prop_assert_eq!(params(&FixedWindow::new(quota), cost), [limit, period, cost, 0, 0, 0, 0, 0]);
        let aligned = FixedWindow::new(quota).aligned_to_clock();
        prop_assert_eq!(params(&aligned, cost), [limit, period, cost, 1, 0, 0, 0, 0]);
        let window = SlidingWindow::new(quota).blocks(blocks);
        prop_assert_eq!(params(&window, cost), [limit, period / blocks, blocks, cost, 0]);
        prop_assert_eq!(params(&window.weighted(), cost), [limit, period / blocks, blocks, cost, 1]);
        prop_assert_eq!(params(&SlidingLog::new(quota), cost), [limit, period, cost]);
        prop_assert_eq!(params(&InFlight::new(limit), cost), [limit, cost]);
    }

    #[test]
    fn state_survives_the_way_to_redis(quota in quota(), burst in 1u64..9, blocks in 1u64..=6, charges in charges()) {
        let bucket = charged(&Gcra::new(quota).burst(burst), [0; 4], quota, &charges);
        prop_assert_eq!(there_and_back(&Gcra::new(quota), &bucket), bucket);
        prop_assert_eq!(there_and_back(&LeakyQueue::new(quota), &bucket), bucket);
        let window = charged(&FixedWindow::new(quota), no_windows(), quota, &charges);
        prop_assert_eq!(there_and_back(&FixedWindow::new(quota), &window), window);
        let sliding = SlidingWindow::new(quota).blocks(blocks);
        let zero = Counters::zero(sliding.counter_words());
        let state = charged(&sliding, zero.clone(), quota, &charges);
        prop_assert_eq!(&*there_and_back(&sliding, &state), &*state);
        // A window with another number of blocks reads the same state, and what it lacks is zero.
        let other = SlidingWindow::new(quota).blocks(12);
        let read = there_and_back(&other, &state);
        prop_assert_eq!(read.len(), other.counter_words());
        prop_assert_eq!(&read[..state.len()], &*state);
        prop_assert!(read[state.len()..].iter().all(|&word| word == 0));
    }

    /// For a log, the script sends the sum of the hits that count, the time at which the key is idle, and the time of
    /// the next token.
    #[test]
    fn log_snapshot_from_redis_equals_that_of_the_state(quota in quota(), charges in charges(), later in 0u64..300) {
        let log = SlidingLog::new(quota);
        let state = charged(&log, HitLog::default(), quota, &charges);
        let newest = state.hits().back().map_or(START, |&(time, _)| time);
        let now = newest + micros(quota.period()) * later / 256;
        let expected = log.snapshot(&state, Timestamp::from_micros(now)).compute();
        let used = state.hits().iter().filter(|hit| hit.0 + micros(quota.period()) > now).map(|hit| hit.1).sum();
        let view = [used, now + micros(expected.reset), now + micros(expected.next_token_after)];
        prop_assert_eq!(log.snapshot_from_view(view, Timestamp::from_micros(now)).compute(), expected);
    }
}

const START: u64 = 1_000_000_000;

/// Generates quotas whose period twelve blocks divide.
fn quota() -> impl Strategy<Value = Quota> {
    (1u64..60, 1u64..40).prop_map(|(limit, period)| Quota::new(limit, ticks(60 * period)))
}

fn charges() -> impl Strategy<Value = Charges> {
    vec((0u64..200, 0u64..50, 1u64..5), 1..12)
}

fn params(algorithm: &impl LuaAlgorithm, cost: u64) -> Vec<u64> {
    let mut params = Vec::new();
    algorithm.params(cost, &mut params);
    params
}

/// The parameters are spans in ticks and fractions of a tick. A parameter of 0 stands for a cost above the burst.
fn check_bucket(params: &[u64], quota: Quota, burst: u64, cost: u64, queued: u64) -> Result<(), TestCaseError> {
    let &[tokens, period, tolerance, tolerance_fraction, charge, charge_fraction, full, spare, queue] = params else {
        return Err(TestCaseError::fail("a bucket has nine parameters"));
    };
    prop_assert_eq!(tokens * micros(quota.period()), quota.limit() * period);
    prop_assert_eq!(charge * tokens + charge_fraction, cost * period);
    prop_assert_eq!(tolerance * tokens + tolerance_fraction, burst.saturating_sub(cost) * period);
    prop_assert!(charge_fraction < tokens && tolerance_fraction < tokens);
    prop_assert_eq!(full, (burst * period).div_ceil(tokens));
    prop_assert_eq!(spare, (burst + 1).saturating_sub(cost));
    prop_assert_eq!(queue, queued);
    Ok(())
}

fn charged<A: Algorithm>(algorithm: &A, mut state: A::State, quota: Quota, charges: &Charges) -> A::State {
    let mut now = START;
    for &(wait, delay, cost) in charges {
        now += micros(quota.period()) * wait / 256;
        algorithm.charge(&mut state, Timestamp::from_micros(now), ticks(delay), cost);
    }
    state
}

/// Encodes a state, appends the numbers that the store keeps behind it, and decodes it.
fn there_and_back<A: LuaAlgorithm>(algorithm: &A, state: &A::State) -> A::State {
    let mut numbers = Vec::new();
    algorithm.encode_state(state, &mut numbers);
    numbers.extend([7, 8, 9]);
    algorithm.decode_state(&numbers)
}

#[test]
fn missing_state_is_the_zero_state() {
    let quota = Quota::per_second(6);
    assert_eq!(Gcra::new(quota).decode_state(&[]), [0; 4]);
    assert_eq!(Gcra::new(quota).decode_state(&[0; 5]), [0; 4]);
    assert_eq!(LeakyQueue::new(quota).decode_state(&[]), [0; 4]);
    assert_eq!(FixedWindow::new(quota).decode_state(&[]), no_windows());
    let sliding = SlidingWindow::new(quota).blocks(4);
    assert_eq!(*sliding.decode_state(&[]), [0; 11]);
    assert_eq!(*sliding.decode_state(&[0; 8]), [0; 11]);
    let mut numbers = Vec::new();
    sliding.encode_state(&Counters::zero(2), &mut numbers);
    assert!(numbers.is_empty());
}

/// A state may have more words than blocks: only the blocks are sent, after their number.
#[test]
fn sliding_window_sends_its_blocks_only() {
    let sliding = SlidingWindow::new(Quota::per_second(6)).blocks(4);
    let mut state = Counters::zero(Counters::MAX_WORDS);
    sliding.charge(&mut state, Timestamp::from_micros(START), Duration::ZERO, 2);
    let mut numbers = Vec::new();
    sliding.encode_state(&state, &mut numbers);
    assert_eq!((numbers.len(), numbers[3..5].to_vec()), (7 + 5, vec![250_000, 5]));
    assert_eq!(numbers[7..].iter().sum::<u64>(), 2);
}

/// The fast script neither delays nor knows costs that are never or always allowed.
#[test]
fn fast_path_of_the_script_takes_possible_costs_without_delay() {
    let bucket = Gcra::new(Quota::per_second(10)).burst(3);
    let window = FixedWindow::new(Quota::per_second(3));
    for (cost, is_possible) in [(0, false), (1, true), (3, true), (4, false)] {
        let options = AcquireOptions::cost(cost);
        assert_eq!(bucket.uses_fast_path(options), is_possible, "cost {cost}");
        assert_eq!(bucket.uses_fast_path(options.max_delay(Duration::ZERO)), is_possible, "cost {cost}");
        assert!(!bucket.uses_fast_path(options.max_delay(Duration::from_micros(1))), "cost {cost}");
        assert_eq!(window.uses_fast_path(options), is_possible, "cost {cost}");
    }
    assert!(!LeakyQueue::new(Quota::per_second(3)).uses_fast_path(AcquireOptions::default()));
}

/// The weight of a decision bounds the time of one script call: see `weight`.
#[test]
fn script_weights_grow_with_the_blocks_and_the_hits() {
    let quota = Quota::per_minute(100);
    assert_eq!(Gcra::new(quota).weight(), 1);
    let blocks = |blocks| SlidingWindow::new(quota).blocks(blocks).weight();
    assert_eq!([1, 12, 15, 24, 25, 60].map(blocks), [2, 2, 3, 3, 4, 6]);
    let log = |limit| SlidingLog::new(Quota::per_minute(limit)).weight();
    assert_eq!([1, 3, 4, 15, 16, 1023, 1024, 499_999, 500_000, 1_000_000].map(log), [4, 4, 5, 5, 6, 8, 9, 13, 22, 31]);
}

#[test]
fn snapshot_of_an_algorithm_without_a_view_is_empty() {
    let empty =
        FixedWindow::new(Quota::per_second(3)).snapshot_from_view([1, 2, 3], Timestamp::from_micros(5)).compute();
    assert_eq!(empty, LimitSnapshot::new(0, None));
}
