use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bb8_redis::bb8::{ManageConnection, Pool, RunError};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, RedisError};
use tokio::runtime::{Handle, Id};

use super::connection::Connection;
use super::failure::Failure;
use crate::error::Error;
use crate::limiter::BoxFuture;

/// Where Redis is, and how it is reached. Clones share their connections.
///
/// From an address with [`open`](Self::open), or from a pool of your own: `bb8::Pool<M>` for any manager whose connections
/// are shared by cloning, such as `bb8_redis::RedisConnectionManager`. Of a pool each limiter takes one connection for each
/// tokio runtime that it is used from, and returns it at once; all its calls go through a clone, one behind the other. It
/// takes another when that one fails: let the pool test what it hands out (bb8's default).
#[derive(Clone)]
pub struct RedisServer(Arc<dyn Source>);

/// What connections come from.
trait Source: Send + Sync {
    fn connect(&self) -> BoxFuture<Result<Connected, Failure>>;
    fn describe(&self) -> &str;
}

/// A connection, and how to tell where it comes from that it is of no use any more.
pub(super) struct Connected {
    pub(super) connection: Box<dyn Connection>,
    broken: Option<Arc<AtomicBool>>,
}

impl Connected {
    /// It is of no use any more.
    pub(super) fn give_up(&self) {
        if let Some(broken) = &self.broken {
            broken.store(true, Ordering::Release);
        }
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
        Ok(Self(Arc::new(Opened { client, place, pools: Mutex::default() })))
    }

    pub(super) fn connect(&self) -> BoxFuture<Result<Connected, Failure>> {
        self.0.connect()
    }

    pub(super) fn describe(&self) -> &str {
        self.0.describe()
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
    fn connect(&self) -> BoxFuture<Result<Connected, Failure>> {
        let pool = self.pool.clone();
        Box::pin(async move {
            let connection = pool.get().await.map_err(not_connected)?;
            Ok(Connected { connection: Box::new((*connection).clone()), broken: None })
        })
    }

    fn describe(&self) -> &'static str {
        "a pool"
    }
}

/// An address, with a pool for each runtime: a connection is of no use where its own runtime is gone.
struct Opened {
    client: Client,
    place: String,
    pools: Mutex<Vec<(Id, Pool<Manager>)>>,
}

impl Opened {
    /// Pools of runtimes that are gone are forgotten when there are too many.
    const MOST_POOLS: usize = 16;

    fn pool(&self) -> Pool<Manager> {
        let runtime = Handle::current().id();
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, pool)) = pools.iter().find(|(id, _)| *id == runtime) {
            return pool.clone();
        }
        let pool = Pool::builder()
            .max_size(4)
            .connection_timeout(RedisServer::CONNECT_WITHIN)
            // An error is told, not waited out; who needs a connection asks again.
            .retry_connection(false)
            // A connection that fails says so itself: no round trip to find out.
            .test_on_check_out(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .build_unchecked(Manager { client: self.client.clone() });
        if pools.len() == Self::MOST_POOLS {
            pools.remove(0);
        }
        pools.push((runtime, pool.clone()));
        pool
    }
}

impl Source for Opened {
    fn connect(&self) -> BoxFuture<Result<Connected, Failure>> {
        let pool = self.pool();
        Box::pin(async move {
            loop {
                let tracked = pool.get().await.map_err(not_connected)?;
                // Given back broken, it is thrown away.
                if !tracked.broken.load(Ordering::Acquire) {
                    let Tracked { connection, broken } = (*tracked).clone();
                    return Ok(Connected { connection: Box::new(connection), broken: Some(broken) });
                }
            }
        })
    }

    fn describe(&self) -> &str {
        &self.place
    }
}

fn not_connected(error: RunError<RedisError>) -> Failure {
    match error {
        RunError::User(error) => Failure::of(error),
        RunError::TimedOut => {
            Failure::timed_out(format!("there was no connection to Redis within {:?}", RedisServer::CONNECT_WITHIN))
        }
    }
}

/// bb8-redis's manager can't tell a broken connection, so this one keeps a mark with each.
struct Manager {
    client: Client,
}

#[derive(Clone)]
struct Tracked {
    connection: MultiplexedConnection,
    broken: Arc<AtomicBool>,
}

impl ManageConnection for Manager {
    type Connection = Tracked;
    type Error = RedisError;

    async fn connect(&self) -> Result<Tracked, RedisError> {
        // Each decision has its own deadline; a second one here would only cut longer operations short.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(RedisServer::CONNECT_WITHIN))
            .set_response_timeout(None);
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Tracked { connection, broken: Arc::default() })
    }

    async fn is_valid(&self, tracked: &mut Tracked) -> Result<(), RedisError> {
        redis::cmd("PING").query_async(&mut tracked.connection).await
    }

    fn has_broken(&self, tracked: &mut Tracked) -> bool {
        tracked.broken.load(Ordering::Acquire)
    }
}
