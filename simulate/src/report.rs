use std::cmp::Reverse;
use std::time::Duration;

use super::bounds::max_admitted;
use super::bursts::Admissions;
use super::traffic::Arrival;
use super::units::Counted;
use tower_ratelimit::config::Policy;
use tower_ratelimit::{Decision, LimitStatus, Timestamp, Verdict};

/// The decisions of a simulation in numbers.
///
/// A *key* is a distinct value in the columns by which the policies count.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The number of allowed requests, at once or after a delay.
    pub admitted: u64,
    /// The number of allowed requests that start after a delay.
    pub delayed: u64,
    /// The number of allowed requests that borrow, beside a [guaranteed share](tower_ratelimit::Limit::guarantee).
    pub borrowed: u64,
    /// How often a charge brought the usage of a limit to its [mark](tower_ratelimit::Limit::warn_at).
    pub near_limit: u64,
    /// The number of denied requests.
    pub denied: u64,
    /// How many of the denied requests [exceed the limit](Verdict::ExceedsLimit): they are denied at any time.
    pub exceeding: u64,
    /// The number of keys.
    pub keys: u64,
    /// How many keys were denied at least once.
    pub denied_keys: u64,
    /// The keys with the most denied requests, of equal keys those with the most requests, at most ten.
    pub top_keys: Vec<KeyReport>,
    /// The longest time for which one key was denied.
    ///
    /// A denial lasts until its `retry_after` or an admission of the key. A denial in this time prolongs it.
    pub longest_denial: Duration,
    /// The longest delay.
    pub longest_delay: Duration,
    /// The largest cost that was admitted for one key in any second, in any ten seconds, and in any minute. If all
    /// limits have a [fixed cost](tower_ratelimit::Limit::fixed_cost), it is the largest number of requests; if all
    /// limits have one unit, it is the largest cost in this unit.
    pub bursts: [Burst; 3],
}

/// The decisions on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyReport {
    /// The value, or the values in the order of the columns.
    pub key: String,
    /// The number of requests.
    pub requests: u64,
    /// The number of denied requests.
    pub denied: u64,
    /// The longest time for which the key was denied.
    pub longest_denial: Duration,
    /// The key's first arrival.
    pub first: Arrival,
}

/// The largest cost that was admitted for one key in an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Burst {
    /// The length of the half-open interval.
    pub interval: Duration,
    /// The largest cost. A delayed request counts at its start.
    pub admitted: u64,
    /// The maximum that the algorithm admits: see [`max_admitted`], of several limits the smallest. `None` if all
    /// limits are shadows. Limits that count another cost than the report and guaranteed shares have no part in it, and a
    /// limit that applies only to some requests only if it is the only limit.
    pub bound: Option<u64>,
}

impl Report {
    /// Returns the number of requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.admitted + self.denied
    }

    /// Returns the keys in [`top_keys`](Self::top_keys) that were denied.
    pub fn worst_keys(&self) -> impl Iterator<Item = &KeyReport> {
        self.top_keys.iter().filter(|key| key.denied > 0)
    }
}

/// How many keys a report lists.
const TOP_KEYS: usize = 10;

/// The lengths of the intervals in [`Report::bursts`].
const INTERVALS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60)];

/// Counts decisions.
pub(super) struct ReportBuilder<'a> {
    policies: &'a [Policy],
    counted: Counted<'a>,
    keys: Vec<KeyDecisions>,
    admissions: Admissions,
    delayed: u64,
    borrowed: u64,
    near_limit: u64,
    exceeding: u64,
    longest_delay: Duration,
    max_cost: u64,
}

impl<'a> ReportBuilder<'a> {
    pub(super) fn new(policies: &'a [Policy], keys: usize, arrivals: usize) -> Self {
        Self {
            policies,
            counted: Counted::of(policies),
            keys: vec![KeyDecisions::default(); keys],
            admissions: Admissions::with_capacity(arrivals),
            delayed: 0,
            borrowed: 0,
            near_limit: 0,
            exceeding: 0,
            longest_delay: Duration::ZERO,
            max_cost: 0,
        }
    }

    /// Adds a decision. `cost` is the cost of the arrival in the unit of the bursts.
    pub(super) fn add(&mut self, key: usize, arrival: &Arrival, cost: u64, decision: &Decision) {
        let verdict = decision.verdict();
        let Some(decisions) = self.keys.get_mut(key) else { return };
        decisions.add(arrival, verdict);
        let delay = match verdict {
            Verdict::Allowed => Duration::ZERO,
            Verdict::AllowedAfter(delay) => delay,
            Verdict::Denied { .. } => return,
            Verdict::ExceedsLimit => {
                self.exceeding += 1;
                return;
            }
        };
        self.delayed += u64::from(!delay.is_zero());
        self.longest_delay = self.longest_delay.max(delay);
        self.borrowed += u64::from(decision.limits().iter().any(LimitStatus::is_borrowing));
        self.near_limit += decision.limits().iter().filter(|limit| limit.crossed_mark()).count() as u64;
        self.max_cost = self.max_cost.max(cost);
        self.admissions.add(key, arrival.time.saturating_add(delay), cost);
    }

    /// Returns the maximum in the unit of the bursts, `None` if the policy counts in another unit.
    fn bound(&self, policy: &Policy, interval: Duration) -> Option<u64> {
        // Of several limits, one that applies only to some requests does not bound the others. A share bounds nothing.
        if policy.when().is_some() && self.policies.len() > 1 || policy.guarantee().is_some() {
            return None;
        }
        if !self.counted.is_of(policy) {
            return None;
        }
        match policy.fixed_cost() {
            None => max_admitted(policy, interval, self.max_cost),
            Some(cost) => max_admitted(policy, interval, cost)?.checked_div(cost),
        }
    }

    pub(super) fn finish(mut self, name: impl Fn(usize) -> String) -> Report {
        self.keys.iter_mut().for_each(|key| key.end_denial(Timestamp::MAX));
        let bounds = INTERVALS.map(|interval| {
            let enforced = self.policies.iter().filter(|policy| !policy.is_shadow());
            enforced.filter_map(|policy| self.bound(policy, interval)).min()
        });
        let admitted = self
            .admissions
            .into_largest(INTERVALS.map(|interval| u64::try_from(interval.as_micros()).unwrap_or(u64::MAX)));
        let burst =
            |index: usize| Burst { interval: INTERVALS[index], admitted: admitted[index], bound: bounds[index] };
        let denied_keys = self.keys.iter().filter(|key| key.denied > 0).count() as u64;
        let mut top: Vec<_> = self.keys.iter().enumerate().collect();
        // The sort is stable: of equal keys the one that came first is listed first.
        top.sort_by_key(|(_, key)| Reverse((key.denied, key.requests)));
        let top_keys = top.into_iter().filter_map(|(index, key)| key.report(|| name(index))).take(TOP_KEYS).collect();
        let sum = |count: fn(&KeyDecisions) -> u64| self.keys.iter().map(count).sum();
        Report {
            admitted: sum(|key| key.requests - key.denied),
            delayed: self.delayed,
            borrowed: self.borrowed,
            near_limit: self.near_limit,
            denied: sum(|key| key.denied),
            exceeding: self.exceeding,
            keys: self.keys.len() as u64,
            denied_keys,
            top_keys,
            longest_denial: self.keys.iter().map(|key| key.longest_denial).max().unwrap_or_default(),
            longest_delay: self.longest_delay,
            bursts: [0, 1, 2].map(burst),
        }
    }
}

/// The decisions on one key.
#[derive(Clone, Default)]
struct KeyDecisions {
    first: Option<Arrival>,
    requests: u64,
    denied: u64,
    longest_denial: Duration,
    /// Start and end of the current denial.
    denial: Option<(Timestamp, Timestamp)>,
}

impl KeyDecisions {
    fn add(&mut self, arrival: &Arrival, verdict: Verdict) {
        let now = arrival.time;
        self.first.get_or_insert(*arrival);
        self.requests += 1;
        self.denied += u64::from(!verdict.is_allowed());
        if let Some((_, end)) = self.denial
            && (verdict.is_allowed() || now >= end)
        {
            self.end_denial(now);
        }
        if let Verdict::Denied { retry_after } = verdict {
            let end = now.saturating_add(retry_after);
            self.denial = Some(self.denial.map_or((now, end), |(start, previous)| (start, end.max(previous))));
        }
    }

    fn end_denial(&mut self, now: Timestamp) {
        if let Some((start, end)) = self.denial.take() {
            self.longest_denial = self.longest_denial.max(now.min(end).saturating_since(start));
        }
    }

    /// Returns `None` for a key without requests.
    fn report(&self, name: impl Fn() -> String) -> Option<KeyReport> {
        let Self { requests, denied, longest_denial, .. } = *self;
        Some(KeyReport { key: name(), requests, denied, longest_denial, first: self.first? })
    }
}
