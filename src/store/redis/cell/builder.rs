use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use super::limiter::RedisCell;
use super::rate::Rate;
use crate::error::Error;
use crate::quota::Quota;
use crate::store::redis::builder::{RedisBuilder, check_settings};
use crate::store::redis::key_format::Keys;
use crate::store::redis::server::RedisServer;

/// Builds a [`RedisCell`] with other than the default settings.
#[must_use = "a builder builds nothing by itself"]
pub struct RedisCellBuilder<Key: ?Sized> {
    pub(crate) server: RedisServer,
    pub(crate) name: String,
    quota: Quota,
    burst: u64,
    pub(crate) prefix: String,
    pub(crate) deadline: Duration,
    secret: Option<Vec<u8>>,
    key: PhantomData<fn(&Key)>,
}

impl<Key: ?Sized> RedisCellBuilder<Key> {
    pub(crate) fn new(server: RedisServer, name: &str, quota: Quota) -> Self {
        Self {
            server,
            name: name.to_owned(),
            quota,
            burst: quota.limit(),
            prefix: RedisBuilder::<Key>::DEFAULT_PREFIX.to_owned(),
            deadline: RedisBuilder::<Key>::DEFAULT_DEADLINE,
            secret: None,
            key: PhantomData,
        }
    }

    /// How many can be had at once: the quota's limit unless said here. It is the command's `max_burst`, and one.
    pub fn burst(mut self, burst: u64) -> Self {
        self.burst = burst;
        self
    }

    /// As [`RedisBuilder::prefix`].
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// As [`RedisBuilder::deadline`].
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// As [`RedisBuilder::hash_keys`].
    pub fn hash_keys(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// The limiter. Nothing is connected yet: see [`RedisCell::check`].
    ///
    /// # Errors
    ///
    /// If the period is not whole seconds, the quota is over one in a microsecond, the burst is zero or takes more than a
    /// hundred years to come back, the name is empty, the deadline is zero, the secret is too short, or the server is a
    /// cluster.
    pub fn build(self) -> Result<RedisCell<Key>, Error> {
        check_settings(&self.name, self.deadline, self.secret.as_deref())?;
        if self.server.is_cluster() {
            return Err(Error::config(
                "CL.THROTTLE can't be used in a cluster: it declares no keys, so a node that does not hold a key counts it \
                 all the same; use `Redis` there",
            ));
        }
        let rate = Rate::new(self.quota, self.burst)?;
        let keys = Keys::new(&self.prefix, &self.name, [("default", "cell")], self.secret.as_deref());
        Ok(RedisCell::from_builder(self, rate, keys))
    }
}

impl<Key: ?Sized> fmt::Debug for RedisCellBuilder<Key> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCellBuilder")
            .field("server", &self.server)
            .field("name", &self.name)
            .field("quota", &self.quota)
            .field("burst", &self.burst)
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
