//! Keys don't notice one another: each agrees with a model of its own, as long as there is room for all. Only after the
//! clock stepped back, a newcomer may be decided at the time of another key's former state; it is told the truth then.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tower_ratelimit::{
    AcquireOptions, Clock, Decision, Gcra, LimitSnapshot, Limiter, ManualClock, Memory, Quota, Timestamp,
};

use crate::cases;
use crate::model::Combined;
use crate::schedule::{Op, attack, bucket, plain_schedule, resolve, start};
use crate::subject::{gcra, ready};

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn each_key_agrees_with_a_model_of_its_own(
        spec in bucket(),
        keys in 1usize..40,
        start in start(),
        steps in plain_schedule(200),
        order in vec(any::<usize>(), 200),
    ) {
        let clock = ManualClock::at(Timestamp::from_micros(start));
        let limiter = Memory::builder(gcra(spec)).max_keys(keys).clock(clock.clone()).build().expect("legal settings");
        let mut models: Vec<Combined> = (0..keys).map(|_| Combined::new([spec])).collect();
        for (step, key) in steps.into_iter().zip(order) {
            let key = key % keys;
            let now = clock.now().as_micros();
            match resolve(step, &models[key], now) {
                Op::Clock { now } => clock.set(Timestamp::from_micros(now).min(Timestamp::MAX)),
                Op::Acquisition(ask) => {
                    let expected = models[key].acquire(now, ask);
                    let decision = limiter.check(&key, ask);
                    prop_assert_eq!(decision.verdict(), expected.verdict);
                    prop_assert_eq!(figures(&decision), expected.standings[0].figures);
                }
                Op::Reset => {
                    models[key].forget();
                    ready(limiter.reset(&key));
                }
                _ => {}
            }
        }
        let now = clock.now().as_micros();
        for (key, model) in models.iter().enumerate() {
            let expected = model.peek(now, AcquireOptions::default());
            let decision = ready(limiter.peek(&key, AcquireOptions::default()));
            prop_assert_eq!(figures(&decision), expected.standings[0].figures);
        }
    }

    #[test]
    fn what_is_decided_is_what_a_peek_then_shows(
        spec in bucket(),
        start in start(),
        steps in attack(200),
        back in vec(prop::option::weighted(0.1, 0u64..5_000_000), 200),
    ) {
        let clock = ManualClock::at(Timestamp::from_micros(start));
        let limiter = Memory::builder(gcra(spec)).max_keys(20).clock(clock.clone()).build().expect("legal settings");
        let model = Combined::new([spec]);
        for (key, (step, back)) in steps.into_iter().zip(back).enumerate() {
            if let Some(back) = back {
                clock.set(Timestamp::from_micros(clock.now().as_micros().saturating_sub(back)));
            }
            match resolve(step, &model, clock.now().as_micros()) {
                Op::Clock { now } => clock.set(Timestamp::from_micros(now).min(Timestamp::MAX)),
                Op::Acquisition(ask) => shows_what_it_decided(&limiter, key % 50, ask)?,
                _ => {}
            }
        }
    }
}

fn shows_what_it_decided(
    limiter: &Memory<Gcra, ManualClock>,
    key: usize,
    ask: AcquireOptions,
) -> Result<(), TestCaseError> {
    let decision = limiter.check(&key, ask);
    let peeked = ready(limiter.peek(&key, ask));
    prop_assert_eq!(figures(&decision), figures(&peeked));
    Ok(())
}

/// A newcomer that is decided at the time of a state that was dropped, as the clock stepped back since.
#[test]
fn a_newcomer_after_the_clock_stepped_back() {
    let clock = ManualClock::at(Timestamp::EPOCH);
    let limiter = Memory::builder(Gcra::new(Quota::per_second(1)))
        .max_keys(20)
        .clock(clock.clone())
        .build()
        .expect("legal settings");
    let charge = |keys: std::ops::Range<u32>| {
        keys.map(|key| {
            let decision = limiter.check(&key, AcquireOptions::default());
            (figures(&decision), figures(&ready(limiter.peek(&key, AcquireOptions::default()))))
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

fn figures(decision: &Decision) -> LimitSnapshot {
    decision.most_restrictive().expect("a limit was consulted").snapshot()
}
