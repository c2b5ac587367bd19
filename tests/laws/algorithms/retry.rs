//! The times in a decision are exact to the microsecond, from any reachable state: a request is allowed at the
//! announced time, and not a microsecond earlier.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tower_ratelimit::{AcquireOptions, Detail, LimitStatus, Quota, Timestamp, Verdict};

use crate::cases;
use crate::harness::{Pair, Subject};
use crate::model::Spec;
use crate::schedule::{Op, Step, limits, log_uniform, schedule, start};
use crate::span::{micros, ticks};

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn retry_after_and_reset_are_exact(
        limits in limits(1..=3),
        start in start(),
        steps in schedule(30),
        requests in requests(),
    ) {
        assert_all_exact(&limits, start, steps, &requests)?;
    }
}

/// Generates costs and maximum delays, both in all orders of magnitude.
fn requests() -> impl Strategy<Value = Vec<AcquireOptions>> {
    let cost = prop_oneof![2 => Just(1), 1 => Just(0), 3 => log_uniform(1 << 20)];
    let max_delay = prop_oneof![Just(None), log_uniform(1 << 50).prop_map(Some), Just(Some(u64::MAX))];
    let options = (cost, max_delay).prop_map(|(cost, max_delay)| match max_delay {
        None => AcquireOptions::cost(cost),
        Some(max_delay) => AcquireOptions::cost(cost).max_delay(ticks(max_delay)),
    });
    vec(options, 6)
}

fn assert_all_exact(
    limits: &[Vec<Spec>],
    start: u64,
    steps: Vec<Step>,
    requests: &[AcquireOptions],
) -> Result<(), TestCaseError> {
    let mut pair = Pair::new(limits, start);
    for step in steps {
        pair.step(step);
    }
    // While a cost is held, the times are estimates.
    pair.subject.end_holds();
    if !ends_in_time(&pair.subject) {
        return Ok(());
    }
    for &options in requests {
        assert_exact(&pair.subject, options)?;
    }
    assert_snapshot_exact(&pair.subject)
}

/// Whether the key is idle before the end of the clock.
pub(crate) fn ends_in_time(subject: &Subject) -> bool {
    let decision = subject.peek(AcquireOptions::default().detail(Detail::All));
    let longest = decision.limits().iter().map(LimitStatus::reset).max().unwrap_or_default();
    Timestamp::from_micros(subject.now()).saturating_add(longest + ticks(1 << 41)) < Timestamp::MAX
}

pub(crate) fn assert_exact(subject: &Subject, options: AcquireOptions) -> Result<(), TestCaseError> {
    let now = subject.now();
    let allowed_at = |time: u64, options: AcquireOptions| subject.peek_at(time, options).is_allowed();
    match subject.peek(options).verdict() {
        Verdict::Denied { retry_after } => {
            let retry_at = now + micros(retry_after);
            prop_assert!(retry_at > now, "{options:?} at {now} the retry is immediate");
            prop_assert!(allowed_at(retry_at, options), "{options:?} at {now}: denied at {retry_at} too");
            prop_assert!(!allowed_at(retry_at - 1, options), "{options:?} at {now}: allowed before {retry_at}");
            prop_assert!(
                !allowed_at(now + micros(retry_after) / 2, options),
                "{options:?} at {now}: allowed long before {retry_at}"
            );
            for later in [1, 100, 10_000, 1 << 40] {
                prop_assert!(
                    allowed_at(retry_at + later, options),
                    "{options:?} at {now}: denied {later} after {retry_at}"
                );
            }
        }
        Verdict::AllowedAfter(delay) => {
            let start = now + micros(delay);
            let immediate = AcquireOptions::cost(options.cost).max_delay(ticks(0));
            prop_assert!(options.max_delay.is_none_or(|max_delay| delay <= max_delay), "{delay:?} for {options:?}");
            prop_assert!(allowed_at(start, immediate), "{options:?} at {now}: denied at its start, {start}");
            prop_assert!(!allowed_at(start - 1, immediate), "{options:?} at {now}: allowed before its start, {start}");
        }
        Verdict::ExceedsLimit => prop_assert!(
            !allowed_at(now + (1 << 60), options),
            "{options:?} at {now} does not exceed the limit for ever"
        ),
        Verdict::Allowed => {
            let min = options.cost.min(1);
            prop_assert!(allowed_at(now, AcquireOptions::cost(min)), "{options:?} at {now}: a cost of {min} is denied");
        }
    }
    Ok(())
}

fn assert_snapshot_exact(subject: &Subject) -> Result<(), TestCaseError> {
    let now = subject.now();
    let options = AcquireOptions::default().detail(Detail::All);
    for (index, status) in subject.peek(options).limits().iter().enumerate() {
        let snapshot = status.snapshot();
        let then = |time: u64| subject.peek_at(time, options).limits()[index].snapshot();
        let (reset, next_token_after) = (micros(snapshot.reset), micros(snapshot.next_token_after));
        prop_assert_eq!(reset == 0, snapshot.remaining == snapshot.limit, "{:?}", snapshot);
        prop_assert_eq!(next_token_after == 0, snapshot.remaining == snapshot.limit, "{:?}", snapshot);
        if reset > 0 {
            prop_assert_eq!(then(now + reset).remaining, snapshot.limit, "after the reset of {:?}", snapshot);
            prop_assert_eq!(micros(then(now + reset - 1).reset), 1, "just before the reset of {:?}", snapshot);
            prop_assert!(
                then(now + next_token_after).remaining > snapshot.remaining,
                "not more remains after {snapshot:?}"
            );
            prop_assert_eq!(
                then(now + next_token_after - 1).remaining,
                snapshot.remaining,
                "more remains before {:?}",
                snapshot
            );
        }
    }
    Ok(())
}

/// A customer upgrades while denied: the new `retry_after` holds, not the wait of the old quota.
#[test]
fn retry_after_of_a_bucket_is_sufficient_when_its_quota_was_raised() {
    let a_day = Spec::Bucket { quota: Quota::per_day(1), burst: 1 };
    let a_second = Spec::Bucket { quota: Quota::per_second(1), burst: 1 };
    let mut subject = Subject::new(&[vec![a_day, a_second]], 0);
    let _ = subject.acquire(AcquireOptions::default());
    subject.apply(Op::Tier(1));
    if let Some(wait) = subject.acquire(AcquireOptions::default()).retry_after() {
        subject.set_clock(micros(wait));
        assert_eq!(subject.acquire(AcquireOptions::default()).verdict(), Verdict::Allowed, "after {wait:?}");
    }
}
