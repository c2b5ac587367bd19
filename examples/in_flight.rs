//! Streaming responses, of which each client address may have two at once.
//!
//! ```text
//! cargo run --example in_flight
//! cargo run --example in_flight -- serve
//! curl -N http://127.0.0.1:3000/
//! ```
//!
//! Opens three streams: the third is rejected with status 429 and `Retry-After: 1`. Then the first client disconnects,
//! which frees its place for another stream. With `serve` the example only serves: run `curl` in three terminals. The
//! variable `PORT` sets another port; `PORT=0` uses a free port.

use std::convert::Infallible;
use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use futures_util::stream;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tower_ratelimit::{Gcra, InFlight, Limit, Memory, PeerIp, Quota, RateLimitLayer};

/// A response that never ends: one line every 50 ms. A write to a closed connection fails, and the server then drops
/// the body.
async fn ticks() -> Body {
    Body::from_stream(stream::unfold(0_u64, async |tick| {
        sleep(Duration::from_millis(50)).await;
        Some((Ok::<_, Infallible>(format!("tick {tick}\n")), tick + 1))
    }))
}

fn app() -> Router {
    let limiter = Memory::new((
        Limit::new("streams", InFlight::new(2)),
        Limit::new("requests", Gcra::new(Quota::per_minute(6000)).burst(100)),
    ));
    Router::new().route("/", get(ticks)).layer(RateLimitLayer::new(PeerIp::new(), limiter).release_on_body_end())
}

/// A client of the example: the status line, and the connection, which is closed when it is dropped.
async fn open(address: SocketAddr) -> Result<(String, BufReader<TcpStream>), Box<dyn Error>> {
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(b"GET / HTTP/1.1\r\nhost: example\r\n\r\n").await?;
    let mut connection = BufReader::new(socket);
    let (mut status, mut wait) = (String::new(), None);
    connection.read_line(&mut status).await?;
    loop {
        let mut line = String::new();
        if connection.read_line(&mut line).await? <= 2 {
            let status = status.trim_start_matches("HTTP/1.1 ").trim().to_owned();
            return Ok((wait.map_or(status.clone(), |wait: String| format!("{status}, {}", wait.trim())), connection));
        }
        wait = wait.or_else(|| line.starts_with("retry-after").then_some(line));
    }
}

async fn scenario(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let (status, first) = open(address).await?;
    println!("stream 1: {status}");
    let (status, _second) = open(address).await?;
    println!("stream 2: {status}");
    println!("stream 3: {}", open(address).await?.0);
    drop(first);
    println!("stream 1: the client disconnects");
    // The server notices that when it writes the next line.
    loop {
        let (status, _fourth) = open(address).await?;
        if status == "200 OK" {
            println!("stream 4: {status}");
            return Ok(());
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let serves = env::args().nth(1).as_deref() == Some("serve");
    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = TcpListener::bind(("127.0.0.1", if serves { port } else { 0 })).await?;
    let address = listener.local_addr()?;
    let server = axum::serve(listener, app().into_make_service_with_connect_info::<SocketAddr>());
    if serves {
        println!("listening on http://{address}");
        server.await?;
    } else {
        tokio::spawn(server.into_future());
        timeout(Duration::from_secs(20), scenario(address)).await??;
    }
    Ok(())
}
