use std::sync::Arc;
use std::time::Duration;

use super::lease::Lease;
use super::limiter::Redis;
use super::limits::{IntoRedisLimits, RedisLimit};
use super::script::LimitInfo;
use super::server::RedisServer;
use crate::clock::Clock;
use crate::encode::{EncodeKey, KeyWriter};
use crate::error::Error;
use crate::observe::Observer;
use crate::store::inner::{CallId, Observers};

/// Writes the hash tag of a key, which selects its cluster slot.
pub(crate) type HashTag<Key> = Arc<dyn Fn(&Key, &mut KeyWriter) + Send + Sync>;

/// The settings of a limiter in Redis, apart from its limits.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) server: RedisServer,
    pub(crate) name: String,
    pub(crate) prefix: String,
    pub(crate) deadline: Duration,
    pub(crate) hold_expiry: Duration,
    pub(crate) secret: Option<Vec<u8>>,
    pub(crate) clock: Option<Arc<dyn Clock>>,
    pub(crate) observers: Observers,
    pub(crate) lease: Option<Lease>,
    pub(crate) max_ids: usize,
    /// The clock of leases, in tests in virtual time.
    #[cfg(test)]
    pub(crate) lease_clock: Option<Arc<dyn Clock>>,
}

/// Builds a [`Redis`] limiter with other than the default settings.
#[must_use = "a builder has no effect until `build` is called"]
pub struct RedisBuilder<Key: ?Sized> {
    pub(crate) settings: Settings,
    pub(crate) limits: Arc<[RedisLimit<Key>]>,
    pub(crate) hash_tag: Option<HashTag<Key>>,
}

impl Settings {
    const MIN_HOLD_EXPIRY: Duration = Duration::from_millis(100);
    const MAX_HOLD_EXPIRY: Duration = Duration::from_secs(24 * 60 * 60);
    /// Times that are a few deadlines ahead must exist.
    const MAX_DEADLINE: Duration = Self::MAX_HOLD_EXPIRY;

    pub(crate) fn new(server: RedisServer, name: &str) -> Self {
        Self {
            server,
            name: name.to_owned(),
            prefix: RedisBuilder::<str>::DEFAULT_PREFIX.to_owned(),
            deadline: RedisBuilder::<str>::DEFAULT_DEADLINE,
            hold_expiry: RedisBuilder::<str>::DEFAULT_HOLD_EXPIRY,
            secret: None,
            clock: None,
            observers: Observers::default(),
            lease: None,
            max_ids: CallId::DEFAULT_MAX_IDS,
            #[cfg(test)]
            lease_clock: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.server.0.check()?;
        let (deadline, expiry) = (self.deadline, self.hold_expiry);
        let problem = if let Some(length) = self.secret.as_ref().map(Vec::len).filter(|length| *length < 16) {
            format!("invalid secret for hashed keys: it has {length} bytes; use at least 16 random bytes")
        } else if self.name.is_empty() {
            "invalid name: it is empty; use a name that identifies the limiter in Redis".to_owned()
        } else if deadline.is_zero() || deadline > Self::MAX_DEADLINE {
            format!("invalid deadline: it is {deadline:?}; use at least some milliseconds and at most 24 hours")
        } else if expiry < Self::MIN_HOLD_EXPIRY || expiry > Self::MAX_HOLD_EXPIRY {
            format!("invalid `hold_expiry`: it is {expiry:?}; use at least 100 ms and at most 24 hours")
        } else {
            return CallId::check_max_ids(self.max_ids);
        };
        Err(Error::config(problem))
    }
}

impl<Key: ?Sized> RedisBuilder<Key> {
    /// The default [`deadline`](Self::deadline).
    pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(50);

    /// The default [`hold_expiry`](Self::hold_expiry).
    pub const DEFAULT_HOLD_EXPIRY: Duration = Duration::from_secs(10);

    /// The default [`prefix`](Self::prefix).
    pub const DEFAULT_PREFIX: &str = "ratelimit";

    pub(crate) fn new(server: RedisServer, name: &str, limits: impl IntoRedisLimits<Key>) -> Self {
        Self { settings: Settings::new(server, name), limits: limits.into_limits().into(), hash_tag: None }
    }

    /// Sets the prefix of all keys. The prefix is not escaped. Default: [`DEFAULT_PREFIX`](Self::DEFAULT_PREFIX).
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// Sets the time after which a decision fails, at most 24 hours. Default: [`DEFAULT_DEADLINE`](Self::DEFAULT_DEADLINE).
    ///
    /// The time includes connecting, and waiting for earlier calls. An attempt to connect ends after two seconds, or after
    /// nine tenths of the deadline if that is longer. A later decision may use the connection.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// Sets the time after which Redis charges a [held](crate::limiter::Held) cost that the process does not renew, as
    /// when the process has died. Default: [`DEFAULT_HOLD_EXPIRY`](Self::DEFAULT_HOLD_EXPIRY).
    ///
    /// A process renews its holds three times in that time, in the background, so a hold lasts as long as its guard. With
    /// tens of thousands of holds, a longer time saves work of Redis: see the page "Redis sizing" of the guide. If no
    /// renewal reaches Redis for that time, Redis charges the whole held costs. An outage that begins before a renewal may
    /// last two thirds of that time, including the seconds until decisions succeed again (see the page "Redis" of the
    /// guide): with a setting of a few seconds, holds may expire in a shorter outage. All limiters with one name should have
    /// the same setting.
    pub fn hold_expiry(mut self, expiry: Duration) -> Self {
        self.settings.hold_expiry = expiry;
        self
    }

    /// Lets this process decide without a round trip, by units of the quota that it holds for a short time. Off by
    /// default.
    ///
    /// The bound of each limit's algorithm holds in every window: see the page "Leases" of the guide. A decision takes its
    /// cost from the leases of all limits, or Redis makes it. Redis decides requests that hold their cost, and requests
    /// whose cost is above an eighth of what leases may hold.
    /// [`LeakyQueue`](crate::LeakyQueue), [`InFlight`](crate::InFlight) and limits that apply only to
    /// [some requests](crate::Limit::only_if) or [keep units free](crate::Limit::keep_free_by) cannot be leased.
    ///
    /// Call [`Redis::close`] before the process ends. Otherwise Redis charges what the process still holds.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.settings.lease = Some(lease);
        self
    }

    /// Sets the maximum number of remembered [ids](crate::AcquireOptions::id) of a key: 1 to 1,000,000, by default
    /// 10,000. A further hold with an id is denied. Redis stores some 250 bytes for each id, and the length of the key.
    pub fn max_reservation_ids(mut self, max: usize) -> Self {
        self.settings.max_ids = max;
        self
    }

    /// Replaces users' keys by keyed hashes, under a secret of at least 16 bytes.
    ///
    /// For keys that are secrets or personal data. All processes must have the same secret. [`Redis::rotate_secret`]
    /// replaces it.
    pub fn hash_keys(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.settings.secret = Some(secret.into());
        self
    }

    /// Adds an observer of calls, of the circuit breaker, and of conflicting limiters: see [`observe`](crate::observe).
    ///
    /// The layer emits the events of requests; pass it the same observer for both. May be called several times.
    pub fn observe(mut self, observer: impl Observer + 'static) -> Self {
        self.settings.observers.add(observer);
        self
    }

    /// Sets the hash tag, which selects the cluster slot of a key. Keys are then `prefix:{TAG}:name:limit:script:key`,
    /// on any server.
    ///
    /// Without a tag, all keys of several limits in a cluster share one slot, and so one node. The tag must be
    /// **determined by the sub-key of every limit**. With the limits "per user" and "per organisation", it is the
    /// organisation, if each user belongs to one. Otherwise a limit counts once per tag: a user in two organisations
    /// has the user's limit twice. A limit on all keys together has no such tag, and [`build`](Self::build) returns an
    /// error; make it a limiter of its own, and combine the two with [`Chained`](crate::limiter::Chained).
    ///
    /// With one limit, a tag can save calls: decisions with equal tags travel together. A hash of the key modulo a few
    /// times the number of nodes is such a tag. Fewer tags make larger batches, but spread less evenly.
    ///
    /// ```
    /// use tower_ratelimit::{Gcra, Limit, Quota, Redis, RedisServer};
    ///
    /// let limits = (
    ///     Limit::new("user", Gcra::new(Quota::per_second(10))),
    ///     Limit::new("org", Gcra::new(Quota::per_second(100))).keyed_by(|&(org, _): &(u64, u64)| org),
    /// );
    /// let server = RedisServer::open("redis://127.0.0.1")?;
    /// let limiter = Redis::builder(server, "api", limits).slot_by(|&(org, _)| org).build()?;
    /// assert_eq!(limiter.redis_key("org", &(7, 1))?, "ratelimit:{7}:api:org:bucket2:7");
    /// # Ok::<(), tower_ratelimit::Error>(())
    /// ```
    pub fn slot_by<T: EncodeKey>(mut self, tag: impl Fn(&Key) -> T + Send + Sync + 'static) -> Self {
        self.hash_tag = Some(Arc::new(move |key, writer| tag(key).encode(writer)));
        self
    }

    /// Decides by this clock, and keeps all keys for a day. Only for this repository, whose `.cargo/config.toml` sets the
    /// `cfg`: the clocks of two processes differ.
    #[cfg(redis_test_clock)]
    #[doc(hidden)]
    pub fn clock_for_tests(mut self, clock: impl Clock + 'static) -> Self {
        self.settings.clock = Some(Arc::new(clock));
        self
    }

    /// Builds the limiter. This method opens no connection: see [`Redis::health_check`].
    ///
    /// If another limiter of this process with the same name, prefix and server has a limit of the same name with
    /// another algorithm or quota, observers receive a [warning](crate::observe::Event::Warning). The other limiter may
    /// be about to be replaced.
    ///
    /// # Errors
    ///
    /// - There is no limit, or there are more than [`Redis::MAX_LIMITS`].
    /// - Two limits have the same name, or a name is empty.
    /// - `max_reservation_ids` is out of range.
    /// - The deadline is zero or above 24 hours, or `hold_expiry` is below 100 ms or above 24 hours.
    /// - The secret is too short.
    /// - A [`lease`](Self::lease) has an invalid duration, share or margin, or the limits do not support leases: also a
    ///   fixed cost above an eighth of what leases may hold.
    /// - The limits cannot share a cluster slot: braces in the prefix prevent it, or [`slot_by`](Self::slot_by) cannot
    ///   spread a limit on all keys together. Use [`Chained`](crate::limiter::Chained) instead.
    pub fn build(self) -> Result<Redis<Key>, Error> {
        Redis::from_builder(self)
    }

    /// Checks the settings, and that the limits can share a cluster slot. `infos` are the properties of the limits.
    pub(crate) fn check(&self, infos: &[LimitInfo]) -> Result<(), Error> {
        let Settings { server, prefix, .. } = &self.settings;
        self.settings.check()?;
        let (count, max) = (self.limits.len(), Redis::<Key>::MAX_LIMITS);
        if count == 0 || count > max {
            return Err(Error::config(format!("invalid limits: there are {count}; pass at least 1 and at most {max}")));
        }
        if self.hash_tag.is_some() && prefix.contains('{') {
            return Err(Error::config(
                "invalid prefix: a brace in the prefix selects the cluster slot; remove the brace, or `slot_by`",
            ));
        }
        if server.0.is_cluster() && self.limits.len() > 1 && prefix.contains("{}") {
            return Err(Error::config(
                "invalid prefix: with {} several limits cannot share a cluster slot; remove it, or make each limit a \
                 limiter of its own, and combine them with `limiter::Chained`",
            ));
        }
        if self.hash_tag.is_some()
            && let Some(global) = infos.iter().find(|info| info.is_global)
        {
            return Err(Error::config(format!(
                "invalid limits: `slot_by` cannot spread the limit {:?}, which counts all keys together; make it a \
                 limiter of its own, and combine the two with `limiter::Chained`",
                global.facts.name.as_str()
            )));
        }
        Ok(())
    }
}

impl_debug!([Key: ?Sized] RedisBuilder<Key> |RedisBuilder { settings, limits, .. }| {
    server: settings.server,
    name: settings.name,
    limits: limits,
    prefix: settings.prefix,
    deadline: settings.deadline,
});
