use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::rate::{Rate, ThrottleReply};
use crate::clock::{Clock, SystemClock};
use crate::decision::{AcquireOptions, Decision, DecisionSource, Verdict};
use crate::encode::{EncodeKey, KeyWriter};
use crate::error::Error;
use crate::limiter::{AdminOperation, Limiter, LimiterFuture, Outcome};
use crate::quota::Quota;
use crate::store::redis::builder::Settings;
use crate::store::redis::client::{Client, ClientConfig, Completion, OperationKind, OperationTarget, reply_lost};
use crate::store::redis::connect::Failure;
use crate::store::redis::health_check::within_time_to_connect;
use crate::store::redis::key_format::KeyFormat;
use crate::store::redis::limiter_state::new_client;
use crate::store::redis::script::LimitSet;
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
/// | **Batches**: concurrent decisions share a call of the script, which makes no decision that would be answered too late | Each decision is a command of its own, so the server executes one command for each request. A decision that was sent and cannot be answered by the deadline may have been charged. |
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
#[derive(Clone)]
pub struct RedisCell {
    client: Arc<Client>,
    /// The target of all commands: they have no part in a script.
    target: OperationTarget,
    rate: Rate,
    key_format: Arc<KeyFormat>,
}

impl RedisCell {
    /// A limiter with the default settings. `name` identifies the limiter, as in [`Redis::new`](crate::Redis::new).
    ///
    /// # Panics
    ///
    /// If the name is empty, the command does not support the quota, or the server is a cluster.
    /// [`builder`](Self::builder) never panics.
    #[must_use]
    #[track_caller]
    pub fn new(server: impl Into<RedisServer>, name: &str, quota: Quota) -> Self {
        Self::builder(server, name, quota).build().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Builds a limiter with other settings.
    pub fn builder(server: impl Into<RedisServer>, name: &str, quota: Quota) -> RedisCellBuilder {
        RedisCellBuilder { settings: Settings::new(server.into(), name), quota, burst: quota.limit() }
    }

    /// Connects, and checks that Redis accepts writes and has the command.
    ///
    /// # Errors
    ///
    /// As [`Redis::health_check`](crate::Redis::health_check), or if Redis has no `CL.THROTTLE`.
    pub async fn health_check(&self) -> Result<(), Error> {
        let ClientConfig { health, deadline, .. } = &*self.client.config;
        // A peek.
        let throttle = self.rate.throttle(&self.name(|writer| writer.bytes(b"health-check")), 0);
        let checking = async {
            let connection = health.server.open(0, *deadline).await.map_err(|failure| failure.error)?;
            let reply = connection.call(0, Arc::new(throttle)).await;
            let reply = reply.map_err(|error| Failure::of("the call", error, health.server.describe()).error)?;
            ThrottleReply::read(reply).map(drop)
        };
        within_time_to_connect(&self.client.config, checking).await
    }

    /// Returns the name of a key in Redis.
    #[must_use]
    pub fn redis_key(&self, key: &(impl EncodeKey + ?Sized)) -> String {
        String::from_utf8_lossy(&self.name(|writer| key.encode(writer))).into_owned()
    }

    fn name(&self, encode: impl FnOnce(&mut KeyWriter)) -> Vec<u8> {
        let mut name = KeyWriter::with_capacity(64);
        self.key_format.append(0, None, &mut name, encode);
        name.into_names().into_bytes()
    }

    /// Sends CL.THROTTLE. A peek sends a quantity of 0, which always succeeds. Nothing is sent for a cost that can never be
    /// allowed.
    fn decide<T: From<Decision> + Send + 'static>(
        &self,
        key: &(impl EncodeKey + ?Sized),
        options: AcquireOptions,
        is_peek: bool,
    ) -> Result<LimiterFuture<T>, Error> {
        let (rate, cost) = (self.rate, options.cost);
        options.check_units(|_| ())?;
        // CL.THROTTLE does not reply with the server's time.
        let now = || SystemClock::new().now();
        // The module replies -1 to a larger cost, as it does to an allowed one.
        if cost > rate.burst {
            let exceeds = Decision::without_limit(now(), Verdict::ExceedsLimit).with_source(DecisionSource::Store);
            return Ok(LimiterFuture::ready(Ok(exceeds.into())));
        }
        let throttle = rate.throttle(&self.name(|writer| key.encode(writer)), if is_peek { 0 } else { cost });
        self.send(throttle, true, move |reply| {
            Ok(rate.decision(now(), ThrottleReply::read(reply)?, cost, is_peek).into())
        })
    }

    /// Sends a command over the connection of the runtime, and reads its reply.
    fn send<T: Send + 'static>(
        &self,
        command: Cmd,
        is_decision: bool,
        read: impl FnOnce(Value) -> Result<T, Error> + Send + 'static,
    ) -> Result<LimiterFuture<T>, Error> {
        let kind = OperationKind::Command(Arc::new(command));
        self.client.submit(
            |reply| Ok(self.target.clone().operation(kind, reply)),
            is_decision,
            |result| match result {
                Completion::Replied(reply) => read(reply),
                _ => Err(reply_lost()),
            },
        )
    }
}

impl<Key: EncodeKey + ?Sized + 'static> Limiter<Key> for RedisCell {
    fn acquire(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Outcome> {
        if options.hold {
            return LimiterFuture::unsupported(
                "hold failed: redis-cell cannot hold a cost; use `Redis` instead of `RedisCell`",
            );
        }
        LimiterFuture::of_result(options.check_no_id("redis-cell").and_then(|()| self.decide(key, options, false)))
    }

    fn peek(&self, key: &Key, options: AcquireOptions) -> LimiterFuture<Decision> {
        LimiterFuture::of_result(self.decide(key, options, true))
    }

    fn administer(&self, key: &Key, operation: AdminOperation<'_>) -> LimiterFuture<()> {
        if !matches!(operation, AdminOperation::Reset) {
            return LimiterFuture::unsupported(
                "the operation failed: redis-cell decides on keys and resets them; use `Redis` instead of `RedisCell`",
            );
        }
        let mut delete = redis::cmd("DEL");
        delete.arg(self.name(|writer| key.encode(writer)));
        LimiterFuture::of_result(self.send(delete, false, |_| Ok(())))
    }
}

impl_debug!(RedisCell |cell| {
    server: cell.client.config.health.server,
    rate: cell.rate,
    deadline: cell.client.config.deadline,
});

/// Builds a [`RedisCell`] with other than the default settings.
#[must_use = "a builder has no effect until `build` is called"]
pub struct RedisCellBuilder {
    settings: Settings,
    quota: Quota,
    burst: u64,
}

impl RedisCellBuilder {
    /// Sets the burst. Default: the quota's limit. The command's `max_burst` is one less.
    pub fn burst(mut self, burst: u64) -> Self {
        self.burst = burst;
        self
    }

    /// Sets the prefix of all keys: see [`RedisBuilder::prefix`](crate::RedisBuilder::prefix).
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// Sets the time after which a decision fails: see [`RedisBuilder::deadline`](crate::RedisBuilder::deadline).
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// Replaces users' keys by keyed hashes: see [`RedisBuilder::hash_keys`](crate::RedisBuilder::hash_keys).
    pub fn hash_keys(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.settings.secret = Some(secret.into());
        self
    }

    /// Builds the limiter. This method opens no connection: see [`RedisCell::health_check`].
    ///
    /// # Errors
    ///
    /// - The period is not whole seconds, or the quota is above one request per microsecond.
    /// - The burst is zero, or refills in more than a hundred years.
    /// - The name is empty, the deadline is zero or above 24 hours, or the secret is too short.
    /// - The server is a cluster.
    pub fn build(self) -> Result<RedisCell, Error> {
        let Settings { server, name, prefix, secret, hold_expiry, .. } = &self.settings;
        self.settings.check()?;
        if server.0.is_cluster() {
            return Err(Error::config(
                "invalid server for CL.THROTTLE: it declares no keys, so every node of a cluster counts every key by \
                 itself; use `Redis` instead of `RedisCell`",
            ));
        }
        let rate = Rate::new(self.quota, self.burst)?;
        let key_format = KeyFormat::new(prefix, name, [("default", "cell")], secret.as_deref(), false);
        let limits = Arc::new(LimitSet::new(0, Vec::new(), false, *hold_expiry));
        let (keys, key_offsets, algorithms) = (Vec::new(), Vec::new(), Vec::new());
        let target = OperationTarget { limits, keys, key_offsets, algorithms, weight: 1 };
        Ok(RedisCell { client: new_client(&self.settings), target, rate, key_format: Arc::new(key_format) })
    }
}

impl_debug!(RedisCellBuilder |RedisCellBuilder { settings, quota, .. }| {
    server: settings.server,
    name: settings.name,
    quota: quota,
});
