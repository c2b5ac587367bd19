//! How repeated denials lead to blocks. A module of its own, because limiters and limits name no algorithm.

use std::borrow::Cow;
use std::time::Duration;

use crate::algorithm::FixedWindow;
use crate::decision::{AcquireOptions, Costs, Decision, DecisionSource, Detail, LimitStatus};
use crate::error::Error;
use crate::limit::{KeyedBy, Limit};
use crate::quota::Quota;

/// The limit, and the unit, that counts denials.
pub(crate) const DENIALS: &str = "denials";
/// The limit, and the unit, that counts blocks.
pub(crate) const BLOCKS: &str = "blocks";
/// The limit that allows one block while the shortest block lasts, in the unit of blocks.
pub(crate) const PAUSE: &str = "pause";
/// More blocks than a key can have.
const MAX_BLOCKS: u64 = 1_000_000;

/// How repeated denials of a key lead to longer and longer blocks: see [`Escalating`](crate::limiter::Escalating).
///
/// ```
/// use std::time::Duration;
///
/// use tower_ratelimit::Quota;
/// use tower_ratelimit::limiter::Escalation;
///
/// const MINUTE: Duration = Duration::from_secs(60);
///
/// // The 21st denial within a minute blocks the key: for 5 minutes, then for 30, then for 2 hours each time.
/// let escalation = Escalation::new("api", Quota::per_minute(20))
///     .block_for([5 * MINUTE, 30 * MINUTE, 120 * MINUTE])
///     .forget_after(12 * 60 * MINUTE);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Escalation {
    limit: Cow<'static, str>,
    denials: Quota,
    block_for: Cow<'static, [Duration]>,
    forget_after: Duration,
}

impl Escalation {
    /// The durations of the first, the second and each later block: 1 minute, 10 minutes, 1 hour.
    pub const BLOCK_FOR: [Duration; 3] =
        [Duration::from_secs(60), Duration::from_secs(10 * 60), Duration::from_secs(60 * 60)];

    /// The time after which blocks are forgotten: a day.
    pub const FORGET_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

    /// Creates an escalation that blocks a key under the limit with this name, after more denials than `denials`.
    ///
    /// A quota of 20 per minute blocks a key with its 21st denial within the minute that starts with the first one. A
    /// block lasts for [`BLOCK_FOR`](Self::BLOCK_FOR), and is forgotten after [`FORGET_AFTER`](Self::FORGET_AFTER).
    pub fn new(limit: impl Into<Cow<'static, str>>, denials: Quota) -> Self {
        let block_for = Cow::Borrowed(&Self::BLOCK_FOR[..]);
        Self { limit: limit.into(), denials, block_for, forget_after: Self::FORGET_AFTER }
    }

    /// Sets the durations of the first block, the second one, and so on. The last one applies to every further block.
    ///
    /// # Panics
    ///
    /// If [`try_block_for`](Self::try_block_for) returns an error.
    #[track_caller]
    pub fn block_for(self, durations: impl Into<Vec<Duration>>) -> Self {
        self.try_block_for(durations).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Sets the durations of the blocks, as [`block_for`](Self::block_for) does.
    ///
    /// # Errors
    ///
    /// If there is no duration, one is shorter than the one before or no valid period of a [`Quota`], or the last one is not shorter
    /// than the time after which blocks are forgotten: set that time first.
    pub fn try_block_for(mut self, durations: impl Into<Vec<Duration>>) -> Result<Self, Error> {
        self.block_for = Cow::Owned(durations.into());
        if self.block_for.is_empty() {
            return Err(Error::config("escalation without a block: no duration is given; give one at least"));
        }
        if !self.block_for.is_sorted() {
            return Err(Error::config(
                "escalation with shorter later blocks: each must last as long as the one before at least; order the \
                 durations",
            ));
        }
        self.block_for.iter().try_for_each(|duration| is_period(*duration))?;
        self.checked()
    }

    /// Sets the time from the start of a block after which all blocks of its key are forgotten.
    ///
    /// # Panics
    ///
    /// If [`try_forget_after`](Self::try_forget_after) returns an error.
    #[track_caller]
    pub fn forget_after(self, duration: Duration) -> Self {
        self.try_forget_after(duration).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Sets the time after which blocks are forgotten, as [`forget_after`](Self::forget_after) does.
    ///
    /// # Errors
    ///
    /// If the time is not longer than the longest block, or is no valid period of a [`Quota`].
    pub fn try_forget_after(mut self, duration: Duration) -> Result<Self, Error> {
        self.forget_after = duration;
        self.checked()
    }

    fn checked(self) -> Result<Self, Error> {
        if self.block_for.last().is_some_and(|longest| *longest >= self.forget_after) {
            return Err(Error::config(format!(
                "escalation that forgets a block while it lasts: blocks are forgotten after {:?}; set a longer time than \
                 each block lasts",
                self.forget_after
            )));
        }
        is_period(self.forget_after)?;
        Ok(self)
    }

    fn shortest(&self) -> Duration {
        self.block_for.first().copied().unwrap_or_default()
    }

    /// Returns the name of the limit under which keys are blocked.
    pub fn limit(&self) -> &str {
        &self.limit
    }

    /// Returns the limits that count denials and blocks, for the second limiter of [`Escalating`](crate::limiter::Escalating).
    ///
    /// They count by the whole key. If the blocked limit has a sub-key, call [`limits_by`](Self::limits_by).
    pub fn limits(&self) -> (Limit<FixedWindow>, Limit<FixedWindow>, Limit<FixedWindow>) {
        let limit = |(name, unit, window)| Limit::new(name, window).cost_of(unit);
        let [denials, blocks, pause] = self.windows().map(limit);
        (denials, blocks, pause)
    }

    /// Returns the limits that count denials and blocks by a part of the key: the sub-key of the blocked limit.
    pub fn limits_by<Key: ?Sized, SubKey, F: Fn(&Key) -> SubKey + Clone>(
        &self,
        sub_key: F,
    ) -> (LimitBy<F, SubKey>, LimitBy<F, SubKey>, LimitBy<F, SubKey>) {
        let (denials, blocks, pause) = self.limits();
        (denials.keyed_by(sub_key.clone()), blocks.keyed_by(sub_key.clone()), pause.keyed_by(sub_key))
    }

    /// Returns the name, the unit and the window of each limit that counts.
    pub(crate) fn windows(&self) -> [(&'static str, &'static str, FixedWindow); 3] {
        let window = |limit, period| FixedWindow::new(Quota::new(limit, period));
        [
            (DENIALS, DENIALS, FixedWindow::new(self.denials)),
            (BLOCKS, BLOCKS, window(MAX_BLOCKS, self.forget_after)),
            (PAUSE, BLOCKS, window(1, self.shortest())),
        ]
    }

    /// Returns whether a decision is a denial that counts.
    pub(crate) fn counts(&self, decision: &Decision) -> bool {
        let is_own = |limit: &LimitStatus| limit.name() == self.limit && !limit.is_blocked();
        let is_own_denial = decision.retry_after().is_some() && decision.most_restrictive().is_some_and(is_own);
        is_own_denial && !decision.is_denied_by_leases()
    }

    /// Returns whether a limit of this name and unit counts denials or blocks.
    #[cfg(feature = "redis")]
    pub(crate) fn is_count(name: &str, unit: &str) -> bool {
        [(DENIALS, DENIALS), (BLOCKS, BLOCKS), (PAUSE, BLOCKS)].contains(&(name, unit))
    }

    /// Returns the options that count a denial.
    pub(crate) fn denial() -> AcquireOptions {
        Costs::new().add(DENIALS, 1).into()
    }

    /// Returns the options that count a block.
    pub(crate) fn block() -> AcquireOptions {
        AcquireOptions::from(Costs::new().add(BLOCKS, 1)).detail(Detail::All)
    }

    /// Returns whether a key has more denials than allowed, by the decision on [`denial`](Self::denial).
    pub(crate) fn is_exceeded(counted: &Decision) -> bool {
        !counted.is_allowed() && counted.source() != DecisionSource::NoLimit
    }

    /// Returns which block of the key this one is, from 1, by the decision on [`block`](Self::block). `None` if another
    /// denial has just blocked the key.
    ///
    /// All blocks after the last duration have its number.
    pub(crate) fn step(&self, counted: &Decision) -> Option<usize> {
        let blocks = counted.limits().iter().find(|limit| limit.name() == BLOCKS).filter(|_| counted.is_allowed())?;
        let used = usize::try_from(blocks.limit().saturating_sub(blocks.remaining())).unwrap_or(usize::MAX);
        Some(used.clamp(1, self.block_for.len()))
    }

    /// Returns the duration of a block, by its number from 1.
    pub(crate) fn duration(&self, step: usize) -> Duration {
        self.block_for[step - 1]
    }
}

/// Returns an error if the duration cannot be the period of a window.
fn is_period(duration: Duration) -> Result<(), Error> {
    match Quota::try_new(1, duration) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::config(format!("escalation with an invalid time: {error}")).with_source(error)),
    }
}

/// A limit that counts by a part of the key.
type LimitBy<F, SubKey> = Limit<FixedWindow, KeyedBy<F, (SubKey,)>>;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::decision::{LimitSnapshot, Verdict};

    /// A limiter of an application may return any numbers.
    #[test]
    fn more_remaining_blocks_than_the_limit_are_the_first_block() {
        let escalation = Escalation::new("login", Quota::per_minute(5));
        let step = |remaining| {
            let snapshot = LimitSnapshot::new(10, None).with_remaining(remaining);
            let status = LimitStatus::new(BLOCKS, Verdict::Allowed, snapshot);
            escalation.step(&Decision::from_limit(Timestamp::EPOCH, status))
        };
        assert_eq!([11, 10, 9, 8, 7, 6, 0].map(step), [1, 1, 1, 2, 3, 3, 3].map(Some));
    }
}
