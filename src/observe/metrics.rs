use std::fmt;
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::event::{Direction, Event, RequestOutcome, WaitEnd};
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
    waits: OnceLock<Waits>,
    settled: OnceLock<[Counter; 3]>,
    in_flight: OnceLock<(Gauge, Histogram)>,
    batches: OnceLock<(Histogram, Histogram, Counter)>,
    leases: OnceLock<[Counter; 5]>,
}

/// The metrics of waiting requests.
struct Waits {
    waiters: Gauge,
    seconds: Histogram,
    ended: [Counter; 3],
    refused: Counter,
    /// Asks by whether the limiter admitted a start.
    asks: [Counter; 2],
}

/// The counters of one limit.
struct LimitCounters {
    limit: String,
    /// By outcome and source, created on first use.
    counts: [[OnceLock<Counter>; SOURCES.len()]; OUTCOMES],
    decision_times: [OnceLock<Histogram>; SOURCES.len()],
    shadow: OnceLock<Counter>,
    shadow_uncounted: OnceLock<Counter>,
    near: OnceLock<Counter>,
    /// By direction.
    paced: [OnceLock<(Counter, Histogram)>; 2],
}

/// The label value for a missing limit or source.
const NONE: &str = "none";
const OUTCOMES: usize = RequestOutcome::Abandoned as usize + 1;
const SOURCES: [&str; 6] = ["store", "lease", "cache", "fallback", "no_limit", NONE];

impl Metrics {
    /// The number of names of limits that are distinguished. Further names are counted as `other`.
    pub const MAX_LIMITS: usize = 100;

    /// Creates an observer whose metrics carry the label `limiter` with this value, to distinguish layers.
    #[must_use]
    pub fn new(limiter: &str) -> Self {
        Self(Arc::new(Recorder {
            limiter: limiter.into(),
            requests: ArcSwap::default(),
            described: Once::new(),
            waits: OnceLock::new(),
            settled: OnceLock::new(),
            in_flight: OnceLock::new(),
            batches: OnceLock::new(),
            leases: OnceLock::new(),
        }))
    }
}

impl Recorder {
    fn limiter(&self) -> String {
        self.limiter.as_ref().to_owned()
    }

    fn waits(&self) -> &Waits {
        self.waits.get_or_init(|| {
            let ended = |end: WaitEnd| {
                counter!("ratelimit_waits_total", "limiter" => self.limiter(), "result" => end.name())
            };
            let asks = |result: &'static str| {
                counter!("ratelimit_wait_asks_total", "limiter" => self.limiter(), "result" => result)
            };
            Waits {
                waiters: gauge!("ratelimit_waiters", "limiter" => self.limiter()),
                seconds: histogram!("ratelimit_wait_seconds", "limiter" => self.limiter()),
                ended: [ended(WaitEnd::Served), ended(WaitEnd::Rejected), ended(WaitEnd::Left)],
                refused: counter!("ratelimit_wait_refused_total", "limiter" => self.limiter()),
                asks: [asks("denied"), asks("admitted")],
            }
        })
    }

    fn settled(&self, held: u64, actual: u64) {
        let [settled, released, surcharged] = self.settled.get_or_init(|| {
            [
                counter!("ratelimit_settled_total", "limiter" => self.limiter()),
                counter!("ratelimit_released_total", "limiter" => self.limiter()),
                counter!("ratelimit_surcharged_total", "limiter" => self.limiter()),
            ]
        });
        settled.increment(held.min(actual));
        released.increment(held.saturating_sub(actual));
        surcharged.increment(actual.saturating_sub(held));
    }

    fn settled_in(&self, unit: &str, held: u64, actual: u64) {
        let counts = [
            ("ratelimit_settled_total", held.min(actual)),
            ("ratelimit_released_total", held.saturating_sub(actual)),
            ("ratelimit_surcharged_total", actual.saturating_sub(held)),
        ];
        for (name, count) in counts {
            counter!(name, "limiter" => self.limiter(), "unit" => unit.to_owned()).increment(count);
        }
    }

    fn in_flight(&self) -> &(Gauge, Histogram) {
        self.in_flight.get_or_init(|| {
            let requests = gauge!("ratelimit_in_flight", "limiter" => self.limiter());
            (requests, histogram!("ratelimit_in_flight_seconds", "limiter" => self.limiter()))
        })
    }

    /// Counts a report of a lease: 1, and the units granted, spent, returned and lost.
    fn lease_renewed(&self, counts: [u64; 5]) {
        let counters = self.leases.get_or_init(|| {
            let units = |result: &'static str| {
                counter!("ratelimit_lease_units_total", "limiter" => self.limiter(), "result" => result)
            };
            let reports = counter!("ratelimit_lease_reports_total", "limiter" => self.limiter());
            [reports, units("granted"), units("spent"), units("returned"), units("lost")]
        });
        for (counter, count) in counters.iter().zip(counts) {
            counter.increment(count);
        }
    }

    fn batch(&self, size: usize, elapsed: Duration, is_error: bool) {
        let (sizes, times, errors) = self.batches.get_or_init(|| {
            (
                histogram!("ratelimit_batch_size", "limiter" => self.limiter()),
                histogram!("ratelimit_batch_seconds", "limiter" => self.limiter()),
                counter!("ratelimit_batch_errors_total", "limiter" => self.limiter()),
            )
        });
        sizes.record(f64::from(u32::try_from(size).unwrap_or(u32::MAX)));
        times.record(elapsed);
        errors.increment(u64::from(is_error));
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
    fn count(&self, event: &Event<'_>, outcome: RequestOutcome, elapsed: Option<Duration>) {
        let limit = event.limit().unwrap_or(NONE);
        let name = event.source().unwrap_or(NONE);
        let source = SOURCES.iter().position(|known| *known == name).unwrap_or(SOURCES.len() - 1);
        let known = self.requests.load();
        // The load guard avoids a clone of the `Arc`, two contended atomic operations a request.
        if let Some(counters) = find(&known, limit) {
            self.count_in(counters, outcome, source, elapsed);
        } else {
            drop(known);
            self.count_in(&self.limit_counters(limit), outcome, source, elapsed);
        }
    }

    fn count_in(&self, counters: &LimitCounters, outcome: RequestOutcome, source: usize, elapsed: Option<Duration>) {
        let limit = || counters.limit.clone();
        let counter = counters.counts[outcome as usize][source].get_or_init(|| {
            counter!(
                "ratelimit_requests_total",
                "limiter" => self.limiter(), "limit" => limit(),
                "outcome" => outcome.name(), "source" => SOURCES[source]
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

    fn shadow_denied(&self, limit: &str) {
        let counters = self.limit_counters(limit);
        let counter = counters.shadow.get_or_init(|| {
            let limit = counters.limit.clone();
            counter!("ratelimit_shadow_denied_total", "limiter" => self.limiter(), "limit" => limit)
        });
        counter.increment(1);
    }

    fn near_limit(&self, limit: &str) {
        let counters = self.limit_counters(limit);
        let counter = counters.near.get_or_init(|| {
            let limit = counters.limit.clone();
            counter!("ratelimit_near_limit_total", "limiter" => self.limiter(), "limit" => limit)
        });
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

    fn shadow_uncounted(&self, limit: &str) {
        let counters = self.limit_counters(limit);
        let counter = counters.shadow_uncounted.get_or_init(|| {
            let limit = counters.limit.clone();
            counter!("ratelimit_shadow_uncounted_total", "limiter" => self.limiter(), "limit" => limit)
        });
        counter.increment(1);
    }
}

const OTHER: &str = "other";

fn find<'a>(known: &'a [Arc<LimitCounters>], limit: &str) -> Option<&'a Arc<LimitCounters>> {
    let exact = known.iter().find(|counters| counters.limit == limit);
    exact.or_else(|| known.get(Metrics::MAX_LIMITS))
}

impl LimitCounters {
    fn new(limit: &str) -> Self {
        Self {
            limit: limit.to_owned(),
            counts: [const { [const { OnceLock::new() }; SOURCES.len()] }; OUTCOMES],
            decision_times: [const { OnceLock::new() }; SOURCES.len()],
            shadow: OnceLock::new(),
            shadow_uncounted: OnceLock::new(),
            near: OnceLock::new(),
            paced: [const { OnceLock::new() }; 2],
        }
    }
}

impl Observer for Metrics {
    fn observe(&self, event: &Event<'_>) {
        let recorder = &*self.0;
        recorder.described.call_once(describe);
        match *event {
            Event::Decided { decision, elapsed } => {
                if let Some(outcome) = event.request_outcome() {
                    recorder.count(event, outcome, elapsed);
                }
                if decision.is_denied_by_leases() {
                    counter!("ratelimit_denied_by_leases_total", "limiter" => recorder.limiter()).increment(1);
                }
                decision.shadow_denials().for_each(|limit| recorder.shadow_denied(limit.name()));
                let crossed = decision.limits().iter().filter(|limit| limit.crossed_mark());
                crossed.for_each(|limit| recorder.near_limit(limit.name()));
            }
            // Each crossing is counted above.
            Event::NearLimit { .. } => {}
            Event::ShadowUncounted { limit } => recorder.shadow_uncounted(limit),
            Event::Escalated { limit, .. } => {
                let limit = recorder.limit_counters(limit).limit.clone();
                counter!("ratelimit_escalations_total", "limiter" => recorder.limiter(), "limit" => limit).increment(1);
            }
            Event::Failed { elapsed, .. } => recorder.count(event, RequestOutcome::Failed, elapsed),
            Event::MissingKey { server_error, forwarded, .. } => {
                let outcome = if forwarded { RequestOutcome::MissingKeyExempt } else { RequestOutcome::MissingKey };
                recorder.count(event, outcome, None);
                if server_error {
                    counter!("ratelimit_misconfigured_total", "limiter" => recorder.limiter()).increment(1);
                }
            }
            Event::Exempt => recorder.count(event, RequestOutcome::Exempt, None),
            Event::Abandoned { .. } => recorder.count(event, RequestOutcome::Abandoned, None),
            Event::WaitStarted => recorder.waits().waiters.increment(1.0),
            Event::WaitEnded { waited, end } => {
                let waits = recorder.waits();
                waits.waiters.decrement(1.0);
                waits.seconds.record(waited);
                waits.ended[end as usize].increment(1);
            }
            Event::WaitRefused => recorder.waits().refused.increment(1),
            Event::WaitAsked { admitted } => recorder.waits().asks[usize::from(admitted)].increment(1),
            Event::Settled { unit: None, held, actual } => recorder.settled(held, actual),
            Event::Settled { unit: Some(unit), held, actual } => recorder.settled_in(unit, held, actual),
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
                recorder.lease_renewed([1, granted, spent, returned, lost]);
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

/// Describes all metrics to the installed recorder: a name tells the kind of its metric, and whether the value is in
/// seconds, in bytes, or a plain number.
fn describe() {
    for (name, text) in DESCRIPTIONS {
        let unit = match name {
            _ if name.ends_with("_seconds") => Unit::Seconds,
            _ if name.contains("_bytes") => Unit::Bytes,
            _ => Unit::Count,
        };
        match name {
            _ if name.ends_with("_total") => describe_counter!(name, unit, text),
            _ if name.ends_with("_seconds") || name.ends_with("_size") => describe_histogram!(name, unit, text),
            _ => describe_gauge!(name, unit, text),
        }
    }
}

/// The metrics, in the words of docs/metrics.md.
const DESCRIPTIONS: [(&str, &str); 38] = [
    ("ratelimit_requests_total", "Requests by outcome"),
    ("ratelimit_shadow_denied_total", "Requests that a shadow limit would deny"),
    ("ratelimit_near_limit_total", "Charges that brought a key to the mark of a limit"),
    (
        "ratelimit_shadow_uncounted_total",
        "Requests that a shadow limit did not count, because its table was full of held keys",
    ),
    ("ratelimit_escalations_total", "Blocks of keys that were denied too often"),
    ("ratelimit_misconfigured_total", "Requests without a key because the server is misconfigured"),
    ("ratelimit_decision_seconds", "Time of decisions that were not ready immediately"),
    ("ratelimit_waiters", "Requests that wait now"),
    ("ratelimit_wait_seconds", "Time that requests waited"),
    ("ratelimit_waits_total", "Waits that ended, by result"),
    ("ratelimit_wait_refused_total", "Requests that a full or too long queue refused"),
    ("ratelimit_wait_asks_total", "Asks of queues for a start, by result"),
    ("ratelimit_settled_total", "Held cost that was charged by a settlement"),
    ("ratelimit_released_total", "Held cost that was released by a settlement"),
    ("ratelimit_surcharged_total", "Cost that was charged beyond the held cost"),
    ("ratelimit_holds_expired_total", "Expired sessions whose holds the store settled in full"),
    ("ratelimit_paced_bytes_total", "Bytes of paced bodies that passed"),
    ("ratelimit_paced_wait_seconds", "Time that chunks of paced bodies waited"),
    ("ratelimit_paced_errors_total", "Paced bodies that ended with an error"),
    ("ratelimit_in_flight", "Requests in flight now"),
    ("ratelimit_in_flight_seconds", "Time that requests were in flight"),
    ("ratelimit_in_flight_uncounted_total", "Cost in flight whose holds expired without room for a renewal"),
    ("ratelimit_denied_by_leases_total", "Requests that were denied only because leases held units"),
    ("ratelimit_lease_reports_total", "Reports of leases to the store"),
    ("ratelimit_lease_units_total", "Units of leases that were granted, and that were spent, returned or lost"),
    ("ratelimit_batch_size", "Operations in one call to the store"),
    ("ratelimit_batch_seconds", "Time of calls to the store"),
    ("ratelimit_batch_errors_total", "Failed calls to the store"),
    ("ratelimit_shed_total", "Decisions dropped uncharged, by cause"),
    ("ratelimit_breaker_open", "1 while the circuit breaker of the store is open"),
    ("ratelimit_breaker_opened_total", "Times that the circuit breaker opened"),
    ("ratelimit_memory_keys", "Stored keys that are not idle"),
    ("ratelimit_memory_capacity_keys", "Keys that the table can store"),
    ("ratelimit_memory_bytes", "Bytes of the table"),
    ("ratelimit_memory_held_keys", "Keys with held costs"),
    ("ratelimit_memory_held", "Sum of the held costs"),
    ("ratelimit_memory_evicted_total", "Keys that the full table evicted before they were idle"),
    ("ratelimit_warnings_total", "Misconfigurations found"),
];

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("limiter", &self.0.limiter).finish_non_exhaustive()
    }
}
