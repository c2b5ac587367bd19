//! Two processes share a quota of 2000 requests per second by leases, and one of them is killed half-way.
//!
//! ```text
//! redis-server --port 6379 --save '' &
//! cargo run --example lease --features redis
//! ```
//!
//! Prints what the processes have admitted in three seconds, the most that the quota allows in that time, and the share
//! of them that took no round trip. The processes together never admit more than the bound. The killed one
//! loses at most what it held. The variable `REDIS_URL` sets the address of Redis.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tower_ratelimit::store::Lease;
use tower_ratelimit::{AcquireOptions, DecisionSource, Error, Gcra, Limiter, Quota, Redis, RedisServer};

const QUOTA: Quota = Quota::per_second(2_000);
const SECONDS: u64 = 3;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let server = RedisServer::open(&url)?;
    if let Ok(key) = env::var("LEASE_EXAMPLE_KEY") {
        return Ok(acquire(server, &key).await?);
    }
    limiter(server)?.health_check().await?;
    let began = Instant::now();
    let key = format!("run-{}", std::process::id());
    let (sender, lines) = mpsc::channel();
    let mut processes = [start(&url, &key, sender.clone())?, start(&url, &key, sender)?];
    tokio::time::sleep(Duration::from_secs(SECONDS) / 2).await;
    processes[0].kill()?;
    processes[0].wait()?;
    println!("killed one of two processes");
    processes[1].wait()?;
    let elapsed = began.elapsed();

    // Each line has the numbers of admissions since the last one: by Redis, and by a lease.
    let (mut direct, mut leased) = (0, 0);
    for line in lines {
        let mut numbers = line.split(' ').filter_map(|number| number.parse::<u64>().ok());
        direct += numbers.next().unwrap_or(0);
        leased += numbers.next().unwrap_or(0);
    }
    let admitted = direct + leased;
    let bound = QUOTA.limit() + QUOTA.limit() * u64::try_from(elapsed.as_millis())? / 1_000;
    println!("admitted {admitted}, bound {bound}: {}", if admitted <= bound { "within the limit" } else { "OVER" });
    println!("share of leases: {} %", 100 * leased / admitted.max(1));
    Ok(())
}

fn limiter(server: RedisServer) -> Result<Redis<str>, Error> {
    Redis::builder(server, "example", Gcra::new(QUOTA)).lease(Lease::new(Duration::from_millis(100))).build()
}

/// Starts this program as a process that acquires. Its output goes to `lines`.
fn start(url: &str, key: &str, lines: mpsc::Sender<String>) -> Result<Child, Box<dyn std::error::Error>> {
    let mut command = Command::new(env::current_exe()?);
    let mut process = command.env("REDIS_URL", url).env("LEASE_EXAMPLE_KEY", key).stdout(Stdio::piped()).spawn()?;
    let output = BufReader::new(process.stdout.take().ok_or("the output is piped")?);
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
    Ok(process)
}

/// Acquires about twice the quota, and prints what is admitted.
async fn acquire(server: RedisServer, key: &str) -> Result<(), Error> {
    let limiter = limiter(server)?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(SECONDS) {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let (mut direct, mut leased) = (0, 0);
        for _ in 0..10 {
            // A failed decision was not admitted.
            let Ok(outcome) = limiter.acquire(key, AcquireOptions::default()).await else { continue };
            let allowed = u64::from(outcome.decision.is_allowed());
            match outcome.decision.source() {
                DecisionSource::Lease => leased += allowed,
                _ => direct += allowed,
            }
        }
        println!("{direct} {leased}");
    }
    // Returns what the process holds.
    limiter.close().await
}
