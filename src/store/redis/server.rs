use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bb8_redis::bb8::{ManageConnection, Pool};
use futures_util::FutureExt;
use futures_util::future::{Either, select};
use redis::aio::ConnectionLike;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{Client, ConnectionInfo, IntoConnectionInfo, RedisError};

use crate::error::Error;
use crate::limiter::BoxFuture;
use crate::runtime::sleep;
use crate::store::redis::cluster::slot::slot;
use crate::store::redis::connect::connection::Connection;
use crate::store::redis::connect::failure::Failure;
use crate::store::redis::connect::shared_connection::Link;
#[cfg(feature = "redis-tls")]
use crate::store::redis::connect::tls::RedisTls;

/// Where Redis is, and how it is reached.
///
/// From an address with [`open`](Self::open), or from a pool of your own: `bb8::Pool<M>` for any manager whose connections
/// are shared by cloning, such as `bb8_redis::RedisConnectionManager`. Each limiter keeps one connection of its own for each
/// tokio runtime that it is used from, which all its calls share, one behind the other. It makes another when that one
/// fails, or was closed while it was idle. Of a pool it uses the manager and the customizer, and none of the pooled connections.
#[derive(Clone)]
pub struct RedisServer(Arc<dyn Source>);

/// What connections come from. A cluster has a lane for each node, anything else one.
pub(crate) trait Source: Send + Sync {
    fn connect(&self, lane: usize) -> BoxFuture<Result<Box<dyn Connection>, Failure>>;
    fn describe(&self) -> &str;

    /// Where it is, if that is known: its address and database, or that of each node which was named. Two that have one of
    /// them in common are the same.
    fn places(&self) -> Vec<String> {
        Vec::new()
    }

    fn is_cluster(&self) -> bool {
        false
    }

    /// The same over TLS with these certificates.
    #[cfg(feature = "redis-tls")]
    fn with_tls(&self, tls: &RedisTls) -> Result<Arc<dyn Source>, Error>;

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
    pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(2);

    /// KeyedBy an address: `redis://[user:password@]host[:port][/database]`, `rediss://` for TLS (feature `redis-tls`; with
    /// certificates of one's own: `with_tls`), or
    /// `unix:///path/to/socket`.
    ///
    /// Nothing is connected yet: see [`Redis::health_check`](super::Redis::health_check).
    ///
    /// # Errors
    ///
    /// If it is no such address.
    pub fn open(address: &str) -> Result<Self, Error> {
        Ok(Self(Arc::new(Opened::new(information(address)?)?)))
    }

    /// A Redis Cluster or Valkey Cluster, by the addresses of some of its nodes, as in [`open`](Self::open): the others are
    /// found by asking. User, password and TLS are those of the first address, for all nodes; there is no database.
    ///
    /// Each decision goes to the node that holds its keys. Slots that move, nodes that come, go, or are replaced by their
    /// replicas are normal operation, and a node that is gone fails only what it holds. A command is sent again only where
    /// a node said that it did not run it. What decisions of several limits need to share a slot is said at
    /// [`Redis`](super::Redis#in-a-cluster).
    ///
    /// Nothing is connected yet: see [`Redis::health_check`](super::Redis::health_check).
    ///
    /// # Errors
    ///
    /// If there is no address, or one is not that of a node.
    #[cfg(feature = "redis-cluster")]
    pub fn cluster(addresses: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        let infos =
            addresses.into_iter().map(|address| information(address.as_ref())).collect::<Result<Vec<_>, _>>()?;
        Ok(Self(Arc::new(super::cluster::Cluster::new(infos)?)))
    }

    /// The master of this name, by the addresses of Sentinels, as in `redis://127.0.0.1:26379`: they are asked for it whenever a
    /// connection is made. After a fail-over the old master answers READONLY or not at all, and the new one is asked.
    ///
    /// The master is reached without a password, or TLS: see [`sentinel_with`](Self::sentinel_with).
    ///
    /// # Errors
    ///
    /// If there is no Sentinel, or an address is none.
    #[cfg(feature = "redis-sentinel")]
    pub fn sentinel(addresses: impl IntoIterator<Item = impl AsRef<str>>, master: &str) -> Result<Self, Error> {
        Self::sentinel_with(addresses, master, "redis://127.0.0.1")
    }

    /// As [`sentinel`](Self::sentinel), with settings for the master: an address as in [`open`](Self::open) whose user, password,
    /// database and TLS are used, and whose host and port are not.
    ///
    /// # Errors
    ///
    /// If there is no Sentinel, or an address is none.
    #[cfg(feature = "redis-sentinel")]
    pub fn sentinel_with(
        addresses: impl IntoIterator<Item = impl AsRef<str>>,
        master: &str,
        settings: &str,
    ) -> Result<Self, Error> {
        let sentinels =
            addresses.into_iter().map(|address| information(address.as_ref())).collect::<Result<Vec<_>, _>>()?;
        Ok(Self(Arc::new(crate::store::redis::connect::sentinel::Sentinels::new(
            sentinels,
            master,
            information(settings)?,
        )?)))
    }

    /// The same, with certificates of one's own: whom to trust, and what to show. For what is reached by `rediss://`.
    ///
    /// rustls speaks it, with the cryptography that the process has chosen for it
    /// ([`CryptoProvider::install_default`](https://docs.rs/rustls/latest/rustls/crypto/struct.CryptoProvider.html)); where it has chosen none
    /// when the first connection is made, ring is chosen.
    ///
    /// # Errors
    ///
    /// If nothing here is reached by `rediss://`, if something is no certificate or key, and for a pool: its own client has its
    /// certificates.
    #[cfg(feature = "redis-tls")]
    pub fn with_tls(&self, tls: &RedisTls) -> Result<Self, Error> {
        Ok(Self(self.0.with_tls(tls)?))
    }

    pub(crate) fn connect(&self, lane: usize) -> BoxFuture<Result<Box<dyn Connection>, Failure>> {
        self.0.connect(lane)
    }

    pub(crate) fn describe(&self) -> &str {
        self.0.describe()
    }

    /// Two that are the same have one of these in common, as far as can be known: an address with the database, or the pool.
    pub(crate) fn places(&self) -> Vec<String> {
        let mut places = self.0.places();
        if places.is_empty() {
            places.push(format!("{:p}", Arc::as_ptr(&self.0)));
        }
        places
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.0.is_cluster()
    }

    pub(crate) fn prepare(&self) -> BoxFuture<Result<(), Failure>> {
        self.0.prepare()
    }

    pub(crate) fn lanes(&self) -> usize {
        self.0.lanes()
    }

    pub(crate) fn lane(&self, slot: u16) -> usize {
        self.0.lane(slot)
    }

    /// A key that a probe of this lane can write, and its slot. `None` if none is found: the lane's node has no slots, or few.
    pub(crate) fn probe_key(&self, lane: usize, prefix: &str) -> Option<(String, u16)> {
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

fn information(address: &str) -> Result<ConnectionInfo, Error> {
    let info = address.into_connection_info().map_err(wrong)?;
    // A NAT or a load balancer may drop an idle connection without closing it.
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
    #[cfg(any(
        target_os = "android",
        target_os = "freebsd",
        target_os = "ios",
        target_os = "linux",
        target_os = "macos",
        target_os = "windows"
    ))]
    let keepalive = keepalive.with_interval(KEEPALIVE);
    Ok(info.set_tcp_settings(TcpSettings::default().set_nodelay(true).set_keepalive(keepalive)))
}

/// How long a connection is idle before TCP asks whether the other end is still there, and the time between two such probes.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The address may hold a password: it is not repeated.
fn wrong(error: RedisError) -> Error {
    Error::config(
        "this is not the address of a Redis: it should be redis://[user:password@]host[:port][/database], rediss:// \
         for TLS (with the feature `redis-tls`), or unix:///path/to/socket",
    )
    .with_source(error)
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
            Ok(Box::new(Link::of(connection)) as Box<dyn Connection>)
        })
    }

    fn describe(&self) -> &'static str {
        "a pool"
    }

    #[cfg(feature = "redis-tls")]
    fn with_tls(&self, _tls: &RedisTls) -> Result<Arc<dyn Source>, Error> {
        Err(Error::config("a pool's own client has its certificates: give them to `redis::Client::build_with_tls`"))
    }
}

/// An address. A line keeps its connection, and shares it by cloning: there is nothing to pool.
struct Opened {
    client: Client,
    place: String,
}

impl Opened {
    fn new(info: ConnectionInfo) -> Result<Self, Error> {
        let place = info.addr().to_string();
        Ok(Self { client: Client::open(info).map_err(wrong)?, place })
    }
}

impl Source for Opened {
    fn connect(&self, _lane: usize) -> BoxFuture<Result<Box<dyn Connection>, Failure>> {
        let client = self.client.clone();
        Box::pin(async move {
            let connection = within(Link::connect(&client)).await?;
            Ok(Box::new(connection) as Box<dyn Connection>)
        })
    }

    fn describe(&self) -> &str {
        &self.place
    }

    fn places(&self) -> Vec<String> {
        vec![format!("{}/{}", self.place, self.client.get_connection_info().redis_settings().db())]
    }

    #[cfg(feature = "redis-tls")]
    fn with_tls(&self, tls: &RedisTls) -> Result<Arc<dyn Source>, Error> {
        Ok(Arc::new(Self::new(tls.applied(self.client.get_connection_info().clone())?)?))
    }
}

/// Makes a connection within [`RedisServer::CONNECT_WITHIN`]: a server may accept connections and not respond.
///
/// A panic is an error: a runtime without I/O panics, and a pool may run the user's code.
pub(crate) async fn within<C>(connecting: impl Future<Output = Result<C, RedisError>>) -> Result<C, Failure> {
    let Some(timer) = sleep(RedisServer::CONNECT_WITHIN) else { return Err(Failure::unusable(no_runtime())) };
    match select(pin!(AssertUnwindSafe(connecting).catch_unwind()), pin!(timer)).await {
        Either::Left((Ok(connected), _)) => connected.map_err(Failure::of),
        Either::Left((Err(_), _)) => Err(Failure::unusable(Error::config(
            "connecting to Redis panicked: the tokio runtime may have no I/O; build the runtime with `enable_all`, and else see \
             the panic's message",
        ))),
        Either::Right(_) => Err(Failure::timed_out(format!(
            "there was no connection to Redis within {:?}",
            RedisServer::CONNECT_WITHIN
        ))),
    }
}

pub(crate) fn no_runtime() -> Error {
    Error::config(
        "Redis was not asked: there is no tokio runtime with a timer here; build the runtime with `enable_all`, and use the \
         limiter from within it",
    )
}
