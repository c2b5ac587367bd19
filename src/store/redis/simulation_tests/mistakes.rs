//! Each deliberate mistake breaks a law of the simulation.

use super::{broken_laws, number_from_environment, on_all_cores};
use crate::mistake::Mistake;

/// For each mistake the first seed that finds it. After a change of the scenarios, the test prints the new seeds.
const FOUND_BY: [(Mistake, u64); 30] = [
    (Mistake::LostCallIsRepeated, 0),
    (Mistake::CallerWaitsLonger, 0),
    (Mistake::AbandonedDecisionIsSent, 27),
    (Mistake::LostCallStaysInFlight, 0),
    (Mistake::WaitingCallsAreNotAnswered, 5),
    (Mistake::BreakerStaysOpen, 14),
    (Mistake::EachCallInFlightCounts, 21),
    (Mistake::SilentConnectionIsKept, 3),
    (Mistake::ClosedConnectionIsUsed, 237),
    (Mistake::CallsFollowStalledOne, 63),
    (Mistake::CallThatFailsAtOnceIsRepeated, 49),
    (Mistake::LateDecisionIsNotAskedAgain, 24),
    (Mistake::DecisionsHaveNoDeadline, 0),
    (Mistake::ScriptIsNotSent, 14),
    (Mistake::ReplicaIsKept, 10),
    (Mistake::UnreceivedGrantIsKept, 0),
    (Mistake::HoldsWithoutReplyStay, 305),
    (Mistake::SurchargeIsRepeated, 0),
    (Mistake::SessionsAreNotRenewed, 2),
    (Mistake::WorkerOfDroppedLimiterStays, 0),
    (Mistake::CostIsSentAsOne, 1),
    (Mistake::FractionIsLost, 4),
    (Mistake::HeldCostsAreNotAdded, 0),
    (Mistake::RepeatIsChargedWhole, 0),
    (Mistake::IdsAreOne, 0),
    (Mistake::AnotherIdIsSettled, 0),
    (Mistake::LeaseIsSpentAfterEnd, 294),
    (Mistake::SpentUnitsAreNotReported, 0),
    (Mistake::DroppedLimiterKeepsLeases, 203),
    (Mistake::ClosedLimiterKeepsLeases, 23),
];

/// Returns the first seed that finds the mistake, and the broken law.
fn search(mistake: Mistake, seeds: impl Iterator<Item = u64>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let broken = mistake.make(|| broken_laws(seed));
        broken.into_iter().next().map(|law| (seed, law))
    })
}

#[test]
fn mistakes_are_found() {
    let seeds = number_from_environment("SIMULATION_SEEDS").unwrap_or(20_000);
    let found = on_all_cores(&FOUND_BY, |&(mistake, seed)| {
        search(mistake, seed..=seed).or_else(|| search(mistake, 0..seeds)).map(|(seed, law)| (mistake, seed, law))
    });
    for (found, (mistake, _)) in found.iter().zip(FOUND_BY) {
        let (_, seed, law) = found.as_ref().unwrap_or_else(|| panic!("no law finds {mistake:?} in {seeds} seeds"));
        println!("(Mistake::{mistake:?}, {seed}), // {law}");
    }
    let found: Vec<_> = found.iter().flatten().map(|(mistake, seed, _)| (*mistake, *seed)).collect();
    assert_eq!(found, FOUND_BY, "other seeds find the mistakes: change `FOUND_BY`");
}
