//! The example `restart` is killed and ended under load, and a client sees its remaining quota go on.
#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Only a hanging server exceeds this time.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(file: &Path) -> Self {
        let test = std::env::current_exe().expect("this test's own path");
        let profile = test.parent().and_then(Path::parent).expect("`deps` in the profile's folder");
        let mut command = Command::new(profile.join("examples").join("restart"));
        command.arg(file).env("PORT", "0").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the example");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let address = line.trim_end().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line}"));
        Self { child, address: address.parse().expect("an address") }
    }

    /// Sends a request. Returns the remaining quota after it.
    fn remaining(&self) -> u64 {
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        write!(stream, "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let field = answer.lines().find_map(|line| line.strip_prefix("x-ratelimit-remaining: "));
        field.unwrap_or_else(|| panic!("{answer}")).parse().expect("a number")
    }

    /// SIGKILL.
    fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("the end of the process");
    }

    /// SIGTERM: the server answers its requests, and saves.
    fn end(mut self) {
        let ended = Command::new("kill").arg(self.child.id().to_string()).status().expect("kill");
        assert!(ended.success());
        assert!(self.child.wait().expect("the end of the process").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
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
    let folder = std::env::temp_dir().join(format!("tower-ratelimit-restart-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let file: PathBuf = folder.join("counts");

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
            server.kill();
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
    fs::remove_dir_all(folder).expect("removed");
}
