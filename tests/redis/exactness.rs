//! Any number of processes, runtimes and tasks admit exactly what one would.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tower_ratelimit::{
    AcquireOptions, Detail, FixedWindow, Gcra, Limit, Limiter, ManualClock, Quota, Redis, RedisServer, SlidingLog,
    SlidingWindow,
};

use crate::helpers::{PATIENCE, acquire, every_algorithm, is_allowed, patient};
use crate::server::Server;

/// So long that nothing comes back while a test runs.
const fn a_day(limit: u64) -> Quota {
    Quota::per_day(limit)
}

const PROCESSES: usize = 4;
const TASKS: usize = 200;

/// The variable that tells a process of ours what it is for, and where its Redis is.
pub(crate) const WORK: &str = "TOWER_RATELIMIT_TEST_WORK";
pub(crate) const ADDRESS: &str = "TOWER_RATELIMIT_TEST_REDIS";

/// Runs this very program again, several times at once, for one of the tests that are ignored; returns the lines that each
/// of them wrote for us.
pub(crate) fn processes(count: usize, test: &str, work: &str, server: &Server) -> Vec<Vec<String>> {
    let program = std::env::current_exe().expect("this program");
    let children: Vec<_> = (0..count)
        .map(|_| {
            Command::new(&program)
                .args(["--exact", test, "--ignored", "--nocapture", "--test-threads", "1"])
                .env(WORK, work)
                .env(ADDRESS, server.address())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a process")
        })
        .collect();
    let lines = children.into_iter().map(|child| {
        let output = child.wait_with_output().expect("its output");
        assert!(output.status.success(), "a process failed");
        let text = String::from_utf8(output.stdout).expect("text");
        text.lines().filter_map(|line| line.split_once("told: ")).map(|(_, told)| told.to_owned()).collect()
    });
    lines.collect()
}

/// What a process that was started by [`processes`] is for, and its Redis.
pub(crate) fn orders() -> Option<(String, RedisServer)> {
    let work = std::env::var(WORK).ok()?;
    let server = RedisServer::open(&std::env::var(ADDRESS).ok()?).expect("an address");
    Some((work, server))
}

fn overlapping(server: RedisServer) -> Redis<(u64, u64)> {
    let limits = (
        Limit::new("user", Gcra::new(a_day(100))).keyed_by(|&(user, _): &(u64, u64)| user),
        Limit::new("team", SlidingLog::new(a_day(150))).keyed_by(|&(_, team): &(u64, u64)| team),
        Limit::new("all", SlidingWindow::new(a_day(260))).keyed_by(|_: &(u64, u64)| ()),
    );
    patient(server, "overlapping", limits)
}

/// Asks from many tasks at once; counts by key what was allowed.
async fn hammer<Key>(
    limiter: impl Limiter<Key> + Clone + Send + Sync + 'static,
    keys: &[Key],
    asks: usize,
) -> BTreeMap<Key, u64>
where
    Key: Ord + Clone + Send + Sync + 'static,
{
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (limiter, keys) = (limiter.clone(), keys.to_vec());
        tasks.spawn(async move {
            let mut allowed: BTreeMap<Key, u64> = BTreeMap::new();
            for ask in 0..asks {
                let key = &keys[(task + ask) % keys.len()];
                if is_allowed(&limiter, key).await {
                    *allowed.entry(key.clone()).or_default() += 1;
                }
            }
            allowed
        });
    }
    let mut all = BTreeMap::new();
    for allowed in tasks.join_all().await {
        for (key, count) in allowed {
            *all.entry(key).or_default() += count;
        }
    }
    all
}

/// Not a test: what the processes of the tests below do.
#[test]
#[ignore = "it is a part of other tests"]
fn process() {
    let Some((work, server)) = orders() else { return };
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        if work == "one key" {
            let limits: Vec<(&str, Redis<u64>)> = vec![
                ("gcra", patient(server.clone(), "gcra", Gcra::new(a_day(500)))),
                ("fixed", patient(server.clone(), "fixed", FixedWindow::new(a_day(500)))),
                ("sliding", patient(server.clone(), "sliding", SlidingWindow::new(a_day(500)))),
                ("log", patient(server, "log", SlidingLog::new(a_day(500)))),
            ];
            for (name, limiter) in limits {
                let allowed: u64 = hammer(limiter, &[7], 2).await.values().sum();
                println!("told: {name} {allowed}");
            }
        } else {
            let keys: Vec<(u64, u64)> = (0..4).flat_map(|user| [(user, 0), (user, 1)]).collect();
            for ((user, team), allowed) in hammer(overlapping(server), &keys, 2).await {
                println!("told: {user} {team} {allowed}");
            }
        }
    });
}

#[test]
fn several_processes_admit_the_quota_and_no_more_to_one_key() {
    let server = Server::start();
    let mut allowed: BTreeMap<String, u64> = BTreeMap::new();
    for line in processes(PROCESSES, "exactness::process", "one key", &server).concat() {
        let (name, count) = line.split_once(' ').expect("two words");
        *allowed.entry(name.to_owned()).or_default() += count.parse::<u64>().expect("a number");
    }
    let expected = ["fixed", "gcra", "log", "sliding"].map(|name| (name.to_owned(), 500)).into();
    assert_eq!(allowed, expected, "of {} asks each", PROCESSES * TASKS * 2);
}

#[test]
fn several_processes_admit_what_overlapping_limits_have_together() {
    let server = Server::start();
    let (mut users, mut teams, mut all) = ([0; 4], [0; 2], 0);
    for line in processes(PROCESSES, "exactness::process", "overlapping", &server).concat() {
        let numbers: Vec<usize> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
        users[numbers[0]] += numbers[2];
        teams[numbers[1]] += numbers[2];
        all += numbers[2];
    }
    // Each was asked for far more: what all may have together goes first, and nobody has more than his own.
    assert_eq!(all, 260, "{users:?} {teams:?}");
    assert!(users.iter().all(|&user| user <= 100) && teams.iter().all(|&team| team <= 150), "{users:?} {teams:?}");
    // A refusal has charged nobody: what the limits say is left is what was not allowed.
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let limiter = overlapping(server.open());
        for (user, allowed) in users.into_iter().enumerate() {
            for (team, &in_team) in teams.iter().enumerate() {
                let key = (user as u64, team as u64);
                let decision =
                    limiter.peek(&key, AcquireOptions::default().detail(Detail::All)).await.expect("an answer");
                let left: Vec<_> = decision.limits().iter().map(tower_ratelimit::LimitStatus::remaining).collect();
                assert_eq!(left, [100 - allowed as u64, 150 - in_team as u64, 0]);
            }
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_admit_the_quota_and_no_more() {
    let server = Server::start();
    for (name, limiter) in every_algorithm(&server.open(), a_day(300), None::<&ManualClock>) {
        let mut tasks = JoinSet::new();
        for _ in 0..512 {
            let limiter = limiter.clone();
            tasks.spawn(async move { u32::from(is_allowed(&limiter, "alice").await) });
        }
        assert_eq!(tasks.join_all().await.into_iter().sum::<u32>(), 300, "{name}");
    }
}

#[test]
fn several_runtimes_at_once_admit_the_quota_and_no_more() {
    let server = Server::start();
    let limiter = patient::<str>(server.open(), "api", FixedWindow::new(a_day(300)));
    let allowed: u32 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|index| {
                let limiter = &limiter;
                scope.spawn(move || {
                    let mut builder =
                        if index % 2 == 0 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
                    let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime");
                    let asks = (0..128).map(|_| is_allowed(limiter, "alice"));
                    runtime.block_on(join_all(asks)).into_iter().map(u32::from).sum::<u32>()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    assert_eq!(allowed, 300);
}

#[test]
fn a_static_limiter_serves_one_runtime_after_the_other() {
    static SERVER: LazyLock<std::sync::Mutex<Option<Server>>> = LazyLock::new(|| Some(Server::start()).into());
    static LIMITER: LazyLock<Redis<str>> = LazyLock::new(|| {
        let address = SERVER.lock().expect("no panic").as_ref().expect("a server").open();
        patient(address, "api", Gcra::new(a_day(100)))
    });
    /// A static is never dropped.
    struct Stop;
    impl Drop for Stop {
        fn drop(&mut self) {
            drop(SERVER.lock().map(|mut server| server.take()));
        }
    }
    let _stop = Stop;
    for round in 0..20 {
        let runtime = if round % 2 == 0 { Builder::new_current_thread() } else { Builder::new_multi_thread() }
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            for _ in 0..3 {
                assert!(is_allowed(&*LIMITER, "alice").await);
            }
        });
    }
}

#[test]
fn those_who_wait_for_a_runtime_that_is_shut_down_are_told() {
    let server = Server::start();
    let limiter = patient::<str>(server.open(), "api", Gcra::new(a_day(1_000)));
    let (here, there) = (Runtime::new().expect("a runtime"), Runtime::new().expect("a runtime"));
    assert!(there.block_on(is_allowed(&limiter, "alice")));
    server.pause(Duration::from_millis(300));
    // Some are under way, some wait in line; all are waited for elsewhere.
    let waiting: Vec<_> = {
        let _there = there.enter();
        (0..100).map(|_| limiter.acquire("alice", AcquireOptions::default()).into_future()).collect()
    };
    std::thread::sleep(Duration::from_millis(50));
    let waiting = here.spawn(join_all(waiting));
    there.shutdown_background();
    let told = here.block_on(async { tokio::time::timeout(PATIENCE / 2, waiting).await });
    for result in told.expect("told long before the deadline").expect("no panic") {
        assert!(result.expect_err("there is nobody to ask").is_unavailable());
    }
    // The limiter itself is well.
    assert!(here.block_on(is_allowed(&limiter, "alice")));
}

#[test]
fn a_runtime_that_was_shut_down_before_it_ever_ran_is_survived() {
    let server = Server::start();
    let limiter = patient::<str>(server.open(), "api", Gcra::new(a_day(1_000)));
    let never_run = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let waiting: Vec<_> = {
        let _there = never_run.enter();
        (0..3).map(|_| limiter.acquire("alice", AcquireOptions::default()).into_future()).collect()
    };
    drop(never_run);
    let here = Runtime::new().expect("a runtime");
    for result in here.block_on(join_all(waiting)) {
        assert!(result.expect_err("there is nobody to ask").is_unavailable());
    }
    assert!(here.block_on(is_allowed(&limiter, "alice")));
}

#[test]
fn a_runtime_that_is_no_longer_driven_holds_nobody_up() {
    let server = Server::start();
    let limiter = patient::<str>(server.open(), "api", Gcra::new(a_day(1_000)));
    let idle = Builder::new_current_thread().enable_all().build().expect("a runtime");
    assert!(idle.block_on(is_allowed(&limiter, "alice")));
    // One more is in line there, and nobody drives it.
    let left = {
        let _there = idle.enter();
        limiter.acquire("alice", AcquireOptions::default()).into_future()
    };
    let driven = Builder::new_current_thread().enable_all().build().expect("a runtime");
    for _ in 0..10 {
        assert!(driven.block_on(is_allowed(&limiter, "alice")));
    }
    // Driven again, it goes on.
    assert!(idle.block_on(left).expect("an answer").decision.is_allowed());
}

#[tokio::test]
async fn a_limiter_that_is_dropped_answers_what_was_asked_and_ends() {
    let server = Server::start();
    let limiter = Arc::new(patient::<str>(server.open(), "api", Gcra::new(a_day(1_000))));
    let asks: Vec<_> = (0..300).map(|_| limiter.acquire("alice", AcquireOptions::default()).into_future()).collect();
    drop(limiter);
    for result in join_all(asks).await {
        assert!(result.expect("an answer").decision.is_allowed());
    }
    // Its connection goes with it: there is only the one that asks.
    for _ in 0..100 {
        if server.command(&["CLIENT", "LIST"]).matches("id=").count() == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("a connection is left: {}", server.command(&["CLIENT", "LIST"]));
}

#[tokio::test]
async fn what_a_task_got_is_what_is_gone() {
    let server = Server::start();
    let limiter = patient::<str>(server.open(), "api", FixedWindow::new(a_day(300)));
    let asks = (0..200).map(|index| acquire(&limiter, "alice", AcquireOptions::cost(index % 4)));
    let outcomes = (0..200).map(|index| index % 4).zip(join_all(asks).await);
    let allowed = outcomes.filter(|(_, outcome)| outcome.as_ref().expect("an answer").decision.is_allowed());
    let charged: u64 = allowed.map(|(cost, _)| cost).sum();
    let left = limiter.peek("alice", AcquireOptions::cost(0)).await.expect("an answer").remaining();
    assert_eq!(left, Some(300 - charged));
}
