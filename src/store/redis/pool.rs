use std::sync::Arc;

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::RedisError;
use redis::aio::ConnectionLike;

#[cfg(feature = "redis-tls")]
use super::connect::RedisTls;
use super::connect::{Connection, Connector, CredentialsProvider, Failure, SharedConnection, with_connect_timeout};
use super::server::RedisServer;
use crate::error::Error;
use crate::limiter::BoxFuture;

/// Connects as the user's pool does, by the pool's manager and customizer.
struct PoolConnector<M: ManageConnection>(Pool<M>);

impl<M> From<Pool<M>> for RedisServer
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Clone + Send + Sync + 'static,
{
    fn from(pool: Pool<M>) -> Self {
        Self::from_connector(Arc::new(PoolConnector(pool)))
    }
}

impl<M> Connector for PoolConnector<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Clone + Send + Sync + 'static,
{
    fn connect(&self, _node: usize) -> BoxFuture<Result<Box<dyn Connection>, Failure>> {
        let pool = self.0.clone();
        Box::pin(async move {
            // `Pool::get` is unsuitable: it hides connection errors, may return a dead connection or one that another
            // user blocks, and a failed connection cannot be removed from the user's pool.
            let connection = with_connect_timeout("a pool", pool.dedicated_connection()).await?;
            Ok(Box::new(SharedConnection::from_connection(connection)) as Box<dyn Connection>)
        })
    }

    fn describe(&self) -> &'static str {
        "a pool"
    }

    fn with_credentials(&self, _provider: CredentialsProvider) -> Result<Arc<dyn Connector>, Error> {
        Err(Error::config(
            "`with_credentials` failed: a pool's own manager authenticates; use `RedisServer::open`, or rotate the \
             credentials in the manager",
        ))
    }

    #[cfg(feature = "redis-tls")]
    fn with_tls(&self, _tls: &RedisTls) -> Result<Arc<dyn Connector>, Error> {
        Err(Error::config(
            "`with_tls` failed: a pool's own client has its certificates; give them to `redis::Client::build_with_tls`",
        ))
    }
}
