//! A Redis server on a free loopback port, stopped when dropped.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bb8_redis::redis;
use tower_ratelimit::RedisServer;

pub(crate) struct Server {
    process: Child,
    directory: PathBuf,
    arguments: Vec<String>,
    pub(crate) port: u16,
    /// The password of the tests' own connections, if the server requires one.
    password: Option<String>,
    /// The TLS port, if any.
    pub(crate) tls_port: Option<u16>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a node that has not joined a cluster yet.
    pub(crate) fn node_with(arguments: &[&str]) -> Self {
        let of_cluster = [
            "--cluster-enabled",
            "yes",
            "--cluster-config-file",
            "nodes.conf",
            "--cluster-node-timeout",
            "2000",
            "--repl-diskless-sync-delay",
            "0",
        ];
        Self::with(&[&of_cluster, arguments].concat())
    }

    pub(crate) fn with(arguments: &[&str]) -> Self {
        // Another process may take the port before the server binds it. Then another port is tried.
        for _ in 0..10 {
            let port = free_port();
            let directory = std::env::temp_dir().join(format!("tower-ratelimit-redis-{}-{port}", std::process::id()));
            std::fs::create_dir_all(&directory).expect("a directory for the server");
            let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
            let process = launch(port, &directory, &arguments);
            let after = |name| {
                let place = arguments.iter().position(|argument| argument == name)?;
                arguments.get(place + 1).cloned()
            };
            let password = after("--requirepass");
            let tls_port = after("--tls-port").map(|port| port.parse().expect("a port"));
            let mut server = Self { process, directory, arguments, port, password, tls_port };
            if server.is_up() {
                return server;
            }
        }
        panic!(
            "redis-server does not start with {arguments:?} (TLS needs a server that is built with TLS, as Debian's is)"
        );
    }

    fn is_up(&mut self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if self.process.try_wait().expect("the state of the process").is_some() {
                return false;
            }
            // If another process's server took the port, this process ends, because it can't bind.
            let process = format!("process_id:{}\r\n", self.process.id());
            if self.try_send(&[vec![b"INFO", b"server"]]).is_ok_and(|reply| reply.contains(&process)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
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
        let commands: Vec<Vec<&[u8]>> =
            commands.iter().map(|parts| parts.iter().map(|part| part.as_bytes()).collect()).collect();
        self.send(&commands)
    }

    /// Sends one command of arbitrary bytes.
    pub(crate) fn bytes(&self, parts: &[&[u8]]) -> String {
        self.send(&[parts.to_vec()])
    }

    fn send(&self, commands: &[Vec<&[u8]>]) -> String {
        self.try_send(commands).expect("a connection")
    }

    fn try_send(&self, commands: &[Vec<&[u8]>]) -> std::io::Result<String> {
        let Some(password) = &self.password else { return try_send(self.socket(), commands) };
        let authenticate = vec![&b"AUTH"[..], password.as_bytes()];
        let reply = try_send(self.socket(), &[&[authenticate], commands].concat())?;
        Ok(reply.strip_prefix("+OK\r\n").unwrap_or_else(|| panic!("AUTH: {reply}")).to_owned())
    }

    /// Pauses all commands for this time and returns immediately.
    pub(crate) fn pause(&self, span: Duration) {
        let mut stream = TcpStream::connect(self.socket()).expect("a connection");
        stream.write_all(format!("CLIENT PAUSE {} ALL\r\n", span.as_millis()).as_bytes()).expect("sent");
        let mut reply = [0; 5];
        stream.read_exact(&mut reply).expect("a reply");
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

    pub(crate) fn signal(&self, signal: &str) {
        send_signal(&self.process, signal);
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("a running process");
        self.process.wait().expect("the end of the process");
    }

    /// Starts the same server again, empty, after `kill`.
    pub(crate) fn restart(&mut self) {
        self.process = launch(self.port, &self.directory, &self.arguments);
        assert!(self.is_up(), "redis-server does not start again");
    }
}

fn try_send(to: SocketAddr, commands: &[Vec<&[u8]>]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut request = Vec::new();
    for parts in commands.iter().chain([&vec![&b"QUIT"[..]]]) {
        request.extend(format!("*{}\r\n", parts.len()).bytes());
        for part in parts {
            request.extend(format!("${}\r\n", part.len()).bytes());
            request.extend(*part);
            request.extend(b"\r\n");
        }
    }
    stream.write_all(&request)?;
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

/// Returns a free port whose cluster bus port (10,000 higher) is free as well.
///
/// No call in this process returns the same port again. Outgoing connections never take it, because it is below Linux's
/// ephemeral port range.
pub(crate) fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // Concurrent test processes begin at different ports.
    let start = std::process::id().wrapping_mul(997);
    loop {
        let offset = start.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed)) % 10_000;
        let port = 10_000 + u16::try_from(offset).expect("less than 10,000");
        if [port, port + 10_000].into_iter().all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return port;
        }
    }
}

/// The server program: `redis-server`, or the one in the environment variable `REDIS_SERVER`.
pub(crate) fn program() -> std::ffi::OsString {
    std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into())
}

fn launch(port: u16, directory: &std::path::Path, arguments: &[String]) -> Child {
    Command::new(program())
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"])
        .arg(directory)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("these tests need redis-server (Debian: apt-get install -y redis-server): {error}")
        })
}

/// Sends a signal, such as `-STOP`, to a process that has not been waited for.
pub(crate) fn send_signal(process: &Child, signal: &str) {
    let done = Command::new("kill").args([signal, &process.id().to_string()]).status().expect("kill");
    assert!(done.success(), "kill {signal}");
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
