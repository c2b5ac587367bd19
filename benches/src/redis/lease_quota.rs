//! Eight processes that share a real quota, with leases and without: the latency of decisions, and the calls of Redis.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tower_ratelimit::store::Lease;
use tower_ratelimit::{AcquireOptions, Gcra, Limiter as _, Quota, Redis, RedisServer};

use crate::harness::Harness;
use crate::server::Server;

const TASK_VARIABLE: &str = "TOWER_RATELIMIT_BENCH_LEASES";
const PROCESSES: u64 = 8;
/// Also the burst.
const RATE: u64 = 1_000;
const DURATION: Duration = Duration::from_millis(100);

/// The result of some processes.
#[derive(Default)]
struct Measured {
    /// In nanoseconds, in ascending order.
    latencies: Vec<u64>,
    admitted: u64,
    calls: f64,
}

pub(super) fn run(harness: &Harness) {
    let seconds = if harness.is_quick() { 2 } else { 10 };
    for (scenario, demand) in
        [("redis leases quota, demand 0.9", RATE * 9 / 10), ("redis leases quota, demand 10", RATE * 10)]
    {
        if !harness.wants(scenario) {
            continue;
        }
        let (leased, direct) = (measure("leased", demand, seconds), measure("direct", demand, seconds));
        let values = |of: fn(&Measured) -> f64| [("leases", of(&leased)), ("redis", of(&direct))];
        harness.report_all(
            scenario,
            &json!({ "processes": PROCESSES, "per_second": RATE, "demand": demand }),
            &[
                ("p50_us", &values(|measured| measured.percentile(50))),
                ("p99_us", &values(|measured| measured.percentile(99))),
                ("calls_per_admission", &values(|measured| measured.calls / measured.admitted.max(1) as f64)),
                (
                    "admitted_per_second",
                    &[("leases", leased.per_second(seconds)), ("redis", direct.per_second(seconds))],
                ),
            ],
        );
    }
}

impl Measured {
    fn percentile(&self, percent: usize) -> f64 {
        self.latencies.get(self.latencies.len() * percent / 100).map_or(f64::NAN, |nanos| *nanos as f64 / 1e3)
    }

    fn per_second(&self, seconds: u64) -> f64 {
        self.admitted as f64 / seconds as f64
    }
}

fn measure(mode: &str, demand: u64, seconds: u64) -> Measured {
    let server = Server::start();
    let processes: Vec<Child> = (0..PROCESSES)
        .map(|_| {
            let task = format!("{mode} {} {seconds} {}", demand / PROCESSES, server.address());
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.env(TASK_VARIABLE, task).stdout(Stdio::piped()).spawn().expect("a process")
        })
        .collect();
    let mut measured = Measured::default();
    for process in processes {
        let output = process.wait_with_output().expect("the measurements");
        let text = String::from_utf8(output.stdout).expect("text");
        let mut numbers = text.split_ascii_whitespace().map(|number| number.parse::<u64>().expect("a number"));
        measured.admitted += numbers.next().expect("the admissions");
        measured.latencies.extend(numbers);
    }
    measured.latencies.sort_unstable();
    // Each call of the client is one script.
    measured.calls = server.number_of("cmdstat_evalsha:calls=") as f64;
    measured
}

/// Measures if this process is such a process. Returns whether it is.
pub(super) fn run_as_child() -> bool {
    let Ok(task) = std::env::var(TASK_VARIABLE) else { return false };
    let task: Vec<_> = task.split(' ').collect();
    let &[mode, rate, seconds, address] = &*task else { panic!("{TASK_VARIABLE}: expected MODE RATE SECONDS ADDRESS") };
    let (rate, seconds): (u64, u64) = (rate.parse().expect("a rate"), seconds.parse().expect("seconds"));
    let server = RedisServer::open(address).expect("an address");
    let builder = Redis::<u64>::builder(server, "quota", Gcra::new(Quota::per_second(RATE)));
    let builder = builder.deadline(Duration::from_secs(5));
    let builder = if mode == "leased" { builder.lease(Lease::new(DURATION)) } else { builder };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let limiter = builder.build().expect("a limit");
    let (admitted, latencies) = runtime.block_on(demand(&limiter, rate, Duration::from_secs(seconds)));
    let latencies: Vec<_> = latencies.iter().map(|latency| latency.as_nanos().to_string()).collect();
    println!("{admitted} {}", latencies.join(" "));
    true
}

/// Makes decisions at a constant rate, in the order of their times, whether or not earlier ones have ended.
async fn demand(limiter: &Redis<u64>, rate: u64, span: Duration) -> (u64, Vec<Duration>) {
    limiter.health_check().await.expect("a server");
    let (mut admitted, mut latencies, mut pending) = (0, Vec::new(), Vec::new());
    let (began, mut made) = (Instant::now(), 0);
    while began.elapsed() < span {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let due = began.elapsed().as_millis() as u64 * rate / 1_000;
        for _ in made..due {
            let started = Instant::now();
            match limiter.acquire(&7, AcquireOptions::default()).try_ready() {
                Ok(outcome) => {
                    latencies.push(started.elapsed());
                    admitted += u64::from(outcome.is_ok_and(|outcome| outcome.decision.is_allowed()));
                }
                Err(decision) => pending.push(tokio::spawn(async move {
                    let outcome = decision.await;
                    (started.elapsed(), outcome.is_ok_and(|outcome| outcome.decision.is_allowed()))
                })),
            }
        }
        made = due;
    }
    for decision in pending {
        let (latency, is_admitted) = decision.await.expect("no panic");
        latencies.push(latency);
        admitted += u64::from(is_admitted);
    }
    let _ = limiter.close().await;
    (admitted, latencies)
}
