//! Several limits with any options decide, list, hold and settle as limiters of one plain limit each, of which all must
//! allow: in a list, and in chains of its parts.

use std::cmp::Reverse;
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Chained, Held, LimiterFuture, Outcome};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Costs, Decision, Detail, DynLimit, Error, FixedWindow, Gcra, InFlight, LeakyBucket,
    LeakyQueue, Limit, Limiter, ManualClock, Quota, SlidingLog, SlidingWindow, TokenBucket, Verdict,
};

use crate::chained::Remote;
use crate::immediate::{boxed_limits, ready};
use crate::random::Random;

const MICROSECOND: Duration = Duration::from_micros(1);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const MAX_LIMITS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    user: u64,
    team: u64,
    /// For each limit with a condition a bit: the limit applies.
    applies: u8,
    /// What each limit keeps free from the call, if it keeps units free.
    kept: [u64; MAX_LIMITS],
}

/// The options of a limit, which the model applies by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    kind: u64,
    quota: Quota,
    part: usize,
    is_conditional: bool,
    pub(crate) is_shadow: bool,
    keeps_free: bool,
    unit: Option<&'static str>,
    fixed: Option<u64>,
}

/// The kind of a limit on requests in flight.
const IN_FLIGHT: u64 = 7;
const UNITS: [&str; 2] = ["input", "output"];

impl Spec {
    fn random(random: &mut Random, has_options: bool) -> Self {
        let kind = random.below(9);
        let mut is = |one_in| has_options && random.below(one_in) == 0;
        let [is_conditional, is_shadow, keeps_free, has_unit, is_fixed] =
            [is(3), is(5), is(4) && kind != 8, is(3), is(4)];
        Self {
            kind,
            quota: Quota::new(3 + random.below(9), Duration::from_millis(500 + random.below(4_000))),
            part: random.index(3),
            is_conditional,
            is_shadow,
            keeps_free,
            unit: has_unit.then(|| UNITS[random.index(2)]).filter(|_| !is_fixed),
            fixed: is_fixed.then(|| random.below(4)),
        }
    }

    /// An enforced limit that often schedules, or a shadow.
    pub(crate) fn beside_shadows(random: &mut Random, is_enforced: bool) -> Self {
        let spec = Self { is_shadow: !is_enforced, unit: None, ..Self::random(random, true) };
        if is_enforced && random.below(2) == 0 { Self { kind: 8, keeps_free: false, ..spec } } else { spec }
    }

    fn sub_key(&self, call: &Call) -> u64 {
        [call.user, call.team, 0][self.part]
    }

    pub(crate) fn applies(&self, index: usize, call: &Call) -> bool {
        !self.is_conditional || call.applies >> index & 1 == 1
    }

    fn kept(&self, index: usize, call: &Call) -> u64 {
        if self.keeps_free { call.kept[index] } else { 0 }
    }

    /// The time in which so many units return: a bucket returns them one after another, at the rate of its quota, and other
    /// limits return all of them in their window.
    fn window(&self, units: u64, whole: Option<Duration>) -> Option<Duration> {
        let of_unit = self.quota.period() / u32::try_from(self.quota.limit()).expect("small");
        if self.kind < 3 { Some(of_unit * u32::try_from(units.max(1)).expect("small")) } else { whole }
    }

    /// The cost of a request, or of a settlement, which costs `otherwise` if it has no number.
    fn cost(&self, costs: Costs, otherwise: u64) -> u64 {
        self.unit.map_or_else(|| costs.number().unwrap_or(otherwise), |unit| costs.of(unit))
    }

    /// The limit with its options.
    pub(crate) fn limit(self, index: usize) -> DynLimit<Call> {
        fn with_options<A: Algorithm>(spec: Spec, index: usize, algorithm: A) -> DynLimit<Call> {
            let limit = Limit::new(format!("limit {index}"), algorithm).keyed_by(move |call: &Call| spec.sub_key(call));
            let limit = if let Some(cost) = spec.fixed { limit.fixed_cost(cost) } else { limit };
            let limit = if let Some(unit) = spec.unit { limit.cost_of(unit) } else { limit };
            let limit = if spec.is_shadow { limit.shadow() } else { limit };
            let kept = move |call: &Call| call.kept[index];
            let applies = move |call: &Call| spec.applies(index, call);
            match (spec.keeps_free, spec.is_conditional) {
                (false, false) => DynLimit::new(limit),
                (true, false) => DynLimit::new(limit.keep_free_by(kept)),
                (false, true) => DynLimit::new(limit.only_if(applies)),
                (true, true) => DynLimit::new(limit.keep_free_by(kept).only_if(applies)),
            }
        }
        match self.kind {
            0 => with_options(self, index, Gcra::new(self.quota).burst(7)),
            1 => with_options(self, index, TokenBucket::new(self.quota)),
            2 => with_options(self, index, LeakyBucket::new(self.quota)),
            3 => with_options(self, index, FixedWindow::new(self.quota)),
            4 => with_options(self, index, SlidingWindow::new(self.quota)),
            5 => with_options(self, index, SlidingWindow::new(self.quota).blocks(2).weighted()),
            6 => with_options(self, index, SlidingLog::new(self.quota)),
            IN_FLIGHT => {
                let limit = InFlight::new(self.quota.limit());
                let has_max = self.quota.limit().is_multiple_of(2);
                with_options(self, index, if has_max { limit.max_duration(self.quota.period()) } else { limit })
            }
            _ => with_options(self, index, LeakyQueue::new(self.quota).max_waiting(3)),
        }
    }

    /// A limiter of the limit without its options.
    fn plain(self, index: usize, clock: &ManualClock) -> BoxLimiter<Call> {
        let spec = Self { is_conditional: false, is_shadow: false, keeps_free: false, unit: None, fixed: None, ..self };
        boxed_limits(vec![spec.limit(index)], clock)
    }
}

/// What each plain limiter says of a request.
struct Expected {
    /// The index of each limit that applies, its cost, and its verdict and status before and after the decision.
    limits: Vec<(usize, u64, Decision)>,
    verdict: Verdict,
    is_estimate: bool,
}

struct Model {
    specs: Vec<Spec>,
    plain: Vec<BoxLimiter<Call>>,
}

/// For each limit of a request with a guard: its guard, and the cost that it holds.
type Guards = Vec<(usize, Held)>;

impl Model {
    fn new(random: &mut Random, clock: &ManualClock) -> Self {
        let has_options = random.below(4) > 0;
        let specs: Vec<_> = (0..=random.index(MAX_LIMITS)).map(|_| Spec::random(random, has_options)).collect();
        let plain = specs.iter().enumerate().map(|(index, spec)| spec.plain(index, clock)).collect();
        Self { specs, plain }
    }

    fn applying<'a>(&'a self, call: &'a Call) -> impl Iterator<Item = usize> + 'a {
        (0..self.specs.len()).filter(|index| self.specs[*index].applies(*index, call))
    }

    /// The key of the plain limiters, all of which apply.
    fn key(call: &Call) -> Call {
        Call { applies: u8::MAX, kept: [0; MAX_LIMITS], ..*call }
    }

    fn options(&self, index: usize, cost: u64, hold: bool) -> AcquireOptions {
        let options = AcquireOptions::cost(cost).max_delay(Duration::ZERO).keep_guard().detail(Detail::All);
        if hold && self.specs[index].fixed.is_none() { options.hold() } else { options }
    }

    fn peek(&self, call: &Call, costs: Costs, hold: bool) -> Expected {
        let (mut verdict, mut is_estimate, mut limits) = (Verdict::Allowed, false, Vec::new());
        for index in self.applying(call) {
            let spec = &self.specs[index];
            let cost = spec.fixed.unwrap_or_else(|| spec.cost(costs, 1));
            let asked = self.options(index, cost + spec.kept(index, call), hold);
            let decision = ready(self.plain[index].peek(&Self::key(call), asked));
            if !spec.is_shadow {
                verdict = std::cmp::max_by_key(verdict, decision.verdict(), |verdict| strictness(*verdict));
                is_estimate |= decision.is_estimate();
            }
            limits.push((index, cost, decision));
        }
        Expected { limits, verdict, is_estimate }
    }

    /// Charges or holds an allowed request on each limit that applies and allows the request.
    ///
    /// A request with an id takes the transaction: no plain case, which the limits in one list share, decides it. No id
    /// is repeated.
    fn charge(&self, call: &Call, hold: bool, id: &str, expected: &mut Expected) -> Guards {
        let mut guards = Vec::new();
        for (index, cost, decision) in &mut expected.limits {
            if decision.is_allowed() {
                let options = self.options(*index, *cost, hold).once(id, 1, Duration::from_millis(1));
                let Outcome { decision: charged, held, .. } =
                    ready(self.plain[*index].acquire(&Self::key(call), options));
                guards.extend(held.map(|held| (*index, held)));
                *decision = charged;
            }
        }
        guards
    }

    fn settle(&self, guards: Guards, costs: Costs) {
        for (index, held) in guards {
            let spec = &self.specs[index];
            // A fixed cost is held by limits on requests in flight only, which release it.
            let actual = if spec.fixed.is_some() { 0 } else { spec.cost(costs, held.cost()) };
            ready(held.settle(actual));
        }
    }

    /// Compares a decision with what each limit says. It lists all limits, or the most restrictive one and the shadows.
    fn compare(&self, call: &Call, decision: &Decision, detail: Detail, expected: &Expected, context: &str) {
        let remaining = |(index, _, plain): &(usize, u64, Decision)| {
            plain.remaining().expect("a limit").saturating_sub(self.specs[*index].kept(*index, call))
        };
        let enforced = expected.limits.iter().filter(|limit| !self.specs[limit.0].is_shadow);
        let order =
            |limit: &&(usize, u64, Decision)| (strictness(limit.2.verdict()), Reverse((remaining(limit), limit.0)));
        let most_restrictive = enforced.clone().max_by_key(order).map(|limit| limit.0);
        let name = |index: usize| format!("limit {index}");
        assert_eq!(decision.verdict(), expected.verdict, "{context}");
        assert_eq!(decision.is_exempt(), expected.limits.is_empty(), "{context}");
        assert_eq!(decision.is_estimate(), expected.is_estimate && !decision.is_allowed(), "{context}");
        let named = decision.most_restrictive().map(|limit| limit.name().to_owned());
        assert_eq!(named, most_restrictive.map(name), "{context}");
        let lists_all = detail == Detail::All || detail == Detail::AllIfDenied && !decision.is_allowed();
        let is_listed = |index: usize| lists_all || self.specs[index].is_shadow || most_restrictive == Some(index);
        let listed: Vec<_> = expected.limits.iter().filter(|limit| is_listed(limit.0)).collect();
        assert_eq!(decision.limits().len(), listed.len(), "{context}: {decision:?}");
        let mut blocked =
            listed.iter().filter(|limit| !self.specs[limit.0].is_shadow).map(|limit| limit.2.is_blocked());
        assert_eq!(decision.is_blocked(), blocked.any(|is_blocked| is_blocked), "{context}");
        for (status, limit) in decision.limits().iter().zip(listed) {
            let (spec, plain) = (&self.specs[limit.0], &limit.2.limits()[0]);
            assert_eq!((status.name(), status.is_shadow()), (&*name(limit.0), spec.is_shadow), "{context}");
            assert_eq!(status.limit(), plain.limit().saturating_sub(spec.kept(limit.0, call)), "{context}");
            let facts = (status.verdict(), status.remaining(), status.is_blocked());
            let expected = (plain.verdict(), remaining(limit), plain.is_blocked());
            assert_eq!(facts, expected, "limit {}, {context}", limit.0);
            let window = spec.window(status.limit(), plain.window());
            let is_exact = status.window().is_some() == window.is_some()
                && status.window().unwrap_or_default().abs_diff(window.unwrap_or_default()) <= 2 * MICROSECOND;
            assert!(is_exact, "{:?}, not {window:?}: limit {}, {context}", status.window(), limit.0);
            if spec.kept(limit.0, call) == 0 {
                assert_eq!(status.snapshot(), plain.snapshot(), "limit {}, {context}", limit.0);
            }
        }
    }

    /// The time until more than the kept units remain is never too short, and exact for a cost of one and if they remain.
    fn check_next_tokens(&self, call: &Call, decision: &Decision, costs: Costs, context: &str) {
        for (status, index) in decision.limits().iter().zip(self.applying(call)) {
            let (spec, kept) = (&self.specs[index], self.specs[index].kept(index, call));
            let peeked = |cost| ready(self.plain[index].peek(&Self::key(call), self.options(index, cost, false)));
            let left = peeked(0);
            let has_kept = left.remaining() >= Some(kept);
            let next =
                if has_kept { Some(left.limits()[0].next_token_after()) } else { peeked(kept + 1).retry_after() };
            let (Some(next), told) = (next.filter(|_| spec.kind != IN_FLIGHT), status.next_token_after()) else {
                continue;
            };
            let is_exact = has_kept || spec.fixed.unwrap_or_else(|| spec.cost(costs, 1)) == 1;
            assert!(told >= next && (told == next || !is_exact), "{told:?}, not {next:?}, of {status:?}: {context}");
        }
    }
}

/// Orders verdicts from the least to the most restrictive.
fn strictness(verdict: Verdict) -> (u8, Duration) {
    match verdict {
        Verdict::Denied { retry_after } => (1, retry_after),
        Verdict::ExceedsLimit => (2, Duration::ZERO),
        _ => (0, Duration::ZERO),
    }
}

/// The limits in one list, or in chains of parts of the list: in memory, or as remote limiters.
fn subject(specs: &[Spec], random: &mut Random, clock: &ManualClock) -> (BoxLimiter<Call>, bool) {
    let limits: Vec<_> = specs.iter().enumerate().map(|(index, spec)| spec.limit(index)).collect();
    if limits.len() == 1 || random.below(2) == 0 {
        return (boxed_limits(limits, clock), false);
    }
    let polls = [0, 0, 2][random.index(3)];
    let part = |limits| Remote(boxed_limits(limits, clock), polls);
    let mut first = limits;
    let rest = first.split_off(1 + random.index(first.len() - 1));
    let mut second = rest;
    let third = second.split_off(1 + random.index(second.len()));
    let chain = match (third.is_empty(), random.below(2)) {
        (true, _) => BoxLimiter::new(Chained::new(part(first), part(second))),
        (_, 0) => BoxLimiter::new(Chained::new(part(first), part(second)).and(part(third))),
        _ => BoxLimiter::new(Chained::new(part(first), Chained::new(part(second), part(third)))),
    };
    (chain, true)
}

/// Polls a decision that waits for nothing but the polls of a remote limiter.
fn run<T>(future: LimiterFuture<T>) -> Result<T, Error> {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    }
    let pending = match RUNTIME.with(|runtime| runtime.block_on(async { future.try_ready() })) {
        Ok(result) => return result,
        Err(pending) => pending,
    };
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let result = pending.await;
            // The settlements of dropped guards.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            result
        })
    })
}

pub(crate) fn random_call(random: &mut Random) -> Call {
    let kept = [0; MAX_LIMITS].map(|_| [0, 0, 1, 3, 5][random.index(5)]);
    let applies = u8::try_from(random.below(1 << MAX_LIMITS)).expect("a byte");
    Call { user: random.below(3), team: random.below(2), applies, kept }
}

fn random_costs(specs: &[Spec], random: &mut Random) -> Costs {
    let mut costs = if random.below(3) == 0 { Costs::new() } else { Costs::from(1 + random.below(4)) };
    for unit in UNITS.into_iter().filter(|unit| specs.iter().any(|spec| spec.unit == Some(*unit))) {
        if random.below(4) > 0 {
            costs = costs.add(unit, 1 + random.below(5));
        }
    }
    costs
}

/// An operation on a limit: an error if the limit does not apply to the key.
fn administer(limiter: &BoxLimiter<Call>, model: &Model, call: &Call, random: &mut Random, context: &str) {
    let index = random.index(model.specs.len());
    let (name, key) = (format!("limit {index}"), Model::key(call));
    let used = [0, 1, 3, 9, u64::MAX][random.index(5)];
    let span = Duration::from_micros([0, 1, 700_000, 3_000_000][random.index(4)]);
    let operation = random.below(4);
    let operate = |limiter: &BoxLimiter<Call>, key: &Call| match operation {
        0 => run(limiter.reset(key)),
        1 => run(limiter.set_usage(&name, key, used)),
        2 => run(limiter.block(&name, key, span)),
        _ => run(limiter.block(&name, key, Duration::ZERO)),
    };
    let done = operate(limiter, call);
    if operation == 0 {
        model.applying(call).for_each(|index| operate(&model.plain[index], &key).expect("done"));
        return done.expect("done");
    }
    if model.specs[index].applies(index, call) {
        operate(&model.plain[index], &key).expect("done");
        if operation == 2 {
            let peeked = ready(model.plain[index].peek(&key, 1.into()));
            assert!(
                peeked.is_blocked() != span.is_zero() && peeked.retry_after().unwrap_or_default() >= span,
                "{context}"
            );
        }
        return done.unwrap_or_else(|error| panic!("{context}: {error}"));
    }
    // A chain returns the error of its last limiter.
    let error = done.expect_err("the limit does not apply");
    let text = error.to_string();
    assert!(
        error.is_config() && ["does not apply", "no limit named"].iter().any(|part| text.contains(part)),
        "{error}"
    );
}

/// Runs a random trace on one limiter. Returns the numbers of requests that were denied and allowed, of settled holds, and of
/// denials that were retried.
fn compare(seed: u64) -> [u64; 4] {
    let (mut random, clock, mut counts) = (Random::new(seed), ManualClock::new(), [0; 4]);
    let model = Model::new(&mut random, &clock);
    let (limiter, is_chain) = subject(&model.specs, &mut random, &clock);
    let mut held: Vec<(Held, Guards)> = Vec::new();
    for step in 0..250 {
        clock.advance(Duration::from_micros([0, 0, 1_000, 200_000, 900_000][random.index(5)]));
        let (call, costs) = (random_call(&mut random), random_costs(&model.specs, &mut random));
        let context = format!("seed {seed}, step {step}, {call:?}, {costs:?} on {:?}", model.specs);
        match random.below(20) {
            0 => administer(&limiter, &model, &call, &mut random, &context),
            1..=6 if !held.is_empty() => {
                let (ours, theirs) = held.swap_remove(random.index(held.len()));
                counts[2] += 1;
                match random.below(4) {
                    0 => {
                        model.settle(theirs, UNITS.iter().fold(Costs::from(0), |costs, unit| costs.add(unit, 0)));
                        run(ours.release()).expect("done");
                    }
                    1 => drop((ours, theirs)),
                    _ => {
                        model.settle(theirs, costs);
                        run(ours.settle(costs)).unwrap_or_else(|error| panic!("{context}: {error}"));
                    }
                }
            }
            kind => {
                let hold = kind < 12;
                let detail = [Detail::All, Detail::All, Detail::AllIfDenied, Detail::MostRestrictive][random.index(4)];
                // Chains schedule no later starts, whatever delay the caller accepts.
                let max_delay = if is_chain && random.below(2) == 0 { None } else { Some(Duration::ZERO) };
                let options = AcquireOptions::from(costs).detail(detail).max_delay(max_delay).keep_guard();
                let options = if hold { options.hold() } else { options };
                let mut expected = model.peek(&call, costs, hold);
                let peeked = run(limiter.peek(&call, options)).expect("a decision");
                model.compare(&call, &peeked, detail, &expected, &context);
                let Outcome { decision, held: guard, .. } = run(limiter.acquire(&call, options)).expect("a decision");
                let guards = if expected.verdict.is_allowed() {
                    model.charge(&call, hold, &step.to_string(), &mut expected)
                } else {
                    Vec::new()
                };
                model.compare(&call, &decision, detail, &expected, &context);
                if held.is_empty() && !hold && detail == Detail::All {
                    model.check_next_tokens(&call, &decision, costs, &context);
                }
                if let Some(wait) =
                    decision.retry_after().filter(|wait| kind == 19 && *wait < YEAR && !decision.is_estimate())
                {
                    clock.advance(wait.saturating_sub(MICROSECOND));
                    assert!(
                        !run(limiter.peek(&call, options)).expect("a decision").is_allowed(),
                        "too long: {context}"
                    );
                    clock.advance(MICROSECOND);
                    assert!(
                        run(limiter.peek(&call, options)).expect("a decision").is_allowed(),
                        "too short: {context}"
                    );
                    counts[3] += 1;
                }
                if !hold {
                    assert_eq!(guard.is_some(), !guards.is_empty(), "{context}");
                }
                held.extend(guard.map(|guard| (guard, guards)));
                counts[usize::from(decision.is_allowed())] += 1;
            }
        }
    }
    counts
}

#[test]
fn several_limits_decide_as_one_limiter_for_each() {
    let mut sum = [0; 4];
    for seed in 0..50 {
        let counts = compare(seed);
        sum = std::array::from_fn(|index| sum[index] + counts[index]);
    }
    println!("{sum:?}");
    assert!(sum.iter().zip([1_600, 1_600, 600, 60]).all(|(count, least)| *count > least), "{sum:?}");
}
