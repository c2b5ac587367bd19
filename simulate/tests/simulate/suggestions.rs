use std::collections::BTreeMap;

use proptest::prelude::*;
use tower_ratelimit::Timestamp;
use tower_ratelimit::config::{AlgorithmName, Policy};
use tower_ratelimit_simulate::{MaxDenied, Share, Simulation, Suggestion, Traffic, suggest};

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
            let suggestions = suggest(&policy, &traffic, MaxDenied::Requests(max_denied)).expect("suggestions");
            let is_window = fields.contains("window") || fields.contains("log");
            assert_eq!(suggestions.len(), if is_window { 1 } else { 5 }, "{fields}");
            for Suggestion { policy, report, .. } in suggestions {
                let counted = report.denied;
                assert_eq!(denied(&policy, &traffic), counted);
                assert!(counted <= max_denied, "{policy:?} denies {counted}");
                let is_smallest = reduced(&policy).is_none_or(|smaller| denied(&smaller, &traffic) > max_denied);
                assert!(is_smallest, "one less than {policy:?} denies at most {max_denied} too");
            }
        }
    }
}

/// Returns for each key the smallest value of the policy's own setting that denies none of the key's requests.
///
/// The reference for suggestions by keys: it decides each key by itself, and tries every value.
fn needs(policy: &Policy, traffic: &Traffic) -> Vec<u64> {
    let mut by_user: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    for arrival in traffic.arrivals().iter() {
        let user = traffic.values(arrival).next().expect("a user");
        by_user.entry(user).or_default().push((arrival.time.as_micros(), arrival.cost));
    }
    let need = |arrivals: &[(u64, u64)]| {
        let mut one_key = Traffic::new(["user"]);
        for &(micros, cost) in arrivals {
            one_key.push(Timestamp::from_micros(micros), &["x"], cost);
        }
        (0..1_000).find(|&value| with_setting(policy, value).is_some_and(|policy| denied(&policy, &one_key) == 0))
    };
    let mut needs: Vec<u64> = by_user.values().map(|arrivals| need(arrivals).expect("a value")).collect();
    needs.sort_unstable_by(|a, b| b.cmp(a));
    needs
}

/// The policy with another value of the setting that suggestions choose.
fn with_setting(policy: &Policy, value: u64) -> Option<Policy> {
    let mut fields = serde_json::to_value(policy).expect("a value");
    match policy.algorithm() {
        AlgorithmName::Gcra | AlgorithmName::TokenBucket | AlgorithmName::LeakyBucket => fields["burst"] = value.into(),
        AlgorithmName::LeakyQueue => fields["max_waiting"] = value.into(),
        _ => fields["quota"] = format!("{value} per 10s").into(),
    }
    serde_json::from_value(fields).ok()
}

/// The value of the setting in a suggestion.
fn setting(policy: &Policy) -> u64 {
    let quota = policy.quota().expect("a rate");
    policy.burst().or(policy.max_waiting()).unwrap_or(quota.limit())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// At most `max` keys are denied if the setting is the need of the key with the rank `max` (the largest is rank 0),
    /// and no smaller setting has this property.
    #[test]
    fn suggestion_by_keys_is_the_need_of_the_heaviest_key_that_may_not_be_denied(
        bursts in prop::collection::vec((0_u64..5, 0_u64..4_000, 1_u64..14), 1..25),
        max in 0_u64..5,
    ) {
        let mut now = 0;
        let mut arrivals = Vec::new();
        for (user, gap, count) in bursts {
            now += gap;
            let user = ["a", "b", "c", "d", "e"][usize::try_from(user).expect("small")];
            arrivals.extend((0..count).map(|index| (now + index, user, 1)));
        }
        let traffic = traffic(arrivals);
        for fields in POLICIES {
            for Suggestion { policy, report, .. } in
                suggest(&policy(fields), &traffic, MaxDenied::Keys(max)).expect("suggestions")
            {
                let needs = needs(&policy, &traffic);
                // The smallest valid value: zero waiting requests, else one.
                let least = u64::from(policy.max_waiting().is_none());
                let expected = needs.get(usize::try_from(max).expect("small")).copied().unwrap_or(least);
                prop_assert_eq!(setting(&policy), expected, "{} {:?}", fields, needs);
                let more = needs.iter().filter(|need| **need > setting(&policy)).count();
                prop_assert_eq!(report.denied_keys, more as u64);
            }
        }
    }
}

/// A thousand clients open a page of at most eleven requests, and one scraper sends 9010 requests at once.
fn with_a_scraper() -> Traffic {
    let pages = (0..1_000_u64).flat_map(|client| {
        (0..=client % 11).map(move |request| (client * 40 + request, format!("192.0.2.{client}"), 1))
    });
    let scraper = (0..9_010).map(|request| (20_000 + request / 100, "203.0.113.66".to_owned(), 1));
    let arrivals: Vec<_> = pages.chain(scraper).collect();
    traffic(arrivals.iter().map(|(time, user, cost)| (*time, user.as_str(), *cost)))
}

/// A share of the requests follows the scraper, and a share of the keys follows the other clients.
#[test]
fn scraper_determines_a_share_of_requests_but_not_a_share_of_keys() {
    let (policy, traffic) = (policy("algorithm = 'gcra'\nquota = '10 per 100s'"), with_a_scraper());
    let share: Share = "0.1%".parse().expect("a share");
    let burst = |max_denied| {
        let suggestions = suggest(&policy, &traffic, max_denied).expect("suggestions");
        // The rate of the policy is the third.
        (suggestions[2].policy.burst().expect("a burst"), suggestions[2].report.denied_keys)
    };
    let by_requests = MaxDenied::share_of_requests(share, &traffic);
    assert_eq!(by_requests, MaxDenied::Requests(15));
    let (large, denied_keys) = burst(by_requests);
    assert!(large > 8_900 && denied_keys == 1, "{large} {denied_keys}");

    let by_keys = MaxDenied::share_of_keys(share, &policy, &traffic).expect("a column");
    assert_eq!(by_keys, MaxDenied::Keys(2));
    assert_eq!(burst(MaxDenied::Keys(1)), (11, 1));
    assert_eq!(burst(MaxDenied::Keys(0)).0, 9_010);
    // Many clients need eleven, so a second key does not lower it.
    assert_eq!(burst(by_keys), (11, 1));
}

#[test]
fn share_of_keys_is_rounded_up_and_never_all_keys() {
    let max = |share: &str, users: usize| {
        let names: Vec<_> = (0..users).map(|user| user.to_string()).collect();
        let traffic = traffic(names.iter().map(|name| (0, name.as_str(), 1)));
        let share = share.parse().expect("a share");
        MaxDenied::share_of_keys(share, &policy(POLICIES[0]), &traffic).expect("a column")
    };
    for (share, users, expected) in
        [("0%", 10, 0), ("0.1%", 0, 0), ("0.1%", 1, 0), ("0.1%", 2, 1), ("10%", 20, 2), ("10%", 21, 3), ("100%", 5, 4)]
    {
        assert_eq!(max(share, users), MaxDenied::Keys(expected), "{share} of {users}");
    }
    assert!(
        MaxDenied::share_of_keys("1%".parse().expect("a share"), &policy(POLICIES[0]), &Traffic::default()).is_err()
    );
}

#[test]
fn rates_are_a_quarter_to_four_times_the_given_one() {
    let suggestions = suggest(&policy(POLICIES[0]), &bursts(), MaxDenied::Requests(3)).expect("suggestions");
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
        let suggestions = suggest(&window, &ten_at_once, MaxDenied::Requests(max_denied)).expect("one");
        suggestions[0].policy.quota().expect("a rate").limit()
    };
    assert_eq!((limit_for(0), limit_for(3), limit_for(10)), (10, 7, 1));
}

#[test]
fn suggestion_for_unknown_column_is_an_error() {
    assert!(suggest(&policy(POLICIES[0]), &Traffic::new(["team"]), MaxDenied::Requests(0)).is_err());
}
