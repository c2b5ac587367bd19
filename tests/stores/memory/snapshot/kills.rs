//! Processes that end in order, and processes that are killed at any time.

use std::time::Duration;

use tower_ratelimit::{AcquireOptions, Clock as _, ManualClock, Memory};

use super::world::{KEYS, Op, World, limits};
use crate::random::Random;

/// The law: after an orderly end, each decision is that of a limiter that was never restarted.
#[test]
fn snapshot_at_an_orderly_end_changes_no_decision() {
    let (mut restarts, mut decisions) = (0, 0);
    for seed in 0..150 {
        let mut random = Random(seed);
        let (mut uninterrupted, mut restarted) = (World::new(seed), World::new(seed));
        for step in 0..150 {
            let op = if random.below(25) == 0 { Op::EndAll } else { Op::any(&mut random) };
            let expected = uninterrupted.run(op);
            assert_eq!(restarted.run(op), expected, "seed {seed}, step {step}: {op:?}");
            decisions += u64::from(!expected.is_empty());
            if matches!(op, Op::EndAll) {
                let (file, down) = (restarted.save(), random.below(300_000));
                uninterrupted.run(Op::Advance(down));
                restarted.run(Op::Advance(down));
                restarted.restart(&file);
                restarts += 1;
                assert_eq!(restarted.look(), uninterrupted.look(), "seed {seed}, step {step}");
            }
        }
    }
    println!("{restarts} restarts, {decisions} equal decisions");
    assert!(restarts > 600 && decisions > 6_000);
}

/// The law: after a kill, each decision is that of a limiter that has never seen the operations since the last save, and
/// settled at the save what was held then.
#[test]
fn snapshot_of_a_killed_process_loses_exactly_what_was_charged_since_the_save() {
    let (mut kills, mut lost, mut held) = (0, 0, 0);
    for seed in 0..150 {
        let mut random = Random(seed ^ 0xdead);
        let mut killed = World::new(seed);
        let (mut history, mut since, mut file) = (Vec::new(), Vec::new(), killed.save());
        for step in 0..150 {
            match random.below(20) {
                0 => {
                    file = killed.save();
                    held += killed.open.len();
                    history.append(&mut since);
                }
                1 => {
                    let now = killed.clock.now();
                    // The guards of the killed process settle nothing that counts.
                    killed.run(Op::Advance(random.below(500_000)));
                    let down = killed.clock.now().saturating_since(now);
                    killed.restart(&file);
                    lost += since.iter().filter(|op| matches!(op, Op::Acquire { .. } | Op::Hold { .. })).count();
                    let passed: u64 =
                        since.iter().map(|op| if let Op::Advance(micros) = op { *micros } else { 0 }).sum();
                    since.clear();
                    history.push(Op::EndAll);
                    history.push(Op::Advance(passed + u64::try_from(down.as_micros()).expect("a short time")));
                    kills += 1;
                    let mut never_charged = World::new(seed);
                    for op in &history {
                        never_charged.run(*op);
                    }
                    assert_eq!(killed.look(), never_charged.look(), "seed {seed}, step {step}");
                    // The next kill may come before a save.
                    file = killed.save();
                }
                _ => {
                    let op = Op::any(&mut random);
                    killed.run(op);
                    since.push(op);
                }
            }
        }
    }
    println!("{kills} kills, {lost} operations lost, {held} holds settled by saves");
    assert!(kills > 600 && lost > 3_000 && held > 300);
}

/// The law in counts: no key is admitted more than in an uninterrupted run plus what was charged since the last saves.
#[test]
fn snapshot_admits_no_more_than_an_uninterrupted_run_and_what_was_lost() {
    let (mut kills, mut admitted_more) = (0, 0);
    for seed in 0..140 {
        let mut random = Random(seed ^ 0xbeef);
        // Not the queue, whose starts are later than its admissions, and not several limits.
        let kind = [0, 1, 3, 5, 7][usize::try_from(seed % 5).expect("an index")];
        let clock = ManualClock::new();
        let build = |file: Option<&[u8]>| {
            let builder = Memory::builder(limits(kind, 0)).max_keys(100).clock(clock.clone());
            if let Some(file) = file { builder.restore(file) } else { builder }.build().expect("limits")
        };
        let (uninterrupted, mut killed) = (build(None), build(None));
        let mut file = Vec::new();
        killed.save(&mut file).expect("saved");
        let mut counts = [[0_u64; 3]; 6];
        let mut since = [0; 6];
        for _ in 0..400 {
            let key = random.below(KEYS);
            let at = usize::try_from(key).expect("an index");
            match random.below(30) {
                0 => {
                    file.clear();
                    killed.save(&mut file).expect("saved");
                    since = [0; 6];
                }
                1 => {
                    killed = build(Some(&file));
                    for (counts, lost) in counts.iter_mut().zip(&mut since) {
                        counts[2] += std::mem::take(lost);
                    }
                    kills += 1;
                }
                2..=9 => clock.advance(Duration::from_micros(random.below(300_000))),
                _ => {
                    let options = AcquireOptions::default();
                    counts[at][0] += u64::from(uninterrupted.check(&key, options).is_allowed());
                    let is_allowed = killed.check(&key, options).is_allowed();
                    counts[at][1] += u64::from(is_allowed);
                    since[at] += u64::from(is_allowed);
                }
            }
        }
        for [uninterrupted, killed, lost] in counts {
            assert!(killed <= uninterrupted + lost, "seed {seed}: {killed} > {uninterrupted} + {lost}");
            admitted_more += u64::from(killed > uninterrupted);
        }
    }
    println!("{kills} kills; {admitted_more} of 840 keys were admitted more often than without kills");
    assert!(kills > 1_000 && admitted_more > 60);
}
