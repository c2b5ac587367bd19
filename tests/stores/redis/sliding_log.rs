//! Sliding logs with many hits: the work of a decision is bounded, and decisions equal those of the memory store.

use std::time::Duration;

use bb8_redis::redis;
use tower_ratelimit::limiter::Held;
use tower_ratelimit::{
    AcquireOptions, DynLimit, Limit, Limiter, ManualClock, Memory, Quota, Redis, SlidingLog, per_key,
};

use crate::helpers::{LONG_DEADLINE, ONE_DAY};
use crate::lua;
use crate::random::Random;
use crate::server::Server;

// ---------------------------------------------------------------------------------------------------------------------
// The work of one decision
// ---------------------------------------------------------------------------------------------------------------------

/// The operation codes of the script.
const ACQUIRE: u16 = 0;
const PEEK: u16 = 1;
const HOLD: u16 = 2;
const SET: u16 = 4;
const RESET: u16 = 6;
const UPDATE: u16 = 7;

const START: u64 = 1_790_000_000_000_000;
const PERIOD: u64 = 3_600_000_000;
/// The time between two hits.
const STEP: u64 = 10;
const HOLD_EXPIRY: u64 = 600_000_000;

/// The maximum work of one decision, for logs of any length.
///
/// A decision searches a log at most three times: for the oldest hit that counts, and for the hits whose expiry frees
/// the cost and the next token. A search of 2^20 hits reads at most 31.
const MAX_COMMANDS: u64 = 3 * 31 + 10;
const MAX_BYTES: u64 = 16_384;
const MAX_INSTRUCTIONS: u64 = 20_000;

/// A script call with one operation on one log, and whether the log allows it.
struct Call {
    now: u64,
    limit: u64,
    operation: u16,
    cost: u64,
    /// The session and its expiry of a hold. The session, the costs that it released and charged, and 1 to end it of an
    /// update.
    session: Vec<u64>,
    is_allowed: Option<bool>,
}

impl Call {
    fn encode(&self) -> Vec<u8> {
        let (mut input, is_decision) = (Vec::new(), self.operation <= HOLD);
        let f64 = |numbers: &[f64], input: &mut Vec<u8>| {
            input.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        };
        let u16 = |numbers: &[u16], input: &mut Vec<u8>| {
            input.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        };
        // No latest start.
        f64(&[to_f64(self.now), 0.0], &mut input);
        // No fast path, one template, one operation, one key.
        u16(&[0, 1, 1, 1], &mut input);
        u16(&[self.operation, u16::from(!is_decision)], &mut input);
        let (arg1, arg2) = match self.operation {
            // No limit keeps units free.
            HOLD => (0.0, to_f64(HOLD_EXPIRY)),
            _ if is_decision => (0.0, -1.0),
            UPDATE => (to_f64(HOLD_EXPIRY), 0.0),
            _ => (to_f64(self.cost), -1.0),
        };
        // The limit's own numbers, no shadow limit, and the cost.
        let cost = to_f64(self.cost);
        f64(&[arg1, arg2, to_f64(self.limit), to_f64(PERIOD), cost, 0.0, cost], &mut input);
        u16(&[1, 1, 1], &mut input);
        match (self.operation, &*self.session) {
            // A negative number creates the session.
            (HOLD, [session]) => f64(&[-to_f64(*session)], &mut input),
            (_, numbers) => numbers.iter().for_each(|number| f64(&[to_f64(*number)], &mut input)),
        }
        if self.operation == UPDATE {
            // The costs that the session holds: only limits on requests in flight read them.
            f64(&[0.0], &mut input);
        }
        input
    }
}

#[allow(clippy::cast_precision_loss, reason = "below 2^53")]
fn to_f64(number: u64) -> f64 {
    number as f64
}

/// A history of a log of `size` hits, with the decisions that read or change most of it.
#[derive(Default)]
struct History {
    calls: Vec<Call>,
    now: u64,
    limit: u64,
}

impl History {
    fn add(&mut self, operation: u16, cost: u64, session: &[u64], is_allowed: Option<bool>) {
        let Self { now, limit, .. } = *self;
        self.calls.push(Call { now, limit, operation, cost, session: session.to_vec(), is_allowed });
    }

    fn allow(&mut self, cost: u64) {
        self.add(ACQUIRE, cost, &[], Some(true));
    }

    fn deny(&mut self, cost: u64) {
        self.add(ACQUIRE, cost, &[], Some(false));
    }

    /// Adds hits of cost 1.
    fn fill(&mut self, hits: u64) {
        for _ in 0..hits {
            self.allow(1);
            self.now += STEP;
        }
    }

    /// Denied requests of all sizes.
    fn deny_many(&mut self) {
        for cost in [1, self.limit / 3, self.limit / 2, self.limit - 1, self.limit] {
            self.deny(cost);
            self.add(PEEK, cost, &[], Some(false));
            self.add(HOLD, cost, &[99], Some(false));
        }
    }

    fn new(size: u64) -> Self {
        let mut history = Self { now: START, limit: size, calls: Vec::new() };
        history.fill(size);
        let last = history.now - STEP;
        history.deny_many();

        // Another quota.
        history.limit = size / 3;
        history.deny(1);
        history.limit = size;

        // Half of the hits have expired.
        history.now = START + PERIOD + size / 2 * STEP;
        history.deny(size);
        history.add(HOLD, size / 4, &[1], Some(true));
        history.deny(size);
        history.add(UPDATE, 1, &[1, size / 4, 0, 1], None);
        history.allow(1);
        // The ring of a log that doubles its space must move here.
        history.limit = 4 * size;
        history.fill(size);
        history.limit = size + size / 2;

        // Sixty sessions, each of which releases its cost, latest first.
        for session in 1..=60 {
            history.add(HOLD, 1, &[session], None);
        }
        for session in (1..=60).rev() {
            history.add(UPDATE, 1, &[session, session % 2, (session + 1) % 2, 1], None);
        }
        history.deny(history.limit);

        // A hold expires late, and is charged. All hits but one have expired.
        history.add(HOLD, 1, &[7], None);
        history.now = history.now.max(last + PERIOD) + PERIOD - 1;
        history.deny(history.limit);
        history.allow(1);

        // A quiet spell, then changes of the usage.
        history.limit = size;
        history.now += PERIOD;
        history.fill(size);
        history.deny_many();
        history.add(SET, size / 2, &[], None);
        history.deny(size);
        history.add(RESET, 0, &[], None);
        history.allow(size);
        history
    }
}

/// Whether the first verdict of a reply allows the request.
fn is_allowed(reply: &str) -> bool {
    let bytes: Vec<u8> =
        (28..44).step_by(2).map(|at| u8::from_str_radix(&reply[at..at + 2], 16).expect("digits")).collect();
    let verdict = f64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    assert!(verdict >= 0.0, "a failed decision: {verdict}");
    verdict == 0.0
}

#[test]
fn log_decision_is_bounded() {
    let script = lua::script(include_str!("../../../src/algorithm/sliding_log.lua"), None);
    for size in [300, 8_000] {
        let calls = History::new(size).calls;
        let inputs: Vec<_> = calls.iter().map(Call::encode).collect();
        let replies = lua::run(&script, &inputs, 1);
        assert_eq!(replies.len(), calls.len());
        let (mut commands, mut bytes, mut instructions) = (0, 0, 0);
        for (index, (call, reply)) in calls.iter().zip(&replies).enumerate() {
            if let Some(expected) = call.is_allowed {
                let Call { operation, cost, limit, .. } = call;
                assert_eq!(is_allowed(&reply.digits), expected, "{size}: {index} ({operation}, {cost} of {limit})");
            }
            commands = commands.max(reply.commands);
            bytes = bytes.max(reply.bytes);
            instructions = instructions.max(reply.instructions);
        }
        let work = format!("{size} hits: {commands} commands, {bytes} bytes, {instructions} instructions");
        println!("{work}");
        assert!(commands <= MAX_COMMANDS && bytes <= MAX_BYTES && instructions <= MAX_INSTRUCTIONS, "{work}");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Decisions on logs of many hits
// ---------------------------------------------------------------------------------------------------------------------

const TIERS: [SlidingLog; 3] = [
    SlidingLog::new(Quota::per_second(400)),
    SlidingLog::new(Quota::new(250, Duration::from_millis(1_500))),
    SlidingLog::new(Quota::new(700, Duration::from_millis(800))),
];

/// Shifts all sums in the log, so that they wrap around after a few more hits.
fn shift_sums(server: &Server) {
    const MODULUS: u64 = 1 << 52;
    let [key] = &*server.keys() else { panic!("one key") };
    let mut connection = server.connect();
    let mut elements: Vec<Vec<u8>> =
        redis::cmd("LRANGE").arg(key).arg(0).arg(-1).query(&mut connection).expect("a list");
    let word = |header: &[u8], word: usize| {
        f64::from_le_bytes(header[word * 8 - 8..word * 8].try_into().expect("eight bytes"))
    };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number below 2^52")]
    let shifted = |sum: u64, newest: f64| (sum + MODULUS - 50 - newest as u64) % MODULUS;
    let newest = word(&elements[0], 4);
    for position in [3, 4] {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number below 2^52")]
        let sum = shifted(word(&elements[0], position) as u64, newest);
        elements[0][position * 8 - 8..position * 8].copy_from_slice(&to_f64(sum).to_le_bytes());
    }
    for hit in &mut elements[1..] {
        let mut sum = [0; 8];
        sum[..7].copy_from_slice(&hit[7..]);
        let sum = shifted(u64::from_le_bytes(sum), newest);
        hit[7..].copy_from_slice(&sum.to_le_bytes()[..7]);
    }
    for (index, element) in elements.iter().enumerate() {
        let done: String =
            redis::cmd("LSET").arg(key).arg(index).arg(&element[..]).query(&mut connection).expect("done");
        assert_eq!(done, "OK");
    }
}

/// Runs one random trace in both stores. Returns the largest usage of the log.
async fn compare(seed: u64) -> u64 {
    let (server, clock, mut random) = (Server::start(), ManualClock::new(), Random(seed));
    let limit =
        Limit::new("log", per_key(|tier: &u64| TIERS[usize::try_from(*tier).expect("small")])).keyed_by(|_: &u64| ());
    let memory = Memory::builder(vec![DynLimit::new(limit.clone())]).clock(clock.clone()).build().expect("limits");
    let redis = Redis::builder(server.open(), "api", limit).clock_for_tests(clock.clone());
    let redis = redis.hold_expiry(ONE_DAY).deadline(LONG_DEADLINE).build().expect("limits");
    let (mut held, mut tier, mut max_used): (Vec<(Held, Held)>, u64, u64) = (Vec::new(), 0, 0);
    for step in 0..2_500 {
        let pause = match random.below(400) {
            0 => 900_000 + random.below(900_000),
            1..=4 => random.below(400_000),
            5..=150 => 0,
            _ => random.below(3_000),
        };
        clock.advance(Duration::from_micros(pause));
        if random.below(30) == 0 {
            tier = random.below(3);
        }
        if step == 600 {
            shift_sums(&server);
        }
        let limit = TIERS[usize::try_from(tier).expect("small")].quota().limit();
        match random.below(300) {
            0 => {
                let used = random.below(limit * 2);
                memory.set_usage("log", &tier, used).await.expect("done");
                redis.set_usage("log", &tier, used).await.expect("done");
            }
            1 if step < 400 => {
                memory.reset(&tier).await.expect("done");
                redis.reset(&tier).await.expect("done");
            }
            2..=30 if !held.is_empty() => {
                let (ours, theirs) = held.swap_remove(random.index(held.len()));
                // Below and above the held cost, rarely above any limit.
                let cost = if random.below(60) == 0 { 1 << 52 } else { random.below(ours.cost() + 2) };
                ours.settle(cost).await.expect("done");
                theirs.settle(cost).await.expect("done");
            }
            31..=60 => {
                let options = AcquireOptions::cost(1 + random.below(limit));
                let from_redis = redis.peek(&tier, options).await.expect("an answer");
                assert_eq!(memory.peek(&tier, options).await.expect("an answer"), from_redis, "{seed} {step} peek");
            }
            choice => {
                let cost = if random.below(12) == 0 { 1 + random.below(limit) } else { 1 + random.below(3) };
                let options = AcquireOptions::cost(cost);
                let options = if choice < 90 { options.hold() } else { options };
                let ours = memory.acquire(&tier, options).await.expect("an answer");
                let theirs = redis.acquire(&tier, options).await.expect("an answer");
                assert_eq!(ours.decision, theirs.decision, "{seed} {step} tier {tier} {options:?}");
                max_used = max_used.max(limit - ours.decision.remaining().expect("a figure"));
                match (ours.held, theirs.held) {
                    (Some(ours), Some(theirs)) => held.push((ours, theirs)),
                    (ours, theirs) => assert_eq!(ours.is_some(), theirs.is_some(), "{seed} {step}"),
                }
            }
        }
    }
    max_used
}

#[tokio::test]
async fn log_decisions_equal_memory_with_many_hits() {
    for seed in 1..=2 {
        let max_used = compare(seed).await;
        assert!(max_used > 300, "{seed}: a short log of {max_used}");
    }
}
