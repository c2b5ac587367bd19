//! The sockets of the simulated network, below the production code of connections.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use super::world::World;
use crate::store::inner::BoxFuture;
use crate::store::redis::RedisServer;
use crate::store::redis::connect::{Connection, Connector, SharedConnection, connection_config};

/// Opens connections of one limiter.
#[derive(Clone)]
struct SimulatedConnector {
    world: World,
    client: usize,
    /// The settings of the connection.
    settings: Client,
    /// A lost connection that is used further: a mistake.
    kept: Arc<Mutex<Option<SimulatedConnection>>>,
}

impl World {
    /// The server for the limiter of one process.
    pub(crate) fn server(&self, client: usize) -> RedisServer {
        let settings = Client::open("redis://127.0.0.1").expect("an address");
        RedisServer(Arc::new(SimulatedConnector { world: self.clone(), client, settings, kept: Arc::default() }))
    }
}

/// One end of a connection, at the client.
struct Stream {
    world: World,
    index: usize,
}

impl SimulatedConnector {
    async fn open(&self) -> Result<SimulatedConnection, RedisError> {
        let index = self.world.connect(self.client).await?;
        let stream = Stream { world: self.world.clone(), index };
        let settings = self.settings.get_connection_info().redis_settings();
        let (connection, task) = MultiplexedConnection::new_with_config(settings, stream, connection_config()).await?;
        let task = Arc::new(Mutex::new(ConnectionTask { task: Some(Box::pin(task)), waker: None }));
        let polled = Arc::downgrade(&task);
        let connection = SimulatedConnection {
            connection: SharedConnection::from_connection(connection),
            task: Arc::clone(&task),
            connector: self.clone(),
        };
        tokio::spawn(poll_fn(move |cx| {
            // The task is dropped with the connection's last clone, unless it has ended before.
            let Some(task) = polled.upgrade() else { return Poll::Ready(()) };
            let mut task = task.lock().expect("no panic");
            task.waker = Some(cx.waker().clone());
            task.poll(cx)
        }));
        Ok(connection)
    }
}

/// The task that reads and writes a connection.
struct ConnectionTask {
    task: Option<BoxFuture<()>>,
    /// Wakes the runtime's thread that polls it.
    waker: Option<Waker>,
}

impl ConnectionTask {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(task) = &mut self.task else { return Poll::Ready(()) };
        let ended = task.as_mut().poll(cx);
        if ended.is_ready() {
            self.task = None;
        }
        ended
    }

    /// Another thread polls the task. The thread that polled it last is woken.
    fn poll_elsewhere(&mut self) {
        let _ = self.poll(&mut Context::from_waker(Waker::noop()));
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

#[derive(Clone)]
struct SimulatedConnection {
    connection: SharedConnection,
    task: Arc<Mutex<ConnectionTask>>,
    connector: SimulatedConnector,
}

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

impl SimulatedConnection {
    /// Sends a command, and once more if no reply comes in time: a mistake.
    fn call_twice(&self, slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
        let connection = self.clone();
        Box::pin(async move {
            let first = connection.call_once(slot, Arc::clone(&command));
            match timeout(Duration::from_millis(10), first).await {
                Ok(result) => result,
                Err(_) => connection.call_once(slot, command).await,
            }
        })
    }

    fn call_once(&self, slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
        let mut call = self.connection.call(slot, Arc::clone(&command));
        if !self.connector.world.state().is_threaded {
            return call;
        }
        let connection = self.clone();
        Box::pin(async move {
            // Within the first poll, another thread writes the command, and reads what has arrived.
            let first = poll_fn(|cx| {
                if let Poll::Ready(result) = call.as_mut().poll(cx) {
                    // The task had ended before.
                    return Poll::Ready(Poll::Ready(result));
                }
                for _ in 0..2 {
                    connection.task.lock().expect("no panic").poll_elsewhere();
                    connection.connector.world.state().handle_due();
                }
                Poll::Ready(call.as_mut().poll(cx))
            });
            match first.await {
                Poll::Ready(Err(error)) if mistake!(CallThatFailsAtOnceIsRepeated) && error.code().is_none() => {
                    connection.connector.open().await?.connection.call(slot, command).await
                }
                Poll::Ready(result) => result,
                Poll::Pending => call.await,
            }
        })
    }
}

impl Connection for SimulatedConnection {
    fn call(&self, slot: u16, command: Arc<Cmd>) -> BoxFuture<Result<Value, RedisError>> {
        if mistake!(LostCallIsRepeated) { self.call_twice(slot, command) } else { self.call_once(slot, command) }
    }

    fn is_open(&self) -> BoxFuture<bool> {
        if mistake!(ClosedConnectionIsUsed) { Box::pin(std::future::ready(true)) } else { self.connection.is_open() }
    }

    fn give_up(&self) {
        if mistake!(SilentConnectionIsKept) {
            *self.connector.kept.lock().expect("no panic") = Some(self.clone());
        }
    }
}

impl Connector for SimulatedConnector {
    fn connect(&self, _node: usize, _within: Duration) -> BoxFuture<Result<Arc<dyn Connection>, RedisError>> {
        let connector = self.clone();
        Box::pin(async move {
            let kept = connector.kept.lock().expect("no panic").take();
            if let Some(kept) = kept {
                return Ok(Arc::new(kept) as Arc<dyn Connection>);
            }
            Ok(Arc::new(connector.open().await?) as Arc<dyn Connection>)
        })
    }

    fn describe(&self) -> &'static str {
        "a simulation"
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
