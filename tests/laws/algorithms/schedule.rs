//! Random schedules. A step is relative to the state of the key ("one tick before it may retry"), so that a few steps
//! reach the boundaries. [`resolve`] turns a step into numbers.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tower_ratelimit::{AcquireOptions, Detail, Gcra, LimitSnapshot, ManualClock, Quota, SlidingWindow, Verdict};

use crate::harness::{DAY, WEEK};
use crate::model::{Combined, MAX_PERIOD, Spec};
use crate::span::{micros, ticks};

/// One operation on the limiter, in absolute numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// Sets the clock.
    Clock {
        now: u64,
    },
    /// Selects the tier that each limit uses from now on.
    Tier(usize),
    Acquire(AcquireOptions),
    Hold(AcquireOptions),
    /// Settles one of the holds.
    Settle {
        which: usize,
        actual: u64,
    },
    /// Settles one of the holds at `cost` more than it held.
    Surcharge {
        which: usize,
        cost: u64,
    },
    /// Drops the guard of one of the holds.
    Drop {
        which: usize,
    },
    Reset,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Wait(Gap),
    Back(Gap),
    Acquire { cost: Cost, max_delay: MaxDelay, all_limits: bool },
    Hold { cost: Cost, max_delay: MaxDelay, all_limits: bool },
    Settle { which: usize, actual: Cost },
    Release { which: usize },
    Surcharge { which: usize, cost: u64 },
    Drop { which: usize },
    Reset,
    Tier(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Gap {
    Ticks(u64),
    /// A number of 256ths of the time to full.
    Share(u64),
    /// Until an event, plus an offset in ticks.
    Until(Event, i64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Retry(Cost),
    Reset,
    MoreAfter,
    /// Backwards, to the newest time in the state.
    Newest,
    /// Backwards, to the earliest time at which the state still counts.
    Oldest,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    Exactly(u64),
    /// A number of 256ths of the capacity.
    Share(u64),
    Remaining(i64),
    Capacity(i64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum MaxDelay {
    None,
    /// The exact wait, plus an offset in ticks.
    Enough(i64),
    Share(u64),
    Unlimited,
}

/// Converts a step into an operation, given the state of `model`.
pub(crate) fn resolve(step: Step, model: &Combined, now: u64) -> Op {
    match step {
        Step::Wait(gap) => Op::Clock { now: now + gap_of(gap, model, now) },
        Step::Back(gap) => Op::Clock { now: now.saturating_sub(gap_of(gap, model, now)) },
        Step::Acquire { cost, max_delay, all_limits } => {
            Op::Acquire(options_of(cost, max_delay, all_limits, model, now))
        }
        Step::Hold { cost, max_delay, all_limits } => {
            Op::Hold(options_of(cost, max_delay, all_limits, model, now).hold())
        }
        Step::Settle { which, actual } => Op::Settle { which, actual: cost_of(actual, model, now) },
        Step::Release { which } => Op::Settle { which, actual: 0 },
        Step::Surcharge { which, cost } => Op::Surcharge { which, cost },
        Step::Drop { which } => Op::Drop { which },
        Step::Reset => Op::Reset,
        Step::Tier(tier) => Op::Tier(tier),
    }
}

fn options_of(cost: Cost, max_delay: MaxDelay, all_limits: bool, model: &Combined, now: u64) -> AcquireOptions {
    AcquireOptions::cost(cost_of(cost, model, now))
        .max_delay(max_delay_of(max_delay, cost, model, now))
        .detail(if all_limits { Detail::All } else { Detail::MostRestrictive })
}

fn gap_of(gap: Gap, model: &Combined, now: u64) -> u64 {
    match gap {
        Gap::Ticks(ticks) => ticks,
        Gap::Share(share) => share_of(share, time_to_full(model)),
        Gap::Until(event, off) => {
            let longest = |span: fn(&LimitSnapshot) -> Duration| {
                let spans = model.with_held(now).into_iter().map(|limit| span(&limit.snapshot(now)));
                micros(spans.max().unwrap_or_default())
            };
            let newest = || model.limits.iter().map(|limit| limit.newest()).max().unwrap_or(0);
            let span = match event {
                Event::Retry(cost) => match model.peek(now, AcquireOptions::cost(cost_of(cost, model, now))).verdict {
                    Verdict::Denied { retry_after } => micros(retry_after),
                    _ => 0,
                },
                Event::Reset => longest(|snapshot| snapshot.reset),
                Event::MoreAfter => longest(|snapshot| snapshot.next_token_after),
                Event::Newest => now.saturating_sub(newest()),
                Event::Oldest => (now + time_to_full(model)).saturating_sub(newest()),
            };
            span.saturating_add_signed(off)
        }
    }
}

fn cost_of(cost: Cost, model: &Combined, now: u64) -> u64 {
    let limits = model.with_held(now);
    let snapshots = || limits.iter().map(|limit| limit.snapshot(now));
    let capacity = || snapshots().map(|snapshot| snapshot.limit).min().unwrap_or(0);
    match cost {
        Cost::Exactly(cost) => cost,
        Cost::Share(share) => share_of(share, capacity()),
        Cost::Capacity(off) => capacity().saturating_add_signed(off),
        Cost::Remaining(off) => {
            let remaining = snapshots().map(|snapshot| snapshot.remaining).min().unwrap_or(0);
            remaining.saturating_add_signed(off)
        }
    }
}

fn max_delay_of(max_delay: MaxDelay, cost: Cost, model: &Combined, now: u64) -> Option<Duration> {
    Some(match max_delay {
        MaxDelay::None => return None,
        MaxDelay::Enough(off) => ticks(gap_of(Gap::Until(Event::Retry(cost), off), model, now)),
        MaxDelay::Share(share) => ticks(share_of(share, time_to_full(model))),
        MaxDelay::Unlimited => Duration::MAX,
    })
}

fn time_to_full(model: &Combined) -> u64 {
    model.limits.iter().map(|limit| limit.time_to_full()).max().unwrap_or(0)
}

fn share_of(share: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(whole) * u128::from(share) / 256).expect("at most a few times 2^53")
}

/// Generates up to `length` steps: of every kind, without changes of a quota, or also without steps of the clock back.
pub(crate) fn schedule(length: usize) -> BoxedStrategy<Vec<Step>> {
    let (plain, every) = (plain_step().boxed(), step().boxed());
    let one_tier = prop_oneof![8 => plain.clone(), 1 => back()].boxed();
    prop_oneof![vec(plain, 1..length), vec(one_tier, 1..length), vec(every, 1..length)].boxed()
}

/// Generates up to `length` steps that neither move the clock back nor change a quota.
pub(crate) fn plain_schedule(length: usize) -> BoxedStrategy<Vec<Step>> {
    vec(plain_step(), 1..length).boxed()
}

/// Generates up to `length` steps in which quotas change often.
pub(crate) fn charging_schedule(length: usize) -> BoxedStrategy<Vec<Step>> {
    let step = prop_oneof![
        8 => gap().prop_map(Step::Wait),
        10 => acquire(),
        4 => hold_or_end(),
        3 => (0usize..3).prop_map(Step::Tier),
        1 => back(),
    ];
    vec(prop_oneof![40 => step, 1 => Just(Step::Reset)], 1..length).boxed()
}

/// Generates up to `length` steps that only acquire and wait.
pub(crate) fn attack(length: usize) -> BoxedStrategy<Vec<Step>> {
    vec(prop_oneof![1 => gap().prop_map(Step::Wait), 3 => acquire()], 1..length).boxed()
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        14 => plain_step(),
        1 => back(),
        1 => (0usize..3).prop_map(Step::Tier),
    ]
}

fn plain_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => gap().prop_map(Step::Wait),
        10 => acquire(),
        5 => hold_or_end(),
        1 => Just(Step::Reset),
    ]
}

fn hold_or_end() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (cost(), max_delay(), any::<bool>())
            .prop_map(|(cost, max_delay, all_limits)| Step::Hold { cost, max_delay, all_limits }),
        2 => (any::<usize>(), cost()).prop_map(|(which, actual)| Step::Settle { which, actual }),
        1 => (any::<usize>(), 1u64..6).prop_map(|(which, cost)| Step::Surcharge { which, cost }),
        2 => any::<usize>().prop_map(|which| Step::Release { which }),
        1 => any::<usize>().prop_map(|which| Step::Drop { which }),
    ]
}

fn acquire() -> impl Strategy<Value = Step> {
    (cost(), max_delay(), any::<bool>()).prop_map(|(cost, max_delay, all_limits)| Step::Acquire {
        cost,
        max_delay,
        all_limits,
    })
}

fn back() -> impl Strategy<Value = Step> {
    let event = select(vec![Event::Newest, Event::Oldest]);
    prop_oneof![gap(), (event, -1i64..=1).prop_map(|(event, off)| Gap::Until(event, off))].prop_map(Step::Back)
}

fn gap() -> impl Strategy<Value = Gap> {
    let event = prop_oneof![
        2 => cost().prop_map(Event::Retry),
        1 => Just(Event::Reset),
        2 => Just(Event::MoreAfter),
    ];
    prop_oneof![
        2 => (0u64..4).prop_map(Gap::Ticks),
        3 => (0u64..256).prop_map(Gap::Share),
        1 => (0u64..600).prop_map(Gap::Share),
        6 => (event, -1i64..=1).prop_map(|(event, off)| Gap::Until(event, off)),
    ]
}

fn cost() -> impl Strategy<Value = Cost> {
    prop_oneof![
        1 => Just(Cost::Exactly(0)),
        6 => Just(Cost::Exactly(1)),
        2 => (2u64..6).prop_map(Cost::Exactly),
        2 => (0u64..=256).prop_map(Cost::Share),
        4 => (-1i64..=1).prop_map(Cost::Remaining),
        2 => (-1i64..=1).prop_map(Cost::Capacity),
        1 => select(vec![u64::MAX, 1 << 53, 1 << 40]).prop_map(Cost::Exactly),
    ]
}

fn max_delay() -> impl Strategy<Value = MaxDelay> {
    prop_oneof![
        6 => Just(MaxDelay::None),
        2 => (-1i64..=1).prop_map(MaxDelay::Enough),
        2 => (0u64..512).prop_map(MaxDelay::Share),
        1 => Just(MaxDelay::Unlimited),
    ]
}

/// The year 2052: a debt of 200 years ends before the largest timestamp of a table.
const LATE: u64 = 2_600_000_000_000_000;

/// Generates the start of the clock: the epoch, today or the far future.
pub(crate) fn start() -> impl Strategy<Value = u64> {
    let today = ManualClock::START.as_micros();
    prop_oneof![select(vec![0, 1, today, LATE]), (0u64..100_000_000_000).prop_map(move |off| today + off)]
}

/// Generates any valid bucket: quotas from below one a day to thousands a microsecond, bursts of up to a million.
pub(crate) fn bucket() -> impl Strategy<Value = Spec> {
    let burst = prop_oneof![
        1 => Just(None),
        1 => (1u64..=3).prop_map(Some),
        1 => log_uniform(1_000_000).prop_map(Some),
    ];
    (quota(), burst).prop_filter_map("the quota is too fine, or the burst takes too long to fill", |(quota, burst)| {
        let burst = burst.unwrap_or(quota.limit());
        let _ = Gcra::try_new(quota).and_then(|gcra| gcra.try_burst(burst)).ok()?;
        Some(Spec::Bucket { quota, burst })
    })
}

/// Generates a fixed window, aligned to the clock or not.
pub(crate) fn window() -> impl Strategy<Value = Spec> {
    let quota = prop_oneof![4 => quota(), 1 => calendar_quota()];
    (quota, any::<bool>()).prop_map(|(quota, aligned)| Spec::FixedWindow { quota, aligned })
}

/// Generates quotas of days and weeks, whose aligned windows are a calendar's.
pub(crate) fn calendar_quota() -> impl Strategy<Value = Quota> {
    (1u64..25, select(vec![DAY, WEEK])).prop_map(|(limit, period)| Quota::new(limit, period))
}

/// Generates fixed windows with similar periods, so that the windows of several tiers overlap.
pub(crate) fn overlapping_windows() -> impl Strategy<Value = Vec<Spec>> {
    let similar = (1u64..12, 5u64..40).prop_map(|(limit, period)| Quota::new(limit, ticks(period)));
    let windows = |quota: BoxedStrategy<Quota>| {
        tiers((quota, any::<bool>()).prop_map(|(quota, aligned)| Spec::FixedWindow { quota, aligned }))
    };
    prop_oneof![3 => windows(similar.boxed()), 1 => windows(calendar_quota().boxed())]
}

/// Generates a sliding window, often with few and short blocks.
pub(crate) fn blocks() -> impl Strategy<Value = Spec> {
    let period = select(vec![12, 60, 90, 1_200, 60_000_000, 86_400_000_000]);
    let small = (1u64..12, period).prop_map(|(limit, period)| Quota::new(limit, ticks(period)));
    let number = prop_oneof![4 => select(vec![1, 2, 3, 4, 6, 10, 12, 30]), 1 => 1u64..=60];
    (prop_oneof![4 => small, 1 => quota()], number, any::<bool>()).prop_filter_map(
        "blocks are not whole microseconds, or weighted blocks are too long",
        |(quota, blocks, weighted)| {
            let window = SlidingWindow::new(quota).try_blocks(blocks).ok()?;
            let is_valid = !weighted || window.try_weighted().is_ok();
            is_valid.then_some(Spec::SlidingWindow { quota, blocks, weighted })
        },
    )
}

/// Generates a sliding log, often with a short period.
pub(crate) fn log() -> impl Strategy<Value = Spec> {
    let small = (1u64..12, log_uniform(2_000)).prop_map(|(limit, period)| Quota::new(limit, ticks(period)));
    let any = quota().prop_filter("too many hits", |quota| quota.limit() <= 10_000);
    prop_oneof![4 => small, 1 => any].prop_map(|quota| Spec::SlidingLog { quota })
}

pub(crate) fn quota() -> impl Strategy<Value = Quota> {
    let second = Duration::from_secs(1);
    let selected = vec![
        Quota::per_day(1),
        Quota::per_second(3),
        Quota::per_minute(7),
        Quota::new(1_000, 7 * second),
        Quota::per_second(1_000_000),
        Quota::per_second(1_000_000_000),
        Quota::new(1, ticks(MAX_PERIOD)),
        Quota::new(999_983, 86_399 * second),
        Quota::new(3, ticks(7)),
        Quota::new(7, ticks(3)),
    ];
    let whole = |unit: u64| {
        (log_uniform(1_000_000), 1u64..1_000).prop_map(move |(limit, count)| Quota::new(limit, ticks(count * unit)))
    };
    let any =
        (log_uniform(1_000_000), log_uniform(MAX_PERIOD)).prop_map(|(limit, period)| Quota::new(limit, ticks(period)));
    prop_oneof![2 => select(selected), 1 => whole(1), 1 => whole(1_000_000), 2 => any]
}

/// Generates numbers from 1 to `max`, uniform over the orders of magnitude.
pub(crate) fn log_uniform(max: u64) -> impl Strategy<Value = u64> {
    (0..=max.ilog2(), any::<u64>()).prop_map(move |(bits, digits)| {
        let top = 1 << bits;
        (top | digits & (top - 1)).min(max)
    })
}

/// Generates buckets and fixed windows, each with one to three tiers.
pub(crate) fn limits(count: std::ops::RangeInclusive<usize>) -> BoxedStrategy<Vec<Vec<Spec>>> {
    vec(prop_oneof![tiers(bucket()), tiers(window())], count).boxed()
}

/// Generates one to three tiers of one limit.
pub(crate) fn tiers(spec: impl Strategy<Value = Spec> + 'static) -> BoxedStrategy<Vec<Spec>> {
    vec(spec.boxed(), 1..=3).boxed()
}
