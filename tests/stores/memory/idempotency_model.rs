//! What the documentation of requests that are charged once says, for a limit that drains nothing during the test; and
//! random traces that compare a limiter with it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tower_ratelimit::limiter::Held;
use tower_ratelimit::{AcquireOptions, BoxLimiter, Limiter, ManualClock};

use crate::random::Random;
use crate::reservation_model::{LIMIT, MAX_IDS, SPAN};

/// Times for which ids are remembered. Redis rounds none of them.
const REMEMBER: [u64; 2] = [2 * SPAN, 4 * SPAN];
const KEYS: [&str; 2] = ["alice", "bob"];

#[derive(Default)]
struct Model {
    now: u64,
    keys: [Key; 2],
}

#[derive(Default)]
struct Key {
    charged: u64,
    passed: u64,
    requests: HashMap<u64, Request>,
    /// The charges that no repeat can follow any more: (1 + repeats) times each charge bounds what passes.
    bound: u64,
}

struct Request {
    cost: u64,
    repeats: u16,
    forgotten_at: u64,
}

impl Key {
    fn request(&mut self, now: u64, id: u64, cost: u64, repeats: u16, remember: u64) -> &'static str {
        self.requests.retain(|_, request| request.forgotten_at > now);
        let count = self.requests.len();
        match self.requests.get_mut(&id) {
            Some(request) if request.repeats > 0 => {
                let difference = cost.saturating_sub(request.cost);
                if self.charged + difference > LIMIT {
                    return "denied repeat";
                }
                request.cost = request.cost.max(cost);
                request.repeats -= 1;
                self.charged += difference;
                self.bound += difference * 4;
                self.passed += cost;
                if difference > 0 { "difference" } else { "repeat" }
            }
            known => {
                if self.charged + cost > LIMIT {
                    return "denied";
                }
                self.charged += cost;
                self.passed += cost;
                self.bound += cost * 4;
                if known.is_some() {
                    return "charged again";
                }
                if count >= MAX_IDS {
                    return "not remembered";
                }
                self.requests.insert(id, Request { cost, repeats, forgotten_at: now + remember });
                "charged"
            }
        }
    }
}

/// Compares a limiter with the model. Adds how often each kind of result occurred.
pub(crate) async fn compare(
    limiter: &BoxLimiter<str>,
    clock: &ManualClock,
    seed: u64,
    seen: &mut HashMap<&'static str, u64>,
) {
    let (mut random, mut model) = (Random::new(seed), Model::default());
    for step in 0..120 {
        if random.below(4) == 0 {
            let spans = random.below(4);
            clock.advance(Duration::from_micros(spans * SPAN));
            model.now += spans * SPAN;
            continue;
        }
        let (key, id, cost) = (usize::from(random.below(3) == 0), random.below(7), 1 + random.below(6));
        let (repeats, remember) = (1 + u16::try_from(random.below(3)).expect("a small number"), REMEMBER[step % 2]);
        let options = AcquireOptions::cost(cost).once(&format!("req-{id}"), repeats, Duration::from_micros(remember));
        let expected = model.keys[key].request(model.now, id, cost, repeats, remember);
        *seen.entry(expected).or_default() += 1;
        let decision = limiter.check(KEYS[key], options).await.expect("a decision");
        let context = format!("seed {seed}, step {step}: {expected}, {options:?}");
        assert_eq!(decision.is_allowed(), !expected.starts_with("denied"), "{context}: {decision:?}");
        let of_key = &model.keys[key];
        assert_eq!(decision.remaining(), Some(LIMIT - of_key.charged), "{context}");
        // The greatest number of repeats is 3.
        assert!(of_key.passed <= of_key.bound, "{context}");
    }
}

/// Requests with one id at a time, some of which are settled after the id was forgotten. For each id they pass at most
/// `1 + repeats` times what they are charged. Returns both sums.
pub(crate) async fn compare_bound(limiter: &BoxLimiter<str>, clock: &ManualClock, seed: u64) -> (u64, u64) {
    let mut random = Random::new(seed);
    let left = async || limiter.peek("alice", AcquireOptions::cost(0)).await.expect("a decision").remaining();
    let (start, mut sums) = (left().await.expect("a number"), (0, 0));
    for number in 0..20 {
        let repeats = 1 + u16::try_from(random.below(3)).expect("a small number");
        let id = format!("{seed}-{number}");
        let (mut held, mut trace) = (VecDeque::<(u64, Held)>::new(), Vec::new());
        let hold = async |cost| {
            let options = AcquireOptions::cost(cost).once(&id, repeats, Duration::from_micros(2 * SPAN));
            let outcome = limiter.hold("alice", options).await.expect("a decision");
            (cost, outcome.held.expect("a guard"))
        };
        let mut passed = 0;
        let mut settle = async |trace: &mut Vec<String>, (cost, held): (u64, Held)| {
            passed += cost;
            trace.push(format!("settle {cost}"));
            held.settle(cost).await.expect("settled");
        };
        for _ in 0..3 {
            for request in 0..=repeats {
                let cost = [1, 40][random.index(2)];
                trace.push(format!("hold {cost}"));
                held.push_back(hold(cost).await);
                if request == 0 && random.below(10) > 0 {
                    settle(&mut trace, held.pop_back().expect("a request")).await;
                }
                if request == repeats {
                    clock.advance(Duration::from_micros(2 * SPAN));
                    trace.push("two spans".to_owned());
                }
                while (request == 0 || request == repeats) && !held.is_empty() && random.below(2) == 0 {
                    settle(&mut trace, held.pop_front().expect("a request")).await;
                }
            }
        }
        for request in held {
            settle(&mut trace, request).await;
        }
        let charged = start - left().await.expect("a number") - sums.1;
        let bound = (1 + u64::from(repeats)) * charged;
        assert!(passed <= bound, "seed {seed}, {repeats} repeats, {trace:?}: {passed} passed, {charged} charged");
        sums = (sums.0 + passed, sums.1 + charged);
        // The id is forgotten.
        clock.advance(Duration::from_micros(4 * SPAN));
    }
    sums
}

pub(crate) const RESULTS: [&str; 6] = ["charged", "repeat", "difference", "charged again", "not remembered", "denied"];
