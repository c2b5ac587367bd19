//! Proves, in every order of every access that loom finds (stale loads included, with at most three preemptions), that
//! threads decide as if they took turns: each model ends in an outcome that some turn-taking has.
//!
//! A set has one slot here, so that two or three keys are enough to fill a table, evict, move and forget. The code is
//! the one of production, from [`Memory`](crate::Memory) down to the atomics. It takes
//! `RUSTFLAGS="--cfg loom" cargo test --lib --release loom`.

mod replaced;
mod straight;

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Count, Ordering::Relaxed};
use std::time::Duration;

use loom::thread;

use super::{Spot, Table, Tenancy, WhenFull};
use crate::algorithm::{Algorithm, Blocks, Charge, Log, State};
use crate::limiter::{Outcome, Receipt, Reply};
use crate::store::{Limits, LimitsFor};
use crate::sync::AtomicU64;
use crate::{Ask, Clock, Decision, Figures, Limit, Limiter, Memory, Reading, Source, Timestamp, Verdict};

/// Checks `f` in all orders with up to `preemptions` switches away from a thread that could have gone on, twice: what a
/// [`race`] is between, begins in either order.
///
/// Once would not do. loom goes back to another thread's last access of an atomic before a store to it, and takes the storing
/// thread's own load in between for that access. So where a reader goes first and the writer loads all that it stores, as an
/// optimistic transaction does, loom finds no other order to try. Where the writer goes first it finds them all.
///
/// A thread that waits for another one yields, which is no preemption.
fn model(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let (f, orders) = (Arc::new(f), Arc::new(Count::new(0)));
    for begins in [Begins::Here, Begins::There] {
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
enum Begins {
    Here,
    There,
}

std::thread_local! {
    static BEGINS: Cell<Begins> = const { Cell::new(Begins::Here) };
}

/// What a token takes to come back, in microseconds.
const TOKEN: u64 = 50;

/// GCRA in the fewest words that show a torn copy.
#[derive(Debug)]
struct Burst<S = [u64; 2]>(u64, PhantomData<fn() -> S>);

/// The arrival time in a state of each kind, and the same with its bits flipped.
trait Kept: State + std::fmt::Debug {
    fn words(&self) -> [u64; 2];
    fn set_words(&mut self, words: [u64; 2]);

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

    fn set_words(&mut self, words: [u64; 2]) {
        *self = words;
    }
}

impl Kept for Blocks {
    fn words(&self) -> [u64; 2] {
        [self[0], self[1]]
    }

    fn set_words(&mut self, words: [u64; 2]) {
        self.copy_from_slice(&words);
    }
}

impl Kept for Log {
    fn words(&self) -> [u64; 2] {
        [self.fresh_at, self.hits.back().map_or(0, |&(time, _)| time)]
    }

    fn set_words(&mut self, words: [u64; 2]) {
        self.fresh_at = words[0];
        self.hits.push_back((words[1], 1));
    }
}

impl<S: Kept> Algorithm for Burst<S> {
    type State = S;

    fn peek(&self, state: &S, now: Timestamp, ask: Ask) -> Verdict {
        let debt = state.arrival(now) - now.as_micros();
        match debt.saturating_sub((self.0 - ask.cost) * TOKEN) {
            0 => Verdict::Allowed,
            wait => Verdict::Denied { retry_after: Duration::from_micros(wait) },
        }
    }

    fn commit(&self, state: &mut S, now: Timestamp, _delay: Duration, cost: u64) {
        let arrival = state.arrival(now) + cost * TOKEN;
        state.set_words([arrival, !arrival]);
    }

    fn give_back(&self, state: &mut S, now: Timestamp, _charge: Charge, amount: u64) {
        let arrival = state.arrival(now) - amount * TOKEN;
        state.set_words([arrival, !arrival]);
    }

    fn reading(&self, state: &S, now: Timestamp) -> Reading {
        let debt = state.arrival(now) - now.as_micros();
        let (window, reset) = (self.longest_reset(), Duration::from_micros(debt));
        let remaining = self.0 - debt.div_ceil(TOKEN).min(self.0);
        Figures { limit: self.0, window, remaining, reset, more_after: Duration::ZERO }.into()
    }

    fn longest_reset(&self) -> Duration {
        Duration::from_micros(self.0 * TOKEN)
    }

    fn state_words(&self) -> usize {
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

/// A limiter whose tables have so many sets of one slot each.
fn sets<L: Limits<crate::store::DefaultHashBuilder> + Limits<Same>>(sets: usize, limits: L) -> Model<L> {
    // See `Table::with_room_for`: two sets, and one more for every five keys.
    let max_keys = [1, 5, 10][sets - 2];
    Memory::builder(limits).max_keys(max_keys).clock(OwnTime).hasher(Same).build().expect("valid limits")
}

/// A key for a table of `sets`, that goes to `home` or else to `other`. With another `id` it is another key.
fn key(sets: u64, [home, other]: [u64; 2], id: u64) -> u64 {
    let middle = |of: u64, parts: u64| (2 * of + 1) * (1 << 31) / parts;
    let step = (other + sets - home) % sets;
    middle(home, sets) << 32 | (middle(step - 1, sets - 1) + id)
}

fn acquire<Key, L: LimitsFor<Key, Same>>(limiter: &Model<L>, key: &Key) -> Outcome {
    limiter.acquire_now(key, Ask::default())
}

fn admits<Key, L: LimitsFor<Key, Same>>(limiter: &Model<L>, key: &Key) -> bool {
    acquire(limiter, key).decision.is_allowed()
}

fn peek<Key, L: LimitsFor<Key, Same>>(limiter: &Model<L>, key: &Key) -> Decision {
    done(limiter.peek(key, Ask::default().every_limit()))
}

fn done<T>(reply: Reply<T>) -> T {
    reply.try_ready().expect("memory answers at once").expect("memory never fails")
}

/// How long each limit still remembers what the key was charged.
fn owed<Key, L: LimitsFor<Key, Same>>(limiter: &Model<L>, key: &Key) -> Vec<u128> {
    peek(limiter, key).standings().iter().map(|standing| standing.reset().as_micros()).collect()
}

fn reset<Key, L: LimitsFor<Key, Same>>(limiter: &Model<L>, key: &Key) {
    done(limiter.reset(key));
}

/// Runs two closures at the same time, each with a clock of its own.
fn race<M, A, B>(shared: &M, one: impl FnOnce(&M) -> A + 'static, other: impl FnOnce(&M) -> B + 'static) -> (A, B)
where
    M: Clone + 'static,
    A: 'static,
    B: 'static,
{
    match BEGINS.get() {
        Begins::Here => here_and_there(shared, one, other),
        Begins::There => {
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

#[test]
fn a_new_key_is_inserted_once() {
    model(3, || {
        let limiter = sets(2, burst(1));
        let k = key(2, [0, 1], 0);
        let (a, b) = race(&limiter, move |limiter| admits(limiter, &k), move |limiter| admits(limiter, &k));
        assert!(a ^ b, "one of {a} and {b}");
        assert_eq!(owed(&limiter, &k), [50]);
    });
}

/// Three threads that charge the key, and how many of them were let through.
fn three_charge(limiter: &Model<Burst>, k: u64) -> u8 {
    let (first, second) = (limiter.clone(), limiter.clone());
    let threads = [thread::spawn(move || admits(&first, &k)), thread::spawn(move || admits(&second, &k))];
    let here = admits(limiter, &k);
    let there = threads.map(|thread| thread.join().expect("no thread panics"));
    u8::from(here) + u8::from(there[0]) + u8::from(there[1])
}

#[test]
fn three_threads_share_a_quota_of_two() {
    // With one preemption it takes a quarter of an hour, and holds as well.
    model(0, || {
        let limiter = sets(2, burst(2));
        let k = key(2, [1, 0], 0);
        assert_eq!(three_charge(&limiter, k), 2);
        assert_eq!(owed(&limiter, &k), [100]);
    });
}

/// Where the key has its place already there is less to try.
#[test]
fn three_threads_share_what_is_left_of_a_quota() {
    model(2, || {
        let limiter = sets(2, burst(2));
        let k = key(2, [1, 0], 0);
        assert!(admits(&limiter, &k));
        assert_eq!(three_charge(&limiter, k), 1);
        assert_eq!(owed(&limiter, &k), [100]);
    });
}

#[test]
fn an_idle_slot_is_taken_again_once() {
    model(3, || {
        let limiter = sets(2, burst(1));
        let k = key(2, [0, 1], 0);
        assert!(admits(&limiter, &k));
        let later = move |limiter: &Model<Burst>| {
            at(150);
            admits(limiter, &k)
        };
        let (a, b) = race(&limiter, later, later);
        assert!(a ^ b, "one of {a} and {b}");
        at(150);
        assert_eq!(owed(&limiter, &k), [50]);
    });
}

/// Two newcomers that both would go to the one free slot: each locks both of its sets.
#[test]
fn newcomers_do_not_take_the_same_slot() {
    model(3, || {
        let limiter = sets(3, burst(1));
        let (old, a, b) = (key(3, [0, 2], 0), key(3, [0, 1], 1), key(3, [1, 2], 2));
        assert!(admits(&limiter, &old));
        let charged = race(&limiter, move |limiter| admits(limiter, &a), move |limiter| admits(limiter, &b));
        assert_eq!(charged, (true, true));
        assert_eq!([old, a, b].map(|key| owed(&limiter, &key)), [[50]; 3]);
    });
}

/// What the newcomer evicts is idle at its time, and whoever comes back to it with an earlier one is decided as at the
/// moment from which on it was.
fn eviction_against_commit<S: Kept>(preemptions: usize) {
    model(preemptions, || {
        let limiter = sets(2, Burst::<S>(4, PhantomData));
        let (old, new) = (key(2, [0, 1], 0), key(2, [0, 1], 1));
        assert!(admits(&limiter, &old) && admits(&limiter, &old));
        // The old key is idle at 200. Charged before, at 100, it owes until 250; if it is gone, it is charged at 200.
        let newcomer = move |limiter: &Model<Burst<S>>| {
            at(200);
            admits(limiter, &new)
        };
        let charged = race(&limiter, newcomer, move |limiter| admits(limiter, &old));
        assert_eq!(charged, (true, true));
        at(200);
        assert_eq!([old, new].map(|key| owed(&limiter, &key)), [[50]; 2]);
    });
}

#[test]
fn an_eviction_and_a_commit_on_the_evicted_key_exclude_each_other() {
    eviction_against_commit::<[u64; 2]>(3);
    eviction_against_commit::<Blocks>(2);
    eviction_against_commit::<Log>(2);
}

/// As a charge, a surcharge on a key that is gone counts from when it was idle.
#[test]
fn an_eviction_and_a_surcharge_on_the_evicted_key_exclude_each_other() {
    model(3, || {
        let limiter = sets(2, burst(4));
        let (old, new) = (key(2, [0, 1], 0), key(2, [0, 1], 1));
        assert!(admits(&limiter, &old));
        let receipt = acquire(&limiter, &old).receipt.expect("a receipt for a charge");
        let newcomer = move |limiter: &Model<Burst>| {
            at(200);
            admits(limiter, &new)
        };
        let (charged, ()) = race(&limiter, newcomer, move |limiter| done(limiter.settle(&old, receipt, 2)));
        assert!(charged);
        at(200);
        assert_eq!([old, new].map(|key| owed(&limiter, &key)), [[50]; 2]);
    });
}

#[test]
fn a_denial_is_right_while_the_key_is_evicted() {
    model(3, || {
        let limiter = sets(2, burst(2));
        let (old, new) = (key(2, [0, 1], 0), key(2, [0, 1], 1));
        assert!(admits(&limiter, &old) && admits(&limiter, &old));
        let newcomer = move |limiter: &Model<Burst>| {
            at(200);
            admits(limiter, &new)
        };
        let (charged, decision) = race(&limiter, newcomer, move |limiter| acquire(limiter, &old).decision);
        assert!(charged);
        at(200);
        assert_eq!(owed(&limiter, &new), [50]);
        match decision.verdict() {
            Verdict::Denied { retry_after } => assert_eq!(retry_after, Duration::from_micros(50)),
            verdict => {
                assert_eq!(verdict, Verdict::Allowed);
                assert_eq!(owed(&limiter, &old), [50]);
            }
        }
    });
}

fn peek_against_commits<S: Kept>(preemptions: usize) {
    model(preemptions, || {
        let limiter = sets(2, Burst::<S>(3, PhantomData));
        let k = key(2, [0, 1], 0);
        let commits = move |limiter: &Model<Burst<S>>| assert!(admits(limiter, &k) && admits(limiter, &k));
        // A torn state panics.
        let ((), (first, second)) = race(&limiter, commits, move |limiter| (owed(limiter, &k), owed(limiter, &k)));
        assert!(first <= second && second <= vec![100], "{first:?}, {second:?}");
        assert_eq!(owed(&limiter, &k), [100]);
    });
}

#[test]
fn a_peek_never_reads_half_of_a_commit() {
    peek_against_commits::<[u64; 2]>(3);
    peek_against_commits::<Blocks>(2);
    peek_against_commits::<Log>(2);
}

/// A key owes as long as it is live.
struct Plain;

impl Tenancy<[u64; 2]> for Plain {
    fn owes(&self, &[until, _]: &[u64; 2]) -> (u64, u64) {
        (0, until)
    }

    fn inherit(&self, state: &mut [u64; 2], from: &[u64; 2]) {
        state[0] = state[0].max(from[0]);
    }
}

/// Who lists the keys reads each of them as it once was, even if its slot is given away meanwhile.
#[test]
fn a_listing_reads_no_key_with_the_state_of_another() {
    model(3, || {
        let table = Table::<[AtomicU64; 2]>::with_room_for(1, 2, WhenFull::Forget);
        let (old, new) = (key(2, [0, 1], 0), key(2, [0, 1], 1));
        let put = |table: &Table<[AtomicU64; 2]>, now: u64, key: u64| {
            let mut spot = Spot::BLANK;
            drop(table.read(key, &mut spot));
            assert!(table.lock(&spot), "nobody else writes");
            let place = table.place(&spot, now, &Plain).expect("there is room");
            *table.edit(place) = [now + 100, key];
            table.unlock(&spot);
        };
        put(&table, 100, old);
        // In the slot of the old key, which is idle by then.
        let evict = move |table: &Table<_>| put(table, 200, new);
        let list = |table: &Table<[AtomicU64; 2]>| {
            table.for_each_live(150, |key, until, state| assert_eq!(*state, [until, key]));
        };
        race(&table, evict, list);
    });
}

#[test]
fn a_reset_and_a_commit_take_turns() {
    model(3, || {
        let limiter = sets(2, burst(1));
        let k = key(2, [0, 1], 0);
        assert!(admits(&limiter, &k));
        let ((), charged) = race(&limiter, move |limiter| reset(limiter, &k), move |limiter| admits(limiter, &k));
        // Refused before the reset, or charged after it.
        assert_eq!(owed(&limiter, &k), [if charged { 50 } else { 0 }]);
    });
}

#[test]
fn a_reset_and_a_newcomer_take_turns() {
    model(3, || {
        let limiter = sets(2, burst(1));
        let (old, live, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &old) && admits(&limiter, &live));
        let later = move |limiter: &Model<Burst>| {
            at(150);
            // Refills the slot in which the reset may have found its key.
            admits(limiter, &new)
        };
        let (charged, ()) = race(&limiter, later, move |limiter| reset(limiter, &old));
        assert!(charged);
        at(150);
        assert_eq!([old, new].map(|key| owed(&limiter, &key)), [[0], [50]]);
    });
}

#[test]
fn charges_and_what_is_given_back_add_up() {
    model(3, || {
        let limiter = sets(2, burst(3));
        let k = key(2, [0, 1], 0);
        let receipt = acquire(&limiter, &k).receipt.expect("a receipt for a charge");
        let give_back = move |limiter: &Model<Burst>| {
            done(limiter.give_back(&k, receipt));
        };
        let ((), charged) = race(&limiter, give_back, move |limiter| admits(limiter, &k));
        assert!(charged);
        assert_eq!(owed(&limiter, &k), [50]);
    });
}

#[test]
fn a_surcharge_and_a_charge_of_a_new_key_add_up() {
    model(3, || {
        let limiter = sets(2, burst(3));
        let k = key(2, [0, 1], 0);
        // A receipt whose key has been forgotten since.
        let mut receipt = Receipt::new(Timestamp::from_micros(100), 1, 1);
        receipt.until_mut()[0] = Timestamp::from_micros(150);
        let settle = move |limiter: &Model<Burst>| {
            done(limiter.settle(&k, receipt, 2));
        };
        let ((), charged) = race(&limiter, settle, move |limiter| admits(limiter, &k));
        assert!(charged);
        assert_eq!(owed(&limiter, &k), [100]);
    });
}

type Moving<S> = (Model<Burst<S>>, [u64; 3]);

/// Three keys in three slots, one of which must move for a newcomer to fit: the one that moves, the one that stays, the
/// newcomer. `moving` is the way that it goes.
fn about_to_move<S: Kept>(tokens: u64, moving: [u64; 2]) -> Moving<S> {
    let limiter = sets(3, Burst(tokens, PhantomData));
    let [from, to] = moving;
    let between = 3 - from - to;
    let (k, stays, new) = (key(3, [from, to], 0), key(3, [between, from], 1), key(3, [from, between], 2));
    assert!(admits(&limiter, &k) && admits(&limiter, &stays));
    (limiter, [k, stays, new])
}

/// As `about_to_move`, but the key is in its second set and moves home: a reader who looks there first can see it in
/// neither.
fn about_to_move_home<S: Kept>(tokens: u64) -> Moving<S> {
    let limiter = sets(3, Burst(tokens, PhantomData));
    let (first, k) = (key(3, [2, 0], 3), key(3, [2, 0], 0));
    assert!(admits(&limiter, &first) && admits(&limiter, &k));
    reset(&limiter, &first);
    let (stays, new) = (key(3, [1, 0], 1), key(3, [0, 1], 2));
    assert!(admits(&limiter, &stays));
    (limiter, [k, stays, new])
}

/// The ways to move up and down the table, and home.
fn moves<S: Kept>(tokens: u64) -> [Box<dyn Fn() -> Moving<S> + Send + Sync>; 3] {
    [
        Box::new(move || about_to_move(tokens, [0, 2])),
        Box::new(move || about_to_move(tokens, [2, 0])),
        Box::new(move || about_to_move_home(tokens)),
    ]
}

#[test]
fn a_reader_finds_a_key_that_is_being_moved() {
    for start in moves::<[u64; 2]>(1) {
        model(3, move || {
            let (limiter, [k, stays, new]) = start();
            let (charged, seen) =
                race(&limiter, move |limiter| admits(limiter, &new), move |limiter| owed(limiter, &k));
            assert!(charged);
            assert_eq!(seen, [50]);
            assert_eq!([k, stays, new].map(|key| owed(&limiter, &key)), [[50]; 3]);
        });
    }
}

#[test]
fn a_key_that_is_being_moved_is_held_to_its_quota() {
    for start in moves::<[u64; 2]>(1) {
        model(3, move || {
            let (limiter, [k, stays, new]) = start();
            let charged = race(&limiter, move |limiter| admits(limiter, &new), move |limiter| admits(limiter, &k));
            assert_eq!(charged, (true, false));
            assert_eq!([k, stays, new].map(|key| owed(&limiter, &key)), [[50]; 3]);
        });
    }
}

fn move_against_commit<S: Kept>(preemptions: usize) {
    for start in moves::<S>(2) {
        model(preemptions, move || {
            let (limiter, [k, stays, new]) = start();
            let charged = race(&limiter, move |limiter| admits(limiter, &new), move |limiter| admits(limiter, &k));
            assert_eq!(charged, (true, true));
            assert_eq!([k, stays, new].map(|key| owed(&limiter, &key)), [[100], [50], [50]]);
        });
    }
}

#[test]
fn a_commit_on_a_key_that_is_being_moved_is_kept() {
    move_against_commit::<[u64; 2]>(3);
    move_against_commit::<Blocks>(2);
    move_against_commit::<Log>(2);
}

/// Of a key in whose idle slot another one lands, a thread with an earlier clock reads what it owes, or that it is gone,
/// and nothing of the other's state.
#[test]
fn a_reader_finds_a_key_that_another_is_moved_onto_whole_or_gone() {
    model(3, || {
        let limiter = sets(3, burst(4));
        let (idle, moves) = (key(3, [2, 1], 0), key(3, [0, 2], 1));
        let (stays, new) = (key(3, [1, 0], 2), key(3, [0, 1], 3));
        let four = Ask::cost(4);
        assert!([moves, stays].iter().all(|key| limiter.decide(key, four).is_allowed()));
        assert!(admits(&limiter, &idle) && admits(&limiter, &idle));
        let newcomer = move |limiter: &Model<Burst>| {
            at(200);
            admits(limiter, &new)
        };
        let (charged, seen) = race(&limiter, newcomer, move |limiter| owed(limiter, &idle));
        assert!(charged);
        assert!(seen == [100] || seen == [0], "{seen:?}");
        at(200);
        assert_eq!([idle, moves, stays, new].map(|key| owed(&limiter, &key)), [[0], [100], [100], [50]]);
    });
}

/// A full table and a newcomer: whom it forgets is who is as good as new first *then*, in turn with all commits.
#[test]
fn who_is_forgotten_is_the_first_to_be_idle() {
    model(2, || {
        let limiter = sets(2, burst(4));
        let (soon, late, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &soon) && admits(&limiter, &late) && admits(&limiter, &late));
        // Not even if it comes back between being forgotten and the newcomer's taking its slot.
        let charge = move |limiter: &Model<Burst>| limiter.decide(&soon, Ask::cost(3)).is_allowed();
        let charged = race(&limiter, charge, move |limiter| admits(limiter, &new));
        assert_eq!(charged, (true, true));
        // Charged first, it outlasts `late`. Forgotten first, it comes back as a newcomer, and somebody else goes.
        let remembered = owed(&limiter, &soon);
        assert!(remembered == [200] || remembered == [150], "{remembered:?}");
    });
}

/// Whoever is forgotten meanwhile and comes back owes what was inherited: never more than its quota, whoever goes first.
#[test]
fn who_inherits_while_the_forgotten_come_back_lends_nobody_a_second_burst() {
    model(2, || {
        let limiter = Memory::builder(burst(2)).max_keys(1).when_full(WhenFull::Inherit).clock(OwnTime).hasher(Same);
        let limiter = limiter.build().expect("valid limits");
        let (soon, late, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &soon) && admits(&limiter, &late) && admits(&limiter, &late));
        let newcomer = move |limiter: &Model<Burst>| admits(limiter, &new);
        let (charged, back) = race(&limiter, newcomer, move |limiter| admits(limiter, &soon));
        // One charge was there already, and is inherited with the room: of the two that follow it, one is let through.
        assert!(charged || back);
        let again = admits(&limiter, &soon);
        assert!(u8::from(back) + u8::from(again) <= 1, "a third one in a quota of two");
        assert!(!(admits(&limiter, &soon) || admits(&limiter, &new) && admits(&limiter, &new)));
    });
}

/// A newcomer that is denied room reads of nobody who was just charged, and charges nobody.
#[test]
fn who_is_refused_room_changes_nothing() {
    model(2, || {
        let limiter = Memory::builder(burst(4)).max_keys(1).when_full(WhenFull::Refuse).clock(OwnTime).hasher(Same);
        let limiter = limiter.build().expect("valid limits");
        let (one, two, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &one) && admits(&limiter, &two));
        let newcomer = move |limiter: &Model<Burst>| acquire(limiter, &new).decision;
        let (refused, charged) = race(&limiter, newcomer, move |limiter| admits(limiter, &one));
        assert!(charged && !refused.is_allowed() && refused.source() == Source::Policy);
        assert_eq!(refused.retry_after(), Some(Duration::from_micros(50)));
        assert_eq!([one, two].map(|key| owed(&limiter, &key)), [[100], [50]]);
    });
}

/// To move is a race as well: who loses it looks again, and forgets nobody while there is room.
#[test]
fn nobody_is_forgotten_for_a_lost_race() {
    model(3, || {
        let limiter = sets(4, burst(1));
        let (moves, stays) = (key(4, [0, 2], 0), key(4, [1, 0], 1));
        // The first makes room by a move to where the second may go: then the second's other set is the way out.
        let (new, rival) = (key(4, [0, 1], 2), key(4, [2, 3], 3));
        assert!(admits(&limiter, &moves) && admits(&limiter, &stays));
        let charged = race(&limiter, move |limiter| admits(limiter, &new), move |limiter| admits(limiter, &rival));
        assert_eq!(charged, (true, true));
        assert_eq!([moves, stays, new, rival].map(|key| owed(&limiter, &key)), [[50]; 4]);
    });
}

#[test]
fn a_newcomer_to_a_full_table_and_a_reset_cost_one_key_its_slot() {
    model(3, || {
        let limiter = sets(2, burst(2));
        let (soon, late, new) = (key(2, [0, 1], 0), key(2, [1, 0], 1), key(2, [0, 1], 2));
        assert!(admits(&limiter, &soon) && admits(&limiter, &late) && admits(&limiter, &late));
        // Whether it is reset or forgotten, its slot is the newcomer's.
        let (charged, ()) = race(&limiter, move |limiter| admits(limiter, &new), move |limiter| reset(limiter, &soon));
        assert!(charged);
        assert_eq!([soon, late, new].map(|key| owed(&limiter, &key)), [[0], [100], [50]]);
    });
}

#[test]
fn newcomers_to_a_full_table_never_wait_for_each_other() {
    model(2, || {
        let limiter = sets(2, burst(1));
        let (first, second) = (key(2, [0, 1], 0), key(2, [1, 0], 1));
        let (a, b) = (key(2, [0, 1], 2), key(2, [1, 0], 3));
        assert!(admits(&limiter, &first) && admits(&limiter, &second));
        let charged = race(&limiter, move |limiter| admits(limiter, &a), move |limiter| admits(limiter, &b));
        assert_eq!(charged, (true, true));
    });
}

type Pair = (u64, u64);

/// A limit by each of the two numbers.
fn pair(count: usize, tokens: [u64; 2]) -> Model<impl LimitsFor<Pair, Same> + Send + Sync + 'static> {
    sets(
        count,
        (
            Limit::new("a", burst(tokens[0])).by(|pair: &Pair| pair.0),
            Limit::new("b", burst(tokens[1])).by(|pair: &Pair| pair.1),
        ),
    )
}

/// Each thread locks first what the other locks last, as far as that goes: within a limit, and across the two.
#[test]
fn limits_over_crossing_keys_never_wait_for_each_other() {
    model(2, || {
        let limiter = pair(2, [1, 1]);
        let (x, y) = (key(2, [0, 1], 0), key(2, [1, 0], 1));
        let charged = race(&limiter, move |limiter| admits(limiter, &(x, y)), move |limiter| admits(limiter, &(y, x)));
        assert_eq!(charged, (true, true));
        assert_eq!(owed(&limiter, &(x, x)), [50, 50]);
        assert_eq!(owed(&limiter, &(y, y)), [50, 50]);
    });
}

#[test]
fn who_loses_one_limit_is_not_charged_to_another() {
    for shared in [0, 1] {
        model(2, move || {
            let limiter = pair(2, [1, 1]);
            let (all, x, y) = (key(2, [0, 1], 0), key(2, [0, 1], 1), key(2, [1, 0], 2));
            let with = move |own: u64| if shared == 0 { (all, own) } else { (own, all) };
            let (a, b) =
                race(&limiter, move |limiter| admits(limiter, &with(x)), move |limiter| admits(limiter, &with(y)));
            assert!(a ^ b, "one of {a} and {b}");
            let own = |key: u64| owed(&limiter, &with(key))[1 - shared];
            assert_eq!((own(x), own(y)), (50 * u128::from(a), 50 * u128::from(b)));
            assert_eq!(owed(&limiter, &with(x))[shared], 50);
        });
    }
}

#[test]
fn a_peek_sees_all_of_a_charge_or_nothing_of_it() {
    model(2, || {
        let limiter = pair(2, [2, 2]);
        let (x, y) = (key(2, [0, 1], 0), key(2, [1, 0], 1));
        assert!(admits(&limiter, &(x, y)));
        let (charged, seen) =
            race(&limiter, move |limiter| admits(limiter, &(x, y)), move |limiter| owed(limiter, &(x, y)));
        assert!(charged);
        assert!(seen == [50, 50] || seen == [100, 100], "{seen:?}");
        assert_eq!(owed(&limiter, &(x, y)), [100, 100]);
    });
}
