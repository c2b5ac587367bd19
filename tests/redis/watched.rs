//! Sentinels of one's own, with what they watch, on the loopback interface.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tower_ratelimit::RedisServer;

use crate::nodes::until;
use crate::server::{Server, free_port};

pub(crate) struct Sentinel {
    process: Child,
    directory: PathBuf,
    port: u16,
    password: Option<String>,
}

impl Sentinel {
    /// With what the master and its replica have as a password, and what Sentinels have, if any.
    fn of(master: &Server, passwords: Option<[&str; 2]>) -> Self {
        let port = free_port(false);
        let directory = std::env::temp_dir().join(format!("tower-ratelimit-sentinel-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for it");
        let passwords_set = passwords.map(|[theirs, own]| {
            format!("sentinel auth-pass mymaster {theirs}\nrequirepass {own}\nsentinel sentinel-pass {own}\n")
        });
        let settings = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor mymaster 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 4000\n{}",
            directory.display(),
            master.port,
            passwords_set.unwrap_or_default()
        );
        let file = directory.join("sentinel.conf");
        std::fs::write(&file, settings).expect("its settings");
        let process = Command::new("redis-server")
            .arg(&file)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a Sentinel");
        let sentinel = Self { process, directory, port, password: passwords.map(|[_, own]| own.to_owned()) };
        until("a Sentinel is up", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        sentinel
    }

    pub(crate) fn command(&self, parts: &[&str]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        let password = self.password.as_ref().map(|password| format!("AUTH {password}\r\n")).unwrap_or_default();
        stream.write_all((password + &parts.join(" ") + "\r\n").as_bytes()).expect("sent");
        // Sentinel has no QUIT.
        stream.shutdown(Shutdown::Write).expect("shut");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a reply");
        reply
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A master, its replica, and three Sentinels.
pub(crate) struct Watched {
    pub(crate) sentinels: Vec<Sentinel>,
    pub(crate) master: Server,
    pub(crate) replica: Server,
}

impl Watched {
    pub(crate) fn start() -> Self {
        Self::with(None)
    }

    pub(crate) fn with(passwords: Option<[&str; 2]>) -> Self {
        let mut arguments = vec!["--repl-diskless-sync-delay", "0"];
        if let Some([theirs, _]) = passwords {
            arguments.extend(["--requirepass", theirs, "--masterauth", theirs]);
        }
        let master = Server::with(&arguments);
        let port = master.port.to_string();
        let replica = Server::with(&[&arguments[..], &["--replicaof", "127.0.0.1", &port]].concat());
        until("the replica is in step", || replica.command(&["INFO", "replication"]).contains("master_link_status:up"));
        let sentinels: Vec<_> = (0..3).map(|_| Sentinel::of(&master, passwords)).collect();
        for sentinel in &sentinels {
            until("Sentinels know of each other, and of the replica", || {
                sentinel.command(&["SENTINEL", "REPLICAS", "mymaster"]).contains(&replica.port.to_string())
                    && sentinel.command(&["SENTINEL", "SENTINELS", "mymaster"]).matches("runid").count() == 2
            });
        }
        Self { sentinels, master, replica }
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.sentinels.iter().map(|sentinel| format!("redis://127.0.0.1:{}", sentinel.port)).collect()
    }

    pub(crate) fn open(&self) -> RedisServer {
        RedisServer::sentinel(self.addresses(), "mymaster").expect("addresses")
    }
}
