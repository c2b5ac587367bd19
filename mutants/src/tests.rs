//! The tests: which mutants each reaches, and whether a mutant makes one fail.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::copy::Binary;

/// Tests that take longer do not run once per mutant.
const MAX_TIME: Duration = Duration::from_secs(20);

pub(crate) struct Test {
    pub(crate) binary: usize,
    pub(crate) name: String,
    pub(crate) time: Duration,
    pub(crate) reached: Vec<u32>,
    /// The Lua scripts that the test sends.
    pub(crate) scripts: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Passed,
    Failed,
    TimedOut,
}

pub(crate) struct Runner<'a> {
    pub(crate) binaries: &'a [Binary],
    /// The folder in which tests run.
    pub(crate) folder: &'a Path,
    /// The number of random cases of each property test.
    pub(crate) cases: &'a str,
}

impl Runner<'_> {
    fn command(&self, binary: usize) -> Command {
        let mut command = Command::new(&self.binaries[binary].path);
        command
            .current_dir(self.folder)
            .env("CARGO_MANIFEST_DIR", self.folder)
            .env("PROPTEST_CASES", self.cases)
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            // Of the Redis deployments: the others take seconds to start, for the same script.
            .env("ONLY_SINGLE_REDIS", "1")
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null());
        command
    }

    /// Returns the names of a binary's tests.
    pub(crate) fn names(&self, binary: usize) -> Vec<String> {
        let output = self.command(binary).args(["--list", "--format", "terse"]).output().expect("a test binary");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
    }

    /// Runs a test without a mutant. Returns `None` if it fails, or takes too long.
    pub(crate) fn record(&self, binary: usize, name: &str, scratch: &Path) -> Option<Test> {
        let (rust, lua) = (scratch.join("reached"), scratch.join("scripts"));
        let _ = (std::fs::remove_file(&rust), std::fs::remove_file(&lua));
        let mut command = self.command(binary);
        command.env("MUTANTS_REACHED", &rust).env("MUTANTS_REACHED_LUA", &lua);
        command.args(["--exact", "--test-threads=1", name]);
        let started = Instant::now();
        if run(command, MAX_TIME) != End::Passed {
            return None;
        }
        let time = started.elapsed();
        let numbers = std::fs::read(&rust).unwrap_or_default();
        let reached = numbers.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")));
        let scripts = std::fs::read_to_string(&lua).unwrap_or_default();
        let mut scripts: Vec<_> = scripts.split_terminator('\0').map(str::to_owned).collect();
        scripts.sort_unstable();
        scripts.dedup();
        Some(Test { binary, name: name.to_owned(), time, reached: reached.collect(), scripts })
    }

    /// Runs tests of several binaries with a mutant, given by environment variables, until one fails.
    pub(crate) fn run(&self, tests: &[&Test], mutant: (&str, &str)) -> End {
        let mut of_binary: BTreeMap<usize, Vec<&Test>> = BTreeMap::new();
        for test in tests {
            of_binary.entry(test.binary).or_default().push(test);
        }
        for (binary, tests) in of_binary {
            let mut command = self.command(binary);
            command.env(mutant.0, mutant.1).args(["--exact", "--test-threads=1"]);
            command.args(tests.iter().map(|test| &test.name));
            let usual: Duration = tests.iter().map(|test| test.time).sum();
            match run(command, Duration::from_secs(4) + usual * 6) {
                End::Passed => {}
                end => return end,
            }
        }
        End::Passed
    }
}

/// Runs a test binary until it ends, a test fails, or the time is over.
fn run(mut command: Command, time: Duration) -> End {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a test binary");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let (sender, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            let _ = sender.send(line.ends_with("FAILED"));
        }
    });
    let deadline = Instant::now() + time;
    let end = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(true) => break End::Failed,
            Ok(false) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => break End::TimedOut,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                break if exited_successfully(&mut child, deadline) { End::Passed } else { End::Failed };
            }
        }
    };
    let _ = (child.kill(), child.wait());
    drop(reader);
    end
}

fn exited_successfully(child: &mut Child, deadline: Instant) -> bool {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            _ => return false,
        }
    }
}
