//! What a request leaves behind that charges nothing, and what a decision reports.

use std::time::Duration;

use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Decision, DynLimit, FixedWindow, Gcra, Limit, Limiter, ManualClock, Memory, Quota,
    SlidingLog,
};

use crate::immediate::{acquire, boxed_limits, every_limit, memory};

const TEN: Quota = Quota::per_minute(10);

/// Every algorithm alone, and as one of two limits.
fn every_limiter(clock: &ManualClock) -> Vec<BoxLimiter<str>> {
    let alone = every_limit("default").map(|limit| boxed_limits(vec![limit], clock));
    let second = || DynLimit::new(Limit::new("second", Gcra::new(TEN)));
    let beside = every_limit("first").map(|limit| boxed_limits(vec![limit, second()], clock));
    alone.into_iter().chain(beside).collect()
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
        let limiter = memory(limits, &ManualClock::new());
        let options = AcquireOptions::default().detail(tower_ratelimit::Detail::All);
        let allowed = (0..50).filter(|_| limiter.check("alice", options).is_allowed()).count();
        assert!((1..=10).contains(&allowed), "{allowed} with the pattern {pattern:04b}");
    }
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
