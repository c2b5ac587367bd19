//! The Redis examples, each run as two processes: their output is that of their first lines.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cluster_server::Cluster;
use crate::process::{Folder, Process, TIMEOUT, example, request};
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

    fn get(&self) -> String {
        request(self.address, "GET", "/", "")
    }

    /// Returns the response by Redis. On a busy machine calls miss the limiter's deadline: it rejects, or decides by its own
    /// limit. A missed call may be charged.
    fn get_shared(&self, missed: &mut usize) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let answer = self.get();
            if !answer.starts_with("HTTP/1.1 503 ") && !answer.contains(OWN_LIMIT) {
                return answer;
            }
            assert!(Instant::now() < deadline, "Redis does not answer in time: {answer}");
            *missed += 1;
        }
    }
}

/// The policy of the examples' fallback.
const OWN_LIMIT: &str = "ratelimit-policy: \"default\";q=10;w=10\r\n";

/// Requires that two processes with a common limit admit what is left of it, but for calls that miss the deadline.
fn check_common_limit(processes: [&Example; 2], policy: &str, limit: usize) {
    let (began, mut allowed, mut missed) = (Instant::now(), 0, 0);
    for attempt in 0.. {
        let answer = processes[attempt % 2].get_shared(&mut missed);
        if answer.starts_with("HTTP/1.1 429 ") {
            assert!(answer.contains(&format!("ratelimit-policy: {policy}\r\n")), "{answer}");
            break;
        }
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("Hello! You are within the limit"), "{answer}");
        allowed += 1;
    }
    let most = limit * windows_since(began);
    assert!(allowed <= most && allowed + missed >= limit, "{allowed} of {limit}, {missed} missed");
    for process in processes {
        let is_denied = process.get_shared(&mut missed).starts_with("HTTP/1.1 429 ");
        assert!(is_denied || windows_since(began) > 1);
    }
}

/// The windows of the examples that a machine may reach: each lasts ten seconds.
fn windows_since(began: Instant) -> usize {
    1 + usize::try_from(began.elapsed().as_secs() / 9).expect("minutes")
}

/// Requires that a process without its server admits no more than its own limit.
fn check_own_limit(process: &Example, text: &str) {
    let began = Instant::now();
    let answers = std::iter::repeat_with(|| process.get()).take_while(|answer| answer.starts_with("HTTP/1.1 200 "));
    let answers: Vec<_> = answers.collect();
    assert!(answers.len() <= 10 * windows_since(began), "{answers:?}");
    assert!(answers.iter().all(|answer| answer.contains(OWN_LIMIT) && answer.ends_with(text)), "{answers:?}");
    let last = process.get();
    assert!(last.contains(OWN_LIMIT) && (last.starts_with("HTTP/1.1 429 ") || windows_since(began) > 1), "{last}");
}

#[test]
fn two_processes_share_a_limit_and_fall_back_without_redis() {
    let mut server = Server::start();
    let (one, other) = (Example::start(&server), Example::start(&server));
    check_common_limit([&one, &other], "\"default\";q=20;w=10", 20);

    server.kill();
    check_own_limit(&one, "Hello! Redis is unavailable: this process uses its own limit.\n");

    // The restarted server is empty.
    server.restart();
    let deadline = Instant::now() + TIMEOUT;
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
    assert_eq!(printed.matches("Connection refused").count(), 1, "the cause is printed once: {printed}");
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
    check_common_limit([&one, &other], "\"x\";q=4;w=3600", 4);

    save("6/h");
    for example in [&one, &other] {
        let line = example.process.line().expect("a line");
        assert!(line.starts_with("loaded the limits from "), "{line}");
    }
    // Four were used before.
    check_common_limit([&one, &other], "\"x\";q=6;w=3600", 2);
}

#[test]
fn two_processes_share_a_limit_in_a_cluster() {
    let cluster = Cluster::start();
    let urls = cluster.addresses().join(",");
    let start = || Example::run(example("cluster").env("REDIS_URLS", &urls));
    let (one, other) = (start(), start());
    check_common_limit([&one, &other], "\"default\";q=20;w=10", 20);
    drop(cluster);
    check_own_limit(&one, "Hello! The cluster is unavailable: this process uses its own limit.\n");

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
