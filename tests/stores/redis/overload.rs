//! More load than the server can decide, against a real Redis behind a link that limits its speed.
//!
//! The load is small, and the deadlines are long, so that a busy machine is not the limit. The assertions compare with a
//! plain pipelined client under the same load. `src/store/redis/overload_tests/` simulates more links, in virtual time.

use std::time::Duration;

use tower_ratelimit::RedisServer;

use crate::link::{Link, LinkConfig};
use crate::open_loop::{Goodput, load_limiter, load_plain};
use crate::server::Server;

/// The server's time per call and per key: about 1000 decisions per second.
const PER_CALL: Duration = Duration::from_micros(20);
const PER_KEY: Duration = Duration::from_micros(980);
const CAPACITY: u32 = 1_000;
const SPAN: Duration = Duration::from_secs(2);

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
        let p99 = goodput.quantile(0.99);
        println!(
            "| {rate}/s | {client:<10} | offered {offered} | answered {answered} | charged {charged} | {p99:.1?} |"
        );
    }
    [ours, plain]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goodput_over_capacity() {
    let config = LinkConfig::new(Duration::from_millis(50), PER_CALL, PER_KEY);
    let deadline = Duration::from_millis(200);
    let [ours, plain] = compare(&config, deadline, CAPACITY / 2).await;
    assert!(ours.answered * 10 >= plain.answered * 8, "below capacity: {} of {}", ours.answered, plain.answered);
    let [ours, plain] = compare(&config, deadline, CAPACITY * 2).await;
    assert!(ours.answered >= plain.answered, "over capacity: {} of {}", ours.answered, plain.answered);
    let unanswered = |goodput: &Goodput| goodput.charged.saturating_sub(goodput.answered) * 100 / goodput.offered;
    assert!(unanswered(&ours) <= 10, "over capacity: {} charged, {} answered", ours.charged, ours.answered);
    assert!(unanswered(&ours) < unanswered(&plain), "a plain client charges what it does not answer");
}
