//! What the Lua scripts receive: parameters equal the definition, and a state survives the way to Redis and back.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::algorithm::{Algorithm, Counters, LuaAlgorithm};
use tower_ratelimit::{
    AcquireOptions, FixedWindow, Gcra, LeakyQueue, LimitSnapshot, Quota, SlidingLog, SlidingWindow, Timestamp,
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
}

const START: u64 = 1_000_000_000;

/// Generates quotas whose period twelve blocks divide.
fn quota() -> impl Strategy<Value = Quota> {
    (1u64..60, 1u64..40).prop_map(|(limit, period)| Quota::new(limit, ticks(60 * period)))
}

fn charges() -> impl Strategy<Value = Charges> {
    vec((0u64..200, 0u64..50, 1u64..5), 1..12)
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
