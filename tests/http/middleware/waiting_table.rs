//! What waiting is worth: one table of goodput, waits, asks and parts, in virtual time. `scripts/waiting` prints it.
//!
//! Requests arrive whatever happens to earlier ones (open loop), but for the tenants with workers. A link is simulated by
//! a delay around a limiter in memory.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use tower::{Service, ServiceExt};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::{BoxLimiter, FixedWindow, Gcra, LeakyQueue, Quota, SlidingLog, SlidingWindow};

use crate::fairness::tenants_below_one_capacity;
use crate::load::{Call, CallService, Counts, Remote, SECOND, held, inner, layer, limited, of_all, several};
use crate::support::{boxed, ms};

/// The result of a request that arrived.
#[derive(Clone, Copy)]
enum End {
    Served(Instant),
    RefusedAtOnce,
    RefusedLate,
    Left,
}

struct Record {
    process: usize,
    call: Call,
    arrived: Instant,
    end: End,
}

#[derive(Clone)]
struct Scenario {
    name: String,
    limiter: BoxLimiter<u32>,
    /// The cost that the limiter admits in a second.
    capacity: u32,
    /// The delay of the link of each process.
    links: Vec<Duration>,
    /// The requests in a second of each process.
    per_second: u32,
    request: fn(usize, u32) -> Call,
    patience: fn(u32) -> Duration,
    max_wait: Duration,
    /// The work of each request, whose cost is held for so long and then released.
    held_for: Option<Duration>,
    /// The part to which a request belongs.
    part: fn(usize, Call) -> usize,
    /// Workers of each tenant, instead of an open loop.
    workers: Option<u32>,
    time: Duration,
}

fn forever(_: u32) -> Duration {
    1000 * SECOND
}

/// From 0.2 to 10 s, most of them short.
fn mixed_patience(index: u32) -> Duration {
    let random = u64::from(index.wrapping_mul(2_654_435_761) >> 16) % 1000;
    ms(200 + 9800 * random * random / 1_000_000)
}

fn one_key(_: usize, _: u32) -> Call {
    Call::of(0)
}

fn own_key(process: usize, index: u32) -> Call {
    Call::of(index * 2 + u32::try_from(process).expect("few"))
}

fn tenant(_: usize, index: u32) -> Call {
    Call::of(index.wrapping_mul(2_654_435_761) / 65_536 % 3)
}

fn tenant_of_worker(_: usize, worker: u32) -> Call {
    Call::of(worker % 3)
}

/// A limit of all keys together.
fn shared(limit: impl Algorithm) -> BoxLimiter<u32> {
    several(vec![of_all(limit)])
}

fn two_limits(of_key: impl Algorithm, of_all: impl Algorithm) -> BoxLimiter<u32> {
    tenants_below_one_capacity(of_key, of_all, true)
}

impl Scenario {
    fn new(name: impl Into<String>, capacity: u32, limiter: BoxLimiter<u32>) -> Self {
        Self {
            name: name.into(),
            limiter,
            capacity,
            links: vec![Duration::ZERO],
            per_second: capacity * 3 / 2,
            request: one_key,
            patience: forever,
            max_wait: 2 * SECOND,
            held_for: None,
            part: |process, _| process,
            workers: None,
            time: 30 * SECOND,
        }
    }

    /// Calls the service of one process, and records the end of the request.
    async fn call(&self, mut service: CallService, process: usize, index: u32, records: &Mutex<Vec<Record>>) {
        let call = (self.request)(process, index).work(self.held_for.unwrap_or_default());
        let arrived = Instant::now();
        let response = async { service.ready().await?.call(call).await };
        let end = match timeout((self.patience)(index), response).await {
            Err(_) => End::Left,
            Ok(Ok(started)) => End::Served(started),
            Ok(Err(_)) if arrived.elapsed() < ms(60) => End::RefusedAtOnce,
            Ok(Err(_)) => End::RefusedLate,
        };
        records.lock().unwrap().push(Record { process, call, arrived, end });
    }

    /// Runs the load, and returns a row of the table.
    async fn run(self) -> String {
        let (records, counts) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Counts::default()));
        let (started, mut loads) = (Instant::now(), tokio::task::JoinSet::new());
        for (process, link) in self.links.iter().copied().enumerate() {
            let limiter = self.limiter.clone();
            let limiter = if link.is_zero() { limiter } else { BoxLimiter::new(Remote::new(limiter, link)) };
            let layer = layer(limiter).max_wait(self.max_wait).max_waiters(100_000).max_waiters_per_key(100_000);
            let around = if self.held_for.is_some() { held } else { limited };
            let service = around(counts.of(layer), inner());
            let (scenario, records) = (self.clone(), Arc::clone(&records));
            loads.spawn(boxed(async move { scenario.load(service, process, started, &records).await }));
        }
        while loads.join_next().await.is_some() {}
        let counts = [&counts.asks, &counts.admitted, &counts.served].map(|count| count.load(Relaxed));
        self.row(&records.lock().unwrap(), started, &counts)
    }

    async fn load(&self, service: CallService, process: usize, started: Instant, records: &Arc<Mutex<Vec<Record>>>) {
        let mut calls = tokio::task::JoinSet::new();
        for worker in 0..self.workers.unwrap_or(0) * 3 {
            let (scenario, service, records) = (self.clone(), service.clone(), Arc::clone(records));
            calls.spawn(boxed(async move {
                sleep(ms(10) * (worker % 3)).await;
                while started.elapsed() < scenario.time {
                    scenario.call(service.clone(), process, worker, &records).await;
                    sleep(ms(1)).await;
                }
            }));
        }
        let arrivals = if self.workers.is_some() { 0 } else { self.per_second };
        for index in 0..arrivals * u32::try_from(self.time.as_secs()).expect("short") {
            // At a random time within its interval.
            let random = index.wrapping_mul(2_246_822_519) / 65_536 % 1000;
            let at = SECOND * (index % arrivals) / arrivals + SECOND * random / arrivals / 1000;
            sleep_until(started + SECOND * (index / arrivals) + at).await;
            let (scenario, service, records) = (self.clone(), service.clone(), Arc::clone(records));
            calls.spawn(boxed(async move { scenario.call(service, process, index, &records).await }));
        }
        sleep_until(started + self.time).await;
        calls.abort_all();
    }

    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    fn row(&self, records: &[Record], started: Instant, &[asks, admitted, waited]: &[usize; 3]) -> String {
        let counted = started + self.time / 5..started + self.time;
        let seconds = (self.time * 4 / 5).as_secs_f64();
        let (mut served, mut waits, mut parts) = (0, Vec::new(), vec![0_u64; 8]);
        for record in records {
            let End::Served(at) = record.end else { continue };
            if counted.contains(&at) {
                served += record.call.cost;
                parts[(self.part)(record.process, record.call)] += 1;
                waits.push(at - record.arrived);
            }
        }
        waits.sort_unstable();
        let p99 = waits.get(waits.len() * 99 / 100).copied().unwrap_or_default();
        while parts.len() > 1 && parts.last() == Some(&0) {
            parts.pop();
        }
        let late = records.iter().filter(|record| matches!(record.end, End::RefusedLate)).count();
        let percent = |part: f64, of: f64| if of == 0.0 { "-".to_owned() } else { format!("{:.1}", part / of * 100.0) };
        let all = records.len() as f64;
        // A request that leaves frees its place, which nobody knows before.
        let has_left = records.iter().any(|record| matches!(record.end, End::Left));
        format!(
            "| {} | {} | {} | {:.2} | {} | {} | {} | {parts:?} |",
            self.name,
            percent(served as f64 / seconds, self.capacity.into()),
            percent(p99.as_secs_f64(), self.max_wait.as_secs_f64()),
            asks as f64 / waited.max(1) as f64,
            percent(admitted.saturating_sub(waited) as f64, admitted as f64),
            if has_left { "-".to_owned() } else { percent(self.falsely_refused(records) as f64, all) },
            percent(late as f64, all),
        )
    }

    /// Counts the requests that were refused at once although a later request of their part started within their bound.
    fn falsely_refused(&self, records: &[Record]) -> usize {
        let mut of_part = vec![Vec::new(); 16];
        for record in records {
            let part = (self.part)(record.process, record.call) + 8 * usize::from(record.process > 0);
            of_part[part].push((record.arrived, record.end));
        }
        let mut refused = 0;
        for records in &mut of_part {
            records.sort_by_key(|(arrived, _)| std::cmp::Reverse(*arrived));
            let mut earliest: Option<Instant> = None;
            for (arrived, end) in records {
                match end {
                    End::Served(at) => earliest = Some(earliest.map_or(*at, |earliest| earliest.min(*at))),
                    End::RefusedAtOnce => {
                        refused += usize::from(earliest.is_some_and(|at| at <= *arrived + self.max_wait / 100 * 99));
                    }
                    _ => {}
                }
            }
        }
        refused
    }
}

/// The scenarios of one process with this link.
fn over_link(link: &str, delay: Duration) -> Vec<Scenario> {
    let (per, mut all) = (Quota::per_second, Vec::new());
    let algorithms: [(&str, BoxLimiter<u32>); 5] = [
        ("Gcra, burst 20", shared(Gcra::new(per(10)).burst(20))),
        ("FixedWindow", shared(FixedWindow::new(per(10)))),
        ("SlidingWindow", shared(SlidingWindow::new(per(10)).blocks(50))),
        ("SlidingLog", shared(SlidingLog::new(per(10)))),
        ("LeakyQueue", shared(LeakyQueue::new(per(10)).max_waiting(100))),
    ];
    for (name, limiter) in algorithms {
        all.push(Scenario {
            links: vec![delay],
            ..Scenario::new(format!("{name}, x1.5, patient, {link}"), 10, limiter)
        });
    }
    for rate in [100, 5000, 20_000] {
        let bucket =
            Scenario::new(format!("burst 1, {rate}/s, {link}"), rate, shared(Gcra::new(per(rate.into())).burst(1)));
        let time = if rate > 100 { 4 * SECOND } else { 20 * SECOND };
        all.push(Scenario { links: vec![delay], max_wait: ms(500), time, ..bucket.clone() });
        let request = |_, index| Call::of(index % 1000);
        all.push(Scenario {
            name: format!("{}, 1000 keys", bucket.name),
            links: vec![delay],
            max_wait: ms(500),
            time,
            request,
            ..bucket
        });
    }
    for (name, burst, patience) in [
        ("users of one organisation, mixed patience", 50, mixed_patience as fn(u32) -> Duration),
        ("users of one organisation, 1 s patience", 50, |_| SECOND),
        ("the same, burst 1", 1, |_| SECOND),
    ] {
        let limiter = two_limits(Gcra::new(per(5)), Gcra::new(per(50)).burst(burst));
        let users = Scenario::new(format!("{name}, {link}"), 50, limiter);
        all.push(Scenario { links: vec![delay], request: own_key, patience, max_wait: 10 * SECOND, ..users });
    }
    let users = Scenario::new(
        format!("users of one organisation, one limit, 5 s patience, {link}"),
        10,
        shared(Gcra::new(per(10)).burst(1)),
    );
    all.push(Scenario {
        links: vec![delay],
        request: own_key,
        patience: |_| 5 * SECOND,
        max_wait: 10 * SECOND,
        ..users
    });
    let tenants = |name: String, burst: u64| {
        let limiter = two_limits(Gcra::new(per(40)).burst(burst), Gcra::new(per(50)).burst(burst));
        let part = |_: usize, call: Call| call.key as usize;
        Scenario {
            links: vec![delay],
            request: tenant,
            part,
            max_wait: 30 * SECOND,
            ..Scenario::new(name, 50, limiter)
        }
    };
    for workers in [1, 4, 20] {
        let scenario = tenants(format!("three tenants, {workers} workers, {link}"), 40);
        all.push(Scenario { workers: Some(workers), request: tenant_of_worker, ..scenario });
    }
    all.push(Scenario {
        workers: Some(4),
        request: tenant_of_worker,
        ..tenants(format!("three tenants, burst 1, 4 workers, {link}"), 1)
    });
    all.push(Scenario {
        workers: Some(20),
        request: tenant_of_worker,
        ..tenants(format!("three tenants, burst 5, 20 workers, {link}"), 5)
    });
    all.push(Scenario { max_wait: 5 * SECOND, ..tenants(format!("three tenants, open loop, {link}"), 40) });
    let costs = Scenario::new(format!("costs 1, 5 and 10, {link}"), 100, shared(Gcra::new(per(100)).burst(20)));
    let request = |_, index: u32| Call::of(0).cost([1, 5, 10][index as usize % 3]);
    let part = |_: usize, call: Call| match call.cost {
        1 => 0,
        5 => 1,
        _ => 2,
    };
    all.push(Scenario { links: vec![delay], per_second: 30, request, part, ..costs });
    let holds = Scenario::new(
        format!("holds of 200 ms, 10 at a time, {link}"),
        50,
        shared(FixedWindow::new(Quota::per_hour(10))),
    );
    all.push(Scenario { links: vec![delay], held_for: Some(ms(200)), max_wait: SECOND, ..holds });
    all
}

fn scenarios() -> Vec<Scenario> {
    let per = Quota::per_second;
    let links = [("memory", Duration::ZERO), ("0.2 ms", Duration::from_micros(200)), ("25 ms", ms(25))];
    let mut all = Vec::new();
    for (load, per_second) in [("1.5", 15), ("2", 20), ("3", 30), ("10", 100)] {
        for (link, delay) in links {
            let bucket =
                Scenario::new(format!("one key, x{load}, impatient, {link}"), 10, shared(Gcra::new(per(10)).burst(1)));
            all.push(Scenario {
                per_second,
                patience: mixed_patience,
                max_wait: 10 * SECOND,
                links: vec![delay],
                ..bucket
            });
        }
    }
    for (link, delay) in links {
        all.extend(over_link(link, delay));
    }
    let two = vec![Duration::from_micros(200), ms(25)];
    for (name, patience) in [("patient", forever as fn(u32) -> Duration), ("impatient", mixed_patience)] {
        let limiters: [(&str, BoxLimiter<u32>); 3] = [
            ("bucket", shared(Gcra::new(per(10)).burst(1))),
            ("log", shared(SlidingLog::new(per(10)))),
            ("window", shared(FixedWindow::new(per(10)))),
        ];
        for (kind, limiter) in limiters {
            let processes = Scenario::new(format!("two processes, {kind}, {name}"), 10, limiter);
            all.push(Scenario { links: two.clone(), patience, max_wait: 5 * SECOND, ..processes });
        }
    }
    let users = two_limits(Gcra::new(per(5)), Gcra::new(per(10)).burst(1));
    all.push(Scenario {
        links: two.clone(),
        per_second: 15,
        request: own_key,
        max_wait: 10 * SECOND,
        ..Scenario::new("two processes, users of one organisation", 10, users)
    });
    let bucket = shared(Gcra::new(per(50)).burst(1));
    all.push(Scenario {
        links: vec![two[0], two[1], two[1]],
        per_second: 40,
        max_wait: 5 * SECOND,
        ..Scenario::new("three processes, bucket, patient", 50, bucket)
    });
    for rate in [50, 500] {
        let bucket = shared(Gcra::new(per(rate.into())).burst(1));
        all.push(Scenario {
            links: vec![ms(25); 8],
            per_second: rate * 3 / 16,
            max_wait: 5 * SECOND,
            time: 10 * SECOND,
            ..Scenario::new(format!("eight processes, bucket {rate}/s"), rate, bucket)
        });
    }
    let costs = Scenario::new("two processes, costs 1 and 10", 10, shared(Gcra::new(per(10)).burst(20)));
    let request = |process: usize, _| Call::of(0).cost([1, 10][process]);
    all.push(Scenario {
        links: vec![ms(1); 2],
        request,
        per_second: 4,
        max_wait: 500 * SECOND,
        time: 60 * SECOND,
        ..costs
    });
    all
}

/// Prints the table. `WAITING=text` selects the scenarios whose names contain the text.
#[tokio::test(start_paused = true)]
#[ignore = "prints a table: scripts/waiting"]
async fn waiting_table() {
    let selected = std::env::var("WAITING").unwrap_or_default();
    println!(
        "| Scenario | Goodput, % | p99 of the wait, % of its bound | Asks per start | Starts lost, % | Falsely refused, % | Refused late, % | Served per part |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for scenario in scenarios().into_iter().filter(|scenario| scenario.name.contains(&selected)) {
        println!("{}", scenario.run().await);
    }
}
