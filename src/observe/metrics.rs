use std::fmt;
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::event::{Event, Kind};
use super::observer::Observer;

/// Counts and measures by the [`metrics`] facade (feature `metrics`), whose exporters write for Prometheus and others.
///
/// All names, units and labels are in [docs/metrics.md](https://docs.rs/crate/tower-ratelimit/latest/source/docs/metrics.md).
/// Their labels are what programs say, never what clients send; of names of limits at most
/// [`MAX_LIMITS`](Self::MAX_LIMITS) are told apart.
///
/// Install the recorder before the first request: what is counted earlier goes nowhere, and later too.
///
/// ```
/// use tower_ratelimit::observe::Metrics;
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
/// let layer = RateLimitLayer::new(PeerIp::new(), limiter).observe(Metrics::new("api"));
/// ```
#[derive(Clone)]
pub struct Metrics(Arc<Shared>);

struct Shared {
    limiter: Arc<str>,
    /// Those of the requests, by the limit that spoke.
    requests: ArcSwap<Vec<Arc<Requests>>>,
    described: Once,
    // Made when they are needed first, as those of the requests.
    waits: OnceLock<(Gauge, Histogram)>,
    settled: OnceLock<[Counter; 3]>,
    batches: OnceLock<(Histogram, Histogram, Counter)>,
}

/// The counters of one limit.
struct Requests {
    limit: String,
    /// By outcome and source, each made when it is needed first: so that no page lists what never happens.
    counts: [[OnceLock<Counter>; SOURCES.len()]; OUTCOMES],
    decided: [OnceLock<Histogram>; SOURCES.len()],
    shadow: OnceLock<Counter>,
}

/// What a label says where there is nothing to say.
const NONE: &str = "none";
const OUTCOMES: usize = Kind::Abandoned as usize + 1;
const SOURCES: [&str; 5] = ["store", "cache", "fallback", "policy", NONE];

impl Metrics {
    /// How many names of limits are told apart. Further ones are all counted as `other`.
    pub const MAX_LIMITS: usize = 100;

    /// Metrics with the label `limiter` of this value, which tells several layers apart.
    #[must_use]
    pub fn new(limiter: &str) -> Self {
        Self(Arc::new(Shared {
            limiter: limiter.into(),
            requests: ArcSwap::default(),
            described: Once::new(),
            waits: OnceLock::new(),
            settled: OnceLock::new(),
            batches: OnceLock::new(),
        }))
    }
}

impl Shared {
    fn limiter(&self) -> String {
        self.limiter.as_ref().to_owned()
    }

    fn waits(&self) -> &(Gauge, Histogram) {
        self.waits.get_or_init(|| {
            (
                gauge!("ratelimit_waiters", "limiter" => self.limiter()),
                histogram!("ratelimit_wait_seconds", "limiter" => self.limiter()),
            )
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

    fn batch(&self, orders: usize, took: Duration, is_error: bool) {
        let (sizes, times, errors) = self.batches.get_or_init(|| {
            (
                histogram!("ratelimit_batch_orders", "limiter" => self.limiter()),
                histogram!("ratelimit_batch_seconds", "limiter" => self.limiter()),
                counter!("ratelimit_batch_errors_total", "limiter" => self.limiter()),
            )
        });
        sizes.record(f64::from(u32::try_from(orders).unwrap_or(u32::MAX)));
        times.record(took);
        errors.increment(u64::from(is_error));
    }

    fn breaker(&self, store: &str, is_open: bool) {
        let labels = [("limiter", self.limiter()), ("store", store.to_owned())];
        counter!("ratelimit_breaker_opened_total", &labels).increment(u64::from(is_open));
        gauge!("ratelimit_breaker_open", &labels).set(f64::from(u8::from(is_open)));
    }

    #[allow(clippy::cast_precision_loss, reason = "a gauge is a double")]
    fn usage(&self, limit: &str, gauges: [(&'static str, u64); 5], forgotten: u64) {
        let labels = [("limiter", self.limiter()), ("limit", limit.to_owned())];
        for (name, value) in gauges {
            gauge!(name, &labels).set(value as f64);
        }
        counter!("ratelimit_memory_forgotten_total", &labels).absolute(forgotten);
    }

    fn requests_of(&self, limit: &str) -> Arc<Requests> {
        if let Some(known) = find(&self.requests.load(), limit) {
            return Arc::clone(known);
        }
        self.requests.rcu(|known| {
            let mut all = Vec::clone(known);
            if find(&all, limit).is_none() {
                let limit = if all.len() < Metrics::MAX_LIMITS { limit } else { OTHER };
                all.push(Arc::new(Requests::of(limit)));
            }
            all
        });
        let all = self.requests.load();
        Arc::clone(find(&all, limit).unwrap_or(&all[all.len() - 1]))
    }

    /// One request has ended.
    fn count(&self, event: &Event<'_>, kind: Kind, took: Option<Duration>) {
        let limit = event.limit().unwrap_or(NONE);
        let name = event.source().unwrap_or(NONE);
        let source = SOURCES.iter().position(|known| *known == name).unwrap_or(SOURCES.len() - 1);
        let known = self.requests.load();
        // The guard saves counting references up and down.
        if let Some(requests) = find(&known, limit) {
            self.count_in(requests, kind, source, took);
        } else {
            drop(known);
            self.count_in(&self.requests_of(limit), kind, source, took);
        }
    }

    fn count_in(&self, requests: &Requests, kind: Kind, source: usize, took: Option<Duration>) {
        let limit = || requests.limit.clone();
        let counter = requests.counts[kind as usize][source].get_or_init(|| {
            counter!(
                "ratelimit_requests_total",
                "limiter" => self.limiter(), "limit" => limit(), "outcome" => kind.name(), "source" => SOURCES[source]
            )
        });
        counter.increment(1);
        if let Some(took) = took {
            let histogram = requests.decided[source].get_or_init(|| {
                histogram!(
                    "ratelimit_decision_seconds",
                    "limiter" => self.limiter(), "limit" => limit(), "source" => SOURCES[source]
                )
            });
            histogram.record(took);
        }
    }

    fn shadow_refusal(&self, limit: &str) {
        let requests = self.requests_of(limit);
        let counter = requests.shadow.get_or_init(|| {
            let limit = requests.limit.clone();
            counter!("ratelimit_shadow_refusals_total", "limiter" => self.limiter(), "limit" => limit)
        });
        counter.increment(1);
    }
}

const OTHER: &str = "other";

fn find<'a>(known: &'a [Arc<Requests>], limit: &str) -> Option<&'a Arc<Requests>> {
    let exact = known.iter().find(|requests| requests.limit == limit);
    exact.or_else(|| known.get(Metrics::MAX_LIMITS))
}

impl Requests {
    fn of(limit: &str) -> Self {
        Self {
            limit: limit.to_owned(),
            counts: [const { [const { OnceLock::new() }; SOURCES.len()] }; OUTCOMES],
            decided: [const { OnceLock::new() }; SOURCES.len()],
            shadow: OnceLock::new(),
        }
    }
}

impl Observer for Metrics {
    fn observe(&self, event: &Event<'_>) {
        let shared = &*self.0;
        shared.described.call_once(describe);
        match *event {
            Event::Decided { decision, took } => {
                if let Some(kind) = event.kind() {
                    shared.count(event, kind, took);
                }
                decision.shadow_denials().for_each(|standing| shared.shadow_refusal(standing.name()));
            }
            Event::Failed { took, .. } => shared.count(event, Kind::Failed, took),
            Event::MissingKey { by_server, forwarded, .. } => {
                shared.count(event, if forwarded { Kind::MissingExempt } else { Kind::Missing }, None);
                if by_server {
                    counter!("ratelimit_misassembled_total", "limiter" => shared.limiter()).increment(1);
                }
            }
            Event::Exempt => shared.count(event, Kind::Exempt, None),
            Event::Abandoned { .. } => shared.count(event, Kind::Abandoned, None),
            Event::WaitStarted => shared.waits().0.increment(1.0),
            Event::WaitEnded { waited } => {
                shared.waits().0.decrement(1.0);
                shared.waits().1.record(waited);
            }
            Event::Settled { held, actual } => shared.settled(held, actual),
            Event::Batch { orders, took, error, .. } => shared.batch(orders, took, error.is_some()),
            Event::Breaker { store, open } => shared.breaker(store, open.is_some()),
            Event::HoldsExpired { count, .. } => {
                counter!("ratelimit_holds_expired_total", "limiter" => shared.limiter())
                    .increment(u64::try_from(count).unwrap_or(u64::MAX));
            }
            Event::Usage { limit, live_keys, room, bytes, forgotten, held_keys, held } => {
                let gauges = [
                    ("ratelimit_memory_keys", live_keys as u64),
                    ("ratelimit_memory_room_keys", room as u64),
                    ("ratelimit_memory_bytes", bytes as u64),
                    ("ratelimit_memory_held_keys", held_keys as u64),
                    ("ratelimit_memory_held", held),
                ];
                shared.usage(limit, gauges, forgotten);
            }
            Event::Warning { .. } => {
                counter!("ratelimit_warnings_total", "limiter" => shared.limiter()).increment(1);
            }
        }
    }
}

/// Tells the recorder what each of them is, as docs/metrics.md does.
fn describe() {
    describe_counter!("ratelimit_requests_total", Unit::Count, "Requests, by what became of them");
    describe_counter!(
        "ratelimit_shadow_refusals_total",
        Unit::Count,
        "Requests that a shadow limit would have refused"
    );
    describe_counter!(
        "ratelimit_misassembled_total",
        Unit::Count,
        "Requests whose key is missing by the server's fault"
    );
    describe_histogram!(
        "ratelimit_decision_seconds",
        Unit::Seconds,
        "How long decisions took that were not ready at once"
    );
    describe_gauge!("ratelimit_waiters", Unit::Count, "Requests that wait for their turn");
    describe_histogram!("ratelimit_wait_seconds", Unit::Seconds, "How long requests have waited for their turn");
    describe_counter!(
        "ratelimit_settled_total",
        Unit::Count,
        "Held cost that was charged when its request was settled"
    );
    describe_counter!(
        "ratelimit_released_total",
        Unit::Count,
        "Held cost that was released when its request was settled"
    );
    describe_counter!("ratelimit_surcharged_total", Unit::Count, "Cost that was charged beyond the held cost");
    describe_counter!(
        "ratelimit_holds_expired_total",
        Unit::Count,
        "Holds that the store settled whole, as no process renewed them"
    );
    describe_histogram!("ratelimit_batch_orders", Unit::Count, "How many orders went to the store in one call");
    describe_histogram!("ratelimit_batch_seconds", Unit::Seconds, "How long calls of the store took");
    describe_counter!("ratelimit_batch_errors_total", Unit::Count, "Calls of the store that were not answered");
    describe_gauge!("ratelimit_breaker_open", "1 while the store is not asked, as it does not answer");
    describe_counter!("ratelimit_breaker_opened_total", Unit::Count, "How often the store was found not to answer");
    describe_gauge!("ratelimit_memory_keys", Unit::Count, "Keys that are remembered and not as good as new");
    describe_gauge!("ratelimit_memory_room_keys", Unit::Count, "For how many keys there is room");
    describe_gauge!("ratelimit_memory_bytes", Unit::Bytes, "The bytes of a limit's table");
    describe_gauge!("ratelimit_memory_held_keys", Unit::Count, "Keys on which costs are held");
    describe_gauge!("ratelimit_memory_held", Unit::Count, "The sum of the held costs");
    describe_counter!("ratelimit_memory_forgotten_total", Unit::Count, "Keys that were forgotten for lack of room");
    describe_counter!("ratelimit_warnings_total", Unit::Count, "Misconfigurations found");
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("limiter", &self.0.limiter).finish_non_exhaustive()
    }
}
