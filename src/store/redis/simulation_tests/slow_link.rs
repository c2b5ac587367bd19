//! A round trip above half of the deadline: opening a connection takes longer than a decision may wait.

use super::callers::Answer;
use super::run_scenario;
use super::scenario::{Call, Fault, FaultKind, Kind, LeaseEnd, Scenario};

/// Returns the answers of a client with this fault, which replaces its limits at these times. It decides every 100 ms from
/// the start until 1 s, and then once at 3 s.
fn answers(faults: Vec<Fault>, replaces: Vec<(u64, usize)>) -> Vec<Answer> {
    let times = (0..10).map(|index| index * 100).chain([3_000]);
    let call = |(index, at)| Call {
        at,
        client: 0,
        key: 0,
        cost: 1 + index,
        kind: Kind::Decide,
        leaves_after: None,
        yields: 0,
        is_after_recovery: false,
    };
    let scenario = Scenario {
        deadline: 50,
        hold_expiry: 400,
        lease: None,
        lease_end: LeaseEnd::Idle,
        clients: 1,
        // A round trip of 30 ms.
        link: (15, 0),
        service_micros: 0,
        calls: (0_u64..).zip(times).map(call).collect(),
        faults_end: faults.iter().map(|fault| fault.at).max().unwrap_or(0),
        faults,
        replaces,
        ..Scenario::new(1)
    };
    let run = run_scenario(scenario, false);
    run.observed.into_iter().map(|call| call.answer).collect()
}

fn is_answered(answer: &Answer) -> bool {
    matches!(answer, Answer::Decided(..))
}

#[test]
fn decision_after_an_idle_close_needs_no_new_connection() {
    let answers = answers(vec![Fault { at: 2_000, lasts: 0, kind: FaultKind::Cut(0) }], Vec::new());
    assert!(is_answered(&answers[10]), "{answers:?}");
}

#[test]
fn decisions_after_replace_need_no_new_connection() {
    let answers = answers(Vec::new(), (4..10).map(|index| (index * 100 - 1, 0)).chain([(2_999, 0)]).collect());
    assert!(answers[4..].iter().all(is_answered), "{answers:?}");
}
