use tower_ratelimit::config::Policy;
use tower_ratelimit::simulate::{Simulation, Suggestion, Traffic, suggest};

use crate::support::{POLICIES, policy, traffic};

/// Bursts of one to nine requests of three users.
fn bursts() -> Traffic {
    let burst = |number: u64| {
        let user = ["a", "b", "c"][usize::try_from(number % 3).expect("small")];
        (0..=number * 7 % 9).map(move |index| (number * 1_700 + index * 10, user, 1))
    };
    traffic((0..120).flat_map(burst))
}

/// The policy's own setting, reduced by one.
fn reduced(policy: &Policy) -> Option<Policy> {
    let mut value = serde_json::to_value(policy).expect("a value");
    let setting = ["burst", "max_waiting"].into_iter().find(|name| value.get(name).is_some());
    match setting {
        Some(name) => value[name] = (value[name].as_u64().expect("a number").checked_sub(1)?).into(),
        None => value["quota"] = format!("{} per 10s", policy.quota().expect("a rate").limit() - 1).into(),
    }
    // Zero is no burst and no limit.
    serde_json::from_value(value).ok()
}

fn denied(policy: &Policy, traffic: &Traffic) -> u64 {
    Simulation::alone(policy, traffic).expect("a simulation").run().denied
}

#[test]
fn suggestion_suffices_and_one_less_does_not() {
    let traffic = bursts();
    for fields in POLICIES {
        let policy = policy(fields);
        for max_denied in [0, 5, 60] {
            let suggestions = suggest(&policy, &traffic, max_denied).expect("suggestions");
            let is_window = fields.contains("window") || fields.contains("log");
            assert_eq!(suggestions.len(), if is_window { 1 } else { 5 }, "{fields}");
            for Suggestion { policy, denied: counted, .. } in suggestions {
                assert_eq!(denied(&policy, &traffic), counted);
                assert!(counted <= max_denied, "{policy:?} denies {counted}");
                let is_smallest = reduced(&policy).is_none_or(|smaller| denied(&smaller, &traffic) > max_denied);
                assert!(is_smallest, "one less than {policy:?} denies at most {max_denied} too");
            }
        }
    }
}

#[test]
fn rates_are_a_quarter_to_four_times_the_given_one() {
    let suggestions = suggest(&policy(POLICIES[0]), &bursts(), 3).expect("suggestions");
    let rates: Vec<_> =
        suggestions.iter().map(|suggestion| suggestion.policy.quota().expect("a rate").to_string()).collect();
    assert_eq!(rates, ["5 per 40s", "5 per 20s", "5 per 10s", "10 per 10s", "20 per 10s"]);
    let bursts: Vec<_> = suggestions.iter().filter_map(|suggestion| suggestion.policy.burst()).collect();
    assert!(bursts.is_sorted_by(|slow, fast| slow >= fast), "a higher rate needs a smaller burst: {bursts:?}");
}

#[test]
fn window_of_the_traffic_has_its_largest_count() {
    let ten_at_once = traffic((0..10).map(|_| (0, "a", 1)));
    let window = policy(POLICIES[4]);
    let limit_for = |max_denied| {
        let suggestions = suggest(&window, &ten_at_once, max_denied).expect("one");
        suggestions[0].policy.quota().expect("a rate").limit()
    };
    assert_eq!((limit_for(0), limit_for(3), limit_for(10)), (10, 7, 1));
}

#[test]
fn suggestion_for_unknown_column_is_an_error() {
    assert!(suggest(&policy(POLICIES[0]), &Traffic::new(["team"]), 0).is_err());
}
