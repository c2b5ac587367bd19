//! Leases of several processes under faults: processes die and stop, the server stalls or loses its data, replies are
//! lost and delayed, slots of a cluster move. A process that gets no reply sends its report again, so the server gets
//! reports twice.
//!
//! The short form runs by default. The long form of the documentation:
//! `LEASE_CHAOS=8,60 cargo test --release --all-features --test redis lease_chaos -- --nocapture --include-ignored`
//! (processes, seconds).

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use tokio::runtime::Builder;
use tower_ratelimit::store::Lease;
use tower_ratelimit::{AcquireOptions, Decision, Gcra, Limiter as _, Quota, Redis, RedisServer};

use crate::child::{child_task, command};
use crate::cluster_server::{Cluster, MASTERS};
use crate::helpers::LONG_DEADLINE;
use crate::oracle_model::{Job, SECOND, bucket_excess};
use crate::process::{Folder, Process};
use crate::proxy::Proxy;
use crate::random::Random;
use crate::server::Server;

const DURATION: Duration = Duration::from_millis(200);
/// So low that processes on two busy processors make the load, and that each of eight leases still has ten units.
const RATE: u64 = 400;
/// The `max_share` of a lease, in units.
const MAX_HELD: u64 = RATE / 4;
const KEYS: u64 = 16;
/// The demand of the first key, of the sum of 1, 1/2, 1/3 .. 1/16.
const HOT_SHARE: f64 = 0.2958;
/// All processes read the clock of one machine. The times of leased decisions are anchored at it to within 20
/// microseconds, and drift by less than the rest of a millisecond during the test.
const SKEW: u64 = 1_000;

/// One decision of cost one: its key, its time in microseconds, and whether it was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    key: u64,
    time: u64,
    is_admitted: bool,
}

/// What a bucket of each key says of the decisions of all processes.
#[derive(Clone, Copy, Debug, Default)]
struct Audit {
    admitted: u64,
    /// The tokens beyond the bucket of any key, rounded up.
    beyond: u64,
    /// The admissions of one bucket that sees all requests.
    ideal: u64,
}

impl Audit {
    fn of(mut log: Vec<Entry>) -> Self {
        log.sort_unstable();
        let mut audit = Self::default();
        for log in log.chunk_by(|one, next| one.key == next.key) {
            let job = |entry: &Entry| Job { begin: entry.time, end: entry.time + SKEW, cost: 1 };
            let jobs: Vec<_> = log.iter().filter(|entry| entry.is_admitted).map(job).collect();
            let excess: u64 = bucket_excess(&jobs, RATE, RATE).iter().map(|(_, millionths)| millionths).sum();
            audit.admitted += jobs.len() as u64;
            audit.beyond = audit.beyond.max(excess.div_ceil(SECOND));
            let (mut used, mut at) = (0_u64, 0);
            for entry in log {
                used = used.saturating_sub(RATE * (entry.time - at));
                at = entry.time;
                if used + SECOND <= RATE * SECOND {
                    used += SECOND;
                    audit.ideal += 1;
                }
            }
        }
        audit
    }

    #[allow(clippy::cast_precision_loss, reason = "a share for people")]
    fn share(&self) -> f64 {
        self.admitted as f64 / self.ideal.max(1) as f64
    }
}

fn limiter(server: RedisServer, lease: Lease) -> Redis<u64> {
    let quota = Gcra::new(Quota::per_second(RATE));
    Redis::builder(server, "chaos", quota).lease(lease).deadline(Duration::from_millis(300)).build().expect("limits")
}

fn entry(key: u64, decision: &Decision) -> Entry {
    Entry { time: decision.decided_at().as_micros(), key, is_admitted: decision.is_allowed() }
}

/// A process that acquires until it is killed or its time is over.
struct Worker {
    process: Process,
    log: PathBuf,
}

impl Worker {
    fn start(address: &str, folder: &Path, number: usize, load: u64, seconds: u64) -> Self {
        let log = folder.join(number.to_string());
        let task = format!("{number},{load},{seconds},{}", log.display());
        let mut command = command("lease_chaos::process", &task, address);
        Self { process: Process::start(command.stdout(Stdio::null())), log }
    }
}

/// A key of a Zipf distribution. Each second, another key is the first.
fn key(random: &mut Random, now: Duration) -> u64 {
    const SCALE: u64 = 1 << 20;
    let weights = (1..=KEYS).map(|rank| SCALE / rank);
    let mut place = random.below(weights.clone().sum());
    let mut rank = 0;
    for weight in weights {
        if place < weight {
            break;
        }
        place -= weight;
        rank += 1;
    }
    (rank + now.as_secs()) % KEYS
}

/// Not a test: the child process. Acquires `load` times in each millisecond on average, in thousandths.
#[test]
#[ignore = "child process of another test"]
fn process() {
    let Some((task, server)) = child_task() else { return };
    let [number, load, seconds, log] = task.splitn(4, ',').collect::<Vec<_>>()[..] else { panic!("{task}") };
    let (load, seconds): (u64, u64) = (load.parse().expect("a load"), seconds.parse().expect("seconds"));
    let mut numbers = Random(number.parse().expect("a number"));
    let mut log = File::create(log).expect("a log");
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        let limiter = limiter(server, Lease::new(DURATION));
        let (sender, results) = mpsc::channel::<Entry>();
        let (began, mut made, mut has_admitted) = (Instant::now(), 0, false);
        // On a slow machine the first decisions may all miss their deadline.
        while began.elapsed() < Duration::from_secs(seconds) || !has_admitted && began.elapsed() < LONG_DEADLINE {
            tokio::time::sleep(Duration::from_millis(1)).await;
            // After a pause of the process, at most 100 ms are made up for.
            let due = u64::try_from(began.elapsed().as_millis()).expect("short") * load / 1_000;
            made = made.max(due.saturating_sub(load / 10));
            while made < due {
                made += 1;
                let key = key(&mut numbers, UNIX_EPOCH.elapsed().expect("a time after 1970"));
                match limiter.acquire(&key, AcquireOptions::default()).try_ready() {
                    Ok(Ok(outcome)) => sender.send(entry(key, &outcome.decision)).expect("a receiver"),
                    // The circuit breaker is open.
                    Ok(Err(_)) => {}
                    Err(decision) => {
                        let sender = sender.clone();
                        tokio::spawn(async move {
                            if let Ok(outcome) = decision.await {
                                let _ = sender.send(entry(key, &outcome.decision));
                            }
                        });
                    }
                }
            }
            let mut lines = Vec::new();
            for Entry { time, key, is_admitted } in results.try_iter() {
                writeln!(lines, "{time} {key} {is_admitted}").expect("memory");
                has_admitted |= is_admitted;
            }
            log.write_all(&lines).expect("written");
        }
        let _ = limiter.close().await;
    });
}

fn read_log(path: &Path) -> Vec<Entry> {
    let Ok(file) = File::open(path) else { return Vec::new() };
    let entries = BufReader::new(file).lines().map_while(Result::ok).filter_map(|line| {
        let mut words = line.split(' ');
        let (time, key) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        // The last line of a killed process may be cut.
        Some(Entry { time, key, is_admitted: words.next()?.parse().ok()? })
    });
    entries.collect()
}

/// Runs processes for some seconds, and does something to them every half a second.
fn run(address: &str, processes: usize, seconds: u64, load: u64, mut fault: impl FnMut(u64, &mut [Worker])) -> Audit {
    let folder = Folder::new("leases");
    let mut logs = Vec::new();
    let mut start = |number: usize, seconds| {
        let worker = Worker::start(address, folder.path(), number, load / processes as u64, seconds);
        logs.push(worker.log.clone());
        worker
    };
    let mut workers: Vec<_> = (0..processes).map(|number| start(number, seconds)).collect();
    let began = Instant::now();
    let mut round = 0;
    while began.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_millis(500));
        fault(round, &mut workers);
        round += 1;
        for (index, worker) in workers.iter_mut().enumerate() {
            let left = seconds.saturating_sub(began.elapsed().as_secs());
            if worker.process.status().is_some() && left > 0 {
                // Another process replaces one that was killed.
                *worker = start(processes * (1 + usize::try_from(round).expect("few")) + index, left);
            }
        }
    }
    for worker in &mut workers {
        worker.process.wait();
    }
    let log = logs.iter().flat_map(|path| read_log(path)).collect();
    Audit::of(log)
}

/// Prints a result, and the load of the machine: a busy one delays processes, and so reduces the share.
fn print(name: &str, size: (usize, u64), audit: &Audit) {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let (processes, seconds) = size;
    println!(
        "{name}, {processes} processes, {seconds} s: {audit:?}, share {:.4}; load average {}",
        audit.share(),
        load.split(' ').next().unwrap_or_default()
    );
}

/// Requires a share in the long form. In the short form the machine may be slow: then fewer are admitted.
fn assert_share(audit: &Audit, admitted: u64, share: f64) {
    assert!(audit.admitted > 0, "{audit:?}");
    if std::env::var_os("LEASE_CHAOS").is_some() {
        assert!(audit.admitted > admitted && audit.share() > share, "{audit:?}");
    }
}

/// The processes and the seconds of a run.
fn size() -> (usize, u64) {
    let long = std::env::var("LEASE_CHAOS").ok();
    let size = long.as_deref().and_then(|size| size.split_once(','));
    size.map_or((3, 4), |(processes, seconds)| {
        (processes.parse().expect("processes"), seconds.parse().expect("seconds"))
    })
}

/// The load of a run: the first key is offered three times its quota, and the second one and a half.
const SATURATED: u64 = 10 * RATE;

/// Stops a process for so long that its leases expire.
fn stop(worker: &Worker) {
    worker.process.signal("-STOP");
    std::thread::sleep(DURATION * 3);
    worker.process.signal("-CONT");
}

#[test]
fn faults_admit_nothing_beyond_the_bound() {
    let (processes, seconds) = size();
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let address = format!("redis://{}", proxy.address);
    let audit = run(&address, processes, seconds, SATURATED, |round, workers| {
        let victim = usize::try_from(round).expect("few") % workers.len();
        match round % 6 {
            0 => workers[victim].process.signal("-KILL"),
            1 => proxy.cut_next_reply(),
            2 => stop(&workers[victim]),
            3 => server.pause(Duration::from_millis(150)),
            4 => {
                proxy.hold(true);
                std::thread::sleep(DURATION * 3 / 2);
                proxy.hold(false);
            }
            _ => {
                proxy.shut(true);
                proxy.shut(false);
            }
        }
    });
    print("with faults", size(), &audit);
    assert_eq!(audit.beyond, 0, "{audit:?}");
    assert_share(&audit, RATE * seconds, 0.7);
}

/// The slot of the first key moves to another node, while processes die and stop, and nodes stall.
#[test]
fn moving_slots_admit_nothing_beyond_the_bound() {
    let (processes, seconds) = size();
    let cluster = Cluster::start();
    let named = limiter(cluster.open(), Lease::new(DURATION));
    let mut masters = HashMap::new();
    let mut moves = 0;
    let audit = run(&cluster.addresses().join(","), processes, seconds, SATURATED, |round, workers| {
        let victim = usize::try_from(round).expect("few") % workers.len();
        match round % 5 {
            0 => workers[victim].process.signal("-KILL"),
            2 => stop(&workers[victim]),
            3 => cluster.nodes[victim % MASTERS].pause(Duration::from_millis(150)),
            _ => {
                let key = round / 2 % KEYS;
                let key = named.redis_key("default", &key).expect("a limit");
                let slot = cluster.slot(&key);
                let at = masters.entry(slot).or_insert_with(|| cluster.first_master_of(&key));
                cluster.migrate(slot, *at, (*at + 1) % MASTERS, Duration::from_millis(20));
                *at = (*at + 1) % MASTERS;
                moves += 1;
            }
        }
    });
    print(&format!("in a cluster, {moves} slots moved"), size(), &audit);
    assert!(moves > 0, "no slot moved");
    assert_eq!(audit.beyond, 0, "{audit:?}");
    assert_share(&audit, RATE * seconds / 2, 0.0);
}

/// A flush loses at most the usage of one bucket, and what leases hold.
#[test]
fn flushes_admit_at_most_one_bucket_and_the_leases_more() {
    let (processes, seconds) = size();
    let server = Server::start();
    let mut flushes = 0;
    let audit = run(&server.address(), processes, seconds, SATURATED, |round, _| {
        if round % 6 == 4 {
            assert!(server.command(&["FLUSHALL"]).starts_with("+OK"));
            flushes += 1;
        }
    });
    print(&format!("{flushes} flushes"), size(), &audit);
    assert!(flushes > 0, "no flush");
    assert!(audit.beyond <= flushes * (RATE + MAX_HELD), "{flushes} flushes, {audit:?}");
}

#[test]
#[ignore = "measures: run it in the long form, on an idle machine"]
fn share_without_faults() {
    let (processes, seconds) = size();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a load")]
    let below_quota = (0.7 * RATE as f64 / HOT_SHARE) as u64;
    for (name, load, least) in [("saturated", SATURATED, 0.98), ("at load 0.7", below_quota, 0.999)] {
        let server = Server::start();
        let audit = run(&server.address(), processes, seconds, load, |_, _| {});
        print(name, size(), &audit);
        assert_eq!(audit.beyond, 0, "{audit:?}");
        assert!(audit.share() >= least, "{audit:?}");
    }
}
