//! What an operator can do to a key (peek, reset, set, block, forgive) and see of all keys; shadow limits, which tell
//! and never refuse; exemptions, which no header opens; and that limiters made of limiters pass every operation on.

use std::collections::HashSet;
use std::fmt::Debug;
use std::future::{Future, Ready, ready};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::key::{ExactPaths, Global, Header, PeerNetworks, Preflight};
use tower_ratelimit::limiter::{Acquisition, DeniedCache, FailOpen, Fallback, Held, LimiterFuture, Outcome};
use tower_ratelimit::response::{BoxError, ResetFormat};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Decision, Detail, DynLimit, Error, FixedWindow, Gcra, Http, LeakyBucket, LeakyQueue,
    Limit, Limiter, ManualClock, Memory, MissingKeyPolicy, PeerIp, Quota, RateLimitInfo, RateLimitLayer, SlidingLog,
    SlidingWindow, TokenBucket, Verdict, WhenFull, per_key,
};

const MICROSECOND: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const TEN: Quota = Quota::per_minute(10);

/// Memory answers at once: so does everything here.
fn now<T: Debug>(answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("a limiter in memory answers at once"),
    }
}

fn memory(algorithm: impl Algorithm, clock: &ManualClock) -> BoxLimiter<str> {
    BoxLimiter::new(Memory::builder(algorithm).max_keys(100).clock(clock.clone()).build().unwrap())
}

/// Every algorithm, each with ten to have at once.
fn every_algorithm(clock: &ManualClock) -> [BoxLimiter<str>; 8] {
    [
        memory(Gcra::new(TEN), clock),
        memory(TokenBucket::new(TEN), clock),
        memory(LeakyBucket::new(TEN), clock),
        memory(LeakyQueue::new(TEN).max_waiting(9), clock),
        memory(FixedWindow::new(TEN), clock),
        memory(SlidingWindow::new(TEN), clock),
        memory(SlidingWindow::new(TEN).weighted(), clock),
        memory(SlidingLog::new(TEN), clock),
    ]
}

fn acquire(limiter: &(impl Limiter<str> + ?Sized), key: &str, ask: AcquireOptions) -> Decision {
    let Acquisition::Ready(outcome) = limiter.acquire(key, ask) else { panic!("a limiter in memory answers at once") };
    outcome.unwrap().decision
}

fn hold(limiter: &(impl Limiter<str> + ?Sized), key: &str, cost: u64) -> Held {
    let Acquisition::Ready(outcome) = limiter.hold(key, AcquireOptions::cost(cost)) else {
        panic!("a limiter in memory answers at once")
    };
    outcome.unwrap().held.expect("a guard")
}

fn peek(limiter: &(impl Limiter<str> + ?Sized), key: &str, ask: AcquireOptions) -> Decision {
    now(limiter.peek(key, ask)).unwrap()
}

fn remaining(limiter: &(impl Limiter<str> + ?Sized), key: &str) -> u64 {
    peek(limiter, key, AcquireOptions::default()).remaining().unwrap()
}

// ---------------------------------------------------------------------------------------------------------------------
// Peek, reset, set
// ---------------------------------------------------------------------------------------------------------------------

/// From whatever state, what peeking says is what asking then answers; and peeking changes nothing.
#[test]
fn peeking_says_what_asking_would_and_changes_nothing() {
    let clock = ManualClock::new();
    for limiter in every_algorithm(&clock) {
        let mut seed = 7_u64;
        for _ in 0..500 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            clock.advance(Duration::from_millis(seed >> 51));
            let mut ask = AcquireOptions::cost((seed >> 33) % 12);
            if seed & 1 << 32 != 0 {
                ask = ask.max_delay(Duration::from_secs((seed >> 40) % 30));
            }
            let told = peek(&limiter, "alice", ask);
            assert_eq!(peek(&limiter, "alice", ask), told);
            let before = peek(&limiter, "alice", AcquireOptions::cost(0)).most_restrictive().cloned();
            let asked = acquire(&limiter, "alice", ask);
            assert_eq!(asked.verdict(), told.verdict(), "{ask:?}");
            if !asked.is_allowed() {
                assert_eq!(
                    peek(&limiter, "alice", AcquireOptions::cost(0)).most_restrictive(),
                    before.as_ref(),
                    "{ask:?}"
                );
            }
        }
    }
}

#[test]
fn a_reset_makes_a_key_as_good_as_new_and_no_other() {
    let clock = ManualClock::new();
    for limiter in every_algorithm(&clock) {
        acquire(&limiter, "alice", AcquireOptions::cost(10));
        acquire(&limiter, "bob", AcquireOptions::cost(4));
        now(limiter.reset("alice")).unwrap();
        assert_eq!((remaining(&limiter, "alice"), remaining(&limiter, "bob")), (10, 6));
        assert_eq!(peek(&limiter, "alice", AcquireOptions::default()).reset(), Some(Duration::ZERO));
        // One that is not known is as new already.
        now(limiter.reset("carol")).unwrap();
        assert_eq!(remaining(&limiter, "carol"), 10);
    }
}

/// The limits of these tests: each user's, each organisation's, in all.
fn three_limits(clock: &ManualClock) -> impl Limiter<str, Future = Ready<Result<Outcome, Error>>> + use<> {
    fn organisation(key: &str) -> &str {
        key.split_once('@').map_or(key, |(_, organisation)| organisation)
    }

    let limits = (
        Limit::new("user", Gcra::new(TEN)),
        Limit::new("organisation", FixedWindow::new(Quota::per_minute(20))).keyed_by_ref(organisation),
        Limit::new("all", SlidingLog::new(Quota::per_minute(30))).keyed_by(|_: &str| ()),
    );
    Memory::builder(limits).max_keys(100).clock(clock.clone()).build().unwrap()
}

fn left(limiter: &impl Limiter<str>, key: &str) -> Vec<u64> {
    let decision = peek(limiter, key, AcquireOptions::default().detail(Detail::All));
    decision.limits().iter().map(tower_ratelimit::LimitStatus::remaining).collect()
}

#[test]
fn a_reset_is_for_every_limit_that_counts_the_key() {
    let clock = ManualClock::new();
    let limiter = three_limits(&clock);
    acquire(&limiter, "alice@acme", AcquireOptions::cost(7));
    acquire(&limiter, "bob@acme", AcquireOptions::cost(2));
    acquire(&limiter, "carol@home", AcquireOptions::cost(1));
    assert_eq!(left(&limiter, "alice@acme"), [3, 11, 20]);
    now(limiter.reset("alice@acme")).unwrap();
    // What others have used of a shared part is forgotten with it.
    assert_eq!(left(&limiter, "alice@acme"), [10, 20, 30]);
    assert_eq!(left(&limiter, "bob@acme"), [8, 20, 30]);
    assert_eq!(left(&limiter, "carol@home"), [9, 19, 30]);
}

#[test]
fn set_makes_a_key_one_that_has_just_used_so_much() {
    let clock = ManualClock::new();
    for limiter in every_algorithm(&clock) {
        // It replaces what was used, whether that was more or less, and whether the key was known.
        for (used, left) in [(3, 7), (9, 1), (2, 8), (0, 10), (10, 0), (u64::MAX, 0)] {
            now(limiter.set("default", "alice", used)).unwrap();
            assert_eq!(remaining(&limiter, "alice"), left);
            assert_eq!(remaining(&limiter, "bob"), 10);
        }
        now(limiter.set("default", "alice", 10)).unwrap();
        // As right after as many requests.
        let twin = acquire(&limiter, "twin", AcquireOptions::cost(10));
        let set = peek(&limiter, "alice", AcquireOptions::default());
        assert_eq!(set.most_restrictive().unwrap().figures(), twin.most_restrictive().unwrap().figures());
    }
}

#[test]
fn set_is_for_one_limit() {
    let clock = ManualClock::new();
    let limiter = three_limits(&clock);
    now(limiter.set("organisation", "alice@acme", 15)).unwrap();
    assert_eq!(left(&limiter, "alice@acme"), [10, 5, 30]);
    assert_eq!(left(&limiter, "bob@acme"), [10, 5, 30]);
    assert_eq!(left(&limiter, "carol@home"), [10, 20, 30]);
}

#[test]
fn a_limit_that_is_not_there_is_an_error_that_says_so() {
    let clock = ManualClock::new();
    let named = Limit::new("api", Gcra::new(TEN));
    let memory = Memory::builder(named).max_keys(100).clock(clock).build().unwrap();
    let errors = [
        now(memory.set("default", "alice", 1)).unwrap_err(),
        now(memory.block("default", "alice", MINUTE)).unwrap_err(),
        now(memory.unblock("default", "alice")).unwrap_err(),
        memory.top_keys("default", 1).unwrap_err(),
        memory.key_id("default", "alice").unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_config());
        assert!(error.to_string().contains(r#"no limit named "default""#), "{error}");
    }
    assert_eq!(remaining(&memory, "alice"), 10);
}

// ---------------------------------------------------------------------------------------------------------------------
// Counters
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn a_block_refuses_whatever_is_left_and_ends_exactly() {
    let clock = ManualClock::new();
    for limiter in every_algorithm(&clock) {
        acquire(&limiter, "alice", AcquireOptions::cost(2));
        now(limiter.block("default", "alice", MINUTE)).unwrap();
        let refused = acquire(&limiter, "alice", AcquireOptions::default());
        assert_eq!(refused.verdict(), Verdict::Denied { retry_after: MINUTE });
        assert_eq!(refused.remaining(), Some(8), "the refusal charges nothing");
        // However long one would wait: a block is no queue.
        let patient = acquire(&limiter, "alice", AcquireOptions::default().max_delay(MINUTE * 10));
        assert_eq!(patient.verdict(), Verdict::Denied { retry_after: MINUTE });
        // Not even a question passes.
        assert!(!acquire(&limiter, "alice", AcquireOptions::cost(0)).is_allowed());
        assert!(acquire(&limiter, "bob", AcquireOptions::default()).is_allowed());

        clock.advance(Duration::from_micros(59_999_999));
        assert_eq!(acquire(&limiter, "alice", AcquireOptions::default()).retry_after(), Some(MICROSECOND));
        clock.advance(MICROSECOND);
        assert!(acquire(&limiter, "alice", AcquireOptions::default()).is_allowed());
        clock.advance(10 * MINUTE);
    }
}

#[test]
fn what_is_refused_both_ways_is_refused_for_the_longer_time() {
    let clock = ManualClock::new();
    let limiter = memory(FixedWindow::new(TEN), &clock);
    acquire(&limiter, "alice", AcquireOptions::cost(10));
    now(limiter.block("default", "alice", 10 * SECOND)).unwrap();
    assert_eq!(acquire(&limiter, "alice", AcquireOptions::default()).retry_after(), Some(MINUTE));
    now(limiter.block("default", "alice", 90 * SECOND)).unwrap();
    assert_eq!(acquire(&limiter, "alice", AcquireOptions::default()).retry_after(), Some(90 * SECOND));
    assert!(acquire(&limiter, "alice", AcquireOptions::cost(11)).exceeds_limit());
}

#[test]
fn a_later_block_takes_the_place_of_an_earlier_one() {
    let clock = ManualClock::new();
    let limiter = memory(Gcra::new(TEN), &clock);
    for (span, told) in [
        (MINUTE, Some(MINUTE)),
        (10 * SECOND, Some(10 * SECOND)),
        (2 * MINUTE, Some(2 * MINUTE)),
        (Duration::ZERO, None),
    ] {
        now(limiter.block("default", "alice", span)).unwrap();
        assert_eq!(acquire(&limiter, "alice", AcquireOptions::default()).retry_after(), told);
    }
    // For ever, as far as can be told.
    now(limiter.block("default", "alice", Duration::MAX)).unwrap();
    clock.advance(Duration::from_secs(1 << 40));
    assert!(!acquire(&limiter, "alice", AcquireOptions::default()).is_allowed());
}

#[test]
fn to_forgive_lifts_the_block_and_leaves_what_was_used() {
    let clock = ManualClock::new();
    for limiter in every_algorithm(&clock) {
        acquire(&limiter, "alice", AcquireOptions::cost(6));
        now(limiter.block("default", "alice", MINUTE)).unwrap();
        now(limiter.unblock("default", "alice")).unwrap();
        assert_eq!(acquire(&limiter, "alice", AcquireOptions::default()).remaining(), Some(3));
        // Who was not blocked is forgiven as well.
        now(limiter.unblock("default", "bob")).unwrap();
        assert_eq!(remaining(&limiter, "bob"), 10);
    }
}

#[test]
fn a_block_survives_a_reset_and_a_set() {
    let clock = ManualClock::new();
    for limiter in every_algorithm(&clock) {
        acquire(&limiter, "alice", AcquireOptions::cost(10));
        now(limiter.block("default", "alice", 2 * MINUTE)).unwrap();
        now(limiter.reset("alice")).unwrap();
        assert_eq!(acquire(&limiter, "alice", AcquireOptions::default()).retry_after(), Some(2 * MINUTE));
        now(limiter.set("default", "alice", 1)).unwrap();
        assert_eq!(acquire(&limiter, "alice", AcquireOptions::default()).retry_after(), Some(2 * MINUTE));
        now(limiter.unblock("default", "alice")).unwrap();
        assert_eq!(acquire(&limiter, "alice", AcquireOptions::default()).remaining(), Some(8));
    }
}

#[test]
fn a_block_is_for_the_part_that_its_limit_counts_by_and_charges_none_of_the_others() {
    let clock = ManualClock::new();
    let limiter = three_limits(&clock);
    now(limiter.block("organisation", "alice@acme", MINUTE)).unwrap();
    for blocked in ["alice@acme", "bob@acme", "acme"] {
        let refused = acquire(&limiter, blocked, AcquireOptions::default().detail(Detail::All));
        assert_eq!(refused.retry_after(), Some(MINUTE));
        assert_eq!(refused.most_restrictive().unwrap().name(), "organisation");
        assert_eq!(left(&limiter, blocked), [10, 20, 30]);
    }
    assert!(acquire(&limiter, "carol@home", AcquireOptions::default()).is_allowed());
    now(limiter.unblock("organisation", "bob@acme")).unwrap();
    assert!(acquire(&limiter, "alice@acme", AcquireOptions::default()).is_allowed());
}

#[test]
fn as_many_keys_as_there_is_room_for_stay_blocked() {
    let clock = ManualClock::new();
    let limiter = Memory::builder(Gcra::new(TEN)).max_keys(1000).clock(clock.clone()).build().unwrap();
    for key in 0..1000_u32 {
        now(Limiter::block(&limiter, "default", &key, MINUTE)).unwrap();
    }
    assert!((0..1000_u32).all(|key| !limiter.check(&key, AcquireOptions::default()).is_allowed()));
    clock.advance(MINUTE);
    assert!((0..1000_u32).all(|key| limiter.check(&key, AcquireOptions::default()).is_allowed()));
}

#[test]
fn shadow_beside_a_blocked_limit_has_its_own_verdict() {
    let clock = ManualClock::new();
    let limits = (
        Limit::new("enforced", FixedWindow::new(TEN)),
        Limit::new("shadow", FixedWindow::new(Quota::new(1, 10 * SECOND))).shadow(),
    );
    let limiter = Memory::builder(limits).max_keys(100).clock(clock).build().unwrap();
    acquire(&limiter, "alice", AcquireOptions::default());
    now(Limiter::<str>::block(&limiter, "enforced", "alice", MINUTE)).unwrap();
    // The caller would wait, so the enforced limit is decided as of the end of its block. The shadow is not.
    let denied = acquire(&limiter, "alice", AcquireOptions::default().max_delay(SECOND));
    assert_eq!(denied.retry_after(), Some(MINUTE));
    let shadows: Vec<_> = denied.shadow_refusals().map(|shadow| (shadow.name(), shadow.verdict())).collect();
    assert_eq!(shadows, [("shadow", Verdict::Denied { retry_after: 10 * SECOND })]);
}

// ---------------------------------------------------------------------------------------------------------------------
// What is seen of all keys
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn the_heaviest_keys_come_first() {
    let clock = ManualClock::new();
    let limiter = Memory::builder((
        Limit::new("user", FixedWindow::new(TEN)),
        Limit::new("first", FixedWindow::new(Quota::per_hour(100))).keyed_by(|key: &str| key.chars().next()),
    ));
    let limiter = limiter.max_keys(100).clock(clock.clone()).build().unwrap();
    for (key, cost) in [("bert", 3), ("anna", 10), ("carl", 1), ("clara", 8), ("bea", 4)] {
        acquire(&limiter, key, AcquireOptions::cost(cost));
        clock.advance(SECOND);
    }
    let id = |limit: &str, key: &str| limiter.key_id(limit, key).unwrap();

    let top_keys = limiter.top_keys("user", 3).unwrap();
    let ids: Vec<_> = top_keys.iter().map(|key| key.id).collect();
    assert_eq!(ids, ["anna", "clara", "bea"].map(|key| id("user", key)));
    let figures = top_keys[0].figures.unwrap();
    assert_eq!((figures.limit, figures.remaining, figures.reset), (10, 0, 56 * SECOND));
    assert_eq!(top_keys[0].reset, 56 * SECOND);

    let by_first: Vec<_> = limiter.top_keys("first", 100).unwrap();
    let ids: Vec<_> = by_first.iter().map(|key| (key.id, key.figures.unwrap().remaining)).collect();
    // An id stands for the part: all who share it have the same.
    assert_eq!(ids, [(id("first", "axel"), 90), (id("first", "c"), 91), (id("first", "bea"), 93)]);

    assert!(limiter.top_keys("user", 0).unwrap().is_empty());
    clock.advance(MINUTE);
    assert!(limiter.top_keys("user", 10).unwrap().is_empty(), "all are as good as new");
    assert_eq!(limiter.top_keys("first", 10).unwrap().len(), 3);
}

/// Its hash of a number is that number.
#[derive(Clone, Copy, Default)]
struct Known(u64);

impl std::hash::BuildHasher for Known {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        *self
    }
}

impl std::hash::Hasher for Known {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[test]
fn a_key_id_reveals_no_bits_of_the_hash() {
    const KEYS: u64 = 64;
    let limiter = Memory::builder(FixedWindow::new(TEN)).hasher(Known::default()).max_keys(100).build().unwrap();
    let hash = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut agreeing = [0; 48];
    for key in 1..=KEYS {
        assert!(limiter.check(&hash(key), AcquireOptions::default()).is_allowed());
        let id = limiter.key_id("default", &hash(key)).unwrap();
        let shown = id.to_string();
        assert_eq!(shown.len(), 12);
        assert_eq!(format!("{id:?}"), format!("KeyId({shown})"));
        let shown = u64::from_str_radix(&shown, 16).unwrap();
        // No bits in a row are those of the hash, at any place.
        for place in 0..=16 {
            assert_ne!(shown, hash(key) >> place & ((1 << 48) - 1));
        }
        for (bit, agreeing) in agreeing.iter_mut().enumerate() {
            *agreeing += u64::from((shown ^ hash(key)) >> bit & 1 == 0);
        }
    }
    // Each bit is that of the hash about half of the time: 32 of 64, give or take eight times the standard deviation.
    assert!(agreeing.iter().all(|&agreeing| agreeing > 0 && agreeing < KEYS), "{agreeing:?}");
    let ids: HashSet<_> = limiter.top_keys("default", 100).unwrap().iter().map(|key| key.id).collect();
    let expected: HashSet<_> = (1..=KEYS).map(|key| limiter.key_id("default", &hash(key)).unwrap()).collect();
    assert_eq!(ids, expected);
}

#[test]
fn keys_can_be_hashed_by_sip_hash() {
    let limiter = Memory::builder(FixedWindow::new(TEN)).sip_hash().build().unwrap();
    assert!((0..10).all(|_| limiter.check("alice", AcquireOptions::default()).is_allowed()));
    assert!(!limiter.check("alice", AcquireOptions::default()).is_allowed());
    assert!(limiter.check("bob", AcquireOptions::default()).is_allowed());
}

#[test]
fn where_the_key_chooses_the_algorithm_the_heaviest_are_those_who_must_wait_longest() {
    let clock = ManualClock::new();
    let choose = |key: &str| FixedWindow::new(if key == "slow" { Quota::per_hour(10) } else { TEN });
    let limiter = Memory::builder(per_key(choose)).max_keys(100).clock(clock).build().unwrap();
    acquire(&limiter, "fast", AcquireOptions::cost(10));
    acquire(&limiter, "slow", AcquireOptions::cost(1));
    let top_keys = limiter.top_keys("default", 10).unwrap();
    let ids: Vec<_> = top_keys.iter().map(|key| (key.id, key.reset, key.figures)).collect();
    let id = |key: &str| limiter.key_id("default", key).unwrap();
    assert_eq!(ids, [(id("slow"), 60 * MINUTE, None), (id("fast"), MINUTE, None)]);
}

#[test]
fn usage_counts_the_keys_that_are_remembered() {
    let clock = ManualClock::new();
    let limiter = Memory::builder((
        Limit::new("smooth", Gcra::new(TEN)),
        Limit::new("all", SlidingWindow::new(TEN)).keyed_by(|_: &str| ()),
    ));
    let limiter = limiter.max_keys(500).clock(clock.clone()).build().unwrap();
    let live = || -> Vec<_> { limiter.usage().into_iter().map(|usage| (usage.limit, usage.live_keys)).collect() };
    let named = |smooth, all| [("smooth".to_owned(), smooth), ("all".to_owned(), all)];
    assert_eq!(live(), named(0, 0));
    acquire(&limiter, "alice", AcquireOptions::default());
    acquire(&limiter, "bob", AcquireOptions::cost(2));
    acquire(&limiter, "carol", AcquireOptions::cost(0));
    assert_eq!(live(), named(2, 1));
    // Alice has drained, Bob has not.
    clock.advance(7 * SECOND);
    assert_eq!(live(), named(1, 1));
    now(limiter.reset("bob")).unwrap();
    assert_eq!(live(), named(0, 0));
    for usage in limiter.usage() {
        assert!(usage.room >= 500);
        assert!(usage.bytes >= usage.room * size_of::<u64>());
    }
}

#[test]
fn usage_counts_held_keys_and_held_costs() {
    let clock = ManualClock::new();
    let limiter = Memory::builder((
        Limit::new("user", FixedWindow::new(TEN)),
        Limit::new("all", Gcra::new(TEN)).keyed_by(|_: &str| ()),
        Limit::new("trial", FixedWindow::new(Quota::per_minute(1))).shadow(),
    ));
    let limiter = limiter.max_keys(100).clock(clock).build().unwrap();
    let held = || -> Vec<_> { limiter.usage().iter().map(|usage| (usage.held_keys, usage.held)).collect() };
    assert_eq!(held(), [(0, 0); 3]);
    let guards = [hold(&limiter, "alice", 1), hold(&limiter, "alice", 2), hold(&limiter, "bob", 4)];
    assert_eq!(held(), [(2, 7), (1, 7), (1, 1)]);
    let [first, second, third] = guards;
    now(first.settle(5)).unwrap();
    assert_eq!(held(), [(2, 6), (1, 6), (0, 0)]);
    now(second.release()).unwrap();
    drop(third);
    assert_eq!(held(), [(0, 0); 3]);
    // A hold of nothing is none.
    let _nothing = hold(&limiter, "alice", 0);
    assert_eq!(held(), [(0, 0); 3]);
}

#[test]
fn usage_counts_the_bytes_of_blocks_of_windows_of_logs_and_of_blocked_keys() {
    let bytes = |algorithm: SlidingWindow| {
        let limiter = Memory::builder(algorithm).max_keys(1000).clock(ManualClock::new()).build().unwrap();
        limiter.usage()[0].bytes
    };
    // A key takes eight bytes more for each block.
    let (one, sixty) = (bytes(SlidingWindow::new(TEN).blocks(1)), bytes(SlidingWindow::new(TEN).blocks(60)));
    assert!(sixty >= one + 1000 * 59 * size_of::<u64>(), "{one} and {sixty}");

    let clock = ManualClock::new();
    let limiter = Memory::builder(SlidingLog::new(Quota::per_minute(500))).max_keys(100);
    let limiter = limiter.clock(clock.clone()).build().unwrap();
    let bytes = || limiter.usage()[0].bytes;
    let empty = bytes();
    for _ in 0..500 {
        limiter.check("alice", AcquireOptions::default());
        clock.advance(MICROSECOND);
    }
    let with_hits = bytes();
    assert!(with_hits >= empty + 500 * 2 * size_of::<u64>(), "{empty} and {with_hits}");
    now(Limiter::block(&limiter, "default", "bob", MINUTE)).unwrap();
    let with_blocks = bytes();
    assert!(with_blocks >= with_hits + 100 * 2 * size_of::<u64>(), "{with_hits} and {with_blocks}");
    let guards: Vec<_> = (0..90).map(|key: u8| hold(&limiter, &key.to_string(), 1)).collect();
    assert!(bytes() >= with_blocks + 90 * 2 * size_of::<u64>(), "{with_blocks} and {}", bytes());
    drop(guards);
}

/// Sixteen bytes for each hit of each key, and no more, whatever keys carry over from each other.
#[test]
fn full_table_of_logs_that_carry_over_usage_keeps_to_the_documented_bytes() {
    const LIMIT: u64 = 48;
    let clock = ManualClock::new();
    let log = SlidingLog::new(Quota::new(LIMIT, SECOND));
    let limiter =
        Memory::builder(log).max_keys(20).when_full(WhenFull::CarryOver).clock(clock.clone()).build().unwrap();
    let usage = || limiter.usage().remove(0);
    let empty = usage().bytes;
    // Each key has a slot, and so has what is carried over, of which there is some for every three of them.
    let most = (usage().room + usage().room.div_ceil(3)) * usize::try_from(LIMIT).unwrap() * 16;
    let mut taken = 0;
    // Hits come one after another, each at a time of its own, and leave as others come.
    for key in 0..3_000_u64 {
        for _ in 0..=key % 5 {
            clock.advance(100 * MICROSECOND);
            limiter.check(&key, AcquireOptions::default());
        }
        taken = (usage().bytes - empty).max(taken);
        assert!(taken <= most, "{taken} bytes for hits, at most {most}");
    }
    assert!(usage().forgotten > 100 && taken > most / 2, "{:?}: {taken} of {most}", usage());
}

// ---------------------------------------------------------------------------------------------------------------------
// Shadows
// ---------------------------------------------------------------------------------------------------------------------

fn shadow_refusals(decision: &Decision) -> Vec<&str> {
    decision.shadow_refusals().map(tower_ratelimit::LimitStatus::name).collect()
}

#[test]
fn a_shadow_alone_decides_counts_and_tells_and_never_refuses() {
    let clock = ManualClock::new();
    let limiter = Memory::builder(Limit::new("trial", FixedWindow::new(Quota::per_minute(3))).shadow());
    let limiter = limiter.max_keys(100).clock(clock.clone()).build().unwrap();
    for (cost, left, refuses) in [(1, 2, false), (2, 0, false), (1, 0, true), (1, 0, true), (4, 0, true), (0, 0, false)]
    {
        let decision = limiter.check("alice", AcquireOptions::cost(cost));
        assert_eq!(decision.verdict(), Verdict::Allowed);
        // Of the enforced limits, of which there are none, none speaks.
        assert!(decision.most_restrictive().is_none() && decision.remaining().is_none());
        let [standing] = decision.limits() else { panic!("{decision:?}") };
        assert!(standing.is_shadow());
        assert_eq!(standing.remaining(), left);
        assert_eq!(shadow_refusals(&decision), if refuses { vec!["trial"] } else { vec![] });
    }
    clock.advance(MINUTE);
    assert_eq!(limiter.check("alice", AcquireOptions::default()).limits()[0].remaining(), 2);
}

#[test]
fn a_shadow_beside_enforced_limits_is_charged_for_what_both_let_through() {
    let clock = ManualClock::new();
    let limiter = Memory::builder((
        Limit::new("trial", FixedWindow::new(Quota::per_minute(3))).shadow(),
        Limit::new("enforced", FixedWindow::new(Quota::per_minute(5))),
        Limit::new("generous", FixedWindow::new(Quota::per_minute(100))).shadow(),
    ));
    let limiter = limiter.max_keys(100).clock(clock).build().unwrap();
    let steps = [
        // The cost; whether it passes, which shadows would have refused, what each limit has left.
        (2, true, &[][..], [1, 3, 98]),
        (2, true, &["trial"], [1, 1, 96]),
        (1, true, &[], [0, 0, 95]),
        (1, false, &["trial"], [0, 0, 95]),
        (101, false, &["trial", "generous"], [0, 0, 95]),
    ];
    for (cost, passes, refuses, left) in steps {
        // Whoever asks for one limit only is told of shadows too.
        let decision = limiter.check("alice", AcquireOptions::cost(cost));
        assert_eq!(decision.is_allowed(), passes);
        assert_eq!(shadow_refusals(&decision), refuses);
        assert_eq!(decision.most_restrictive().unwrap().name(), "enforced");
        assert_eq!(decision.limits().iter().map(tower_ratelimit::LimitStatus::remaining).collect::<Vec<_>>(), left);
    }
}

#[test]
fn shadow_limit_that_denies_holds_and_settles_nothing() {
    let clock = ManualClock::new();
    let limiter = Memory::builder((
        Limit::new("trial", FixedWindow::new(Quota::per_minute(3))).shadow(),
        Limit::new("enforced", FixedWindow::new(TEN)),
    ));
    let limiter = limiter.max_keys(100).clock(clock).build().unwrap();
    let held_by_both = hold(&limiter, "alice", 2);
    let denied_by_shadow = hold(&limiter, "alice", 2);
    assert_eq!(left(&limiter, "alice"), [1, 6]);
    now(denied_by_shadow.release()).unwrap();
    assert_eq!(left(&limiter, "alice"), [1, 8]);
    now(held_by_both.release()).unwrap();
    assert_eq!(left(&limiter, "alice"), [3, 10]);

    // A surcharge goes to the limits that held, too.
    limiter.check("alice", AcquireOptions::cost(3));
    let denied_by_shadow = hold(&limiter, "alice", 1);
    now(denied_by_shadow.settle(4)).unwrap();
    assert_eq!(left(&limiter, "alice"), [0, 3]);
}

#[test]
fn operations_reach_a_shadow_and_a_blocked_shadow_only_tells() {
    let clock = ManualClock::new();
    let shadow = Limit::new("trial", Gcra::new(TEN)).shadow();
    let limits: Vec<DynLimit<str>> = vec![DynLimit::new(shadow), DynLimit::new(FixedWindow::new(TEN))];
    let limiter = Memory::builder(limits).max_keys(100).clock(clock).build().unwrap();
    now(limiter.set("trial", "alice", 4)).unwrap();
    assert_eq!(left(&limiter, "alice"), [6, 10]);
    now(limiter.block("trial", "alice", MINUTE)).unwrap();
    let decision = limiter.check("alice", AcquireOptions::default());
    assert!(decision.is_allowed());
    assert_eq!(shadow_refusals(&decision), ["trial"]);
    assert_eq!(left(&limiter, "alice"), [6, 9]);
}

fn inner() -> impl tower::Service<Request<Body>, Response = Response<Body>, Error = BoxError, Future: Send> + Clone {
    service_fn(|request: Request<Body>| {
        // To look at what handlers see.
        let admission = request.extensions().get::<RateLimitInfo>().cloned();
        let mut response = Response::new(Body::empty());
        response.headers_mut().insert("exempt", i32::from(admission == Some(RateLimitInfo::Exempt)).into());
        ready(Ok(response))
    })
}

async fn get<S>(service: &S) -> Response<Body>
where
    S: tower::Service<Request<Body>, Response = Response<Body>, Error = BoxError> + Clone,
{
    service.clone().oneshot(Request::new(Body::empty())).await.unwrap()
}

#[tokio::test]
async fn no_header_field_and_no_body_mentions_a_shadow() {
    let clock = ManualClock::new();
    let limiter = Memory::builder((
        Limit::new("trial", FixedWindow::new(Quota::per_minute(1))).shadow(),
        Limit::new("enforced", FixedWindow::new(Quota::per_minute(2))),
    ));
    let limiter = limiter.max_keys(100).clock(clock).build().unwrap();
    let responder = Http::new().legacy_headers(ResetFormat::DeltaSeconds);
    let service = RateLimitLayer::new(Global, limiter).responder(responder).layer(inner());
    let text = |headers: &HeaderMap, name: &str| headers[name].to_str().unwrap().to_owned();
    for (status, left) in [(200, 1), (200, 0), (429, 0)] {
        let response = get(&service).await;
        let headers = response.headers();
        assert_eq!(response.status(), status);
        assert_eq!(text(headers, "ratelimit-policy"), r#""enforced";q=2;w=60"#);
        assert_eq!(text(headers, "ratelimit"), format!(r#""enforced";r={left};t=60"#));
        assert_eq!(text(headers, "x-ratelimit-limit"), "2");
        assert_eq!(text(headers, "x-ratelimit-remaining"), left.to_string());
        // Outer layers and handlers of one's own see it.
        let Some(RateLimitInfo::Decided(decision)) = response.extensions().get() else { panic!("{response:?}") };
        assert_eq!(decision.limits().len(), 2);
        if status == 429 {
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(problem["violated-policies"], serde_json::json!(["enforced"]));
        }
    }
}

#[tokio::test]
async fn a_shadow_alone_leaves_no_header_field() {
    let limiter = Memory::new(Limit::new("trial", FixedWindow::new(Quota::per_minute(1))).shadow());
    let responder = Http::new().legacy_headers(ResetFormat::EpochSeconds);
    let service = RateLimitLayer::new(Global, limiter).responder(responder).layer(inner());
    for _ in 0..3 {
        let response = get(&service).await;
        assert_eq!(response.status(), StatusCode::OK);
        let names: Vec<_> = response.headers().keys().map(ToString::to_string).collect();
        assert_eq!(names, ["exempt"]);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Exemptions
// ---------------------------------------------------------------------------------------------------------------------

const OFFICE: &str = "10.1.2.3:5000";
const STRANGER: &str = "192.0.2.1:5000";

/// A request from there.
fn from(peer: &str, method: Method, path: &str, fields: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    for &(name, value) in fields {
        request = request.header(name, value);
    }
    let mut request = request.body(Body::empty()).unwrap();
    request.extensions_mut().insert::<SocketAddr>(peer.parse().unwrap());
    request
}

#[tokio::test]
async fn what_is_exempt_is_under_no_limit_and_nothing_else_is() {
    let preflight = &[("origin", "https://example.com"), ("access-control-request-method", "PUT")];
    let spoofs = [
        ("x-forwarded-for", "10.1.2.3"),
        ("forwarded", "for=10.1.2.3"),
        ("x-real-ip", "10.1.2.3"),
        ("cf-connecting-ip", "10.1.2.3"),
        ("host", "10.1.2.3"),
        ("x-original-url", "/health"),
        ("x-rewrite-url", "/health"),
        ("x-http-method-override", "OPTIONS"),
        ("x-internal", "no"),
        ("internal", "yes"),
    ];
    let exempt = [
        from(STRANGER, Method::GET, "/health", &[]),
        from(STRANGER, Method::POST, "/health?verbose", &[]),
        from(STRANGER, Method::GET, "http://example.com/ready", &[]),
        from(STRANGER, Method::OPTIONS, "/", preflight),
        from(OFFICE, Method::GET, "/", &[]),
        from("[::ffff:10.1.2.3]:80", Method::GET, "/", &[]),
        from("[2001:db8:1::7]:80", Method::GET, "/", &[]),
        from("198.51.100.7:80", Method::GET, "/", &[]),
        from("[fd00::7]:80", Method::GET, "/", &[]),
        from("203.0.113.9:80", Method::GET, "/", &[]),
        // The one header that the server itself trusts, by a closure.
        from(STRANGER, Method::GET, "/", &[("x-internal", "yes")]),
    ];
    let mut limited = vec![
        from(STRANGER, Method::GET, "/", preflight),
        from(STRANGER, Method::OPTIONS, "/", &preflight[..1]),
        from(STRANGER, Method::OPTIONS, "/", &preflight[1..]),
        from(STRANGER, Method::GET, "/health/", &[]),
        from(STRANGER, Method::GET, "//health", &[]),
        from(STRANGER, Method::GET, "/Health", &[]),
        from(STRANGER, Method::GET, "/%68ealth", &[]),
        from(STRANGER, Method::GET, "/x?/health", &[]),
        from(STRANGER, Method::GET, "/health;x", &[]),
        from("11.0.0.1:80", Method::GET, "/", &[]),
        from("[2001:db8:2::7]:80", Method::GET, "/", &[]),
        from("198.51.100.8:80", Method::GET, "/", &[]),
        // An address that only looks like one of the office.
        from("[::10.1.2.3]:80", Method::GET, "/", &[]),
    ];
    limited.extend(spoofs.map(|field| from(STRANGER, Method::GET, "/", &[field])));

    let office =
        PeerNetworks::parse(["10.0.0.0/8", " 2001:db8:1::/48", "198.51.100.7", "fd00::7", "::ffff:203.0.113.9"]);
    let limiter = Memory::new(FixedWindow::new(Quota::per_hour(1_000)));
    let service = RateLimitLayer::new(PeerIp::new(), limiter.clone())
        .exempt_if(ExactPaths::new(["/health", "/ready"]))
        .exempt_if(Preflight)
        .exempt_if(office.unwrap())
        .exempt_if(|request: &Request<Body>| request.headers().get("x-internal").is_some_and(|value| value == "yes"))
        .layer(inner());
    for request in exempt {
        let told = format!("{} {} {:?}", request.method(), request.uri(), request.extensions().get::<SocketAddr>());
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(response.headers()["exempt"], "1", "{told}");
        assert!(!response.headers().contains_key("ratelimit"), "{told}");
    }
    assert_eq!(limiter.usage()[0].live_keys, 0);
    for request in limited {
        let told = format!("{} {} {:?}", request.method(), request.uri(), request.headers());
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(response.headers()["exempt"], "0", "{told}");
        assert!(response.headers().contains_key("ratelimit"), "{told}");
    }
}

/// What a stranger is answered.
async fn send<S>(service: &S, path: &str, fields: &[(&str, &str)]) -> StatusCode
where
    S: tower::Service<Request<Body>, Response = Response<Body>, Error = BoxError> + Clone,
{
    service.clone().oneshot(from(STRANGER, Method::GET, path, fields)).await.unwrap().status()
}

#[tokio::test]
async fn neither_a_missing_nor_an_extra_header_lifts_a_limit() {
    let limiter = || Memory::new(FixedWindow::new(Quota::per_hour(1)));
    let key = Header::from_static("tenant");
    let layer = RateLimitLayer::new(key, limiter()).exempt_if(ExactPaths::new(["/health"]));
    let service = layer.clone().layer(inner());
    assert_eq!(send(&service, "/", &[]).await, StatusCode::BAD_REQUEST);
    assert_eq!(send(&service, "/", &[("tenant", "")]).await, StatusCode::BAD_REQUEST);
    assert_eq!(send(&service, "/", &[("tenant", "a"), ("tenant", "b")]).await, StatusCode::BAD_REQUEST);
    assert_eq!(send(&service, "/", &[("tenant", "a")]).await, StatusCode::OK);
    assert_eq!(send(&service, "/", &[("tenant", "a")]).await, StatusCode::TOO_MANY_REQUESTS);
    // What is exempt needs no key.
    assert_eq!(send(&service, "/health", &[]).await, StatusCode::OK);

    // Only the explicit word lifts it.
    let service = layer.missing_key(MissingKeyPolicy::Exempt).layer(inner());
    for _ in 0..3 {
        assert_eq!(send(&service, "/", &[]).await, StatusCode::OK);
    }
}

#[test]
fn networks_that_are_none_are_refused_when_they_are_read() {
    for text in ["", "10.0.0.0/33", "10.0.0", "example.com", "10.0.0.1:80", "::/129", "10.0.0.0 /8"] {
        let error = PeerNetworks::parse([text]).unwrap_err();
        assert!(error.is_config());
        assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
    }
    assert!(PeerNetworks::parse(["0.0.0.0/0", "::/0", "10.0.0.1/32"]).is_ok());
}

// ---------------------------------------------------------------------------------------------------------------------
// Limiters made of limiters, and of one's own
// ---------------------------------------------------------------------------------------------------------------------

/// Overrides every method, and notes which was called and with what.
#[derive(Clone, Default)]
struct Noting(Arc<Mutex<Vec<String>>>);

impl Noting {
    fn note<T>(&self, called: String) -> LimiterFuture<T> {
        self.0.lock().unwrap().push(called);
        LimiterFuture::ready(Err(Error::unavailable("as it was made")))
    }

    fn noted(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Limiter<str> for Noting {
    type Future = Ready<Result<Outcome, Error>>;

    fn acquire(&self, key: &str, ask: AcquireOptions) -> Acquisition<Self::Future> {
        let note = self.note(format!("acquire {key} {ask:?}"));
        if ask.cost == 2 {
            return Acquisition::Pending(ready(Err(Error::unavailable("later"))));
        }
        Acquisition::Ready(now(note))
    }

    fn peek(&self, key: &str, ask: AcquireOptions) -> LimiterFuture<Decision> {
        self.note(format!("peek {key} {ask:?}"))
    }

    fn set(&self, limit: &str, key: &str, used: u64) -> LimiterFuture<()> {
        self.note(format!("set {limit} {key} {used}"))
    }

    fn block(&self, limit: &str, key: &str, span: Duration) -> LimiterFuture<()> {
        self.note(format!("block {limit} {key} {span:?}"))
    }

    fn unblock(&self, limit: &str, key: &str) -> LimiterFuture<()> {
        self.note(format!("forgive {limit} {key}"))
    }

    fn reset(&self, key: &str) -> LimiterFuture<()> {
        self.note(format!("reset {key}"))
    }
}

/// Calls every method that must be there, and makes sure of each that its answer comes back.
fn every_method<L: Limiter<str> + ?Sized>(limiter: &L) {
    let ask = AcquireOptions::cost(7).max_delay(SECOND).detail(Detail::All);
    let answers = [
        now(std::future::IntoFuture::into_future(limiter.acquire("alice", ask))).map(drop),
        now(limiter.peek("alice", ask)).map(drop),
        now(std::future::IntoFuture::into_future(limiter.hold("alice", ask))).map(drop),
        now(limiter.set("api", "alice", 5)),
        now(limiter.block("api", "alice", MINUTE)),
        now(limiter.reset("alice")),
    ];
    for answer in answers {
        assert_eq!(answer.unwrap_err().to_string(), "as it was made");
    }
    let later = limiter.acquire("alice", AcquireOptions::cost(2));
    assert!(matches!(later, Acquisition::Pending(_)), "what is decided later is not made ready");
    assert_eq!(now(std::future::IntoFuture::into_future(later)).unwrap_err().to_string(), "later");
}

#[test]
fn wrapped_limiters_pass_every_operation_on() {
    let noting = Noting::default();
    every_method(&noting);
    let expected = noting.noted();
    assert_eq!(expected.len(), 7);

    every_method(&Arc::new(noting.clone()));
    assert_eq!(noting.noted(), expected);
    let unsized_one: Arc<dyn Limiter<str, Future = Ready<Result<Outcome, Error>>>> = Arc::new(noting.clone());
    every_method(&unsized_one);
    assert_eq!(noting.noted(), expected);
    every_method(&BoxLimiter::new(noting.clone()));
    assert_eq!(noting.noted(), expected);
    every_method(&BoxLimiter::new(Arc::new(BoxLimiter::new(noting.clone()))).clone());
    assert_eq!(noting.noted(), expected);
}

#[test]
fn wrapped_limiters_return_the_guard_of_the_limiter_inside() {
    let clock = ManualClock::new();
    let memory = memory(FixedWindow::new(TEN), &clock);
    let unavailable = || BoxLimiter::<str>::new(Noting::default());
    let wrapped: [BoxLimiter<str>; 6] = [
        memory.clone(),
        BoxLimiter::new(Arc::new(memory.clone())),
        BoxLimiter::new(FailOpen::new(memory.clone())),
        BoxLimiter::new(Fallback::new(memory.clone(), unavailable())),
        BoxLimiter::new(Fallback::new(unavailable(), memory.clone())),
        BoxLimiter::new(DeniedCache::with_clock(memory.clone(), 10, clock)),
    ];
    for limiter in wrapped {
        let [settled, released, dropped] = [1, 3, 4].map(|cost| {
            let held = now(std::future::IntoFuture::into_future(limiter.hold("alice", AcquireOptions::cost(cost))));
            held.unwrap().held.expect("a guard")
        });
        assert_eq!((settled.cost(), remaining(&memory, "alice")), (1, 2));
        now(settled.settle(3)).unwrap();
        assert_eq!(remaining(&memory, "alice"), 0);
        now(released.release()).unwrap();
        assert_eq!(remaining(&memory, "alice"), 3);
        drop(dropped);
        assert_eq!(remaining(&memory, "alice"), 3);
        now(memory.reset("alice")).unwrap();
    }
    // What is allowed without a store holds nothing.
    let open = FailOpen::new(Noting::default());
    let Acquisition::Ready(outcome) = open.hold("alice", AcquireOptions::default()) else { panic!("it is ready") };
    let Outcome { decision, held } = outcome.unwrap();
    assert!(decision.is_allowed() && held.is_none());
}

/// A limiter may do this otherwise than by `block`.
#[test]
fn wrapped_limiters_pass_on_what_has_a_default_too() {
    fn forgive<L: Limiter<str> + ?Sized>(limiter: &L) {
        now(limiter.unblock("api", "alice")).unwrap_err();
    }

    let noting = Noting::default();
    forgive(&noting);
    let expected = noting.noted();
    forgive(&Arc::new(noting.clone()));
    assert_eq!(noting.noted(), expected);
    forgive(&BoxLimiter::new(noting.clone()));
    assert_eq!(noting.noted(), expected);
}

#[test]
fn without_an_override_forgiving_blocks_for_no_time() {
    #[derive(Default)]
    struct Fewer(Noting);

    impl Limiter<str> for Fewer {
        type Future = Ready<Result<Outcome, Error>>;

        fn acquire(&self, key: &str, ask: AcquireOptions) -> Acquisition<Self::Future> {
            self.0.acquire(key, ask)
        }

        fn block(&self, limit: &str, key: &str, span: Duration) -> LimiterFuture<()> {
            self.0.block(limit, key, span)
        }
    }

    let limiter = Fewer::default();
    now(limiter.unblock("api", "alice")).unwrap_err();
    assert_eq!(limiter.0.noted(), ["block api alice 0ns"]);
}

#[test]
fn a_limiter_of_ones_own_answers_what_it_does_not_override_as_unsupported() {
    struct Plain;

    impl Limiter<str> for Plain {
        type Future = Ready<Result<Outcome, Error>>;

        fn acquire(&self, _key: &str, _ask: AcquireOptions) -> Acquisition<Self::Future> {
            Acquisition::Ready(Ok(Decision::by_policy(ManualClock::START, Verdict::Allowed).into()))
        }
    }

    fn check(limiter: &impl Limiter<str>) {
        assert!(acquire(limiter, "alice", AcquireOptions::default()).is_allowed());
        let errors = [
            now(limiter.peek("alice", AcquireOptions::default())).map(drop).unwrap_err(),
            now(limiter.set("default", "alice", 5)).unwrap_err(),
            now(limiter.block("default", "alice", MINUTE)).unwrap_err(),
            now(limiter.unblock("default", "alice")).unwrap_err(),
            now(limiter.reset("alice")).unwrap_err(),
        ];
        for error in errors {
            assert!(error.is_unsupported() && !error.is_config() && !error.is_unavailable(), "{error:?}");
            assert!(error.to_string().starts_with("this limiter can't "), "{error}");
        }
    }

    check(&Plain);
    check(&BoxLimiter::new(Plain));
    check(&Arc::new(Plain));
}
