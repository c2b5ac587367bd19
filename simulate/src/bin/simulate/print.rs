//! The report on the terminal.

use std::time::Duration;

use tower_ratelimit::config::Policy;
use tower_ratelimit_simulate::{MaxDenied, Report, Suggestion, Traffic};

pub(crate) fn traffic(traffic: &Traffic) {
    let arrivals = traffic.arrivals();
    let span = match (arrivals.first(), arrivals.last()) {
        (Some(first), Some(last)) => last.time.saturating_since(first.time),
        _ => Duration::ZERO,
    };
    println!("{} requests in {}", arrivals.len(), duration(span));
}

/// Returns the settings of a policy in one line.
pub(crate) fn title(policy: &Policy) -> String {
    let algorithm = toml::Value::try_from(policy.algorithm()).ok();
    let algorithm = algorithm.as_ref().and_then(toml::Value::as_str).unwrap_or("limit");
    let number = |name: &str, number: Option<u64>| number.map(|number| format!("{name} {number}"));
    let settings = [
        Some(format!("{}: {algorithm}", policy.name())),
        policy.quota().map(|quota| quota.to_string()),
        number("burst", policy.burst()),
        number("max_waiting", policy.max_waiting()),
        number("blocks", policy.blocks()),
        number("max", policy.max()),
        number("fixed cost", policy.fixed_cost()),
        policy.unit().map(|unit| format!("in {unit}")),
        number("guaranteed to", policy.guarantee()),
        policy.warn_at().map(|mark| format!("warns at {mark}")),
        policy.calendar().map(|calendar| calendar.to_string()),
        policy.is_aligned_to_clock().then(|| "aligned to the clock".to_owned()),
        policy.is_weighted().then(|| "weighted".to_owned()),
        Some(format!("by {}", policy.by())),
        policy.when().map(|when| format!("when {when}")),
    ];
    let kept_free = policy.keep_free().map(|(name, units)| format!("keeps {units} free from {name}"));
    settings.into_iter().flatten().chain(kept_free).collect::<Vec<_>>().join(", ")
}

pub(crate) fn report(title: &str, report: &Report) {
    println!("\n{title}");
    let row = |name: &str, text: String| println!("  {name:<16} {text}");
    row("admitted", format!("{} ({})", report.admitted, share(report.admitted, report.requests())));
    if report.delayed > 0 {
        row("delayed", format!("{} of these, by at most {}", report.delayed, duration(report.longest_delay)));
    }
    if report.borrowed > 0 {
        row("borrowed", format!("{} of these", report.borrowed));
    }
    if report.near_limit > 0 {
        row("near the limit", format!("the mark was crossed {}", times(report.near_limit)));
    }
    row("denied", format!("{} ({})", report.denied, share(report.denied, report.requests())));
    if report.exceeding > 0 {
        row("exceeding", format!("{} of these cost more than the limit ever allows", report.exceeding));
    }
    row(
        "keys denied",
        format!("{} of {} ({})", report.denied_keys, report.keys, share(report.denied_keys, report.keys)),
    );
    row("longest denial", duration(report.longest_denial));
    for burst in report.bursts {
        let bound = burst.bound.map_or("no bound".to_owned(), |bound| format!("at most {bound} by the algorithm"));
        row(&format!("most in {}", duration(burst.interval)), format!("{}, {bound}", burst.admitted));
    }
    for (index, key) in report.worst_keys().enumerate() {
        let heading = if index == 0 { "worst keys" } else { "" };
        let denial = duration(key.longest_denial);
        row(heading, format!("{}: {} of {} denied, for up to {denial}", key.key, key.denied, key.requests));
    }
}

pub(crate) fn suggestions(policy: &Policy, max_denied: MaxDenied, suggestions: &[Suggestion]) {
    let at_most = match max_denied {
        MaxDenied::Keys(1) => "1 key".to_owned(),
        MaxDenied::Keys(keys) => format!("{keys} keys"),
        MaxDenied::Requests(1) => "1 request".to_owned(),
        MaxDenied::Requests(requests) => format!("{requests} requests"),
    };
    println!("\nsuggestions for {}: deny at most {at_most}", policy.name());
    for Suggestion { policy, report, .. } in suggestions {
        let denied = share(report.denied, report.requests());
        println!("  {}: denies {} ({denied}){}", title(policy), report.denied, denied_keys(report));
    }
    if suggestions.is_empty() {
        println!("  no setting of this algorithm suffices");
    }
}

/// Returns the number of denied keys, and the first of them.
fn denied_keys(report: &Report) -> String {
    let names: Vec<_> = report.worst_keys().take(3).map(|key| key.key.as_str()).collect();
    let more = if report.denied_keys > 3 { ", .." } else { "" };
    match report.denied_keys {
        0 => String::new(),
        1 => format!(", 1 key: {}", names.concat()),
        keys => format!(", {keys} keys: {}{more}", names.join(", ")),
    }
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

/// Returns a percentage with two decimals.
fn share(part: u64, whole: u64) -> String {
    let hundredths = u128::from(part) * 10_000 / u128::from(whole.max(1));
    format!("{}.{:02} %", hundredths / 100, hundredths % 100)
}

/// Returns a duration in its largest unit with three decimals at most.
fn duration(duration: Duration) -> String {
    let micros = duration.as_micros();
    let units = [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1_000, "ms")];
    let (unit, name) = units.into_iter().find(|(unit, _)| micros >= *unit).unwrap_or((1, "us"));
    let thousandths = micros * 1_000 / unit;
    let decimals = format!("{:03}", thousandths % 1_000);
    let decimals = decimals.trim_end_matches('0');
    let point = if decimals.is_empty() { "" } else { "." };
    format!("{}{point}{decimals} {name}", thousandths / 1_000)
}
