//! Decisions beside 5,000 to 100,000 holds of one process: prints a table, in a minute.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tower_ratelimit::limiter::Held;
use tower_ratelimit::observe::Event;
use tower_ratelimit::{AcquireOptions, Gcra, Limiter, Quota, Redis};

use super::open_loop::{KEYS, offer};
use crate::harness::Harness;
use crate::server::Server;

/// More than the default expiry of holds, so that each hold is renewed several times.
const SPAN: Duration = Duration::from_secs(15);
const DECISIONS_PER_SECOND: u32 = 1_000;

/// Holds on so many keys that no decision uses.
async fn hold(limiter: &Redis<u64>, count: u64) -> Vec<Held> {
    let mut held = Vec::new();
    let mut missing: Vec<u64> = (KEYS + 1..=KEYS + count).collect();
    while !missing.is_empty() {
        let chunk = missing.split_off(missing.len().saturating_sub(100));
        let holds = chunk.iter().map(|key| limiter.acquire(key, AcquireOptions::default().hold()));
        for (key, outcome) in chunk.iter().zip(join_all(holds).await) {
            match outcome.ok().and_then(|outcome| outcome.held) {
                Some(hold) => held.push(hold),
                None => missing.push(*key),
            }
        }
    }
    held
}

async fn measure(count: u64) {
    let (server, expired) = (Server::start(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&expired);
    let builder = Redis::<u64>::builder(server.open(), "api", Gcra::new(Quota::per_hour(1_000_000_000))).observe(
        move |event: &Event<'_>| {
            if let Event::HoldsExpired { count, .. } = event {
                counter.fetch_add(*count, Ordering::Relaxed);
            }
        },
    );
    let limiter = builder.build().expect("limits");
    let held = hold(&limiter, count).await;
    let (cpu_before, started_at) = (server.cpu(), Instant::now());
    let (offered, times) = offer(DECISIONS_PER_SECOND, SPAN, |key| {
        let decision = limiter.acquire(&key, AcquireOptions::default());
        async move { decision.await.is_ok() }
    })
    .await;
    let share = (server.cpu() - cpu_before) / started_at.elapsed().as_secs_f64();
    // The update that ends a session finds whether the session has expired.
    drop(held);
    let until = Instant::now() + Duration::from_secs(60);
    while server.number(&["DBSIZE"]).unsigned_abs() > KEYS + 1 && Instant::now() < until {
        sleep(Duration::from_millis(20)).await;
    }
    let failed = offered - times.len() as u64;
    let [p50, p99] = [50, 99].map(|share| times.get(times.len() * share / 100).copied().unwrap_or_default());
    println!(
        "| {count} | {offered} | {failed} | {p50:.1?} | {p99:.1?} | {} | {:.1} % |",
        expired.load(Ordering::Relaxed),
        share * 100.0
    );
}

pub(super) fn run(harness: &Harness) {
    if !harness.wants_explicitly("redis holds") {
        return;
    }
    println!("| Holds | Decisions | Failed | p50 | p99 | Expired holds | Redis processor time |");
    println!("|---|---|---|---|---|---|---|");
    for count in [5_000, 20_000, 100_000] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(measure(count));
    }
}
