use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::limiter::Redis;
use super::limits::{IntoRedisLimits, RedisLimit};
use super::server::RedisServer;
use crate::clock::Clock;
use crate::encode::{EncodeKey, KeyWriter};
use crate::error::Error;
use crate::observe::{Observer, Observers};
use crate::store::redis::key_format::check_secret;

/// Writes of a key what chooses its slot.
pub(crate) type Tag<Key> = Arc<dyn Fn(&Key, &mut KeyWriter) + Send + Sync>;

/// Builds a [`Redis`] with other than the default settings.
#[must_use = "a builder builds nothing by itself"]
pub struct RedisBuilder<Key: ?Sized> {
    pub(crate) server: RedisServer,
    pub(crate) name: String,
    pub(crate) limits: Vec<RedisLimit<Key>>,
    pub(crate) prefix: String,
    pub(crate) deadline: Duration,
    pub(crate) hold_expiry: Duration,
    pub(crate) secret: Option<Vec<u8>>,
    pub(crate) clock: Option<Arc<dyn Clock>>,
    pub(crate) observers: Observers,
    pub(crate) tag: Option<Tag<Key>>,
}

impl<Key: ?Sized> RedisBuilder<Key> {
    /// The deadline of a decision unless [`deadline`](Self::deadline) says otherwise.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(50);

    /// When a hold that nobody renews expires unless [`hold_expiry`](Self::hold_expiry) says otherwise: after ten seconds.
    pub const DEFAULT_HOLD_EXPIRY: Duration = Duration::from_secs(10);

    const SHORTEST_HOLD_EXPIRY: Duration = Duration::from_millis(100);
    const LONGEST_HOLD_EXPIRY: Duration = Duration::from_secs(24 * 60 * 60);

    /// What all keys begin with unless [`prefix`](Self::prefix) says otherwise.
    pub const DEFAULT_PREFIX: &str = "ratelimit";

    pub(crate) fn new(server: RedisServer, name: &str, limits: impl IntoRedisLimits<Key>) -> Self {
        Self {
            server,
            name: name.to_owned(),
            limits: limits.into_limits(),
            prefix: Self::DEFAULT_PREFIX.to_owned(),
            deadline: Self::DEFAULT_DEADLINE,
            hold_expiry: Self::DEFAULT_HOLD_EXPIRY,
            secret: None,
            clock: None,
            observers: Observers::default(),
            tag: None,
        }
    }

    /// What all keys begin with: to share a Redis with others. It is written as it is.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Within what time a decision has to be made, connecting and waiting for other calls included: after it, the decision
    /// fails. KeyedBy default [`DEFAULT_DEADLINE`](Self::DEFAULT_DEADLINE).
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the time after which Redis settles a [held](crate::limiter::Held) cost whole if the process does not renew it, as
    /// when the process has died. KeyedBy default [`DEFAULT_HOLD_EXPIRY`](Self::DEFAULT_HOLD_EXPIRY).
    ///
    /// A process renews what it holds three times in that time, in the background: a hold may last as long as it likes. A process
    /// that Redis does not hear of for so long loses its holds: they are charged as they were held. All limiters with one name
    /// should have the same setting.
    pub fn hold_expiry(mut self, expiry: Duration) -> Self {
        self.hold_expiry = expiry;
        self
    }

    /// Keeps of users' keys only a hash under a secret of at least 16 bytes: where they are secrets themselves, or personal
    /// data. All processes need the same one. [`Redis::rotate_secret`] replaces it.
    pub fn hash_keys(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// Tells `observer` of calls, of the breaker, and of limits that are at odds: see [`observe`](crate::observe). What
    /// becomes of requests is told by the layer: an observer that is to know both is given to both. May be called several
    /// times; each observer is told.
    pub fn observe(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.add(observer);
        self
    }

    /// What chooses the slot of a cluster that a key's states are in: they are named
    /// `prefix:{TAG}:name:limit:kernel:key` then, on any server.
    ///
    /// For several limits in a cluster, which without it all lie in one slot, and so on one node. Whatever a limit counts by
    /// **must determine the tag**: with "per user and per organisation" it is the organisation, if each user is in one. What
    /// does not is counted once for each tag: a user in two organisations has the user's limit twice. A limit on all keys
    /// together, which no tag but one can hold, is an error of [`build`](Self::build): let that be a limiter of its own,
    /// and put the two together with [`Chained`](crate::limiter::Chained).
    ///
    /// For one limit it is of use where calls are what the nodes spend their time on: decisions with equal tags travel together,
    /// so with the key's hash modulo some times the number of nodes as a tag they do so far more often. The fewer tags, the
    /// less evenly they spread.
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
        self.tag = Some(Arc::new(move |key, writer| tag(key).encode(writer)));
        self
    }

    /// Decides by this clock, and keeps all keys for a day: for tests only, as the clocks of two processes always differ.
    #[doc(hidden)]
    pub fn clock_for_tests(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// The limiter. Nothing is connected yet: see [`Redis::health_check`].
    ///
    /// A limit of the same name in another limiter of this process with the same name, prefix and server, that counts by
    /// another algorithm or quota, is a [warning](crate::observe::Event::Warning) to observers: it may be on its way out, as
    /// where limits are replaced.
    ///
    /// # Errors
    ///
    /// If there is no limit, two limits have the same name, a name is empty, the deadline is zero, `hold_expiry` is below 100 ms
    /// or above 24 hours, the secret is too short; or if limits can't share a slot of a cluster: the prefix has braces that keep them from it, or
    /// [`slot_by`](Self::slot_by) is to spread one that counts all keys together. The error then names the two-phase form,
    /// [`Chained`](crate::limiter::Chained).
    pub fn build(self) -> Result<Redis<Key>, Error> {
        check_settings(&self.name, self.deadline, self.secret.as_deref())?;
        if self.hold_expiry < Self::SHORTEST_HOLD_EXPIRY || self.hold_expiry > Self::LONGEST_HOLD_EXPIRY {
            return Err(Error::config(format!(
                "`hold_expiry` is {:?}: it must be at least 100 ms and at most 24 hours",
                self.hold_expiry
            )));
        }
        if self.limits.is_empty() {
            return Err(Error::config("a limiter in Redis needs at least one limit"));
        }
        if self.limits.len() > Redis::<Key>::MAX_LIMITS {
            return Err(Error::config(format!(
                "{} limits are too many for one decision: at most {}",
                self.limits.len(),
                Redis::<Key>::MAX_LIMITS
            )));
        }
        if self.tag.is_some() && self.prefix.contains('{') {
            return Err(Error::config("a prefix with a brace chooses the slot by itself: leave it out, or `slot_by`"));
        }
        if self.server.is_cluster() && self.limits.len() > 1 && self.prefix.contains("{}") {
            return Err(Error::config(
                "with {} in the prefix all of a key chooses its slot, so that several limits can't share one: leave it out, or let \
                 each be a limiter of its own, and decide in two phases with `limiter::Chained`",
            ));
        }
        if self.tag.is_some()
            && let Some(of_all) = self.limits.iter().map(|limit| limit.0.info()).find(|info| info.of_all)
        {
            return Err(Error::config(format!(
                "the limit {:?} counts all keys together, so that `slot_by` can't give it a slot with each of them: let it be a \
                 limiter of its own, and decide in two phases with `limiter::Chained`",
                of_all.name.as_str()
            )));
        }
        Redis::from_builder(self)
    }
}

/// What all limiters in Redis need.
pub(crate) fn check_settings(name: &str, deadline: Duration, secret: Option<&[u8]>) -> Result<(), Error> {
    if let Some(secret) = secret {
        check_secret(secret)?;
    }
    if name.is_empty() {
        return Err(Error::config("a limiter in Redis needs a name: all that have the same one share their keys"));
    }
    if deadline.is_zero() {
        return Err(Error::config("a deadline of zero refuses everything: give Redis some milliseconds"));
    }
    Ok(())
}

impl<Key: ?Sized> fmt::Debug for RedisBuilder<Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuilder")
            .field("server", &self.server)
            .field("name", &self.name)
            .field("limits", &self.limits)
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
