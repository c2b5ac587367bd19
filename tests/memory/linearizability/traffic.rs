//! What threads ask for, at random: the same in each run of a round, but for who is faster.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tower_ratelimit::algorithm::{Algorithm, ChargeOptions, Step};
use tower_ratelimit::limiter::Held;
use tower_ratelimit::{AcquireOptions, LazySnapshot, Limiter, Timestamp, Verdict};

use crate::model::Caller;
use crate::recording::{End, History, NotingClock, Recorder};

/// More than there are cores on small machines, so that some are interrupted in the middle of something.
const THREADS: usize = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    /// How many limits there are.
    pub(crate) limits: usize,
    /// How many users there are, and how many groups.
    pub(crate) callers: Caller,
    /// The largest cost.
    pub(crate) most: u64,
    /// KeyedBy how much a thread moves the clock at most when it does, while others read it.
    pub(crate) step: Duration,
    /// How many calls a thread makes, in each phase.
    pub(crate) calls: usize,
    /// A phase begins when everybody has ended the one before. Half of its users are new.
    pub(crate) phases: u64,
    /// KeyedBy how much the clock moves between two phases.
    pub(crate) pause: Duration,
}

impl Traffic {
    /// What the threads were told.
    pub(crate) fn run(&self, limiter: &(impl Limiter<Caller> + Sync), clock: &NotingClock, seed: u64) -> Vec<History> {
        let (count, meet) = (AtomicU64::new(0), Barrier::new(THREADS));
        let (count, meet) = (&count, &meet);
        std::thread::scope(|scope| {
            let spawn = |thread: usize| {
                let recorder = Recorder::new(limiter, self.limits, count);
                scope.spawn(move || {
                    let mut random = Random(seed << 8 | thread as u64);
                    HESITATION.set(random.number());
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
    clock: &'a NotingClock,
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
            0..8 => self.clock.0.advance(self.traffic.step.mul_f64(self.random.fraction())),
            8..20 => {
                let (caller, ask) = (self.caller(phase), self.ask());
                self.recorder.peek(caller, ask);
            }
            20..22 => {
                let caller = self.caller(phase);
                self.recorder.reset(caller);
            }
            22..45 if !self.guards.is_empty() => self.end_a_hold(),
            22..60 => {
                let (caller, ask) = (self.caller(phase), self.ask().hold());
                let guard = self.recorder.acquire(caller, ask);
                self.guards.extend(guard.map(|guard| (caller, guard)));
                if self.guards.len() > 3 {
                    self.end_a_hold();
                }
            }
            _ => {
                let (caller, ask) = (self.caller(phase), self.ask());
                self.recorder.acquire(caller, ask);
            }
        }
    }

    fn end_a_hold(&mut self) {
        let which = usize::try_from(self.random.below(self.guards.len() as u64)).expect("a few");
        let (caller, guard) = self.guards.swap_remove_back(which).expect("one at least");
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

    fn ask(&mut self) -> AcquireOptions {
        let cost = if self.random.below(20) == 0 { 0 } else { 1 + self.random.below(self.traffic.most) };
        let ask = match self.random.below(4) {
            0 => AcquireOptions::cost(cost).max_delay(Duration::ZERO),
            1 => AcquireOptions::cost(cost).max_delay(Duration::from_millis(self.random.below(400))),
            _ => AcquireOptions::cost(cost),
        };
        if self.random.below(3) == 0 { ask.all_limits() } else { ask }
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    #[allow(clippy::cast_precision_loss, reason = "any fraction will do")]
    fn fraction(&mut self) -> f64 {
        self.below(1000) as f64 / 1000.0
    }
}

/// An algorithm which now and then lets other threads go on first, in the middle of a decision: or on few cores hardly any
/// two would ever be under way at the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hesitant<A>(pub(crate) A);

thread_local! {
    static HESITATION: Cell<u64> = const { Cell::new(0) };
}

fn hesitate() {
    let mut random = Random(HESITATION.get());
    if random.below(8) == 0 {
        std::thread::yield_now();
    }
    HESITATION.set(random.0);
}

impl<A: Algorithm> Algorithm for Hesitant<A> {
    type State = A::State;

    fn decide(&self, state: &A::State, now: Timestamp, options: ChargeOptions) -> Step<A::State> {
        hesitate();
        self.0.decide(state, now, options)
    }

    fn peek_with_held(
        &self,
        state: &A::State,
        now: Timestamp,
        ask: AcquireOptions,
        held: u64,
    ) -> (Verdict, LazySnapshot) {
        hesitate();
        self.0.peek_with_held(state, now, ask, held)
    }

    fn snapshot(&self, state: &A::State, now: Timestamp) -> LazySnapshot {
        hesitate();
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
