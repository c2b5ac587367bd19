//! A policy as Rust and as TOML.

use std::time::Duration;

use serde_json::Value;
use tower_ratelimit::Quota;
use tower_ratelimit::config::{AlgorithmName, Policy};

/// Returns the expression that creates the limiter.
#[must_use]
pub fn rust(policy: &Policy) -> String {
    let name = match policy.algorithm() {
        AlgorithmName::Gcra => "Gcra",
        AlgorithmName::TokenBucket => "TokenBucket",
        AlgorithmName::LeakyBucket => "LeakyBucket",
        AlgorithmName::LeakyQueue => "LeakyQueue",
        AlgorithmName::FixedWindow => "FixedWindow",
        AlgorithmName::SlidingWindow => "SlidingWindow",
        AlgorithmName::SlidingLog => "SlidingLog",
        AlgorithmName::InFlight => "InFlight",
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
    let rate = policy.quota().map(quota).or(policy.max().map(|max| max.to_string())).unwrap_or_default();
    let algorithm = calendar(policy).unwrap_or_else(|| format!("{name}::new({rate}){settings}"));
    match policy.warn_at() {
        Some(mark) => format!("Memory::new(Limit::new({:?}, {algorithm}).warn_at({mark:?}))", policy.name()),
        None => format!("Memory::new({algorithm})"),
    }
}

/// Returns the expression of a calendar's window.
fn calendar(policy: &Policy) -> Option<String> {
    policy.calendar()?;
    let fields = serde_json::to_value(policy).ok()?;
    let (limit, days) = policy.quota().map(|quota| (quota.limit(), quota.period().as_secs() / 86_400))?;
    let anchor = fields.get("anchor");
    let kind = match (days, anchor.and_then(Value::as_u64), anchor.and_then(Value::as_str)) {
        (1, ..) => "daily()".to_owned(),
        (7, _, Some(day)) => {
            let (first, rest) = day.split_at_checked(1)?;
            format!("weekly_from(Weekday::{}{})", first.to_uppercase(), rest.to_lowercase())
        }
        (7, ..) => "weekly()".to_owned(),
        (31, Some(day), _) => format!("monthly_on({day})"),
        (31, ..) => "monthly()".to_owned(),
        _ => "yearly()".to_owned(),
    };
    let zone = match fields.get("zone").and_then(Value::as_str) {
        None | Some("UTC") => String::new(),
        Some(zone) if zone.starts_with(['+', '-']) => {
            let (hours, minutes) = zone[1..].split_once(':')?;
            let minutes = hours.parse::<i16>().ok()? * 60 + minutes.parse::<i16>().ok()?;
            format!(".utc_offset_minutes({}{minutes})", zone[..1].trim_start_matches('+'))
        }
        Some(zone) => format!(".zone({zone:?})?"),
    };
    Some(format!("FixedWindow::calendar({limit}, Calendar::{kind}{zone})"))
}

fn quota(quota: Quota) -> String {
    let limit = quota.limit();
    let period = quota.period();
    let named = [("second", 1), ("minute", 60), ("hour", 3_600), ("day", 86_400)];
    if let Some((name, _)) = named.into_iter().find(|(_, seconds)| period == Duration::from_secs(*seconds)) {
        return format!("Quota::per_{name}({limit})");
    }
    let micros = period.as_micros();
    let units = [("secs", 1_000_000), ("millis", 1_000), ("micros", 1)];
    let whole = units.into_iter().find(|(_, unit)| micros.is_multiple_of(*unit));
    let (unit, length) = whole.unwrap_or(("micros", 1));
    format!("Quota::new({limit}, Duration::from_{unit}({}))", micros / length)
}

/// The fields of a policy in the order in which people write them.
const FIELDS: [&str; 19] = [
    "name",
    "algorithm",
    "quota",
    "max",
    "burst",
    "max_waiting",
    "aligned_to_clock",
    "window",
    "anchor",
    "zone",
    "blocks",
    "weighted",
    "by",
    "when",
    "fixed_cost",
    "unit",
    "shadow",
    "guarantee",
    "warn_at",
];

/// Returns the table of `limits` in a configuration file.
#[must_use]
pub fn toml(policy: &Policy) -> String {
    let fields = serde_json::to_value(policy).unwrap_or(Value::Null);
    // JSON writes these texts, numbers and truth values as TOML does.
    let line = |name| fields.get(name).map(|value| format!("{name} = {value}\n"));
    format!("[[limits]]\n{}", FIELDS.into_iter().filter_map(line).collect::<String>())
}
