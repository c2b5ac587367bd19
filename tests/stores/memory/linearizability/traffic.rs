//! Random calls of several threads. A seed gives equal calls in each run, but not an equal interleaving.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, Step};
use tower_ratelimit::limiter::Held;
use tower_ratelimit::{AcquireOptions, Detail, LazySnapshot, Limiter, Timestamp, Verdict};

use super::model::Caller;
use super::recording::{End, History, Recorder, RecordingClock};
use crate::random::Random;

/// More threads than cores on small machines, so that the scheduler interrupts some of them in the middle of a call.
const THREADS: usize = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    /// The number of limits.
    pub(crate) limits: usize,
    /// The numbers of users and of groups.
    pub(crate) callers: Caller,
    /// The highest cost.
    pub(crate) most: u64,
    /// The largest step by which a thread moves the clock while others read it.
    pub(crate) step: Duration,
    /// Calls of a thread in each phase.
    pub(crate) calls: usize,
    /// A phase begins when every thread has ended the previous one. Half of its users are new.
    pub(crate) phases: u64,
    /// The step of the clock between two phases.
    pub(crate) pause: Duration,
}

impl Traffic {
    /// Runs the threads and returns their histories.
    pub(crate) fn run(&self, limiter: &impl Limiter<Caller>, clock: &RecordingClock, seed: u64) -> Vec<History> {
        let (count, meet) = (AtomicU64::new(0), Barrier::new(THREADS));
        let (count, meet) = (&count, &meet);
        std::thread::scope(|scope| {
            let spawn = |thread: usize| {
                let recorder = Recorder::new(limiter, self.limits, count);
                scope.spawn(move || {
                    let mut random = Random(seed << 8 | thread as u64);
                    COUNTDOWN.set(random.number());
                    Thread { traffic: self, clock, random, recorder, guards: VecDeque::new() }.run(meet)
                })
            };
            let threads: Vec<_> = (0..THREADS).map(spawn).collect();
            threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
        })
    }
}

struct Thread<'a, L> {
    traffic: &'a Traffic,
    clock: &'a RecordingClock,
    random: Random,
    recorder: Recorder<'a, L>,
    guards: VecDeque<(Caller, Held)>,
}

impl<L: Limiter<Caller>> Thread<'_, L> {
    fn run(mut self, meet: &Barrier) -> History {
        for phase in 0..self.traffic.phases {
            if meet.wait().is_leader() && phase > 0 {
                self.clock.0.advance(self.traffic.pause);
            }
            meet.wait();
            for _ in 0..self.traffic.calls {
                self.call(phase);
            }
            while let Some((caller, guard)) = self.guards.pop_front() {
                self.recorder.end(caller, guard, End::Drop);
            }
        }
        self.recorder.finish()
    }

    fn call(&mut self, phase: u64) {
        match self.random.below(100) {
            0..8 => {
                let part = u32::try_from(self.random.below(1000)).expect("below 1000");
                self.clock.0.advance(self.traffic.step * part / 1000);
            }
            8..20 => {
                let (caller, options) = (self.caller(phase), self.options());
                self.recorder.peek(caller, options);
            }
            20..22 => {
                let caller = self.caller(phase);
                self.recorder.reset(caller);
            }
            22..45 if !self.guards.is_empty() => self.end_a_hold(),
            22..60 => {
                let (caller, options) = (self.caller(phase), self.options().hold());
                let guard = self.recorder.acquire(caller, options);
                self.guards.extend(guard.map(|guard| (caller, guard)));
                if self.guards.len() > 3 {
                    self.end_a_hold();
                }
            }
            _ => {
                let (caller, options) = (self.caller(phase), self.options());
                self.recorder.acquire(caller, options);
            }
        }
    }

    fn end_a_hold(&mut self) {
        let which = usize::try_from(self.random.below(self.guards.len() as u64)).expect("a few");
        let (caller, guard) = self.guards.swap_remove_back(which).expect("at least one");
        let end = match self.random.below(5) {
            0 => End::Release,
            1 => End::Drop,
            2 => End::Settle(guard.cost() / 2),
            3 => End::Settle(guard.cost()),
            _ => End::Settle(guard.cost() + self.random.below(2)),
        };
        self.recorder.end(caller, guard, end);
    }

    fn caller(&mut self, phase: u64) -> Caller {
        self.traffic.callers.map(|count| phase * count.div_ceil(2) + self.random.below(count))
    }

    fn options(&mut self) -> AcquireOptions {
        let cost = if self.random.below(20) == 0 { 0 } else { 1 + self.random.below(self.traffic.most) };
        let options = match self.random.below(4) {
            0 => AcquireOptions::cost(cost).max_delay(Duration::ZERO),
            1 => AcquireOptions::cost(cost).max_delay(Duration::from_millis(self.random.below(400))),
            _ => AcquireOptions::cost(cost),
        };
        if self.random.below(3) == 0 { options.detail(Detail::All) } else { options }
    }
}

/// An algorithm that sometimes yields in the middle of a decision. Otherwise calls hardly overlap on few cores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Yielding<A>(pub(crate) A);

thread_local! {
    static COUNTDOWN: Cell<u64> = const { Cell::new(0) };
}

fn yield_sometimes() {
    let mut random = Random(COUNTDOWN.get());
    if random.below(8) == 0 {
        std::thread::yield_now();
    }
    COUNTDOWN.set(random.0);
}

impl<A: Algorithm> Algorithm for Yielding<A> {
    type State = A::State;

    fn decide(&self, state: &A::State, now: Timestamp, options: ChargeOptions) -> Step<A::State> {
        yield_sometimes();
        self.0.decide(state, now, options)
    }

    fn peek_with_held(
        &self,
        state: &A::State,
        now: Timestamp,
        options: ChargeOptions,
        held: u64,
    ) -> (Verdict, LazySnapshot) {
        yield_sometimes();
        self.0.peek_with_held(state, now, options, held)
    }

    fn snapshot(&self, state: &A::State, now: Timestamp) -> LazySnapshot {
        yield_sometimes();
        self.0.snapshot(state, now)
    }

    fn max_reset(&self) -> Duration {
        self.0.max_reset()
    }

    fn carry_over_debt(&self, state: &mut A::State, from: &A::State, now: Timestamp) {
        self.0.carry_over_debt(state, from, now);
    }

    fn counter_words(&self) -> usize {
        self.0.counter_words()
    }

    fn max_heap_bytes(&self) -> usize {
        self.0.max_heap_bytes()
    }

    fn supports_scheduling(&self) -> bool {
        self.0.supports_scheduling()
    }
}
