//! Runs the example, and checks its output.

#[path = "../../../tests/servers/process.rs"]
mod process;

use std::process::Command;

use self::process::{Process, listening};

fn example() -> Command {
    listening(env!("CARGO_BIN_EXE_example-reqwest"))
}

/// Runs the example, and returns its output.
fn printed() -> Vec<String> {
    let (status, printed) = Process::start(&mut example()).output();
    assert!(status.success(), "{status}\n{printed:#?}");
    printed
}

#[test]
fn reqwest_example_waits_and_retries() {
    assert_eq!(printed(), ["8 of 8 requests succeeded, some after a rejection: true"]);
}
