//! The near-limit signal: a mark on a limit, and the keys that have crossed the mark recently.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Limit;
use crate::clock::Timestamp;
use crate::decision::{LazySnapshot, LimitNumbers, LimitReading, NearLimit, ShareRole, WarnAt};

impl<A, P> Limit<A, P> {
    /// Signals when a charge brings the usage of a key to this part of the limit: 0.8 is 80 %.
    ///
    /// The usage is [`limit`](crate::LimitStatus::limit) less [`remaining`](crate::LimitStatus::remaining), with held
    /// costs. It is at the mark if it is at least `part` of the limit. A decision crosses the mark if the usage is below
    /// the mark before its charge, or before it holds its cost, and at the mark after that. Settlements, resets and
    /// `set_usage` cross nothing, and a denial charges nothing.
    ///
    /// | Signal | When |
    /// |---|---|
    /// | [`LimitStatus::is_near_limit`](crate::LimitStatus::is_near_limit), [`Decision::is_near_limit`](crate::Decision::is_near_limit) and [`RateLimitInfo::is_near_limit`](crate::RateLimitInfo::is_near_limit) | the usage is at the mark after the decision |
    /// | [`LimitStatus::crossed_mark`](crate::LimitStatus::crossed_mark), and the counter `ratelimit_near_limit_total` | each crossing |
    /// | [`Event::NearLimit`](crate::observe::Event::NearLimit) | a crossing, at most once per key and minute |
    ///
    /// Each decision lists the limits that are near, beside the most restrictive one. The fields of responses stay the
    /// same.
    ///
    /// The minute is measured by the limiter's clock, also if the limits are replaced meanwhile. The process remembers the
    /// last event of 1024 keys for each limit with a mark, in 16 kilobytes: 128 sets of 8 keys, found by a hash with a
    /// random key. A ninth key of a set replaces the key with the oldest event. If that key crosses the mark again, it has
    /// a further event within the minute. So the events are not too few. (In a [chain](crate::limiter::Chained), a request
    /// that crosses the first limiter's mark and that the second one denies counts as the event of its minute. So does a
    /// decision that a store of your own drops because another call has changed a state meanwhile.) Each process has its
    /// own events.
    ///
    /// With [leases](crate::store) a decision knows an estimate of the usage: what Redis reported last, and what this
    /// process has spent since. The first decision of the process that sees the estimate at the mark crosses it, so a
    /// crossing by other processes is seen after a report.
    ///
    /// In memory, a limit with a mark does not use the fast path of decisions. Limits without a mark cost the same as
    /// before.
    ///
    /// Building a limiter returns an error if `part` is not above 0 (at least 0.000001) and at most 1.
    ///
    /// ```
    /// use tower_ratelimit::{Gcra, Limit, Memory, Quota};
    ///
    /// let limiter = Memory::new(Limit::new("api", Gcra::new(Quota::per_minute(10))).warn_at(0.8));
    /// let crossed: Vec<bool> = (0..10).map(|_| limiter.check("alice", 1).limits()[0].crossed_mark()).collect();
    /// assert_eq!(crossed.iter().position(|crossed| *crossed), Some(7));
    /// assert!(limiter.check("alice", 1).is_near_limit());
    /// ```
    pub fn warn_at(self, part: f64) -> Self {
        self.warn_at_mark(Some(WarnAt::new(part)))
    }

    /// Sets the mark of a limit from configuration, if it has one.
    pub(crate) fn warn_at_mark(mut self, mark: Option<WarnAt>) -> Self {
        self.warning = mark.map(|mark| Warning(Arc::new(WarnKeys::new(mark))));
        self
    }

    /// Remembers the events of a limit that this one replaces.
    pub(crate) fn continuing(mut self, previous: &Self) -> Self {
        if let Some((warning, previous)) = self.warning.as_mut().zip(previous.warn_keys()) {
            *warning = Warning(warning.0.continuing(previous));
        }
        self
    }

    /// Returns the mark, with the keys that have crossed it.
    #[inline]
    pub(crate) fn warn_keys(&self) -> Option<&Arc<WarnKeys>> {
        self.warning.as_ref().map(|warning| &warning.0)
    }
}

impl LimitReading {
    /// Returns the numbers after a charge or a hold, and whether it has crossed the limit's mark (`keys`). `all` are the
    /// numbers with the units that are kept free, and `key` identifies the limit's key.
    #[inline]
    pub(crate) fn numbers_after(
        &self,
        keys: Option<&Arc<WarnKeys>>,
        all: LazySnapshot,
        key: impl Hash,
        now: Timestamp,
    ) -> LimitNumbers {
        let snapshot = all.keeping_free(Some(self.kept_free), self.verdict.wait_for_more(self.cost), self.is_bucket);
        let near = keys.map_or(self.near, |keys| keys.charged(self.near, self.marked(&all, &snapshot), key, now));
        LimitNumbers { snapshot, near }
    }

    /// Returns the numbers without a charge. `all` are those with the units that are kept free.
    #[cfg(feature = "redis")]
    pub(crate) fn numbers_of(&self, keys: Option<&Arc<WarnKeys>>, all: LazySnapshot) -> LimitNumbers {
        let snapshot = all.keeping_free(Some(self.kept_free), self.verdict.wait_for_more(self.cost), self.is_bucket);
        let near = keys.map_or(self.near, |keys| keys.warn_at.level(self.marked(&all, &snapshot)));
        LimitNumbers { snapshot, near }
    }

    /// Returns the numbers that a mark concerns. Beside a share, a mark is a part of the whole limit.
    fn marked<'a>(&self, all: &'a LazySnapshot, snapshot: &'a LazySnapshot) -> &'a LazySnapshot {
        if self.share == ShareRole::None { snapshot } else { all }
    }
}

/// The mark of a limit. A clone has seen no key, because it is for another limiter.
pub(super) struct Warning(Arc<WarnKeys>);

impl Clone for Warning {
    fn clone(&self) -> Self {
        Self(Arc::new(WarnKeys::new(self.0.warn_at)))
    }
}

/// The mark of a limit, and the last events of recent keys.
pub(crate) struct WarnKeys {
    pub(crate) warn_at: WarnAt,
    recent: Arc<RecentEvents>,
}

struct RecentEvents {
    hasher: RandomState,
    sets: Box<[Mutex<[LastEvent; Self::KEYS_PER_SET]>]>,
}

/// The last event of a key.
#[derive(Clone, Copy, Default)]
struct LastEvent {
    /// The hash of the key, 0 for none.
    key: u64,
    /// The time, in microseconds.
    at: u64,
}

impl WarnKeys {
    fn new(warn_at: WarnAt) -> Self {
        let sets = (0..RecentEvents::SETS).map(|_| Mutex::default()).collect();
        Self { warn_at, recent: Arc::new(RecentEvents { hasher: RandomState::new(), sets }) }
    }

    /// Returns the same mark, with the events of a limit that is replaced.
    pub(crate) fn continuing(&self, previous: &Self) -> Arc<Self> {
        Arc::new(Self { warn_at: self.warn_at, recent: Arc::clone(&previous.recent) })
    }

    /// Returns the signal of a decision that has charged a key, or has held its cost. `before` is the level before that.
    #[cold]
    pub(crate) fn charged(&self, before: NearLimit, after: &LazySnapshot, key: impl Hash, now: Timestamp) -> NearLimit {
        let level = self.warn_at.level(after);
        if before.has(NearLimit::NEAR) || !level.has(NearLimit::NEAR) {
            return level;
        }
        let crossed = level.with(NearLimit::CROSSED);
        let is_first = self.recent.is_first_in_period(self.recent.hasher.hash_one(key), now);
        if is_first { crossed.with(NearLimit::EVENT) } else { crossed }
    }
}

impl RecentEvents {
    const SETS: usize = 128;
    const KEYS_PER_SET: usize = 8;
    /// A key has at most one event in this time.
    const PERIOD: Duration = Duration::from_secs(60);

    /// Returns whether the key had no event within the last period. Then it has one now.
    fn is_first_in_period(&self, hash: u64, now: Timestamp) -> bool {
        let (key, now) = (hash | 1, now.as_micros());
        let set = &self.sets[(hash >> 32) as usize % self.sets.len()];
        let mut events = set.lock().unwrap_or_else(PoisonError::into_inner);
        let known = events.iter().position(|event| event.key == key);
        let index = known.or_else(|| (0..events.len()).min_by_key(|index| events[*index].at));
        let Some(event) = index.and_then(|index| events.get_mut(index)) else { return true };
        // The absolute difference: a clock that steps back far must not suppress events until it has caught up.
        if event.key == key && u128::from(event.at.abs_diff(now)) < Self::PERIOD.as_micros() {
            return false;
        }
        *event = LastEvent { key, at: now };
        true
    }
}

impl_debug!(WarnKeys { warn_at });
