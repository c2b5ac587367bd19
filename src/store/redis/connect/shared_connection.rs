use std::borrow::Borrow;
use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, Pipeline, RedisError, Value};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::{AbortHandle, yield_now};

use super::connector::Connection;
use super::credentials::CredentialsProvider;
use crate::store::inner::BoxFuture;

/// A connection of the redis crate. Clones share it.
#[derive(Clone)]
pub(crate) struct SharedConnection<C = MultiplexedConnection> {
    connection: C,
    /// Renews the credentials, if they expire.
    renewal: Option<Arc<AbortOnDrop>>,
}

/// Aborts the task when the last clone of the connection is dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl SharedConnection {
    /// Connects with these settings, and with the provider's credentials.
    pub(crate) async fn open(
        info: ConnectionInfo,
        credentials: Option<CredentialsProvider>,
    ) -> Result<Self, RedisError> {
        let Some(provider) = credentials else { return Self::connect(&Client::open(info)?).await };
        let user = info.redis_settings().username().map(str::to_owned);
        let (info, lifetime) = provider.authenticate(info).await?;
        let mut connection = Self::connect(&Client::open(info)?).await?;
        if let Some(lifetime) = lifetime {
            // A clone of the inner connection. The renewal of a clone of `Self` would own itself, and never end.
            let renewal = tokio::spawn(provider.keep_authenticated(connection.connection.clone(), user, lifetime));
            connection.renewal = Some(Arc::new(AbortOnDrop(renewal.abort_handle())));
        }
        Ok(connection)
    }

    async fn connect(client: &Client) -> Result<Self, RedisError> {
        #[cfg(feature = "redis-tls")]
        super::tls::install_crypto_provider();
        let connection = client.get_multiplexed_async_connection_with_config(&connection_config()).await?;
        Ok(Self::from_connection(connection))
    }
}

impl<C> SharedConnection<C> {
    pub(crate) const fn from_connection(connection: C) -> Self {
        Self { connection, renewal: None }
    }
}

/// No time-outs of the redis crate: each operation has its own deadline, and a second one would cut longer operations
/// short.
pub(crate) fn connection_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> SharedConnection<C> {
    pub(crate) fn send<B: Borrow<Cmd> + Send>(
        &self,
        command: B,
    ) -> impl Future<Output = Result<Value, RedisError>> + Send + use<B, C> {
        let mut connection = self.connection.clone();
        async move { connection.req_packed_command(command.borrow()).await.and_then(Value::extract_error) }
    }

    /// Whether the redis crate still accepts commands for this connection.
    ///
    /// The redis crate has no method for that, but a connection whose task has ended rejects a command on the first
    /// poll. On an open connection the first poll is pending; the PING is then cancelled before the task takes it, and
    /// usually not sent.
    fn accepts_commands(&self) -> bool {
        let ping = redis::cmd("PING");
        self.connection.clone().req_packed_command(&ping).now_or_never().is_none_or(|reply| reply.is_ok())
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Connection for SharedConnection<C> {
    fn call(&self, _slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
        Box::pin(self.send(command))
    }

    fn call_all(&self, commands: Pipeline) -> BoxFuture<Result<Vec<Value>, RedisError>> {
        let mut connection = self.connection.clone();
        Box::pin(async move { connection.req_packed_commands(&commands, 0, commands.len()).await })
    }

    fn is_open(&self) -> BoxFuture<bool> {
        let connection = self.clone();
        Box::pin(async move {
            // The threads of a larger runtime have polled its I/O meanwhile. To yield there costs a lone caller 15 us.
            // Benchmark: `redis callers 1`.
            if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
                // The first yield lets the runtime poll its I/O; the second lets the connection's task read an end of file.
                yield_now().await;
                yield_now().await;
            }
            connection.accepts_commands()
        })
    }
}
