//! The network and the server of one simulation, driven by events in virtual time.

mod counts;
mod faults;
mod link;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

pub(super) use self::link::Connection;
use self::link::Data;
pub(crate) use self::link::Link;
use super::quota::Quota;
use super::scenario::{Fault, FaultKind, Scenario};
use super::server::Server;
use crate::random::Random;

/// The network and the server. Clones share them.
#[derive(Clone)]
pub(crate) struct World {
    state: Arc<Mutex<WorldState>>,
    /// An event was added before all others.
    changed: Arc<Notify>,
}

pub(super) struct WorldState {
    started_at: Instant,
    random: Random,
    link: Link,
    /// Delays are whole milliseconds, and some data arrives in two parts.
    in_scenario: bool,
    pub(super) is_threaded: bool,
    faults: Vec<Fault>,
    events: BTreeMap<(u64, u64), Event>,
    event_count: u64,
    /// The time of the last event by which the server is ready for the next command.
    server_ready: u64,
    pub(super) connections: Vec<Connection>,
    /// The number of attempts to open a connection.
    pub(super) connects: u64,
    /// The number of writes of requests.
    pub(super) requests: u64,
    pub(super) server: Server,
    /// Data that is sent now arrives at this time at the earliest.
    delayed_until: u64,
    /// Until then, open connections lose their data, and new ones are not established.
    half_open_until: u64,
    /// The bytes of the next request before a cut.
    cut_in_request: Option<usize>,
    /// When connections were cut.
    pub(super) cuts: Vec<u64>,
    /// When the client's thread ran nothing: from, and until.
    pub(super) stalls: Vec<(u64, u64)>,
    /// For each event of a circuit breaker the client, and whether the breaker opened.
    pub(super) breakers: Vec<(usize, bool)>,
    pub(super) trace: Option<Vec<String>>,
}

/// All times of the world are in microseconds since its start.
#[derive(Clone, Copy, Debug)]
enum Event {
    ToServer(usize),
    ToClient(usize),
    ServerReady,
    FaultBegins(usize),
    FaultEnds(usize),
    LoadingEnds,
    Snapshot,
}

impl World {
    /// Returns a world without faults, whose events a new task handles.
    pub(crate) fn new(link: Link, quotas: Vec<Quota>) -> Self {
        let state = WorldState {
            started_at: Instant::now(),
            random: Random::new(1),
            link,
            in_scenario: false,
            is_threaded: false,
            faults: Vec::new(),
            events: BTreeMap::new(),
            event_count: 0,
            server_ready: 0,
            connections: Vec::new(),
            connects: 0,
            requests: 0,
            server: Server::new(quotas, link),
            delayed_until: 0,
            half_open_until: 0,
            cut_in_request: None,
            cuts: Vec::new(),
            stalls: Vec::new(),
            breakers: Vec::new(),
            trace: None,
        };
        let world = Self { state: Arc::new(Mutex::new(state)), changed: Arc::new(Notify::new()) };
        tokio::spawn(world.clone().run());
        world
    }

    /// Returns the world of a scenario.
    pub(super) fn of(scenario: &Scenario, is_traced: bool) -> Self {
        let world = Self::new(scenario.link, scenario.quotas.clone());
        let mut state = world.state();
        (state.random, state.in_scenario) = (Random::new(scenario.seed ^ 0x5eed), true);
        (state.trace, state.server.is_traced) = (is_traced.then(Vec::new), is_traced);
        state.is_threaded = scenario.is_threaded;
        state.faults.clone_from(&scenario.faults);
        for (index, fault) in scenario.faults.iter().enumerate() {
            if let FaultKind::FailOver(lag) = fault.kind {
                state.add_event(fault.at.saturating_sub(lag) * 1000, Event::Snapshot);
            }
            state.add_event(fault.at * 1000, Event::FaultBegins(index));
        }
        drop(state);
        world
    }

    /// Handles events, forever.
    async fn run(self) {
        loop {
            let next = self.state().handle_due();
            match next {
                Some(at) => tokio::select! {
                    biased;
                    () = sleep_until(at) => {}
                    () = self.changed.notified() => {}
                },
                None => self.changed.notified().await,
            }
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, WorldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the task that handles events.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut WorldState) -> T) -> T {
        let mut state = self.state();
        let before = state.events.first_key_value().map(|(key, _)| key.0);
        let result = change(&mut state);
        let first = state.events.first_key_value().map(|(key, _)| key.0);
        if first != before {
            self.changed.notify_one();
        }
        result
    }

    /// More attempts to open a connection break a law. No simulation of the first 20 000 makes more than 20.
    pub(super) const MAX_CONNECTS: u64 = 100;

    /// Opens a connection. Returns its index.
    ///
    /// # Errors
    ///
    /// If the server refuses it.
    pub(super) fn connect(&self, client: usize) -> impl Future<Output = std::io::Result<usize>> + Send + use<> {
        /// A lost SYN is sent again after this time.
        const RETRANSMISSION: Duration = Duration::from_secs(1);
        let world = self.clone();
        async move {
            let connects = {
                let mut state = world.state();
                state.connects += 1;
                state.connects
            };
            if connects > Self::MAX_CONNECTS {
                // Without a pause between its attempts, the client would stop the simulated time.
                std::future::pending::<()>().await;
            }
            loop {
                let (round_trip, is_lost) = {
                    let mut state = world.state();
                    let (now, one_way) = (state.now(), 2 * state.delay());
                    let late = state.delayed_until.saturating_sub(now);
                    let is_lost = now < state.half_open_until || state.server.loses_connects();
                    (Duration::from_micros(one_way + late), is_lost)
                };
                if is_lost {
                    tokio::time::sleep(RETRANSMISSION).await;
                    continue;
                }
                tokio::time::sleep(round_trip).await;
                let mut state = world.state();
                if state.server.loses_connects() {
                    continue;
                }
                if state.server.is_down() {
                    state.note(|| format!("client {client}: connection refused"));
                    return Err(std::io::ErrorKind::ConnectionRefused.into());
                }
                return Ok(state.open(client));
            }
        }
    }
}

impl WorldState {
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.started_at.elapsed().as_micros()).expect("a short time")
    }

    pub(super) fn is_breaker_open(&self, client: usize) -> bool {
        self.breakers.iter().rev().find(|event| event.0 == client).is_some_and(|event| event.1)
    }

    /// Adds a line to the trace.
    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        if self.trace.is_some() {
            let line = format!("{:>8.3} ms  {}", super::wire::to_f64(self.now()) / 1000.0, line());
            self.trace.get_or_insert_default().push(line);
        }
    }

    fn add_event(&mut self, at: u64, event: Event) {
        self.event_count += 1;
        self.events.insert((at, self.event_count), event);
    }

    /// Handles all events that are due. Returns the time of the next one.
    pub(super) fn handle_due(&mut self) -> Option<Instant> {
        let now = self.now();
        while let Some(entry) = self.events.first_entry() {
            let at = entry.key().0;
            if at > now {
                return Some(self.started_at + Duration::from_micros(at));
            }
            let event = entry.remove();
            self.handle(at, event);
        }
        None
    }

    fn handle(&mut self, at: u64, event: Event) {
        match event {
            Event::ToServer(connection) => self.arrive_at_server(at, connection),
            Event::ToClient(connection) => self.arrive_at_client(at, connection),
            Event::ServerReady => {}
            Event::FaultBegins(index) => self.begin_fault(at, index),
            Event::FaultEnds(index) => self.end_fault(index),
            Event::LoadingEnds => self.server.is_loading = false,
            Event::Snapshot => self.server.take_snapshot(),
        }
        self.run_server(at);
    }

    fn open(&mut self, client: usize) -> usize {
        let index = self.connections.len();
        self.note(|| format!("client {client}: connection {index} opened"));
        self.connections.push(Connection { client, master: self.server.master, ..Connection::default() });
        index
    }

    /// A random delay of one direction, in microseconds.
    fn delay(&mut self) -> u64 {
        let step = if self.in_scenario { 1000 } else { 1 };
        self.link.delay + self.random.below(self.link.jitter / step + 1) * step
    }

    /// Sends data of the client. Returns how many bytes the socket's buffer accepts.
    pub(super) fn send_to_server(&mut self, index: usize, bytes: &[u8]) -> usize {
        let accepted =
            if self.in_scenario && self.random.percent(5) { 1 + self.random.index(bytes.len()) } else { bytes.len() };
        let is_request = bytes.len() > 60 && !bytes.starts_with(b"*4\r\n$6\r\nCLIENT");
        self.requests += u64::from(is_request);
        let cut = if is_request { self.cut_in_request.take() } else { None };
        let sent = cut.map_or(accepted, |bytes| accepted.min(bytes));
        let data =
            Data { call: None, is_last: false, arrives_at: 0, written_at: self.now(), bytes: bytes[..sent].to_vec() };
        self.send(index, data, true);
        if cut.is_some() {
            self.note(|| format!("connection {index}: cut after {sent} bytes of a request"));
            self.end_connection(index);
        }
        accepted
    }

    fn send(&mut self, index: usize, mut data: Data, to_server: bool) {
        let delay = self.delay();
        let connection = &mut self.connections[index];
        let pipe = if to_server { &mut connection.to_server } else { &mut connection.to_client };
        if pipe.loses_data {
            return;
        }
        data.arrives_at = (data.written_at + delay).max(pipe.last_arrival).max(self.delayed_until);
        pipe.last_arrival = data.arrives_at;
        let arrives_at = data.arrives_at;
        pipe.data.push_back(data);
        self.add_event(arrives_at, if to_server { Event::ToServer(index) } else { Event::ToClient(index) });
    }

    fn arrive_at_server(&mut self, at: u64, index: usize) {
        let connection = &mut self.connections[index];
        while let Some(data) = connection.to_server.next_arrival(at) {
            let received = &mut connection.received;
            if received.is_empty() {
                *received = data.bytes;
            } else {
                received.extend_from_slice(&data.bytes);
            }
            while let Some((arguments, length)) = super::wire::read_command(received) {
                let rest = received.split_off(length);
                let bytes = std::mem::replace(received, rest);
                self.server.queue(index, at, data.written_at, bytes, arguments);
            }
        }
    }

    fn arrive_at_client(&mut self, at: u64, index: usize) {
        let now = self.now();
        let connection = &mut self.connections[index];
        while let Some(data) = connection.to_client.next_arrival(at) {
            connection.readable.extend(&data.bytes);
            connection.has_ended |= data.is_last;
            if let (Some(call), false) = (data.call, connection.has_ended || connection.is_closed_by_client) {
                self.server.calls[call].answered_at = Some(now);
            }
            connection.reader.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Runs the commands that the server can run at this time, and sends the replies.
    fn run_server(&mut self, at: u64) {
        while let Some(done) = self.server.run_next(at, &self.connections) {
            let index = done.connection;
            self.note(|| done.note);
            let cut = if done.call.is_some() { self.server.cut_in_reply.take() } else { None };
            let mut bytes = done.reply;
            let mut call = done.call;
            if let Some(cut) = cut {
                bytes.truncate(cut.min(bytes.len() - 1));
                call = None;
                self.note(|| format!("connection {index}: cut after {} bytes of the reply", bytes.len()));
            }
            let is_slow = |(every, _): &(usize, u64)| done.call.is_some_and(|call| (call + 1).is_multiple_of(*every));
            let extra = self.link.slow_reply.filter(is_slow).map_or(0, |(_, extra)| extra);
            // A reply may arrive in two parts.
            let first =
                if self.in_scenario && self.random.percent(20) { self.random.index(bytes.len().max(1)) } else { 0 };
            let rest = bytes.split_off(first);
            for (bytes, call) in [(bytes, None), (rest, call)] {
                if !bytes.is_empty() {
                    let data = Data { arrives_at: 0, bytes, written_at: done.at + extra, call, is_last: false };
                    self.send(index, data, false);
                }
            }
            if cut.is_some() {
                self.end_connection(index);
            }
        }
        if let Some(ready) = self.server.ready_at(at).filter(|ready| *ready > self.server_ready) {
            self.server_ready = ready;
            self.add_event(ready, Event::ServerReady);
        }
    }

    /// Resets a connection: requests in flight are lost, replies in flight arrive.
    fn end_connection(&mut self, index: usize) {
        let now = self.now();
        self.cuts.push(now);
        self.server.forget(index);
        let end = Data { arrives_at: 0, bytes: Vec::new(), written_at: now, call: None, is_last: true };
        self.send(index, end, false);
        let connection = &mut self.connections[index];
        // The server ignores what arrives later: the rest of a command would be no command.
        connection.received.clear();
        connection.to_server.data.clear();
        connection.to_server.loses_data = true;
        connection.to_client.loses_data = true;
    }
}
