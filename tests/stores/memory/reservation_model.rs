//! What the documentation of reservation ids says, for a limit that drains nothing during the test; and random traces that
//! compare a limiter with it.

use std::collections::HashMap;
use std::time::Duration;

use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Calendar, Costs, FixedWindow, Limiter, ManualClock, Quota, Timestamp,
};

use crate::random::Random;

/// All times are multiples of this span, for which Redis rounds no expiry.
pub(crate) const SPAN: u64 = 4_096_000;
/// The times until an expiry.
const LIFETIMES: [u64; 2] = [2 * SPAN, 4 * SPAN];
pub(crate) const LIMIT: u64 = 100;
pub(crate) const MAX_IDS: usize = 4;
const KEYS: [&str; 2] = ["alice", "bob"];

pub(crate) fn clock() -> ManualClock {
    let clock = ManualClock::new();
    clock.set(Timestamp::from_micros(1_000_000 * SPAN));
    clock
}

/// A window in which nothing drains during a trace: from the first hit, or of a calendar.
pub(crate) fn day_or_year(seed: u64) -> FixedWindow {
    if seed.is_multiple_of(2) {
        FixedWindow::new(Quota::per_day(LIMIT))
    } else {
        FixedWindow::calendar(LIMIT, Calendar::yearly())
    }
}

/// One operation of a trace.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Hold { key: usize, id: u64, cost: u64, lifetime: u64, repeats: u16 },
    Settle { key: usize, id: u64, actual: u64 },
    Release { key: usize, id: u64 },
    Check { key: usize, cost: u64 },
    Advance { spans: u64 },
}

impl Operation {
    pub(crate) fn random(random: &mut Random) -> Self {
        let (key, id) = (usize::from(random.below(3) == 0), random.below(9));
        match random.below(10) {
            // An id has one cost, but for mistakes.
            0..=3 => {
                let cost = if random.below(12) == 0 { 7 } else { id * 4 };
                let lifetime = LIFETIMES[usize::from(random.below(2) == 0)];
                Self::Hold { key, id, cost, lifetime, repeats: [0, 0, 1, 3][random.index(4)] }
            }
            4 | 5 => Self::Settle { key, id, actual: random.below(40) / 2 },
            6 => Self::Release { key, id },
            7 => Self::Check { key, cost: random.below(8) },
            _ => Self::Advance { spans: 1 + random.below(3) },
        }
    }

    /// Runs the operation, and returns what a caller sees: a text that is equal for equal results.
    pub(crate) async fn run(self, limiter: &BoxLimiter<str>, clock: &ManualClock) -> String {
        let text = |id: u64| format!("req-{id}");
        match self {
            Self::Hold { key, id, cost, lifetime, repeats } => {
                let options = AcquireOptions::cost(cost).id(&text(id)).expires_in(Duration::from_micros(lifetime));
                match limiter.hold(KEYS[key], options.repeats(repeats)).await {
                    Err(error) if error.is_id_conflict() => "conflict".into(),
                    Err(error) if error.is_already_settled() => "ended".into(),
                    Err(error) => error.to_string(),
                    Ok(outcome) => {
                        assert!(outcome.held.is_none(), "a hold with an id has no guard");
                        let decision = outcome.decision;
                        if decision.has_too_many_ids() {
                            return "too many".into();
                        }
                        if decision.is_repeat() && !decision.is_allowed() {
                            // The id is forgotten then, if the hold is settled or not.
                            return format!("open, remembered for {:?}", decision.retry_after().expect("denied"));
                        }
                        if decision.is_repeat() {
                            return "repeat".into();
                        }
                        if decision.is_allowed() { "allowed".into() } else { "denied".into() }
                    }
                }
            }
            Self::Settle { key, id, actual } => settled(limiter.settle(KEYS[key], &text(id), actual).await),
            Self::Release { key, id } => settled(limiter.release(KEYS[key], &text(id)).await),
            Self::Check { key, cost } => {
                // A call that charges reads no id.
                let options = AcquireOptions::cost(cost).id(&text(cost)).repeats(1);
                let decision = limiter.check(KEYS[key], options).await.expect("a decision");
                if decision.is_allowed() { "allowed".into() } else { "denied".into() }
            }
            Self::Advance { spans } => {
                clock.advance(Duration::from_micros(spans * SPAN));
                String::new()
            }
        }
    }
}

fn settled(result: Result<(), tower_ratelimit::Error>) -> String {
    match result {
        Ok(()) => "settled".into(),
        Err(error) if error.is_unknown_id() => "unknown".into(),
        Err(error) => error.to_string(),
    }
}

/// Returns the remaining units of each key.
pub(crate) async fn remaining(limiter: &BoxLimiter<str>) -> Vec<u64> {
    let mut remaining = Vec::new();
    for key in KEYS {
        let peeked = limiter.peek(key, AcquireOptions::from(Costs::from(0))).await.expect("a decision");
        remaining.push(peeked.remaining().expect("a number"));
    }
    remaining
}

#[derive(Default)]
pub(crate) struct Model {
    now: u64,
    keys: [Key; 2],
    /// How often each kind of result occurred.
    pub(crate) results: HashMap<String, u64>,
}

#[derive(Default)]
struct Key {
    charged: u64,
    records: HashMap<u64, Record>,
}

struct Record {
    cost: u64,
    phase: Phase,
    repeats: u16,
    expires_at: u64,
    forgotten_at: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Held,
    Expired,
    Settled,
}

impl Key {
    fn held(&self) -> u64 {
        self.records.values().filter(|record| record.phase == Phase::Held).map(|record| record.cost).sum()
    }

    fn has_room(&self, cost: u64) -> bool {
        self.charged + self.held() + cost <= LIMIT
    }

    fn settle(&mut self, id: u64, actual: u64) -> &'static str {
        let Some(record) = self.records.get_mut(&id) else { return "unknown" };
        match record.phase {
            Phase::Held => self.charged += actual,
            Phase::Expired => self.charged += actual.saturating_sub(record.cost),
            Phase::Settled => {}
        }
        record.phase = Phase::Settled;
        "settled"
    }
}

impl Model {
    pub(crate) fn remaining(&self) -> Vec<u64> {
        self.keys.iter().map(|key| LIMIT.saturating_sub(key.charged + key.held())).collect()
    }

    pub(crate) fn run(&mut self, operation: Operation) -> String {
        let (now, mut remembered) = (self.now, String::new());
        let result = match operation {
            Operation::Hold { key, id, cost, lifetime, repeats } => {
                let key = &mut self.keys[key];
                let (has_room, count) = (key.has_room(cost), key.records.len());
                match key.records.get_mut(&id) {
                    Some(known) if known.cost != cost => "conflict",
                    Some(known) if known.phase != Phase::Held => "ended",
                    Some(known) if known.repeats == 0 => {
                        remembered =
                            format!("open, remembered for {:?}", Duration::from_micros(known.forgotten_at - now));
                        "open"
                    }
                    Some(known) => {
                        known.repeats -= 1;
                        "repeat"
                    }
                    None if !has_room => "denied",
                    None if count >= MAX_IDS => "too many",
                    None => {
                        let (expires_at, phase) = (now + lifetime, Phase::Held);
                        let forgotten_at = expires_at + lifetime;
                        key.records.insert(id, Record { cost, phase, repeats, expires_at, forgotten_at });
                        "allowed"
                    }
                }
            }
            Operation::Settle { key, id, actual } => self.keys[key].settle(id, actual),
            Operation::Release { key, id } => self.keys[key].settle(id, 0),
            Operation::Check { key, cost } => {
                let key = &mut self.keys[key];
                if key.has_room(cost) {
                    key.charged += cost;
                    "allowed"
                } else {
                    "denied"
                }
            }
            Operation::Advance { spans } => {
                self.now += spans * SPAN;
                for key in &mut self.keys {
                    for record in key.records.values_mut() {
                        if record.phase == Phase::Held && record.expires_at <= self.now {
                            record.phase = Phase::Expired;
                            key.charged += record.cost;
                        }
                    }
                    key.records.retain(|_, record| record.forgotten_at > self.now);
                }
                ""
            }
        };
        *self.results.entry(result.to_owned()).or_default() += 1;
        if remembered.is_empty() { result.to_owned() } else { remembered }
    }
}

/// Compares a limiter with the model in one random trace, and adds the results to `seen`.
pub(crate) async fn compare(
    limiter: &BoxLimiter<str>,
    clock: &ManualClock,
    seed: u64,
    seen: &mut HashMap<String, u64>,
) {
    let (mut random, mut model, mut trace) = (Random::new(seed), Model::default(), Vec::new());
    for _ in 0..60 {
        let operation = Operation::random(&mut random);
        trace.push(operation);
        let result = operation.run(limiter, clock).await;
        assert_eq!(result, model.run(operation), "seed {seed}: {trace:?}");
        assert_eq!(remaining(limiter).await, model.remaining(), "seed {seed}: {trace:?}");
    }
    for (result, count) in model.results {
        *seen.entry(result).or_default() += count;
    }
}

/// The law of ids that clients choose: however often they are sent, settled and expired, no id passes more than `1 +
/// repeats` times until it is forgotten, and what passes more often than it is held is a repeat. Returns how many holds were
/// sent, and how many passed.
pub(crate) async fn no_id_passes_too_often(limiter: &BoxLimiter<str>, clock: &ManualClock, seed: u64) -> [u64; 2] {
    let (mut random, mut counts) = (Random::new(seed), [0; 2]);
    let repeats = [0, 1, 5][random.index(3)];
    // Of each id the time of the first hold, and how many have passed.
    let mut passed: HashMap<u64, (Timestamp, u64)> = HashMap::new();
    for _ in 0..150 {
        let (id, now) = (random.below(3), tower_ratelimit::Clock::now(clock));
        let text = format!("id {id}");
        match random.below(12) {
            0 => drop(limiter.settle("mallory", &text, random.below(3)).await),
            1 => clock.advance(Duration::from_micros(random.below(4) * SPAN)),
            2 => limiter.reset("mallory").await.expect("done"),
            _ => {
                let options = AcquireOptions::cost(1 + id).id(&text).repeats(repeats);
                let options = options.expires_in(Duration::from_micros(LIFETIMES[1]));
                counts[0] += 1;
                match limiter.hold("mallory", options).await {
                    Ok(outcome) if outcome.decision.is_allowed() => {
                        counts[1] += 1;
                        let since = passed.entry(id).or_insert((now, 0));
                        if now.saturating_since(since.0) >= Duration::from_micros(2 * LIFETIMES[1]) {
                            *since = (now, 0);
                        }
                        assert_eq!(outcome.decision.is_repeat(), since.1 > 0, "seed {seed}, {since:?}");
                        since.1 += 1;
                        assert!(since.1 <= 1 + u64::from(repeats), "seed {seed}, {since:?}");
                    }
                    Ok(_) => {}
                    Err(error) => assert!(error.is_already_settled() && !error.is_unavailable(), "{error}"),
                }
            }
        }
    }
    counts
}

/// The algorithms of the law below: usage drains within ten times the longest expiry.
pub(crate) const DRAINING: Quota = Quota::new(LIMIT, Duration::from_micros(40 * SPAN));

/// The law of holds that expire: when a hold is charged does not depend on when somebody looks. Runs the same calls on two
/// limiters, and looks at the first one at random times, also while surcharges exceed the limit. Returns how many decisions
/// found nothing left.
pub(crate) async fn looking_changes_no_charge(
    [looked, alone]: &[BoxLimiter<str>; 2],
    clock: &ManualClock,
    seed: u64,
    look: &mut impl AsyncFnMut(&mut Random),
) -> u64 {
    let (mut random, mut looks, mut exhausted) = (Random::new(seed), Random::new(!seed), 0);
    for step in 0..60 {
        clock.advance(Duration::from_micros(random.below(3 * SPAN)));
        let (key, id, cost) = (KEYS[random.index(2)], format!("{}", random.below(8)), 1 + random.below(40));
        let context = format!("seed {seed}, step {step}, {key}");
        match random.below(6) {
            0 | 1 => {
                let lifetime = Duration::from_micros((1 + random.below(4)) * SPAN);
                let hold = AcquireOptions::cost(cost).id(&id).expires_in(lifetime);
                match [looked.hold(key, hold).await, alone.hold(key, hold).await] {
                    [Ok(one), Ok(other)] => assert_eq!(one.decision, other.decision, "{context}"),
                    [one, other] => {
                        assert_eq!(one.as_ref().err().map(text), other.as_ref().err().map(text), "{context}");
                    }
                }
            }
            // Surcharges.
            2 => {
                let actual = if random.below(3) == 0 { 0 } else { 3 * cost };
                let results =
                    [looked.settle(key, id.as_str(), actual).await, alone.settle(key, id.as_str(), actual).await];
                let [one, other] = results.map(|result| result.as_ref().err().map(text));
                assert_eq!(one, other, "{context}");
            }
            3 => {
                let [one, other] = [looked.check(key, cost).await, alone.check(key, cost).await].map(Result::unwrap);
                exhausted += u64::from(one.remaining() == Some(0));
                assert_eq!(one, other, "{context}");
            }
            _ => {
                for _ in 0..looks.below(3) {
                    look(&mut looks).await;
                }
            }
        }
    }
    exhausted
}

fn text(error: &tower_ratelimit::Error) -> String {
    error.to_string()
}
