//! Downloads of two users with two streams each: a megabyte a second for each user, shared by the streams of the user.
//! Uploads have the same rate, and their own bucket.
//!
//! ```text
//! cargo run --example bandwidth
//! cargo run --example bandwidth -- serve
//! curl -o /dev/null http://127.0.0.1:3000/alice & curl -o /dev/null http://127.0.0.1:3000/alice
//! curl -T LARGE-FILE http://127.0.0.1:3000/alice
//! ```
//!
//! Downloads for three seconds and prints the rate of each stream: half a megabyte a second. With `serve` the example only
//! serves: curl shows the rates. The variable `PORT` sets another port; `PORT=0` uses a free port. A real service takes the
//! user from its session, not from the path.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::routing::get;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout_at};
use tower_ratelimit::pacing::PacingLayer;
use tower_ratelimit::{Memory, Quota, TokenBucket};

const SECONDS: u64 = 3;

fn app() -> Router {
    let user = |request: &Request| Some(request.uri().path().to_owned());
    let rate = TokenBucket::new(Quota::per_second(1_000_000)).burst(100_000);
    let route = get(async || vec![0_u8; 50_000_000]).put(count);
    let app = Router::new().route("/{user}", route).layer(PacingLayer::uploads(user, Memory::new(rate)));
    app.layer(PacingLayer::downloads(user, Memory::new(rate)))
}

/// Reads an upload. Returns the number of bytes.
async fn count(mut body: Body) -> Result<String, String> {
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| error.to_string())?;
        received += frame.data_ref().map_or(0, Bytes::len);
    }
    Ok(received.to_string())
}

/// Downloads for a while. Returns the number of bytes.
async fn download(address: SocketAddr, user: &str, until: Instant) -> Result<usize, std::io::Error> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET /{user} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await?;
    let (mut buffer, mut received) = (vec![0; 1 << 16], 0);
    while let Ok(read) = timeout_at(until, stream.read(&mut buffer)).await {
        received += read?;
    }
    Ok(received)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let port = env::var("PORT").unwrap_or_else(|_| "3000".to_owned()).parse()?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move { axum::serve(listener, app()).await });
    if env::args().nth(1).as_deref() == Some("serve") {
        println!("curl -o /dev/null http://{address}/alice");
        server.await??;
        return Ok(());
    }
    let until = Instant::now() + Duration::from_secs(SECONDS);
    let streams = ["alice", "alice", "bob", "bob"].map(|user| (user, tokio::spawn(download(address, user, until))));
    for (user, stream) in streams {
        println!("{user}: {} kB/s", stream.await?? / 1000 / usize::try_from(SECONDS)?);
    }
    Ok(())
}
