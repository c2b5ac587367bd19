//! Child processes of the tests: this test binary, which runs one ignored test with a task.

use std::process::Command;

use tower_ratelimit::RedisServer;

use crate::process::ignored_test;

/// The environment variables with the task of a child process and its Redis address, or those of a cluster.
const TASK: &str = "TOWER_RATELIMIT_TEST_TASK";
const ADDRESS: &str = "TOWER_RATELIMIT_TEST_REDIS";

/// Returns the command that runs this ignored test of this binary.
pub(crate) fn command(test: &str, task: &str, address: &str) -> Command {
    let mut command = ignored_test(test);
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
