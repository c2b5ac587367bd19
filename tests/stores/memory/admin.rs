//! Administrative operations (peek, reset, set usage, block, unblock), usage reports and shadow limits.
//!
//! Limiters that wrap limiters pass on every operation.

use std::collections::HashSet;
use std::fmt::Debug;
use std::future::{Future, ready};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use tower_ratelimit::limiter::{AdminOperation, DeniedCache, FailOpen, Fallback, LimiterFuture, Outcome};
use tower_ratelimit::{
    AcquireOptions, BlockReason, BoxLimiter, Decision, Detail, DynLimit, Error, FixedWindow, Gcra, Limit, Limiter,
    ManualClock, Memory, Quota, SlidingLog, SlidingWindow, Verdict, WhenFull, per_key,
};

use crate::immediate::{self, boxed, hold, memory, peek, remaining};

const MICROSECOND: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const TEN: Quota = Quota::per_minute(10);

/// Returns the result of an operation in memory, which is ready at the first poll.
fn result_of<T: Debug>(answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    answer.now_or_never().expect("memory decides immediately")
}

fn acquire(limiter: &(impl Limiter<str> + ?Sized), key: &str, options: AcquireOptions) -> Decision {
    immediate::acquire(limiter, key, options).decision
}

// ---------------------------------------------------------------------------------------------------------------------
// Peek, reset, set
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn unknown_limit_name_is_an_error_that_names_it() {
    let clock = ManualClock::new();
    let named = Limit::new("api", Gcra::new(TEN));
    let memory = memory(named, &clock);
    let errors = [
        result_of(memory.set_usage("default", "alice", 1)).unwrap_err(),
        result_of(memory.block("default", "alice", MINUTE)).unwrap_err(),
        result_of(memory.block("default", "alice", Duration::ZERO)).unwrap_err(),
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
// Blocks
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn blocks_are_kept_up_to_the_capacity() {
    let clock = ManualClock::new();
    let limiter = Memory::builder(Gcra::new(TEN)).max_keys(1000).clock(clock.clone()).build().unwrap();
    for key in 0..1000_u32 {
        result_of(limiter.block("default", &key, MINUTE)).unwrap();
    }
    assert!((0..1000_u32).all(|key| !limiter.check(&key, AcquireOptions::default()).is_allowed()));
    clock.advance(MINUTE);
    assert!((0..1000_u32).all(|key| limiter.check(&key, AcquireOptions::default()).is_allowed()));
}

// ---------------------------------------------------------------------------------------------------------------------
// Usage reports
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn top_keys_are_ordered_by_reset() {
    let clock = ManualClock::new();
    let limiter = Memory::builder((
        Limit::new("user", FixedWindow::new(TEN)),
        Limit::new("first", FixedWindow::new(Quota::per_hour(100))).keyed_by(|key: &str| key.chars().next()),
    ));
    let limiter = limiter.max_keys(100).clock(clock.clone()).build().unwrap();
    for (key, cost) in [("bert", 3), ("anna", 10), ("carl", 1), ("clara", 8), ("bea", 4)] {
        let _ = acquire(&limiter, key, AcquireOptions::cost(cost));
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
    // An id stands for the sub-key: keys that share the sub-key share the id.
    assert_eq!(ids, [(id("first", "axel"), 90), (id("first", "c"), 91), (id("first", "bea"), 93)]);

    assert!(limiter.top_keys("user", 0).unwrap().is_empty());
    clock.advance(MINUTE);
    assert!(limiter.top_keys("user", 10).unwrap().is_empty(), "every key is idle");
    assert_eq!(limiter.top_keys("first", 10).unwrap().len(), 3);
}

/// A hasher whose hash of a number is that number.
#[derive(Clone, Copy, Default)]
struct IdentityHasher(u64);

impl std::hash::BuildHasher for IdentityHasher {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        *self
    }
}

impl std::hash::Hasher for IdentityHasher {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[test]
fn key_id_reveals_no_bits_of_the_hash() {
    const KEYS: u64 = 64;
    let limiter =
        Memory::builder(FixedWindow::new(TEN)).hasher(IdentityHasher::default()).max_keys(100).build().unwrap();
    let hash = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let (mut agreeing, mut used) = ([0; 48], 0);
    for key in 1..=KEYS {
        assert!(limiter.check(&hash(key), AcquireOptions::default()).is_allowed());
        let id = limiter.key_id("default", &hash(key)).unwrap();
        let shown = id.to_string();
        assert_eq!(shown.len(), 12);
        assert_eq!(format!("{id:?}"), format!("KeyId({shown})"));
        let shown = u64::from_str_radix(&shown, 16).unwrap();
        used |= shown;
        // No run of bits in the id equals the hash at any offset.
        for place in 0..=16 {
            assert_ne!(shown, hash(key) >> place & ((1 << 48) - 1));
        }
        for (bit, agreeing) in agreeing.iter_mut().enumerate() {
            *agreeing += u64::from((shown ^ hash(key)) >> bit & 1 == 0);
        }
    }
    assert_eq!(used, (1 << 48) - 1, "an id has 48 bits");
    // Each bit equals that of the hash in about half of the keys: 32 of 64, within eight standard deviations.
    assert!(agreeing.iter().all(|&agreeing| agreeing > 0 && agreeing < KEYS), "{agreeing:?}");
    let ids: HashSet<_> = limiter.top_keys("default", 100).unwrap().iter().map(|key| key.id).collect();
    let expected: HashSet<_> = (1..=KEYS).map(|key| limiter.key_id("default", &hash(key)).unwrap()).collect();
    assert_eq!(ids, expected);
}

#[test]
fn top_keys_of_per_key_algorithms_are_ordered_by_reset() {
    let clock = ManualClock::new();
    let choose = |key: &str| FixedWindow::new(if key == "slow" { Quota::per_hour(10) } else { TEN });
    let limiter = memory(per_key(choose), &clock);
    let _ = acquire(&limiter, "fast", AcquireOptions::cost(10));
    let _ = acquire(&limiter, "slow", AcquireOptions::cost(1));
    let top_keys = limiter.top_keys("default", 10).unwrap();
    let ids: Vec<_> = top_keys.iter().map(|key| (key.id, key.reset, key.figures)).collect();
    let id = |key: &str| limiter.key_id("default", key).unwrap();
    assert_eq!(ids, [(id("slow"), 60 * MINUTE, None), (id("fast"), MINUTE, None)]);
}

#[test]
fn usage_counts_keys_in_use() {
    let clock = ManualClock::new();
    let limiter = Memory::builder((
        Limit::new("smooth", Gcra::new(TEN)),
        Limit::new("all", SlidingWindow::new(TEN)).keyed_by(|_: &str| ()),
    ));
    let limiter = limiter.max_keys(500).clock(clock.clone()).build().unwrap();
    let live = || -> Vec<_> { limiter.usage().into_iter().map(|usage| (usage.limit, usage.live_keys)).collect() };
    let named = |smooth, all| [("smooth".to_owned(), smooth), ("all".to_owned(), all)];
    assert_eq!(live(), named(0, 0));
    let _ = acquire(&limiter, "alice", AcquireOptions::default());
    let _ = acquire(&limiter, "bob", AcquireOptions::cost(2));
    let _ = acquire(&limiter, "carol", AcquireOptions::cost(0));
    assert_eq!(live(), named(2, 1));
    // Alice's bucket has drained, Bob's has not.
    clock.advance(7 * SECOND);
    assert_eq!(live(), named(1, 1));
    result_of(limiter.reset("bob")).unwrap();
    assert_eq!(live(), named(0, 0));
    for usage in limiter.usage() {
        assert!(usage.capacity >= 500);
        assert!(usage.bytes >= size_of::<u64>());
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
    result_of(first.settle(5)).unwrap();
    assert_eq!(held(), [(2, 6), (1, 6), (0, 0)]);
    result_of(second.release()).unwrap();
    drop(third);
    assert_eq!(held(), [(0, 0); 3]);
    // A hold of cost zero is not counted.
    let _nothing = hold(&limiter, "alice", 0);
    assert_eq!(held(), [(0, 0); 3]);
}

#[test]
fn usage_counts_bytes_of_blocks_logs_and_blocked_keys() {
    let bytes = |algorithm: SlidingWindow| {
        let limiter = Memory::<u64, _>::builder(algorithm).max_keys(1000).clock(ManualClock::new()).build().unwrap();
        (0..1000).for_each(|key| assert!(limiter.check(&key, 1).is_allowed()));
        limiter.usage()[0].bytes
    };
    // A key takes eight more bytes for each block.
    let (one, sixty) = (bytes(SlidingWindow::new(TEN).blocks(1)), bytes(SlidingWindow::new(TEN).blocks(60)));
    assert!(sixty >= one + 1000 * 59 * size_of::<u64>(), "{one} and {sixty}");

    let clock = ManualClock::new();
    let limiter = Memory::builder(SlidingLog::new(Quota::per_minute(500))).max_keys(100);
    let limiter = limiter.clock(clock.clone()).build().unwrap();
    let bytes = || limiter.usage()[0].bytes;
    let empty = bytes();
    for _ in 0..500 {
        let _ = limiter.check("alice", AcquireOptions::default());
        clock.advance(MICROSECOND);
    }
    let with_hits = bytes();
    assert!(with_hits >= empty + 500 * 2 * size_of::<u64>(), "{empty} and {with_hits}");
    result_of(limiter.block("default", "bob", MINUTE)).unwrap();
    let with_blocks = bytes();
    assert!(with_blocks >= with_hits + 2 * size_of::<u64>(), "{with_hits} and {with_blocks}");
    let guards: Vec<_> = (0..90).map(|key: u8| hold(&limiter, &key.to_string(), 1)).collect();
    assert!(bytes() >= with_blocks + 90 * 2 * size_of::<u64>(), "{with_blocks} and {}", bytes());
    drop(guards);
}

/// A full table of logs takes at most 16 bytes for each hit of each key, whichever keys carry usage over. The slots take at
/// most 150 bytes each.
#[test]
fn full_table_of_logs_that_carry_over_usage_keeps_to_the_documented_bytes() {
    const LIMIT: u64 = 48;
    let clock = ManualClock::new();
    let log = SlidingLog::new(Quota::new(LIMIT, SECOND));
    let limiter =
        Memory::builder(log).max_keys(20).when_full(WhenFull::CarryOver).clock(clock.clone()).build().unwrap();
    let usage = || limiter.usage().remove(0);
    let empty = usage().bytes;
    // One slot for each key, and carried-over usage for every third key.
    let most = (usage().capacity + usage().capacity.div_ceil(3)) * (usize::try_from(LIMIT).unwrap() * 16 + 150);
    let mut taken = 0;
    // Each hit has a time of its own, and hits expire while others arrive.
    for key in 0..3_000_u64 {
        for _ in 0..=key % 5 {
            clock.advance(100 * MICROSECOND);
            let _ = limiter.check(&key, AcquireOptions::default());
        }
        taken = (usage().bytes - empty).max(taken);
        assert!(taken <= most, "{taken} bytes for hits, at most {most}");
    }
    assert!(usage().evicted > 100 && taken > most / 2, "{:?}: {taken} of {most}", usage());
}

// ---------------------------------------------------------------------------------------------------------------------
// Shadow limits
// ---------------------------------------------------------------------------------------------------------------------

fn remaining_of_each(limiter: &impl Limiter<str>, key: &str) -> Vec<u64> {
    let decision = peek(limiter, key, AcquireOptions::default().detail(Detail::All));
    decision.limits().iter().map(tower_ratelimit::LimitStatus::remaining).collect()
}

/// A shadow that is enforced by a replacement applies with the usage that it counted, and the reverse.
#[test]
fn enforced_shadow_applies_with_the_usage_that_it_counted() {
    let clock = ManualClock::new();
    let limits = |is_shadow: bool| {
        let trial = Limit::new("trial", FixedWindow::new(Quota::per_minute(3)));
        let trial = if is_shadow { trial.shadow() } else { trial };
        vec![DynLimit::<str>::new(trial), DynLimit::new(Limit::new("enforced", FixedWindow::new(TEN)))]
    };
    let limiter = memory(limits(true), &clock);
    for _ in 0..5 {
        assert!(limiter.check("alice", AcquireOptions::default()).is_allowed(), "a shadow never denies");
    }
    assert!(limiter.check("bob", AcquireOptions::default()).is_allowed());
    assert_eq!(remaining_of_each(&limiter, "alice"), [0, 5]);

    limiter.replace(limits(false)).unwrap();
    let denied = limiter.check("alice", AcquireOptions::default());
    assert_eq!(denied.verdict(), Verdict::Denied { retry_after: MINUTE }, "denied at once, by what the shadow counted");
    assert_eq!(denied.most_restrictive().unwrap().name(), "trial");
    assert_eq!(remaining_of_each(&limiter, "alice"), [0, 5], "nothing was added and nothing removed");
    assert_eq!(remaining_of_each(&limiter, "bob"), [2, 9]);

    limiter.replace(limits(true)).unwrap();
    assert!(limiter.check("alice", AcquireOptions::default()).is_allowed());
    limiter.replace(limits(false)).unwrap();
    result_of(limiter.reset("alice")).unwrap();
    assert!(limiter.check("alice", AcquireOptions::default()).is_allowed(), "a reset clears the usage");
}

// ---------------------------------------------------------------------------------------------------------------------
// Wrapped and custom limiters
// ---------------------------------------------------------------------------------------------------------------------

/// Overrides every method and records the calls and their arguments.
#[derive(Clone, Default)]
struct RecordingLimiter(Arc<Mutex<Vec<String>>>);

impl RecordingLimiter {
    fn record<T>(&self, called: String) -> LimiterFuture<T> {
        self.0.lock().unwrap().push(called);
        LimiterFuture::ready(Err(Error::unavailable("stub error")))
    }

    fn recorded(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Limiter<str> for RecordingLimiter {
    fn acquire(&self, key: &str, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let record = self.record(format!("acquire {key} {options:?}"));
        if options.cost == 2 {
            return LimiterFuture::pending(ready(Err(Error::unavailable("later"))));
        }
        LimiterFuture::ready(result_of(record))
    }

    fn peek(&self, key: &str, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.record(format!("peek {key} {options:?}"))
    }

    fn administer(&self, key: &str, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.record(format!("{operation:?} {key}"))
    }
}

/// Calls every required method and checks that its result is passed on.
fn check_every_method<L: Limiter<str>>(limiter: &L) {
    let options = AcquireOptions::cost(7).max_delay(SECOND).detail(Detail::All);
    let reason = BlockReason::Escalation;
    let answers = [
        result_of(limiter.acquire("alice", options)).map(drop),
        result_of(limiter.peek("alice", options)).map(drop),
        result_of(limiter.acquire("alice", options.hold())).map(drop),
        result_of(limiter.administer("alice", AdminOperation::SetUsage { limit: "api", used: 5 })),
        result_of(limiter.administer("alice", AdminOperation::Block { limit: "api", duration: MINUTE, reason })),
        result_of(limiter.administer("alice", AdminOperation::Reset)),
    ];
    for answer in answers {
        assert_eq!(answer.unwrap_err().to_string(), "stub error");
    }
    let later = limiter.acquire("alice", AcquireOptions::cost(2));
    let later = later.try_ready().expect_err("a pending decision stays pending");
    assert_eq!(result_of(later).unwrap_err().to_string(), "later");
}

#[test]
fn wrappers_pass_on_every_operation() {
    let noting = RecordingLimiter::default();
    check_every_method(&noting);
    let expected = noting.recorded();
    assert_eq!(expected.len(), 7);

    check_every_method(&Arc::new(noting.clone()));
    assert_eq!(noting.recorded(), expected);
    let unsized_one: Arc<dyn Limiter<str>> = Arc::new(noting.clone());
    check_every_method(&unsized_one);
    assert_eq!(noting.recorded(), expected);
    check_every_method(&BoxLimiter::new(noting.clone()));
    assert_eq!(noting.recorded(), expected);
    check_every_method(&BoxLimiter::new(Arc::new(BoxLimiter::new(noting.clone()))).clone());
    assert_eq!(noting.recorded(), expected);
}

#[test]
fn wrappers_return_the_inner_limiters_guard() {
    let clock = ManualClock::new();
    let memory = boxed(FixedWindow::new(TEN), &clock);
    let unavailable = || BoxLimiter::<str>::new(RecordingLimiter::default());
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
            let held = result_of(limiter.hold("alice", AcquireOptions::cost(cost)));
            held.unwrap().held.expect("a guard")
        });
        assert_eq!((settled.cost(), remaining(&memory, "alice")), (1, 2));
        result_of(settled.settle(3)).unwrap();
        assert_eq!(remaining(&memory, "alice"), 0);
        result_of(released.release()).unwrap();
        assert_eq!(remaining(&memory, "alice"), 3);
        drop(dropped);
        assert_eq!(remaining(&memory, "alice"), 3);
        result_of(memory.reset("alice")).unwrap();
    }
    // A decision that `FailOpen` made without the store holds nothing.
    let open = FailOpen::new(RecordingLimiter::default());
    let Outcome { decision, held, .. } = immediate::ready(open.hold("alice", AcquireOptions::default()));
    assert!(decision.is_allowed() && held.is_none());
}

#[test]
fn unblock_blocks_for_zero_time() {
    let limiter = RecordingLimiter::default();
    result_of(BoxLimiter::new(limiter.clone()).block("api", "alice", Duration::ZERO)).unwrap_err();
    let block = AdminOperation::Block { limit: "api", duration: Duration::ZERO, reason: BlockReason::Administrator };
    assert_eq!(limiter.recorded(), [format!("{block:?} alice")]);
}

#[test]
fn custom_limiter_returns_unsupported_for_methods_without_an_override() {
    struct Minimal;

    impl Limiter<str> for Minimal {
        fn acquire(&self, _key: &str, _options: AcquireOptions) -> LimiterFuture<Outcome> {
            LimiterFuture::ready(Ok(Decision::without_limit(ManualClock::START, Verdict::Allowed).into()))
        }
    }

    fn check(limiter: &impl Limiter<str>) {
        assert!(acquire(limiter, "alice", AcquireOptions::default()).is_allowed());
        let reason = BlockReason::Escalation;
        let errors = [
            result_of(limiter.peek("alice", AcquireOptions::default())).map(drop).unwrap_err(),
            result_of(limiter.administer("alice", AdminOperation::SetUsage { limit: "default", used: 5 })).unwrap_err(),
            result_of(
                limiter.administer("alice", AdminOperation::Block { limit: "default", duration: MINUTE, reason }),
            )
            .unwrap_err(),
            result_of(limiter.administer("alice", AdminOperation::Reset)).unwrap_err(),
        ];
        for error in errors {
            assert!(error.is_unsupported() && !error.is_config() && !error.is_unavailable(), "{error:?}");
            assert!(error.to_string().ends_with(" failed: this limiter does not support it"), "{error}");
        }
    }

    check(&Minimal);
    check(&BoxLimiter::new(Minimal));
    check(&Arc::new(Minimal));
}
