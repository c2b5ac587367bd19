//! A master, its replica and three Sentinels on the loopback interface.
#![allow(dead_code, reason = "each binary uses a part")]

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use tower_ratelimit::RedisServer;

use crate::process::{Folder, Process, free_port, wait_until};
use crate::server::{Server, answer, ask, program};

pub(crate) struct Sentinel {
    _process: Process,
    _folder: Folder,
    port: u16,
    password: Option<String>,
}

impl Sentinel {
    /// Starts a Sentinel with additional settings and the tests' password, if any.
    fn of(master: &Server, settings: &str, password: Option<&str>) -> Self {
        let (folder, port) = (Folder::new("sentinel"), free_port());
        let settings = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor mymaster 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds mymaster 60000\n{settings}",
            folder.path().display(),
            master.port_of_servers()
        );
        let file = folder.file("sentinel.conf");
        std::fs::write(&file, settings).expect("the Sentinel's settings");
        let mut command = Command::new(program());
        command.args([&file, "--sentinel"]).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process::start(&mut command);
        let sentinel = Self { _process: process, _folder: folder, port, password: password.map(str::to_owned) };
        wait_until("a Sentinel is up", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        // Otherwise a Sentinel does nothing for 30 s if the machine stalls for two seconds (its TILT mode), and then finds
        // that the replica was without its master for too long. Before Redis 7 this is an unknown command.
        sentinel.command(&["SENTINEL", "DEBUG", "TILT-TRIGGER", "60000"]);
        sentinel
    }

    pub(crate) fn command(&self, parts: &[&str]) -> String {
        let password = self.password.as_ref().map(|password| vec![b"AUTH".to_vec(), password.as_bytes().to_vec()]);
        let command = parts.iter().map(|part| part.as_bytes().to_vec()).collect();
        let commands: Vec<_> = password.into_iter().chain([command]).collect();
        let stream = ask(SocketAddr::from(([127, 0, 0, 1], self.port)), &commands).expect("a connection");
        // Sentinel has no QUIT.
        stream.shutdown(Shutdown::Write).expect("shut");
        answer(stream)
    }
}

/// A master, its replica and three Sentinels.
pub(crate) struct SentinelDeployment {
    pub(crate) sentinels: Vec<Sentinel>,
    pub(crate) master: Server,
    pub(crate) replica: Server,
}

impl SentinelDeployment {
    /// Starts the deployment. No Sentinel takes the master for failed within a minute: a stall of the machine is no fault.
    /// Tests call `fail_over`.
    pub(crate) fn start() -> Self {
        Self::with(Server::with, String::new, None)
    }

    /// Starts the deployment. The replica is elected half a second after the master's last answer.
    pub(crate) fn with_elections() -> Self {
        let settings = "sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 4000\n";
        Self::with(Server::with, || settings.to_owned(), None)
    }

    /// Starts the deployment with these servers, settings and password.
    pub(crate) fn with(
        server: impl Fn(&[&str]) -> Server,
        settings: impl Fn() -> String,
        password: Option<&str>,
    ) -> Self {
        let at_once = ["--repl-diskless-sync-delay", "0"];
        let master = server(&at_once);
        let port = master.port_of_servers().to_string();
        let replica = server(&[&at_once[..], &["--replicaof", "127.0.0.1", &port]].concat());
        wait_until("the replica is in sync", || replica.is_replica_in_sync());
        let sentinels: Vec<_> = (0..3).map(|_| Sentinel::of(&master, &settings(), password)).collect();
        let deployment = Self { sentinels, master, replica };
        deployment.wait_for_sentinels();
        deployment
    }

    /// Waits until a majority can elect the replica.
    pub(crate) fn wait_for_sentinels(&self) {
        let port = self.replica.port_of_servers().to_string();
        let is_up = |reply: &str| reply.contains(&port) && reply.contains("\r\nflags\r\n$5\r\nslave\r\n");
        for sentinel in &self.sentinels {
            wait_until("Sentinels know each other and the replica", || {
                is_up(&sentinel.command(&["SENTINEL", "REPLICAS", "mymaster"]))
                    && sentinel.command(&["SENTINEL", "SENTINELS", "mymaster"]).matches("runid").count() == 2
            });
        }
    }

    /// Makes the replica the master, without an election.
    pub(crate) fn fail_over(&self) {
        fail_over(&self.sentinels[0], &self.replica);
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.sentinels.iter().map(|sentinel| format!("redis://127.0.0.1:{}", sentinel.port)).collect()
    }

    pub(crate) fn open(&self) -> RedisServer {
        RedisServer::sentinel(self.addresses(), "mymaster").expect("addresses")
    }
}

/// Makes the replica the master, without an election.
pub(crate) fn fail_over(sentinel: &Sentinel, replica: &Server) {
    // The replica's last reply to the Sentinel may be too old for a moment.
    wait_until("the Sentinel begins the fail-over", || {
        sentinel.command(&["SENTINEL", "FAILOVER", "mymaster"]).starts_with("+OK")
    });
    wait_until("the replica has taken over", || replica.is_master());
}
