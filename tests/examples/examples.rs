//! Runs each example as a process and checks its output, which its first lines describe.
//!
//! `cargo test` builds the examples beside this binary.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use crate::process::{Process, example, get, request};

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

/// The examples in files, and the packages.
#[test]
fn examples_are_short_and_documented_and_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let tests = ["examples/examples.rs", "examples/scenarios.rs", "stores/redis/examples.rs"]
        .map(|file| read(&root.join("tests").join(file)))
        .concat();
    for example in fs::read_dir(root.join("examples")).expect("the examples") {
        let path = example.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("text");
        let (main, command) = if path.is_dir() {
            assert!(path.join("tests").exists(), "{name} has no test");
            // A store is longer than an example: less than 300 lines, in a file of its own.
            for file in fs::read_dir(path.join("src")).expect("the files") {
                assert!(
                    read(&file.expect("an entry").path()).lines().count() < 300,
                    "the files of {name} must be short"
                );
            }
            let manifest = read(&path.join("Cargo.toml"));
            let package = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
            (path.join("src/main.rs"), format!("-p {}", package.expect("a name")))
        } else {
            assert!(tests.contains(&format!("(\"{name}\"")), "{name} has no test");
            (path.clone(), format!("--example {name}"))
        };
        let text = read(&main);
        assert!(text.contains(&format!("//! cargo run {command}")), "{name} must document its command");
        assert!(text.lines().count() <= 120, "{name} must be short");
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
            "second 1: 200 OK \"burst\";r=2, \"credit\";r=3;t=2592000",
            "second 1: 200 OK \"burst\";r=1, \"credit\";r=2;t=2592000",
            "second 1: 200 OK \"burst\";r=0, \"credit\";r=1;t=2592000",
            "second 1: 429 Too Many Requests \"burst\";r=0",
            "second 2: 200 OK \"burst\";r=2, \"credit\";r=0;t=2592000",
            "second 2: 429 Too Many Requests \"credit\";r=0;t=2592000",
            "second 2: 429 Too Many Requests \"credit\";r=0;t=2592000",
            "second 2: 429 Too Many Requests \"credit\";r=0;t=2592000",
        ]
    );
    assert_eq!(closed, ["second 3: 503 Service Unavailable -"; 4]);
}

/// The page shows what the example prints. A test of Redis compares the same block.
#[test]
fn calendar_example_prints_the_block_of_the_page() {
    let page = include_str!("../../docs/everyday.md");
    let block = page.split("```text\n").nth(1).and_then(|rest| rest.split("\n```").next()).expect("a block");
    assert_eq!(printed_by("calendar"), block.lines().collect::<Vec<_>>());
}

/// No user's streams receive more than the rate, with the burst, in three seconds. A slow machine may receive less.
#[test]
fn bandwidth_example_divides_the_rate_of_a_user() {
    let mut program = example("bandwidth");
    let (status, printed) = Process::start(program.env("PORT", "0")).output();
    assert!(status.success(), "{status}: {printed:#?}");
    for user in ["alice", "bob"] {
        let rates =
            printed.iter().filter_map(|line| line.strip_prefix(user)?.strip_prefix(": ")?.strip_suffix(" kB/s"));
        let rates: Vec<u64> = rates.map(|rate| rate.parse().expect("a number")).collect();
        assert!(rates.len() == 2 && rates.iter().sum::<u64>() <= 1_050 && rates[0] > 0, "{printed:#?}");
    }
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
fn admin_example_shows_blocks_and_resets_a_client() {
    let (_process, address) = start("admin");
    let ends = |answer: String, text: &str| assert!(answer.ends_with(&format!("\r\n\r\n{text}\n")), "{answer}");

    let client = |used, remaining, wait| {
        format!("{{\"client\":\"127.0.0.1\",\"used_today\":{used},\"remaining\":{remaining},\"retry_after\":{wait}}}")
    };
    ends(get(address, "/admin/127.0.0.1"), &client(0, 5, 0));
    assert!(get(address, "/").starts_with("HTTP/1.1 200 "));
    let usage = get(address, "/admin");
    assert!(usage.contains("[{\"limit\":\"requests\",\"keys\":1,\"capacity\":"), "{usage}");
    assert!(usage.contains("{\"limit\":\"used today\",\"keys\":1,\"capacity\":"), "{usage}");
    ends(request(address, "PUT", "/admin/127.0.0.1/block/3600", ""), "127.0.0.1: blocked for 3600 s");
    assert!(get(address, "/").starts_with("HTTP/1.1 429 "));
    let blocked = get(address, "/admin/127.0.0.1");
    assert!(blocked.contains("\"used_today\":1,") && blocked.contains("\"retry_after\":3600}"), "{blocked}");
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
