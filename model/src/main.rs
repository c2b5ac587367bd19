//! Explores the lease protocol exhaustively, and checks that each seeded bug is found.
//!
//! ```text
//! cargo run --release --manifest-path model/Cargo.toml
//! ```
//!
//! Two processes hold leases of a bucket, others ask the server. Messages are lost, repeated and reordered, clocks are
//! late up to the margin, a process dies, and a thread is suspended while it spends. The processes run the transitions of
//! `src/store/redis/lease/ledger.rs`, and the server those of `server_model.rs` beside it. In every state the admissions
//! must be within the bucket.

#[allow(dead_code, reason = "the crate's tests make all of them")]
#[macro_use]
#[path = "../../tests/mistake.rs"]
mod mistake;

#[path = "../../src/store/redis/lease/ledger.rs"]
#[allow(dead_code, unreachable_pub, reason = "the crate uses all of it")]
mod ledger;
mod server;
#[path = "../../src/store/redis/lease/server_model.rs"]
#[allow(dead_code, reason = "the crate's tests use all of it")]
mod server_model;
mod system;

use std::process::ExitCode;
use std::time::Instant;

use stateright::{Checker as _, Model as _};

use self::mistake::Mistake;
use self::system::System;

/// The least number of states for a result that means something.
const MIN_STATES: usize = 1_000_000;

const MISTAKES: [Mistake; 14] = [
    Mistake::LeaseIsSpentAfterEnd,
    Mistake::SpentUnitsAreNotReported,
    Mistake::LeaseHasNoMargin,
    Mistake::LeaseCountsFromLastSending,
    Mistake::EndOfLeaseIsNotChecked,
    Mistake::GenerationIsNotChecked,
    Mistake::ClockIsReadBeforeTaking,
    Mistake::ReportIsAppliedAgain,
    Mistake::LateReportIsApplied,
    Mistake::GrantIsCharged,
    Mistake::ReleasedUnitsAreSubtractedTwice,
    Mistake::HeldCostsDoNotCount,
    Mistake::ExpiredCostsAreDropped,
    Mistake::KeyExpiresWithItsUsage,
];

fn main() -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut is_right = true;
    for mistake in MISTAKES {
        is_right &= find(mistake, threads);
    }
    let mut states = 0;
    for (holders, end, reports) in [(1, 13, 2), (2, 9, 1)] {
        let began = Instant::now();
        let checker = System { mistake: None, holders, end, reports }.checker().threads(threads).spawn_bfs().join();
        states += checker.unique_state_count();
        println!("{holders} processes: {} states, {:?}", checker.unique_state_count(), began.elapsed());
        if let Some(path) = checker.discovery("within the bound") {
            println!("{:#?}", path.into_actions());
            is_right = false;
        }
    }
    if states < MIN_STATES {
        println!("{states} states are too few: raise the bounds of the exploration");
        is_right = false;
    }
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Explores ever longer runs until one violates the bound.
fn find(mistake: Mistake, threads: usize) -> bool {
    let began = Instant::now();
    let mut states = 0;
    for (end, reports) in [(8, 1), (11, 1), (9, 2), (11, 2), (13, 2), (15, 2), (13, 3), (15, 3)] {
        let checker =
            System { mistake: Some(mistake), holders: 1, end, reports }.checker().threads(threads).spawn_bfs().join();
        states += checker.unique_state_count();
        if let Some(path) = checker.discovery("within the bound") {
            let steps = path.into_actions().len();
            println!("{mistake:?}: counterexample of {steps} steps, {states} states, {:?}", began.elapsed());
            return true;
        }
    }
    println!("{mistake:?}: NOT FOUND, {states} states, {:?}", began.elapsed());
    false
}
