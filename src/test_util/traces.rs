//! Random traces of calls, one after another.

use std::time::Duration;

use super::shares::limits_with_share;
use super::{StoreReport, TestKey};
use crate::algorithm::{Algorithm, FixedWindow, Gcra, LeakyBucket, LeakyQueue, SlidingLog, SlidingWindow, TokenBucket};
use crate::calendar::Calendar;
use crate::clock::ManualClock;
use crate::decision::{AcquireOptions, BlockReason, Decision, Detail, LimitStatus};
use crate::error::Error;
use crate::limit::{Limit, per_key};
use crate::limiter::{AdminOperation, Limiter};
use crate::quota::Quota;
use crate::random::Random;
use crate::response::BoxError;
use crate::store::{DynLimit, Memory, StoreLimit, StoreLimits};

/// How many limiters are made for traces, and the calls on each.
pub(super) const TRACES: u64 = 40;
const CALLS: usize = 120;

/// Random limits, and the calls on a limiter with them.
pub(super) struct Trace {
    memory: Memory<TestKey, Vec<DynLimit<TestKey>>>,
    clock: ManualClock,
    seed: u64,
    limits: Vec<MakeLimit>,
    /// The names of the limits that apply to every key.
    names: Vec<String>,
}

/// Makes a limit for both stores, and describes it.
pub(super) type MakeLimit = Box<dyn Fn() -> (DynLimit<TestKey>, StoreLimit<TestKey>, String)>;

/// One call of a trace.
#[derive(Clone, Copy, Debug)]
enum Call<'a> {
    Acquire(TestKey, AcquireOptions),
    Peek(TestKey, AcquireOptions),
    Administer(TestKey, AdminOperation<'a>),
    Wait(Duration),
}

impl Trace {
    pub(super) fn new(seed: u64) -> Result<Self, Error> {
        let (mut random, clock) = (Random::new(seed), ManualClock::new());
        let has_share = seed % 4 == 3;
        let limits: Vec<_> = if has_share {
            limits_with_share(&mut random)
        } else {
            let count = 1 + random.below(4);
            // A start is scheduled only if all limits can schedule: limits of the first five kinds can.
            let kinds = random.choose(&[5, 9]);
            (0..count).map(|index| any_limit(&mut random, index, kinds)).collect()
        };
        let of_memory: Vec<_> = limits.iter().map(|make| make().0).collect();
        let names = of_memory.iter().skip(usize::from(has_share)).map(|limit| limit.name().to_owned()).collect();
        let memory = Memory::builder(of_memory).max_keys(1_000).clock(clock.clone()).build()?;
        Ok(Self { memory, clock, seed, limits, names })
    }

    pub(super) fn store_limits(&self) -> Result<StoreLimits<TestKey>, Error> {
        StoreLimits::new(self.limits.iter().map(|make| make().1).collect::<Vec<_>>())
    }

    pub(super) fn clock(&self) -> ManualClock {
        self.clock.clone()
    }

    pub(super) async fn run<L: Limiter<TestKey>>(&self, limiter: &L, report: &mut StoreReport) -> Result<(), BoxError> {
        let mut random = Random::new(!self.seed);
        let (mut calls, mut last) = (Vec::new(), None);
        for index in 0..CALLS {
            let call = any_call(&mut random, &self.names, index, last.as_ref());
            calls.push(call);
            let (expected, actual) = match call {
                Call::Wait(time) => {
                    self.clock.advance(time);
                    continue;
                }
                Call::Acquire(key, options) => {
                    let decision = acquire(limiter, &key, options).await?;
                    count(&decision, report);
                    (acquire(&self.memory, &key, options).await?, decision)
                }
                Call::Peek(key, options) => match limiter.peek(&key, options).await {
                    Err(error) if error.is_unsupported() => continue,
                    decision => {
                        report.peeks += 1;
                        (self.memory.peek(&key, options).await?, decision?)
                    }
                },
                Call::Administer(key, operation) => match limiter.administer(&key, operation).await {
                    Err(error) if error.is_unsupported() => continue,
                    done => {
                        report.operations += 1;
                        done?;
                        self.memory.administer(&key, operation).await?;
                        continue;
                    }
                },
            };
            if expected != actual {
                return Err(self.violation(&calls, &expected, &actual));
            }
            last = Some(expected);
        }
        Ok(())
    }

    fn violation(&self, calls: &[Call<'_>], expected: &Decision, actual: &Decision) -> BoxError {
        let limits = self.limits.iter().map(|make| make().2).collect::<Vec<_>>().join("\n  ");
        let calls = calls.iter().map(|call| format!("{call:?}")).collect::<Vec<_>>().join("\n  ");
        format!(
            "the store decides otherwise than `Memory`: the limits are\n  {limits}\nand the calls are\n  {calls}\n`Memory` \
             returns {expected:#?}\nand the store returns {actual:#?}\ncorrect what the store reads or writes"
        ).into()
    }
}

pub(super) async fn acquire<L: Limiter<TestKey>>(
    limiter: &L,
    key: &TestKey,
    options: AcquireOptions,
) -> Result<Decision, Error> {
    limiter.acquire(key, options).await.map(|outcome| outcome.decision)
}

pub(super) fn count(decision: &Decision, report: &mut StoreReport) {
    report.allowed += u64::from(decision.is_allowed_now());
    report.delayed += u64::from(decision.is_allowed() && !decision.is_allowed_now());
    report.denied += u64::from(!decision.is_allowed());
    report.borrowed += u64::from(decision.limits().iter().any(LimitStatus::is_borrowing));
}

/// Returns a function that makes a limit for both stores, and describes it: with tiers, a fixed cost, a mark, as a shadow, by
/// a part of the key.
fn limit<A: Algorithm + Copy>(random: &mut Random, index: u64, make: fn(&mut Random) -> A) -> MakeLimit {
    let tiers = [make(random), make(random)];
    let (part, cost, is_shadow) = (random.below(3), random.below(8), random.below(6) == 0);
    let has_mark = random.below(3) == 0;
    let limit = move || {
        let limit = Limit::new(format!("limit {index}"), per_key(move |key: &TestKey| tiers[key.tier]));
        let limit = limit.keyed_by(move |key: &TestKey| match part {
            0 => key.user,
            1 => key.team,
            _ => 0,
        });
        let limit = if cost < 2 { limit.fixed_cost(cost) } else { limit };
        let limit = if has_mark { limit.warn_at(0.6) } else { limit };
        if is_shadow { limit.shadow() } else { limit }
    };
    Box::new(move || {
        let part = ["user", "team", "all keys"][usize::try_from(part).unwrap_or(0)];
        let fixed = if cost < 2 { format!(", fixed cost {cost}") } else { String::new() };
        let shadow = if is_shadow { ", shadow" } else { "" };
        let mark = if has_mark { ", mark 0.6" } else { "" };
        let text = format!("limit {index} by {part}, tiers {tiers:?}{fixed}{shadow}{mark}");
        (DynLimit::new(limit()), StoreLimit::new(limit()), text)
    })
}

fn any_limit(random: &mut Random, index: u64, kinds: u64) -> MakeLimit {
    match random.below(kinds) {
        0 => limit(random, index, |random| Gcra::new(quota(random))),
        1 => limit(random, index, |random| TokenBucket::new(quota(random)).burst(3)),
        2 => limit(random, index, |random| LeakyBucket::new(quota(random))),
        3 | 4 => limit(random, index, |random| LeakyQueue::new(quota(random))),
        5 => limit(random, index, |random| match random.below(3) {
            0 => FixedWindow::calendar(1 + random.below(7), Calendar::monthly_on(15)),
            _ => FixedWindow::new(quota(random)),
        }),
        6 => limit(random, index, |random| SlidingWindow::new(quota(random)).blocks(4)),
        7 => limit(random, index, |random| SlidingWindow::new(quota(random)).blocks(1).weighted()),
        _ => limit(random, index, |random| SlidingLog::new(quota(random))),
    }
}

fn any_call<'a>(random: &mut Random, names: &'a [String], index: usize, last: Option<&Decision>) -> Call<'a> {
    let key = key(random);
    let micros = |micros| Duration::from_micros(micros);
    let mut options = AcquireOptions::cost(random.choose(&[0, 1, 1, 1, 2, 3]));
    options.max_delay = [None, Some(Duration::ZERO), Some(micros(random.below(5_000_000)))][index % 3];
    options.detail = [Detail::MostRestrictive, Detail::AllIfDenied, Detail::All][index / 3 % 3];
    let reason = random.choose(&[BlockReason::Administrator, BlockReason::Escalation]);
    let limit = names[usize::try_from(random.below(names.len() as u64)).unwrap_or(0)].as_str();
    match (random.below(20), last) {
        (0..4, _) => Call::Wait(micros(random.below(2_000_000))),
        (4, _) => Call::Wait(micros(random.below(20_000_000))),
        // To the moment at which the last decision changes, or a microsecond before.
        (8 | 9, Some(last)) => {
            let until = match (random.below(2), last.retry_after(), last.most_restrictive()) {
                (0, Some(retry_after), _) => retry_after,
                (_, _, Some(limit)) => limit.reset(),
                _ => Duration::ZERO,
            };
            Call::Wait(until.saturating_sub(micros(random.below(2))))
        }
        (5 | 6, _) => Call::Peek(key, options),
        (7, _) => Call::Administer(
            key,
            match random.below(4) {
                0 => AdminOperation::SetUsage { limit, used: random.below(9) },
                1 => AdminOperation::Reset,
                2 => AdminOperation::Block { limit, duration: Duration::ZERO, reason },
                _ => AdminOperation::Block { limit, duration: micros(random.below(5_000_000)), reason },
            },
        ),
        _ => Call::Acquire(key, options),
    }
}

fn quota(random: &mut Random) -> Quota {
    Quota::new(1 + random.below(7), Duration::from_millis(1_000 + 1_000 * random.below(9)))
}

fn key(random: &mut Random) -> TestKey {
    TestKey { user: random.below(2), team: random.below(2), tier: usize::from(random.below(6) == 0) }
}
