//! Runs the example, and checks its output.

#[path = "../../../tests/servers/process.rs"]
mod process;

use std::net::TcpStream;
use std::process::Command;

use self::process::{Process, listening};

fn example() -> Command {
    listening(env!("CARGO_BIN_EXE_example-tonic"))
}

/// Runs the example, and returns its output.
fn printed() -> Vec<String> {
    let (status, printed) = Process::start(&mut example()).output();
    assert!(status.success(), "{status}\n{printed:#?}");
    printed
}

#[test]
fn tonic_example_rejects_and_retries() {
    let printed = printed();
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
    let process = Process::start(example().arg("serve"));
    TcpStream::connect(process.address()).expect("a connection");
}
