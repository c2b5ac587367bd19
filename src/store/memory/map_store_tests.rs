//! A store that is a map of states, and calls only the two pure parts of a decision ([`Limit::transition`] and [`Plan`]),
//! decides as the memory store.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::time::Duration;

use super::{DynLimit, Memory};
use crate::algorithm::{Algorithm, State};
use crate::clock::{Clock, ManualClock, Timestamp};
use crate::decision::{AcquireOptions, Decision, Detail, LazySnapshot, LimitReading, LimitStatus, Plan};
use crate::limit::{Limit, ReadMode, SelectAlgorithm, SubKeyOf, per_key};
use crate::limiter::{Held, Limiter};
use crate::random::Random;
use crate::{FixedWindow, Gcra, InFlight, LeakyQueue, Quota, SlidingLog, SlidingWindow, TokenBucket};

#[derive(Clone, Copy, Debug)]
struct Caller {
    user: u64,
    team: u64,
    tier: usize,
}

/// One limit with the states and the held costs of its keys.
struct MapLimit<C: SelectAlgorithm<Caller>, P> {
    limit: Limit<C, P>,
    states: HashMap<u64, (<C::Algorithm as Algorithm>::State, u64)>,
}

/// A limit of any type.
trait StoredLimit {
    fn read(&self, caller: &Caller, now: Timestamp, options: AcquireOptions) -> LimitReading;
    /// Returns the numbers after the charge.
    fn charge(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        options: AcquireOptions,
        of: (&LimitReading, Duration),
    ) -> LazySnapshot;
    fn release(&mut self, caller: &Caller, cost: u64);
    fn status(&self, plan: &Plan, reading: &LimitReading, snapshot: LazySnapshot) -> LimitStatus;
}

impl<C: SelectAlgorithm<Caller>, P: SubKeyOf<Caller, SubKey = u64>> MapLimit<C, P> {
    fn key(&self, caller: &Caller) -> u64 {
        self.limit.sub_key().with_sub_key(caller, |key| *key).expect("the limit applies to every key")
    }

    /// Returns the state and the held costs of a key.
    fn stored(&self, caller: &Caller, algorithm: &C::Algorithm) -> (<C::Algorithm as Algorithm>::State, u64) {
        let zero = || (State::from_numbers(&vec![0; algorithm.counter_words()]), 0);
        self.states.get(&self.key(caller)).cloned().unwrap_or_else(zero)
    }
}

impl<C: SelectAlgorithm<Caller>, P: SubKeyOf<Caller, SubKey = u64>> StoredLimit for MapLimit<C, P> {
    fn read(&self, caller: &Caller, now: Timestamp, options: AcquireOptions) -> LimitReading {
        let chosen = self.limit.algorithm().select(caller);
        let (state, held) = self.stored(caller, chosen.borrow());
        let transition = self.limit.transition(chosen.borrow(), self.limit.kept_free(caller), options);
        transition.read(&state, held, None, now, ReadMode::Together)
    }

    fn charge(
        &mut self,
        caller: &Caller,
        now: Timestamp,
        options: AcquireOptions,
        (reading, delay): (&LimitReading, Duration),
    ) -> LazySnapshot {
        let chosen = self.limit.algorithm().select(caller);
        let (mut state, mut held) = self.stored(caller, chosen.borrow());
        let transition = self.limit.transition(chosen.borrow(), self.limit.kept_free(caller), options);
        if reading.holds {
            held += reading.cost;
        } else {
            state.apply(transition.charge(&state, reading, now, delay).expect("the limit allows the request"));
        }
        let snapshot = transition.snapshot(&state, held, now);
        let key = self.key(caller);
        self.states.insert(key, (state, held));
        snapshot
    }

    fn release(&mut self, caller: &Caller, cost: u64) {
        let key = self.key(caller);
        self.states.get_mut(&key).expect("the key has a held cost").1 -= cost;
    }

    fn status(&self, plan: &Plan, reading: &LimitReading, snapshot: LazySnapshot) -> LimitStatus {
        let name = self.limit.name_handle().clone();
        LimitStatus::from_verdict(name, plan.verdict_of(reading), snapshot, reading.shadow)
    }
}

#[derive(Default)]
struct MapStore(Vec<Box<dyn StoredLimit>>);

impl MapStore {
    /// Decides. Returns the cost that each limit holds as well.
    fn acquire(&mut self, caller: &Caller, now: Timestamp, options: AcquireOptions) -> (Decision, Vec<u64>) {
        let readings: Vec<_> = self.0.iter().map(|limit| limit.read(caller, now, options)).collect();
        let plan = Plan::new(readings.iter());
        let mut held = vec![0; readings.len()];
        let mut snapshots: Vec<_> = readings.iter().map(|reading| reading.snapshot).collect();
        for (index, (limit, reading)) in self.0.iter_mut().zip(&readings).enumerate() {
            if let Some(delay) = plan.charge_of(reading) {
                held[index] = if reading.holds { reading.cost } else { 0 };
                snapshots[index] = limit.charge(caller, now, options, (reading, delay));
            }
        }
        let limits = self.0.iter().zip(&readings).zip(&snapshots);
        let statuses = limits.map(|((limit, reading), snapshot)| limit.status(&plan, reading, *snapshot));
        (plan.decide(now, options, statuses), held)
    }
}

fn quota(random: &mut Random) -> Quota {
    Quota::new(1 + random.below(7), Duration::from_millis(1_000 + 1_000 * random.below(9)))
}

/// Adds a limit to both stores: with tiers, a fixed cost, as a shadow, by a part of the key.
fn add<A: Algorithm + Copy>(
    store: &mut MapStore,
    limits: &mut Vec<DynLimit<Caller>>,
    random: &mut Random,
    make: fn(&mut Random) -> A,
) {
    let tiers = [make(random), make(random)];
    let (part, cost, is_shadow) = (random.below(3), random.below(8), random.below(6) == 0);
    let name = format!("limit {}", limits.len());
    let limit = move || {
        let limit = Limit::new(name.clone(), per_key(move |caller: &Caller| tiers[caller.tier]));
        let limit = limit.keyed_by(move |caller: &Caller| match part {
            0 => caller.user,
            1 => caller.team,
            _ => 0,
        });
        let limit = if cost < 2 { limit.fixed_cost(cost) } else { limit };
        if is_shadow { limit.shadow() } else { limit }
    };
    limits.push(DynLimit::new(limit()));
    store.0.push(Box::new(MapLimit { limit: limit(), states: HashMap::new() }));
}

fn add_any(store: &mut MapStore, limits: &mut Vec<DynLimit<Caller>>, random: &mut Random) {
    match random.below(9) {
        0 | 1 => add(store, limits, random, |random| Gcra::new(quota(random))),
        2 => add(store, limits, random, |random| TokenBucket::new(quota(random)).burst(3)),
        3 | 4 => add(store, limits, random, |random| LeakyQueue::new(quota(random))),
        5 => add(store, limits, random, |random| FixedWindow::new(quota(random))),
        6 => add(store, limits, random, |random| SlidingWindow::new(quota(random)).blocks(4)),
        7 => add(store, limits, random, |random| SlidingLog::new(quota(random))),
        _ => add(store, limits, random, |random| InFlight::new(1 + random.below(4))),
    }
}

#[test]
fn map_of_states_decides_as_the_memory_store() {
    let (mut allowed, mut delayed, mut denied) = (0, 0, 0);
    for seed in 0..120_usize {
        let (mut random, clock) = (Random(seed as u64), ManualClock::new());
        let (mut store, mut limits) = <(MapStore, Vec<DynLimit<Caller>>)>::default();
        for _ in 0..=random.below(4) {
            add_any(&mut store, &mut limits, &mut random);
        }
        let memory = Memory::builder(limits).max_keys(1_000).clock(clock.clone()).build().expect("limits");
        let mut guards: Vec<(Caller, Held, Vec<u64>)> = Vec::new();
        for step in 0..150_usize {
            let tier = usize::from(random.below(6) == 0);
            let caller = Caller { user: random.below(2), team: random.below(2), tier };
            match random.below(8) {
                0 | 1 => clock.advance(Duration::from_micros(random.below(2_000_000))),
                2 if !guards.is_empty() => {
                    let (caller, held, costs) = guards.swap_remove(0);
                    held.release().try_ready().expect("at once").expect("memory never fails");
                    for (limit, cost) in store.0.iter_mut().zip(costs).filter(|(_, cost)| *cost > 0) {
                        limit.release(&caller, cost);
                    }
                }
                kind => {
                    let details = [Detail::MostRestrictive, Detail::AllIfDenied, Detail::All];
                    let mut options = AcquireOptions::cost([1, 1, 2, 0][(seed + step) % 4]).keep_guard();
                    options.max_delay =
                        [None, Some(Duration::ZERO), Some(Duration::from_micros(random.below(5_000_000)))][step % 3];
                    options.detail = details[step / 3 % 3];
                    options.hold = kind == 3;
                    let Ok(outcome) = memory.acquire(&caller, options).try_ready() else { panic!("at once") };
                    let outcome = outcome.expect("memory never fails");
                    let (decision, held) = store.acquire(&caller, clock.now(), options);
                    assert_eq!(outcome.decision, decision, "{seed} {step} {caller:?} {options:?}");
                    let (of_memory, of_map) = (outcome.decision.is_estimate(), decision.is_estimate());
                    assert_eq!(of_memory, of_map, "{seed} {step} {caller:?} {options:?}");
                    guards.extend(outcome.held.map(|guard| (caller, guard, held)));
                    allowed += u64::from(decision.is_allowed_now());
                    delayed += u64::from(!decision.delay().is_zero());
                    denied += u64::from(!decision.is_allowed());
                }
            }
        }
    }
    assert!(
        allowed > 1_000 && delayed > 100 && denied > 1_000,
        "{allowed} allowed, {delayed} delayed, {denied} denied"
    );
}
