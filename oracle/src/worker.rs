//! A process that makes decisions, holds costs and counts requests in flight, and logs each admission with the times before
//! the call and after the answer. It uses the public interface only, and knows nothing about bounds.
//!
//! Arguments: the server, the log, the number of processes, the seconds to run, the hold expiry in milliseconds, and a
//! deliberate mistake or nothing.

use std::error::Error;
use std::fmt::Arguments;
use std::fs::{self, File};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Semaphore;
use tokio::time::sleep;
use tower_ratelimit::limiter::Outcome;
use tower_ratelimit::store::Lease;
use tower_ratelimit::{
    AcquireOptions, DecisionSource, FixedWindow, Gcra, InFlight, Limiter as _, Quota, Redis, RedisServer, RedisTls,
    SlidingLog,
};

use crate::audit::KEYS;
use crate::random::Random;

const DEADLINE: Duration = Duration::from_millis(300);
/// A lease, and the time between two decisions on whether to call.
const LEASE: Duration = Duration::from_millis(200);
const TICK: Duration = Duration::from_millis(2);
/// The calls and requests of this process at a time.
const MAX_CALLS: usize = 2_000;
/// The units that the deliberate mistake `grant` charges at once, and spends later.
const GRANT: u64 = 60;

/// Microseconds of the clock that all processes of the machine share.
pub(crate) fn now() -> u64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("a time after 1970");
    u64::try_from(now.as_micros()).expect("before the year 500 000")
}

/// Lines that are written in each tick. The last line of each write has the time until which the log is complete.
struct Log {
    file: File,
    lines: Mutex<Vec<u8>>,
    failed: AtomicU64,
    calls: AtomicU64,
}

impl Log {
    fn line(&self, line: Arguments<'_>) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(lines, "{line}").expect("memory");
    }

    fn flush(&self) -> Result<(), Box<dyn Error>> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(lines, "t {} {}", now(), self.failed.load(Ordering::Relaxed))?;
        (&self.file).write_all(&lines)?;
        lines.clear();
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Use {
    /// Each call charges one unit.
    Charge,
    /// Each call holds some units, and settles with another number after a while.
    Hold,
    /// Each call is a request in flight.
    Request,
}

struct Load {
    name: &'static str,
    limiter: Redis<str>,
    kind: Use,
    /// The calls per second on each key, of all processes, while demand is as large as the quota.
    rate: f64,
    /// For each key the calls that are due, and the units that the mistake `grant` has left.
    due: [f64; KEYS.len()],
    granted: Arc<[AtomicU64; KEYS.len()]>,
}

/// A request with its answer.
struct Call {
    load: &'static str,
    kind: Use,
    key: &'static str,
    cost: u64,
    /// The cost that the request has in the end, and its duration.
    actual: u64,
    lasts: Duration,
    asked: u64,
    mistake: &'static str,
}

impl Call {
    /// Logs an answer. Returns what must be done while the request lasts.
    fn answer(self, outcome: Result<Outcome, tower_ratelimit::Error>, log: &Log) -> Option<(Self, Outcome, u64)> {
        let answered = now();
        match outcome {
            Err(_) => drop(log.failed.fetch_add(1, Ordering::Relaxed)),
            Ok(outcome) if !outcome.decision.is_allowed() => {}
            Ok(outcome) => {
                let (Self { load, key, asked, .. }, id) = (&self, log.calls.fetch_add(1, Ordering::Relaxed));
                let source = if outcome.decision.source() == DecisionSource::Lease { "l" } else { "a" };
                match self.kind {
                    Use::Charge => log.line(format_args!("{source} {load} {key} {asked} {answered} 1")),
                    Use::Hold => {
                        log.line(format_args!("a {load} {key} {asked} {answered} {}", self.actual.min(self.cost)))
                    }
                    Use::Request => log.line(format_args!("f {load} {key} {id} {answered}")),
                }
                return (self.kind != Use::Charge).then_some((self, outcome, id));
            }
        }
        None
    }

    /// A request that has started, until its end.
    async fn request(self, mut outcome: Outcome, id: u64, log: &Log) {
        if self.mistake == "early" {
            drop(outcome.held.take());
        }
        sleep(self.lasts).await;
        if self.kind == Use::Request {
            log.line(format_args!("g {id} {}", now()));
            drop(outcome.held);
        } else if let Some(held) = outcome.held {
            // Without an answer, the limiter sends the settlement until it gets one.
            let _ = held.settle(if self.mistake == "unsettled" { 0 } else { self.actual }).await;
        }
    }
}

fn server(text: &str) -> Result<RedisServer, Box<dyn Error>> {
    let words: Vec<_> = text.split(' ').collect();
    Ok(match words[..] {
        ["single", address] => RedisServer::open(address)?,
        ["cluster", addresses] => RedisServer::cluster(addresses.split(','))?,
        ["sentinel", addresses] => RedisServer::sentinel(addresses.split(','), "mymaster")?,
        ["tls", address, authority] => {
            RedisServer::open(address)?.with_tls(&RedisTls::new().root_certificates(fs::read(authority)?))?
        }
        _ => return Err(format!("unknown server: {text}").into()),
    })
}

/// The limits of the model.
fn loads(server: &RedisServer, hold_expiry: Duration, mistake: &str) -> Result<Vec<Load>, Box<dyn Error>> {
    let mut loads = Vec::new();
    macro_rules! load {
        ($name:literal, $limits:expr, $kind:expr, $rate:expr, $is_leased:expr) => {
            let mut builder =
                Redis::builder(server.clone(), $name, $limits).deadline(DEADLINE).hold_expiry(hold_expiry);
            if $is_leased {
                builder = builder.lease(Lease::new(LEASE));
            }
            let limiter: Redis<str> = builder.build()?;
            loads.push(Load { name: $name, limiter, kind: $kind, rate: $rate, due: [0.0; 2], granted: Arc::default() });
        };
    }
    load!("bucket", Gcra::new(Quota::per_second(400)), Use::Charge, 400.0, mistake != "grant");
    load!("log", SlidingLog::new(Quota::per_second(300)), Use::Charge, 300.0, true);
    load!("window", FixedWindow::new(Quota::per_second(300)), Use::Charge, 300.0, true);
    load!("direct", Gcra::new(Quota::per_second(200)), Use::Charge, 200.0, false);
    load!("held", Gcra::new(Quota::per_second(300)).burst(300), Use::Hold, 100.0, false);
    load!("flight", InFlight::new(40), Use::Request, 160.0, false);
    Ok(loads)
}

#[tokio::main(worker_threads = 1)]
pub(crate) async fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [address, log, processes, seconds, expiry, mistake] = arguments else {
        return Err("six arguments".into());
    };
    let mistake: &'static str = mistake.clone().leak();
    let (processes, lasts): (f64, _) = (processes.parse()?, Duration::from_secs_f64(seconds.parse()?));
    let file = File::create(log)?;
    let log = Arc::new(Log { file, lines: Mutex::default(), failed: AtomicU64::new(0), calls: AtomicU64::new(0) });
    let mut loads = loads(&server(address)?, Duration::from_millis(expiry.parse()?), mistake)?;
    let (mut numbers, began, permits) = (Random(now()), Instant::now(), Arc::new(Semaphore::new(MAX_CALLS)));
    let mut last = began;
    while began.elapsed() < lasts {
        sleep(TICK).await;
        // After a pause of the process, at most a tenth of a second is made up for.
        let elapsed = last.elapsed().as_secs_f64().min(0.1);
        last = Instant::now();
        // All processes together demand three times the quota, then nearly all of it, then nearly nothing, so that buckets
        // fill. What the mistake `grant` keeps meanwhile is beyond the bucket in the next second.
        let factor = [3.0, 0.9, 0.1][usize::try_from(now() / 1_000_000 % 3)?];
        for load in &mut loads {
            for (index, key) in KEYS.into_iter().enumerate() {
                load.due[index] += load.rate * factor / processes * elapsed;
                while load.due[index] >= 1.0 {
                    load.due[index] -= 1.0;
                    call(load, index, key, mistake, &log, &permits, &mut numbers);
                }
            }
        }
        log.flush()?;
    }
    // The requests end, and then nothing is held.
    let _ = permits.acquire_many(u32::try_from(MAX_CALLS)?).await?;
    for load in &loads {
        let _ = load.limiter.close().await;
    }
    log.flush()
}

fn call(
    load: &Load,
    index: usize,
    key: &'static str,
    mistake: &'static str,
    log: &Arc<Log>,
    permits: &Arc<Semaphore>,
    numbers: &mut Random,
) {
    let Ok(permit) = Arc::clone(permits).try_acquire_owned() else { return };
    let grants = load.name == "bucket" && mistake == "grant";
    if grants
        && load.granted[index].fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    {
        let at = now();
        log.line(format_args!("l {} {key} {at} {at} 1", load.name));
        return;
    }
    let cost = if load.kind == Use::Hold {
        1 + numbers.below(10)
    } else if grants {
        GRANT
    } else {
        1
    };
    let lasts = Duration::from_millis(20 + numbers.below(if load.kind == Use::Hold { 500 } else { 400 }));
    let (actual, asked) = (if mistake == "unsettled" { cost } else { numbers.below(cost + 1) }, now());
    let call = Call { load: load.name, kind: load.kind, key, cost, actual, lasts, asked, mistake };
    let options = AcquireOptions::cost(cost);
    let acquired = match load.kind {
        Use::Charge => load.limiter.acquire(key, options),
        Use::Hold | Use::Request => load.limiter.hold(key, options),
    };
    let (log, granted) = (Arc::clone(log), Arc::clone(&load.granted));
    match acquired.try_ready() {
        Ok(outcome) => {
            if let Some((call, outcome, id)) = call.answer(outcome, &log) {
                tokio::spawn(async move {
                    call.request(outcome, id, &log).await;
                    drop(permit);
                });
            }
        }
        Err(pending) => drop(tokio::spawn(async move {
            let outcome = pending.await;
            if grants && outcome.as_ref().is_ok_and(|outcome| outcome.decision.is_allowed()) {
                granted[index].fetch_add(GRANT - 1, Ordering::Relaxed);
            }
            if let Some((call, outcome, id)) = call.answer(outcome, &log) {
                call.request(outcome, id, &log).await;
            }
            drop(permit);
        })),
    }
}
