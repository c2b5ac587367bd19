//! Buckets agree with the exact model, field by field, on every schedule. The three bucket types decide alike.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::{
    AcquireOptions, Clock, Decision, Gcra, LeakyBucket, Limiter, ManualClock, Memory, Timestamp, TokenBucket,
};
use tower_ratelimit::{Quota, Verdict};

use crate::cases;
use crate::harness::{Pair, Subject, ready};
use crate::model::{Combined, MAX_PERIOD, Spec};
use crate::schedule::{Op, bucket, resolve, schedule, start, tiers};
use crate::span::ticks;

proptest! {
    #![proptest_config(cases(120))]

    #[test]
    fn bucket_agrees_with_the_model(tiers in tiers(bucket()), start in start(), steps in schedule(60)) {
        Pair::new(&[tiers], start).compare_all(steps)?;
    }

    #[test]
    fn bucket_agrees_between_a_very_slow_and_a_very_fast_quota(start in start(), steps in schedule(12)) {
        let slow = Spec::Bucket { quota: Quota::new(1, Duration::from_micros(18_445_166_109)), burst: 7 };
        let fast = Spec::Bucket { quota: Quota::per_second(1_000_000_000), burst: 1_000_000_000 };
        Pair::new(&[vec![slow, fast]], start).compare_all(steps)?;
    }

    #[test]
    fn bucket_types_decide_identically(spec in bucket(), start in start(), steps in schedule(60)) {
        let Spec::Bucket { quota, burst } = spec else { panic!("{spec:?} is not a bucket") };
        let clock = ManualClock::at(Timestamp::from_micros(start));
        let named = (
            Memory::builder(TokenBucket::new(quota).burst(burst)).clock(clock.clone()).max_keys(1).build(),
            Memory::builder(LeakyBucket::new(quota).burst(burst)).clock(clock.clone()).max_keys(1).build(),
            Memory::builder(Gcra::new(quota).burst(burst)).clock(clock.clone()).max_keys(1).build(),
        );
        let (Ok(token), Ok(leaky), Ok(gcra)) = named else { panic!("valid settings") };
        let mut model = Combined::new([spec]);
        for step in steps {
            let now = clock.now().as_micros();
            match resolve(step, &model, now) {
                Op::Clock { now } => clock.set(Timestamp::from_micros(now)),
                Op::Acquire(options) => {
                    model.acquire(now, options);
                    let decisions: [Decision; 3] =
                        [token.check("key", options), leaky.check("key", options), gcra.check("key", options)];
                    prop_assert_eq!(&decisions[0], &decisions[1]);
                    prop_assert_eq!(&decisions[0], &decisions[2]);
                }
                Op::Reset => {
                    model.reset();
                    ready(token.reset("key"));
                    ready(leaky.reset("key"));
                    ready(gcra.reset("key"));
                }
                _ => {}
            }
        }
    }
}

/// No state counts for longer than 200 years, however slow the new quota is.
#[test]
fn reset_is_at_most_200_years_after_a_change_of_quota() {
    let fast = Spec::Bucket { quota: Quota::per_second(1_000_000), burst: 1_000_000 };
    let slow = Spec::Bucket { quota: Quota::per_day(1), burst: 1 };
    let mut subject = Subject::new(&[vec![fast, slow]], 0);
    let _ = subject.acquire(AcquireOptions::cost(1_000_000));
    subject.apply(Op::Tier(1));
    assert!(subject.peek(AcquireOptions::default()).reset() <= Some(ticks(MAX_PERIOD)));
}

/// The debt is above 2^64, in parts of a tick.
#[test]
fn remaining_is_exact_when_the_debt_exceeds_64_bits() {
    let quota = Quota::new(9_973, Duration::from_micros(900_000_000_001));
    let burst = 69_000_000;
    let mut subject = Subject::new(&[vec![Spec::Bucket { quota, burst }]], 0);
    assert_eq!(subject.acquire(AcquireOptions::cost(burst - 5)).remaining(), Some(5));
    assert_eq!(subject.acquire(AcquireOptions::cost(5)).remaining(), Some(0));
    subject.set_clock(900_000_000_001);
    assert_eq!(subject.peek(AcquireOptions::cost(9_973)).verdict(), Verdict::Allowed);
    assert_eq!(subject.peek(AcquireOptions::default()).remaining(), Some(9_973));
}
