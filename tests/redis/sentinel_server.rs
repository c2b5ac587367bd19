//! A master, its replica and three Sentinels on the loopback interface.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tower_ratelimit::RedisServer;

use crate::cluster_server::wait_until;
use crate::server::{Server, free_port, program};

pub(crate) struct Sentinel {
    process: Child,
    directory: PathBuf,
    port: u16,
    password: Option<String>,
}

impl Sentinel {
    /// Starts a Sentinel with additional settings and the tests' password, if any.
    fn of(master: &Server, settings: &str, password: Option<&str>) -> Self {
        let port = free_port();
        let directory = std::env::temp_dir().join(format!("tower-ratelimit-sentinel-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for the Sentinel");
        let settings = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor mymaster 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 4000\n{settings}",
            directory.display(),
            replicated_at(master)
        );
        let file = directory.join("sentinel.conf");
        std::fs::write(&file, settings).expect("the Sentinel's settings");
        let process = Command::new(program())
            .arg(&file)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a Sentinel");
        let sentinel = Self { process, directory, port, password: password.map(str::to_owned) };
        wait_until("a Sentinel is up", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        // Otherwise a Sentinel does nothing for 30 s if the machine stalls for two seconds (its TILT mode), and then finds
        // that the replica was without its master for too long. Before Redis 7 this is an unknown command.
        sentinel.command(&["SENTINEL", "DEBUG", "TILT-TRIGGER", "60000"]);
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

/// A master, its replica and three Sentinels.
pub(crate) struct SentinelDeployment {
    pub(crate) sentinels: Vec<Sentinel>,
    pub(crate) master: Server,
    pub(crate) replica: Server,
}

impl SentinelDeployment {
    pub(crate) fn start() -> Self {
        Self::with(Server::with, String::new, None)
    }

    /// Starts the deployment with these servers, settings and password.
    pub(crate) fn with(
        server: impl Fn(&[&str]) -> Server,
        settings: impl Fn() -> String,
        password: Option<&str>,
    ) -> Self {
        let at_once = ["--repl-diskless-sync-delay", "0"];
        let master = server(&at_once);
        let port = replicated_at(&master).to_string();
        let replica = server(&[&at_once[..], &["--replicaof", "127.0.0.1", &port]].concat());
        wait_until("the replica is in sync", || {
            replica.command(&["INFO", "replication"]).contains("master_link_status:up")
        });
        let sentinels: Vec<_> = (0..3).map(|_| Sentinel::of(&master, &settings(), password)).collect();
        for sentinel in &sentinels {
            wait_until("Sentinels know each other and the replica", || {
                sentinel.command(&["SENTINEL", "REPLICAS", "mymaster"]).contains(&replicated_at(&replica).to_string())
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

/// Servers with TLS replicate over TLS.
fn replicated_at(server: &Server) -> u16 {
    server.tls_port.unwrap_or(server.port)
}
