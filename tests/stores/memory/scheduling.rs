//! Scheduled starts keep to the algorithm's bound, in the order of their requests, whichever of them are cancelled.
//!
//! `retry_after` of a denial is exact: the same request is allowed then, and not one microsecond earlier.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::{
    AcquireOptions, Clock, Detail, Gcra, LeakyQueue, Limit, Limiter, ManualClock, Memory, Quota, Timestamp, Verdict,
};

use crate::algorithm_ext::AlgorithmExt as _;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Advances the clock, in hundredths of a token's time.
    Advance {
        hundredths: u64,
    },
    AcquireOptions {
        cost: u64,
        max_delay: Option<u64>,
    },
    /// Cancels a request that has not started. Its charge stays.
    Cancel {
        which: usize,
    },
    /// Blocks the sub-key of one limit, in hundredths of a token's time.
    Block {
        limit: usize,
        hundredths: u64,
    },
}

fn step(max: u64) -> impl Strategy<Value = Step> {
    let max_delay = prop_oneof![Just(None), (0..2_000_u64).prop_map(Some), Just(Some(1_000_000))];
    prop_oneof![
        2 => (0..400_u64).prop_map(|hundredths| Step::Advance { hundredths }),
        5 => (1..=max, max_delay).prop_map(|(cost, max_delay)| Step::AcquireOptions { cost, max_delay }),
        3 => any::<usize>().prop_map(|which| Step::Cancel { which }),
    ]
}

fn step_or_block(max: u64) -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => step(max),
        1 => (0..3_usize, 0..300_u64).prop_map(|(limit, hundredths)| Step::Block { limit, hundredths }),
    ]
}

/// Limits and periods in microseconds: whole emission intervals, fractions, and several tokens in one microsecond.
fn quota() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![Just((1, 100)), Just((1, 1)), Just((3, 1_000)), Just((7, 60)), Just((3, 2)), Just((10, 7))]
}

fn scenario() -> impl Strategy<Value = ((u64, u64), u64, Vec<Step>)> {
    (quota(), 1..=6_u64)
        .prop_flat_map(|(quota, burst)| (Just(quota), Just(burst), proptest::collection::vec(step(burst), 1..60)))
}

const START: u64 = 1_000_000;

fn at(time: u64) -> Timestamp {
    Timestamp::from_micros(time)
}

/// An admitted request that starts.
#[derive(Clone, Copy, Debug)]
struct Start {
    at: Timestamp,
    cost: u64,
}

/// One key under one algorithm, and its requests that have started or will start.
struct Schedule<A> {
    algorithm: A,
    state: [u64; 4],
    /// The same state, replaced by a new one whenever it is idle.
    renewed: [u64; 4],
    starts: Vec<Start>,
}

impl<A: Algorithm<State = [u64; 4]>> Schedule<A> {
    fn new(algorithm: A) -> Self {
        Self { algorithm, state: [0; 4], renewed: [0; 4], starts: Vec::new() }
    }

    fn acquire(&mut self, now: u64, cost: u64, max_delay: Option<u64>) {
        let options = AcquireOptions::cost(cost).max_delay(max_delay.map(Duration::from_micros));
        let verdict = self.algorithm.peek(&self.state, at(now), options);
        assert_eq!(verdict, self.algorithm.peek(&self.renewed, at(now), options));
        let delay = match verdict {
            Verdict::Allowed => Duration::ZERO,
            Verdict::AllowedAfter(delay) => delay,
            _ => return,
        };
        let last = self.starts.iter().map(|start_of| start_of.at).max();
        self.algorithm.charge(&mut self.state, at(now), delay, cost);
        self.algorithm.charge(&mut self.renewed, at(now), delay, cost);
        let start = at(now).saturating_add(delay);
        assert!(last.is_none_or(|last| start >= last), "starts are not in request order: {start:?} after {last:?}");
        self.starts.push(Start { at: start, cost });
    }

    fn cancel(&mut self, now: u64, which: usize) {
        let waiting: Vec<_> = (0..self.starts.len()).filter(|&index| self.starts[index].at >= at(now)).collect();
        if let Some(which) = which.checked_rem(waiting.len()) {
            self.starts.remove(waiting[which]);
        }
    }

    fn run(mut self, quota: (u64, u64), steps: &[Step]) -> Vec<Start> {
        let mut now = START;
        for &step in steps {
            match step {
                Step::Advance { hundredths } => now += hundredths * quota.1 / quota.0 / 100,
                Step::AcquireOptions { cost, max_delay } => self.acquire(now, cost, max_delay),
                Step::Cancel { which } => self.cancel(now, which),
                Step::Block { .. } => {}
            }
            if self.state[0] <= now {
                self.renewed = [0; 4];
            }
        }
        self.starts
    }
}

/// Returns an error if usage at a start exceeds `allowed`, in `1 / limit` parts of a microsecond.
///
/// Starts are rounded up to whole microseconds, so an excess below one microsecond is none.
fn check_bound(starts: &[Start], (limit, period): (u64, u64), allowed: impl Fn(u64) -> u64) -> Result<(), String> {
    let (mut arrival, limit, period) = (0_u128, u128::from(limit), u128::from(period));
    for start_of in starts {
        let start = u128::from(start_of.at.as_micros()) * limit;
        let owed_before = arrival.max(start) - start;
        let max = u128::from(allowed(start_of.cost)) * period;
        if owed_before >= max + limit {
            return Err(format!("{owed_before} used before {start_of:?}, at most {max}, in {starts:?}"));
        }
        arrival = arrival.max(start) + u128::from(start_of.cost) * period;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn bucket_starts_keep_to_the_bound_when_some_are_cancelled((quota, burst, steps) in scenario()) {
        let gcra = Gcra::new(Quota::new(quota.0, Duration::from_micros(quota.1))).burst(burst);
        let starts = Schedule::new(gcra).run(quota, &steps);
        let conforms = check_bound(&starts, quota, |cost| burst - cost);
        prop_assert!(conforms.is_ok(), "{}", conforms.unwrap_err());
    }

    #[test]
    fn queue_starts_are_spaced_when_some_are_cancelled((quota, burst, steps) in scenario()) {
        let queue = LeakyQueue::new(Quota::new(quota.0, Duration::from_micros(quota.1))).max_waiting(burst - 1);
        let starts = Schedule::new(queue).run(quota, &steps);
        let conforms = check_bound(&starts, quota, |_| 0);
        prop_assert!(conforms.is_ok(), "{}", conforms.unwrap_err());
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Several limits
// ---------------------------------------------------------------------------------------------------------------------

type Caller = u64;

#[derive(Clone, Copy, Debug)]
struct Request {
    caller: Caller,
    step: Step,
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    proptest::collection::vec((0..3_u64, step_or_block(2)).prop_map(|(caller, step)| Request { caller, step }), 1..50)
}

/// A limit per caller, a global limit, and a queue for all callers or for each.
fn several(
    (caller_quota, all): ((u64, u64), (u64, u64)),
    bursts: (u64, u64),
    queued: bool,
    requests: &[Request],
) -> Result<(), TestCaseError> {
    let clock = ManualClock::at(at(START));
    let quota = |(limit, period)| Quota::new(limit, Duration::from_micros(period));
    // A queue per caller holds no other caller.
    let line = move |caller: &Caller| if queued { 0 } else { 1 + *caller };
    let limiter = Memory::builder((
        Limit::new("caller", Gcra::new(quota(caller_quota)).burst(bursts.0)).keyed_by(|caller: &Caller| *caller),
        Limit::new("all", Gcra::new(quota(all)).burst(bursts.1)).keyed_by(|_: &Caller| ()),
        Limit::new("queue", LeakyQueue::new(Quota::new(1, Duration::from_micros(70))).max_waiting(4)).keyed_by(line),
    ));
    let limiter = limiter.max_keys(10).clock(clock.clone()).build().unwrap();
    let mut starts = Vec::new();
    for &Request { caller, step } in requests {
        match step {
            Step::Advance { hundredths } => clock.advance(Duration::from_micros(hundredths)),
            Step::AcquireOptions { cost, max_delay } => {
                let max_delay = max_delay.map(Duration::from_micros);
                let options = AcquireOptions::cost(cost).detail(Detail::All).max_delay(max_delay);
                let peeked = limiter.peek(&caller, options).try_ready().unwrap().unwrap();
                let decision = limiter.check(&caller, options);
                prop_assert_eq!(peeked.verdict(), decision.verdict());
                // A scheduled start must not take tokens that other callers can use before that start.
                for (index, (limit, period)) in [caller_quota, all, (1, 70)].into_iter().enumerate() {
                    let [before, after] = [&peeked, &decision].map(|decision| decision.limits()[index].reset());
                    let costs = Duration::from_micros((cost * period).div_ceil(limit));
                    prop_assert!(after <= before + costs, "from {:?} to {:?}", peeked, decision);
                }
                if decision.is_allowed() {
                    let at = decision.decided_at().saturating_add(decision.delay());
                    starts.push((caller, Start { at, cost }));
                }
                if let Some(retry_after) = decision.retry_after() {
                    let now = clock.now();
                    for (wait, allowed) in [
                        (retry_after, true),
                        (retry_after.saturating_sub(Duration::from_micros(1)), false),
                        (retry_after * 2, true),
                    ] {
                        clock.set(now.saturating_add(wait));
                        let later = limiter.peek(&caller, options).try_ready().unwrap().unwrap();
                        prop_assert_eq!(later.is_allowed(), allowed, "{:?} after {:?}: {:?}", options, wait, peeked);
                    }
                    clock.set(now);
                }
            }
            Step::Cancel { which } => {
                let now = clock.now();
                let waiting: Vec<_> = (0..starts.len()).filter(|&index| starts[index].1.at >= now).collect();
                if let Some(which) = which.checked_rem(waiting.len()) {
                    starts.remove(waiting[which]);
                }
            }
            Step::Block { limit, hundredths } => {
                let (name, span) = (["caller", "all", "queue"][limit], Duration::from_micros(hundredths));
                limiter.block(name, &caller, span).try_ready().unwrap().unwrap();
            }
        }
    }
    starts.sort_by_key(|(_, start_of)| start_of.at);
    let of = |filter: &dyn Fn(Caller) -> bool| -> Vec<Start> {
        starts.iter().filter(|(caller, _)| filter(*caller)).map(|(_, start_of)| *start_of).collect()
    };
    for one in 0..3 {
        prop_assert_eq!(check_bound(&of(&|caller| caller == one), caller_quota, |cost| bursts.0 - cost), Ok(()));
        if !queued {
            prop_assert_eq!(check_bound(&of(&|caller| caller == one), (1, 70), |_| 0), Ok(()));
        }
    }
    prop_assert_eq!(check_bound(&of(&|_| true), all, |cost| bursts.1 - cost), Ok(()));
    if queued {
        prop_assert_eq!(check_bound(&of(&|_| true), (1, 70), |_| 0), Ok(()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn starts_under_several_limits_keep_to_each_bound(
        quotas in (quota(), quota()),
        bursts in (2..5_u64, 2..9_u64),
        queued in any::<bool>(),
        requests in requests(),
    ) {
        several(quotas, bursts, queued, &requests)?;
    }
}
