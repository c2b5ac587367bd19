//! A panic of a user's function leaves nothing held and no lock taken, and replacements under load end. `linearizability` has
//! the decisions of threads.

use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, Step};
use tower_ratelimit::limiter::{Held, Outcome};
use tower_ratelimit::store::MemoryLimits;
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Detail, DynLimit, FixedWindow, Gcra, InFlight, LazySnapshot, Limit, Limiter,
    ManualClock, Memory, Quota, SlidingLog, SlidingWindow, Timestamp, per_key,
};

use crate::random::Random;

fn acquire<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, options: AcquireOptions) -> Outcome {
    match limiter.acquire(key, options).try_ready() {
        Ok(outcome) => outcome.expect("the memory store returns no error"),
        Err(_) => unreachable!("the memory store returns ready results"),
    }
}

fn immediate(cost: u64) -> AcquireOptions {
    AcquireOptions::cost(cost).max_delay(Duration::ZERO)
}

fn hourly(limit: u64) -> Quota {
    Quota::per_hour(limit)
}

/// Fails if `f` blocks, as it would on a lock that was never released. No passing test waits that long.
fn with_timeout<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(f()));
    result.recv_timeout(Duration::from_secs(600)).expect("the operation panicked or waits for a lock")
}

thread_local! {
    /// After how many calls of functions of a user one panics. Zero: none.
    static CALLS_LEFT: Cell<u64> = const { Cell::new(0) };
}

fn may_panic() {
    let left = CALLS_LEFT.get();
    CALLS_LEFT.set(left.saturating_sub(1));
    assert_ne!(left, 1, "intended panic");
}

/// An algorithm whose functions may panic.
#[derive(Clone, Copy, Debug)]
struct Fragile<A>(A);

impl<A: Algorithm> Algorithm for Fragile<A> {
    type State = A::State;

    fn decide(&self, state: &Self::State, now: Timestamp, options: ChargeOptions) -> Step<Self::State> {
        may_panic();
        self.0.decide(state, now, options)
    }

    fn snapshot(&self, state: &Self::State, now: Timestamp) -> LazySnapshot {
        may_panic();
        self.0.snapshot(state, now)
    }

    fn max_reset(&self) -> Duration {
        self.0.max_reset()
    }

    fn counter_words(&self) -> usize {
        self.0.counter_words()
    }

    fn max_heap_bytes(&self) -> usize {
        self.0.max_heap_bytes()
    }
}

/// The law: whichever function of a user panics in a decision or a settlement, each limit holds what the open guards and
/// ids hold, and each shard decides. States are words, a window of its own, counters and logs.
#[test]
fn panic_of_a_users_function_leaves_nothing_held_and_no_lock() {
    let quota = hourly(50);
    let [panics, holds] = with_timeout(move || {
        [
            panics_and_holds(0..20, FixedWindow::new(quota)),
            panics_and_holds(20..40, Gcra::new(quota)),
            panics_and_holds(40..60, SlidingWindow::new(quota).blocks(3)),
            panics_and_holds(60..80, SlidingLog::new(quota)),
        ]
        .into_iter()
        .fold([0, 0], |sum, counts| [sum[0] + counts[0], sum[1] + counts[1]])
    });
    assert!(panics > 400 && holds > 400, "{panics}, {holds}");
}

/// Returns how many calls have panicked, and how many have held a cost.
fn panics_and_holds(seeds: Range<u64>, window: impl Algorithm + Copy) -> [u64; 2] {
    let (mut panics, mut holds) = (0, 0);
    for seed in seeds {
        let mut random = Random(seed);
        let tiers = Limit::new(
            "tiers",
            per_key(move |_: &u64| {
                may_panic();
                Fragile(window)
            }),
        );
        let plain = Limit::new("plain", window).keyed_by(|key: &u64| key % 2).only_if(|_: &u64| {
            may_panic();
            true
        });
        let flights = Limit::new("flights", InFlight::new(20)).keyed_by(|key: &u64| {
            may_panic();
            key % 3
        });
        let fragile = Limit::new("fragile", Fragile(window)).keyed_by(|key: &u64| *key);
        let tiers = tiers.keyed_by(|key: &u64| *key);
        let (limiter, held) = match random.below(3) {
            0 => with_usage(Memory::builder((plain, tiers, fragile, flights)).max_keys(100).build()),
            1 => with_usage(Memory::builder(tiers).max_keys(100).build()),
            _ => {
                let limits =
                    vec![DynLimit::new(plain), DynLimit::new(tiers), DynLimit::new(fragile), DynLimit::new(flights)];
                with_usage(Memory::builder(limits).max_keys(100).build())
            }
        };
        // With a guard, or with an id of the key.
        let mut open: Vec<(Result<Held, (u64, String)>, u64)> = Vec::new();
        for step in 0..60 {
            CALLS_LEFT.set(random.below(24));
            let (key, cost) = (random.below(3), 1 + random.below(4));
            let mut settled = None;
            let run = catch_unwind(AssertUnwindSafe(|| match random.below(8) {
                0 => drop(limiter.peek(&key, immediate(cost)).try_ready()),
                1 => drop(limiter.acquire(&key, immediate(cost).keep_guard()).try_ready()),
                2 | 3 if !open.is_empty() => {
                    let (held, _) = open.swap_remove(random.index(open.len()));
                    let actual = random.below(3);
                    let _ = match held {
                        Ok(held) if actual == 0 => {
                            drop(held);
                            Ok(Ok(()))
                        }
                        Ok(held) if actual == 1 => held.release().try_ready(),
                        Ok(held) => held.settle(actual).try_ready(),
                        Err((key, id)) => {
                            let (key, id) = settled.insert((key, id));
                            limiter.settle(key, id.as_str(), actual).try_ready()
                        }
                    };
                }
                4 => {
                    let id = step.to_string();
                    if acquire(&limiter, &key, immediate(cost).id(id.as_str()).hold()).decision.is_allowed() {
                        open.push((Err((key, id)), cost));
                    }
                }
                _ => {
                    let outcome = acquire(&limiter, &key, immediate(cost).hold());
                    holds += u64::from(outcome.held.is_some());
                    open.extend(outcome.held.map(|held| (Ok(held), cost)));
                }
            }));
            CALLS_LEFT.set(0);
            panics += u64::from(run.is_err());
            // A settlement by an id can be repeated, and must be after a panic.
            if let (Err(_), Some((key, id))) = (&run, &settled) {
                let repeated = limiter.settle(key, id.as_str(), 0).try_ready();
                assert!(repeated.is_ok_and(|result| result.is_ok()), "seed {seed}, step {step}");
            }
            let sum: u64 = open.iter().map(|(_, cost)| cost).sum();
            for (limit, held) in held() {
                assert_eq!(held, sum, "seed {seed}, step {step}, {limit}");
            }
        }
        // So many keys use every shard.
        assert!((0..200).all(|key| acquire(&limiter, &(10 + key), immediate(0).keep_guard()).decision.is_allowed()));
    }
    [panics, holds]
}

/// Returns a limiter of any limits, and what each of them holds.
fn with_usage<L: MemoryLimits<u64> + 'static>(
    limiter: Result<Memory<u64, L>, tower_ratelimit::Error>,
) -> (BoxLimiter<u64>, Box<dyn Fn() -> Vec<(String, u64)>>) {
    let limiter = limiter.expect("limits");
    let boxed = BoxLimiter::new(limiter.clone());
    (boxed, Box::new(move || limiter.usage().into_iter().map(|usage| (usage.limit, usage.held)).collect()))
}

/// The two lists share their tables in another order, with other numbers. Decisions lock by table, so none waits for another
/// one for ever, also with many more threads than processors: each charge and each settlement counts once in each limit.
#[test]
fn replacements_in_two_orders_under_load_charge_every_decision_once() {
    const THREADS: u64 = 64;
    const EACH: u64 = 300;
    const LIMIT: u64 = 1_000_000;
    let limits = |is_reversed: bool| {
        // A whole number of microseconds for each token.
        let quota = Quota::new(if is_reversed { LIMIT / 2 } else { LIMIT }, Duration::from_secs(1_000));
        let mut limits: Vec<DynLimit<str>> = vec![
            DynLimit::new(Limit::new("bucket", Gcra::new(quota))),
            DynLimit::new(Limit::new("fixed", FixedWindow::new(quota))),
            DynLimit::new(Limit::new("sliding", SlidingWindow::new(quota))),
            DynLimit::new(Limit::new("log", SlidingLog::new(quota))),
        ];
        if is_reversed {
            limits.reverse();
        }
        limits
    };
    let limiter = Memory::builder(limits(false)).max_keys(100).max_heap_bytes(usize::MAX).clock(ManualClock::new());
    let limiter = limiter.build().expect("valid limits");
    let (decided, charged) = (limiter.clone(), Arc::new(AtomicU64::new(0)));
    let sum = Arc::clone(&charged);
    with_timeout(move || {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (decided, sum) = (&decided, &sum);
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for number in 0..EACH {
                        // Some holds are settled later, some at more.
                        held.push(acquire(decided, "key", immediate(3).hold()).held.expect("allowed"));
                        if number % 5 == 0 {
                            for (index, held) in held.drain(..).enumerate() {
                                let actual = [0, 1, 3, 4][index % 4];
                                held.settle(actual).try_ready().expect("ready").expect("settled");
                                sum.fetch_add(actual, Ordering::Relaxed);
                            }
                        }
                        assert!(decided.check("key", 1).is_allowed());
                        sum.fetch_add(1, Ordering::Relaxed);
                        if number % 10 == thread % 10 {
                            decided.replace(limits(number % 20 < 10)).expect("valid limits");
                        }
                    }
                    sum.fetch_add(3 * held.len() as u64, Ordering::Relaxed);
                });
            }
        });
    });
    limiter.replace(limits(false)).expect("valid limits");
    let decision = limiter.check("key", AcquireOptions::cost(0).detail(Detail::All));
    let remaining: Vec<_> = decision.limits().iter().map(tower_ratelimit::LimitStatus::remaining).collect();
    assert_eq!(remaining, [LIMIT - charged.load(Ordering::Relaxed); 4]);
}
