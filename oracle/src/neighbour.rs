//! Another client that fills a server's memory, and notices of evicted keys: the loss of a key's data.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::audit::KEYS;
use crate::model::{LIMITS, Loss, SECOND};
use crate::server::{Server, answer, ask};
use crate::worker::now;

/// Losses with the limit and the key, or without if all data may be lost.
pub(crate) type Losses = Arc<Mutex<Vec<(Option<(String, String)>, Loss)>>>;

/// Ends after its server.
pub(crate) struct Neighbour {
    is_running: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

fn command(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

impl Neighbour {
    pub(crate) fn start(server: &Server, losses: &Losses) -> Self {
        let most = server.number_of("used_memory:") + 6_000_000;
        server.command(&["CONFIG", "SET", "maxmemory", &most.to_string()]);
        let (is_running, address) = (Arc::new(AtomicBool::new(true)), server.socket());
        let (fills, losses) = (Arc::clone(&is_running), Arc::clone(losses));
        let notices = ask(address, &[command(&["SUBSCRIBE", "__keyevent@0__:evicted"])]).expect("a connection");
        notices.set_read_timeout(None).expect("no time-out");
        let watching = std::thread::spawn(move || {
            // Keys are bytes.
            for line in BufReader::new(notices).split(b'\n').map_while(Result::ok) {
                if let Some(of) = evicted(String::from_utf8_lossy(&line).trim_end()) {
                    // The notice may come late.
                    let (begin, end) = (now() - SECOND / 2, now());
                    losses.lock().expect("no panic").push((Some(of), Loss { begin, end }));
                }
            }
        });
        let filling = std::thread::spawn(move || {
            let mut number = 0;
            while fills.load(Ordering::Relaxed) {
                fill(address, number);
                number += 100;
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Self { is_running, threads: vec![watching, filling] }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.is_running.store(false, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Returns the limit and the key of a key in Redis, as in `ratelimit:bucket:default:bucket2:a`.
fn evicted(line: &str) -> Option<(String, String)> {
    let parts: Vec<_> = line.split(':').collect();
    let limit = parts.iter().find(|part| LIMITS.iter().any(|limit| limit.name == **part))?;
    let key = KEYS.into_iter().find(|key| parts.last() == Some(key))?;
    Some(((*limit).to_owned(), key.to_owned()))
}

/// Sets a hundred keys. Fails if the server is full or closes the connection.
fn fill(address: SocketAddr, number: u32) {
    let value = "x".repeat(1_000);
    let key = |index| format!("filler:{}", number + index);
    let sets = (0..100).map(|index| command(&["SET", &key(index), &value, "EX", "600"]));
    let _ = ask(address, &sets.chain([command(&["QUIT"])]).collect::<Vec<_>>()).map(answer);
}
