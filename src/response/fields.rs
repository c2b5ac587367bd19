//! The header fields: draft-ietf-httpapi-ratelimit-headers-10, `Retry-After` (RFC 9110), and the legacy `X-RateLimit-*`.

use std::cell::RefCell;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::partition::Hash;
use super::text::push_number;
use crate::decision::{Decision, Figures, Standing, Verdict};

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// What `X-RateLimit-Reset` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "these are the two that are in use")]
pub enum LegacyReset {
    /// UTC seconds since the Unix epoch, as GitHub sends it.
    EpochSeconds,
    /// Seconds from now, as Envoy and Kong send it.
    DeltaSeconds,
}

/// `RateLimit` and `RateLimit-Policy`, appended to what a handler or another limiter has put there.
pub(super) fn add_draft(headers: &mut HeaderMap, standings: &[Standing], partition: Option<Hash>) {
    let key = partition.map(|hash| format!(";pk=:{}:", STANDARD.encode(hash))).unwrap_or_default();
    with_rendered(|rendered| {
        let told = || standings.iter().filter(|standing| !standing.is_shadow());
        let Rendered { figures, list, .. } = rendered;
        figures.clear();
        figures.extend(told().map(Standing::figures));
        list.clear();
        for (standing, figures) in told().zip(&*figures) {
            push_item(list, standing.name());
            push_parameter(list, ";r=", figures.remaining);
            let more_after = seconds(more_after(standing.verdict(), figures));
            if more_after > 0 {
                push_parameter(list, ";t=", more_after);
            }
            list.push_str(&key);
        }
        let state = value(list);
        if let Some(policy) = rendered.policy(&told().map(Standing::name), &key) {
            headers.append(RATELIMIT_POLICY, policy);
        }
        if let Some(state) = state {
            headers.append(RATELIMIT, state);
        }
    });
}

thread_local! {
    /// Policies are nearly always the same few.
    static RENDERED: RefCell<Rendered> = const { RefCell::new(Rendered::new()) };
}

/// Runs `f` on what this thread has, or where that is gone or in use, on nothing.
fn with_rendered(mut f: impl FnMut(&mut Rendered)) {
    let own = RENDERED.try_with(|rendered| rendered.try_borrow_mut().ok().map(|mut rendered| f(&mut rendered)));
    if !matches!(own, Ok(Some(()))) {
        f(&mut Rendered::new());
    }
}

/// What this thread has rendered last, and room to render in.
struct Rendered {
    policies: Vec<Policy>,
    /// Which of the policies gives way to the next one.
    oldest: usize,
    figures: Vec<Figures>,
    list: String,
}

/// A `RateLimit-Policy`, and what it was made of.
struct Policy {
    limits: Vec<(String, u64, Duration)>,
    value: HeaderValue,
}

impl Rendered {
    const MOST: usize = 4;

    const fn new() -> Self {
        Self { policies: Vec::new(), oldest: 0, figures: Vec::new(), list: String::new() }
    }

    /// The policy of limits with these names and the figures that are noted. One for a key is made anew each time.
    fn policy<'a>(&mut self, names: &(impl Iterator<Item = &'a str> + Clone), key: &str) -> Option<HeaderValue> {
        let limits = || names.clone().zip(&self.figures).map(|(name, figures)| (name, figures.limit, figures.window));
        if !key.is_empty() {
            self.list.clear();
            for (name, limit, window) in limits() {
                push_policy(&mut self.list, name, limit, window);
                self.list.push_str(key);
            }
            return value(&self.list);
        }
        let is_that = |policy: &&Policy| {
            let same = |((name, limit, window), (of, q, w)): ((&str, u64, Duration), &(String, u64, Duration))| {
                name == of && limit == *q && window == *w
            };
            policy.limits.len() == self.figures.len() && limits().zip(&policy.limits).all(same)
        };
        if let Some(policy) = self.policies.iter().find(is_that) {
            return Some(policy.value.clone());
        }
        let limits: Vec<_> = limits().map(|(name, limit, window)| (name.to_owned(), limit, window)).collect();
        self.render(limits)
    }

    #[cold]
    fn render(&mut self, limits: Vec<(String, u64, Duration)>) -> Option<HeaderValue> {
        self.list.clear();
        for (name, limit, window) in &limits {
            push_policy(&mut self.list, name, *limit, *window);
        }
        let value = value(&self.list)?;
        let policy = Policy { limits, value: value.clone() };
        match self.policies.get_mut(self.oldest) {
            Some(oldest) => *oldest = policy,
            None => self.policies.push(policy),
        }
        self.oldest = (self.oldest + 1) % Self::MOST;
        Some(value)
    }
}

fn push_policy(list: &mut String, name: &str, limit: u64, window: Duration) {
    push_item(list, name);
    push_parameter(list, ";q=", limit);
    push_parameter(list, ";w=", seconds(window).max(1));
}

/// The time until there is more: for what was refused it is told no later than it is refused until.
fn more_after(verdict: Verdict, figures: &Figures) -> Duration {
    match verdict {
        Verdict::Denied { retry_after } => figures.more_after.min(retry_after),
        _ => figures.more_after,
    }
}

/// `X-RateLimit-*`: of several limits, and of what is there already, the most restrictive.
pub(super) fn add_legacy(headers: &mut HeaderMap, decision: &Decision, reset: LegacyReset) {
    let Some(standing) = decision.standing() else { return };
    let figures = standing.figures();
    let there = headers.get(&LEGACY_REMAINING).and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
    if there.is_some_and(|remaining| remaining <= figures.remaining) {
        return;
    }
    let reset_at = match reset {
        LegacyReset::DeltaSeconds => seconds(figures.reset),
        LegacyReset::EpochSeconds => {
            let moment = decision.decided_at().after(figures.reset);
            moment.as_micros().div_ceil(1_000_000)
        }
    };
    for (name, value) in
        [(LEGACY_LIMIT, figures.limit), (LEGACY_REMAINING, figures.remaining), (LEGACY_RESET, reset_at)]
    {
        headers.insert(name, HeaderValue::from(value));
    }
}

/// `Retry-After`: whole seconds, rounded up, at least 1.
pub(super) fn add_retry_after(headers: &mut HeaderMap, retry_after: Duration) {
    headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds(retry_after).max(1)));
}

/// Names the fields in `Access-Control-Expose-Headers`, after what is named there already.
pub(super) fn expose(headers: &mut HeaderMap) {
    let present = [RATELIMIT, RATELIMIT_POLICY, LEGACY_LIMIT, LEGACY_REMAINING, LEGACY_RESET, header::RETRY_AFTER];
    let mut list = String::with_capacity(96);
    for name in present.iter().filter(|name| headers.contains_key(*name)) {
        if !list.is_empty() {
            list.push_str(", ");
        }
        list.push_str(name.as_str());
    }
    if let Some(names) = value(&list) {
        headers.append(header::ACCESS_CONTROL_EXPOSE_HEADERS, names);
    }
}

/// Starts a member of a structured-field List: a String (RFC 9651, section 3.3.3), which is ASCII.
fn push_item(list: &mut String, name: &str) {
    if !list.is_empty() {
        list.push_str(", ");
    }
    list.push('"');
    if name.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')) {
        list.push_str(name);
    } else {
        for char in name.chars() {
            match char {
                '"' | '\\' => list.extend(['\\', char]),
                ' '..='~' => list.push(char),
                _ => list.push('?'),
            }
        }
    }
    list.push('"');
}

/// A structured-field Integer has at most 15 digits.
fn push_parameter(list: &mut String, name: &str, number: u64) {
    list.push_str(name);
    push_number(list, number.min(999_999_999_999_999));
}

/// Whole seconds, rounded up.
fn seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// `None` for an empty list.
fn value(list: &str) -> Option<HeaderValue> {
    // All characters in it are visible ASCII or spaces.
    HeaderValue::from_str(list).ok().filter(|value| !value.is_empty())
}
