//! `RateLimit` and `RateLimit-Policy`: draft-ietf-httpapi-ratelimit-headers-10.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::decision::{LimitSnapshot, LimitStatus, Verdict, ceil_seconds};
use crate::observe::Observers;

pub(super) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The two headers of one response.
#[derive(Debug)]
pub(super) struct RateLimitHeaders {
    policy: Arc<PolicyValue>,
    remaining: RemainingValues,
}

/// The varying part of `RateLimit`, per limit of the policy. A single limit is stored inline: no allocation.
#[derive(Debug)]
enum RemainingValues {
    One(RemainingValue),
    Several(Vec<RemainingValue>),
}

/// The parameters `r` and `t` of a limit: what remains, and the seconds until more is available.
#[derive(Clone, Copy, Debug)]
struct RemainingValue {
    remaining: u64,
    next_token_after: u64,
}

impl RateLimitHeaders {
    /// Returns `None` if there is no limit that is not a shadow.
    pub(super) fn new(limits: &[LimitStatus]) -> Option<Self> {
        match limits {
            [one] if !one.is_shadow() => {
                let fields = LimitFields::new(one);
                Some(Self { remaining: RemainingValues::One(fields.remaining), policy: policy_value(&[fields])? })
            }
            several => {
                let fields: Vec<_> = several.iter().filter(|limit| !limit.is_shadow()).map(LimitFields::new).collect();
                let policy = if fields.is_empty() { None } else { policy_value(&fields) }?;
                let remaining = RemainingValues::Several(fields.iter().map(|fields| fields.remaining).collect());
                Some(Self { policy, remaining })
            }
        }
    }

    /// Appends both headers to the values of a handler or another limiter.
    ///
    /// Emits a warning if these values already contain the name of a limit.
    pub(super) fn add(&self, headers: &mut HeaderMap, observers: &Observers) {
        observers.warn_once(|| self.policy.repeated_name(headers).map(warning));
        headers.append(RATELIMIT_POLICY, self.policy.value.clone());
        if let Some(value) = self.rate_limit_value() {
            headers.append(RATELIMIT, value);
        }
    }

    fn rate_limit_value(&self) -> Option<HeaderValue> {
        let items = &self.policy.items;
        match &self.remaining {
            RemainingValues::One(one) => header_value(items.first()?.member(*one)),
            RemainingValues::Several(several) => {
                let members: Vec<_> = items.iter().zip(several).map(|(item, &value)| item.member(value)).collect();
                header_value(members.join(SEPARATOR))
            }
        }
    }
}

/// The parts of a limit status that the headers contain.
struct LimitFields<'a> {
    name: &'a str,
    limit: u64,
    window: Duration,
    remaining: RemainingValue,
}

impl<'a> LimitFields<'a> {
    fn new(status: &'a LimitStatus) -> Self {
        let snapshot = status.snapshot();
        let LimitSnapshot { limit, window, remaining, .. } = snapshot;
        let next_token_after = ceil_seconds(next_token_after(status.verdict(), &snapshot));
        let remaining =
            RemainingValue { remaining: sf_integer(remaining), next_token_after: sf_integer(next_token_after) };
        Self { name: status.name(), limit, window, remaining }
    }
}

/// Returns the time until more is available, at most the time after which a retry succeeds.
fn next_token_after(verdict: Verdict, snapshot: &LimitSnapshot) -> Duration {
    match verdict {
        Verdict::Denied { retry_after } => snapshot.next_token_after.min(retry_after),
        _ => snapshot.next_token_after,
    }
}

thread_local! {
    /// Most servers send the same few policies in all responses.
    static CACHE: RefCell<PolicyCache> = const { RefCell::new(PolicyCache::new()) };
}

/// Returns the policy of these limits from this thread's cache. Builds a new policy if the cache is destroyed or
/// borrowed.
fn policy_value(limits: &[LimitFields<'_>]) -> Option<Arc<PolicyValue>> {
    let cached = CACHE.try_with(|cache| cache.try_borrow_mut().ok()?.get(limits));
    cached.ok().flatten().or_else(|| PolicyValue::new(limits))
}

/// The policies that this thread has sent most recently.
struct PolicyCache {
    policies: Vec<Arc<PolicyValue>>,
    /// The index that the next insertion replaces.
    oldest: usize,
}

impl PolicyCache {
    const MAX_POLICIES: usize = 4;

    const fn new() -> Self {
        Self { policies: Vec::new(), oldest: 0 }
    }

    fn get(&mut self, limits: &[LimitFields<'_>]) -> Option<Arc<PolicyValue>> {
        match self.policies.iter().find(|policy| policy.matches(limits)) {
            Some(cached) => Some(Arc::clone(cached)),
            None => self.insert(limits),
        }
    }

    #[cold]
    fn insert(&mut self, limits: &[LimitFields<'_>]) -> Option<Arc<PolicyValue>> {
        let policy = PolicyValue::new(limits)?;
        match self.policies.get_mut(self.oldest) {
            Some(oldest) => *oldest = Arc::clone(&policy),
            None => self.policies.push(Arc::clone(&policy)),
        }
        self.oldest = (self.oldest + 1) % Self::MAX_POLICIES;
        Some(policy)
    }
}

/// The constant parts of both headers for the same limits.
#[derive(Debug)]
struct PolicyValue {
    items: Vec<PolicyItem>,
    /// The value of `RateLimit-Policy`.
    value: HeaderValue,
}

impl PolicyValue {
    fn new(limits: &[LimitFields<'_>]) -> Option<Arc<Self>> {
        let items: Vec<_> = limits.iter().map(PolicyItem::new).collect();
        let members: Vec<_> = items.iter().map(|item| &*item.policy).collect();
        let value = header_value(members.join(SEPARATOR))?;
        Some(Arc::new(Self { items, value }))
    }

    /// Returns the first limit's name that `headers`, or two limits of this policy, already contain.
    fn repeated_name(&self, headers: &HeaderMap) -> Option<&str> {
        let mut items = self.items.iter().enumerate();
        let is_repeated = |(index, item): &(usize, &PolicyItem)| {
            item.is_in(headers) || self.items[..*index].iter().any(|other| other.name == item.name)
        };
        items.find(is_repeated).map(|(_, item)| item.name.as_str())
    }

    fn matches(&self, limits: &[LimitFields<'_>]) -> bool {
        self.items.len() == limits.len() && self.items.iter().zip(limits).all(|(item, limit)| item.matches(limit))
    }
}

#[derive(Debug)]
struct PolicyItem {
    name: String,
    limit: u64,
    window: Duration,
    /// The member of `RateLimit-Policy`: `"default";q=10;w=1`, or without a window
    /// `"default";q=10;qu="concurrent-requests"`.
    policy: String,
    /// The start of the member of `RateLimit`: `"default";r=`.
    state: String,
}

impl PolicyItem {
    fn new(&LimitFields { name, limit, window, .. }: &LimitFields<'_>) -> Self {
        // A structured field String (RFC 9651, section 3.3.3). Names of limits need no escapes.
        let q = sf_integer(limit);
        let policy = if window.is_zero() {
            format!("\"{name}\";q={q};qu=\"concurrent-requests\"")
        } else {
            format!("\"{name}\";q={q};w={}", sf_integer(ceil_seconds(window)))
        };
        let state = format!("\"{name}\";r=");
        Self { name: name.to_owned(), limit, window, policy, state }
    }

    /// Returns the member of `RateLimit`.
    ///
    /// The string has no spare capacity: `Bytes` would make one more allocation.
    fn member(&self, RemainingValue { remaining, next_token_after }: RemainingValue) -> String {
        let mut buffers = [itoa::Buffer::new(), itoa::Buffer::new()];
        let [r, t] = &mut buffers;
        let (separator, t) = if next_token_after > 0 { (";t=", t.format(next_token_after)) } else { ("", "") };
        let r = r.format(remaining);
        let mut member = String::with_capacity(self.state.len() + r.len() + separator.len() + t.len());
        member.push_str(&self.state);
        member.push_str(r);
        member.push_str(separator);
        member.push_str(t);
        member
    }

    /// Whether one of the two headers has a member of this name.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut lines = [RATELIMIT, RATELIMIT_POLICY].into_iter().flat_map(|name| headers.get_all(name));
        lines.any(|line| {
            let mut is_quoted = false;
            let mut members = line.as_bytes().split(|&byte| {
                is_quoted ^= byte == b'"';
                byte == b',' && !is_quoted
            });
            members.any(|member| self.names(member))
        })
    }

    /// Whether `member` is a String of this name, with or without parameters.
    fn names(&self, member: &[u8]) -> bool {
        let rest = member.trim_ascii().strip_prefix(b"\"").and_then(|rest| rest.strip_prefix(self.name.as_bytes()));
        matches!(rest, Some([b'"'] | [b'"', b';', ..]))
    }

    fn matches(&self, limit: &LimitFields<'_>) -> bool {
        self.limit == limit.limit && self.window == limit.window && self.name == limit.name
    }
}

/// Between the members of a structured field List.
const SEPARATOR: &str = ", ";

fn warning(name: &str) -> String {
    format!(
        "ambiguous RateLimit and RateLimit-Policy headers: two limits are named {name:?}; give each limit its own name \
         with `Limit::new`"
    )
}

/// Caps a number: a structured field Integer has at most 15 digits.
fn sf_integer(number: u64) -> u64 {
    number.min(999_999_999_999_999)
}

/// Never `None`: the list holds visible ASCII and spaces only.
fn header_value(list: String) -> Option<HeaderValue> {
    HeaderValue::from_maybe_shared(Bytes::from(list)).ok()
}
