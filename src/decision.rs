//! What is asked of a limiter, and what it answers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;

/// What is asked: how much, and how long the asker would wait for it.
///
/// The default asks for a cost of one, at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Ask {
    /// What the request costs. A cost of zero is a question: it is allowed unless the key is in debt beyond its
    /// burst, and charges nothing.
    pub cost: u64,
    /// The longest delay that the asker accepts. With `None` it is for the algorithm to say: a queue delays as it must,
    /// all others refuse what can't be had at once.
    ///
    /// An algorithm that can promise a later turn answers [`Verdict::AllowedAfter`]; one that can't refuses.
    pub max_delay: Option<Duration>,
    /// Whether the decision is to list every limit, not just the one that speaks. Costs an allocation where there are several.
    pub every_limit: bool,
    /// The same for a refusal only: to name all that refuse.
    pub every_refusal: bool,
}

impl Ask {
    /// Asks for `cost`, at once.
    #[must_use]
    pub const fn cost(cost: u64) -> Self {
        Self { cost, max_delay: None, every_limit: false, every_refusal: false }
    }

    /// Accepts a delay of up to `max_delay`.
    #[must_use]
    pub const fn within(mut self, max_delay: Duration) -> Self {
        self.max_delay = Some(max_delay);
        self
    }

    /// The longest acceptable delay in whole microseconds, or `unless_said`.
    #[inline]
    pub(crate) fn patience(&self, unless_said: u64) -> u64 {
        self.max_delay.map_or(unless_said, crate::clock::whole_micros)
    }

    /// Asks that the decision list every limit.
    #[must_use]
    pub const fn every_limit(mut self) -> Self {
        self.every_limit = true;
        self
    }
}

impl Default for Ask {
    fn default() -> Self {
        Self::cost(1)
    }
}

/// Yes, yes but later, no until later, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Allowed now, and charged.
    Allowed,
    /// Allowed and charged, for a turn that comes after this delay.
    AllowedAfter(Duration),
    /// Refused, and nothing was charged. If nobody else uses the key, asking the same after exactly `retry_after`
    /// succeeds, and asking a microsecond earlier does not.
    Denied {
        /// How long to wait before asking again.
        retry_after: Duration,
    },
    /// Refused for good: the cost is over what the limit can ever hold.
    Never,
}

impl Verdict {
    /// Whether the request may pass, at once or after a delay.
    #[must_use]
    pub const fn is_allowed(self) -> bool {
        matches!(self, Self::Allowed | Self::AllowedAfter(_))
    }

    /// The verdict over both: the stricter one. It is exact, as every algorithm's answer only improves with time.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Never, _) | (_, Self::Never) => Self::Never,
            (Self::Denied { retry_after: a }, Self::Denied { retry_after: b }) => {
                Self::Denied { retry_after: a.max(b) }
            }
            (denied @ Self::Denied { .. }, _) | (_, denied @ Self::Denied { .. }) => denied,
            (Self::AllowedAfter(a), Self::AllowedAfter(b)) => Self::AllowedAfter(a.max(b)),
            (after @ Self::AllowedAfter(_), Self::Allowed) | (Self::Allowed, after @ Self::AllowedAfter(_)) => after,
            (Self::Allowed, Self::Allowed) => Self::Allowed,
        }
    }
}

/// A verdict in one word. Decisions are moved about; an enum of two durations would take three.
///
/// Zero is allowed, all ones never; else microseconds, with the highest bit set if it is allowed after them. Durations are
/// whole microseconds here, at most 2^62 of them.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Compact(u64);

impl Compact {
    const NEVER: u64 = u64::MAX;
    const AFTER: u64 = 1 << 63;
    const MOST: u64 = (1 << 62) - 1;

    #[inline]
    fn pack(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allowed => Self(0),
            Verdict::AllowedAfter(delay) => Self(Self::AFTER | crate::clock::whole_micros(delay).min(Self::MOST)),
            Verdict::Denied { retry_after } => Self(crate::clock::whole_micros(retry_after).clamp(1, Self::MOST)),
            Verdict::Never => Self(Self::NEVER),
        }
    }

    #[inline]
    fn unpack(self) -> Verdict {
        match self.0 {
            0 => Verdict::Allowed,
            Self::NEVER => Verdict::Never,
            after if after & Self::AFTER != 0 => Verdict::AllowedAfter(Duration::from_micros(after & Self::MOST)),
            wait => Verdict::Denied { retry_after: Duration::from_micros(wait) },
        }
    }
}

/// Who made a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Source {
    /// The limiter's own store.
    #[default]
    Store,
    /// Another limiter that stands in while the store can't answer.
    Fallback,
    /// A declared policy: for a store that can't answer, or that is full.
    Policy,
}

/// The figures of one limit for one key at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_structs, reason = "a user's own algorithm makes them")]
pub struct Figures {
    /// The most that could be had at once: the limit of a window, the burst of a bucket.
    pub limit: u64,
    /// The time in which `limit` comes back: the window, or the time from empty to full.
    pub window: Duration,
    /// How much could be had now, rounded down.
    pub remaining: u64,
    /// The time until the key is as good as new, zero if it is.
    pub reset: Duration,
    /// The time until `remaining` grows, zero if it is at its most.
    pub more_after: Duration,
}

/// What an algorithm read off a state: its [`Figures`], worked out when they are asked for.
#[derive(Clone, Copy)]
pub struct Reading {
    words: [u64; 6],
    project: fn(&[u64; 6]) -> Figures,
}

impl Reading {
    /// Of nothing.
    pub(crate) const BLANK: Self = Self::new([0; 6], |_| Figures {
        limit: 0,
        window: Duration::ZERO,
        remaining: 0,
        reset: Duration::ZERO,
        more_after: Duration::ZERO,
    });

    /// Figures that `project` works out of `words` on demand: dividing is the dearest part of a decision, and most
    /// decisions are never asked.
    #[must_use]
    pub const fn new(words: [u64; 6], project: fn(&[u64; 6]) -> Figures) -> Self {
        Self { words, project }
    }

    /// The figures.
    #[must_use]
    pub fn figures(&self) -> Figures {
        (self.project)(&self.words)
    }
}

impl From<Figures> for Reading {
    /// Figures that are worked out already. Fractions of a microsecond are dropped.
    fn from(figures: Figures) -> Self {
        let micros = crate::clock::whole_micros;
        let words = [
            figures.limit,
            micros(figures.window),
            figures.remaining,
            micros(figures.reset),
            micros(figures.more_after),
            0,
        ];
        Self::new(words, |&[limit, window, remaining, reset, more_after, _]| Figures {
            limit,
            window: Duration::from_micros(window),
            remaining,
            reset: Duration::from_micros(reset),
            more_after: Duration::from_micros(more_after),
        })
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures().fmt(f)
    }
}

/// A limit's name: `default` unless it is given one.
#[derive(Clone)]
#[allow(unreachable_pub, missing_docs, missing_debug_implementations, reason = "named by a hidden trait only")]
pub enum Name {
    Static(&'static str),
    Shared(Arc<str>),
}

impl Name {
    pub(crate) const DEFAULT: Self = Self::Static("default");

    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Static(name) => name,
            Self::Shared(name) => name,
        }
    }
}

impl From<std::borrow::Cow<'static, str>> for Name {
    fn from(name: std::borrow::Cow<'static, str>) -> Self {
        match name {
            std::borrow::Cow::Borrowed(name) => Self::Static(name),
            std::borrow::Cow::Owned(name) => Self::Shared(name.into()),
        }
    }
}

/// How a key stands with one limit: its name, its own verdict, its figures after the decision.
#[derive(Clone)]
pub struct Standing {
    name: Name,
    verdict: Compact,
    reading: Reading,
    shadow: bool,
}

impl Standing {
    #[inline]
    pub(crate) fn new(name: Name, verdict: Verdict, reading: Reading, shadow: bool) -> Self {
        Self { name, verdict: Compact::pack(verdict), reading, shadow }
    }

    /// Whether the limit is a shadow, whose verdict does not count.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// A standing for a limiter of your own: the limit's name, what it says by itself, its figures.
    #[must_use]
    pub fn of(name: impl Into<std::borrow::Cow<'static, str>>, verdict: Verdict, reading: impl Into<Reading>) -> Self {
        Self::new(Name::from(name.into()), verdict, reading.into(), false)
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
    pub fn figures(&self) -> Figures {
        self.reading.figures()
    }

    /// The most that could be had at once: the limit of a window, the burst of a bucket.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.figures().limit
    }

    /// The time in which [`limit`](Self::limit) comes back.
    #[must_use]
    pub fn window(&self) -> Duration {
        self.figures().window
    }

    /// How much could be had now, rounded down.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.figures().remaining
    }

    /// The time until the key is as good as new, zero if it is.
    #[must_use]
    pub fn reset(&self) -> Duration {
        self.figures().reset
    }

    /// The time until [`remaining`](Self::remaining) grows, zero if it is at its most.
    #[must_use]
    pub fn more_after(&self) -> Duration {
        self.figures().more_after
    }
}

impl PartialEq for Standing {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name() && self.verdict == other.verdict && self.figures() == other.figures()
    }
}

impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Standing")
            .field("name", &self.name())
            .field("verdict", &self.verdict())
            .field("figures", &self.figures())
            .field("shadow", &self.shadow)
            .finish_non_exhaustive()
    }
}

/// What a limiter decided, and how the key stands now.
///
/// Where several limits decide together, [`verdict`](Self::verdict) is over all of them, and
/// [`standing`](Self::standing) is the one that speaks: the one to wait longest for if the request is refused, else
/// the one with the least remaining. [`standings`](Self::standings) lists them all where the [`Ask`] wanted that.
#[derive(Clone, PartialEq)]
pub struct Decision {
    verdict: Compact,
    source: Source,
    promises_turns: bool,
    decided_at: Timestamp,
    standing: Option<Standing>,
    #[allow(clippy::box_collection, reason = "a word less in every decision")]
    every: Option<Box<Vec<Standing>>>,
}

impl Decision {
    /// A decision of one limit.
    #[must_use]
    pub fn one(decided_at: Timestamp, standing: Standing) -> Self {
        Self {
            verdict: standing.verdict,
            source: Source::Store,
            promises_turns: false,
            decided_at,
            standing: Some(standing),
            every: None,
        }
    }

    /// A decision of one limit, as a store makes it.
    #[inline]
    pub(crate) fn by_store(decided_at: Timestamp, promises_turns: bool, standing: Standing) -> Self {
        Self {
            verdict: standing.verdict,
            source: Source::Store,
            promises_turns,
            decided_at,
            standing: Some(standing),
            every: None,
        }
    }

    /// A decision of several limits together, from all their standings; one without any limit is allowed.
    #[must_use]
    pub fn every(decided_at: Timestamp, standings: Vec<Standing>) -> Self {
        let mut decision = Self::by_policy(decided_at, Verdict::Allowed);
        decision.source = Source::Store;
        for standing in &standings {
            decision.add(standing.clone());
        }
        decision.every = Some(Box::new(standings));
        decision
    }

    /// A decision of all of a store's limits: lists them where that is asked for, or one of them is a shadow.
    #[cfg(feature = "redis")]
    pub(crate) fn of_limits(decided_at: Timestamp, ask: Ask, mut standings: Vec<Standing>) -> Self {
        let refuses = |standing: &Standing| !standing.verdict().is_allowed();
        let list_all = standings.iter().any(|standing| standing.shadow)
            || (standings.len() > 1 && (ask.every_limit || (ask.every_refusal && standings.iter().any(refuses))));
        if list_all || standings.is_empty() {
            return Self::every(decided_at, standings);
        }
        let mut decision = Self::one(decided_at, standings.swap_remove(0));
        standings.into_iter().for_each(|standing| decision.add(standing));
        decision
    }

    /// A decision that no limit made: a declared policy did, as the store could not answer.
    #[must_use]
    pub fn by_policy(decided_at: Timestamp, verdict: Verdict) -> Self {
        Self {
            verdict: Compact::pack(verdict),
            source: Source::Policy,
            promises_turns: false,
            decided_at,
            standing: None,
            every: None,
        }
    }

    /// The same decision, made by somebody else.
    #[must_use]
    pub fn from_source(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// Notes that whoever decided promises later turns to those who accept a delay: so that a refusal means that none
    /// comes in time, and it is no use to wait and ask again.
    #[must_use]
    pub fn with_turns(mut self, promises_turns: bool) -> Self {
        self.promises_turns = promises_turns;
        self
    }

    /// Whether whoever decided promises later turns.
    #[must_use]
    pub fn promises_turns(&self) -> bool {
        self.promises_turns
    }

    /// What was allowed after a delay, refused for that long.
    pub(crate) fn refused_for(mut self, retry_after: Duration) -> Self {
        self.verdict = Compact::pack(Verdict::Denied { retry_after });
        self
    }

    /// Counts in one more limit, unless it is a shadow.
    pub(crate) fn add(&mut self, standing: Standing) {
        if standing.shadow {
            return;
        }
        self.verdict = Compact::pack(self.verdict().and(standing.verdict()));
        let speaks = match &self.standing {
            None => true,
            Some(speaking) => louder(&standing, speaking),
        };
        if speaks {
            self.standing = Some(standing);
        }
    }

    /// Whether the request may pass, at once or after [`delay`](Self::delay).
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.verdict().is_allowed()
    }

    /// The verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict.unpack()
    }

    /// How long an allowed request must wait for its turn. Zero if it need not, or is refused.
    #[must_use]
    pub fn delay(&self) -> Duration {
        match self.verdict() {
            Verdict::AllowedAfter(delay) => delay,
            _ => Duration::ZERO,
        }
    }

    /// For a refused request the exact time after which the same request succeeds, if nobody else uses the key.
    ///
    /// `None` if it is allowed, and if it can never be: [`is_never`](Self::is_never) tells.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.verdict() {
            Verdict::Denied { retry_after } => Some(retry_after),
            _ => None,
        }
    }

    /// Whether the request costs more than can ever be had.
    #[must_use]
    pub fn is_never(&self) -> bool {
        self.verdict() == Verdict::Never
    }

    /// Who decided.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// When it was decided, by the store's clock.
    #[must_use]
    pub fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// The limit that speaks. `None` if no limit was consulted: a policy decided.
    #[must_use]
    pub fn standing(&self) -> Option<&Standing> {
        self.standing.as_ref()
    }

    /// Every limit in its declared order, where the [`Ask`] wanted that or there is one only; else the one that
    /// speaks.
    #[must_use]
    pub fn standings(&self) -> &[Standing] {
        match &self.every {
            Some(every) => every,
            None => self.standing.as_slice(),
        }
    }

    /// The shadow limits that would have refused the request. They are known whatever the [`Ask`] wanted.
    pub fn shadow_refusals(&self) -> impl Iterator<Item = &Standing> {
        self.standings().iter().filter(|standing| standing.shadow && !standing.verdict().is_allowed())
    }

    /// How much could be had now, by the limit that speaks. `None` if a policy decided.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        self.standing().map(Standing::remaining)
    }

    /// The time until the key is as good as new, by the limit that speaks. `None` if a policy decided.
    #[must_use]
    pub fn reset(&self) -> Option<Duration> {
        self.standing().map(Standing::reset)
    }
}

/// Whether `new` speaks rather than `old`: the longer wait, or with none the smaller remainder. The first of equals.
fn louder(new: &Standing, old: &Standing) -> bool {
    let wait = |standing: &Standing| match standing.verdict() {
        Verdict::Allowed => (0, Duration::ZERO),
        Verdict::AllowedAfter(delay) => (1, delay),
        Verdict::Denied { retry_after } => (2, retry_after),
        Verdict::Never => (3, Duration::ZERO),
    };
    match wait(new).cmp(&wait(old)) {
        std::cmp::Ordering::Greater => true,
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Equal => new.remaining() < old.remaining(),
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("verdict", &self.verdict())
            .field("source", &self.source)
            .field("promises_turns", &self.promises_turns)
            .field("decided_at", &self.decided_at)
            .field("standings", &self.standings())
            .finish_non_exhaustive()
    }
}
