//! The example `restart` is killed and ended under load, and a client sees its remaining quota go on.
#![cfg(unix)]

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

#[path = "../../../tests/servers/process.rs"]
mod process;

use self::process::{Folder, Process, TIMEOUT, listening, request};

struct Server {
    process: Process,
    address: SocketAddr,
}

impl Server {
    fn start(file: &Path) -> Self {
        let process = Process::start(listening(env!("CARGO_BIN_EXE_example-restart")).arg(file));
        Self { address: process.address(), process }
    }

    /// Sends a request. Returns the remaining quota after it.
    fn remaining(&self) -> u64 {
        let answer = request(self.address, "GET", "/", "");
        let field = answer.lines().find_map(|line| line.strip_prefix("x-ratelimit-remaining: "));
        field.unwrap_or_else(|| panic!("{answer}")).parse().expect("a number")
    }

    /// SIGTERM: the server answers its requests, and saves.
    fn end(mut self) {
        self.process.signal("-TERM");
        assert!(self.process.wait().success());
    }
}

/// Waits until the file was replaced twice: the second save began after this call.
fn wait_for_save(file: &Path) {
    let identity = || fs::metadata(file).map(|data| (data.ino(), data.mtime(), data.mtime_nsec())).ok();
    for _ in 0..2 {
        let (before, start) = (identity(), Instant::now());
        while identity() == before {
            assert!(start.elapsed() < TIMEOUT, "the server does not save");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn snapshot_of_a_server_that_is_killed_keeps_the_remaining_quota_of_a_client() {
    let folder = Folder::new("restart");
    let file = folder.path().join("counts");

    let mut expected = 100;
    for orderly in [true, false, true, false] {
        let server = Server::start(&file);
        for _ in 0..5 {
            expected -= 1;
            assert_eq!(server.remaining(), expected);
        }
        if orderly {
            server.end();
        } else {
            wait_for_save(&file);
            // These charges may be lost, as no save is certain to begin after them.
            let lost = 3;
            for _ in 0..lost {
                server.remaining();
            }
            drop(server);
            let server = Server::start(&file);
            let remaining = server.remaining();
            assert!((expected - 1 - lost..expected).contains(&remaining), "{remaining} of {expected}");
            expected = remaining;
            server.end();
        }
        let mode = fs::metadata(&file).expect("the file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "the seed is a secret");
    }

    // A torn file is reported, and the server starts.
    let whole = fs::read(&file).expect("the file");
    fs::write(&file, &whole[..whole.len() / 2]).expect("written");
    assert_eq!(Server::start(&file).remaining(), 99);
}
