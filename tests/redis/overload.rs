//! More load than Redis, the link and the deadline can carry.

use std::time::Duration;

use tower_ratelimit::RedisServer;

use crate::link::{Link, LinkConfig};
use crate::open_loop::{Goodput, load_limiter, load_plain};
use crate::server::Server;

/// The server's time per call and per key: 4000 decisions per second, so that the tests' processor is never the limit.
const PER_CALL: Duration = Duration::from_micros(20);
const PER_KEY: Duration = Duration::from_micros(230);
const CAPACITY: u32 = 4_000;
const SPAN: Duration = Duration::from_millis(1_500);

/// Offers the same load to this crate's limiter and to a plain pipelined client, over links of their own.
async fn compare(config: &LinkConfig, deadline: Duration, rate: u32) -> [Goodput; 2] {
    let server = Server::start();
    let link = Link::before(server.socket(), config.clone());
    let servers = (server.open(), RedisServer::open(&format!("redis://{}", link.address)).expect("an address"));
    let ours = load_limiter(servers, "ours", deadline, (rate, SPAN)).await;
    drop(link);
    let link = Link::before(server.socket(), config.clone());
    let addresses = (&*server.address(), &*format!("redis://{}", link.address));
    let plain = load_plain(addresses, "plain", deadline, (rate, SPAN)).await;
    for (client, goodput) in [("this crate", &ours), ("plain", &plain)] {
        let Goodput { offered, answered, charged, .. } = goodput;
        let [p50, p99] = [goodput.quantile(0.5), goodput.quantile(0.99)];
        println!(
            "| {:?} | {rate} | {client} | {offered} | {answered} | {charged} | {p50:.1?} | {p99:.1?} |",
            config.delay.end()
        );
    }
    [ours, plain]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goodput_over_capacity() {
    for (round_trip, deadline) in [(0, 50), (25, 50), (200, 500)] {
        let (round_trip, deadline) = (Duration::from_millis(round_trip), Duration::from_millis(deadline));
        let config = LinkConfig::new(round_trip, PER_CALL, PER_KEY);
        for rate in [CAPACITY / 2, CAPACITY * 2] {
            let [ours, plain] = compare(&config, deadline, rate).await;
            let possible = u64::from(rate.min(CAPACITY)) * SPAN.as_millis() as u64 / 1000;
            assert!(ours.answered * 10 >= plain.answered * 8, "{} of {}", ours.answered, plain.answered);
            assert!(ours.answered * 10 >= possible * 8, "{} of {possible}", ours.answered);
            assert!(ours.charged * 100 <= ours.answered * 105, "{} of {}", ours.charged, ours.answered);
        }
    }
}
