//! Limits from a configuration file, reloaded while the server runs.
//!
//! ```text
//! cargo run --example config
//! cargo run --example config -- my-limits.toml
//! curl -i http://127.0.0.1:3000/
//! ```
//!
//! Without an argument the file is `examples/config.toml`. Edit and save the file: the server applies the new limits
//! within a second, and each client keeps its usage. If the file has an error, the server prints the error with its
//! place, and keeps the previous limits. The variable `PORT` sets another port; `PORT=0` uses a free port.

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
    // The values of `by` in the file.
    let parts = KeyParts::new().add("address", |address: &IpAddr| *address).add("all", |_: &IpAddr| ());
    Ok(parts.limits(&config.limits)?)
}

/// Returns the time of the last change, or `None` if there is no file: some editors delete the old file first.
fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|file| file.modified()).ok()
}

async fn reload_when_modified(path: PathBuf, mut last: Option<SystemTime>, limiter: Memory<Limits>) {
    let mut interval = tokio::time::interval(Duration::from_millis(500));
    loop {
        interval.tick().await;
        let now = modified(&path);
        if now.is_none() || now == last {
            continue;
        }
        last = now;
        match read(&path).and_then(|limits| Ok(limiter.replace(limits)?)) {
            Ok(()) => println!("loaded the limits from {}", path.display()),
            Err(error) => println!("kept the previous limits: {error}"),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/config.toml");
    let path = env::args_os().nth(1).map_or_else(default, PathBuf::from);
    // Before the file is read: a change during the read triggers a reload.
    let last = modified(&path);
    let limits = read(&path).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1);
    });
    let limiter = Memory::builder(limits).build()?;
    tokio::spawn(reload_when_modified(path, last, limiter.clone()));

    let app = Router::new()
        .route("/", get(async || "Hello! You are within the limits.\n"))
        .layer(RateLimitLayer::new(PeerIp::new(), limiter));

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("cannot listen on port {port}: {error}; set PORT to a free port, or to 0"))?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
