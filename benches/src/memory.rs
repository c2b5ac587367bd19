//! Decisions in memory: a hot key and many keys, allowed and refused, one thread and two.

use std::hash::BuildHasher;
use std::hint::black_box;
use std::time::Duration;

use tower_ratelimit::store::{MemoryLimits, MemoryLimitsFor};
use tower_ratelimit::{
    AcquireOptions, FixedWindow, Gcra, LeakyQueue, Limit, Memory, Quota, SlidingLog, SlidingWindow, SystemClock,
};

use crate::floor::Floor;
use crate::harness::{Contender, Harness};
use crate::peers::{Key, Peers, Terms, ask};

/// Never used up by a hot key, so that every decision writes.
const PLENTY: Terms = Terms { limit: 1_000_000, seconds: 1, burst: u32::MAX };
/// One decision uses it up.
const ONE: Terms = Terms { limit: 1, seconds: 86_400, burst: 1 };
/// Never used up where there are many keys, none of which is as good as new while they are asked for.
const SLOW: Terms = Terms { limit: 1, seconds: 1, burst: 1_000_000 };

/// All contenders, held to the same terms.
struct Field<K: Key> {
    ours: Memory<Gcra, SystemClock, foldhash::quality::RandomState>,
    floor: Floor,
    peers: Peers<K>,
}

impl<K: Key> Field<K> {
    fn new(keys: usize, terms: Terms) -> Self {
        let quota = Quota::new(terms.limit, Duration::from_secs(terms.seconds));
        let (interval, burst) = (terms.interval(), u64::from(terms.burst));
        Self {
            ours: Memory::builder(Gcra::new(quota).burst(burst))
                .max_keys(keys.max(10_000))
                .hasher(foldhash::quality::RandomState::default())
                .build()
                .expect("a limiter"),
            floor: Floor::new(keys.max(10_000), interval, interval * burst),
            peers: Peers::new(keys, terms),
        }
    }

    fn compare(&self, harness: &Harness, scenario: &str, keys: &[K]) {
        let mut contenders = vec![
            ask(keys, "ours", |key| self.ours.check(key, AcquireOptions::default()).is_allowed()),
            ask(keys, "floor", |key| self.floor.allows(key)),
        ];
        contenders.extend(self.peers.contenders(keys));
        for threads in [1, 2] {
            harness.compare(scenario, threads, &contenders);
        }
    }
}

/// Indices in an order that looks random and costs next to nothing.
pub(crate) struct Walk {
    len: u64,
    state: u64,
}

impl Walk {
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
        Field::new(1, PLENTY).compare(harness, "memory hot allowed", &hot);
    }
    if harness.wants("memory hot refused") {
        Field::new(1, ONE).compare(harness, "memory hot refused", &hot);
    }
    if harness.wants("memory 1000 keys") {
        let keys: Vec<u64> = (0..1_000).map(|key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        Field::new(1_000, PLENTY).compare(harness, "memory 1000 keys", &keys);
    }
    let many = if harness.is_quick() { 200_000 } else { 1_000_000 };
    if harness.wants("memory many keys") {
        let keys: Vec<u64> = (0..many).map(|key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        Field::new(keys.len(), SLOW).compare(harness, "memory many keys", &keys);
    }
    if harness.wants("memory many strings") {
        let keys: Vec<String> = (0..many).map(|key| format!("customer-{key:011}")).collect();
        Field::new(keys.len(), SLOW).compare(harness, "memory many strings", &keys);
    }
    algorithms(harness);
    several(harness);
    hashers(harness);
}

fn decide<'a, K, L, S>(name: &'static str, limiter: &'a Memory<L, SystemClock, S>, keys: &'a [K]) -> Contender<'a>
where
    K: Sync,
    L: MemoryLimits<S> + MemoryLimitsFor<K, S>,
    L::Rows: Send + Sync,
    S: BuildHasher + Send + Sync,
{
    Contender::new(name, move |thread| {
        let mut walk = Walk::new(keys.len(), thread);
        move |count| {
            for _ in 0..count {
                black_box(limiter.check(&keys[walk.next()], AcquireOptions::default()).is_allowed());
            }
        }
    })
}

/// All algorithms on 1000 keys, most decisions refused by those that can't have a large limit.
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

fn several(harness: &Harness) {
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

/// The default hasher, and that for keys that clients choose.
fn hashers(harness: &Harness) {
    let quota = Gcra::new(Quota::per_second(1_000_000)).burst(u32::MAX.into());
    let (default, sip) = (Memory::new(quota), Memory::builder(quota).sip_hash().build().expect("a limiter"));
    let numbers: Vec<u64> = (0..1_000).collect();
    let strings: Vec<String> = (0..1_000).map(|key| format!("customer-{key:011}")).collect();
    harness.compare(
        "memory hashers u64",
        1,
        &[decide("default", &default, &numbers), decide("sip_hash", &sip, &numbers)],
    );
    harness.compare(
        "memory hashers string",
        1,
        &[decide("default", &default, &strings), decide("sip_hash", &sip, &strings)],
    );
}
