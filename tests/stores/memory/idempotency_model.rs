//! What the documentation of requests that are charged once says, for a limit that drains nothing during the test; and
//! random traces that compare a limiter with it.

use std::collections::HashMap;
use std::time::Duration;

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

pub(crate) const RESULTS: [&str; 6] = ["charged", "repeat", "difference", "charged again", "not remembered", "denied"];
