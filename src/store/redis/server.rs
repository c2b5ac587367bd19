use std::future::Future;
use std::sync::Arc;

#[cfg(feature = "redis-cluster")]
use super::cluster::Topology;
#[cfg(feature = "redis-tls")]
use super::connect::RedisTls;
#[cfg(feature = "redis-sentinel")]
use super::connect::SentinelConnector;
use super::connect::{ClientConnector, Connector, CredentialsProvider, ProviderError, RedisCredentials, parse_address};
use crate::error::Error;

/// The address of a Redis deployment, and how to connect to it.
///
/// [`open`](Self::open) takes an address. With the feature `bb8`, `From` takes a pool: `bb8::Pool<M>` for any manager
/// whose connections are shared by cloning, such as `bb8_redis::RedisConnectionManager`.
///
/// Each limiter keeps one connection of its own for each tokio runtime from which it is called. All calls are pipelined
/// on this connection. The limiter opens another connection if this one fails, or if the server closed it while it was
/// idle.
///
/// Of a pool, all limiters of a `RedisServer` and its clones share one connection, which they check out and keep: so
/// the pool's size, time-outs, error sink and statistics count it. If it fails, they check out another one. While the pool
/// gives none after an outage, they open one by the pool's manager until it does. A pool needs a `max_size` of at least 2,
/// and `test_on_check_out`; otherwise building a limiter is an error. Connections of `RedisConnectionManager` give up a call
/// after 500 ms, whatever the limiter's deadline is. `from_manager` connects beside a pool.
#[derive(Clone, Debug)]
pub struct RedisServer(pub(super) Arc<dyn Connector>);

impl RedisServer {
    /// Parses an address: `redis://[user:password@]host[:port][/database]` or `unix:///path/to/socket`.
    ///
    /// `rediss://` connects over TLS (feature `redis-tls`); `with_tls` sets certificates.
    ///
    /// This method opens no connection: see [`Redis::health_check`](super::Redis::health_check).
    ///
    /// # Errors
    ///
    /// If the address is invalid.
    pub fn open(address: &str) -> Result<Self, Error> {
        Ok(Self(Arc::new(ClientConnector::new(parse_address(address)?)?)))
    }

    /// A Redis Cluster or Valkey Cluster, by the addresses of some of its nodes.
    ///
    /// The limiter asks these nodes for all others. The user, the password and TLS of the first address apply to all
    /// nodes. A cluster has no databases.
    ///
    /// Each decision goes to the node that holds its keys. Moved slots and new, removed or failed nodes are normal
    /// operation; a node that is down fails only the decisions on its keys. The limiter sends a command again only if a
    /// node replied that it did not run it. [`Redis`](super::Redis#in-a-cluster) describes how several limits share a
    /// cluster slot.
    ///
    /// This method opens no connection: see [`Redis::health_check`](super::Redis::health_check).
    ///
    /// # Errors
    ///
    /// If there is no address, or an address does not name a node.
    #[cfg(feature = "redis-cluster")]
    pub fn cluster(addresses: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        let infos = addresses.into_iter().map(|address| parse_address(address.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self(Arc::new(Topology::new(infos)?)))
    }

    /// The master of this name, by the addresses of Sentinels, such as `redis://127.0.0.1:26379`.
    ///
    /// The limiter asks the Sentinels for the master whenever it opens a connection. After a fail-over the old master
    /// fails, or responds READONLY, and the limiter connects to the new one.
    ///
    /// The connection to the master uses no password and no TLS: see [`sentinel_with`](Self::sentinel_with).
    ///
    /// # Errors
    ///
    /// If there is no Sentinel, or an address is invalid.
    #[cfg(feature = "redis-sentinel")]
    pub fn sentinel(addresses: impl IntoIterator<Item = impl AsRef<str>>, master: &str) -> Result<Self, Error> {
        Self::sentinel_with(addresses, master, "redis://127.0.0.1")
    }

    /// As [`sentinel`](Self::sentinel), with settings for the connection to the master.
    ///
    /// `settings` is an address as in [`open`](Self::open): its user, password, database and TLS apply; its host and
    /// port do not.
    ///
    /// # Errors
    ///
    /// If there is no Sentinel, or an address is invalid.
    #[cfg(feature = "redis-sentinel")]
    pub fn sentinel_with(
        addresses: impl IntoIterator<Item = impl AsRef<str>>,
        master: &str,
        settings: &str,
    ) -> Result<Self, Error> {
        let sentinels =
            addresses.into_iter().map(|address| parse_address(address.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self(Arc::new(SentinelConnector::new(sentinels, master, parse_address(settings)?)?)))
    }

    /// Sets the certificates for `rediss://` addresses.
    ///
    /// TLS is rustls, with the process's default
    /// [`CryptoProvider`](https://docs.rs/rustls/latest/rustls/crypto/struct.CryptoProvider.html). If the process has
    /// none when the limiter opens its first connection, the limiter installs ring.
    ///
    /// # Errors
    ///
    /// If no address is `rediss://`, or a certificate or key is invalid. Also for a pool, whose own client has its
    /// certificates.
    #[cfg(feature = "redis-tls")]
    pub fn with_tls(&self, tls: &RedisTls) -> Result<Self, Error> {
        Ok(Self(self.0.with_tls(tls)?))
    }

    /// Asks `provider` for the user and the password, or a token, whenever the limiter opens a connection.
    ///
    /// The provider is an asynchronous closure. Credentials [that expire](RedisCredentials::expires_in) are renewed
    /// before they do: the limiter asks the provider again, and authenticates the open connection. The time that the
    /// provider takes counts towards the time to [open a connection](crate::RedisBuilder::deadline), so a provider should
    /// cache what it fetches. If the provider fails, the decision fails; the error keeps the provider's text.
    ///
    /// In a cluster the credentials apply to all nodes. With Sentinel they apply to the master, and the Sentinels use
    /// the credentials in their addresses.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tower_ratelimit::{RedisCredentials, RedisServer};
    ///
    /// # async fn fetch_token() -> std::io::Result<String> { Ok(String::new()) }
    /// # fn f() -> Result<(), tower_ratelimit::Error> {
    /// let server = RedisServer::open("rediss://cache.internal:6380")?.with_credentials(|| async {
    ///     let token = fetch_token().await?;
    ///     Ok(RedisCredentials::new("app", token).expires_in(Duration::from_secs(15 * 60)))
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// For a pool, whose manager authenticates.
    pub fn with_credentials<F, Fut>(&self, provider: F) -> Result<Self, Error>
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<RedisCredentials, ProviderError>> + Send + 'static,
    {
        Ok(Self(self.0.with_credentials(CredentialsProvider::new(provider))?))
    }

    /// The known endpoints; for a pool, an identifier of the pool. Equal servers have one in common.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        let mut endpoints = self.0.endpoints();
        if endpoints.is_empty() {
            endpoints.push(format!("{:p}", Arc::as_ptr(&self.0)));
        }
        endpoints
    }
}
