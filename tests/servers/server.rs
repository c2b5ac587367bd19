//! A Redis server on a free loopback port, stopped when dropped.
#![allow(dead_code, reason = "each binary uses a part")]

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tower_ratelimit::RedisServer;

use crate::process::{Folder, Process, TIMEOUT, free_port, wait_until};

pub(crate) struct Server {
    /// `None` if another process has started the server.
    process: Option<Process>,
    pub(crate) folder: Folder,
    /// The server program, behind another one that runs it, if any.
    line: Vec<OsString>,
    pub(crate) arguments: Vec<String>,
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    pub(crate) fn with(arguments: &[&str]) -> Self {
        Self::of(&[program()], arguments)
    }

    /// Starts a node that has not joined a cluster yet.
    ///
    /// By default, the others do not take it for failed within a minute: a stall of the machine is no fault.
    pub(crate) fn node_with(arguments: &[&str]) -> Self {
        let of_cluster = ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"];
        let in_time = ["--cluster-node-timeout", "60000", "--repl-diskless-sync-delay", "0"];
        Self::with(&[&of_cluster, &in_time, arguments].concat())
    }

    /// Starts a server by the first words of its command line.
    pub(crate) fn of(line: &[OsString], arguments: &[&str]) -> Self {
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        // Another process may take the port before the server binds it. Then another port is tried.
        for _ in 0..10 {
            let mut server = Self {
                process: None,
                folder: Folder::new("redis"),
                line: line.to_vec(),
                arguments: arguments.clone(),
                port: free_port(),
            };
            if server.launch() {
                return server;
            }
        }
        panic!(
            "{line:?} does not start with {arguments:?} (TLS needs a server that is built with TLS, as Debian's is)"
        );
    }

    /// The server that another process has started.
    pub(crate) fn running(port: u16) -> Self {
        Self { process: None, folder: Folder::new("redis"), line: Vec::new(), arguments: Vec::new(), port }
    }

    /// Starts the process. Returns whether it is ready.
    fn launch(&mut self) -> bool {
        let mut command = Command::new(&self.line[0]);
        command.args(&self.line[1..]).args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--appendonly", "no", "--dir"]).arg(self.folder.path()).args(&self.arguments);
        command.current_dir(self.folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = self.process.insert(Process::start(&mut command));
        // If another process's server took the port, this process ends, because it can't bind.
        let id = format!("process_id:{}\r\n", process.id());
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline && self.process.as_mut().is_some_and(|process| process.status().is_none()) {
            if self.try_commands(&[&["INFO", "server"]]).is_ok_and(|reply| reply.contains(&id)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Returns the argument behind this one.
    fn after(&self, name: &str) -> Option<&str> {
        let place = self.arguments.iter().position(|argument| argument == name)?;
        self.arguments.get(place + 1).map(String::as_str)
    }

    pub(crate) fn tls_port(&self) -> Option<u16> {
        self.after("--tls-port").map(|port| port.parse().expect("a port"))
    }

    /// The port of the other servers' connections: servers with TLS use the TLS port among each other.
    pub(crate) fn port_of_servers(&self) -> u16 {
        self.tls_port().unwrap_or(self.port)
    }

    pub(crate) fn address(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A connection without a limiter, of a thread.
    pub(crate) fn connect(&self) -> redis::Connection {
        redis::Client::open(self.address()).and_then(|client| client.get_connection()).expect("Redis")
    }

    pub(crate) fn socket(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub(crate) fn open(&self) -> RedisServer {
        RedisServer::open(&self.address()).expect("an address")
    }

    /// Sends one command on a connection of its own and returns the raw reply.
    pub(crate) fn command(&self, parts: &[&str]) -> String {
        self.commands(&[parts])
    }

    /// Sends several commands on one connection and returns all replies.
    pub(crate) fn commands(&self, commands: &[&[&str]]) -> String {
        self.try_commands(commands).expect("a connection")
    }

    pub(crate) fn try_commands(&self, commands: &[&[&str]]) -> std::io::Result<String> {
        let bytes = |parts: &&[&str]| parts.iter().map(|part| part.as_bytes().to_vec()).collect();
        self.send(commands.iter().map(bytes).collect())
    }

    /// Sends one command of arbitrary bytes.
    pub(crate) fn bytes(&self, parts: &[&[u8]]) -> String {
        self.send(vec![parts.iter().map(|part| part.to_vec()).collect()]).expect("a connection")
    }

    fn send(&self, commands: Vec<Vec<Vec<u8>>>) -> std::io::Result<String> {
        let password = self.after("--requirepass").map(|password| vec![b"AUTH".to_vec(), password.into()]);
        let accepted = if password.is_some() { "+OK\r\n" } else { "" };
        let quit = vec![b"QUIT".to_vec()];
        let reply =
            answer(ask(self.socket(), &password.into_iter().chain(commands).chain([quit]).collect::<Vec<_>>())?);
        Ok(reply.strip_prefix(accepted).unwrap_or_else(|| panic!("AUTH: {reply}")).to_owned())
    }

    /// Pauses all commands for this time and returns immediately.
    pub(crate) fn pause(&self, span: Duration) {
        let millis = span.as_millis().to_string();
        let pause = ["CLIENT", "PAUSE", &millis, "ALL"].map(|part| part.as_bytes().to_vec()).to_vec();
        let mut reply = [0; 5];
        let read = ask(self.socket(), &[pause]).and_then(|mut stream| stream.read_exact(&mut reply));
        read.expect("a reply");
        assert_eq!(&reply, b"+OK\r\n");
    }

    /// All keys, without the keys that probes keep for a millisecond.
    pub(crate) fn keys(&self) -> Vec<String> {
        let reply = self.command(&["KEYS", "*"]);
        let lines: Vec<_> = reply.split("\r\n").collect();
        let keys = lines.windows(2).filter(|pair| pair[0].starts_with('$')).map(|pair| pair[1].to_owned());
        keys.filter(|key| !key.ends_with(":probe")).collect()
    }

    pub(crate) fn number(&self, parts: &[&str]) -> i64 {
        let reply = self.command(parts);
        let number = reply.strip_prefix(':').and_then(|reply| reply.split("\r\n").next());
        number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{parts:?}: {reply}"))
    }

    /// A figure of `INFO ALL`, including command statistics: the number after this text.
    pub(crate) fn number_of(&self, name: &str) -> u64 {
        let info = self.command(&["INFO", "all"]);
        let figure = info.split(name).nth(1).unwrap_or_default();
        figure.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
    }

    /// Returns the seconds of processor time that the server has used.
    pub(crate) fn cpu(&self) -> f64 {
        let info = self.command(&["INFO", "cpu"]);
        let seconds = |line: &str| {
            line.strip_prefix("used_cpu_user:").or(line.strip_prefix("used_cpu_sys:"))?.parse::<f64>().ok()
        };
        info.lines().filter_map(seconds).sum()
    }

    pub(crate) fn is_master(&self) -> bool {
        self.command(&["ROLE"]).contains("\r\nmaster\r\n")
    }

    /// Makes this replica the master of its part of a cluster, without an election.
    pub(crate) fn take_over(&self) {
        let reply = self.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        assert!(reply.starts_with("+OK"), "{reply}");
        wait_until("the replica has taken over", || self.is_master());
    }

    pub(crate) fn is_replica_in_sync(&self) -> bool {
        self.command(&["INFO", "replication"]).contains("master_link_status:up")
    }

    /// Cuts the replication stream and prevents its resumption, so that the replica lags as after a network fault.
    pub(crate) fn fall_behind(&self) {
        self.command(&["CONFIG", "SET", "masterauth", "a password that the master does not have"]);
        let cut = self.command(&["CLIENT", "KILL", "TYPE", "master"]);
        assert!(cut.starts_with(":1"), "{cut}");
        wait_until("the stream is cut", || self.command(&["INFO", "replication"]).contains("master_link_status:down"));
    }

    pub(crate) fn signal(&self, signal: &str) {
        self.process.as_ref().expect("a process of this one").signal(signal);
    }

    pub(crate) fn kill(&mut self) {
        self.process.as_mut().expect("a process of this one").kill();
    }

    /// Waits for the end of the server, after a command such as `SHUTDOWN`.
    pub(crate) fn wait(&mut self) {
        self.process.as_mut().expect("a process of this one").wait();
    }

    /// Starts the same server again, after `kill`.
    pub(crate) fn restart(&mut self) {
        assert!(self.launch(), "{:?} does not start again", self.line);
    }
}

/// The server program: `redis-server`, or the one in the environment variable `REDIS_SERVER`.
pub(crate) fn program() -> OsString {
    std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into())
}

/// Sends commands on a connection of their own.
pub(crate) fn ask(to: SocketAddr, commands: &[Vec<Vec<u8>>]) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut request = Vec::new();
    for parts in commands {
        request.extend(format!("*{}\r\n", parts.len()).bytes());
        for part in parts {
            request.extend(format!("${}\r\n", part.len()).bytes());
            request.extend(part);
            request.extend(b"\r\n");
        }
    }
    stream.write_all(&request)?;
    Ok(stream)
}

/// Returns all replies until the end of the connection.
pub(crate) fn answer(mut stream: TcpStream) -> String {
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8_lossy(&reply).into_owned()
}
