//! The Redis examples, each run as two processes: their output is that of their first lines.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cluster_server::Cluster;
use crate::server::Server;

struct Example {
    process: Child,
    address: SocketAddr,
    /// Kept open, because the process continues to print.
    printed: BufReader<ChildStdout>,
}

fn executable(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test's own path");
    let profile = test.parent().and_then(Path::parent).expect("`deps` in the profile's folder");
    profile.join("examples").join(name).with_extension(std::env::consts::EXE_EXTENSION)
}

fn command(redis: &str) -> Command {
    example("redis", "REDIS_URL", redis)
}

fn example(name: &str, variable: &str, redis: &str) -> Command {
    let mut command = Command::new(executable(name));
    command.env("PORT", "0").env(variable, redis).stdin(Stdio::null());
    command
}

impl Example {
    fn start(server: &Server) -> Self {
        Self::run(command(&server.address()))
    }

    fn run(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the example");
        let mut line = String::new();
        let mut printed = BufReader::new(process.stdout.take().expect("piped"));
        printed.read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line}"));
        let address = address.parse().expect("an address");
        Self { process, address, printed }
    }

    /// Returns the response. On a busy machine the first calls may miss the limiter's deadline while it connects: the
    /// limiter sends nothing then, and charges nothing.
    fn get(&self) -> String {
        let mut answers = std::iter::repeat_with(|| self.get_once()).take(50);
        answers.find(|answer| !answer.starts_with("HTTP/1.1 503 ")).expect("a decision")
    }

    fn get_once(&self) -> String {
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn two_processes_share_a_limit_and_fall_back_without_redis() {
    let mut server = Server::start();
    let (one, other) = (Example::start(&server), Example::start(&server));
    for attempt in 0..20 {
        let answer = if attempt % 2 == 0 { &one } else { &other }.get();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{attempt}: {answer}");
        assert!(answer.ends_with("Hello! You are within the limit.\n"), "{answer}");
    }
    for example in [&one, &other] {
        let denied = example.get();
        assert!(denied.starts_with("HTTP/1.1 429 "), "{denied}");
        assert!(denied.contains("ratelimit-policy: \"default\";q=20;w=10\r\n"), "{denied}");
    }

    server.kill();
    for attempt in 0..10 {
        let answer = one.get();
        assert!(
            answer.ends_with("Hello! Redis is unavailable: this process uses its own limit.\n"),
            "{attempt}: {answer}"
        );
        assert!(answer.contains("ratelimit-policy: \"default\";q=10;w=10\r\n"), "{answer}");
    }
    assert!(one.get().starts_with("HTTP/1.1 429 "));

    // The restarted server is empty.
    server.restart();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !one.get().ends_with("Hello! You are within the limit.\n") {
        assert!(Instant::now() < deadline, "the limiter does not return to Redis");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn example_without_redis_explains_how_to_start_it() {
    // A released port without a listener.
    let address = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        format!("redis://{}", listener.local_addr().expect("its address"))
    };
    let output = command(&address).output().expect("the example");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(printed.starts_with("cannot use Redis: "), "{printed}");
    assert!(printed.contains("Start `redis-server`"), "{printed}");
    assert_eq!(printed.matches("refused").count(), 1, "the cause is printed once: {printed}");
}

/// Two processes reload one file, and keep what clients have used.
#[test]
fn two_processes_reload_one_configuration() {
    let server = Server::start();
    let path = std::env::temp_dir().join(format!("tower-ratelimit-config-{}.toml", std::process::id()));
    let save = |quota: &str| {
        let new = path.with_extension("new");
        let limit =
            format!("[[limits]]\nname = \"x\"\nalgorithm = \"fixed-window\"\nquota = \"{quota}\"\nby = \"address\"\n");
        std::fs::write(&new, limit).expect("written");
        std::fs::rename(new, &path).expect("renamed");
    };
    save("4/h");
    let start = || {
        let mut command = example("config", "REDIS_URL", &server.address());
        command.arg(&path);
        Example::run(command)
    };
    let (mut one, mut other) = (start(), start());
    for example in [&one, &other, &one, &other] {
        assert!(example.get().starts_with("HTTP/1.1 200 "));
    }
    for example in [&one, &other] {
        let denied = example.get();
        assert!(denied.starts_with("HTTP/1.1 429 "), "{denied}");
    }

    save("6/h");
    for example in [&mut one, &mut other] {
        let mut line = String::new();
        example.printed.read_line(&mut line).expect("a line");
        assert!(line.starts_with("loaded the limits from "), "{line}");
    }
    for (example, remaining) in [(&one, 1), (&other, 0)] {
        let answer = example.get();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains("ratelimit-policy: \"x\";q=6;w=3600\r\n"), "{answer}");
        assert!(answer.contains(&format!("ratelimit: \"x\";r={remaining};")), "four were used before: {answer}");
    }
    assert!(one.get().starts_with("HTTP/1.1 429 "));
    std::fs::remove_file(&path).expect("removed");
}

#[test]
fn two_processes_share_a_limit_in_a_cluster() {
    let cluster = Cluster::start();
    let urls = cluster.addresses().join(",");
    let start = || Example::run(example("cluster", "REDIS_URLS", &urls));
    let (one, other) = (start(), start());
    for attempt in 0..20 {
        let answer = if attempt % 2 == 0 { &one } else { &other }.get();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{attempt}: {answer}");
        assert!(answer.ends_with("Hello! You are within the limit.\n"), "{answer}");
    }
    for example in [&one, &other] {
        let denied = example.get();
        assert!(denied.starts_with("HTTP/1.1 429 "), "{denied}");
    }
    drop(cluster);
    for attempt in 0..10 {
        let answer = one.get();
        assert!(
            answer.ends_with("Hello! The cluster is unavailable: this process uses its own limit.\n"),
            "{attempt}: {answer}"
        );
    }

    let output = example("cluster", "REDIS_URLS", &urls).output().expect("the example");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && printed.starts_with("cannot use the cluster: "), "{printed}");
}

#[test]
fn lease_example_stays_within_the_bound() {
    let server = Server::start();
    let output = example("lease", "REDIS_URL", &server.address()).output().expect("the example");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("killed one of two processes") && text.contains(": within the limit\n"), "{text}");
    assert!(text.contains("share of leases: "), "{text}");
}

#[test]
fn reservation_id_example_settles_the_hold_of_a_killed_process() {
    let server = Server::start();
    let output = example("reservation_id", "REDIS_URL", &server.address()).output().expect("the example");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let remaining: Vec<_> = text.lines().filter_map(|line| line.split_once(": ")).map(|(_, number)| number).collect();
    // A token drains every 8.64 s.
    let held = remaining.first().is_some_and(|first| ["6000 remain", "6001 remain"].contains(first));
    assert!(held && remaining.len() == 4 && remaining[2] == remaining[3] && remaining[3].starts_with("88"), "{text}");
}
