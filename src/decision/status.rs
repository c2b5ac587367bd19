use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::block::BlockReason;
use super::cold_drop::ColdDrop;
use super::near::NearLimit;
use super::snapshot::{LazySnapshot, LimitSnapshot};
use super::verdict::{PackedVerdict, Verdict};

/// The name of a limit.
#[derive(Clone)]
#[allow(missing_debug_implementations, reason = "named by a hidden trait only")]
pub enum Name {
    Static(&'static str),
    // A thin pointer, so that a name takes two words including the discriminant.
    Shared(ColdDrop<Arc<Box<str>>>),
}

impl Name {
    pub(crate) const DEFAULT: Self = Self::Static("default");

    /// Returns the name of a limit. The first names of a process live as long as it, so that a decision counts no references
    /// to them: two atomic operations, on one word for all threads. Names of limits come from the program and its
    /// configuration, never from clients.
    pub(crate) fn of_limit(name: Cow<'static, str>) -> Self {
        const MAX_KEPT: usize = 256;
        const MAX_KEPT_BYTES: usize = 256;
        static KEPT: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
        let Cow::Owned(name) = name else { return name.into() };
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.iter().find(|known| **known == name) {
            return Self::Static(known);
        }
        if kept.len() >= MAX_KEPT || name.len() > MAX_KEPT_BYTES {
            return Cow::<'static, str>::Owned(name).into();
        }
        let name: &'static str = name.leak();
        kept.push(name);
        Self::Static(name)
    }

    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Static(name) => name,
            Self::Shared(name) => name.get().map_or("", |name| name),
        }
    }
}

/// Returns the first character of a limit's name that a header field cannot carry unchanged.
///
/// A structured-field String holds printable ASCII, and escapes `"` and `\` (RFC 9651, section 3.3.3).
pub(crate) fn first_invalid_name_char(name: &str) -> Option<char> {
    name.chars().find(|&char| !is_valid_in_name(char))
}

fn is_valid_in_name(char: char) -> bool {
    matches!(char, ' '..='~') && !matches!(char, '"' | '\\')
}

impl From<Cow<'static, str>> for Name {
    fn from(name: Cow<'static, str>) -> Self {
        match name {
            Cow::Borrowed(name) => Self::Static(name),
            Cow::Owned(name) => Self::Shared(ColdDrop::new(Arc::new(name.into()))),
        }
    }
}

/// One limit's part of a decision: its name, its own verdict, and its snapshot after the decision.
#[derive(Clone)]
pub struct LimitStatus {
    name: Name,
    pub(super) verdict: PackedVerdict,
    snapshot: LazySnapshot,
    pub(super) shadow: bool,
    block: Option<BlockReason>,
    is_uncounted: bool,
    is_borrowing: bool,
    pub(super) near: NearLimit,
}

impl LimitStatus {
    #[inline]
    pub(crate) fn from_verdict(name: Name, verdict: Verdict, snapshot: LazySnapshot, shadow: bool) -> Self {
        Self { shadow, ..Self::of_verdict(name, PackedVerdict::pack(verdict), snapshot) }
    }

    #[inline]
    const fn of_verdict(name: Name, verdict: PackedVerdict, snapshot: LazySnapshot) -> Self {
        let (shadow, is_uncounted, is_borrowing, near) = (false, false, false, NearLimit::NONE);
        Self { name, verdict, snapshot, shadow, block: None, is_uncounted, is_borrowing, near }
    }

    /// Sets the reason of the key's block under the limit, if the key is blocked.
    #[inline]
    pub(crate) fn with_block(mut self, block: Option<BlockReason>) -> Self {
        self.block = block;
        self
    }

    /// Returns the status as a denial of this cost: if more remains, other requests use that.
    pub(super) fn into_denied(self, cost: u64, retry_after: Duration) -> Self {
        let mut snapshot = self.snapshot();
        if snapshot.remaining >= cost {
            (snapshot.remaining, snapshot.next_token_after) = (cost.saturating_sub(1), retry_after);
        }
        snapshot.reset = snapshot.reset.max(retry_after);
        Self { verdict: PackedVerdict::pack(Verdict::Denied { retry_after }), snapshot: snapshot.into(), ..self }
    }

    /// Returns the status of a denial as of a block by escalation, which has begun with the denial.
    pub(super) fn into_escalated(mut self, duration: Duration) -> Self {
        self.verdict = PackedVerdict::pack(self.verdict().stricter_of(Verdict::Denied { retry_after: duration }));
        self.with_block(Some(BlockReason::Escalation))
    }

    /// Creates the status of a limit that denies for `wait` microseconds, or allows if `wait` is zero.
    #[inline]
    pub(crate) fn from_wait(name: Name, wait: u64, snapshot: LazySnapshot) -> Self {
        Self::of_verdict(name, PackedVerdict::from_wait(wait), snapshot)
    }

    /// Returns whether the limit is a shadow, whose verdict does not count.
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Returns whether the key is blocked under this limit.
    ///
    /// [`snapshot`](Self::snapshot) states the usage as if it were not. The response headers state that nothing remains
    /// until the block ends.
    pub fn is_blocked(&self) -> bool {
        self.block.is_some()
    }

    /// Returns why the key is blocked under this limit, `None` if the key is not blocked.
    pub fn block_reason(&self) -> Option<BlockReason> {
        self.block
    }

    /// Sets whether the request borrows, so that the limit, a share, has no part in the decision.
    #[inline]
    pub(crate) fn with_borrowing(mut self, is_borrowing: bool) -> Self {
        self.is_borrowing = is_borrowing;
        self
    }

    /// Returns whether the request is above this [guaranteed share](crate::Limit::guarantee), and so borrows from the
    /// limits beside the share.
    ///
    /// The share then has no part in the decision: its [`verdict`](Self::verdict) is
    /// [`Allowed`](crate::Verdict::Allowed), the request is not charged to the share, the share is not the most
    /// restrictive limit, and header fields do not mention the share.
    pub fn is_borrowing(&self) -> bool {
        self.is_borrowing
    }

    /// Sets whether the limit did not count an allowed request.
    pub(crate) fn with_uncounted(mut self, is_uncounted: bool) -> Self {
        self.is_uncounted = is_uncounted;
        self
    }

    /// Returns whether a shadow did not count the request although the shadow allows it, because its table is full of
    /// keys with [held](crate::limiter::Held) costs.
    pub fn is_uncounted(&self) -> bool {
        self.is_uncounted
    }

    /// Sets what the decision knows of the limit's mark.
    #[inline]
    pub(crate) fn with_near(mut self, near: NearLimit) -> Self {
        self.near = near;
        self
    }

    pub(crate) fn near(&self) -> NearLimit {
        self.near
    }

    /// Returns whether the usage of the key is at the limit's [mark](crate::Limit::warn_at) after the decision.
    ///
    /// `false` if the limit has no mark.
    pub fn is_near_limit(&self) -> bool {
        self.near.has(NearLimit::NEAR)
    }

    /// Returns whether the charge of this decision has brought the usage of the key to the limit's
    /// [mark](crate::Limit::warn_at).
    pub fn crossed_mark(&self) -> bool {
        self.near.has(NearLimit::CROSSED)
    }

    /// Returns the status `elapsed` later if the key was not charged meanwhile; `remaining` is unchanged until the key is
    /// idle.
    pub(crate) fn aged_by(&self, elapsed: Duration) -> Self {
        let (mut snapshot, verdict) = (self.snapshot(), self.verdict.aged_by(elapsed));
        snapshot.reset = snapshot.reset.saturating_sub(elapsed);
        snapshot.next_token_after = snapshot.next_token_after.saturating_sub(elapsed);
        if snapshot.window.is_some() && snapshot.reset.is_zero() {
            snapshot.remaining = snapshot.limit;
        } else if snapshot.next_token_after.is_zero() && snapshot.remaining < snapshot.limit {
            // Zero would mean that no more can remain. What is known is when the cost of this request does.
            let wait = verdict.unpack().wait_for_more(1).unwrap_or(snapshot.reset);
            snapshot.next_token_after = wait.min(snapshot.reset);
        }
        Self { name: self.name.clone(), verdict, snapshot: snapshot.into(), near: self.near.level_only(), ..*self }
    }

    /// Creates a status for a custom limiter: the limit's name, its own verdict and its snapshot.
    ///
    /// Replaces characters that a name cannot contain by `?`: see [`Limit::new`](crate::Limit::new).
    pub fn new(name: impl Into<Cow<'static, str>>, verdict: Verdict, snapshot: impl Into<LazySnapshot>) -> Self {
        let name = match name.into() {
            name if first_invalid_name_char(&name).is_none() => name,
            name => name.chars().map(|char| if is_valid_in_name(char) { char } else { '?' }).collect(),
        };
        Self::from_verdict(Name::from(name), verdict, snapshot.into(), false)
    }

    /// Returns the limit's name.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Returns this limit's own verdict, regardless of the other limits. While another limit blocks the key for longer, it is
    /// the verdict as of the end of that block, if the request may wait.
    pub fn verdict(&self) -> Verdict {
        self.verdict.unpack()
    }

    /// Returns limit, window, remaining, reset and the time until the next token.
    pub fn snapshot(&self) -> LimitSnapshot {
        self.snapshot.compute()
    }

    /// Returns the largest cost that an idle key allows at once: the limit of a window, the burst of a bucket.
    pub fn limit(&self) -> u64 {
        self.snapshot().limit
    }

    /// Returns the time in which [`limit`](Self::limit) becomes available again. `None` for a limit on requests
    /// [in flight](crate::InFlight), which has no window.
    pub fn window(&self) -> Option<Duration> {
        self.snapshot().window
    }

    /// Returns the largest cost that is allowed now, rounded down.
    pub fn remaining(&self) -> u64 {
        self.snapshot().remaining
    }

    /// Returns the time until the key is idle, zero if it is idle.
    pub fn reset(&self) -> Duration {
        self.snapshot().reset
    }

    /// Returns the time until [`remaining`](Self::remaining) increases, zero if it is at its maximum. While fewer units are
    /// left than are [kept free](crate::Limit::keep_free_by) from the request, an upper bound: [`reset`](Self::reset), or the
    /// wait of a denied request, which is exact for a cost of 1.
    pub fn next_token_after(&self) -> Duration {
        self.snapshot().next_token_after
    }
}

impl PartialEq for LimitStatus {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
            && self.verdict == other.verdict
            && self.snapshot() == other.snapshot()
            && self.block == other.block
            && self.is_borrowing == other.is_borrowing
            && self.near.public() == other.near.public()
    }
}

impl fmt::Debug for LimitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitStatus")
            .field("name", &self.name())
            .field("verdict", &self.verdict())
            .field("snapshot", &self.snapshot())
            .field("shadow", &self.shadow)
            .field("block", &self.block)
            .field("near", &self.near)
            .finish_non_exhaustive()
    }
}
