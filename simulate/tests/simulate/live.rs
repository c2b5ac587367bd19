//! A simulation of a log decides each line as a live limiter with a manual clock does.

use std::hash::Hash;
use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::config::Policy;
use tower_ratelimit::{
    AcquireOptions, Decision, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limit, ManualClock, Memory, Quota,
    SlidingLog, SlidingWindow, TokenBucket,
};
use tower_ratelimit_simulate::{LogFormat, LogParser, Simulation, Traffic};

use crate::support::{POLICIES, millis, policy};

/// One line of a log.
#[derive(Clone, Debug)]
struct Line {
    millis: u64,
    user: &'static str,
    team: &'static str,
    cost: u64,
}

/// Lines in the order of time, several of them at the same time.
fn lines() -> impl Strategy<Value = Vec<Line>> {
    let line = (
        0_u64..1_500,
        prop::sample::select(vec!["alice", "bob", "carol"]),
        prop::sample::select(vec!["x", "y"]),
        0_u64..10,
    );
    prop::collection::vec(line, 1..150).prop_map(|lines| {
        let mut now = 0;
        let line = |(gap, user, team, cost): (u64, _, _, u64)| {
            now += gap.saturating_sub(500);
            // Mostly a cost of one.
            Line { millis: now, user, team, cost: if cost < 7 { 1 } else { cost - 7 } }
        };
        lines.into_iter().map(line).collect()
    })
}

/// Writes the lines as CSV and reads them again.
fn parsed(lines: &[Line], mut traffic: Traffic) -> Traffic {
    let mut parser = LogParser::new(LogFormat::Csv, &traffic).expect("a parser");
    parser.read("cost,time,team,user", &mut traffic).expect("the header");
    for line in lines {
        let seconds = millis(line.millis).as_micros() / 1_000_000;
        let line = format!("{},{seconds}.{:03},{},{}", line.cost, line.millis % 1_000, line.team, line.user);
        parser.read(&line, &mut traffic).expect("a record");
    }
    traffic
}

fn simulated(simulation: Simulation<'_>) -> Vec<Decision> {
    let mut decisions = Vec::new();
    let _ = simulation.run_with(|_, decision| decisions.push(decision.clone()));
    decisions
}

/// The decisions of a limiter on whose clock each line comes.
fn live<K: Hash + 'static>(
    algorithm: impl Algorithm,
    max_delay: Option<Duration>,
    lines: &[Line],
    key: impl Fn(&Line) -> K,
) -> Vec<Decision> {
    let clock = ManualClock::new();
    let limiter =
        Memory::builder(Limit::new("a", algorithm)).max_keys(16).clock(clock.clone()).build().expect("a limiter");
    let decide = |line: &Line| {
        clock.set(millis(line.millis));
        let options = AcquireOptions::cost(line.cost).max_delay(max_delay);
        limiter.check(&key(line), options)
    };
    lines.iter().map(decide).collect()
}

fn live_by_user(fields: &str, max_delay: Option<Duration>, lines: &[Line]) -> Vec<Decision> {
    let user = |line: &Line| line.user;
    let per_ten_seconds = |limit| Quota::new(limit, Duration::from_secs(10));
    let window = FixedWindow::new(per_ten_seconds(6));
    let sliding = SlidingWindow::new(per_ten_seconds(6));
    match POLICIES.iter().position(|other| *other == fields).expect("a policy of the list") {
        0 => live(Gcra::new(per_ten_seconds(5)).burst(8), max_delay, lines, user),
        1 => live(TokenBucket::new(per_ten_seconds(7)), max_delay, lines, user),
        2 => live(LeakyBucket::new(Quota::per_second(3)).strict(), max_delay, lines, user),
        3 => live(LeakyQueue::new(per_ten_seconds(5)).max_waiting(3), max_delay, lines, user),
        4 => live(window, max_delay, lines, user),
        5 => live(window.aligned_to_clock(), max_delay, lines, user),
        6 => live(sliding.blocks(5), max_delay, lines, user),
        7 => live(sliding.blocks(2).weighted(), max_delay, lines, user),
        _ => live(SlidingLog::new(per_ten_seconds(6)), max_delay, lines, user),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn simulation_of_one_limit_equals_a_live_run(lines in lines(), delays in any::<bool>()) {
        let traffic = parsed(&lines, Traffic::new(["user"]));
        let max_delay = delays.then_some(Duration::from_secs(1));
        for fields in POLICIES {
            let mut simulation = Simulation::alone(&policy(fields), &traffic).expect("a simulation");
            if let Some(max_delay) = max_delay {
                simulation = simulation.max_delay(max_delay);
            }
            let (simulated, live) = (simulated(simulation), live_by_user(fields, max_delay, &lines));
            for (index, line) in lines.iter().enumerate() {
                prop_assert_eq!(&simulated[index], &live[index], "{:?}, {}: {}", line, index, fields);
            }
        }
    }

    #[test]
    fn simulation_of_several_limits_equals_a_live_run(lines in lines()) {
        let policies: Vec<Policy> = serde_json::from_str(
            r#"[
                { "name": "user", "algorithm": "gcra", "quota": "1/s", "burst": 3, "by": "user" },
                { "name": "team", "algorithm": "sliding-log", "quota": "9 per 10s", "by": "team" },
                { "name": "all", "algorithm": "fixed-window", "quota": "16 per 10s", "by": "all" },
                { "name": "trial", "algorithm": "gcra", "quota": "1 per 10s", "by": "user", "shadow": true }
            ]"#,
        ).expect("policies");
        let traffic = parsed(&lines, Traffic::for_policies(&policies));
        let simulated = simulated(Simulation::together(&policies, &traffic).expect("a simulation"));

        let per_ten_seconds = |limit| Quota::new(limit, Duration::from_secs(10));
        let clock = ManualClock::new();
        let limiter = Memory::builder((
            Limit::new("user", Gcra::new(Quota::per_second(1)).burst(3)).keyed_by(|line: &Line| line.user),
            Limit::new("team", SlidingLog::new(per_ten_seconds(9))).keyed_by(|line: &Line| line.team),
            Limit::new("all", FixedWindow::new(per_ten_seconds(16))).keyed_by(|_: &Line| ()),
            Limit::new("trial", Gcra::new(per_ten_seconds(1))).keyed_by(|line: &Line| line.user).shadow(),
        ));
        let limiter = limiter.max_keys(16).clock(clock.clone()).build().expect("a limiter");
        for (index, line) in lines.iter().enumerate() {
            clock.set(millis(line.millis));
            prop_assert_eq!(&simulated[index], &limiter.check(line, line.cost), "{:?}, {}", line, index);
        }
    }
}
