//! Shadow limits change nothing that a client sees: a limiter with shadows decides as one without them.

use std::time::Duration;

use tower_ratelimit::limiter::{Held, Outcome};
use tower_ratelimit::{AcquireOptions, BoxLimiter, Detail, Limiter, ManualClock, Verdict};

use crate::immediate::{boxed_limits, ready};
use crate::random::Random;
use crate::several_limits::{Call, Spec, random_call};

/// Runs a random trace on the limits, and on those that are enforced. Returns the number of later starts and of denials.
fn compare(seed: u64) -> [u64; 2] {
    let (mut random, clock, mut counts) = (Random::new(seed), ManualClock::new(), [0; 2]);
    let specs: Vec<_> = (0..4).map(|index| Spec::beside_shadows(&mut random, index < 2)).collect();
    let limiter = |has_shadows: bool| -> BoxLimiter<Call> {
        let limits = specs.iter().enumerate().filter(|(_, spec)| has_shadows || !spec.is_shadow);
        boxed_limits(limits.map(|(index, spec)| spec.limit(index)).collect::<Vec<_>>(), &clock)
    };
    let limiters = [limiter(true), limiter(false)];
    let mut held: Vec<[Option<Held>; 2]> = Vec::new();
    for step in 0..150 {
        clock.advance(Duration::from_micros([0, 0, 1_000, 200_000, 900_000][random.index(5)]));
        let call = random_call(&mut random);
        let max_delay = [None, Some(Duration::ZERO), Some(Duration::from_millis(random.below(5_000)))][step % 3];
        let options = AcquireOptions::cost(random.below(3)).max_delay(max_delay).detail(Detail::All).keep_guard();
        match random.below(20) {
            0 => {
                let duration = Duration::from_millis(random.below(3_000));
                // An error if the limit does not apply to the key.
                for limiter in &limiters {
                    drop(limiter.block("limit 0", &call, duration).try_ready());
                }
            }
            1..=5 if !held.is_empty() => {
                let actual = random.below(3);
                for held in held.swap_remove(random.index(held.len())).into_iter().flatten() {
                    ready(held.settle(actual));
                }
            }
            kind => {
                let options = if kind == 6 { options.hold() } else { options };
                let peeked = limiters.each_ref().map(|limiter| ready(limiter.peek(&call, options)));
                let outcomes = limiters.each_ref().map(|limiter| ready(limiter.acquire(&call, options)));
                let acquired = outcomes.each_ref().map(|outcome| outcome.decision.clone());
                let enforced = specs.iter().enumerate().filter(|(_, spec)| !spec.is_shadow);
                let is_alone = enforced.filter(|(index, spec)| spec.applies(*index, &call)).count() == 1;
                for [with, without] in [peeked, acquired] {
                    if with.is_blocked() && is_alone {
                        // Several limits, also shadows, decide as of the end of the block: the wait can be longer.
                        assert!(!with.is_allowed() && !without.is_allowed());
                        assert_eq!(with.supports_scheduling(), without.supports_scheduling());
                        continue;
                    }
                    let seen = [&with, &without].map(|decision| {
                        let numbers = decision.most_restrictive().map(|limit| (limit.name(), limit.snapshot()));
                        (decision.verdict(), decision.is_estimate(), decision.supports_scheduling(), numbers)
                    });
                    assert_eq!(seen[0], seen[1], "seed {seed}, step {step}, {call:?}, {options:?} on {specs:?}");
                    counts[0] += u64::from(matches!(with.verdict(), Verdict::AllowedAfter(_)));
                    counts[1] += u64::from(!with.is_allowed());
                }
                held.push(outcomes.map(|Outcome { held, .. }| held));
            }
        }
    }
    counts
}

#[test]
fn shadows_change_no_decision() {
    let mut sum = [0; 2];
    for seed in 0..300 {
        let counts = compare(seed);
        sum = std::array::from_fn(|index| sum[index] + counts[index]);
    }
    println!("{sum:?}");
    assert!(sum.iter().all(|count| *count > 1_000), "{sum:?}");
}
