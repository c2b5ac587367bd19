//! A full memory store: a flood of new keys neither frees a denied key nor harms other keys more than the policy says.
//!
//! With `WhenFull::CarryOver` a key never exceeds its limit. With `WhenFull::Deny` a denied new key is not charged.

use std::collections::HashMap;
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Held, LimiterFuture};
use tower_ratelimit::{
    AcquireOptions, DecisionSource, Detail, FixedWindow, Gcra, Limit, Limiter, ManualClock, Memory, Quota, SlidingLog,
    SlidingWindow, Timestamp, Verdict, WhenFull,
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

fn memory<A: Algorithm>(algorithm: A, max_keys: u64, when_full: WhenFull) -> (Memory<u64, A>, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let keys = usize::try_from(max_keys).unwrap();
    let memory = Memory::builder(algorithm).max_keys(keys).when_full(when_full).clock(clock.clone()).build();
    (memory.unwrap(), clock)
}

fn result_of<T>(reply: LimiterFuture<T>) -> Result<T, tower_ratelimit::Error> {
    reply.try_ready().expect("the memory store returns ready results")
}

/// The effect of a flood of single requests on a key at its limit and on ten keys below their limit.
#[derive(Debug, Default, PartialEq)]
struct FloodEffect {
    offender_allowed: u64,
    others_denied: u64,
    flood_allowed: u64,
}

/// Returns the number of exhausted new keys that the table admits before a denied key is allowed.
fn exhausted_keys_until_allowed<A: Algorithm>(algorithm: A, when_full: WhenFull) -> Option<u64> {
    let (limiter, clock) = memory(algorithm, MAX_KEYS, when_full);
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
    for freed_by in
        [exhausted_keys_until_allowed(TEN, WhenFull::Evict), exhausted_keys_until_allowed(window, WhenFull::Evict)]
    {
        // The denied key is freed only when the table is full of keys with as much usage.
        let freed_by = freed_by.expect("the table evicts the first idle key of six with equal usage");
        assert!((MAX_KEYS..10 * MAX_KEYS).contains(&freed_by), "{freed_by}");
    }
    for when_full in [WhenFull::Deny, WhenFull::CarryOver] {
        assert_eq!(exhausted_keys_until_allowed(TEN, when_full), None, "{when_full:?}");
        assert_eq!(exhausted_keys_until_allowed(window, when_full), None, "{when_full:?}");
    }
}

/// A user and a device. One limit counts by user, one by device.
type Caller = [u64; 2];

/// A flood of single requests under three limits: by user, by device, and global. Each has a table of its own.
///
/// Each flooding request has a new user and a new device, so both tables fill at one rate. One offender has exhausted
/// its user limit and changes devices. The other has exhausted its device limit and changes users. A request that one
/// limit denies is charged to no limit, so denied requests fill no table.
fn flood_under_several_limits(when_full: WhenFull, used_by_others: u64) -> FloodEffect {
    const ALL: u64 = 2 * FLOOD + 2000;
    let each = (
        Limit::new("user", TEN).keyed_by(|&[user, _]: &Caller| user),
        Limit::new("device", FixedWindow::new(Quota::per_day(BURST))).keyed_by(|&[_, device]: &Caller| device),
        Limit::new("all", FixedWindow::new(Quota::per_day(ALL))).keyed_by(|_: &Caller| ()),
    );
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let keys = usize::try_from(MAX_KEYS).unwrap();
    let limiter = Memory::builder(each).max_keys(keys).when_full(when_full).clock(clock.clone()).build().unwrap();
    let mut allowed = 0;
    let mut allows = |caller: Caller| {
        let is_allowed = limiter.check(&caller, AcquireOptions::default()).is_allowed();
        allowed += u64::from(is_allowed);
        is_allowed
    };
    let (user, device, others) = (u64::MAX, u64::MAX, u64::MAX - 10..u64::MAX);
    // These users and devices do not occur in the flood.
    let stranger = |time: u64| FLOOD + 1 + time;
    (0..BURST).for_each(|_| assert!(allows([user, 1 << 60])));
    (0..BURST).for_each(|_| assert!(allows([1 << 60, device])));
    clock.advance(Duration::from_secs(1));
    for one in others.clone() {
        (0..used_by_others).for_each(|_| assert!(allows([one, one])));
    }
    let mut effect = FloodEffect::default();
    for one in 0..FLOOD {
        effect.flood_allowed += u64::from(allows([one, one]));
        clock.advance(Duration::from_micros(1));
        if one % 100 == 0 {
            effect.offender_allowed += u64::from(allows([user, stranger(one)]));
            effect.offender_allowed += u64::from(allows([stranger(one), device]));
        }
        let step = FLOOD / (BURST - used_by_others);
        if one % step == step - 1 {
            effect.others_denied += others.clone().map(|one| u64::from(!allows([one, one]))).sum::<u64>();
        }
    }
    assert_eq!(remaining_of(&limiter, &[0, 0], "all"), ALL - allowed, "the number of allowed requests");
    effect
}

#[test]
fn several_limits_stay_denied_under_a_flood_of_new_keys() {
    let effect = flood_under_several_limits(WhenFull::Evict, 2);
    assert_eq!(effect, FloodEffect { flood_allowed: FLOOD, ..FloodEffect::default() });
}

#[test]
fn request_denied_by_one_limit_takes_no_slot_in_another() {
    let effect = flood_under_several_limits(WhenFull::Deny, 2);
    assert_eq!((effect.offender_allowed, effect.others_denied), (0, 0));
    assert!(effect.flood_allowed < 3 * MAX_KEYS, "{effect:?}");
}

#[test]
fn carry_over_applies_to_each_of_several_limits() {
    let effect = flood_under_several_limits(WhenFull::CarryOver, 9);
    assert_eq!(effect.offender_allowed, 0);
    assert!(effect.flood_allowed < 25 * MAX_KEYS, "{effect:?}");
    assert!(effect.others_denied <= 10, "{effect:?}");
}

/// Four keys for each slot repeat their requests.
fn max_allowed<A: Algorithm>(algorithm: A, when_full: WhenFull) -> u64 {
    let max_keys = MAX_KEYS.min(5_000);
    let (limiter, clock) = memory(algorithm, max_keys, when_full);
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
    assert!(
        max_allowed(TEN, WhenFull::Evict) > BURST,
        "`Evict` must exceed the limit, or the checks above prove nothing"
    );
}

#[test]
fn deny_policy_never_exceeds_the_limit() {
    assert_eq!(max_allowed(TEN, WhenFull::Deny), BURST);
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
