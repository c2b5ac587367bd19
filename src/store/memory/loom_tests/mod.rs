//! loom models: concurrent decisions are linearizable.
//!
//! loom runs each model in all orders of its atomic accesses, stale loads included, with at most three preemptions.
//! Each run must end in the outcome of some sequential order of the operations.
//!
//! A set has one slot in these models, so two or three keys fill a table. All other code is that of production, from
//! [`Memory`](crate::Memory) down to the atomics. Run `RUSTFLAGS="--cfg loom" cargo test --lib --profile loom loom`.

mod absent;
mod eviction;
mod fast_path;
mod holds;
mod keys;
mod multi_limit;
mod quota_change;
mod relocation;
mod saving;

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use crate::algorithm::{
    Algorithm, AtomicState, ChargeOptions, Counters, CountersEdit, HitLog, HitLogEdit, State, Step,
};
use crate::limiter::{Acquisition, Held, LimiterFuture};
use crate::store::{MemoryBuilder, MemoryLimits};
use crate::sync::{AtomicU64, explore, report_orders};
use crate::table::{ByIdleTime, Location, Table, WhenFull};
use crate::{
    AcquireOptions, Clock, Decision, DecisionSource, Detail, LazySnapshot, Limit, LimitSnapshot, Limiter, Memory,
    Timestamp, Verdict,
};

/// Checks `f` in all orders with up to `preemptions` preemptions. Checks it twice: each closure of a [`race`] starts
/// first in one of the two checks.
///
/// One check is not enough. Before a store, loom looks for another thread's last access to the same atomic, and
/// mistakes the storing thread's own load in between for that access. An optimistic transaction loads every word that
/// it stores. So if the reader starts first, loom finds no other order. If the writer starts first, loom finds all
/// orders.
///
/// A thread that waits for another thread yields. A yield is not a preemption.
fn model(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    check(&[Start::Here, Start::There], preemptions, f);
}

/// Checks `f` like [`model`], but once: all threads run the same code, so it does not matter which of them starts.
fn model_of_equals(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    check(&[Start::Here], preemptions, f);
}

fn check(starts: &[Start], preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let f = Arc::new(f);
    let orders = starts.iter().map(|&start| {
        START.set(start);
        let f = Arc::clone(&f);
        explore(preemptions, move || f())
    });
    report_orders(orders.sum());
}

/// Where the first closure of a race runs. The main thread starts first.
#[derive(Clone, Copy)]
enum Start {
    Here,
    There,
}

std::thread_local! {
    static START: Cell<Start> = const { Cell::new(Start::Here) };
}

/// The time that a token takes to refill, in microseconds.
const TOKEN: u64 = 50;

/// A GCRA whose state has two words, the fewest in which a torn copy is detectable.
#[derive(Debug)]
struct Burst<S = [u64; 2]>(u64, PhantomData<fn() -> S>);

/// Access to the words of a state of each kind: the arrival time, and its bitwise complement.
trait TestState: State + std::fmt::Debug {
    fn words(&self) -> [u64; 2];
    fn with(&self, words: [u64; 2]) -> Self::Next;

    fn arrival(&self, now: Timestamp) -> u64 {
        let words = self.words();
        assert!(words == [0; 2] || words[0] == !words[1], "a torn state: {self:?}");
        words[0].max(now.as_micros())
    }
}

impl TestState for [u64; 2] {
    fn words(&self) -> [u64; 2] {
        *self
    }

    fn with(&self, words: [u64; 2]) -> Self {
        words
    }
}

impl TestState for Counters {
    fn words(&self) -> [u64; 2] {
        [self[0], self[1]]
    }

    fn with(&self, [arrival, complement]: [u64; 2]) -> CountersEdit {
        CountersEdit::new([arrival, complement, 0, 0], |state, words| state.copy_from_slice(&words[..2]))
    }
}

impl TestState for HitLog {
    fn words(&self) -> [u64; 2] {
        [self.idle_at, self.hits().back().map_or(0, |&(time, _)| time)]
    }

    fn with(&self, words: [u64; 2]) -> HitLogEdit {
        HitLogEdit::new(0, (words[1], 1), u64::MAX, 0, words[0])
    }
}

impl<S: TestState> Algorithm for Burst<S> {
    type State = S;

    fn decide(&self, state: &S, now: Timestamp, options: ChargeOptions) -> Step<S> {
        let arrival = state.arrival(now);
        if !options.is_forced() {
            let wait = (arrival - now.as_micros()).saturating_sub((self.0 - options.cost) * TOKEN);
            if wait > 0 {
                return Step::Deny { wait };
            }
        }
        let arrival = arrival + options.cost * TOKEN;
        Step::Allow { next: state.with([arrival, !arrival]), delay: 0 }
    }

    fn snapshot(&self, state: &S, now: Timestamp) -> LazySnapshot {
        let debt = state.arrival(now) - now.as_micros();
        let (window, reset) = (self.max_reset(), Duration::from_micros(debt));
        let remaining = self.0 - debt.div_ceil(TOKEN).min(self.0);
        LimitSnapshot::new(self.0, window).with_remaining(remaining).with_reset(reset).into()
    }

    fn max_reset(&self) -> Duration {
        Duration::from_micros(self.0 * TOKEN)
    }

    fn counter_words(&self) -> usize {
        2
    }
}

fn burst(tokens: u64) -> Burst {
    Burst(tokens, PhantomData)
}

/// Builds a hasher that returns the key as its hash.
#[derive(Clone, Copy)]
struct Identity;

impl BuildHasher for Identity {
    type Hasher = IdentityHasher;

    fn build_hasher(&self) -> IdentityHasher {
        IdentityHasher(0)
    }
}

struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// A clock with a time for each thread: 100, unless the thread has set another one.
#[derive(Debug)]
struct ThreadClock;

loom::thread_local! {
    static NOW: Cell<u64> = Cell::new(100);
}

impl Clock for ThreadClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(NOW.with(Cell::get))
    }
}

fn at(now: u64) {
    NOW.with(|own| own.set(now));
}

type Model<Key, L> = Memory<Key, L, ThreadClock, Identity>;

/// A key of two limits, with a sub-key for each.
type Pair = (u64, u64);

/// Builds a limiter whose tables have this number of sets, of one slot each.
fn sets<Key, L>(sets: usize, limits: L) -> Model<Key, L>
where
    L: MemoryLimits<Key, Identity>,
{
    // See `Table::with_capacity`: two sets, and 0.376 sets for each key.
    let max_keys = [1, 3, 6][sets - 2];
    MemoryBuilder::new(limits).max_keys(max_keys).clock(ThreadClock).hasher(Identity).build().expect("valid limits")
}

/// Returns a key with these candidate sets in a table of `sets`. Different ids make different keys.
fn key(sets: u64, [first, other]: [u64; 2], id: u64) -> u64 {
    let middle = |of: u64, parts: u64| (2 * of + 1) * (1 << 31) / parts;
    let step = (other + sets - first) % sets;
    middle(first, sets) << 32 | (middle(step - 1, sets - 1) + id)
}

fn decide<Key: 'static, L: MemoryLimits<Key, Identity> + 'static>(limiter: &Model<Key, L>, key: &Key) -> Decision {
    limiter.check(key, AcquireOptions::default())
}

fn admits<Key: 'static, L: MemoryLimits<Key, Identity> + 'static>(limiter: &Model<Key, L>, key: &Key) -> bool {
    decide(limiter, key).is_allowed()
}

/// Holds a cost. Returns `None` if the hold is denied.
fn hold<Key: 'static, L: MemoryLimits<Key, Identity> + 'static>(
    limiter: &Model<Key, L>,
    key: &Key,
    cost: u64,
) -> Option<Held> {
    let Acquisition::Ready(outcome) = limiter.acquire(key, AcquireOptions::cost(cost).hold().until_end()) else {
        unreachable!("memory decides immediately");
    };
    outcome.expect("memory never fails").held
}

fn settle(held: Held, actual: u64) {
    done(held.settle(actual));
}

fn peek<Key: 'static, L: MemoryLimits<Key, Identity> + 'static>(limiter: &Model<Key, L>, key: &Key) -> Decision {
    done(limiter.peek(key, AcquireOptions::default().detail(Detail::All)))
}

fn done<T>(reply: LimiterFuture<T>) -> T {
    reply.try_ready().expect("memory decides immediately").expect("memory never fails")
}

/// Returns the reset of the key in each limit, in microseconds: the usage times [`TOKEN`].
fn resets<Key: 'static, L: MemoryLimits<Key, Identity> + 'static>(limiter: &Model<Key, L>, key: &Key) -> Vec<u128> {
    peek(limiter, key).limits().iter().map(|status| status.reset().as_micros()).collect()
}

fn reset<Key: 'static, L: MemoryLimits<Key, Identity> + 'static>(limiter: &Model<Key, L>, key: &Key) {
    done(limiter.reset(key));
}

/// Inserts the key, which is idle 100 microseconds after `now`.
fn put(table: &Table<[AtomicU64; 2]>, now: u64, key: u64) {
    let mut location = Location::EMPTY;
    table.read(key, &mut location, &mut <[AtomicU64; 2]>::empty());
    let token = table.lock(&location).expect("no other thread writes");
    let slot = table.ensure_slot(&location, now, &ByIdleTime, &token).expect("a free slot");
    *table.edit(slot, &token) = [now + 100, key];
    table.unlock(&location, &token);
}

/// Runs two closures concurrently, each with a clock of its own.
fn race<M, A, B>(shared: &M, one: impl FnOnce(&M) -> A + 'static, other: impl FnOnce(&M) -> B + 'static) -> (A, B)
where
    M: Clone + 'static,
    A: 'static,
    B: 'static,
{
    match START.get() {
        Start::Here => run_both(shared, one, other),
        Start::There => {
            let (there, here) = run_both(shared, other, one);
            (here, there)
        }
    }
}

fn run_both<M, A, B>(shared: &M, there: impl FnOnce(&M) -> A + 'static, here: impl FnOnce(&M) -> B) -> (A, B)
where
    M: Clone + 'static,
    A: 'static,
{
    let (theirs, now) = (shared.clone(), NOW.with(Cell::get));
    let thread = thread::spawn(move || there(&theirs));
    let here = here(shared);
    at(now);
    (thread.join().expect("no thread panics"), here)
}
