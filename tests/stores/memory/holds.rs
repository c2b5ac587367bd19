//! The guard of a hold ends exactly once wherever it is dropped. `several_limits` and the model of `algorithms` have what a
//! hold counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tower_ratelimit::limiter::{Held, LimiterFuture};
use tower_ratelimit::{AcquireOptions, FixedWindow, Gcra, InFlight, Limiter, ManualClock, Memory, Quota, WhenFull};

use crate::immediate::{boxed, hold, memory, peek, remaining};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const TEN: Quota = Quota::per_minute(10);

fn settle(held: Held, actual: u64) {
    held.settle(actual).try_ready().expect("the memory store returns ready results").unwrap();
}

#[test]
fn guard_can_be_sent_and_shared_between_threads() {
    fn check<T: Send + Sync + Unpin + 'static>() {}
    check::<Held>();
}

#[test]
fn guard_ends_in_another_thread_outside_of_a_runtime() {
    let clock = ManualClock::new();
    let limiter = boxed(FixedWindow::new(TEN), &clock);
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
    let limiter = boxed(FixedWindow::new(TEN), &clock);
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
    let limiter = boxed(FixedWindow::new(TEN), &clock);
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
    let limiter = boxed(FixedWindow::new(TEN), &clock);
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

/// Usage contains held costs, so the keys with the most usage are those with the most charged and held units.
#[test]
fn top_keys_rank_by_charged_and_held_costs() {
    let clock = ManualClock::new();
    let limiter = memory(Gcra::new(TEN), &clock);
    assert!(limiter.check("charged", 3).is_allowed() && limiter.check("both", 2).is_allowed());
    let guards = [hold(&limiter, "held", 4), hold(&limiter, "both", 3)];
    let used = |limiter: &Memory<str, _>| -> Vec<_> {
        let keys = limiter.top_keys("default", 10).unwrap();
        keys.iter().map(|key| (key.id, key.figures.map(|figures| 10 - figures.remaining), key.reset)).collect()
    };
    let key = |key, used: u32| (limiter.key_id("default", key).unwrap(), Some(u64::from(used)), used * 6 * SECOND);
    assert_eq!(used(&limiter), [key("both", 5), key("held", 4), key("charged", 3)]);
    let [first, second] = guards;
    settle(first, 0);
    settle(second, 0);
    assert_eq!(used(&limiter), [key("charged", 3), key("both", 2)]);
}

#[test]
fn top_keys_rank_by_requests_in_flight() {
    let clock = ManualClock::new();
    let limiter = memory(InFlight::new(5), &clock);
    let guards = [hold(&limiter, "one", 1), hold(&limiter, "four", 3), hold(&limiter, "four", 1)];
    let top_keys = limiter.top_keys("default", 10).unwrap();
    let left: Vec<_> = top_keys.iter().map(|key| (key.id, key.figures.unwrap().remaining)).collect();
    let id = |key| limiter.key_id("default", key).unwrap();
    assert_eq!(left, [(id("four"), 1), (id("one"), 4)]);
    drop(guards);
    assert!(limiter.top_keys("default", 10).unwrap().is_empty());
}
