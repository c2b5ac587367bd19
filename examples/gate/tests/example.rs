//! Runs the example, and checks its output.

#[path = "../../../tests/servers/process.rs"]
mod process;

use std::process::Command;

use self::process::{Process, listening};

fn example() -> Command {
    listening(env!("CARGO_BIN_EXE_example-gate"))
}

#[test]
fn gate_example_rejects_fewer_requests() {
    let (status, lines) = Process::start(example().env("SECONDS", "0.3")).output();
    assert!(status.success() && lines.len() == 7, "{lines:#?}");
    // Its numbers depend on the machine; tests with virtual time check the gate itself.
    for (line, (load, gate)) in
        lines[1..].iter().zip([0.9, 2.0, 10.0].iter().flat_map(|load| [(load, "without"), (load, "with")]))
    {
        let columns: Vec<_> = line.split_whitespace().collect();
        assert_eq!(columns[..2], [load.to_string().as_str(), gate], "{line}");
        let sum: f64 = columns[2..5].iter().map(|count| count.parse::<f64>().expect("a count")).sum();
        assert!((9_998.0..=10_002.0).contains(&sum), "{line}");
    }
}
