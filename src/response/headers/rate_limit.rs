//! `RateLimit` and `RateLimit-Policy`: draft-ietf-httpapi-ratelimit-headers-11.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::decision::{LimitSnapshot, LimitStatus, NearLimit, Verdict, ceil_seconds};
use crate::observe::{Observers, WarningKind};
use crate::scratch::with_scratch;

pub(super) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The two headers of one response.
#[derive(Debug)]
pub(super) struct RateLimitHeaders {
    policy: Policy,
    /// The value of `RateLimit`.
    rate_limit: HeaderValue,
}

impl RateLimitHeaders {
    /// Returns `None` if no limit takes part in the decision: shadows, and shares from which the request borrows, do not.
    pub(super) fn new(limits: &[LimitStatus]) -> Option<Self> {
        let takes_part = |limit: &LimitStatus| !limit.is_shadow() && !limit.is_borrowing();
        let (one, several);
        // The common case allocates nothing.
        let limits = if let [limit] = limits
            && takes_part(limit)
        {
            one = [LimitFields::new(limit)];
            &one[..]
        } else {
            let is_field = |limit: &&LimitStatus| takes_part(limit) && !limit.near().has(NearLimit::LISTED_AS_NEAR);
            several = limits.iter().filter(is_field).map(LimitFields::new).collect::<Vec<_>>();
            &several
        };
        if limits.is_empty() {
            return None;
        }
        let policy = Policy::of(limits)?;
        let rate_limit = with_scratch(&BUFFER, |buffer| {
            policy.rate_limit(limits, buffer.get_or_insert_with(|| BytesMut::with_capacity(BUFFER_BYTES)))
        })?;
        Some(Self { policy, rate_limit })
    }

    /// Appends both headers to the values of a handler or another limiter.
    ///
    /// Emits a warning if these values already contain the name of a limit.
    pub(super) fn add(self, headers: &mut HeaderMap, observers: &Observers) {
        observers.warn_once(WarningKind::RepeatedLimitName, || self.policy.repeated_name(headers).map(warning));
        headers.append(RATELIMIT_POLICY, self.policy.value.clone());
        headers.append(RATELIMIT, self.rate_limit);
    }
}

/// The parts of a limit status that the headers contain.
struct LimitFields<'a> {
    name: &'a str,
    limit: u64,
    window: Option<Duration>,
    /// The parameter `r`: what remains.
    remaining: u64,
    /// The parameter `t`: the seconds until more is available. Zero is left out.
    next_token_after: u64,
}

impl<'a> LimitFields<'a> {
    fn new(status: &'a LimitStatus) -> Self {
        let LimitSnapshot { limit, window, remaining, next_token_after, .. } = client_snapshot(status);
        let seconds = if next_token_after < Duration::from_secs(1) { 0 } else { ceil_seconds(next_token_after) };
        let (remaining, next_token_after) = (sf_integer(remaining), sf_integer(seconds));
        Self { name: status.name(), limit, window, remaining, next_token_after }
    }
}

/// Returns the numbers that a client reads: those that it can use.
///
/// More is available after `next_token_after`, at the latest when a retry succeeds. Under a block nothing remains, and
/// nothing becomes available before its end, whatever the usage is.
pub(super) fn client_snapshot(status: &LimitStatus) -> LimitSnapshot {
    let mut snapshot = status.snapshot();
    let retry_after = match status.verdict() {
        Verdict::Denied { retry_after } => retry_after,
        _ if status.is_blocked() => Duration::ZERO,
        _ => return snapshot,
    };
    if status.is_blocked() {
        snapshot.remaining = 0;
        snapshot.next_token_after = retry_after;
        snapshot.reset = snapshot.reset.max(retry_after);
    } else {
        snapshot.next_token_after = snapshot.next_token_after.min(retry_after);
    }
    snapshot
}

thread_local! {
    /// The values of `RateLimit` are slices of this buffer, which is used again when its values are dropped: no allocation
    /// per value. Row "service, default" of benches/figures.md.
    static BUFFER: Cell<Option<BytesMut>> = const { Cell::new(None) };
}

/// Each value in use keeps the buffer that holds it, so the buffer is small: some 40 values.
const BUFFER_BYTES: usize = 1024;

/// The first policies of a process are kept for its life: a response then counts no references to its policy.
// Row "service, allowed" of benches/figures.md: four atomic operations less, of six.
#[derive(Debug)]
enum Policy {
    Kept(&'static PolicyValue),
    OfResponse(Box<PolicyValue>),
}

impl Policy {
    /// The number of policies that are kept, and the maximum length of each. Most servers have fewer. The numbers of a
    /// policy can depend on clients, if they choose an algorithm.
    const MAX_KEPT: usize = 64;
    const MAX_KEPT_BYTES: usize = 1024;

    /// Returns the policy of these limits: one that is kept, or a new one.
    fn of(limits: &[LimitFields<'_>]) -> Option<Self> {
        static KEPT: [OnceLock<PolicyValue>; Policy::MAX_KEPT] = [const { OnceLock::new() }; Policy::MAX_KEPT];
        let mut kept = KEPT.iter().map_while(OnceLock::get);
        if let Some(known) = kept.find(|known| known.matches(limits)) {
            return Some(Self::Kept(known));
        }
        let items: Vec<_> = limits.iter().map(PolicyItem::new).collect();
        let value = items.iter().map(|item| &*item.policy).collect::<Vec<_>>().join(SEPARATOR);
        let free = KEPT.iter().find(|slot| slot.get().is_none());
        let Some(free) = free.filter(|_| value.len() <= Self::MAX_KEPT_BYTES) else {
            let value = header_value(Bytes::from(value))?;
            return Some(Self::OfResponse(Box::new(PolicyValue { items, value })));
        };
        let value = header_value(Bytes::from_static(value.leak().as_bytes()))?;
        // Another thread may have filled the slot, with this policy or with another one.
        let _ = free.set(PolicyValue { items, value });
        Self::of(limits)
    }
}

impl Deref for Policy {
    type Target = PolicyValue;

    #[inline]
    fn deref(&self) -> &PolicyValue {
        match self {
            Self::Kept(policy) => policy,
            Self::OfResponse(policy) => policy,
        }
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
    /// Returns the value of `RateLimit`.
    fn rate_limit(&self, limits: &[LimitFields<'_>], buffer: &mut BytesMut) -> Option<HeaderValue> {
        for (index, (item, limit)) in self.items.iter().zip(limits).enumerate() {
            if index > 0 {
                buffer.extend_from_slice(SEPARATOR.as_bytes());
            }
            item.write_member(limit, buffer);
        }
        header_value(buffer.split().freeze())
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
    window: Option<Duration>,
    /// The member of `RateLimit-Policy`: `"default";q=10;w=1`, without whole seconds `"default";q=10`, or without a
    /// window `"default";q=10;qu="concurrent-requests"`.
    policy: String,
    /// The start of the member of `RateLimit`: `"default";r=`.
    state: String,
}

impl PolicyItem {
    fn new(&LimitFields { name, limit, window, .. }: &LimitFields<'_>) -> Self {
        // A structured field String (RFC 9651, section 3.3.3). Names of limits need no escapes.
        let q = sf_integer(limit);
        let policy = match window.map(|window| whole_seconds(window).filter(|_| q == limit)) {
            None => format!("\"{name}\";q={q};qu=\"concurrent-requests\""),
            Some(None) => format!("\"{name}\";q={q}"),
            Some(Some(seconds)) => format!("\"{name}\";q={q};w={seconds}"),
        };
        let state = format!("\"{name}\";r=");
        Self { name: name.to_owned(), limit, window, policy, state }
    }

    /// Writes the member of `RateLimit`.
    fn write_member(&self, limit: &LimitFields<'_>, buffer: &mut BytesMut) {
        let mut digits = itoa::Buffer::new();
        buffer.extend_from_slice(self.state.as_bytes());
        buffer.extend_from_slice(digits.format(limit.remaining).as_bytes());
        if limit.next_token_after > 0 {
            buffer.extend_from_slice(b";t=");
            buffer.extend_from_slice(digits.format(limit.next_token_after).as_bytes());
        }
    }

    /// Whether one of the two headers has a member of this name.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut lines = [RATELIMIT, RATELIMIT_POLICY].into_iter().flat_map(|name| headers.get_all(name));
        lines.any(|line| {
            let mut is_quoted = false;
            let mut members = line.as_bytes().split(|&byte| {
                // An escaped quote in a member of another program is misread. Then the warning may be wrong, and
                // nothing else.
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

/// Returns a window in whole seconds, rounded up, if that is at most 1 % longer.
fn whole_seconds(window: Duration) -> Option<u64> {
    let seconds = ceil_seconds(window);
    let added = Duration::from_secs(seconds).saturating_sub(window);
    (added.saturating_mul(100) <= window).then_some(sf_integer(seconds))
}

/// Caps a number: a structured field Integer has at most 15 digits.
fn sf_integer(number: u64) -> u64 {
    number.min(999_999_999_999_999)
}

/// Never `None`: the list holds visible ASCII and spaces only.
fn header_value(list: Bytes) -> Option<HeaderValue> {
    HeaderValue::from_maybe_shared(list).ok()
}
