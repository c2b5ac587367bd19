//! The limiter of `examples/postgres` on a real PostgreSQL. The tests need Debian's package `postgresql`, so they are
//! ignored unless `scripts/postgres` runs them.

#[path = "../../../../tests/servers/process.rs"]
mod process;
#[path = "../../../../src/random.rs"]
mod random;
#[path = "../../../../tests/servers/server.rs"]
mod redis_server;
#[path = "../../../../tests/servers/postgres.rs"]
mod server;
#[path = "../../src/store.rs"]
mod store;
mod throughput;

use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tower_ratelimit::store::StoreLimits;
use tower_ratelimit::test_util::check_store;
use tower_ratelimit::{AcquireOptions, Detail, FixedWindow, Gcra, Limit, Limiter, ManualClock, Quota, Timestamp};

use self::process::{Process, ignored_test, listening, request, wait_until};
use self::server::Server;
use self::store::Postgres;

/// A deadline that only a hanging call misses.
const LONG: Duration = Duration::from_secs(600);
/// The environment variable with the server of a child process.
const SERVER: &str = "TOWER_RATELIMIT_TEST_POSTGRES";

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn limiter<Key: ?Sized>(config: &str, name: &str, limits: StoreLimits<Key>) -> Postgres<Key> {
    Postgres::new(config.parse().expect("a configuration"), name, limits).deadline(LONG)
}

async fn acquire<Key: ?Sized + 'static>(
    limiter: &Postgres<Key>,
    key: &Key,
    options: AcquireOptions,
) -> Result<tower_ratelimit::Decision, tower_ratelimit::Error> {
    limiter.acquire(key, options).await.map(|outcome| outcome.decision)
}

fn create_table(server: &Server) {
    let limits = StoreLimits::<str>::new(Gcra::new(Quota::per_second(1))).expect("a limit");
    runtime().block_on(async { limiter(&server.config(), "any", limits).create_table().await }).expect("a table");
}

/// Runs an ignored test of this binary in a child process.
fn run_test(name: &str, config: &str, task: &str) -> Process {
    let mut command = ignored_test(name);
    Process::start(command.env(SERVER, config).env("TASK", task).stdout(Stdio::piped()))
}

/// Returns the status at the end of the process, and the numbers behind `reported: `.
fn reported(process: Process) -> (ExitStatus, Vec<u64>) {
    let (status, lines) = process.output();
    (status, lines.iter().filter_map(|line| line.split_once("reported: ")?.1.parse().ok()).collect())
}

/// The server and the task of a child process. `None` if no test has started it.
fn child_task() -> Option<(String, String)> {
    Some((std::env::var(SERVER).ok()?, std::env::var("TASK").ok()?))
}

#[test]
#[ignore = "needs PostgreSQL: scripts/postgres"]
fn four_processes_at_once_decide_as_memory() {
    let server = Server::start();
    create_table(&server);
    let start = |task: u64| run_test("checking_process", &server.config(), &task.to_string());
    let processes: Vec<_> = (0..4).map(start).collect();
    for process in processes {
        let (status, reported) = reported(process);
        assert!(status.success());
        let [allowed, delayed, denied, borrowed, peeks, operations] = reported[..] else { panic!("{reported:?}") };
        println!("allowed {allowed}, delayed {delayed}, denied {denied}, borrowed {borrowed}, peeks {peeks}");
        assert!(borrowed > 50, "{reported:?}");
        assert!(allowed > 1_000 && delayed > 50 && denied > 1_000 && peeks > 300 && operations > 150, "{reported:?}");
    }
}

/// Not a test: a child process.
#[test]
#[ignore = "child process of another test"]
fn checking_process() {
    let Some((config, task)) = child_task() else { return };
    let mut made = 0;
    let checked = runtime().block_on(check_store(|limits, clock| {
        made += 1;
        let limiter = limiter(&config, &format!("{task}-{made}"), limits).clock(clock);
        std::future::ready(Ok(limiter))
    }));
    let report = checked.unwrap_or_else(|violation| panic!("{violation}: {violation:?}"));
    let calls = [report.allowed, report.delayed, report.denied];
    for number in calls.into_iter().chain([report.borrowed, report.peeks, report.operations]) {
        println!("reported: {number}");
    }
}

const QUOTA: u64 = 3_000;
/// The calls of one process at the same time.
const TASKS: u64 = 16;

fn day(name: &'static str, limit: u64) -> Limit<FixedWindow> {
    Limit::new(name, FixedWindow::new(Quota::per_day(limit)))
}

/// The second limit is shared with other keys, and has a larger quota.
fn shared_limits() -> StoreLimits<str> {
    StoreLimits::new((day("key", QUOTA), day("all", QUOTA + 500).keyed_by(|_: &str| ()))).expect("limits")
}

#[test]
#[ignore = "needs PostgreSQL: scripts/postgres"]
fn four_processes_of_which_one_is_killed_admit_exactly_the_quota() {
    let server = Server::start();
    create_table(&server);
    let start = |task: u64| run_test("acquiring_process", &server.config(), &task.to_string());
    let mut processes: Vec<_> = (0..4).map(start).collect();
    // The process has made some decisions, and is making others.
    let mut killed = processes.pop().expect("four processes");
    killed.find(|line| line.contains("reported: 40").then_some(()));
    killed.kill();
    let of_killed = reported(killed).1.pop().unwrap_or(40);
    let of_others: u64 = processes.into_iter().map(|process| reported(process).1.pop().expect("a number")).sum();
    let total = of_killed + of_others;
    println!("{of_others} by three processes, {of_killed} reported by the killed one, quota {QUOTA}");
    // The killed process may have charged calls that it has not reported.
    assert!(total <= QUOTA && total + TASKS + 1 >= QUOTA, "{of_killed} + {of_others}");
    runtime().block_on(async {
        let limiter = limiter(&server.config(), "shared", shared_limits());
        let left = acquire(&limiter, "alice", AcquireOptions::cost(0).detail(Detail::All)).await.expect("a decision");
        let remaining: Vec<_> = left.limits().iter().map(tower_ratelimit::LimitStatus::remaining).collect();
        assert_eq!(remaining, [0, 500], "both limits are charged for each allowed call");
    });
}

/// Not a test: a child process.
#[test]
#[ignore = "child process of another test"]
fn acquiring_process() {
    let Some((config, _)) = child_task() else { return };
    runtime().block_on(async {
        let limiter = std::sync::Arc::new(limiter(&config, "shared", shared_limits()));
        let mut tasks = JoinSet::new();
        let allowed = std::sync::Arc::new(std::sync::Mutex::new(0));
        for _ in 0..TASKS {
            let (limiter, allowed) = (limiter.clone(), allowed.clone());
            tasks.spawn(async move {
                while acquire(&limiter, "alice", AcquireOptions::default()).await.expect("a decision").is_allowed() {
                    let mut allowed = allowed.lock().expect("no panic");
                    *allowed += 1;
                    println!("reported: {allowed}");
                }
            });
        }
        tasks.join_all().await;
        println!("reported: {}", allowed.lock().expect("no panic"));
    });
}

#[test]
#[ignore = "needs PostgreSQL: scripts/postgres"]
fn expired_rows_are_removed_and_others_stay() {
    let server = Server::start();
    create_table(&server);
    runtime().block_on(async {
        // By a clock far behind that of the server, all states have expired.
        let past = ManualClock::at(Timestamp::from_micros(1_000_000));
        let old =
            limiter(&server.config(), "old", StoreLimits::<u64>::new(day("day", 1)).expect("a limit")).clock(past);
        for key in 0..1_200 {
            assert!(acquire(&old, &key, AcquireOptions::default()).await.expect("a decision").is_allowed());
        }
        let new = limiter(&server.config(), "new", StoreLimits::<u64>::new(day("day", 1)).expect("a limit"));
        assert!(acquire(&new, &1, AcquireOptions::default()).await.expect("a decision").is_allowed());
        let removed = [new.remove_expired().await, new.remove_expired().await, new.remove_expired().await];
        assert_eq!(removed.map(|removed| removed.expect("an answer")), [1_000, 200, 0]);
        assert!(!acquire(&new, &1, AcquireOptions::default()).await.expect("a decision").is_allowed());
        assert!(acquire(&old, &1, AcquireOptions::default()).await.expect("a decision").is_allowed());
    });
}

#[test]
#[ignore = "needs PostgreSQL: scripts/postgres"]
fn error_names_the_cause_within_the_deadline_when_the_server_is_away() {
    let mut server = Server::start();
    create_table(&server);
    runtime().block_on(async {
        let limits = StoreLimits::<str>::new(day("day", 1)).expect("a limit");
        let limiter = limiter(&server.config(), "away", limits);
        assert!(acquire(&limiter, "alice", AcquireOptions::default()).await.expect("a decision").is_allowed());
        server.end();
        let (limiter, begin, mut text) = (limiter.deadline(Duration::from_millis(500)), Instant::now(), String::new());
        while !text.contains("Connection refused") {
            assert!(begin.elapsed() < LONG, "{text}");
            let error = acquire(&limiter, "alice", AcquireOptions::default()).await.expect_err("no server");
            assert!(error.is_unavailable(), "{error}");
            text = error.to_string();
        }
        assert!(text.starts_with("PostgreSQL did not decide within 500ms: "), "{text}");
        assert!(text.contains("check that the server runs"), "{text}");
        // A limiter that holds costs is an error at once.
        let Ok(Err(error)) = limiter.acquire("alice", AcquireOptions::default().hold()).try_ready() else {
            panic!("no hold")
        };
        assert!(error.is_unsupported(), "{error}");
    });
}

/// Runs the example until it listens.
fn serve(config: &str) -> (Process, SocketAddr) {
    let process = Process::start(listening(env!("CARGO_BIN_EXE_postgres")).args(config.split(' ')));
    let address = process.address();
    (process, address)
}

fn get(address: SocketAddr) -> String {
    request(address, "GET", "/", "")
}

#[test]
#[ignore = "needs PostgreSQL: scripts/postgres"]
fn example_shares_its_limit_and_falls_back() {
    let mut server = Server::start();
    let (_first, a) = serve(&server.config());
    let (_second, b) = serve(&server.config());
    // A window starts at the first request, so that all requests are in one window.
    let begin = Instant::now();
    let responses: Vec<_> = (0..15).flat_map(|_| [get(a), get(b)]).collect();
    let allowed = responses.iter().filter(|response| response.starts_with("HTTP/1.1 200")).count();
    let is_by = |response: &str, limit| response.ends_with(&format!("hello, by {limit}\n"));
    // A slow machine lets calls fail by their deadline.
    let falls_back = responses.iter().any(|response| is_by(response, "this process's limit"));
    if begin.elapsed() < Duration::from_secs(9) && !falls_back {
        assert_eq!(allowed, 20);
        assert_eq!(responses.iter().filter(|response| response.starts_with("HTTP/1.1 429")).count(), 10);
    }
    wait_until("a decision of PostgreSQL", || is_by(&get(a), "the shared limit"));
    server.end();
    wait_until("a decision of the process", || is_by(&get(a), "this process's limit"));
}
