//! The checker rejects the histories of broken limiters.
//!
//! Each limiter is broken in one known way. Barriers force the interleaving, so each run produces the faulty history.

use std::sync::atomic::AtomicU64;
use std::sync::{Barrier, Mutex, MutexGuard};
use std::time::Duration;

use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::limiter::{Held, LimiterFuture, Outcome};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Clock, Decision, Detail, Gcra, Limit, LimitStatus, Limiter, Memory, Quota,
};

use super::model::{Caller, Kept, Model, Rule};
use super::order::{Explained, Unexplained, explain};
use super::recording::{End, Event, History, Recorder, RecordingClock, Step, ready};
use crate::algorithm_ext::AlgorithmExt as _;
use crate::broken_holds::{BrokenHolds, Mistake};

const THREADS: usize = 3;

const ALICE: Caller = [1, 1];

fn user(caller: &Caller) -> u64 {
    caller[0]
}

fn group(caller: &Caller) -> u64 {
    caller[1]
}

/// A burst that does not refill during a test.
fn burst_of(burst: u64) -> Gcra {
    Gcra::new(Quota::per_day(1)).burst(burst)
}

type Calls<'a, L> = dyn Fn(&mut Recorder<'_, L>) + Sync + 'a;

/// Runs each list of calls on a thread of its own and returns the recorded histories.
fn record<L: Limiter<Caller> + Sync>(limiter: &L, limits: usize, threads: &[&Calls<'_, L>]) -> Vec<History> {
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

/// A limiter of one bucket that splits its critical section in two: all threads read before any of them writes.
struct SplitDecision {
    bucket: Gcra,
    fault: Fault,
    state: Mutex<<Gcra as Algorithm>::State>,
    meet: Barrier,
    clock: RecordingClock,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The control: one critical section, although all threads call at the same time.
    None,
    /// It charges the current state by a verdict on an older one.
    ChecksThenActs,
    /// It overwrites the current state with one that was computed from an older one.
    Overwrites,
}

impl SplitDecision {
    fn of(fault: Fault, burst: u64) -> Self {
        let (state, clock) = (Mutex::new(Kept::zero(0)), RecordingClock::default());
        Self { bucket: burst_of(burst), fault, state, meet: Barrier::new(THREADS), clock }
    }

    fn lock(&self) -> MutexGuard<'_, <Gcra as Algorithm>::State> {
        self.state.lock().expect("no thread panics")
    }
}

impl Limiter<Caller> for SplitDecision {
    fn acquire(&self, _caller: &Caller, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let (now, before) = (self.clock.now(), *self.lock());
        self.meet.wait();
        let mut state = self.lock();
        let seen = if self.fault == Fault::None { *state } else { before };
        if self.fault == Fault::Overwrites {
            *state = before;
        }
        let verdict = self.bucket.peek(&seen, now, options);
        if verdict.is_allowed() {
            self.bucket.charge(&mut state, now, Duration::ZERO, options.cost);
        }
        let status = LimitStatus::new("one", verdict, self.bucket.snapshot(&state, now));
        drop(state);
        self.meet.wait();
        let decision = Decision::from_limit(now, status).with_scheduling(self.bucket.supports_scheduling());
        LimiterFuture::ready(Ok(decision.into()))
    }
}

fn concurrent_calls(fault: Fault, burst: u64) -> Result<Explained, Unexplained> {
    let limiter = SplitDecision::of(fault, burst);
    let one: &Calls<'_, SplitDecision> = &|recorder| drop(recorder.acquire(ALICE, AcquireOptions::default()));
    let threads = record(&limiter, 1, &[one; THREADS]);
    explain(&threads, Model::new(vec![Rule::new("one", burst_of(burst), user)]))
}

#[test]
fn check_then_act_is_rejected() {
    let right = Explained { calls: THREADS, overlapping: THREADS };
    assert_eq!(concurrent_calls(Fault::None, 1).expect("the history is linearizable"), right);
    assert_eq!(concurrent_calls(Fault::None, 10).expect("the history is linearizable"), right);
    // The limiter admits three requests where the limit is one.
    concurrent_calls(Fault::ChecksThenActs, 1).expect_err("the history is not linearizable");
}

/// The limiter admits no request beyond the limit, but loses two charges.
#[test]
fn lost_update_is_rejected() {
    concurrent_calls(Fault::Overwrites, 10).expect_err("the history is not linearizable");
}

/// Two limiters as one: hold on the first, decide on the second, then settle or release the hold.
///
/// A peek between the two steps observes the intermediate state.
struct TwoStep<L> {
    limiters: [L; 2],
    meet: Option<Barrier>,
    clock: RecordingClock,
}

impl<L> TwoStep<L> {
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

impl<L: Limiter<Caller>> Limiter<Caller> for TwoStep<L> {
    fn acquire(&self, caller: &Caller, options: AcquireOptions) -> LimiterFuture<Outcome> {
        let acquire = |limiter: &L, options: AcquireOptions| {
            let outcome = limiter.acquire(caller, options).try_ready().expect("the memory store returns ready results");
            outcome.expect("the memory store returns no error")
        };
        let [one, other] = &self.limiters;
        let first = acquire(one, options.hold());
        self.meet();
        self.meet();
        let second = acquire(other, options);
        if let Some(held) = first.held {
            ready(if second.decision.is_allowed() { held.settle(options.cost) } else { held.release() });
        }
        let record = ready(one.peek(caller, options));
        LimiterFuture::ready(Ok(self.both(&[record, second.decision]).into()))
    }

    fn peek(&self, caller: &Caller, options: AcquireOptions) -> LimiterFuture<Decision> {
        self.meet();
        let decisions = [&self.limiters[0], &self.limiters[1]].map(|limiter| ready(limiter.peek(caller, options)));
        self.meet();
        LimiterFuture::ready(Ok(self.both(&decisions)))
    }
}

/// One thread acquires and another peeks between the two steps; or one thread does both in sequence.
fn seen(group_burst: u64, in_the_middle: bool) -> Result<Explained, Unexplained> {
    let clock = RecordingClock::default();
    let memory = |name, burst, part: fn(&Caller) -> u64| {
        let limit = Limit::new(name, burst_of(burst)).keyed_by(part);
        Memory::builder(limit).clock(clock.clone()).build().expect("a valid limit")
    };
    let limiters = [memory("user", 5, user), memory("group", group_burst, group)];
    let meet = in_the_middle.then(|| Barrier::new(2));
    let limiter = TwoStep { limiters, meet, clock };
    let options = AcquireOptions::cost(2).detail(Detail::All);
    let acquire = |recorder: &mut Recorder<'_, _>| drop(recorder.acquire(ALICE, options));
    let peek = |recorder: &mut Recorder<'_, _>| recorder.peek(ALICE, options);
    let threads = if in_the_middle {
        record(&limiter, 2, &[&acquire, &peek])
    } else {
        record(&limiter, 2, &[&|recorder| (acquire(recorder), peek(recorder)).1])
    };
    let rules = vec![Rule::new("user", burst_of(5), user), Rule::new("group", burst_of(group_burst), group)];
    explain(&threads, Model::new(rules))
}

#[test]
fn partially_visible_charge_is_rejected() {
    seen(5, false).expect("no other thread observes the intermediate state");
    seen(5, true).expect_err("the peek observed a charge of the user without one of the group");
}

#[test]
fn visible_hold_of_a_denied_request_is_rejected() {
    // More than the group's limit.
    seen(1, false).expect("no other thread observes the intermediate state");
    seen(1, true).expect_err("the peek observed the hold of a denied request");
}

/// Checks the history of one thread on a correct limiter after a change.
fn with_change(
    calls: impl Fn(&mut Recorder<'_, BoxLimiter<Caller>>) + Sync,
    change: impl FnOnce(&mut Vec<History>),
) -> Result<Explained, Unexplained> {
    let builder = Memory::builder(Limit::new("one", burst_of(5)).keyed_by(user)).clock(RecordingClock::default());
    let mut threads = record(&BoxLimiter::new(builder.build().expect("a valid limit")), 1, &[&calls]);
    change(&mut threads);
    explain(&threads, Model::new(vec![Rule::new("one", burst_of(5), user)]))
}

/// A history of one thread, checked as that of two threads with other call and return times.
fn with_times(times: [[u64; 2]; 2]) -> Result<Explained, Unexplained> {
    let calls = |recorder: &mut Recorder<'_, _>| {
        recorder.peek(ALICE, AcquireOptions::default());
        drop(recorder.acquire(ALICE, AcquireOptions::default()));
    };
    with_change(calls, |threads| {
        let acquired = threads[0].pop().expect("two calls");
        threads.push(vec![acquired]);
        for (thread, [called, returned]) in threads.iter_mut().zip(times) {
            (thread[0].called, thread[0].returned) = (called, returned);
        }
    })
}

#[test]
fn real_time_order_is_respected() {
    // The peek did not observe the charge.
    with_times([[0, 1], [2, 3]]).expect("the peek came first");
    with_times([[0, 2], [1, 3]]).expect("the calls overlap, so the peek may come first");
    with_times([[1, 2], [0, 3]]).expect("the calls overlap, so the peek may come first");
    with_times([[2, 3], [0, 1]]).expect_err("the peek came last and did not observe the charge");
}

/// A correct history with one event changed.
fn with_changed_event(change: impl FnOnce(&mut Event)) -> Result<Explained, Unexplained> {
    let calls = |recorder: &mut Recorder<'_, _>| {
        let held = recorder.acquire(ALICE, AcquireOptions::cost(2).hold()).expect("the hold succeeds");
        recorder.end(ALICE, held, End::Settle(1));
        recorder.peek(ALICE, AcquireOptions::default());
    };
    with_change(calls, |threads| change(&mut threads[0][1]))
}

#[test]
fn changed_hold_event_is_rejected() {
    with_changed_event(|_| ()).expect("the unchanged history is linearizable");
    with_changed_event(|event| {
        let Step::Settle { actual, .. } = &mut event.step else { panic!("{event:?}") };
        *actual = 2;
    })
    .expect_err("the peek observed the charge");
    with_changed_event(|event| {
        let Step::Settle { held, .. } = &mut event.step else { panic!("{event:?}") };
        *held = 1;
    })
    .expect_err("the peek observed the hold");
    with_changed_event(|event| {
        let Step::Settle { caller, .. } = &mut event.step else { panic!("{event:?}") };
        *caller = [2, 1];
    })
    .expect_err("the event settles the hold of another caller");
}

/// One token drains per second.
const BUCKET: Gcra = Gcra::new(Quota::per_second(1)).burst(9);

/// One thread that makes a call of each kind.
fn check_holding(mistake: Mistake) -> Result<Explained, Unexplained> {
    let clock = RecordingClock::default();
    let limiter = BrokenHolds::new(clock.clone(), BUCKET, mistake);
    let calls = |recorder: &mut Recorder<'_, BrokenHolds<RecordingClock>>| {
        let hold = |recorder: &mut Recorder<'_, BrokenHolds<RecordingClock>>, cost: u64| {
            recorder.acquire(ALICE, AcquireOptions::cost(cost).hold())
        };
        let end = |recorder: &mut Recorder<'_, BrokenHolds<RecordingClock>>, guard: Option<Held>, end: End| {
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
        // Held cost must not drain while the hold succeeds.
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
    let threads = record(&limiter, 1, &[&calls]);
    explain(&threads, Model::new(vec![Rule::new("one", BUCKET, user)]))
}

#[test]
fn each_hold_mistake_is_rejected() {
    check_holding(Mistake::None).expect("correct holds are linearizable");
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
        assert!(check_holding(mistake).is_err(), "{mistake:?} was accepted");
    }
}
