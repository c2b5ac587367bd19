//! A Redis server for the benchmarks.

use std::ffi::OsString;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::{Client, Connection};
use tower_ratelimit::RedisServer;

/// A Redis on a free port of the loopback interface, stopped when dropped.
pub(super) struct Server {
    /// `None` if another process started the server.
    process: Option<Child>,
    directory: PathBuf,
    port: u16,
    cell: bool,
}

impl Server {
    /// Starts a server. Loads redis-cell if `REDIS_CELL` names its library.
    pub(super) fn start() -> Self {
        Self::with(&[], std::env::var_os("REDIS_CELL"))
    }

    /// Starts a cluster node.
    pub(super) fn node() -> Self {
        Self::with(&["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"], None)
    }

    /// The server that another process has started.
    pub(super) fn running(port: u16) -> Self {
        Self { process: None, directory: PathBuf::new(), port, cell: std::env::var_os("REDIS_CELL").is_some() }
    }

    /// Starts a server whose instructions callgrind counts.
    pub(super) fn under_callgrind() -> Self {
        let valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--log-file=callgrind.log"];
        Self::launch(&valgrind, &[], std::env::var_os("REDIS_CELL"))
    }

    /// Stops the server, and returns what callgrind has printed.
    pub(super) fn stop_under_callgrind(mut self) -> String {
        // The server ends without a reply.
        let _ = redis::cmd("SHUTDOWN").arg("NOSAVE").exec(&mut self.connection());
        if let Some(process) = &mut self.process {
            process.wait().expect("the end of the server");
        }
        std::fs::read_to_string(self.directory.join("callgrind.log")).expect("callgrind's output")
    }

    fn with(arguments: &[&str], cell: Option<OsString>) -> Self {
        Self::launch(&[], arguments, cell)
    }

    /// Runs the server, under another program if one is given.
    fn launch(under: &[&str], arguments: &[&str], cell: Option<OsString>) -> Self {
        let port = free_port();
        let directory = std::env::temp_dir().join(format!("tower-ratelimit-bench-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for the server");
        let line = [under, &["redis-server"]].concat();
        let mut command = Command::new(line[0]);
        command.current_dir(&directory).args(&line[1..]).args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
        ]);
        command.arg(&directory).args(arguments);
        if let Some(library) = &cell {
            command.arg("--loadmodule").arg(library);
        }
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let process = process.unwrap_or_else(|error| {
            panic!(
                "starting {} failed: {error}; install it (Debian: apt-get install -y redis-server valgrind)",
                line[0]
            )
        });
        let server = Self { process: Some(process), directory, port, cell: cell.is_some() };
        let give_up_at = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < give_up_at, "redis-server does not listen after 20 s");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    pub(super) fn command(&self, parts: &[&str]) -> String {
        let mut command = redis::cmd(parts[0]);
        command.arg(&parts[1..]);
        command.query(&mut self.connection()).expect("a reply")
    }

    /// Runs a command, and ignores its reply.
    pub(super) fn run(&self, parts: &[&str]) {
        redis::cmd(parts[0]).arg(&parts[1..]).exec(&mut self.connection()).expect("done");
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn socket(&self) -> std::net::SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    pub(super) fn address(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(super) fn open(&self) -> RedisServer {
        RedisServer::open(&self.address()).expect("an address")
    }

    pub(super) fn has_cell(&self) -> bool {
        self.cell
    }

    /// Returns the seconds of processor time that the server has used.
    pub(super) fn cpu(&self) -> f64 {
        self.info("used_cpu_user") + self.info("used_cpu_sys")
    }

    /// Returns a numeric field of `INFO`.
    pub(super) fn info(&self, name: &str) -> f64 {
        let info: String = redis::cmd("INFO").query(&mut self.connection()).expect("INFO");
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse().ok()).expect("a number")
    }

    /// Returns how often a command was called.
    pub(super) fn calls_of(&self, command: &str) -> f64 {
        let info: String = redis::cmd("INFO").arg("commandstats").query(&mut self.connection()).expect("INFO");
        let calls = info.split(&format!("cmdstat_{command}:calls=")).nth(1).unwrap_or("0");
        calls.split(',').next().and_then(|calls| calls.parse().ok()).unwrap_or(0.0)
    }

    /// Returns the entries of the slow log.
    pub(super) fn slow_log(&self) -> Vec<redis::Value> {
        redis::cmd("SLOWLOG").arg("GET").arg(100_000).query(&mut self.connection()).expect("SLOWLOG")
    }

    pub(super) fn slow_log_reset(&self) {
        redis::cmd("SLOWLOG").arg("RESET").exec(&mut self.connection()).expect("OK");
    }

    pub(super) fn flush(&self) {
        redis::cmd("FLUSHALL").exec(&mut self.connection()).expect("OK");
    }

    fn connection(&self) -> Connection {
        Client::open(self.address()).expect("an address").get_connection().expect("a connection")
    }
}

/// Returns a free port. The cluster bus of a node uses the port 10 000 above it, which must be free too.
fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("its address").port();
        let bus = port.checked_add(10_000);
        if bus.is_some_and(|bus| TcpListener::bind(("127.0.0.1", bus)).is_ok()) {
            return port;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(process) = &mut self.process else { return };
        let _ = process.kill();
        let _ = process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
