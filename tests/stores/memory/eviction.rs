//! A full memory store: a flood of new keys neither frees a denied key nor harms other keys more than the policy says.
//!
//! With `WhenFull::CarryOver` a key never exceeds its limit. With `WhenFull::Deny` a denied new key is not charged.

use std::collections::HashMap;
use std::time::Duration;

use tower_ratelimit::limiter::{Held, LimiterFuture};
use tower_ratelimit::store::MemoryLimits;
use tower_ratelimit::{
    AcquireOptions, Clock as _, DecisionSource, Detail, FixedWindow, Gcra, Limit, Limiter, ManualClock, Memory, Quota,
    SlidingLog, SlidingWindow, Timestamp, Verdict, WhenFull,
};

use crate::random::Random;

/// The number of new keys for each slot is 100.
///
/// `cargo test --release --all-features --test memory eviction` runs at full size: 10 million keys, 100,000 slots.
const MAX_KEYS: u64 = if cfg!(debug_assertions) { 300 } else { 100_000 };
const FLOOD: u64 = 100 * MAX_KEYS;

/// A burst of ten tokens that does not refill during a test.
const TEN: Gcra = Gcra::new(Quota::per_day(10));
const BURST: u64 = 10;

fn memory<L: MemoryLimits<u64>>(limits: L, max_keys: u64, when_full: WhenFull) -> (Memory<u64, L>, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let keys = usize::try_from(max_keys).unwrap();
    let memory = Memory::builder(limits).max_keys(keys).when_full(when_full).clock(clock.clone()).build();
    (memory.unwrap(), clock)
}

/// Two limits of each key, and one of all.
fn several() -> impl MemoryLimits<u64, Tables: Send> + 'static {
    let all = FixedWindow::new(Quota::per_day(1 << 40));
    (
        Limit::new("bucket", TEN).keyed_by(|key: &u64| *key),
        Limit::new("window", FixedWindow::new(Quota::per_day(BURST))).keyed_by(|key: &u64| *key),
        Limit::new("all", all).keyed_by(|_: &u64| ()),
    )
}

fn result_of<T>(reply: LimiterFuture<T>) -> Result<T, tower_ratelimit::Error> {
    reply.try_ready().expect("the memory store returns ready results")
}

/// Returns the number of exhausted new keys that the table admits before a denied key is allowed.
fn exhausted_keys_until_allowed<L>(limits: L, when_full: WhenFull) -> Option<u64>
where
    L: MemoryLimits<u64, Tables: Send> + 'static,
{
    let (limiter, clock) = memory(limits, MAX_KEYS, when_full);
    let allows = |key: u64| limiter.check(&key, AcquireOptions::default()).is_allowed();
    (0..BURST).for_each(|_| assert!(allows(u64::MAX)));
    clock.advance(Duration::from_secs(1));
    (0..FLOOD).find(|&key| {
        // Carried-over usage may leave the new key fewer tokens.
        while allows(key) {
            clock.advance(Duration::from_micros(1));
        }
        allows(u64::MAX)
    })
}

/// The statements of the README on each policy.
#[test]
fn flood_of_exhausted_keys_frees_a_denied_key_only_with_evict() {
    let window = FixedWindow::new(Quota::per_day(BURST));
    for freed_by in [
        exhausted_keys_until_allowed(TEN, WhenFull::Evict),
        exhausted_keys_until_allowed(window, WhenFull::Evict),
        exhausted_keys_until_allowed(several(), WhenFull::Evict),
    ] {
        // The denied key is freed only when the table is full of keys with as much usage.
        let freed_by = freed_by.expect("the table evicts the first idle key of six with equal usage");
        assert!((MAX_KEYS..10 * MAX_KEYS).contains(&freed_by), "{freed_by}");
    }
    for when_full in [WhenFull::Deny, WhenFull::CarryOver] {
        assert_eq!(exhausted_keys_until_allowed(TEN, when_full), None, "{when_full:?}");
        assert_eq!(exhausted_keys_until_allowed(window, when_full), None, "{when_full:?}");
        assert_eq!(exhausted_keys_until_allowed(several(), when_full), None, "{when_full:?}");
    }
}

/// Four keys for each slot repeat their requests.
fn max_allowed<L: MemoryLimits<u64, Tables: Send> + 'static>(limits: L, when_full: WhenFull) -> u64 {
    let max_keys = MAX_KEYS.min(5_000);
    let (limiter, clock) = memory(limits, max_keys, when_full);
    let keys = 4 * max_keys;
    let mut allowed: HashMap<u64, u64> = HashMap::new();
    let mut random = Random::new(1);
    for _ in 0..keys * 40 {
        let key = random.below(keys);
        clock.advance(Duration::from_micros(random.below(1 << 10)));
        *allowed.entry(key).or_default() += u64::from(limiter.check(&key, AcquireOptions::default()).is_allowed());
    }
    allowed.into_values().max().unwrap_or(0)
}

#[test]
fn carry_over_never_exceeds_the_limit() {
    let quota = Quota::per_day(10);
    assert!(max_allowed(TEN, WhenFull::CarryOver) <= BURST);
    assert!(max_allowed(FixedWindow::new(quota), WhenFull::CarryOver) <= BURST);
    assert!(max_allowed(SlidingWindow::new(quota).blocks(4), WhenFull::CarryOver) <= BURST);
    assert!(max_allowed(SlidingLog::new(quota), WhenFull::CarryOver) <= BURST);
    assert!(max_allowed(several(), WhenFull::CarryOver) <= BURST);
    assert!(
        max_allowed(TEN, WhenFull::Evict) > BURST,
        "`Evict` must exceed the limit, or the checks above prove nothing"
    );
}

#[test]
fn deny_policy_never_exceeds_the_limit() {
    assert_eq!(max_allowed(TEN, WhenFull::Deny), BURST);
    assert_eq!(max_allowed(several(), WhenFull::Deny), BURST);
}

/// The smallest table, full of keys with this usage.
fn full_of(when_full: WhenFull, used: u64) -> (Memory<u64, Gcra>, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let memory = Memory::builder(TEN).max_keys(1).when_full(when_full).clock(clock.clone()).build().unwrap();
    let mut key = 1_000_000_u64;
    while memory.usage()[0].live_keys < memory.usage()[0].capacity {
        // A request would be denied where carried-over usage fills the burst. `set_usage` fails when the table is full.
        let _ = result_of(memory.set_usage("default", &key, used));
        key += 1;
    }
    (memory, clock)
}

/// The usage of idle keys whose slots were taken counts, and so does that of evicted keys.
#[test]
fn denied_key_is_allowed_exactly_after_its_wait_when_the_clock_has_stepped_back() {
    let quota = Gcra::new(Quota::per_second(1)).burst(10);
    let (limiter, clock) = memory(quota, 1, WhenFull::CarryOver);
    let start = clock.now();
    (0..190).for_each(|key| drop(limiter.check(&key, AcquireOptions::default())));
    clock.advance(Duration::from_millis(1500));
    (1_000..5_000).for_each(|key| drop(limiter.check(&key, AcquireOptions::cost(10))));
    let mut denials = 0;
    for key in 10_000..10_200 {
        clock.set(start);
        let denied = result_of(limiter.peek(&key, AcquireOptions::default())).expect("a decision");
        let Verdict::Denied { retry_after } = denied.verdict() else { continue };
        denials += 1;
        assert!(!denied.is_estimate());
        let snapshot = denied.most_restrictive().expect("a limit").snapshot();
        assert_eq!(snapshot.next_token_after, retry_after);
        for (span, is_allowed) in [(retry_after.saturating_sub(Duration::from_micros(1)), false), (retry_after, true)] {
            clock.set(start.saturating_add(span));
            let decision = result_of(limiter.peek(&key, AcquireOptions::default())).expect("a decision");
            assert_eq!(decision.is_allowed(), is_allowed, "key {key}, {span:?} after a denial for {retry_after:?}");
        }
    }
    assert!(denials > 100, "{denials}");
}

#[test]
fn deny_policy_denies_new_keys_until_a_present_key_is_idle() {
    let (limiter, clock) = full_of(WhenFull::Deny, 1);
    let denied = limiter.check(&7, AcquireOptions::default());
    let Verdict::Denied { retry_after } = denied.verdict() else { panic!("{denied:?}") };
    assert_eq!(denied.source(), DecisionSource::NoLimit);
    assert!(denied.most_restrictive().is_none());
    assert_eq!(result_of(limiter.peek(&7, AcquireOptions::default())).unwrap(), denied);
    // `peek` takes no slot.
    assert!(limiter.check(&7, AcquireOptions::cost(0)).is_allowed());
    // Present keys continue. An operation that needs a slot returns an error.
    assert!(limiter.check(&1_000_000, AcquireOptions::default()).is_allowed());
    assert!(result_of(limiter.set_usage("default", &7, 3)).unwrap_err().is_unavailable());
    result_of(limiter.set_usage("default", &1_000_000, 3)).unwrap();

    clock.advance(retry_after);
    let allowed = limiter.check(&7, AcquireOptions::default());
    assert_eq!((allowed.verdict(), allowed.source()), (Verdict::Allowed, DecisionSource::Store));
}

fn hold(limiter: &Memory<u64, Gcra>, key: u64, cost: u64) -> Option<Held> {
    result_of(limiter.hold(&key, AcquireOptions::cost(cost))).unwrap().held
}

/// A hold of cost zero takes no slot, but its surcharge needs one.
#[test]
fn settle_returns_an_error_when_the_surcharge_needs_a_slot_of_a_full_table() {
    let (limiter, clock) = full_of(WhenFull::Deny, 5);
    let held = hold(&limiter, 7, 0).expect("a hold of cost zero succeeds");
    result_of(held.release()).expect("a release needs no slot");
    let held = hold(&limiter, 7, 0).expect("a hold of cost zero succeeds");
    assert!(result_of(held.settle(5)).unwrap_err().is_unavailable());
    clock.advance(Duration::from_secs(86_400));
    assert!(limiter.check(&7, AcquireOptions::default()).is_allowed());
}

/// A held key keeps its slot under every policy, even if its state is idle.
#[test]
fn held_key_is_not_evicted() {
    for when_full in [WhenFull::Evict, WhenFull::CarryOver, WhenFull::Deny] {
        let (limiter, clock) = memory(TEN, 1, when_full);
        let held = hold(&limiter, 7, BURST).expect("the key is new");
        for key in 1_000..3_000_u64 {
            let _ = limiter.check(&key, AcquireOptions::default());
            clock.advance(Duration::from_micros(1));
            assert!(
                !limiter.check(&7, AcquireOptions::default()).is_allowed(),
                "{when_full:?}: the whole burst is held"
            );
        }
        clock.advance(Duration::from_secs(10 * 86_400));
        for key in 3_000..4_000_u64 {
            let _ = limiter.check(&key, AcquireOptions::default());
        }
        result_of(held.settle(BURST)).expect("the held key has a slot");
        assert!(
            !limiter.check(&7, AcquireOptions::default()).is_allowed(),
            "{when_full:?}: the whole burst is charged"
        );
        assert_eq!(limiter.usage()[0].held_keys, 0);
    }
}

/// If one limit's table is full, the transaction is denied and no limit is charged.
#[test]
fn full_table_of_one_limit_charges_no_limit() {
    for when_full in [WhenFull::Evict, WhenFull::CarryOver, WhenFull::Deny] {
        let global = Gcra::new(Quota::per_day(1_000_000));
        let limits = (Limit::new("global", global).keyed_by(|_: &u64| ()), Limit::new("each", TEN));
        let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
        let limiter = Memory::builder(limits).max_keys(1).when_full(when_full).clock(clock).build().unwrap();
        let mut allowed = 0;
        for key in 0..5_000_u64 {
            let decision = limiter.check(&(key % 500), AcquireOptions::default());
            allowed += u64::from(decision.is_allowed());
        }
        let left = remaining_of(&limiter, &1_000_000, "global");
        assert_eq!(left, 1_000_000 - allowed, "{when_full:?}");
        if when_full == WhenFull::Deny {
            let capacity = limiter.usage().iter().find(|usage| usage.limit == "each").unwrap().capacity as u64;
            assert!(allowed <= 10 * capacity, "at most the number of slots: {allowed}");
        }
    }
}

fn remaining_of<Key>(limiter: &impl Limiter<Key>, key: &Key, limit: &str) -> u64 {
    let decision = result_of(limiter.peek(key, AcquireOptions::cost(0).detail(Detail::All))).unwrap();
    decision.limits().iter().find(|status| status.name() == limit).expect("the limit is listed").remaining()
}

/// A shadow limit that denies is not charged, so it takes no slot for the key.
#[test]
fn shadow_limit_that_denies_evicts_no_key() {
    let limits = (
        Limit::new("all", Gcra::new(Quota::per_second(1_000_000))).keyed_by(|_: &u64| 0_u64),
        Limit::new("new", FixedWindow::new(Quota::per_minute(1))).keyed_by(|key: &u64| *key).shadow(),
    );
    let limiter = Memory::builder(limits).max_keys(1).clock(ManualClock::new()).build().unwrap();
    assert!((0..1000).all(|key| limiter.check(&key, AcquireOptions::default()).is_allowed()));
    let evicted = limiter.usage()[1].evicted;
    assert!(evicted > 0, "the table is full");
    assert!((1000..2000).all(|key| limiter.check(&key, AcquireOptions::cost(2)).is_allowed()));
    assert_eq!(limiter.usage()[1].evicted, evicted);
}
