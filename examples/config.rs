//! Limits from a file, which are changed while the server runs.
//!
//! ```text
//! cargo run --example config
//! cargo run --example config -- my-limits.toml
//! curl -i http://127.0.0.1:3000/
//! ```
//!
//! The file is `examples/config.toml` unless you name another one. Edit it and save: within a second the new limits
//! hold, and what clients have used stays used. A mistake is printed with its place, and the limits stay as they were.
//! `PORT` chooses another port; `PORT=0` lets the system choose a free one.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{env, fs};

use axum::Router;
use axum::routing::get;
use serde::Deserialize;
use tower_ratelimit::config::{KeyParts, Policy};
use tower_ratelimit::{DynLimit, Memory, PeerIp, RateLimitLayer};

type AnyError = Box<dyn std::error::Error + Send + Sync>;
type Limits = Vec<DynLimit<IpAddr>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    limits: Vec<Policy>,
}

fn read(path: &Path) -> Result<Limits, AnyError> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let config: Config = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    // What the file can count by.
    let parts = KeyParts::new().add("address", |address: &IpAddr| *address).add("everybody", |_: &IpAddr| ());
    Ok(parts.limits(&config.limits)?)
}

/// `None` while it is not there: editors that write a new file take the old one away first.
fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|file| file.modified()).ok()
}

async fn reload_when_modified(path: PathBuf, mut seen: Option<SystemTime>, limiter: Memory<Limits>) {
    let mut often = tokio::time::interval(Duration::from_millis(500));
    loop {
        often.tick().await;
        let now = modified(&path);
        if now.is_none() || now == seen {
            continue;
        }
        seen = now;
        match read(&path).and_then(|limits| Ok(limiter.replace(limits)?)) {
            Ok(()) => println!("the limits are those of {}", path.display()),
            Err(error) => println!("the limits stay as they were: {error}"),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/config.toml");
    let path = env::args_os().nth(1).map_or_else(default, PathBuf::from);
    // Looked at before it is read: what is saved meanwhile is read again.
    let seen = modified(&path);
    let limits = read(&path).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1);
    });
    let limiter = Memory::builder(limits).build()?;
    tokio::spawn(reload_when_modified(path, seen, limiter.clone()));

    let app = Router::new()
        .route("/", get(async || "Hello! You are within the limits.\n"))
        .layer(RateLimitLayer::new(PeerIp::new(), limiter));

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("can't listen on port {port} ({error}): choose another one with PORT, or PORT=0"))?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
