//! Records the calls of threads and their results.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use tower_ratelimit::limiter::{AdminOperation, Held, LimiterFuture, Outcome};
use tower_ratelimit::{AcquireOptions, Clock, Decision, Limiter, ManualClock, Timestamp};

use super::model::Caller;

/// One call, or one atomic part of a call.
#[derive(Debug)]
pub(crate) struct Event {
    /// Start and end, counted by one counter for all threads.
    pub(crate) called: u64,
    pub(crate) returned: u64,
    /// The possible times of the call: the time of the decision, or the clock readings of the call.
    pub(crate) nows: Vec<Timestamp>,
    pub(crate) step: Step,
}

#[derive(Debug)]
pub(crate) enum Step {
    /// An acquire, or with [`AcquireOptions::hold`] a hold.
    LimiterFuture {
        caller: Caller,
        options: AcquireOptions,
        decision: Decision,
        /// Whether the call returned a guard.
        is_held: bool,
    },
    Peek {
        caller: Caller,
        options: AcquireOptions,
        decision: Decision,
    },
    /// The end of a hold in one limit: each limit is settled separately.
    Settle {
        caller: Caller,
        limit: usize,
        held: u64,
        actual: u64,
    },
    /// In one limit as well.
    Reset {
        caller: Caller,
        limit: usize,
    },
}

/// The ways to end a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Settle(u64),
    Release,
    Drop,
}

/// The calls of one thread, in order.
pub(crate) type History = Vec<Event>;

/// Makes and records the calls of one thread.
pub(crate) struct Recorder<'a, L> {
    limiter: &'a L,
    limits: usize,
    count: &'a AtomicU64,
    history: History,
}

impl<'a, L: Limiter<Caller>> Recorder<'a, L> {
    /// Creates a recorder for a limiter with `limits` limits. All threads share `count`.
    pub(crate) fn new(limiter: &'a L, limits: usize, count: &'a AtomicU64) -> Self {
        Self { limiter, limits, count, history: Vec::new() }
    }

    pub(crate) fn finish(self) -> History {
        self.history
    }

    pub(crate) fn acquire(&mut self, caller: Caller, options: AcquireOptions) -> Option<Held> {
        let called = self.begin();
        let acquire = self.limiter.acquire(&caller, options);
        let returned = self.tick();
        let Ok(outcome) = acquire.try_ready() else { panic!("the memory store returns ready results") };
        let Outcome { decision, held, .. } = outcome.expect("the memory store returns no error");
        assert!(held.as_ref().is_none_or(|held| held.cost() == options.cost));
        self.record(called, returned, Step::LimiterFuture { caller, options, decision, is_held: held.is_some() });
        held
    }

    pub(crate) fn peek(&mut self, caller: Caller, options: AcquireOptions) {
        let called = self.begin();
        let reply = self.limiter.peek(&caller, options);
        let returned = self.tick();
        self.record(called, returned, Step::Peek { caller, options, decision: ready(reply) });
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
            self.record(called, returned, Step::Settle { caller, limit, held, actual });
        }
    }

    pub(crate) fn reset(&mut self, caller: Caller) {
        let called = self.begin();
        let reply = self.limiter.administer(&caller, AdminOperation::Reset);
        let returned = self.tick();
        ready(reply);
        for limit in 0..self.limits {
            self.record(called, returned, Step::Reset { caller, limit });
        }
    }

    fn begin(&self) -> u64 {
        READINGS.take();
        self.tick()
    }

    fn tick(&self) -> u64 {
        self.count.fetch_add(1, Ordering::SeqCst)
    }

    fn record(&mut self, called: u64, returned: u64, step: Step) {
        let readings = READINGS.with_borrow(Clone::clone);
        // A call whose state is ahead of its time reads the clock again and may use the second reading.
        let nows = match &step {
            Step::LimiterFuture { decision, .. } | Step::Peek { decision, .. } => vec![decision.decided_at()],
            Step::Settle { .. } | Step::Reset { .. } => readings.clone(),
        };
        assert!(readings.contains(&nows[0]), "the clock was read as {readings:?}, not as {nows:?}: {step:?}");
        self.history.push(Event { called, returned, nows, step });
    }
}

pub(crate) fn ready<T>(reply: LimiterFuture<T>) -> T {
    reply.try_ready().expect("the memory store returns ready results").expect("the memory store returns no error")
}

/// A manual clock that records each thread's readings since the start of its call.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordingClock(pub(crate) ManualClock);

thread_local! {
    static READINGS: RefCell<Vec<Timestamp>> = const { RefCell::new(Vec::new()) };
}

impl Clock for RecordingClock {
    fn now(&self) -> Timestamp {
        let now = self.0.now();
        READINGS.with_borrow_mut(|readings| readings.push(now));
        now
    }
}
