use std::time::Duration;

use super::altered::altered;
use super::report::Report;
use super::share::Share;
use super::simulation::Simulation;
use super::traffic::{Arrival, Traffic};
use tower_ratelimit::Error;
use tower_ratelimit::Quota;
use tower_ratelimit::config::{AlgorithmName, Policy};

/// How much of the traffic a suggested policy may deny.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxDenied {
    /// At most this number of keys. No request of the other keys is denied.
    Keys(u64),
    /// At most this number of requests, whichever keys they have.
    Requests(u64),
}

impl MaxDenied {
    /// Returns a share of the keys of a policy: rounded up, but never all keys.
    ///
    /// So with few keys a positive share still leaves out the heaviest key.
    ///
    /// # Errors
    ///
    /// Returns an error if the traffic has no column for the policy.
    pub fn share_of_keys(share: Share, policy: &Policy, traffic: &Traffic) -> Result<Self, Error> {
        let keys = Simulation::alone(policy, traffic)?.keys();
        Ok(Self::Keys(share.rounded_up(keys).min(keys.saturating_sub(1))))
    }

    /// Returns a share of the requests, rounded down.
    #[must_use]
    pub fn share_of_requests(share: Share, traffic: &Traffic) -> Self {
        Self::Requests(share.rounded_down(traffic.len() as u64))
    }
}

/// A policy with the smallest limit, burst or queue that denies at most a given number of keys or requests.
///
/// With a value that is smaller by one, it denies more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Suggestion {
    /// The policy.
    pub policy: Policy,
    /// The decisions of the policy by itself.
    pub report: Report,
}

/// Suggests policies that deny at most `max_denied` keys or requests of the traffic.
///
/// A number of requests is a poor measure of traffic that contains abuse: one client with a burst of thousands of
/// requests determines the result. With a number of keys, this client is one key.
///
/// For a window or a log, it is one policy: the period of `policy` with the smallest limit. For a bucket, it is the
/// smallest burst for each of five rates: a quarter, half, one, two and four times that of `policy`. For a queue, it is
/// the smallest `max_waiting` for each of these rates. A rate for which no valid value is large enough is omitted.
///
/// The search runs a simulation for each candidate, and halves the range of candidates each time.
///
/// ```
/// use tower_ratelimit::Timestamp;
/// use tower_ratelimit::config::Policy;
/// use tower_ratelimit_simulate::{MaxDenied, Traffic, suggest};
///
/// let policy: Policy = serde_json::from_str(
///     r#"{ "name": "api", "algorithm": "sliding-log", "quota": "1/min", "by": "user" }"#,
/// )?;
/// let mut traffic = Traffic::for_policies([&policy]);
/// for second in 0..60 {
///     traffic.push(Timestamp::from_micros(second * 1_000_000), &["alice"], 1);
/// }
/// let suggestions = suggest(&policy, &traffic, MaxDenied::Requests(6))?;
/// assert_eq!(suggestions[0].policy.quota(), Some("54/min".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Returns an error if the traffic has no column for the policy.
pub fn suggest(policy: &Policy, traffic: &Traffic, max_denied: MaxDenied) -> Result<Vec<Suggestion>, Error> {
    // An error of the policy itself is not one of a candidate.
    Simulation::alone(policy, traffic)?;
    let arrivals = traffic.arrivals();
    let search = Search { traffic, arrivals: &arrivals, max_denied };
    let Some(quota) = policy.quota().filter(|_| policy.calendar().is_none()) else { return Ok(Vec::new()) };
    let found: Vec<_> = match Setting::of(policy) {
        setting @ Setting::Limit => vec![search.smallest(setting, policy, quota)],
        setting => rates(quota).into_iter().map(|rate| search.smallest(setting, policy, rate)).collect(),
    };
    Ok(found.into_iter().flatten().collect())
}

/// Returns a quarter, half, one, two and four times the rate; a rate that is no valid quota is omitted.
fn rates(quota: Quota) -> Vec<Quota> {
    let with = |times: u64, periods: u32| {
        let period = quota.period().checked_mul(periods).unwrap_or(Duration::MAX);
        Quota::try_new(quota.limit().saturating_mul(times), period).ok()
    };
    [with(1, 4), with(1, 2), with(1, 1), with(2, 1), with(4, 1)].into_iter().flatten().collect()
}

/// The setting that the search chooses.
#[derive(Clone, Copy)]
enum Setting {
    Limit,
    Burst,
    MaxWaiting,
}

impl Setting {
    fn of(policy: &Policy) -> Self {
        match policy.algorithm() {
            AlgorithmName::Gcra | AlgorithmName::TokenBucket | AlgorithmName::LeakyBucket => Self::Burst,
            AlgorithmName::LeakyQueue => Self::MaxWaiting,
            _ => Self::Limit,
        }
    }

    /// Returns the policy with this quota and this value of the setting.
    fn set(self, policy: &Policy, quota: Quota, value: u64) -> Result<Policy, Error> {
        match self {
            Self::Limit => {
                let quota = Quota::try_new(value, quota.period())?;
                altered(policy, [("quota", quota.to_string().into())])
            }
            Self::Burst => altered(policy, [("quota", quota.to_string().into()), ("burst", value.into())]),
            Self::MaxWaiting => altered(policy, [("quota", quota.to_string().into()), ("max_waiting", value.into())]),
        }
    }
}

struct Search<'a> {
    traffic: &'a Traffic,
    arrivals: &'a [Arrival],
    max_denied: MaxDenied,
}

impl Search<'_> {
    /// Returns the smallest value that suffices for this quota, `None` if no valid value does.
    fn smallest(&self, setting: Setting, policy: &Policy, quota: Quota) -> Option<Suggestion> {
        let candidate = |value| setting.set(policy, quota, value).ok();
        let suffices = |value| {
            let simulation = candidate(value).and_then(|policy| Simulation::alone(&policy, self.traffic).ok());
            simulation.map(|simulation| simulation.denies_at_most(self.max_denied, self.arrivals))
        };
        // With the whole cost of the traffic nothing is denied.
        let simulation = Simulation::alone(policy, self.traffic).ok()?;
        let cost = |arrival: &Arrival| policy.fixed_cost().unwrap_or_else(|| simulation.counted_cost(arrival));
        let total = self.arrivals.iter().fold(1_u64, |total, arrival| total.saturating_add(cost(arrival)));
        // A queue may have no waiters. A limit or a burst of zero is invalid.
        let is_zero_enough = matches!(setting, Setting::MaxWaiting) && suffices(0)?;
        let (mut too_small, mut enough) = (0, u64::from(!is_zero_enough));
        while enough > 0 && !suffices(enough)? {
            if enough >= total {
                return None;
            }
            (too_small, enough) = (enough, enough.saturating_mul(2).min(total));
        }
        while enough - too_small > 1 {
            let middle = too_small + (enough - too_small) / 2;
            if suffices(middle)? { enough = middle } else { too_small = middle }
        }
        let policy = candidate(enough)?;
        let report = Simulation::alone(&policy, self.traffic).ok()?.run();
        Some(Suggestion { policy, report })
    }
}
