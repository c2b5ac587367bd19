//! The near-limit signal: marks, crossings and their events, against a model that counts usage by itself.

use std::collections::HashMap;
use std::time::Duration;

use tower_ratelimit::limiter::{Chained, Held, Observed};
use tower_ratelimit::{
    AcquireOptions, Clock as _, Decision, Detail, DynLimit, FixedWindow, Gcra, InFlight, Limit, LimitStatus, Limiter,
    ManualClock, Memory, Quota, Timestamp,
};

use crate::immediate::{acquire, memory, ready};
use crate::near_events::Events;
use crate::random::Random;

const MINUTE: u64 = 60_000_000;

/// A limit of the model: its usage is the sum of what is held, and of what a bucket or a window has counted.
#[derive(Clone, Copy)]
enum Kind {
    /// Drains one unit in each interval of microseconds.
    Bucket { interval: u64 },
    /// Counts from the first hit on, for a period of microseconds.
    Window { period: u64 },
    /// Counts held costs only.
    InFlight,
}

#[derive(Clone, Copy, Default)]
struct KeyState {
    /// Bucket: the time at which the debt has drained. Window: the end of the window.
    until: u64,
    /// Window: the counted units.
    counted: u64,
    held: u64,
    last_event: Option<u64>,
}

struct ModelLimit {
    name: &'static str,
    kind: Kind,
    limit: u64,
    /// The mark in percent.
    mark: Option<u64>,
    is_global: bool,
    keys: HashMap<u64, KeyState>,
}

impl ModelLimit {
    fn key(&mut self, user: u64) -> &mut KeyState {
        self.keys.entry(if self.is_global { 0 } else { user }).or_default()
    }

    /// The usage in microunits, so that the debt of a bucket is not rounded.
    fn usage(&mut self, user: u64, now: u64) -> u64 {
        let (kind, state) = (self.kind, *self.key(user));
        let counted = match kind {
            Kind::Bucket { interval } => state.until.saturating_sub(now) * 1_000_000 / interval,
            Kind::Window { .. } if now < state.until => state.counted * 1_000_000,
            Kind::Window { .. } | Kind::InFlight => 0,
        };
        counted + state.held * 1_000_000
    }

    fn allows(&mut self, user: u64, now: u64, cost: u64) -> bool {
        self.usage(user, now) + cost * 1_000_000 <= self.limit * 1_000_000
    }

    fn is_near(&mut self, user: u64, now: u64) -> bool {
        let used = self.usage(user, now).div_ceil(1_000_000).min(self.limit);
        self.mark.is_some_and(|mark| used * 100 >= self.limit * mark)
    }

    fn charge(&mut self, user: u64, now: u64, cost: u64) {
        let kind = self.kind;
        let state = self.key(user);
        match kind {
            Kind::Bucket { interval } => state.until = state.until.max(now) + cost * interval,
            Kind::Window { .. } if now < state.until => state.counted += cost,
            Kind::Window { period } => (state.until, state.counted) = (now + period, cost),
            Kind::InFlight => {}
        }
    }
}

/// The limits of a run, and their model. The marks differ from run to run, and one limit may have none.
fn limits(random: &mut Random, has_window: bool) -> (Vec<DynLimit<u64>>, Vec<ModelLimit>) {
    const MARKS: [Option<u64>; 6] = [None, Some(10), Some(50), Some(70), Some(80), Some(100)];
    let second = Duration::from_secs(1);
    let mut limits = vec![];
    let mut models = vec![];
    let count = if has_window { 4 } else { 3 };
    for (name, kind, limit, is_global) in [
        ("user", Kind::Bucket { interval: 500_000 }, 7, false),
        ("all", Kind::Bucket { interval: 125_000 }, 30, true),
        ("streams", Kind::InFlight, 10, true),
        ("window", Kind::Window { period: 9_000_000 }, 20, false),
    ]
    .into_iter()
    .take(count)
    {
        let mark = MARKS[random.index(MARKS.len())];
        #[allow(clippy::cast_precision_loss, reason = "a percentage")]
        let part = mark.map(|mark| mark as f64 / 100.0);
        macro_rules! marked {
            ($limit:expr) => {{
                let limit = $limit.keyed_by(move |user: &u64| if is_global { 0 } else { *user });
                DynLimit::new(match part {
                    Some(part) => limit.warn_at(part),
                    None => limit,
                })
            }};
        }
        limits.push(match kind {
            Kind::Bucket { interval } => {
                let per_second = 1_000_000 / interval;
                marked!(Limit::new(name, Gcra::new(Quota::new(per_second, second)).burst(limit)))
            }
            Kind::Window { .. } => marked!(Limit::new(name, FixedWindow::new(Quota::new(limit, 9 * second)))),
            Kind::InFlight => marked!(Limit::new(name, InFlight::new(limit))),
        });
        models.push(ModelLimit { name, kind, limit, mark, is_global, keys: HashMap::new() });
    }
    (limits, models)
}

/// The numbers of what happened in a run.
#[derive(Default)]
struct Seen {
    crossings: usize,
    events: usize,
    suppressed: usize,
    denied: usize,
}

/// Charges, holds, settlements, releases and resets at random. After each decision the statuses and events are those of
/// the model. Without a window, settlements also charge more than was held.
fn compare_with_model(seed: u64, has_window: bool, seen: &mut Seen) {
    let (clock, mut random, events) = (ManualClock::new(), Random(seed), Events::default());
    let (limits, mut models) = limits(&mut random, has_window);
    let memory = memory(limits, &clock);
    let limiter = Observed::new(memory.clone(), events.clone());
    let mut held: Vec<(u64, u64, Held)> = Vec::new();
    for step in 0..1_500 {
        let pause = [0, 10_000, 300_000, 1_000_000, 20_000_000][random.index(5)];
        clock.advance(Duration::from_micros(random.below(pause + 1)));
        let (now, user) = (clock.now().as_micros(), random.below(4));
        match random.below(12) {
            0..=2 if !held.is_empty() => {
                let (user, cost, guard) = held.swap_remove(random.index(held.len()));
                let actual = random.below(cost + if has_window { 1 } else { 4 });
                ready(guard.settle(actual));
                for model in &mut models {
                    model.key(user).held -= cost;
                    if actual > 0 {
                        model.charge(user, now, actual);
                    }
                }
                assert_eq!(events.take(), [""; 0], "a settlement crosses nothing");
                continue;
            }
            3 if random.below(4) == 0 => {
                ready(memory.reset(&user));
                for model in &mut models {
                    let state = model.key(user);
                    (state.until, state.counted) = (0, 0);
                }
                assert_eq!(events.take(), [""; 0], "a reset crosses nothing");
                continue;
            }
            _ => {}
        }
        let (cost, is_hold) = (1 + random.below(3), random.below(3) == 0);
        let options = AcquireOptions::cost(cost).keep_guard().detail(Detail::All);
        let outcome = acquire(&limiter, &user, if is_hold { options.hold() } else { options });
        let is_allowed = models.iter_mut().all(|model| model.allows(user, now, cost));
        let context = format!("{seed} {step} {user} {cost} {is_hold}");
        assert_eq!(outcome.decision.is_allowed(), is_allowed, "{context}");
        seen.denied += usize::from(!is_allowed);
        let mut expected_events = Vec::new();
        let mut expected = Vec::new();
        for model in &mut models {
            let was_near = model.is_near(user, now);
            if is_allowed && (is_hold || matches!(model.kind, Kind::InFlight)) {
                model.key(user).held += cost;
            } else if is_allowed {
                model.charge(user, now, cost);
            }
            let is_near = model.is_near(user, now);
            let crossed = is_near && !was_near;
            expected.push((model.name, is_near, crossed));
            if crossed {
                seen.crossings += 1;
                let name = model.name;
                let last = &mut model.key(user).last_event;
                if last.is_none_or(|last| now - last >= MINUTE) {
                    *last = Some(now);
                    expected_events.push(name.to_owned());
                    seen.events += 1;
                } else {
                    seen.suppressed += 1;
                }
            }
        }
        let ours =
            outcome.decision.limits().iter().map(|limit| (limit.name(), limit.is_near_limit(), limit.crossed_mark()));
        assert_eq!(ours.collect::<Vec<_>>(), expected, "{context}");
        assert_eq!(outcome.decision.is_near_limit(), expected.iter().any(|(_, is_near, _)| *is_near), "{context}");
        assert_eq!(events.take(), expected_events, "{context}");
        match outcome.held {
            Some(guard) if is_hold => held.push((user, cost, guard)),
            // The guard holds only what is in flight.
            Some(guard) => {
                for model in models.iter_mut().filter(|model| matches!(model.kind, Kind::InFlight)) {
                    model.key(user).held -= cost;
                }
                ready(guard.settle(cost));
            }
            None => {}
        }
    }
}

#[test]
fn crossings_and_their_events_are_those_of_a_model() {
    let mut seen = Seen::default();
    for seed in 0..20 {
        compare_with_model(seed, seed % 2 == 0, &mut seen);
    }
    let Seen { crossings, events, suppressed, denied } = seen;
    assert!(events > 300 && suppressed > 300 && denied > 300, "{crossings} {events} {suppressed} {denied}");
}

fn bucket(name: &'static str, burst: u64) -> Limit<Gcra> {
    Limit::new(name, Gcra::new(Quota::per_minute(1)).burst(burst))
}

#[test]
fn decision_lists_limits_that_are_near_beside_the_most_restrictive_one() {
    let limiter =
        memory((bucket("small", 4), bucket("large", 10).warn_at(0.3), bucket("unmarked", 10)), &ManualClock::new());
    let names = |decision: &Decision| decision.limits().iter().map(|limit| limit.name().to_owned()).collect::<Vec<_>>();
    let seen: Vec<_> = (0..5).map(|_| limiter.check("alice", 1)).collect();
    let listed: Vec<_> = seen.iter().map(names).collect();
    let (small, both) = (["small"].as_slice(), ["small", "large"].as_slice());
    assert_eq!(listed, [small, small, both, both, both]);
    assert_eq!(seen.iter().map(Decision::is_near_limit).collect::<Vec<_>>(), [false, false, true, true, true]);
    let crossed = |decision: &Decision| decision.limits().iter().filter(|limit| limit.crossed_mark()).count();
    assert_eq!(seen.iter().map(crossed).collect::<Vec<_>>(), [0, 0, 1, 0, 0]);
    assert!(seen.iter().all(|decision| decision.most_restrictive().map(LimitStatus::name) == Some("small")));
}

#[test]
fn mark_of_a_shadow_is_signalled_and_is_no_mark_of_the_decision() {
    let events = Events::default();
    let memory = Memory::builder((bucket("enforced", 9), bucket("trial", 2).shadow().warn_at(0.5)));
    let limiter = Observed::new(memory.clock(ManualClock::new()).build().unwrap(), events.clone());
    let decision = acquire(&limiter, "alice", AcquireOptions::default()).decision;
    assert!(!decision.is_near_limit());
    let trial = decision.limits().iter().find(|limit| limit.is_shadow()).expect("the shadow is listed");
    assert!(trial.is_near_limit() && trial.crossed_mark());
    assert_eq!(events.take(), ["trial"]);
}

#[test]
fn chained_signals_the_crossings_of_both_limiters_if_both_allow() {
    let (clock, events) = (ManualClock::new(), Events::default());
    let part = |limit| memory::<str, _>(limit, &clock);
    let first = part(bucket("first", 2).warn_at(0.5));
    let second = part(bucket("second", 1).warn_at(1.0));
    let limiter = Observed::new(Chained::new(first, second.clone()), events.clone());
    assert!(second.check("bob", 1).is_allowed());
    let denied = acquire(&limiter, "bob", AcquireOptions::default()).decision;
    assert!(!denied.is_allowed() && denied.limits().iter().all(|limit| !limit.crossed_mark()));
    assert_eq!(events.take(), [""; 0]);
    let allowed = acquire(&limiter, "alice", AcquireOptions::default().detail(Detail::All)).decision;
    assert!(allowed.limits().iter().all(LimitStatus::crossed_mark));
    assert_eq!(events.take(), ["first", "second"]);
}

/// 1024 keys have places, so a second crossing within a minute is no event. Of ten times as many keys some have one.
#[test]
fn events_of_more_keys_than_are_remembered_are_never_too_few() {
    let (clock, events) = (ManualClock::new(), Events::default());
    let memory = memory::<u64, _>(bucket("api", 1).warn_at(1.0), &clock);
    let limiter = Observed::new(memory.clone(), events.clone());
    let cross = |keys: u64| {
        for key in 0..keys {
            assert!(acquire(&limiter, &key, AcquireOptions::default()).decision.is_allowed());
            ready(memory.reset(&key));
        }
        events.take().len() as u64
    };
    assert_eq!((cross(100), cross(100)), (100, 0));
    clock.advance(Duration::from_secs(60));
    assert_eq!(cross(100), 100);
    clock.advance(Duration::from_secs(60));
    assert_eq!(cross(10_000), 10_000);
    let again = cross(10_000);
    assert!(again > 5_000, "{again}: most keys were replaced");
}

#[test]
fn events_are_remembered_if_the_limits_are_replaced() {
    let (clock, events) = (ManualClock::new(), Events::default());
    let limits = || vec![DynLimit::<u64>::new(bucket("api", 1).warn_at(1.0))];
    let memory = memory(limits(), &clock);
    let limiter = Observed::new(memory.clone(), events.clone());
    for (seconds, count) in [(0, 1), (20, 0), (20, 0), (20, 1)] {
        clock.advance(Duration::from_secs(seconds));
        memory.replace(limits()).unwrap();
        ready(memory.reset(&1));
        assert!(acquire(&limiter, &1, AcquireOptions::default()).decision.is_allowed());
        assert_eq!(events.take().len(), count, "{seconds}");
    }
}

/// Nothing is left for a class from which the whole limit is kept free, so it uses no part of it.
#[test]
fn class_for_which_nothing_remains_is_not_near_while_the_limit_is_idle() {
    for kept in [9, 10, 11] {
        let limit = bucket("api", 10).warn_at(0.8).keyed_by(|_: &str| ()).keep_free_by(move |_: &str| kept);
        let limiter = memory(limit, &ManualClock::new());
        assert!(!ready(limiter.peek("alice", AcquireOptions::default())).is_near_limit(), "{kept}");
    }
}

#[test]
fn event_follows_a_clock_that_steps_back_far() {
    let (clock, events) = (ManualClock::new(), Events::default());
    let memory = memory::<str, _>(bucket("api", 1).warn_at(1.0), &clock);
    let limiter = Observed::new(memory.clone(), events.clone());
    let start = clock.now();
    for (offset, count) in [(7_200, 1), (7_170, 0), (0, 1), (30, 0), (60, 1)] {
        clock.set(Timestamp::from_micros(start.as_micros() + offset * 1_000_000));
        ready(memory.reset("alice"));
        assert!(acquire(&limiter, "alice", AcquireOptions::default()).decision.is_allowed());
        assert_eq!(events.take().len(), count, "{offset}");
    }
}

#[test]
fn clone_of_a_limit_has_events_of_its_own() {
    let (limit, events) = (bucket("api", 1).warn_at(1.0), Events::default());
    for limit in [limit.clone(), limit] {
        let memory = memory::<str, _>(limit, &ManualClock::new());
        assert!(
            acquire(&Observed::new(memory, events.clone()), "alice", AcquireOptions::default()).decision.is_allowed()
        );
    }
    assert_eq!(events.take().len(), 2);
}

#[test]
fn mark_outside_of_0_to_1_is_an_error_that_names_warn_at() {
    for part in [0.0, -0.5, 1.1, 1e-9, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let error = Memory::<str, _>::builder(bucket("api", 1).warn_at(part)).build().unwrap_err();
        assert_eq!(
            error.to_string(),
            "limit \"api\": the mark `warn_at` is not above 0 and at most 1; pass a part of the limit, such as 0.8",
            "{part}"
        );
    }
    for part in [1e-6, 0.5, 1.0] {
        assert!(Memory::<str, _>::builder(bucket("api", 1).warn_at(part)).build().is_ok(), "{part}");
    }
}
