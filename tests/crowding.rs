//! Proves what is promised of a full memory: under a flood of new keys an offender stays refused and honest keys are hurt no
//! more than the policy says; who inherits is never let through beyond a limit; who is refused for want of room charges nobody.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::algorithm::{Algorithm, Counters, HitLog};
use tower_ratelimit::limiter::{Acquisition, Held, LimiterFuture};
use tower_ratelimit::store::LimitsFor;
use tower_ratelimit::{
    AcquireOptions, DecisionSource, Detail, FixedWindow, Gcra, Limit, Limiter, ManualClock, Memory, Quota, SlidingLog,
    SlidingWindow, Timestamp, Verdict, WhenFull,
};

/// A hundred new keys for each that has room.
///
/// `cargo test --release --test crowding` is at full size: ten million keys against a hundred thousand.
const CAP: u64 = if cfg!(debug_assertions) { 300 } else { 100_000 };
const FLOOD: u64 = 100 * CAP;

/// Ten at once, and none comes back while a test lasts.
const TEN: Gcra = Gcra::new(Quota::per_day(10));
const BURST: u64 = 10;

fn memory<A: Algorithm>(algorithm: A, cap: u64, when_full: WhenFull) -> (Memory<A, ManualClock>, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let keys = usize::try_from(cap).unwrap();
    let memory = Memory::builder(algorithm).max_keys(keys).when_full(when_full).clock(clock.clone()).build();
    (memory.unwrap(), clock)
}

fn now<T>(reply: LimiterFuture<T>) -> Result<T, tower_ratelimit::Error> {
    reply.try_ready().expect("memory answers at once")
}

/// What a flood of keys that are asked for once each does to an offender and to ten keys that are well within their limit.
#[derive(Debug, Default, PartialEq)]
struct Harm {
    offender_let_through: u64,
    honest_refused: u64,
    flood_let_through: u64,
}

fn flood<A: Algorithm>(algorithm: A, when_full: WhenFull, used_by_the_honest: u64) -> Harm {
    let (limiter, clock) = memory(algorithm, CAP, when_full);
    let allows = |key: u64| limiter.check(&key, AcquireOptions::default()).is_allowed();
    let (offender, honest) = (u64::MAX, u64::MAX - 10..u64::MAX);
    (0..BURST).for_each(|_| assert!(allows(offender)));
    // So that windows of those who come later end later.
    clock.advance(Duration::from_secs(1));
    for key in honest.clone() {
        (0..used_by_the_honest).for_each(|_| assert!(allows(key)));
    }
    let mut harm = Harm::default();
    for key in 0..FLOOD {
        harm.flood_let_through += u64::from(allows(key));
        clock.advance(Duration::from_micros(1));
        if key % 100 == 0 {
            harm.offender_let_through += u64::from(allows(offender));
        }
        // What they have left is spent over the time that the flood takes.
        let step = FLOOD / (BURST - used_by_the_honest);
        if key % step == step - 1 {
            harm.honest_refused += honest.clone().map(|key| u64::from(!allows(key))).sum::<u64>();
        }
    }
    harm
}

fn nobody_comes_near_the_offender<A: Algorithm + Copy>(algorithm: A) {
    // New keys owe one of ten: whoever owes more stays.
    let harm = flood(algorithm, WhenFull::Evict, 2);
    assert_eq!(harm, Harm { flood_let_through: FLOOD, ..Harm::default() });

    let harm = flood(algorithm, WhenFull::Deny, 2);
    assert_eq!((harm.offender_let_through, harm.honest_refused), (0, 0));
    assert!(harm.flood_let_through < 2 * CAP + 100, "{harm:?}");

    // Those who owe as much as the flood has inherited are not displaced by it.
    let harm = flood(algorithm, WhenFull::CarryOver, 9);
    assert_eq!(harm.offender_let_through, 0);
    assert!(harm.flood_let_through < 15 * CAP, "{harm:?}");
    assert!(harm.honest_refused <= 10, "{harm:?}");
}

#[test]
fn a_flood_launders_no_offender_by_a_bucket() {
    nobody_comes_near_the_offender(TEN);
}

/// Where all windows end at different times, and the offender's first.
#[test]
fn a_flood_launders_no_offender_by_a_window() {
    nobody_comes_near_the_offender(FixedWindow::new(Quota::per_day(10)));
}

/// How many new keys, each of which uses up its whole limit, it takes until a key is let through that is being denied.
fn exhausted_keys_until_freed<A: Algorithm>(algorithm: A, when_full: WhenFull) -> Option<u64> {
    let (limiter, clock) = memory(algorithm, CAP, when_full);
    let allows = |key: u64| limiter.check(&key, AcquireOptions::default()).is_allowed();
    (0..BURST).for_each(|_| assert!(allows(u64::MAX)));
    clock.advance(Duration::from_secs(1));
    (0..FLOOD).find(|&key| {
        // What a new key inherits may leave it less.
        while allows(key) {
            clock.advance(Duration::from_micros(1));
        }
        allows(u64::MAX)
    })
}

/// What README.md says of each policy.
#[test]
fn a_flood_of_exhausted_keys_frees_a_denied_one_only_where_keys_are_forgotten() {
    let window = FixedWindow::new(Quota::per_day(BURST));
    for freed_by in
        [exhausted_keys_until_freed(TEN, WhenFull::Evict), exhausted_keys_until_freed(window, WhenFull::Evict)]
    {
        // Not before the memory is full of keys that have used as much.
        let freed_by = freed_by.expect("of six that have used as much, the first to be idle goes");
        assert!((CAP..10 * CAP).contains(&freed_by), "{freed_by}");
    }
    for when_full in [WhenFull::Deny, WhenFull::CarryOver] {
        assert_eq!(exhausted_keys_until_freed(TEN, when_full), None, "{when_full:?}");
        assert_eq!(exhausted_keys_until_freed(window, when_full), None, "{when_full:?}");
    }
}

/// A user on a device. A limit counts by each.
type Caller = [u64; 2];

/// As [`flood`], under two limits by different parts, each with a table of its own, and one that counts all.
///
/// Every attacker is a new user on a new device, so that both tables are flooded alike. One offender has used up what a user
/// may have, and comes with a new device each time; another one what a device may have, and comes as a new user each time.
/// Nobody is charged to one limit for what another one refuses, and so there is no flood for free.
fn flood_of_several(when_full: WhenFull, used_by_the_honest: u64) -> Harm {
    const ALL: u64 = 2 * FLOOD + 2000;
    let each = (
        Limit::new("user", TEN).keyed_by(|&[user, _]: &Caller| user),
        Limit::new("device", FixedWindow::new(Quota::per_day(BURST))).keyed_by(|&[_, device]: &Caller| device),
        Limit::new("all", FixedWindow::new(Quota::per_day(ALL))).keyed_by(|_: &Caller| ()),
    );
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let keys = usize::try_from(CAP).unwrap();
    let limiter = Memory::builder(each).max_keys(keys).when_full(when_full).clock(clock.clone()).build().unwrap();
    let mut let_through = 0;
    let mut allows = |caller: Caller| {
        let is_allowed = limiter.check(&caller, AcquireOptions::default()).is_allowed();
        let_through += u64::from(is_allowed);
        is_allowed
    };
    let (user, device, honest) = (u64::MAX, u64::MAX, u64::MAX - 10..u64::MAX);
    // Who is new for the offenders, unlike anybody in the flood.
    let stranger = |time: u64| FLOOD + 1 + time;
    (0..BURST).for_each(|_| assert!(allows([user, 1 << 60])));
    (0..BURST).for_each(|_| assert!(allows([1 << 60, device])));
    clock.advance(Duration::from_secs(1));
    for one in honest.clone() {
        (0..used_by_the_honest).for_each(|_| assert!(allows([one, one])));
    }
    let mut harm = Harm::default();
    for one in 0..FLOOD {
        harm.flood_let_through += u64::from(allows([one, one]));
        clock.advance(Duration::from_micros(1));
        if one % 100 == 0 {
            harm.offender_let_through += u64::from(allows([user, stranger(one)]));
            harm.offender_let_through += u64::from(allows([stranger(one), device]));
        }
        let step = FLOOD / (BURST - used_by_the_honest);
        if one % step == step - 1 {
            harm.honest_refused += honest.clone().map(|one| u64::from(!allows([one, one]))).sum::<u64>();
        }
    }
    assert_eq!(remaining_of(&limiter, &[0, 0], "all"), ALL - let_through, "as many as were let through");
    harm
}

#[test]
fn a_flood_launders_no_offender_by_one_of_several_limits() {
    let harm = flood_of_several(WhenFull::Evict, 2);
    assert_eq!(harm, Harm { flood_let_through: FLOOD, ..Harm::default() });
}

#[test]
fn a_flood_takes_no_room_in_one_limit_for_what_another_refuses() {
    let harm = flood_of_several(WhenFull::Deny, 2);
    assert_eq!((harm.offender_let_through, harm.honest_refused), (0, 0));
    assert!(harm.flood_let_through < 2 * CAP + 100, "{harm:?}");
}

#[test]
fn a_flood_inherits_from_each_of_several_limits() {
    let harm = flood_of_several(WhenFull::CarryOver, 9);
    assert_eq!(harm.offender_let_through, 0);
    assert!(harm.flood_let_through < 15 * CAP, "{harm:?}");
    assert!(harm.honest_refused <= 10, "{harm:?}");
}

/// Four keys for each that has room come again and again.
fn let_through_at_most<A: Algorithm>(algorithm: A, when_full: WhenFull) -> u64 {
    let cap = CAP.min(5_000);
    let (limiter, clock) = memory(algorithm, cap, when_full);
    let keys = 4 * cap;
    let mut let_through: HashMap<u64, u64> = HashMap::new();
    let mut random = 1_u64;
    for _ in 0..keys * 40 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = (random >> 33) % keys;
        clock.advance(Duration::from_micros(random >> 54));
        *let_through.entry(key).or_default() += u64::from(limiter.check(&key, AcquireOptions::default()).is_allowed());
    }
    let_through.into_values().max().unwrap_or(0)
}

#[test]
fn who_inherits_is_never_let_through_beyond_a_limit() {
    let quota = Quota::per_day(10);
    assert!(let_through_at_most(TEN, WhenFull::CarryOver) <= BURST);
    assert!(let_through_at_most(FixedWindow::new(quota), WhenFull::CarryOver) <= BURST);
    assert!(let_through_at_most(SlidingWindow::new(quota).blocks(4), WhenFull::CarryOver) <= BURST);
    assert!(let_through_at_most(SlidingLog::new(quota), WhenFull::CarryOver) <= BURST);
    assert!(let_through_at_most(TEN, WhenFull::Evict) > BURST, "or the above would prove nothing");
}

#[test]
fn who_is_refused_room_is_never_let_through_beyond_a_limit() {
    assert_eq!(let_through_at_most(TEN, WhenFull::Deny), BURST);
}

/// The least memory there is, full of keys that have used so much.
fn full_of(when_full: WhenFull, used: u64) -> (Memory<Gcra, ManualClock>, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let memory = Memory::builder(TEN).max_keys(1).when_full(when_full).clock(clock.clone()).build().unwrap();
    let mut key = 1_000_000_u64;
    while memory.usage()[0].live_keys < memory.usage()[0].room {
        // Not by asking: where all that is inherited is owed, nobody would be let in. An error says that there is no room.
        let _ = now(memory.set("default", &key, used));
        key += 1;
    }
    (memory, clock)
}

#[test]
fn two_keys_that_take_turns_in_a_full_memory_launder_each_other_only_where_they_are_forgotten() {
    let let_through = |when_full| {
        let (limiter, _) = full_of(when_full, BURST);
        let mut let_through = [0_u64; 2];
        for turn in 0..1000 {
            let key = turn % 2;
            let_through[key] += u64::from(limiter.check(&(key as u64), AcquireOptions::default()).is_allowed());
        }
        let_through
    };
    assert!(let_through(WhenFull::CarryOver).into_iter().all(|count| count <= BURST));
    assert_eq!(let_through(WhenFull::Deny), [0, 0]);
    assert!(let_through(WhenFull::Evict).into_iter().sum::<u64>() >= BURST);
}

#[test]
fn who_finds_no_room_is_refused_by_policy_until_somebody_is_as_good_as_new() {
    let (limiter, clock) = full_of(WhenFull::Deny, 1);
    let refused = limiter.check(&7, AcquireOptions::default());
    let Verdict::Denied { retry_after } = refused.verdict() else { panic!("{refused:?}") };
    assert_eq!(refused.source(), DecisionSource::Policy);
    assert!(refused.most_restrictive().is_none());
    assert_eq!(now(limiter.peek(&7, AcquireOptions::default())).unwrap(), refused);
    // A question takes no room.
    assert!(limiter.check(&7, AcquireOptions::cost(0)).is_allowed());
    // Those who have room go on, and what must have room and has none is an error.
    assert!(limiter.check(&1_000_000, AcquireOptions::default()).is_allowed());
    assert!(now(limiter.set("default", &7, 3)).unwrap_err().is_unavailable());
    now(limiter.set("default", &1_000_000, 3)).unwrap();

    clock.advance(retry_after);
    let allowed = limiter.check(&7, AcquireOptions::default());
    assert_eq!((allowed.verdict(), allowed.source()), (Verdict::Allowed, DecisionSource::Store));
}

fn hold(limiter: &Memory<Gcra, ManualClock>, key: u64, cost: u64) -> Option<Held> {
    let Acquisition::Ready(outcome) = limiter.hold(&key, AcquireOptions::cost(cost)) else {
        panic!("memory answers at once")
    };
    outcome.unwrap().held
}

/// A hold of nothing takes no slot. What is charged for it in the end needs one.
#[test]
fn a_surcharge_that_finds_no_room_is_an_error() {
    let (limiter, clock) = full_of(WhenFull::Deny, 5);
    let held = hold(&limiter, 7, 0).expect("it costs nothing");
    assert!(now(held.settle(5)).unwrap_err().is_unavailable());
    clock.advance(Duration::from_secs(86_400));
    assert!(limiter.check(&7, AcquireOptions::default()).is_allowed());
}

/// A key on which something is held keeps its slot, whatever the policy at capacity is, and though its state is idle.
#[test]
fn a_held_key_is_not_evicted() {
    for when_full in [WhenFull::Evict, WhenFull::CarryOver, WhenFull::Deny] {
        let (limiter, clock) = memory(TEN, 1, when_full);
        let held = hold(&limiter, 7, BURST).expect("it is new");
        for key in 1_000..3_000_u64 {
            limiter.check(&key, AcquireOptions::default());
            clock.advance(Duration::from_micros(1));
            assert!(!limiter.check(&7, AcquireOptions::default()).is_allowed(), "{when_full:?}: its burst is held");
        }
        clock.advance(Duration::from_secs(10 * 86_400));
        for key in 3_000..4_000_u64 {
            limiter.check(&key, AcquireOptions::default());
        }
        now(held.settle(BURST)).expect("it has a slot");
        assert!(!limiter.check(&7, AcquireOptions::default()).is_allowed(), "{when_full:?}: its burst is charged");
        assert_eq!(limiter.usage()[0].held_keys, 0);
    }
}

/// Where something is held on every key there is, nobody is evicted: a new key is denied by policy.
#[test]
fn a_table_of_held_keys_denies_new_ones() {
    for when_full in [WhenFull::Evict, WhenFull::CarryOver, WhenFull::Deny] {
        let (limiter, clock) = memory(TEN, 1, when_full);
        let mut guards = Vec::new();
        let denied = loop {
            let key = guards.len() as u64;
            match hold(&limiter, key, 1) {
                Some(held) => guards.push(held),
                None => break key,
            }
        };
        assert!(guards.len() <= limiter.usage()[0].room && guards.len() > limiter.usage()[0].room / 2);
        let decision = limiter.check(&denied, AcquireOptions::default());
        assert_eq!(decision.source(), DecisionSource::Policy, "{when_full:?}");
        assert!(decision.retry_after().is_some_and(|wait| !wait.is_zero()), "{when_full:?}: {decision:?}");
        assert_eq!(limiter.usage()[0].held_keys, guards.len());
        // One slot after another is free again.
        for held in guards {
            now(held.release()).unwrap();
        }
        clock.advance(Duration::from_millis(2));
        assert!(limiter.check(&denied, AcquireOptions::default()).is_allowed(), "{when_full:?}");
    }
}

/// Of several limits the one that has no room refuses for all, and none is charged.
#[test]
fn who_finds_no_room_in_one_limit_is_charged_to_none() {
    for when_full in [WhenFull::Evict, WhenFull::CarryOver, WhenFull::Deny] {
        let everybody = Gcra::new(Quota::per_day(1_000_000));
        let limits = (Limit::new("everybody", everybody).keyed_by(|_: &u64| ()), Limit::new("each", TEN));
        let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
        let limiter = Memory::builder(limits).max_keys(1).when_full(when_full).clock(clock).build().unwrap();
        let mut let_through = 0;
        for key in 0..5_000_u64 {
            let decision = limiter.check(&(key % 500), AcquireOptions::default());
            let_through += u64::from(decision.is_allowed());
        }
        let left = remaining_of(&limiter, &1_000_000, "everybody");
        assert_eq!(left, 1_000_000 - let_through, "{when_full:?}");
        if when_full == WhenFull::Deny {
            let room = limiter.usage().iter().find(|usage| usage.limit == "each").unwrap().room as u64;
            assert!(let_through <= 10 * room, "as many as there are slots: {let_through}");
        }
    }
}

fn remaining_of<Key: Hash, L>(limiter: &Memory<L, ManualClock>, key: &Key, limit: &str) -> u64
where
    L: LimitsFor<Key, tower_ratelimit::store::DefaultHashBuilder>,
{
    let decision = now(limiter.peek(key, AcquireOptions::cost(0).detail(Detail::All))).unwrap();
    decision.limits().iter().find(|standing| standing.name() == limit).expect("it is listed").remaining()
}

#[test]
fn a_shadow_limit_without_room_refuses_nobody() {
    let clock = ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000));
    let limiter = Memory::builder(Limit::new("new", TEN).shadow()).max_keys(1).when_full(WhenFull::Deny);
    let limiter = limiter.clock(clock).build().unwrap();
    assert!((0..1000_u64).all(|key| limiter.check(&key, AcquireOptions::default()).is_allowed()));
}

/// What a key is charged, so many microseconds after one another.
fn history() -> impl Strategy<Value = Vec<(u64, u64)>> {
    proptest::collection::vec((0..3_000_000_u64, 1..4_u64), 0..12)
}

/// Whoever owes what two states add up to when one inherits from the other is let through by both.
fn owes_at_least_both<A: Algorithm>(
    algorithm: &A,
    zero: &A::State,
    histories: [&[(u64, u64)]; 2],
    asks: &[(u64, u64)],
) -> Result<(), TestCaseError> {
    let mut latest = Timestamp::from_micros(1_800_000_000_000_000);
    let [mut own, other] = histories.map(|history| {
        let (mut state, mut at) = (zero.clone(), Timestamp::from_micros(1_800_000_000_000_000));
        for &(wait, cost) in history {
            at = at.after(Duration::from_micros(wait));
            if algorithm.peek(&state, at, AcquireOptions::cost(cost)) == Verdict::Allowed {
                algorithm.commit(&mut state, at, Duration::ZERO, cost);
            }
        }
        latest = latest.max(at);
        state
    });
    let before = own.clone();
    algorithm.inherit(&mut own, &other, latest);
    for &(wait, cost) in asks {
        latest = latest.after(Duration::from_micros(wait));
        let ask = |state: &A::State| algorithm.peek(state, latest, AcquireOptions::cost(cost)).is_allowed();
        prop_assert!(!ask(&own) || (ask(&before) && ask(&other)), "at {latest:?} for {cost}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn who_inherits_owes_at_least_both(
        one in history(),
        two in history(),
        asks in proptest::collection::vec((0..2_000_000_u64, 1..6_u64), 1..12),
    ) {
        let quota = Quota::new(7, Duration::from_secs(9));
        let histories = [&*one, &*two];
        owes_at_least_both(&Gcra::new(quota), &[0; 4], histories, &asks)?;
        owes_at_least_both(&FixedWindow::new(quota), &[0; 4], histories, &asks)?;
        owes_at_least_both(&FixedWindow::new(quota).aligned_to_clock(), &[0; 4], histories, &asks)?;
        let window = SlidingWindow::new(quota).blocks(5);
        owes_at_least_both(&window, &Counters::zero(window.counter_words()), histories, &asks)?;
        let weighted = SlidingWindow::new(quota).blocks(3).weighted();
        owes_at_least_both(&weighted, &Counters::zero(weighted.counter_words()), histories, &asks)?;
        owes_at_least_both(&SlidingLog::new(quota), &HitLog::default(), histories, &asks)?;
    }
}
