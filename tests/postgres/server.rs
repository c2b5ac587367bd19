//! A PostgreSQL server on a free loopback port, stopped when dropped.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) struct Server {
    process: Child,
    directory: PathBuf,
    pub(crate) port: u16,
}

/// Returns the path of a program of PostgreSQL: of Debian's package, or in `PATH`.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().filter_map(Result::ok);
    let mut paths: Vec<_> = versions.map(|version| version.path().join("bin").join(name)).collect();
    paths.retain(|path| path.exists());
    paths.sort();
    paths.pop().unwrap_or_else(|| PathBuf::from(name))
}

/// Returns a number that the command `id` prints.
fn id(arguments: &[&str]) -> u32 {
    let output = Command::new("id").args(arguments).output().expect("the command `id`");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("PostgreSQL's user: install the package `postgresql`")
}

/// A command that does not run as root, because PostgreSQL does not.
fn command(path: &Path) -> Command {
    let mut command = Command::new(path);
    if id(&["-u"]) == 0 {
        command.uid(id(&["-u", "postgres"])).gid(id(&["-g", "postgres"]));
    }
    command.current_dir("/").stdin(Stdio::null());
    command
}

impl Server {
    /// Starts a server. The tests need no durable data, so it never waits for the disk.
    pub(crate) fn start() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("tower-ratelimit-postgres-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory for the server");
        if id(&["-u"]) == 0 {
            let (user, group) = (id(&["-u", "postgres"]), id(&["-g", "postgres"]));
            std::os::unix::fs::chown(&directory, Some(user), Some(group)).expect("root may change the owner");
        }
        let data = directory.join("data");
        let mut initdb = command(&program("initdb"));
        initdb.args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "-D"]);
        let output = initdb.arg(&data).output().expect("initdb: install the package `postgresql`");
        assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
        let mut server = Self { process: launch(&data, free_port()), directory, port: 0 };
        // Another process may take the port before the server binds it. Then another port is tried.
        for _ in 0..10 {
            if let Some(port) = ready(&mut server.process) {
                server.port = port;
                return server;
            }
            server.end();
            server.process = launch(&data, free_port());
        }
        panic!("the server does not start");
    }

    pub(crate) fn config(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres", self.port)
    }

    /// Stops the server at once, and waits for its end.
    pub(crate) fn end(&mut self) {
        if !matches!(self.process.try_wait(), Ok(None)) {
            return;
        }
        // SIGQUIT: the server ends its processes, without a checkpoint.
        let _ = Command::new("kill").args(["-QUIT", &self.process.id().to_string()]).status();
        let _ = self.process.wait();
    }
}

fn launch(data: &Path, port: u16) -> Child {
    let mut command = command(&program("postgres"));
    command.arg("-D").arg(data).args(["-h", "127.0.0.1", "-k", "", "-F", "-p", &port.to_string()]);
    command.args(["-c", "max_connections=120", "-c", "log_min_messages=log", "-c", "shared_buffers=32MB"]);
    command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("postgres: install the package `postgresql`")
}

/// Waits until the server accepts connections. Returns its port, or `None` if it ends.
fn ready(process: &mut Child) -> Option<u16> {
    let mut log = BufReader::new(process.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let mut port = None;
    let found = log.by_ref().any(|line| {
        let listens = line.split_once("address \"127.0.0.1\", port ").and_then(|(_, port)| port.parse().ok());
        port = port.or(listens);
        line.ends_with("database system is ready to accept connections")
    });
    // A full pipe would stop the server.
    std::thread::spawn(move || {
        for line in log.filter(|line| line.contains("ERROR") || line.contains("PANIC")) {
            eprintln!("postgres: {line}");
        }
    });
    if found { port } else { None }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
