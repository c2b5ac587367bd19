//! Limits that apply only to some keys.

use std::time::Duration;

use tower_ratelimit::limiter::{Chained, DeniedCache, Held};
use tower_ratelimit::store::{DefaultHashBuilder, MemoryLimits};
use tower_ratelimit::{
    AcquireOptions, Decision, DecisionSource, Detail, DynLimit, FixedWindow, Gcra, InFlight, Limit, LimitStatus,
    Limiter, ManualClock, Memory, Quota, SlidingLog, SlidingWindow,
};

use crate::immediate::{acquire, ready};
use crate::random::Random;

/// For each limit a bit: the limit applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    applies: u8,
    user: u64,
}

impl Call {
    fn is(&self, limit: usize) -> bool {
        self.applies >> limit & 1 == 1
    }
}

const LIMITS: usize = 5;
const NAMES: [&str; LIMITS] = ["bucket", "window", "log", "flights", "all"];

fn quota() -> Quota {
    Quota::new(4, Duration::from_secs(2))
}

/// A limit by itself, for all keys.
fn single(index: usize, clock: &ManualClock) -> Memory<u64, Vec<DynLimit<u64>>> {
    let name = NAMES[index];
    let limit = match index {
        0 => DynLimit::new(Limit::new(name, Gcra::new(quota()).burst(3))),
        1 => DynLimit::new(Limit::new(name, FixedWindow::new(quota()))),
        2 => DynLimit::new(Limit::new(name, SlidingLog::new(quota()))),
        3 => DynLimit::new(Limit::new(name, InFlight::new(3))),
        _ => DynLimit::new(Limit::new(name, SlidingWindow::new(quota())).keyed_by(|_: &u64| ())),
    };
    Memory::builder(vec![limit]).max_keys(100).clock(clock.clone()).build().expect("limits")
}

/// Decides random requests, each of which meets a random subset of the limits. The model asks each of these limits by
/// itself, and charges them if all allow.
fn compare_with_single_limits<L>(limits: L, seed: u64) -> [u64; 3]
where
    L: MemoryLimits<Call, DefaultHashBuilder> + 'static,
{
    let clock = ManualClock::new();
    let limiter = Memory::builder(limits).max_keys(100).clock(clock.clone()).build().expect("limits");
    let singles: Vec<_> = (0..LIMITS).map(|index| single(index, &clock)).collect();
    let (mut random, mut counts) = (Random(seed), [0; 3]);
    let mut held: Vec<(Held, Vec<Held>)> = Vec::new();
    for step in 0..5_000 {
        clock.advance(Duration::from_micros(random.below(400_000)));
        let call = Call { applies: u8::try_from(random.below(1 << LIMITS)).expect("a byte"), user: random.below(3) };
        let applying: Vec<_> = (0..LIMITS).filter(|index| call.is(*index)).collect();
        if random.below(4) == 0 && !held.is_empty() {
            let (ours, theirs) = held.swap_remove(random.index(held.len()));
            let actual = random.below(4);
            ready(ours.settle(actual));
            for held in theirs {
                ready(held.settle(actual));
            }
            continue;
        }
        if random.below(50) == 0 {
            ready(limiter.reset(&call));
            for index in applying {
                ready(singles[index].reset(&call.user));
            }
            continue;
        }
        let mut options = AcquireOptions::cost(1 + random.below(2)).keep_guard().detail(Detail::All);
        options = options.max_delay(Duration::ZERO);
        if random.below(3) == 0 {
            options = options.hold();
        }
        let peeks: Vec<_> = applying.iter().map(|index| ready(singles[*index].peek(&call.user, options))).collect();
        let outcome = acquire(&limiter, &call, options);
        let context = format!("{seed} {step} {call:?} {options:?}");
        let is_allowed = peeks.iter().all(Decision::is_allowed);
        assert_eq!(outcome.decision.is_allowed(), is_allowed, "{context}");
        let exceeds = peeks.iter().any(Decision::exceeds_limit);
        let longest = peeks.iter().filter_map(Decision::retry_after).max().filter(|_| !exceeds);
        assert_eq!(outcome.decision.retry_after(), longest, "{context}");
        let names: Vec<_> = outcome.decision.limits().iter().map(LimitStatus::name).collect();
        assert_eq!(names, applying.iter().map(|index| NAMES[*index]).collect::<Vec<_>>(), "{context}");
        assert_eq!(outcome.decision.is_exempt(), applying.is_empty(), "{context}");
        let (mut theirs, mut remaining) = (Vec::new(), Vec::new());
        for (index, peek) in applying.iter().zip(&peeks) {
            if is_allowed {
                let single = acquire(&singles[*index], &call.user, options);
                remaining.push(single.decision.remaining().expect("a limit"));
                theirs.extend(single.held);
            } else {
                remaining.push(peek.remaining().expect("a limit"));
            }
        }
        let ours: Vec<_> = outcome.decision.limits().iter().map(LimitStatus::remaining).collect();
        assert_eq!(ours, remaining, "{context}");
        held.extend(outcome.held.map(|ours| (ours, theirs)));
        counts[usize::from(is_allowed) + usize::from(outcome.decision.is_exempt())] += 1;
    }
    counts
}

fn limits() -> impl MemoryLimits<Call, DefaultHashBuilder> + 'static {
    (
        Limit::new(NAMES[0], Gcra::new(quota()).burst(3))
            .keyed_by(|call: &Call| call.user)
            .only_if(|call: &Call| call.is(0)),
        Limit::new(NAMES[1], FixedWindow::new(quota())).keyed_by_some(|call: &Call| call.is(1).then_some(call.user)),
        Limit::new(NAMES[2], SlidingLog::new(quota()))
            .keyed_by_ref(|call: &Call| &call.user)
            .only_if(|call: &Call| call.is(2)),
        Limit::new(NAMES[3], InFlight::new(3)).keyed_by(|call: &Call| call.user).only_if(|call: &Call| call.is(3)),
        Limit::new(NAMES[4], SlidingWindow::new(quota())).keyed_by(|_: &Call| ()).only_if(|call: &Call| call.is(4)),
    )
}

fn dyn_limits() -> Vec<DynLimit<Call>> {
    let user = |call: &Call| call.user;
    vec![
        DynLimit::new(
            Limit::new(NAMES[0], Gcra::new(quota()).burst(3)).keyed_by(user).only_if(|call: &Call| call.is(0)),
        ),
        DynLimit::new(
            Limit::new(NAMES[1], FixedWindow::new(quota()))
                .keyed_by_some(|call: &Call| call.is(1).then_some(call.user)),
        ),
        DynLimit::new(Limit::new(NAMES[2], SlidingLog::new(quota())).keyed_by(user).only_if(|call: &Call| call.is(2))),
        DynLimit::new(Limit::new(NAMES[3], InFlight::new(3)).keyed_by(user).only_if(|call: &Call| call.is(3))),
        DynLimit::new(
            Limit::new(NAMES[4], SlidingWindow::new(quota())).keyed_by(|_: &Call| ()).only_if(|call: &Call| call.is(4)),
        ),
    ]
}

#[test]
fn limits_that_apply_decide_as_if_there_were_no_others() {
    for seed in 1..=3 {
        for counts in [compare_with_single_limits(limits(), seed), compare_with_single_limits(dyn_limits(), seed)] {
            println!("seed {seed}: {} denied, {} allowed, {} exempt", counts[0], counts[1], counts[2]);
            assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
        }
    }
}

#[test]
fn limit_that_does_not_apply_is_in_no_decision_and_stores_nothing() {
    let limiter = Memory::builder(dyn_limits()).clock(ManualClock::new()).build().expect("limits");
    let call = Call { applies: 0b0_0001, user: 7 };
    let options = AcquireOptions::cost(1).keep_guard().hold().detail(Detail::All);
    let outcome = acquire(&limiter, &call, options);
    assert_eq!(outcome.decision.limits().len(), 1);
    assert!(limiter.check(&call, 1).is_allowed());
    let used: Vec<_> = limiter.usage().iter().map(|usage| usage.live_keys + usage.held_keys).collect();
    assert_eq!(used[1..], [0, 0, 0, 0], "{used:?}");
    assert!(used[0] > 0);
}

#[test]
fn request_to_which_no_limit_applies_is_exempt() {
    let limiter = Memory::builder(limits()).clock(ManualClock::new()).build().expect("limits");
    let call = Call { applies: 0, user: 7 };
    for _ in 0..100 {
        let decision = limiter.check(&call, 1_000_000);
        assert!(decision.is_allowed() && decision.is_exempt());
        assert_eq!((decision.remaining(), decision.source()), (None, DecisionSource::Store));
    }
    assert!(ready(limiter.peek(&call, AcquireOptions::default())).is_exempt());
    let held = acquire(&limiter, &call, AcquireOptions::cost(9).keep_guard().hold()).held.expect("allowed");
    ready(held.settle(5));
    assert!(!limiter.check(&Call { applies: 1, user: 7 }, 1).is_exempt());
    assert!(!limiter.check(&Call { applies: 1, user: 7 }, 9).is_exempt());
    // A shadow applies, too.
    let shadow = Memory::new(Limit::new("a", Gcra::new(quota())).keyed_by(|call: &Call| call.user).shadow());
    assert!(!shadow.check(&call, 1).is_exempt());
}

#[test]
fn chain_is_exempt_if_no_limit_of_its_limiters_applies() {
    let limiter = |bit: usize, name| {
        let limit = Limit::new(name, Gcra::new(quota())).keyed_by(|call: &Call| call.user);
        Memory::new(limit.only_if(move |call: &Call| call.is(bit)))
    };
    let chain = Chained::new(limiter(0, "first"), limiter(1, "second"));
    for applies in 0..4 {
        let decision =
            acquire(&chain, &Call { applies, user: 1 }, AcquireOptions::cost(1).detail(Detail::All)).decision;
        assert_eq!((decision.is_exempt(), decision.limits().len()), (applies == 0, applies.count_ones() as usize));
    }
}

/// Administrative operations concern the limits that apply to their key.
#[test]
fn administrative_operations_act_on_the_limits_that_apply() {
    let limiter = Memory::builder(dyn_limits()).clock(ManualClock::new()).build().expect("limits");
    let [of_bucket, of_window] = [1, 2].map(|applies| Call { applies, user: 7 });
    assert!(limiter.check(&of_bucket, 3).is_allowed() && limiter.check(&of_window, 4).is_allowed());
    ready(limiter.reset(&of_bucket));
    assert_eq!(limiter.check(&of_bucket, 0).remaining(), Some(3));
    assert_eq!(limiter.check(&of_window, 0).remaining(), Some(0), "the reset concerned a key of another limit");
    let refused = [
        limiter.block("window", &of_bucket, Duration::from_secs(1)).try_ready().expect("done"),
        limiter.set_usage("window", &of_bucket, 1).try_ready().expect("done"),
        limiter.key_id("window", &of_bucket).map(drop),
    ];
    for result in refused {
        let error = result.expect_err("the limit does not apply");
        assert!(error.is_config() && error.to_string().contains("\"window\" does not apply"), "{error}");
    }
    ready(limiter.block("window", &of_window, Duration::from_secs(1)));
    assert!(limiter.check(&of_window, 0).is_blocked() && limiter.check(&of_bucket, 1).is_allowed());
}

/// A cached denial belongs to the whole key, so it never answers for a key that meets other limits.
#[test]
fn denied_cache_answers_for_keys_that_meet_the_same_limits() {
    let clock = ManualClock::new();
    let limiter = Memory::builder(dyn_limits()).clock(clock.clone()).build().expect("limits");
    let cached = DeniedCache::with_clock(limiter, 100, clock);
    let options = AcquireOptions::cost(3).keep_guard();
    let [bucket, both] = [0b01, 0b11].map(|applies| Call { applies, user: 7 });
    assert!(acquire(&cached, &bucket, options).decision.is_allowed());
    for source in [DecisionSource::Store, DecisionSource::Cache] {
        let denied = acquire(&cached, &bucket, options).decision;
        assert_eq!((denied.is_allowed(), denied.source()), (false, source));
    }
    assert_eq!(acquire(&cached, &both, options).decision.source(), DecisionSource::Store);
    assert!(acquire(&cached, &Call { applies: 0b10, user: 7 }, options).decision.is_allowed());
    ready(cached.reset(&bucket));
    assert!(acquire(&cached, &bucket, options).decision.is_allowed());
}

/// `keyed_by` with an `Option` counts all keys without a value together; `keyed_by_some` does not count them.
#[test]
fn optional_sub_key_pools_keys_without_a_value_unless_keyed_by_some() {
    let gcra = || Gcra::new(quota()).burst(3);
    let user = |user: &Option<u64>| *user;
    let pooled = Memory::new(Limit::new("user", gcra()).keyed_by(user));
    assert!(pooled.check(&None, 3).is_allowed());
    assert!(!pooled.check(&None, 1).is_allowed(), "one count for all keys without a user");
    assert!(pooled.check(&Some(0), 3).is_allowed());
    let some = Memory::new(Limit::new("user", gcra()).keyed_by_some(user));
    assert!((0..100).all(|_| some.check(&None, 3).is_exempt()));
    assert!(some.check(&Some(0), 3).is_allowed() && !some.check(&Some(0), 1).is_allowed());
}

#[test]
fn limiter_with_a_condition_and_a_limit_on_the_whole_key_is_an_error() {
    let conditional =
        || Limit::new("writes", Gcra::new(quota())).keyed_by(|call: &Call| call.user).only_if(|call: &Call| call.is(0));
    let whole = || Limit::new("calls", Gcra::new(quota()));
    let errors = [
        Memory::builder((conditional(), whole())).build().map(drop),
        Memory::builder((whole(), conditional())).build().map(drop),
        Memory::builder(vec![DynLimit::new(whole()), DynLimit::new(conditional())]).build().map(drop),
        Memory::builder((
            whole(),
            Limit::new("writes", Gcra::new(quota())).keyed_by_some(|call: &Call| call.is(0).then_some(call.user)),
        ))
        .build()
        .map(drop),
    ];
    for error in errors.map(|result| result.expect_err("a limit counts by the whole key").to_string()) {
        assert!(
            error.contains("limit \"calls\": it counts by the whole key") && error.contains("\"writes\""),
            "{error}"
        );
    }
    let alone = Memory::builder(Limit::new("writes", Gcra::new(quota())).only_if(|call: &Call| call.is(0))).build();
    let error = alone.map(drop).expect_err("the limit counts by the whole key").to_string();
    assert!(error.contains("limit \"writes\": it counts by the whole key"), "{error}");
    let limiter = Memory::builder(vec![DynLimit::new(conditional())]).build().expect("limits");
    assert!(limiter.replace(vec![DynLimit::new(conditional()), DynLimit::new(whole())]).is_err());
}
