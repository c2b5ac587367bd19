//! Scheduled starts: whatever is asked, and whoever leaves before its start, those that do start keep to the bound, in the
//! order of their starts. And a denial's time is exact: the same request is allowed then, and not a microsecond before.

use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::{
    AcquireOptions, Clock, Detail, Gcra, LeakyQueue, Limit, Limiter, ManualClock, Memory, Quota, Timestamp, Verdict,
};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Lets some of a token's time pass, in hundredths.
    Pass {
        hundredths: u64,
    },
    AcquireOptions {
        cost: u64,
        patience: Option<u64>,
    },
    /// One of those whose start is now or later leaves. Its charge stays.
    Leave {
        which: usize,
    },
    /// Counters the part of the key that one of the limits counts by, for some of a token's time.
    Block {
        limit: usize,
        hundredths: u64,
    },
}

fn step(most: u64) -> impl Strategy<Value = Step> {
    let patience = prop_oneof![Just(None), (0..2_000_u64).prop_map(Some), Just(Some(1_000_000))];
    prop_oneof![
        2 => (0..400_u64).prop_map(|hundredths| Step::Pass { hundredths }),
        5 => (1..=most, patience).prop_map(|(cost, patience)| Step::AcquireOptions { cost, patience }),
        3 => any::<usize>().prop_map(|which| Step::Leave { which }),
    ]
}

fn step_or_block(most: u64) -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => step(most),
        1 => (0..3_usize, 0..300_u64).prop_map(|(limit, hundredths)| Step::Block { limit, hundredths }),
    ]
}

/// Limits and periods in microseconds: whole spacings, fractions, and several in one microsecond.
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

/// What was admitted and does start.
#[derive(Clone, Copy, Debug)]
struct Departure {
    at: Timestamp,
    cost: u64,
}

/// One key under one algorithm, with those who have started or will.
struct Line<A> {
    algorithm: A,
    state: [u64; 4],
    /// The same, made new whenever it is idle.
    forgetful: [u64; 4],
    departures: Vec<Departure>,
}

impl<A: Algorithm<State = [u64; 4]>> Line<A> {
    fn new(algorithm: A) -> Self {
        Self { algorithm, state: [0; 4], forgetful: [0; 4], departures: Vec::new() }
    }

    fn ask(&mut self, now: u64, cost: u64, patience: Option<u64>) {
        let mut ask = AcquireOptions::cost(cost);
        ask.max_delay = patience.map(Duration::from_micros);
        let verdict = self.algorithm.peek(&self.state, at(now), ask);
        assert_eq!(verdict, self.algorithm.peek(&self.forgetful, at(now), ask));
        let delay = match verdict {
            Verdict::Allowed => Duration::ZERO,
            Verdict::AllowedAfter(delay) => delay,
            _ => return,
        };
        let last = self.departures.iter().map(|departure| departure.at).max();
        self.algorithm.commit(&mut self.state, at(now), delay, cost);
        self.algorithm.commit(&mut self.forgetful, at(now), delay, cost);
        let start = at(now).after(delay);
        assert!(last.is_none_or(|last| start >= last), "first come, first served: {start:?} after {last:?}");
        self.departures.push(Departure { at: start, cost });
    }

    fn leave(&mut self, now: u64, which: usize) {
        let waiting: Vec<_> =
            (0..self.departures.len()).filter(|&index| self.departures[index].at >= at(now)).collect();
        if let Some(which) = which.checked_rem(waiting.len()) {
            self.departures.remove(waiting[which]);
        }
    }

    fn run(mut self, quota: (u64, u64), steps: &[Step]) -> Vec<Departure> {
        let mut now = START;
        for &step in steps {
            match step {
                Step::Pass { hundredths } => now += hundredths * quota.1 / quota.0 / 100,
                Step::AcquireOptions { cost, patience } => self.ask(now, cost, patience),
                Step::Leave { which } => self.leave(now, which),
                Step::Block { .. } => {}
            }
            if self.state[0] <= now {
                self.forgetful = [0; 4];
            }
        }
        self.departures
    }
}

/// What the departures would have owed at the worst of their moments, beyond what `allowed` says, in `1 / limit` parts of a
/// microsecond. Departures are rounded up to microseconds, so less than one of them is no excess.
fn conform(departures: &[Departure], (limit, period): (u64, u64), allowed: impl Fn(u64) -> u64) -> Result<(), String> {
    let (mut arrival, limit, period) = (0_u128, u128::from(limit), u128::from(period));
    for departure in departures {
        let turn = u128::from(departure.at.as_micros()) * limit;
        let owed_before = arrival.max(turn) - turn;
        let most = u128::from(allowed(departure.cost)) * period;
        if owed_before >= most + limit {
            return Err(format!("{owed_before} owed before {departure:?}, at most {most}, in {departures:?}"));
        }
        arrival = arrival.max(turn) + u128::from(departure.cost) * period;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn departures_from_a_bucket_conform((quota, burst, steps) in scenario()) {
        let gcra = Gcra::new(Quota::new(quota.0, Duration::from_micros(quota.1))).burst(burst);
        let departures = Line::new(gcra).run(quota, &steps);
        let conforms = conform(&departures, quota, |cost| burst - cost);
        prop_assert!(conforms.is_ok(), "{}", conforms.unwrap_err());
    }

    #[test]
    fn departures_from_a_queue_are_spaced((quota, burst, steps) in scenario()) {
        let queue = LeakyQueue::new(Quota::new(quota.0, Duration::from_micros(quota.1))).max_waiting(burst - 1);
        let departures = Line::new(queue).run(quota, &steps);
        let conforms = conform(&departures, quota, |_| 0);
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

/// A limit for each caller, one for all together, and a queue for all or for none.
fn several(
    (caller_quota, all): ((u64, u64), (u64, u64)),
    bursts: (u64, u64),
    queued: bool,
    requests: &[Request],
) -> Result<(), TestCaseError> {
    let clock = ManualClock::at(at(START));
    let quota = |(limit, period)| Quota::new(limit, Duration::from_micros(period));
    // Nobody else is in the queue of who does not queue.
    let line = move |caller: &Caller| if queued { 0 } else { 1 + *caller };
    let limiter = Memory::builder((
        Limit::new("caller", Gcra::new(quota(caller_quota)).burst(bursts.0)).keyed_by(|caller: &Caller| *caller),
        Limit::new("all", Gcra::new(quota(all)).burst(bursts.1)).keyed_by(|_: &Caller| ()),
        Limit::new("line", LeakyQueue::new(Quota::new(1, Duration::from_micros(70))).max_waiting(4)).keyed_by(line),
    ));
    let limiter = limiter.max_keys(10).clock(clock.clone()).build().unwrap();
    let mut departures = Vec::new();
    for &Request { caller, step } in requests {
        match step {
            Step::Pass { hundredths } => clock.advance(Duration::from_micros(hundredths)),
            Step::AcquireOptions { cost, patience } => {
                let mut ask = AcquireOptions::cost(cost).detail(Detail::All);
                ask.max_delay = patience.map(Duration::from_micros);
                let peeked = limiter.peek(&caller, ask).try_ready().unwrap().unwrap();
                let decision = limiter.check(&caller, ask);
                prop_assert_eq!(peeked.verdict(), decision.verdict());
                // No limit is charged as if the time until the turn had passed: that would keep others from it.
                for (index, (limit, period)) in [caller_quota, all, (1, 70)].into_iter().enumerate() {
                    let [before, after] = [&peeked, &decision].map(|decision| decision.limits()[index].reset());
                    let costs = Duration::from_micros((cost * period).div_ceil(limit));
                    prop_assert!(after <= before + costs, "from {:?} to {:?}", peeked, decision);
                }
                if decision.is_allowed() {
                    let at = decision.decided_at().after(decision.delay());
                    departures.push((caller, Departure { at, cost }));
                }
                if let Some(retry_after) = decision.retry_after() {
                    let now = clock.now();
                    for (wait, allowed) in [
                        (retry_after, true),
                        (retry_after.saturating_sub(Duration::from_micros(1)), false),
                        (retry_after * 2, true),
                    ] {
                        clock.set(now.after(wait));
                        let later = limiter.peek(&caller, ask).try_ready().unwrap().unwrap();
                        prop_assert_eq!(later.is_allowed(), allowed, "{:?} after {:?}: {:?}", ask, wait, peeked);
                    }
                    clock.set(now);
                }
            }
            Step::Leave { which } => {
                let now = clock.now();
                let waiting: Vec<_> = (0..departures.len()).filter(|&index| departures[index].1.at >= now).collect();
                if let Some(which) = which.checked_rem(waiting.len()) {
                    departures.remove(waiting[which]);
                }
            }
            Step::Block { limit, hundredths } => {
                let (name, span) = (["caller", "all", "line"][limit], Duration::from_micros(hundredths));
                limiter.block(name, &caller, span).try_ready().unwrap().unwrap();
            }
        }
    }
    departures.sort_by_key(|(_, departure)| departure.at);
    let of = |filter: &dyn Fn(Caller) -> bool| -> Vec<Departure> {
        departures.iter().filter(|(caller, _)| filter(*caller)).map(|(_, departure)| *departure).collect()
    };
    for one in 0..3 {
        prop_assert_eq!(conform(&of(&|caller| caller == one), caller_quota, |cost| bursts.0 - cost), Ok(()));
        if !queued {
            prop_assert_eq!(conform(&of(&|caller| caller == one), (1, 70), |_| 0), Ok(()));
        }
    }
    prop_assert_eq!(conform(&of(&|_| true), all, |cost| bursts.1 - cost), Ok(()));
    if queued {
        prop_assert_eq!(conform(&of(&|_| true), (1, 70), |_| 0), Ok(()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn departures_under_several_limits_conform_to_each(
        quotas in (quota(), quota()),
        bursts in (2..5_u64, 2..9_u64),
        queued in any::<bool>(),
        requests in requests(),
    ) {
        several(quotas, bursts, queued, &requests)?;
    }
}
