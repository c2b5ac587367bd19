//! 64 threads on 1000 keys: the scheduler suspends threads also while they hold a lock. On all cores, and on half of one.
//!
//! Each measurement runs in its own process, which the parent can stop: a quota of half a core stops all threads of a
//! container for the second half of each period.

use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};

use crate::harness::{Harness, median};
use crate::memory::{Contestants, KeySequence, PLENTY};

const TASK_VARIABLE: &str = "TOWER_RATELIMIT_BENCH_CROWD";

const CONTESTANTS: [&str; 2] = ["ours", "governor_foldhash"];

const THREADS: usize = 64;
const KEYS: u64 = 1_000;
/// One decision of so many is measured.
const SAMPLED: u64 = 16;
/// The part of a period in which a process with half of a core runs: the default period of Linux is 100 ms.
const HALF_PERIOD: Duration = Duration::from_millis(50);

pub(crate) fn run(harness: &Harness) {
    let rounds = if harness.is_quick() { 1 } else { 5 };
    for (scenario, is_half) in [("memory 64 threads", false), ("memory 64 threads on half of a core", true)] {
        if !harness.wants(scenario) {
            continue;
        }
        let mut measured = CONTESTANTS.map(|_| Vec::new());
        for _ in 0..rounds {
            for (name, measured) in CONTESTANTS.iter().zip(&mut measured) {
                measured.push(measure_in_child(name, is_half));
            }
        }
        let about = json!({ "threads": THREADS });
        for unit in ["mean_ns", "p99_9_ns", "per_second"] {
            let of = |round: &Value| round[unit].as_f64().unwrap_or(f64::NAN);
            let values: Vec<_> = CONTESTANTS
                .into_iter()
                .zip(&measured)
                .map(|(name, rounds)| (name, median(rounds.iter().map(of).collect())))
                .collect();
            harness.report(scenario, about.clone(), unit, &values);
        }
    }
}

fn measure_in_child(name: &str, is_half: bool) -> Value {
    let this = std::env::current_exe().expect("this program");
    let task = format!("{name} {is_half}");
    let child = Command::new(this).env(TASK_VARIABLE, task).stdout(Stdio::piped()).spawn().expect("a process");
    let output = if is_half { run_half(child) } else { child }.wait_with_output().expect("a process");
    serde_json::from_slice(&output.stdout).expect("the measurements")
}

/// Stops the process for half of the time, until it ends.
fn run_half(mut child: Child) -> Child {
    let id = Pid::from_child(&child);
    // An ended process remains until its parent waits for it, so the id stays valid.
    while child.try_wait().expect("a child").is_none() {
        for signal in [Signal::STOP, Signal::CONT] {
            thread::sleep(HALF_PERIOD);
            let _ = kill_process(id, signal);
        }
    }
    child
}

/// Measures if this process is such a child process. Returns whether it is.
pub(crate) fn run_as_child() -> bool {
    let Ok(task) = std::env::var(TASK_VARIABLE) else { return false };
    let (name, is_half) = task.split_once(' ').expect("CONTESTANT IS_HALF");
    if is_half == "true" {
        use_one_core();
    }
    let keys: Vec<u64> = (0..KEYS).map(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let contestants = Contestants::new(keys.len(), PLENTY);
    let mut waits = if name == "ours" {
        measure(&keys, |key| contestants.allows(key))
    } else {
        measure(&keys, |key| contestants.allows_foldhash(key))
    };
    waits.sort_unstable();
    let count = waits.len() as f64;
    println!(
        "{}",
        json!({
            "mean_ns": waits.iter().sum::<u64>() as f64 / count,
            "p99_9_ns": waits[waits.len() * 999 / 1_000],
            "per_second": count * SAMPLED as f64 / SPAN.as_secs_f64(),
        })
    );
    true
}

const SPAN: Duration = Duration::from_secs(2);

/// Returns the times of decisions by all threads, in nanoseconds.
fn measure(keys: &[u64], allows: impl Fn(&u64) -> bool + Sync) -> Vec<u64> {
    let barrier = Barrier::new(THREADS);
    let work = |thread: usize| {
        let (mut sequence, mut waits) = (KeySequence::new(keys.len(), thread), Vec::new());
        barrier.wait();
        let end = Instant::now() + SPAN;
        loop {
            let started = Instant::now();
            assert!(allows(&keys[sequence.next()]));
            let decided = Instant::now();
            waits.push(u64::try_from((decided - started).as_nanos()).expect("a short time"));
            if decided > end {
                return waits;
            }
            for _ in 1..SAMPLED {
                assert!(allows(&keys[sequence.next()]));
            }
        }
    };
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a worker")).collect()
    })
}

fn use_one_core() {
    let all = sched_getaffinity(None).expect("the cores of this process");
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|core| all.is_set(*core)).expect("a core"));
    sched_setaffinity(None, &one).expect("fewer cores");
}
