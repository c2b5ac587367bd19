//! A policy as Rust and as TOML.

use std::time::Duration;

use serde_json::Value;
use tower_ratelimit::Quota;
use tower_ratelimit::config::{AlgorithmName, Policy};

/// Returns the expression that creates the limiter.
pub(crate) fn rust(policy: &Policy) -> String {
    let name = match policy.algorithm() {
        AlgorithmName::Gcra => "Gcra",
        AlgorithmName::TokenBucket => "TokenBucket",
        AlgorithmName::LeakyBucket => "LeakyBucket",
        AlgorithmName::LeakyQueue => "LeakyQueue",
        AlgorithmName::FixedWindow => "FixedWindow",
        AlgorithmName::SlidingWindow => "SlidingWindow",
        AlgorithmName::SlidingLog => "SlidingLog",
        _ => "?",
    };
    let number = |name: &str, number: Option<u64>| number.map(|number| format!(".{name}({number})"));
    let settings = [
        number("burst", policy.burst()),
        number("max_waiting", policy.max_waiting()),
        number("blocks", policy.blocks()),
        policy.is_weighted().then(|| ".weighted()".to_owned()),
        policy.is_aligned_to_clock().then(|| ".aligned_to_clock()".to_owned()),
    ];
    let settings: String = settings.into_iter().flatten().collect();
    let rate = policy.quota().map_or_else(String::new, quota);
    format!("Memory::new({name}::new({rate}){settings})")
}

fn quota(quota: Quota) -> String {
    let limit = quota.limit();
    let named = [("second", 1), ("minute", 60), ("hour", 3_600), ("day", 86_400)];
    let named = named.into_iter().find(|(_, seconds)| quota.period() == Duration::from_secs(*seconds));
    match named {
        Some((period, _)) => format!("Quota::per_{period}({limit})"),
        None if quota.period().subsec_micros() == 0 => {
            format!("Quota::new({limit}, Duration::from_secs({}))", quota.period().as_secs())
        }
        None => format!("Quota::new({limit}, Duration::from_micros({}))", quota.period().as_micros()),
    }
}

/// The fields of a policy in the order in which people write them.
const FIELDS: [&str; 9] =
    ["name", "algorithm", "quota", "burst", "max_waiting", "aligned_to_clock", "blocks", "weighted", "by"];

/// Returns the table of `limits` in a configuration file.
pub(crate) fn toml(policy: &Policy) -> String {
    let fields = serde_json::to_value(policy).unwrap_or(Value::Null);
    // JSON writes these texts, numbers and truth values as TOML does.
    let line = |name| fields.get(name).map(|value| format!("{name} = {value}\n"));
    format!("[[limits]]\n{}", FIELDS.into_iter().filter_map(line).collect::<String>())
}
