//! Holds: how a hold counts against its key, and that its guard ends exactly once wherever it is dropped.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Held, LimiterFuture, Outcome};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Decision, DecisionSource, Detail, FixedWindow, Gcra, LeakyBucket, LeakyQueue, Limit,
    LimitStatus, Limiter, ManualClock, Memory, Quota, SlidingLog, SlidingWindow, TokenBucket, Verdict, WhenFull,
};

use crate::immediate::acquire;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const TEN: Quota = Quota::per_minute(10);

fn memory(algorithm: impl Algorithm, clock: &ManualClock) -> BoxLimiter<str> {
    BoxLimiter::new(Memory::builder(algorithm).max_keys(100).clock(clock.clone()).build().unwrap())
}

/// Every algorithm, each with a burst of ten.
fn every_algorithm(clock: &ManualClock) -> [BoxLimiter<str>; 9] {
    [
        memory(Gcra::new(TEN), clock),
        memory(TokenBucket::new(TEN), clock),
        memory(LeakyBucket::new(TEN), clock),
        memory(LeakyQueue::new(TEN).max_waiting(9), clock),
        memory(FixedWindow::new(TEN), clock),
        memory(FixedWindow::new(TEN).aligned_to_clock(), clock),
        memory(SlidingWindow::new(TEN), clock),
        memory(SlidingWindow::new(TEN).weighted(), clock),
        memory(SlidingLog::new(TEN), clock),
    ]
}

/// The algorithms that can allow several requests at one time.
fn with_bursts(clock: &ManualClock) -> impl Iterator<Item = BoxLimiter<str>> + use<> {
    let queue = 3;
    every_algorithm(clock)
        .into_iter()
        .enumerate()
        .filter_map(move |(index, limiter)| (index != queue).then_some(limiter))
}

fn hold<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, cost: u64) -> Held {
    acquire(limiter, key, AcquireOptions::cost(cost).hold()).held.expect("the limit allows the hold")
}

fn settle(held: Held, actual: u64) {
    held.settle(actual).try_ready().expect("the memory store returns ready results").unwrap();
}

fn peek<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, options: AcquireOptions) -> Decision {
    limiter.peek(key, options).try_ready().expect("the memory store returns ready results").unwrap()
}

fn remaining<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key) -> u64 {
    peek(limiter, key, AcquireOptions::default()).remaining().unwrap()
}

#[test]
fn hold_settled_below_at_and_above_the_held_cost_charges_the_actual_cost() {
    let clock = ManualClock::new();
    for limiter in every_algorithm(&clock) {
        for (cost, actual) in [(4, 0), (4, 1), (4, 4), (4, 5), (4, 10), (10, 10), (10, 3), (0, 0), (0, 6), (1, 1)] {
            let held = hold(&limiter, "alice", cost);
            assert_eq!((held.cost(), remaining(&limiter, "alice")), (cost, 10 - cost), "{limiter:?}");
            settle(held, actual);
            assert_eq!(remaining(&limiter, "alice"), 10 - actual, "{cost} settled at {actual}");
            assert_eq!(remaining(&limiter, "bob"), 10);
            limiter.reset("alice").try_ready().unwrap().unwrap();
        }
    }
}

#[test]
fn dropped_guard_settles_the_whole_cost_and_released_guard_charges_nothing() {
    let clock = ManualClock::new();
    for limiter in every_algorithm(&clock) {
        drop(hold(&limiter, "alice", 3));
        assert_eq!(remaining(&limiter, "alice"), 7);
        hold(&limiter, "bob", 3).release().try_ready().unwrap().unwrap();
        assert_eq!(remaining(&limiter, "bob"), 10);
        // The charge has the time of the drop, not of the hold.
        let held = hold(&limiter, "carol", 3);
        clock.advance(10 * MINUTE);
        drop(held);
        assert_eq!(remaining(&limiter, "carol"), 7);
    }
}

/// Two overlapping requests of actual cost zero, settled in either order.
#[test]
fn overlapping_settlements_leave_the_limit_full() {
    let clock = ManualClock::new();
    for limiter in with_bursts(&clock) {
        for order in [[0, 1], [1, 0]] {
            let mut guards = [Some(hold(&limiter, "alice", 5)), None];
            clock.advance(SECOND);
            guards[1] = Some(hold(&limiter, "alice", 5));
            for index in order {
                clock.advance(SECOND);
                settle(guards[index].take().unwrap(), 0);
            }
            assert_eq!(remaining(&limiter, "alice"), 10);
            assert_eq!(peek(&limiter, "alice", AcquireOptions::default()).reset(), Some(Duration::ZERO));
        }
    }
}

#[test]
fn held_cost_counts_in_decisions_and_holds() {
    let clock = ManualClock::new();
    for limiter in with_bursts(&clock) {
        let first = hold(&limiter, "alice", 6);
        assert!(!acquire(&limiter, "alice", AcquireOptions::cost(5).max_delay(Duration::ZERO)).decision.is_allowed());
        let denied = acquire(&limiter, "alice", AcquireOptions::cost(5).hold());
        assert!(!denied.decision.is_allowed() && denied.held.is_none());
        assert_eq!(remaining(&limiter, "alice"), 4, "a denied hold holds nothing");
        let second = hold(&limiter, "alice", 4);
        assert_eq!(remaining(&limiter, "alice"), 0);
        // Regardless of the accepted delay, because the end of a hold is unknown.
        clock.advance(20 * MINUTE);
        assert!(!acquire(&limiter, "alice", AcquireOptions::cost(1).max_delay(Duration::ZERO)).decision.is_allowed());
        settle(second, 0);
        assert_eq!(remaining(&limiter, "alice"), 4);
        settle(first, 0);
        assert_eq!(remaining(&limiter, "alice"), 10);
    }
}

/// A queue spaces its starts and a hold starts immediately: the next hold succeeds when the previous one was settled
/// and has drained.
#[test]
fn queue_holds_for_one_request_at_a_time() {
    let clock = ManualClock::new();
    let limiter = memory(LeakyQueue::new(TEN).max_waiting(9), &clock);
    let held = hold(&limiter, "alice", 1);
    clock.advance(MINUTE);
    let Outcome { decision, held: none, .. } = acquire(&limiter, "alice", AcquireOptions::cost(1).hold());
    assert!(!decision.is_allowed() && decision.is_estimate() && none.is_none());
    settle(held, 1);
    assert_eq!(acquire(&limiter, "alice", AcquireOptions::cost(1).hold()).decision.retry_after(), Some(6 * SECOND));
    clock.advance(6 * SECOND);
    settle(hold(&limiter, "alice", 1), 0);
    settle(hold(&limiter, "alice", 1), 0);
}

#[test]
fn denial_due_to_a_hold_is_an_estimate_and_never_permanent() {
    let clock = ManualClock::new();
    for limiter in every_algorithm(&clock) {
        let at_once = |cost| AcquireOptions::cost(cost).max_delay(Duration::ZERO);
        let held = hold(&limiter, "alice", 10);
        for denied in [
            acquire(&limiter, "alice", at_once(1)).decision,
            acquire(&limiter, "alice", at_once(10)).decision,
            acquire(&limiter, "alice", AcquireOptions::cost(1).hold()).decision,
            peek(&limiter, "alice", at_once(1)),
        ] {
            assert!(
                matches!(denied.verdict(), Verdict::Denied { retry_after } if !retry_after.is_zero()),
                "{denied:?}"
            );
            assert!(denied.is_estimate() && denied.source() == DecisionSource::Store, "{denied:?}");
        }
        // A cost above the limit is denied permanently, whatever is held.
        assert!(acquire(&limiter, "alice", at_once(11)).decision.exceeds_limit());
        settle(held, 10);
        let denied = acquire(&limiter, "alice", at_once(1)).decision;
        assert!(!denied.is_allowed() && !denied.is_estimate(), "{denied:?}");
        assert!(!acquire(&limiter, "bob", at_once(1)).decision.is_estimate());
    }
}

/// A hold starts immediately or is denied, whatever delay the caller accepts.
#[test]
fn hold_is_never_scheduled_for_later() {
    let clock = ManualClock::new();
    for limiter in every_algorithm(&clock) {
        limiter.set_usage("default", "alice", 10).try_ready().unwrap().unwrap();
        for options in [AcquireOptions::cost(1).hold(), AcquireOptions::cost(1).max_delay(MINUTE).hold()] {
            let Outcome { decision, held, .. } = acquire(&limiter, "alice", options);
            assert!(matches!(decision.verdict(), Verdict::Denied { .. }) && held.is_none(), "{decision:?}");
            assert!(!decision.supports_scheduling());
        }
    }
}

#[test]
fn blocked_key_holds_nothing_and_a_block_leaves_what_is_held() {
    let clock = ManualClock::new();
    for limiter in every_algorithm(&clock) {
        let held = hold(&limiter, "alice", 2);
        limiter.block("default", "alice", MINUTE).try_ready().unwrap().unwrap();
        let Outcome { decision, held: none, .. } = acquire(&limiter, "alice", AcquireOptions::cost(1).hold());
        assert_eq!((decision.retry_after(), none.is_none()), (Some(MINUTE), true));
        settle(held, 3);
        limiter.block("default", "alice", Duration::ZERO).try_ready().unwrap().unwrap();
        assert_eq!(remaining(&limiter, "alice"), 7, "a block does not prevent the charge");
    }
}

#[test]
fn several_limits_hold_all_or_nothing_and_are_settled_alike() {
    let clock = ManualClock::new();
    let limits = (
        Limit::new("smooth", Gcra::new(TEN)),
        Limit::new("window", FixedWindow::new(Quota::per_hour(100))),
        Limit::new("log", SlidingLog::new(Quota::per_hour(8))),
        Limit::new("all", SlidingWindow::new(Quota::per_hour(20))).keyed_by(|_: &str| ()),
    );
    let limiter = Memory::builder(limits).max_keys(100).clock(clock).build().unwrap();
    let remaining = |key: &str| -> Vec<u64> {
        let decision = peek(&limiter, key, AcquireOptions::default().detail(Detail::All));
        decision.limits().iter().map(LimitStatus::remaining).collect()
    };
    let alice = hold(&limiter, "alice", 6);
    assert_eq!((remaining("alice"), remaining("bob")), (vec![4, 94, 2, 14], vec![10, 100, 8, 14]));
    // The log denies, so no limit holds anything.
    let denied = acquire(&limiter, "alice", AcquireOptions::cost(3).hold().detail(Detail::All)).decision;
    assert_eq!(denied.most_restrictive().unwrap().name(), "log");
    assert!(denied.is_estimate());
    assert_eq!(remaining("alice"), [4, 94, 2, 14]);
    let bob = hold(&limiter, "bob", 8);
    assert_eq!(remaining("bob"), [2, 92, 0, 6]);
    settle(alice, 8);
    assert_eq!((remaining("alice"), remaining("bob")), (vec![2, 92, 0, 4], vec![2, 92, 0, 4]));
    settle(bob, 0);
    assert_eq!(remaining("bob"), [10, 100, 8, 12]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Guards in threads, tasks, streams and requests
// ---------------------------------------------------------------------------------------------------------------------

#[test]
fn guard_can_be_sent_and_shared_between_threads() {
    fn check<T: Send + Sync + Unpin + 'static>() {}
    check::<Held>();
}

#[test]
fn guard_ends_in_another_thread_outside_of_a_runtime() {
    let clock = ManualClock::new();
    let limiter = memory(FixedWindow::new(TEN), &clock);
    let guards = [(); 3].map(|()| hold(&limiter, "alice", 3));
    thread::spawn(move || {
        let [dropped, settled, released] = guards;
        drop(dropped);
        settle(settled, 1);
        settle(released, 0);
    })
    .join()
    .unwrap();
    assert_eq!(remaining(&limiter, "alice"), 6);
}

#[test]
fn guard_of_a_thread_that_panics_settles_the_whole_cost() {
    let clock = ManualClock::new();
    let limiter = memory(FixedWindow::new(TEN), &clock);
    let held = hold(&limiter, "alice", 3);
    let panicked = thread::spawn(move || {
        let _held = held;
        panic!("intended panic");
    });
    assert!(panicked.join().is_err());
    assert_eq!(remaining(&limiter, "alice"), 7);
}

#[test]
fn guard_outlives_its_limiter_and_its_runtime() {
    let clock = ManualClock::new();
    let limiter = memory(FixedWindow::new(TEN), &clock);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (first, second) = runtime.block_on(async { (hold(&limiter, "alice", 3), hold(&limiter, "alice", 2)) });
    drop(runtime);
    drop(first);
    assert_eq!(remaining(&limiter, "alice"), 5);
    drop(limiter);
    settle(second, 1);
}

#[tokio::test]
async fn guard_in_a_spawned_task_ends_with_it() {
    let clock = ManualClock::new();
    let limiter = memory(FixedWindow::new(TEN), &clock);
    let held = hold(&limiter, "alice", 4);
    tokio::spawn(async move { held.settle(1).await }).await.unwrap().unwrap();
    assert_eq!(remaining(&limiter, "alice"), 9);
    // An aborted task settles the whole cost.
    let held = hold(&limiter, "alice", 4);
    let task = tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop(held);
    });
    tokio::task::yield_now().await;
    assert_eq!(remaining(&limiter, "alice"), 5);
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(remaining(&limiter, "alice"), 5);
    clock.advance(MINUTE);
    assert_eq!(remaining(&limiter, "alice"), 10, "the cost was charged and is no longer held");
}

/// A stream of pieces of cost 1. It settles after the last piece. Dropped before that, it charges the whole cost.
fn metered(pieces: u64, held: Held) -> impl Stream<Item = u64> {
    let ends = stream::once(async move {
        held.settle(pieces).await.unwrap();
        None
    });
    stream::iter(0..pieces).map(Some).chain(ends).filter_map(std::future::ready)
}

#[tokio::test]
async fn guard_in_a_stream_ends_with_it() {
    let clock = ManualClock::new();
    let limiter = memory(TokenBucket::new(TEN), &clock);
    assert_eq!(metered(3, hold(&limiter, "alice", 8)).count().await, 3);
    assert_eq!(remaining(&limiter, "alice"), 7);
    let mut read = Box::pin(metered(3, hold(&limiter, "alice", 6)));
    assert_eq!(read.next().await, Some(0));
    assert_eq!(remaining(&limiter, "alice"), 1);
    drop(read);
    assert_eq!(remaining(&limiter, "alice"), 1, "the whole cost");
    clock.advance(MINUTE);
    assert_eq!(remaining(&limiter, "alice"), 10);
}

/// Request extensions must be `Clone`, so the guard is shared there and ends with its last clone.
#[test]
fn guard_in_request_extensions_is_settled_by_the_handler_or_with_the_request() {
    type Shared = Arc<Mutex<Option<Held>>>;
    let clock = ManualClock::new();
    let limiter = memory(FixedWindow::new(TEN), &clock);
    let request = |held: Held| {
        let mut request = http::Request::new(());
        request.extensions_mut().insert(Shared::new(Mutex::new(Some(held))));
        request
    };
    let handled = request(hold(&limiter, "alice", 5));
    let held = handled.extensions().get::<Shared>().unwrap().lock().unwrap().take().unwrap();
    settle(held, 1);
    drop(handled);
    assert_eq!(remaining(&limiter, "alice"), 9);

    let dropped = request(hold(&limiter, "alice", 5));
    let clone = dropped.clone();
    drop(dropped);
    clock.advance(MINUTE);
    assert_eq!(remaining(&limiter, "alice"), 5, "the cost is still held");
    drop(clone);
    clock.advance(MINUTE);
    assert_eq!(remaining(&limiter, "alice"), 10, "the charge has drained after a minute");
}

#[test]
fn guard_of_a_custom_limiter_settles_exactly_once() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let held = || {
        let calls = Arc::clone(&calls);
        Held::new(7, move |actual| {
            calls.lock().unwrap().push(actual);
            tower_ratelimit::limiter::LimiterFuture::ready(Ok(()))
        })
    };
    assert_eq!(format!("{:?}", held()), "Held { cost: 7, .. }");
    settle(held(), 9);
    held().release().try_ready().unwrap().unwrap();
    drop(held());
    assert_eq!(*calls.lock().unwrap(), [7, 9, 0, 7]);
}

// ---------------------------------------------------------------------------------------------------------------------
// A full table
// ---------------------------------------------------------------------------------------------------------------------

/// The smallest possible table.
/// A future must not be polled after its completion.
#[tokio::test]
async fn completed_settlement_is_not_polled_again_when_it_is_dropped() {
    let polls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&polls);
    let held = Held::new(1, move |_| {
        LimiterFuture::pending(std::future::poll_fn(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            std::task::Poll::Ready(Ok(()))
        }))
    });
    let mut settlement = held.settle(1);
    (&mut settlement).await.expect("settled");
    drop(settlement);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(polls.load(Ordering::Relaxed), 1);
}

fn small(when_full: WhenFull, clock: &ManualClock) -> Memory<u64, Gcra> {
    let builder = Memory::builder(Gcra::new(Quota::per_hour(10))).max_keys(1).when_full(when_full);
    builder.clock(clock.clone()).build().unwrap()
}

/// A held key is neither removed when it is idle nor evicted, and its settlement is charged.
#[test]
fn held_key_is_not_evicted_and_its_settlement_is_charged() {
    for when_full in [WhenFull::Evict, WhenFull::CarryOver, WhenFull::Deny] {
        let clock = ManualClock::new();
        let limiter = small(when_full, &clock);
        // Its usage is zero, so it would be the first key to be evicted.
        let held = hold(&limiter, &0_u64, 4);
        for key in 1..1000_u64 {
            let _ = limiter.check(&key, AcquireOptions::cost(9));
        }
        assert_eq!(remaining(&limiter, &0), 6, "{when_full:?}");
        settle(held, 3);
        assert_eq!(remaining(&limiter, &0), 7, "{when_full:?}");
        let usage = &limiter.usage()[0];
        assert_eq!((usage.held_keys, usage.held), (0, 0));
        // After the charge, the key can be evicted again. So many new keys certainly need its slot.
        for key in 1000..2000_u64 {
            let _ = limiter.check(&key, AcquireOptions::cost(9));
        }
        assert_eq!(remaining(&limiter, &0) > 7, when_full == WhenFull::Evict, "{when_full:?}");
    }
}

/// If every slot that a new key could take is held, the key is denied for a time under every policy.
#[test]
fn new_key_is_denied_while_its_slots_are_held() {
    for when_full in [WhenFull::Evict, WhenFull::CarryOver, WhenFull::Deny] {
        let clock = ManualClock::new();
        let limiter = small(when_full, &clock);
        let mut guards = VecDeque::new();
        let denied = (0..1000_u64).find_map(|key| {
            let Outcome { decision, held, .. } = acquire(&limiter, &key, AcquireOptions::cost(1).hold());
            guards.extend(held);
            (!decision.is_allowed()).then_some((key, decision))
        });
        let (key, decision) = denied.expect("the table gets full");
        // Nearly every slot is held: not every key can take every slot.
        let usage = &limiter.usage()[0];
        assert_eq!(usage.held_keys, guards.len());
        assert!(guards.len() * 10 > usage.capacity * 8, "{} of {}", guards.len(), usage.capacity);
        let second = Verdict::Denied { retry_after: SECOND };
        assert_eq!((decision.verdict(), decision.source()), (second, DecisionSource::NoLimit), "{when_full:?}");
        assert_eq!(peek(&limiter, &key, AcquireOptions::default()).verdict(), second, "{when_full:?}");
        assert_eq!(limiter.check(&key, AcquireOptions::default()).verdict(), second, "{when_full:?}");
        assert_eq!(limiter.usage()[0].evicted, 0);
        // A present key is decided as usual.
        assert!(limiter.check(&0, AcquireOptions::default()).is_allowed());
        guards.drain(..).for_each(|held| settle(held, 0));
        assert!(peek(&limiter, &key, AcquireOptions::default()).is_allowed(), "{when_full:?}");
        assert!(limiter.check(&key, AcquireOptions::default()).is_allowed(), "{when_full:?}");
    }
}

/// A thread with a later clock reading removes an idle state. A surcharge is then charged no earlier than the idle
/// time.
#[test]
fn settlement_of_a_removed_key_is_charged_no_earlier_than_its_idle_time() {
    let clock = ManualClock::new();
    let builder = Memory::builder(Gcra::new(Quota::per_second(1)).burst(10)).max_keys(1).when_full(WhenFull::Deny);
    let limiter = builder.clock(clock.clone()).build().unwrap();
    // A hold of cost zero keeps no slot. The key's state is idle after five seconds.
    let held = hold(&limiter, "alice", 0);
    assert!(limiter.check("alice", AcquireOptions::cost(5)).is_allowed());
    let early = ManualClock::START;
    // Another thread read the clock six seconds later, and its keys take every slot.
    clock.advance(6 * SECOND);
    let others: Vec<_> = (0..1000).map(|key: u32| key.to_string()).collect();
    let full =
        others.iter().position(|key| !limiter.check(key.as_str(), AcquireOptions::cost(10)).is_allowed()).unwrap();
    for key in &others[..full] {
        limiter.reset(key.as_str()).try_ready().unwrap().unwrap();
    }
    clock.set(early);
    settle(held, 3);
    // Five seconds of the removed state and three of the surcharge.
    assert_eq!(peek(&limiter, "alice", AcquireOptions::cost(0)).reset(), Some(8 * SECOND));
}
