//! Saves while other threads decide.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tower_ratelimit::{DynLimit, FixedWindow, ManualClock, Memory, Quota};

use super::world::Counts;
use crate::random::Random;

/// The law: of each key, the file contains all charges from before the save, and no charge from after it. New keys move
/// others to their second sets meanwhile.
#[test]
fn snapshot_beside_decisions_contains_each_earlier_charge() {
    const KEYS: usize = 900;
    const THREADS: u64 = 3;
    let clock = ManualClock::new();
    let build = |file: Option<&[u8]>| -> Counts {
        let limits = vec![DynLimit::new(FixedWindow::new(Quota::per_hour(1 << 40)))];
        let builder = Memory::builder(limits).max_keys(KEYS).clock(clock.clone());
        if let Some(file) = file { builder.restore(file) } else { builder }.build().expect("a limit")
    };
    let (mut compared, mut charged_meanwhile) = (0_u64, 0_u64);
    for round in 0..3 {
        let limiter = build(None);
        let [started, finished] = [(); 2].map(|()| (0..KEYS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (limiter, ends, started, finished) = (&limiter, &ends, &started, &finished);
                scope.spawn(move || {
                    let mut random = Random(round * THREADS + thread);
                    let mut reach = 1;
                    while !ends.load(Ordering::Acquire) {
                        reach = KEYS.min(reach + 1);
                        let key = random.index(reach);
                        started[key].fetch_add(1, Ordering::AcqRel);
                        let allowed = limiter.check(&(key as u64), 1).is_allowed();
                        assert!(allowed);
                        finished[key].fetch_add(1, Ordering::AcqRel);
                    }
                });
            }
            for _ in 0..15 {
                let before: Vec<_> = finished.iter().map(|count| count.load(Ordering::Acquire)).collect();
                let mut file = Vec::new();
                limiter.save(&mut file).expect("saved");
                let after: Vec<_> = started.iter().map(|count| count.load(Ordering::Acquire)).collect();
                let restored = build(Some(&file));
                for (key, (before, after)) in before.into_iter().zip(after).enumerate() {
                    let used = (1 << 40) - restored.check(&(key as u64), 0).remaining().expect("a limit");
                    assert!((before..=after).contains(&used), "round {round}, key {key}: {before} {used} {after}");
                    compared += 1;
                    charged_meanwhile += u64::from(after > before);
                }
            }
            ends.store(true, Ordering::Release);
        });
    }
    println!("{compared} keys compared, {charged_meanwhile} of them charged during the save");
    assert!(charged_meanwhile > 150);
}
