//! Connections of the redis crate, and whether they are still open.

use std::future::Future;
use std::mem::MaybeUninit;
use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use futures_util::future::select_ok;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::{SockRef, Socket};
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, Pipeline, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite};
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::{AbortHandle, yield_now};

use crate::limiter::BoxFuture;
use crate::store::redis::connect::connection::Connection;

/// A connection of the redis crate. Clones share it.
#[derive(Clone)]
pub(crate) struct Link<C = MultiplexedConnection> {
    connection: C,
    /// `None` where this crate does not open the socket: for TLS, and for pools.
    socket: Option<Watched>,
}

/// The socket of a connection, and the task that reads and writes it.
#[derive(Clone)]
struct Watched {
    /// A duplicate of the socket. The task owns it.
    socket: Weak<Socket>,
    _task: Arc<Task>,
}

/// Aborts the task when the last clone of the connection is dropped.
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Link {
    /// Makes a connection, and adopts the settings of the client's address.
    pub(crate) async fn connect(client: &Client) -> Result<Self, RedisError> {
        let info = client.get_connection_info();
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => Self::over(tcp(host, *port, info.tcp_settings()).await?, client).await,
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                let socket = SockRef::from(&stream).try_clone()?;
                Self::over((stream, socket), client).await
            }
            _ => {
                #[cfg(feature = "redis-tls")]
                super::tls::choose_cryptography();
                Ok(Self::of(client.get_multiplexed_async_connection_with_config(&config()).await?))
            }
        }
    }

    async fn over<S>((stream, socket): (S, Socket), client: &Client) -> Result<Self, RedisError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let settings = client.get_connection_info().redis_settings();
        let (connection, driver) = MultiplexedConnection::new_with_config(settings, stream, config()).await?;
        let socket = Arc::new(socket);
        let watched = Arc::downgrade(&socket);
        let task = tokio::spawn(async move {
            let _socket = socket;
            driver.await;
        });
        Ok(Self { connection, socket: Some(Watched { socket: watched, _task: Arc::new(Task(task.abort_handle())) }) })
    }
}

impl<C> Link<C> {
    /// A connection that was made elsewhere.
    pub(crate) const fn of(connection: C) -> Self {
        Self { connection, socket: None }
    }
}

/// Each decision has its own deadline. A second one would only cut longer operations short.
fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

/// Connects to the first address of a host that accepts.
async fn tcp(host: &str, port: u16, settings: &TcpSettings) -> Result<(TcpStream, Socket), RedisError> {
    let addresses: Vec<_> = lookup_host((host, port)).await?.collect();
    if addresses.is_empty() {
        return Err((ErrorKind::InvalidClientConfig, "no address was found for the host").into());
    }
    let (stream, _) = select_ok(addresses.into_iter().map(|address| Box::pin(TcpStream::connect(address)))).await?;
    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(&stream).try_clone()?;
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    Ok((stream, socket))
}

impl Watched {
    /// Whether the task runs, and the server has neither closed the connection nor sent what nobody has asked for.
    fn is_open(&self) -> bool {
        let Some(socket) = self.socket.upgrade() else { return false };
        let peeked = socket.peek(&mut [MaybeUninit::uninit()]);
        peeked.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Link<C> {
    pub(crate) fn send(&self, command: &Cmd) -> impl Future<Output = Result<Value, RedisError>> + Send {
        let mut connection = self.connection.clone();
        async move { connection.req_packed_command(command).await.and_then(Value::extract_error) }
    }

    /// Sends several commands at once. Each has its own reply, which may be an error of the server's.
    pub(crate) fn send_all(&self, commands: &Pipeline) -> impl Future<Output = Result<Vec<Value>, RedisError>> + Send {
        let mut connection = self.connection.clone();
        async move { connection.req_packed_commands(commands, 0, commands.len()).await }
    }

    /// Whether the redis crate still accepts commands for the connection. It has no method for that: a connection whose task
    /// has ended rejects a command at once. Else this one is cancelled before the task takes it, and usually never sent.
    fn accepts_commands(&self) -> bool {
        let ping = redis::cmd("PING");
        self.connection.clone().req_packed_command(&ping).now_or_never().is_none_or(|reply| reply.is_ok())
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Connection for Link<C> {
    fn call(&self, _slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
        let link = self.clone();
        Box::pin(async move { link.send(&command).await })
    }

    fn pipe(&self, commands: Arc<Pipeline>) -> BoxFuture<Result<Vec<Value>, RedisError>> {
        let link = self.clone();
        Box::pin(async move { link.send_all(&commands).await })
    }

    fn is_open(&self) -> BoxFuture<bool> {
        if let Some(socket) = &self.socket {
            return Box::pin(std::future::ready(socket.is_open()));
        }
        let link = self.clone();
        Box::pin(async move {
            // After the first the runtime has polled its I/O, and after the second the connection's task has read what came.
            yield_now().await;
            yield_now().await;
            link.accepts_commands()
        })
    }
}
