//! The times in a decision are exact and the bound holds for every algorithm while the tier of a key changes at random.
//! The clock only moves forward.
//!
//! There is no model: each test compares a decision with later decisions of the same limiter.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::{
    AcquireOptions, Detail, FixedWindow, Gcra, LeakyBucket, LeakyQueue, LimitSnapshot, Quota, SlidingLog, TokenBucket,
    Verdict,
};

use crate::cases;
use crate::harness::{Subject, aligned, sliding_window};
use crate::model::Spec;
use crate::retry;
use crate::schedule::{Op, blocks, log_uniform, start};
use crate::span::{micros, ticks};

/// Checks the times in decisions of tiers of one algorithm.
macro_rules! exact {
    ($($name:ident: $tiers:expr, |$tier:pat_param| $algorithm:expr;)+) => {
        proptest! {
            #![proptest_config(cases(30))]
            $(#[test]
            fn $name(tiers in $tiers, start in start(), moves in moves()) {
                assert_exact(&tiers.into_iter().map(|$tier| $algorithm).collect::<Vec<_>>(), start, &moves)?;
            })+
        }
    };
}

exact! {
    retry_after_is_exact_with_changing_tiers_gcra: buckets(), |(quota, burst)| Gcra::new(quota).burst(burst);
    retry_after_is_exact_with_changing_tiers_token_bucket:
        buckets(), |(quota, burst)| TokenBucket::new(quota).burst(burst);
    retry_after_is_exact_with_changing_tiers_leaky_bucket:
        buckets(), |(quota, burst)| LeakyBucket::new(quota).burst(burst);
    retry_after_is_exact_with_changing_tiers_leaky_queue:
        buckets(), |(quota, burst)| LeakyQueue::new(quota).max_waiting(burst - 1);
    retry_after_is_exact_with_changing_tiers_fixed_window: vec(fixed_window(), 2..=3), |window| window;
    retry_after_is_exact_with_changing_tiers_sliding_window: vec(ring(), 2..=6), |ring| sliding_window(ring);
    retry_after_is_exact_with_changing_tiers_sliding_log: vec(quota(), 2..=3), |quota| SlidingLog::new(quota);
}

/// Checks the bound of the last tier of one algorithm: the quota, and what its period admits.
macro_rules! bounded {
    ($($name:ident: $tiers:expr, |$tier:pat_param| $algorithm:expr, |$last:pat_param| $bound:expr;)+) => {
        proptest! {
            #![proptest_config(cases(30))]
            $(#[test]
            fn $name(tiers in $tiers, start in start(), moves in moves(), attack in attack()) {
                let bound = tiers.last().map(|&$last| $bound).expect("a tier");
                let tiers: Vec<_> = tiers.into_iter().map(|$tier| $algorithm).collect();
                assert_bounded(&tiers, bound, start, &moves, &attack)?;
            })+
        }
    };
}

bounded! {
    bound_holds_after_the_last_change_of_tier_gcra:
        buckets(), |(quota, burst)| Gcra::new(quota).burst(burst),
        |(quota, burst)| (quota, (burst + quota.limit()).saturating_sub(1));
    bound_holds_after_the_last_change_of_tier_leaky_queue:
        buckets(), |(quota, burst)| LeakyQueue::new(quota).max_waiting(burst - 1),
        |(quota, _)| (quota, quota.limit() + 1);
    bound_holds_after_the_last_change_of_tier_fixed_window: vec(fixed_window(), 2..=3), |window| window, |window| {
        let (quota, is_aligned) = (window.quota(), window != FixedWindow::new(window.quota()));
        (quota, (2 * quota.limit()).saturating_sub(u64::from(!is_aligned)))
    };
    bound_holds_after_the_last_change_of_tier_sliding_window: vec(ring(), 2..=6), |ring| sliding_window(ring), |ring| {
        let Spec::SlidingWindow { quota, weighted, .. } = ring else { panic!("{ring:?}") };
        (quota, if weighted { (2 * quota.limit()).saturating_sub(1) } else { quota.limit() })
    };
    bound_holds_after_the_last_change_of_tier_sliding_log:
        vec(quota(), 2..=3), |quota| SlidingLog::new(quota), |quota| (quota, quota.limit());
}

/// Generates quotas and bursts.
fn buckets() -> impl Strategy<Value = Vec<(Quota, u64)>> {
    vec((quota(), 1u64..20), 2..=3)
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Tier(usize),
    /// A cost of a number of 256ths of the limit, at least one.
    Acquire {
        share: u64,
        may_wait: bool,
    },
    /// A number of 256ths of the quota's period.
    Wait(u64),
    UntilRetry {
        share: u64,
        off: i64,
    },
    UntilMore(i64),
    UntilReset(i64),
    Surcharge {
        cost: u64,
    },
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let share = || prop_oneof![2 => Just(0), 1 => 0u64..=256];
    let next = prop_oneof![
        4 => (0usize..6).prop_map(Move::Tier),
        8 => (share(), any::<bool>()).prop_map(|(share, may_wait)| Move::Acquire { share, may_wait }),
        3 => (0u64..300).prop_map(Move::Wait),
        2 => (share(), -1i64..=1).prop_map(|(share, off)| Move::UntilRetry { share, off }),
        1 => (-1i64..=1).prop_map(Move::UntilMore),
        1 => (-1i64..=1).prop_map(Move::UntilReset),
        1 => (1u64..6).prop_map(|cost| Move::Surcharge { cost }),
    ];
    vec(next, 1..30)
}

/// Generates waits in 256ths of the period; `None` waits until a cost of one is allowed.
fn attack() -> impl Strategy<Value = Vec<Option<u64>>> {
    vec(prop_oneof![2 => Just(None), 1 => (0u64..100).prop_map(Some)], 1..20)
}

/// Generates small limits and zero, with periods that are multiples of one another or unrelated.
fn quota() -> impl Strategy<Value = Quota> {
    let period = prop_oneof![
        select(vec![7, 12, 60, 61, 1_200, 1_000_000, 60_000_000, 86_400_000_000, 604_800_000_000]),
        log_uniform(100_000_000),
    ];
    (0u64..20, period).prop_map(|(limit, period)| Quota::new(limit, ticks(period)))
}

/// Generates any sliding window, and mostly windows of similar times with few or many blocks, of which a state has several.
fn ring() -> impl Strategy<Value = Spec> {
    let similar = (0u64..20, 60u64..240, select(vec![1, 1, 2, 7, 10, 30, 60, 60]), any::<bool>());
    let similar = similar.prop_map(|(limit, period, blocks, weighted)| {
        let width = period / blocks;
        Spec::SlidingWindow { quota: Quota::new(limit, ticks(width * blocks)), blocks, weighted }
    });
    prop_oneof![1 => blocks(), 3 => similar]
}

fn fixed_window() -> impl Strategy<Value = FixedWindow> {
    (quota(), any::<bool>()).prop_map(
        |(quota, is_aligned)| {
            if is_aligned { aligned(quota) } else { FixedWindow::new(quota) }
        },
    )
}

fn assert_exact<A: Algorithm + Copy>(tiers: &[A], start: u64, moves: &[Move]) -> Result<(), TestCaseError> {
    let mut subject = Subject::with_tiers(tiers, start);
    let (mut tier, mut previous) = (0, snapshot(&subject));
    for &step in moves {
        apply(&mut subject, step);
        if let Move::Tier(next) = step {
            tier = next;
        }
        let cost = previous.limit / 2 + 1;
        for tier in 0..tiers.len() {
            subject.apply(Op::Tier(tier));
            if !retry::ends_in_time(&subject) {
                return Ok(());
            }
            for cost in [1, 2, cost, snapshot(&subject).limit, snapshot(&subject).limit + 1] {
                retry::assert_exact(&subject, AcquireOptions::cost(cost))?;
                retry::assert_exact(&subject, AcquireOptions::cost(cost).max_delay(ticks(0)))?;
            }
            assert_snapshot_exact(&subject)?;
        }
        subject.apply(Op::Tier(tier));
        previous = snapshot(&subject);
    }
    Ok(())
}

/// The key equals one that was never seen at `reset` and not earlier; more remains at `next_token_after` and not
/// earlier.
fn assert_snapshot_exact(subject: &Subject) -> Result<(), TestCaseError> {
    let (now, then) = (subject.now(), snapshot(subject));
    let at = |span: u64| subject.peek_at(now + span, AcquireOptions::cost(then.limit).detail(Detail::All));
    let (reset, next_token_after) = (micros(then.reset), micros(then.next_token_after));
    let unused = then.with_remaining(then.limit).with_reset(ticks(0)).with_next_token_after(ticks(0));
    prop_assert_eq!(reset == 0 || then.limit == 0, then.remaining == then.limit, "{:?}", then);
    prop_assert_eq!(at(reset).limits()[0].snapshot(), unused, "after the reset of {:?}", then);
    prop_assert_eq!(at(reset).verdict(), Verdict::Allowed, "after the reset of {:?}", then);
    let more = at(next_token_after).limits()[0].remaining();
    prop_assert!(more > then.remaining || then.remaining == then.limit, "not more remains at {now} than in {then:?}");
    if reset > 0 {
        prop_assert_eq!(micros(at(reset - 1).limits()[0].reset()), 1, "before the reset of {:?} at {}", then, now);
        prop_assert_eq!(
            at(next_token_after - 1).limits()[0].remaining(),
            then.remaining,
            "before {:?} at {}",
            then,
            now
        );
    }
    Ok(())
}

fn snapshot(subject: &Subject) -> LimitSnapshot {
    subject.peek(AcquireOptions::default().detail(Detail::All)).limits()[0].snapshot()
}

/// Random moves under all tiers, then an attack under the last one: no period admits more than the bound.
fn assert_bounded<A: Algorithm + Copy>(
    tiers: &[A],
    (quota, bound): (Quota, u64),
    start: u64,
    moves: &[Move],
    attack: &[Option<u64>],
) -> Result<(), TestCaseError> {
    let mut subject = Subject::with_tiers(tiers, start);
    for &step in moves {
        apply(&mut subject, step);
    }
    subject.apply(Op::Tier(tiers.len() - 1));
    let period = micros(quota.period());
    let mut admitted = Vec::new();
    for wait in attack {
        let mut decision = subject.acquire(AcquireOptions::default());
        while decision.is_allowed() && admitted.len() < 500 {
            admitted.push(subject.now() + micros(decision.delay()));
            decision = subject.acquire(AcquireOptions::default());
        }
        let span = wait.map_or(decision.retry_after().map_or(0, micros), |share| share * period / 256);
        subject.set_clock(subject.now() + span);
    }
    for (first, &from) in admitted.iter().enumerate() {
        let max = admitted[first..].iter().take_while(|&&time| time < from + period).count() as u64;
        prop_assert!(max <= bound, "{max} of {bound} from {from}: {admitted:?}");
    }
    Ok(())
}

fn apply(subject: &mut Subject, step: Move) {
    let then = snapshot(subject);
    let cost = |share: u64| (then.limit * share / 256).max(1);
    let now = subject.now();
    let off = |span: u64, off: i64| now + span.saturating_add_signed(off);
    match step {
        Move::Tier(tier) => drop(subject.apply(Op::Tier(tier))),
        Move::Acquire { share, may_wait } => {
            let options = AcquireOptions::cost(cost(share));
            let _ = subject.acquire(if may_wait { options } else { options.max_delay(ticks(0)) });
        }
        Move::Wait(share) => subject.set_clock(now + then.window.map_or(0, micros) / 256 * share + share % 3),
        Move::UntilRetry { share, off: ticks } => {
            let wait = subject.peek(AcquireOptions::cost(cost(share))).retry_after().map_or(0, micros);
            subject.set_clock(off(wait, ticks));
        }
        Move::UntilMore(ticks) => subject.set_clock(off(micros(then.next_token_after), ticks)),
        Move::UntilReset(ticks) => subject.set_clock(off(micros(then.reset), ticks)),
        Move::Surcharge { cost } => {
            subject.apply(Op::Hold(AcquireOptions::cost(0)));
            subject.apply(Op::Surcharge { which: 0, cost });
        }
    }
}
