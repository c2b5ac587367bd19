//! The clock of the next process.

use std::time::Duration;

use tower_ratelimit::{AcquireOptions, Clock as _, FixedWindow, Gcra, Limiter, ManualClock, Memory, Quota, Timestamp};

use super::world::{KEYS, Op, World};
use crate::immediate::memory;
use crate::random::Random;

/// The law: a restart whose clock has stepped, forward or back, decides a key that was not idle as a limiter without the
/// restart does after the same step.
#[test]
fn snapshot_under_another_clock_decides_as_after_a_step_of_the_clock() {
    let (mut forward, mut back, mut compared) = (0, 0, 0);
    for seed in 0..900 {
        let mut random = Random(seed ^ 0xc10c);
        let mut world = World::new(seed);
        for _ in 0..40 {
            world.run(Op::any(&mut random));
        }
        world.run(Op::EndAll);
        let is_idle: Vec<_> = (0..KEYS).map(|key| is_idle(&world, key)).collect();
        let (file, at_save) = (world.save(), world.look());
        let now = world.clock.now();
        let longest = [2_000, 1_500_000, 40_000_000][random.index(3)];
        let step = random.below(longest);
        let stepped = if random.below(2) == 0 {
            forward += 1;
            now.as_micros() + step
        } else {
            back += 1;
            now.as_micros() - step
        };
        world.clock.set(Timestamp::from_micros(stepped));
        let expected = world.look();
        world.restart(&file);
        let found = world.look();
        for key in 0..expected.len() {
            // A block that has ended is not in the file either.
            let has_ended = |look: &[String]| !look[key].contains("block: Some(");
            let is_absent = is_idle[key] || has_ended(&at_save) && !has_ended(&expected);
            assert!(found[key] == expected[key] || is_absent, "seed {seed}: {} {}", found[key], expected[key]);
            compared += u64::from(!is_absent);
        }
    }
    println!("{forward} steps forward, {back} steps back, {compared} keys compared");
    assert!(forward > 400 && back > 400 && compared > 500);
}

/// Whether some limit of the key is idle: then it is not in the file, and is decided at the time of the save.
fn is_idle(world: &World, key: u64) -> bool {
    let options = AcquireOptions::default().detail(tower_ratelimit::Detail::All);
    let decision = tower_ratelimit::Limiter::peek(&world.limiter, &key, options);
    let decision = decision.try_ready().expect("ready").expect("a decision");
    decision.limits().iter().any(|limit| limit.reset().is_zero())
}

/// A key that was idle at the save gets no more after a step back than a key that was never seen.
#[test]
fn snapshot_decides_absent_keys_at_the_time_of_the_save_after_a_step_back() {
    let quota = Quota::per_minute(2);
    let clock = ManualClock::new();
    let before = memory::<u64, _>(Gcra::new(quota), &clock);
    assert!(before.check(&1, 2).is_allowed());
    clock.advance(Duration::from_secs(61));
    let mut file = Vec::new();
    before.save(&mut file).expect("saved");

    // To a time at which the key was not idle.
    clock.set(Timestamp::from_micros(clock.now().as_micros() - 30_000_000));
    let after =
        Memory::<u64, _>::builder(Gcra::new(quota)).clock(clock.clone()).restore(&*file).build().expect("restored");
    for key in [1, 2] {
        assert!(after.check(&key, 2).is_allowed(), "it was idle");
        // As if charged at the time of the save: 30 s for a token, and 30 s until the clock is there again.
        assert_eq!(after.check(&key, 1).retry_after(), Some(Duration::from_secs(60)));
    }
}

/// A clock that has stepped back by more than the period locks no key.
#[test]
fn snapshot_from_a_clock_that_was_far_ahead_locks_no_key() {
    let clock = ManualClock::new();
    let limit = || FixedWindow::new(Quota::per_minute(2));
    let before = memory::<u64, _>(limit(), &clock);
    assert!(before.check(&1, 2).is_allowed());
    let _ = before.block("default", &1, Duration::from_secs(60)).try_ready();
    let mut file = Vec::new();
    before.save(&mut file).expect("saved");
    clock.set(Timestamp::from_micros(clock.now().as_micros() - 3_600_000_000));
    let after = Memory::<u64, _>::builder(limit()).clock(clock.clone()).restore(&*file).build().expect("restored");
    for key in [1, 2] {
        assert!(after.check(&key, 2).is_allowed());
    }
}
