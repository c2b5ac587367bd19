//! Every algorithm under one limit and several, static and dynamic, in a large table and a small one.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::{
    DynLimit, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limit, Limiter, Memory, Quota, SlidingLog, SlidingWindow,
    TokenBucket,
};

use super::model::{Caller, Kept, Model, Rule};
use super::order::{Explained, explain};
use super::recording::RecordingClock;
use super::traffic::{Traffic, Yielding};

/// A hasher without a random seed, so that equal keys have equal slots in each run.
type FixedHasher = BuildHasherDefault<DefaultHasher>;

/// Many calls of a few callers, while the clock moves.
const BUSY: Traffic = Traffic {
    limits: 1,
    callers: [3, 2],
    most: 3,
    step: Duration::from_millis(300),
    calls: 400,
    phases: 1,
    pause: Duration::ZERO,
};

/// A few more callers on a stopped clock: nothing refills, so every interleaving of charges matters.
const STILL: Traffic = Traffic { step: Duration::ZERO, callers: [8, 4], calls: 200, ..BUSY };

/// Each phase has new callers. The table's slots hold idle states of the previous phase.
const CHANGING_CALLERS: Traffic =
    Traffic { callers: [16, 4], step: Duration::ZERO, calls: 100, phases: 6, pause: Duration::from_secs(60), ..BUSY };

/// The number of histories of each kind.
fn rounds() -> u64 {
    let asked = std::env::var("HISTORY_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    asked.unwrap_or(if cfg!(debug_assertions) { 1 } else { 20 })
}

/// Five per second.
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

/// Runs the traffic on limiters of `build` and requires an order that explains each history.
fn check<L: Limiter<Caller> + Sync>(
    kind: &str,
    traffic: Traffic,
    build: impl Fn(usize, RecordingClock) -> L,
    rules: impl Fn() -> Vec<Rule>,
) {
    let traffic = Traffic { limits: rules().len(), ..traffic };
    // A small table, so that slots are reused, but large enough that no state in use is evicted.
    let live = usize::try_from(traffic.callers[0]).expect("a few");
    let max_keys = if traffic.phases > 1 { live } else { Memory::<u64>::DEFAULT_MAX_KEYS };
    let mut all = Explained::default();
    for round in 0..rounds() {
        let clock = RecordingClock::default();
        let threads = traffic.run(&build(max_keys, clock.clone()), &clock, round);
        let explained = explain(&threads, Model::new(rules()));
        let Explained { calls, overlapping } = explained.unwrap_or_else(|error| panic!("{kind}, {round}: {error:?}"));
        all = Explained { calls: all.calls + calls, overlapping: all.overlapping + overlapping };
    }
    println!("{kind}: {all:?}");
}

/// One limit, by user.
fn check_alone<A: Algorithm + Copy>(kind: &str, algorithm: A)
where
    A::State: Kept,
{
    let limit = || Limit::new("one", Yielding(algorithm)).keyed_by(user);
    let build = |max_keys, clock| {
        let builder = Memory::builder(limit()).max_keys(max_keys).clock(clock).hasher(FixedHasher::default());
        builder.build().expect("valid limits")
    };
    for traffic in [BUSY, STILL, CHANGING_CALLERS] {
        check(kind, traffic, build, || vec![Rule::new("one", algorithm, user)]);
    }
}

#[test]
fn bucket_histories_are_linearizable() {
    check_alone("gcra", Gcra::new(QUOTA).burst(8));
    check_alone("token bucket", TokenBucket::new(Quota::new(7, Duration::from_secs(3))));
    check_alone("leaky bucket", LeakyBucket::new(QUOTA).burst(2));
}

#[test]
fn queue_histories_are_linearizable() {
    check_alone("leaky queue", LeakyQueue::new(QUOTA).max_waiting(6));
}

#[test]
fn fixed_window_histories_are_linearizable() {
    check_alone("fixed window", FixedWindow::new(QUOTA));
    check_alone("aligned window", FixedWindow::new(QUOTA).aligned_to_clock());
}

#[test]
fn sliding_window_histories_are_linearizable() {
    check_alone("strict window", SlidingWindow::new(QUOTA).blocks(4));
    check_alone("weighted window", SlidingWindow::new(QUOTA).blocks(2).weighted());
}

#[test]
fn sliding_log_histories_are_linearizable() {
    check_alone("log", SlidingLog::new(QUOTA));
}

/// Overlapping limits: a request that one limit denies is charged to none.
macro_rules! several {
    ($kind:literal, $traffics:expr, $([$name:literal, $part:ident, $algorithm:expr]),+) => {{
        let rules = || vec![$(Rule::new($name, $algorithm, $part)),+];
        for traffic in $traffics {
            let build = |max_keys, clock| {
                let limits = ($(Limit::new($name, Yielding($algorithm)).keyed_by($part)),+);
                let builder = Memory::builder(limits).max_keys(max_keys).clock(clock).hasher(FixedHasher::default());
                builder.build().expect("valid limits")
            };
            check(concat!("tuple of ", $kind), traffic, build, rules);
        }
        for traffic in $traffics {
            let build = |max_keys, clock| {
                let limits: Vec<DynLimit<Caller>> =
                    vec![$(DynLimit::new(Limit::new($name, Yielding($algorithm)).keyed_by($part))),+];
                Memory::builder(limits).max_keys(max_keys).clock(clock).build().expect("valid limits")
            };
            // Dynamic limits seed their hasher at random, so any two keys may share a set. Threads with an older clock
            // reading may then decide at a replaced idle key's time, which the model does not know.
            if traffic.step.is_zero() {
                check(concat!("list of ", $kind), traffic, build, rules);
            }
        }
    }};
}

#[test]
fn histories_of_several_buckets_are_linearizable() {
    several!(
        "buckets",
        [BUSY, STILL, CHANGING_CALLERS],
        ["user", user, Gcra::new(QUOTA).burst(8)],
        ["group", group, TokenBucket::new(Quota::per_second(9)).burst(12)],
        ["all", all, LeakyBucket::new(Quota::per_second(12)).burst(40)]
    );
}

#[test]
fn histories_of_several_queues_are_linearizable() {
    several!(
        "queues",
        [BUSY, STILL, CHANGING_CALLERS],
        ["user", user, LeakyQueue::new(QUOTA).max_waiting(5)],
        ["all", all, LeakyQueue::new(Quota::per_second(9)).max_waiting(15)]
    );
}

#[test]
fn histories_of_mixed_limits_are_linearizable() {
    several!(
        "windows",
        [BUSY, STILL, CHANGING_CALLERS],
        ["user", user, SlidingWindow::new(QUOTA).blocks(2)],
        ["group", group, FixedWindow::new(Quota::per_second(15))],
        ["all", all, SlidingLog::new(Quota::per_second(30))]
    );
    several!(
        "mixed",
        [BUSY, STILL, CHANGING_CALLERS],
        ["all", all, SlidingWindow::new(Quota::per_second(30)).weighted()],
        ["user", user, LeakyQueue::new(QUOTA)],
        ["group", group, Gcra::new(Quota::per_second(12)).strict()],
        ["pair", pair, FixedWindow::new(Quota::per_second(4)).aligned_to_clock()]
    );
}
