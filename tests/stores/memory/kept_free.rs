//! Limits that keep units free from some requests: priority classes.

use std::time::Duration;

use tower_ratelimit::limiter::Held;
use tower_ratelimit::store::{DefaultHashBuilder, MemoryLimits};
use tower_ratelimit::{
    AcquireOptions, Decision, Detail, DynLimit, FixedWindow, Gcra, InFlight, LeakyQueue, Limit, LimitStatus, Limiter,
    ManualClock, Memory, Quota, SlidingLog, SlidingWindow,
};

use crate::immediate::{acquire, ready};
use crate::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    user: u64,
    /// The units that the first three limits keep free.
    kept: [u64; 3],
}

const NAMES: [&str; 4] = ["bucket", "window", "third", "user"];

fn quota() -> Quota {
    Quota::new(6, Duration::from_secs(2))
}

/// The third limit of a schedule.
#[derive(Clone, Copy, Debug)]
enum Third {
    Log,
    Blocks,
    InFlight,
}

/// The limits that keep units free, each by itself and without doing so.
fn plain(index: usize, third: Third) -> DynLimit<u64> {
    let name = NAMES[index];
    match (index, third) {
        (0, _) => DynLimit::new(Limit::new(name, Gcra::new(quota()).burst(7)).keyed_by(|_: &u64| ())),
        (1, _) => DynLimit::new(Limit::new(name, FixedWindow::new(quota())).keyed_by(|_: &u64| ())),
        (2, Third::Log) => DynLimit::new(Limit::new(name, SlidingLog::new(quota())).keyed_by(|_: &u64| ())),
        (2, Third::Blocks) => DynLimit::new(Limit::new(name, SlidingWindow::new(quota())).keyed_by(|_: &u64| ())),
        (2, Third::InFlight) => DynLimit::new(Limit::new(name, InFlight::new(8)).keyed_by(|_: &u64| ())),
        _ => DynLimit::new(Limit::new(name, Gcra::new(quota()))),
    }
}

fn limits(third: Third) -> Vec<DynLimit<Call>> {
    let all = |_: &Call| ();
    let kept = |call: &Call| call.kept[2];
    let name = NAMES[2];
    vec![
        DynLimit::new(
            Limit::new(NAMES[0], Gcra::new(quota()).burst(7)).keyed_by(all).keep_free_by(|call: &Call| call.kept[0]),
        ),
        DynLimit::new(
            Limit::new(NAMES[1], FixedWindow::new(quota())).keyed_by(all).keep_free_by(|call: &Call| call.kept[1]),
        ),
        match third {
            Third::Log => DynLimit::new(Limit::new(name, SlidingLog::new(quota())).keyed_by(all).keep_free_by(kept)),
            Third::Blocks => {
                DynLimit::new(Limit::new(name, SlidingWindow::new(quota())).keyed_by(all).keep_free_by(kept))
            }
            Third::InFlight => DynLimit::new(Limit::new(name, InFlight::new(8)).keyed_by(all).keep_free_by(kept)),
        },
        DynLimit::new(Limit::new(NAMES[3], Gcra::new(quota())).keyed_by(|call: &Call| call.user)),
    ]
}

/// A limit that keeps k units free decides a cost of c as the same limit without them decides a cost of c + k, and is
/// charged c. Each denial is retried at its `retry_after`, and one microsecond earlier. The time until more remains is
/// never too short, and exact where the documentation says so.
fn compare_with_larger_costs(third: Third, seed: u64) -> [u64; 4] {
    let clock = ManualClock::new();
    let limiter = Memory::builder(limits(third)).max_keys(100).clock(clock.clone()).build().expect("limits");
    let single =
        |index| Memory::builder(vec![plain(index, third)]).max_keys(100).clock(clock.clone()).build().expect("limits");
    let singles: Vec<_> = (0..NAMES.len()).map(single).collect();
    let (mut random, mut counts) = (Random(seed), [0; 4]);
    let mut held: Vec<(Held, Vec<Held>)> = Vec::new();
    for step in 0..3_000 {
        clock.advance(Duration::from_micros(random.below(500_000)));
        let kept = [0, 1, 2].map(|_| [0, 0, 1, 3, 5][random.index(5)]);
        let call = Call { user: random.below(2), kept };
        if random.below(3) == 0 && !held.is_empty() {
            let (ours, theirs) = held.swap_remove(random.index(held.len()));
            // Up to a surcharge.
            let actual = random.below(4);
            ready(ours.settle(actual));
            for held in theirs {
                ready(held.settle(actual));
            }
            continue;
        }
        if random.below(30) == 0 {
            ready(limiter.reset(&call));
            for single in &singles {
                ready(single.reset(&call.user));
            }
            continue;
        }
        let cost = 1 + random.below(3);
        let max_delay = [None, Some(Duration::ZERO), Some(Duration::from_secs(9))][random.index(3)];
        let is_hold = random.below(3) == 0;
        let options_of = |cost| {
            let options = AcquireOptions::cost(cost).keep_guard().detail(Detail::All);
            if is_hold { options.hold() } else { options }
        };
        let options = options_of(cost).max_delay(max_delay);
        let asked =
            |index: usize| options_of(cost + kept.get(index).copied().unwrap_or_default()).max_delay(Duration::ZERO);
        let peeks: Vec<_> =
            singles.iter().enumerate().map(|(index, single)| ready(single.peek(&call.user, asked(index)))).collect();
        let outcome = acquire(&limiter, &call, options);
        let context = format!("{third:?} {seed} {step} {call:?} {options:?}");
        let is_allowed = peeks.iter().all(Decision::is_allowed);
        assert_eq!(
            (outcome.decision.is_allowed(), outcome.decision.delay()),
            (is_allowed, Duration::ZERO),
            "{context}"
        );
        let exceeds = peeks.iter().any(Decision::exceeds_limit);
        assert_eq!(outcome.decision.exceeds_limit(), exceeds, "{context}");
        let longest = peeks.iter().filter_map(Decision::retry_after).max().filter(|_| !exceeds);
        assert_eq!(outcome.decision.retry_after(), longest, "{context}");
        let (mut theirs, mut remaining) = (Vec::new(), Vec::new());
        for (index, single) in singles.iter().enumerate() {
            let kept = kept.get(index).copied().unwrap_or_default();
            let left = if is_allowed {
                let single = acquire(single, &call.user, options.max_delay(Duration::ZERO));
                theirs.extend(single.held);
                single.decision.remaining()
            } else {
                peeks[index].remaining()
            };
            remaining.push(left.expect("a limit").saturating_sub(kept));
        }
        let ours: Vec<_> = outcome.decision.limits().iter().map(LimitStatus::remaining).collect();
        assert_eq!(ours, remaining, "{context}");
        for (index, status) in outcome.decision.limits().iter().enumerate().filter(|_| held.is_empty() && !is_hold) {
            let (kept, single) = (kept.get(index).copied().unwrap_or_default(), &singles[index]);
            let peeked = |cost| ready(single.peek(&call.user, AcquireOptions::cost(cost).detail(Detail::All)));
            let left = peeked(0);
            // The time when more is left than is kept free.
            let next = if left.remaining() >= Some(kept) {
                Some(left.limits()[0].next_token_after())
            } else {
                peeked(kept + 1).retry_after()
            };
            let (Some(next), told) = (next, status.next_token_after()) else { continue };
            let is_exact = left.remaining() >= Some(kept) || cost == 1;
            assert!(told >= next && (told == next || !is_exact), "{context}: {told:?}, not {next:?}, of {status:?}");
            counts[2] += u64::from(is_exact && left.remaining() < Some(kept));
            counts[3] += u64::from(!is_exact && told < status.reset());
        }
        if let Some(wait) = longest.filter(|_| random.below(4) == 0 && !outcome.decision.is_estimate()) {
            clock.advance(wait.saturating_sub(Duration::from_micros(1)));
            assert!(!ready(limiter.peek(&call, options)).is_allowed(), "too long: {context}");
            clock.advance(Duration::from_micros(1));
            assert!(ready(limiter.peek(&call, options)).is_allowed(), "too short: {context}");
        }
        held.extend(outcome.held.map(|ours| (ours, theirs)));
        counts[usize::from(is_allowed)] += 1;
    }
    counts
}

#[test]
fn kept_free_units_count_like_a_larger_cost_and_are_not_charged() {
    for third in [Third::Log, Third::Blocks, Third::InFlight] {
        for seed in 1..=3 {
            let counts = compare_with_larger_costs(third, seed);
            println!("{third:?} {seed}: {counts:?}");
            assert!(counts[..2].iter().all(|count| *count > 100) && counts[2] > 20, "{counts:?}");
        }
    }
}

fn classes<A: tower_ratelimit::algorithm::Algorithm>(
    algorithm: A,
) -> impl MemoryLimits<bool, DefaultHashBuilder, Tables: Send> + 'static {
    Limit::new("all", algorithm).keyed_by(|_: &bool| ()).keep_free_by(|is_bulk: &bool| if *is_bulk { 30 } else { 0 })
}

/// However many requests the lower class sends, the higher class finds the units that are kept free.
#[test]
fn flood_of_the_lower_class_leaves_the_kept_units() {
    let clock = ManualClock::new();
    let all = classes(Gcra::new(Quota::per_second(80)).burst(40));
    let limiter = Memory::builder(all).clock(clock.clone()).build().expect("limits");
    let mut admitted = 0;
    for _ in 0..10 {
        for _ in 0..1_000 {
            admitted += u64::from(limiter.check(&true, 1).is_allowed());
            clock.advance(Duration::from_millis(1));
        }
        assert!((30..=31).contains(&ready(limiter.peek(&false, 0.into())).remaining().expect("a limit")));
        assert!(limiter.check(&false, 30).is_allowed());
        assert!(!limiter.check(&true, 1).is_allowed());
        clock.advance(Duration::from_millis(375));
    }
    // Ten units at first, and then the rate of 80 per second of the ten seconds.
    assert!((790..=811).contains(&admitted), "{admitted}");
}

#[test]
fn cost_that_exceeds_the_limit_less_the_kept_units_is_never_allowed() {
    let limiter = Memory::new(classes(Gcra::new(Quota::per_second(80)).burst(40)));
    assert!(limiter.check(&true, 11).exceeds_limit());
    let decision = limiter.check(&true, 10);
    assert_eq!((decision.is_allowed(), decision.remaining()), (true, Some(0)));
    assert_eq!(decision.most_restrictive().map(LimitStatus::limit), Some(10));
    assert!(!limiter.check(&false, 40).exceeds_limit() && limiter.check(&false, 41).exceeds_limit());
}

#[test]
fn queue_that_keeps_units_free_and_limit_on_the_whole_key_beside_one_are_errors() {
    let error = Memory::builder(classes(LeakyQueue::new(quota()))).build().map(drop).expect_err("a queue").to_string();
    assert!(error.contains("limit \"all\": a queue cannot keep units free"), "{error}");
    let limits = (Limit::new("user", Gcra::new(quota())), {
        Limit::new("all", Gcra::new(quota())).keyed_by(|_: &bool| ()).keep_free_by(|is_bulk: &bool| u64::from(*is_bulk))
    });
    let error = Memory::builder(limits).build().map(drop).expect_err("a limit on the whole key").to_string();
    assert!(
        error.contains("limit \"user\": it counts by the whole key") && error.contains("keeps units free"),
        "{error}"
    );
}
