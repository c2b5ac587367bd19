//! What the server has done, for tests that choose the load themselves.

use super::World;
use crate::store::redis::simulation_tests::model::Verdict;
use crate::store::redis::simulation_tests::scenario::FaultKind;

/// What the server has done since a call.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) calls: usize,
    /// The decisions that were allowed.
    pub(crate) charged: u64,
    /// The operations that are no decisions.
    pub(crate) updates: u64,
    /// The longest time of one call, in microseconds.
    pub(crate) longest: u64,
    /// The sessions that have expired since the start.
    pub(crate) expired_sessions: u64,
    /// The sessions that hold costs now.
    pub(crate) sessions: usize,
}

impl World {
    /// The number of the script's calls.
    pub(crate) fn calls(&self) -> usize {
        self.state().server.calls.len()
    }

    /// The number of writes of requests.
    pub(crate) fn requests(&self) -> u64 {
        self.state().requests
    }

    /// Counts from the call with this index on.
    pub(crate) fn counts(&self, since: usize) -> Counts {
        let mut state = self.state();
        let now = state.now();
        let server = &mut state.server;
        server.expire(now);
        let (calls, executions) = (&server.calls[since..], &server.executions);
        let decisions = || executions.iter().filter(|done| done.call >= since);
        Counts {
            calls: calls.len(),
            charged: decisions().filter(|done| done.verdict == Verdict::Allowed).count() as u64,
            updates: calls.iter().map(|call| call.operations).sum::<u64>() - decisions().count() as u64,
            longest: calls.iter().map(|call| call.ended_at - call.ran_at).max().unwrap_or(0),
            expired_sessions: server.store.expired.values().sum(),
            sessions: server.store.sessions(),
        }
    }

    /// The server runs nothing for a time.
    pub(crate) fn pause(&self, micros: u64) {
        let mut state = self.state();
        let now = state.now();
        state.server.begin_fault(now, FaultKind::Pause, now + micros);
    }

    /// Sets whether the server rejects all calls.
    pub(crate) fn reject(&self, rejects: bool) {
        let mut state = self.state();
        let now = state.now();
        if rejects {
            state.server.begin_fault(now, FaultKind::OutOfMemory, now);
        } else {
            state.server.end_fault(now, FaultKind::OutOfMemory);
        }
    }

    /// Sets the server's clock forward or back.
    pub(crate) fn step_clock(&self, micros: i64) {
        self.state().server.step_clock(micros);
    }

    /// From now on the server's clock gains so many percent.
    pub(crate) fn slew_clock(&self, percent: i64) {
        let mut state = self.state();
        let now = state.now();
        state.server.set_slew(now, percent);
    }
}
