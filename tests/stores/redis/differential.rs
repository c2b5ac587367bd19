//! Memory and Redis decide a random trace identically, field by field.
//!
//! Both stores read one manual clock.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tower_ratelimit::algorithm::LuaAlgorithm;
use tower_ratelimit::limiter::{AdminOperation, Chained, Escalating, Escalation, Held, LimiterFuture, Outcome};
use tower_ratelimit::store::{IntoRedisLimits, MemoryLimits};
use tower_ratelimit::{
    AcquireOptions, BlockReason, BoxLimiter, Calendar, Clock as _, Costs, Decision, Detail, FixedWindow, Gcra,
    InFlight, LeakyBucket, LeakyQueue, Limit, LimitStatus, Limiter, ManualClock, Memory, MemoryBuilder, Quota, Redis,
    RedisBuilder, RedisCell, RedisServer, SlidingLog, SlidingWindow, Timestamp, TokenBucket, Verdict, Weekday, per_key,
};

use crate::cell;
use crate::deployments::Deployments;
use crate::helpers::{LONG_DEADLINE, ONE_DAY, acquire};
use crate::random::Random;

mod memory_and_redis_agree;

#[derive(Clone, Copy, Debug)]
struct Caller {
    user: u64,
    team: u64,
    tier: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trace {
    Plain,
    /// A third of the requests hold their cost.
    Holds,
    /// The clock steps back. Without blocks, which then last longer in Redis: see docs/redis.md.
    ClockSteps,
    /// Hours and days pass instead of milliseconds.
    Months,
}

const FORWARD: [Trace; 2] = [Trace::Plain, Trace::Holds];
const ALL: [Trace; 3] = [Trace::Plain, Trace::Holds, Trace::ClockSteps];

/// The decisions of a trace, unless `DIFFERENTIAL_STEPS` is set.
const STEPS: usize = 400;

/// Ten years. The scripts compute exactly up to the year 2255, and the longest period is 200 years.
const LONG: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// A hasher without a random seed, and a table so large that no two keys of a trace have a slot in common.
///
/// If a key takes the slot of an idle one, and the clock then steps back, memory decides absent keys at the time at
/// which that key was idle, and Redis decides them now. With random seeds some runs had such a pair of keys.
type FixedHasher = BuildHasherDefault<DefaultHasher>;
const MAX_KEYS: usize = 10_000;

/// Returns a reason. Redis keeps that of an escalation up to the year 2112.
fn block_reason(random: &mut Random, now: Timestamp) -> BlockReason {
    let is_escalation = random.below(2) == 0 && now < Timestamp::from_micros(1 << 52);
    if is_escalation { BlockReason::Escalation } else { BlockReason::Administrator }
}

/// Runs traces with several requests at a time.
async fn compare<L>(traces: &[Trace], name: &str, limits: L)
where
    L: MemoryLimits<Caller, FixedHasher> + IntoRedisLimits<Caller> + Clone + 'static,
{
    compare_limits(traces, name, limits, 16).await;
}

async fn compare_limits<L>(traces: &[Trace], name: &str, limits: L, concurrent: u64)
where
    L: MemoryLimits<Caller, FixedHasher> + IntoRedisLimits<Caller> + Clone + 'static,
{
    compare_limiters(traces, name, concurrent, |server, name, clock| {
        (in_memory(limits.clone(), clock), in_redis(server, name, limits.clone(), clock))
    })
    .await;
}

/// Compares chains of two limiters. A request of a chain waits between its limiters, so requests come one by one.
async fn compare_chains<A, B>(traces: &[Trace], name: &str, (first, second): (A, B))
where
    A: MemoryLimits<Caller, FixedHasher> + IntoRedisLimits<Caller> + Clone + 'static,
    B: MemoryLimits<Caller, FixedHasher> + IntoRedisLimits<Caller> + Clone + 'static,
{
    compare_limiters(traces, name, 1, |server, name, clock| {
        let [of_first, of_second] = ["first", "second"].map(|part| format!("{name} {part}"));
        let memory = Chained::new(in_memory(first.clone(), clock), in_memory(second.clone(), clock));
        let redis = Chained::new(
            in_redis(server, &of_first, first.clone(), clock),
            in_redis(server, &of_second, second.clone(), clock),
        );
        (BoxLimiter::new(memory), BoxLimiter::new(redis))
    })
    .await;
}

/// Limiters that know only the caller's user: one in memory, or one in each of several processes. A caller's tier is its process.
struct Processes(Vec<BoxLimiter<u64>>);

impl Processes {
    fn of(&self, caller: &Caller) -> &BoxLimiter<u64> {
        &self.0[caller.tier % self.0.len()]
    }
}

impl Limiter<Caller> for Processes {
    fn acquire(&self, caller: &Caller, options: AcquireOptions) -> LimiterFuture<Outcome> {
        self.of(caller).acquire(&caller.user, options)
    }

    fn peek(&self, caller: &Caller, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.of(caller).peek(&caller.user, options)
    }

    fn administer(&self, caller: &Caller, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        self.of(caller).administer(&caller.user, operation)
    }
}

/// Compares three processes with other limits of one name, as before and after a deployment, with one limiter in memory
/// with three tiers.
async fn compare_processes<A: LuaAlgorithm + Clone>(name: &str, tiers: [A; 3]) {
    compare_limiters(&[Trace::Holds], name, 1, |server, name, clock| {
        let all = tiers.clone();
        let chosen = per_key(move |caller: &Caller| all[caller.tier].clone());
        let memory = in_memory(Limit::new("one", chosen).keyed_by(|caller: &Caller| caller.user), clock);
        let processes = tiers.clone().map(|one| in_redis(server, name, Limit::new("one", one), clock));
        (memory, BoxLimiter::new(Processes(processes.into())))
    })
    .await;
}

fn in_memory<Key: 'static>(
    limits: impl MemoryLimits<Key, FixedHasher> + 'static,
    clock: &ManualClock,
) -> BoxLimiter<Key> {
    let memory = MemoryBuilder::new(limits).max_keys(MAX_KEYS).hasher(FixedHasher::default());
    BoxLimiter::new(memory.clock(clock.clone()).build().expect("limits"))
}

fn in_redis<Key: 'static>(
    server: &RedisServer,
    name: &str,
    limits: impl IntoRedisLimits<Key>,
    clock: &ManualClock,
) -> BoxLimiter<Key> {
    BoxLimiter::new(redis(server, name, limits, clock).build().expect("limits"))
}

fn redis<Key>(
    server: &RedisServer,
    name: &str,
    limits: impl IntoRedisLimits<Key>,
    clock: &ManualClock,
) -> RedisBuilder<Key> {
    let redis = Redis::builder(server.clone(), name, limits).clock_for_tests(clock.clone()).hold_expiry(ONE_DAY);
    redis.deadline(LONG_DEADLINE)
}

/// Runs traces on the limiters that `make` returns for a deployment, with at most `concurrent` requests at a time. Each trace
/// runs on a single Redis, and a short one on another deployment, as the script is equal on all of them.
async fn compare_limiters(
    traces: &[Trace],
    name: &str,
    concurrent: u64,
    make: impl Fn(&RedisServer, &str, &ManualClock) -> (BoxLimiter<Caller>, BoxLimiter<Caller>),
) {
    let deployments = Deployments::shared();
    let steps = std::env::var("DIFFERENTIAL_STEPS").map_or(STEPS, |steps| steps.parse().expect("a number"));
    for &trace in traces {
        // Each name has a seed of its own, and another deployment.
        let seed = name.bytes().fold(trace as u64, |seed, byte| seed * 31 % 1_000_003 + u64::from(byte));
        let (alone, others) = deployments.each();
        let other = others.get(usize::try_from(seed).expect("small") % others.len().max(1)).cloned();
        for (index, (deployment, server)) in [Some(alone), other].into_iter().flatten().enumerate() {
            let steps = if index == 0 { steps } else { steps / 4 };
            // The name is unique, because tests share the deployments.
            let (name, clock) = (format!("{name} {trace:?} on {deployment}"), ManualClock::new());
            let limiters = make(&server, &name, &clock);
            compare_on(&limiters, &clock, &name, seed, steps, trace, concurrent).await;
        }
    }
}

async fn compare_on(
    (memory, redis): &(BoxLimiter<Caller>, BoxLimiter<Caller>),
    clock: &ManualClock,
    name: &str,
    seed: u64,
    steps: usize,
    trace: Trace,
    concurrent: u64,
) {
    let mut random = Random::new(seed);
    // A peek in a unit that no limit names is an error.
    let peek_in = |unit| memory.peek(&caller(&mut Random::new(seed)), Costs::new().add(unit, 0).into()).try_ready();
    let names_unit = |unit: &&'static str| peek_in(*unit).is_ok_and(|peeked| peeked.is_ok());
    let units: Vec<_> = ["input", "output", "dollars", "streams"].into_iter().filter(names_unit).collect();
    let mut held: Vec<(Held, Held)> = Vec::new();
    let (mut step, mut wait) = (0, None);
    while step < steps {
        advance(clock, &mut random, wait.take(), trace);
        let caller = caller(&mut random);
        let options = |random: &mut Random, min_cost| random_options(random, &units, min_cost);
        match random.below(40) {
            0 => {
                let options = options(&mut random, 0);
                let from_redis = redis.peek(&caller, options).await.expect("an answer");
                assert_eq!(memory.peek(&caller, options).await.expect("an answer"), from_redis, "{name} {step} peek");
            }
            1 => {
                memory.reset(&caller).await.expect("done");
                redis.reset(&caller).await.expect("done");
            }
            2 if trace != Trace::ClockSteps => {
                // Also the shortest blocks: none, and of microseconds.
                let micros = if random.below(3) == 0 { random.below(4) } else { random.below(4_000_000) };
                let span = Duration::from_micros(micros);
                let Some(limit) = limit_of(memory, &mut random, &caller).await else { continue };
                let reason = block_reason(&mut random, clock.now());
                let block = AdminOperation::Block { limit: &limit, duration: span, reason };
                memory.administer(&caller, block).await.expect("done");
                redis.administer(&caller, block).await.expect("done");
            }
            3 => {
                // A usage of zero deletes the key in Redis. The memory store keeps the time, which only matters if the
                // clock then steps back.
                let used = random.below(9).max(u64::from(trace == Trace::ClockSteps));
                let Some(limit) = limit_of(memory, &mut random, &caller).await else { continue };
                memory.set_usage(&limit, &caller, used).await.expect("done");
                redis.set_usage(&limit, &caller, used).await.expect("done");
            }
            4 if trace != Trace::ClockSteps => compare_extremes(memory, redis, &caller, &mut random, name).await,
            5..=12 if !held.is_empty() => {
                let index = random.index(held.len());
                let (ours, theirs) = held.swap_remove(index);
                if random.below(4) == 0 {
                    ours.release().await.expect("done");
                    theirs.release().await.expect("done");
                } else {
                    // Below, at and above the held cost, on each limit.
                    let mut actual = Costs::from(random.below(ours.cost() + 3));
                    for unit in &units {
                        actual = actual.add(unit, random.below(ours.costs().of(unit) + 3));
                    }
                    ours.settle(actual).await.expect("done");
                    theirs.settle(actual).await.expect("done");
                }
            }
            _ => {
                // Several concurrent acquires, which Redis decides in one batch.
                let count = if random.below(2) == 0 { 1 + random.below(concurrent) } else { 1 };
                let requests: Vec<_> = (0..count)
                    .map(|_| {
                        let caller = if random.below(2) == 0 { caller } else { self::caller(&mut random) };
                        // In memory, a cost of zero also moves the key's time.
                        let min_cost = u64::from(trace == Trace::ClockSteps);
                        let options = options(&mut random, min_cost);
                        (caller, if trace == Trace::Holds && random.below(3) == 0 { options.hold() } else { options })
                    })
                    .collect();
                let from_redis = join_all(requests.iter().map(|(caller, options)| redis.acquire(caller, *options)));
                for ((caller, options), from_redis) in requests.iter().zip(from_redis.await) {
                    let from_memory = memory.acquire(caller, *options).await.expect("an answer");
                    let from_redis = from_redis.expect("an answer");
                    assert_eq!(from_memory.decision, from_redis.decision, "{name} {step} {caller:?} {options:?}");
                    wait = from_memory.decision.retry_after().or(wait);
                    check_limits_of_zero(&from_memory.decision, options.cost);
                    assert_eq!(
                        from_memory.decision.is_estimate(),
                        from_redis.decision.is_estimate(),
                        "{name} {step} {caller:?} {options:?}"
                    );
                    step += 1;
                    assert_eq!(
                        from_memory.held.is_some(),
                        from_redis.held.is_some(),
                        "{name} {step} {caller:?} {options:?}"
                    );
                    held.extend(from_memory.held.zip(from_redis.held));
                }
                // A chain charges its first limiter after it has answered, before the second of these calls.
                for _ in 0..if concurrent == 1 { 2 } else { 0 } {
                    let _ = redis.peek(&caller, AcquireOptions::cost(0)).await.expect("an answer");
                }
                // After the batch: Redis has decided all of it.
                while held.len() > 40 {
                    let (ours, theirs) = held.remove(0);
                    ours.release().await.expect("done");
                    theirs.release().await.expect("done");
                }
            }
        }
    }
    // Dropped guards settle the whole cost: in Redis some time later.
    drop(held);
}

/// Each cost exceeds a limit without units, whatever the key has used in another tier.
fn check_limits_of_zero(decision: &Decision, cost: u64) {
    for limit in decision.limits().iter().filter(|limit| limit.limit() == 0) {
        let is_excess = limit.verdict() == Verdict::ExceedsLimit || decision.is_blocked();
        assert!(cost == 0 || is_excess && limit.remaining() == 0, "{cost}: {decision:?}");
    }
}

/// The largest numbers, and what both refuse. The usage is reset afterwards, because no request would pass again.
async fn compare_extremes(
    memory: &BoxLimiter<Caller>,
    redis: &BoxLimiter<Caller>,
    caller: &Caller,
    random: &mut Random,
    name: &str,
) {
    let Some(limit) = limit_of(memory, random, caller).await else { return };
    let huge = random.choose(&[1 << 40, 1 << 53, u64::MAX]);
    let operations = [
        AdminOperation::SetUsage { limit: &limit, used: huge },
        AdminOperation::SetUsage { limit: "unknown", used: 1 },
        AdminOperation::Block { limit: "unknown", duration: Duration::MAX, reason: BlockReason::Administrator },
        AdminOperation::Block { limit: &limit, duration: Duration::MAX, reason: BlockReason::Administrator },
    ];
    let operation = random.choose(&operations);
    let [ours, theirs] = [memory.administer(caller, operation).await, redis.administer(caller, operation).await];
    assert_eq!(
        ours.map_err(|error| error.is_config()),
        theirs.map_err(|error| error.is_config()),
        "{name} {operation:?}"
    );
    let of = |cost| AcquireOptions::cost(cost).keep_guard().max_delay(Duration::MAX).detail(Detail::All);
    let requests = [of(1), of(huge), of(huge).hold(), AcquireOptions::default().detail(Detail::All)];
    for options in requests {
        let [ours, theirs] = [memory.acquire(caller, options).await, redis.acquire(caller, options).await];
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => {
                // Not the waits: times end in the year 2112 in Redis, and with 64 bits in memory.
                let facts = |decision: &Decision| {
                    let remaining: Vec<_> = decision.limits().iter().map(LimitStatus::remaining).collect();
                    (decision.is_allowed(), decision.exceeds_limit(), decision.is_blocked(), remaining)
                };
                let decisions = [ours.decision, theirs.decision].map(|decision| facts(&decision));
                assert_eq!(decisions[0], decisions[1], "{name} {caller:?} {operation:?} {options:?}");
                let [ours, theirs] = [ours.held, theirs.held].map(|held| held.map(|held| held.settle(u64::MAX)));
                for settled in [ours, theirs].into_iter().flatten() {
                    settled.await.expect("done");
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

/// Advances by zero up to a time after which every key is idle, or to the moments around the one at which a denied
/// request is allowed.
fn advance(clock: &ManualClock, random: &mut Random, wait: Option<Duration>, trace: Trace) {
    let (now, steps_back) = (clock.now(), trace == Trace::ClockSteps);
    if let Some(wait) = wait.filter(|wait| *wait < LONG && random.below(4) == 0) {
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

fn caller(random: &mut Random) -> Caller {
    let tier = if random.below(10) == 0 { random.index(3) } else { 0 };
    Caller { user: random.below(3), team: random.below(2), tier }
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

/// The name of a random limit that applies.
async fn limit_of(memory: &impl Limiter<Caller>, random: &mut Random, caller: &Caller) -> Option<String> {
    let decision = memory.peek(caller, AcquireOptions::default().detail(Detail::All)).await.expect("an answer");
    let names: Vec<_> = decision.limits().iter().map(|standing| standing.name().to_owned()).collect();
    if names.is_empty() { None } else { Some(names[random.index(names.len())].clone()) }
}

/// One algorithm, alone and in three tiers.
async fn alone<A: LuaAlgorithm + Clone>(traces: &[Trace], name: &str, tiers: [A; 3]) {
    let one = Limit::new("one", tiers[0].clone()).keyed_by(|caller: &Caller| caller.user);
    compare(&FORWARD, name, one).await;
    let chosen = per_key(move |caller: &Caller| tiers[caller.tier].clone());
    let tiers = Limit::new("tiers", chosen).keyed_by(|caller: &Caller| caller.user);
    compare(&traces[1..], &format!("{name} in tiers"), tiers).await;
}

fn quotas() -> [Quota; 3] {
    [Quota::new(5, Duration::from_secs(3)), Quota::new(7, Duration::from_millis(1001)), Quota::per_minute(4)]
}

/// Compares the redis-cell module with a bucket on a trace without refill, because the module uses the server's clock.
#[tokio::test]
async fn cell_module_agrees_with_a_bucket_up_to_whole_seconds() {
    const SECOND: Duration = Duration::from_secs(1);
    let server = cell::with_module();
    for seed in 41..=44 {
        let (quota, mut random) = (Quota::per_day(2 + seed % 3), Random::new(seed));
        let memory = Memory::builder(Gcra::new(quota).burst(9)).clock(ManualClock::new()).build().expect("limits");
        let module =
            RedisCell::builder(server.open(), &format!("trace {seed}"), quota).burst(9).deadline(LONG_DEADLINE);
        let module: RedisCell = module.build().expect("a quota");
        let began = Instant::now();
        for step in 0..500 {
            let user = random.below(4);
            let options = AcquireOptions::cost([1, 1, 1, 2, 3, 0, 9, 10][random.index(8)]);
            let (from_memory, from_redis) = match random.below(10) {
                0 => {
                    memory.reset(&user).await.expect("done");
                    module.reset(&user).await.expect("done");
                    continue;
                }
                1 | 2 => {
                    let from_memory = memory.peek(&user, options).await.expect("an answer");
                    (from_memory, module.peek(&user, options).await.expect("an answer"))
                }
                _ => {
                    let from_memory = memory.check(&user, options);
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
