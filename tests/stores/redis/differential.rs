//! Memory and Redis decide a random trace identically, field by field.
//!
//! Both stores read one manual clock.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tower_ratelimit::algorithm::LuaAlgorithm;
use tower_ratelimit::limiter::{AdminOperation, Chained, Escalating, Escalation, Held, LimiterFuture, Outcome};
use tower_ratelimit::store::RedisLimit;
use tower_ratelimit::{
    AcquireOptions, BlockReason, BoxLimiter, Calendar, Clock as _, Costs, Decision, Detail, DynLimit, Error,
    FixedWindow, Gcra, InFlight, LeakyBucket, LeakyQueue, Limit, LimitStatus, Limiter, ManualClock, Memory, PerKey,
    Quota, Redis, RedisBuilder, RedisCell, RedisServer, SlidingLog, SlidingWindow, Timestamp, TokenBucket, Verdict,
    Weekday, per_key,
};

use crate::cell;
use crate::deployments::Deployments;
use crate::helpers::{LONG_DEADLINE, ONE_DAY, acquire};
use crate::random::Random;

#[derive(Clone, Copy, Debug)]
struct Caller {
    user: u64,
    team: u64,
    tier: usize,
}

/// A part of the caller, or units that a limit keeps free. Function pointers, so that few types of limits are compiled.
type Part = fn(&Caller) -> u64;
type Condition = fn(&Caller) -> bool;

const USER: Part = |caller| caller.user;
const TEAM: Part = |caller| caller.team;
const ALL: fn(&Caller) = |_| ();

/// A limit of the traces, which makes it for each store. The limits in memory are a list: `memory: listed_limits` compares
/// lists with tuples.
type TraceLimit = Box<dyn Fn() -> (DynLimit<Caller>, RedisLimit<Caller>)>;

macro_rules! limits {
    ($($limit:expr),+ $(,)?) => {
        vec![$({
            let limit = $limit;
            Box::new(move || (DynLimit::new(limit.clone()), RedisLimit::new(limit.clone()))) as TraceLimit
        }),+]
    };
}

mod memory_and_redis_agree;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trace {
    Plain,
    /// A third of the requests hold their cost.
    Holds,
    /// Most requests and holds have ids, which callers send again, settle and let expire. One at a time, because a repeat of a
    /// request takes two calls. All times are multiples of a span for which Redis rounds no expiry.
    Ids,
    /// The clock steps back. Without blocks, which then last longer in Redis: see docs/redis.md.
    ClockSteps,
    /// Hours and days pass instead of milliseconds.
    Months,
}

const WITHOUT_IDS: [Trace; 2] = [Trace::Plain, Trace::Holds];
const BACK_WITHOUT_IDS: [Trace; 3] = [Trace::Plain, Trace::Holds, Trace::ClockSteps];
const FORWARD: [Trace; 3] = [Trace::Plain, Trace::Ids, Trace::Holds];
const ALSO_BACK: [Trace; 4] = [Trace::Plain, Trace::Ids, Trace::Holds, Trace::ClockSteps];

/// The decisions of a trace, unless `DIFFERENTIAL_STEPS` is set.
const STEPS: u64 = 400;

/// The times of traces with ids are multiples of this: 125 us, doubled ten times.
const ID_SPAN: Duration = Duration::from_millis(128);
/// The ids of a trace, of which each key has at most [`MAX_IDS`].
const IDS: u64 = 4;
const MAX_IDS: usize = 3;

/// Ten years. The scripts compute exactly up to the year 2255, and the longest period is 200 years.
const LONG: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// A hasher without a random seed, and a table so large that no two keys of a trace have a slot in common.
///
/// If a key takes the slot of an idle one, and the clock then steps back, memory decides absent keys at the time at
/// which that key was idle, and Redis decides them now. With random seeds some runs had such a pair of keys.
type FixedHasher = BuildHasherDefault<DefaultHasher>;
const MAX_KEYS: usize = 10_000;

/// What the traces of a name have seen.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    decisions: u64,
    blocked: u64,
    /// The limits without units that decided.
    of_zero: u64,
    /// Requests and holds with an id that is known, and settlements by an id.
    repeats: u64,
    settled: u64,
}

/// Returns a reason. Redis keeps that of an escalation up to the year 2112.
fn block_reason(random: &mut Random, now: Timestamp) -> BlockReason {
    let is_escalation = random.below(2) == 0 && now < Timestamp::from_micros(1 << 52);
    if is_escalation { BlockReason::Escalation } else { BlockReason::Administrator }
}

/// How the requests of a trace come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrivals {
    /// Up to 16 at a time, which Redis decides in one batch.
    Together,
    OneByOne,
    /// One by one, because a request of a chain waits between its limiters. A chain charges its first limiter after it has
    /// answered, before the second of two later calls.
    InChain,
}

/// Runs traces with several requests at a time.
async fn compare(traces: &[Trace], name: &str, limits: Vec<TraceLimit>) -> Seen {
    compare_limits(traces, name, &limits, Arrivals::Together).await
}

async fn compare_limits(traces: &[Trace], name: &str, limits: &[TraceLimit], arrivals: Arrivals) -> Seen {
    compare_limiters(traces, name, arrivals, &|server, name, clock| {
        (in_memory(limits, clock), in_redis(server, name, limits, clock))
    })
    .await
}

/// Compares chains of two limiters.
async fn compare_chains(name: &str, limits: [Vec<TraceLimit>; 2]) -> Seen {
    compare_limiters(&[Trace::Holds], name, Arrivals::InChain, &|server, name, clock| {
        let [first, second] = limits.each_ref().map(|limits| in_memory(limits, clock));
        let memory = BoxLimiter::new(Chained::new(first, second));
        let [first, second] =
            [0, 1].map(|index: usize| in_redis(server, &format!("{name} {index}"), &limits[index], clock));
        (memory, BoxLimiter::new(Chained::new(first, second)))
    })
    .await
}

/// Limiters of several processes. A caller's tier is its process.
struct Processes([BoxLimiter<Caller>; 3]);

impl Limiter<Caller> for Processes {
    fn acquire(&self, caller: &Caller, options: AcquireOptions) -> LimiterFuture<Outcome> {
        self.0[caller.tier].acquire(caller, options)
    }

    fn peek(&self, caller: &Caller, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.0[caller.tier].peek(caller, options)
    }

    fn administer(&self, caller: &Caller, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.0[caller.tier].administer(caller, operation)
    }
}

/// Compares three processes with other limits of one name, as before and after a deployment, with one limiter in memory
/// with three tiers.
async fn compare_processes<A: LuaAlgorithm + Clone>(name: &str, tiers: [A; 3]) {
    let all = limits![Limit::new("one", by_tier(tiers.clone())).keyed_by(USER)];
    let processes = tiers.map(|one| limits![Limit::new("one", one).keyed_by(USER)]);
    compare_limiters(&[Trace::Holds], name, Arrivals::OneByOne, &|server, name, clock| {
        let processes = processes.each_ref().map(|limits| in_redis(server, name, limits, clock));
        (in_memory(&all, clock), BoxLimiter::new(Processes(processes)))
    })
    .await;
}

/// The algorithm of the caller's tier.
fn by_tier<A: LuaAlgorithm + Clone>(tiers: [A; 3]) -> PerKey<impl Fn(&Caller) -> A + Clone + Send + Sync + 'static, A> {
    per_key(move |caller: &Caller| tiers[caller.tier].clone())
}

fn in_memory(limits: &[TraceLimit], clock: &ManualClock) -> BoxLimiter<Caller> {
    let limits: Vec<_> = limits.iter().map(|limit| limit().0).collect();
    let memory = Memory::builder(limits).max_keys(MAX_KEYS).hasher(FixedHasher::default());
    BoxLimiter::new(memory.max_reservation_ids(MAX_IDS).clock(clock.clone()).build().expect("limits"))
}

fn in_redis(server: &RedisServer, name: &str, limits: &[TraceLimit], clock: &ManualClock) -> BoxLimiter<Caller> {
    BoxLimiter::new(redis(server, name, limits, clock).build().expect("limits"))
}

fn redis(server: &RedisServer, name: &str, limits: &[TraceLimit], clock: &ManualClock) -> RedisBuilder<Caller> {
    let limits: Vec<_> = limits.iter().map(|limit| limit().1).collect();
    let redis = Redis::builder(server.clone(), name, limits).clock_for_tests(clock.clone()).hold_expiry(ONE_DAY);
    redis.max_reservation_ids(MAX_IDS).deadline(LONG_DEADLINE)
}

/// Makes the limiters in memory and in Redis.
type MakeLimiters<'a> = &'a dyn Fn(&RedisServer, &str, &ManualClock) -> (BoxLimiter<Caller>, BoxLimiter<Caller>);

/// Runs traces on the limiters that `make` returns for a deployment. Each trace runs on a single Redis, and a short one on
/// another deployment, as the script is equal on all of them.
async fn compare_limiters(traces: &[Trace], name: &str, arrivals: Arrivals, make: MakeLimiters<'_>) -> Seen {
    let deployments = Deployments::shared();
    let steps = std::env::var("DIFFERENTIAL_STEPS").map_or(STEPS, |steps| steps.parse().expect("a number"));
    let mut seen = Seen::default();
    for &trace in traces {
        // Each name has a seed of its own, and another deployment.
        let seed = name.bytes().fold(trace as u64, |seed, byte| seed * 31 % 1_000_003 + u64::from(byte));
        let (alone, others) = deployments.each();
        let other = others.get(usize::try_from(seed).expect("small") % others.len().max(1)).cloned();
        for (index, (deployment, server)) in [Some(alone), other].into_iter().flatten().enumerate() {
            let arrivals = if trace == Trace::Ids { Arrivals::OneByOne } else { arrivals };
            // Requests that come one by one take longer.
            let part = if index > 0 { 4 } else { 1 + u64::from(arrivals != Arrivals::Together) };
            // The name is unique, because tests share the deployments.
            let (name, clock) = (format!("{name} {trace:?} on {deployment}"), ManualClock::new());
            let (memory, redis) = make(&server, &name, &clock);
            let pair = Pair { memory, redis, clock, name, trace, arrivals, seen };
            seen = pair.compare(seed, steps / part).await;
        }
    }
    seen
}

/// A limiter in memory and one in Redis, which run a trace.
struct Pair {
    memory: BoxLimiter<Caller>,
    redis: BoxLimiter<Caller>,
    clock: ManualClock,
    name: String,
    trace: Trace,
    arrivals: Arrivals,
    seen: Seen,
}

impl Pair {
    async fn compare(mut self, seed: u64, steps: u64) -> Seen {
        let mut random = Random::new(seed);
        let units = self.units().await;
        let mut held: Vec<(Held, Held)> = Vec::new();
        let (before, mut wait) = (self.seen, None);
        while self.seen.decisions < before.decisions + steps {
            let (memory, redis, trace) = (&self.memory, &self.redis, self.trace);
            advance(&self.clock, &mut random, wait.take(), trace);
            let caller = self.caller(&mut random);
            match random.below(40) {
                0 => {
                    let options = random_options(&mut random, &units, 0);
                    let from_redis = redis.peek(&caller, options).await.expect("an answer");
                    let from_memory = memory.peek(&caller, options).await.expect("an answer");
                    check_agreement(&from_memory, &from_redis, &format!("{} {:?} peek", self.name, self.seen));
                }
                1 => {
                    memory.reset(&caller).await.expect("done");
                    redis.reset(&caller).await.expect("done");
                }
                2 if trace != Trace::ClockSteps => {
                    // Also the shortest blocks: none, and of microseconds.
                    let micros = if random.below(3) == 0 { random.below(4) } else { random.below(4_000_000) };
                    let duration = Duration::from_micros(micros);
                    let Some(limit) = self.limit_of(&mut random, &caller).await else { continue };
                    let reason = block_reason(&mut random, self.clock.now());
                    let block = AdminOperation::Block { limit: &limit, duration, reason };
                    memory.administer(&caller, block).await.expect("done");
                    redis.administer(&caller, block).await.expect("done");
                }
                3 => {
                    // A usage of zero deletes the key in Redis. The memory store keeps the time, which only matters if the
                    // clock then steps back.
                    let used = random.below(9).max(u64::from(trace == Trace::ClockSteps));
                    let Some(limit) = self.limit_of(&mut random, &caller).await else { continue };
                    memory.set_usage(&limit, &caller, used).await.expect("done");
                    redis.set_usage(&limit, &caller, used).await.expect("done");
                }
                4 if trace != Trace::ClockSteps => self.compare_extremes(&caller, &mut random).await,
                5..=12 if !held.is_empty() => {
                    let index = random.index(held.len());
                    let (ours, theirs) = held.swap_remove(index);
                    if random.below(4) == 0 {
                        ours.release().await.expect("done");
                        theirs.release().await.expect("done");
                    } else {
                        let actual = random_actual(&mut random, &ours.costs(), &units);
                        ours.settle(actual).await.expect("done");
                        theirs.settle(actual).await.expect("done");
                    }
                }
                13..=20 if trace == Trace::Ids => self.compare_settlements(&caller, &mut random, &units).await,
                _ => {
                    let decided = self.compare_decisions(caller, &mut random, &units).await;
                    wait = decided.1.or(wait);
                    held.extend(decided.0);
                    // After the batch: Redis has decided all of it.
                    while held.len() > 40 {
                        let (ours, theirs) = held.remove(0);
                        ours.release().await.expect("done");
                        theirs.release().await.expect("done");
                    }
                }
            }
        }
        if self.trace == Trace::Ids {
            let of_trace = self.seen.repeats + self.seen.settled - before.repeats - before.settled;
            assert!(of_trace > 0 || steps < 200, "{}: {of_trace} of {steps}", self.name);
        }
        // Dropped guards settle the whole cost: in Redis some time later.
        drop(held);
        self.seen
    }

    /// Decides several requests at a time, which Redis decides in one batch. Returns the guards, and the wait of a denied one.
    async fn compare_decisions(
        &mut self,
        caller: Caller,
        random: &mut Random,
        units: &[&'static str],
    ) -> (Vec<(Held, Held)>, Option<Duration>) {
        let is_single = self.arrivals != Arrivals::Together || random.below(2) == 0;
        let count = if is_single { 1 } else { random.between(1, 16) };
        let requests: Vec<_> = (0..count)
            .map(|_| {
                let caller = if random.below(2) == 0 { caller } else { self.caller(random) };
                // In memory, a cost of zero also moves the key's time.
                let min_cost = u64::from(self.trace == Trace::ClockSteps);
                let options = match self.trace {
                    Trace::Ids => options_with_id(random, units),
                    _ => random_options(random, units, min_cost),
                };
                (caller, if self.trace == Trace::Holds && random.below(3) == 0 { options.hold() } else { options })
            })
            .collect();
        let (mut held, mut wait) = (Vec::new(), None);
        let from_redis = join_all(requests.iter().map(|(caller, options)| self.redis.acquire(caller, *options)));
        for ((caller, options), theirs) in requests.iter().zip(from_redis.await) {
            let ours = self.memory.acquire(caller, *options).await;
            let context = format!("{} {:?} {caller:?} {options:?}", self.name, self.seen);
            self.seen.decisions += 1;
            let (ours, theirs) = match (ours, theirs) {
                (Ok(ours), Ok(theirs)) => (ours, theirs),
                (ours, theirs) => {
                    let [ours, theirs] = [ours, theirs].map(|result| result.map_err(|error| kind_of(&error)));
                    let kinds = [ours.err(), theirs.err()];
                    assert!(kinds[0].is_some() && kinds[0] == kinds[1], "{context}: {kinds:?}");
                    self.seen.repeats += 1;
                    continue;
                }
            };
            check_agreement(&ours.decision, &theirs.decision, &context);
            assert_eq!(ours.held.is_some(), theirs.held.is_some(), "{context}");
            wait = ours.decision.retry_after().or(wait);
            self.seen.of_zero += limits_of_zero(&ours.decision, options.cost);
            self.seen.blocked += u64::from(ours.decision.is_blocked());
            self.seen.repeats += u64::from(ours.decision.is_repeat());
            held.extend(ours.held.zip(theirs.held));
        }
        for _ in 0..if self.arrivals == Arrivals::InChain { 2 } else { 0 } {
            let _ = self.redis.peek(&caller, AcquireOptions::cost(0)).await.expect("an answer");
        }
        (held, wait)
    }

    /// Settles or releases a hold by its id, which may be unknown, settled or expired.
    async fn compare_settlements(&mut self, caller: &Caller, random: &mut Random, units: &[&'static str]) {
        let id = random_id(random);
        let actual = random_actual(random, &Costs::from(options_of_id(id, units).cost), units);
        let (id, releases) = (id.to_string(), random.below(4) == 0);
        let [ours, theirs] = [&self.memory, &self.redis]
            .map(|limiter| if releases { limiter.release(caller, &id) } else { limiter.settle(caller, &id, actual) });
        let (ours, theirs) =
            (ours.await.map_err(|error| kind_of(&error)), theirs.await.map_err(|error| kind_of(&error)));
        assert_eq!(ours, theirs, "{} {:?} {caller:?} settles {id} by {actual:?}", self.name, self.seen);
        self.seen.settled += u64::from(ours.is_ok());
    }

    /// Returns a caller. Few clients send ids, so that they send them again.
    fn caller(&self, random: &mut Random) -> Caller {
        let tier = if random.below(10) == 0 { random.index(3) } else { 0 };
        let user = if self.trace == Trace::Ids && random.below(4) > 0 { 2 } else { random.below(3) };
        Caller { user, team: if self.trace == Trace::Ids { 1 } else { random.below(2) }, tier }
    }

    /// The units that some limit names: a peek in another one is an error.
    async fn units(&self) -> Vec<&'static str> {
        let mut units = Vec::new();
        for unit in ["input", "output", "dollars", "streams"] {
            let (caller, cost) = (Caller { user: 2, team: 1, tier: 0 }, Costs::new().add(unit, 0));
            units.extend(self.memory.peek(&caller, cost.into()).await.is_ok().then_some(unit));
        }
        units
    }

    /// The name of a random limit that applies.
    async fn limit_of(&self, random: &mut Random, caller: &Caller) -> Option<String> {
        let options = AcquireOptions::default().detail(Detail::All);
        let decision = self.memory.peek(caller, options).await.expect("an answer");
        let names: Vec<_> = decision.limits().iter().map(LimitStatus::name).collect();
        if names.is_empty() { None } else { Some(names[random.index(names.len())].to_owned()) }
    }

    /// The largest numbers, and what both refuse. The usage is reset afterwards, because no request would pass again.
    async fn compare_extremes(&self, caller: &Caller, random: &mut Random) {
        let (memory, redis, name) = (&self.memory, &self.redis, &self.name);
        let Some(limit) = self.limit_of(random, caller).await else { return };
        let huge = random.choose(&[1 << 40, 1 << 53, u64::MAX]);
        let operations = [
            AdminOperation::SetUsage { limit: &limit, used: huge },
            AdminOperation::SetUsage { limit: "unknown", used: 1 },
            AdminOperation::Block { limit: "unknown", duration: Duration::MAX, reason: BlockReason::Administrator },
            AdminOperation::Block { limit: &limit, duration: Duration::MAX, reason: BlockReason::Administrator },
        ];
        let operation = random.choose(&operations);
        let results = [memory.administer(caller, operation).await, redis.administer(caller, operation).await];
        let [ours, theirs] = results.map(|result| result.map_err(|error| error.is_config()));
        assert_eq!(ours, theirs, "{name} {operation:?}");
        let of = |cost| AcquireOptions::cost(cost).keep_guard().max_delay(Duration::MAX).detail(Detail::All);
        let requests = [of(1), of(huge), of(huge).hold(), AcquireOptions::default().detail(Detail::All)];
        for options in requests {
            match (memory.acquire(caller, options).await, redis.acquire(caller, options).await) {
                (Ok(ours), Ok(theirs)) => {
                    // Not the waits: times end in the year 2112 in Redis, and with 64 bits in memory.
                    let facts = |decision: &Decision| {
                        let remaining: Vec<_> = decision.limits().iter().map(LimitStatus::remaining).collect();
                        (decision.is_allowed(), decision.exceeds_limit(), decision.is_blocked(), remaining)
                    };
                    let decisions = [ours.decision, theirs.decision].map(|decision| facts(&decision));
                    assert_eq!(decisions[0], decisions[1], "{name} {caller:?} {operation:?} {options:?}");
                    for held in [ours.held, theirs.held].into_iter().flatten() {
                        held.settle(u64::MAX).await.expect("done");
                    }
                }
                // Without a guard, limits on requests in flight decide nothing.
                (Err(ours), Err(theirs)) => assert!(ours.is_config() && theirs.is_config(), "{ours} {theirs}"),
                (ours, theirs) => panic!("{name} {options:?}: {ours:?} {theirs:?}"),
            }
        }
        for limiter in [memory, redis] {
            limiter.block(&limit, caller, Duration::ZERO).await.expect("done");
            limiter.reset(caller).await.expect("done");
        }
    }
}

/// Requires equal decisions, field by field.
fn check_agreement(ours: &Decision, theirs: &Decision, context: &str) {
    if ours.is_repeat() {
        // Its numbers are those of a peek: a share that settlements have overdrawn is listed in Redis only.
        assert_eq!(answer_of(ours), answer_of(theirs), "{context}");
    } else if ours != theirs {
        let comparable = [ours, theirs].map(without_bounds);
        assert!(comparable[0] == comparable[1], "{context}: {ours:?}\n{theirs:?}");
    }
    assert_eq!(ours.is_estimate(), theirs.is_estimate(), "{context}");
}

/// Returns a decision as text. If a block denies the request, without the time of the next token of limits of which nothing
/// remains: such a limit may keep units free from the request, and then the time is an upper bound, which depends on the store.
fn without_bounds(decision: &Decision) -> String {
    let text = format!("{decision:?}");
    if !decision.is_blocked() {
        return text;
    }
    let is_bounded = |limit: &LimitStatus| limit.snapshot().next_token_after <= limit.reset();
    assert!(decision.limits().iter().all(is_bounded), "{decision:?}");
    let mut parts = text.split("remaining: 0, reset: ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (reset, rest) = part.split_once(", next_token_after: ").expect("a snapshot");
        format!("{text}{reset}{}", rest.split_once(" }").expect("its end").1)
    })
}

/// What a decision says, without the numbers of limits.
fn answer_of(decision: &Decision) -> (Verdict, [bool; 4]) {
    let flags = [decision.is_repeat(), decision.is_blocked(), decision.is_estimate(), decision.supports_scheduling()];
    (decision.verdict(), flags)
}

/// What an error of an id says: a conflict, an end, or an unknown id.
fn kind_of(error: &Error) -> [bool; 3] {
    let kind = [error.is_id_conflict(), error.is_already_settled(), error.is_unknown_id()];
    assert!(kind.contains(&true), "{error:?}");
    kind
}

/// Returns the number of limits without units that decided. Each cost exceeds such a limit, whatever the key has used in
/// another tier.
fn limits_of_zero(decision: &Decision, cost: u64) -> u64 {
    let of_zero = || decision.limits().iter().filter(|limit| limit.limit() == 0);
    for limit in of_zero() {
        let is_excess = limit.verdict() == Verdict::ExceedsLimit || decision.is_blocked();
        assert!(cost == 0 || is_excess && limit.remaining() == 0, "{cost}: {decision:?}");
    }
    of_zero().count() as u64
}

/// Below, at and above the held cost, on each limit.
fn random_actual(random: &mut Random, held: &Costs, units: &[&'static str]) -> Costs {
    let actual = Costs::from(random.below(held.number().unwrap_or(0) + 3));
    units.iter().fold(actual, |costs, unit| costs.add(unit, random.below(held.of(unit) + 3)))
}

/// Advances by zero up to a time after which every key is idle, or to the moments around the one at which a denied
/// request is allowed.
fn advance(clock: &ManualClock, random: &mut Random, wait: Option<Duration>, trace: Trace) {
    let (now, steps_back) = (clock.now(), trace == Trace::ClockSteps);
    let wait = wait.filter(|wait| *wait < LONG && random.below(4) == 0);
    if trace == Trace::Ids {
        let spans = wait.map(|wait| wait.as_micros().div_ceil(ID_SPAN.as_micros()));
        let spans = spans.map_or_else(
            || random.choose(&[0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 4, 20]),
            |spans| u32::try_from(spans).unwrap_or(u32::MAX),
        );
        return clock.advance(ID_SPAN * spans);
    }
    if let Some(wait) = wait {
        return clock.advance(wait.saturating_sub(Duration::from_micros(random.below(3))));
    }
    if steps_back && now > ManualClock::START.saturating_add(LONG) {
        return clock.set(ManualClock::START);
    }
    if steps_back && random.below(8) == 0 {
        let most = if random.below(2) == 0 { 300_000 } else { 20_000_000 };
        return clock.set(Timestamp::from_micros(now.as_micros() - random.below(most)));
    }
    let micros = match random.below(12) {
        0..=3 => 0,
        4 => random.below(4),
        5..=8 => random.below(300_000),
        9 | 10 => random.below(2_000_000),
        _ => random.below(9_000_000),
    };
    // From minutes to two weeks.
    clock.advance(Duration::from_micros(if trace == Trace::Months { micros * 130_000 } else { micros }));
}

fn random_options(random: &mut Random, units: &[&'static str], min_cost: u64) -> AcquireOptions {
    let mut costs = Costs::from([1, 1, 1, 1, 2, 3, 0, 7][random.index(8)].max(min_cost));
    for unit in units {
        // Some units are left out.
        if random.below(4) > 0 {
            costs = costs.add(unit, [1, 1, 2, 3, 0, 7][random.index(6)]);
        }
    }
    let max_delay = match random.below(6) {
        0 => Some(Duration::ZERO),
        1 => Some(Duration::from_micros(random.below(3_000_000))),
        _ => None,
    };
    let details = [Detail::MostRestrictive, Detail::AllIfDenied, Detail::All];
    // Limits on requests in flight hold in each trace.
    AcquireOptions::from(costs).keep_guard().max_delay(max_delay).detail(details[random.index(3)])
}

/// Returns an id, more often one of the first two.
fn random_id(random: &mut Random) -> u64 {
    let count = if random.below(4) == 0 { IDS } else { 2 };
    random.below(count)
}

/// The request that a client sends with an id.
fn options_of_id(id: u64, units: &[&'static str]) -> AcquireOptions {
    let (options, cost) = (random_options(&mut Random::new(id), units, 0), 1 + id % 2);
    // Small, so that most ids are remembered.
    let costs = units.iter().fold(Costs::from(cost), |costs, unit| costs.add(unit, cost));
    AcquireOptions::from(costs).keep_guard().max_delay(options.max_delay).detail(options.detail)
}

/// A request or a hold with an id, which may have another cost than before; sometimes one without an id.
fn options_with_id(random: &mut Random, units: &[&'static str]) -> AcquireOptions {
    let (id, repeats) = (random_id(random), random.choose(&[0, 1, 1, 3]));
    let options = if random.below(8) == 0 { random_options(random, units, 0) } else { options_of_id(id, units) };
    let lifetime = ID_SPAN * random.choose(&[1, 4, 7, 7]);
    let once = options.once(&id.to_string(), repeats.max(1), lifetime);
    match random.below(7) {
        0 => options,
        1 => options.hold(),
        2 | 3 => once,
        4 => once.hold(),
        _ => options.id(&id.to_string()).repeats(repeats).expires_in(lifetime).hold(),
    }
}

/// One algorithm, alone and in three tiers.
async fn alone<A: LuaAlgorithm + Clone>(traces: &[Trace], name: &str, tiers: [A; 3]) -> Seen {
    let one = Limit::new("one", tiers[0].clone()).keyed_by(USER);
    compare(&FORWARD, name, limits![one]).await;
    let tiers = Limit::new("tiers", by_tier(tiers)).keyed_by(USER);
    compare(&traces[2..], &format!("{name} in tiers"), limits![tiers]).await
}

fn quotas() -> [Quota; 3] {
    [Quota::new(5, Duration::from_secs(3)), Quota::new(7, Duration::from_millis(1001)), Quota::per_minute(4)]
}

/// Compares the redis-cell module with a bucket on a trace without refill, because the module uses the server's clock.
#[tokio::test]
#[allow(clippy::useless_vec, reason = "the macro makes lists")]
async fn cell_module_agrees_with_a_bucket_up_to_whole_seconds() {
    const SECOND: Duration = Duration::from_secs(1);
    let server = cell::with_module();
    for seed in 41..=44 {
        let (quota, mut random) = (Quota::per_day(2 + seed % 3), Random::new(seed));
        let memory =
            in_memory(&limits![Limit::new("one", Gcra::new(quota).burst(9)).keyed_by(USER)], &ManualClock::new());
        let module =
            RedisCell::builder(server.open(), &format!("trace {seed}"), quota).burst(9).deadline(LONG_DEADLINE);
        let module: RedisCell = module.build().expect("a quota");
        let began = Instant::now();
        for step in 0..500 {
            let user = random.below(4);
            let caller = Caller { user, team: 0, tier: 0 };
            let options = AcquireOptions::cost([1, 1, 1, 2, 3, 0, 9, 10][random.index(8)]);
            let (from_memory, from_redis) = match random.below(10) {
                0 => {
                    memory.reset(&caller).await.expect("done");
                    module.reset(&user).await.expect("done");
                    continue;
                }
                1 | 2 => {
                    let from_memory = memory.peek(&caller, options).await.expect("an answer");
                    (from_memory, module.peek(&user, options).await.expect("an answer"))
                }
                _ => {
                    let from_memory = memory.check(&caller, options).await.expect("an answer");
                    (from_memory, acquire(&module, &user, options).await.expect("an answer").decision)
                }
            };
            let context = format!("{seed} {step} {user} {options:?} {from_memory:?} {from_redis:?}");
            assert_eq!(
                (from_memory.is_allowed(), from_memory.exceeds_limit()),
                (from_redis.is_allowed(), from_redis.exceeds_limit()),
                "{context}"
            );
            if from_memory.exceeds_limit() {
                // The client decides without the module.
                continue;
            }
            assert_eq!(from_memory.remaining(), from_redis.remaining(), "{context}");
            // The model's clock is stopped.
            let within =
                |exact: Duration, actual: Duration| actual + began.elapsed() >= exact && actual <= exact + SECOND;
            match (from_memory.retry_after(), from_redis.retry_after()) {
                (Some(exact), Some(actual)) => assert!(within(exact, actual), "{context}"),
                (exact, actual) => assert_eq!(exact, actual, "{context}"),
            }
        }
    }
}
