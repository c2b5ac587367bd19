//! The sockets of the simulated network, below the production code of connections.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use redis::Client;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::world::World;
use crate::Error;
use crate::limiter::BoxFuture;
use crate::store::redis::RedisServer;
#[cfg(feature = "redis-tls")]
use crate::store::redis::connect::RedisTls;
use crate::store::redis::connect::{
    Connection, Connector, CredentialsProvider, Failure, PeekSocket, SharedConnection, with_connect_timeout,
};

/// Opens connections of one limiter.
struct SimulatedConnector {
    world: World,
    client: usize,
    /// The settings of the connection.
    settings: Client,
}

impl World {
    /// The server for the limiter of one process.
    pub(crate) fn server(&self, client: usize) -> RedisServer {
        let settings = Client::open("redis://127.0.0.1").expect("an address");
        RedisServer::from_connector(Arc::new(SimulatedConnector { world: self.clone(), client, settings }))
    }
}

/// One end of a connection, at the client.
struct Stream {
    world: World,
    index: usize,
}

/// A duplicate of the client's end.
struct Socket {
    world: World,
    index: usize,
}

impl Connector for SimulatedConnector {
    fn connect(&self, _node: usize) -> BoxFuture<Result<Box<dyn Connection>, Failure>> {
        let (world, settings, connecting) =
            (self.world.clone(), self.settings.clone(), self.world.connect(self.client));
        Box::pin(async move {
            let opening = async {
                let index = connecting.await?;
                let stream = Stream { world: world.clone(), index };
                SharedConnection::over((stream, Socket { world, index }), &settings).await
            };
            Ok(Box::new(with_connect_timeout(opening).await?) as Box<dyn Connection>)
        })
    }

    fn describe(&self) -> &'static str {
        "a simulation"
    }

    fn with_credentials(&self, _provider: CredentialsProvider) -> Result<Arc<dyn Connector>, Error> {
        unreachable!("no test uses credentials")
    }

    #[cfg(feature = "redis-tls")]
    fn with_tls(&self, _tls: &RedisTls) -> Result<Arc<dyn Connector>, Error> {
        unreachable!("no test uses TLS")
    }
}

impl PeekSocket for Socket {
    fn is_quiet(&self) -> bool {
        let state = self.world.state();
        let connection = &state.connections[self.index];
        connection.readable.is_empty() && !connection.has_ended
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.world.state();
        let connection = &mut state.connections[self.index];
        if connection.readable.is_empty() && !connection.has_ended {
            connection.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let (readable, _) = connection.readable.as_slices();
        let length = readable.len().min(buffer.remaining());
        buffer.put_slice(&readable[..length]);
        connection.readable.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(self.world.change(|state| {
            if state.connections[self.index].has_ended {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Ok(state.send_to_server(self.index, bytes))
        }))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.world.state();
        let index = self.index;
        state.note(|| format!("connection {index}: closed by the client"));
        state.connections[index].is_closed_by_client = true;
    }
}
