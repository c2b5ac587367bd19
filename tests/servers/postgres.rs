//! A PostgreSQL server on a free loopback port, stopped when dropped.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{Folder, Process, free_port};

pub(crate) struct Server {
    process: Process,
    _folder: Folder,
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
        let folder = Folder::new("postgres");
        if id(&["-u"]) == 0 {
            let (user, group) = (id(&["-u", "postgres"]), id(&["-g", "postgres"]));
            std::os::unix::fs::chown(folder.path(), Some(user), Some(group)).expect("root may change the owner");
        }
        let data = folder.path().join("data");
        let mut initdb = command(&program("initdb"));
        initdb.args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "-D"]);
        let output = initdb.arg(&data).output().expect("initdb: install the package `postgresql`");
        assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
        // Another process may take the port before the server binds it. Then another port is tried.
        for _ in 0..10 {
            let port = free_port();
            let process = launch(&data, port);
            let line = std::iter::from_fn(|| process.line());
            if line.into_iter().any(|line| line.ends_with("database system is ready to accept connections")) {
                return Self { process, _folder: folder, port };
            }
        }
        panic!("the server does not start");
    }

    pub(crate) fn config(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres", self.port)
    }

    /// Stops the server at once, and waits for its end.
    pub(crate) fn end(&mut self) {
        if self.process.status().is_none() {
            // SIGQUIT: the server ends its processes, without a checkpoint.
            self.process.signal("-QUIT");
            self.process.wait();
        }
    }
}

fn launch(data: &Path, port: u16) -> Process {
    let mut command = command(&program("postgres"));
    command.arg("-D").arg(data).args(["-h", "127.0.0.1", "-k", "", "-F", "-p", &port.to_string()]);
    command.args(["-c", "max_connections=120", "-c", "log_min_messages=log", "-c", "shared_buffers=32MB"]);
    Process::start(command.stderr(Stdio::piped()).stdout(Stdio::null()))
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
