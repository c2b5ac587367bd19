//! The server and the page of the program `playground`. `browser.rs` tests the page in a browser.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tower_ratelimit::{
    FixedWindow, Gcra, InFlight, LeakyBucket, LeakyQueue, Limit, Quota, SlidingLog, SlidingWindow, TokenBucket,
};

use tower_ratelimit_simulate::code;

use crate::process::{Process, listening};
use crate::support::{exchange, policy};

pub(crate) fn start() -> (Process, SocketAddr) {
    let playground = Process::start(listening(env!("CARGO_BIN_EXE_playground")).stderr(Stdio::null()));
    let address = playground.address();
    (playground, address)
}

fn input(policies: &Value, log: &str) -> String {
    let pattern = json!({
        "rate": 400, "burst": 0, "spread": 0, "every": 10_000, "duration": 30_000, "clients": 2
    });
    json!({ "policies": policies, "pattern": pattern, "log": log }).to_string()
}

#[test]
fn server_decides_patterns_and_logs() {
    let (_playground, address) = start();
    assert!(address.ip().is_loopback());
    let (status, page) = exchange(address, "GET", "/", "");
    assert!(status == 200 && page.contains("<title>Rate limits, compared</title>"), "{status}");

    let log_policy = json!({ "name": "a", "algorithm": "sliding-log", "quota": "10 per 10s", "by": "client" });
    let wrong = json!({ "name": "b", "algorithm": "gcra", "quota": "ten/s", "by": "client" });
    let run = |input: String| {
        let (status, answer) = exchange(address, "POST", "/run", &input);
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str::<Value>(&answer).expect("JSON")
    };
    // Each of two clients hammers for three periods: ten are admitted in each.
    let answer = run(input(&json!([log_policy, wrong]), ""));
    assert_eq!(answer["requests"], 240);
    let [result, error] = &answer["results"].as_array().expect("results")[..] else { panic!("{answer}") };
    assert_eq!((&result["report"]["admitted"], &result["report"]["denied"]), (&json!(60), &json!(180)));
    assert_eq!((&result["report"]["keys"], &result["report"]["denied_keys"]), (&json!(2), &json!(2)));
    assert!(result["svg"].as_str().expect("text").starts_with("<svg "));
    assert!(error["error"].as_str().expect("text").contains("COUNT/PERIOD"), "{error}");

    let answer = run(input(&json!([log_policy]), "time,client\n1,a\n2,a\nx,a\n"));
    assert_eq!((&answer["requests"], &answer["skipped"]), (&json!(2), &json!(1)));
    assert_eq!(answer["results"][0]["report"]["admitted"], 2);
}

#[test]
fn server_counts_near_requests_and_names_what_it_cannot_show() {
    let (_playground, address) = start();
    let log = |extra: Value| {
        let mut policy = json!({ "name": "a", "algorithm": "sliding-log", "quota": "10 per 10s", "by": "client" });
        policy.as_object_mut().expect("a policy").extend(extra.as_object().expect("fields").clone());
        policy
    };
    let extras = [
        json!({ "warn_at": 0.5 }),
        json!({ "when": "write" }),
        json!({ "keep_free": { "bulk": 3 } }),
        json!({ "unit": "bytes" }),
        json!({ "guarantee": 2 }),
        json!({ "escalate": "3/min" }),
    ];
    let policies = json!(extras.map(log));
    let run = |log: &str| {
        let (status, answer) = exchange(address, "POST", "/run", &input(&policies, log));
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str::<Value>(&answer).expect("JSON")["results"].clone()
    };
    let generated = run("");
    // Each of two clients comes near once, and stays there.
    assert_eq!(generated[0]["report"]["near_limit"], 2);
    assert!(generated[0]["rust"].as_str().expect("code").ends_with(".warn_at(0.5))"), "{generated}");
    for (index, expected) in [
        (1, "when: generated traffic has no column for it"),
        (2, "keep_free: generated traffic has no column for it"),
        (3, "unit: generated traffic has no column for it"),
        (4, "guarantee: a share needs the limit from which requests borrow"),
        (5, "remove `escalate`"),
    ] {
        let error = generated[index]["error"].as_str().unwrap_or_else(|| panic!("{index}: {generated}"));
        assert!(error.contains(expected), "{error}");
    }
    let pasted = run("time,client,write,bulk,bytes\n1,a,true,false,7\n2,a,false,true,4\n3,a,false,false,3\n");
    let admitted = |index: usize| pasted[index]["report"]["admitted"].as_u64();
    // Only writes; all requests; 11 bytes and then 3 of 10.
    assert_eq!([admitted(1), admitted(2), admitted(3)], [Some(1), Some(3), Some(2)], "{pasted}");
}

#[test]
fn server_bounds_its_work() {
    let (_playground, address) = start();
    let too_many = input(&json!([]), "").replace("400", "4000000000");
    let (status, answer) = exchange(address, "POST", "/run", &too_many);
    assert_eq!((status, &*answer), (400, "too many requests: choose at most 50000"));
    let (status, _) = exchange(address, "POST", "/run", &"x".repeat((4 << 20) + 1));
    assert_eq!(status, 413);
    let (status, answer) = exchange(address, "POST", "/run", "{}");
    assert!(status == 400 && answer.contains("missing field"), "{answer}");
    let (status, answer) = exchange(address, "POST", "/run", &input(&json!([]), "no log"));
    assert_eq!((status, &*answer), (200, r#"{"requests":0,"results":[],"skipped":0}"#));
}

/// The page works offline, and sends a log to no other server.
#[test]
fn page_loads_no_external_resources() {
    let page = include_str!("../../src/bin/playground/page.html");
    for line in page.lines() {
        assert!(!line.contains("://") && !line.contains("@import") && !line.contains(" src="), "{line}");
    }
}

/// The code that the page shows compiles: the compiler reads the same tokens.
#[test]
fn code_of_a_policy_compiles() {
    /// Writes an expression as the page does, after the compiler checked it.
    macro_rules! expression {
        ($algorithm:expr) => {{
            let _ = $algorithm;
            // The compiler breaks long lines.
            format!("Memory::new({})", stringify!($algorithm).replace('\n', " "))
        }};
    }
    let cases = [
        ("'gcra'\nquota = '10/s'\nburst = 20", expression!(Gcra::new(Quota::per_second(10)).burst(20))),
        ("'token-bucket'\nquota = '3/min'", expression!(TokenBucket::new(Quota::per_minute(3)))),
        ("'leaky-bucket'\nquota = '3/h'", expression!(LeakyBucket::new(Quota::per_hour(3)))),
        (
            "'leaky-queue'\nquota = '3/d'\nmax_waiting = 2",
            expression!(LeakyQueue::new(Quota::per_day(3)).max_waiting(2)),
        ),
        (
            "'fixed-window'\nquota = '3 per 10s'\naligned_to_clock = true",
            expression!(FixedWindow::new(Quota::new(3, Duration::from_secs(10))).aligned_to_clock()),
        ),
        (
            "'sliding-window'\nquota = '3 per 500ms'\nblocks = 5\nweighted = true",
            expression!(SlidingWindow::new(Quota::new(3, Duration::from_millis(500))).blocks(5).weighted()),
        ),
        ("'sliding-log'\nquota = '3/min'", expression!(SlidingLog::new(Quota::per_minute(3)))),
        ("'in-flight'\nmax = 2", expression!(InFlight::new(2))),
        (
            "'gcra'\nquota = '10/s'\nwarn_at = 0.8",
            expression!(Limit::new("a", Gcra::new(Quota::per_second(10))).warn_at(0.8)),
        ),
    ];
    for (fields, expected) in cases {
        let policy = policy(&format!("algorithm = {fields}"));
        assert_eq!(code::rust(&policy), expected);
        // The table parses as the same policy.
        let config: std::collections::HashMap<String, Vec<tower_ratelimit::config::Policy>> =
            toml::from_str(&code::toml(&policy)).expect("a table");
        assert_eq!(config["limits"], [policy]);
    }
}
