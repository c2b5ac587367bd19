//! What threads called, and what they were told.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use tower_ratelimit::limiter::{Acquisition, AdminOperation, Held, LimiterFuture, Outcome};
use tower_ratelimit::{AcquireOptions, Clock, Decision, Limiter, ManualClock, Timestamp};

use super::model::Caller;

/// One call, or that part of one that is a turn by itself.
#[derive(Debug)]
pub(crate) struct Event {
    /// KeyedBy one count for all threads.
    pub(crate) called: u64,
    pub(crate) returned: u64,
    /// The times that it may have taken it for: the one that a decision tells, or what it read.
    pub(crate) nows: Vec<Timestamp>,
    pub(crate) step: Step,
}

#[derive(Debug)]
pub(crate) enum Step {
    /// A decision, or with [`AcquireOptions::hold`] a hold.
    Acquisition {
        caller: Caller,
        ask: AcquireOptions,
        decision: Decision,
        /// Whether there was a guard.
        is_held: bool,
    },
    Peek {
        caller: Caller,
        ask: AcquireOptions,
        decision: Decision,
    },
    /// The end of a hold in one of the limits: several are settled one after another.
    Settle {
        caller: Caller,
        limit: usize,
        held: u64,
        actual: u64,
    },
    /// In one of the limits, too.
    Reset {
        caller: Caller,
        limit: usize,
    },
}

/// How a hold ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Settle(u64),
    Release,
    Drop,
}

/// What one thread called.
pub(crate) type History = Vec<Event>;

/// Makes one thread's calls, and notes them.
pub(crate) struct Recorder<'a, L> {
    limiter: &'a L,
    limits: usize,
    count: &'a AtomicU64,
    history: History,
}

impl<'a, L: Limiter<Caller>> Recorder<'a, L> {
    /// For a limiter with so many limits. All threads count by the same count.
    pub(crate) fn new(limiter: &'a L, limits: usize, count: &'a AtomicU64) -> Self {
        Self { limiter, limits, count, history: Vec::new() }
    }

    pub(crate) fn finish(self) -> History {
        self.history
    }

    pub(crate) fn acquire(&mut self, caller: Caller, ask: AcquireOptions) -> Option<Held> {
        let called = self.begin();
        let acquire = self.limiter.acquire(&caller, ask);
        let returned = self.tick();
        let Acquisition::Ready(outcome) = acquire else { panic!("memory answers at once") };
        let Outcome { decision, held } = outcome.expect("memory never fails");
        assert!(held.as_ref().is_none_or(|held| held.cost() == ask.cost));
        self.note(called, returned, Step::Acquisition { caller, ask, decision, is_held: held.is_some() });
        held
    }

    pub(crate) fn peek(&mut self, caller: Caller, ask: AcquireOptions) {
        let called = self.begin();
        let reply = self.limiter.peek(&caller, ask);
        let returned = self.tick();
        self.note(called, returned, Step::Peek { caller, ask, decision: ready(reply) });
    }

    pub(crate) fn end(&mut self, caller: Caller, guard: Held, end: End) {
        let held = guard.cost();
        let called = self.begin();
        let (actual, reply) = match end {
            End::Settle(actual) => (actual, Some(guard.settle(actual))),
            End::Release => (0, Some(guard.release())),
            End::Drop => {
                drop(guard);
                (held, None)
            }
        };
        let returned = self.tick();
        if let Some(reply) = reply {
            ready(reply);
        }
        for limit in 0..self.limits {
            self.note(called, returned, Step::Settle { caller, limit, held, actual });
        }
    }

    pub(crate) fn reset(&mut self, caller: Caller) {
        let called = self.begin();
        let reply = self.limiter.administer(&caller, AdminOperation::Reset);
        let returned = self.tick();
        ready(reply);
        for limit in 0..self.limits {
            self.note(called, returned, Step::Reset { caller, limit });
        }
    }

    fn begin(&self) -> u64 {
        READINGS.take();
        self.tick()
    }

    fn tick(&self) -> u64 {
        self.count.fetch_add(1, Ordering::SeqCst)
    }

    fn note(&mut self, called: u64, returned: u64, step: Step) {
        let readings = READINGS.with_borrow(Clone::clone);
        // A call that finds a state far ahead of its time reads the clock once more, and may go by that.
        let nows = match &step {
            Step::Acquisition { decision, .. } | Step::Peek { decision, .. } => vec![decision.decided_at()],
            Step::Settle { .. } | Step::Reset { .. } => readings.clone(),
        };
        assert!(readings.contains(&nows[0]), "{nows:?} was never read, only {readings:?}: {step:?}");
        self.history.push(Event { called, returned, nows, step });
    }
}

pub(crate) fn ready<T>(reply: LimiterFuture<T>) -> T {
    reply.try_ready().expect("memory answers at once").expect("memory never fails")
}

/// A clock that is moved by hand, and notes what each thread has read since its call began.
#[derive(Clone, Debug, Default)]
pub(crate) struct NotingClock(pub(crate) ManualClock);

thread_local! {
    static READINGS: RefCell<Vec<Timestamp>> = const { RefCell::new(Vec::new()) };
}

impl Clock for NotingClock {
    fn now(&self) -> Timestamp {
        let now = self.0.now();
        READINGS.with_borrow_mut(|readings| readings.push(now));
        now
    }
}
