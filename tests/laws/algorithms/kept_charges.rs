//! The theorem of holds: the final charges of requests, placed at the requests' starts, conform to the bound of the
//! algorithm in every time window. Surcharges are not counted.
//!
//! The model is the theorem: a list of starts and final charges, and the bound. It contains no states, holds or
//! decisions. Limiters with deliberate mistakes show that the check can fail.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Held, Outcome};
use tower_ratelimit::{
    AcquireOptions, Clock, DynLimit, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limit, Limiter, ManualClock, Memory,
    Quota, SlidingLog, SlidingWindow, Timestamp, TokenBucket, WhenFull,
};

use crate::broken_holds::{BrokenHolds, Mistake};
use crate::cases;
use crate::harness::{aligned, ready};
use crate::schedule::calendar_quota;
use crate::span::{micros, ticks};

/// A user, and the group of that user.
type Caller = [u64; 2];

fn user(caller: &Caller) -> u64 {
    caller[0]
}

fn group(caller: &Caller) -> u64 {
    caller[1]
}

/// The bound that a limit guarantees for a sub-key.
#[derive(Clone, Copy)]
struct Rule {
    sub_key: fn(&Caller) -> u64,
    quota: Quota,
    bound: Bound,
}

#[derive(Clone, Copy, Debug)]
enum Bound {
    /// At most `burst + rate * (b - a)` in every `[a, b]`.
    Bucket { burst: u64 },
    /// As a bucket whose burst is the largest cost: a request starts when all before it have drained.
    Queue,
    /// At most this much in any half-open window of one period.
    InAnyPeriod(u64),
}

#[derive(Clone, Copy, Debug)]
enum Move {
    /// Acquires a cost of a number of 256ths of the limit, at least one.
    Acquire {
        caller: usize,
        share: u64,
        may_wait: bool,
    },
    Hold {
        caller: usize,
        share: u64,
    },
    /// Settles at a number of 256ths of the held cost.
    Settle {
        which: usize,
        share: u64,
    },
    /// Settles at `more` than the held cost.
    Surcharge {
        which: usize,
        more: u64,
    },
    Release {
        which: usize,
    },
    Drop {
        which: usize,
    },
    /// Waits for a number of 256ths of the period.
    Wait(u64),
    UntilRetry {
        caller: usize,
        share: u64,
        off: i64,
    },
    /// Acquires with a number of keys that were never seen.
    NewKeys(u64),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let (caller, which) = (0..CALLERS.len(), any::<usize>());
    let share = || prop_oneof![3 => Just(0), 3 => 0u64..=256, 1 => Just(256)];
    let next = prop_oneof![
        6 => (caller.clone(), share(), any::<bool>())
            .prop_map(|(caller, share, may_wait)| Move::Acquire { caller, share, may_wait }),
        8 => (caller.clone(), share()).prop_map(|(caller, share)| Move::Hold { caller, share }),
        3 => (which, 0u64..=256).prop_map(|(which, share)| Move::Settle { which, share }),
        1 => (which, 1u64..6).prop_map(|(which, more)| Move::Surcharge { which, more }),
        1 => which.prop_map(|which| Move::Release { which }),
        2 => which.prop_map(|which| Move::Drop { which }),
        4 => (0u64..300).prop_map(Move::Wait),
        2 => (caller, share(), -1i64..=1).prop_map(|(caller, share, off)| Move::UntilRetry { caller, share, off }),
        2 => (1u64..9).prop_map(Move::NewKeys),
    ];
    vec(next, 1..70)
}

const CALLERS: [Caller; 3] = [[1, 1], [2, 1], [3, 2]];

/// An admitted request and its final charge.
struct Request {
    caller: Caller,
    start: u64,
    kept: u64,
}

/// A hold that is not settled, and its request.
struct Pending {
    request: usize,
    guard: Held,
}

/// Applies the moves, and checks the theorem for every rule.
fn conforms<L: Limiter<Caller>>(
    limiter: &L,
    clock: &ManualClock,
    rules: &[Rule],
    moves: &[Move],
) -> Result<(), TestCaseError> {
    let mut run = Run { limiter, clock, requests: Vec::new(), pending: Vec::new(), new_keys: 1_000 };
    let limit = rules.iter().map(|rule| rule.quota.limit()).min().expect("a rule");
    let period = micros(rules[0].quota.period());
    for &next in moves {
        run.take(next, limit, period);
    }
    // A dropped guard charges the held cost, which `kept` is already.
    run.pending.clear();
    rules.iter().try_for_each(|rule| assert_bounded(rule, &run.requests))
}

struct Run<'a, L> {
    limiter: &'a L,
    clock: &'a ManualClock,
    requests: Vec<Request>,
    pending: Vec<Pending>,
    new_keys: u64,
}

impl<L: Limiter<Caller>> Run<'_, L> {
    fn take(&mut self, next: Move, limit: u64, period: u64) {
        let cost = |share: u64| (limit * share / 256).max(1);
        match next {
            Move::Acquire { caller, share, may_wait } => {
                let options = AcquireOptions::cost(cost(share));
                self.acquire(CALLERS[caller], if may_wait { options.max_delay(ticks(period)) } else { options });
            }
            Move::Hold { caller, share } => self.acquire(CALLERS[caller], AcquireOptions::cost(cost(share)).hold()),
            Move::Settle { which, share } => {
                self.end(which, |held| (held.cost() * share / 256, |held, kept| ready(held.settle(kept))));
            }
            Move::Surcharge { which, more } => {
                if let Some(Pending { guard, .. }) = self.pick(which) {
                    let actual = guard.cost() + more;
                    ready(guard.settle(actual));
                }
            }
            Move::Release { which } => self.end(which, |_| (0, |held, _| ready(held.release()))),
            Move::Drop { which } => self.end(which, |held| (held.cost(), |held, _| drop(held))),
            Move::Wait(share) => self.clock.advance(ticks(period * share / 256)),
            Move::UntilRetry { caller, share, off } => {
                let decision = ready(self.limiter.peek(&CALLERS[caller], AcquireOptions::cost(cost(share))));
                let wait = decision.retry_after().map_or(0, micros).saturating_add_signed(off);
                self.clock.advance(ticks(wait.min(3 * period)));
            }
            Move::NewKeys(count) => {
                for _ in 0..count {
                    self.new_keys += 1;
                    let new_key = [self.new_keys; 2];
                    self.acquire(new_key, AcquireOptions::default());
                }
            }
        }
    }

    fn acquire(&mut self, caller: Caller, options: AcquireOptions) {
        let now = self.clock.now().as_micros();
        let Outcome { decision, held, .. } = ready(self.limiter.acquire(&caller, options));
        assert_eq!(held.is_some(), decision.is_allowed() && options.hold);
        if decision.is_allowed() {
            let request = self.requests.len();
            self.requests.push(Request { caller, start: now + micros(decision.delay()), kept: options.cost });
            self.pending.extend(held.map(|guard| Pending { request, guard }));
        }
    }

    fn pick(&mut self, which: usize) -> Option<Pending> {
        which.checked_rem(self.pending.len()).map(|which| self.pending.swap_remove(which))
    }

    /// Ends a hold, and records its final charge.
    fn end(&mut self, which: usize, how: impl FnOnce(&Held) -> (u64, fn(Held, u64))) {
        if let Some(Pending { request, guard }) = self.pick(which) {
            let (kept, end) = how(&guard);
            self.requests[request].kept = kept;
            end(guard, kept);
        }
    }
}

fn assert_bounded(rule: &Rule, requests: &[Request]) -> Result<(), TestCaseError> {
    let mut by_sub_key: HashMap<u64, Vec<(u64, u64)>> = HashMap::new();
    for request in requests {
        by_sub_key.entry((rule.sub_key)(&request.caller)).or_default().push((request.start, request.kept));
    }
    let (limit, period) = (u128::from(rule.quota.limit()), u128::from(micros(rule.quota.period())));
    for (sub_key, mut kept) in by_sub_key {
        kept.sort_unstable();
        let largest = kept.iter().map(|request| request.1).max().unwrap_or(0);
        for (first, &(from, _)) in kept.iter().enumerate() {
            let mut sum = 0;
            for &(until, cost) in &kept[first..] {
                sum += cost;
                let span = u128::from(until - from);
                let bucket = |burst: u64| {
                    // A delay is rounded up to whole microseconds.
                    let over = u128::from(sum.saturating_sub(burst));
                    over == 0 || over * period < limit * (span + 1)
                };
                let is_within = match rule.bound {
                    Bound::Bucket { burst } => bucket(burst),
                    Bound::Queue => bucket(largest),
                    Bound::InAnyPeriod(max) => span >= period || sum <= max,
                };
                prop_assert!(
                    is_within,
                    "{sum} from {from} to {until} of sub-key {sub_key}, {:?}: {kept:?}",
                    rule.bound
                );
            }
        }
    }
    Ok(())
}

/// Maps all keys to the same two sets of six slots in all: any further key needs the slot of another.
#[derive(Clone, Copy, Default)]
struct TwoSetsHasher(u64);

impl BuildHasher for TwoSetsHasher {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl Hasher for TwoSetsHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("sub-keys are numbers");
    }

    fn write_u64(&mut self, sub_key: u64) {
        self.0 = sub_key;
    }
}

const START: u64 = 1_700_000_000_123_456;

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_micros(START))
}

/// More keys than the moves use. A table is built for each case, and building one of the default size takes longer than
/// all moves.
const MAX_KEYS: usize = 1_000;

/// Checks one limit by user: with capacity for all keys, and in a full table under the two policies that keep the
/// bound.
fn check_one_limit<A: Algorithm + Copy>(
    algorithm: A,
    quota: Quota,
    bound: Bound,
    moves: &[Move],
) -> Result<(), TestCaseError> {
    let rules = [Rule { sub_key: user, quota, bound }];
    let limit = || Limit::new("user", algorithm).keyed_by(user);
    let time = clock();
    let limiter = Memory::builder(limit()).max_keys(MAX_KEYS).clock(time.clone()).build().expect("a valid limit");
    conforms(&limiter, &time, &rules, moves)?;
    for when_full in [WhenFull::CarryOver, WhenFull::Deny] {
        let time = clock();
        let builder = Memory::builder(limit()).max_keys(1).when_full(when_full);
        let limiter = builder.clock(time.clone()).hasher(TwoSetsHasher::default()).build().expect("a valid limit");
        conforms(&limiter, &time, &rules, moves)?;
    }
    Ok(())
}

/// Generates small limits, with periods that are multiples of one another or unrelated.
fn quota() -> impl Strategy<Value = Quota> {
    let period = prop_oneof![Just(12), Just(60), Just(1_200), Just(60_000_000), 1u64..100_000];
    let any = (1u64..20, period).prop_map(|(limit, period)| Quota::new(limit, ticks(period)));
    prop_oneof![4 => any, 1 => calendar_quota()]
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn kept_charges_of_buckets_conform(quota in quota(), burst in 1u64..20, moves in moves()) {
        let bound = Bound::Bucket { burst };
        check_one_limit(Gcra::new(quota).burst(burst), quota, bound, &moves)?;
        check_one_limit(TokenBucket::new(quota).burst(burst), quota, bound, &moves)?;
        check_one_limit(LeakyBucket::new(quota).burst(burst), quota, bound, &moves)?;
        check_one_limit(LeakyQueue::new(quota).max_waiting(burst - 1), quota, Bound::Queue, &moves)?;
        let strict = Gcra::new(quota).strict();
        check_one_limit(strict, quota, Bound::Bucket { burst: strict.max_burst() }, &moves)?;
        check_one_limit(strict, quota, Bound::InAnyPeriod(quota.limit()), &moves)?;
    }

    #[test]
    fn kept_charges_of_windows_and_logs_conform(quota in quota(), blocks in 1u64..=12, moves in moves()) {
        let limit = quota.limit();
        check_one_limit(FixedWindow::new(quota), quota, Bound::InAnyPeriod(2 * limit - 1), &moves)?;
        check_one_limit(aligned(quota), quota, Bound::InAnyPeriod(2 * limit), &moves)?;
        check_one_limit(SlidingLog::new(quota), quota, Bound::InAnyPeriod(limit), &moves)?;
        if let Ok(strict) = SlidingWindow::new(quota).try_blocks(blocks) {
            check_one_limit(strict, quota, Bound::InAnyPeriod(limit), &moves)?;
            check_one_limit(strict.weighted(), quota, Bound::InAnyPeriod(2 * limit - 1), &moves)?;
        }
    }

    /// Each limit keeps its bound although the others deny: as a tuple and as a list, and in full tables.
    #[test]
    fn kept_charges_conform_several_limits(first in quota(), second in quota(), third in quota(), moves in moves()) {
        let bounds = [Bound::Bucket { burst: first.limit() }, Bound::InAnyPeriod(2 * second.limit() - 1)];
        let rules = [
            Rule { sub_key: user, quota: first, bound: bounds[0] },
            Rule { sub_key: group, quota: second, bound: bounds[1] },
            Rule { sub_key: |_| 0, quota: third, bound: Bound::InAnyPeriod(third.limit()) },
        ];
        for when_full in [None, Some(WhenFull::CarryOver), Some(WhenFull::Deny)] {
            let limits = || (
                Limit::new("user", Gcra::new(first)).keyed_by(user),
                Limit::new("group", FixedWindow::new(second)).keyed_by(group),
                Limit::new("all", SlidingLog::new(third)).keyed_by(|_: &Caller| 0_u64),
            );
            let time = clock();
            let builder = Memory::builder(limits()).max_keys(MAX_KEYS).clock(time.clone());
            if let Some(when_full) = when_full {
                let builder = builder.max_keys(1).when_full(when_full).hasher(TwoSetsHasher::default());
                conforms(&builder.build().expect("valid limits"), &time, &rules, &moves)?;
                continue;
            }
            conforms(&builder.build().expect("valid limits"), &time, &rules, &moves)?;
            let time = clock();
            let (a, b, c) = limits();
            let list: Vec<DynLimit<Caller>> = vec![DynLimit::new(a), DynLimit::new(b), DynLimit::new(c)];
            let limiter = Memory::builder(list).max_keys(MAX_KEYS).clock(time.clone()).build().expect("valid limits");
            conforms(&limiter, &time, &rules, &moves)?;
        }
    }

    #[test]
    fn kept_charges_conform_several_buckets(first in quota(), second in quota(), moves in moves()) {
        let rules = [
            Rule { sub_key: group, quota: first, bound: Bound::Bucket { burst: first.limit() } },
            Rule { sub_key: user, quota: second, bound: Bound::Bucket { burst: second.limit() } },
        ];
        let time = clock();
        let limits = (
            Limit::new("group", LeakyBucket::new(first)).keyed_by(group),
            Limit::new("user", TokenBucket::new(second)).keyed_by(user),
        );
        let limiter = Memory::builder(limits).max_keys(MAX_KEYS).clock(time.clone()).build().expect("valid limits");
        conforms(&limiter, &time, &rules, &moves)?;
    }
}

/// One token a millisecond.
const QUOTA: Quota = Quota::new(10, Duration::from_millis(10));

/// Checks the theorem for a limiter with a mistake, with the same cases in every run. `PROPTEST_CASES` does not reduce
/// them, because rare mistakes need all of them.
fn check_with_mistake(mistake: Mistake) -> Result<(), TestError<Vec<Move>>> {
    let config = Config { cases: 300, ..cases(300) };
    let mut runner = TestRunner::new_with_rng(config, TestRunner::deterministic().new_rng());
    runner.run(&moves(), |moves| {
        let clock = clock();
        let limiter = BrokenHolds::new(clock.clone(), Gcra::new(QUOTA), mistake);
        let rule = Rule { sub_key: user, quota: QUOTA, bound: Bound::Bucket { burst: 10 } };
        conforms(&limiter, &clock, &[rule], &moves)
    })
}

#[test]
fn kept_charges_of_limiters_with_mistakes_do_not_conform() {
    check_with_mistake(Mistake::None).expect("the limiter conforms");
    for mistake in [
        Mistake::RefundsTheRest,
        Mistake::DecidesByTheStateAlone,
        Mistake::ReleasesTooMuch,
        Mistake::DropsTheCharge,
        Mistake::EvictsHeldKeys,
    ] {
        let found = check_with_mistake(mistake).expect_err("the check misses a mistake");
        println!("{mistake:?}: {found}");
    }
}
