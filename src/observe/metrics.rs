use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
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
    // Created on first use, so that no page lists what never happens.
    settled: OnceLock<[Counter; 3]>,
    in_flight: OnceLock<(Gauge, Histogram)>,
}

/// The counters of one limit.
struct LimitCounters {
    limit: String,
    /// By outcome and source, created on first use.
    counts: [[OnceLock<Counter>; SOURCES.len()]; OUTCOMES.len()],
    decision_times: [OnceLock<Histogram>; SOURCES.len()],
    /// In the order of [`OF_LIMIT`].
    of_limit: [OnceLock<Counter>; OF_LIMIT.len()],
    /// By direction.
    paced: [OnceLock<(Counter, Histogram)>; 2],
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

/// Counters that each limit has.
const OF_LIMIT: [&str; 4] = [
    "ratelimit_shadow_denied_total",
    "ratelimit_shadow_uncounted_total",
    "ratelimit_near_limit_total",
    "ratelimit_escalations_total",
];
impl Metrics {
    /// The number of names of limits that are distinguished. Further names are counted as `other`.
    pub const MAX_LIMITS: usize = 100;

    /// Creates an observer whose metrics carry the label `limiter` with this value, to distinguish layers.
    pub fn new(limiter: &str) -> Self {
        Self(Arc::new(Recorder {
            limiter: limiter.into(),
            requests: ArcSwap::default(),
            described: Once::new(),
            settled: OnceLock::new(),
            in_flight: OnceLock::new(),
        }))
    }
}

impl Recorder {
    fn limiter(&self) -> String {
        self.limiter.as_ref().to_owned()
    }

    fn settled(&self, unit: Option<&str>, held: u64, actual: u64) {
        let create = || {
            let mut labels = vec![("limiter", self.limiter())];
            labels.extend(unit.map(|unit| ("unit", unit.to_owned())));
            [
                counter!("ratelimit_settled_total", &labels),
                counter!("ratelimit_released_total", &labels),
                counter!("ratelimit_surcharged_total", &labels),
            ]
        };
        let of_unit = unit.map(|_| create());
        let [settled, released, surcharged] = of_unit.as_ref().unwrap_or_else(|| self.settled.get_or_init(create));
        settled.increment(held.min(actual));
        released.increment(held.saturating_sub(actual));
        surcharged.increment(actual.saturating_sub(held));
    }

    fn in_flight(&self) -> &(Gauge, Histogram) {
        self.in_flight.get_or_init(|| {
            let requests = gauge!("ratelimit_in_flight", "limiter" => self.limiter());
            (requests, histogram!("ratelimit_in_flight_seconds", "limiter" => self.limiter()))
        })
    }

    fn lease_renewed(&self, units: [(&'static str, u64); 4]) {
        counter!("ratelimit_lease_reports_total", "limiter" => self.limiter()).increment(1);
        for (result, units) in units {
            counter!("ratelimit_lease_units_total", "limiter" => self.limiter(), "result" => result).increment(units);
        }
    }

    fn batch(&self, size: usize, elapsed: Duration, is_error: bool) {
        let size = f64::from(u32::try_from(size).unwrap_or(u32::MAX));
        histogram!("ratelimit_batch_size", "limiter" => self.limiter()).record(size);
        histogram!("ratelimit_batch_seconds", "limiter" => self.limiter()).record(elapsed);
        counter!("ratelimit_batch_errors_total", "limiter" => self.limiter()).increment(u64::from(is_error));
    }

    fn breaker(&self, store: &str, is_open: bool) {
        let labels = [("limiter", self.limiter()), ("store", store.to_owned())];
        counter!("ratelimit_breaker_opened_total", &labels).increment(u64::from(is_open));
        gauge!("ratelimit_breaker_open", &labels).set(f64::from(u8::from(is_open)));
    }

    #[allow(clippy::cast_precision_loss, reason = "a gauge is a double")]
    fn usage(&self, limit: &str, gauges: [(&'static str, u64); 5], evicted: u64) {
        let labels = [("limiter", self.limiter()), ("limit", limit.to_owned())];
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

    /// Counts in a counter of [`OF_LIMIT`].
    fn count_of_limit(&self, name: &'static str, limit: &str) {
        let (counters, index) = (self.limit_counters(limit), index_of(&OF_LIMIT, name));
        let counter = counters.of_limit[index]
            .get_or_init(|| counter!(name, "limiter" => self.limiter(), "limit" => counters.limit.clone()));
        counter.increment(1);
    }

    fn paced(&self, direction: Direction, limit: &str, bytes: u64, waited: Duration) {
        let counters = self.limit_counters(limit);
        let (passed, seconds) = counters.paced[direction as usize].get_or_init(|| {
            let labels = [
                ("limiter", self.limiter()),
                ("limit", counters.limit.clone()),
                ("direction", direction.name().to_owned()),
            ];
            (counter!("ratelimit_paced_bytes_total", &labels), histogram!("ratelimit_paced_wait_seconds", &labels))
        });
        passed.increment(bytes);
        if !waited.is_zero() {
            seconds.record(waited);
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
            of_limit: [const { OnceLock::new() }; OF_LIMIT.len()],
            paced: [const { OnceLock::new() }; 2],
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
                    counter!("ratelimit_denied_by_leases_total", "limiter" => recorder.limiter()).increment(1);
                }
                decision
                    .shadow_denials()
                    .for_each(|limit| recorder.count_of_limit("ratelimit_shadow_denied_total", limit.name()));
                let crossed = decision.limits().iter().filter(|limit| limit.crossed_mark());
                crossed.for_each(|limit| recorder.count_of_limit("ratelimit_near_limit_total", limit.name()));
            }
            // Each crossing is counted above, as are these requests.
            Event::NearLimit { .. } | Event::Failed { .. } | Event::Exempt | Event::Abandoned { .. } => {}
            Event::ShadowUncounted { limit } => recorder.count_of_limit("ratelimit_shadow_uncounted_total", limit),
            Event::Escalated { limit, .. } => recorder.count_of_limit("ratelimit_escalations_total", limit),
            Event::MissingKey { server_error, .. } => {
                if server_error {
                    counter!("ratelimit_misconfigured_total", "limiter" => recorder.limiter()).increment(1);
                }
            }
            Event::WaitStarted => gauge!("ratelimit_waiters", "limiter" => recorder.limiter()).increment(1.0),
            Event::WaitEnded { waited, end } => {
                gauge!("ratelimit_waiters", "limiter" => recorder.limiter()).decrement(1.0);
                histogram!("ratelimit_wait_seconds", "limiter" => recorder.limiter()).record(waited);
                counter!("ratelimit_waits_total", "limiter" => recorder.limiter(), "result" => end.name()).increment(1);
            }
            Event::WaitRefused => {
                counter!("ratelimit_wait_refused_total", "limiter" => recorder.limiter()).increment(1);
            }
            Event::WaitAsked { admitted } => {
                let result = if admitted { "admitted" } else { "denied" };
                counter!("ratelimit_wait_asks_total", "limiter" => recorder.limiter(), "result" => result).increment(1);
            }
            Event::Settled { unit, held, actual } => recorder.settled(unit, held, actual),
            Event::Paced { direction, error: Some(_), .. } => {
                let labels = [("limiter", recorder.limiter()), ("direction", direction.name().to_owned())];
                counter!("ratelimit_paced_errors_total", &labels).increment(1);
            }
            Event::Paced { direction, limit, bytes, waited, .. } => {
                recorder.paced(direction, limit.unwrap_or(NONE), bytes, waited);
            }
            Event::InFlightStarted { .. } => recorder.in_flight().0.increment(1.0),
            Event::InFlightEnded { lasted, .. } => {
                let (requests, seconds) = recorder.in_flight();
                requests.decrement(1.0);
                seconds.record(lasted);
            }
            Event::Batch { size, elapsed, error, .. } => recorder.batch(size, elapsed, error.is_some()),
            Event::Breaker { store, error } => recorder.breaker(store, error.is_some()),
            Event::Shed { cause, count, .. } => {
                counter!("ratelimit_shed_total", "limiter" => recorder.limiter(), "cause" => cause.name())
                    .increment(u64::try_from(count).unwrap_or(u64::MAX));
            }
            Event::HoldsExpired { count, .. } => {
                counter!("ratelimit_holds_expired_total", "limiter" => recorder.limiter())
                    .increment(u64::try_from(count).unwrap_or(u64::MAX));
            }
            Event::InFlightUncounted { cost, .. } => {
                counter!("ratelimit_in_flight_uncounted_total", "limiter" => recorder.limiter()).increment(cost);
            }
            Event::LeaseRenewed { granted, spent, returned, lost, .. } => {
                let units = [("granted", granted), ("spent", spent), ("returned", returned), ("lost", lost)];
                recorder.lease_renewed(units);
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
            Event::Warning { .. } => {
                counter!("ratelimit_warnings_total", "limiter" => recorder.limiter()).increment(1);
            }
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
