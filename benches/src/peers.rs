//! Other limiters with exact counts per key in memory, each called as its documentation shows.
//!
//! | Crate | State per key | Keys | A denial takes |
//! |---|---|---|---|
//! | `governor` 0.10 | a map of 4 shards per core, SipHash (or foldhash), behind read-write locks | any | a read lock |
//! | `gcra` 0.6 | the same map, FxHash: not for keys that clients choose | any; cloned for each decision | a write lock |
//! | `throttlecrab` 0.4 | a map for one thread at a time: here behind a mutex | text | the mutex |
//! | `subms-rate-limiter` 0.10 | 16 maps, SipHash, each behind a mutex | text | a mutex |
//!
//! None of these limiters bounds its memory.

use std::fmt::Display;
use std::hash::Hash;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use governor::{DefaultKeyedRateLimiter, RateLimiter};
use throttlecrab::AdaptiveStore;

use crate::harness::Contestant;
use crate::memory::KeySequence;

/// The quota of all contestants: `limit` in `seconds`, and a burst.
#[derive(Clone, Copy)]
pub(crate) struct BenchQuota {
    pub(crate) limit: u64,
    pub(crate) seconds: u64,
    pub(crate) burst: u32,
}

impl BenchQuota {
    /// Returns the emission interval in microseconds.
    pub(crate) fn interval(self) -> u64 {
        self.seconds * 1_000_000 / self.limit
    }
}

/// A key type of the scenarios.
pub(crate) trait Key: Hash + Eq + Clone + Display + Send + Sync + 'static {
    /// Returns the key as text if it is text. Some limiters accept no other keys.
    fn text(&self) -> Option<&str>;
}

impl Key for u64 {
    fn text(&self) -> Option<&str> {
        None
    }
}

impl Key for String {
    fn text(&self) -> Option<&str> {
        Some(self)
    }
}

type Foldhashed<K> = RateLimiter<
    K,
    governor::state::keyed::DashMapStateStore<K, foldhash::quality::RandomState>,
    governor::clock::DefaultClock,
>;

pub(crate) struct Peers<K: Key> {
    quota: BenchQuota,
    governor: DefaultKeyedRateLimiter<K>,
    governor_foldhash: Foldhashed<K>,
    gcra: (gcra::RateLimiter<K>, gcra::RateLimit),
    throttlecrab: Mutex<throttlecrab::RateLimiter<AdaptiveStore>>,
    subms: subms_rate_limiter::KeyedRateLimiter,
}

impl<K: Key> Peers<K> {
    pub(crate) fn new(keys: usize, quota: BenchQuota) -> Self {
        let for_governor = governor_quota(quota);
        // `gcra` has no burst apart from the limit: its period is the time of a whole burst.
        let period = Duration::from_micros(quota.interval() * u64::from(quota.burst));
        Self {
            quota,
            governor: RateLimiter::keyed(for_governor),
            governor_foldhash: RateLimiter::dashmap_with_hasher(
                for_governor,
                foldhash::quality::RandomState::default(),
            ),
            gcra: (gcra::RateLimiter::new(keys), gcra::RateLimit::new(quota.burst, period)),
            throttlecrab: Mutex::new(throttlecrab::RateLimiter::new(AdaptiveStore::with_capacity(keys))),
            subms: subms_rate_limiter::KeyedRateLimiter::new(1e6 / quota.interval() as f64, quota.burst.into()),
        }
    }

    pub(crate) fn quota(&self) -> BenchQuota {
        self.quota
    }

    /// Returns the contestants that accept such keys.
    pub(crate) fn contestants<'a>(&'a self, keys: &'a [K]) -> Vec<Contestant<'a>> {
        let mut contestants = vec![
            contestant(keys, "governor", |key| self.governor.check_key(key).is_ok()),
            contestant(keys, "governor_foldhash", |key| self.allows_foldhash(key)),
            contestant(keys, "gcra", |key| self.gcra_allows(key)),
        ];
        if keys.first().is_some_and(|key| key.text().is_some()) {
            contestants.push(contestant(keys, "throttlecrab", |key| self.throttlecrab_allows(key)));
            contestants.push(contestant(keys, "subms", |key| self.subms.try_acquire(key.text().unwrap_or_default())));
        }
        contestants
    }

    pub(crate) fn allows_foldhash(&self, key: &K) -> bool {
        self.governor_foldhash.check_key(key).is_ok()
    }

    fn gcra_allows(&self, key: &K) -> bool {
        let (limiter, limit) = &self.gcra;
        now(limiter.check(key.clone(), limit, 1)).is_ok()
    }

    fn throttlecrab_allows(&self, key: &K) -> bool {
        let BenchQuota { limit, seconds, burst } = self.quota;
        let key = key.text().unwrap_or_default();
        let mut limiter = self.throttlecrab.lock().expect("no panic");
        let decided = limiter.rate_limit(key, burst.into(), limit as i64, seconds as i64, 1, SystemTime::now());
        decided.is_ok_and(|(allowed, _)| allowed)
    }
}

pub(crate) fn governor_quota(quota: BenchQuota) -> governor::Quota {
    let per_interval = governor::Quota::with_period(Duration::from_micros(quota.interval())).expect("a period");
    per_interval.allow_burst(NonZeroU32::new(quota.burst).expect("a burst"))
}

/// Creates a contestant that decides on pseudo-random keys. Each thread has its own sequence. Inserts every key first.
pub(crate) fn contestant<'a, K: Sync>(
    keys: &'a [K],
    name: &'static str,
    allows: impl Fn(&K) -> bool + Copy + Send + Sync + 'a,
) -> Contestant<'a> {
    for key in keys {
        black_box(allows(key));
    }
    Contestant::new(name, move |thread| {
        let mut sequence = KeySequence::new(keys.len(), thread);
        move |count| {
            for _ in 0..count {
                black_box(allows(&keys[sequence.next()]));
            }
        }
    })
}

/// Returns the output of a future that is ready at its first poll.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future is not ready at its first poll"),
    }
}
