//! The example, run as two processes on one Redis: what its first lines promise.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cluster_server::Nodes;
use crate::server::Server;

struct Example {
    process: Child,
    address: SocketAddr,
    /// Kept open: it goes on printing.
    _printed: BufReader<ChildStdout>,
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
        Self { process, address, _printed: printed }
    }

    fn get(&self) -> String {
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
fn two_processes_share_twenty_and_go_on_without_redis() {
    let mut server = Server::start();
    let (one, other) = (Example::start(&server), Example::start(&server));
    for asked in 0..20 {
        let answer = if asked % 2 == 0 { &one } else { &other }.get();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{asked}: {answer}");
        assert!(answer.ends_with("Hello! You are within the limit.\n"), "{answer}");
    }
    for example in [&one, &other] {
        let refused = example.get();
        assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
        assert!(refused.contains("ratelimit-policy: \"default\";q=20;w=10\r\n"), "{refused}");
    }

    server.kill();
    for asked in 0..10 {
        let answer = one.get();
        assert!(
            answer.ends_with("Hello! Redis is unavailable: this process uses its own limit.\n"),
            "{asked}: {answer}"
        );
        assert!(answer.contains("ratelimit-policy: \"default\";q=10;w=10\r\n"), "{answer}");
    }
    assert!(one.get().starts_with("HTTP/1.1 429 "));

    // The new server has forgotten what was counted.
    server.restart();
    let patience = Instant::now() + Duration::from_secs(10);
    while !one.get().ends_with("Hello! You are within the limit.\n") {
        assert!(Instant::now() < patience, "it does not come back to Redis");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn without_a_redis_it_says_how_to_start_one() {
    // Nothing listens on a port that was just given back.
    let address = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        format!("redis://{}", listener.local_addr().expect("its address"))
    };
    let output = command(&address).output().expect("the example");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(told.starts_with("cannot use Redis: "), "{told}");
    assert!(told.contains("Start `redis-server`"), "{told}");
}

#[test]
fn two_processes_share_twenty_in_a_cluster() {
    let cluster = Nodes::start();
    let urls = cluster.addresses().join(",");
    let start = || Example::run(example("cluster", "REDIS_URLS", &urls));
    let (one, other) = (start(), start());
    for asked in 0..20 {
        let answer = if asked % 2 == 0 { &one } else { &other }.get();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{asked}: {answer}");
        assert!(answer.ends_with("Hello! You are within the limit.\n"), "{answer}");
    }
    for example in [&one, &other] {
        let refused = example.get();
        assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    }
    drop(cluster);
    for asked in 0..10 {
        let answer = one.get();
        assert!(
            answer.ends_with("Hello! The cluster is unavailable: this process uses its own limit.\n"),
            "{asked}: {answer}"
        );
    }

    let output = example("cluster", "REDIS_URLS", &urls).output().expect("the example");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.starts_with("cannot use the cluster: "), "{told}");
}
