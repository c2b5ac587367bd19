//! Every algorithm, one limit and several, as a tuple and chosen at run time, with room for all and in a small table.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::{
    DynLimit, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limit, Limiter, Memory, Quota, SlidingLog, SlidingWindow,
    TokenBucket,
};

use super::model::{Caller, Kept, Model, Rule};
use super::order::{Explained, explain};
use super::recording::NotingClock;
use super::traffic::{Hesitant, Traffic};

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
const COMING_AND_GOING: Traffic =
    Traffic { callers: [16, 4], step: Duration::ZERO, calls: 100, phases: 6, pause: Duration::from_secs(60), ..BUSY };

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

fn pair(caller: &Caller) -> u64 {
    caller[0] << 32 | caller[1]
}

fn all(_: &Caller) -> u64 {
    0
}

/// Finds an order for each history of what `build` makes a limiter of, with these rules.
fn check<L: Limiter<Caller> + Sync>(
    kind: &str,
    traffic: Traffic,
    build: impl Fn(usize, NotingClock) -> L,
    rules: impl Fn() -> Vec<Rule>,
) {
    let traffic = Traffic { limits: rules().len(), ..traffic };
    // Where slots are to be taken again there are few: but enough that nobody is forgotten who owes anything.
    let live = usize::try_from(traffic.callers[0]).expect("a few");
    let max_keys = if traffic.phases > 1 { live } else { Memory::<Gcra>::DEFAULT_MAX_KEYS };
    let mut all = Explained::default();
    for round in 0..rounds() {
        let clock = NotingClock::default();
        let threads = traffic.run(&build(max_keys, clock.clone()), &clock, round);
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
    let limit = || Limit::new("one", Hesitant(algorithm)).keyed_by(user);
    let build = |max_keys, clock| {
        let builder = Memory::builder(limit()).max_keys(max_keys).clock(clock).hasher(Placed::default());
        builder.build().expect("valid limits")
    };
    for traffic in [BUSY, STILL, COMING_AND_GOING] {
        check(kind, traffic, build, || vec![Rule::new("one", algorithm, user)]);
    }
}

#[test]
fn a_bucket() {
    check_alone("gcra", Gcra::new(QUOTA).burst(8));
    check_alone("token bucket", TokenBucket::new(Quota::new(7, Duration::from_secs(3))));
    check_alone("leaky bucket", LeakyBucket::new(QUOTA).burst(2));
}

#[test]
fn a_queue() {
    check_alone("leaky queue", LeakyQueue::new(QUOTA).max_waiting(6));
}

#[test]
fn a_fixed_window() {
    check_alone("fixed window", FixedWindow::new(QUOTA));
    check_alone("aligned window", FixedWindow::new(QUOTA).aligned_to_clock());
}

#[test]
fn a_sliding_window() {
    check_alone("strict window", SlidingWindow::new(QUOTA).blocks(4));
    check_alone("weighted window", SlidingWindow::new(QUOTA).blocks(2).weighted());
}

#[test]
fn a_log() {
    check_alone("log", SlidingLog::new(QUOTA));
}

/// Whose limits overlap: what one refuses none of the others is charged.
macro_rules! several {
    ($kind:literal, $traffics:expr, $([$name:literal, $part:ident, $algorithm:expr]),+) => {{
        let rules = || vec![$(Rule::new($name, $algorithm, $part)),+];
        for traffic in $traffics {
            let build = |max_keys, clock| {
                let limits = ($(Limit::new($name, Hesitant($algorithm)).keyed_by($part)),+);
                let builder = Memory::builder(limits).max_keys(max_keys).clock(clock).hasher(Placed::default());
                builder.build().expect("valid limits")
            };
            check(concat!("tuple of ", $kind), traffic, build, rules);
        }
        for traffic in $traffics {
            let build = |max_keys, clock| {
                let limits: Vec<DynLimit<Caller>> =
                    vec![$(DynLimit::new(Limit::new($name, Hesitant($algorithm)).keyed_by($part))),+];
                Memory::builder(limits).max_keys(max_keys).clock(clock).build().expect("valid limits")
            };
            // Their hasher is seeded at random, so that any two keys may fall together: where one of them goes that is
            // idle, threads whose clocks are behind are told of a time that the sequential run knows nothing of.
            if traffic.step.is_zero() {
                check(concat!("list of ", $kind), traffic, build, rules);
            }
        }
    }};
}

#[test]
fn several_buckets() {
    several!(
        "buckets",
        [BUSY, STILL, COMING_AND_GOING],
        ["user", user, Gcra::new(QUOTA).burst(8)],
        ["group", group, TokenBucket::new(Quota::per_second(9)).burst(12)],
        ["all", all, LeakyBucket::new(Quota::per_second(12)).burst(40)]
    );
}

#[test]
fn several_queues() {
    several!(
        "queues",
        [BUSY, STILL, COMING_AND_GOING],
        ["user", user, LeakyQueue::new(QUOTA).max_waiting(5)],
        ["all", all, LeakyQueue::new(Quota::per_second(9)).max_waiting(15)]
    );
}

#[test]
fn several_of_every_kind() {
    several!(
        "windows",
        [BUSY, STILL, COMING_AND_GOING],
        ["user", user, SlidingWindow::new(QUOTA).blocks(2)],
        ["group", group, FixedWindow::new(Quota::per_second(15))],
        ["all", all, SlidingLog::new(Quota::per_second(30))]
    );
    several!(
        "mixed",
        [BUSY, STILL, COMING_AND_GOING],
        ["all", all, SlidingWindow::new(Quota::per_second(30)).weighted()],
        ["user", user, LeakyQueue::new(QUOTA)],
        ["group", group, Gcra::new(Quota::per_second(12)).strict()],
        ["pair", pair, FixedWindow::new(Quota::per_second(4)).aligned_to_clock()]
    );
}
