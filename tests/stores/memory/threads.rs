//! Real threads admit exactly what one thread would: on one key, under several limits, with holds, under eviction, and
//! after a panic of an algorithm.
//!
//! The clock is stopped wherever counts must be exact, so that no result depends on thread scheduling.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, Counters, CountersEdit, HitLog, HitLogEdit, State, Step};
use tower_ratelimit::limiter::{Held, Outcome};
use tower_ratelimit::store::{DefaultHashBuilder, MemoryLimits};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Clock, Decision, Detail, DynLimit, FixedWindow, Gcra, InFlight, LazySnapshot,
    LeakyQueue, Limit, LimitSnapshot, Limiter, ManualClock, Memory, Quota, SlidingLog, SlidingWindow, SystemClock,
    Timestamp, per_key,
};

use crate::random::Random;

/// More threads than cores, so that the scheduler interrupts some of them in the middle of an operation.
const THREADS: usize = 6;

/// Starts all threads at once and returns their results.
fn together<T: Send>(work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (start, work) = (Barrier::new(THREADS), &work);
    std::thread::scope(|scope| {
        let spawn = |thread| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                work(thread)
            })
        };
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    })
}

fn acquire<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, options: AcquireOptions) -> Outcome {
    match limiter.acquire(key, options).try_ready() {
        Ok(outcome) => outcome.expect("the memory store returns no error"),
        Err(_) => unreachable!("the memory store returns ready results"),
    }
}

fn hold<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, cost: u64) -> Option<Held> {
    acquire(limiter, key, immediate(cost).hold()).held
}

fn settle(held: Held, actual: u64) {
    held.settle(actual)
        .try_ready()
        .expect("the memory store returns ready results")
        .expect("the memory store returns no error");
}

fn admits<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key, cost: u64) -> bool {
    acquire(limiter, key, immediate(cost)).decision.is_allowed()
}

fn immediate(cost: u64) -> AcquireOptions {
    AcquireOptions::cost(cost).max_delay(Duration::ZERO)
}

/// Acquires until a request is denied and returns the number of allowed requests.
fn take_all<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key) -> u64 {
    let mut taken = 0;
    while admits(limiter, key, 1) {
        taken += 1;
    }
    taken
}

/// Returns the status of the key under every limit.
fn peek<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key) -> Decision {
    let reply = limiter.peek(key, immediate(1).detail(Detail::All));
    reply.try_ready().expect("the memory store returns ready results").expect("the memory store returns no error")
}

/// Pseudo-random numbers, equal in each run.
fn numbers(seed: usize) -> impl Iterator<Item = usize> {
    let mut random = Random::new(seed as u64);
    std::iter::repeat_with(move || random.index(1 << 31))
}

fn hourly(limit: u64) -> Quota {
    Quota::per_hour(limit)
}

/// All threads acquire cost 1 until the key is denied.
fn check_one_key<A: Algorithm>(algorithm: A, limit: u64) {
    let limiter = Memory::builder(algorithm).max_keys(50).clock(ManualClock::new()).build().expect("valid limits");
    let one_each = |_| (0..limit).filter(|_| admits(&limiter, "key", 1)).count() as u64;
    assert_eq!(together(one_each).into_iter().sum::<u64>(), limit);
    assert!(!admits(&limiter, "key", 1));
    assert_eq!(peek(&limiter, "key").remaining(), Some(0));
}

/// [`check_one_key`] with costs of 1 to 7. After a denial, a thread acquires the rest with cost 1.
fn check_mixed_costs<A: Algorithm>(algorithm: A, limit: u64) {
    let limiter = Memory::builder(algorithm).max_keys(50).clock(ManualClock::new()).build().expect("valid limits");
    let mixed = |thread| {
        let costs = numbers(thread).map(|number| 1 + number as u64 % 7);
        let large = costs.take_while(|&cost| admits(&limiter, "key", cost)).sum::<u64>();
        large + take_all(&limiter, "key")
    };
    assert_eq!(together(mixed).into_iter().sum::<u64>(), limit);
}

#[test]
fn one_key_admits_exactly_its_quota() {
    check_one_key(Gcra::new(hourly(7)).burst(100_000), 100_000);
    check_one_key(FixedWindow::new(hourly(100_000)), 100_000);
    check_one_key(SlidingWindow::new(hourly(20_000)), 20_000);
    check_one_key(SlidingLog::new(hourly(5000)), 5000);
}

#[test]
fn queue_schedules_each_start_once() {
    let algorithm = LeakyQueue::new(Quota::per_second(1000)).max_waiting(1999);
    let limiter = Memory::builder(algorithm).clock(ManualClock::new()).build().expect("valid limits");
    let delays = together(|_| {
        let decisions = std::iter::repeat_with(|| acquire(&limiter, "key", AcquireOptions::default()).decision);
        decisions.take_while(Decision::is_allowed).map(|decision| decision.delay()).collect::<Vec<_>>()
    });
    let mut delays: Vec<Duration> = delays.into_iter().flatten().collect();
    delays.sort();
    assert_eq!(delays, (0..2000).map(Duration::from_millis).collect::<Vec<_>>());
}

#[test]
fn mixed_costs_admit_exactly_the_quota() {
    check_mixed_costs(Gcra::new(hourly(7)).burst(1_000_000), 1_000_000);
    check_mixed_costs(FixedWindow::new(hourly(1_000_000)), 1_000_000);
    check_mixed_costs(SlidingWindow::new(hourly(100_000)), 100_000);
    check_mixed_costs(SlidingLog::new(hourly(10_000)), 10_000);
}

#[test]
fn one_key_gets_exactly_the_refilled_tokens() {
    let clock = ManualClock::new();
    let quota = Quota::per_second(3);
    let limiter = Memory::builder(Gcra::new(quota).burst(500)).clock(clock.clone()).build().expect("valid limits");
    let rounds = Barrier::new(THREADS);
    let admitted = together(|_| {
        let mut admitted = 0_u64;
        for _ in 0..50 {
            admitted += take_all(&limiter, "key");
            // Every thread is denied before the clock moves, and the clock moves before any thread continues.
            if rounds.wait().is_leader() {
                clock.advance(Duration::from_millis(1111));
            }
            rounds.wait();
        }
        admitted
    });
    // No thread has requested the tokens of the last round.
    let elapsed = 49 * 1_111_000;
    assert_eq!(admitted.into_iter().sum::<u64>(), 500 + elapsed * 3 / 1_000_000);
}

struct Caller {
    user: usize,
    group: usize,
}

const USERS: usize = 60;
const GROUPS: usize = 7;

const USER_LIMIT: u64 = 50;
const GROUP_LIMIT: u64 = 300;
const TOTAL_LIMIT: u64 = 1500;

/// After many threads decided for many callers, each limit's usage equals the admitted requests.
///
/// A limit with more usage would have been charged for a request that another limit denied.
fn check_limits_agree(limiter: &impl Limiter<Caller>) {
    let admitted = together(|thread| {
        let mut admitted = HashMap::<(usize, usize), u64>::new();
        for number in numbers(thread).take(3000) {
            let caller = Caller { user: number % USERS, group: (number >> 8) % GROUPS };
            let cost = 1 + (number >> 16) as u64 % 3;
            if admits(limiter, &caller, cost) {
                *admitted.entry((caller.user, caller.group)).or_default() += cost;
            }
        }
        admitted
    });
    let sum = |counts: &dyn Fn(usize, usize) -> bool| -> u64 {
        let all = admitted.iter().flatten();
        all.filter(|((user, group), _)| counts(*user, *group)).map(|(_, cost)| cost).sum()
    };
    let total = sum(&|_, _| true);
    for user in 0..USERS {
        for group in 0..GROUPS {
            let decision = peek(limiter, &Caller { user, group });
            let remaining: Vec<u64> = decision.limits().iter().map(tower_ratelimit::LimitStatus::remaining).collect();
            let by_user = USER_LIMIT - sum(&|of, _| of == user);
            let by_group = GROUP_LIMIT - sum(&|_, of| of == group);
            assert_eq!(remaining, [by_user, by_group, TOTAL_LIMIT - total], "user {user}, group {group}");
        }
    }
    assert!(total > TOTAL_LIMIT - 3, "the threads requested the whole limit, but {total} were admitted");
}

#[test]
fn several_limits_charge_all_or_nothing() {
    let limits = (
        Limit::new("user", Gcra::new(hourly(1)).burst(USER_LIMIT)).keyed_by(|caller: &Caller| caller.user),
        Limit::new("group", SlidingLog::new(hourly(GROUP_LIMIT))).keyed_by(|caller: &Caller| caller.group),
        Limit::new("total", FixedWindow::new(hourly(TOTAL_LIMIT))).keyed_by(|_: &Caller| ()),
    );
    check_limits_agree(&Memory::builder(limits).clock(ManualClock::new()).build().expect("valid limits"));
}

#[test]
fn limits_chosen_at_run_time_charge_all_or_nothing() {
    let by_user = Limit::new("user", SlidingWindow::new(hourly(USER_LIMIT))).keyed_by(|caller: &Caller| caller.user);
    let by_group = Limit::new("group", FixedWindow::new(hourly(GROUP_LIMIT))).keyed_by(|caller: &Caller| caller.group);
    let total = Limit::new("total", Gcra::new(hourly(1)).burst(TOTAL_LIMIT)).keyed_by(|_: &Caller| ());
    let limits: Vec<DynLimit<Caller>> = vec![DynLimit::new(by_user), DynLimit::new(by_group), DynLimit::new(total)];
    check_limits_agree(&Memory::builder(limits).clock(ManualClock::new()).build().expect("valid limits"));
}

#[test]
fn settled_cost_is_charged_exactly_once() {
    const LIMIT: u64 = 1_000_000;
    let limits = (
        Limit::new("bucket", Gcra::new(Quota::new(LIMIT, Duration::from_secs(LIMIT)))),
        Limit::new("window", FixedWindow::new(hourly(LIMIT))),
    );
    let limiter = Memory::builder(limits).clock(ManualClock::new()).build().expect("valid limits");
    let used = together(|thread| {
        let mut guards = VecDeque::new();
        let mut used = 0;
        for number in numbers(thread).take(5000) {
            guards.push_back(hold(&limiter, "key", 3).expect("the limit allows every hold"));
            if guards.len() > 5 {
                let held = guards.pop_front().expect("six guards");
                let actual = [0, 1, 3, 8][number % 4];
                settle(held, actual);
                used += actual;
            }
        }
        // The guards that remain charge their held cost when they are dropped.
        used + 3 * guards.len() as u64
    });
    let left = LIMIT - used.into_iter().sum::<u64>();
    let decision = peek(&limiter, "key");
    assert_eq!(decision.limits().iter().map(tower_ratelimit::LimitStatus::remaining).collect::<Vec<_>>(), [left, left]);
    assert!(limiter.usage().iter().all(|usage| (usage.held_keys, usage.held) == (0, 0)), "nothing remains held");
}

/// Threads hold and acquire on a few keys: the sum of admitted and held cost never exceeds the limit.
#[test]
fn held_and_charged_costs_never_exceed_the_limit() {
    const LIMIT: u64 = 500;
    let limiter = Memory::builder(Gcra::new(hourly(1)).burst(LIMIT)).max_keys(8).clock(ManualClock::new());
    let limiter = limiter.build().expect("valid limits");
    let keys = [0_u64, 1, 2];
    let kept = together(|thread| {
        let (mut guards, mut kept) = (VecDeque::new(), [0; 3]);
        for number in numbers(thread).take(4000) {
            let (key, cost) = (number % 3, 1 + (number >> 8) as u64 % 7);
            if number & 1 << 20 == 0 {
                guards.extend(hold(&limiter, &keys[key], cost).map(|held| (key, held)));
            } else if admits(&limiter, &keys[key], cost) {
                kept[key] += cost;
            }
            if guards.len() > 4 {
                let (key, held) = guards.pop_front().expect("five guards");
                let actual = held.cost() * (number >> 16 & 1) as u64;
                kept[key] += actual;
                settle(held, actual);
            }
        }
        for (key, held) in guards {
            kept[key] += held.cost();
        }
        kept
    });
    for (index, key) in keys.iter().enumerate() {
        let kept: u64 = kept.iter().map(|kept| kept[index]).sum();
        assert_eq!(peek(&limiter, key).remaining(), Some(LIMIT - kept), "key {key}");
        assert_eq!(kept + take_all(&limiter, key), LIMIT, "key {key}");
    }
}

/// Keys with high usage are not the first to be idle, so a flood of new keys does not evict them.
#[test]
fn flood_of_new_keys_does_not_free_present_keys() {
    const BURST: u64 = 3000;
    let algorithm = Gcra::new(hourly(1000)).burst(BURST);
    let limiter = Memory::builder(algorithm).max_keys(8).clock(ManualClock::new()).build().expect("valid limits");
    // Fewer keys than two sets of three slots hold.
    let heavy = [0_u64, 1, 2, 3];
    assert!(heavy.iter().all(|key| admits(&limiter, key, BURST / 2)));
    let admitted = together(|thread| {
        let mut admitted = [0; 4];
        let newcomers = (thread as u64 + 1) << 32..;
        for (number, new_key) in numbers(thread).zip(newcomers).take(4000) {
            assert!(admits(&limiter, &new_key, 1), "a new key has its quota");
            admitted[number % 4] += u64::from(admits(&limiter, &heavy[number % 4], 1));
        }
        admitted
    });
    for key in heavy {
        let index = usize::try_from(key).expect("small");
        assert_eq!(admitted.iter().map(|admitted| admitted[index]).sum::<u64>(), BURST - BURST / 2, "key {key}");
    }
}

/// On the system clock: threads are descheduled after they read the time, and keys become idle and share slots.
#[test]
fn no_key_exceeds_its_rate_in_real_time() {
    const BURST: u64 = 3;
    const RATE: u64 = 5_000;
    const KEYS: usize = 64;
    let algorithm = Gcra::new(Quota::per_second(RATE)).burst(BURST);
    let clock = SystemClock::new();
    let limiter = Memory::builder(algorithm).max_keys(KEYS).clock(clock.clone()).build().expect("valid limits");
    let start = clock.now();
    let admitted = together(|thread| {
        let mut admitted = [0_u64; KEYS];
        for number in numbers(thread).take(40_000) {
            let key = number % KEYS;
            admitted[key] += u64::from(admits(&limiter, &key, 1));
        }
        admitted
    });
    let elapsed = clock.now().as_micros() - start.as_micros();
    for key in 0..KEYS {
        let admitted: u64 = admitted.iter().map(|admitted| admitted[key]).sum();
        let max = BURST + RATE * elapsed / 1_000_000 + 1;
        assert!(admitted <= max, "key {key}: {admitted} admitted in {elapsed} us, at most {max}");
    }
}

/// Admits a fixed count. Panics under the lock of the key's shard if the cost is one of the two below.
#[derive(Debug, Clone, Copy)]
struct Panicking<S>(u64, std::marker::PhantomData<fn() -> S>);

const PANICS_IN_DECIDE: u64 = 101;
/// In the snapshot of the charged state, or before, if the algorithm decides once more.
const PANICS_IN_SNAPSHOT: u64 = 102;

thread_local! {
    /// The count after the request that has been decided, and must panic in a snapshot of that count.
    static PANIC_AT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Access to the count in a state of each kind.
trait Count: State + std::fmt::Debug {
    fn get(&self) -> u64;
    /// Returns the next state, with this count.
    fn with(&self, count: u64) -> Self::Next;
}

const FOREVER: u64 = u64::MAX;

impl Count for [u64; 2] {
    fn get(&self) -> u64 {
        self[1]
    }

    fn with(&self, count: u64) -> Self {
        [FOREVER, count]
    }
}

impl Count for Counters {
    fn get(&self) -> u64 {
        self[1]
    }

    fn with(&self, count: u64) -> CountersEdit {
        CountersEdit::new([FOREVER, count, 0, 0], |state, words| state[..2].copy_from_slice(&words[..2]))
    }
}

impl Count for HitLog {
    fn get(&self) -> u64 {
        self.hits().front().map_or(0, |&(_, weight)| weight)
    }

    fn with(&self, count: u64) -> HitLogEdit {
        HitLogEdit::new(self.hits().len(), (0, count), 1, 0, FOREVER)
    }
}

impl<S: Count> Algorithm for Panicking<S> {
    type State = S;

    fn decide(&self, state: &S, _now: Timestamp, options: ChargeOptions) -> Step<S> {
        assert_ne!(options.cost, PANICS_IN_DECIDE, "intended panic");
        let decided_before = PANIC_AT.take().is_some();
        if options.cost == PANICS_IN_SNAPSHOT {
            // The transaction decides once more before it charges, or forces the charge. Both panic here.
            assert!(!decided_before && !options.is_forced(), "intended panic");
            PANIC_AT.set(Some(state.get() + 1));
        }
        if state.get() >= self.0 && !options.is_forced() {
            return Step::Exceeds;
        }
        Step::Allow { next: state.with(state.get() + 1), delay: 0 }
    }

    fn snapshot(&self, state: &S, _now: Timestamp) -> LazySnapshot {
        // The plain cases take the snapshot of a state that is edited in place after the edit, and any other before it.
        if PANIC_AT.get() == Some(state.get()) {
            PANIC_AT.set(None);
            panic!("intended panic");
        }
        LimitSnapshot::new(self.0, None).with_remaining(self.0 - state.get()).into()
    }

    fn max_reset(&self) -> Duration {
        Duration::MAX
    }
}

fn panicking<S>(limit: u64) -> Panicking<S> {
    Panicking(limit, std::marker::PhantomData)
}

/// Runs `f` and requires that it panics.
fn assert_panics<T>(f: impl FnOnce() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(f)).is_err(), "expected a panic");
}

/// Fails if `f` blocks, as it would on a lock that was never released. No passing test waits that long.
fn with_timeout<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(f()));
    result.recv_timeout(Duration::from_secs(60)).expect("the operation panicked or waits for a lock")
}

fn check_decisions_after_a_panic<S: Count>() {
    let calm = || FixedWindow::new(hourly(1000));
    let (before, after) = (|| Limit::new("before", calm()), || Limit::new("after", calm()));
    let fragile = || Limit::new("fragile", panicking::<S>(10));
    // A tuple and a list of dynamic limits have plain cases of their own. All others are transactions.
    let tuple = Memory::builder((before(), fragile(), after()));
    let dynamic = vec![DynLimit::new(before()), DynLimit::new(fragile()), DynLimit::new(after())];
    check_decisions_after_a_panic_of(&tuple.max_keys(1).clock(ManualClock::new()).build().expect("valid limits"));
    let dynamic = Memory::builder(dynamic).max_keys(1).clock(ManualClock::new());
    check_decisions_after_a_panic_of(&dynamic.build().expect("valid limits"));
}

fn check_decisions_after_a_panic_of(limiter: &(impl Limiter<str> + Clone)) {
    for key in ["new", "present"] {
        assert!(key == "new" || admits(limiter, key, 1));
        assert_panics(|| admits(limiter, key, PANICS_IN_DECIDE));
        assert_panics(|| admits(limiter, key, PANICS_IN_SNAPSHOT));
        let limiter = limiter.clone();
        with_timeout(move || {
            assert!(admits(&limiter, key, 1));
            assert!(admits(&limiter, "another", 0));
            // 200 keys use every shard, so a shard that is still locked would block.
            assert!((0..200).all(|other| admits(&limiter, &*format!("{key} {other}"), 1)));
        });
    }
}

#[test]
fn panic_in_an_algorithm_releases_every_lock() {
    check_decisions_after_a_panic::<[u64; 2]>();
    check_decisions_after_a_panic::<Counters>();
    check_decisions_after_a_panic::<HitLog>();
}

#[test]
fn panic_while_settling_releases_every_lock() {
    let limiter = Memory::builder(panicking::<[u64; 2]>(10)).clock(ManualClock::new()).build().expect("valid limits");
    let held = hold(&limiter, "key", 1).expect("ten are available");
    assert_panics(|| held.settle(PANICS_IN_DECIDE).try_ready());
    let left = with_timeout(move || take_all(&limiter, "key"));
    assert!(left == 9 || left == 10, "{left}");
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

/// A window whose functions may panic.
#[derive(Debug)]
struct Fragile(FixedWindow);

impl Algorithm for Fragile {
    type State = <FixedWindow as Algorithm>::State;

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
}

/// The law: whichever function of a user panics in a decision or a settlement, each limit holds what the open guards and
/// ids hold.
#[test]
fn panic_of_a_users_function_leaves_nothing_held() {
    let window = || FixedWindow::new(Quota::per_hour(50));
    let (mut panics, mut holds) = (0, 0);
    for seed in 0..200 {
        let mut random = Random(seed);
        let tiers = Limit::new(
            "tiers",
            per_key(move |_: &u64| {
                may_panic();
                Fragile(window())
            }),
        );
        let plain = Limit::new("plain", window()).keyed_by(|key: &u64| key % 2).only_if(|_: &u64| {
            may_panic();
            true
        });
        let flights = Limit::new("flights", InFlight::new(20)).keyed_by(|key: &u64| {
            may_panic();
            key % 3
        });
        let fragile = Limit::new("fragile", Fragile(window())).keyed_by(|key: &u64| *key);
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
                1 => drop(limiter.acquire(&key, immediate(cost)).try_ready()),
                2 | 3 if !open.is_empty() => {
                    let (held, _) = open.swap_remove(random.index(open.len()));
                    let actual = random.below(3);
                    let _ = match held {
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
    }
    assert!(panics > 1_000 && holds > 1_000, "{panics}, {holds}");
}

/// Returns a limiter of any limits, and what each of them holds.
fn with_usage<L: MemoryLimits<u64, DefaultHashBuilder> + 'static>(
    limiter: Result<Memory<u64, L>, tower_ratelimit::Error>,
) -> (BoxLimiter<u64>, Box<dyn Fn() -> Vec<(String, u64)>>) {
    let limiter = limiter.expect("limits");
    let boxed = BoxLimiter::new(limiter.clone());
    (boxed, Box::new(move || limiter.usage().into_iter().map(|usage| (usage.limit, usage.held)).collect()))
}

#[test]
fn panicking_threads_do_not_change_the_results_of_other_threads() {
    const LIMIT: u64 = 3000;
    let one = Memory::builder(panicking::<[u64; 2]>(LIMIT)).clock(ManualClock::new());
    check_panicking_threads(LIMIT, one.build().expect("valid limits"));
    let dynamic = Memory::builder(vec![DynLimit::new(panicking::<[u64; 2]>(LIMIT))]).clock(ManualClock::new());
    check_panicking_threads(LIMIT, dynamic.build().expect("valid limits"));
}

fn check_panicking_threads(limit: u64, limiter: impl Limiter<str>) {
    let counts = with_timeout(move || {
        together(|thread| {
            let (mut admitted, mut panicked) = (0, 0);
            for number in numbers(thread).take(1000) {
                let cost = if number % 100 == 0 { PANICS_IN_SNAPSHOT } else { 1 };
                match catch_unwind(AssertUnwindSafe(|| admits(&limiter, "key", cost))) {
                    Ok(was_admitted) => admitted += u64::from(was_admitted),
                    Err(_) => panicked += 1,
                }
            }
            (admitted, panicked)
        })
    });
    let admitted: u64 = counts.iter().map(|(admitted, _)| admitted).sum();
    let panicked: u64 = counts.iter().map(|(_, panicked)| panicked).sum();
    assert!(panicked > 0);
    // The algorithm decides whether it changed its state before the panic.
    assert!((limit - panicked..=limit).contains(&admitted), "{admitted} admitted, {panicked} panicked");
}

/// A clock with one outdated reading, as of a thread that was descheduled right after it read the time.
#[derive(Clone)]
struct Stalled {
    clock: ManualClock,
    early: Arc<AtomicU64>,
}

impl Clock for Stalled {
    fn now(&self) -> Timestamp {
        match self.early.swap(0, Ordering::SeqCst) {
            0 => self.clock.now(),
            early => Timestamp::from_micros(early),
        }
    }
}

#[test]
fn outdated_clock_reading_grants_nothing() {
    fn check_denied<A: Algorithm + Clone>(algorithm: &A) {
        let of_all = |_: &u64| ();
        let clock = Stalled { clock: ManualClock::new(), early: Arc::default() };
        let early = clock.now().as_micros();
        let one = Memory::builder(algorithm.clone()).clock(clock.clone()).build().expect("valid limits");
        let two = (Limit::new("each", algorithm.clone()), Limit::new("all", algorithm.clone()).keyed_by(of_all));
        let two = Memory::builder(two).clock(clock.clone()).build().expect("valid limits");
        let dynamic = Memory::builder(vec![DynLimit::new(Limit::new("each", algorithm.clone()))]);
        let dynamic = dynamic.clock(clock.clone()).build().expect("valid limits");
        clock.clock.advance(Duration::from_secs(10));
        let is_stalled = |decide: &dyn Fn() -> bool| {
            assert!(decide(), "{algorithm:?}");
            clock.early.store(early, Ordering::SeqCst);
            assert!(!decide(), "{algorithm:?} admits beyond the limit");
            assert!(!decide(), "{algorithm:?} lost a charge");
        };
        is_stalled(&|| one.check(&1_u64, AcquireOptions::default()).is_allowed());
        is_stalled(&|| two.check(&1_u64, AcquireOptions::default()).is_allowed());
        is_stalled(&|| dynamic.check(&1_u64, AcquireOptions::default()).is_allowed());
        // Settling a hold on a key that was charged in the meantime grants nothing either.
        let held = hold(&one, &2_u64, 0).expect("allowed");
        assert!(one.check(&2_u64, AcquireOptions::default()).is_allowed(), "{algorithm:?}");
        clock.early.store(early, Ordering::SeqCst);
        settle(held, 1);
        assert!(!one.check(&2_u64, AcquireOptions::default()).is_allowed(), "{algorithm:?} lost a charge");
    }
    let quota = Quota::per_second(1);
    check_denied(&Gcra::new(quota));
    check_denied(&FixedWindow::new(quota));
    check_denied(&SlidingWindow::new(quota));
    check_denied(&SlidingLog::new(quota));
}

// ---------------------------------------------------------------------------------------------------------------------
// The order of locks, and holds of a decision that panics
// ---------------------------------------------------------------------------------------------------------------------

/// The two lists share their tables in another order. Decisions lock by table, so none waits for another one for ever, also
/// with many more threads than processors: each charges both limits once.
#[test]
fn replacements_in_two_orders_under_load_charge_every_decision_once() {
    const THREADS: u64 = 64;
    const EACH: u64 = 300;
    const LIMIT: u64 = 1 << 40;
    let limits = |is_reversed: bool| {
        let mut limits: Vec<DynLimit<str>> =
            ["a", "b"].map(|name| DynLimit::new(Limit::new(name, FixedWindow::new(hourly(LIMIT))))).into();
        if is_reversed {
            limits.reverse();
        }
        limits
    };
    let limiter = Memory::builder(limits(false)).clock(ManualClock::new()).build().expect("valid limits");
    let decided = limiter.clone();
    with_timeout(move || {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let decided = &decided;
                scope.spawn(move || {
                    for number in 0..EACH {
                        assert!(decided.check("key", 1).is_allowed());
                        if number % 10 == thread % 10 {
                            decided.replace(limits(number % 20 < 10)).expect("valid limits");
                        }
                    }
                });
            }
        });
    });
    let decision = limiter.check("key", AcquireOptions::cost(0).detail(Detail::All));
    let remaining: Vec<_> = decision.limits().iter().map(tower_ratelimit::LimitStatus::remaining).collect();
    assert_eq!(remaining, [LIMIT - THREADS * EACH; 2]);
}

/// Panics in the call after which so many calls were left.
#[derive(Debug)]
struct PanicsInCall(Arc<AtomicU64>);

impl PanicsInCall {
    fn count(&self) {
        assert!(self.0.fetch_sub(1, Ordering::Relaxed) != 1, "the call that panics");
    }
}

impl Algorithm for PanicsInCall {
    type State = [u64; 1];

    fn decide(&self, _: &[u64; 1], _: Timestamp, _: ChargeOptions) -> Step<[u64; 1]> {
        self.count();
        Step::Allow { next: [FOREVER], delay: 0 }
    }

    fn snapshot(&self, _: &[u64; 1], _: Timestamp) -> LazySnapshot {
        self.count();
        LimitSnapshot::new(10, Duration::from_secs(1)).with_remaining(5).into()
    }

    fn max_reset(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// In whichever call the algorithm of one limit panics: no limit holds anything afterwards.
#[test]
fn decision_that_panics_holds_nothing() {
    for is_last in [false, true] {
        let left = Arc::new(AtomicU64::new(0));
        let fragile = DynLimit::new(Limit::new("fragile", PanicsInCall(Arc::clone(&left))));
        let mut limits: Vec<DynLimit<str>> = vec![fragile, DynLimit::new(FixedWindow::new(hourly(100)))];
        if is_last {
            limits.reverse();
        }
        let limiter = Memory::builder(limits).clock(ManualClock::new()).build().expect("valid limits");
        let held = || limiter.usage().iter().map(|usage| usage.held).sum::<u64>();
        let mut panics = 0;
        loop {
            left.store(panics + 1, Ordering::Relaxed);
            let result = catch_unwind(AssertUnwindSafe(|| hold(&limiter, "key", 1)));
            if result.is_ok() {
                // The settlement calls the algorithm, too.
                left.store(u64::MAX, Ordering::Relaxed);
                break;
            }
            panics += 1;
            assert_eq!(held(), 0, "after a panic in call {panics}");
        }
        assert!(panics >= 2, "{panics}");
    }
}
