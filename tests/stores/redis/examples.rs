//! The Redis examples, each run as two processes: their output is that of their first lines.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cluster_server::Cluster;
use crate::process::{Folder, Process, example, request};
use crate::server::Server;

struct Example {
    process: Process,
    address: SocketAddr,
}

impl Example {
    fn start(server: &Server) -> Self {
        Self::run(example("redis").env("REDIS_URL", server.address()))
    }

    fn run(command: &mut Command) -> Self {
        let process = Process::start(command);
        Self { address: process.address(), process }
    }

    /// Returns the response. On a busy machine the first calls may miss the limiter's deadline while it connects: the
    /// limiter sends nothing then, and charges nothing.
    fn get(&self) -> String {
        let mut answers = std::iter::repeat_with(|| self.get_once()).take(50);
        answers.find(|answer| !answer.starts_with("HTTP/1.1 503 ")).expect("a decision")
    }

    fn get_once(&self) -> String {
        request(self.address, "GET", "/", "")
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
    let output = example("redis").env("REDIS_URL", &address).output().expect("the example");
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
    let folder = Folder::new("config");
    let path = folder.path().join("limits.toml");
    let save = |quota: &str| {
        let new = path.with_extension("new");
        let limit =
            format!("[[limits]]\nname = \"x\"\nalgorithm = \"fixed-window\"\nquota = \"{quota}\"\nby = \"address\"\n");
        std::fs::write(&new, limit).expect("written");
        std::fs::rename(new, &path).expect("renamed");
    };
    save("4/h");
    let start = || Example::run(example("config").env("REDIS_URL", server.address()).arg(&path));
    let (one, other) = (start(), start());
    for example in [&one, &other, &one, &other] {
        assert!(example.get().starts_with("HTTP/1.1 200 "));
    }
    for example in [&one, &other] {
        let denied = example.get();
        assert!(denied.starts_with("HTTP/1.1 429 "), "{denied}");
    }

    save("6/h");
    for example in [&one, &other] {
        let line = example.process.line().expect("a line");
        assert!(line.starts_with("loaded the limits from "), "{line}");
    }
    for (example, remaining) in [(&one, 1), (&other, 0)] {
        let answer = example.get();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains("ratelimit-policy: \"x\";q=6;w=3600\r\n"), "{answer}");
        assert!(answer.contains(&format!("ratelimit: \"x\";r={remaining};")), "four were used before: {answer}");
    }
    assert!(one.get().starts_with("HTTP/1.1 429 "));
}

#[test]
fn two_processes_share_a_limit_in_a_cluster() {
    let cluster = Cluster::start();
    let urls = cluster.addresses().join(",");
    let start = || Example::run(example("cluster").env("REDIS_URLS", &urls));
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

    let output = example("cluster").env("REDIS_URLS", &urls).output().expect("the example");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && printed.starts_with("cannot use the cluster: "), "{printed}");
}

#[test]
fn lease_example_stays_within_the_bound() {
    let server = Server::start();
    let output = example("lease").env("REDIS_URL", server.address()).output().expect("the example");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("killed one of two processes") && text.contains(": within the limit\n"), "{text}");
    assert!(text.contains("share of leases: "), "{text}");
}

#[test]
fn reservation_id_example_settles_the_hold_of_a_killed_process() {
    let server = Server::start();
    let output = example("reservation_id").env("REDIS_URL", server.address()).output().expect("the example");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let remaining: Vec<_> = text.lines().filter_map(|line| line.split_once(": ")).map(|(_, number)| number).collect();
    // A token drains every 8.64 s.
    let held = remaining.first().is_some_and(|first| ["6000 remain", "6001 remain"].contains(first));
    assert!(held && remaining.len() == 4 && remaining[2] == remaining[3] && remaining[3].starts_with("88"), "{text}");
}
