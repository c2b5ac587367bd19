//! A denial is exact unless it says that its wait is an estimate, also beside held costs.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{DeniedCache, Held, Outcome};
use tower_ratelimit::{
    AcquireOptions, Clock as _, Decision, DecisionSource, Detail, DynLimit, FixedWindow, Gcra, InFlight, LeakyQueue,
    Limit, Limiter, ManualClock, Memory, Quota, SlidingLog, SlidingWindow, TokenBucket, WhenFull, per_key,
};

use crate::immediate::{acquire, memory, peek};
use crate::random::Random;
use crate::shares::{self, Call};

fn quota(random: &mut Random) -> Quota {
    let periods = [3_000_000, 1_001_000, 7_000_000, 10_000_000, 60_000_000];
    Quota::new(1 + random.below(7), Duration::from_micros(periods[random.index(periods.len())]))
}

#[derive(Clone, Copy, Debug)]
struct Caller {
    user: u64,
    team: u64,
    tier: usize,
}

type Limiters = Memory<Caller, Vec<DynLimit<Caller>>>;

const TIERS: usize = 3;

/// A limit with an algorithm of one type, in one tier or in several, by a random part of the key.
fn limit<A: Algorithm + Clone>(name: usize, random: &mut Random, make: fn(&mut Random) -> A) -> DynLimit<Caller> {
    let first = make(random);
    let has_tiers = random.below(3) == 0;
    let tiers: [A; TIERS] = std::array::from_fn(|_| if has_tiers { make(random) } else { first.clone() });
    let part = random.below(3);
    let limit = Limit::new(format!("limit {name}"), per_key(move |caller: &Caller| tiers[caller.tier].clone()));
    let limit =
        limit.keyed_by(move |caller: &Caller| [caller.user, caller.team, 0][usize::try_from(part).expect("a part")]);
    let limit = if random.below(6) == 0 { limit.fixed_cost(1 + random.below(2)) } else { limit };
    DynLimit::new(if random.below(5) == 0 { limit.shadow() } else { limit })
}

fn limits(random: &mut Random) -> Vec<DynLimit<Caller>> {
    let count = 2 + random.index(3);
    let limit = |index| match random.below(18) {
        0..=5 => limit(index, random, |random| {
            let quota = quota(random);
            Gcra::new(quota).burst(1 + random.below(6))
        }),
        6..=8 => limit(index, random, |random| TokenBucket::new(quota(random))),
        9..=12 => limit(index, random, |random| {
            let quota = quota(random);
            LeakyQueue::new(quota).max_waiting(random.below(6))
        }),
        13 => limit(index, random, |random| FixedWindow::new(quota(random))),
        14 => limit(index, random, |random| {
            let window = SlidingWindow::new(quota(random)).blocks([1, 2, 4, 5][random.index(4)]);
            if random.below(2) == 0 { window.weighted() } else { window }
        }),
        15 => limit(index, random, |random| SlidingLog::new(quota(random))),
        16 => limit(index, random, |random| InFlight::new(1 + random.below(4))),
        _ => limit(index, random, |random| Gcra::new(quota(random)).strict()),
    };
    (0..count).map(limit).collect()
}

fn options(random: &mut Random) -> AcquireOptions {
    let options = AcquireOptions::cost([1, 1, 1, 2, 3, 0][random.index(6)]).keep_guard().detail(Detail::All);
    options.max_delay(match random.below(6) {
        0 => Some(Duration::ZERO),
        1 => None,
        2 => Some(Duration::from_micros(1 + random.below(3))),
        _ => Some(Duration::from_micros(random.below(9_000_000))),
    })
}

/// How many denials are exact, say that they are estimates, and are wrong.
#[derive(Default)]
struct Denials {
    exact: u64,
    estimates: u64,
    beside_holds: u64,
    too_long: u64,
    too_short: u64,
    /// Whether another request was charged since the caller was denied.
    others_were_charged: bool,
    first: Option<String>,
}

impl fmt::Display for Denials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exact, estimates, beside_holds, too_long, too_short, .. } = self;
        write!(
            f,
            "{exact} exact ({beside_holds} while costs are held), {estimates} estimates, {too_long} too long, {too_short} too short"
        )
    }
}

impl Denials {
    /// Checks a denial: without other requests, the same request is allowed then, and not a microsecond earlier.
    fn check<Key: Copy + fmt::Debug>(
        &mut self,
        limiter: &impl Limiter<Key>,
        clock: &ManualClock,
        caller: Key,
        options: AcquireOptions,
        denied: &Decision,
        held: bool,
    ) {
        let Some(retry_after) = denied.retry_after() else { return };
        if denied.is_estimate() {
            self.estimates += 1;
            return;
        }
        let now = clock.now();
        clock.set(now.saturating_add(retry_after));
        let then = peek(limiter, &caller, options);
        clock.set(now.saturating_add(retry_after.saturating_sub(Duration::from_micros(1))));
        let before = peek(limiter, &caller, options);
        clock.set(now);
        // A cached denial does not know what other requests have been charged since.
        let others_may_wait = denied.source() == DecisionSource::Cache && self.others_were_charged;
        self.too_short += u64::from(!then.is_allowed() && !others_may_wait);
        self.too_long += u64::from(before.is_allowed());
        if then.is_allowed() && !before.is_allowed() {
            self.exact += 1;
            self.beside_holds += u64::from(held);
        } else if self.first.is_none() && !others_may_wait {
            self.first = Some(format!("{caller:?} {options:?}: {denied:?}\nbefore: {before:?}\nthen: {then:?}"));
        }
    }
}

/// Runs a trace of random requests, holds, settlements and blocks.
fn run(seed: u64, holds: bool, steps: usize, denials: &mut Denials) {
    let (mut random, clock) = (Random(seed), ManualClock::new());
    let limiter: Limiters = memory(limits(&mut random), &clock);
    let mut guards: Vec<Held> = Vec::new();
    for _ in 0..steps {
        let tier = if random.below(8) == 0 { random.index(TIERS) } else { 0 };
        let caller = Caller { user: random.below(2), team: random.below(2), tier };
        match random.below(12) {
            0..=2 => clock.advance(Duration::from_micros([1, 100_000, 700_000, 2_500_000][random.index(4)])),
            3 if !guards.is_empty() => {
                let held = guards.swap_remove(random.index(guards.len()));
                let actual = random.below(held.cost() + 1);
                held.settle(actual).try_ready().expect("at once").expect("memory never fails");
            }
            4 if random.below(3) == 0 => {
                let (name, span) = (format!("limit {}", random.below(2)), random.below(9_000_000));
                let blocked = limiter.block(&name, &caller, Duration::from_micros(span));
                blocked.try_ready().expect("at once").expect("a limit");
            }
            kind => {
                let options = options(&mut random);
                let options = if holds && kind < 6 && guards.len() < 6 { options.hold() } else { options };
                let Outcome { decision, held, .. } = acquire(&limiter, &caller, options);
                guards.extend(held);
                denials.check(&limiter, &clock, caller, options, &decision, !guards.is_empty());
            }
        }
    }
}

const ROUNDS: u64 = 300;
const STEPS: usize = 100;

#[test]
fn estimate_beside_holds() {
    let mut denials = Denials::default();
    for seed in 0..ROUNDS {
        run(seed, true, STEPS, &mut denials);
    }
    println!("{denials}");
    assert_eq!((denials.too_long, denials.too_short), (0, 0), "{denials}\n{:?}", denials.first);
    assert!(denials.beside_holds > 1_500 && denials.estimates > 500, "the law applies to few denials: {denials}");
}

/// Runs random requests on a limiter in memory behind a cache of denials, some with an id that is charged once. A table of
/// shares or of keys is full if there are more tenants than slots.
fn run_cached(limits: Vec<DynLimit<Call>>, tenants: u64, when_full: WhenFull, costs: u64, seed: u64) -> Denials {
    let (mut random, clock, mut denials) = (Random(seed), ManualClock::new(), Denials::default());
    let memory = Memory::builder(limits).max_keys(4).when_full(when_full).clock(clock.clone()).build().expect("limits");
    let cached = DeniedCache::with_clock(memory.clone(), 1_000, clock.clone());
    let (mut last_charge, mut denied_at) = (0, HashMap::new());
    for step in 0..1_500 {
        clock.advance(Duration::from_micros([1, 1_000, 30_000, 700_000][random.index(4)]));
        // One tenant is busy, and one has no share.
        let tenant = [0, random.below(tenants), random.below(tenants), shares::NO_SHARE][random.index(4)];
        let call = Call { tenant, kept: [0, 0, 3][random.index(3)] };
        let options = AcquireOptions::cost(1 + random.below(costs)).keep_guard().detail(Detail::All);
        let id = (costs > 1 && random.below(4) == 0).then(|| format!("{}", random.below(3)));
        let with_id = id.map_or(options, |id| options.once(&id, 100, Duration::from_secs(60)));
        let decision = acquire(&cached, &call, with_id).decision;
        if decision.is_allowed() {
            last_charge = step;
        } else if decision.source() != DecisionSource::Cache && with_id == options {
            denied_at.insert(call, step);
        }
        denials.others_were_charged = denied_at.get(&call).is_some_and(|at| last_charge > *at);
        // A look at the limiter does not say what a repeat would be charged.
        if with_id == options {
            denials.check(&memory, &clock, call, options, &decision, false);
        }
    }
    denials
}

/// The law over full tables, caches, shares and units that are kept free: a wait that is not an estimate is sufficient and
/// minimal. Without full tables and other costs than those of cached denials, no wait is an estimate.
#[test]
fn wait_is_exact_or_an_estimate() {
    // As many as the smallest table has slots, so that some find none.
    const MANY: u64 = 160;
    let quota = |limit, millis| Quota::new(limit, Duration::from_millis(millis));
    let own = || {
        let limit = Limit::new("own", Gcra::new(quota(3, 60_000)).burst(3)).keyed_by(|call: &Call| call.tenant);
        vec![DynLimit::new(limit)]
    };
    let (mut calm, mut full) = (Denials::default(), Denials::default());
    let mut check = |denials: Denials, is_calm: bool, name: &str| {
        assert_eq!((denials.too_long, denials.too_short), (0, 0), "{name}: {denials}\n{:?}", denials.first);
        let sum = if is_calm { &mut calm } else { &mut full };
        (sum.exact, sum.estimates) = (sum.exact + denials.exact, sum.estimates + denials.estimates);
    };
    for (seed, when_full) in
        [WhenFull::Evict, WhenFull::CarryOver, WhenFull::Deny].into_iter().cycle().take(6).enumerate()
    {
        let seed = 1 + seed as u64;
        for (tenants, costs) in [(4, 1), (4, 4), (MANY, 4)] {
            let of = |limits| run_cached(limits, tenants, when_full, costs, seed);
            let is_calm = tenants == 4 && costs == 1;
            check(of(own()), is_calm, "own");
            let (share, all) = (Gcra::new(quota(5, 60_000)).burst(5), quota(5 * tenants, 10_000));
            let all = Gcra::new(all).burst(7 + 5 * tenants);
            check(of(shares::limits(share, all, tenants.min(117))), is_calm, "buckets");
            let [share, all] = [quota(5, 20_000), quota(7 + 5 * tenants, 20_000)];
            check(of(shares::limits(SlidingLog::new(share), SlidingLog::new(all), tenants.min(117))), is_calm, "logs");
        }
    }
    println!("{calm}; full: {full}");
    assert!(calm.exact > 1_000 && calm.estimates == 0, "{calm}");
    assert!(full.exact > 2_500 && full.estimates > 500, "{full}");
}
