//! `RateLimit` and `RateLimit-Policy`: draft-ietf-httpapi-ratelimit-headers-10.

use std::cell::RefCell;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::fmt::{push_number, seconds};
use crate::decision::{LimitSnapshot, LimitStatus, Verdict};
use crate::observe::Observers;
use crate::response::partition::Hash;

pub(super) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// What the two fields will say.
#[derive(Debug)]
pub(super) struct Draft {
    policy: Arc<Policy>,
    left: Left,
    /// In a box, as it is rarely told.
    partition: Option<Box<Hash>>,
}

/// What is left of each limit of a policy. That of one lies here: nothing is allocated for it.
#[derive(Debug)]
enum Left {
    One(Remaining),
    Several(Vec<Remaining>),
}

/// What is left of a limit, and in how many seconds there is more.
#[derive(Clone, Copy, Debug)]
struct Remaining {
    quota: u64,
    next_token_after: u64,
}

impl Draft {
    /// `None` if there is no limit to tell of.
    pub(super) fn of(standings: &[LimitStatus], partition: Option<Hash>) -> Option<Self> {
        let partition = partition.map(Box::new);
        match standings {
            [one] if !one.is_shadow() => {
                let told = Told::of(one);
                Some(Self { left: Left::One(told.left), policy: policy(&[told])?, partition })
            }
            several => {
                let told: Vec<_> = several.iter().filter(|standing| !standing.is_shadow()).map(Told::of).collect();
                let policy = if told.is_empty() { None } else { policy(&told) }?;
                let left = Left::Several(told.into_iter().map(|told| told.left).collect());
                Some(Self { policy, left, partition })
            }
        }
    }

    /// Appends them to what a handler or another limiter has put there. Emits a warning if the name of a limit is
    /// there.
    pub(super) fn add(&self, headers: &mut HeaderMap, observers: &Observers) {
        observers.warn_once(|| self.policy.repeated_name(headers).map(warning));
        let key = match &self.partition {
            Some(hash) => format!(";pk=:{}:", STANDARD.encode(**hash)),
            None => String::new(),
        };
        if let Some(policy) = self.policy.value(&key) {
            headers.append(RATELIMIT_POLICY, policy);
        }
        if let Some(state) = self.state(&key) {
            headers.append(RATELIMIT, state);
        }
    }

    /// The value of `RateLimit`.
    fn state(&self, key: &str) -> Option<HeaderValue> {
        let limits = &self.policy.limits;
        let left = match &self.left {
            Left::One(one) => slice::from_ref(one),
            Left::Several(several) => several,
        };
        let both = || limits.iter().zip(left);
        // As long as it will be: a value is not moved then, and keeps no room that it does not need.
        let length: usize = both().map(|(limit, left)| limit.state.len() + left.length() + key.len()).sum();
        let mut list = String::with_capacity(length + (left.len() - 1) * SEPARATOR.len());
        for (limit, left) in both() {
            separate(&mut list);
            list.push_str(&limit.state);
            left.push(&mut list);
            list.push_str(key);
        }
        value(list)
    }
}

impl Remaining {
    /// As long as what is pushed.
    fn length(self) -> usize {
        let next_token_after = if self.next_token_after > 0 { 3 + digits(self.next_token_after) } else { 0 };
        digits(self.quota) + next_token_after
    }

    fn push(self, list: &mut String) {
        push_number(list, self.quota);
        if self.next_token_after > 0 {
            list.push_str(";t=");
            push_number(list, self.next_token_after);
        }
    }
}

/// What is told of a limit.
struct Told<'a> {
    name: &'a str,
    limit: u64,
    window: Duration,
    left: Remaining,
}

impl<'a> Told<'a> {
    fn of(standing: &'a LimitStatus) -> Self {
        let figures = standing.snapshot();
        let LimitSnapshot { limit, window, remaining, .. } = figures;
        let next_token_after = seconds(next_token_after(standing.verdict(), &figures));
        let left = Remaining { quota: integer(remaining), next_token_after: integer(next_token_after) };
        Self { name: standing.name(), limit, window, left }
    }
}

/// The time until there is more: for what was refused it is told no later than it is refused until.
fn next_token_after(verdict: Verdict, figures: &LimitSnapshot) -> Duration {
    match verdict {
        Verdict::Denied { retry_after } => figures.next_token_after.min(retry_after),
        _ => figures.next_token_after,
    }
}

thread_local! {
    /// Policies are nearly always the same few.
    static POLICIES: RefCell<Policies> = const { RefCell::new(Policies::new()) };
}

/// That of these limits: as this thread has it, or where that is gone or in use, made anew.
fn policy(told: &[Told<'_>]) -> Option<Arc<Policy>> {
    let known = POLICIES.try_with(|policies| policies.try_borrow_mut().ok()?.of(told));
    known.ok().flatten().or_else(|| Policy::of(told))
}

/// The policies that this thread has told last.
struct Policies {
    known: Vec<Arc<Policy>>,
    /// Which of them gives way to the next one.
    oldest: usize,
}

impl Policies {
    const MOST: usize = 4;

    const fn new() -> Self {
        Self { known: Vec::new(), oldest: 0 }
    }

    fn of(&mut self, told: &[Told<'_>]) -> Option<Arc<Policy>> {
        match self.known.iter().find(|policy| policy.is_of(told)) {
            Some(known) => Some(Arc::clone(known)),
            None => self.learn(told),
        }
    }

    #[cold]
    fn learn(&mut self, told: &[Told<'_>]) -> Option<Arc<Policy>> {
        let policy = Policy::of(told)?;
        match self.known.get_mut(self.oldest) {
            Some(oldest) => *oldest = Arc::clone(&policy),
            None => self.known.push(Arc::clone(&policy)),
        }
        self.oldest = (self.oldest + 1) % Self::MOST;
        Some(policy)
    }
}

/// What is always told of the same limits.
#[derive(Debug)]
struct Policy {
    limits: Vec<Limit>,
    /// The value of `RateLimit-Policy`, if it is one for all keys.
    value: HeaderValue,
}

impl Policy {
    fn of(told: &[Told<'_>]) -> Option<Arc<Self>> {
        let limits: Vec<_> = told.iter().map(Limit::of).collect();
        let value = value(list(&limits, ""))?;
        Some(Arc::new(Self { limits, value }))
    }

    /// One for a key is made anew each time.
    fn value(&self, key: &str) -> Option<HeaderValue> {
        if key.is_empty() { Some(self.value.clone()) } else { value(list(&self.limits, key)) }
    }

    /// Returns the first limit's name that the fields in `headers`, or two limits of this policy, carry already.
    fn repeated_name(&self, headers: &HeaderMap) -> Option<&str> {
        let mut limits = self.limits.iter().enumerate();
        let is_repeated = |(index, limit): &(usize, &Limit)| {
            limit.is_in(headers) || self.limits[..*index].iter().any(|other| other.name == limit.name)
        };
        limits.find(is_repeated).map(|(_, limit)| limit.name.as_str())
    }

    fn is_of(&self, told: &[Told<'_>]) -> bool {
        self.limits.len() == told.len() && self.limits.iter().zip(told).all(|(limit, told)| limit.is_of(told))
    }
}

#[derive(Debug)]
struct Limit {
    name: String,
    quota: u64,
    window: Duration,
    /// Its member of `RateLimit-Policy`: `"default";q=10;w=1`.
    policy: String,
    /// The start of its member of `RateLimit`: `"default";r=`.
    state: String,
}

impl Limit {
    fn of(&Told { name, limit, window, .. }: &Told<'_>) -> Self {
        // A structured-field String (RFC 9651, section 3.3.3) that needs no escapes.
        let (q, w) = (integer(limit), integer(seconds(window).max(1)));
        let (policy, state) = (format!("\"{name}\";q={q};w={w}"), format!("\"{name}\";r="));
        Self { name: name.to_owned(), quota: limit, window, policy, state }
    }

    /// Whether a field has a member of this name.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut lines = [RATELIMIT, RATELIMIT_POLICY].into_iter().flat_map(|field| headers.get_all(field));
        lines.any(|line| {
            let mut is_quoted = false;
            let mut members = line.as_bytes().split(|&byte| {
                is_quoted ^= byte == b'"';
                byte == b',' && !is_quoted
            });
            members.any(|member| self.is_named_by(member))
        })
    }

    /// Whether `member` is a String of this name, with or without parameters.
    fn is_named_by(&self, member: &[u8]) -> bool {
        let rest = member.trim_ascii().strip_prefix(b"\"").and_then(|rest| rest.strip_prefix(self.name.as_bytes()));
        matches!(rest, Some([b'"'] | [b'"', b';', ..]))
    }

    fn is_of(&self, told: &Told<'_>) -> bool {
        self.quota == told.limit && self.window == told.window && self.name == told.name
    }
}

/// The value of `RateLimit-Policy`.
fn list(limits: &[Limit], key: &str) -> String {
    let mut list = String::new();
    for limit in limits {
        separate(&mut list);
        list.push_str(&limit.policy);
        list.push_str(key);
    }
    list
}

const SEPARATOR: &str = ", ";

/// Starts a member of a structured-field List.
fn separate(list: &mut String) {
    if !list.is_empty() {
        list.push_str(SEPARATOR);
    }
}

fn warning(name: &str) -> String {
    format!(
        "two rate limits send the name {name:?} in the fields RateLimit and RateLimit-Policy: clients cannot tell the \
         limits apart; give each limit its own name with `Limit::new`"
    )
}

/// A structured-field Integer has at most 15 digits.
fn integer(number: u64) -> u64 {
    number.min(999_999_999_999_999)
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// All characters in it are visible ASCII or spaces.
fn value(list: String) -> Option<HeaderValue> {
    HeaderValue::from_maybe_shared(Bytes::from(list)).ok()
}
