//! The bucket answers as the exact model does, field by field, on every schedule; and its three names answer alike.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::{
    AcquireOptions, Clock, Decision, Gcra, LeakyBucket, ManualClock, Memory, Timestamp, TokenBucket,
};
use tower_ratelimit::{Quota, Verdict};

use crate::cases;
use crate::model::{Combined, LONGEST, Spec};
use crate::schedule::{Op, bucket, one_tier_schedule, plain_schedule, resolve, schedule, start, tiers};
use crate::span::ticks;
use crate::subject::{Pair, Subject, ready};

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn agrees_with_the_model(spec in bucket(), start in start(), steps in plain_schedule(60)) {
        let mut pair = Pair::new(&[vec![spec]], start);
        for step in steps {
            pair.agree_on(step)?;
        }
    }

    #[test]
    fn agrees_when_the_clock_steps_back(spec in bucket(), start in start(), steps in one_tier_schedule(60)) {
        let mut pair = Pair::new(&[vec![spec]], start);
        for step in steps {
            pair.agree_on(step)?;
        }
    }

    #[test]
    fn agrees_when_its_quota_changes(tiers in tiers(bucket()), start in start(), steps in schedule(60)) {
        let mut pair = Pair::new(&[tiers], start);
        for step in steps {
            pair.agree_on(step)?;
        }
    }

    #[test]
    fn agrees_between_a_very_slow_and_a_very_fast_quota(start in start(), steps in schedule(12)) {
        let slow = Spec::Bucket { quota: Quota::new(1, Duration::from_micros(18_445_166_109)), burst: 7 };
        let fast = Spec::Bucket { quota: Quota::per_second(1_000_000_000), burst: 1_000_000_000 };
        let mut pair = Pair::new(&[vec![slow, fast]], start);
        for step in steps {
            pair.agree_on(step)?;
        }
    }

    #[test]
    fn the_three_names_decide_identically(spec in bucket(), start in start(), steps in one_tier_schedule(60)) {
        let Spec::Bucket { quota, burst } = spec else { panic!("{spec:?} is not a bucket") };
        let clock = ManualClock::at(Timestamp::from_micros(start));
        let named = (
            Memory::builder(TokenBucket::new(quota).burst(burst)).clock(clock.clone()).max_keys(1).build(),
            Memory::builder(LeakyBucket::new(quota).burst(burst)).clock(clock.clone()).max_keys(1).build(),
            Memory::builder(Gcra::new(quota).burst(burst)).clock(clock.clone()).max_keys(1).build(),
        );
        let (Ok(token), Ok(leaky), Ok(gcra)) = named else { panic!("legal settings") };
        let mut model = Combined::new([spec]);
        for step in steps {
            let now = clock.now().as_micros();
            match resolve(step, &model, now) {
                Op::Clock { now } => clock.set(Timestamp::from_micros(now)),
                Op::Acquisition(ask) => {
                    model.acquire(now, ask);
                    let decisions: [Decision; 3] =
                        [token.check("key", ask), leaky.check("key", ask), gcra.check("key", ask)];
                    prop_assert_eq!(&decisions[0], &decisions[1]);
                    prop_assert_eq!(&decisions[0], &decisions[2]);
                }
                Op::Reset => {
                    model.forget();
                    ready(token.reset("key"));
                    ready(leaky.reset("key"));
                    ready(gcra.reset("key"));
                }
                _ => {}
            }
        }
    }
}

/// Released, then the clock steps back by more than the bucket remembers: the next charge still counts.
#[test]
fn a_charge_counts_after_the_clock_stepped_back_from_an_empty_bucket() {
    let mut subject = Subject::new(&[vec![Spec::Bucket { quota: Quota::per_second(1), burst: 1 }]], 10_000_000);
    subject.apply(Op::Hold(AcquireOptions::default()));
    subject.apply(Op::Settle { which: 0, actual: 0 });
    subject.set_clock(8_000_000);
    assert_eq!(subject.acquire(AcquireOptions::default()).remaining(), Some(0));
    assert_eq!(subject.acquire(AcquireOptions::default()).retry_after(), Some(Duration::from_secs(1)));
}

/// However slow the new quota is, nothing is remembered for longer than 200 years.
#[test]
fn a_debt_that_a_change_of_quota_makes_endless_ends_after_200_years() {
    let fast = Spec::Bucket { quota: Quota::per_second(1_000_000), burst: 1_000_000 };
    let slow = Spec::Bucket { quota: Quota::per_day(1), burst: 1 };
    let mut subject = Subject::new(&[vec![fast, slow]], 0);
    subject.acquire(AcquireOptions::cost(1_000_000));
    subject.apply(Op::Tier(1));
    assert!(subject.peek(AcquireOptions::default()).reset() <= Some(ticks(LONGEST)));
}

/// What costs nothing can be settled for what it did cost in the end, in the first microsecond there is as well.
#[test]
fn a_free_request_is_settled_for_more() {
    for start in [0, 1] {
        let mut subject = Subject::new(&[vec![Spec::Bucket { quota: Quota::per_second(1), burst: 3 }]], start);
        assert_eq!(subject.acquire(AcquireOptions::cost(0).hold()).verdict(), Verdict::Allowed);
        subject.apply(Op::Settle { which: 0, actual: 2 });
        assert_eq!(subject.peek(AcquireOptions::default()).remaining(), Some(1), "started at {start}");
    }
}

/// The debt in units of a token's share of a tick is over 2^64.
#[test]
fn remaining_is_exact_of_a_debt_beyond_64_bits() {
    let quota = Quota::new(9_973, Duration::from_micros(900_000_000_001));
    let burst = 69_000_000;
    let mut subject = Subject::new(&[vec![Spec::Bucket { quota, burst }]], 0);
    assert_eq!(subject.acquire(AcquireOptions::cost(burst - 5)).remaining(), Some(5));
    assert_eq!(subject.acquire(AcquireOptions::cost(5)).remaining(), Some(0));
    subject.set_clock(900_000_000_001);
    assert_eq!(subject.peek(AcquireOptions::cost(9_973)).verdict(), Verdict::Allowed);
    assert_eq!(subject.peek(AcquireOptions::default()).remaining(), Some(9_973));
}
