//! Decisions over time, counted for a chart.

use std::time::Duration;

use crate::{Arrival, Simulation, Traffic};
use tower_ratelimit::{Decision, Timestamp, Verdict};

/// The decisions of a simulation in bins of equal length, and the remaining cost of one key.
#[derive(Clone, Debug)]
pub struct Series {
    /// The length of the interval.
    pub span: Duration,
    /// The decisions in each bin.
    pub bins: Vec<Bin>,
    /// The remaining cost of the key, from each time on until the next; in microseconds since the start.
    pub remaining: Vec<(u64, u64)>,
    /// The largest cost that an idle key is allowed at once.
    pub limit: u64,
}

/// The requests that arrive in one bin, by their decisions, and the starts in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// The requests that are allowed at once.
    pub allowed: u64,
    /// The requests that are allowed after a delay.
    pub delayed: u64,
    /// The denied requests.
    pub denied: u64,
    /// The requests that start in this bin.
    pub starts: u64,
}

/// The part of a recording that a chart shows.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    /// The start of the first bin.
    pub start: Timestamp,
    /// The length of all bins together.
    pub span: Duration,
    /// The number of bins.
    pub bins: u32,
}

impl Interval {
    /// Returns the interval from the first arrival to the last one.
    #[must_use]
    pub fn of(traffic: &Traffic, bins: u32) -> Self {
        let arrivals = traffic.arrivals();
        let time = |arrival: Option<&Arrival>| arrival.map_or(Timestamp::EPOCH, |arrival| arrival.time);
        let (start, end) = (time(arrivals.first()), time(arrivals.last()));
        Self { start, span: end.saturating_since(start) + Duration::from_millis(1), bins }
    }

    fn bin(self, time: Timestamp) -> usize {
        let since = time.saturating_since(self.start).as_micros();
        usize::try_from(since * u128::from(self.bins) / self.span.as_micros().max(1)).unwrap_or(usize::MAX)
    }

    /// Returns the time between two bins.
    fn edge(self, bin: u32) -> Timestamp {
        self.start.saturating_add(self.span * bin / self.bins)
    }
}

impl Series {
    /// Decides the traffic. The remaining cost is that of the key of an arrival, by default of the first one. It is read
    /// at each arrival and between two bins.
    #[must_use]
    pub fn new(simulation: &Simulation<'_>, traffic: &Traffic, interval: Interval, key: Option<&Arrival>) -> Self {
        Self::counting(simulation, traffic, interval, key, |_| true)
    }

    /// Decides the traffic as [`new`](Self::new) does, and counts the arrivals for which `counts` returns `true`.
    #[must_use]
    pub fn counting(
        simulation: &Simulation<'_>,
        traffic: &Traffic,
        interval: Interval,
        key: Option<&Arrival>,
        counts: impl Fn(&Arrival) -> bool,
    ) -> Self {
        let arrivals = traffic.arrivals();
        let mut series = Self {
            span: interval.span,
            bins: vec![Bin::default(); interval.bins as usize],
            remaining: Vec::new(),
            limit: 0,
        };
        let Some(key) = key.or(arrivals.first()) else { return series };
        let mut edges = (0..=interval.bins).map(|bin| interval.edge(bin)).peekable();
        for arrival in arrivals.iter() {
            while let Some(edge) = edges.next_if(|edge| *edge <= arrival.time) {
                series.read(simulation, key, edge, interval.start);
            }
            let decision = simulation.decide(arrival);
            if counts(arrival) {
                series.count(&decision, arrival, interval);
            }
            series.read(simulation, key, arrival.time, interval.start);
        }
        for edge in edges {
            series.read(simulation, key, edge, interval.start);
        }
        series
    }

    fn count(&mut self, decision: &Decision, arrival: &Arrival, interval: Interval) {
        if let Some(bin) = self.bins.get_mut(interval.bin(arrival.time)) {
            *match decision.verdict() {
                Verdict::Allowed => &mut bin.allowed,
                Verdict::AllowedAfter(_) => &mut bin.delayed,
                Verdict::Denied { .. } | Verdict::ExceedsLimit => &mut bin.denied,
            } += 1;
        }
        let start = interval.bin(arrival.time.saturating_add(decision.delay()));
        if let Some(bin) = self.bins.get_mut(start).filter(|_| decision.is_allowed()) {
            bin.starts += 1;
        }
    }

    /// Appends the remaining cost of a key if it changed.
    fn read(&mut self, simulation: &Simulation<'_>, key: &Arrival, time: Timestamp, start: Timestamp) {
        let decision = simulation.peek(key, time);
        let Some(status) = decision.most_restrictive() else { return };
        self.limit = self.limit.max(status.limit());
        let (time, remaining) = (time.saturating_since(start).as_micros(), status.remaining());
        if self.remaining.last().is_none_or(|(_, last)| *last != remaining) {
            self.remaining.push((u64::try_from(time).unwrap_or(u64::MAX), remaining));
        }
    }
}
