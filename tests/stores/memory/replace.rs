//! Limits that are replaced, against counters: the clock stands, so that no algorithm drains.

use std::collections::HashMap;
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::Held;
use tower_ratelimit::{
    AcquireOptions, Detail, DynLimit, FixedWindow, Gcra, LeakyBucket, Limit, LimitStatus, Limiter as _, ManualClock,
    Memory, Quota, SlidingLog, SlidingWindow, TokenBucket,
};

use crate::immediate::{acquire, ready};
use crate::random::Random;

/// (user, team).
type Key = (u64, u64);
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// A limit of a list. A limit with another kind of algorithm, or by another type of sub-key, is another limit.
#[derive(Clone, Copy, Debug)]
struct Spec {
    name: &'static str,
    kind: u64,
    by_team: bool,
    limit: u64,
    is_shadow: bool,
    fixed: Option<u64>,
}

impl Spec {
    fn random(name: &'static str, random: &mut Random) -> Self {
        Self {
            name,
            // Most replacements keep the kind.
            kind: random.choose(&[0, 0, 1, 2, 3, 4, 5]),
            by_team: random.below(8) == 0,
            limit: random.choose(&[10, 20, 50, 100]),
            is_shadow: random.below(6) == 0,
            fixed: (random.below(5) == 0).then_some(2),
        }
    }

    fn identity(&self) -> (&'static str, u64, bool) {
        // The buckets have one type.
        (self.name, self.kind.max(2), self.by_team)
    }

    fn sub_key(&self, key: Key) -> u64 {
        if self.by_team { key.1 } else { key.0 }
    }

    fn limit(self) -> DynLimit<Key> {
        fn with_options<A: Algorithm>(spec: Spec, algorithm: A) -> DynLimit<Key> {
            let limit = Limit::new(spec.name, algorithm);
            let limit = if spec.is_shadow { limit.shadow() } else { limit };
            let limit = if let Some(cost) = spec.fixed { limit.fixed_cost(cost) } else { limit };
            if spec.by_team {
                DynLimit::new(limit.keyed_by(|key: &Key| key.1))
            } else {
                DynLimit::new(limit.keyed_by(|key: &Key| key.0))
            }
        }
        // A whole number of microseconds for each token of each limit.
        let quota = Quota::new(self.limit, Duration::from_secs(1_000_000));
        match self.kind {
            0 => with_options(self, Gcra::new(quota)),
            1 => with_options(self, TokenBucket::new(quota)),
            2 => with_options(self, LeakyBucket::new(quota).burst(self.limit)),
            3 => with_options(self, FixedWindow::new(quota)),
            4 => with_options(self, SlidingWindow::new(quota).blocks(if self.limit > 20 { 5 } else { 2 })),
            _ => with_options(self, SlidingLog::new(quota)),
        }
    }
}

/// What one limit counts: by sub-key the charges, the held costs, and whether the key is blocked.
#[derive(Default)]
struct Counts {
    number: u64,
    used: HashMap<u64, u64>,
    held: HashMap<u64, u64>,
    blocked: HashMap<u64, bool>,
}

impl Counts {
    fn taken(&self, sub_key: u64) -> u64 {
        self.used.get(&sub_key).unwrap_or(&0).saturating_add(*self.held.get(&sub_key).unwrap_or(&0))
    }
}

/// The limits of the model with what they count. A limit that is removed and added again has another number.
struct Model(Vec<(Spec, Counts)>, u64);

/// For each limit of a hold: its number, the sub-key and the cost.
type Parts = Vec<(u64, u64, u64)>;

impl Model {
    fn replace(&mut self, specs: &[Spec]) {
        let mut before = std::mem::take(&mut self.0);
        for spec in specs {
            let same = before.iter().position(|(old, _)| old.identity() == spec.identity());
            let counts = if let Some(index) = same {
                before.swap_remove(index).1
            } else {
                self.1 += 1;
                Counts { number: self.1, ..Counts::default() }
            };
            self.0.push((*spec, counts));
        }
    }

    fn allows((spec, counts): &(Spec, Counts), key: Key, cost: u64) -> bool {
        let sub_key = spec.sub_key(key);
        let is_blocked = counts.blocked.get(&sub_key).copied().unwrap_or(false);
        !is_blocked && counts.taken(sub_key).saturating_add(spec.fixed.unwrap_or(cost)) <= spec.limit
    }

    /// Charges or holds if all limits but shadows allow. Returns whether they do, and what is held.
    fn acquire(&mut self, key: Key, cost: u64, hold: bool) -> (bool, Parts) {
        if !self.0.iter().all(|limit| limit.0.is_shadow || Self::allows(limit, key, cost)) {
            return (false, Vec::new());
        }
        let mut parts = Vec::new();
        for limit in &mut self.0 {
            if !Self::allows(limit, key, cost) {
                continue;
            }
            let (spec, counts) = limit;
            let sub_key = spec.sub_key(key);
            if hold && spec.fixed.is_none() {
                *counts.held.entry(sub_key).or_default() += cost;
                parts.push((counts.number, sub_key, cost));
            } else {
                *counts.used.entry(sub_key).or_default() += spec.fixed.unwrap_or(cost);
            }
        }
        (true, parts)
    }

    fn settle(&mut self, parts: Parts, actual: u64) {
        for (number, sub_key, cost) in parts {
            if let Some((_, counts)) = self.0.iter_mut().find(|(_, counts)| counts.number == number) {
                *counts.held.get_mut(&sub_key).expect("held") -= cost;
                *counts.used.entry(sub_key).or_default() += actual;
            }
        }
    }

    fn left(&self, key: Key) -> Vec<(String, u64, bool)> {
        let of_limit = |(spec, counts): &(Spec, Counts)| {
            let sub_key = spec.sub_key(key);
            let is_blocked = counts.blocked.get(&sub_key).copied().unwrap_or(false);
            (spec.name.to_owned(), spec.limit.saturating_sub(counts.taken(sub_key)), is_blocked)
        };
        self.0.iter().map(of_limit).collect()
    }
}

type Limiter = Memory<Key, Vec<DynLimit<Key>>>;

fn left(limiter: &Limiter, key: Key) -> Vec<(String, u64, bool)> {
    let decision = ready(limiter.peek(&key, AcquireOptions::cost(0).detail(Detail::All)));
    let of_limit = |status: &LimitStatus| (status.name().to_owned(), status.remaining(), status.is_blocked());
    decision.limits().iter().map(of_limit).collect()
}

/// A replacement by random limits, sometimes none, in a random order; or an invalid one, which changes nothing.
fn replace(limiter: &Limiter, model: &mut Model, random: &mut Random) {
    let mut specs = Vec::new();
    for name in NAMES.into_iter().filter(|_| random.below(3) > 0).collect::<Vec<_>>() {
        let old = model.0.iter().map(|(spec, _)| *spec).find(|spec| spec.name == name);
        let new = Spec::random(name, random);
        // Most limits stay the same one, with other numbers.
        let spec =
            old.filter(|_| random.below(4) > 0).map_or(new, |old| Spec { kind: old.kind, by_team: old.by_team, ..new });
        specs.insert(random.index(specs.len() + 1), spec);
    }
    let mut limits: Vec<_> = specs.iter().map(|spec| spec.limit()).collect();
    if !limits.is_empty() && random.below(6) == 0 {
        limits.push(specs[0].limit());
        let error = limiter.replace(limits).expect_err("two limits of one name").to_string();
        assert!(error.contains("two limits are named"), "{error}");
        return;
    }
    limiter.replace(limits).expect("limits");
    model.replace(&specs);
}

/// The law: a limit with the same name, kind of algorithm and type of sub-key keeps its usage, held costs and blocks, in
/// whichever place and with whichever numbers; any other limit starts empty, and what was held on a removed one is gone.
#[test]
fn replaced_limits_count_as_the_model() {
    let (mut allowed, mut denied, mut settled) = (0, 0, 0);
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let limiter: Limiter = Memory::builder(Vec::new())
            .allow_no_limits()
            .max_keys(100)
            .clock(ManualClock::new())
            .build()
            .expect("limits");
        let (mut model, mut open) = (Model(Vec::new(), 0), Vec::<(Held, Parts)>::new());
        for step in 0..150 {
            let key = (random.below(3), random.below(2));
            let context = format!("seed {seed}, step {step}, {key:?}");
            match random.below(20) {
                0..=2 => replace(&limiter, &mut model, &mut random),
                3..=6 if !open.is_empty() => {
                    let (held, parts) = open.swap_remove(random.index(open.len()));
                    let actual = random.below(8);
                    settled += 1;
                    if random.below(4) == 0 {
                        model.settle(parts, held.cost());
                        drop(held);
                    } else {
                        model.settle(parts, actual);
                        ready(held.settle(actual));
                    }
                }
                7 => {
                    ready(limiter.reset(&key));
                    for (spec, counts) in &mut model.0 {
                        counts.used.remove(&spec.sub_key(key));
                    }
                }
                8 | 9 if !model.0.is_empty() => {
                    let index = random.index(model.0.len());
                    let (spec, counts) = &mut model.0[index];
                    let (sub_key, used) = (spec.sub_key(key), random.below(2 * spec.limit));
                    match random.below(3) {
                        0 => {
                            ready(limiter.set_usage(spec.name, &key, used));
                            counts.used.insert(sub_key, used);
                        }
                        1 => {
                            ready(limiter.block(spec.name, &key, Duration::from_secs(60)));
                            counts.blocked.insert(sub_key, true);
                        }
                        _ => {
                            ready(limiter.block(spec.name, &key, Duration::ZERO));
                            counts.blocked.insert(sub_key, false);
                        }
                    }
                }
                kind => {
                    let (cost, hold) = (1 + random.below(6), kind < 14);
                    let options = AcquireOptions::cost(cost).max_delay(Duration::ZERO);
                    let outcome = acquire(&limiter, &key, if hold { options.hold() } else { options });
                    let (is_allowed, parts) = model.acquire(key, cost, hold);
                    assert_eq!(outcome.decision.is_allowed(), is_allowed, "{context} {:?}", model.left(key));
                    open.extend(outcome.held.map(|held| (held, parts)));
                    allowed += u64::from(is_allowed);
                    denied += u64::from(!is_allowed);
                }
            }
            assert_eq!(left(&limiter, key), model.left(key), "{context}");
        }
    }
    println!("{allowed} {denied} {settled}");
    assert!(allowed > 2_000 && denied > 1_000 && settled > 1_000, "{allowed} {denied} {settled}");
}
