//! A denial is exact unless it says that its wait is an estimate, also beside held costs.

use std::fmt;
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Acquisition, Held, Outcome};
use tower_ratelimit::{
    AcquireOptions, Clock as _, Decision, Detail, DynLimit, FixedWindow, Gcra, InFlight, LeakyQueue, Limit, Limiter,
    ManualClock, Memory, Quota, SlidingLog, SlidingWindow, TokenBucket, per_key,
};

use crate::random::Random;

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

type Limiters = Memory<Caller, Vec<DynLimit<Caller>>, ManualClock>;

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
    DynLimit::new(if random.below(12) == 0 { limit.shadow() } else { limit })
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
    let options = AcquireOptions::cost([1, 1, 1, 2, 3, 0][random.index(6)]).until_end().detail(Detail::All);
    options.max_delay(match random.below(6) {
        0 => Some(Duration::ZERO),
        1 => None,
        2 => Some(Duration::from_micros(1 + random.below(3))),
        _ => Some(Duration::from_micros(random.below(9_000_000))),
    })
}

fn acquire(limiter: &Limiters, caller: Caller, options: AcquireOptions) -> Outcome {
    let Acquisition::Ready(outcome) = limiter.acquire(&caller, options) else { panic!("memory decides at once") };
    outcome.expect("memory never fails")
}

fn peek(limiter: &Limiters, caller: Caller, options: AcquireOptions) -> Decision {
    limiter.peek(&caller, options).try_ready().expect("memory decides at once").expect("memory never fails")
}

/// How many denials are exact, say that they are estimates, and are wrong.
#[derive(Default)]
struct Denials {
    exact: u64,
    estimates: u64,
    beside_holds: u64,
    too_long: u64,
    too_short: u64,
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
    fn check(
        &mut self,
        limiter: &Limiters,
        clock: &ManualClock,
        caller: Caller,
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
        let then = peek(limiter, caller, options);
        clock.set(now.saturating_add(retry_after.saturating_sub(Duration::from_micros(1))));
        let before = peek(limiter, caller, options);
        clock.set(now);
        self.too_short += u64::from(!then.is_allowed());
        self.too_long += u64::from(before.is_allowed());
        if then.is_allowed() && !before.is_allowed() {
            self.exact += 1;
            self.beside_holds += u64::from(held);
        } else if self.first.is_none() {
            self.first = Some(format!("{caller:?} {options:?}: {denied:?}\nbefore: {before:?}\nthen: {then:?}"));
        }
    }
}

/// Runs a trace of random requests, holds and settlements.
fn run(seed: u64, holds: bool, steps: usize, denials: &mut Denials) {
    let (mut random, clock) = (Random(seed), ManualClock::new());
    let limiter: Limiters =
        Memory::builder(limits(&mut random)).max_keys(100).clock(clock.clone()).build().expect("limits");
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
            kind => {
                let options = options(&mut random);
                let options = if holds && kind < 6 && guards.len() < 6 { options.hold() } else { options };
                let Outcome { decision, held, .. } = acquire(&limiter, caller, options);
                guards.extend(held);
                denials.check(&limiter, &clock, caller, options, &decision, !guards.is_empty());
            }
        }
    }
}

const ROUNDS: u64 = 600;
const STEPS: usize = 100;

#[test]
fn estimate_beside_holds() {
    let mut denials = Denials::default();
    for seed in 0..ROUNDS {
        run(seed, true, STEPS, &mut denials);
    }
    println!("{denials}");
    assert_eq!((denials.too_long, denials.too_short), (0, 0), "{denials}\n{:?}", denials.first);
    assert!(denials.beside_holds > 3_000 && denials.estimates > 1_000, "the law applies to few denials: {denials}");
}
