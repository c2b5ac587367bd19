//! The four patterns of traffic, decided by each algorithm.

use std::time::Duration;

use tower_ratelimit::ManualClock;
use tower_ratelimit::config::Policy;
use tower_ratelimit_simulate::{Interval, Series, Simulation, Traffic};

use crate::support::policy;
use tower_ratelimit_simulate::chart::{Panel, draw};

/// The algorithms with a quota of ten in ten seconds. The three buckets decide identically, so one picture shows them.
const ALGORITHMS: [(&str, &str); 5] = [
    ("bucket", "algorithm = 'gcra'\nquota = '10 per 10s'"),
    ("leaky-queue", "algorithm = 'leaky-queue'\nquota = '10 per 10s'\nmax_waiting = 5"),
    ("fixed-window", "algorithm = 'fixed-window'\nquota = '10 per 10s'"),
    ("sliding-window", "algorithm = 'sliding-window'\nquota = '10 per 10s'"),
    ("sliding-log", "algorithm = 'sliding-log'\nquota = '10 per 10s'"),
];

pub(super) fn pictures() -> Vec<(&'static str, String)> {
    ALGORITHMS.into_iter().map(|(name, fields)| (name, picture(&policy(fields)))).collect()
}

fn picture(policy: &Policy) -> String {
    let panels = patterns().map(|(title, times)| {
        let arrivals: Vec<_> = times.into_iter().map(|millis| (millis, 1)).collect();
        panel(title, std::slice::from_ref(policy), None, &arrivals, 30)
    });
    draw(&panels, 2, 800).expect("a picture")
}

/// The titles of the patterns, and the milliseconds of their requests.
fn patterns() -> [(&'static str, Vec<u64>); 4] {
    [
        ("steady at the limit: one per second", (0..30).map(|second| second * 1_000).collect()),
        ("burst after idling: 20 within a second", (0..20).map(|index| 10_000 + index * 50).collect()),
        (
            "double burst at a window's edge: 10 before it, 10 after it",
            [0].into_iter().chain((0..20).map(|index| 9_500 + index * 50)).collect(),
        ),
        ("one client hammering: four per second", (0..120).map(|index| index * 250).collect()),
    ]
}

/// Draws the decisions on one client's requests: milliseconds and cost. Each request accepts a delay of `max_delay`.
pub(super) fn panel(
    title: &str,
    limits: &[Policy],
    max_delay: Option<Duration>,
    arrivals: &[(u64, u64)],
    seconds: u64,
) -> Panel {
    let mut traffic = Traffic::new(["user"]);
    for &(millis, cost) in arrivals {
        traffic.push(ManualClock::START.saturating_add(Duration::from_millis(millis)), &["client"], cost);
    }
    let mut simulation = Simulation::together(limits, &traffic).expect("a simulation");
    if let Some(max_delay) = max_delay {
        simulation = simulation.max_delay(max_delay);
    }
    let interval = Interval { start: ManualClock::START, span: Duration::from_secs(seconds), bins: 120 };
    let series = Series::new(&simulation, &traffic, interval, None);
    Panel { title: title.to_owned(), series }
}
