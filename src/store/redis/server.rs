use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::aio::ConnectionLike;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, RedisError};
use tokio::time::timeout;

use super::connection::Connection;
use super::failure::Failure;
use super::slot::slot;
use crate::error::Error;
use crate::limiter::BoxFuture;

/// Where Redis is, and how it is reached.
///
/// From an address with [`open`](Self::open), or from a pool of your own: `bb8::Pool<M>` for any manager whose connections
/// are shared by cloning, such as `bb8_redis::RedisConnectionManager`. Each limiter keeps one connection of its own for each
/// tokio runtime that it is used from, which all its calls share, one behind the other. It makes another when that one
/// fails. Of a pool it uses the manager and the customizer, and none of the pooled connections.
#[derive(Clone)]
pub struct RedisServer(Arc<dyn Source>);

/// What connections come from. A cluster has a lane for each node, anything else one.
pub(super) trait Source: Send + Sync {
    fn connect(&self, lane: usize) -> BoxFuture<Result<Box<dyn Connection>, Failure>>;
    fn describe(&self) -> &str;

    fn is_cluster(&self) -> bool {
        false
    }

    /// Finds out which lanes there are.
    fn prepare(&self) -> BoxFuture<Result<(), Failure>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn lanes(&self) -> usize {
        1
    }

    /// The lane of a slot.
    fn lane(&self, _slot: u16) -> usize {
        0
    }
}

impl RedisServer {
    /// For how long a connection may take to be made.
    pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(2);

    /// By an address: `redis://[user:password@]host[:port][/database]`, `rediss://` for TLS (feature `redis-tls`), or
    /// `unix:///path/to/socket`.
    ///
    /// Nothing is connected yet: see [`Redis::check`](super::Redis::check).
    ///
    /// # Errors
    ///
    /// If it is no such address.
    pub fn open(address: &str) -> Result<Self, Error> {
        // The address may hold a password: it is not repeated.
        let wrong = |error: RedisError| {
            Error::config(
                "this is not the address of a Redis: it should be redis://[user:password@]host[:port][/database], rediss:// \
                 for TLS (with the feature `redis-tls`), or unix:///path/to/socket",
            )
            .with_source(error)
        };
        let info = address.into_connection_info().map_err(wrong)?;
        let place = info.addr().to_string();
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let client = Client::open(info).map_err(wrong)?;
        Ok(Self(Arc::new(Opened { client, place })))
    }

    pub(super) fn connect(&self, lane: usize) -> BoxFuture<Result<Box<dyn Connection>, Failure>> {
        self.0.connect(lane)
    }

    pub(super) fn describe(&self) -> &str {
        self.0.describe()
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.0.is_cluster()
    }

    pub(super) fn prepare(&self) -> BoxFuture<Result<(), Failure>> {
        self.0.prepare()
    }

    pub(super) fn lanes(&self) -> usize {
        self.0.lanes()
    }

    pub(super) fn lane(&self, slot: u16) -> usize {
        self.0.lane(slot)
    }

    /// A key that a probe of this lane can write, and its slot. `None` if none is found: the lane's node has no slots, or few.
    pub(super) fn probe_key(&self, lane: usize, prefix: &str) -> Option<(String, u16)> {
        let key = format!("{prefix}:probe");
        if !self.is_cluster() {
            return Some((key, 0));
        }
        (0..1_000).find_map(|number| {
            let key = format!("{prefix}:{number}:probe");
            let slot = slot(key.as_bytes());
            (self.lane(slot) == lane).then_some((key, slot))
        })
    }
}

impl<M> From<Pool<M>> for RedisServer
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Clone + Send + Sync + 'static,
{
    fn from(pool: Pool<M>) -> Self {
        Self(Arc::new(Given { pool }))
    }
}

impl fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisServer").field(&self.0.describe()).finish()
    }
}

/// A pool of the user's.
struct Given<M: ManageConnection> {
    pool: Pool<M>,
}

impl<M> Source for Given<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Clone + Send + Sync + 'static,
{
    fn connect(&self, _lane: usize) -> BoxFuture<Result<Box<dyn Connection>, Failure>> {
        let pool = self.pool.clone();
        Box::pin(async move {
            // Not `get`: bb8 tells no errors there, may hand out a connection that is long dead, and one whose other
            // user may block it. Nor can a connection that failed be taken out of somebody's pool.
            let connection = within(pool.dedicated_connection()).await?;
            Ok(Box::new(connection) as Box<dyn Connection>)
        })
    }

    fn describe(&self) -> &'static str {
        "a pool"
    }
}

/// An address. A line keeps its connection, and shares it by cloning: there is nothing to pool.
struct Opened {
    client: Client,
    place: String,
}

impl Source for Opened {
    fn connect(&self, _lane: usize) -> BoxFuture<Result<Box<dyn Connection>, Failure>> {
        let client = self.client.clone();
        Box::pin(async move {
            // Each decision has its own deadline; a second one here would only cut longer operations short.
            let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
            let connection = within(client.get_multiplexed_async_connection_with_config(&config)).await?;
            Ok(Box::new(connection) as Box<dyn Connection>)
        })
    }

    fn describe(&self) -> &str {
        &self.place
    }
}

/// A server that accepts and then says nothing must not hold up those who wait for a connection.
async fn within<C>(connecting: impl Future<Output = Result<C, RedisError>>) -> Result<C, Failure> {
    match timeout(RedisServer::CONNECT_WITHIN, connecting).await {
        Ok(connected) => connected.map_err(Failure::of),
        Err(_) => Err(Failure::timed_out(format!(
            "there was no connection to Redis within {:?}",
            RedisServer::CONNECT_WITHIN
        ))),
    }
}
