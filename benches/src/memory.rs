//! Decisions in memory: one hot key and many keys, allowed and denied, on one thread and on two.

use std::hint::black_box;
use std::time::{Duration, Instant};

use governor::RateLimiter;
use governor::middleware::StateInformationMiddleware;
use tower_ratelimit::store::MemoryLimits;
use tower_ratelimit::{
    AcquireOptions, Clock, CoarseClock, FixedWindow, Gcra, LeakyQueue, Limit, Memory, Quota, SlidingLog, SlidingWindow,
    SystemClock,
};

use crate::baseline::{Baseline, RawClock};
use crate::harness::{Contestant, Harness};
use crate::paths::separated;
use crate::peers::{BenchQuota, Key, Peers, contestant, governor_quota};

/// Allows every request, even on one hot key, so that every decision writes.
pub(crate) const PLENTY: BenchQuota = BenchQuota { limit: 1_000_000, seconds: 1, burst: u32::MAX };
/// Denies every request but the first.
const ONE: BenchQuota = BenchQuota { limit: 1, seconds: 86_400, burst: 1 };
/// Allows every request on many keys, and no key becomes idle during the run.
pub(crate) const SLOW: BenchQuota = BenchQuota { limit: 1, seconds: 1, burst: 1_000_000 };

/// All contestants, with the same quota.
pub(crate) struct Contestants<K: Key> {
    ours: Memory<K, Gcra>,
    baseline: Baseline<SystemClock>,
    /// The baseline with the cheapest clock.
    baseline_raw: Baseline<RawClock>,
    peers: Peers<K>,
}

impl<K: Key> Contestants<K> {
    pub(crate) fn new(keys: usize, quota: BenchQuota) -> Self {
        let (interval, burst) = (quota.interval(), u64::from(quota.burst));
        let rate = Quota::new(quota.limit, Duration::from_secs(quota.seconds));
        Self {
            ours: Memory::builder(Gcra::new(rate).burst(burst)).max_keys(keys.max(10_000)).build().expect("a limiter"),
            baseline: Baseline::new(keys.max(10_000), interval, interval * burst, SystemClock::new()),
            baseline_raw: Baseline::new(keys.max(10_000), interval, interval * burst, RawClock::new()),
            peers: Peers::new(keys, quota),
        }
    }

    fn compare(&self, harness: &Harness, scenario: &str, keys: &[K]) {
        let mut contestants = vec![
            contestant(keys, "ours", |key| self.ours.check(key, AcquireOptions::default()).is_allowed()),
            contestant(keys, "baseline_raw_clock", |key| self.baseline_raw.allows(key)),
            contestant(keys, "baseline", |key| self.baseline.allows(key)),
        ];
        contestants.extend(self.peers.contestants(keys));
        for threads in [1, 2] {
            harness.compare(scenario, threads, &contestants);
        }
    }

    /// The caller reads limit, remaining and reset of each decision. The baseline has no such numbers.
    fn compare_read(&self, harness: &Harness, scenario: &str, keys: &[K]) {
        let governor = RateLimiter::keyed(governor_quota(self.peers.quota())).with_middleware();
        let governor: RateLimiter<_, _, _, StateInformationMiddleware> = governor;
        let contestants = [
            contestant(keys, "ours", |key| {
                let decision = self.ours.check(key, AcquireOptions::default());
                black_box(decision.most_restrictive().map(|limit| limit.snapshot()));
                decision.is_allowed()
            }),
            contestant(keys, "baseline_raw_clock", |key| self.baseline_raw.allows(key)),
            contestant(keys, "governor", |key| {
                let state = governor.check_key(key);
                state.is_ok_and(|state| black_box(state.quota().burst_size().get()) > state.remaining_burst_capacity())
            }),
        ];
        harness.compare(scenario, 1, &contestants);
    }
}

impl Contestants<u64> {
    pub(crate) fn allows(&self, key: &u64) -> bool {
        self.ours.check(key, AcquireOptions::default()).is_allowed()
    }

    pub(crate) fn allows_foldhash(&self, key: &u64) -> bool {
        self.peers.allows_foldhash(key)
    }

    /// Beside the two fastest peers, on one thread.
    pub(crate) fn compare_fast(&self, harness: &Harness, scenario: &str, keys: &[u64]) {
        let contestants = [
            contestant(keys, "ours", |key| self.allows(key)),
            contestant(keys, "governor_foldhash", |key| self.allows_foldhash(key)),
            contestant(keys, "baseline_raw_clock", |key| self.baseline_raw.allows(key)),
        ];
        harness.compare(scenario, 1, &contestants);
    }

    /// As [`compare_fast`](Self::compare_fast), with decisions that do not overlap.
    pub(crate) fn compare_isolated(&self, harness: &Harness, scenario: &str, keys: &[u64]) {
        let contestants = [
            separated(keys, "ours", |key| self.allows(key)),
            separated(keys, "bare", |_| true),
            separated(keys, "governor_foldhash", |key| self.allows_foldhash(key)),
            separated(keys, "baseline_raw_clock", |key| self.baseline_raw.allows(key)),
        ];
        harness.compare(scenario, 1, &contestants);
    }
}

/// Pseudo-random key indices, at the cost of two multiplications each.
pub(crate) struct KeySequence {
    len: u64,
    state: u64,
}

impl KeySequence {
    pub(crate) fn new(len: usize, thread: usize) -> Self {
        Self { len: len as u64, state: 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread as u64 + 1) }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.state) * u128::from(self.len)) >> 64) as usize
    }
}

pub(crate) fn run(harness: &mut Harness) {
    let hot = vec!["customer-0001-abcdef".to_owned()];
    if harness.wants("memory hot allowed") {
        Contestants::new(1, PLENTY).compare(harness, "memory hot allowed", &hot);
    }
    if harness.wants("memory hot allowed, read") {
        Contestants::new(1, PLENTY).compare_read(harness, "memory hot allowed, read", &hot);
    }
    if harness.wants("memory hot denied") {
        Contestants::new(1, ONE).compare(harness, "memory hot denied", &hot);
    }
    if harness.wants("memory 1000 keys") {
        let keys: Vec<u64> = (0..1_000).map(|key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        Contestants::new(1_000, PLENTY).compare(harness, "memory 1000 keys", &keys);
    }
    let many = if harness.is_quick() { 200_000 } else { 1_000_000 };
    if harness.wants("memory many keys") {
        let keys: Vec<u64> = (0..many).map(|key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        Contestants::new(keys.len(), SLOW).compare(harness, "memory many keys", &keys);
    }
    if harness.wants("memory many strings") {
        let keys: Vec<String> = (0..many).map(|key| format!("customer-{key:011}")).collect();
        Contestants::new(keys.len(), SLOW).compare(harness, "memory many strings", &keys);
    }
    algorithms(harness);
    three_limits(harness);
    hashers(harness);
    clocks(harness);
}

pub(crate) fn decide<'a, K, L>(name: &'static str, limiter: &'a Memory<K, L>, keys: &'a [K]) -> Contestant<'a>
where
    K: Sync,
    L: MemoryLimits<K>,
{
    Contestant::new(name, move |thread| {
        let mut sequence = KeySequence::new(keys.len(), thread);
        move |count| {
            for _ in 0..count {
                black_box(limiter.check(&keys[sequence.next()], AcquireOptions::default()).is_allowed());
            }
        }
    })
}

/// All algorithms on 1000 keys. The sliding log, whose limit must be small, denies most requests.
fn algorithms(harness: &Harness) {
    let keys: Vec<u64> = (0..1_000).collect();
    let quota = Quota::per_second(1_000_000);
    let (gcra, fixed, queue) =
        (Memory::new(Gcra::new(quota)), Memory::new(FixedWindow::new(quota)), Memory::new(LeakyQueue::new(quota)));
    let strict = Memory::new(SlidingWindow::new(quota));
    let weighted = Memory::new(SlidingWindow::new(quota).blocks(1).weighted());
    let log = Memory::builder(SlidingLog::new(Quota::per_second(100))).build().expect("a limiter");
    harness.compare(
        "memory algorithms",
        1,
        &[
            decide("gcra", &gcra, &keys),
            decide("fixed_window", &fixed, &keys),
            decide("leaky_queue", &queue, &keys),
            decide("sliding_window_strict", &strict, &keys),
            decide("sliding_window_weighted", &weighted, &keys),
            decide("sliding_log", &log, &keys),
        ],
    );
}

fn three_limits(harness: &Harness) {
    let keys: Vec<u64> = (0..1_000).collect();
    let plenty = Gcra::new(Quota::per_second(1_000_000)).burst(u32::MAX.into());
    let one = Memory::new(plenty);
    let three = Memory::new((
        Limit::new("user", plenty),
        Limit::new("group", plenty).keyed_by(|key: &u64| key / 10),
        Limit::new("region", plenty).keyed_by(|key: &u64| key / 100),
    ));
    let tuple_of_one = Memory::new((plenty,));
    harness.compare(
        "memory three limits",
        1,
        &[decide("three", &three, &keys), decide("one", &one, &keys), decide("tuple_of_one", &tuple_of_one, &keys)],
    );
}

/// One reading of each clock, and one decision with each.
fn clocks(harness: &Harness) {
    fn reading<'a>(name: &'static str, now: impl Fn() -> u64 + Copy + Send + Sync + 'a) -> Contestant<'a> {
        Contestant::new(name, move |_| {
            move |count| {
                for _ in 0..count {
                    black_box(now());
                }
            }
        })
    }
    let (system, raw, started) = (SystemClock::new(), RawClock::new(), Instant::now());
    let Ok(coarse) = CoarseClock::start() else { return };
    let contestants = [
        reading("ours", || system.now().as_micros()),
        reading("raw_counter", || raw.now().as_micros()),
        reading("coarse", || coarse.now().as_micros()),
        reading("monotonic", || started.elapsed().as_micros() as u64),
    ];
    harness.compare("memory clock", 1, &contestants);
    let quota = Gcra::new(Quota::per_second(1_000_000)).burst(u32::MAX.into());
    let keys: Vec<u64> = (0..1_000).collect();
    let system = Memory::new(quota);
    let coarse = Memory::builder(quota).clock(coarse.clone()).build().expect("a limiter");
    harness.compare("memory clocks, 1000 keys", 1, &[decide("ours", &system, &keys), decide("coarse", &coarse, &keys)]);
}

/// The default hasher, and the hasher for keys that clients choose.
fn hashers(harness: &Harness) {
    let quota = Gcra::new(Quota::per_second(1_000_000)).burst(u32::MAX.into());
    let numbers: Vec<u64> = (0..1_000).collect();
    let strings: Vec<String> = (0..1_000).map(|key| format!("customer-{key:011}")).collect();
    let (default, sip) =
        (Memory::new(quota), Memory::builder(quota).hasher(std::hash::RandomState::new()).build().expect("a limiter"));
    harness.compare(
        "memory hashers u64",
        1,
        &[decide("default", &default, &numbers), decide("RandomState", &sip, &numbers)],
    );
    let (default, sip) =
        (Memory::new(quota), Memory::builder(quota).hasher(std::hash::RandomState::new()).build().expect("a limiter"));
    harness.compare(
        "memory hashers string",
        1,
        &[decide("default", &default, &strings), decide("RandomState", &sip, &strings)],
    );
}
