use tokio::time::Instant;

/// What a visit of a session found.
pub(super) enum Visit {
    /// No work is due before this time.
    At(Instant),
    /// Work is due, and the next visit.
    Due(SessionDue, Instant),
    /// The session is over; the registry removes it.
    Remove,
}

/// The work that is due for a session.
pub(super) enum SessionDue {
    Update,
    /// A surcharge, to be charged without the session.
    Charge(u64),
}

/// How an update ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpdateEnd {
    Confirmed,
    /// It was sent, and has no reply.
    Lost,
    NotSent,
}
