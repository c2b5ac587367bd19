//! What a request leaves behind that charges nothing, and what a decision reports.

use std::time::Duration;

use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Decision, DynLimit, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limit, LimitStatus,
    Limiter, ManualClock, Memory, Quota, SlidingLog, SlidingWindow, TokenBucket,
};

use crate::immediate::acquire;

const SECOND: Duration = Duration::from_secs(1);
const MICROSECOND: Duration = Duration::from_micros(1);
const TEN: Quota = Quota::per_minute(10);

/// Every algorithm alone, and as one of two limits.
fn every_limiter(clock: &ManualClock) -> Vec<BoxLimiter<str>> {
    macro_rules! limiters {
        ($($algorithm:expr),+ $(,)?) => {
            vec![$(
                BoxLimiter::new(Memory::builder($algorithm).max_keys(20).clock(clock.clone()).build().expect("a limiter")),
                {
                    let limits = (Limit::new("first", $algorithm), Limit::new("second", Gcra::new(TEN)));
                    BoxLimiter::new(Memory::builder(limits).max_keys(20).clock(clock.clone()).build().expect("a limiter"))
                },
                {
                    let limits = vec![DynLimit::new(Limit::new("default", $algorithm))];
                    BoxLimiter::new(Memory::builder(limits).max_keys(20).clock(clock.clone()).build().expect("a limiter"))
                },
            )+]
        };
    }
    limiters![
        Gcra::new(TEN),
        TokenBucket::new(TEN),
        LeakyBucket::new(TEN),
        LeakyQueue::new(TEN).max_waiting(3),
        FixedWindow::new(TEN),
        SlidingWindow::new(TEN),
        SlidingWindow::new(TEN).weighted(),
        SlidingLog::new(TEN),
    ]
}

fn content(decision: &Decision) -> String {
    format!("{decision:?}")
}

/// "A cost of zero charges nothing", "release charges nothing": all later decisions are those without such a request.
#[test]
fn request_that_charges_nothing_changes_no_later_decision() {
    type Nothing = fn(&BoxLimiter<str>);
    let nothings: [Nothing; 4] = [
        |limiter| drop(acquire(limiter, "alice", AcquireOptions::cost(0))),
        |limiter| drop(acquire(limiter, "alice", AcquireOptions::cost(0).hold())),
        |limiter| {
            if let Some(held) = acquire(limiter, "alice", AcquireOptions::cost(1).hold()).held {
                held.release().try_ready().expect("ready").expect("released");
            }
        },
        |limiter| {
            if let Some(held) = acquire(limiter, "alice", AcquireOptions::cost(1).hold()).held {
                held.settle(0).try_ready().expect("ready").expect("settled");
            }
        },
    ];
    let clock = ManualClock::new();
    for nothing in nothings {
        let (plain, tested) = (every_limiter(&clock), every_limiter(&clock));
        for step in 0..60_u64 {
            clock.advance(Duration::from_millis(3_400) * u32::from(step % 3 != 0));
            for (index, (plain, tested)) in plain.iter().zip(&tested).enumerate() {
                nothing(tested);
                // A pause, in which every usage ends.
                if !(20..30).contains(&step) {
                    let options = AcquireOptions::cost(step % 4);
                    let [plain, tested] =
                        [plain, tested].map(|limiter| content(&acquire(limiter, "alice", options).decision));
                    assert_eq!(plain, tested, "limiter {index} at step {step}");
                }
            }
            if step == 25 {
                clock.advance(Duration::from_secs(40));
            }
        }
    }
}

/// A guard of cost zero takes no slot, and its surcharge is charged whole.
#[test]
fn surcharge_of_one_on_an_absent_key_is_charged() {
    let clock = ManualClock::new();
    for limiter in every_limiter(&clock) {
        let held = acquire(&limiter, "alice", AcquireOptions::cost(0).hold()).held.expect("the key is idle");
        held.settle(1).try_ready().expect("ready").expect("settled");
        let untouched = limiter.peek("bob", 0.into()).try_ready().expect("ready").expect("a decision").reset();
        let charged = limiter.peek("alice", 0.into()).try_ready().expect("ready").expect("a decision").reset();
        assert!(charged > untouched, "{charged:?} and {untouched:?}");
    }
}

/// With two limits, of which the second denies.
#[test]
fn decision_of_several_limits_lists_those_that_the_options_ask_for() {
    use tower_ratelimit::Detail;

    let clock = ManualClock::new();
    let limit = |name: &'static str, limit| Limit::new(name, FixedWindow::new(Quota::per_minute(limit)));
    for (detail, when_allowed, when_denied) in
        [(Detail::MostRestrictive, 1, 1), (Detail::AllIfDenied, 1, 2), (Detail::All, 2, 2)]
    {
        let fixed = Memory::<str, _>::builder((limit("first", 5), limit("second", 1))).clock(clock.clone()).build();
        let dynamic = vec![DynLimit::new(limit("first", 5)), DynLimit::new(limit("second", 1))];
        let dynamic = Memory::<str, _>::builder(dynamic).clock(clock.clone()).build();
        for limiter in [BoxLimiter::new(fixed.expect("limits")), BoxLimiter::new(dynamic.expect("limits"))] {
            for expected in [when_allowed, when_denied] {
                let decision = acquire(&limiter, "alice", AcquireOptions::default().detail(detail)).decision;
                assert_eq!(decision.limits().len(), expected, "{detail:?}");
                assert_eq!(decision.most_restrictive().map(LimitStatus::name), Some("second"));
            }
        }
    }
}

/// "The cost exceeds a limit" is the answer also if another limit denies for some time.
#[test]
fn exceeded_limit_is_more_restrictive_than_any_wait() {
    let limit = |name: &'static str, limit| Limit::new(name, FixedWindow::new(Quota::per_minute(limit)));
    for [first, second] in [[10, 3], [3, 10]] {
        let limits = (limit("first", first), limit("second", second));
        let limiter = Memory::<str, _>::builder(limits).clock(ManualClock::new()).build().expect("limits");
        let used = if first == 10 { "first" } else { "second" };
        limiter.set_usage(used, "alice", 10).try_ready().expect("ready").expect("set");
        assert!(!limiter.check("alice", 3).exceeds_limit());
        assert!(limiter.check("alice", 5).exceeds_limit());
    }
}

/// The caller accepts a start that is scheduled after the blocks, so it must wait no longer than until they end.
#[test]
fn blocked_key_that_accepts_a_delay_waits_until_the_last_block_ends() {
    for (first, second, wait) in [(5, 0, 5), (0, 5, 5), (5, 8, 8), (8, 5, 8)] {
        let clock = ManualClock::new();
        let limits = (
            Limit::new("bucket", Gcra::new(Quota::per_second(1)).burst(100)),
            Limit::new("queue", LeakyQueue::new(Quota::new(1, 10 * SECOND)).max_waiting(9)),
        );
        let limiter = Memory::<str, _>::builder(limits).clock(clock.clone()).build().expect("limits");
        let done = |future: tower_ratelimit::limiter::LimiterFuture<()>| {
            future.try_ready().expect("ready").expect("done");
        };
        // The bucket is not idle for 50 s, and the next start of the queue is in 20 s.
        done(limiter.set_usage("bucket", "alice", 50));
        done(limiter.set_usage("queue", "alice", 2));
        done(limiter.block("bucket", "alice", first * SECOND));
        done(limiter.block("queue", "alice", second * SECOND));
        let options = AcquireOptions::default().max_delay(60 * SECOND);
        assert_eq!(limiter.check("alice", options).retry_after(), Some(wait * SECOND), "{first} s and {second} s");
        clock.advance(wait * SECOND);
        assert_eq!(limiter.check("alice", options).delay(), (20 - wait) * SECOND);
    }
}

/// Decisions allowed now, for later, and denied.
#[test]
fn enforced_limit_is_never_reported_as_a_shadow() {
    let clock = ManualClock::new();
    for limiter in every_limiter(&clock) {
        for _ in 0..20 {
            let decision = acquire(&limiter, "alice", AcquireOptions::default()).decision;
            assert!(decision.most_restrictive().is_some());
            assert!(!decision.limits().iter().any(LimitStatus::is_shadow), "{decision:?}");
            assert_eq!(decision.shadow_denials().count(), 0);
        }
    }
}

/// A chooser that returns another limit in each call: an allowed request is charged all the same.
#[test]
fn limit_that_changes_during_a_decision_counts_every_allowed_request() {
    use std::sync::atomic::{AtomicU64, Ordering};

    for pattern in 1..16_u64 {
        let calls = AtomicU64::new(0);
        let choose = move |_: &str| {
            let is_larger = pattern >> (calls.fetch_add(1, Ordering::Relaxed) % 4) & 1 == 1;
            FixedWindow::new(Quota::per_minute(if is_larger { 10 } else { 1 }))
        };
        let limits = (
            Limit::new("chosen", tower_ratelimit::per_key(choose)),
            Limit::new("second", Gcra::new(Quota::per_minute(90))),
        );
        let limiter = Memory::builder(limits).clock(ManualClock::new()).build().expect("limits");
        let options = AcquireOptions::default().detail(tower_ratelimit::Detail::All);
        let allowed = (0..50).filter(|_| limiter.check("alice", options).is_allowed()).count();
        assert!((1..=10).contains(&allowed), "{allowed} with the pattern {pattern:04b}");
    }
}

/// The waits are exact to the microsecond.
#[test]
fn denial_waits_until_the_last_microsecond() {
    let clock = ManualClock::new();
    let limiter =
        Memory::builder(FixedWindow::new(Quota::per_second(1))).clock(clock.clone()).build().expect("a limit");
    assert!(limiter.check("alice", 1).is_allowed());
    clock.advance(SECOND.saturating_sub(MICROSECOND));
    assert_eq!(limiter.check("alice", 1).retry_after(), Some(MICROSECOND));
    clock.advance(MICROSECOND);
    assert!(limiter.check("alice", 1).is_allowed());
}

/// A limiter whose logs would take more bytes than `max_heap_bytes` is not built: `capacity` logs of the maximum size.
#[test]
fn build_checks_the_bytes_of_logs_exactly() {
    const LIMIT: u64 = 50;
    let build = |bytes| {
        let log = SlidingLog::new(Quota::per_hour(LIMIT));
        Memory::<u64, _>::builder(log).max_keys(100).max_heap_bytes(bytes).build()
    };
    let capacity = build(usize::MAX).expect("a limiter").usage()[0].capacity;
    let most = capacity * usize::try_from(LIMIT).expect("small") * size_of::<(u64, u64)>();
    assert!(build(most).is_ok());
    assert!(build(most - 1).is_err_and(|error| error.is_config()));
    // Other algorithms take nothing, and those that are chosen by the key are not checked.
    assert!(Memory::<u64, _>::builder(Gcra::new(TEN)).max_heap_bytes(0).build().is_ok());
    let chosen = tower_ratelimit::per_key(|_: &u64| SlidingLog::new(TEN));
    assert!(Memory::builder(chosen).max_heap_bytes(0).build().is_ok());
}
