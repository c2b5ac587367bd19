//! The documentation matches the code: docs/metrics.md lists exactly the metrics in the code, and the dashboards use no
//! others.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

pub(crate) fn text(path: &str) -> String {
    fs::read_to_string(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns all words with the prefix of metrics.
pub(crate) fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    words.filter(|word| word.starts_with("ratelimit_")).map(str::to_owned).collect()
}

#[test]
fn documented_metrics_equal_the_metrics_in_the_code() {
    let (code, document) = (metrics_in(&text("src/observe/metrics.rs")), metrics_in(&text("docs/metrics.md")));
    assert!(code.len() >= 18, "{code:?}");
    assert_eq!(code, document);
}

#[test]
fn dashboards_use_only_existing_metrics() {
    let code = metrics_in(&text("src/observe/metrics.rs"));
    for path in ["docs/grafana.json", "examples/observe/src/observe.html"] {
        let named = metrics_in(&text(path));
        assert!(!named.is_empty());
        for name in named {
            let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            assert!(code.contains(histogram.unwrap_or(&name)), "{path} uses the unknown metric {name}");
        }
    }
}

#[test]
fn grafana_dashboard_is_valid() {
    let dashboard: serde_json::Value = serde_json::from_str(&text("docs/grafana.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(panels.len() >= 8, "{}", panels.len());
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "ids are unique");
        assert!(panel["title"].is_string() && panel["gridPos"]["w"].is_u64(), "{panel}");
        for target in panel["targets"].as_array().expect("targets") {
            let expression = target["expr"].as_str().expect("an expression");
            assert!(expression.contains("{limiter=~\"$limiter\""), "{expression}");
            assert_eq!(expression.matches('(').count(), expression.matches(')').count(), "{expression}");
        }
    }
}
