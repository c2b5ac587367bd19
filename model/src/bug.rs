/// A seeded bug. The model must find a counterexample for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// The process spends until the expiry by its own clock, which may be late.
    NoMargin,
    /// The deadline counts from the last time that a report was sent.
    DeadlineFromLastSending,
    /// Units are charged when they are granted.
    ChargedAtGrant,
    /// The process spends without looking at the deadline.
    DeadlineUnchecked,
    /// The server applies a report again.
    SequenceIgnored,
    /// Direct decisions do not count what is held.
    HoldsNotCounted,
    /// What a report releases is subtracted twice from the sum.
    ReleasedTwice,
    /// An expired hold is removed, and not charged.
    ExpiredHoldDropped,
    /// The key expires when its usage has drained, although units are held.
    TtlWithoutHolds,
    /// A report on an expired hold is applied, and what the process keeps is held again without a look at the room.
    LateRenewalApplied,
    /// A thread reads the clock, is suspended, and then spends.
    ClockBeforeSpending,
    /// A thread that was suspended does not look at the generation.
    GenerationUnchecked,
}

pub const BUGS: [Bug; 12] = [
    Bug::NoMargin,
    Bug::DeadlineFromLastSending,
    Bug::ChargedAtGrant,
    Bug::DeadlineUnchecked,
    Bug::SequenceIgnored,
    Bug::HoldsNotCounted,
    Bug::ReleasedTwice,
    Bug::ExpiredHoldDropped,
    Bug::TtlWithoutHolds,
    Bug::LateRenewalApplied,
    Bug::ClockBeforeSpending,
    Bug::GenerationUnchecked,
];
