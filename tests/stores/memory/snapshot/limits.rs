//! Limits that differ between the two processes, and tables of another size.

use std::time::Duration;

use tower_ratelimit::{
    AcquireOptions, DynLimit, FixedWindow, Gcra, InFlight, Limit, Limiter, ManualClock, Memory, Quota, SlidingWindow,
    WhenFull, per_key,
};

use super::world::{Counts, Op, World, limits};
use crate::immediate::{acquire, memory, ready};
use crate::random::Random;

const HOURLY: Quota = Quota::per_hour(100);

/// The law: under other quotas, a restored limiter decides as one whose limits were replaced.
#[test]
fn snapshot_under_another_quota_decides_as_after_a_replacement() {
    for seed in 0..450 {
        let (mut world, mut random) = (World::new(seed), Random(seed ^ 0x9a));
        for _ in 0..40 {
            world.run(Op::any(&mut random));
        }
        world.run(Op::EndAll);
        let file = world.save();
        let builder = Memory::builder(limits(seed, 1)).max_keys(100).clock(world.clock.clone());
        let restored = builder.restore(&*file).build().expect("restored");
        world.limiter.replace(limits(seed, 1)).expect("replaced");
        let mut restored = World { kind: seed, clock: world.clock.clone(), limiter: restored, open: Vec::new() };
        for _ in 0..60 {
            let op = Op::any(&mut random);
            let expected = world.run(op);
            // Both have one clock.
            if !matches!(op, Op::Advance(_)) {
                assert_eq!(restored.run(op), expected, "seed {seed}: {op:?}");
            }
        }
    }
}

/// A limit with another name, algorithm or sub-key starts empty, as in `replace`.
#[test]
fn snapshot_is_of_the_limit_with_the_same_name_algorithm_and_sub_key() {
    let before = Memory::<(u64, u64), _>::new((
        Limit::new("a", Gcra::new(HOURLY)).keyed_by(|key: &(u64, u64)| key.0),
        Limit::new("b", Gcra::new(HOURLY)).keyed_by(|key: &(u64, u64)| key.1),
        Limit::new("c", FixedWindow::new(HOURLY)).keyed_by(|_: &(u64, u64)| ()),
    ));
    assert!(before.check(&(1, 2), 40).is_allowed());
    let mut file = Vec::new();
    before.save(&mut file).expect("saved");
    let after = Memory::<(u64, u64), _>::builder((
        Limit::new("c", FixedWindow::new(HOURLY)).keyed_by(|_: &(u64, u64)| ()),
        Limit::new("b", FixedWindow::new(HOURLY)).keyed_by(|key: &(u64, u64)| key.1),
        Limit::new("a", Gcra::new(HOURLY)).keyed_by(|key: &(u64, u64)| u32::try_from(key.0).expect("small")),
        Limit::new("d", Gcra::new(HOURLY)).keyed_by(|key: &(u64, u64)| key.0),
    ));
    let after = after.restore(&*file).build().expect("restored");
    let usage: Vec<_> = after.usage().into_iter().map(|usage| (usage.limit, usage.live_keys)).collect();
    let expected = [("c", 1), ("b", 0), ("a", 0), ("d", 0)].map(|(limit, keys)| (limit.to_owned(), keys));
    assert_eq!(usage, expected);
}

/// A limit of one type with a table for it, and the same limit in a list: their states have different lengths.
#[test]
fn snapshot_of_a_window_with_more_blocks_keeps_the_usage() {
    let clock = ManualClock::new();
    let window = |blocks| SlidingWindow::new(HOURLY).blocks(blocks);
    let before = memory::<u64, _>(window(60), &clock);
    for _ in 0..30 {
        assert!(before.check(&1, 2).is_allowed());
        clock.advance(Duration::from_secs(60));
    }
    let mut file = Vec::new();
    before.save(&mut file).expect("saved");
    for blocks in [1, 2, 30, 60] {
        let after = Memory::<u64, _>::builder(window(blocks)).clock(clock.clone()).restore(&*file);
        assert_eq!(after.build().expect("restored").check(&1, 0).remaining(), Some(40), "{blocks} blocks");
        let list = Memory::<u64, _>::builder(vec![DynLimit::new(window(blocks))]).clock(clock.clone()).restore(&*file);
        let list = list.build().expect("restored");
        assert_eq!(list.check(&1, 0).remaining(), Some(40), "{blocks} blocks in a list");
        let mut again = Vec::new();
        list.save(&mut again).expect("saved");
        let back = Memory::<u64, _>::builder(window(blocks)).clock(clock.clone()).restore(&*again);
        assert_eq!(back.build().expect("restored").check(&1, 0).remaining(), Some(40), "{blocks} blocks again");
    }
}

/// Usage that has drained before the restart, or is older than the new window, is no error.
#[test]
fn snapshot_of_a_window_with_more_blocks_may_be_old() {
    let clock = ManualClock::new();
    let before = Memory::<u64, _>::builder(SlidingWindow::new(HOURLY).blocks(60)).clock(clock.clone());
    let before = before.build().expect("a limit");
    assert!(before.check(&1, 2).is_allowed());
    let mut file = Vec::new();
    before.save(&mut file).expect("saved");
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    for (quota, later) in [(Quota::per_minute(100), minutes(10)), (HOURLY, minutes(110))] {
        clock.advance(later);
        for blocks in [1, 2, 30, 60] {
            let after = Memory::<u64, _>::builder(SlidingWindow::new(quota).blocks(blocks)).clock(clock.clone());
            let after = after.restore(&*file).build().expect("restored");
            assert_eq!(after.check(&1, 0).remaining(), Some(100), "{quota:?}, {blocks} blocks");
        }
    }
}

/// Holds of limits whose algorithm the key chooses are settled by the algorithm of their key, and only while they last.
#[test]
fn snapshot_settles_holds_of_each_tier() {
    let clock = ManualClock::new();
    let tiers = || per_key(|key: &u64| FixedWindow::new(Quota::per_hour(10 * (1 + key))));
    let before = memory(tiers(), &clock);
    let hold = |key: u64, cost: u64| ready(before.hold(&key, AcquireOptions::cost(cost))).held.expect("a guard");
    let save = || {
        let mut file = Vec::new();
        before.save(&mut file).expect("saved");
        Memory::builder(tiers()).clock(clock.clone()).restore(&*file).build().expect("restored")
    };
    let (one, two, other) = (hold(0, 3), hold(0, 4), hold(4, 20));
    let after = save();
    assert_eq!([0, 4].map(|key| after.check(&key, 0).remaining()), [Some(3), Some(30)]);
    assert_eq!(after.usage()[0].held, 0);
    // Periodic saves change nothing in the process that goes on.
    assert_eq!(before.usage()[0].held, 27);
    let _ = one.settle(1).try_ready();
    let _ = other.release().try_ready();
    let after = save();
    assert_eq!([0, 4].map(|key| after.check(&key, 0).remaining()), [Some(5), Some(50)]);
    drop(two);
    assert_eq!(save().check(&0, 0).remaining(), Some(5));
}

#[test]
fn snapshot_contains_no_requests_in_flight() {
    let limits = || (Limit::new("rate", Gcra::new(HOURLY)), Limit::new("in flight", InFlight::new(2)));
    let before = Memory::<u64, _>::new(limits());
    let first = acquire(&before, &1, AcquireOptions::default().keep_guard());
    assert!(first.held.is_some());
    let mut file = Vec::new();
    before.save(&mut file).expect("saved");
    let after = Memory::<u64, _>::builder(limits()).restore(&*file).build().expect("restored");
    let held: Vec<_> = after.usage().iter().map(|usage| (usage.live_keys, usage.held)).collect();
    assert_eq!(held, [(1, 0), (0, 0)]);
}

fn table(max_keys: usize, when_full: WhenFull, clock: &ManualClock, file: Option<&[u8]>) -> Result<Counts, String> {
    let limits = vec![DynLimit::new(FixedWindow::new(Quota::per_hour(3)))];
    let builder = Memory::builder(limits).max_keys(max_keys).when_full(when_full).clock(clock.clone());
    if let Some(file) = file { builder.restore(file) } else { builder }.build().map_err(|error| error.to_string())
}

/// A smaller table than that of the file applies its policy: nobody gets more under `CarryOver` and `Deny`.
#[test]
fn snapshot_in_a_smaller_table_applies_the_policy_at_capacity() {
    let clock = ManualClock::new();
    let before = table(6_000, WhenFull::Evict, &clock, None).expect("a limit");
    for key in 0..6_000 {
        assert!(before.check(&key, 3).is_allowed());
    }
    let mut file = Vec::new();
    before.save(&mut file).expect("saved");

    let denied = |limiter: &Counts| (0..6_000).filter(|key| !limiter.check(key, 1).is_allowed()).count();
    assert_eq!(denied(&table(6_000, WhenFull::Deny, &clock, Some(&file)).expect("restored")), 6_000);
    assert_eq!(denied(&table(1_000, WhenFull::CarryOver, &clock, Some(&file)).expect("restored")), 6_000);
    let kept = denied(&table(1_000, WhenFull::Evict, &clock, Some(&file)).expect("restored"));
    assert!((1_000..2_500).contains(&kept), "{kept}");
    assert_eq!(
        table(1_000, WhenFull::Deny, &clock, Some(&file)).expect_err("an error"),
        "restoring the saved counts failed: limit \"default\": the table has no slot for each saved key, and eviction is \
         disabled (`WhenFull::Deny`); raise `max_keys`"
    );
    let limits = vec![DynLimit::<u64>::new(FixedWindow::new(Quota::per_hour(3)))];
    let builder = Memory::builder(limits).max_keys(1_000).when_full(WhenFull::Deny).clock(clock.clone());
    let empty = builder.restore_or_empty(&*file, |_| ()).build().expect("an empty limiter");
    assert_eq!(empty.usage()[0].live_keys, 0);
}

/// The usage of evicted keys is carried over a restart, also into a table of another size.
#[test]
fn snapshot_keeps_the_usage_that_evicted_keys_leave() {
    let clock = ManualClock::new();
    let before = table(100, WhenFull::CarryOver, &clock, None).expect("a limit");
    let keys = 0..2_000_u64;
    let admitted = keys.clone().filter(|key| before.check(key, 3).is_allowed()).count();
    assert!(before.usage()[0].evicted > 0 && admitted < 1_000, "{admitted}");
    let mut file = Vec::new();
    before.save(&mut file).expect("saved");
    for max_keys in [100, 50, 5_000] {
        let after = table(max_keys, WhenFull::CarryOver, &clock, Some(&file)).expect("restored");
        let again = (0..2_000).filter(|key| after.check(key, 1).is_allowed()).count();
        let uninterrupted = (0..2_000).filter(|key| before.check(key, 0).remaining() > Some(0)).count();
        assert!(again <= uninterrupted, "{max_keys}: {again} > {uninterrupted}");
        clock.advance(Duration::from_secs(3600));
        assert!(after.check(&1, 3).is_allowed(), "the debts expire");
        clock.set(ManualClock::START);
    }
}
