//! Generated traffic, and pasted logs.

use std::time::Duration;

use serde::Deserialize;
use tower_ratelimit::ManualClock;
use tower_ratelimit::config::Policy;
use tower_ratelimit_simulate::{AnyError, Interval, LogFormat, LogParser, Traffic};

/// The most requests that the playground decides.
const MAX_REQUESTS: u64 = 50_000;

/// How many bins a chart has.
const BINS: u32 = 120;

/// The traffic of each client: a steady rate, and bursts. Times are in milliseconds.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pattern {
    /// The requests in 100 seconds.
    pub(crate) rate: u64,
    pub(crate) burst: u64,
    /// The time in which the requests of a burst arrive.
    pub(crate) spread: u64,
    /// The time before the first burst, and between the starts of two.
    pub(crate) every: u64,
    pub(crate) duration: u64,
    pub(crate) clients: u64,
}

impl Pattern {
    /// Returns the milliseconds of the arrivals of one client.
    fn arrivals(self) -> Vec<u64> {
        let gap = 100_000 / self.rate.max(1);
        let steady = (0..).map(|index| index * gap.max(1)).take_while(|time| self.rate > 0 && *time < self.duration);
        let bursts = (1..).map(|index| index * self.every.max(1)).take_while(|time| *time < self.duration);
        let burst = |start| (0..self.burst).map(move |index| start + index * self.spread / self.burst);
        let mut arrivals: Vec<_> = steady.chain(bursts.flat_map(burst)).collect();
        arrivals.sort_unstable();
        arrivals
    }

    /// Generates the traffic of all clients, who come 37 ms after each other.
    pub(crate) fn traffic(self, policies: &[Policy]) -> Result<(Traffic, Interval), AnyError> {
        let per_burst = self.burst.saturating_mul(self.duration / self.every.max(1) + 1);
        let requests = self.rate.saturating_mul(self.duration) / 100_000;
        if requests.saturating_add(per_burst).saturating_mul(self.clients) > MAX_REQUESTS {
            return Err(format!("too many requests: choose at most {MAX_REQUESTS}").into());
        }
        let mut traffic = Traffic::for_policies(policies);
        let arrivals = self.arrivals();
        for client in 0..self.clients {
            let names = vec![format!("client {}", client + 1); traffic.columns().len()];
            for time in &arrivals {
                let time = Duration::from_millis(time + client * 37);
                traffic.push(ManualClock::START.saturating_add(time), &names, 1);
            }
        }
        let span = Duration::from_millis(self.duration.max(1));
        Ok((traffic, Interval { start: ManualClock::START, span, bins: BINS }))
    }
}

/// Reads a log, and returns how many lines could not be read.
pub(crate) fn read_log(log: &str, policies: &[Policy]) -> Result<(Traffic, Interval, u64), AnyError> {
    let mut traffic = Traffic::for_policies(policies);
    let first = log.lines().find(|line| !line.trim().is_empty()).ok_or("the log is empty")?;
    let mut parser = LogParser::new(LogFormat::detect(first), &traffic)?;
    let (mut skipped, mut first_error) = (0, None);
    for line in log.lines() {
        if let Err(error) = parser.read(line, &mut traffic) {
            skipped += 1;
            first_error.get_or_insert(error);
        }
    }
    match first_error {
        Some(error) if traffic.is_empty() => Err(error.into()),
        _ => {
            let interval = Interval::of(&traffic, BINS);
            Ok((traffic, interval, skipped))
        }
    }
}
