//! Runs the example, and checks its output.

#[path = "../../../tests/servers/process.rs"]
mod process;

use std::process::Command;

use self::process::{Process, listening};

fn example() -> Command {
    listening(env!("CARGO_BIN_EXE_example-client"))
}

/// Runs the example, and returns its output.
fn printed() -> Vec<String> {
    let (status, printed) = Process::start(&mut example()).output();
    assert!(status.success(), "{status}\n{printed:#?}");
    printed
}

#[test]
fn client_example_paces_its_requests() {
    let printed = printed();
    let [generous, strict] = &printed[..] else { panic!("{printed:#?}") };
    // Rejections depend on the scheduling of this machine. `tests/http/middleware/retry.rs` tests them in virtual time.
    assert!(generous.starts_with("limit of 10 per second: 12 of 12 requests succeeded, "), "{generous}");
    assert_eq!(strict, "limit of 3 per second: 6 of 6 requests succeeded, some after a rejection: true");
}
