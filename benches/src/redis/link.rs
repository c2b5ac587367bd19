//! A loopback link in front of Redis: it delays bytes both ways, and limits the speed of the server behind it.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use crate::random::Random;

/// The properties of a link, and of the server behind it.
#[derive(Clone)]
pub(crate) struct LinkConfig {
    /// The delay of the bytes in one direction, drawn anew for each read of the socket. The order of bytes is kept.
    pub(crate) delay: RangeInclusive<Duration>,
    /// The time that the server spends on each command.
    pub(crate) per_call: Duration,
    /// The time that the server spends on each key of a script call.
    pub(crate) per_key: Duration,
}

impl LinkConfig {
    /// A link with a fixed round trip, to a server that spends these times on a call, and on each key of a call.
    pub(crate) fn new(round_trip: Duration, per_call: Duration, per_key: Duration) -> Self {
        Self { delay: round_trip / 2..=round_trip / 2, per_call, per_key }
    }
}

/// Accepts connections until it is dropped.
pub(crate) struct Link {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

struct State {
    config: LinkConfig,
    to: SocketAddr,
    /// When the server ends the last command that it has received.
    busy_until: Mutex<Instant>,
    random: Mutex<Random>,
    ended: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

/// Bytes that are sent at a time.
type Scheduled = (Instant, Vec<u8>);

impl Link {
    pub(crate) fn before(to: SocketAddr, config: LinkConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let state = Arc::new(State {
            config,
            to,
            busy_until: Mutex::new(Instant::now()),
            random: Mutex::new(Random::new(1)),
            ended: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let accepting = Arc::clone(&state);
        spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.ended.load(Ordering::SeqCst) {
                    return;
                }
                let _ = accepting.forward(client);
            }
        });
        Self { address, state }
    }
}

impl State {
    fn forward(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect(self.to)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        self.open.lock().expect("no panic").extend([client.try_clone()?, server.try_clone()?]);
        for (from, to, are_requests) in [(client.try_clone()?, server.try_clone()?, true), (server, client, false)] {
            let (sender, receiver) = channel();
            let state = Arc::clone(self);
            spawn(
                move || {
                    if are_requests { state.read_requests(from, &sender) } else { state.read_replies(from, &sender) }
                },
            );
            spawn(move || write(to, &receiver));
        }
        Ok(())
    }

    fn read_requests(&self, mut from: TcpStream, sender: &Sender<Scheduled>) {
        let (mut bytes, mut pending, mut last) = (vec![0; 1 << 16], Vec::new(), Instant::now());
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let arrival = last.max(Instant::now() + self.delay());
            last = arrival;
            pending.extend_from_slice(&bytes[..count]);
            let mut start = 0;
            while let Some((length, keys)) = command(&pending[start..]) {
                let mut busy_until = self.busy_until.lock().expect("no panic");
                let span = self.config.per_call + self.config.per_key * keys;
                *busy_until = arrival.max(*busy_until) + span;
                let ends_at = *busy_until;
                drop(busy_until);
                if sender.send((ends_at, pending[start..start + length].to_vec())).is_err() {
                    return;
                }
                start += length;
            }
            pending.drain(..start);
        }
    }

    fn read_replies(&self, mut from: TcpStream, sender: &Sender<Scheduled>) {
        let (mut bytes, mut last) = (vec![0; 1 << 16], Instant::now());
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            last = last.max(Instant::now() + self.delay());
            if sender.send((last, bytes[..count].to_vec())).is_err() {
                return;
            }
        }
    }

    fn delay(&self) -> Duration {
        let (min, max) = (*self.config.delay.start(), *self.config.delay.end());
        min + max.saturating_sub(min).mul_f64(self.random.lock().expect("no panic").share())
    }
}

/// Writes bytes when they are due. Bytes that are due together travel together.
fn write(mut to: TcpStream, receiver: &Receiver<Scheduled>) {
    let mut next = receiver.recv().ok();
    while let Some((due, mut bytes)) = next.take() {
        sleep(due.saturating_duration_since(Instant::now()));
        let now = Instant::now();
        while let Ok((due, more)) = receiver.try_recv() {
            if due > now {
                next = Some((due, more));
                break;
            }
            bytes.extend(more);
        }
        if to.write_all(&bytes).is_err() {
            break;
        }
        if next.is_none() {
            next = receiver.recv().ok();
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Returns the length of the first command in these bytes, and the number of keys if it is a script call.
fn command(bytes: &[u8]) -> Option<(usize, u32)> {
    let (mut at, mut name, mut keys) = (0, Vec::new(), 0);
    let parts = number(bytes, &mut at)?;
    for part in 0..parts {
        let length = usize::try_from(number(bytes, &mut at)?).ok()?;
        let content = bytes.get(at..at + length)?;
        match part {
            0 => name = content.to_ascii_uppercase(),
            2 if name.starts_with(b"EVAL") => keys = std::str::from_utf8(content).ok()?.parse().ok()?,
            _ => {}
        }
        at += length + 2;
        bytes.get(at - 1)?;
    }
    Some((at, keys))
}

/// Reads a line such as `*3` or `$14`.
fn number(bytes: &[u8], at: &mut usize) -> Option<u32> {
    let rest = bytes.get(*at + 1..)?;
    let end = rest.iter().position(|&byte| byte == b'\r')?;
    *at += end + 3;
    bytes.get(*at - 1)?;
    std::str::from_utf8(&rest[..end]).ok()?.parse().ok()
}

impl Drop for Link {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        for stream in self.state.open.lock().expect("no panic").drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the accepting thread.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}
