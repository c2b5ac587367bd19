use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use metrics::{
    Counter, Gauge, Histogram, IntoF64, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use super::event::{Direction, Event};
use super::observer::Observer;

/// Records metrics with the [`metrics`] facade (feature `metrics`), which has exporters for Prometheus and others.
///
/// All names, units and labels are in
/// [docs/metrics.md](https://docs.rs/crate/tower-ratelimit/latest/source/docs/metrics.md). Labels come from the
/// application, never from clients. At most [`MAX_LIMITS`](Self::MAX_LIMITS) names of limits are distinguished.
///
/// Install the recorder before the first request: counters that are created earlier stay without effect.
///
/// ```
/// use tower_ratelimit::observe::Metrics;
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// let limiter = Memory::<std::net::IpAddr, _>::new(Gcra::new(Quota::per_second(10)));
/// let layer = RateLimitLayer::new(PeerIp::new(), limiter).observe(Metrics::new("api"));
/// ```
#[derive(Clone)]
pub struct Metrics(Arc<Recorder>);

struct Recorder {
    limiter: Arc<str>,
    /// One entry per name of a most restrictive limit.
    requests: ArcSwap<Vec<Arc<LimitCounters>>>,
    described: Once,
}

/// The counters of one limit.
struct LimitCounters {
    limit: String,
    /// By outcome and source, created on first use.
    counts: [[OnceLock<Counter>; SOURCES.len()]; OUTCOMES.len()],
    decision_times: [OnceLock<Histogram>; SOURCES.len()],
}

/// The label value for a missing limit or source.
const NONE: &str = "none";
const OUTCOMES: [&str; 10] = [
    "allowed",
    "delayed",
    "denied",
    "exceeds_limit",
    "exempt",
    "missing_key",
    "missing_key_exempt",
    "failed",
    "conflict",
    "abandoned",
];
const SOURCES: [&str; 6] = ["store", "lease", "cache", "fallback", "no_limit", NONE];

impl Metrics {
    /// The number of names of limits that are distinguished. Further names are counted as `other`.
    pub const MAX_LIMITS: usize = 100;

    /// Creates an observer whose metrics carry the label `limiter` with this value, to distinguish layers.
    pub fn new(limiter: &str) -> Self {
        Self(Arc::new(Recorder { limiter: limiter.into(), requests: ArcSwap::default(), described: Once::new() }))
    }
}

impl Recorder {
    fn limiter(&self) -> String {
        self.limiter.as_ref().to_owned()
    }

    /// Returns the labels of a metric: the limiter, and at most one more.
    fn labels(&self, more: Option<(&'static str, &str)>) -> Vec<(&'static str, String)> {
        let labels = [("limiter", &*self.limiter)].into_iter().chain(more);
        labels.map(|(name, value)| (name, value.to_owned())).collect()
    }

    fn add(&self, name: &'static str, label: Option<(&'static str, &str)>, value: u64) {
        counter!(name, &self.labels(label)).increment(value);
    }

    fn gauge(&self, name: &'static str) -> Gauge {
        gauge!(name, &self.labels(None))
    }

    fn record(&self, name: &'static str, value: impl IntoF64) {
        histogram!(name, &self.labels(None)).record(value);
    }

    fn settled(&self, unit: Option<&str>, held: u64, actual: u64) {
        let unit = unit.map(|unit| ("unit", unit));
        self.add("ratelimit_settled_total", unit, held.min(actual));
        self.add("ratelimit_released_total", unit, held.saturating_sub(actual));
        self.add("ratelimit_surcharged_total", unit, actual.saturating_sub(held));
    }

    fn batch(&self, size: usize, elapsed: Duration, is_error: bool) {
        self.record("ratelimit_batch_size", u32::try_from(size).unwrap_or(u32::MAX));
        self.record("ratelimit_batch_seconds", elapsed);
        self.add("ratelimit_batch_errors_total", None, u64::from(is_error));
    }

    fn breaker(&self, store: &str, is_open: bool) {
        let store = Some(("store", store));
        self.add("ratelimit_breaker_opened_total", store, u64::from(is_open));
        gauge!("ratelimit_breaker_open", &self.labels(store)).set(f64::from(u8::from(is_open)));
    }

    #[allow(clippy::cast_precision_loss, reason = "a gauge is a double")]
    fn usage(&self, limit: &str, gauges: [(&'static str, u64); 5], evicted: u64) {
        let labels = self.labels(Some(("limit", limit)));
        for (name, value) in gauges {
            gauge!(name, &labels).set(value as f64);
        }
        counter!("ratelimit_memory_evicted_total", &labels).absolute(evicted);
    }

    fn limit_counters(&self, limit: &str) -> Arc<LimitCounters> {
        if let Some(known) = find(&self.requests.load(), limit) {
            return Arc::clone(known);
        }
        self.requests.rcu(|known| {
            let mut all = Vec::clone(known);
            if find(&all, limit).is_none() {
                let limit = if all.len() < Metrics::MAX_LIMITS { limit } else { OTHER };
                all.push(Arc::new(LimitCounters::new(limit)));
            }
            all
        });
        let all = self.requests.load();
        Arc::clone(find(&all, limit).unwrap_or(&all[all.len() - 1]))
    }

    /// Counts the terminal event of one request.
    fn count(&self, event: &Event<'_>, outcome: &str) {
        let indices = (index_of(&OUTCOMES, outcome), index_of(&SOURCES, event.source().unwrap_or(NONE)));
        let elapsed = match *event {
            Event::Decided { elapsed, .. } | Event::Failed { elapsed, .. } => elapsed,
            _ => None,
        };
        let limit = event.limit().unwrap_or(NONE);
        let known = self.requests.load();
        // The load guard avoids a clone of the `Arc`, two contended atomic operations a request.
        if let Some(counters) = find(&known, limit) {
            self.count_in(counters, indices, elapsed);
        } else {
            drop(known);
            self.count_in(&self.limit_counters(limit), indices, elapsed);
        }
    }

    fn count_in(&self, counters: &LimitCounters, (outcome, source): (usize, usize), elapsed: Option<Duration>) {
        let limit = || counters.limit.clone();
        let counter = counters.counts[outcome][source].get_or_init(|| {
            counter!(
                "ratelimit_requests_total",
                "limiter" => self.limiter(), "limit" => limit(),
                "outcome" => OUTCOMES[outcome], "source" => SOURCES[source]
            )
        });
        counter.increment(1);
        if let Some(elapsed) = elapsed {
            let histogram = counters.decision_times[source].get_or_init(|| {
                histogram!(
                    "ratelimit_decision_seconds",
                    "limiter" => self.limiter(), "limit" => limit(), "source" => SOURCES[source]
                )
            });
            histogram.record(elapsed);
        }
    }

    fn count_of_limit(&self, name: &'static str, limit: &str) {
        self.add(name, Some(("limit", &*self.limit_counters(limit).limit)), 1);
    }

    fn paced(&self, direction: Direction, limit: &str, bytes: u64, waited: Duration) {
        let mut labels = self.labels(Some(("limit", &*self.limit_counters(limit).limit)));
        labels.push(("direction", direction.name().to_owned()));
        counter!("ratelimit_paced_bytes_total", &labels).increment(bytes);
        if !waited.is_zero() {
            histogram!("ratelimit_paced_wait_seconds", &labels).record(waited);
        }
    }
}

const OTHER: &str = "other";

/// Returns the index of a name, or the last one.
fn index_of(names: &[&str], name: &str) -> usize {
    names.iter().position(|known| *known == name).unwrap_or(names.len() - 1)
}

fn find<'a>(known: &'a [Arc<LimitCounters>], limit: &str) -> Option<&'a Arc<LimitCounters>> {
    let exact = known.iter().find(|counters| counters.limit == limit);
    exact.or_else(|| known.get(Metrics::MAX_LIMITS))
}

impl LimitCounters {
    fn new(limit: &str) -> Self {
        Self {
            limit: limit.to_owned(),
            counts: [const { [const { OnceLock::new() }; SOURCES.len()] }; OUTCOMES.len()],
            decision_times: [const { OnceLock::new() }; SOURCES.len()],
        }
    }
}

impl Observer for Metrics {
    fn observe(&self, event: &Event<'_>) {
        let recorder = &*self.0;
        recorder.described.call_once(describe);
        if let Some(outcome) = event.outcome() {
            recorder.count(event, outcome);
        }
        match *event {
            Event::Decided { decision, .. } => {
                if decision.is_denied_by_leases() {
                    recorder.add("ratelimit_denied_by_leases_total", None, 1);
                }
                decision
                    .shadow_denials()
                    .for_each(|limit| recorder.count_of_limit("ratelimit_shadow_denied_total", limit.name()));
                let crossed = decision.limits().iter().filter(|limit| limit.crossed_mark());
                crossed.for_each(|limit| recorder.count_of_limit("ratelimit_near_limit_total", limit.name()));
            }
            Event::ShadowUncounted { limit } => recorder.count_of_limit("ratelimit_shadow_uncounted_total", limit),
            Event::Escalated { limit, .. } => recorder.count_of_limit("ratelimit_escalations_total", limit),
            Event::MissingKey { server_error: true, .. } => recorder.add("ratelimit_misconfigured_total", None, 1),
            Event::Failed { error, .. } if error.is_misconfigured() => {
                recorder.add("ratelimit_misconfigured_total", None, 1);
            }
            // Each crossing is counted above, as are these requests.
            Event::NearLimit { .. }
            | Event::MissingKey { .. }
            | Event::Failed { .. }
            | Event::Exempt
            | Event::Abandoned { .. } => {}
            Event::WaitStarted => recorder.gauge("ratelimit_waiters").increment(1.0),
            Event::WaitEnded { waited, end } => {
                recorder.gauge("ratelimit_waiters").decrement(1.0);
                recorder.record("ratelimit_wait_seconds", waited);
                recorder.add("ratelimit_waits_total", Some(("result", end.name())), 1);
            }
            Event::WaitRefused => recorder.add("ratelimit_wait_refused_total", None, 1),
            Event::WaitAsked { admitted } => {
                let result = if admitted { "admitted" } else { "denied" };
                recorder.add("ratelimit_wait_asks_total", Some(("result", result)), 1);
            }
            Event::Settled { unit, held, actual } => recorder.settled(unit, held, actual),
            Event::Paced { direction, error: Some(_), .. } => {
                recorder.add("ratelimit_paced_errors_total", Some(("direction", direction.name())), 1);
            }
            Event::Paced { direction, limit, bytes, waited, .. } => {
                recorder.paced(direction, limit.unwrap_or(NONE), bytes, waited);
            }
            Event::InFlightStarted { .. } => recorder.gauge("ratelimit_in_flight").increment(1.0),
            Event::InFlightEnded { lasted, .. } => {
                recorder.gauge("ratelimit_in_flight").decrement(1.0);
                recorder.record("ratelimit_in_flight_seconds", lasted);
            }
            Event::Batch { size, elapsed, error, .. } => recorder.batch(size, elapsed, error.is_some()),
            Event::Breaker { store, error } => recorder.breaker(store, error.is_some()),
            Event::Shed { cause, count, .. } => {
                recorder.add("ratelimit_shed_total", Some(("cause", cause.name())), count as u64);
            }
            Event::HoldsExpired { count, .. } => recorder.add("ratelimit_holds_expired_total", None, count as u64),
            Event::InFlightUncounted { cost, .. } => recorder.add("ratelimit_in_flight_uncounted_total", None, cost),
            Event::LeaseRenewed { granted, spent, returned, lost, .. } => {
                recorder.add("ratelimit_lease_reports_total", None, 1);
                for (result, units) in [("granted", granted), ("spent", spent), ("returned", returned), ("lost", lost)]
                {
                    recorder.add("ratelimit_lease_units_total", Some(("result", result)), units);
                }
            }
            Event::Usage { limit, live_keys, capacity, bytes, evicted, held_keys, held } => {
                let gauges = [
                    ("ratelimit_memory_keys", live_keys as u64),
                    ("ratelimit_memory_capacity_keys", capacity as u64),
                    ("ratelimit_memory_bytes", bytes as u64),
                    ("ratelimit_memory_held_keys", held_keys as u64),
                    ("ratelimit_memory_held", held),
                ];
                recorder.usage(limit, gauges, evicted);
            }
            Event::Warning { .. } => recorder.add("ratelimit_warnings_total", None, 1),
        }
    }
}

/// Describes all metrics to the installed recorder, by the tables of docs/metrics.md.
fn describe() {
    for line in include_str!("../../docs/metrics.md").lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let ["", name, kind, _, text, ""] = cells[..] else { continue };
        let name = name.trim_matches('`');
        let unit = match name {
            _ if name.ends_with("_seconds") => Unit::Seconds,
            _ if name.contains("_bytes") => Unit::Bytes,
            _ => Unit::Count,
        };
        match kind {
            "counter" | "cost" | "bytes" => describe_counter!(name, unit, text),
            "histogram" => describe_histogram!(name, unit, text),
            _ if kind.starts_with("gauge") => describe_gauge!(name, unit, text),
            _ => {}
        }
    }
}

impl_debug!(Metrics |metrics| { limiter: metrics.0.limiter });
