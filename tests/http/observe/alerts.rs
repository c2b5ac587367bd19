//! The alert rules of docs/alerts.yml use existing metrics only, and fire when they should: promtool, which Debian's
//! package `prometheus` contains, runs them on series.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use crate::documented::{metrics_in, text};
use crate::process::Folder;

fn rules() -> String {
    text("docs/alerts.yml")
}

#[test]
fn alert_rules_use_only_existing_metrics() {
    let (code, rules) = (metrics_in(&text("src/observe/metrics.rs")), rules());
    let named = metrics_in(&rules);
    assert!(named.len() >= 3, "{named:?}");
    assert!(named.is_subset(&code), "{named:?}");
    assert_eq!(rules.matches("alert:").count(), rules.matches("summary:").count());
}

/// For each rule a series that makes it fire after ten minutes, its value, and the labels of the alert.
const FIRING: [(&str, &str, &str, &str); 12] = [
    (
        "RateLimiterUnavailable",
        "ratelimit_requests_total{limiter='a',limit='none',outcome='failed',source='none'}",
        "0+6x60",
        "{limiter: a, limit: none, outcome: failed, source: none}",
    ),
    (
        "RateLimiterDegraded",
        "ratelimit_requests_total{limiter='b',limit='day',outcome='allowed',source='fallback'}",
        "0+6x60",
        "{limiter: b, limit: day, outcome: allowed, source: fallback}",
    ),
    (
        "RateLimiterDegraded",
        "ratelimit_requests_total{limiter='l',limit='none',outcome='allowed',source='no_limit'}",
        "0+6x60",
        "{limiter: l, limit: none, outcome: allowed, source: no_limit}",
    ),
    ("RedisDown", "ratelimit_breaker_open{store='h'}", "1x60", "{store: h}"),
    (
        "RedisOverloaded",
        "ratelimit_shed_total{limiter='i',cause='not_sent'}",
        "0+1x60",
        "{limiter: i, cause: not_sent}",
    ),
    (
        "RedisSlow",
        "ratelimit_shed_total{limiter='j',cause='arrived_late'}",
        "0+1x60",
        "{limiter: j, cause: arrived_late}",
    ),
    (
        "CostAboveLimit",
        "ratelimit_requests_total{limiter='k',limit='day',outcome='exceeds_limit',source='store'}",
        "0+1x60",
        "{limiter: k, limit: day, outcome: exceeds_limit, source: store}",
    ),
    ("RateLimiterMisconfigured", "ratelimit_misconfigured_total{limiter='c'}", "0+1x60", "{limiter: c}"),
    (
        "RateLimiterTableFull",
        "ratelimit_memory_evicted_total{limiter='d',limit='day'}",
        "0+1x60",
        "{limiter: d, limit: day}",
    ),
    (
        "RateLimiterTableFull",
        "ratelimit_requests_total{limiter='m',limit='none',outcome='denied',source='no_limit'}",
        "0+1x60",
        "{limiter: m, limit: none, outcome: denied, source: no_limit}",
    ),
    (
        "ClientsDenied",
        "ratelimit_requests_total{limiter='e',limit='day',outcome='denied',source='store'}",
        "0+30x60",
        "{limiter: e, limit: day}",
    ),
    ("ClientsNearLimit", "ratelimit_near_limit_total{limiter='g',limit='day'}", "0+1x60", "{limiter: g, limit: day}"),
];

/// Series of a healthy server, which must not fire.
const HEALTHY: [&str; 11] = [
    "ratelimit_requests_total{limiter='f',limit='none',outcome='conflict',source='no_limit'}",
    "ratelimit_requests_total{limiter='m',limit='none',outcome='allowed',source='store'}",
    "ratelimit_requests_total{limiter='e',limit='day',outcome='allowed',source='store'}",
    "ratelimit_requests_total{limiter='f',limit='day',outcome='allowed',source='store'}",
    "ratelimit_memory_evicted_total{limiter='f',limit='day'}",
    "ratelimit_misconfigured_total{limiter='f'}",
    "ratelimit_near_limit_total{limiter='f',limit='day'}",
    "ratelimit_breaker_open{store='f'}",
    "ratelimit_shed_total{limiter='f',cause='not_sent'}",
    "ratelimit_shed_total{limiter='f',cause='arrived_late'}",
    "ratelimit_warnings_total{limiter='f'}",
];

/// The summary of an alert with these labels.
fn summary(rules: &str, alert: &str, labels: &str) -> String {
    let (_, rule) = rules.split_once(&format!("alert: {alert}\n")).expect("the alert");
    let (_, text) = rule.split_once("summary: \"").expect("a summary");
    let mut text = text.split('"').next().unwrap_or_default().to_owned();
    for label in labels.trim_matches(['{', '}']).split(", ") {
        let (name, value) = label.split_once(": ").expect("a label");
        text = text.replace(&format!("{{{{ $labels.{name} }}}}"), value);
    }
    text
}

fn promtool(directory: &std::path::Path, arguments: &[&str]) -> String {
    let output = Command::new("promtool").args(arguments).current_dir(directory).output();
    let output = output.expect("promtool (Debian: apt-get install -y prometheus): see scripts/dashboard");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "promtool {arguments:?}: {text}");
    text
}

#[test]
#[ignore = "needs promtool: scripts/dashboard runs it"]
fn alert_rules_fire_on_failures_only() {
    let folder = Folder::new("alerts");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("a file");
    let rules = rules();
    write("alerts.yml", &rules);
    let mut series = String::new();
    let mut firing = BTreeMap::<_, String>::new();
    for (alert, failing, values, labels) in FIRING {
        let _ = writeln!(series, "      - {{ series: \"{failing}\", values: '{values}' }}");
        let summary = summary(&rules, alert, labels);
        let alert = firing.entry(alert).or_default();
        let _ =
            writeln!(alert, "          - {{ exp_labels: {labels}, exp_annotations: {{ summary: \"{summary}\" }} }}");
    }
    let mut alerts = String::new();
    for (alert, expected) in &firing {
        let _ = write!(alerts, "      - eval_time: 40m\n        alertname: {alert}\n        exp_alerts:\n{expected}");
    }
    for healthy in HEALTHY {
        let values = if healthy.contains("requests") { "0+60x60" } else { "0x60" };
        let _ = writeln!(series, "      - {{ series: \"{healthy}\", values: '{values}' }}");
    }
    write(
        "test.yml",
        &format!(
            "rule_files: [alerts.yml]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n{series}    \
             alert_rule_test:\n{alerts}"
        ),
    );
    let checked = promtool(folder.path(), &["check", "rules", "alerts.yml"]);
    assert_eq!(rules.matches("alert:").count(), firing.len(), "each alert is tested");
    let found = rules.matches("- alert:").count() + rules.matches("- record:").count();
    assert!(checked.contains(&format!("{found} rules found")), "{checked}");
    promtool(folder.path(), &["test", "rules", "test.yml"]);
}
