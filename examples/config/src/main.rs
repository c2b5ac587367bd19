//! Limits from a configuration file, reloaded while the server runs: in memory, or in Redis for several processes.
//!
//! ```text
//! cargo run -p example-config
//! cargo run -p example-config -- my-limits.toml
//! REDIS_URL=redis://127.0.0.1 cargo run -p example-config    # any number of processes, with one limit
//! curl -i http://127.0.0.1:3000/
//! ```
//!
//! Without an argument the file is `limits.toml` beside its `Cargo.toml`. Edit and save the file: each process applies the new limits
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
use tower_ratelimit::{BoxLimiter, Memory, PeerIp, RateLimitLayer, Redis, RedisServer};

type AnyError = Box<dyn std::error::Error + Send + Sync>;
/// Replaces the limits of the limiter.
type Replace = Box<dyn Fn(&[Policy]) -> Result<(), AnyError> + Send>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    limits: Vec<Policy>,
}

fn read(path: &Path) -> Result<Vec<Policy>, AnyError> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let config: Config = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(config.limits)
}

/// Builds the limiter of one configuration, in Redis if `REDIS_URL` is set.
fn build(policies: &[Policy]) -> Result<(BoxLimiter<IpAddr>, Replace), AnyError> {
    // The values of `by` in the file.
    let parts = KeyParts::new().add("address", |address: &IpAddr| *address).add("all", |_: &IpAddr| ());
    if let Ok(url) = env::var("REDIS_URL") {
        let limiter = Redis::builder(RedisServer::open(&url)?, "config", parts.redis_limits(policies)?).build()?;
        let replaced = limiter.clone();
        let replace = move |policies: &[Policy]| Ok(replaced.replace(parts.redis_limits(policies)?)?);
        return Ok((BoxLimiter::new(limiter), Box::new(replace)));
    }
    let limiter = Memory::builder(parts.limits(policies)?).build()?;
    let replaced = limiter.clone();
    Ok((BoxLimiter::new(limiter), Box::new(move |policies| Ok(replaced.replace(parts.limits(policies)?)?))))
}

/// Returns the time of the last change, or `None` if there is no file: some editors delete the old file first.
fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|file| file.modified()).ok()
}

async fn reload_when_modified(path: PathBuf, mut last: Option<SystemTime>, replace: Replace) {
    let mut interval = tokio::time::interval(Duration::from_millis(500));
    loop {
        interval.tick().await;
        let now = modified(&path);
        if now.is_none() || now == last {
            continue;
        }
        last = now;
        match read(&path).and_then(|policies| replace(&policies)) {
            Ok(()) => println!("loaded the limits from {}", path.display()),
            Err(error) => println!("kept the previous limits: {error}"),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("limits.toml");
    let path = env::args_os().nth(1).map_or_else(default, PathBuf::from);
    // Before the file is read: a change during the read triggers a reload.
    let last = modified(&path);
    let (limiter, replace) = read(&path).and_then(|policies| build(&policies)).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1);
    });
    tokio::spawn(reload_when_modified(path, last, replace));

    let app = Router::new()
        .route("/", get(async || "Hello! You are within the limits.\n"))
        .layer(RateLimitLayer::new(PeerIp::new(), limiter));

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
