//! What the tests of ids share: a limiter with a clock of the test, and a server whose replies are lost.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{AcquireOptions, BoxLimiter, FixedWindow, Limiter, ManualClock, Quota, Redis, RedisServer};

use crate::helpers::{LONG_DEADLINE, redis_limiter};
use crate::proxy::Proxy;
use crate::server::Server;

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HUNDRED: Quota = Quota::per_day(100);

pub(crate) async fn left<Key: ?Sized>(limiter: &impl Limiter<Key>, key: &Key) -> u64 {
    let peeked = limiter.peek(key, AcquireOptions::cost(0)).await.expect("an answer");
    peeked.remaining().expect("a number")
}

/// A limiter in Redis. The clock moves much faster than holds are renewed.
pub(crate) fn with_clock(
    server: RedisServer,
    name: &str,
    limits: impl IntoRedisLimits<str>,
    clock: &ManualClock,
) -> BoxLimiter<str> {
    let builder = Redis::builder(server, name, limits).deadline(LONG_DEADLINE).clock_for_tests(clock.clone());
    let builder = builder.hold_expiry(24 * 60 * MINUTE);
    BoxLimiter::new(builder.build().expect("limits"))
}

/// A limiter behind a proxy that loses replies, and one beside the proxy.
pub(crate) struct LossyServer {
    proxy: Proxy,
    pub(crate) limiter: Redis<str>,
    pub(crate) direct: Redis<str>,
    pub(crate) server: Server,
}

impl LossyServer {
    pub(crate) fn start() -> Self {
        Self::with(FixedWindow::new(HUNDRED))
    }

    pub(crate) fn with(limits: impl IntoRedisLimits<str> + Clone) -> Self {
        let server = Server::start();
        let proxy = Proxy::before(server.socket());
        let address = RedisServer::open(&format!("redis://{}", proxy.address)).expect("an address");
        let limiter = Redis::builder(address, "api", limits.clone()).deadline(LONG_DEADLINE).hold_expiry(10 * MINUTE);
        let (limiter, direct) = (limiter.build().expect("limits"), redis_limiter(server.open(), "api", limits));
        Self { proxy, limiter, direct, server }
    }

    /// Loses the next reply, and calls until an answer arrives. Returns whether a reply was lost.
    pub(crate) async fn lose_a_reply<T, E, F: Future<Output = Result<T, E>>>(&self, call: impl Fn() -> F) -> bool {
        self.proxy.cut_next_reply();
        let (mut is_lost, until) = (false, Instant::now() + LONG_DEADLINE);
        // A cut connection fails the calls on it, and the calls until the next connection is open.
        while call().await.is_err() {
            is_lost = true;
            assert!(Instant::now() < until, "the proxy works again");
            sleep(Duration::from_millis(20)).await;
        }
        is_lost
    }
}
