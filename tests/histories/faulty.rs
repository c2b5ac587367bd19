//! No order of turns explains the histories of limiters that are known to fail: each here fails in one way, whenever it is
//! run, as its threads wait for each other in the middle of what should be one turn.

use std::future::Ready;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Barrier, Mutex, MutexGuard};
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Acquisition, Held, LimiterFuture, Outcome};
use tower_ratelimit::{
    AcquireOptions, Clock, Decision, Detail, Error, Gcra, Limit, LimitStatus, Limiter, Memory, Quota, Verdict,
};

use crate::model::{Caller, Kept, Model, Rule};
use crate::order::{Explained, Unexplained, explain};
use crate::recording::{End, Event, History, NotingClock, Recorder, Step, ready};

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

    fn acquire(&self, _caller: &Caller, ask: AcquireOptions) -> Acquisition<Self::Future> {
        let (now, before) = (self.clock.now(), *self.lock());
        self.meet.wait();
        let mut state = self.lock();
        let seen = if self.fault == Fault::None { *state } else { before };
        if self.fault == Fault::Overwrites {
            *state = before;
        }
        let verdict = self.bucket.peek(&seen, now, ask);
        if verdict.is_allowed() {
            self.bucket.commit(&mut state, now, Duration::ZERO, ask.cost);
        }
        let standing = LimitStatus::new("one", verdict, self.bucket.reading(&state, now));
        drop(state);
        self.meet.wait();
        let decision = Decision::from_limit(now, standing).with_scheduling(self.bucket.supports_scheduling());
        Acquisition::Ready(Ok(decision.into()))
    }
}

fn all_at_once(fault: Fault, burst: u64) -> Result<Explained, Unexplained> {
    let limiter = InTwoSteps::of(fault, burst);
    let one: &Calls<'_, InTwoSteps> = &|recorder| drop(recorder.acquire(ALICE, AcquireOptions::default()));
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

/// Two limiters as one: it holds on the first, decides on the second, and then settles or releases. Between the two whoever
/// peeks has a look.
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
        let standings = decisions.iter().flat_map(Decision::limits).cloned().collect();
        let promise = decisions.iter().all(Decision::supports_scheduling);
        Decision::from_limits(self.clock.now(), standings).with_scheduling(promise)
    }
}

impl<L: Limiter<Caller>> Limiter<Caller> for OneAfterTheOther<L> {
    type Future = Ready<Result<Outcome, Error>>;

    fn acquire(&self, caller: &Caller, ask: AcquireOptions) -> Acquisition<Self::Future> {
        let acquire = |limiter: &L, ask: AcquireOptions| match limiter.acquire(caller, ask) {
            Acquisition::Ready(outcome) => outcome.expect("memory never fails"),
            Acquisition::Pending(_) => panic!("memory answers at once"),
        };
        let [one, other] = &self.limiters;
        let first = acquire(one, ask.hold());
        self.meet();
        self.meet();
        let second = acquire(other, ask);
        if let Some(held) = first.held {
            ready(if second.decision.is_allowed() { held.settle(ask.cost) } else { held.release() });
        }
        let told = ready(one.peek(caller, ask));
        Acquisition::Ready(Ok(self.both(&[told, second.decision]).into()))
    }

    fn peek(&self, caller: &Caller, ask: AcquireOptions) -> LimiterFuture<Decision> {
        self.meet();
        let decisions = [&self.limiters[0], &self.limiters[1]].map(|limiter| ready(limiter.peek(caller, ask)));
        self.meet();
        LimiterFuture::ready(Ok(self.both(&decisions)))
    }
}

/// One acquires, and another one has a look in the middle of it; or one thread does both, one after the other.
fn seen(group_burst: u64, in_the_middle: bool) -> Result<Explained, Unexplained> {
    let clock = NotingClock::default();
    let memory = |name, burst, part: fn(&Caller) -> u64| {
        let limit = Limit::new(name, only(burst)).keyed_by(part);
        Memory::builder(limit).clock(clock.clone()).build().expect("a valid limit")
    };
    let limiters = [memory("user", 5, user), memory("group", group_burst, group)];
    let meet = in_the_middle.then(|| Barrier::new(2));
    let limiter = OneAfterTheOther { limiters, meet, clock };
    let ask = AcquireOptions::cost(2).detail(Detail::All);
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
fn who_holds_for_nothing_and_releases_it_is_found_out() {
    // More than the group can ever have.
    seen(1, false).expect("nobody sees it");
    seen(1, true).expect_err("a peek saw what was held for a denied request");
}

/// What one thread was told, as if two had been: who called and returned when is written over.
fn as_if(times: [[u64; 2]; 2]) -> Result<Explained, Unexplained> {
    let clock = NotingClock::default();
    let limiter =
        Memory::builder(Limit::new("one", only(5)).keyed_by(user)).clock(clock).build().expect("a valid limit");
    let mut threads = told(
        &limiter,
        1,
        &[&|recorder| {
            recorder.peek(ALICE, AcquireOptions::default());
            drop(recorder.acquire(ALICE, AcquireOptions::default()));
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
    let limiter =
        Memory::builder(Limit::new("one", only(5)).keyed_by(user)).clock(clock).build().expect("a valid limit");
    let mut threads = told(
        &limiter,
        1,
        &[&|recorder| {
            let held = recorder.acquire(ALICE, AcquireOptions::cost(2).hold()).expect("it is held");
            recorder.end(ALICE, held, End::Settle(1));
            recorder.peek(ALICE, AcquireOptions::default());
        }],
    );
    change(&mut threads[0][1]);
    explain(&threads, Model::new(vec![Rule::new("one", only(5), user)]))
}

#[test]
fn what_is_settled_counts() {
    but_for(|_| ()).expect("it is as it was");
    but_for(|event| {
        let Step::Settle { actual, .. } = &mut event.step else { panic!("{event:?}") };
        *actual = 2;
    })
    .expect_err("the peek saw what was charged");
    but_for(|event| {
        let Step::Settle { held, .. } = &mut event.step else { panic!("{event:?}") };
        *held = 1;
    })
    .expect_err("the peek saw what is held");
    but_for(|event| {
        let Step::Settle { caller, .. } = &mut event.step else { panic!("{event:?}") };
        *caller = [2, 1];
    })
    .expect_err("the hold of another one was settled");
}

/// A limiter of one bucket that is in no hurry, and makes a mistake about what is held.
struct Holding {
    clock: NotingClock,
    mistake: Mistake,
    remembered: Arc<Mutex<Remembered>>,
}

#[derive(Default)]
struct Remembered {
    state: <Gcra as Algorithm>::State,
    held: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    None,
    /// It charges when it should hold, and no more when that is settled.
    ChargesAtHold,
    /// A peek knows nothing of what is held.
    PeeksAtTheStateAlone,
    /// As above, of decisions.
    DecidesByTheStateAlone,
    /// It charges what is settled twice.
    SettlesTwice,
    /// It charges nothing of what is settled.
    DropsTheCharge,
    /// It charges the held cost, whatever the actual one is.
    SettlesWhole,
    /// The end of one hold ends all of them.
    ReleasesTooMuch,
    /// What is held stays held.
    NeverReleases,
    /// Who drops the guard is charged nothing.
    ForgetsWhoIsDropped,
}

impl Holding {
    /// A token drains in a second.
    const BUCKET: Gcra = Gcra::new(Quota::per_second(1)).burst(9);

    fn decide(&self, ask: AcquireOptions, remembered: &Remembered, held: u64) -> LimitStatus {
        let now = self.clock.now();
        let ask = if ask.hold { ask.max_delay(Duration::ZERO) } else { ask };
        let mut state = remembered.state;
        Self::BUCKET.commit(&mut state, now, Duration::ZERO, held);
        LimitStatus::new("one", Self::BUCKET.peek(&state, now, ask), Self::BUCKET.reading(&state, now))
    }

    fn decision(&self, ask: AcquireOptions, held: u64, verdict: Verdict, standing: &LimitStatus) -> Decision {
        let standing = LimitStatus::new("one", verdict, standing.figures());
        let is_estimate = held > 0 && !verdict.is_allowed();
        Decision::from_limit(self.clock.now(), standing).with_scheduling(!ask.hold).with_estimate(is_estimate)
    }

    fn guard(&self, cost: u64) -> Held {
        let (clock, mistake, remembered) = (self.clock.clone(), self.mistake, Arc::clone(&self.remembered));
        let is_charged = move |actual: u64| match mistake {
            Mistake::ChargesAtHold | Mistake::DropsTheCharge => 0,
            Mistake::SettlesTwice => 2 * actual,
            Mistake::SettlesWhole => cost,
            Mistake::ForgetsWhoIsDropped if actual == cost => 0,
            _ => actual,
        };
        Held::new(cost, move |actual| {
            let remembered = &mut *remembered.lock().expect("no thread panics");
            remembered.held = match mistake {
                Mistake::ReleasesTooMuch => 0,
                Mistake::NeverReleases => remembered.held,
                _ => remembered.held.saturating_sub(cost),
            };
            Self::BUCKET.commit(&mut remembered.state, clock.now(), Duration::ZERO, is_charged(actual));
            LimiterFuture::ready(Ok(()))
        })
    }
}

impl Limiter<Caller> for Holding {
    type Future = Ready<Result<Outcome, Error>>;

    fn acquire(&self, _caller: &Caller, ask: AcquireOptions) -> Acquisition<Self::Future> {
        let mut remembered = self.remembered.lock().expect("no thread panics");
        let held = remembered.held;
        let seen = if self.mistake == Mistake::DecidesByTheStateAlone { 0 } else { held };
        let verdict = self.decide(ask, &remembered, seen).verdict();
        let (now, mut guard) = (self.clock.now(), None);
        match verdict {
            Verdict::Allowed | Verdict::AllowedAfter(_) if ask.hold => {
                guard = Some(self.guard(ask.cost));
                if self.mistake == Mistake::ChargesAtHold {
                    Self::BUCKET.commit(&mut remembered.state, now, Duration::ZERO, ask.cost);
                } else {
                    remembered.held += ask.cost;
                }
            }
            Verdict::Allowed => Self::BUCKET.commit(&mut remembered.state, now, Duration::ZERO, ask.cost),
            Verdict::AllowedAfter(delay) => Self::BUCKET.commit(&mut remembered.state, now, delay, ask.cost),
            _ => {}
        }
        let after = self.decide(ask, &remembered, remembered.held);
        Acquisition::Ready(Ok(Outcome { decision: self.decision(ask, held, verdict, &after), held: guard }))
    }

    fn peek(&self, _caller: &Caller, ask: AcquireOptions) -> LimiterFuture<Decision> {
        let remembered = self.remembered.lock().expect("no thread panics");
        let seen = if self.mistake == Mistake::PeeksAtTheStateAlone { 0 } else { remembered.held };
        let standing = self.decide(ask, &remembered, seen);
        LimiterFuture::ready(Ok(self.decision(ask, remembered.held, standing.verdict(), &standing)))
    }
}

/// One thread, and a call of each kind.
fn holding(mistake: Mistake) -> Result<Explained, Unexplained> {
    let clock = NotingClock::default();
    let limiter = Holding { clock: clock.clone(), mistake, remembered: Arc::default() };
    let calls = |recorder: &mut Recorder<'_, Holding>| {
        let hold = |recorder: &mut Recorder<'_, Holding>, cost: u64| {
            recorder.acquire(ALICE, AcquireOptions::cost(cost).hold())
        };
        let end = |recorder: &mut Recorder<'_, Holding>, guard: Option<Held>, end: End| {
            if let Some(guard) = guard {
                recorder.end(ALICE, guard, end);
            }
        };
        let seconds = |count| clock.0.advance(Duration::from_secs(count));
        let (first, second) = (hold(recorder, 3), hold(recorder, 2));
        recorder.peek(ALICE, AcquireOptions::cost(2));
        recorder.acquire(ALICE, AcquireOptions::cost(3));
        seconds(2);
        end(recorder, first, End::Settle(2));
        // What is held did not drain meanwhile.
        recorder.acquire(ALICE, AcquireOptions::cost(5));
        end(recorder, second, End::Drop);
        recorder.peek(ALICE, AcquireOptions::cost(4));
        seconds(10);
        let (first, second) = (hold(recorder, 4), hold(recorder, 1));
        end(recorder, first, End::Release);
        recorder.peek(ALICE, AcquireOptions::cost(8));
        end(recorder, second, End::Settle(3));
        recorder.peek(ALICE, AcquireOptions::cost(8));
    };
    let threads = told(&limiter, 1, &[&calls]);
    explain(&threads, Model::new(vec![Rule::new("one", Holding::BUCKET, user)]))
}

#[test]
fn who_holds_as_documented_is_explained() {
    holding(Mistake::None).expect("no mistake is made");
}

#[test]
fn who_makes_a_mistake_about_holds_is_found_out() {
    for mistake in [
        Mistake::ChargesAtHold,
        Mistake::PeeksAtTheStateAlone,
        Mistake::DecidesByTheStateAlone,
        Mistake::SettlesTwice,
        Mistake::DropsTheCharge,
        Mistake::SettlesWhole,
        Mistake::ReleasesTooMuch,
        Mistake::NeverReleases,
        Mistake::ForgetsWhoIsDropped,
    ] {
        assert!(holding(mistake).is_err(), "{mistake:?} was not found out");
    }
}
