//! `RedisCell`: one limit by the command CL.THROTTLE of the module redis-cell.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value, from_redis_value};

use super::builder::Settings;
use super::client::{Client, ClientConfig, Completion, OperationKind, OperationTarget, reply_lost};
use super::connect::Failure;
use super::health_check::within_time_to_connect;
use super::key_format::KeyFormat;
use super::limiter_state::new_client;
use super::script::LimitSet;
use super::server::RedisServer;
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::decision::{AcquireOptions, Decision, DecisionSource, LimitSnapshot, LimitStatus, Verdict};
use crate::encode::{EncodeKey, KeyWriter};
use crate::error::Error;
use crate::limiter::{AdminOperation, Limiter, LimiterFuture, Outcome};
use crate::quota::Quota;

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
        let kind = OperationKind::Command(command);
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
        let key_format = KeyFormat::new(prefix, name, [("default", "", "cell")], secret.as_deref(), false);
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

/// The parameters of CL.THROTTLE, and the decision that a reply means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rate {
    burst: u64,
    count: u64,
    seconds: u64,
}

/// A reply to CL.THROTTLE. Times are whole seconds; `None` stands for the reply -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ThrottleReply {
    limited: bool,
    remaining: u64,
    retry_after: Option<u64>,
    reset_after: Option<u64>,
}

impl ThrottleReply {
    /// Reads the reply to CL.THROTTLE: five integers.
    fn read(reply: Value) -> Result<Self, Error> {
        let (limited, _, remaining, retry_after, reset_after): (i64, i64, i64, i64, i64) = from_redis_value(reply)
            .map_err(|_| Error::unavailable("unexpected reply to CL.THROTTLE; check the version of redis-cell"))?;
        let seconds = |number| u64::try_from(number).ok();
        let (retry_after, reset_after) = (seconds(retry_after), seconds(reset_after));
        Ok(Self { limited: limited != 0, remaining: u64::try_from(remaining).unwrap_or(0), retry_after, reset_after })
    }
}

impl Rate {
    const SECOND: u64 = 1_000_000;
    /// The maximum time to refill the whole burst. The module stores nanoseconds since the epoch in 64 bits.
    const MAX_REFILL_YEARS: u64 = 100;

    fn new(quota: Quota, burst: u64) -> Result<Self, Error> {
        let period = quota.period();
        let rate = Self { burst, count: quota.limit(), seconds: period.as_secs() };
        let problem = if period.subsec_nanos() != 0 || period.is_zero() {
            format!(
                "quota for CL.THROTTLE: the period of {quota} is not whole seconds; use whole seconds, as in 10 per second \
                 instead of 1 per 100ms"
            )
        } else if rate.count == 0 {
            "quota for CL.THROTTLE: it is zero; use `Redis` for a limit of zero".to_owned()
        } else if burst == 0 {
            "burst: it is zero; use at least 1".to_owned()
        } else if rate.count > rate.seconds.saturating_mul(Self::SECOND) {
            // The module computes the remaining requests from microseconds, so one request must take at least one.
            format!("quota for CL.THROTTLE: {quota} is above one request per microsecond; use a lower rate")
        } else if rate.refill_time(burst) > Duration::from_secs(Self::MAX_REFILL_YEARS * 365 * 86_400) {
            let years = Self::MAX_REFILL_YEARS;
            format!(
                "burst for CL.THROTTLE: at {quota} a burst of {burst} refills in more than {years} years; use a smaller burst"
            )
        } else {
            return Ok(rate);
        };
        Err(Error::config(format!("invalid {problem}")))
    }

    /// Returns the command for a key and a quantity.
    fn throttle(self, key: &[u8], quantity: u64) -> Cmd {
        let mut throttle = redis::cmd("CL.THROTTLE");
        // The command calls the burst without the first request `max_burst`.
        throttle.arg(key).arg(self.burst - 1).arg(self.count).arg(self.seconds).arg(quantity);
        throttle
    }

    /// The time in which `cost` refills, rounded up to a microsecond.
    fn refill_time(self, cost: u64) -> Duration {
        let micros = u128::from(cost) * u128::from(self.seconds) * u128::from(Self::SECOND);
        Duration::from_micros(u64::try_from(micros.div_ceil(u128::from(self.count))).unwrap_or(u64::MAX))
    }

    /// Returns the decision for a cost. For a peek the reply is that to a quantity of 0, which contains only what
    /// remains.
    fn decision(self, now: Timestamp, reply: ThrottleReply, cost: u64, is_peek: bool) -> Decision {
        let remaining = reply.remaining.min(self.burst);
        let used = self.burst - remaining;
        let reset = if used == 0 { Duration::ZERO } else { self.min_wait(used, reply.reset_after) };
        let verdict = if is_peek && remaining < cost {
            // A quantity of 0 is always allowed, so the verdict follows from what remains.
            let full_after = reply.reset_after.map(|seconds| Duration::from_secs(seconds.saturating_add(1)));
            let by_reset = full_after.map(|full| full.saturating_sub(self.refill_time(self.burst - cost)));
            let by_remaining = self.is_exact().then(|| self.refill_time(cost - remaining));
            let wait = by_reset.into_iter().chain(by_remaining).min().unwrap_or_else(|| self.refill_time(cost));
            Verdict::Denied { retry_after: wait.max(Duration::from_micros(1)) }
        } else if reply.limited {
            let missing = if remaining >= cost { cost } else { cost - remaining };
            match reply.retry_after {
                None => Verdict::ExceedsLimit,
                seconds => Verdict::Denied { retry_after: self.min_wait(missing, seconds) },
            }
        } else {
            Verdict::Allowed
        };
        let next_token_after = if used == 0 { Duration::ZERO } else { self.refill_time(1).min(reset) };
        let snapshot = LimitSnapshot::new(self.burst, self.refill_time(self.burst))
            .with_remaining(remaining)
            .with_reset(reset)
            .with_next_token_after(next_token_after);
        Decision::from_limit(now, LimitStatus::new("default", verdict, snapshot))
    }

    /// The minimum wait that is certainly sufficient.
    ///
    /// The module may have rounded its seconds down, so the wait is one second more. The remaining requests are rounded
    /// down, too, so at most the time of `cost` is missing. The smaller of the two is sufficient.
    fn min_wait(self, cost: u64, seconds: Option<u64>) -> Duration {
        let by_seconds = seconds.map(|seconds| Duration::from_secs(seconds.saturating_add(1)));
        let by_cost = self.is_exact().then(|| self.refill_time(cost));
        by_seconds.into_iter().chain(by_cost).min().unwrap_or_else(|| self.refill_time(self.burst))
    }

    /// Whether the remaining requests in a reply are exact: the module divides by whole microseconds.
    fn is_exact(self) -> bool {
        (u128::from(self.seconds) * u128::from(Self::SECOND)).is_multiple_of(u128::from(self.count))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Rate, ThrottleReply};
    use crate::clock::Timestamp;
    use crate::decision::Verdict;
    use crate::quota::Quota;

    fn verdict(quota: Quota, reply: ThrottleReply, cost: u64, is_peek: bool) -> Verdict {
        Rate::new(quota, quota.limit()).expect("a rate").decision(Timestamp::EPOCH, reply, cost, is_peek).verdict()
    }

    #[test]
    fn retry_after_is_sufficient_when_seconds_are_rounded_down() {
        let reply = ThrottleReply { limited: true, remaining: 0, retry_after: Some(0), reset_after: Some(0) };
        let wait = |millis| Verdict::Denied { retry_after: Duration::from_millis(millis) };
        assert_eq!(verdict(Quota::per_second(10), reply, 1, false), wait(100));
        // A third of a second is no whole number of microseconds: the module's snapshot are less exact then.
        assert_eq!(verdict(Quota::per_second(3), reply, 1, false), wait(1_000));
        let reply = ThrottleReply { limited: true, remaining: 2, retry_after: Some(5), reset_after: Some(47) };
        assert_eq!(verdict(Quota::per_minute(10), reply, 3, false), wait(6_000));
        assert_eq!(verdict(Quota::per_minute(10), reply, 3, true), wait(6_000));
    }

    #[test]
    fn peek_computes_the_wait_from_what_remains() {
        let reply = ThrottleReply { limited: false, remaining: 0, retry_after: None, reset_after: Some(58) };
        let wait = |seconds| Verdict::Denied { retry_after: Duration::from_secs(seconds) };
        assert_eq!(verdict(Quota::per_minute(6), reply, 1, true), wait(9));
        assert_eq!(verdict(Quota::per_minute(6), reply, 6, true), wait(59));
        assert_eq!(verdict(Quota::per_minute(6), reply, 0, true), Verdict::Allowed);
    }

    #[test]
    fn new_rejects_quotas_that_the_module_cannot_count() {
        let is_rejected = |quota, burst| Rate::new(quota, burst).is_err_and(|error| error.is_config());
        assert!(is_rejected(Quota::new(1, Duration::from_millis(100)), 1));
        assert!(is_rejected(Quota::new(1, Duration::from_millis(1_500)), 1));
        assert!(is_rejected(Quota::per_second(1_000_001), 1));
        assert!(is_rejected(Quota::per_day(1), 1 << 40));
        assert!(is_rejected(Quota::per_day(1), 0));
        assert!(!is_rejected(Quota::per_second(1_000_000), 1));
        assert!(!is_rejected(Quota::per_day(1), 1000));
    }
}
