use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Client, Script};
use tokio::runtime::Runtime;
use tower_ratelimit::limiter::DeniedCache;
use tower_ratelimit::store::IntoRedisLimits;
use tower_ratelimit::{
    AcquireOptions, FixedWindow, Gcra, Limit, Limiter, Memory, Quota, Redis, SlidingLog, SlidingWindow,
};

use super::server::Server;

/// One that decides: asks for a key, and is answered.
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) ask: Arc<dyn Fn(u64) -> Asked + Send + Sync>,
}

pub(super) type Asked = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Clone, Copy)]
pub(super) enum Keys {
    /// One for all.
    Hot,
    /// Ten thousand.
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

pub(super) fn contender(name: &'static str, ask: impl Fn(u64) -> Asked + Send + Sync + 'static) -> Option<Contender> {
    Some(Contender { name, ask: Arc::new(ask) })
}

/// Nearly all are allowed: a refusal writes nothing, and would be cheaper.
pub(super) const PLENTY: Quota = Quota::per_second(1_000_000);

fn ours(name: &'static str, server: &Server, limits: impl IntoRedisLimits<u64>) -> Option<Contender> {
    let redis = Redis::builder(server.open(), name, limits)
        .deadline(std::time::Duration::from_secs(5))
        .build()
        .expect("limits");
    contender(name, move |key| {
        let decided = redis.acquire(&key, AcquireOptions::default());
        Box::pin(async move {
            decided.await.expect("an answer");
        })
    })
}

pub(super) fn gcra(server: &Server, _: &Runtime) -> Option<Contender> {
    ours("ours", server, Gcra::new(PLENTY))
}

/// All refused, and remembered.
pub(super) fn refused(server: &Server, runtime: &Runtime) -> Option<Contender> {
    let redis = Redis::<u64>::new(server.open(), "refused", Gcra::new(Quota::per_hour(1)));
    let limiter = DeniedCache::with_capacity(redis, 65_536);
    runtime.block_on(async {
        for key in (0..10_000).chain(0..10_000) {
            let _ = limiter.acquire(&key, AcquireOptions::default()).await;
        }
    });
    contender("ours", move |key| refusal(&limiter, key))
}

/// The same in memory.
pub(super) fn refused_in_memory(_: &Server, _: &Runtime) -> Option<Contender> {
    let limiter = Memory::new(Gcra::new(Quota::per_hour(1)));
    for key in 0..10_000_u64 {
        limiter.check(&key, AcquireOptions::default());
    }
    contender("memory", move |key| refusal(&limiter, key))
}

fn refusal<L: Limiter<u64>>(limiter: &L, key: u64) -> Asked {
    let decided = limiter.acquire(&key, AcquireOptions::default());
    Box::pin(async move {
        let decision = decided.await.expect("an answer").decision;
        assert!(!decision.is_allowed());
    })
}

pub(super) fn fixed_window(server: &Server, _: &Runtime) -> Option<Contender> {
    ours("ours", server, FixedWindow::new(PLENTY))
}

pub(super) fn sliding_window(server: &Server, _: &Runtime) -> Option<Contender> {
    ours("sliding_window", server, SlidingWindow::new(PLENTY))
}

pub(super) fn sliding_log(server: &Server, _: &Runtime) -> Option<Contender> {
    ours("sliding_log", server, SlidingLog::new(Quota::per_second(1000)))
}

pub(super) fn three_limits(server: &Server, _: &Runtime) -> Option<Contender> {
    let limits = (
        Limit::new("key", Gcra::new(PLENTY)),
        Limit::new("group", Gcra::new(PLENTY)).keyed_by(|key: &u64| key % 100),
        Limit::new("all", Gcra::new(PLENTY)).keyed_by(|_: &u64| ()),
    );
    ours("three_limits", server, limits)
}

fn connection(server: &Server, runtime: &Runtime) -> MultiplexedConnection {
    let client = Client::open(server.address()).expect("an address");
    runtime.block_on(client.get_multiplexed_async_connection()).expect("a connection")
}

/// A script on one multiplexed connection, by its hash, one call a decision.
fn scripted(
    name: &'static str,
    server: &Server,
    runtime: &Runtime,
    text: &str,
    arguments: &[u64],
) -> Option<Contender> {
    let connection = connection(server, runtime);
    let script = Script::new(text);
    runtime.block_on(script.load_async(&mut connection.clone())).expect("a script");
    let (hash, arguments) = (Arc::<str>::from(script.get_hash()), Arc::<[u64]>::from(arguments));
    contender(name, move |key| {
        let mut connection = connection.clone();
        let mut call = redis::cmd("EVALSHA");
        call.arg(&*hash).arg(1).arg(format!("{name}:{key}")).arg(&*arguments);
        Box::pin(async move {
            let _: redis::Value = call.query_async(&mut connection).await.expect("an answer");
        })
    })
}

/// GCRA as it is usually written: the server's time, one number read, one written.
pub(super) fn plain(server: &Server, runtime: &Runtime) -> Option<Contender> {
    let text = "
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
    scripted("plain_script", server, runtime, text, &[1, 1_000_000])
}

/// The counter with an expiry.
pub(super) fn plain_window(server: &Server, runtime: &Runtime) -> Option<Contender> {
    let text = "
        local used = redis.call('INCR', KEYS[1])
        if used == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
        return used";
    scripted("plain_script", server, runtime, text, &[1_000])
}

/// The very script that we run for a bucket, with what we send for one decision: one call each, nothing in between.
pub(super) fn same_script(server: &Server, runtime: &Runtime) -> Option<Contender> {
    let text = concat!(
        include_str!("../../../src/store/redis/script/prelude.lua"),
        include_str!("../../../src/algorithm/bucket/bucket_fast.lua"),
        include_str!("../../../src/store/redis/script/fast_reply.lua"),
    );
    let connection = connection(server, runtime);
    let script = Script::new(text);
    runtime.block_on(script.load_async(&mut connection.clone())).expect("a script");
    let mut input = Vec::new();
    // The server's time, the short cut, one shape, one order, one key.
    input.extend(0_f64.to_le_bytes());
    input.extend([1_u16, 1, 1, 1].iter().flat_map(|number| number.to_le_bytes()));
    // To acquire a cost of one, without patience, of a bucket of a million that has one token each microsecond.
    input.extend([0_u8; 4]);
    let shape = [1.0, -1.0, 1.0, 1.0, 999_999.0, 0.0, 1.0, 0.0, 1_000_000.0, 1_000_000.0, 0.0, 0.0_f64];
    input.extend(shape.iter().flat_map(|number| number.to_le_bytes()));
    input.extend([1_u16, 1, 1].iter().flat_map(|number| number.to_le_bytes()));
    let (hash, input) = (Arc::<str>::from(script.get_hash()), Arc::<[u8]>::from(input));
    contender("same_script", move |key| {
        let mut connection = connection.clone();
        let mut call = redis::cmd("EVALSHA");
        call.arg(&*hash).arg(1).arg(format!("same:{key}")).arg(&*input);
        Box::pin(async move {
            let reply: Vec<u8> = call.query_async(&mut connection).await.expect("an answer");
            assert_eq!(reply[8], 1, "the short cut was not taken");
        })
    })
}

pub(super) fn one_line(server: &Server, runtime: &Runtime) -> Option<Contender> {
    scripted("one_line_script", server, runtime, "return 1", &[])
}

/// redis-cell's `CL.THROTTLE`, where the module could be built and loaded.
pub(super) fn cell(server: &Server, runtime: &Runtime) -> Option<Contender> {
    if !server.has_cell() {
        return None;
    }
    let connection = connection(server, runtime);
    contender("redis_cell", move |key| {
        let mut connection = connection.clone();
        let mut call = redis::cmd("CL.THROTTLE");
        call.arg(format!("cell:{key}")).arg(1_000_000).arg(1_000_000).arg(1);
        Box::pin(async move {
            let _: redis::Value = call.query_async(&mut connection).await.expect("an answer");
        })
    })
}

pub(super) fn ping(server: &Server, runtime: &Runtime) -> Option<Contender> {
    let connection = connection(server, runtime);
    contender("ping", move |_| {
        let mut connection = connection.clone();
        Box::pin(async move {
            let _: String = redis::cmd("PING").query_async(&mut connection).await.expect("an answer");
        })
    })
}
