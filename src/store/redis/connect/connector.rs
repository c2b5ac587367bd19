use std::fmt;
use std::future::{Future, ready};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use redis::{Cmd, Pipeline, RedisError, Value};

use super::credentials::CredentialsProvider;
use super::failure::{Failure, no_runtime};
#[cfg(feature = "redis-tls")]
use super::tls::RedisTls;
use crate::error::Error;
use crate::store::inner::BoxFuture;
use crate::store::inner::runtime::sleep;

/// The maximum time to open a connection, for limiters with a shorter deadline.
pub(crate) const MIN_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the maximum time to open a connection, for a limiter with this deadline.
///
/// A longer deadline, and a health check, which may take twice as long, end later: the error of connecting names the cause.
pub(crate) fn connect_timeout(deadline: Duration) -> Duration {
    (deadline / 10 * 9).max(MIN_CONNECT_TIMEOUT)
}

/// Opens connections to a Redis deployment. A cluster has several nodes; any other deployment has one.
pub(crate) trait Connector: Send + Sync {
    /// Connects to a node. [`open`](Self::open) ends the attempt after the time `within`.
    fn connect(&self, node: usize, within: Duration) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>>;

    /// The deployment's address for error texts and `Debug`, without credentials.
    fn describe(&self) -> &str;

    /// The known endpoints: address and database. Two connectors with an endpoint in common reach the same keys.
    fn endpoints(&self) -> Vec<String> {
        Vec::new()
    }

    fn is_cluster(&self) -> bool {
        false
    }

    /// Returns an error if limiters cannot work with these settings.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The same connector with these certificates. By default the error of a pool, whose own client has them.
    #[cfg(feature = "redis-tls")]
    fn with_tls(&self, _tls: &RedisTls) -> Result<Arc<dyn Connector>, Error> {
        Err(Error::config(
            "`with_tls` failed: a pool's own client has its certificates; give them to `redis::Client::build_with_tls`",
        ))
    }

    /// The same connector with this provider of user and password. By default the error of a pool, whose manager has them.
    fn with_credentials(&self, _provider: CredentialsProvider) -> Result<Arc<dyn Connector>, Error> {
        Err(Error::config(
            "`with_credentials` failed: a pool's own manager authenticates; use `RedisServer::open`, or rotate the \
             credentials in the manager",
        ))
    }

    /// Reads the nodes of a cluster, as [`connect`](Self::connect).
    fn discover_nodes(&self, _within: Duration) -> BoxFuture<Result<(), RedisError>> {
        Box::pin(ready(Ok(())))
    }

    fn node_count(&self) -> usize {
        1
    }

    /// The index of the node that serves a cluster slot.
    fn node_of_slot(&self, _slot: u16) -> usize {
        0
    }
}

impl dyn Connector {
    /// Opens a connection to a node, for a limiter with this deadline.
    pub(crate) async fn open(&self, node: usize, deadline: Duration) -> Result<Arc<dyn Connection>, Failure> {
        let within = connect_timeout(deadline);
        with_timeout(self.describe(), within, self.connect(node, within)).await
    }

    /// Reads the nodes of a cluster, for a limiter with this deadline.
    pub(crate) async fn discover(&self, deadline: Duration) -> Result<(), Failure> {
        let within = connect_timeout(deadline);
        with_timeout(self.describe(), within, self.discover_nodes(within)).await
    }
}

impl fmt::Debug for dyn Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe().fmt(f)
    }
}

/// Runs `connecting` for at most the time `within`: a server may accept a connection and not respond.
///
/// A panic becomes an error: tokio panics in a runtime without I/O, and a pool's manager may be the user's code.
async fn with_timeout<C>(
    address: &str,
    within: Duration,
    connecting: impl Future<Output = Result<C, RedisError>>,
) -> Result<C, Failure> {
    let Some(timer) = sleep(within) else { return Err(Failure::unusable(no_runtime())) };
    match select(pin!(AssertUnwindSafe(connecting).catch_unwind()), pin!(timer)).await {
        Either::Left((Ok(connected), _)) => connected.map_err(|error| Failure::of("connecting", error, address)),
        Either::Left((Err(_), _)) => Err(Failure::unusable(Error::config(
            "connecting to Redis failed: the connector panicked; build the tokio runtime with `enable_all`, or read \
             the panic message for another cause",
        ))),
        Either::Right(_) => Err(Failure::unusable(Error::unavailable(format!(
            "connecting to Redis ({address}) failed: no connection within {within:?}; check that the server is \
             reachable, and whether the port expects TLS"
        )))),
    }
}

/// A connection that many concurrent calls share.
///
/// Calls are sent in the order in which their futures are first polled, each without waiting for earlier replies.
pub(crate) trait Connection: Send + Sync {
    /// Sends a command whose keys are all in this cluster slot.
    fn call(&self, slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>>;

    /// Sends commands back to back. Each has its own reply, which may be a server error. Nodes of a cluster get none.
    fn call_all(&self, _commands: Pipeline) -> BoxFuture<Result<Vec<Value>, RedisError>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    /// Whether the connection is still open, as far as the client knows without asking the server.
    ///
    fn is_open(&self) -> BoxFuture<bool>;

    /// A call has found that the connection is lost.
    fn give_up(&self) {}

    /// Whether the connection was given up, or was replaced by a better one.
    fn is_left(&self) -> bool {
        false
    }
}
