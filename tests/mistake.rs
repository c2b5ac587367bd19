//! Deliberate mistakes: tests prove that they find them.
//!
//! Most mistakes stand at a seam of the tests: the connection, the server, the clock or the caller of a simulation behaves
//! as if the client had made the mistake. A mistake stands in the client only if no seam can reproduce it, and then its
//! documentation says why.
//!
//! A mistake is written as `mistake!(Name)`, or as `mistake!(Name, wrong, right)`. In unit tests, and in the exploration of
//! leases (`model/`), it is `true` or `wrong` in the thread that has made the mistake. Otherwise the macro in `lib.rs` makes
//! it `false` or `right`.

macro_rules! mistake {
    ($name:ident) => {
        $crate::mistake::Mistake::$name.is_made()
    };
    ($name:ident, $wrong:expr, $right:expr) => {
        if mistake!($name) { $wrong } else { $right }
    };
}

std::thread_local! {
    static MADE: std::cell::Cell<Option<Mistake>> = const { std::cell::Cell::new(None) };
}

/// A mistake of the Redis client, or of the model of its server. The compiler warns of one that has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mistake {
    /// A call without a reply is sent again.
    LostCallIsRepeated,
    /// A caller waits longer than its deadline.
    CallerWaitsLonger,
    /// A decision is sent although its caller has gone.
    AbandonedDecisionIsSent,
    /// A lost call stays in flight. In the client: the count of calls in flight is the worker's own.
    LostCallStaysInFlight,
    /// A failed connection forgets the waiting calls. In the client: the calls wait in its queue, and reach no connection.
    WaitingCallsAreNotAnswered,
    /// No call tests a server whose circuit breaker is open, so that it does not close.
    BreakerStaysOpen,
    /// The circuit breaker counts each call in flight. In the client: each failure that it counts is a real one.
    EachCallInFlightCounts,
    /// A connection without replies is not replaced.
    SilentConnectionIsKept,
    /// A closed connection is used.
    ClosedConnectionIsUsed,
    /// Calls are sent behind a stalled one. In the client: they wait in its queue, and reach no connection.
    CallsFollowStalledOne,
    /// A call whose first poll returns an error is sent again: another thread may have sent the command.
    CallThatFailsAtOnceIsRepeated,
    /// The last reply shows the server's clock for ever. In the client: only the worker knows the age of that reply.
    ClockIsTrustedForEver,
    /// A decision that the script did not make because the server's clock has gained is not asked again.
    LateDecisionIsNotAskedAgain,
    /// The script runs decisions at any time.
    DecisionsHaveNoDeadline,
    /// The script is not sent after NOSCRIPT.
    ScriptIsNotSent,
    /// A replica is used further.
    ReplicaIsKept,
    /// A grant that its caller does not receive is kept.
    UnreceivedGrantIsKept,
    /// A hold without a reply is kept while an older guard lives.
    HoldsWithoutReplyStay,
    /// A surcharge is charged again after its session.
    SurchargeIsRepeated,
    /// Sessions are not renewed.
    SessionsAreNotRenewed,
    /// The worker of a dropped limiter goes on.
    WorkerOfDroppedLimiterStays,
    /// Each cost of a bucket is sent as one.
    CostIsSentAsOne,
    /// The fraction of a bucket's state is lost.
    FractionIsLost,
    /// The held costs of a batch are not added up. In the client: the sum is part of no message.
    HeldCostsAreNotAdded,
    /// A repeat of an id is charged whole.
    RepeatIsChargedWhole,
    /// All ids of a key are one.
    IdsAreOne,
    /// The settlement of another id is sent.
    AnotherIdIsSettled,
    /// A lease is spent after its end.
    LeaseIsSpentAfterEnd,
    /// Spent units of a lease are not reported.
    SpentUnitsAreNotReported,
    /// A dropped limiter keeps its leases.
    DroppedLimiterKeepsLeases,
    /// A closed limiter keeps its leases.
    ClosedLimiterKeepsLeases,
    /// A lease is spent until its expiry by the process's clock, which may be late.
    #[allow(dead_code, reason = "only the exploration makes it")]
    LeaseHasNoMargin,
    /// The end of a lease counts from the last time that the report was sent.
    #[allow(dead_code, reason = "only the exploration makes it")]
    LeaseCountsFromLastSending,
    /// A lease is spent without a look at its end.
    EndOfLeaseIsNotChecked,
    /// A thread that was suspended spends units that a report has counted.
    #[allow(dead_code, reason = "only the exploration makes it")]
    GenerationIsNotChecked,
    /// A thread reads the clock, is suspended, and then takes units.
    #[allow(dead_code, reason = "only the exploration makes it")]
    ClockIsReadBeforeTaking,
    /// A decision takes its costs from the leases that have them.
    OneLeaseSuffices,
    /// The server applies a report again.
    ReportIsAppliedAgain,
    /// The server applies a report about an expired hold, and holds again what the process keeps, without a look at the
    /// room.
    LateReportIsApplied,
    /// The server charges units when it grants them.
    GrantIsCharged,
    /// What a report releases is subtracted twice from the held units.
    ReleasedUnitsAreSubtractedTwice,
    /// Decisions of the server do not count what is held.
    HeldCostsDoNotCount,
    /// An expired hold is not charged.
    ExpiredCostsAreDropped,
    /// A key expires when its usage has drained, although units are held.
    KeyExpiresWithItsUsage,
}

impl Mistake {
    pub(crate) fn is_made(self) -> bool {
        MADE.get() == Some(self)
    }

    /// Makes this mistake while `run` runs, in this thread.
    pub(crate) fn make<T>(self, run: impl FnOnce() -> T) -> T {
        let before = MADE.replace(Some(self));
        let result = run();
        MADE.set(before);
        result
    }
}
