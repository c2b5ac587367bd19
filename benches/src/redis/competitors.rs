//! The contestants of the Redis scenarios: this crate's limiters, plain scripts, redis-cell and `PING`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bb8_redis::RedisConnectionManager;
use bb8_redis::bb8::Pool;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script};
use tokio::runtime::Runtime;
use tower_ratelimit::limiter::DeniedCache;
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{
    AcquireOptions, FixedWindow, Gcra, InFlight, Limit, Limiter, Memory, Quota, Redis, RedisCell, SlidingLog,
    SlidingWindow,
};

use crate::server::Server;

/// A named function that decides on a key.
pub(super) struct Contestant {
    pub(super) name: &'static str,
    pub(super) decide: Arc<dyn Fn(u64) -> DecisionFuture + Send + Sync>,
}

pub(super) type DecisionFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Clone, Copy)]
pub(super) enum Keys {
    /// One key.
    Hot,
    /// Ten thousand keys.
    Spread,
}

impl Keys {
    pub(super) fn pick(self, random: u64) -> u64 {
        match self {
            Self::Hot => 7,
            Self::Spread => random % 10_000,
        }
    }
}

pub(super) fn contestant(
    name: &'static str,
    decide: impl Fn(u64) -> DecisionFuture + Send + Sync + 'static,
) -> Option<Contestant> {
    Some(Contestant { name, decide: Arc::new(decide) })
}

/// Allows nearly every request: a denial writes nothing and would be cheaper.
pub(super) const PLENTY: Quota = Quota::per_second(1_000_000);

fn ours(name: &'static str, server: &Server, limits: impl IntoRedisLimits<u64>) -> Option<Contestant> {
    let redis = Redis::builder(server.open(), name, limits).deadline(Duration::from_secs(5)).build().expect("limits");
    contestant(name, move |key| {
        let decided = redis.acquire(&key, AcquireOptions::default());
        Box::pin(async move {
            let _ = decided.await.expect("a reply");
        })
    })
}

pub(super) fn gcra(server: &Server, _: &Runtime) -> Option<Contestant> {
    ours("ours", server, Gcra::new(PLENTY))
}

/// A hold, and its settlement.
pub(super) fn held(server: &Server, _: &Runtime) -> Option<Contestant> {
    settled(server, "held", Gcra::new(PLENTY), AcquireOptions::default().hold())
}

/// The start and the end of a request in flight.
pub(super) fn in_flight(server: &Server, _: &Runtime) -> Option<Contestant> {
    settled(server, "in flight", InFlight::new(1_000_000), AcquireOptions::default().keep_guard())
}

fn settled(
    server: &Server,
    name: &str,
    limits: impl IntoRedisLimits<u64>,
    options: AcquireOptions,
) -> Option<Contestant> {
    let redis = Redis::builder(server.open(), name, limits).deadline(Duration::from_secs(5)).build().expect("limits");
    contestant("ours", move |key: u64| {
        let held = redis.acquire(&key, options);
        Box::pin(async move {
            let held = held.await.expect("a reply").held.expect("an allowed hold");
            held.settle(1).await.expect("a reply");
        })
    })
}

/// A decision with an id, for the first time.
pub(super) fn once(server: &Server, _: &Runtime) -> Option<Contestant> {
    let redis = Redis::builder(server.open(), "once", Gcra::new(PLENTY))
        .max_reservation_ids(10_000)
        .deadline(Duration::from_secs(5));
    let (redis, last) = (redis.build().expect("limits"), AtomicU64::new(0));
    contestant("ours", move |key: u64| {
        let id = format!("request {}", last.fetch_add(1, Ordering::Relaxed));
        let decided = redis.acquire(&key, AcquireOptions::default().once(&id, 1, Duration::from_secs(1)));
        Box::pin(async move { drop(decided.await.expect("a reply")) })
    })
}

/// redis-cell by `RedisCell`.
pub(super) fn cell_limiter(server: &Server, _: &Runtime) -> Option<Contestant> {
    std::env::var_os("REDIS_CELL")?;
    let limiter = RedisCell::builder(server.open(), "cell", PLENTY).deadline(Duration::from_secs(5));
    let limiter = limiter.build().expect("a quota");
    contestant("ours", move |key: u64| {
        let decided = limiter.acquire(&key, AcquireOptions::default());
        Box::pin(async move { drop(decided.await.expect("a reply")) })
    })
}

/// Two calls of the usual script, one after the other.
pub(super) fn two_scripts(server: &Server, runtime: &Runtime) -> Option<Contestant> {
    let plain = plain(server, runtime)?.decide;
    contestant("two_scripts", move |key| {
        let (first, plain) = (plain(key), Arc::clone(&plain));
        Box::pin(async move {
            first.await;
            plain(key).await;
        })
    })
}

/// Denials that the cache answers.
pub(super) fn denied_cache(server: &Server, runtime: &Runtime) -> Option<Contestant> {
    let redis = Redis::<u64>::new(server.open(), "denied", Gcra::new(Quota::per_hour(1)));
    let limiter = DeniedCache::with_capacity(redis, 65_536);
    runtime.block_on(async {
        for key in (0..10_000).chain(0..10_000) {
            let _ = limiter.acquire(&key, AcquireOptions::default()).await;
        }
    });
    contestant("ours", move |key| deny(&limiter, key))
}

/// Denials in memory.
pub(super) fn denied_in_memory(_: &Server, _: &Runtime) -> Option<Contestant> {
    let limiter = Memory::new(Gcra::new(Quota::per_hour(1)));
    for key in 0..10_000_u64 {
        let _ = limiter.check(&key, AcquireOptions::default());
    }
    contestant("memory", move |key| deny(&limiter, key))
}

fn deny<L: Limiter<u64>>(limiter: &L, key: u64) -> DecisionFuture {
    let decided = limiter.acquire(&key, AcquireOptions::default());
    Box::pin(async move {
        let decision = decided.await.expect("a reply").decision;
        assert!(!decision.is_allowed());
    })
}

pub(super) fn fixed_window(server: &Server, _: &Runtime) -> Option<Contestant> {
    ours("ours", server, FixedWindow::new(PLENTY))
}

pub(super) fn sliding_window(server: &Server, _: &Runtime) -> Option<Contestant> {
    ours("sliding_window", server, SlidingWindow::new(PLENTY))
}

pub(super) fn sliding_log(server: &Server, _: &Runtime) -> Option<Contestant> {
    ours("sliding_log", server, SlidingLog::new(Quota::per_second(1000)))
}

pub(super) fn three_limits(server: &Server, _: &Runtime) -> Option<Contestant> {
    let limits = (
        Limit::new("key", Gcra::new(PLENTY)),
        Limit::new("group", Gcra::new(PLENTY)).keyed_by(|key: &u64| key % 100),
        Limit::new("all", Gcra::new(PLENTY)).keyed_by(|_: &u64| ()),
    );
    ours("three_limits", server, limits)
}

fn connection(server: &Server, runtime: &Runtime) -> MultiplexedConnection {
    let client = Client::open(server.address()).expect("an address");
    // Under callgrind a server may take longer than the default time-out.
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    runtime.block_on(client.get_multiplexed_async_connection_with_config(&config)).expect("a connection")
}

/// A script on one multiplexed connection, called by its hash, one call per decision.
fn scripted(
    name: &'static str,
    server: &Server,
    runtime: &Runtime,
    text: &str,
    arguments: &[u64],
) -> Option<Contestant> {
    let connection = connection(server, runtime);
    let script = Script::new(text);
    runtime.block_on(script.load_async(&mut connection.clone())).expect("a script");
    let (hash, arguments) = (Arc::<str>::from(script.get_hash()), Arc::<[u64]>::from(arguments));
    contestant(name, move |key| {
        let mut connection = connection.clone();
        let mut call = redis::cmd("EVALSHA");
        call.arg(&*hash).arg(1).arg(format!("{name}:{key}")).arg(&*arguments);
        Box::pin(async move {
            let _: redis::Value = call.query_async(&mut connection).await.expect("a reply");
        })
    })
}

/// The usual GCRA script: reads the server's time and one number, and writes one number.
pub(super) const PLAIN_SCRIPT: &str = "
        local time = redis.call('TIME')
        local now = time[1] * 1000000 + time[2]
        local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
        local tat = tonumber(redis.call('GET', KEYS[1]) or now)
        if tat < now then tat = now end
        local after = tat + interval
        local allow_at = after - burst * interval
        if now < allow_at then
            return { 0, string.format('%.0f', allow_at - now) }
        end
        redis.call('SET', KEYS[1], string.format('%.0f', after), 'PX', math.ceil((after - now) / 1000))
        return { 1, string.format('%.0f', after - now) }";

/// The usual script, by the interval and the burst.
pub(super) fn plain(server: &Server, runtime: &Runtime) -> Option<Contestant> {
    scripted("plain_script", server, runtime, PLAIN_SCRIPT, &[1, 1_000_000])
}

/// The usual script on a connection that is checked out of a bb8 pool of eight for each decision.
pub(super) fn pooled(server: &Server, runtime: &Runtime) -> Option<Contestant> {
    let manager = RedisConnectionManager::new(server.address()).expect("an address");
    let pool = runtime.block_on(Pool::builder().max_size(8).min_idle(8).build(manager)).expect("a pool");
    let script = Script::new(PLAIN_SCRIPT);
    runtime.block_on(script.load_async(&mut connection(server, runtime))).expect("a script");
    let hash = Arc::<str>::from(script.get_hash());
    contestant("bb8_pool_of_8", move |key| {
        let (pool, hash) = (pool.clone(), Arc::clone(&hash));
        Box::pin(async move {
            let mut call = redis::cmd("EVALSHA");
            call.arg(&*hash).arg(1).arg(format!("pooled:{key}")).arg(1).arg(1_000_000);
            let mut connection = pool.get().await.expect("a connection");
            let _: redis::Value = call.query_async(&mut *connection).await.expect("a reply");
        })
    })
}

/// The usual counter with an expiry.
pub(super) fn plain_window(server: &Server, runtime: &Runtime) -> Option<Contestant> {
    let text = "
        local used = redis.call('INCR', KEYS[1])
        if used == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
        return used";
    scripted("plain_script", server, runtime, text, &[1_000])
}

/// This crate's own script for a bucket with the arguments of one decision, without this crate's Redis client.
pub(super) fn same_script(server: &Server, runtime: &Runtime) -> Option<Contestant> {
    let text = concat!(
        include_str!("../../../src/store/redis/script/prelude.lua"),
        include_str!("../../../src/algorithm/bucket/bucket_fast.lua"),
        include_str!("../../../src/store/redis/script/fast_reply.lua"),
    );
    let connection = connection(server, runtime);
    let script = Script::new(text);
    runtime.block_on(script.load_async(&mut connection.clone())).expect("a script");
    let mut input = Vec::new();
    // The server's time; no latest start; the fast script; one template, one operation for each key, one key.
    input.extend([0_u8; 16]);
    input.extend([1_u16, 1, 0, 1].iter().flat_map(|number| number.to_le_bytes()));
    // Acquire a cost of one without a delay, from a bucket of a million with one token per microsecond.
    input.extend([0_u8; 4]);
    let template = [0.0, -1.0, 1.0, 1.0, 999_999.0, 0.0, 1.0, 0.0, 1_000_000.0, 1_000_000.0, 0.0, 0.0, 1.0_f64];
    input.extend(template.iter().flat_map(|number| number.to_le_bytes()));
    let (hash, input) = (Arc::<str>::from(script.get_hash()), Arc::<[u8]>::from(input));
    contestant("same_script", move |key| {
        let mut connection = connection.clone();
        let mut call = redis::cmd("EVALSHA");
        call.arg(&*hash).arg(1).arg(format!("same:{key}")).arg(&*input);
        Box::pin(async move {
            let reply: Vec<u8> = call.query_async(&mut connection).await.expect("a reply");
            assert_eq!(reply[8], 1, "the fast path was not taken");
        })
    })
}

/// A script that returns a constant: the cost of a script call.
pub(super) fn one_line(server: &Server, runtime: &Runtime) -> Option<Contestant> {
    scripted("one_line_script", server, runtime, "return 1", &[])
}

/// redis-cell's `CL.THROTTLE`, if `REDIS_CELL` names the module's library.
pub(super) fn cell(server: &Server, runtime: &Runtime) -> Option<Contestant> {
    std::env::var_os("REDIS_CELL")?;
    let connection = connection(server, runtime);
    contestant("redis_cell", move |key| {
        let mut connection = connection.clone();
        let mut call = redis::cmd("CL.THROTTLE");
        call.arg(format!("cell:{key}")).arg(1_000_000).arg(1_000_000).arg(1);
        Box::pin(async move {
            let _: redis::Value = call.query_async(&mut connection).await.expect("a reply");
        })
    })
}

/// A round trip without a decision.
pub(super) fn ping(server: &Server, runtime: &Runtime) -> Option<Contestant> {
    let connection = connection(server, runtime);
    contestant("ping", move |_| {
        let mut connection = connection.clone();
        Box::pin(async move {
            let _: String = redis::cmd("PING").query_async(&mut connection).await.expect("a reply");
        })
    })
}
