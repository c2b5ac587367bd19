use std::fmt;
use std::time::Duration;

use super::limiter::RedisCell;
use super::link::CellLink;
use super::rate::Rate;
use crate::error::Error;
use crate::quota::Quota;
use crate::store::inner::Observers;
use crate::store::redis::builder::{RedisBuilder, check_settings};
use crate::store::redis::health::ServerHealth;
use crate::store::redis::key_format::KeyFormat;
use crate::store::redis::server::RedisServer;

/// Builds a [`RedisCell`] with other than the default settings.
#[must_use = "a builder has no effect until `build` is called"]
pub struct RedisCellBuilder {
    server: RedisServer,
    name: String,
    quota: Quota,
    burst: u64,
    prefix: String,
    deadline: Duration,
    secret: Option<Vec<u8>>,
}

impl RedisCellBuilder {
    pub(super) fn new(server: RedisServer, name: &str, quota: Quota) -> Self {
        Self {
            server,
            name: name.to_owned(),
            quota,
            burst: quota.limit(),
            prefix: RedisBuilder::<str>::DEFAULT_PREFIX.to_owned(),
            deadline: RedisBuilder::<str>::DEFAULT_DEADLINE,
            secret: None,
        }
    }

    /// Sets the burst. Default: the quota's limit. The command's `max_burst` is one less.
    pub fn burst(mut self, burst: u64) -> Self {
        self.burst = burst;
        self
    }

    /// Sets the prefix of all keys: see [`RedisBuilder::prefix`].
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the time after which a decision fails: see [`RedisBuilder::deadline`].
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Replaces users' keys by keyed hashes: see [`RedisBuilder::hash_keys`].
    pub fn hash_keys(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// Builds the limiter. This method opens no connection: see [`RedisCell::health_check`].
    ///
    /// # Errors
    ///
    /// - The period is not whole seconds, or the quota is above one request per microsecond.
    /// - The burst is zero, or refills in more than a hundred years.
    /// - The name is empty, the deadline is zero, or the secret is too short.
    /// - The server is a cluster.
    pub fn build(self) -> Result<RedisCell, Error> {
        check_settings(&self.server, &self.name, self.deadline, self.secret.as_deref())?;
        if self.server.0.is_cluster() {
            return Err(Error::config(
                "invalid server for CL.THROTTLE: it declares no keys, so every node of a cluster counts every key by \
                 itself; use `Redis` instead of `RedisCell`",
            ));
        }
        let rate = Rate::new(self.quota, self.burst)?;
        let key_format = KeyFormat::new(&self.prefix, &self.name, [("default", "cell")], self.secret.as_deref());
        let health = ServerHealth::new(self.name, self.server.0, Observers::default());
        Ok(RedisCell::of_link(CellLink::new(health, self.deadline), rate, key_format))
    }
}

impl fmt::Debug for RedisCellBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, name, quota, .. } = self;
        f.debug_tuple("RedisCellBuilder").field(server).field(name).field(quota).finish_non_exhaustive()
    }
}
