//! A loopback proxy in front of Redis that counts connections, cuts them and delays replies.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub(crate) struct Proxy {
    state: Arc<State>,
    pub(crate) address: SocketAddr,
}

struct State {
    to: SocketAddr,
    connections: AtomicUsize,
    /// Whether connections are closed as soon as they are accepted.
    is_shut: AtomicBool,
    /// Whether the next reply is cut in its middle.
    cuts: AtomicBool,
    /// Whether replies are held back.
    holds: Mutex<bool>,
    released: Condvar,
    ended: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    pub(crate) fn before(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let state = Arc::new(State {
            to,
            connections: AtomicUsize::new(0),
            is_shut: AtomicBool::new(false),
            cuts: AtomicBool::new(false),
            holds: Mutex::default(),
            released: Condvar::new(),
            ended: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let accepting = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.ended.load(Ordering::SeqCst) {
                    return;
                }
                accepting.connections.fetch_add(1, Ordering::SeqCst);
                if !accepting.is_shut.load(Ordering::SeqCst) {
                    let _ = accepting.forward(client);
                }
            }
        });
        Self { state, address }
    }

    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Closes all connections and each new one, until it is called with `false`.
    pub(crate) fn shut(&self, shut: bool) {
        self.state.is_shut.store(shut, Ordering::SeqCst);
        if shut {
            self.state.close_all();
        }
    }

    /// Holds back all replies, until it is called with `false`.
    pub(crate) fn hold(&self, hold: bool) {
        *self.state.holds.lock().expect("no panic") = hold;
        self.state.released.notify_all();
    }

    /// Forwards a part of the next reply, and then closes the connection.
    pub(crate) fn cut_next_reply(&self) {
        self.state.cuts.store(true, Ordering::SeqCst);
    }
}

impl State {
    fn forward(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect(self.to)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let mut open = self.open.lock().expect("no panic");
        open.push(client.try_clone()?);
        open.push(server.try_clone()?);
        drop(open);
        let (there, back) = ((client.try_clone()?, server.try_clone()?), (server, client));
        let state = Arc::clone(self);
        std::thread::spawn(move || state.copy(there, false));
        let state = Arc::clone(self);
        std::thread::spawn(move || state.copy(back, true));
        Ok(())
    }

    fn copy(&self, (mut from, mut to): (TcpStream, TcpStream), replies: bool) {
        let mut bytes = [0; 16_000];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if replies {
                let holds = self.holds.lock().expect("no panic");
                drop(self.released.wait_while(holds, |holds| *holds).expect("no panic"));
            }
            if replies && self.cuts.swap(false, Ordering::SeqCst) {
                let _ = to.write_all(&bytes[..count / 2]);
                break;
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }

    fn close_all(&self) {
        for stream in self.open.lock().expect("no panic").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        self.state.close_all();
        // Wakes the accepting thread.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}
