//! Several limits, waiting, and the typical cases of `docs/choosing.md`.

use std::time::Duration;

use tower_ratelimit::config::Policy;

use super::patterns::panel;
use crate::guide::limits_of_case;
use crate::support::policy;
use tower_ratelimit_simulate::chart::{Panel, draw};

pub(super) fn pictures() -> Vec<(&'static str, String)> {
    let public_api = [every(0, 15, 20), every(1_000, 228, 83)].concat();
    let jobs = [every(0, 8, 500), every(60_000, 24, 5_000)].concat();
    let calls = [every(0, 15, 10), every(5_000, 10, 500)].concat();
    // Prompts of different lengths, in a fixed order.
    let prompts: Vec<_> = (0..60).map(|index| (index * 3_000, 700 + index * 1_900 % 3_301)).collect();
    [
        ("several-limits", several_limits()),
        ("waiting", waiting()),
        ("calendar", calendar()),
        ("public-api", case("public-api", "one client: 15 requests at once, then 12 per second", &public_api, 20)),
        ("login-attempts", case("login-attempts", "one address: a guess every 30 s", &every(0, 120, 30_000), 3_600)),
        ("expensive-jobs", case("expensive-jobs", "8 jobs at once, then one every 5 s", &jobs, 180)),
        ("outbound-client", case("outbound-client", "15 calls at once, then 2 per second", &calls, 10)),
        ("llm-tokens", case("llm-tokens", "one user: a prompt of 700 to 4000 tokens every 3 s", &prompts, 180)),
    ]
    .into_iter()
    .map(|(name, panels)| (name, draw(&panels, 1, 800).expect("a picture")))
    .collect()
}

/// Requests of cost one: milliseconds and cost.
fn every(start: u64, count: u64, gap: u64) -> Vec<(u64, u64)> {
    (0..count).map(|index| (start + index * gap, 1)).collect()
}

/// Draws the decisions of the limits that the guide shows for a case. The guide's client waits for up to four seconds.
fn case(name: &str, title: &str, arrivals: &[(u64, u64)], seconds: u64) -> Vec<Panel> {
    let max_delay = (name == "outbound-client").then_some(Duration::from_secs(4));
    // The picture shows one key, by which each limit counts.
    let by_user = |limit: Policy| {
        let mut value = serde_json::to_value(limit).expect("a value");
        value["by"] = "user".into();
        serde_json::from_value(value).expect("a policy")
    };
    let limits: Vec<Policy> = limits_of_case(name).into_iter().map(by_user).collect();
    vec![panel(title, &limits, max_delay, arrivals, seconds)]
}

fn several_limits() -> Vec<Panel> {
    let second = policy("algorithm = 'gcra'\nquota = '2/s'\nburst = 8");
    let window = "name = 'b'\nby = 'user'\nalgorithm = 'fixed-window'\nquota = '20 per 15s'";
    let window: Policy = toml::from_str(window).expect("a policy");
    let arrivals = [every(0, 10, 100), every(4_000, 60, 400)].concat();
    let panel = |title, limits: &[Policy]| panel(title, limits, None, &arrivals, 30);
    vec![
        panel("2 per second with bursts of 8", std::slice::from_ref(&second)),
        panel("20 in a window of 15 s", std::slice::from_ref(&window)),
        panel("both: a request is charged to both or to none", &[second, window]),
    ]
}

/// January and February of a leap year, from the first day.
fn calendar() -> Vec<Panel> {
    const HOUR: u64 = 3_600_000;
    let window = |name: &str, quota: &str| {
        let fields =
            format!("name = '{name}'\nby = 'user'\nalgorithm = 'fixed-window'\nquota = '{quota}'\nwindow = 'calendar'");
        toml::from_str::<Policy>(&fields).expect("a policy")
    };
    let (month, day) = (window("month", "250/month"), window("day", "8/d"));
    let panel = |title, limits: &[Policy]| panel(title, limits, None, &every(0, 60 * 12, 2 * HOUR), 60 * 86_400);
    vec![
        panel("250 in a calendar month; a client that calls every two hours", std::slice::from_ref(&month)),
        panel("the same, and 8 in a calendar day", &[month, day]),
    ]
}

fn waiting() -> Vec<Panel> {
    let bucket = [policy("algorithm = 'gcra'\nquota = '1/s'\nburst = 4")];
    let queue = [policy("algorithm = 'leaky-queue'\nquota = '1/s'\nmax_waiting = 6")];
    let arrivals = [every(1_000, 12, 80), every(14_000, 12, 80)].concat();
    let four_seconds = Some(Duration::from_secs(4));
    vec![
        panel("denying: Gcra, one per second, bursts of 4", &bucket, None, &arrivals, 30),
        panel("waiting: the same, and each request waits for up to 4 s", &bucket, four_seconds, &arrivals, 30),
        panel("queueing: LeakyQueue, one start per second, 6 wait", &queue, None, &arrivals, 30),
    ]
}
