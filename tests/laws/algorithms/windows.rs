//! The sliding log, the sliding window (strict and weighted) and the leaky queue agree with slow and simple models,
//! field by field, in virtual time. The worst case of each algorithm is checked, too.

use std::rc::Rc;
use std::time::Duration;

use proptest::prelude::*;
use tower_ratelimit::algorithm::{Algorithm, Counters, HitLog};
use tower_ratelimit::limiter::Held;
use tower_ratelimit::{
    AcquireOptions, Clock, Decision, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limit, Limiter, ManualClock, Memory,
    Quota, SlidingLog, SlidingWindow, Timestamp, TokenBucket, Verdict,
};

use crate::algorithm_ext::AlgorithmExt as _;
use crate::harness::ready;

/// The fields of a decision, as the model expects them.
#[derive(Debug, PartialEq)]
struct Expected {
    verdict: Verdict,
    remaining: u64,
    reset: u64,
    next_token_after: u64,
}

/// A list of hits and the usage at a time. Waits follow from a binary search for the first time that fits.
trait Model: Clone {
    fn limit(&self) -> u64;
    fn hits(&mut self) -> &mut Vec<(u64, u64)>;
    /// Returns the usage at `now`, rounded up.
    fn used(&self, now: u64) -> u64;
    /// Whether `cost` fits at `now`.
    fn fits(&self, now: u64, cost: u64) -> bool;
    /// Returns the time from which no hit counts.
    fn idle_at(&self) -> u64;
    fn charge(&mut self, now: u64, cost: u64);

    /// Returns the model as if the held cost were charged now.
    fn with_held(&self, now: u64, held: u64) -> Self {
        let mut model = self.clone();
        if held > 0 {
            model.charge(now, held);
        }
        model
    }

    fn remaining(&self, now: u64) -> u64 {
        self.limit().saturating_sub(self.used(now))
    }

    /// Returns the first time from `now` on at which `holds` is true. Without further hits it stays true.
    fn first(&self, now: u64, holds: impl Fn(&Self, u64) -> bool) -> u64 {
        let (mut too_early, mut late) = (now, self.idle_at().max(now));
        if holds(self, now) {
            return now;
        }
        while late - too_early > 1 {
            let middle = too_early + (late - too_early) / 2;
            if holds(self, middle) { late = middle } else { too_early = middle }
        }
        late
    }

    fn verdict(&self, now: u64, cost: u64) -> Verdict {
        if cost > self.limit() {
            return Verdict::ExceedsLimit;
        }
        match self.first(now, |model, at| model.fits(at, cost)) - now {
            0 => Verdict::Allowed,
            wait => Verdict::Denied { retry_after: Duration::from_micros(wait) },
        }
    }

    fn expected(&self, now: u64, verdict: Verdict) -> Expected {
        let remaining = self.remaining(now);
        let more = self.first(now, |model, at| model.remaining(at) > remaining) - now;
        let reset = self.idle_at().saturating_sub(now);
        Expected { verdict, remaining, reset, next_token_after: if remaining == self.limit() { reset } else { more } }
    }
}

/// The model in which each hit counts in full until it expires.
#[derive(Clone)]
struct Expiring {
    limit: u64,
    /// The maximum number of hits: beyond it the oldest one is merged into the one after it, at the later time.
    max_hits: u64,
    expires_at: Rc<dyn Fn(u64) -> u64>,
    /// The expiry and the weight of each hit.
    hits: Vec<(u64, u64)>,
}

impl Expiring {
    fn log(limit: u64, period: u64) -> Self {
        Self { limit, max_hits: limit, expires_at: Rc::new(move |now| now + period), hits: Vec::new() }
    }

    fn strict(limit: u64, period: u64, blocks: u64) -> Self {
        let width = period / blocks;
        let expires_at = Rc::new(move |now| (now / width + blocks + 1) * width);
        Self { limit, max_hits: u64::MAX, expires_at, hits: Vec::new() }
    }

    fn count(&mut self, now: u64, cost: u64, max_hits: u64) {
        let expires_at = (self.expires_at)(now);
        self.hits.retain(|(until, _)| *until > now);
        match self.hits.last_mut() {
            Some(last) if last.0 == expires_at => last.1 += cost,
            _ => self.hits.push((expires_at, cost)),
        }
        while self.hits.len() as u64 > max_hits {
            let oldest = self.hits.remove(0);
            self.hits[0].1 += oldest.1;
        }
    }
}

impl Model for Expiring {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn hits(&mut self) -> &mut Vec<(u64, u64)> {
        &mut self.hits
    }

    fn used(&self, now: u64) -> u64 {
        self.hits.iter().filter(|(until, _)| *until > now).map(|(_, weight)| weight).sum()
    }

    fn fits(&self, now: u64, cost: u64) -> bool {
        self.used(now) + cost <= self.limit
    }

    fn idle_at(&self) -> u64 {
        self.hits.iter().filter(|(_, weight)| *weight > 0).map(|(until, _)| *until).max().unwrap_or(0)
    }

    fn charge(&mut self, now: u64, cost: u64) {
        self.count(now, cost, self.max_hits);
    }

    fn with_held(&self, now: u64, held: u64) -> Self {
        let mut model = self.clone();
        if held > 0 {
            model.count(now, held, u64::MAX);
        }
        model
    }
}

/// The model in which hits of the oldest block count by the share of the block that the window still covers.
#[derive(Clone)]
struct Weighted {
    limit: u64,
    width: u64,
    blocks: u64,
    hits: Vec<(u64, u64)>,
}

impl Weighted {
    /// Returns the usage at `now`, times the width of a block.
    fn used_scaled(&self, now: u64) -> u64 {
        let current = now / self.width;
        let share = |block: u64| match current - block {
            age if age < self.blocks => self.width,
            age if age == self.blocks => self.width - now % self.width,
            _ => 0,
        };
        self.hits.iter().map(|&(block, weight)| weight * share(block)).sum()
    }
}

impl Model for Weighted {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn hits(&mut self) -> &mut Vec<(u64, u64)> {
        &mut self.hits
    }

    fn used(&self, now: u64) -> u64 {
        self.used_scaled(now).div_ceil(self.width)
    }

    fn fits(&self, now: u64, cost: u64) -> bool {
        self.used_scaled(now) + cost * self.width <= self.limit * self.width
    }

    fn idle_at(&self) -> u64 {
        let last = self.hits.iter().filter(|(_, weight)| *weight > 0).map(|(block, _)| *block).max();
        last.map_or(0, |block| (block + self.blocks + 1) * self.width)
    }

    fn charge(&mut self, now: u64, cost: u64) {
        self.hits.push((now / self.width, cost));
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait(u64),
    /// Until this cost is allowed, plus an offset in ticks.
    UntilRetry(u64, i64),
    /// Until the key is idle, plus an offset in ticks.
    UntilReset(i64),
    /// Until the next block, plus an offset in ticks.
    UntilBlock(i64),
    Acquire(u64),
    Hold(u64),
    Settle(usize, u64),
    Reset,
}

fn steps(period: u64, limit: u64) -> impl Strategy<Value = Vec<Step>> {
    let ticks = -1..=1_i64;
    let step = prop_oneof![
        4 => (0..=limit + 1).prop_map(Step::Acquire),
        1 => (0..=limit + 1).prop_map(Step::Hold),
        2 => (0..=period * 2).prop_map(Step::Wait),
        2 => (0..=3_u64).prop_map(Step::Wait),
        3 => (1..=limit, ticks.clone()).prop_map(|(cost, off)| Step::UntilRetry(cost, off)),
        1 => ticks.clone().prop_map(Step::UntilReset),
        1 => ticks.prop_map(Step::UntilBlock),
        2 => (0..64_usize, 0..=limit).prop_map(|(which, actual)| Step::Settle(which, actual)),
        1 => Just(Step::Reset),
    ];
    proptest::collection::vec(step, 1..80)
}

fn reported(decision: &Decision) -> Expected {
    let status = decision.most_restrictive().expect("one limit");
    let micros = |span: Duration| u64::try_from(span.as_micros()).expect("a short time");
    Expected {
        verdict: decision.verdict(),
        remaining: status.remaining(),
        reset: micros(status.reset()),
        next_token_after: micros(status.next_token_after()),
    }
}

/// Applies the steps to the limiter and to the model, and compares every decision.
///
/// The model's `retry_after` is sufficient and minimal by construction, so equality shows the same of the limiter.
fn assert_agrees<A: Algorithm>(
    algorithm: A,
    mut model: impl Model,
    width: u64,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let clock = ManualClock::new();
    let limiter = Memory::builder(algorithm).max_keys(1).clock(clock.clone()).build().expect("a limiter");
    let (mut guards, mut held): (Vec<Held>, u64) = (Vec::new(), 0);
    for &step in steps {
        let now = clock.now().as_micros();
        let off = |moment: u64, off: i64| moment.saturating_add_signed(off).max(now) - now;
        let wait = match step {
            Step::Wait(span) => span,
            Step::UntilRetry(cost, ticks) => off(model.first(now, |model, at| model.fits(at, cost)), ticks),
            Step::UntilReset(ticks) => off(model.idle_at(), ticks),
            Step::UntilBlock(ticks) => off((now / width + 1) * width, ticks),
            Step::Acquire(cost) | Step::Hold(cost) => {
                let peeked = ready(limiter.peek("key", AcquireOptions::cost(cost)));
                let counted = model.with_held(now, held);
                let verdict = counted.verdict(now, cost);
                prop_assert_eq!(reported(&peeked), counted.expected(now, verdict), "peek at {} for {}", now, cost);
                prop_assert_eq!(peeked.is_estimate(), held > 0 && !verdict.is_allowed());
                let options = if matches!(step, Step::Hold(_)) {
                    AcquireOptions::cost(cost).hold()
                } else {
                    AcquireOptions::cost(cost)
                };
                let outcome = ready(limiter.acquire("key", options));
                prop_assert_eq!(outcome.held.is_some(), options.hold && verdict.is_allowed());
                if let Some(guard) = outcome.held {
                    held += cost;
                    guards.push(guard);
                } else if verdict.is_allowed() && cost > 0 {
                    model.charge(now, cost);
                }
                let after = model.with_held(now, held).expected(now, verdict);
                prop_assert_eq!(reported(&outcome.decision), after, "acquire at {} for {}", now, cost);
                0
            }
            Step::Settle(which, actual) => {
                if let Some(index) = which.checked_rem(guards.len()) {
                    let guard = guards.swap_remove(index);
                    held -= guard.cost();
                    if actual > 0 {
                        model.charge(now, actual);
                    }
                    ready(guard.settle(actual));
                }
                0
            }
            Step::Reset => {
                ready(limiter.reset("key"));
                model.hits().iter_mut().for_each(|hit| *hit = (0, 0));
                0
            }
        };
        clock.advance(Duration::from_micros(wait));
    }
    Ok(())
}

/// Generates small periods, so that schedules reach the boundaries, and numbers of blocks that divide them.
fn geometry() -> impl Strategy<Value = (u64, u64, u64)> {
    let period = prop_oneof![Just(12), Just(60), Just(1_200), Just(60_000_000), Just(86_400_000_000)];
    (period, prop_oneof![Just(1), Just(2), Just(3), Just(4)], 1..12_u64)
}

/// Generates a period, a number of blocks, a limit, and steps for them.
fn schedule() -> impl Strategy<Value = (u64, u64, u64, Vec<Step>)> {
    let steps = |(period, blocks, limit)| (Just(period), Just(blocks), Just(limit), steps(period, limit));
    geometry().prop_flat_map(steps)
}

fn quota(limit: u64, period: u64) -> Quota {
    Quota::new(limit, Duration::from_micros(period))
}

proptest! {
    #[test]
    fn sliding_log_agrees_with_the_model((period, _, limit, steps) in schedule()) {
        assert_agrees(SlidingLog::new(quota(limit, period)), Expiring::log(limit, period), period, &steps)?;
    }

    #[test]
    fn strict_sliding_window_agrees_with_the_model((period, blocks, limit, steps) in schedule()) {
        let window = SlidingWindow::new(quota(limit, period)).blocks(blocks);
        assert_agrees(window, Expiring::strict(limit, period, blocks), period / blocks, &steps)?;
    }

    #[test]
    fn weighted_sliding_window_agrees_with_the_model((period, blocks, limit, steps) in schedule()) {
        let window = SlidingWindow::new(quota(limit, period)).blocks(blocks).weighted();
        let width = period / blocks;
        assert_agrees(window, Weighted { limit, width, blocks, hits: Vec::new() }, width, &steps)?;
    }

    /// The model is the next free time as an exact fraction.
    #[test]
    fn leaky_queue_agrees_with_the_model(
        limit in 1..8_u64,
        period in prop_oneof![Just(7_u64), Just(1_000), Just(1_000_000), Just(7_000_000)],
        waiting in 0..6_u64,
        requests in proptest::collection::vec((0..9_u64, 0..400_u64, proptest::option::of(0..300_u64)), 1..60),
    ) {
        let clock = ManualClock::new();
        let queue = LeakyQueue::new(quota(limit, period)).max_waiting(waiting);
        let limiter = Memory::builder(queue).clock(clock.clone()).build().expect("a limiter");
        // The unit is `1 / limit` of a tick: the spacing of `period / limit` ticks is then a whole number.
        let (unit, spacing) = (u128::from(limit), u128::from(period));
        let mut next_free = 0_u128;
        for (cost, gap, max_delay) in requests {
            clock.advance(Duration::from_micros(gap * period / 100));
            let now = u128::from(clock.now().as_micros()) * unit;
            let delay = next_free.saturating_sub(now);
            let options = AcquireOptions::cost(cost);
            let max_delay_ticks = max_delay.map(|share| share * period / 100);
            let options = max_delay_ticks.map_or(options, |ticks| options.max_delay(Duration::from_micros(ticks)));
            // A request is denied until the queue has space and until the delay is at most the accepted delay.
            let ticks = |span: u128| u64::try_from(span.div_ceil(unit)).expect("a short time");
            let space_after = (delay + u128::from(cost) * spacing).saturating_sub(u128::from(waiting + 1) * spacing);
            let accepted_after = max_delay_ticks.map_or(0, |max_delay| ticks(delay).saturating_sub(max_delay));
            let expected = if cost > waiting + 1 {
                Verdict::ExceedsLimit
            } else {
                match (ticks(space_after).max(accepted_after), ticks(delay)) {
                    (0, 0) => Verdict::Allowed,
                    (0, delay) => Verdict::AllowedAfter(Duration::from_micros(delay)),
                    (wait, _) => Verdict::Denied { retry_after: Duration::from_micros(wait) },
                }
            };
            prop_assert_eq!(limiter.check("key", options).verdict(), expected);
            if expected.is_allowed() && cost > 0 {
                next_free = next_free.max(now) + u128::from(cost) * spacing;
            }
        }
    }

    #[test]
    fn algorithms_do_not_panic_on_any_state_time_and_cost(
        words in proptest::collection::vec(any::<u64>(), Counters::MAX_WORDS),
        hits in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..20),
        now in any::<u64>(), cost in any::<u64>(), held in any::<u64>(), delay in any::<u64>(),
    ) {
        let now = Timestamp::from_micros(now);
        let run = |algorithm: SlidingWindow| {
            let mut state = Counters::zero(algorithm.counter_words());
            state.copy_from_slice(&words[..algorithm.counter_words()]);
            let _ = (algorithm.peek(&state, now, AcquireOptions::cost(cost)), algorithm.snapshot(&state, now).compute());
            algorithm.charge(&mut state, now, Duration::from_micros(delay), cost);
            let _ = algorithm.peek_with_held(&state, now, AcquireOptions::cost(cost), held);
        };
        run(SlidingWindow::new(Quota::per_minute(100)));
        run(SlidingWindow::new(Quota::per_minute(100)).blocks(1).weighted());
        run(SlidingWindow::new(Quota::new(1, Duration::from_secs(73_050 * 86_400))).blocks(60));
        let log = SlidingLog::new(Quota::per_minute(100));
        let mut state = HitLog::new(words[0], words[1], hits.into());
        let _ = (log.peek(&state, now, AcquireOptions::cost(cost)), log.snapshot(&state, now).compute());
        log.charge(&mut state, now, Duration::from_micros(delay), cost);
        let _ = log.peek_with_held(&state, now, AcquireOptions::cost(cost), held);
        let queue = LeakyQueue::new(Quota::per_minute(100));
        let mut state = [words[0], words[1], words[2], words[3]];
        let _ = (queue.peek(&state, now, AcquireOptions::cost(cost)), queue.snapshot(&state, now).compute());
        queue.charge(&mut state, now, Duration::from_micros(delay), cost);
        let _ = queue.peek_with_held(&state, now, AcquireOptions::cost(cost), held);
    }
}

/// Sends a request of cost 1 at each of these times. Returns the times of the admitted requests.
fn admitted(algorithm: impl Algorithm, times: &[u64]) -> Vec<u64> {
    let clock = ManualClock::new();
    let limiter = Memory::builder(algorithm).max_keys(1).clock(clock.clone()).build().expect("a limiter");
    let at = |&time: &u64| {
        clock.set(ManualClock::START.saturating_add(Duration::from_micros(time)));
        limiter.check("key", AcquireOptions::default().max_delay(Duration::ZERO)).is_allowed()
    };
    times.iter().copied().filter(|time| at(time)).collect()
}

/// Returns the maximum number of admissions in any half-open window of the period.
fn max_in_a_window(admitted: &[u64], period: u64) -> usize {
    let within = |from: u64| admitted.iter().filter(|&&time| (from..from + period).contains(&time)).count();
    admitted.iter().map(|&from| within(from)).max().unwrap_or(0)
}

/// Tries all schedules of 0 or `burst` requests at each tick. Returns the maximum number of admissions in a window.
fn max_over_all_schedules(algorithm: impl Algorithm + Copy, period: u64, ticks: u32, burst: u64) -> usize {
    let choices = 2_u64.pow(ticks);
    let schedule = |choice: u64| -> Vec<u64> {
        let ticks = (0..u64::from(ticks)).filter(|tick| choice >> tick & 1 == 1);
        ticks.flat_map(|tick| std::iter::repeat_n(tick, usize::try_from(burst).expect("small"))).collect()
    };
    (0..choices).map(|choice| max_in_a_window(&admitted(algorithm, &schedule(choice)), period)).max().unwrap_or(0)
}

#[test]
fn sliding_log_and_strict_window_admit_exactly_the_limit_in_any_window() {
    for limit in 1..=3 {
        assert_eq!(
            max_over_all_schedules(SlidingLog::new(quota(limit, 4)), 4, 10, limit),
            usize::try_from(limit).expect("small")
        );
        for blocks in [1, 2, 4] {
            let strict = SlidingWindow::new(quota(limit, 4)).blocks(blocks);
            assert_eq!(
                max_over_all_schedules(strict, 4, 10, limit),
                usize::try_from(limit).expect("small"),
                "{blocks} blocks"
            );
        }
    }
}

#[test]
fn weighted_window_reaches_and_never_exceeds_twice_the_limit_less_one() {
    for limit in 1..=3_u64 {
        let bound = usize::try_from(2 * limit - 1).expect("small");
        for blocks in [1, 2, 4] {
            let weighted = SlidingWindow::new(quota(limit, 4)).blocks(blocks).weighted();
            assert!(max_over_all_schedules(weighted, 4, 10, limit) <= bound, "{limit} in {blocks} blocks");
        }
        // The bound is reached: the whole limit at the end of a block, then one by one as the estimate allows.
        let (period, limit) = (1_000_000, limit * 10);
        for blocks in [1_u64, 2, 5] {
            let weighted = SlidingWindow::new(quota(limit, period)).blocks(blocks).weighted();
            let width = period / blocks;
            // After the period, the share of the first block decreases to zero.
            let times = std::iter::repeat_n(width - 1, usize::try_from(limit).expect("small"))
                .chain((0..=width).map(|tick| period + tick * (width / 1_000).max(1)).take(1_001))
                .collect::<Vec<_>>();
            let max = max_in_a_window(&admitted(weighted, &times), period);
            assert_eq!(max, usize::try_from(2 * limit - 1).expect("small"), "{limit} in {blocks} blocks");
        }
    }
}

#[test]
fn sliding_log_never_denies_requests_within_the_limit() {
    let times: Vec<u64> = (0..200).map(|second| second * 1_000_000).collect();
    assert_eq!(admitted(SlidingLog::new(Quota::new(5, Duration::from_secs(5))), &times).len(), times.len());
}

/// 20, 100, 100 and 20 requests in consecutive half minutes, spaced evenly, at a limit of 120 a minute. The table lists
/// the maximum that each algorithm admits within one minute.
#[test]
fn algorithms_admit_their_documented_maximum_of_bursts_in_half_minutes() {
    let half = 30_000_000;
    let evenly = |index: u64, count: u64| (0..count).map(move |request| index * half + request * half / count);
    let times: Vec<u64> =
        [20, 100, 100, 20].into_iter().zip(0..).flat_map(|(count, index)| evenly(index, count)).collect();
    let quota = Quota::per_minute(120);
    let max = |admitted: &[u64]| max_in_a_window(admitted, 2 * half);
    let table = [
        ("fixed window, aligned", max(&admitted(FixedWindow::new(quota).aligned_to_clock(), &times)), 200),
        ("fixed window, from the first hit", max(&admitted(FixedWindow::new(quota), &times)), 200),
        ("gcra", max(&admitted(Gcra::new(quota), &times)), 200),
        ("token bucket", max(&admitted(TokenBucket::new(quota), &times)), 200),
        ("leaky bucket", max(&admitted(LeakyBucket::new(quota), &times)), 200),
        // These admit one request each half second; requests come each 300 milliseconds.
        ("gcra, strict", max(&admitted(Gcra::new(quota).strict(), &times)), 100),
        ("leaky queue without waiting", max(&admitted(LeakyQueue::new(quota).max_waiting(0), &times)), 100),
        (
            "sliding window, weighted, one block",
            max(&admitted(SlidingWindow::new(quota).blocks(1).weighted(), &times)),
            159,
        ),
        ("sliding window, weighted, ten blocks", max(&admitted(SlidingWindow::new(quota).weighted(), &times)), 120),
        ("sliding window, strict", max(&admitted(SlidingWindow::new(quota), &times)), 120),
        ("sliding log", max(&admitted(SlidingLog::new(quota), &times)), 120),
    ];
    for (name, max, expected) in table {
        assert_eq!(max, expected, "{name}");
    }
}

#[test]
fn leaky_queue_schedules_starts_at_constant_spacing() {
    let clock = ManualClock::new();
    let queue = LeakyQueue::new(Quota::per_second(10)).max_waiting(5);
    let limiter = Memory::builder(queue).clock(clock.clone()).build().expect("a limiter");
    let departures: Vec<_> = (0..10)
        .filter_map(|_| {
            let decision = limiter.check("key", AcquireOptions::default());
            decision.is_allowed().then(|| decision.delay().as_millis())
        })
        .collect();
    assert_eq!(departures, [0, 100, 200, 300, 400, 500]);
    let denied = limiter.check("key", AcquireOptions::default());
    assert_eq!(denied.retry_after(), Some(Duration::from_millis(100)));
}

#[test]
fn log_window_and_bucket_decide_as_one_transaction() {
    let clock = ManualClock::new();
    let limits = (
        Limit::new("log", SlidingLog::new(quota(3, 1_000))),
        Limit::new("window", SlidingWindow::new(quota(5, 10_000)).blocks(1)),
        Limit::new("bucket", Gcra::new(quota(1, 500)).burst(4)),
    );
    let limiter = Memory::builder(limits).clock(clock.clone()).build().expect("a limiter");
    let allowed = || limiter.check("key", AcquireOptions::default());
    assert!((0..3).all(|_| allowed().is_allowed()));
    assert_eq!(allowed().retry_after(), Some(Duration::from_millis(1)), "the log is full");
    clock.advance(Duration::from_millis(1));
    assert!(allowed().is_allowed() && allowed().is_allowed());
    // The window is the most restrictive limit: it is full until its block expires.
    assert_eq!(allowed().retry_after(), Some(Duration::from_millis(19)));
    // A denial charges no limit: the next decision is equal.
    let denied = allowed();
    assert_eq!(denied, allowed());
    // A log does not schedule starts, so a limiter with a log does not either.
    let with_max_delay = limiter.check("key", AcquireOptions::default().max_delay(Duration::from_secs(1)));
    assert!(matches!(with_max_delay.verdict(), Verdict::Denied { .. }));
}

#[test]
fn sliding_log_stores_at_most_its_limit_when_overcharged() {
    let algorithm = SlidingLog::new(quota(3, 1_000));
    let mut log = HitLog::default();
    for tick in 0..100 {
        algorithm.charge(&mut log, ManualClock::START.saturating_add(Duration::from_micros(tick)), Duration::ZERO, 5);
        assert!(log.hits().len() <= 3);
    }
    let error =
        Memory::<u64, _>::builder(SlidingLog::new(Quota::per_hour(100_000))).build().expect_err("too much memory");
    assert!(error.is_config() && error.to_string().contains("max_heap_bytes"), "{error}");
    assert!(Memory::<u64, _>::builder(SlidingLog::new(Quota::per_hour(100_000))).max_keys(100).build().is_ok());
}

/// A log takes the documented 16 bytes a hit: it reserves no capacity beyond the limit and stores no hit of weight 0.
#[test]
fn sliding_log_reserves_no_more_than_its_limit() {
    let at = |tick| ManualClock::START.saturating_add(Duration::from_micros(tick));
    for limit in [1, 3, 5, 6, 7, 100] {
        let algorithm = SlidingLog::new(quota(limit, 1_000));
        let (mut log, mut other) = (HitLog::default(), HitLog::default());
        for tick in 0..limit {
            algorithm.charge(&mut log, at(tick), Duration::ZERO, 1);
            algorithm.charge(&mut other, at(tick + tick % 2), Duration::ZERO, 1 + tick % 2);
        }
        assert_eq!(log.hits().len() as u64, limit);
        assert!(log.hits().capacity() as u64 <= limit, "{} of {limit}", log.hits().capacity());
        assert_eq!(algorithm.max_heap_bytes() as u64, limit * 16);
        algorithm.carry_over_debt(&mut log, &other, at(limit));
        assert!(log.hits().len() as u64 <= limit);
        assert!(log.hits().iter().all(|&(_, weight)| weight > 0), "{log:?}");
    }
    // Costs above 1, so that both logs together have more hits than the limit.
    let algorithm = SlidingLog::new(quota(3, 1_000));
    let (mut log, mut other) = (HitLog::default(), HitLog::default());
    for tick in [0, 2, 4] {
        algorithm.charge(&mut log, at(tick), Duration::ZERO, 2);
        algorithm.charge(&mut other, at(tick + 1), Duration::ZERO, if tick == 4 { 1 } else { 2 });
    }
    algorithm.carry_over_debt(&mut log, &other, at(5));
    assert_eq!((log.hits().len(), log.hits().iter().map(|&(_, weight)| weight).sum::<u64>()), (3, 6), "{log:?}");
}

#[test]
fn invalid_windows_are_errors_when_built() {
    let window = SlidingWindow::new(Quota::per_minute(100));
    for blocks in [0, 61, 7_000] {
        assert!(window.try_blocks(blocks).expect_err("invalid number of blocks").to_string().contains("1 to 60"));
    }
    let odd = SlidingWindow::new(Quota::new(10, Duration::from_micros(13)));
    assert!(odd.try_blocks(2).expect_err("13 is odd").to_string().contains("divides the period"));
    assert!(format!("{odd:?}").contains("blocks: 1,"), "{odd:?}");
    assert!(window.try_blocks(60).is_ok() && window.try_blocks(1).is_ok());
    let pair = |limit| SlidingWindow::new(quota(limit, 2)).blocks(1);
    assert!(pair(1 << 52).try_weighted().is_ok() && pair((1 << 52) + 1).try_weighted().is_err());
    let day = SlidingWindow::new(Quota::per_day(10_000_000)).blocks(1);
    assert!(day.try_weighted().expect_err("too long").to_string().contains("choose more blocks"));
    assert!(
        SlidingLog::try_new(Quota::per_day(1_000_001))
            .expect_err("too many hits")
            .to_string()
            .contains("SlidingWindow")
    );
}

#[test]
fn clock_that_steps_back_neither_refills_nor_locks() {
    fn check(algorithm: impl Algorithm) {
        let name = format!("{algorithm:?}");
        let longest = algorithm.max_reset();
        let clock = ManualClock::new();
        let limiter = Memory::builder(algorithm).clock(clock.clone()).build().expect("a limiter");
        let start = clock.now();
        let allowed = || limiter.check("key", AcquireOptions::default().max_delay(Duration::ZERO)).is_allowed();
        while allowed() {}
        clock.set(Timestamp::from_micros(start.as_micros() - 5));
        assert!(!allowed(), "{name}: a small step back does not refill");
        clock.set(Timestamp::from_micros(start.as_micros() - u64::try_from(longest.as_micros()).expect("short") - 1));
        assert!(allowed(), "{name}: a large step back does not lock the key");
    }
    let quota = Quota::per_second(3);
    check(SlidingLog::new(quota));
    check(SlidingWindow::new(quota));
    check(SlidingWindow::new(quota).blocks(1).weighted());
    check(LeakyQueue::new(quota));
    check(FixedWindow::new(quota));
    check(Gcra::new(quota));
}

#[test]
fn concurrent_threads_admit_exactly_the_quota() {
    fn check(algorithm: impl Algorithm, quota: usize) {
        let name = format!("{algorithm:?}");
        let limiter = Memory::builder(algorithm).clock(ManualClock::new()).build().expect("a limiter");
        let admitted: usize = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..500).filter(|_| limiter.check("key", AcquireOptions::default()).is_allowed()).count()
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().expect("a worker")).sum()
        });
        assert_eq!(admitted, quota, "{name}");
    }
    check(SlidingLog::new(Quota::per_minute(300)), 300);
    check(SlidingWindow::new(Quota::per_minute(300)), 300);
    check(SlidingWindow::new(Quota::per_minute(300)).blocks(1).weighted(), 300);
    check(LeakyQueue::new(Quota::per_minute(300)).max_waiting(299), 300);
}
