use std::future::Future;
use std::mem::MaybeUninit;
use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use futures_util::future::select_ok;
#[cfg(feature = "redis-cluster")]
use redis::Pipeline;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::{SockRef, Socket};
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite};
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::watch;
use tokio::task::{AbortHandle, yield_now};

use super::connection::Connection;
use super::credentials::CredentialsProvider;
use crate::limiter::BoxFuture;

/// A connection of the redis crate. Clones share it.
///
/// A server may close an idle connection, or restart. A command sent on such a connection is lost, and the client
/// cannot know whether the server ran it. So this type opens the socket itself where it can, and keeps a duplicate of
/// it: a peek at the socket before a call shows a closed connection without a round trip.
#[derive(Clone)]
pub(crate) struct SharedConnection<C = MultiplexedConnection> {
    connection: C,
    /// `None` if the redis crate or a pool opened the socket, as for TLS.
    socket: Option<WatchedSocket>,
    /// Renews the credentials, if they expire.
    renewal: Option<Arc<AbortOnDrop>>,
}

/// The socket of a connection, and the task that reads and writes it.
#[derive(Clone)]
struct WatchedSocket {
    /// A duplicate of the socket. The task owns it, so the `Weak` is dead once the task has ended.
    socket: Weak<dyn PeekSocket>,
    /// Closed once the task has ended.
    end: watch::Receiver<()>,
    _task: Arc<AbortOnDrop>,
}

/// A socket that can be checked without a system call that blocks.
pub(crate) trait PeekSocket: Send + Sync + 'static {
    /// Whether the socket has neither an end of file nor unread bytes.
    fn is_quiet(&self) -> bool;
}

impl PeekSocket for Socket {
    fn is_quiet(&self) -> bool {
        self.peek(&mut [MaybeUninit::uninit()]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }
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
        let (info, lifetime) = provider.authenticate(info).await?;
        let mut connection = Self::connect(&Client::open(info)?).await?;
        if let Some(lifetime) = lifetime {
            // A clone of the inner connection. The renewal of a clone of `Self` would own itself, and never end.
            let renewal = tokio::spawn(provider.keep_authenticated(connection.connection.clone(), lifetime));
            connection.renewal = Some(Arc::new(AbortOnDrop(renewal.abort_handle())));
        }
        Ok(connection)
    }

    /// Connects to the client's address, with the client's settings.
    async fn connect(client: &Client) -> Result<Self, RedisError> {
        let info = client.get_connection_info();
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                Self::over(connect_tcp(host, *port, info.tcp_settings()).await?, client).await
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                let socket = SockRef::from(&stream).try_clone()?;
                Self::over((stream, socket), client).await
            }
            _ => {
                #[cfg(feature = "redis-tls")]
                super::tls::install_crypto_provider();
                let connection = client.get_multiplexed_async_connection_with_config(&connection_config()).await?;
                Ok(Self::from_connection(connection))
            }
        }
    }

    /// Connects over an open stream, and a duplicate of its socket.
    pub(crate) async fn over<S>((stream, socket): (S, impl PeekSocket), client: &Client) -> Result<Self, RedisError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let settings = client.get_connection_info().redis_settings();
        let (connection, driver) =
            MultiplexedConnection::new_with_config(settings, stream, connection_config()).await?;
        let socket: Arc<dyn PeekSocket> = Arc::new(socket);
        let (watched, (ended, end)) = (Arc::downgrade(&socket), watch::channel(()));
        let task = tokio::spawn(async move {
            // Dropped with the future, also if it is aborted.
            let (_socket, _ended) = (socket, ended);
            driver.await;
        });
        let task = Arc::new(AbortOnDrop(task.abort_handle()));
        Ok(Self { connection, socket: Some(WatchedSocket { socket: watched, end, _task: task }), renewal: None })
    }
}

impl<C> SharedConnection<C> {
    pub(crate) const fn from_connection(connection: C) -> Self {
        Self { connection, socket: None, renewal: None }
    }
}

/// No time-outs of the redis crate: each operation has its own deadline, and a second one would cut longer operations
/// short.
fn connection_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

/// Connects to the first address of a host that accepts.
async fn connect_tcp(host: &str, port: u16, settings: &TcpSettings) -> Result<(TcpStream, Socket), RedisError> {
    let addresses: Vec<_> = lookup_host((host, port)).await?.collect();
    if addresses.is_empty() {
        return Err((ErrorKind::InvalidClientConfig, "the host name has no address").into());
    }
    let (stream, _) = select_ok(addresses.into_iter().map(|address| Box::pin(TcpStream::connect(address)))).await?;
    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(&stream).try_clone()?;
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    Ok((stream, socket))
}

impl WatchedSocket {
    /// Whether the task runs, and the socket has neither an end of file nor unread bytes.
    fn is_open(&self) -> bool {
        self.socket.upgrade().is_some_and(|socket| socket.is_quiet())
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> SharedConnection<C> {
    pub(crate) fn send(&self, command: &Cmd) -> impl Future<Output = Result<Value, RedisError>> + Send {
        let mut connection = self.connection.clone();
        async move { connection.req_packed_command(command).await.and_then(Value::extract_error) }
    }

    /// Sends commands back to back. Each has its own reply, which may be a server error.
    #[cfg(feature = "redis-cluster")]
    pub(crate) fn send_all(&self, commands: &Pipeline) -> impl Future<Output = Result<Vec<Value>, RedisError>> + Send {
        let mut connection = self.connection.clone();
        async move { connection.req_packed_commands(commands, 0, commands.len()).await }
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
        let connection = self.clone();
        Box::pin(async move { connection.send(&command).await })
    }

    fn is_open(&self) -> BoxFuture<bool> {
        if let Some(socket) = &self.socket {
            return Box::pin(std::future::ready(socket.is_open()));
        }
        let connection = self.clone();
        Box::pin(async move {
            // The first yield lets the runtime poll its I/O; the second lets the connection's task read an end of file.
            yield_now().await;
            yield_now().await;
            connection.accepts_commands()
        })
    }

    fn closed(&self) -> BoxFuture<()> {
        match &self.socket {
            None => Box::pin(std::future::pending()),
            Some(socket) => {
                let mut end = socket.end.clone();
                Box::pin(async move { while end.changed().await.is_ok() {} })
            }
        }
    }
}
