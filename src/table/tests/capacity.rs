//! Candidate sets, and the number of keys that a table stores.

use std::collections::HashMap;

use super::*;

#[test]
fn candidate_sets_of_a_key_differ() {
    let edges = [1, 2, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, 1 << 32, (1 << 32) - 1, u64::MAX << 32];
    for sets in (2..=size(300, 6)).chain([size(1000, 30), size(65_536, 32), size(190_481, 33)]) {
        let table = table_of(sets);
        for hash in edges.into_iter().chain(Hashes(sets as u64).take(size(300, 5))) {
            let [first, other] = table.candidate_sets(hash);
            assert!(first < sets && other < sets && first != other, "{hash:#x} among {sets}: {first}, {other}");
            assert_eq!([table.other_candidate(hash, first), table.other_candidate(hash, other)], [other, first]);
        }
    }
}

#[test]
fn every_pair_of_candidate_sets_is_equally_likely() {
    const PAIRS: usize = 7 * 6;
    /// The mean of the counts, and five standard deviations of them.
    const MEAN: (usize, usize) = if cfg!(miri) { (25, 25) } else { (1000, 160) };
    let table = table_of(7);
    let mut counts = HashMap::new();
    for hash in Hashes(11).take(MEAN.0 * PAIRS) {
        *counts.entry(table.candidate_sets(hash)).or_insert(0_usize) += 1;
    }
    assert_eq!(counts.len(), PAIRS);
    assert!(counts.values().all(|count| count.abs_diff(MEAN.0) < MEAN.1), "{counts:?}");
}

/// 0.376 sets for each key, as `with_capacity` documents, and the slack. The product is computed without an overflow.
#[test]
fn number_of_sets_grows_by_376_for_every_1000_keys() {
    let few = 0..500;
    let many = [1_000, 1_000_000, 1_000_001, 1 << 32, usize::MAX / 2, usize::MAX - 124, usize::MAX];
    for keys in few.chain(many) {
        let expected = (keys as u128 * 376 / 1_000).saturating_add(Words::SLACK_SETS as u128);
        assert_eq!(Words::sets_for_keys(keys) as u128, expected, "{keys} keys");
    }
    let fill = 1e6 / (3.0 * f64::from(u32::try_from(Words::sets_for_keys(1_000_000)).expect("a small table")));
    assert!((0.886..0.887).contains(&fill), "the documented fill of a large table: {fill}");
}

/// Checks that a table with a capacity of `keys` stores this number of live keys.
fn check_capacity(keys: usize, seed: u64) {
    let table = Words::with_capacity(keys, 2, WhenFull::Evict);
    let hashes = || Hashes(seed << 32 | keys as u64).take(keys);
    assert!(hashes().all(|hash| try_put(&table, hash, 1, 2)), "{keys} keys, seed {seed}");
    assert!(hashes().all(|hash| get(&table, hash) == Ok(2)), "{keys} keys, seed {seed}");
}

#[test]
fn table_stores_its_capacity_of_a_few_keys() {
    for keys in 1..=size(60, 8) {
        (0..size(200, 2) as u64).for_each(|seed| check_capacity(keys, seed));
    }
    for keys in 61..=size(300, 61) {
        (0..size(10, 1) as u64).for_each(|seed| check_capacity(keys, seed));
    }
}

#[test]
fn table_stores_its_capacity_of_some_keys() {
    (size(301, 40)..=size(3000, 40)).step_by(7).for_each(|keys| check_capacity(keys, 0));
}

#[test]
fn table_stores_its_capacity_of_many_keys() {
    check_capacity(size(100_000, 50), 0);
    check_capacity(size(1_000_000, 80), 0);
}

#[test]
fn table_stores_its_capacity_of_changing_keys() {
    for &keys in &[1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 1000, 10_000][..size(13, 5)] {
        let table = Words::with_capacity(keys, 2, WhenFull::Evict);
        let lifetime = keys as u64;
        // At any time the last `keys` keys are live.
        for (now, hash) in (1..=5 * lifetime).zip(Hashes(lifetime)) {
            assert!(try_put(&table, hash, now, now + lifetime), "{keys} keys at {now}");
        }
        assert_eq!(table.count_live(5 * lifetime), keys);
        check_structure(&table);
    }
}

/// The probability that the table cannot store as many keys as its capacity, with any relocations, is under 10^-9.
///
/// Keys are the edges of a random graph whose vertices are the sets. By Hall's theorem all keys have a slot unless both
/// candidate sets of some `f = 3 v + 1` keys are among `v` sets. Insert the keys one by one, and take the smallest of
/// the first such groups of sets. Then each set of the group is a candidate of at least four of the `f` keys: otherwise
/// a smaller group would remain without that set. So the probability is at most the sum over `v` of the product of
///
/// - the number of groups of `v` sets;
/// - the probability that `f` of the keys are in the group: for a share of at least the mean,
///   `exp(-keys D(share || p))` by Chernoff's bound;
/// - the probability that each of `v` vertices has at least four of the ends of `f` edges: of the `(v (v - 1))^f`
///   choices at most `(2 f)! [x^(2 f)] g(x)^v`, with `g(x) = exp(x) - 1 - x - x^2/2 - x^3/6`. A coefficient is at most
///   `g(x)^v / x^(2 f)` for any positive `x`. The minimum is near the `x` at which a Poisson variable of at least four
///   has the mean six.
#[test]
#[allow(clippy::cast_precision_loss, reason = "a bound, with orders of magnitude to spare")]
fn probability_that_a_key_has_no_slot_below_the_capacity_is_under_a_billionth() {
    // An upper bound of the logarithm, too large by less than a tenth.
    let ln_factorial =
        |n: f64| if n < 1.0 { 0.0 } else { n * n.ln() - n + 0.5 * (std::f64::consts::TAU * n).ln() + 1.0 / (12.0 * n) };
    let x = 5.071_469_7_f64;
    let ln_g = (x.exp() - 1.0 - x - x.powi(2) / 2.0 - x.powi(3) / 6.0).ln();
    let capacities =
        (1..3_000_u32).chain((0..60).map(|step| 3_000 + 50 * step)).chain((1..18).map(|power| 6_000 << power));
    let capacities = capacities.take(size(usize::MAX, 30));
    for keys in capacities {
        let sets = Words::sets_for_keys(keys as usize) as f64;
        let keys = f64::from(keys);
        let mut probability = 0.0;
        let mut v = 2.0;
        while 3.0 * v < keys && v <= sets {
            let f = 3.0 * v + 1.0;
            let choices = ln_factorial(sets) - ln_factorial(v) - ln_factorial(sets - v) + 0.2;
            let (p, share) = (v * (v - 1.0) / (sets * (sets - 1.0)), f / keys);
            assert!(share > p, "Chernoff's bound is for shares above the mean");
            let rest = if share < 1.0 { (1.0 - share) * ((1.0 - share) / (1.0 - p)).ln() } else { 0.0 };
            let fall_there = -keys * (share * (share / p).ln() + rest);
            let all_have_four = ln_factorial(2.0 * f) + v * ln_g - 2.0 * f * x.ln() - f * (v * (v - 1.0)).ln();
            // Adjacent terms are nearly equal if there are many, so one term represents several.
            let step = if v < 1_000.0 { 1.0 } else { (v / 500.0).floor() };
            probability += step * (choices + fall_there + all_have_four.min(0.0)).exp();
            v += step;
        }
        assert!(probability < 1e-9, "{keys} keys in {sets} sets: {probability:e}");
    }
}

/// Measures the fill at which the first insertion must evict, as the documentation of `with_capacity` states it.
#[test]
fn table_fills_almost_to_the_last_slot() {
    for &(sets, least) in if cfg!(miri) { &[(20, 0.8)][..] } else { &[(50, 0.9), (1000, 0.93), (20_000, 0.93)][..] } {
        let table = table_of(sets);
        let mut keys = Hashes(sets as u64);
        let mut stored = 0_u32;
        while (stored as usize) < table.capacity() && keys.next().is_some_and(|hash| try_put(&table, hash, 1, 2)) {
            stored += 1;
        }
        let fill = f64::from(stored) / f64::from(u32::try_from(table.capacity()).expect("a small table"));
        println!("{} slots: the first insertion fails when {:.2} % are live", table.capacity(), 100.0 * fill);
        assert!(fill > least, "{sets} sets are full at {fill}");
        assert_eq!(table.count_live(1), stored as usize);
    }
}
