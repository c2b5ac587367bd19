use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::builder::RedisCellBuilder;
use super::link::CellLink;
use super::rate::{Rate, ThrottleReply};
use crate::clock::{Clock, SystemClock};
use crate::decision::{AcquireOptions, Decision, DecisionSource, Verdict};
use crate::encode::{EncodeKey, KeyWriter};
use crate::error::Error;
use crate::limiter::{AdminOperation, Limiter, LimiterFuture, Outcome};
use crate::quota::Quota;
use crate::store::inner::Observers;
use crate::store::redis::connect::CONNECT_TIMEOUT;
use crate::store::redis::health::ServerHealth;
use crate::store::redis::key_format::KeyFormat;
use crate::store::redis::server::RedisServer;

/// A limiter with one limit, by the command `CL.THROTTLE` of the module redis-cell and of Dragonfly.
///
/// The algorithm is GCRA, as in [`Gcra`](crate::Gcra). Use `RedisCell` with a server that has the command already and
/// permits no scripts. Otherwise use [`Redis`](crate::Redis), which needs no module. The deadline, the circuit breaker and
/// the names of keys are the same as in [`Redis`](crate::Redis); the script's part of a key's name is `cell`.
///
/// # What `RedisCell` does not promise
///
/// | [`Redis`](crate::Redis) | `RedisCell` |
/// |---|---|
/// | **Exact times**, in microseconds | A period must be whole seconds, and the command replies with whole seconds. `retry_after` and `reset` are sufficient, and can be too long: by at most one second, or by the time of one request if that is less. With a server that rounds up, or if the time of one request is not a whole number of microseconds, they can be one second longer. |
/// | **Holds** and requests in flight | [`AcquireOptions::hold`] is an error for which [`is_unsupported`](Error::is_unsupported) holds. So costs that are settled after the response, and `InFlight`, need [`Redis`](crate::Redis). |
/// | **Blocks** and set usages | [`administer`](Limiter::administer) with any operation but a reset is such an error. [`reset`](Self::reset) deletes the key. |
/// | **Batches**: concurrent decisions share a call of the script, and calls are shed under overload | Each decision is a command of its own, so the server executes one command for each request. A decision that cannot be answered by the deadline may have been charged. |
/// | **Events** | `RedisCell` emits no events about its calls and its circuit breaker. |
/// | All algorithms, several limits, sub-keys, shadow limits, leases, delays | one GCRA limit |
/// | **Clusters** | The command declares no keys, so a cluster node never redirects it: each node would count by itself, and allow the whole limit. The builder returns an error for a cluster. |
///
/// A peek sends a quantity of zero.
///
/// A cost above the burst [exceeds the limit](Verdict::ExceedsLimit), and `RedisCell` sends nothing: the command
/// replies `-1` to such a cost as it does to an allowed one. The decision then has no limit status.
///
/// ```no_run
/// use tower_ratelimit::{AcquireOptions, Limiter, Quota, RedisCell, RedisServer};
///
/// # async fn f() -> Result<(), tower_ratelimit::Error> {
/// let server = RedisServer::open("redis://127.0.0.1")?;
/// let limiter = RedisCell::builder(server, "api", Quota::per_second(10)).burst(20).build()?;
/// limiter.health_check().await?;
///
/// assert!(limiter.acquire("alice", AcquireOptions::default()).await?.decision.is_allowed());
/// # Ok(())
/// # }
/// ```
pub struct RedisCell<Key: ?Sized> {
    handle: Arc<CellState>,
    key: PhantomData<fn(&Key)>,
}

struct CellState {
    link: Arc<CellLink>,
    rate: Rate,
    key_format: KeyFormat,
    /// CL.THROTTLE does not reply with the server's time.
    clock: SystemClock,
}

impl<Key: ?Sized> RedisCell<Key> {
    /// A limiter with the default settings. `name` identifies the limiter, as in [`Redis::new`](crate::Redis::new).
    ///
    /// # Panics
    ///
    /// If the name is empty, the command does not support the quota, or the server is a cluster.
    /// [`builder`](Self::builder) never panics.
    #[must_use]
    #[track_caller]
    pub fn new(server: impl Into<RedisServer>, name: &str, quota: Quota) -> Self {
        match Self::builder(server, name, quota).build() {
            Ok(limiter) => limiter,
            Err(error) => panic!("{error}"),
        }
    }

    /// Builds a limiter with other settings.
    pub fn builder(server: impl Into<RedisServer>, name: &str, quota: Quota) -> RedisCellBuilder<Key> {
        RedisCellBuilder::new(server.into(), name, quota)
    }

    pub(super) fn from_builder(builder: RedisCellBuilder<Key>, rate: Rate, key_format: KeyFormat) -> Self {
        let health = ServerHealth::new(builder.name, builder.server, Observers::default());
        let link = Arc::new(CellLink::new(health, builder.deadline));
        let handle = CellState { link, rate, key_format, clock: SystemClock::new() };
        Self { handle: Arc::new(handle), key: PhantomData }
    }

    /// Connects, and checks that Redis accepts writes and has the command.
    ///
    /// # Errors
    ///
    /// If there is no connection within two seconds, or Redis rejects the password or a write, or has no `CL.THROTTLE`;
    /// the error names the cause. [`is_config`](Error::is_config) holds outside of a tokio runtime, and in one without
    /// timer or I/O.
    pub async fn health_check(&self) -> Result<(), Error> {
        let CellState { link, rate, key_format, .. } = &*self.handle;
        let mut name = KeyWriter::with_capacity(64);
        key_format.append(0, None, &mut name, |writer| writer.bytes(b"health-check"));
        // A peek.
        let reply = link.call(rate.throttle(name.into_names().as_bytes(), 0), CONNECT_TIMEOUT)?.await?;
        ThrottleReply::read(&reply).map(drop)
    }
}

impl<Key: EncodeKey + ?Sized> RedisCell<Key> {
    /// Returns the name of a key in Redis.
    #[must_use]
    pub fn redis_key(&self, key: &Key) -> String {
        String::from_utf8_lossy(&self.encode(key)).into_owned()
    }

    fn encode(&self, key: &Key) -> Vec<u8> {
        let mut name = KeyWriter::with_capacity(64);
        self.handle.key_format.append(0, None, &mut name, |writer| key.encode(writer));
        name.into_names().into_bytes()
    }

    /// Returns the decision if the cost can never be allowed.
    fn exceeds_limit(&self, options: AcquireOptions) -> Option<Decision> {
        let CellState { rate, clock, .. } = &*self.handle;
        let exceeds = || Decision::without_limit(clock.now(), Verdict::ExceedsLimit).with_source(DecisionSource::Store);
        (!rate.is_within_burst(options.cost)).then(exceeds)
    }

    /// Sends CL.THROTTLE. A peek sends a quantity of 0, which always succeeds.
    fn decide(&self, key: &Key, cost: u64, is_peek: bool) -> LimiterFuture<Decision> {
        let CellState { link, rate, .. } = &*self.handle;
        let throttle = rate.throttle(&self.encode(key), if is_peek { 0 } else { cost });
        let reply = match link.call(throttle, link.deadline) {
            Ok(reply) => reply,
            Err(error) => return LimiterFuture::ready(Err(error)),
        };
        let handle = Arc::clone(&self.handle);
        LimiterFuture::pending(async move {
            let reply = ThrottleReply::read(&reply.await?)?;
            Ok(handle.rate.decision(handle.clock.now(), reply, cost, is_peek))
        })
    }
}

impl<Key: EncodeKey + ?Sized + 'static> Limiter<Key> for RedisCell<Key> {
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        if let Err(error) = options.check_units(|_| ()) {
            return LimiterFuture::ready(Err(error));
        }
        if options.hold {
            return LimiterFuture::ready(Err(Error::unsupported(
                "hold failed: redis-cell cannot hold a cost; use `Redis` instead of `RedisCell`",
            )));
        }
        if let Err(error) = options.check_no_id("redis-cell") {
            return LimiterFuture::ready(Err(error));
        }
        if let Some(exceeds) = self.exceeds_limit(options) {
            return LimiterFuture::ready(Ok(Outcome::from(exceeds)));
        }
        self.decide(key, options.cost, false).map(Outcome::from)
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        if let Err(error) = options.check_units(|_| ()) {
            return LimiterFuture::ready(Err(error));
        }
        if let Some(exceeds) = self.exceeds_limit(options) {
            return LimiterFuture::ready(Ok(exceeds));
        }
        self.decide(key, options.cost, true)
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        match operation {
            AdminOperation::Reset => {
                let mut delete = redis::cmd("DEL");
                delete.arg(self.encode(key));
                match self.handle.link.call(delete, self.handle.link.deadline) {
                    Ok(reply) => LimiterFuture::pending(async move { reply.await.map(drop) }),
                    Err(error) => LimiterFuture::ready(Err(error)),
                }
            }
            AdminOperation::SetUsage { .. } => LimiterFuture::unsupported(
                "set usage failed: redis-cell cannot set the usage of a key; use `Redis` instead of `RedisCell`",
            ),
            AdminOperation::Settle { .. } => LimiterFuture::unsupported(
                "settling failed: redis-cell cannot hold a cost; use `Redis` instead of `RedisCell`",
            ),
            AdminOperation::Block { .. } => LimiterFuture::unsupported(
                "block failed: redis-cell cannot block a key; use `Redis` instead of `RedisCell`",
            ),
        }
    }
}

impl<Key: ?Sized> Clone for RedisCell<Key> {
    fn clone(&self) -> Self {
        Self { handle: Arc::clone(&self.handle), key: PhantomData }
    }
}

impl<Key: ?Sized> fmt::Debug for RedisCell<Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CellState { link, rate, .. } = &*self.handle;
        f.debug_struct("RedisCell")
            .field("server", &link.health.server)
            .field("rate", rate)
            .field("deadline", &link.deadline)
            .finish_non_exhaustive()
    }
}
