use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tower_ratelimit::Timestamp;
use tower_ratelimit::config::Policy;
use tower_ratelimit_simulate::Traffic;

/// Parses a policy from the fields besides its name and sub-key.
pub(crate) fn policy(fields: &str) -> Policy {
    toml::from_str(&format!("name = \"a\"\nby = \"user\"\n{fields}")).expect("a policy")
}

/// One policy of each algorithm and form.
pub(crate) const POLICIES: [&str; 9] = [
    "algorithm = 'gcra'\nquota = '5 per 10s'\nburst = 8",
    "algorithm = 'token-bucket'\nquota = '7 per 10s'",
    "algorithm = 'leaky-bucket'\nquota = '3/s'\nburst = 1",
    "algorithm = 'leaky-queue'\nquota = '5 per 10s'\nmax_waiting = 3",
    "algorithm = 'fixed-window'\nquota = '6 per 10s'",
    "algorithm = 'fixed-window'\nquota = '6 per 10s'\naligned_to_clock = true",
    "algorithm = 'sliding-window'\nquota = '6 per 10s'\nblocks = 5",
    "algorithm = 'sliding-window'\nquota = '6 per 10s'\nblocks = 2\nweighted = true",
    "algorithm = 'sliding-log'\nquota = '6 per 10s'",
];

/// A time in milliseconds, on the 14 November 2023.
pub(crate) fn millis(millis: u64) -> Timestamp {
    Timestamp::from_micros((1_700_000_000_000 + millis) * 1_000)
}

/// Traffic with the column `user`.
pub(crate) fn traffic<'a>(arrivals: impl IntoIterator<Item = (u64, &'a str, u64)>) -> Traffic {
    let mut traffic = Traffic::new(["user"]);
    for (time, user, cost) in arrivals {
        traffic.push(millis(time), &[user], cost);
    }
    traffic
}

/// Sends one HTTP request, and returns the status and the body of the response, which must have a length.
pub(crate) fn exchange(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    // Only a hanging server exceeds this time-out.
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n");
    // A server that rejects the body may close the connection before it read the body.
    let _ = write!(stream, "{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}");
    let mut response = BufReader::new(stream);
    let mut line = String::new();
    response.read_line(&mut line).expect("a status line");
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{line}"));
    let mut length = 0;
    while line.trim_end() != "" {
        line.clear();
        response.read_line(&mut line).expect("a header line");
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    response.read_exact(&mut body).expect("the body");
    (status, String::from_utf8(body).expect("text"))
}
