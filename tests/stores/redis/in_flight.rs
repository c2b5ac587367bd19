//! Limits on requests in flight that processes share: renewal, death, and stops of processes.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::runtime::Builder;
use tokio::time::{advance, pause, resume, sleep};
use tower_ratelimit::limiter::Outcome;
use tower_ratelimit::observe::Event;
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{AcquireOptions, Clock, InFlight, Limiter as _, ManualClock, Redis, RedisServer};

use crate::child::{child_task, command};
use crate::helpers::{LONG_DEADLINE, acquire};
use crate::holds::pass_expiries;
use crate::load::until;
use crate::process::Process;
use crate::server::Server;

/// A short hold expiry.
const SHORT_EXPIRY: Duration = Duration::from_millis(600);

fn request(cost: u64) -> AcquireOptions {
    AcquireOptions::cost(cost).keep_guard()
}

async fn start(limiter: &Redis<str>, cost: u64) -> Outcome {
    acquire(limiter, "alice", request(cost)).await.expect("an answer")
}

async fn remaining(limiter: &Redis<str>) -> u64 {
    limiter.peek("alice", AcquireOptions::cost(0)).await.expect("an answer").remaining().expect("a limit")
}

/// Waits until so much can be started.
async fn wait_for_remaining(limiter: &Redis<str>, expected: u64) {
    until("so much remains", async || remaining(limiter).await == expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_flight_requests_are_renewed_and_released_in_redis() {
    let (server, clock) = (Server::start(), ManualClock::new());
    let (limiter, _) = on_clock(&server, &clock, InFlight::new(3));
    let two = start(&limiter, 2).await;
    assert_eq!(two.decision.remaining(), Some(1));
    let denied = start(&limiter, 2).await;
    assert_eq!(denied.decision.retry_after(), Some(Duration::from_secs(1)));
    assert!(denied.decision.is_estimate() && denied.held.is_none());
    assert!(start(&limiter, 4).await.decision.exceeds_limit());
    pass_expiries(&server, &clock, SHORT_EXPIRY);
    assert_eq!(remaining(&limiter).await, 1, "the process renews its holds");
    two.held.expect("allowed").release().await.expect("released");
    assert_eq!(remaining(&limiter).await, 3);
    drop(start(&limiter, 3).await);
    wait_for_remaining(&limiter, 3).await;
    assert!(server.keys().is_empty(), "nothing is stored for a key without requests in flight");
}

/// A limiter whose server time is `clock`, and the uncounted costs that it has reported.
fn on_clock(server: &Server, clock: &ManualClock, limits: impl IntoRedisLimits<str>) -> (Redis<str>, Arc<AtomicU64>) {
    let uncounted = Arc::new(AtomicU64::new(0));
    let total = Arc::clone(&uncounted);
    let limiter = Redis::builder(server.open(), "api", limits)
        .clock_for_tests(clock.clone())
        .hold_expiry(SHORT_EXPIRY)
        .deadline(LONG_DEADLINE)
        .observe(move |event: &Event<'_>| {
            if let Event::InFlightUncounted { cost, .. } = event {
                total.fetch_add(*cost, Ordering::SeqCst);
            }
        });
    (limiter.build().expect("limits"), uncounted)
}

/// A process whose holds have expired while it was stopped counts its requests again, as far as there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_flight_renewal_after_an_expiry_takes_free_places_only() {
    let server = Server::start();
    let clock = ManualClock::new();
    let (stopped, uncounted) = on_clock(&server, &clock, InFlight::new(3));
    let (other, _) = on_clock(&server, &clock, InFlight::new(3));
    let [first, second] = [start(&stopped, 1).await, start(&stopped, 1).await];

    // The holds expire: places for three are free, and the next renewal takes two of them.
    clock.advance(SHORT_EXPIRY * 10);
    wait_for_remaining(&other, 1).await;
    assert_eq!(uncounted.load(Ordering::SeqCst), 0);

    // They expire again, and another process takes two places first.
    clock.advance(SHORT_EXPIRY * 10);
    let taken = start(&other, 2).await;
    let Some(taken) = taken.held else {
        // The renewal was first.
        assert_eq!(remaining(&other).await, 1);
        return;
    };
    until("an event", async || uncounted.load(Ordering::SeqCst) > 0).await;
    assert_eq!(remaining(&other).await, 0, "one of the two requests is counted again");
    assert_eq!(uncounted.load(Ordering::SeqCst), 1, "reported once");

    // The uncounted request is counted as soon as there is room, and each ends once.
    taken.release().await.expect("released");
    wait_for_remaining(&other, 1).await;
    first.held.expect("allowed").release().await.expect("released");
    assert_eq!(remaining(&other).await, 2);
    second.held.expect("allowed").release().await.expect("released");
    assert_eq!(remaining(&other).await, 3);
    let _ = clock.now();
}

/// A request that never ends does not count after the maximum duration, although its process renews its hold.
#[tokio::test]
async fn in_flight_request_does_not_count_after_the_maximum_duration_in_redis() {
    let (server, clock) = (Server::start(), ManualClock::new());
    let (limiter, _) = on_clock(&server, &clock, InFlight::new(2).max_duration(Duration::from_secs(3_600)));
    let overdue = start(&limiter, 2).await.held.expect("allowed");
    for (passed, expected) in [(3_599, 0), (1, 2)] {
        pause();
        advance(Duration::from_secs(passed)).await;
        resume();
        wait_for_remaining(&limiter, expected).await;
    }
    let next = start(&limiter, 1).await.held.expect("allowed");
    overdue.release().await.expect("done");
    assert_eq!(remaining(&limiter).await, 1, "the overdue request has ended before");
    next.release().await.expect("released");
    assert_eq!(remaining(&limiter).await, 2);
}

/// The holds of a process that does not exist any more are freed, not charged.
#[test]
fn in_flight_holds_of_a_dead_process_are_freed() {
    let (server, clock) = (Server::start(), ManualClock::new());
    let limiter = || on_clock(&server, &clock, InFlight::new(2)).0;
    let dead = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let held = dead.block_on(async { start(&limiter(), 2).await.held.expect("allowed") });
    dead.shutdown_background();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let limiter = limiter();
        assert_eq!(remaining(&limiter).await, 0);
        clock.advance(SHORT_EXPIRY);
        assert_eq!(remaining(&limiter).await, 2);
    });
    // Without a runtime nothing can be sent.
    drop(held);
}

// Six processes.

const LIMIT: u64 = 5;
/// A process of the test may stand still for nearly as long.
const EXPIRY: Duration = Duration::from_secs(30);

fn shared_limiter(server: RedisServer) -> Redis<str> {
    let limiter = Redis::builder(server, "api", InFlight::new(LIMIT));
    let limiter = limiter.observe(|event: &Event<'_>| {
        if matches!(event, Event::InFlightUncounted { .. }) {
            println!("log: uncounted 0 0");
        }
    });
    limiter.hold_expiry(EXPIRY).deadline(LONG_DEADLINE).build().expect("limits")
}

fn now_in_nanos() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos()
}

/// Not a test: the child process. Three tasks run requests. After the parent has written `linger`, the next request
/// lasts until the parent writes `quit`.
#[test]
#[ignore = "child process of another test"]
fn in_flight_process() {
    let Some((_, server)) = child_task() else { return };
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let [linger, quit] = [Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false))];
    let limiter = runtime.block_on(async { shared_limiter(server) });
    let tasks: Vec<_> = (0..3_u64)
        .map(|task| {
            let (limiter, linger, quit) = (limiter.clone(), Arc::clone(&linger), Arc::clone(&quit));
            runtime.spawn(async move {
                let mut number = task;
                while !quit.load(Ordering::SeqCst) {
                    let Some(held) = start(&limiter, 1).await.held else {
                        sleep(Duration::from_millis(3)).await;
                        continue;
                    };
                    println!("log: start {number} {}", now_in_nanos());
                    if linger.swap(false, Ordering::SeqCst) {
                        println!("log: linger {number} 0");
                        while !quit.load(Ordering::SeqCst) {
                            sleep(Duration::from_millis(5)).await;
                        }
                    }
                    sleep(Duration::from_millis(5 + number % 20)).await;
                    println!("log: end {number} {}", now_in_nanos());
                    held.release().await.expect("released");
                    number += 3;
                }
            })
        })
        .collect();
    for line in std::io::stdin().lines() {
        match line.expect("a line").as_str() {
            "linger" => linger.store(true, Ordering::SeqCst),
            _ => break,
        }
    }
    quit.store(true, Ordering::SeqCst);
    runtime.block_on(async {
        for task in tasks {
            task.await.expect("no panic");
        }
    });
    println!("log: done 0 0");
}

struct Requests {
    process: Process,
    /// Of each line: what, the number of the request, the time.
    log: Vec<(String, u64, u128)>,
}

impl Requests {
    fn start(server: &Server) -> Self {
        let mut command = command("in_flight::in_flight_process", "in-flight", &server.address());
        Self { process: Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped())), log: Vec::new() }
    }

    /// Reads the log up to a line of this kind, or to the end of the process.
    fn read(&mut self, until: &str) {
        while let Some(line) = self.process.line() {
            let Some((_, entry)) = line.split_once("log: ") else { continue };
            let mut words = entry.split(' ');
            let what = words.next().unwrap_or_default().to_owned();
            let mut number = || words.next().and_then(|word| word.parse::<u128>().ok());
            // The line of a killed process may be incomplete.
            if let (Some(request), Some(time)) = (number(), number()) {
                self.log.push((what, u64::try_from(request).expect("small"), time));
                if self.log.last().is_some_and(|entry| entry.0 == until) {
                    return;
                }
            }
        }
        assert_eq!(until, "end of the process");
    }

    /// Returns the times from the start to the end of each request. One without an end has ended at `cut`, and one that
    /// was in flight at that time has, too: the process was stopped then.
    fn requests(&mut self, cut: Option<u128>) -> Vec<(u128, u128)> {
        self.read("end of the process");
        let mut ends: HashMap<u64, u128> = HashMap::new();
        for (what, request, time) in &self.log {
            if what == "end" {
                ends.insert(*request, *time);
            }
        }
        let starts = self.log.iter().filter(|entry| entry.0 == "start");
        starts
            .map(|(_, request, start)| {
                let end = ends.get(request).copied();
                let end = match cut {
                    Some(cut) if *start <= cut => end.unwrap_or(cut).min(cut),
                    _ => end.unwrap_or(*start),
                };
                (*start, end)
            })
            .collect()
    }
}

/// Returns the maximum number of requests that overlap.
fn max_overlap(requests: &[(u128, u128)]) -> usize {
    let overlapping = |time: u128| requests.iter().filter(|(start, end)| *start <= time && time < *end).count();
    requests.iter().map(|(start, _)| overlapping(*start)).max().unwrap_or(0)
}

/// The requests of six processes never overlap more than the limit while their holds last, although two processes are
/// killed and one is stopped in the middle of a request.
#[test]
fn in_flight_is_exact_over_six_processes_of_which_two_are_killed_and_one_is_stopped() {
    let server = Server::start();
    let mut processes: Vec<_> = (0..6).map(|_| Requests::start(&server)).collect();
    for process in &mut processes {
        process.read("start");
    }
    // Each of these processes then holds one place, in the middle of a request.
    for process in &mut processes[..3] {
        process.process.write("linger");
        process.read("linger");
    }
    let killed_at = now_in_nanos();
    let began = Instant::now();
    processes[0].process.signal("-KILL");
    processes[1].process.signal("-KILL");
    processes[2].process.signal("-STOP");
    // Meanwhile the other processes go on, and end then.
    std::thread::sleep(Duration::from_secs(2));
    for process in &mut processes[3..] {
        process.process.write("quit");
        process.read("done");
    }
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let limiter = shared_limiter(server.open());
        let all = loop {
            if let Some(held) = start(&limiter, LIMIT).await.held {
                break held;
            }
            assert!(began.elapsed() < LONG_DEADLINE, "the places of dead processes are not free");
            sleep(Duration::from_millis(10)).await;
        };
        // The continued process finds no place for its requests. They run on and end, and nothing is left.
        processes[2].process.signal("-CONT");
        processes[2].read("uncounted");
        assert!(start(&limiter, 1).await.held.is_none(), "all places are taken");
        all.release().await.expect("released");
        processes[2].process.write("quit");
        processes[2].read("done");
        wait_for_remaining(&limiter, LIMIT).await;
    });
    // A hold lasts at least two thirds of the expiry after the process was stopped.
    let expired_at = killed_at + (EXPIRY / 2).as_nanos();
    let mut requests = Vec::new();
    for (index, process) in processes.iter_mut().enumerate() {
        requests.extend(process.requests(match index {
            0 | 1 => Some(killed_at),
            2 => Some(expired_at),
            _ => None,
        }));
    }
    let overlap = max_overlap(&requests);
    assert_eq!(overlap, usize::try_from(LIMIT).expect("small"), "the limit is reached and never exceeded");
}
