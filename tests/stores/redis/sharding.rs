//! A proxy that distributes keys over two servers by the first key of a call, as twemproxy does.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use tower_ratelimit::{FixedWindow, Quota, RedisServer};

use crate::helpers::redis_limiter;
use crate::server::Server;

/// Starts the proxy. Returns its port.
fn start_proxy(servers: &[Server; 2]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (port, ports) =
        (listener.local_addr().expect("an address").port(), servers.each_ref().map(|server| server.port));
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || serve(client, ports));
        }
    });
    port
}

/// Forwards each command, and its reply, until a connection ends.
fn serve(mut client: TcpStream, ports: [u16; 2]) -> Option<()> {
    let backends = ports.map(|port| TcpStream::connect(("127.0.0.1", port)).expect("a server"));
    let mut replies = backends.each_ref().map(|backend| BufReader::new(backend.try_clone().expect("a socket")));
    let mut commands = BufReader::new(client.try_clone().ok()?);
    loop {
        let mut command = Vec::new();
        let count = read_line(&mut commands, &mut command)?;
        let mut words = Vec::new();
        for _ in 0..count {
            let length = usize::try_from(read_line(&mut commands, &mut command)?).ok()?;
            words.push(command.len()..command.len() + length);
            read_bytes(&mut commands, &mut command, length + 2)?;
        }
        // EVALSHA, the hash, the number of keys, and the first key.
        let key = words.get(3).map_or(&b""[..], |key| &command[key.clone()]);
        let shard = key.iter().map(|byte| usize::from(*byte)).sum::<usize>() % 2;
        (&backends[shard]).write_all(&command).ok()?;
        let mut reply = Vec::new();
        let length = read_line(&mut replies[shard], &mut reply)?;
        if let (b'$', Ok(length)) = (reply[0], usize::try_from(length)) {
            read_bytes(&mut replies[shard], &mut reply, length + 2)?;
        }
        client.write_all(&reply).ok()?;
    }
}

/// Reads a line, and returns the number in it; 0 if there is none.
fn read_line(from: &mut BufReader<TcpStream>, read: &mut Vec<u8>) -> Option<i64> {
    let start = read.len();
    (from.read_until(b'\n', read).ok()? > 0).then_some(())?;
    Some(String::from_utf8_lossy(&read[start + 1..]).trim().parse().unwrap_or(0))
}

fn read_bytes(from: &mut BufReader<TcpStream>, read: &mut Vec<u8>, count: usize) -> Option<()> {
    let start = read.len();
    read.resize(start + count, 0);
    from.read_exact(&mut read[start..]).ok()
}

/// Each check misses the proxy once in 128 times.
#[tokio::test]
async fn health_check_finds_a_proxy_that_distributes_keys() {
    let servers = [Server::start(), Server::start()];
    let address = format!("redis://127.0.0.1:{}", start_proxy(&servers));
    let limiter = redis_limiter::<u64>(
        RedisServer::open(&address).expect("an address"),
        "api",
        FixedWindow::new(Quota::per_day(1_000)),
    );
    let mut found = 0;
    for _ in 0..10 {
        if let Err(error) = limiter.health_check().await {
            assert!(error.to_string().contains("a proxy distributes keys"), "{error:?}");
            found += 1;
        }
    }
    assert!(found >= 5, "{found} of 10 checks");
}
