//! Child processes of the tests: this test binary, which runs one ignored test with a task.

use std::process::{Child as Process, Command};

use tower_ratelimit::RedisServer;

use crate::server::send_signal;

/// The environment variables with the task of a child process and its Redis address, or those of a cluster.
const TASK: &str = "TOWER_RATELIMIT_TEST_TASK";
const ADDRESS: &str = "TOWER_RATELIMIT_TEST_REDIS";

/// Returns the command that runs this ignored test of this binary.
pub(crate) fn command(test: &str, task: &str, address: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads", "1"]);
    command.env(TASK, task).env(ADDRESS, address);
    command
}

/// Returns the task and the Redis of this process. Returns `None` if no test has started it.
pub(crate) fn child_task() -> Option<(String, RedisServer)> {
    let task = std::env::var(TASK).ok()?;
    let addresses = std::env::var(ADDRESS).ok()?;
    // Several addresses are those of a cluster.
    let server = if addresses.contains(',') {
        RedisServer::cluster(addresses.split(',').map(str::to_owned).collect::<Vec<_>>())
    } else {
        RedisServer::open(&addresses)
    };
    Some((task, server.expect("an address")))
}

/// A running child process, killed when dropped.
pub(crate) struct Child(pub(crate) Process);

impl Child {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.spawn().expect("a process"))
    }

    pub(crate) fn signal(&self, signal: &str) {
        send_signal(&self.0, signal);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
