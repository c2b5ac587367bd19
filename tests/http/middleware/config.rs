//! Limits from configuration: algorithms by name, errors that point at the field, and serialization. Limits that are
//! replaced under load keep their usage exactly.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::config::{AlgorithmName, KeyParts, Policy};
use tower_ratelimit::key::Extracted;
use tower_ratelimit::limiter::Held;
use tower_ratelimit::routes::{RequestParts, RoutePolicies};
use tower_ratelimit::{
    AcquireOptions, Calendar, Costs, Decision, Detail, DynLimit, ExtractKey as _, FixedWindow, Gcra, LeakyBucket,
    LeakyQueue, Limit, LimitStatus, Limiter, ManualClock, Memory, Quota, Redis, RedisServer, SlidingLog, SlidingWindow,
    TokenBucket, Weekday, WhenFull,
};

use crate::random::Random;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

struct Caller {
    user: u32,
    organisation: &'static str,
}

const ALICE: Caller = Caller { user: 1, organisation: "acme" };
const BOB: Caller = Caller { user: 2, organisation: "acme" };

fn parts() -> KeyParts<Caller> {
    KeyParts::new()
        .add("user", |caller: &Caller| caller.user)
        .add("organisation", |caller: &Caller| caller.organisation)
        .add("all", |_: &Caller| ())
}

#[derive(Debug, Deserialize)]
struct Config {
    limits: Vec<Policy>,
}

fn from_toml(text: &str) -> Vec<Policy> {
    let policies = toml::from_str::<Config>(text).unwrap_or_else(|error| panic!("{error}")).limits;
    policies.iter().for_each(assert_round_trip);
    policies
}

/// Parses a policy from TOML.
fn policy(settings: &str) -> Result<Policy, toml::de::Error> {
    toml::from_str(settings).inspect(assert_round_trip)
}

/// What a policy writes in JSON and in TOML is the policy.
fn assert_round_trip(policy: &Policy) {
    let json = serde_json::to_string(policy).unwrap();
    assert_eq!(&serde_json::from_str::<Policy>(&json).unwrap(), policy, "{json}");
    assert_eq!(&toml::Value::try_from(policy).unwrap().try_into::<Policy>().unwrap(), policy, "{json}");
}

/// Each of these settings is an error that contains the text, in a policy with these other fields.
fn assert_invalid(others: &str, invalid: &[(&str, &str)]) {
    for (settings, problem) in invalid {
        let error = policy(&format!("name = 'x'\n{others}\n{settings}")).expect_err(settings).to_string();
        assert!(error.contains(problem), "{settings}: {error}");
    }
}

type Dynamic = Memory<Caller, Vec<DynLimit<Caller>>>;

fn memory(limits: Vec<DynLimit<Caller>>, clock: &ManualClock) -> Dynamic {
    Memory::builder(limits).max_keys(1000).clock(clock.clone()).build().unwrap()
}

/// Creates a limiter that accepts an empty list of limits.
fn memory_without_limits(clock: &ManualClock) -> Dynamic {
    Memory::builder(Vec::new()).max_keys(1000).allow_no_limits().clock(clock.clone()).build().unwrap()
}

fn peek(limiter: &impl Limiter<Caller>, caller: &Caller) -> Decision {
    limiter.peek(caller, AcquireOptions::default().detail(Detail::All)).try_ready().unwrap().unwrap()
}

/// Returns the remaining tokens of each limit by name.
fn left(limiter: &impl Limiter<Caller>, caller: &Caller) -> BTreeMap<String, u64> {
    let decision = peek(limiter, caller);
    decision.limits().iter().map(|status| (status.name().to_owned(), status.remaining())).collect()
}

fn named<const N: usize>(limits: [(&str, u64); N]) -> BTreeMap<String, u64> {
    limits.map(|(name, left)| (name.to_owned(), left)).into()
}

fn hold<Key: 'static>(limiter: &impl Limiter<Key>, key: &Key, cost: u64) -> Held {
    let Ok(outcome) = limiter.acquire(key, AcquireOptions::cost(cost).hold()).try_ready() else {
        panic!("memory answers immediately")
    };
    outcome.unwrap().held.expect("the hold is allowed")
}

fn settle(held: Held, actual: u64) {
    held.settle(actual).try_ready().expect("memory answers immediately").unwrap();
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading
// ---------------------------------------------------------------------------------------------------------------------

/// A configured limit decides like the same limit built in code.
fn assert_decides_as(settings: &str, in_code: impl Algorithm) {
    let policies = [policy(&format!("name = 'x'\nby = 'all'\n{settings}")).unwrap()];
    let clock = ManualClock::new();
    let configured = memory(parts().limits(&policies).unwrap(), &clock);
    let in_code = memory(vec![DynLimit::new(Limit::new("x", in_code).keyed_by(|_: &Caller| ()))], &clock);
    let mut random = Random::new(1);
    for _ in 0..300 {
        clock.advance(Duration::from_micros(random.below(1 << 22)));
        let options = AcquireOptions::cost(random.below(4)).max_delay(SECOND * random.choose(&[0, 1, 2, 3]));
        assert_eq!(configured.check(&ALICE, options), in_code.check(&ALICE, options), "{settings}");
    }
}

#[test]
fn configured_algorithms_decide_as_in_code() {
    fn assert(algorithm: &str, settings: &str, in_code: impl Algorithm) {
        assert_decides_as(&format!("algorithm = '{algorithm}'\nquota = '30/min'\n{settings}"), in_code);
    }

    let quota: Quota = "30/min".parse().unwrap();
    let (queue, window, sliding) = (LeakyQueue::new(quota), FixedWindow::new(quota), SlidingWindow::new(quota));
    assert("gcra", "", Gcra::new(quota));
    assert("gcra", "burst = 5", Gcra::new(quota).burst(5));
    assert("token-bucket", "burst = 3", TokenBucket::new(quota).burst(3));
    assert("leaky-bucket", "burst = 40", LeakyBucket::new(quota).burst(40));
    assert("leaky-queue", "", queue);
    assert("leaky-queue", "max_waiting = 0", queue.max_waiting(0));
    assert("leaky-queue", "max_waiting = 7", queue.max_waiting(7));
    assert("fixed-window", "", window);
    assert("fixed-window", "aligned_to_clock = false", window);
    assert("fixed-window", "aligned_to_clock = true", window.aligned_to_clock());
    assert("sliding-window", "", sliding);
    assert("sliding-window", "blocks = 4", sliding.blocks(4));
    assert("sliding-window", "blocks = 1\nweighted = true", sliding.blocks(1).weighted());
    assert("sliding-log", "", SlidingLog::new(quota));
    for (settings, calendar) in [
        ("quota = '9/month'\nanchor = 15\nzone = '+02:00'", Calendar::monthly_on(15).utc_offset_minutes(120)),
        ("quota = '9 per month'\nzone = '-05:30'", Calendar::monthly().utc_offset_minutes(-330)),
        ("quota = '9/week'\nanchor = 'sunday'", Calendar::weekly_from(Weekday::Sunday)),
        ("quota = '9 per 7d'", Calendar::weekly()),
        ("quota = '9/day'\nzone = 'UTC'", Calendar::daily()),
        ("quota = '9/year'", Calendar::yearly()),
    ] {
        let settings = format!("algorithm = 'fixed-window'\nwindow = 'calendar'\n{settings}");
        let window = FixedWindow::calendar(9, calendar);
        assert_decides_as(&settings, window);
        let policy = policy(&format!("name = 'x'\nby = 'all'\n{settings}")).unwrap();
        assert_eq!((policy.calendar(), policy.quota()), (Some(calendar), Some(window.quota())));
    }
}

#[test]
fn in_flight_policy_has_a_maximum_and_no_quota() {
    let fields = "max = 2\nmax_duration = '1h'\nfixed_cost = 1";
    let streams = policy(&format!("name = 'streams'\nalgorithm = 'in-flight'\nby = 'user'\n{fields}")).unwrap();
    assert_eq!((streams.quota(), streams.max()), (None, Some(2)));
    assert_eq!(streams.max_duration(), Some(60 * MINUTE));
    assert_eq!(streams.algorithm(), AlgorithmName::InFlight);

    assert_invalid(
        "algorithm = 'in-flight'\nby = 'user'",
        &[
            ("", "max: it is missing"),
            ("max = 2\nquota = '1/s'", "quota: it does not apply to in-flight"),
            ("max = 2\nburst = 3", "burst: it applies to gcra"),
            ("max = 2\nmax_duration = '1 fortnight'", "max_duration: "),
            ("max = 2\nmax_duration = '0s'", "max_duration: requests in flight: `max_duration` must be from 1 us"),
        ],
    );
    let invalid = [("", "quota: it is missing"), ("quota = '1/s'\nmax = 3", "max: it applies to in-flight only")];
    assert_invalid("algorithm = 'gcra'\nby = 'user'", &invalid);
}

#[test]
fn policy_returns_its_fields() {
    let text = "name = 'api'\nalgorithm = 'sliding-log'\nquota = '5 per 15min'\nby = 'user'\nshadow = true";
    let policy = policy(text).unwrap();
    assert_eq!((policy.name(), &*policy.by(), policy.is_shadow()), ("api", "user", true));
    assert_eq!(policy.algorithm(), AlgorithmName::SlidingLog);
    assert_eq!(policy.quota(), Some(Quota::new(5, 15 * MINUTE)));
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
fn configured_limits_count_by_their_sub_keys() {
    let clock = ManualClock::new();
    let limiter = memory(parts().limits(&from_toml(ALL)).unwrap(), &clock);
    let decision = limiter.check(&ALICE, AcquireOptions::cost(4).max_delay(SECOND));
    assert_eq!(decision.shadow_denials().map(LimitStatus::name).collect::<Vec<_>>(), ["trial"]);
    let expected = [("smooth", 16), ("hourly", 996), ("spacing", 2), ("trial", 3), ("log", 46)];
    assert_eq!(left(&limiter, &ALICE), named(expected));
    let expected = [("smooth", 20), ("hourly", 996), ("spacing", 2), ("trial", 3), ("log", 50)];
    assert_eq!(left(&limiter, &BOB), named(expected));
    let eve = Caller { user: 3, organisation: "other" };
    assert_eq!(left(&limiter, &eve)["hourly"], 1000);
}

#[test]
fn configured_fixed_cost_does_not_depend_on_the_request() {
    let text = r#"
        limits = [
            { name = "requests", algorithm = "gcra", quota = "10/s", by = "user", fixed_cost = 1 },
            { name = "tokens", algorithm = "token-bucket", quota = "1000/min", by = "user" },
        ]
    "#;
    let policies = from_toml(text);
    assert_eq!([policies[0].fixed_cost(), policies[1].fixed_cost()], [Some(1), None]);
    let limiter = memory(parts().limits(&policies).unwrap(), &ManualClock::new());
    assert!(limiter.check(&ALICE, 400).is_allowed());
    assert_eq!(left(&limiter, &ALICE), named([("requests", 9), ("tokens", 600)]));
}

#[test]
fn configured_unit_is_the_unit_of_the_limit() {
    let text = r#"
        limits = [
            { name = "requests", algorithm = "gcra", quota = "10/s", by = "user", fixed_cost = 1 },
            { name = "input", algorithm = "token-bucket", quota = "1000/min", by = "user", unit = "input" },
        ]
    "#;
    let policies = from_toml(text);
    assert_eq!([policies[0].unit(), policies[1].unit()], [None, Some("input")]);
    let limiter = memory(parts().limits(&policies).unwrap(), &ManualClock::new());
    assert!(limiter.check(&ALICE, Costs::from(7).add("input", 400)).is_allowed());
    assert_eq!(left(&limiter, &ALICE), named([("requests", 9), ("input", 600)]));
    assert_invalid(
        "algorithm = 'gcra'\nquota = '1/s'\nby = 'user'",
        &[
            ("unit = ''", "unit: it is empty"),
            ("unit = 'input'\nfixed_cost = 1", "unit: a limit with `fixed_cost` has no unit"),
            ("fixed_cost = 1\nunit = 'input'", "unit: a limit with `fixed_cost` has no unit"),
        ],
    );
}

/// Requests arrive at twice the rate of the policy at each of several processes. All processes together admit at most
/// what the whole policy sustains, and once what each may admit at once.
#[test]
fn divided_policies_sustain_at_most_the_whole_policy() {
    let settings = [
        "algorithm = 'gcra'\nquota = '10/s'\nburst = 20",
        "algorithm = 'token-bucket'\nquota = '5/min'",
        "algorithm = 'leaky-bucket'\nquota = '7/s'\nburst = 3",
        "algorithm = 'leaky-queue'\nquota = '10/s'\nmax_waiting = 4",
        "algorithm = 'fixed-window'\nquota = '30/min'",
        "algorithm = 'sliding-window'\nquota = '30/min'",
        "algorithm = 'sliding-log'\nquota = '30/min'",
    ];
    for (settings, processes) in settings.iter().flat_map(|settings| [1, 3, 4, 8, 40].map(|number| (settings, number)))
    {
        let whole = policy(&format!("name = 'a'\nby = 'user'\n{settings}")).unwrap();
        let part = divided(&whole, processes).unwrap();
        let clock = ManualClock::new();
        let limiters: Vec<_> =
            (0..processes).map(|_| memory(parts().limits(std::slice::from_ref(&part)).unwrap(), &clock)).collect();
        let quota = whole.quota().unwrap();
        let interval = quota.period() / u32::try_from(2 * quota.limit()).unwrap();
        let periods = 20;
        let mut admitted = 0;
        for _ in 0..(periods * 2 * quota.limit()) {
            admitted += limiters.iter().filter(|limiter| limiter.check(&ALICE, 1).is_allowed()).count() as u64;
            clock.advance(interval);
        }
        let at_once = part.burst().unwrap_or(part.quota().unwrap().limit()) * processes;
        let bound = periods * quota.limit() + at_once;
        assert!(admitted <= bound, "{settings}, {processes} processes: {admitted} of {bound}");
        assert!(admitted > 0, "{settings}, {processes} processes admit nothing");
    }
}

fn divided(whole: &Policy, processes: u64) -> Result<Policy, tower_ratelimit::Error> {
    Ok(Policy::divide(std::slice::from_ref(whole), processes)?.remove(0))
}

/// The parts of limits that guarantee shares guarantee them, too, or are an error. They are no error if the share has the
/// periods of the limits beside it, and no smaller numbers than there are processes.
#[test]
fn divided_shares_can_be_built_or_are_an_error() {
    let (mut built, mut rejected, mut random) = (0, 0, Random::new(7));
    for round in 0..4_000 {
        let (tenants, processes) = (1 + random.below(9), 1 + random.below(12));
        let (limit, burst) = (1 + random.below(40), 1 + random.below(40));
        let same_period = random.below(2) == 0;
        let period = if same_period { 1 } else { [1, 2, 60][random.index(3)] };
        let spare = random.below(3) * random.below(30);
        let (whole_limit, whole_burst) = (limit * tenants * period + spare, burst * tenants + spare);
        let own_burst = burst;
        let (own, common) = match random.below(4) {
            0 => (
                format!("algorithm = 'in-flight'\nmax = {burst}"),
                format!("algorithm = 'in-flight'\nmax = {whole_burst}"),
            ),
            kind => {
                let algorithm = ["gcra", "sliding-window", "sliding-log"][usize::try_from(kind - 1).unwrap()];
                let burst = |burst: u64| if kind == 1 { format!("\nburst = {burst}") } else { String::new() };
                let settings = |limit, period, of| {
                    format!("algorithm = '{algorithm}'\nquota = '{limit} per {period}s'{}", burst(of))
                };
                // Windows and logs of a share have one period.
                let (period, whole_limit) =
                    if kind == 1 { (period, whole_limit) } else { (1, limit * tenants + spare) };
                (settings(limit, 1, own_burst), settings(whole_limit, period, whole_burst))
            }
        };
        let policies = [
            policy(&format!("name = 'share'\nby = 'user'\nguarantee = {tenants}\n{own}")).unwrap(),
            policy(&format!("name = 'all'\nby = 'all'\n{common}")).unwrap(),
        ];
        let build = |policies: &[Policy]| Memory::builder(parts().limits(policies).unwrap()).max_keys(100).build();
        build(&policies).unwrap_or_else(|error| panic!("round {round}: {error}"));
        match Policy::divide(&policies, processes) {
            Ok(parts) => {
                built += 1;
                build(&parts).unwrap_or_else(|error| panic!("round {round}: {processes} processes, {error}"));
            }
            Err(error) => {
                rejected += 1;
                let text = error.to_string();
                assert!(
                    text.contains(&format!("divided by {processes} processes: ")) && text.contains("share"),
                    "{text}"
                );
                assert!(!same_period || limit.min(burst) < processes, "round {round}: {text}");
            }
        }
    }
    assert!(built > 1_000 && rejected > 100, "{built}, {rejected}");
}

/// The parts of a calendar's limit have its windows, and their limits add up to at most the whole limit.
#[test]
fn divided_calendar_has_the_same_windows() {
    let (mut built, mut random) = (0, Random::new(8));
    for _ in 0..1_000 {
        let (limit, processes) = (1 + random.below(40), 1 + random.below(12));
        let unit = ["d", "w", "month", "year", "7 d"][random.index(5)];
        let quota = if unit == "7 d" { format!("{limit} per 7 d") } else { format!("{limit}/{unit}") };
        let text =
            format!("name = 'a'\nalgorithm = 'fixed-window'\nquota = '{quota}'\nwindow = 'calendar'\nby = 'user'");
        let whole = policy(&text).unwrap();
        match divided(&whole, processes) {
            Ok(part) => {
                built += 1;
                assert_eq!(part.calendar(), whole.calendar(), "{quota} by {processes}");
                assert_eq!(part.quota().unwrap().limit(), limit / processes, "{quota} by {processes}");
            }
            Err(error) => {
                assert!(limit < processes, "{quota} by {processes}: {error}");
                assert!(
                    error.to_string().starts_with(&format!("quota: {limit} divided by {processes} processes")),
                    "{error}"
                );
            }
        }
    }
    assert!((500..1_000).contains(&built), "{built}");
}

#[test]
fn divided_policy_divides_each_number() {
    let whole = policy(
        "name = 'a'\nalgorithm = 'gcra'\nquota = '100/min'\nburst = 20\nby = 'user'\nkeep_free = { bulk = 9 }\nfixed_cost = 3",
    )
    .unwrap();
    let part = divided(&whole, 8).unwrap();
    assert_eq!((part.quota(), part.burst(), part.fixed_cost()), (Some(Quota::per_minute(12)), Some(2), Some(3)));
    assert_eq!(part.keep_free().collect::<Vec<_>>(), [("bulk", 1)]);
    assert_eq!(divided(&whole, 1).unwrap(), whole);

    let in_flight = policy("name = 'a'\nalgorithm = 'in-flight'\nmax = 6\nby = 'user'").unwrap();
    assert_eq!([4, 6, 7].map(|processes| divided(&in_flight, processes).unwrap().max()), [Some(1); 3]);

    let error = divided(&whole, 0).unwrap_err().to_string();
    assert!(error.contains("0 processes"), "{error}");
    let long = policy("name = 'a'\nalgorithm = 'fixed-window'\nquota = '1 per 1 d'\nby = 'user'").unwrap();
    let error = divided(&long, u64::MAX).unwrap_err().to_string();
    assert!(error.starts_with("quota: "), "{error}");
}

#[test]
fn configured_mark_is_the_mark_of_the_limit() {
    let text = "limits = [{ name = 'api', algorithm = 'gcra', quota = '10/s', by = 'user', warn_at = 0.7 }]";
    let policies = from_toml(text);
    assert_eq!(policies[0].warn_at(), Some(0.7));
    let limiter = memory(parts().limits(&policies).unwrap(), &ManualClock::new());
    assert!(!limiter.check(&ALICE, 6).is_near_limit());
    assert!(limiter.check(&ALICE, 1).is_near_limit());
    for mark in ["0.0", "0", "-0.5", "1.5", "2", "nan", "inf"] {
        let text =
            format!("name = 'x'\nalgorithm = 'gcra'\nquota = '1/s'\nby = 'user'\nwarn_at = {mark}\nshadow = true");
        let error = toml::from_str::<Policy>(&text).expect_err(mark).to_string();
        assert!(error.contains("warn_at: it is not above 0 and at most 1"), "{mark}: {error}");
        assert!(error.contains("line 5"), "{mark}: {error}");
    }
}

/// A policy with `guarantee` is a guaranteed share of the limit beside it.
#[test]
fn configured_guarantee_is_a_share_of_the_other_limit() {
    let text = "limits = [
        { name = 'share', algorithm = 'gcra', quota = '10/s', burst = 2, by = 'user', guarantee = 3 },
        { name = 'all', algorithm = 'gcra', quota = '30/s', burst = 20, by = 'all' },
    ]";
    let policies = from_toml(text);
    assert_eq!([policies[0].guarantee(), policies[1].guarantee()], [Some(3), None]);
    let limiter = memory(parts().limits(&policies).unwrap(), &ManualClock::new());
    // Within its share 2 units, then she borrows what the three bursts leave.
    assert!(limiter.check(&ALICE, 2).is_allowed());
    let borrowed = (0..20).filter(|_| limiter.check(&ALICE, 1).is_allowed()).count();
    assert_eq!(borrowed, 12, "20 - 2 - 3 * 2");
    assert!(limiter.check(&BOB, 2).is_allowed());

    assert_invalid(
        "quota = '1/s'\nby = 'user'",
        &[
            ("algorithm = 'gcra'\nguarantee = 0", "guarantee: it is 0"),
            ("algorithm = 'gcra'\nguarantee = 2\nshadow = true", "guarantee: a shadow guarantees nothing"),
            ("algorithm = 'gcra'\nguarantee = 2\nkeep_free = { bulk = 1 }", "guarantee: a share keeps no units free"),
            ("algorithm = 'fixed-window'\nguarantee = 2", "guarantee: it applies to gcra"),
            ("algorithm = 'leaky-queue'\nguarantee = 2", "guarantee: it applies to gcra"),
        ],
    );
    let alone =
        from_toml("limits = [{ name = 'share', algorithm = 'gcra', quota = '1/s', by = 'user', guarantee = 2 }]");
    let error = Memory::builder(parts().limits(&alone).unwrap()).build().unwrap_err().to_string();
    assert!(error.contains("guaranteed share \"share\""), "{error}");
}

#[test]
fn policy_is_written_in_its_shortest_form() {
    let policies = from_toml(ALL);
    // Unset fields are omitted, and a quota is written in its text form.
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
    assert_eq!(serde_json::to_value(&policies[3]).unwrap()["shadow"], true);
    assert_eq!(serde_json::to_value(&policies[4]).unwrap().as_object().unwrap().len(), 4);
}

// ---------------------------------------------------------------------------------------------------------------------
// Errors
// ---------------------------------------------------------------------------------------------------------------------

/// Invalid settings in TOML from line 3 on, the position of the error, and words in its message.
///
/// The position is that of the whole policy if a field is invalid only with another field, which toml reads later: it
/// reads in alphabetical order.
const INVALID: [(&str, &str, &[&str]); 28] = [
    ("algorithm = 'gcraa'\nquota = '1/s'", "3, column 13", &["`gcraa`", "`gcra`", "`sliding-log`"]),
    ("algorithm = 'GCRA'\nquota = '1/s'", "3, column 13", &["`GCRA`"]),
    ("algorithm = 7\nquota = '1/s'", "3, column 13", &[]),
    ("algorithm = 'gcra'\nquota = 'ten'", "4, column 9", &["\"ten\"", "COUNT/PERIOD"]),
    ("algorithm = 'gcra'\nquota = '10/fortnight'", "4, column 9", &["\"10/fortnight\"", "us, ms, s, min, h, d or w"]),
    ("algorithm = 'gcra'\nquota = '1 per 0s'", "4, column 9", &["\"1 per 0s\""]),
    ("algorithm = 'gcra'\nquota = 10", "4, column 9", &["\"100/min\""]),
    ("algorithm = 'gcra'\nquota = '9007199254740991/d'", "4, column 9", &["quota: ", "invalid quota"]),
    ("algorithm = 'gcra'\nquota = '1/s'\nburst = 0", "5, column 9", &["burst: ", "at least 1"]),
    ("algorithm = 'gcra'\nquota = '1/s'\nburst = -1", "5, column 9", &["`-1`"]),
    ("algorithm = 'gcra'\nquota = '1/s'\nburst = '1'", "5, column 9", &["\"1\""]),
    ("algorithm = 'token-bucket'\nquota = '1/d'\nburst = 100000", "1, column 1", &["burst: ", "200 years"]),
    ("algorithm = 'leaky-bucket'\nquota = '1/s'\nburst = 0", "5, column 9", &["burst: ", "at least 1"]),
    ("algorithm = 'leaky-queue'\nquota = '1/s'\nmax_waiting = 9007199254740992", "5, column 15", &["max_waiting: "]),
    ("algorithm = 'leaky-queue'\nquota = '1/s'\nburst = 5", "5, column 9", &["burst: ", "gcra, token-bucket"]),
    ("algorithm = 'gcra'\nquota = '1/s'\nmax_waiting = 5", "5, column 15", &["max_waiting: ", "leaky-queue"]),
    (
        "algorithm = 'gcra'\nquota = '1/s'\naligned_to_clock = false",
        "5, column 20",
        &["aligned_to_clock: ", "fixed-window"],
    ),
    ("algorithm = 'fixed-window'\nquota = '1/s'\nblocks = 5", "5, column 10", &["blocks: ", "sliding-window"]),
    ("algorithm = 'sliding-log'\nquota = '1/s'\nweighted = true", "5, column 12", &["weighted: ", "sliding-window"]),
    ("algorithm = 'sliding-log'\nquota = '2_000_000/d'", "4, column 9", &["quota: ", "SlidingWindow"]),
    ("algorithm = 'sliding-window'\nquota = '1/min'\nblocks = 7", "1, column 1", &["blocks: ", "whole number"]),
    ("algorithm = 'sliding-window'\nquota = '1/min'\nblocks = 61", "1, column 1", &["blocks: ", "1 to 60"]),
    (
        "algorithm = 'sliding-window'\nquota = '90_000_000/h'\nweighted = true",
        "1, column 1",
        &["weighted: ", "more blocks"],
    ),
    ("burst = 5\nquota = '1/s'\nalgorithm = 'sliding-log'", "3, column 9", &["burst: ", "gcra, token-bucket"]),
    ("algorithm = 'in-flight'\nmax = 9007199254740992", "4, column 7", &["max: ", "below 2^53"]),
    ("algorithm = 'in-flight'\nquota = '1/s'", "4, column 9", &["quota: ", "set `max`"]),
    ("algorithm = 'gcra'\nquota = '1/s'\nbrust = 5", "5, column 9", &["`brust`", "`burst`"]),
    ("algorithm = 'gcra'", "1, column 1", &["quota: ", "missing"]),
];

#[test]
fn configuration_error_points_at_the_invalid_field() {
    for (settings, position, words) in INVALID {
        let text = format!("[[limits]]\nname = 'x'\n{settings}\nby = 'user'");
        let error = toml::from_str::<Config>(&text).expect_err(&text).to_string();
        assert!(error.contains(&format!("at line {position}\n")), "{text}\n{error}");
        for word in words {
            assert!(error.contains(word), "{text}\ndoes not contain {word:?}:\n{error}");
        }

        // The same in JSON.
        let value: toml::Value = toml::from_str(&text).unwrap();
        let json = serde_json::to_string(&value).unwrap();
        let error = serde_json::from_str::<Config>(&json).expect_err(&text).to_string();
        for word in words {
            assert!(error.contains(word), "{text}\ndoes not contain {word:?}:\n{error}");
        }
    }
    // An error of the whole policy has its position, and names it.
    for (missing, rest) in [("quota: it is missing", "by = 'user'"), ("missing field `by`", "quota = '1/s'")] {
        let first = "[[limits]]\nname = 'first'\nalgorithm = 'gcra'\nquota = '1/s'\nby = 'user'\n";
        let text = format!("{first}[[limits]]\nname = 'second'\nalgorithm = 'gcra'\n{rest}");
        let error = toml::from_str::<Config>(&text).expect_err(&text).to_string();
        assert!(error.contains("at line 6, column 1") && error.contains(missing), "{error}");
        assert!(error.contains("in the limit \"second\""), "{error}");
    }
    let error = policy("name = ''\nalgorithm = 'gcra'\nquota = '1/s'\nby = 'user'").unwrap_err().to_string();
    assert!(error.contains("name: "), "{error}");
}

/// More blocks make this window valid, whichever of the two fields is first.
#[test]
fn settings_that_are_valid_together_are_valid_in_any_order() {
    for settings in ["weighted = true\nblocks = 60", "blocks = 60\nweighted = true"] {
        let text = format!("name = 'x'\nalgorithm = 'sliding-window'\nquota = '90_000_000/h'\n{settings}\nby = 'user'");
        policy(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

/// The fields, with an algorithm that has the field, and the kind of valid values.
const FIELDS: [(&str, &str, &str); 24] = [
    ("name", "gcra", "text"),
    ("algorithm", "gcra", "text"),
    ("quota", "gcra", "text"),
    ("burst", "token-bucket", "number"),
    ("max_waiting", "leaky-queue", "number"),
    ("aligned_to_clock", "fixed-window", "bool"),
    ("window", "fixed-window", "calendar"),
    ("anchor", "fixed-window", "day of a calendar"),
    ("zone", "fixed-window", "zone of a calendar"),
    ("blocks", "sliding-window", "number"),
    ("weighted", "sliding-window", "bool"),
    ("max", "in-flight", "number"),
    ("max_duration", "in-flight", "text"),
    ("by", "sliding-log", "text"),
    ("when", "gcra", "text"),
    ("fixed_cost", "leaky-bucket", "number"),
    ("unit", "gcra", "text"),
    ("shadow", "fixed-window", "bool"),
    ("keep_free", "gcra", "table"),
    ("warn_at", "gcra", "part"),
    ("guarantee", "gcra", "number"),
    ("escalate", "gcra", "quota"),
    ("block_for", "gcra", "durations"),
    ("forget_after", "gcra", "duration"),
];

#[test]
fn invalid_calendar_names_the_field() {
    assert_invalid(
        "by = 'all'\nalgorithm = 'fixed-window'",
        &[
            (
                "quota = '9/month'",
                "quota: a month and a year have no fixed length; write 30d, or use a calendar window",
            ),
            ("quota = '9/min'\nwindow = 'calendar'", "quota: 9/min is no limit of a calendar"),
            ("quota = '9/86400500ms'\nwindow = 'calendar'", "quota: 9 per 86400500ms is no limit of a calendar"),
            (
                "quota = '9/month'\nwindow = 'calendar'\nanchor = 0",
                "anchor: a calendar's `anchor` is not a day of a month",
            ),
            (
                "quota = '9/month'\nwindow = 'calendar'\nanchor = 32",
                "anchor: a calendar's `anchor` is not a day of a month",
            ),
            ("quota = '9/month'\nwindow = 'calendar'\nanchor = 'sunday'", "anchor: a calendar's `anchor` is not a day"),
            ("quota = '9/week'\nwindow = 'calendar'\nanchor = 1", "anchor: it is not a weekday"),
            ("quota = '9/year'\nwindow = 'calendar'\nanchor = 1", "anchor: it applies to weeks and months only"),
            ("quota = '9/day'\nwindow = 'calendar'\nzone = '+25:00'", "zone: a calendar's `zone` is too far from UTC"),
            ("quota = '9/day'\nwindow = 'calendar'\nzone = '+2'", "zone: \"+2\" is no offset from UTC"),
            ("quota = '9/day'\nwindow = 'calendar'\nzone = '+-1:00'", "zone: \"+-1:00\" is no offset from UTC"),
            ("quota = '9/day'\nwindow = 'calendar'\nzone = '+01:+5'", "zone: \"+01:+5\" is no offset from UTC"),
            ("quota = '9/day'\nwindow = 'calendar'\nzone = 'Mars'", "zone: "),
            ("quota = '9/day'\nwindow = 'moon'", "window: \"moon\" is unknown"),
            ("quota = '9/day'\nwindow = 'calendar'\naligned_to_clock = true", "window: a calendar is aligned already"),
            ("quota = '9/day'\nzone = 'UTC'", "zone: it applies to calendar windows only"),
        ],
    );
    assert_invalid("by = 'all'\nalgorithm = 'gcra'", &[("quota = '9/day'\nwindow = 'calendar'", "window: ")]);
}

/// The law: whatever is wrong with a field, in JSON and in TOML, the error names the field.
#[test]
fn every_error_of_a_malformed_field_names_the_field() {
    // A value in JSON, and the kind for which it is valid in some field.
    let values = [
        ("\"\"", "empty"),
        ("\"no such thing\"", "malformed"),
        ("\"-5/s\"", "malformed"),
        ("7", "number"),
        ("-1", "negative"),
        ("1.5", "fraction"),
        ("18446744073709551616", "too large"),
        ("true", "bool"),
        ("[1]", "list"),
        ("[]", "list"),
        ("{\"a\": 1}", "table"),
    ];
    let (mut cases, mut unnamed) = (0, Vec::new());
    for (field, algorithm, kind) in FIELDS {
        for (value, of) in values {
            let is_valid = of == kind
                // Any text is a name; whether it is the name of a sub-key is known later.
                || matches!(field, "name" | "by" | "when" | "unit") && of == "malformed"
                || matches!(field, "by" | "when") && of == "empty";
            if is_valid {
                continue;
            }
            let mut policy = serde_json::json!({ "name": "x", "algorithm": algorithm, "by": "user" });
            let (limit, limit_value) =
                if algorithm == "in-flight" { ("max", serde_json::json!(2)) } else { ("quota", "60/min".into()) };
            policy[limit] = limit_value;
            let valid = policy.to_string();
            assert!(serde_json::from_str::<Policy>(&valid).is_ok(), "{valid}");
            policy[field] = serde_json::json!("REPLACED");
            let json = policy.to_string().replace("\"REPLACED\"", value);
            let mut errors =
                vec![(json.clone(), serde_json::from_str::<Policy>(&json).err().map(|error| error.to_string()))];
            let lines: Vec<String> = policy
                .as_object()
                .expect("a table")
                .iter()
                .map(|(name, default)| {
                    let toml = value.replace(": ", " = ");
                    format!("{name} = {}", if name == field { toml } else { default.to_string() })
                })
                .collect();
            let text = lines.join("\n");
            if of != "too large" {
                errors.push((text.clone(), toml::from_str::<Policy>(&text).err().map(|error| error.to_string())));
                errors.push((text, self::policy(&lines.join("\n")).err().map(|error| error.message().to_owned())));
            }
            for (text, error) in errors {
                cases += 1;
                let names = error.as_ref().is_some_and(|error| error.contains(&format!("{field}: ")));
                if !names {
                    unnamed.push(format!("{text}\n -> {error:?}"));
                }
            }
        }
    }
    assert!(unnamed.is_empty(), "{} of {cases}:\n{}", unnamed.len(), unnamed.join("\n"));
    assert!(cases > 300, "{cases}");
    // A field that is absent, unknown, or there twice, and what is not a limit.
    for (json, expected) in [
        (r#"{ "algorithm": "gcra", "quota": "1/s", "by": "user" }"#, "`name`"),
        (r#"{ "name": "x", "quota": "1/s", "by": "user" }"#, "`algorithm`"),
        (r#"{ "name": "x", "algorithm": "gcra", "quota": "1/s" }"#, "`by`"),
        (r#"{ "name": "x", "algorithm": "gcra", "by": "user" }"#, "quota: "),
        (r#"{ "name": "x", "algorithm": "in-flight", "by": "user" }"#, "max: "),
        (r#"{ "name": "x", "algorithm": "gcra", "quota": "1/s", "by": "user", "Burst": 1 }"#, "`Burst`"),
        (r#"{ "name": "x", "algorithm": "gcra", "quota": "1/s", "by": "user", "by": "all" }"#, "`by`"),
        (r#"{ "name": null, "algorithm": "gcra", "quota": "1/s", "by": "user" }"#, "name: "),
        (r#"{ "name": "x", "algorithm": null, "quota": "1/s", "by": "user" }"#, "algorithm: "),
        (r#"{ "name": "x", "algorithm": "gcra", "quota": "1/s", "by": null }"#, "by: "),
        (r#"{ "name": "x", "algorithm": "gcra", "quota": "1/s", "by": "user", "shadow": null }"#, "shadow: "),
        (r#"{ "name": "x", "algorithm": "gcra", "quota": "1/s", "by": "user", "burst": null }"#, "burst: "),
        ("5", "a limit with the fields `name`"),
        ("\"gcra\"", "a limit with the fields `name`"),
    ] {
        let error = serde_json::from_str::<Policy>(json).expect_err(json).to_string();
        assert!(error.contains(expected), "{json}\n{error}");
    }
}

#[test]
fn conflicting_policies_are_an_error_with_the_position() {
    let two = |first: &str, second: &str| {
        let limit = |settings: &str| format!("[[limits]]\nalgorithm = 'gcra'\nquota = '1/s'\n{settings}\n");
        let policies = from_toml(&format!("{}{}", limit(first), limit(second)));
        parts().limits(&policies).map(|limits| limits.len())
    };
    assert_eq!(two("name = 'a'\nby = 'user'", "name = 'b'\nby = 'user'").unwrap(), 2);

    let error = two("name = 'a'\nby = 'user'", "name = 'b'\nby = 'tenant'").unwrap_err();
    assert!(error.is_config());
    let expected = r#"limits[1] ("b"), by: unknown sub-key "tenant"; use one of "user", "organisation", "all""#;
    assert_eq!(error.to_string(), expected);

    let error = two("name = 'a'\nby = 'user'", "name = 'a'\nby = 'all'").unwrap_err();
    assert!(error.is_config());
    assert!(error.to_string().starts_with(r#"limits[1] ("a"), name: limits[0] has it too"#), "{error}");
}

#[test]
fn list_of_one_sub_key_is_its_name() {
    let policies = [policy("name = 'x'\nalgorithm = 'gcra'\nquota = '10/min'\nby = ['user']").unwrap()];
    let limiter = memory(parts().limits(&policies).unwrap(), &ManualClock::new());
    assert!(limiter.check(&ALICE, AcquireOptions::cost(10)).is_allowed());
    assert!(!limiter.check(&ALICE, AcquireOptions::default()).is_allowed());
}

#[test]
fn sub_key_added_again_replaces_the_earlier_one() {
    let clock = ManualClock::new();
    let parts = parts().add("user", |caller: &Caller| caller.organisation);
    let policies = [policy("name = 'x'\nalgorithm = 'gcra'\nquota = '10/min'\nby = 'user'").unwrap()];
    let limiter = memory(parts.limits(&policies).unwrap(), &clock);
    let _ = limiter.check(&ALICE, AcquireOptions::cost(3));
    assert_eq!(left(&limiter, &BOB), named([("x", 7)]));
}

// ---------------------------------------------------------------------------------------------------------------------
// Replacing
// ---------------------------------------------------------------------------------------------------------------------

/// Returns one limit by user with the named algorithm.
fn user_limit(algorithm: &str, quota: &str) -> Vec<DynLimit<Caller>> {
    let text = format!("name = 'x'\nalgorithm = '{algorithm}'\nquota = '{quota}'\nby = 'user'");
    parts().limits(&[policy(&text).unwrap()]).unwrap()
}

const ALGORITHMS: [&str; 7] =
    ["gcra", "token-bucket", "leaky-bucket", "leaky-queue", "fixed-window", "sliding-window", "sliding-log"];

#[test]
fn empty_list_of_limits_is_a_configuration_error_unless_allowed() {
    let clock = ManualClock::new();
    let error = Memory::<Caller>::builder(Vec::new()).build().unwrap_err();
    assert!(error.is_config() && error.to_string().starts_with("no limits: "), "{error}");
    let ten = || {
        let limit = Limit::new("a", Gcra::new(Quota::per_hour(10))).keyed_by(|key: &Caller| key.user);
        vec![DynLimit::new(limit)]
    };
    let limiter = memory(ten(), &clock);
    let error = limiter.replace(Vec::new()).unwrap_err();
    assert!(error.is_config() && error.to_string().starts_with("no limits: "), "{error}");
    assert!(!limiter.check(&ALICE, AcquireOptions::cost(11)).is_allowed(), "the limits are unchanged");

    let limiter = memory_without_limits(&clock);
    assert!(limiter.check(&ALICE, AcquireOptions::cost(11)).is_allowed());
    limiter.replace(ten()).unwrap();
    assert!(!limiter.check(&ALICE, AcquireOptions::cost(11)).is_allowed());
    limiter.replace(Vec::new()).unwrap();
    assert!(limiter.check(&ALICE, AcquireOptions::cost(11)).is_allowed());
}

/// Function pointers have one type: the name of the sub-key distinguishes them.
#[test]
fn replace_distinguishes_function_pointer_sub_keys_by_name() {
    fn user(caller: &Caller) -> u64 {
        caller.user.into()
    }
    fn org(caller: &Caller) -> u64 {
        caller.organisation.len() as u64
    }
    let functions: [(&str, fn(&Caller) -> u64); 2] = [("user", user), ("org", org)];
    let parts = functions.into_iter().fold(KeyParts::new(), |parts, (name, part)| parts.add(name, part));
    let limits = |by: &str| {
        let policy = policy(&format!("name = 'x'\nalgorithm = 'gcra'\nquota = '10/h'\nby = '{by}'")).unwrap();
        parts.limits(&[policy]).unwrap()
    };
    // The user equals the length of the organisation, so that both sub-keys are the same number.
    let caller = Caller { user: 4, organisation: "acme" };
    let clock = ManualClock::new();
    let limiter = memory(limits("user"), &clock);
    let _ = limiter.check(&caller, AcquireOptions::cost(3));
    limiter.replace(limits("user")).unwrap();
    assert_eq!(left(&limiter, &caller), named([("x", 7)]), "the same sub-key keeps its usage");
    limiter.replace(limits("org")).unwrap();
    assert_eq!(left(&limiter, &caller), named([("x", 10)]), "another sub-key starts empty");
    let _ = limiter.check(&BOB, AcquireOptions::cost(1));
    assert_eq!(left(&limiter, &caller), named([("x", 9)]), "both callers have one organisation");
    limiter.replace(limits("user")).unwrap();
    assert_eq!(left(&limiter, &caller), named([("x", 10)]));
}

#[test]
fn invalid_replace_leaves_the_limits_unchanged() {
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
    for (limits, expected) in invalid {
        let error = limiter.replace(limits).unwrap_err();
        assert!(error.is_config() && error.to_string().contains(expected), "{error}");
        assert_eq!(left(&limiter, &ALICE), named([("a", 6), ("b", 6)]));
    }
    settle(held, 1);
    assert_eq!(left(&limiter, &ALICE), named([("a", 9), ("b", 9)]));
}

/// A hold from before a replacement is charged by the quota that took over, at the time when it is settled.
#[test]
fn hold_settled_after_a_replacement_is_charged_by_the_new_limit() {
    for (actual, algorithm) in [0, 1, 3].into_iter().flat_map(|actual| ALGORITHMS.map(|algorithm| (actual, algorithm)))
    {
        let clock = ManualClock::new();
        let limiter = memory(user_limit(algorithm, "100/min"), &clock);
        let held = hold(&limiter, &ALICE, 1);
        limiter.replace(user_limit(algorithm, "100/h")).unwrap();
        clock.advance(2 * MINUTE);
        limiter.set_usage("x", &ALICE, 90).try_ready().unwrap().unwrap();
        clock.advance(5 * MINUTE);
        let before = left(&limiter, &ALICE)["x"];
        settle(held, actual);
        assert_eq!(left(&limiter, &ALICE)["x"], before + 1 - actual, "{algorithm} settled at {actual}");
        clock.advance(5 * MINUTE);
        assert!(left(&limiter, &ALICE)["x"] < 40, "{algorithm} settled at {actual}");
    }
}

/// A table is freed with its limit.
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
    let empty = bytes(&limiter);
    // A table grows with its keys.
    let fill = |limiter: &Dynamic| {
        for user in 0..500 {
            let _ = limiter.check(&Caller { user, ..ALICE }, 1);
        }
    };
    fill(&limiter);
    let one = bytes(&limiter);
    let mut guards = Vec::new();
    let kept = allocation_counter::measure(|| {
        for number in 1..=50 {
            fill(&limiter);
            guards.push(hold(&limiter, &ALICE, 1));
            limiter.block(&format!("limit {}", number - 1), &BOB, HOUR).try_ready().unwrap().unwrap();
            limiter.replace(limits(number)).unwrap();
        }
    });
    assert_eq!(bytes(&limiter), empty);
    // A guard of a removed limit does not keep its table: fifty guards take less than two tables.
    let grown = usize::try_from(kept.bytes_current).unwrap_or(0);
    assert!(grown < 2 * one, "{grown} bytes more, and a table takes {one}");
    drop(guards);
}

fn keys_with_limit(limit: Limit<Gcra>) -> Vec<DynLimit<u64>> {
    vec![DynLimit::new(limit)]
}

/// Whether a full table of keys with usage denies a new key.
fn denies_when_full(limiter: &Memory<u64, Vec<DynLimit<u64>>>) -> bool {
    (0..1000_u64).any(|key| !limiter.check(&key, AcquireOptions::default()).is_allowed())
}

/// A replaced limit keeps its table. Whether it denies depends on the new limit: enforced or shadow.
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
    let evicted = limiter.usage()[0].evicted;
    assert!(denies_when_full(&limiter));
    assert_eq!(limiter.usage()[0].evicted, evicted, "and evicts none");

    let limiter = build(limit());
    assert!(denies_when_full(&limiter));
    assert_eq!(limiter.usage()[0].evicted, 0);
    limiter.replace(keys_with_limit(limit().shadow())).unwrap();
    assert!(!denies_when_full(&limiter), "an enforced limit made shadow never denies");
    limiter.replace(keys_with_limit(limit())).unwrap();
    assert!(denies_when_full(&limiter));
}

// ---------------------------------------------------------------------------------------------------------------------
// Tiers
// ---------------------------------------------------------------------------------------------------------------------

/// The counts are in the same store, by the sub-key of the limit.
#[test]
fn escalation_of_a_policy_blocks_its_limit() {
    use tower_ratelimit::limiter::Escalating;
    use tower_ratelimit::{BlockReason, BoxLimiter};

    let key_parts = KeyParts::new().add("user", |user: &u64| *user);
    let policies: Vec<Policy> = serde_json::from_str(
        r#"[{
            "name": "api", "algorithm": "fixed-window", "quota": "1/h", "by": "user",
            "escalate": "2/min", "block_for": ["2h", "3h"], "forget_after": "9h"
        }]"#,
    )
    .expect("policies");
    let mut limiter = BoxLimiter::new(Memory::new(key_parts.limits(&policies).expect("limits")));
    for policy in &policies {
        let escalation = policy.escalation().expect("an escalation");
        assert_round_trip(policy);
        let counts = Memory::new(key_parts.escalation_limits(policy).expect("limits"));
        limiter = BoxLimiter::new(Escalating::new(limiter, counts, escalation));
    }
    let decide = |user: u64| limiter.check(&user, 1).try_ready().expect("memory is ready").expect("a decision");
    let reasons = [(); 5].map(|()| decide(7).block_reason());
    let blocked = Some(BlockReason::Escalation);
    assert_eq!(reasons, [None, None, None, blocked, blocked]);
    assert!(decide(7).retry_after_secs().expect("blocked") > 7_100);
    assert!(decide(8).is_allowed());
}

#[test]
fn invalid_escalation_of_a_policy_is_an_error_that_names_the_field() {
    for (fields, expected) in [
        (r#""escalate": "many""#, "escalate: "),
        (r#""escalate": "2/min", "shadow": true"#, "escalate: a shadow denies no request"),
        (r#""escalate": "2/min", "guarantee": 3"#, "escalate: a guaranteed share denies no request"),
        (r#""escalate": "2/min", "keep_free": { "bulk": 1 }"#, "escalate: a block would deny requests"),
        (r#""block_for": ["1m"]"#, "block_for: it has no effect without `escalate`"),
        (r#""forget_after": "1d""#, "forget_after: it has no effect without `escalate`"),
        (r#""escalate": "2/min", "block_for": []"#, "block_for: escalation without a block"),
        (r#""escalate": "2/min", "block_for": ["1h", "1m"]"#, "block_for: escalation with shorter later blocks"),
        (r#""escalate": "2/min", "block_for": ["soon"]"#, "block_for: "),
        (r#""escalate": "2/min", "block_for": ["2d"]"#, "forget_after: escalation that forgets a block"),
        (r#""escalate": "2/min", "forget_after": "10m""#, "forget_after: escalation that forgets a block"),
    ] {
        let json = format!(r#"{{ "name": "a", "algorithm": "gcra", "quota": "1/s", "by": "user", {fields} }}"#);
        let error = serde_json::from_str::<Policy>(&json).expect_err(fields).to_string();
        assert!(error.contains(expected), "{fields}: {error}");
    }
}

/// A block of the common limit would deny requests within their share, because of another tenant.
#[test]
fn escalation_beside_a_guaranteed_share_is_an_error() {
    let escalated = |fields: &str| {
        let share = "name = 'share'\nalgorithm = 'gcra'\nquota = '1/s'\nby = 'user'\nguarantee = 2";
        let common = "name = 'all'\nalgorithm = 'gcra'\nquota = '9/s'\nby = 'all'";
        let other =
            format!("name = 'other'\nalgorithm = 'gcra'\nquota = '9/s'\nby = 'user'\nescalate = '2/min'\n{fields}");
        let policies = [share, common, &other].map(|text| policy(text).expect("a policy"));
        parts().limits(&policies).map(|_| ())
    };
    let error = escalated("").expect_err("an error").to_string();
    assert!(
        error.starts_with("limits[2] (\"other\"), escalate: a block would deny requests within the share \"share\""),
        "{error}"
    );
    // These are not beside the share.
    escalated("fixed_cost = 1").expect("limits");
    escalated("unit = 'input'").expect("limits");
}

/// Invalid settings in a file of routes from line 5 on, the position of the error, and words in its message.
const INVALID_ROUTES: [(&str, &str, &[&str]); 17] = [
    ("by = 'usr'", "5, column 6", &["by: ", "\"usr\"", "\"user\""]),
    ("by = ['user', 'rute']", "5, column 6", &["by: ", "\"rute\""]),
    ("by = []", "5, column 6", &["by: ", "empty"]),
    ("by = 7", "5, column 6", &["by: ", "a list of names"]),
    ("by = ['user', 'route', 'path', 'host', 'method']", "5, column 6", &["by: ", "more than 4"]),
    ("by = 'header:a b'", "5, column 6", &["by: ", "\"a b\"", "header:x-api-key"]),
    ("by = 'cookie:'", "5, column 6", &["by: ", "cookie"]),
    ("by = 'all'\nwhen = { rute = '/login' }", "6, column 8", &["when: ", "\"rute\""]),
    ("by = 'all'\nwhen = { route = 'login' }", "6, column 8", &["when: ", "\"login\"", "slash"]),
    (
        "by = 'all'\nwhen = { route = { not = ['/a', '/users/:id'] } }",
        "6, column 8",
        &["when: ", "\"/users/:id\"", "{id}"],
    ),
    ("by = 'all'\nwhen = { method = ['GET', 'head'] }", "6, column 8", &["when: ", "\"head\"", "upper case"]),
    ("by = 'all'\nwhen = { method = 'HEAD' }", "6, column 8", &["when: ", "GET"]),
    ("by = 'all'\nwhen = { method = [] }", "6, column 8", &["when: ", "empty"]),
    ("by = 'all'\nwhen = 'write'", "6, column 8", &["when: ", "\"write\"", "a table"]),
    ("by = 'all'\n[conditions]\nbulk = { rute = '/a' }", "7, column 8", &["conditions: ", "\"rute\""]),
    ("by = 'all'\n[conditions]\nbulk = {}", "7, column 8", &["conditions: ", "empty"]),
    ("by = 'all'\nescalate = '20/min'", "6, column 12", &["escalate: ", "Escalating"]),
];

#[test]
fn error_in_a_file_of_routes_points_at_the_field() {
    for (settings, position, words) in INVALID_ROUTES {
        let text = format!("[[limits]]\nname = 'x'\nalgorithm = 'gcra'\nquota = '1/s'\n{settings}");
        let error = toml::from_str::<RoutePolicies>(&text).expect_err(&text).to_string();
        assert!(error.contains(&format!("at line {position}\n")), "{text}\n{error}");
        for word in words {
            assert!(error.contains(word), "{text}\ndoes not contain {word:?}:\n{error}");
        }
    }
    // What only the application knows is an error that names the policy and the field.
    let policies = |by: &str| -> RoutePolicies {
        let limit = |name| serde_json::json!({ "name": name, "algorithm": "gcra", "quota": "1/s", "by": by });
        serde_json::from_value(serde_json::json!({ "limits": [limit("a"), limit("b")] })).unwrap()
    };
    let build = |policies: &RoutePolicies| {
        RequestParts::default().in_memory(policies, |limits| Memory::builder(limits).build())
    };
    let error = build(&policies("user")).map(|_| ()).unwrap_err().to_string();
    assert_eq!(error, "limits[0] (\"a\"), by: there is no source of users; call `RequestParts::user`");
    let mut twice = policies("address");
    twice.limits[1] = twice.limits[0].clone();
    let error = build(&twice).map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("limits[1] (\"a\"), name: limits[0] has it too"), "{error}");
    let limits = build(&policies("address")).expect("limits");
    assert!(limits.replace(&twice).is_err());
    // Only a limit that counts by a secret writes its hash to Redis. A condition compares secrets in the process.
    let in_redis = |limit: serde_json::Value| {
        let policies = serde_json::from_value(serde_json::json!({ "limits": [limit] })).unwrap();
        let server = RedisServer::open("redis://127.0.0.1:1").unwrap();
        RequestParts::default().in_redis(&policies, |limits| Redis::builder(server, "api", limits).build()).map(|_| ())
    };
    let limit = |by: &str| serde_json::json!({ "name": "a", "algorithm": "gcra", "quota": "1/s", "by": by, "when": { "header:x-a": "b" } });
    in_redis(limit("address")).expect("limits");
    let error = in_redis(limit("cookie:id")).unwrap_err().to_string();
    assert!(error.starts_with("limits[0] (\"a\"), by: keyed hashes in Redis need a pepper"), "{error}");
    let keep_free = |conditions: serde_json::Value| -> RoutePolicies {
        let limit = serde_json::json!({
            "name": "a", "algorithm": "gcra", "quota": "9/s", "by": "all", "keep_free": { "bulk": 3 }
        });
        serde_json::from_value(serde_json::json!({ "limits": [limit], "conditions": conditions })).unwrap()
    };
    let error =
        build(&keep_free(serde_json::json!({ "slow": { "method": "PUT" } }))).map(|_| ()).unwrap_err().to_string();
    assert!(
        error.starts_with("limits[0] (\"a\"), keep_free: unknown condition \"bulk\"; use one of [\"slow\"]"),
        "{error}"
    );
    // A missing part takes precedence over an exemption, whatever the order of the limits is.
    for order in [["key", "login"], ["login", "key"]] {
        let limits = order.map(|name| match name {
            "key" => serde_json::json!({ "name": "key", "algorithm": "gcra", "quota": "9/s", "by": "header:x-key" }),
            _ => serde_json::json!({
                "name": "login", "algorithm": "gcra", "quota": "9/s", "by": "address", "when": { "path": "/login" }
            }),
        });
        let policies: RoutePolicies = serde_json::from_value(serde_json::json!({ "limits": limits })).unwrap();
        let exempt = |_: &http::Request<()>| Extracted::<u8>::Exempt;
        let limits = RequestParts::new(exempt).in_memory(&policies, |limits| Memory::builder(limits).build());
        let limits = limits.expect("limits");
        let extract = |request: http::request::Builder| limits.extractor().extract(&request.body(()).unwrap());
        assert!(matches!(extract(http::Request::get("/login")), Extracted::Missing(_)), "{order:?}");
        assert_eq!(extract(http::Request::get("/login").header("x-key", "7")), Extracted::Exempt, "{order:?}");
    }
    // Policies keep their form.
    let bulk = keep_free(serde_json::json!({ "bulk": { "method": { "not": ["PUT"] } } }));
    assert_eq!(serde_json::from_str::<RoutePolicies>(&serde_json::to_string(&bulk).unwrap()).unwrap(), bulk);
    let json = serde_json::to_string(&policies("route")).unwrap();
    assert_eq!(serde_json::from_str::<RoutePolicies>(&json).unwrap(), policies("route"));
}

#[test]
fn error_of_a_quota_states_the_cause() {
    for (json, text) in
        [("\"10/fortnight\"", "\"10/fortnight\": a quota's period must end in"), ("10", "a quota such as")]
    {
        let error = serde_json::from_str::<Quota>(json).expect_err("not a quota").to_string();
        assert!(error.contains(text), "{error}");
    }
}
