//! Limiters of others that keep exact accounts by key in memory, each asked as its documentation does.
//!
//! | | state by key | keys | a refusal takes |
//! |---|---|---|---|
//! | `governor` 0.10 | a map of 4 shards a core, SipHash (or foldhash), behind read-write locks | any | a read lock |
//! | `gcra` 0.6 | the same map, FxHash: not for keys that clients choose | any; cloned for each decision | a write lock |
//! | `throttlecrab` 0.4 | a map that one thread at a time may use: here behind a mutex | text | the mutex |
//! | `subms-rate-limiter` 0.10 | 16 maps, SipHash, each behind a mutex | text | a mutex |
//!
//! None of them bounds its memory by itself.

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

use crate::harness::Contender;
use crate::memory::Walk;

/// What every contender's keys are held to: so many in so many seconds, and a burst.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) limit: u64,
    pub(crate) seconds: u64,
    pub(crate) burst: u32,
}

impl Terms {
    /// Microseconds from one to the next.
    pub(crate) fn interval(self) -> u64 {
        self.seconds * 1_000_000 / self.limit
    }
}

/// A key as the scenarios have them.
pub(crate) trait Key: Hash + Eq + Clone + Display + Send + Sync + 'static {
    /// As text, if it is: some limiters take no other.
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
    terms: Terms,
    governor: DefaultKeyedRateLimiter<K>,
    governor_foldhash: Foldhashed<K>,
    gcra: (gcra::RateLimiter<K>, gcra::RateLimit),
    throttlecrab: Mutex<throttlecrab::RateLimiter<AdaptiveStore>>,
    subms: subms_rate_limiter::KeyedRateLimiter,
}

impl<K: Key> Peers<K> {
    pub(crate) fn new(keys: usize, terms: Terms) -> Self {
        let quota = governor_quota(terms);
        // It has no burst beside the limit: the period is that of a whole burst.
        let period = Duration::from_micros(terms.interval() * u64::from(terms.burst));
        Self {
            terms,
            governor: RateLimiter::keyed(quota),
            governor_foldhash: RateLimiter::dashmap_with_hasher(quota, foldhash::quality::RandomState::default()),
            gcra: (gcra::RateLimiter::new(keys), gcra::RateLimit::new(terms.burst, period)),
            throttlecrab: Mutex::new(throttlecrab::RateLimiter::new(AdaptiveStore::with_capacity(keys))),
            subms: subms_rate_limiter::KeyedRateLimiter::new(1e6 / terms.interval() as f64, terms.burst.into()),
        }
    }

    /// Those that take such keys. The first two are those that the targets name.
    pub(crate) fn contenders<'a>(&'a self, keys: &'a [K]) -> Vec<Contender<'a>> {
        let mut contenders = vec![
            ask(keys, "governor", |key| self.governor.check_key(key).is_ok()),
            ask(keys, "governor_foldhash", |key| self.governor_foldhash.check_key(key).is_ok()),
            ask(keys, "gcra", |key| self.gcra_allows(key)),
        ];
        if keys.first().is_some_and(|key| key.text().is_some()) {
            contenders.push(ask(keys, "throttlecrab", |key| self.throttlecrab_allows(key)));
            contenders.push(ask(keys, "subms", |key| self.subms.try_acquire(key.text().unwrap_or_default())));
        }
        contenders
    }

    fn gcra_allows(&self, key: &K) -> bool {
        let (limiter, limit) = &self.gcra;
        now(limiter.check(key.clone(), limit, 1)).is_ok()
    }

    fn throttlecrab_allows(&self, key: &K) -> bool {
        let Terms { limit, seconds, burst } = self.terms;
        let key = key.text().unwrap_or_default();
        let mut limiter = self.throttlecrab.lock().expect("no panic");
        let decided = limiter.rate_limit(key, burst.into(), limit as i64, seconds as i64, 1, SystemTime::now());
        decided.is_ok_and(|(allowed, _)| allowed)
    }
}

pub(crate) fn governor_quota(terms: Terms) -> governor::Quota {
    let quota = governor::Quota::with_period(Duration::from_micros(terms.interval())).expect("a period");
    quota.allow_burst(NonZeroU32::new(terms.burst).expect("a burst"))
}

/// Asks for one key after the other, in an order in which no two follow each other in a table. Threads start in different
/// places. Every key has been asked for once before.
pub(crate) fn ask<'a, K: Sync>(
    keys: &'a [K],
    name: &'static str,
    allows: impl Fn(&K) -> bool + Copy + Send + Sync + 'a,
) -> Contender<'a> {
    for key in keys {
        black_box(allows(key));
    }
    Contender::new(name, move |thread| {
        let mut walk = Walk::new(keys.len(), thread);
        move |count| {
            for _ in 0..count {
                black_box(allows(&keys[walk.next()]));
            }
        }
    })
}

/// What a future has at once.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("nothing here waits"),
    }
}
