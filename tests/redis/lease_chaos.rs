//! Leases of several processes under faults: processes die and stop, the server stalls, replies are lost and delayed.
//!
//! The short form runs by default. The long form of the documentation:
//! `LEASE_CHAOS=8,60 cargo test --release --all-features --test redis lease_chaos -- --nocapture --include-ignored`
//! (processes, seconds).

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tower_ratelimit::limiter::Acquisition;
use tower_ratelimit::store::Lease;
use tower_ratelimit::{AcquireOptions, Decision, DecisionSource, Gcra, Limiter as _, Quota, Redis, RedisServer};

use crate::exactness::{ADDRESS, TASK, child_task};
use crate::helpers::{LONG_DEADLINE, acquire};
use crate::lease_audit::{Audit, Bucket, Entry, audit};
use crate::proxy::Proxy;
use crate::server::Server;

const DURATION: Duration = Duration::from_millis(200);
const RATE: u64 = 1_000;
const KEYS: u32 = 6;
/// All processes read the clock of one machine. The times of leased decisions are anchored at it to within 20
/// microseconds, and drift by less than the rest during the test.
const BUCKET: Bucket = Bucket { rate: RATE, burst: RATE, skew: Duration::from_millis(1) };

fn limiter(server: RedisServer, lease: Lease) -> Redis<u32> {
    let quota = Gcra::new(Quota::per_second(RATE));
    Redis::builder(server, "chaos", quota).lease(lease).deadline(Duration::from_millis(300)).build().expect("limits")
}

fn entry(key: u32, decision: &Decision) -> Entry {
    Entry { time: decision.decided_at().as_micros(), key, is_admitted: decision.is_allowed() }
}

/// A process that acquires until it is killed or its time is over.
struct Worker {
    process: Child,
    log: PathBuf,
}

impl Worker {
    fn start(address: &str, folder: &Path, number: usize, load: u64, seconds: u64) -> Self {
        let log = folder.join(number.to_string());
        let process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "lease_chaos::process", "--ignored", "--nocapture", "--test-threads", "1"])
            .env(TASK, format!("{number},{load},{seconds},{}", log.display()))
            .env(ADDRESS, address)
            .stdout(Stdio::null())
            .spawn()
            .expect("a process");
        Self { process, log }
    }

    fn signal(&self, signal: &str) {
        // Fails if the process has ended by itself.
        let _ = Command::new("kill").args([signal, &self.process.id().to_string()]).status();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A stream of numbers, for reproducible choices.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// More than half of the requests go to one key, another one each second.
    fn key(&mut self, elapsed: Duration) -> u32 {
        let hot = elapsed.as_secs() % u64::from(KEYS);
        u32::try_from(if self.below(10) < 6 { hot } else { self.below(KEYS.into()) }).expect("few keys")
    }
}

/// Not a test: the child process. Acquires `load` times in each millisecond on average, in thousandths.
#[test]
#[ignore = "child process of another test"]
fn process() {
    let Some((task, server)) = child_task() else { return };
    let [number, load, seconds, log] = task.splitn(4, ',').collect::<Vec<_>>()[..] else { panic!("{task}") };
    let (load, seconds): (u64, u64) = (load.parse().expect("a load"), seconds.parse().expect("seconds"));
    let mut numbers = Numbers(number.parse().expect("a number"));
    let mut log = File::create(log).expect("a log");
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        let limiter = limiter(server, Lease::new(DURATION));
        let (sender, results) = mpsc::channel::<Entry>();
        let (began, mut made) = (Instant::now(), 0);
        while began.elapsed() < Duration::from_secs(seconds) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            // After a pause of the process, at most 100 ms are made up for.
            let due = u64::try_from(began.elapsed().as_millis()).expect("short") * load / 1_000;
            made = made.max(due.saturating_sub(load / 10));
            while made < due {
                made += 1;
                let key = numbers.key(began.elapsed());
                match limiter.acquire(&key, AcquireOptions::default()) {
                    Acquisition::Ready(Ok(outcome)) => sender.send(entry(key, &outcome.decision)).expect("a receiver"),
                    // The circuit breaker is open.
                    Acquisition::Ready(Err(_)) => {}
                    Acquisition::Pending(decision) => {
                        let sender = sender.clone();
                        tokio::spawn(async move {
                            if let Ok(outcome) = decision.await {
                                let _ = sender.send(entry(key, &outcome.decision));
                            }
                        });
                    }
                }
            }
            let mut lines = String::new();
            for Entry { time, key, is_admitted } in results.try_iter() {
                lines += &format!("{time} {key} {is_admitted}\n");
            }
            log.write_all(lines.as_bytes()).expect("written");
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
fn run(processes: usize, seconds: u64, load: u64, mut fault: impl FnMut(u64, &Server, &Proxy, &mut [Worker])) -> Audit {
    let server = Server::start();
    let proxy = Proxy::before(server.socket());
    let address = format!("redis://{}", proxy.address);
    let folder = std::env::temp_dir().join(format!("tower-ratelimit-leases-{}-{}", std::process::id(), server.port));
    fs::create_dir_all(&folder).expect("a folder");
    let mut logs = Vec::new();
    let mut start = |number: usize, seconds| {
        let worker = Worker::start(&address, &folder, number, load / processes as u64, seconds);
        logs.push(worker.log.clone());
        worker
    };
    let mut workers: Vec<_> = (0..processes).map(|number| start(number, seconds)).collect();
    let began = Instant::now();
    let mut round = 0;
    while began.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_millis(500));
        fault(round, &server, &proxy, &mut workers);
        round += 1;
        for (index, worker) in workers.iter_mut().enumerate() {
            let left = seconds.saturating_sub(began.elapsed().as_secs());
            if worker.process.try_wait().expect("its state").is_some() && left > 0 {
                // Another process replaces one that was killed.
                *worker = start(processes * (1 + usize::try_from(round).expect("few")) + index, left);
            }
        }
    }
    for worker in &mut workers {
        worker.signal("-CONT");
        let _ = worker.process.wait();
    }
    let log = logs.iter().flat_map(|path| read_log(path)).collect();
    fs::remove_dir_all(&folder).expect("removed");
    audit(log, BUCKET)
}

/// The processes and the seconds of a run.
fn size() -> (usize, u64) {
    let long = std::env::var("LEASE_CHAOS").ok();
    let size = long.as_deref().and_then(|size| size.split_once(','));
    size.map_or((4, 8), |(processes, seconds)| {
        (processes.parse().expect("processes"), seconds.parse().expect("seconds"))
    })
}

#[test]
fn faults_admit_nothing_beyond_the_bound() {
    let (processes, seconds) = size();
    // The hot key is offered nearly five times its quota.
    let audit = run(processes, seconds, RATE * 7, |round, server, proxy, workers| {
        let victim = usize::try_from(round).expect("few") % workers.len();
        match round % 6 {
            0 => workers[victim].signal("-KILL"),
            1 => proxy.cut_next_reply(),
            2 => {
                workers[victim].signal("-STOP");
                std::thread::sleep(DURATION * 3);
                workers[victim].signal("-CONT");
            }
            3 => drop(server.command(&["CLIENT", "PAUSE", "150", "ALL"])),
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
    println!("with faults: {audit:?}, share {:.4}", audit.share());
    assert_eq!(audit.beyond, 0, "{audit:?}");
    assert!(audit.admitted > RATE * seconds, "{audit:?}");
    assert!(audit.share() > 0.7, "{audit:?}");
}

#[test]
#[ignore = "measures: run it in the long form, on an idle machine"]
fn share_without_faults() {
    let (processes, seconds) = size();
    for (load, least) in [(RATE * 7, 0.98), (RATE * 7 / 10, 0.999)] {
        let audit = run(processes, seconds / 2, load, |_, _, _, _| {});
        println!("load {load}: {audit:?}, share {:.4}", audit.share());
        assert_eq!(audit.beyond, 0, "{audit:?}");
        assert!(audit.share() > least, "{audit:?}");
    }
}

/// Takes a lease, waits while the bucket refills, and spends the lease when the bucket is empty.
async fn spend_late(server: &Server, charges_at_grant: bool) -> Audit {
    let quota = || Gcra::new(Quota::per_second(RATE));
    let builder = Redis::builder(server.open(), "late", quota()).lease(Lease::new(Duration::from_secs(2)));
    let builder = if charges_at_grant { builder.charge_leases_at_grant_for_tests() } else { builder };
    let holder: Redis<u32> = builder.deadline(LONG_DEADLINE).build().expect("limits");
    let direct: Redis<u32> =
        Redis::builder(server.open(), "late", quota()).deadline(LONG_DEADLINE).build().expect("limits");
    let mut log = Vec::new();
    let began = Instant::now();
    loop {
        let decision = acquire(&holder, &0, AcquireOptions::default()).await.expect("an answer").decision;
        log.push(entry(0, &decision));
        if decision.source() == DecisionSource::Lease {
            break;
        }
        assert!(began.elapsed() < LONG_DEADLINE, "no lease");
    }
    // Less than half of the duration, after which an unused lease is released.
    tokio::time::sleep(Duration::from_millis(700)).await;
    loop {
        let decisions = (0..100).map(|_| acquire(&direct, &0, AcquireOptions::default()));
        let outcomes = futures_util::future::join_all(decisions).await;
        let decisions = outcomes.into_iter().map(|outcome| outcome.expect("an answer").decision);
        let mut entries: Vec<_> = decisions.map(|decision| entry(0, &decision)).collect();
        let is_empty = entries.iter().any(|entry| !entry.is_admitted);
        log.append(&mut entries);
        if is_empty {
            break;
        }
    }
    while let Acquisition::Ready(outcome) = holder.acquire(&0, AcquireOptions::default()) {
        log.push(entry(0, &outcome.expect("a decision").decision));
    }
    audit(log, BUCKET)
}

/// The control: a protocol that charges leases when it grants them admits too much, and the auditor finds it.
#[tokio::test]
async fn charging_at_grant_admits_too_much() {
    let exact = spend_late(&Server::start(), false).await;
    assert_eq!(exact.beyond, 0, "{exact:?}");
    let wrong = spend_late(&Server::start(), true).await;
    println!("charged when spent: {exact:?}; charged at grant: {wrong:?}");
    assert!(wrong.beyond > 0, "{wrong:?}");
}
