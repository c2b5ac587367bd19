//! The scripts on a real server reply as the model of the client's simulation does (`src/store/redis/simulation_tests/`).
//!
//! The model computes windows, token buckets, holds and leases in whole numbers, as their documentation states
//! them. So the simulated server decides like Redis, and the scripts are compared with code that shares nothing with
//! them. The operations are random, and include reports and updates that are lost, repeated and reordered, and the loss
//! of keys.

#[allow(dead_code, reason = "the simulation uses it")]
#[path = "../../../src/store/redis/simulation_tests/ids.rs"]
mod ids;
#[allow(dead_code, reason = "the simulation uses the rest")]
#[path = "../../../src/store/redis/simulation_tests/model.rs"]
mod model;
mod operations;
#[path = "../../../src/store/redis/simulation_tests/quota.rs"]
#[allow(dead_code, reason = "the simulation uses the rest")]
mod quota;
#[allow(dead_code, reason = "the other models use the rest")]
#[path = "../../../src/store/redis/lease/server_model.rs"]
mod server_model;
#[allow(dead_code, reason = "the simulation uses the rest")]
#[path = "../../../src/store/redis/simulation_tests/sessions.rs"]
mod sessions;
#[allow(dead_code, reason = "the simulation uses the rest")]
#[path = "../../../src/store/redis/simulation_tests/wire.rs"]
mod wire;

use bb8_redis::redis;

use self::model::{Run, Store};
use self::operations::{Clients, Operation, encode, input};
use self::quota::{Form, Quota};
use self::wire::{Input, LATE, to_f64};
use crate::lua;
use crate::mistake::Mistake;
use crate::random::Random;
use crate::server::Server;

const SEEDS: u64 = 48;
const CALLS: u64 = 80;
const START: u64 = 1_790_000_000_000_000;
/// The blocks of sliding windows.
const BLOCKS: usize = 3;

/// A reply's parts: see `driver.lua`.
pub(crate) struct Reply<'a> {
    now: u64,
    /// 1 after the fast path, else twice the number of holds that have expired.
    flags: usize,
    pub(crate) results: Vec<f64>,
    values: Vec<&'a [u8]>,
}

fn numbers(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(8).map(|word| f64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
}

impl<'a> Reply<'a> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time")]
    pub(crate) fn read(bytes: &'a [u8]) -> Self {
        let short = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let (flags, results, keys) = (short(8), short(10), short(12));
        let lengths = 14 + results * 8;
        let mut at = lengths + if flags == 1 { 0 } else { keys * 2 };
        // After the fast path all values have the same length.
        let equal_length = (bytes.len() - at) / keys.max(1);
        let values = (0..keys).map(|index| {
            let start = at;
            at += if flags == 1 { equal_length } else { short(lengths + index * 2) };
            &bytes[start..at]
        });
        let values = values.collect();
        assert_eq!(at, bytes.len(), "a reply ends with the values");
        Self { now: numbers(&bytes[..8])[0] as u64, flags, results: numbers(&bytes[14..lengths]), values }
    }

    /// Removes the flags of all decisions: a reply after a fast path has none.
    fn without_flags(&mut self, operations: &[Operation], limits: usize) {
        let mut results = Vec::new();
        for operation in operations {
            let rest = self.results.split_off(operation.result_count(limits, false));
            let own = std::mem::replace(&mut self.results, rest);
            results.extend(&own[..operation.result_count(limits, true)]);
        }
        (self.flags, self.results) = (1, results);
    }

    /// Adds the results of this number of decisions, if all are 0 after the fast path.
    pub(crate) fn with_zeros(mut self, decisions: usize) -> Self {
        if self.flags == 1 && self.results.is_empty() {
            self.results.resize(decisions, 0.0);
        }
        self
    }
}

/// The held costs and the words of a key's value. `None` is a key that is idle, without held costs.
fn state(value: &[u8], form: Form, now: u64) -> Option<(f64, Vec<f64>)> {
    let (held, words) = if value.len() % 8 == 1 { (numbers(value)[0], &value[8..]) } else { (0.0, value) };
    let mut words = numbers(words);
    words.truncate(match form {
        Form::SlidingWindow { .. } => 8 + BLOCKS,
        _ => 5,
    });
    if words.first().is_none_or(|end| *end <= to_f64(now)) {
        words.clear();
    }
    (held > 0.0 || !words.is_empty()).then_some((held, words))
}

/// One seed: the quotas, and what the server stores by the model.
struct World {
    seed: u64,
    quotas: Vec<Quota>,
    has_leases: bool,
    now: u64,
    store: Store,
    /// Calls that the fast path of several buckets answered.
    fast_of_several: usize,
}

fn are_buckets(quotas: &[Quota]) -> bool {
    quotas.iter().all(|quota| matches!(quota.form, Form::TokenBucket { .. }))
}

/// The keys of a call: the limit and the number of each.
type Keys = Vec<(usize, u64)>;

impl World {
    fn new(seed: u64, random: &mut Random) -> Self {
        let are_buckets = random.percent(50);
        let quotas = (0..random.between(1, 2)).map(|_| {
            let (units, period) = (random.between(3, 40), random.between(1_000, 3_000_000));
            let form = if are_buckets || random.percent(50) {
                Form::TokenBucket { burst: random.between(3, 40) }
            } else if random.percent(50) {
                Form::SlidingWindow { blocks: BLOCKS as u64 }
            } else {
                Form::FixedWindow
            };
            Quota { units, period: period.next_multiple_of(BLOCKS as u64), form }
        });
        let quotas = quotas.collect();
        Self { seed, quotas, has_leases: random.percent(60), now: START, store: Store::default(), fast_of_several: 0 }
    }

    /// The name of a key in Redis.
    fn name(&self, limit: usize, number: u64) -> String {
        format!("{} {limit} {number}", self.seed)
    }

    /// The server loses the keys with a number.
    fn lose(&mut self, number: u64, connection: &mut redis::Connection) {
        for limit in 0..self.quotas.len() {
            let _: u64 = redis::cmd("DEL").arg(self.name(limit, number)).query(connection).expect("a number");
        }
        self.store.set_foreign(number, false);
    }

    fn script(&self) -> String {
        let kernel = |quota: &Quota| match quota.form {
            Form::FixedWindow => include_str!("../../../src/algorithm/fixed_window.lua"),
            Form::TokenBucket { .. } => include_str!("../../../src/algorithm/bucket/bucket.lua"),
            Form::SlidingWindow { .. } => include_str!("../../../src/algorithm/sliding_window/sliding_window.lua"),
            Form::SlidingLog | Form::InFlight => unreachable!("no quota of `World::new`"),
        };
        let fast_path = match &self.quotas[..] {
            [Quota { form: Form::FixedWindow, .. }] => {
                Some(include_str!("../../../src/algorithm/fixed_window_fast.lua"))
            }
            [Quota { form: Form::TokenBucket { .. }, .. }] => Some(lua::FAST_BUCKET),
            quotas => are_buckets(quotas).then_some(include_str!("../../../src/algorithm/bucket/buckets_fast.lua")),
        };
        lua::assemble(&self.quotas.iter().map(kernel).collect::<Vec<_>>(), fast_path, self.has_leases)
    }

    /// Returns the indices of the keys in the store.
    fn indices(&mut self, keys: &Keys) -> Vec<usize> {
        keys.iter().map(|&(limit, number)| self.store.index_of(limit, number)).collect()
    }

    fn run(&self, store: &mut Store, input: &Input, indices: &[usize]) -> Vec<u8> {
        let (keys, executions) = (indices.to_vec(), &mut Vec::new());
        let id_keys = Vec::new();
        store.run(
            input,
            Run {
                client: 0,
                call: 0,
                now: self.now,
                quotas: &self.quotas,
                keys,
                id_keys,
                ignores_releases: false,
                executions,
            },
        )
    }

    /// Compares the replies of one call.
    fn check(&mut self, operations: &[Operation], keys: &Keys, whole: &Input, reply: &[u8], clients: &mut Clients) {
        let indices = self.indices(keys);
        let mut store = self.store.clone();
        let expected = self.run(&mut store, whole, &indices);
        let [mut expected, actual] =
            [&expected, reply].map(|reply| Reply::read(reply).with_zeros(operations.len() * self.quotas.len()));
        let place = format!("seed {}, {:?} at {}: {operations:?} on {keys:?}", self.seed, self.quotas, self.now);
        let is_fast = actual.flags == 1;
        self.fast_of_several += usize::from(is_fast && self.quotas.len() > 1);
        if is_fast && expected.flags == 0 {
            // The fast path of holds, or of several buckets, which the model does not know.
            expected.without_flags(operations, self.quotas.len());
        }
        assert_eq!((actual.now, actual.flags), (self.now, expected.flags), "{place}");
        assert_eq!(actual.results.len(), expected.results.len(), "{place}");
        for ((index, _), value) in keys.iter().enumerate().zip(&actual.values) {
            let form = self.quotas[keys[index].0].form;
            let of_value = |value: &[u8]| state(value, form, self.now);
            assert_eq!(of_value(value), of_value(expected.values[index]), "{place}: the value {index}");
        }
        let mut at = 0;
        for (index, operation) in operations.iter().enumerate() {
            let count = operation.result_count(self.quotas.len(), is_fast);
            let [expected, actual] = [&expected.results, &actual.results].map(|results| &results[at..at + count]);
            at += count;
            let place = format!("{place}: operation {index}: {actual:?}");
            let parts: Vec<(usize, usize)> = operation.parts(&indices);
            let has_failed = actual.iter().any(|result| *result <= LATE);
            if operation.is_decision() && !has_failed {
                let before = input(&operations[..index], &self.quotas, keys, (whole.latest_start, false));
                let mut before_it = self.store.clone();
                self.run(&mut before_it, &before, &indices);
                before_it.expire(&self.quotas, self.now);
                self.check_decision(operation, &parts, &before_it, (expected, actual), is_fast, &place);
            } else {
                assert_eq!(expected, actual, "{place}");
            }
            clients.receive(operation, actual);
        }
        self.store = store;
    }

    /// Compares the verdicts. A wait behind leases is that of `lease.lua`, section "Waits".
    fn check_decision(
        &self,
        operation: &Operation,
        parts: &[(usize, usize)],
        store: &Store,
        (expected, actual): (&[f64], &[f64]),
        is_fast: bool,
        place: &str,
    ) {
        let mut would_allow = self.has_leases;
        for &(limit, key) in parts {
            let (own, quota, key) = (expected[limit], &self.quotas[limit], &store.keys[key]);
            let (held, leased) = (key.costs.total(), key.leased());
            let cost = operation.costs[limit].expect("a cost");
            let mut verdict = own;
            if self.has_leases && own > 0.0 && leased > 0 && leased >= held {
                // Each lease is renewed once more, and then charged whole.
                let latest = key.costs.entries.values().map(|entry| entry.expiry).max().expect("a lease");
                let ends = self.now.max(latest + key.large_costs.duration);
                let after = key.usage.decide(quota, ends, held, cost).max(0);
                verdict = verdict.max(to_f64(ends - self.now + after.unsigned_abs()));
            }
            assert_eq!(actual[limit], verdict, "{place}: limit {limit}");
            if verdict != 0.0 {
                would_allow &= leased > 0 && key.usage.decide(quota, self.now, held - leased, cost) == 0;
            }
        }
        if is_fast {
            return;
        }
        let is_denied = actual[..self.quotas.len()].iter().any(|verdict| *verdict != 0.0);
        let note = whole(actual[self.quotas.len()]);
        assert_eq!(note / 2, u64::from(is_denied && would_allow), "{place}: whether leases deny; no key is blocked");
        // Buckets can schedule a later start. Several do so only if their usage lasts until then.
        let is_window = !are_buckets(&self.quotas);
        if is_window || operation.code == Input::HOLD {
            assert_eq!(note % 2, 1, "{place}: whether a later start can be scheduled");
        } else if self.quotas.len() == 1 {
            assert_eq!(note % 2, 0, "{place}: whether a later start can be scheduled");
        }
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number of at most 2^53")]
fn whole(number: f64) -> u64 {
    assert!(number >= 0.0, "{number}");
    number as u64
}

/// Returns the number of calls that the fast path of several buckets answered.
fn compare() -> usize {
    let server = Server::start();
    let mut connection = server.connect();
    let mut fast_of_several = 0;
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let mut world = World::new(seed, &mut random);
        let mut clients = Clients::default();
        let script = redis::Script::new(&world.script());
        for _ in 0..CALLS {
            world.now += operations::pause(&world.quotas, &mut random);
            if random.percent(3) {
                world.lose(random.below(3), &mut connection);
            }
            let (keys, operations) = clients.call(&world.quotas, world.has_leases, world.now, &mut random);
            let can_be_fast = operations.iter().all(|one| one.can_be_fast(&world.quotas));
            let is_fast = can_be_fast && random.percent(90);
            let latest_start = match random.below(20) {
                0 => to_f64(world.now - 1),
                1..=3 => to_f64(world.now),
                _ => 0.0,
            };
            let whole = input(&operations, &world.quotas, &keys, (latest_start, is_fast));
            let mut call = script.prepare_invoke();
            for &(limit, number) in &keys {
                call.key(world.name(limit, number));
            }
            let reply: Vec<u8> = call
                .arg(encode(&operations, &world.quotas, &whole, (world.now, world.has_leases)))
                .invoke(&mut connection)
                .expect("a reply");
            world.check(&operations, &keys, &whole, &reply, &mut clients);
        }
        fast_of_several += world.fast_of_several;
    }
    fast_of_several
}

#[test]
fn scripts_reply_as_the_model() {
    let fast_of_several = compare();
    assert!(fast_of_several > 15, "{fast_of_several} calls took the fast path of several buckets");
}

/// The control.
#[test]
fn mistakes_in_the_model_are_found() {
    let mistakes = [
        Mistake::ReportIsAppliedAgain,
        Mistake::LateReportIsApplied,
        Mistake::GrantIsCharged,
        Mistake::ReleasedUnitsAreSubtractedTwice,
        Mistake::ExpiredCostsAreDropped,
        Mistake::KeyExpiresWithItsUsage,
    ];
    for mistake in mistakes {
        let found = std::panic::catch_unwind(|| mistake.make(compare)).expect_err(&format!("{mistake:?}"));
        let message = found.downcast_ref::<String>().expect("a message");
        assert!(message.contains("seed"), "{mistake:?}: {message}");
    }
}
