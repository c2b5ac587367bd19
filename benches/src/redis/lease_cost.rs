//! What leases cost the server and what they save, by its processor time, which the load of the machine changes little.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tower_ratelimit::store::Lease;
use tower_ratelimit::{AcquireOptions, DecisionSource, Gcra, Limiter as _, Quota, Redis};

use crate::harness::Harness;
use crate::server::Server;

const DURATION: Duration = Duration::from_millis(100);
/// The decisions in each duration, of all limiters together.
const DECISIONS: u64 = 192;

/// Each of some limiters, as in processes of their own, makes so many decisions on one key in each duration, at equal
/// intervals, whether or not earlier ones have ended. Returns the server's processor time in milliseconds, and the share
/// of the decisions that leases have made.
async fn measure(demand: u64, has_leases: bool, seconds: u64) -> (f64, f64) {
    let server = Server::start();
    let limiter = || {
        let quota = Gcra::new(Quota::per_second(1_000_000));
        let builder = Redis::<str>::builder(server.open(), "cost", quota).deadline(Duration::from_secs(120));
        let builder = if has_leases { builder.lease(Lease::new(DURATION)) } else { builder };
        builder.build().expect("limits")
    };
    let limiters: Vec<_> = (0..DECISIONS / demand).map(|_| limiter()).collect();
    for limiter in &limiters {
        limiter.health_check().await.expect("a server");
    }
    let total = DECISIONS * seconds * 10;
    let (before, began) = (server.cpu(), Instant::now());
    let (mut leased, mut pending) = (0_u32, Vec::new());
    for number in 0..total {
        sleep_until(began + DURATION * u32::try_from(number).expect("few") / 192).await;
        let limiter = &limiters[usize::try_from(number).expect("few") % limiters.len()];
        match limiter.acquire("key", AcquireOptions::default()).try_ready() {
            Ok(outcome) => {
                leased += u32::from(outcome.expect("a decision").decision.source() == DecisionSource::Lease);
            }
            Err(decision) => pending.push(tokio::spawn(decision)),
        }
    }
    for decision in pending {
        let _ = decision.await.expect("no panic").expect("a decision");
    }
    let lasted = began.elapsed();
    let used = server.cpu() - before;
    for limiter in &limiters {
        limiter.close().await.expect("an answer");
    }
    // The server uses some time while it is idle.
    let before = server.cpu();
    sleep(Duration::from_secs(1)).await;
    let idle = (server.cpu() - before) * lasted.as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "a small number")]
    let share = f64::from(leased) / total as f64;
    ((used - idle) * 1_000.0, share)
}

pub(super) fn run(harness: &Harness) {
    if !harness.wants_explicitly("redis lease cost") {
        return;
    }
    let (runtime, seconds) =
        (tokio::runtime::Runtime::new().expect("a runtime"), if harness.is_quick() { 1 } else { 4 });
    println!(
        "| Decisions of a process on the key in each duration | without leases | with leases | ratio | by leases |"
    );
    for demand in [4, 8, 12, 16, 24, 32, 64, 192] {
        let (direct, _) = runtime.block_on(measure(demand, false, seconds));
        let (leased, share) = runtime.block_on(measure(demand, true, seconds));
        println!("| {demand} | {direct:.0} ms | {leased:.0} ms | {:.2} | {:.0} % |", leased / direct, share * 100.0);
    }
}
