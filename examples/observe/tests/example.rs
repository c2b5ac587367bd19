//! Runs the example, and checks its responses.

#[path = "../../../tests/servers/process.rs"]
mod process;

use std::process::Command;

use self::process::{Process, get, listening};

fn example() -> Command {
    listening(env!("CARGO_BIN_EXE_example-observe"))
}

/// `dashboard.rs` tests the example's page in a browser.
#[test]
fn observe_example_serves_metrics_and_dashboard() {
    let process = Process::start(&mut example());
    let address = process.address();

    let answers: Vec<_> = (0..30).map(|_| get(address, "/")).collect();
    let count =
        |status: &str| answers.iter().filter(|answer| answer.starts_with(&format!("HTTP/1.1 {status} "))).count();
    let (allowed, rejected) = (count("200"), count("429"));
    assert_eq!(allowed + rejected, 30);
    assert!(allowed >= 10, "a burst of ten: {allowed}");
    assert!(get(address, "/health").ends_with("ok\n"));
    assert!(get(address, "/queue").ends_with("Hello! Your request left the queue.\n"));

    let metrics = get(address, "/metrics");
    let of = |limit: &str, outcome: &str| {
        let labels = format!("{{limiter=\"pages\",limit=\"{limit}\",outcome=\"{outcome}\",source=\"store\"}} ");
        let line =
            metrics.lines().find_map(|line| line.strip_prefix("ratelimit_requests_total")?.strip_prefix(&labels));
        line.map_or(0, |count| count.parse().expect("a number"))
    };
    assert_eq!(of("second", "allowed") + of("minute", "allowed"), allowed);
    assert_eq!(of("second", "denied"), rejected);
    assert!(metrics.contains("ratelimit_memory_keys{limiter=\"pages\",limit=\"minute\"} 1\n"), "{metrics}");
    assert!(get(address, "/dashboard").contains("<title>Rate limits, live</title>"));
}
