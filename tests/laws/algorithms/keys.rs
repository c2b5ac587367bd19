//! Keys are independent: each agrees with a model of its own, as long as the table has capacity for all. After the
//! clock stepped back, a new key may be decided at the time of an evicted state; the decision and a peek then still
//! agree.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tower_ratelimit::{
    AcquireOptions, Clock, Decision, Gcra, LimitSnapshot, Limiter, ManualClock, Memory, Quota, Timestamp,
};

use crate::cases;
use crate::harness::{gcra, ready};
use crate::model::Combined;
use crate::schedule::{Op, attack, bucket, plain_schedule, resolve, start};

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn each_key_agrees_with_a_model_of_its_own(
        spec in bucket(),
        keys in 1usize..40,
        start in start(),
        steps in plain_schedule(200),
        order in vec(any::<usize>(), 200),
    ) {
        let clock = ManualClock::at(Timestamp::from_micros(start));
        let limiter = Memory::builder(gcra(spec)).max_keys(keys).clock(clock.clone()).build().expect("valid settings");
        let mut models: Vec<Combined> = (0..keys).map(|_| Combined::new([spec])).collect();
        for (step, key) in steps.into_iter().zip(order) {
            let key = key % keys;
            let now = clock.now().as_micros();
            match resolve(step, &models[key], now) {
                Op::Clock { now } => clock.set(Timestamp::from_micros(now).min(Timestamp::MAX)),
                Op::Acquire(options) => {
                    let expected = models[key].acquire(now, options);
                    let decision = limiter.check(&key, options);
                    prop_assert_eq!(decision.verdict(), expected.verdict);
                    prop_assert_eq!(snapshot(&decision), expected.statuses[0].snapshot);
                }
                Op::Reset => {
                    models[key].reset();
                    ready(limiter.reset(&key));
                }
                _ => {}
            }
        }
        let now = clock.now().as_micros();
        for (key, model) in models.iter().enumerate() {
            let expected = model.peek(now, AcquireOptions::default());
            let decision = ready(limiter.peek(&key, AcquireOptions::default()));
            prop_assert_eq!(snapshot(&decision), expected.statuses[0].snapshot);
        }
    }

    #[test]
    fn decision_and_the_next_peek_have_one_snapshot(
        spec in bucket(),
        start in start(),
        steps in attack(200),
        back in vec(prop::option::weighted(0.1, 0u64..5_000_000), 200),
    ) {
        let clock = ManualClock::at(Timestamp::from_micros(start));
        let limiter = Memory::builder(gcra(spec)).max_keys(20).clock(clock.clone()).build().expect("valid settings");
        let model = Combined::new([spec]);
        for (key, (step, back)) in steps.into_iter().zip(back).enumerate() {
            if let Some(back) = back {
                clock.set(Timestamp::from_micros(clock.now().as_micros().saturating_sub(back)));
            }
            match resolve(step, &model, clock.now().as_micros()) {
                Op::Clock { now } => clock.set(Timestamp::from_micros(now).min(Timestamp::MAX)),
                Op::Acquire(options) => assert_decision_equals_peek(&limiter, key % 50, options)?,
                _ => {}
            }
        }
    }
}

fn assert_decision_equals_peek(
    limiter: &Memory<usize, Gcra>,
    key: usize,
    options: AcquireOptions,
) -> Result<(), TestCaseError> {
    let decision = limiter.check(&key, options);
    let peeked = ready(limiter.peek(&key, options));
    prop_assert_eq!(snapshot(&decision), snapshot(&peeked));
    Ok(())
}

/// A new key is decided at the time of an evicted state, because the clock stepped back after the eviction.
#[test]
fn decision_for_a_new_key_equals_a_peek_after_the_clock_stepped_back() {
    let clock = ManualClock::at(Timestamp::EPOCH);
    let limiter = Memory::builder(Gcra::new(Quota::per_second(1)))
        .max_keys(20)
        .clock(clock.clone())
        .build()
        .expect("valid settings");
    let charge = |keys: std::ops::Range<u32>| {
        keys.map(|key| {
            let decision = limiter.check(&key, AcquireOptions::default());
            (snapshot(&decision), snapshot(&ready(limiter.peek(&key, AcquireOptions::default()))))
        })
    };
    assert!(charge(0..20).all(|(decided, peeked)| decided == peeked));
    clock.set(Timestamp::from_micros(2_000_000));
    assert!(charge(20..40).all(|(decided, peeked)| decided == peeked));
    clock.set(Timestamp::from_micros(500_000));
    for (decided, peeked) in charge(40..45) {
        assert_eq!(decided, peeked);
    }
}

fn snapshot(decision: &Decision) -> LimitSnapshot {
    decision.most_restrictive().expect("a limit was consulted").snapshot()
}
