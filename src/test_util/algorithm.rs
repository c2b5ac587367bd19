//! The laws of [`Algorithm`] on random states.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::algorithm::{Algorithm, ChargeOptions, Start, State, Step};
use crate::clock::{Timestamp, micros_floor};
use crate::random::Random;
use crate::response::BoxError;

/// What [`check_algorithm`] has tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AlgorithmReport {
    /// The decisions that allowed a request now.
    pub allowed: u64,
    /// The decisions that allowed a request after a delay.
    pub delayed: u64,
    /// The decisions that denied a request.
    pub denied: u64,
    /// The decisions on costs that exceed the limit.
    pub exceeding: u64,
}

/// Checks the [laws](Algorithm#laws) of an algorithm of your own, on random states, times and costs. Each run is the same.
///
/// With a Lua implementation, call `check_lua_algorithm` as well.
///
/// ```
/// use tower_ratelimit::test_util::check_algorithm;
/// use tower_ratelimit::{Gcra, Quota};
///
/// let report = check_algorithm(&Gcra::new(Quota::per_second(10)).burst(20))?;
/// assert!(report.allowed > 1_000 && report.denied > 100);
/// # Ok::<(), tower_ratelimit::response::BoxError>(())
/// ```
///
/// # Errors
///
/// Returns the first decision that breaks a law, with the name of the law and what leads to the decision.
pub fn check_algorithm<A: Algorithm>(algorithm: &A) -> Result<AlgorithmReport, BoxError> {
    let mut report = AlgorithmReport::default();
    for seed in 0..TRACES {
        let checked = catch_unwind(AssertUnwindSafe(|| {
            check_any_words(algorithm, &mut Random::new(seed));
            Trace::new(algorithm, seed).run(&mut report)
        }));
        checked.unwrap_or_else(|_| Err(format!("the law \"no panics\" is broken in trace {seed}").into()))?;
    }
    Ok(report)
}

const TRACES: u64 = 200;
const STEPS: u64 = 40;

/// Decides on states of any words, at any time. The results do not matter.
fn check_any_words<A: Algorithm>(algorithm: &A, random: &mut Random) {
    let mut words = Vec::new();
    zero(algorithm).to_numbers(&mut words);
    let times = [0, 1, 1 << 50, Timestamp::MAX.as_micros(), u64::MAX];
    for word in &mut words {
        *word = [0, random.number(), random.below(1 << 52), u64::MAX, random.choose(&times)][random.index(5)];
    }
    let state = A::State::from_numbers(&words);
    for now in times.map(|time| Timestamp::from_micros(time).min(Timestamp::MAX)) {
        let cost = [0, 1, random.number(), u64::MAX][random.index(4)];
        let delay = Duration::from_micros([0, random.below(1 << 40), u64::MAX][random.index(3)]);
        for start in [Start::Within(None), Start::Within(Some(delay)), Start::After(delay)] {
            if let Step::Allow { next, .. } = algorithm.decide(&state, now, ChargeOptions { cost, start }) {
                state.clone().apply(next);
            }
        }
        let _ = algorithm.snapshot(&state, now).compute();
    }
}

fn zero<A: Algorithm>(algorithm: &A) -> A::State {
    A::State::from_numbers(&vec![0; algorithm.counter_words()])
}

/// A decision that can be compared: its delay or wait, and the state after it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decided {
    Allowed { delay: u64, next: Vec<u64> },
    Denied { wait: u64 },
    Exceeds,
}

impl Decided {
    fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed { .. })
    }
}

struct Trace<'a, A: Algorithm> {
    algorithm: &'a A,
    state: A::State,
    now: Timestamp,
    /// The time of the last charge, if no charge was forced or delayed so far.
    charged_at: Option<Timestamp>,
    limit: u64,
    max_reset: u64,
    random: Random,
    steps: Vec<String>,
}

impl<'a, A: Algorithm> Trace<'a, A> {
    fn new(algorithm: &'a A, seed: u64) -> Self {
        let (state, mut random) = (zero(algorithm), Random::new(seed));
        let now = Timestamp::from_micros((1 << 50) + random.below(1 << 40));
        let limit = algorithm.snapshot(&state, now).compute().limit;
        let max_reset = micros_floor(algorithm.max_reset()).clamp(1, 1 << 50);
        Self { algorithm, state, now, charged_at: Some(now), limit, max_reset, random, steps: Vec::new() }
    }

    fn decide(&self, state: &A::State, now: Timestamp, options: ChargeOptions) -> Decided {
        match self.algorithm.decide(state, now, options) {
            Step::Allow { next, delay } => {
                let (mut after, mut numbers) = (state.clone(), Vec::new());
                after.apply(next);
                after.to_stored(&mut numbers);
                Decided::Allowed { delay, next: numbers }
            }
            Step::Deny { wait } => Decided::Denied { wait },
            Step::Exceeds => Decided::Exceeds,
        }
    }

    fn state_after(&self, state: &A::State, now: Timestamp, options: ChargeOptions) -> A::State {
        let mut after = state.clone();
        // A cost of zero may carry any next state, which no store writes.
        if let Step::Allow { next, .. } = self.algorithm.decide(state, now, options)
            && options.cost > 0
        {
            after.apply(next);
        }
        after
    }

    /// Returns a violation unless the law holds.
    fn law(&self, name: &str, holds: bool, details: impl FnOnce() -> String) -> Result<(), BoxError> {
        if holds {
            return Ok(());
        }
        let steps = self.steps.join("\n");
        Err(format!("the law \"{name}\" is broken: {}\nafter these charges:\n{steps}", details()).into())
    }

    fn run(mut self, report: &mut AlgorithmReport) -> Result<(), BoxError> {
        for _ in 0..STEPS {
            let part = [0, 1, self.max_reset / 64, self.max_reset / 4, self.max_reset, 3 * self.max_reset];
            let advance = self.random.choose(&part);
            self.now = after(self.now, self.random.below(advance.saturating_add(1)));
            let costs = [0, 1, 1, self.random.below(self.limit.saturating_add(2)), self.limit.saturating_add(1)];
            let cost = self.random.choose(&costs);
            let delays = [0, self.random.below(self.max_reset), u64::MAX >> 1].map(Duration::from_micros);
            let within = [None, Some(Duration::ZERO), Some(self.random.choose(&delays))][self.random.index(3)];
            let options = ChargeOptions { cost, start: Start::Within(within) };
            let decided = self.decide(&self.state, self.now, options);
            match &decided {
                Decided::Allowed { delay: 0, .. } => report.allowed += 1,
                Decided::Allowed { .. } => report.delayed += 1,
                Decided::Denied { .. } => report.denied += 1,
                Decided::Exceeds => report.exceeding += 1,
            }
            self.check_pure_and_forced(options, &decided)?;
            self.check_idle(options)?;
            self.check_retry(self.now, options, &decided)?;
            self.check_steps_back(options)?;
            self.check_parts(cost)?;
            self.charge(options, &decided);
        }
        Ok(())
    }

    fn charge(&mut self, options: ChargeOptions, decided: &Decided) {
        // Sometimes a debt.
        let is_forced = self.random.below(12) == 0;
        let options = if is_forced { ChargeOptions::forced(options.cost, Duration::ZERO) } else { options };
        if options.cost == 0 || !(is_forced || decided.is_allowed()) {
            return;
        }
        self.state = self.state_after(&self.state, self.now, options);
        let is_plain = !is_forced && matches!(decided, Decided::Allowed { delay: 0, .. });
        self.charged_at = self.charged_at.filter(|_| is_plain).map(|_| self.now);
        self.steps.push(format!("at {:?}: {options:?}", self.now));
    }

    fn check_pure_and_forced(&self, options: ChargeOptions, decided: &Decided) -> Result<(), BoxError> {
        let again = self.decide(&self.state, self.now, options);
        let [one, other] = [(); 2].map(|()| self.algorithm.snapshot(&self.state, self.now).compute());
        self.law("pure", again == *decided && one == other, || {
            format!("{options:?} at {:?}: {decided:?} with {one:?}, then {again:?} with {other:?}", self.now)
        })?;
        for delay in [0, self.max_reset / 3] {
            let forced = ChargeOptions::forced(options.cost, Duration::from_micros(delay));
            let forced_step = self.decide(&self.state, self.now, forced);
            self.law("forced charges", forced_step.is_allowed(), || {
                format!("{forced:?} at {:?}: {forced_step:?}", self.now)
            })?;
        }
        let Decided::Allowed { delay, next } = decided else { return Ok(()) };
        let forced = ChargeOptions::forced(options.cost, Duration::from_micros(*delay));
        let same = self.decide(&self.state, self.now, forced);
        let is_same = options.cost == 0 || matches!(&same, Decided::Allowed { next: own, .. } if own == next);
        self.law("forced charges", is_same, || format!("{options:?} at {:?}: {decided:?}, forced {same:?}", self.now))
    }

    fn check_idle(&self, options: ChargeOptions) -> Result<(), BoxError> {
        let zero = zero(self.algorithm);
        for later in [0, 1, self.max_reset] {
            let at = after(Timestamp::from_micros(self.state.idle_at()).max(self.now), later);
            let results = [&self.state, &zero].map(|state| {
                let next = self.state_after(state, at, options);
                let numbers = [state, &next].map(|state| self.algorithm.snapshot(state, at).compute());
                (self.algorithm.decide(state, at, options).verdict(), numbers)
            });
            self.law("idle", results[0] == results[1], || {
                format!("{options:?} at {at:?}: {:?}, of a never-seen key {:?}", results[0], results[1])
            })?;
        }
        Ok(())
    }

    fn check_retry(&self, now: Timestamp, options: ChargeOptions, decided: &Decided) -> Result<(), BoxError> {
        let Decided::Denied { wait } = *decided else { return Ok(()) };
        let is_allowed = |time| self.decide(&self.state, time, options).is_allowed();
        let (early, then) = (after(now, wait.saturating_sub(1)), after(now, wait));
        let later = [0, 1, self.max_reset / 7, self.max_reset].map(|span| after(then, span));
        let holds = wait > 0 && !is_allowed(early) && later.into_iter().all(is_allowed);
        self.law("exact retry", holds, || {
            let results = later.map(|time| (time, self.decide(&self.state, time, options)));
            let early = self.decide(&self.state, early, options);
            format!("{options:?} at {now:?}: {decided:?}; a microsecond early {early:?}; later {results:?}")
        })
    }

    /// The last charge is the newest time in the state.
    fn check_steps_back(&self, options: ChargeOptions) -> Result<(), BoxError> {
        let Some(charged_at) = self.charged_at else { return Ok(()) };
        let newest = self.decide(&self.state, charged_at, options).is_allowed();
        for step in [1, self.max_reset / 3] {
            let at = Timestamp::from_micros(charged_at.as_micros() - step);
            let decided = self.decide(&self.state, at, options);
            let is_immediate = options.start == Start::Within(Some(Duration::ZERO));
            self.law("time may step back", decided.is_allowed() == newest || !is_immediate, || {
                format!("{options:?} at {at:?}: {decided:?}, at the newest time {charged_at:?} allowed: {newest}")
            })?;
            self.check_retry(at, options, &decided)?;
        }
        let long_ago = Timestamp::from_micros(charged_at.as_micros().saturating_sub(self.max_reset + 1));
        let [own, new] =
            [&self.state, &zero(self.algorithm)].map(|state| self.algorithm.decide(state, long_ago, options).verdict());
        self.law("time may step back", own == new, || {
            format!("{options:?} at {long_ago:?}, long before the last charge: {own:?}, of a never-seen key {new:?}")
        })
    }

    /// Whatever part of an allowed cost is charged later, the rest is still allowed.
    fn check_parts(&mut self, cost: u64) -> Result<(), BoxError> {
        // A queue delays the rest.
        let options = |cost| ChargeOptions { cost, start: Start::Within(None) };
        if cost < 2 || !self.decide(&self.state, self.now, options(cost)).is_allowed() {
            return Ok(());
        }
        let part = self.random.between(1, cost - 1);
        let [first, second] = [(); 2].map(|()| self.random.below(self.max_reset));
        let charged_at = after(self.now, first);
        let state = self.state_after(&self.state, charged_at, ChargeOptions::forced(part, Duration::ZERO));
        let at = after(charged_at, second);
        let rest = self.decide(&state, at, options(cost - part));
        self.law("charges can be split", rest.is_allowed(), || {
            let now = self.now;
            format!("{cost} allowed at {now:?}; {part} charged at {charged_at:?}; the rest at {at:?}: {rest:?}")
        })
    }
}

fn after(time: Timestamp, span: u64) -> Timestamp {
    time.saturating_add(Duration::from_micros(span)).min(Timestamp::MAX)
}
