//! A round trip above half of the deadline: opening a connection takes longer than a decision may wait.

use super::callers::Answer;
use super::quota::{Form, Quota};
use super::run_scenario;
use super::scenario::{Call, Scenario};
use super::world::Link;

/// Returns the answers of a client that replaces its limits at these times. It decides every 100 ms from
/// the start until 1 s, and then once at 3 s.
fn answers(replaces: Vec<(u64, usize)>) -> Vec<Answer> {
    let times = (0..10).map(|index| index * 100).chain([3_000]);
    let calls = (1..).zip(times).map(|(cost, at)| Call::decision(at, cost)).collect();
    let quota = Quota { units: 1_000, period: 1_000_000, form: Form::FixedWindow };
    let scenario = Scenario {
        // A round trip of 30 ms.
        link: Link { delay: 15_000, ..Link::default() },
        replaces,
        ..Scenario::of_calls(quota, calls)
    };
    let run = run_scenario(scenario, false);
    run.observed.into_iter().map(|call| call.answer).collect()
}

fn is_answered(answer: &Answer) -> bool {
    matches!(answer, Answer::Decided(..))
}

#[test]
fn decisions_after_replace_need_no_new_connection() {
    let answers = answers((4..10).map(|index| (index * 100 - 1, 0)).chain([(2_999, 0)]).collect());
    assert!(answers[4..].iter().all(is_answered), "{answers:?}");
}
