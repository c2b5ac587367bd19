//! Laws of the table, against a map without a capacity.

use std::collections::HashMap;
use std::time::Duration;

use super::deadlines::Deadline;
use super::*;
use crate::algorithm::{Counters, FixedWindow, SlidingWindow};
use crate::clock::Timestamp;
use crate::quota::Quota;
use crate::random::Random;
use crate::store::inner::AlgorithmExt as _;

const HOUR: FixedWindow = FixedWindow::new(Quota::per_hour(1_000_000));
const START: Timestamp = Timestamp::from_micros(3_600_000_000_000);

fn policy<'a, A: Algorithm>(
    table: &'a Table<A>,
    algorithm: &'a A,
    now: Timestamp,
    when_full: WhenFull,
) -> Eviction<'a, A> {
    Eviction { algorithm: Some(algorithm), now, when_full, info: table.info() }
}

/// Charges a key.
fn charge<A: Algorithm>(table: &Table<A>, key: u64, algorithm: &A, now: Timestamp) -> Result<(), TableFull> {
    let mut keys = table.lock(key);
    let slot = keys.insert(key, &policy(table, algorithm, now, WhenFull::Deny))?;
    algorithm.charge(keys.state_mut(slot), now, Duration::ZERO, 1);
    Ok(())
}

fn used<A: Algorithm>(table: &Table<A>, key: u64, algorithm: &A, now: Timestamp) -> u64 {
    let keys = table.lock(key);
    let slot = keys.find(key);
    let state = slot.map_or(&table.info().zero, |slot| keys.state(slot));
    let figures = algorithm.snapshot(state, now).compute();
    figures.limit - figures.remaining
}

/// Below the capacity every key gets a slot, keeps its state while shards double and keys move, and is counted once.
#[test]
fn table_below_its_capacity_keeps_every_key() {
    for (seed, keys) in [(1, 1), (2, 5), (3, 100), (4, 400), (5, 401), (6, 5_000), (7, 30_000)] {
        let table = Table::<FixedWindow>::with_capacity(keys, 1, WhenFull::Deny);
        assert!(table.capacity() >= keys);
        let (mut random, mut model) = (Random(seed), HashMap::new());
        while model.len() < keys {
            let key = fingerprint(random.number());
            let key = if random.below(2) == 0 { model.keys().next().copied().unwrap_or(key) } else { key };
            charge(&table, key, &HOUR, START).expect("a slot below the capacity");
            *model.entry(key).or_insert(0) += 1;
        }
        assert!(model.iter().all(|(&key, &charged)| used(&table, key, &HOUR, START) == charged), "{keys} keys");
        let live: usize = table.locked_shards().map(|shard| shard.count_live(START.as_micros())).sum();
        assert_eq!(live, keys);
        let mut saved = HashMap::new();
        let read = table.read_all(START.as_micros(), |item| {
            if item.kind == SavedKind::Key {
                saved.insert(item.id, item.words.to_vec());
            }
            Ok::<_, ()>(())
        });
        assert_eq!((read, saved.len()), (Ok(()), keys));
    }
}

/// The bytes of a table grow with its keys, until it has all slots of its capacity.
#[test]
fn table_takes_bytes_for_the_keys_that_it_has() {
    let table = Table::<FixedWindow>::with_capacity(100_000, 1, WhenFull::Evict);
    assert!(table.bytes() < 40_000, "{}", table.bytes());
    let mut random = Random(1);
    for _ in 0..100 {
        charge(&table, fingerprint(random.number()), &HOUR, START).expect("a slot");
    }
    assert!(table.bytes() < 200_000, "{}", table.bytes());
    let counters = Table::<SlidingWindow>::with_capacity(100, Counters::MAX_WORDS, WhenFull::Evict);
    assert_eq!(counters.info().zero.len(), Counters::MAX_WORDS);
}

/// A flood beyond the capacity: a denied key keeps its state, an evicted key starts anew, and the usage of every evicted key
/// is inherited under [`WhenFull::CarryOver`].
#[test]
fn full_table_follows_its_policy() {
    for when_full in [WhenFull::Deny, WhenFull::Evict, WhenFull::CarryOver] {
        let table = Table::<FixedWindow>::with_capacity(50, 1, when_full);
        let (mut random, mut denied, mut model) = (Random(9), 0, HashMap::new());
        for _ in 0..2_000 {
            let key = fingerprint(random.number());
            let mut keys = table.lock(key);
            let inserted = keys.insert(key, &policy(&table, &HOUR, START, when_full));
            match inserted {
                Ok(slot) => {
                    HOUR.charge(keys.state_mut(slot), START, Duration::ZERO, 1);
                    model.insert(key, 1_u64);
                }
                Err(full) => {
                    assert!(when_full == WhenFull::Deny && !full.all_held && full.until > START.as_micros());
                    denied += 1;
                }
            }
        }
        let evicted: u64 = table.locked_shards().map(|keys| keys.evicted()).sum();
        let live: usize = table.locked_shards().map(|shard| shard.count_live(START.as_micros())).sum();
        assert!(live > table.capacity() * 9 / 10 && live <= table.capacity(), "{live}");
        assert_eq!(model.len(), live + usize::try_from(evicted).expect("few"));
        assert_eq!((denied > 0, evicted > 0), (when_full == WhenFull::Deny, when_full != WhenFull::Deny));
        // Whatever was evicted: a key that comes back under `CarryOver` has at least what it was charged.
        let inherits = |key: &&u64| {
            let keys = table.lock(**key);
            let debt = keys.inherited_debt(**key, &policy(&table, &HOUR, START, when_full));
            debt.is_some_and(|debt| HOUR.snapshot(&debt, START).compute().remaining < 1_000_000)
        };
        let gone = model.keys().filter(|key| table.lock(**key).find(**key).is_none());
        assert!(gone.clone().count() >= usize::try_from(evicted).expect("few"));
        assert_eq!(gone.filter(inherits).count() > 0, when_full == WhenFull::CarryOver);
    }
}

/// Deadlines against a list: a request is due from its deadline on, and if the clock is before its start by more than the
/// longest duration. Each ends once.
#[test]
fn deadlines_agree_with_a_list() {
    let (mut ended, mut stale, mut left) = (0_u64, 0_u64, 0_u64);
    for seed in 0..300 {
        let (mut deadlines, mut random) = (deadlines::Deadlines::default(), Random(seed));
        let (mut now, mut flights, mut longest) = (START.as_micros(), Vec::<(Deadline, u64, u64, u64)>::new(), 0_u64);
        let durations: &[u64] = if seed % 2 == 0 { &[1000] } else { &[1, 1000, 50_000] };
        for _ in 0..300 {
            match random.below(8) {
                0..=2 => {
                    let duration = durations[usize::try_from(random.below(durations.len() as u64)).expect("small")];
                    longest = longest.max(duration);
                    let (key, amount) = (random.below(6), 1 + random.below(5));
                    let deadline = deadlines.add(Timestamp::from_micros(now), duration, key, amount);
                    flights.push((deadline, now + duration, key, amount));
                }
                3 | 4 if !flights.is_empty() => {
                    let index = usize::try_from(random.below(flights.len() as u64)).expect("small");
                    let (deadline, ..) = flights.swap_remove(index);
                    assert!(deadlines.remove(deadline));
                    assert!(!deadlines.remove(deadline), "each hold ends once");
                    left += 1;
                }
                5 => now += random.below(1500),
                6 => {
                    let furthest = if random.below(4) == 0 { 1 << 40 } else { 500 };
                    now -= random.below(furthest).min(now);
                }
                _ => {
                    let mut due: Vec<_> =
                        std::iter::from_fn(|| deadlines.take_due(Timestamp::from_micros(now))).collect();
                    let is_stale = |at: u64| at > now + 2 * longest;
                    let (expected, rest): (Vec<_>, Vec<_>) =
                        flights.into_iter().partition(|&(_, at, ..)| at <= now || is_stale(at));
                    stale += expected.iter().filter(|&&(_, at, ..)| is_stale(at)).count() as u64;
                    let mut expected: Vec<_> = expected.into_iter().map(|(_, _, key, amount)| (key, amount)).collect();
                    due.sort_unstable();
                    expected.sort_unstable();
                    assert_eq!(due, expected, "seed {seed}");
                    ended += due.len() as u64;
                    flights = rest;
                }
            }
        }
    }
    assert!(ended > 3_000 && stale > 500 && left > 5_000, "{ended}, {stale}, {left}");
}

/// A blocked key keeps its block while others are blocked beyond the maximum, unless its block ends first.
#[test]
fn block_that_ends_first_is_dropped() {
    let table = Table::<FixedWindow>::with_capacity(1, 1, WhenFull::Evict);
    let block = |key: u64, seconds: u64| {
        let until = START.saturating_add(Duration::from_secs(seconds)).as_micros();
        let duration = crate::decision::BlockReason::Administrator.pack(seconds * 1_000_000);
        table.lock(key).set_block(key, Some(Block { until, duration }), START, table.info());
    };
    let is_blocked = |key: u64, now: Timestamp| table.lock(key).block(key, now).is_some();
    block(1, 100_000);
    (2..1_000).for_each(|key| block(key, key));
    assert!(is_blocked(1, START));
    let kept = (2..1_000).filter(|key| is_blocked(*key, START)).count();
    assert_eq!(kept + 1, table.capacity());
    assert!((900..1_000).all(|key| is_blocked(key, START)), "the blocks that end last");
    // A block ends at its time, and does not count if the clock has stepped back by more than its duration.
    assert!(!is_blocked(999, START.saturating_add(Duration::from_secs(999))));
    assert!(!is_blocked(999, Timestamp::from_micros(START.as_micros() - 1_000_000_000)));
    table.lock(1).set_block(1, None, START, table.info());
    assert!(!is_blocked(1, START));
}
