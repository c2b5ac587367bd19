//! Runs the examples with proxies, tiers and token costs as processes and checks their responses.
//!
//! `cargo test` builds the examples beside this binary.

use std::path::Path;
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::process::{Process, example, field, request, status};

/// Starts an example whose output includes its errors.
fn start(name: &str, arguments: &[&Path]) -> Process {
    Process::start(example(name).args(arguments).stderr(Stdio::piped()))
}

/// Runs an example to its end. Returns its success and its output.
fn run(name: &str, arguments: &[&Path]) -> (bool, Vec<String>) {
    let (status, printed) = start(name, arguments).output();
    (status.success(), printed)
}

const ALICE: &str = "authorization: Bearer secret-of-alice\r\n";

#[test]
fn behind_proxy_example_limits_by_client_address() {
    let server = start("behind_proxy", &[]);
    let address = server.address();
    let get = |fields: &str| request(address, "GET", "/", fields);
    let of = |client: &str| get(&format!("x-forwarded-for: {client}\r\n"));

    assert!(of("192.0.2.1").ends_with("Hello, 192.0.2.1!\n"));
    assert!(of("203.0.113.9, 192.0.2.1").ends_with("Hello, 192.0.2.1!\n"), "the client's own entries do not count");
    assert_eq!(status(&get("x-forwarded-for: 203.0.113.8\r\nx-forwarded-for: 192.0.2.1\r\n")), 200);
    for client in ["192.0.2.1", "203.0.113.7, 192.0.2.1", "\"192.0.2.1:80\"", "::ffff:192.0.2.1"] {
        assert_eq!(status(&of(client)), 429, "{client}");
    }
    assert_eq!(status(&of("192.0.2.2")), 200, "a different client");

    // A different API key for each request: the address has a limit for all keys.
    let with_keys = (0..20)
        .filter(|number| status(&get(&format!("x-forwarded-for: 192.0.2.3\r\nx-api-key: key-{number}\r\n"))) == 200);
    assert_eq!(with_keys.count(), 12);
    let with_one = (0..20).filter(|_| status(&get("x-forwarded-for: 192.0.2.4\r\nx-api-key: key\r\n")) == 200);
    assert_eq!(with_one.count(), 6);
}

#[test]
fn forward_auth_example_answers_proxies() {
    let server = start("forward_auth", &[]);
    let address = server.address();
    let ask = |path: &str, client: &str| request(address, "GET", path, &format!("x-forwarded-for: {client}\r\n"));

    for path in ["/auth", "/auth/nginx", "/auth"] {
        assert_eq!(status(&ask(path, "192.0.2.1")), 200, "both endpoints share the limit");
    }
    let rejection = ask("/auth", "192.0.2.1");
    assert_eq!(status(&rejection), 429, "{rejection}");
    let for_nginx = ask("/auth/nginx", "192.0.2.1");
    assert_eq!(status(&for_nginx), 403, "{for_nginx}");
    assert!(field(&for_nginx, "ratelimit").starts_with("\"default\";r=0;"), "{for_nginx}");
    assert!(field(&for_nginx, "retry-after").parse::<u64>().is_ok(), "{for_nginx}");
    assert_eq!(status(&ask("/auth", "192.0.2.2")), 200, "a different client");
}

#[test]
fn github_example_limits_by_token_and_tier() {
    let server = start("github", &[]);
    let address = server.address();
    let limit_and_remaining = |fields: &str| {
        let answer = request(address, "GET", "/", fields);
        assert_eq!(status(&answer), 200, "{answer}");
        let reset: u64 = field(&answer, "x-ratelimit-reset").parse().expect("seconds since the epoch");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        // The one-hour window began with the server.
        assert!((now + 3_000..now + 3_610).contains(&reset), "{reset} is not within an hour of {now}");
        assert!(!answer.contains("\nratelimit"), "{answer}");
        (field(&answer, "x-ratelimit-limit").to_owned(), field(&answer, "x-ratelimit-remaining").to_owned())
    };
    let numbers = |limit: &str, remaining: &str| (limit.to_owned(), remaining.to_owned());

    assert_eq!(limit_and_remaining(ALICE), numbers("5000", "4999"));
    assert_eq!(limit_and_remaining(ALICE), numbers("5000", "4998"));
    assert_eq!(limit_and_remaining(""), numbers("60", "59"));
    // Invalid tokens count by address, together with requests without a token.
    assert_eq!(limit_and_remaining("authorization: Bearer made-up\r\n"), numbers("60", "58"));
    assert_eq!(limit_and_remaining("authorization: secret-of-alice\r\n"), numbers("60", "57"));

    // The upgrade keeps her usage.
    assert_eq!(status(&request(address, "POST", "/upgrade", ALICE)), 200);
    assert_eq!(limit_and_remaining(ALICE), numbers("15000", "14997"));

    for remaining in (0..57).rev() {
        assert_eq!(limit_and_remaining(""), numbers("60", &remaining.to_string()));
    }
    let rejected = request(address, "GET", "/", "");
    assert_eq!((status(&rejected), field(&rejected, "x-ratelimit-remaining")), (429, "0"));
    assert!(field(&rejected, "retry-after").parse::<u32>().expect("seconds") > 3_000);
    assert_eq!(limit_and_remaining(ALICE), numbers("15000", "14996"));
}

#[test]
fn llm_tokens_example_charges_actual_costs() {
    let (succeeded, printed) = run("llm_tokens", &[]);
    assert!(succeeded, "{printed:#?}");
    assert_eq!(
        printed,
        [
            "during the first stream: 590 left",
            "completed after 95 words: 800 left",
            "cancelled after 45 words: 700 left",
            "exceeded the estimate after 145 words: 400 left",
            "settled at 120 tokens: 280 left",
            "400 tokens are not available: retry in 4 hours",
        ]
    );
}
