//! No order of turns explains the histories of limiters that are known to fail: each here fails in one way, whenever it is
//! run, as its threads wait for each other in the middle of what should be one turn.

use std::future::Ready;
use std::sync::atomic::AtomicU64;
use std::sync::{Barrier, Mutex, MutexGuard};
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Acquire, Outcome, Receipt, Reply};
use tower_ratelimit::{Ask, Clock, Decision, Error, Gcra, Limit, Limiter, Memory, Quota, Standing, Timestamp};

use crate::model::{Caller, Kept, Model, Rule};
use crate::order::{Explained, Unexplained, explain};
use crate::recording::{Event, History, NotingClock, Recorder, Step, ready};

const THREADS: usize = 3;

const ALICE: Caller = [1, 1];

fn user(caller: &Caller) -> u64 {
    caller[0]
}

fn group(caller: &Caller) -> u64 {
    caller[1]
}

/// So many, and none comes back while a test lasts.
fn only(burst: u64) -> Gcra {
    Gcra::new(Quota::per_day(1)).burst(burst)
}

type Calls<'a, L> = dyn Fn(&mut Recorder<'_, L>) + Sync + 'a;

/// What threads were told that each made some of these calls.
fn told<L: Limiter<Caller> + Sync>(limiter: &L, limits: usize, threads: &[&Calls<'_, L>]) -> Vec<History> {
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let spawn = |calls: &&Calls<'_, L>| {
            let mut recorder = Recorder::new(limiter, limits, &count);
            calls(&mut recorder);
            recorder.finish()
        };
        let threads: Vec<_> = threads.iter().map(|calls| scope.spawn(move || spawn(calls))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    })
}

/// A limiter of one bucket that makes a turn of two: it reads, lets everybody else read as well, and only then writes.
struct InTwoSteps {
    bucket: Gcra,
    fault: Fault,
    state: Mutex<<Gcra as Algorithm>::State>,
    meet: Barrier,
    clock: NotingClock,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// It reads and writes in one turn, although all are under way at once.
    None,
    /// It charges what the state is by then, for a verdict on what it was before.
    ChecksThenActs,
    /// It writes what it has made of the state as it was before.
    Overwrites,
}

impl InTwoSteps {
    fn of(fault: Fault, burst: u64) -> Self {
        let (state, clock) = (Mutex::new(Kept::zero(0)), NotingClock::default());
        Self { bucket: only(burst), fault, state, meet: Barrier::new(THREADS), clock }
    }

    fn lock(&self) -> MutexGuard<'_, <Gcra as Algorithm>::State> {
        self.state.lock().expect("no thread panics")
    }
}

impl Limiter<Caller> for InTwoSteps {
    type Future = Ready<Result<Outcome, Error>>;

    fn acquire(&self, _caller: &Caller, ask: Ask) -> Acquire<Self::Future> {
        let (now, before) = (self.clock.now(), *self.lock());
        self.meet.wait();
        let mut state = self.lock();
        let seen = if self.fault == Fault::None { *state } else { before };
        if self.fault == Fault::Overwrites {
            *state = before;
        }
        let verdict = self.bucket.peek(&seen, now, ask);
        let mut receipt = None;
        if verdict.is_allowed() {
            self.bucket.commit(&mut state, now, Duration::ZERO, ask.cost);
            let mut charged = Receipt::new(now, ask.cost, 1);
            charged.until_mut()[0] = Timestamp::from_micros(state.fresh_at());
            receipt = Some(charged);
        }
        let standing = Standing::of("one", verdict, self.bucket.reading(&state, now));
        drop(state);
        self.meet.wait();
        let decision = Decision::one(now, standing).with_turns(self.bucket.promises_turns());
        Acquire::Ready(Ok(Outcome { decision, receipt }))
    }
}

fn all_at_once(fault: Fault, burst: u64) -> Result<Explained, Unexplained> {
    let limiter = InTwoSteps::of(fault, burst);
    let one: &Calls<'_, InTwoSteps> = &|recorder| drop(recorder.acquire(ALICE, Ask::default()));
    let threads = told(&limiter, 1, &[one; THREADS]);
    explain(&threads, Model::new(vec![Rule::new("one", only(burst), user)]))
}

#[test]
fn who_checks_and_then_acts_is_found_out() {
    let right = Explained { calls: THREADS, overlapping: THREADS };
    assert_eq!(all_at_once(Fault::None, 1).expect("it takes turns"), right);
    assert_eq!(all_at_once(Fault::None, 10).expect("it takes turns"), right);
    // Three are let through for one.
    all_at_once(Fault::ChecksThenActs, 1).expect_err("nobody takes turns");
}

/// It lets through nobody too many here, and has forgotten two by the time that the next one comes.
#[test]
fn who_overwrites_what_others_wrote_is_found_out() {
    all_at_once(Fault::Overwrites, 10).expect_err("nobody takes turns");
}

/// Two limiters as one: it charges the second after the first, and gives back what it charged for nothing. Between the two
/// whoever peeks has a look.
struct OneAfterTheOther<L> {
    limiters: [L; 2],
    meet: Option<Barrier>,
    clock: NotingClock,
}

impl<L> OneAfterTheOther<L> {
    fn meet(&self) {
        if let Some(meet) = &self.meet {
            meet.wait();
        }
    }

    fn both(&self, decisions: &[Decision; 2]) -> Decision {
        let standings = decisions.iter().flat_map(Decision::standings).cloned().collect();
        let promise = decisions.iter().all(Decision::promises_turns);
        Decision::every(self.clock.now(), standings).with_turns(promise)
    }
}

impl<L: Limiter<Caller>> Limiter<Caller> for OneAfterTheOther<L> {
    type Future = Ready<Result<Outcome, Error>>;

    fn acquire(&self, caller: &Caller, ask: Ask) -> Acquire<Self::Future> {
        let acquire = |limiter: &L| match limiter.acquire(caller, ask) {
            Acquire::Ready(outcome) => outcome.expect("memory never fails"),
            Acquire::Pending(_) => panic!("memory answers at once"),
        };
        let [one, other] = &self.limiters;
        let first = acquire(one);
        self.meet();
        self.meet();
        let second = acquire(other);
        let (mut told, mut receipt) = (first.decision, None);
        match (first.receipt, second.receipt) {
            (Some(first), Some(second)) => {
                let mut both = Receipt::new(first.charged_at(), ask.cost, 2);
                both.until_mut()[..2].copy_from_slice(&[first.until()[0], second.until()[0]]);
                receipt = Some(both);
            }
            (Some(first), None) => {
                ready(one.give_back(caller, first));
                told = ready(one.peek(caller, ask));
            }
            _ => (),
        }
        Acquire::Ready(Ok(Outcome { decision: self.both(&[told, second.decision]), receipt }))
    }

    fn peek(&self, caller: &Caller, ask: Ask) -> Reply<Decision> {
        self.meet();
        let decisions = [&self.limiters[0], &self.limiters[1]].map(|limiter| ready(limiter.peek(caller, ask)));
        self.meet();
        Reply::ready(Ok(self.both(&decisions)))
    }
}

/// One acquires, and another one has a look in the middle of it; or one thread does both, one after the other.
fn seen(group_burst: u64, in_the_middle: bool) -> Result<Explained, Unexplained> {
    let clock = NotingClock::default();
    let memory = |name, burst, part: fn(&Caller) -> u64| {
        let limit = Limit::new(name, only(burst)).by(part);
        Memory::builder(limit).clock(clock.clone()).build().expect("a valid limit")
    };
    let limiters = [memory("user", 5, user), memory("group", group_burst, group)];
    let meet = in_the_middle.then(|| Barrier::new(2));
    let limiter = OneAfterTheOther { limiters, meet, clock };
    let ask = Ask::cost(2).every_limit();
    let acquire = |recorder: &mut Recorder<'_, _>| drop(recorder.acquire(ALICE, ask));
    let peek = |recorder: &mut Recorder<'_, _>| recorder.peek(ALICE, ask);
    let threads = if in_the_middle {
        told(&limiter, 2, &[&acquire, &peek])
    } else {
        told(&limiter, 2, &[&|recorder| (acquire(recorder), peek(recorder)).1])
    };
    let rules = vec![Rule::new("user", only(5), user), Rule::new("group", only(group_burst), group)];
    explain(&threads, Model::new(rules))
}

#[test]
fn who_shows_half_of_a_charge_is_found_out() {
    seen(5, false).expect("nobody sees it");
    seen(5, true).expect_err("the user was charged, and the group was not");
}

#[test]
fn who_charges_for_nothing_and_gives_it_back_is_found_out() {
    // More than the group can ever have.
    seen(1, false).expect("nobody sees it");
    seen(1, true).expect_err("the user was charged for what the group refused");
}

/// What one thread was told, as if two had been: who called and returned when is written over.
fn as_if(times: [[u64; 2]; 2]) -> Result<Explained, Unexplained> {
    let clock = NotingClock::default();
    let limiter = Memory::builder(Limit::new("one", only(5)).by(user)).clock(clock).build().expect("a valid limit");
    let mut threads = told(
        &limiter,
        1,
        &[&|recorder| {
            recorder.peek(ALICE, Ask::default());
            drop(recorder.acquire(ALICE, Ask::default()));
        }],
    );
    let acquired = threads[0].pop().expect("two calls");
    threads.push(vec![acquired]);
    for (thread, [called, returned]) in threads.iter_mut().zip(times) {
        (thread[0].called, thread[0].returned) = (called, returned);
    }
    explain(&threads, Model::new(vec![Rule::new("one", only(5), user)]))
}

#[test]
fn who_had_returned_before_another_called_comes_first() {
    // The peek saw nothing of the charge.
    as_if([[0, 1], [2, 3]]).expect("the peek came first");
    as_if([[0, 2], [1, 3]]).expect("the peek came first, for all that is known");
    as_if([[1, 2], [0, 3]]).expect("the peek came first, for all that is known");
    as_if([[2, 3], [0, 1]]).expect_err("the peek came last, and saw nothing");
}

/// A history of which one thing is not as it was.
fn but_for(change: impl FnOnce(&mut Event)) -> Result<Explained, Unexplained> {
    let clock = NotingClock::default();
    let limiter = Memory::builder(Limit::new("one", only(5)).by(user)).clock(clock).build().expect("a valid limit");
    let mut threads = told(
        &limiter,
        1,
        &[&|recorder| {
            let receipt = recorder.acquire(ALICE, Ask::cost(2)).expect("it is charged");
            recorder.settle(ALICE, receipt, 1);
            recorder.peek(ALICE, Ask::default());
        }],
    );
    change(&mut threads[0][1]);
    explain(&threads, Model::new(vec![Rule::new("one", only(5), user)]))
}

#[test]
fn what_is_given_back_counts() {
    but_for(|_| ()).expect("it is as it was");
    but_for(|event| {
        let Step::Settle { actual, .. } = &mut event.step else { panic!("{event:?}") };
        *actual = 2;
    })
    .expect_err("the peek saw what was given back");
    but_for(|event| {
        let Step::Settle { caller, .. } = &mut event.step else { panic!("{event:?}") };
        *caller = [2, 1];
    })
    .expect_err("it was given back to another one");
}
