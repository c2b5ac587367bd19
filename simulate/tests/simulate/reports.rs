use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::config::Policy;
use tower_ratelimit_simulate::{MaxDenied, Report, Simulation, Traffic, suggest};

use crate::support::{POLICIES, millis, policy, traffic};

fn report(fields: &str, traffic: &Traffic) -> Report {
    Simulation::alone(&policy(fields), traffic).expect("a simulation").run()
}

const LOG: &str = "algorithm = 'sliding-log'\nquota = '2 per 10s'";

#[test]
fn report_counts_requests_and_keys() {
    let arrivals = [(0, "a", 1), (1, "a", 1), (2, "a", 1), (3, "b", 1), (4, "a", 1), (5, "c", 3), (6, "c", 1)];
    let report = report(LOG, &traffic(arrivals));
    assert_eq!((report.requests(), report.admitted, report.denied, report.exceeding), (7, 4, 3, 1));
    assert_eq!((report.keys, report.denied_keys, report.delayed), (3, 2, 0));
    let worst: Vec<_> = report.worst_keys().map(|key| (key.key.as_str(), key.requests, key.denied)).collect();
    assert_eq!(worst, [("a", 4, 2), ("c", 2, 1)]);
}

/// The hits at 0 and 1 s are admitted. A denial lasts until the hit at 0 s is ten seconds old.
#[test]
fn longest_denial_ends_at_the_retry_time() {
    let denied_twice = traffic([(0, "a", 1), (1_000, "a", 1), (3_000, "a", 1), (9_000, "a", 1)]);
    assert_eq!(report(LOG, &denied_twice).longest_denial, Duration::from_secs(7));
    // The request at 30 s comes after the denial.
    let later = traffic([(0, "a", 1), (1_000, "a", 1), (3_000, "a", 1), (30_000, "a", 1)]);
    assert_eq!(report(LOG, &later).longest_denial, Duration::from_secs(7));
}

#[test]
fn longest_denial_ends_at_an_admission() {
    // A cost of two is denied until 11 s, and a cost of one is admitted at 4 s.
    let cheaper = traffic([(1_000, "a", 1), (3_000, "a", 2), (4_000, "a", 1)]);
    assert_eq!(report(LOG, &cheaper).longest_denial, Duration::from_secs(1));
}

#[test]
fn longest_denial_is_that_of_one_key() {
    let arrivals = (0..20).map(|second| (second * 1_000, if second % 2 == 0 { "a" } else { "b" }, 1));
    // Each key comes every two seconds: it is denied from 4 s (5 s) until 10 s (11 s).
    assert_eq!(report(LOG, &traffic(arrivals)).longest_denial, Duration::from_secs(6));
}

/// Three requests at once start at 0, 2 and 4 s.
#[test]
fn delayed_requests_count_at_their_starts() {
    let queue = "algorithm = 'leaky-queue'\nquota = '5 per 10s'\nmax_waiting = 2";
    let report = report(queue, &traffic([(0, "a", 1), (0, "a", 1), (0, "a", 1), (0, "a", 1)]));
    assert_eq!((report.admitted, report.delayed, report.denied), (3, 2, 1));
    assert_eq!(report.longest_delay, Duration::from_secs(4));
    assert_eq!(report.longest_denial, Duration::from_secs(2));
    let bursts = report.bursts.map(|burst| (burst.interval.as_secs(), burst.admitted, burst.bound));
    assert_eq!(bursts, [(1, 1, Some(1)), (10, 3, Some(5)), (60, 3, Some(30))]);
}

#[test]
fn shadow_limit_denies_when_it_is_alone() {
    let shadow = format!("{LOG}\nshadow = true");
    let arrivals = traffic([(0, "a", 1), (0, "a", 1), (0, "a", 1)]);
    assert_eq!(report(&shadow, &arrivals).denied, 1);
    let together = Simulation::together(&[policy(&shadow)], &arrivals).expect("a simulation").run();
    assert_eq!((together.denied, together.bursts[0].bound), (0, None));
}

#[test]
fn policy_without_its_column_is_an_error() {
    let error = Simulation::alone(&policy(LOG), &Traffic::new(["team"])).expect_err("no column");
    assert!(error.to_string().contains("unknown sub-key \"user\""), "{error}");
}

/// Requests with a fixed cost of two: a limit of five admits two of them, whatever their own cost is.
#[test]
fn bursts_of_a_fixed_cost_count_requests() {
    let fixed = "algorithm = 'sliding-log'\nquota = '5 per 10s'\nfixed_cost = 2";
    let arrivals = traffic([(0, "a", 7), (0, "a", 7), (0, "a", 7)]);
    let report = report(fixed, &arrivals);
    assert_eq!((report.admitted, report.denied), (2, 1));
    assert_eq!((report.bursts[1].admitted, report.bursts[1].bound), (2, Some(2)));
    // Beside a limit that charges the cost, the bursts count the cost.
    let costs = "name = 'b'\nby = 'user'\nalgorithm = 'sliding-log'\nquota = '20 per 10s'";
    let costs = toml::from_str(costs).expect("a policy");
    let together = Simulation::together(&[policy(fixed), costs], &arrivals).expect("a simulation").run();
    assert_eq!((together.bursts[1].admitted, together.bursts[1].bound), (14, Some(20)));
}

/// Two columns with the costs of each request, and the number of requests beside them.
#[test]
fn limit_with_a_unit_charges_the_cost_of_its_column() {
    let of = |name: &str, fields: &str| -> Policy {
        toml::from_str(&format!("name = '{name}'\nby = 'user'\nalgorithm = 'sliding-log'\n{fields}")).expect("a policy")
    };
    let input = of("input", "quota = '100 per 10s'\nunit = 'input'");
    let output = of("output", "quota = '30 per 10s'\nunit = 'output'");
    let requests = of("requests", "quota = '4 per 10s'");
    let policies = [input.clone(), output, requests.clone()];
    let mut traffic = Traffic::for_policies(&policies);
    assert_eq!(traffic.columns(), ["user", "input", "output"]);
    // The third request exceeds the output, the fourth costs nothing there, and the last one the input.
    for (time, costs) in [(0, ["40", "10"]), (1, ["20", "20"]), (2, ["1", "1"]), (3, ["30", ""]), (4, ["11", "0"])] {
        traffic.push(millis(time), &["alice", costs[0], costs[1]], 1);
    }
    let together = Simulation::together(&policies, &traffic).expect("columns").run();
    assert_eq!((together.admitted, together.denied, together.exceeding), (3, 2, 0));
    // The bursts count requests here, and the cost in the unit where all limits have it.
    assert_eq!((together.bursts[1].admitted, together.bursts[1].bound), (3, Some(4)));
    let alone = Simulation::alone(&input, &traffic).expect("a column").run();
    assert_eq!((alone.admitted, alone.bursts[1].admitted, alone.bursts[1].bound), (4, 91, Some(100)));
    // The smallest limit in the unit.
    let suggested = suggest(&input, &traffic, MaxDenied::Requests(0)).expect("a suggestion");
    assert_eq!(suggested[0].policy.quota(), Some("102 per 10s".parse().expect("a quota")));

    let error = |traffic: &Traffic| Simulation::alone(&input, traffic).expect_err("no cost").to_string();
    traffic.push(millis(5), &["alice", "many", ""], 1);
    assert!(error(&traffic).contains("\"many\" in the column \"input\" is no cost"), "{}", error(&traffic));
    assert!(error(&Traffic::new(["user"])).contains("no column \"input\""), "{}", error(&Traffic::new(["user"])));
    let units = ["a", "b", "c", "d", "e"].map(|unit| of(unit, &format!("quota = '9/s'\nunit = '{unit}'")));
    let five = Simulation::together(&units, &Traffic::for_policies(&units)).expect_err("five units").to_string();
    assert!(five.contains("more than 4 units"), "{five}");
}

/// Each limit by itself, and both: a tenant borrows what the other one leaves.
#[test]
fn share_lets_requests_borrow() {
    let share = policy("algorithm = 'gcra'\nquota = '2 per 10s'\nguarantee = 2");
    let all: Policy =
        toml::from_str("name = 'b'\nalgorithm = 'gcra'\nquota = '8 per 10s'\nby = 'all'").expect("a policy");
    let busy = (0..12).map(|index| (index, "busy", 1));
    let traffic = traffic(busy.chain([(20, "quiet", 1), (21, "quiet", 1)]));
    let report = Simulation::together(&[share.clone(), all], &traffic).expect("limits").run();
    // Of eight units, four are kept free from borrowers: two within the share of the busy tenant, and two borrowed.
    assert_eq!((report.admitted, report.borrowed, report.denied, report.denied_keys), (6, 2, 8, 1));
    assert_eq!((report.bursts[1].admitted, report.bursts[1].bound), (4, Some(15)));
    let alone = Simulation::alone(&share, &traffic).expect("a limit").run();
    assert_eq!((alone.admitted, alone.borrowed, alone.denied), (4, 0, 10));
    let lonely = Simulation::together(&[share], &traffic).expect_err("nothing to borrow from").to_string();
    assert!(lonely.contains("no other limit of the limiter counts the same cost"), "{lonely}");
}

#[test]
fn report_counts_charges_that_cross_the_mark() {
    let marked = format!("{LOG}\nwarn_at = 0.5");
    let arrivals = [(0, "a", 1), (1, "a", 1), (2, "a", 1), (3, "b", 1), (12_000, "a", 1)];
    let report = report(&marked, &traffic(arrivals));
    assert_eq!((report.near_limit, report.denied), (3, 1));
}

#[test]
fn limit_that_escalates_is_an_error() {
    let escalating = policy(&format!("{LOG}\nescalate = '3/min'"));
    let error = Simulation::alone(&escalating, &traffic([])).expect_err("blocks").to_string();
    assert!(error.contains("the blocks of an escalation are not simulated; remove `escalate`"), "{error}");
}

/// Traffic does not say when a request ends.
#[test]
fn limit_on_requests_in_flight_is_an_error() {
    let error = Simulation::alone(&policy("algorithm = 'in-flight'\nmax = 2"), &traffic([])).expect_err("no durations");
    assert!(error.to_string().contains("traffic has no durations of requests"), "{error}");
}

#[test]
fn report_of_no_traffic_is_empty() {
    let report = report(LOG, &Traffic::new(["user"]));
    assert_eq!((report.requests(), report.keys, report.top_keys.len()), (0, 0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bursts of random size, with pauses that end at window edges or between them.
    #[test]
    fn largest_burst_is_within_the_published_bound(
        steps in prop::collection::vec((0_u64..12, 0_u64..1_000, 1_u64..12, 1_u64..4), 1..60),
        max_delay in prop::option::of(0_u64..3_000),
    ) {
        let mut now = 0;
        let mut arrivals = Vec::new();
        for (seconds, millis, count, cost) in steps {
            now += seconds * 1_000 + if millis < 500 { 0 } else { millis };
            arrivals.extend((0..count).map(|_| (now, "a", cost)));
        }
        let traffic = traffic(arrivals);
        for fields in POLICIES {
            let mut simulation = Simulation::alone(&policy(fields), &traffic).expect("a simulation");
            if let Some(millis) = max_delay {
                simulation = simulation.max_delay(Duration::from_millis(millis));
            }
            for burst in simulation.run().bursts {
                prop_assert!(Some(burst.admitted) <= burst.bound, "{burst:?}: {fields}");
            }
        }
    }
}

/// Each bound is reached by some schedule: here in ten seconds, the period of the quotas.
#[test]
fn published_bound_is_reached() {
    let at = |times: &[(u64, u64)]| {
        traffic(times.iter().flat_map(|&(millis, count)| (0..count).map(move |_| (millis, "a", 1))).collect::<Vec<_>>())
    };
    let in_ten_seconds = |fields, times: &[(u64, u64)]| {
        let burst = report(fields, &at(times)).bursts[1];
        (burst.admitted, burst.bound.expect("an enforced limit"))
    };
    // The whole burst, then each token when it is back.
    assert_eq!(in_ten_seconds(POLICIES[0], &[(0, 8), (2_000, 1), (4_000, 1), (6_000, 1), (8_000, 1)]), (12, 12));
    assert_eq!(in_ten_seconds(POLICIES[4], &[(0, 1), (9_999, 5), (10_000, 6)]), (11, 11));
    assert_eq!(in_ten_seconds(POLICIES[5], &[(9_999, 6), (10_000, 6)]), (12, 12));
    assert_eq!(in_ten_seconds(POLICIES[6], &[(0, 6), (9_999, 6)]), (6, 6));
    assert_eq!(in_ten_seconds(POLICIES[8], &[(0, 3), (5_000, 3), (9_999, 3)]), (6, 6));
    assert_eq!(in_ten_seconds(POLICIES[3], &[(0, 4), (4_000, 4), (8_000, 4)]), (5, 5));
}

/// The column of a condition says to which arrivals the limit applies. The others are in the report of other limits only.
#[test]
fn limit_with_a_condition_applies_to_arrivals_whose_column_is_true() {
    let conditional = policy("algorithm = 'gcra'\nquota = '1 per 10s'\nwhen = 'write'");
    let all: Policy =
        toml::from_str("name = 'b'\nalgorithm = 'gcra'\nquota = '4 per 10s'\nby = 'all'").expect("a policy");
    let mut traffic = Traffic::for_policies([&conditional, &all]);
    assert_eq!(traffic.columns(), ["user", "write"]);
    for (time, write) in [(0, "true"), (1, "false"), (2, "true"), (3, ""), (4, "true")] {
        traffic.push(millis(time), &["alice", write], 1);
    }
    let alone = Simulation::alone(&conditional, &traffic).expect("columns").run();
    assert_eq!((alone.admitted, alone.denied), (1, 2));
    assert_eq!((alone.bursts[0].admitted, alone.bursts[0].bound), (1, Some(1)));
    let together = Simulation::together(&[conditional, all], &traffic).expect("columns").run();
    assert_eq!((together.admitted, together.denied), (3, 2));
    assert_eq!((together.bursts[0].admitted, together.bursts[0].bound), (3, Some(4)));
}

/// The last two of three bulk requests find fewer than the kept units.
#[test]
fn limit_keeps_units_free_from_arrivals_whose_column_is_true() {
    let policy = policy("algorithm = 'gcra'\nquota = '4 per 10s'\nkeep_free = { bulk = 3 }");
    let mut traffic = Traffic::for_policies([&policy]);
    assert_eq!(traffic.columns(), ["user", "bulk"]);
    for (time, bulk) in [(0, "true"), (1, "true"), (2, ""), (3, ""), (4, "true"), (5, "")] {
        traffic.push(millis(time), &["alice", bulk], 1);
    }
    let report = Simulation::alone(&policy, &traffic).expect("columns").run();
    assert_eq!((report.admitted, report.denied), (4, 2));
}
