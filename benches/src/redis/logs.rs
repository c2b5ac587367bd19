//! The time that the server spends on one decision on a full sliding log, by the number of its hits.

use std::time::Duration;

use serde_json::json;
use tokio::runtime::Runtime;
use tower_ratelimit::{AcquireOptions, Limiter, ManualClock, Quota, Redis, SlidingLog};

use super::calls::script_micros;
use crate::harness::{Harness, median};
use crate::server::Server;

const PERIOD: Duration = Duration::from_secs(3600);
const REPEATS: usize = 15;
const KEY: u64 = 7;

pub(super) fn run(harness: &Harness, runtime: &Runtime, server: &Server) {
    if !harness.wants("redis log") {
        return;
    }
    server.command(&["CONFIG", "SET", "slowlog-max-len", "1000"]);
    let sizes = [1_000, 10_000, 100_000, 1_000_000];
    for hits in sizes.into_iter().take(if harness.is_quick() { 2 } else { 4 }) {
        server.command(&["FLUSHALL"]);
        let log = Log::fill(runtime, server, hits);
        harness.report("redis log", json!({ "hits": hits }), "us", &log.measure());
    }
}

struct Log<'a> {
    runtime: &'a Runtime,
    server: &'a Server,
    hits: u64,
    clock: ManualClock,
    limiter: Redis<u64>,
    /// The same limit with a third of the quota.
    smaller: Redis<u64>,
    key: String,
}

impl<'a> Log<'a> {
    /// Creates a log with as many hits as its limit, a microsecond apart.
    fn fill(runtime: &'a Runtime, server: &'a Server, hits: u64) -> Self {
        let clock = ManualClock::new();
        let limiter = |limit| {
            Redis::builder(server.open(), "log", SlidingLog::new(Quota::new(limit, PERIOD)))
                .deadline(Duration::from_secs(5))
                .clock_for_tests(clock.clone())
                .build()
                .expect("limits")
        };
        let (limiter, smaller) = (limiter(hits), limiter(hits / 3));
        let key = limiter.redis_key("default", &KEY).expect("a name");
        let log = Self { runtime, server, hits, clock, limiter, smaller, key };
        for _ in 0..hits {
            log.clock.advance(Duration::from_micros(1));
            assert!(log.acquire(&log.limiter, AcquireOptions::default()));
        }
        log
    }

    fn acquire(&self, limiter: &Redis<u64>, options: AcquireOptions) -> bool {
        let outcome = self.runtime.block_on(async { limiter.acquire(&KEY, options).await });
        outcome.expect("an answer").decision.is_allowed()
    }

    /// Returns the median time of a decision that changes nothing, or is undone.
    fn time(&self, limiter: &Redis<u64>, options: AcquireOptions, is_allowed: bool) -> f64 {
        let copy = format!("{}:copy", self.key);
        if is_allowed {
            self.server.command(&["COPY", &self.key, &copy]);
        }
        let micros = (0..REPEATS).map(|_| {
            self.server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
            self.server.command(&["SLOWLOG", "RESET"]);
            assert_eq!(self.acquire(limiter, options), is_allowed);
            self.server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]);
            if is_allowed {
                self.server.command(&["COPY", &copy, &self.key, "REPLACE"]);
            }
            script_micros(self.server).pop().expect("a script call")
        });
        let micros = median(micros.collect());
        self.server.command(&["DEL", &copy]);
        micros
    }

    fn measure(&self) -> Vec<(&'static str, f64)> {
        let (hits, log) = (self.hits, &self.limiter);
        let cost = AcquireOptions::cost;
        let mut times = vec![
            ("denied_1", self.time(log, cost(1), false)),
            ("denied_half", self.time(log, cost(hits / 2), false)),
            ("denied_all", self.time(log, cost(hits), false)),
        ];
        // Half of the hits expire.
        self.clock.advance(PERIOD - Duration::from_micros(hits - hits / 2));
        times.extend([
            ("half_expired_denied", self.time(log, cost(hits * 3 / 4), false)),
            ("half_expired_smaller_quota", self.time(&self.smaller, cost(hits / 4), false)),
            ("half_expired_allowed", self.time(log, cost(1), true)),
        ]);
        // All others but one expire.
        self.clock.advance(Duration::from_micros(hits - hits / 2 - 1));
        times.push(("all_expired_but_one", self.time(log, cost(1), true)));
        times
    }
}
