//! Proves, in every order of every access that loom finds (stale loads included, with at most three preemptions), that
//! threads decide as if they took turns: each model ends in an outcome that some turn-taking has.
//!
//! A set has one slot here, so that two or three keys are enough to fill a table, evict, move and forget. The code is
//! the one of production, from [`Memory`](crate::Memory) down to the atomics. It takes
//! `RUSTFLAGS="--cfg loom" cargo test --lib --release loom`.

mod absent;
mod eviction;
mod fast_path;
mod holds;
mod keys;
mod multi_limit;
mod quota_change;
mod relocation;

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Count, Ordering::Relaxed};
use std::time::Duration;

use loom::thread;

use crate::algorithm::{Algorithm, ChargeOptions, Counters, HitLog, HitLogEdit, State, Step};
use crate::limiter::{Acquisition, Held, LimiterFuture};
use crate::store::{MemoryLimits, MemoryLimitsFor};
use crate::sync::AtomicU64;
use crate::table::{EvictionPolicy, Location, Table, WhenFull};
use crate::{
    AcquireOptions, Clock, Decision, DecisionSource, LazySnapshot, Limit, LimitSnapshot, Limiter, Memory, Timestamp,
    Verdict,
};

/// Checks `f` in all orders with up to `preemptions` switches away from a thread that could have gone on, twice: what a
/// [`race`] is between, begins in either order.
///
/// Once would not do. loom goes back to another thread's last access of an atomic before a store to it, and takes the storing
/// thread's own load in between for that access. So where a reader goes first and the writer loads all that it stores, as an
/// optimistic transaction does, loom finds no other order to try. Where the writer goes first it finds them all.
///
/// A thread that waits for another one yields, which is no preemption.
fn model(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    check(&[Start::Here, Start::There], preemptions, f);
}

/// As [`model`], of threads that all do the same: whichever begins.
fn alike(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    check(&[Start::Here], preemptions, f);
}

fn check(begins: &[Start], preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let (f, orders) = (Arc::new(f), Arc::new(Count::new(0)));
    for &begins in begins {
        BEGINS.set(begins);
        let (f, orders) = (Arc::clone(&f), Arc::clone(&orders));
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        // Threads that wait for each other take more steps than the default allows, never this many.
        builder.max_branches = 10_000;
        builder.check(move || {
            orders.fetch_add(1, Relaxed);
            f();
        });
    }
    let orders = orders.load(Relaxed);
    println!("{orders} orders");
    assert!(orders > 2, "a model of one order proves nothing");
}

/// Which of the two in a race the main thread runs: it begins.
#[derive(Clone, Copy)]
enum Start {
    Here,
    There,
}

std::thread_local! {
    static BEGINS: Cell<Start> = const { Cell::new(Start::Here) };
}

/// What a token takes to come back, in microseconds.
const TOKEN: u64 = 50;

/// GCRA in the fewest words that show a torn copy.
#[derive(Debug)]
struct Burst<S = [u64; 2]>(u64, PhantomData<fn() -> S>);

/// The arrival time in a state of each kind, and the same with its bits flipped.
trait Kept: State + std::fmt::Debug {
    fn words(&self) -> [u64; 2];
    fn with(&self, words: [u64; 2]) -> Self::Next;

    fn arrival(&self, now: Timestamp) -> u64 {
        let words = self.words();
        assert!(words == [0; 2] || words[0] == !words[1], "a torn state: {self:?}");
        words[0].max(now.as_micros())
    }
}

impl Kept for [u64; 2] {
    fn words(&self) -> [u64; 2] {
        *self
    }

    fn with(&self, words: [u64; 2]) -> Self {
        words
    }
}

impl Kept for Counters {
    fn words(&self) -> [u64; 2] {
        [self[0], self[1]]
    }

    fn with(&self, words: [u64; 2]) -> Self {
        let mut next = self.clone();
        next.copy_from_slice(&words);
        next
    }
}

impl Kept for HitLog {
    fn words(&self) -> [u64; 2] {
        [self.idle_at, self.hits.back().map_or(0, |&(time, _)| time)]
    }

    fn with(&self, words: [u64; 2]) -> HitLogEdit {
        HitLogEdit { expired: 0, hit: (words[1], 1), max_hits: usize::MAX, period: 0, idle_at: words[0] }
    }
}

impl<S: Kept> Algorithm for Burst<S> {
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
        LimitSnapshot { limit: self.0, window, remaining, reset, next_token_after: Duration::ZERO }.into()
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

/// A key's hash is the key.
#[derive(Clone, Copy)]
struct Same;

impl BuildHasher for Same {
    type Hasher = Number;

    fn build_hasher(&self) -> Number {
        Number(0)
    }
}

struct Number(u64);

impl Hasher for Number {
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

/// A clock that every thread has read for itself, before its turn: 100 unless it says so.
#[derive(Debug)]
struct OwnTime;

loom::thread_local! {
    static NOW: Cell<u64> = Cell::new(100);
}

impl Clock for OwnTime {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(NOW.with(Cell::get))
    }
}

fn at(now: u64) {
    NOW.with(|own| own.set(now));
}

type Model<L> = Memory<L, OwnTime, Same>;

/// A key of two limits, each by one of the numbers.
type Pair = (u64, u64);

/// A limiter whose tables have so many sets of one slot each.
fn sets<L: MemoryLimits<crate::store::DefaultHashBuilder> + MemoryLimits<Same>>(sets: usize, limits: L) -> Model<L> {
    // See `Table::with_capacity`: two sets, and 0.376 for every key.
    let max_keys = [1, 3, 6][sets - 2];
    Memory::builder(limits).max_keys(max_keys).clock(OwnTime).hasher(Same).build().expect("valid limits")
}

/// A key for a table of `sets`, that goes to `first` or else to `other`. With another `id` it is another key.
fn key(sets: u64, [first, other]: [u64; 2], id: u64) -> u64 {
    let middle = |of: u64, parts: u64| (2 * of + 1) * (1 << 31) / parts;
    let step = (other + sets - first) % sets;
    middle(first, sets) << 32 | (middle(step - 1, sets - 1) + id)
}

fn decide<Key, L: MemoryLimitsFor<Key, Same>>(limiter: &Model<L>, key: &Key) -> Decision {
    limiter.check(key, AcquireOptions::default())
}

fn admits<Key, L: MemoryLimitsFor<Key, Same>>(limiter: &Model<L>, key: &Key) -> bool {
    decide(limiter, key).is_allowed()
}

/// Holds a cost. `None` if that is denied.
fn hold<Key, L: MemoryLimitsFor<Key, Same>>(limiter: &Model<L>, key: &Key, cost: u64) -> Option<Held> {
    let Acquisition::Ready(outcome) = Limiter::hold(limiter, key, AcquireOptions::cost(cost)) else {
        unreachable!("memory answers at once");
    };
    outcome.expect("memory never fails").held
}

fn settle(held: Held, actual: u64) {
    done(held.settle(actual));
}

fn peek<Key, L: MemoryLimitsFor<Key, Same>>(limiter: &Model<L>, key: &Key) -> Decision {
    done(limiter.peek(key, AcquireOptions::default().all_limits()))
}

fn done<T>(reply: LimiterFuture<T>) -> T {
    reply.try_ready().expect("memory answers at once").expect("memory never fails")
}

/// How long each limit still remembers what the key was charged.
fn owed<Key, L: MemoryLimitsFor<Key, Same>>(limiter: &Model<L>, key: &Key) -> Vec<u128> {
    peek(limiter, key).limits().iter().map(|standing| standing.reset().as_micros()).collect()
}

fn reset<Key, L: MemoryLimitsFor<Key, Same>>(limiter: &Model<L>, key: &Key) {
    done(limiter.reset(key));
}

/// A key owes as long as it is live.
struct Plain;

impl EvictionPolicy<[u64; 2]> for Plain {
    fn usage_rank(&self, &[until, _]: &[u64; 2]) -> (u64, u64) {
        (0, until)
    }

    fn carry_over(&self, state: &mut [u64; 2], from: &[u64; 2]) {
        state[0] = state[0].max(from[0]);
    }

    fn when_full(&self) -> WhenFull {
        WhenFull::Evict
    }
}

/// Gives the key a slot in which it is live for 100 microseconds.
fn put(table: &Table<[AtomicU64; 2]>, now: u64, key: u64) {
    let mut location = Location::EMPTY;
    drop(table.read(key, &mut location));
    assert!(table.lock(&location), "nobody else writes");
    let slot = table.ensure_slot(&location, now, &Plain).expect("there is room");
    *table.edit(slot) = [now + 100, key];
    table.unlock(&location);
}

/// Runs two closures at the same time, each with a clock of its own.
fn race<M, A, B>(shared: &M, one: impl FnOnce(&M) -> A + 'static, other: impl FnOnce(&M) -> B + 'static) -> (A, B)
where
    M: Clone + 'static,
    A: 'static,
    B: 'static,
{
    match BEGINS.get() {
        Start::Here => here_and_there(shared, one, other),
        Start::There => {
            let (there, here) = here_and_there(shared, other, one);
            (here, there)
        }
    }
}

fn here_and_there<M, A, B>(shared: &M, there: impl FnOnce(&M) -> A + 'static, here: impl FnOnce(&M) -> B) -> (A, B)
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
