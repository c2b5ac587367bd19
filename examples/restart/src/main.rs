//! Counts that survive a deploy: the server saves them every second and at its end, and restores them at its start.
//!
//! ```sh
//! cargo run -p example-restart -- counts.bin
//! curl -i http://localhost:3000/     # X-RateLimit-Remaining: 99
//! kill %1; cargo run -p example-restart -- counts.bin
//! curl -i http://localhost:3000/     # X-RateLimit-Remaining: 98
//! ```
//!
//! The file is a secret, because it contains the seed of the hashes: only the user of the server may read it. While two
//! processes overlap in a deploy, each counts by itself, from the file that it has read.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::time::{MissedTickBehavior, interval};
use tower_ratelimit::response::{Headers, ResetFormat};
use tower_ratelimit::{FixedWindow, Http, Memory, PeerIp, Quota, RateLimitLayer};

type Limiter = Memory<IpAddr, FixedWindow>;

/// Restores the counts. A damaged file is reported, and the server starts without counts.
fn restored(path: &Path) -> Result<Limiter, Box<dyn Error>> {
    let builder = Memory::builder(FixedWindow::new(Quota::per_hour(100)));
    let builder = match File::open(path) {
        Ok(file) => builder.restore_or_empty(file, |error| eprintln!("{error}")),
        Err(error) if error.kind() == ErrorKind::NotFound => builder,
        Err(error) => return Err(error.into()),
    };
    Ok(builder.build()?)
}

/// Saves the counts in a new file, and then gives it the name of the previous one: a crash leaves one of the two.
fn save(limiter: &Limiter, path: &Path) -> Result<(), Box<dyn Error>> {
    // Two saves would write to one file: the last one can meet one of the thread below.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let new = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(&new)?;
    limiter.save(BufWriter::new(&file))?;
    file.sync_all()?;
    Ok(fs::rename(new, path)?)
}

async fn save_each(period: Duration, limiter: Limiter, path: PathBuf) {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (limiter, path) = (limiter.clone(), path.clone());
        let saved = tokio::task::spawn_blocking(move || save(&limiter, &path).map_err(|error| error.to_string()));
        if let Ok(Err(error)) = saved.await {
            eprintln!("{error}");
        }
    }
}

#[cfg(unix)]
async fn end() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! { _ = terminated.recv() => {}, _ = interrupted.recv() => {} }
    Ok(())
}

#[cfg(not(unix))]
async fn end() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "counts.bin".to_owned()));
    let limiter = restored(&path)?;
    let layer = RateLimitLayer::new(PeerIp::new(), limiter.clone())
        .responder(Http::new().headers(Headers::new().legacy(ResetFormat::DeltaSeconds)));
    let app = Router::new().route("/", get(async || "hello")).layer(layer);
    let port = std::env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);

    let saving = tokio::spawn(save_each(Duration::from_secs(1), limiter.clone(), path.clone()));
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(async { end().await.unwrap_or_else(|error| eprintln!("{error}")) })
        .await?;
    // After the last request, so that nothing is lost.
    saving.abort();
    save(&limiter, &path)
}
