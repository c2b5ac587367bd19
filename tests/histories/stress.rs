//! Every algorithm, one limit and several, as a tuple and chosen at run time, with room for all and in a small table.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::store::LimitsFor;
use tower_ratelimit::{
    DynLimit, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limit, Memory, MemoryBuilder, Quota, SlidingLog,
    SlidingWindow, TokenBucket,
};

use crate::model::{Caller, Kept, Model, Rule};
use crate::order::{Explained, explain};
use crate::recording::NotingClock;
use crate::traffic::{Hesitant, Traffic};

/// The same places for the same keys in each run: so that in a large table no two keys fall together, or always do.
type Placed = BuildHasherDefault<DefaultHasher>;

/// Many calls for a few callers, while the clock moves.
const BUSY: Traffic = Traffic {
    limits: 1,
    callers: [3, 2],
    most: 3,
    step: Duration::from_millis(300),
    calls: 400,
    phases: 1,
    pause: Duration::ZERO,
};

/// The same for a few callers more, while the clock stands still: nothing comes back, so all that counts is who takes what.
const STILL: Traffic = Traffic { step: Duration::ZERO, callers: [8, 4], calls: 200, ..BUSY };

/// In each phase new callers find the table's slots full of states that are idle since the one before.
const COMING_AND_GOING: Traffic = Traffic {
    callers: [16, 4],
    step: Duration::ZERO,
    calls: 100,
    phases: 6,
    pause: Duration::from_secs(60),
    ..BUSY
};

/// How many histories of each kind.
fn rounds() -> u64 {
    let asked = std::env::var("HISTORY_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    asked.unwrap_or(if cfg!(debug_assertions) { 2 } else { 20 })
}

/// Five in a second.
const QUOTA: Quota = Quota::per_second(5);

fn user(caller: &Caller) -> u64 {
    caller[0]
}

fn group(caller: &Caller) -> u64 {
    caller[1]
}

fn all(_: &Caller) -> u64 {
    0
}

/// Finds an order for each history of a limiter with these limits, which forgets nobody who owes anything.
fn check<L>(kind: &str, traffic: Traffic, limits: impl Fn() -> L, rules: impl Fn() -> Vec<Rule>)
where
    L: LimitsFor<Caller, Placed> + tower_ratelimit::store::Limits<tower_ratelimit::store::DefaultHashBuilder>,
    Memory<L, NotingClock, Placed>: Sync,
{
    let traffic = Traffic { limits: rules().len(), ..traffic };
    // Small, where slots are to be taken again: thirty of them.
    let max_keys = if traffic.phases > 1 { 1 } else { Memory::<L>::DEFAULT_MAX_KEYS };
    let mut all = Explained::default();
    for round in 0..rounds() {
        let clock = NotingClock::default();
        let builder: MemoryBuilder<L> = Memory::builder(limits());
        let builder = builder.max_keys(max_keys).clock(clock.clone()).hasher(Placed::default());
        let limiter = builder.build().expect("valid limits");
        let threads = traffic.run(&limiter, &clock, round);
        assert!(limiter.usage().iter().all(|usage| usage.forgotten == 0), "{kind}: fewer callers, or more room");
        let explained = explain(&threads, Model::new(rules()));
        let Explained { calls, overlapping } = explained.unwrap_or_else(|error| panic!("{kind}, {round}: {error:?}"));
        all = Explained { calls: all.calls + calls, overlapping: all.overlapping + overlapping };
    }
    println!("{kind}: {all:?}");
}

/// One limit by user.
fn check_alone<A: Algorithm + Copy>(kind: &str, algorithm: A)
where
    A::State: Kept,
{
    for traffic in [BUSY, STILL, COMING_AND_GOING] {
        let limit = || Limit::new("one", Hesitant(algorithm)).by(user as fn(&Caller) -> u64);
        check(kind, traffic, limit, || vec![Rule::new("one", algorithm, user)]);
    }
}

#[test]
fn buckets() {
    check_alone("gcra", Gcra::new(QUOTA).burst(8));
    check_alone("token bucket", TokenBucket::new(Quota::new(7, Duration::from_secs(3))));
    check_alone("leaky bucket", LeakyBucket::new(QUOTA).burst(2));
}
