//! Any number of processes, runtimes and tasks admit exactly what one would.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tower_ratelimit::{
    AcquireOptions, Detail, FixedWindow, Gcra, Limit, Limiter, Quota, Redis, RedisServer, SlidingLog, SlidingWindow,
};

use crate::helpers::{LONG_DEADLINE, is_allowed, redis_limiter};
use crate::load::until;
use crate::server::Server;

/// A quota that does not refill during a test.
const fn a_day(limit: u64) -> Quota {
    Quota::per_day(limit)
}

const PROCESSES: usize = 4;
const TASKS: usize = 200;

/// Runs `work` in threads, each with a runtime of its own, and so with connections of its own, as a process has.
pub(crate) fn in_runtimes<T: Send>(count: usize, work: impl AsyncFn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count)
            .map(|number| {
                scope.spawn(move || {
                    let mut builder =
                        if number % 2 == 0 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
                    builder.worker_threads(2).enable_all().build().expect("a runtime").block_on(work(number))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn overlapping_limits(server: RedisServer) -> Redis<(u64, u64)> {
    let limits = (
        Limit::new("user", Gcra::new(a_day(100))).keyed_by(|&(user, _): &(u64, u64)| user),
        Limit::new("team", SlidingLog::new(a_day(150))).keyed_by(|&(_, team): &(u64, u64)| team),
        Limit::new("all", SlidingWindow::new(a_day(260))).keyed_by(|_: &(u64, u64)| ()),
    );
    redis_limiter(server, "overlapping", limits)
}

/// Acquires from many tasks concurrently and counts the allowed requests by key.
async fn acquire_from_many_tasks<Key>(
    limiter: impl Limiter<Key> + Clone,
    keys: &[Key],
    attempts: usize,
) -> BTreeMap<Key, u64>
where
    Key: Ord + Clone + Send + Sync + 'static,
{
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (limiter, keys) = (limiter.clone(), keys.to_vec());
        tasks.spawn(async move {
            let mut allowed: BTreeMap<Key, u64> = BTreeMap::new();
            for attempt in 0..attempts {
                let key = &keys[(task + attempt) % keys.len()];
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

#[test]
fn several_processes_admit_exactly_what_overlapping_limits_allow() {
    let server = Server::start();
    let keys: Vec<(u64, u64)> = (0..4).flat_map(|user| [(user, 0), (user, 1)]).collect();
    let processes =
        in_runtimes(PROCESSES, async |_| acquire_from_many_tasks(overlapping_limits(server.open()), &keys, 2).await);
    let (mut users, mut teams, mut all) = ([0; 4], [0; 2], 0);
    for ((user, team), allowed) in processes.into_iter().flatten() {
        users[usize::try_from(user).expect("small")] += allowed;
        teams[usize::try_from(team).expect("small")] += allowed;
        all += allowed;
    }
    // The requests exceed every limit, so the global limit is exhausted, and no user or team exceeds its own limit.
    assert_eq!(all, 260, "{users:?} {teams:?}");
    assert!(users.iter().all(|&user| user <= 100) && teams.iter().all(|&team| team <= 150), "{users:?} {teams:?}");
    // Denied requests are not charged: each limit's remaining tokens equal its limit less the allowed requests.
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let limiter = overlapping_limits(server.open());
        for (user, allowed) in users.into_iter().enumerate() {
            for (team, &in_team) in teams.iter().enumerate() {
                let key = (user as u64, team as u64);
                let decision =
                    limiter.peek(&key, AcquireOptions::default().detail(Detail::All)).await.expect("an answer");
                let left: Vec<_> = decision.limits().iter().map(tower_ratelimit::LimitStatus::remaining).collect();
                assert_eq!(left, [100 - allowed, 150 - in_team, 0]);
            }
        }
    });
}

#[test]
fn several_runtimes_admit_exactly_the_quota() {
    let server = Server::start();
    let limiter = redis_limiter::<str>(server.open(), "api", FixedWindow::new(a_day(300)));
    let attempts = || (0..128).map(|_| is_allowed(&limiter, "alice"));
    let allowed = in_runtimes(4, async |_| join_all(attempts()).await.into_iter().map(u32::from).sum::<u32>());
    assert_eq!(allowed.into_iter().sum::<u32>(), 300);
}

#[test]
fn static_limiter_works_in_successive_runtimes() {
    static SERVER: LazyLock<std::sync::Mutex<Option<Server>>> = LazyLock::new(|| Some(Server::start()).into());
    static LIMITER: LazyLock<Redis<str>> = LazyLock::new(|| {
        let address = SERVER.lock().expect("no panic").as_ref().expect("a server").open();
        redis_limiter(address, "api", Gcra::new(a_day(100)))
    });
    /// Stops the server at the end of the test, as statics are never dropped.
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
fn calls_in_a_shut_down_runtime_fail_before_the_deadline() {
    let server = Server::start();
    let limiter = redis_limiter::<str>(server.open(), "api", Gcra::new(a_day(1_000)));
    let (here, there) = (Runtime::new().expect("a runtime"), Runtime::new().expect("a runtime"));
    assert!(there.block_on(is_allowed(&limiter, "alice")));
    server.signal("-STOP");
    // Some calls are in flight and some are queued. Another runtime awaits all of them.
    let waiting: Vec<_> = {
        let _there = there.enter();
        (0..100).map(|_| limiter.acquire("alice", AcquireOptions::default())).collect()
    };
    std::thread::sleep(Duration::from_millis(50));
    let waiting = here.spawn(join_all(waiting));
    there.shutdown_background();
    let results = here.block_on(async { tokio::time::timeout(LONG_DEADLINE / 2, waiting).await });
    for result in results.expect("calls fail long before the deadline").expect("no panic") {
        assert!(result.expect_err("the runtime is shut down").is_unavailable());
    }
    server.signal("-CONT");
    // The limiter itself still works.
    assert!(here.block_on(is_allowed(&limiter, "alice")));
}

#[test]
fn runtime_shut_down_before_it_ran_does_not_break_the_limiter() {
    let server = Server::start();
    let limiter = redis_limiter::<str>(server.open(), "api", Gcra::new(a_day(1_000)));
    let never_run = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let waiting: Vec<_> = {
        let _there = never_run.enter();
        (0..3).map(|_| limiter.acquire("alice", AcquireOptions::default())).collect()
    };
    drop(never_run);
    let here = Runtime::new().expect("a runtime");
    for result in here.block_on(join_all(waiting)) {
        assert!(result.expect_err("the runtime is shut down").is_unavailable());
    }
    assert!(here.block_on(is_allowed(&limiter, "alice")));
}

#[test]
fn stopped_runtime_does_not_delay_other_runtimes() {
    let server = Server::start();
    let limiter = redis_limiter::<str>(server.open(), "api", Gcra::new(a_day(1_000)));
    let idle = Builder::new_current_thread().enable_all().build().expect("a runtime");
    assert!(idle.block_on(is_allowed(&limiter, "alice")));
    // Another call is queued in the idle runtime.
    let left = {
        let _there = idle.enter();
        limiter.acquire("alice", AcquireOptions::default())
    };
    let driven = Builder::new_current_thread().enable_all().build().expect("a runtime");
    for _ in 0..10 {
        assert!(driven.block_on(is_allowed(&limiter, "alice")));
    }
    // When the first runtime runs again, its call completes.
    assert!(idle.block_on(left).expect("an answer").decision.is_allowed());
}

#[tokio::test]
async fn dropped_limiter_answers_its_calls_and_closes_its_connection() {
    let server = Server::start();
    let limiter = Arc::new(redis_limiter::<str>(server.open(), "api", Gcra::new(a_day(1_000))));
    let attempts: Vec<_> = (0..300).map(|_| limiter.acquire("alice", AcquireOptions::default())).collect();
    drop(limiter);
    for result in join_all(attempts).await {
        assert!(result.expect("an answer").decision.is_allowed());
    }
    // The limiter's connection closes too. Only the connection of this command remains.
    until("one connection", async || server.command(&["CLIENT", "LIST"]).matches("id=").count() == 1).await;
}
