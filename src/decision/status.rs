use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::cold_drop::ColdDrop;
use super::snapshot::{LazySnapshot, LimitSnapshot};
use super::verdict::{PackedVerdict, Verdict};

/// A limit's name: `default` unless it is given one.
#[derive(Clone)]
#[allow(unreachable_pub, missing_docs, missing_debug_implementations, reason = "named by a hidden trait only")]
pub enum Name {
    Static(&'static str),
    // A thin pointer: a name is two words, one of which tells the variants apart.
    Shared(ColdDrop<Arc<Box<str>>>),
}

impl Name {
    pub(crate) const DEFAULT: Self = Self::Static("default");

    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Static(name) => name,
            Self::Shared(name) => name.get().map_or("", |name| name),
        }
    }
}

/// Returns the first character of a limit's name that a header field and a body would not both carry as it is.
///
/// A structured-field String holds printable ASCII, and escapes `"` and `\` (RFC 9651, section 3.3.3).
pub(crate) fn first_invalid_name_char(name: &str) -> Option<char> {
    name.chars().find(|&char| !is_fit_for_name(char))
}

fn is_fit_for_name(char: char) -> bool {
    matches!(char, ' '..='~') && !matches!(char, '"' | '\\')
}

impl From<Cow<'static, str>> for Name {
    fn from(name: Cow<'static, str>) -> Self {
        match name {
            Cow::Borrowed(name) => Self::Static(name),
            Cow::Owned(name) => Self::Shared(ColdDrop::of(Arc::new(name.into()))),
        }
    }
}

/// How a key stands with one limit: its name, its own verdict, its figures after the decision.
#[derive(Clone)]
pub struct LimitStatus {
    name: Name,
    pub(super) verdict: PackedVerdict,
    lazy: LazySnapshot,
    pub(super) shadow: bool,
}

impl LimitStatus {
    #[inline]
    pub(crate) fn from_verdict(name: Name, verdict: Verdict, lazy: LazySnapshot, shadow: bool) -> Self {
        Self { name, verdict: PackedVerdict::pack(verdict), lazy, shadow }
    }

    /// Of a limit that refuses for so many microseconds, or allows if these are none.
    #[inline(always)]
    pub(crate) fn from_wait(name: Name, wait: u64, lazy: LazySnapshot) -> Self {
        Self { name, verdict: PackedVerdict::wait(wait), lazy, shadow: false }
    }

    /// Whether the limit is a shadow, whose verdict does not count.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// The same a while later, if nobody asks meanwhile. What was left is told as it was.
    pub(crate) fn aged_by(&self, elapsed: Duration) -> Self {
        let figures = self.snapshot();
        let lazy = LimitSnapshot {
            reset: figures.reset.saturating_sub(elapsed),
            next_token_after: figures.next_token_after.saturating_sub(elapsed),
            ..figures
        };
        Self { name: self.name.clone(), verdict: self.verdict.aged_by(elapsed), lazy: lazy.into(), shadow: self.shadow }
    }

    /// A standing for a limiter of your own: the limit's name, what it says by itself, its figures.
    ///
    /// Characters that a name cannot hold (see [`Limit::new`](crate::Limit::new)) are replaced by `?`.
    #[must_use]
    pub fn new(name: impl Into<Cow<'static, str>>, verdict: Verdict, lazy: impl Into<LazySnapshot>) -> Self {
        let name = match name.into() {
            name if first_invalid_name_char(&name).is_none() => name,
            name => name.chars().map(|char| if is_fit_for_name(char) { char } else { '?' }).collect(),
        };
        Self::from_verdict(Name::from(name), verdict, lazy.into(), false)
    }

    /// The limit's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// What this limit says by itself, whatever the others say.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict.unpack()
    }

    /// All figures at once.
    #[must_use]
    pub fn snapshot(&self) -> LimitSnapshot {
        self.lazy.compute()
    }

    /// The most that could be had at once: the limit of a window, the burst of a bucket.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.snapshot().limit
    }

    /// The time in which [`limit`](Self::limit) comes back.
    #[must_use]
    pub fn window(&self) -> Duration {
        self.snapshot().window
    }

    /// How much could be had now, rounded down.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.snapshot().remaining
    }

    /// The time until the key is as good as new, zero if it is.
    #[must_use]
    pub fn reset(&self) -> Duration {
        self.snapshot().reset
    }

    /// The time until [`remaining`](Self::remaining) grows, zero if it is at its most.
    #[must_use]
    pub fn next_token_after(&self) -> Duration {
        self.snapshot().next_token_after
    }
}

impl PartialEq for LimitStatus {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name() && self.verdict == other.verdict && self.snapshot() == other.snapshot()
    }
}

impl fmt::Debug for LimitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitStatus")
            .field("name", &self.name())
            .field("verdict", &self.verdict())
            .field("figures", &self.snapshot())
            .field("shadow", &self.shadow)
            .finish_non_exhaustive()
    }
}
