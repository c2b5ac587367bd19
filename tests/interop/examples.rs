//! Runs each example as a process and checks its output, which its first lines describe.
//!
//! `cargo test` builds the examples beside this binary.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use crate::process::{Process, example, request};

fn start(name: &str) -> (Process, SocketAddr) {
    let process = Process::start(&mut example(name));
    let address = process.address();
    (process, address)
}

/// Runs an example that ends by itself and returns its output.
fn printed_by(name: &str) -> Vec<String> {
    let (status, printed) = Process::start(&mut example(name)).output();
    assert!(status.success(), "{name}: {status}\n{printed:#?}");
    printed
}

#[test]
fn examples_are_short_and_documented_and_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text_of = |file: &str| std::fs::read_to_string(root.join("tests").join(file)).expect("the tests of examples");
    let files = ["interop/examples.rs", "interop/example_scenarios.rs", "interop/restart.rs", "redis/examples.rs"];
    let tests = files.map(text_of).concat();
    for example in std::fs::read_dir(root.join("examples")).expect("the examples") {
        let mut path = example.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("text").to_owned();
        // A member of the workspace has its own tests.
        let is_member = path.join("Cargo.toml").exists();
        if is_member {
            assert!(path.join("tests").exists(), "{name} has no test");
            path = path.join("src");
        }
        if path.is_dir() {
            // A store is longer than an example: less than 300 lines, in a file of its own.
            for file in std::fs::read_dir(&path).expect("the files") {
                let text = std::fs::read_to_string(file.expect("an entry").path()).expect("text");
                assert!(text.lines().count() < 300, "the files of {name} must be short");
            }
            path = path.join("main.rs");
        }
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("text");
        let option = if is_member { "-p" } else { "--example" };
        assert!(text.contains(&format!("//! cargo run {option} {name}")), "{name} must document its command");
        assert!(text.lines().count() <= 100, "{name} must be short");
        assert!(is_member || tests.contains(&format!("(\"{name}\"")), "{name} has no test");
    }
}

#[test]
fn custom_tower_example_prints_its_jobs() {
    let printed = printed_by("custom_tower");
    let lines: Vec<_> = printed.iter().map(|line| line.trim_start()).collect();
    assert_eq!(
        lines,
        [
            "red: printed [spring fair]",
            "red: printed [lost cat]",
            "red: printed [flea market]",
            "red: not printed: rate limit \"default\" exceeded, retry after 20s",
            "red: printed [open day], after waiting 20s",
            "blue: printed [jazz night]",
            "blue: failed: the press has jammed",
            "maintenance: printed [test page]",
            "?: not printed: the print job names no team",
        ]
    );
}

#[test]
fn custom_algorithm_example_prints_its_decisions() {
    // 2 GB a day, at most 10, initially 10: the rest after each day.
    assert_eq!(
        printed_by("custom_algorithm"),
        [
            "day  1:  3 GB? Allowed, 7 GB left",
            "day  2:  1 GB? Allowed, 8 GB left",
            "day  3:  6 GB? Allowed, 4 GB left",
            "day  4:  4 GB? Allowed, 2 GB left",
            "day  5:  3 GB? Allowed, 1 GB left",
            "day  9:  7 GB? Allowed, 2 GB left",
            "day 10:  6 GB? Denied { retry_after: 21600s }, 4 GB left",
            "day 11: 12 GB? ExceedsLimit, 6 GB left",
            "day 14: 10 GB? Allowed, 0 GB left",
        ]
    );
}

#[test]
fn custom_limiter_example_prints_its_responses() {
    let printed = printed_by("custom_limiter");
    let (open, closed) = printed.split_at(8);
    assert_eq!(
        open,
        [
            "second 1: 200 OK \"burst\";r=2;t=1, \"credit\";r=3;t=2592000",
            "second 1: 200 OK \"burst\";r=1;t=1, \"credit\";r=2;t=2592000",
            "second 1: 200 OK \"burst\";r=0;t=1, \"credit\";r=1;t=2592000",
            "second 1: 429 Too Many Requests \"burst\";r=0;t=1",
            "second 2: 200 OK \"burst\";r=2;t=1, \"credit\";r=0;t=2592000",
            "second 2: 429 Too Many Requests \"credit\";r=0;t=2592000",
            "second 2: 429 Too Many Requests \"credit\";r=0;t=2592000",
            "second 2: 429 Too Many Requests \"credit\";r=0;t=2592000",
        ]
    );
    assert_eq!(closed, ["second 3: 503 Service Unavailable -"; 4]);
}

/// Two runs: one busy tenant, and four.
#[test]
fn tenants_example_prints_who_is_served() {
    let printed = printed_by("tenants");
    let numbers = |line: &str| -> Vec<u64> {
        line.split_whitespace().skip(1).map(|number| number.parse().expect("a number")).collect()
    };
    let rows: Vec<_> = printed.iter().filter(|line| line.ends_with(|end: char| end.is_ascii_digit())).collect();
    let (one, four) = rows.split_at(5);
    // The quiet tenants are served what they ask, and the busy one borrows the rest. The burst is 200 in 60 seconds.
    assert_eq!(
        one.iter().map(|line| numbers(line)).collect::<Vec<_>>(),
        [[1300, 243, 100, 383], [47, 47, 47, 6], [53, 53, 53, 6], [59, 59, 59, 7], [1459, 402, 259, 402]]
    );
    // Nobody is served less than the share of 60. A tenant that asks more borrows more.
    assert_eq!(
        four.iter().map(|line| numbers(line)).collect::<Vec<_>>(),
        [[1300, 170, 100, 291], [610, 90, 100, 50], [310, 80, 100, 30], [170, 60, 100, 30], [2390, 400, 400, 401]]
    );
}

#[test]
fn axum_example_allows_rejects_and_exempts() {
    let (_process, address) = start("axum");

    for _ in 0..5 {
        let allowed = get(address, "/");
        assert!(allowed.starts_with("HTTP/1.1 200 OK\r\n"), "{allowed}");
        assert!(allowed.contains("\r\nratelimit-policy: \"default\";q=5;w=10\r\n"), "{allowed}");
        assert!(allowed.ends_with("\r\n\r\nHello! You are within the limit.\n"), "{allowed}");
    }
    let rejected = get(address, "/");
    assert!(rejected.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{rejected}");
    assert!(rejected.contains("\r\ncontent-type: application/problem+json\r\n"), "{rejected}");
    let retry_after = rejected.lines().find_map(|line| line.strip_prefix("retry-after: ")).expect("a wait");
    assert!((1..=10).contains(&retry_after.parse().expect("whole seconds")), "{retry_after}");

    for _ in 0..10 {
        let health = get(address, "/health");
        assert!(health.starts_with("HTTP/1.1 200 OK\r\n") && health.ends_with("\r\n\r\nok\n"), "{health}");
        assert!(!health.contains("ratelimit"), "{health}");
    }
}

#[test]
fn tonic_example_rejects_and_retries() {
    let printed = printed_by("tonic");
    let is_rejection =
        |line: &&String| line.contains(": ResourceExhausted, rate limit \"default\" exceeded, retry after ");
    let served: Vec<_> = printed.iter().filter(|line| !is_rejection(line)).map(String::as_str).collect();
    let all: Vec<_> = (1..=8).map(|number| format!("call {number}: Serving")).collect();
    assert_eq!(served, all);
    // Eight calls take more or less than one window, depending on the machine.
    assert!(printed.len() <= 9, "a client that waits for `retry_after` must be allowed: {printed:#?}");
}

#[test]
fn tonic_example_serves_alone() {
    let process = Process::start(example("tonic").arg("serve"));
    TcpStream::connect(process.address()).expect("a connection");
}

#[test]
fn client_example_paces_its_requests() {
    let printed = printed_by("client");
    let [generous, strict] = &printed[..] else { panic!("{printed:#?}") };
    // Rejections depend on the scheduling of this machine. `middleware/retry.rs` tests them in virtual time.
    assert!(generous.starts_with("limit of 10 per second: 12 of 12 requests succeeded, "), "{generous}");
    assert_eq!(strict, "limit of 3 per second: 6 of 6 requests succeeded, some after a rejection: true");
}

#[test]
fn reqwest_example_waits_and_retries() {
    assert_eq!(printed_by("reqwest"), ["8 of 8 requests succeeded, some after a rejection: true"]);
}

#[test]
fn gate_example_rejects_fewer_requests() {
    let (status, lines) = Process::start(example("gate").env("SECONDS", "0.3")).output();
    assert!(status.success() && lines.len() == 7, "{lines:#?}");
    // Its numbers depend on the machine; tests with virtual time check the gate itself.
    for (line, (load, gate)) in
        lines[1..].iter().zip([0.9, 2.0, 10.0].iter().flat_map(|load| [(load, "without"), (load, "with")]))
    {
        let columns: Vec<_> = line.split_whitespace().collect();
        assert_eq!(columns[..2], [load.to_string().as_str(), gate], "{line}");
        let sum: f64 = columns[2..].iter().map(|count| count.parse::<f64>().expect("a count")).sum();
        assert!((9_998.0..=10_002.0).contains(&sum), "{line}");
    }
}

#[test]
fn admin_example_shows_blocks_and_resets_a_client() {
    let (_process, address) = start("admin");
    let ends = |answer: String, text: &str| assert!(answer.ends_with(&format!("\r\n\r\n{text}\n")), "{answer}");

    ends(get(address, "/admin/127.0.0.1"), "127.0.0.1: 5 requests left");
    assert!(get(address, "/").starts_with("HTTP/1.1 200 "));
    assert!(get(address, "/admin").contains("TopKey"));
    ends(request(address, "PUT", "/admin/127.0.0.1/block/3600", ""), "127.0.0.1: blocked for 3600 s");
    assert!(get(address, "/").starts_with("HTTP/1.1 429 "));
    ends(get(address, "/admin/127.0.0.1"), "127.0.0.1: denied for 3600 s");
    // The keys of the layer and of the endpoint are equal for a mapped address too.
    ends(request(address, "DELETE", "/admin/::ffff:127.0.0.1", ""), "::ffff:127.0.0.1: reset");
    assert!(get(address, "/").starts_with("HTTP/1.1 200 "));
}

#[test]
fn in_flight_example_rejects_the_third_stream_and_frees_the_place_of_a_dropped_connection() {
    assert_eq!(
        printed_by("in_flight"),
        [
            "stream 1: 200 OK",
            "stream 2: 200 OK",
            "stream 3: 429 Too Many Requests, retry-after: 1",
            "stream 1: the client disconnects",
            "stream 4: 200 OK",
        ]
    );
}

/// `observe/dashboard.rs` tests the example's page in a browser.
#[test]
fn observe_example_serves_metrics_and_dashboard() {
    let (_process, address) = start("observe");

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

fn get(address: SocketAddr, path: &str) -> String {
    request(address, "GET", path, "")
}
