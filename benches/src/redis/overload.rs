//! An open-loop load of up to twice the server's capacity, over links with different round trips.
//!
//! The link runs in this process, delays all bytes, and limits the server's speed, so that the load generator is never
//! the bottleneck. In the last rows the link has no limit but the delay, and the server decides as fast as it can. This
//! crate and a plain pipelined client run in alternating rounds; the output is a Markdown table of the medians. The
//! whole table takes less than five minutes.

use std::time::Duration;

use tower_ratelimit::RedisServer;

use super::link::{Link, LinkConfig};
use super::open_loop::{Goodput, load_limiter, load_plain};
use crate::harness::Harness;
use crate::server::Server;

/// The server's time per call and per key: 10 000 decisions per second in calls of one decision. So the load generator
/// and the clients need little of the processor.
const PER_CALL: Duration = Duration::from_micros(10);
const PER_KEY: Duration = Duration::from_micros(90);

pub(super) fn run(harness: &Harness) {
    // Explicitly only: the whole table takes some minutes, and needs an idle machine.
    if !harness.wants_explicitly("redis overload") {
        return;
    }
    let (rounds, span) = if harness.is_quick() { (1, 2) } else { (3, 3) };
    println!("| Link | Offered per second | Client | Offered | Answered | Charged | p50 | p99 |");
    println!("|---|---|---|---|---|---|---|---|");
    for (round_trip, deadline) in [(0, 50), (25, 50), (200, 500)] {
        for rate in [5_000, 12_000, 20_000] {
            let config = LinkConfig::new(Duration::from_millis(round_trip), PER_CALL, PER_KEY);
            compare(&format!("{round_trip} ms"), &config, Duration::from_millis(deadline), (rate, span), rounds);
        }
    }
    let jitter = LinkConfig {
        delay: Duration::from_micros(2_500)..=Duration::from_micros(102_500),
        ..LinkConfig::new(Duration::ZERO, PER_CALL, PER_KEY)
    };
    compare("5 to 205 ms", &jitter, Duration::from_millis(50), (1_000, 3), rounds);
    let unlimited = LinkConfig::new(Duration::from_millis(25), Duration::ZERO, Duration::ZERO);
    compare("25 ms, no limit", &unlimited, Duration::from_millis(50), (26_000, span), rounds);
}

fn compare(link: &str, config: &LinkConfig, deadline: Duration, (rate, seconds): (u32, u64), rounds: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    let load = (rate, Duration::from_secs(seconds));
    for _ in 0..rounds {
        let server = Server::start();
        let open = |link: &Link| RedisServer::open(&format!("redis://{}", link.address)).expect("an address");
        let over = Link::before(server.socket(), config.clone());
        ours.push(runtime.block_on(load_limiter((server.open(), open(&over)), "ours", deadline, load)));
        drop(over);
        let over = Link::before(server.socket(), config.clone());
        let addresses = (&*server.address(), &*format!("redis://{}", over.address));
        plain.push(runtime.block_on(load_plain(addresses, "plain", deadline, load)));
    }
    for (client, mut goodputs) in [("this crate", ours), ("plain", plain)] {
        goodputs.sort_by_key(|goodput| goodput.answered);
        let Goodput { offered, answered, charged, .. } = &goodputs[goodputs.len() / 2];
        let [p50, p99] = [0.5, 0.99].map(|share| goodputs[goodputs.len() / 2].quantile(share).as_secs_f64() * 1e3);
        println!("| {link} | {rate} | {client} | {offered} | {answered} | {charged} | {p50:.1} ms | {p99:.1} ms |");
    }
}
