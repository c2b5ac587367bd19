use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bb8_redis::bb8::{ManageConnection, Pool, PooledConnection, RunError};
use futures_util::future::{Either, select};
use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::connect::{Connection, Connector, Opening, SharedConnection};
use super::server::RedisServer;
use crate::error::Error;
use crate::store::inner::BoxFuture;

/// A manager whose connections are shared by cloning.
trait Manager: ManageConnection<Error = RedisError, Connection: ConnectionLike + Clone + Send + Sync + 'static> {}

impl<M: ManageConnection<Error = RedisError>> Manager for M where
    M::Connection: ConnectionLike + Clone + Send + Sync + 'static
{
}

/// One connection of the user's pool, which all limiters of the server share.
impl<M> From<Pool<M>> for RedisServer
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Clone + Send + Sync + 'static,
{
    fn from(pool: Pool<M>) -> Self {
        let kept = Kept { connection: Mutex::default(), opening: Opening::default() };
        Self(Arc::new(PoolConnector { pool, kept: Arc::new(kept) }))
    }
}

impl RedisServer {
    /// Connects by the manager of a pool, beside the pool: for managers of your own.
    ///
    /// Each limiter opens a connection of its own for each tokio runtime. No pool counts these connections, bounds their
    /// number or time, or receives their errors: use `From` with a pool for that.
    pub fn from_manager<M>(manager: M) -> Self
    where
        M: ManageConnection<Error = RedisError>,
        M::Connection: ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self(Arc::new(ManagerConnector(Arc::new(manager))))
    }
}

struct ManagerConnector<M>(Arc<M>);

struct PoolConnector<M: ManageConnection> {
    pool: Pool<M>,
    kept: Arc<Kept<M>>,
}

/// The connection that was opened last.
struct Kept<M: ManageConnection> {
    connection: Mutex<Option<Arc<PoolConnection<M>>>>,
    opening: Opening,
}

impl<M: ManageConnection> Kept<M> {
    fn connection(&self) -> MutexGuard<'_, Option<Arc<PoolConnection<M>>>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is checked out of the pool, or was opened beside the pool while the pool gave none.
struct PoolConnection<M: ManageConnection> {
    connection: SharedConnection<M::Connection>,
    checked_out: Mutex<Option<PooledConnection<'static, M>>>,
    /// A caller has found that the connection is lost, or there is a better one.
    is_left: AtomicBool,
    /// The pool may spawn a task when it gets the connection back.
    runtime: Handle,
}

impl<M: Manager> PoolConnector<M> {
    /// After this time without a connection, the pool is assumed to wait after failed attempts.
    const PATIENCE: Duration = Duration::from_millis(100);

    /// Checks a connection out of the pool. While the pool gives none after an outage, opens one by its manager.
    async fn open(pool: Pool<M>, kept: &Arc<Kept<M>>) -> Result<Arc<PoolConnection<M>>, RedisError> {
        let getting = |pool: Pool<M>| Box::pin(async move { pool.get_owned().await });
        let mut get = getting(pool.clone());
        loop {
            match select(&mut get, Box::pin(sleep(Self::PATIENCE))).await {
                Either::Left((Ok(pooled), _)) => return Ok(PoolConnection::new(pooled.clone(), Some(pooled))),
                Either::Left((Err(RunError::User(error)), _)) => return Err(error),
                Either::Left((Err(RunError::TimedOut), _)) => get = getting(pool.clone()),
                Either::Right(_) => {}
            }
            // Otherwise the application uses all connections.
            if pool.state().connections < pool.config().max_size {
                break;
            }
        }
        let bridge = PoolConnection::new(pool.dedicated_connection().await?, None);
        let (kept, bridged) = (Arc::downgrade(kept), Arc::downgrade(&bridge));
        tokio::spawn(async move {
            loop {
                let pooled = get.await;
                let (Some(kept), Some(bridged)) = (Weak::upgrade(&kept), Weak::upgrade(&bridged)) else { return };
                {
                    let mut current = kept.connection();
                    if bridged.is_left() {
                        return;
                    }
                    if let Ok(pooled) = pooled {
                        *current = Some(PoolConnection::new(pooled.clone(), Some(pooled)));
                        bridged.leave();
                        return;
                    }
                }
                drop((kept, bridged));
                sleep(Self::PATIENCE).await;
                get = getting(pool.clone());
            }
        });
        Ok(bridge)
    }
}

impl<M: ManageConnection> PoolConnection<M> {
    fn new(connection: M::Connection, checked_out: Option<PooledConnection<'static, M>>) -> Arc<Self> {
        let connection = SharedConnection::from_connection(connection);
        let (checked_out, is_left) = (Mutex::new(checked_out), AtomicBool::new(false));
        Arc::new(Self { connection, checked_out, is_left, runtime: Handle::current() })
    }

    /// Gives the connection back to the pool, whose next check-out finds whether it is broken.
    fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
        let _entered = self.runtime.enter();
        drop(self.checked_out.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl<M: ManageConnection> Drop for PoolConnection<M> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<M: Manager> Connection for PoolConnection<M> {
    fn call(&self, slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
        self.connection.call(slot, command)
    }

    fn call_all(&self, commands: Pipeline) -> BoxFuture<Result<Vec<Value>, RedisError>> {
        self.connection.call_all(commands)
    }

    fn is_open(&self) -> BoxFuture<bool> {
        if self.is_left() {
            return Box::pin(std::future::ready(false));
        }
        self.connection.is_open()
    }

    fn give_up(&self) {
        self.leave();
    }

    fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }
}

impl<M: Manager> Connector for PoolConnector<M> {
    fn connect(&self, _node: usize, _within: Duration) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>> {
        let (pool, kept) = (self.pool.clone(), Arc::clone(&self.kept));
        Box::pin(async move {
            let _opening = kept.opening.begin().await;
            let current = || kept.connection().clone();
            while let Some(connection) = current() {
                if connection.is_open().await {
                    return Ok(connection as Arc<dyn Connection>);
                }
                connection.give_up();
                kept.connection().take_if(|kept| Arc::ptr_eq(kept, &connection));
            }
            let opened = Self::open(pool, &kept).await?;
            // The pool, or another caller, may have given one meanwhile.
            Ok(Arc::clone(kept.connection().get_or_insert(opened)) as Arc<dyn Connection>)
        })
    }

    fn describe(&self) -> &'static str {
        "a pool"
    }

    fn check(&self) -> Result<(), Error> {
        let config = self.pool.config();
        if config.max_size < 2 {
            return Err(Error::config(
                "invalid pool: its `max_size` is 1, and the limiters keep one connection; set at least 2, or use \
                 `RedisServer::from_manager`",
            ));
        }
        if !config.test_on_check_out {
            return Err(Error::config(
                "invalid pool: without `test_on_check_out` it returns lost connections; set it to true, or use \
                 `RedisServer::from_manager`",
            ));
        }
        Ok(())
    }
}

impl<M: Manager> Connector for ManagerConnector<M> {
    fn connect(&self, _node: usize, _within: Duration) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>> {
        let manager = Arc::clone(&self.0);
        Box::pin(async move {
            Ok(Arc::new(SharedConnection::from_connection(manager.connect().await?)) as Arc<dyn Connection>)
        })
    }

    fn describe(&self) -> &'static str {
        "a pool's manager"
    }
}
