//! Limits from configuration: every algorithm by its name, errors that point at the field, a round trip through text;
//! and limits replaced while they are used, by which nothing that is owed is lost or granted.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::config::{AlgorithmName, Parts, Policy};
use tower_ratelimit::limiter::{Acquisition, Held};
use tower_ratelimit::{
    AcquireOptions, Decision, DynLimit, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limit, LimitStatus, Limiter,
    ManualClock, Memory, Quota, SlidingLog, SlidingWindow, TokenBucket, WhenFull, per_key,
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Whose request it is in these tests.
struct Caller {
    user: u32,
    organisation: &'static str,
}

const ALICE: Caller = Caller { user: 1, organisation: "acme" };
const BOB: Caller = Caller { user: 2, organisation: "acme" };

fn parts() -> Parts<Caller> {
    Parts::new()
        .part("user", |caller: &Caller| caller.user)
        .part("organisation", |caller: &Caller| caller.organisation)
        .part("all", |_: &Caller| ())
}

#[derive(Debug, Deserialize)]
struct Config {
    limits: Vec<Policy>,
}

fn from_toml(text: &str) -> Vec<Policy> {
    toml::from_str::<Config>(text).unwrap_or_else(|error| panic!("{error}")).limits
}

/// A policy with these settings, in TOML.
fn policy(settings: &str) -> Result<Policy, toml::de::Error> {
    toml::from_str(settings)
}

type Dynamic = Memory<Vec<DynLimit<Caller>>, ManualClock>;

fn memory(limits: Vec<DynLimit<Caller>>, clock: &ManualClock) -> Dynamic {
    Memory::builder(limits).max_keys(1000).clock(clock.clone()).build().unwrap()
}

/// A limiter whose limits come later, or go.
fn memory_without_limits(clock: &ManualClock) -> Dynamic {
    Memory::builder(Vec::new()).max_keys(1000).allow_no_limits().clock(clock.clone()).build().unwrap()
}

fn peek(limiter: &impl Limiter<Caller>, caller: &Caller) -> Decision {
    limiter.peek(caller, AcquireOptions::default().all_limits()).try_ready().unwrap().unwrap()
}

/// What each limit has left, by its name.
fn left(limiter: &impl Limiter<Caller>, caller: &Caller) -> BTreeMap<String, u64> {
    let decision = peek(limiter, caller);
    decision.limits().iter().map(|standing| (standing.name().to_owned(), standing.remaining())).collect()
}

fn named<const N: usize>(limits: [(&str, u64); N]) -> BTreeMap<String, u64> {
    limits.map(|(name, left)| (name.to_owned(), left)).into()
}

fn hold<Key: 'static>(limiter: &impl Limiter<Key>, key: &Key, cost: u64) -> Held {
    let Acquisition::Ready(outcome) = limiter.hold(key, AcquireOptions::cost(cost)) else {
        panic!("memory answers at once")
    };
    outcome.unwrap().held.expect("there is enough")
}

fn settle(held: Held, actual: u64) {
    held.settle(actual).try_ready().expect("memory answers at once").unwrap();
}

// ---------------------------------------------------------------------------------------------------------------------
// LazySnapshot
// ---------------------------------------------------------------------------------------------------------------------

/// The limit of a policy decides as one that was made in code.
fn decides_as(settings: &str, algorithm: impl Algorithm) {
    let policies = [policy(&format!("name = 'x'\nby = 'all'\n{settings}")).unwrap()];
    let clock = ManualClock::new();
    let configured = memory(parts().limits(&policies).unwrap(), &clock);
    let in_code = vec![DynLimit::new(Limit::new("x", algorithm).keyed_by(|_: &Caller| ()))];
    let in_code = memory(in_code, &clock);
    let mut seed = 1_u64;
    for _ in 0..300 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        clock.advance(Duration::from_micros(seed >> 42));
        let ask = AcquireOptions::cost((seed >> 33) % 4).max_delay(SECOND * u32::try_from(seed >> 62).unwrap());
        assert_eq!(configured.check(&ALICE, ask), in_code.check(&ALICE, ask), "{settings}");
    }
}

#[test]
fn every_algorithm_has_a_name_and_its_settings() {
    let quota: Quota = "30/min".parse().unwrap();
    decides_as("algorithm = 'gcra'\nquota = '30/min'", Gcra::new(quota));
    decides_as("algorithm = 'gcra'\nquota = '30/min'\nburst = 5", Gcra::new(quota).burst(5));
    decides_as("algorithm = 'token-bucket'\nquota = '30/min'\nburst = 3", TokenBucket::new(quota).burst(3));
    decides_as("algorithm = 'leaky-bucket'\nquota = '30/min'\nburst = 40", LeakyBucket::new(quota).burst(40));
    decides_as("algorithm = 'leaky-queue'\nquota = '30/min'", LeakyQueue::new(quota));
    decides_as("algorithm = 'leaky-queue'\nquota = '30/min'\nmax_waiting = 0", LeakyQueue::new(quota).max_waiting(0));
    decides_as("algorithm = 'leaky-queue'\nquota = '30/min'\nmax_waiting = 7", LeakyQueue::new(quota).max_waiting(7));
    decides_as("algorithm = 'fixed-window'\nquota = '30/min'", FixedWindow::new(quota));
    decides_as("algorithm = 'fixed-window'\nquota = '30/min'\naligned_to_clock = false", FixedWindow::new(quota));
    let aligned = FixedWindow::new(quota).aligned_to_clock();
    decides_as("algorithm = 'fixed-window'\nquota = '30/min'\naligned_to_clock = true", aligned);
    decides_as("algorithm = 'sliding-window'\nquota = '30/min'", SlidingWindow::new(quota));
    decides_as("algorithm = 'sliding-window'\nquota = '30/min'\nblocks = 4", SlidingWindow::new(quota).blocks(4));
    let weighted = SlidingWindow::new(quota).blocks(1).weighted();
    decides_as("algorithm = 'sliding-window'\nquota = '30/min'\nblocks = 1\nweighted = true", weighted);
    decides_as("algorithm = 'sliding-log'\nquota = '5 per 10s'", SlidingLog::new("5 per 10s".parse().unwrap()));
}

#[test]
fn a_policy_says_what_was_written() {
    let text = "name = 'api'\nalgorithm = 'sliding-log'\nquota = '5 per 15min'\nby = 'user'\nshadow = true";
    let policy = policy(text).unwrap();
    assert_eq!((policy.name(), policy.by(), policy.is_shadow()), ("api", "user", true));
    assert_eq!(policy.algorithm(), AlgorithmName::SlidingLog);
    assert_eq!(policy.quota(), Quota::new(5, 15 * MINUTE));
}

const ALL: &str = r#"
    [[limits]]
    name = "smooth"
    algorithm = "gcra"
    quota = "10/s"
    burst = 20
    by = "user"

    [[limits]]
    name = "hourly"
    algorithm = "fixed-window"
    quota = "1_000 per hour"
    aligned_to_clock = true
    by = "organisation"

    [[limits]]
    name = "spacing"
    algorithm = "leaky-queue"
    quota = "100/s"
    max_waiting = 5
    by = "all"

    [[limits]]
    name = "trial"
    algorithm = "sliding-window"
    quota = "3/min"
    blocks = 6
    weighted = true
    by = "user"
    shadow = true

    [[limits]]
    name = "log"
    algorithm = "sliding-log"
    quota = "50/min"
    by = "user"
"#;

#[test]
fn limits_count_by_the_parts_that_they_name() {
    let clock = ManualClock::new();
    let limiter = memory(parts().limits(&from_toml(ALL)).unwrap(), &clock);
    let decision = limiter.check(&ALICE, AcquireOptions::cost(4).max_delay(SECOND));
    assert_eq!(decision.shadow_refusals().map(LimitStatus::name).collect::<Vec<_>>(), ["trial"]);
    let expected = [("smooth", 16), ("hourly", 996), ("spacing", 2), ("trial", 3), ("log", 46)];
    assert_eq!(left(&limiter, &ALICE), named(expected));
    let expected = [("smooth", 20), ("hourly", 996), ("spacing", 2), ("trial", 3), ("log", 50)];
    assert_eq!(left(&limiter, &BOB), named(expected));
    let eve = Caller { user: 3, organisation: "other" };
    assert_eq!(left(&limiter, &eve)["hourly"], 1000);
}

#[test]
fn what_is_written_reads_back_as_the_same() {
    let policies = from_toml(ALL);
    let json = serde_json::to_string(&policies).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Policy>>(&json).unwrap(), policies);
    for policy in &policies {
        let written = toml::Value::try_from(policy).unwrap();
        assert_eq!(&written.try_into::<Policy>().unwrap(), policy);
    }
    // What was not set is not written, and a quota is written as it is told elsewhere.
    assert_eq!(
        serde_json::to_value(&policies[1]).unwrap(),
        serde_json::json!({
            "name": "hourly",
            "algorithm": "fixed-window",
            "quota": "1000/h",
            "aligned_to_clock": true,
            "by": "organisation",
        })
    );
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[3]["shadow"], true);
    assert_eq!(json[4].as_object().unwrap().len(), 4);
}

// ---------------------------------------------------------------------------------------------------------------------
// Errors
// ---------------------------------------------------------------------------------------------------------------------

/// Settings that can't be, in TOML from line 3 on; where the error points, and what it must say.
const WRONG: [(&str, &str, &[&str]); 26] = [
    ("algorithm = 'gcraa'\nquota = '1/s'", "3, column 13", &["`gcraa`", "`gcra`", "`sliding-log`"]),
    ("algorithm = 'GCRA'\nquota = '1/s'", "3, column 13", &["`GCRA`"]),
    ("algorithm = 7\nquota = '1/s'", "3, column 13", &[]),
    ("algorithm = 'gcra'\nquota = 'ten'", "4, column 9", &["\"ten\"", "COUNT/PERIOD"]),
    ("algorithm = 'gcra'\nquota = '10/fortnight'", "4, column 9", &["\"10/fortnight\"", "us, ms, s, min, h, d or w"]),
    ("algorithm = 'gcra'\nquota = '0/s'", "4, column 9", &["\"0/s\"", "at least 1"]),
    ("algorithm = 'gcra'\nquota = '1 per 0s'", "4, column 9", &["\"1 per 0s\""]),
    ("algorithm = 'gcra'\nquota = 10", "4, column 9", &["\"100/min\""]),
    ("algorithm = 'gcra'\nquota = '9007199254740991/d'", "1, column 1", &["quota: ", "invalid quota"]),
    ("algorithm = 'gcra'\nquota = '1/s'\nburst = 0", "1, column 1", &["burst: ", "at least 1"]),
    ("algorithm = 'gcra'\nquota = '1/s'\nburst = -1", "5, column 9", &["`-1`"]),
    ("algorithm = 'gcra'\nquota = '1/s'\nburst = '1'", "5, column 9", &["\"1\""]),
    ("algorithm = 'token-bucket'\nquota = '1/d'\nburst = 100000", "1, column 1", &["burst: ", "200 years"]),
    ("algorithm = 'leaky-bucket'\nquota = '1/s'\nburst = 0", "1, column 1", &["burst: ", "at least 1"]),
    ("algorithm = 'leaky-queue'\nquota = '1/s'\nmax_waiting = 9007199254740992", "1, column 1", &["max_waiting: "]),
    ("algorithm = 'leaky-queue'\nquota = '1/s'\nburst = 5", "1, column 1", &["burst: ", "gcra, token-bucket"]),
    ("algorithm = 'gcra'\nquota = '1/s'\nmax_waiting = 5", "1, column 1", &["max_waiting: ", "leaky-queue"]),
    (
        "algorithm = 'gcra'\nquota = '1/s'\naligned_to_clock = false",
        "1, column 1",
        &["aligned_to_clock: ", "fixed-window"],
    ),
    ("algorithm = 'fixed-window'\nquota = '1/s'\nblocks = 5", "1, column 1", &["blocks: ", "sliding-window"]),
    ("algorithm = 'sliding-log'\nquota = '1/s'\nweighted = true", "1, column 1", &["weighted: ", "sliding-window"]),
    ("algorithm = 'sliding-log'\nquota = '2_000_000/d'", "1, column 1", &["quota: ", "SlidingWindow"]),
    ("algorithm = 'sliding-window'\nquota = '1/min'\nblocks = 7", "1, column 1", &["blocks: ", "whole number"]),
    ("algorithm = 'sliding-window'\nquota = '1/min'\nblocks = 61", "1, column 1", &["blocks: ", "1 to 60"]),
    (
        "algorithm = 'sliding-window'\nquota = '90_000_000/h'\nweighted = true",
        "1, column 1",
        &["weighted: ", "more blocks"],
    ),
    ("algorithm = 'gcra'\nquota = '1/s'\nbrust = 5", "5, column 1", &["`brust`", "`burst`"]),
    ("algorithm = 'gcra'", "1, column 1", &["`quota`"]),
];

#[test]
fn an_error_points_at_what_is_wrong() {
    for (settings, place, says) in WRONG {
        let text = format!("[[limits]]\nname = 'x'\n{settings}\nby = 'user'");
        let error = toml::from_str::<Config>(&text).expect_err(&text).to_string();
        assert!(error.contains(&format!("at line {place}\n")), "{text}\n{error}");
        for words in says {
            assert!(error.contains(words), "{text}\nsays not {words:?}:\n{error}");
        }

        // The same in JSON.
        let value: toml::Value = toml::from_str(&text).unwrap();
        let json = serde_json::to_string(&value).unwrap();
        let error = serde_json::from_str::<Config>(&json).expect_err(&text).to_string();
        for words in says {
            assert!(error.contains(words), "{text}\nsays not {words:?}:\n{error}");
        }
    }
    for (text, says) in [
        ("name = ''\nalgorithm = 'gcra'\nquota = '1/s'\nby = 'user'", "name: "),
        ("algorithm = 'gcra'\nquota = '1/s'\nby = 'user'", "`name`"),
        ("name = 'x'\nquota = '1/s'\nby = 'user'", "`algorithm`"),
        ("name = 'x'\nalgorithm = 'gcra'\nquota = '1/s'", "`by`"),
    ] {
        let error = policy(text).expect_err(text).to_string();
        assert!(error.contains(says), "{text}\n{error}");
    }
}

#[test]
fn policies_that_do_not_go_together_are_an_error_that_says_where() {
    let two = |first: &str, second: &str| {
        let limit = |settings: &str| format!("[[limits]]\nalgorithm = 'gcra'\nquota = '1/s'\n{settings}\n");
        let policies = from_toml(&format!("{}{}", limit(first), limit(second)));
        parts().limits(&policies).map(|limits| limits.len())
    };
    assert_eq!(two("name = 'a'\nby = 'user'", "name = 'b'\nby = 'user'").unwrap(), 2);

    let error = two("name = 'a'\nby = 'user'", "name = 'b'\nby = 'tenant'").unwrap_err();
    assert!(error.is_config());
    let expected = r#"limits[1] ("b"), by: "tenant" is not known; it must be one of "user", "organisation", "all""#;
    assert_eq!(error.to_string(), expected);

    let error = two("name = 'a'\nby = 'user'", "name = 'a'\nby = 'all'").unwrap_err();
    assert!(error.is_config());
    assert!(error.to_string().starts_with(r#"limits[1] ("a"), name: it is that of limits[0] too"#), "{error}");
}

#[test]
fn a_part_named_again_takes_the_place_of_the_earlier_one() {
    let clock = ManualClock::new();
    let parts = parts().part("user", |caller: &Caller| caller.organisation);
    let policies = [policy("name = 'x'\nalgorithm = 'gcra'\nquota = '10/min'\nby = 'user'").unwrap()];
    let limiter = memory(parts.limits(&policies).unwrap(), &clock);
    limiter.check(&ALICE, AcquireOptions::cost(3));
    assert_eq!(left(&limiter, &BOB), named([("x", 7)]));
}

// ---------------------------------------------------------------------------------------------------------------------
// Replacing
// ---------------------------------------------------------------------------------------------------------------------

/// One limit on users, by each algorithm that can be configured.
fn user_limit(algorithm: &str, quota: &str) -> Vec<DynLimit<Caller>> {
    let text = format!("name = 'x'\nalgorithm = '{algorithm}'\nquota = '{quota}'\nby = 'user'");
    parts().limits(&[policy(&text).unwrap()]).unwrap()
}

const ALGORITHMS: [&str; 7] =
    ["gcra", "token-bucket", "leaky-bucket", "leaky-queue", "fixed-window", "sliding-window", "sliding-log"];

/// A queue has room for as many more as wait, and one.
fn room(algorithm: &str, quota: u64) -> u64 {
    quota + u64::from(algorithm == "leaky-queue")
}

#[test]
fn what_is_owed_stays_owed_when_a_quota_is_raised_or_lowered() {
    for algorithm in ALGORITHMS {
        let clock = ManualClock::new();
        let limiter = memory(user_limit(algorithm, "100/h"), &clock);
        limiter.check(&ALICE, AcquireOptions::cost(60));
        for (quota, has) in [("1000/h", 1000), ("80/h", 80), ("50/h", 50), ("61/h", 61), ("100/h", 100)] {
            limiter.replace(user_limit(algorithm, quota)).unwrap();
            let expected = room(algorithm, has).saturating_sub(60);
            assert_eq!(left(&limiter, &ALICE), named([("x", expected)]), "{algorithm} {quota}");
            assert_eq!(left(&limiter, &BOB), named([("x", room(algorithm, has))]), "{algorithm} {quota}");
            assert!(!limiter.check(&ALICE, AcquireOptions::cost(expected + 1)).is_allowed(), "{algorithm} {quota}");
        }
        // And it is the new quota that holds.
        limiter.replace(user_limit(algorithm, "70/h")).unwrap();
        assert!(limiter.check(&ALICE, AcquireOptions::cost(room(algorithm, 70) - 60)).is_allowed());
        assert_eq!(left(&limiter, &ALICE), named([("x", 0)]));
    }
}

#[test]
fn what_is_new_begins_anew_and_what_is_gone_is_forgotten() {
    let clock = ManualClock::new();
    let one = |name: &'static str, algorithm: Gcra| {
        DynLimit::new(Limit::new(name, algorithm).keyed_by(|key: &Caller| key.user))
    };
    let ten = Gcra::new(Quota::per_hour(10));
    let limiter = memory_without_limits(&clock);
    limiter.replace(vec![one("a", ten), one("b", ten)]).unwrap();
    limiter.check(&ALICE, AcquireOptions::cost(4));

    limiter.replace(vec![one("b", ten), one("c", ten)]).unwrap();
    assert_eq!(left(&limiter, &ALICE), named([("b", 6), ("c", 10)]));
    limiter.check(&ALICE, AcquireOptions::cost(1));
    limiter.replace(vec![one("a", ten), one("b", ten), one("c", ten)]).unwrap();
    assert_eq!(left(&limiter, &ALICE), named([("a", 10), ("b", 5), ("c", 9)]));

    // Another algorithm, and another type of part, are another limit.
    let window = Limit::new("a", FixedWindow::new(Quota::per_hour(10))).keyed_by(|key: &Caller| key.user);
    let by_organisation = Limit::new("c", ten).keyed_by(|key: &Caller| key.organisation);
    limiter.check(&ALICE, AcquireOptions::cost(1));
    limiter.replace(vec![DynLimit::new(window), one("b", ten), DynLimit::new(by_organisation)]).unwrap();
    assert_eq!(left(&limiter, &ALICE), named([("a", 10), ("b", 4), ("c", 10)]));

    // Without limits everything passes.
    limiter.replace(Vec::new()).unwrap();
    assert!(limiter.check(&ALICE, AcquireOptions::cost(u64::MAX)).is_allowed());
    let held = hold(&limiter, &ALICE, 7);
    limiter.replace(vec![one("a", ten)]).unwrap();
    settle(held, 7);
    assert_eq!(left(&limiter, &ALICE), named([("a", 10)]));
}

#[test]
fn empty_list_of_limits_is_a_configuration_error_unless_allowed() {
    let clock = ManualClock::new();
    let error = Memory::<Vec<DynLimit<Caller>>>::builder(Vec::new()).build().unwrap_err();
    assert!(error.is_config() && error.to_string().starts_with("no limits: "), "{error}");
    let ten = || {
        let limit = Limit::new("a", Gcra::new(Quota::per_hour(10))).keyed_by(|key: &Caller| key.user);
        vec![DynLimit::new(limit)]
    };
    let limiter = memory(ten(), &clock);
    let error = limiter.replace(Vec::new()).unwrap_err();
    assert!(error.is_config() && error.to_string().starts_with("no limits: "), "{error}");
    assert!(!limiter.check(&ALICE, AcquireOptions::cost(11)).is_allowed(), "the limits are as they were");

    let limiter = memory_without_limits(&clock);
    assert!(limiter.check(&ALICE, AcquireOptions::cost(11)).is_allowed());
    limiter.replace(ten()).unwrap();
    assert!(!limiter.check(&ALICE, AcquireOptions::cost(11)).is_allowed());
    limiter.replace(Vec::new()).unwrap();
    assert!(limiter.check(&ALICE, AcquireOptions::cost(11)).is_allowed());
}

/// Two function pointers have one type: the name of the part tells them apart.
#[test]
fn parts_by_function_pointers_of_one_type_are_kept_apart() {
    fn user(caller: &Caller) -> u64 {
        caller.user.into()
    }
    fn org(caller: &Caller) -> u64 {
        caller.organisation.len() as u64
    }
    let functions: [(&str, fn(&Caller) -> u64); 2] = [("user", user), ("org", org)];
    let parts = functions.into_iter().fold(Parts::new(), |parts, (name, part)| parts.part(name, part));
    let limits = |by: &str| {
        let policy = policy(&format!("name = 'x'\nalgorithm = 'gcra'\nquota = '10/h'\nby = '{by}'")).unwrap();
        parts.limits(&[policy]).unwrap()
    };
    // As many letters as the organisation has, so that both parts of this caller are one number.
    let caller = Caller { user: 4, organisation: "acme" };
    let clock = ManualClock::new();
    let limiter = memory(limits("user"), &clock);
    limiter.check(&caller, AcquireOptions::cost(3));
    limiter.replace(limits("user")).unwrap();
    assert_eq!(left(&limiter, &caller), named([("x", 7)]), "the same part takes over");
    limiter.replace(limits("org")).unwrap();
    assert_eq!(left(&limiter, &caller), named([("x", 10)]), "another part begins anew");
    limiter.check(&BOB, AcquireOptions::cost(1));
    assert_eq!(left(&limiter, &caller), named([("x", 9)]), "both are in one organisation");
    limiter.replace(limits("user")).unwrap();
    assert_eq!(left(&limiter, &caller), named([("x", 10)]));
}

/// Another number of blocks is another setting of the same algorithm: what was used stays used.
#[test]
fn what_is_owed_stays_owed_when_a_window_is_divided_otherwise() {
    let clock = ManualClock::new();
    let limits = |blocks: u64| {
        let window = SlidingWindow::new(Quota::per_hour(10)).blocks(blocks);
        vec![DynLimit::new(Limit::new("x", window).keyed_by(|key: &Caller| key.user))]
    };
    let limiter = memory(limits(10), &clock);
    limiter.check(&ALICE, AcquireOptions::cost(2));
    let held = hold(&limiter, &ALICE, 5);
    for blocks in [6, 60, 1, 10, 60] {
        limiter.replace(limits(blocks)).unwrap();
        assert_eq!(left(&limiter, &ALICE), named([("x", 3)]), "{blocks} blocks");
    }
    clock.advance(10 * MINUTE);
    limiter.check(&ALICE, AcquireOptions::cost(1));
    settle(held, 0);
    assert_eq!(left(&limiter, &ALICE), named([("x", 7)]));
    // The first charge counts until an hour after its block of six minutes; the second for an hour, and a block
    // of one minute.
    clock.advance(56 * MINUTE);
    assert_eq!(left(&limiter, &ALICE), named([("x", 9)]));
    clock.advance(5 * MINUTE);
    assert_eq!(left(&limiter, &ALICE), named([("x", 10)]));
}

#[test]
fn an_invalid_replacement_leaves_the_limits_as_they_were() {
    let clock = ManualClock::new();
    let one = |name: &'static str| {
        DynLimit::new(Limit::new(name, Gcra::new(Quota::per_hour(10))).keyed_by(|key: &Caller| key.user))
    };
    let limiter = memory(vec![one("a"), one("b")], &clock);
    let held = hold(&limiter, &ALICE, 4);

    // A thousand keys of a million hits are 16 gigabytes.
    let huge = Limit::new("huge", SlidingLog::new(Quota::per_day(1_000_000))).keyed_by(|key: &Caller| key.user);
    let invalid = [
        (Vec::new(), "no limits"),
        (vec![one("c"), one("c")], "two limits are named \"c\""),
        (vec![one("a"), one("")], "empty name"),
        (vec![one("a"), DynLimit::new(huge)], "\"huge\""),
    ];
    for (limits, says) in invalid {
        let error = limiter.replace(limits).unwrap_err();
        assert!(error.is_config() && error.to_string().contains(says), "{error}");
        assert_eq!(left(&limiter, &ALICE), named([("a", 6), ("b", 6)]));
    }
    settle(held, 1);
    assert_eq!(left(&limiter, &ALICE), named([("a", 9), ("b", 9)]));
}

#[test]
fn hold_is_settled_after_any_number_of_replacements() {
    for algorithm in ALGORITHMS {
        let clock = ManualClock::new();
        let limiter = memory(user_limit(algorithm, "100/h"), &clock);
        for replacements in [1, 2, 17, 40] {
            limiter.reset(&ALICE).try_ready().unwrap().unwrap();
            let held = hold(&limiter, &ALICE, 5);
            limiter.set("x", &ALICE, 4).try_ready().unwrap().unwrap();
            for round in 0..replacements {
                let quota = if (replacements - round) % 2 == 0 { "1000/h" } else { "100/h" };
                limiter.replace(user_limit(algorithm, quota)).unwrap();
            }
            assert_eq!(left(&limiter, &ALICE)["x"], room(algorithm, 91), "{algorithm} after {replacements}");
            settle(held, 1);
            assert_eq!(left(&limiter, &ALICE)["x"], room(algorithm, 95), "{algorithm} after {replacements}");
        }
    }
}

/// Guards know limits, not places in a list.
#[test]
fn hold_is_settled_on_its_limits_wherever_they_are_after_a_replacement() {
    let clock = ManualClock::new();
    let user = |name: &'static str, quota| {
        DynLimit::new(Limit::new(name, SlidingLog::new(quota)).keyed_by(|key: &Caller| key.user))
    };
    let (per_hour, per_minute) = (Quota::per_hour(100), Quota::per_minute(50));
    let limiter = memory(vec![user("hour", per_hour), user("minute", per_minute)], &clock);
    let held = hold(&limiter, &ALICE, 10);
    let (day, all) = (Quota::per_day(1000), |_: &Caller| ());
    let everybody = DynLimit::new(Limit::new("everybody", SlidingLog::new(day)).keyed_by(all));
    limiter.replace(vec![everybody, user("minute", per_minute), user("hour", per_hour)]).unwrap();
    clock.advance(SECOND);
    limiter.check(&ALICE, AcquireOptions::cost(2));
    assert_eq!(left(&limiter, &ALICE), named([("everybody", 998), ("minute", 38), ("hour", 88)]));
    settle(held, 3);
    // The one that is new has never held it.
    assert_eq!(left(&limiter, &ALICE), named([("everybody", 998), ("minute", 45), ("hour", 95)]));
}

/// A hold from before a replacement is charged by the quota that took over, at the time when it is settled.
#[test]
fn hold_settled_after_a_replacement_is_charged_by_the_limit_that_took_over() {
    for (actual, algorithm) in [0, 1, 3].into_iter().flat_map(|actual| ALGORITHMS.map(|algorithm| (actual, algorithm)))
    {
        let clock = ManualClock::new();
        let limiter = memory(user_limit(algorithm, "100/min"), &clock);
        let held = hold(&limiter, &ALICE, 1);
        limiter.replace(user_limit(algorithm, "100/h")).unwrap();
        clock.advance(2 * MINUTE);
        limiter.set("x", &ALICE, 90).try_ready().unwrap().unwrap();
        clock.advance(5 * MINUTE);
        let before = left(&limiter, &ALICE)["x"];
        settle(held, actual);
        assert_eq!(left(&limiter, &ALICE)["x"], before + 1 - actual, "{algorithm} settled at {actual}");
        clock.advance(5 * MINUTE);
        assert!(left(&limiter, &ALICE)["x"] < 40, "{algorithm} settled at {actual}");
    }
}

#[test]
fn hold_on_a_limit_that_is_gone_charges_nothing() {
    let clock = ManualClock::new();
    let limiter = memory(user_limit("gcra", "100/h"), &clock);
    let guards: Vec<_> = (0..3).map(|_| hold(&limiter, &ALICE, 10)).collect();
    // Another algorithm under the same name is another limit.
    limiter.replace(user_limit("fixed-window", "100/h")).unwrap();
    assert_eq!(left(&limiter, &ALICE), named([("x", 100)]));
    // So is one that comes again.
    limiter.replace(user_limit("gcra", "100/h")).unwrap();
    let mut guards = guards.into_iter();
    settle(guards.next().unwrap(), 25);
    settle(guards.next().unwrap(), 0);
    drop(guards);
    assert_eq!(left(&limiter, &ALICE), named([("x", 100)]));
    assert_eq!((limiter.usage()[0].held_keys, limiter.usage()[0].held), (0, 0));
}

/// A table belongs to the limits that use it: what is removed takes no memory.
#[test]
fn tables_of_removed_limits_are_freed() {
    let clock = ManualClock::new();
    let limits = |number: usize| {
        let window = SlidingWindow::new(Quota::per_hour(10));
        let name = format!("limit {number}");
        vec![DynLimit::new(Limit::new(name, window).keyed_by(|key: &Caller| key.user))]
    };
    let limiter = memory(limits(0), &clock);
    let bytes = |limiter: &Dynamic| limiter.usage().iter().map(|usage| usage.bytes).sum::<usize>();
    let one = bytes(&limiter);
    let mut guards = Vec::new();
    let kept = allocation_counter::measure(|| {
        for number in 1..=50 {
            guards.push(hold(&limiter, &ALICE, 1));
            limiter.block(&format!("limit {}", number - 1), &BOB, HOUR).try_ready().unwrap().unwrap();
            limiter.replace(limits(number)).unwrap();
        }
    });
    assert_eq!(bytes(&limiter), one);
    // A guard of a limit that is gone keeps no table.
    let grown = usize::try_from(kept.bytes_current).unwrap_or(0);
    assert!(grown < one / 2, "{grown} bytes more, and a table takes {one}");
    drop(guards);
}

fn keys_with_limit(limit: Limit<Gcra>) -> Vec<DynLimit<u64>> {
    vec![DynLimit::new(limit)]
}

/// Whether a new key is denied for want of space, in a table that is full of keys with usage.
fn denies_when_full(limiter: &Memory<Vec<DynLimit<u64>>, ManualClock>) -> bool {
    (0..1000_u64).any(|key| !limiter.check(&key, AcquireOptions::default()).is_allowed())
}

/// A limit that is replaced keeps its table, and decides by what it is itself: enforced or a shadow.
#[test]
fn replace_keeps_capacity_policy() {
    let clock = ManualClock::new();
    let limit = || Limit::new("x", Gcra::new(Quota::per_hour(10)));
    let build = |limit| {
        let builder = Memory::builder(keys_with_limit(limit)).max_keys(10).when_full(WhenFull::Deny);
        builder.clock(clock.clone()).build().unwrap()
    };

    let limiter = build(limit().shadow());
    assert!(!denies_when_full(&limiter), "a shadow limit never denies");
    limiter.replace(keys_with_limit(limit())).unwrap();
    assert!(denies_when_full(&limiter), "a shadow limit made enforced denies new keys");
    let forgotten = limiter.usage()[0].evicted;
    assert!(denies_when_full(&limiter));
    assert_eq!(limiter.usage()[0].evicted, forgotten, "and forgets none");

    let limiter = build(limit());
    assert!(denies_when_full(&limiter));
    assert_eq!(limiter.usage()[0].evicted, 0);
    limiter.replace(keys_with_limit(limit().shadow())).unwrap();
    assert!(!denies_when_full(&limiter), "an enforced limit made shadow never denies");
    limiter.replace(keys_with_limit(limit())).unwrap();
    assert!(denies_when_full(&limiter));
}

#[test]
fn a_block_outlasts_a_replacement() {
    let clock = ManualClock::new();
    let limiter = memory(user_limit("gcra", "100/h"), &clock);
    limiter.block("x", &ALICE, HOUR).try_ready().unwrap().unwrap();
    limiter.replace(user_limit("gcra", "200/h")).unwrap();
    assert_eq!(limiter.check(&ALICE, AcquireOptions::default()).retry_after(), Some(HOUR));
    limiter.block("x", &BOB, HOUR).try_ready().unwrap().unwrap();
    limiter.replace(user_limit("gcra", "300/h")).unwrap();
    limiter.unblock("x", &ALICE).try_ready().unwrap().unwrap();
    assert!(limiter.check(&ALICE, AcquireOptions::default()).is_allowed());
    assert_eq!(limiter.check(&BOB, AcquireOptions::default()).retry_after(), Some(HOUR));
}

/// How many replacements there are under load.
const REPLACEMENTS: u64 = 24;

/// Several threads hold and settle, while the quota is raised and lowered. In the end what was settled is owed, no more and
/// no less.
fn under_load(algorithm: &str) {
    const THREADS: u64 = 3;
    const BEFOREHAND: u64 = 1000;
    const CALLERS: [Caller; 2] = [ALICE, BOB];
    // WholeKey microseconds a token, so that a bucket has nothing to round; and never so little that anybody is refused.
    const QUOTAS: [&str; 2] = ["1_000_000 per 1000s", "500_000 per 1000s"];

    let clock = ManualClock::new();
    // The log is large, and hardly used.
    let limiter = Memory::builder(user_limit(algorithm, QUOTAS[0])).max_keys(1000).max_heap_bytes(usize::MAX);
    let limiter = limiter.clock(clock).build().unwrap();
    for caller in &CALLERS {
        assert!(limiter.check(caller, AcquireOptions::cost(BEFOREHAND)).is_allowed());
    }
    let (owed, rounds, done) = ([const { AtomicU64::new(0) }; 2], AtomicU64::new(0), AtomicBool::new(false));
    let together = Barrier::new(usize::try_from(THREADS).unwrap() + 1);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (limiter, owed, rounds, done, together) = (&limiter, &owed, &rounds, &done, &together);
            scope.spawn(move || {
                together.wait();
                let mut held = Vec::new();
                for round in thread.. {
                    let who = usize::try_from(round % 2).unwrap();
                    held.push((who, hold(limiter, &CALLERS[who], 3)));
                    // Some is settled at once, some later, some at more.
                    if round % 5 == 0 {
                        for (index, (who, held)) in held.drain(..).enumerate() {
                            let actual = [0, 1, 3, 4][index % 4];
                            settle(held, actual);
                            owed[who].fetch_add(actual, Ordering::Relaxed);
                        }
                    }
                    rounds.fetch_add(1, Ordering::Release);
                    if done.load(Ordering::Acquire) {
                        break;
                    }
                }
                for (who, _kept) in held {
                    owed[who].fetch_add(3, Ordering::Relaxed);
                }
            });
        }
        together.wait();
        for replacement in 1..=REPLACEMENTS {
            // Each in the midst of decisions.
            let from = rounds.load(Ordering::Acquire);
            while rounds.load(Ordering::Acquire) < from + 200 {
                thread::yield_now();
            }
            limiter.replace(user_limit(algorithm, QUOTAS[usize::try_from(replacement % 2).unwrap()])).unwrap();
        }
        done.store(true, Ordering::Release);
    });
    for (caller, owed) in CALLERS.iter().zip(owed) {
        let owed = owed.into_inner();
        assert!(owed > 0);
        assert_eq!(left(&limiter, caller)["x"], 1_000_000 - BEFOREHAND - owed, "{algorithm}");
    }
}

#[test]
fn replacing_under_load_loses_and_grants_nothing() {
    for algorithm in ["gcra", "token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"] {
        under_load(algorithm);
    }
}

/// At the limit nobody gets more than the larger quota, whatever is replaced when.
#[test]
fn replacing_under_load_never_lets_through_more_than_the_larger_quota() {
    for algorithm in ALGORITHMS {
        let clock = ManualClock::new();
        let limiter = memory(user_limit(algorithm, "3000/h"), &clock);
        let (passed, done) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        if limiter.check(&ALICE, AcquireOptions::default()).is_allowed() {
                            passed.fetch_add(1, Ordering::Relaxed);
                        } else {
                            thread::yield_now();
                        }
                    }
                });
            }
            for round in 0..100 {
                let quota = ["5000/h", "1000/h", "3000/h"][round % 3];
                limiter.replace(user_limit(algorithm, quota)).unwrap();
                thread::yield_now();
            }
            limiter.replace(user_limit(algorithm, "5000/h")).unwrap();
            // All that is left is used up.
            while peek(&limiter, &ALICE).is_allowed() {
                thread::yield_now();
            }
            done.store(true, Ordering::Release);
        });
        assert_eq!(passed.into_inner(), room(algorithm, 5000), "{algorithm}");
    }
}

/// What is charged to several limits is charged to the same ones or to none, though they come and go meanwhile.
#[test]
fn replacing_under_load_charges_all_limits_of_a_moment_or_none() {
    let clock = ManualClock::new();
    let one = |name: &'static str| {
        DynLimit::new(
            Limit::new(name, FixedWindow::new(Quota::per_hour(1_000_000_000))).keyed_by(|key: &Caller| key.user),
        )
    };
    let limiter = memory(vec![one("stays"), one("too")], &clock);
    let (passed, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    assert!(limiter.check(&ALICE, AcquireOptions::cost(2)).is_allowed());
                    passed.fetch_add(2, Ordering::Relaxed);
                }
            });
        }
        for round in 0..501 {
            let limits = match round % 3 {
                0 => vec![one("too"), one("stays")],
                1 => vec![one("comes"), one("stays"), one("too"), one("goes")],
                _ => vec![one("stays"), one("too")],
            };
            limiter.replace(limits).unwrap();
            thread::yield_now();
        }
        done.store(true, Ordering::Release);
    });
    let left_over = 1_000_000_000 - passed.into_inner();
    assert_eq!(left(&limiter, &ALICE), named([("stays", left_over), ("too", left_over)]));
}

/// Whoever was told that a key is blocked can rely on it.
#[test]
fn a_block_at_the_moment_of_a_replacement_is_not_lost() {
    for round in 0..3_000 {
        let clock = ManualClock::new();
        let limiter = memory(user_limit("fixed-window", "100/h"), &clock);
        let together = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                together.wait();
                limiter.block("x", &ALICE, HOUR).try_ready().unwrap().unwrap();
            });
            let limits = user_limit("fixed-window", "200/h");
            together.wait();
            limiter.replace(limits).unwrap();
        });
        assert!(!limiter.check(&ALICE, AcquireOptions::default()).is_allowed(), "round {round}");
    }
}

/// Whichever of two replacements comes first: what is charged between them stays charged in the second.
#[test]
fn of_two_replacements_at_a_time_the_later_takes_over_from_the_earlier() {
    let one = |name: &'static str, limit| {
        DynLimit::new(Limit::new(name, FixedWindow::new(Quota::per_hour(limit))).keyed_by(|key: &Caller| key.user))
    };
    for round in 0..3_000 {
        let clock = ManualClock::new();
        let limiter = memory_without_limits(&clock);
        let together = Barrier::new(2);
        let charged = thread::scope(|scope| {
            let first = scope.spawn(|| {
                together.wait();
                limiter.replace(vec![one("new", 100)]).unwrap();
                limiter.check(&ALICE, AcquireOptions::cost(5)).is_allowed()
            });
            together.wait();
            limiter.replace(vec![one("new", 200)]).unwrap();
            first.join().unwrap()
        });
        let decision = peek(&limiter, &ALICE);
        let standing = decision.most_restrictive().unwrap();
        assert!(charged && standing.limit() - standing.remaining() == 5, "round {round}: {decision:?}");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Tiers
// ---------------------------------------------------------------------------------------------------------------------

struct Member {
    user: u32,
    tier: Tier,
}

#[derive(Clone, Copy)]
enum Tier {
    Free,
    Paid,
}

/// Who changes its tier keeps what it owes.
fn tiers<A: Algorithm + Copy>(free: A, paid: A) {
    let clock = ManualClock::new();
    let choose = move |member: &Member| match member.tier {
        Tier::Free => free,
        Tier::Paid => paid,
    };
    let limit = Limit::new("tier", per_key(choose)).keyed_by(|member: &Member| member.user);
    let limiter = Memory::builder(limit).max_keys(1000).clock(clock).build().unwrap();
    let ask = |user, tier, cost| limiter.check(&Member { user, tier }, AcquireOptions::cost(cost)).remaining().unwrap();

    assert_eq!(ask(1, Tier::Free, 60), 0, "{free:?}");
    assert_eq!(ask(1, Tier::Paid, 1), 5000 - 61, "{free:?}");
    // Down again there is nothing to be had: more is owed than the free tier holds.
    assert_eq!(ask(1, Tier::Free, 1), 0, "{free:?}");
    assert_eq!(ask(1, Tier::Paid, 0), 5000 - 61, "a refusal charges nothing: {free:?}");
    assert_eq!(ask(2, Tier::Free, 10), 50, "{free:?}");
}

#[test]
fn who_changes_the_tier_keeps_what_is_owed() {
    let (free, paid) = (Quota::per_hour(60), Quota::per_hour(5000));
    tiers(FixedWindow::new(free), FixedWindow::new(paid));
    tiers(Gcra::new(free), Gcra::new(paid));
    tiers(TokenBucket::new(free), TokenBucket::new(paid));
    tiers(SlidingWindow::new(free), SlidingWindow::new(paid));
    tiers(SlidingLog::new(free), SlidingLog::new(paid));
}

/// A cost that is held in one tier and settled in another counts in both until then, and what is settled is owed.
fn hold_across_a_change_of_tier<A: Algorithm + Copy>(free: A, paid: A) {
    let clock = ManualClock::new();
    let choose = move |member: &Member| match member.tier {
        Tier::Free => free,
        Tier::Paid => paid,
    };
    let limit = Limit::new("tier", per_key(choose)).keyed_by(|member: &Member| member.user);
    let limiter = Memory::builder(limit).max_keys(1000).clock(clock.clone()).build().unwrap();
    let held = [(); 2].map(|()| hold(&limiter, &Member { user: 1, tier: Tier::Free }, 5));
    clock.advance(2 * MINUTE);
    let paid = Member { user: 1, tier: Tier::Paid };
    let left = limiter.check(&paid, AcquireOptions::cost(40)).remaining().unwrap();
    assert_eq!(left, 10, "{free:?}");
    let left = || limiter.peek(&paid, AcquireOptions::default()).try_ready().unwrap().unwrap().remaining().unwrap();
    let [released, settled] = held;
    settle(released, 0);
    assert_eq!(left(), 15, "{free:?}");
    settle(settled, 4);
    assert_eq!(left(), 16, "{free:?}");
}

const MINUTELY: Quota = Quota::per_minute(60);
const HOURLY: Quota = Quota::per_hour(60);

#[test]
fn hold_is_settled_after_a_change_of_tier() {
    hold_across_a_change_of_tier(FixedWindow::new(MINUTELY), FixedWindow::new(HOURLY));
    hold_across_a_change_of_tier(Gcra::new(MINUTELY), Gcra::new(HOURLY));
    hold_across_a_change_of_tier(TokenBucket::new(MINUTELY), TokenBucket::new(HOURLY));
    hold_across_a_change_of_tier(SlidingLog::new(MINUTELY), SlidingLog::new(HOURLY));
    hold_across_a_change_of_tier(SlidingWindow::new(MINUTELY), SlidingWindow::new(HOURLY));
}
