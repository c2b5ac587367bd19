//! Each deliberate mistake breaks a law of the simulation.

use super::{broken_laws, number_from_environment, on_all_cores};
use crate::mistake::Mistake;

/// For each mistake the first seed that finds it. After a change of the scenarios, the test prints the new seeds.
const FOUND_BY: [(Mistake, u64); 32] = [
    (Mistake::LostCallIsRepeated, 0),
    (Mistake::CallerWaitsLonger, 0),
    (Mistake::AbandonedDecisionIsSent, 0),
    (Mistake::LostCallKeepsPermit, 0),
    (Mistake::LostCallStaysInFlight, 0),
    (Mistake::WaitingCallsAreNotAnswered, 1),
    (Mistake::BreakerStaysOpen, 1),
    (Mistake::ProbingStartsOnce, 9220),
    (Mistake::NoCallIsTrial, 123),
    (Mistake::EachCallInFlightCounts, 48),
    (Mistake::SilentConnectionIsKept, 13),
    (Mistake::ClosedConnectionIsUsed, 28),
    (Mistake::TestedConnectionIsNotUsed, 892),
    (Mistake::CallsFollowStalledOne, 85),
    (Mistake::DecisionsHaveNoDeadline, 0),
    (Mistake::ScriptIsNotSent, 22),
    (Mistake::ReplicaIsKept, 22),
    (Mistake::UnreceivedGrantIsKept, 0),
    (Mistake::SurchargeIsRepeated, 25),
    (Mistake::SessionsAreNotRenewed, 3),
    (Mistake::WorkerOfDroppedLimiterStays, 0),
    (Mistake::CostIsSentAsOne, 1),
    (Mistake::FractionIsLost, 1),
    (Mistake::HeldCostsAreNotAdded, 0),
    (Mistake::RepeatIsChargedWhole, 0),
    (Mistake::ChargeIsNotSubtracted, 0),
    (Mistake::IdsAreOne, 0),
    (Mistake::AnotherIdIsSettled, 0),
    (Mistake::LeaseIsSpentAfterEnd, 10),
    (Mistake::SpentUnitsAreNotReported, 10),
    (Mistake::DroppedLimiterKeepsLeases, 62),
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
