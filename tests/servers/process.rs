//! What tests, benchmarks and the oracle start: processes and temporary folders, which end with their values.
//!
//! Other binaries and packages include the files of this folder, which use each other by their names at the root of the
//! binary.
#![allow(dead_code, reason = "each binary uses a part")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest time to an answer or a fail-over on a busy machine. Usually it takes seconds at most.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(180);

/// A child process, killed when dropped.
pub(crate) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Mutex<Receiver<String>>,
}

impl Process {
    /// Starts a process. Reads the pipes of its output all the time, because a full pipe would stop the process.
    pub(crate) fn start(command: &mut Command) -> Self {
        let child = command.spawn();
        let mut child = child.unwrap_or_else(|error| panic!("starting {command:?} failed: {error}; install it"));
        let (sender, lines) = channel();
        let output = child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        let errors = child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        for pipe in output.into_iter().chain(errors) {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    // The process may be dropped, and prints until it is killed.
                    let _ = sender.send(line);
                }
            });
        }
        Self { input: child.stdin.take(), child, lines: Mutex::new(lines) }
    }

    /// Returns the next line of output, or `None` at the end of the output.
    pub(crate) fn line(&self) -> Option<String> {
        self.line_within(TIMEOUT)
    }

    fn line_within(&self, time: Duration) -> Option<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        match lines.recv_timeout(time) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("process {} prints nothing", self.child.id()),
        }
    }

    /// Returns the first result of `find`, which gets each line.
    pub(crate) fn find<T>(&self, mut find: impl FnMut(&str) -> Option<T>) -> T {
        let mut printed = Vec::new();
        while let Some(line) = self.line() {
            if let Some(found) = find(&line) {
                return found;
            }
            printed.push(line);
        }
        panic!("the process has ended: {printed:#?}");
    }

    /// Returns the address at which an example listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.find(|line| line.strip_prefix("listening on http://")?.parse().ok())
    }

    /// Waits for the end of a process that may compute for minutes, and returns the rest of the output.
    pub(crate) fn output(mut self) -> (ExitStatus, Vec<String>) {
        let lines = std::iter::from_fn(|| self.line_within(10 * TIMEOUT)).collect();
        (self.wait(), lines)
    }

    pub(crate) fn write(&mut self, line: &str) {
        writeln!(self.input.as_ref().expect("a pipe"), "{line}").expect("the process reads");
    }

    /// Sends a signal, such as `-STOP`, to a process that has not been waited for.
    pub(crate) fn signal(&self, signal: &str) {
        let done = Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill");
        assert!(done.success(), "kill {signal}");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a process");
        self.wait();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("the end of the process")
    }

    /// Returns the status of a process that has ended.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the state of the process")
    }

    /// Returns the status of a process that ends within this time.
    pub(crate) fn status_within(&mut self, time: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + time;
        while self.status().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.status()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the command of a program that listens on a free port.
pub(crate) fn listening(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("PORT", "0").stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Returns the command of an example that listens on a free port. Cargo puts tests in `target/PROFILE/deps`, the examples of
/// the root package in `target/PROFILE/examples`, and the packages below `examples` in `target/PROFILE`.
pub(crate) fn example(name: &str) -> Command {
    let test = std::env::current_exe().expect("this test's own path");
    let profile = test.parent().and_then(Path::parent).expect("`deps` in the profile's folder");
    let paths = [profile.join("examples").join(name), profile.join(format!("example-{name}"))];
    let found =
        paths.map(|path| path.with_extension(std::env::consts::EXE_EXTENSION)).into_iter().find(|path| path.exists());
    listening(found.unwrap_or_else(|| {
        let build = "cargo test --workspace --all-features --no-run";
        panic!("the example {name} is missing in {}: `{build}` builds it", profile.display())
    }))
}

/// Returns the command that runs an ignored test of this binary.
pub(crate) fn ignored_test(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads", "1"]);
    command
}

/// Sends an HTTP request on a connection of its own, and returns the response. `fields` are lines that end in CRLF.
pub(crate) fn request(address: SocketAddr, method: &str, path: &str, fields: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    let fields = format!("host: {address}\r\nconnection: close\r\n{fields}content-length: 0\r\n");
    write!(stream, "{method} {path} HTTP/1.1\r\n{fields}\r\n").expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response
}

/// Sends a request without a body or fields of its own, and returns the response.
pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    request(address, "GET", path, "")
}

/// Returns the status of a response.
pub(crate) fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}

/// Returns the value of a required field.
pub(crate) fn field<'a>(answer: &'a str, name: &str) -> &'a str {
    let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.unwrap_or_else(|| panic!("{name} is missing in\n{answer}"))
}

/// A temporary folder, removed when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tower-ratelimit-{name}-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a file as text, for settings.
    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("text").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns a free port whose cluster bus port (10,000 higher) is free as well.
///
/// No call in this process returns the same port again. Outgoing connections never take it, because it is below Linux's
/// ephemeral port range.
pub(crate) fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // Concurrent test processes begin at different ports.
    let start = std::process::id().wrapping_mul(997);
    loop {
        let offset = start.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed)) % 10_000;
        let port = 10_000 + u16::try_from(offset).expect("less than 10,000");
        if [port, port + 10_000].into_iter().all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return port;
        }
    }
}

pub(crate) fn wait_until(condition: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{condition}: not in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}
