//! The times in a decision are exact: what they announce comes to pass at that microsecond, and not one earlier, from
//! any state that can be reached.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tower_ratelimit::{AcquireOptions, LimitStatus, Quota, Timestamp, Verdict};

use crate::cases;
use crate::model::Spec;
use crate::schedule::{
    Op, Step, bucket, log_uniform, one_tier_schedule, plain_schedule, schedule, start, tiers, window,
};
use crate::span::{micros, ticks};
use crate::subject::{Pair, Subject};

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn of_a_bucket(
        spec in bucket(),
        start in start(),
        steps in one_tier_schedule(30),
        asks in asks(),
    ) {
        all_keep_their_word(&[vec![spec]], start, steps, &asks)?;
    }

    #[test]
    fn of_a_fixed_window(
        spec in window(),
        start in start(),
        steps in one_tier_schedule(30),
        asks in asks(),
    ) {
        all_keep_their_word(&[vec![spec]], start, steps, &asks)?;
    }

    #[test]
    fn of_several_limits(
        specs in vec(prop_oneof![bucket(), window()], 2..=3),
        start in start(),
        steps in plain_schedule(30),
        asks in asks(),
    ) {
        let limits: Vec<_> = specs.into_iter().map(|spec| vec![spec]).collect();
        all_keep_their_word(&limits, start, steps, &asks)?;
    }

    #[test]
    fn of_a_bucket_whose_quota_changed(
        tiers in tiers(bucket()),
        start in start(),
        steps in schedule(30),
        asks in asks(),
    ) {
        all_keep_their_word(&[tiers], start, steps, &asks)?;
    }

    #[test]
    fn of_a_fixed_window_whose_quota_changed(
        tiers in tiers(window()),
        start in start(),
        steps in schedule(30),
        asks in asks(),
    ) {
        all_keep_their_word(&[tiers], start, steps, &asks)?;
    }
}

/// Costs and what is waited for them, both in all orders of magnitude.
fn asks() -> impl Strategy<Value = Vec<AcquireOptions>> {
    let cost = prop_oneof![2 => Just(1), 1 => Just(0), 3 => log_uniform(1 << 20)];
    let patience = prop_oneof![Just(None), log_uniform(1 << 50).prop_map(Some), Just(Some(u64::MAX))];
    let ask = (cost, patience).prop_map(|(cost, patience)| match patience {
        None => AcquireOptions::cost(cost),
        Some(patience) => AcquireOptions::cost(cost).max_delay(ticks(patience)),
    });
    vec(ask, 6)
}

fn all_keep_their_word(
    limits: &[Vec<Spec>],
    start: u64,
    steps: Vec<Step>,
    asks: &[AcquireOptions],
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
    for &ask in asks {
        keeps_its_word(&pair.subject, ask)?;
    }
    figures_keep_their_word(&pair.subject)
}

/// Whether the clock still runs when all that is owed has been paid.
fn ends_in_time(subject: &Subject) -> bool {
    let decision = subject.peek(AcquireOptions::default().all_limits());
    let longest = decision.limits().iter().map(LimitStatus::reset).max().unwrap_or_default();
    Timestamp::from_micros(subject.now()).saturating_add(longest + ticks(1 << 41)) < Timestamp::MAX
}

fn keeps_its_word(subject: &Subject, ask: AcquireOptions) -> Result<(), TestCaseError> {
    let now = subject.now();
    let allowed_at = |time: u64, ask: AcquireOptions| subject.peek_at(time, ask).is_allowed();
    match subject.peek(ask).verdict() {
        Verdict::Denied { retry_after } => {
            let retry_at = now + micros(retry_after);
            prop_assert!(retry_at > now, "{ask:?} at {now} may be repeated at once");
            prop_assert!(allowed_at(retry_at, ask), "{ask:?} at {now}: refused at {retry_at} too");
            prop_assert!(!allowed_at(retry_at - 1, ask), "{ask:?} at {now}: allowed before {retry_at}");
            for later in [1, 1_000, 1 << 40] {
                prop_assert!(allowed_at(retry_at + later, ask), "{ask:?} at {now}: refused {later} after {retry_at}");
            }
        }
        Verdict::AllowedAfter(delay) => {
            let turn = now + micros(delay);
            let at_once = AcquireOptions::cost(ask.cost);
            prop_assert!(ask.max_delay.is_some_and(|patience| delay <= patience), "{delay:?} for {ask:?}");
            prop_assert!(allowed_at(turn, at_once), "{ask:?} at {now}: can't be had at its turn, {turn}");
            prop_assert!(!allowed_at(turn - 1, at_once), "{ask:?} at {now}: could be had before its turn, {turn}");
        }
        Verdict::ExceedsLimit => prop_assert!(!allowed_at(now + (1 << 60), ask), "{ask:?} at {now} was not for ever"),
        Verdict::Allowed => {}
    }
    Ok(())
}

fn figures_keep_their_word(subject: &Subject) -> Result<(), TestCaseError> {
    let now = subject.now();
    let ask = AcquireOptions::default().all_limits();
    for (index, standing) in subject.peek(ask).limits().iter().enumerate() {
        let figures = standing.snapshot();
        let then = |time: u64| subject.peek_at(time, ask).limits()[index].snapshot();
        let (reset, next_token_after) = (micros(figures.reset), micros(figures.next_token_after));
        prop_assert_eq!(reset == 0, figures.remaining == figures.limit, "{:?}", figures);
        prop_assert_eq!(next_token_after == 0, figures.remaining == figures.limit, "{:?}", figures);
        if reset > 0 {
            prop_assert_eq!(then(now + reset).remaining, figures.limit, "after the reset of {:?}", figures);
            prop_assert_eq!(micros(then(now + reset - 1).reset), 1, "just before the reset of {:?}", figures);
            prop_assert!(then(now + next_token_after).remaining > figures.remaining, "no more after {figures:?}");
            prop_assert_eq!(then(now + next_token_after - 1).remaining, figures.remaining, "more before {:?}", figures);
        }
    }
    Ok(())
}

/// A customer upgrades while refused: who is told to come back in a second is not sent away for the rest of the day.
#[test]
fn of_an_exhausted_bucket_whose_quota_is_raised() {
    let a_day = Spec::Bucket { quota: Quota::per_day(1), burst: 1 };
    let a_second = Spec::Bucket { quota: Quota::per_second(1), burst: 1 };
    let mut subject = Subject::new(&[vec![a_day, a_second]], 0);
    subject.acquire(AcquireOptions::default());
    subject.apply(Op::Tier(1));
    if let Some(wait) = subject.acquire(AcquireOptions::default()).retry_after() {
        subject.set_clock(micros(wait));
        assert_eq!(subject.acquire(AcquireOptions::default()).verdict(), Verdict::Allowed, "asked after {wait:?}");
    }
}
