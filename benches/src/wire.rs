//! An axum server on loopback under `wrk`, if there is one: all allowed, all refused.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use serde_json::json;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};

use crate::harness::{Harness, median};

pub(crate) fn run(harness: &mut Harness) {
    if !harness.wants("wire allowed") && !harness.wants("wire refused") {
        return;
    }
    if Command::new("wrk").arg("--version").output().is_err() {
        eprintln!("wire: left out, as there is no wrk (Debian: apt-get install -y wrk)");
        return;
    }
    let hello = || Router::new().route("/", get(async || "hello"));
    let ours = |algorithm| hello().layer(RateLimitLayer::new(PeerIp::new(), Memory::new(algorithm)));
    let theirs = |period, burst| {
        let config = GovernorConfigBuilder::default().period(period).burst_size(burst).finish();
        hello().layer(GovernorLayer::new(Arc::new(config.expect("a configuration"))))
    };
    let plenty = Gcra::new(Quota::per_second(1_000_000)).burst(u32::MAX.into());
    scenario(
        harness,
        "wire allowed",
        &[("ours", ours(plenty)), ("bare", hello()), ("tower_governor", theirs(Duration::from_nanos(1), u32::MAX))],
    );
    scenario(
        harness,
        "wire refused",
        &[
            ("ours", ours(Gcra::new(Quota::per_day(1)))),
            ("bare", hello()),
            ("tower_governor", theirs(Duration::from_secs(86_400), 1)),
        ],
    );
}

fn scenario(harness: &Harness, name: &str, apps: &[(&'static str, Router)]) {
    if !harness.wants(name) {
        return;
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let addresses: Vec<_> = apps.iter().map(|(_, app)| runtime.block_on(serve(app.clone()))).collect();
    let (rounds, seconds) = if harness.is_quick() { (1, "1s") } else { (5, "3s") };
    let mut rates = vec![Vec::new(); apps.len()];
    for _ in 0..rounds {
        for (address, rates) in addresses.iter().zip(&mut rates) {
            rates.push(wrk(*address, seconds));
        }
    }
    let figures: Vec<_> = apps.iter().map(|(name, _)| *name).zip(rates.into_iter().map(median)).collect();
    harness.report(name, json!({}), "per_second", &figures);
}

async fn serve(app: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

fn wrk(address: SocketAddr, seconds: &str) -> f64 {
    let url = format!("http://{address}/");
    let output = Command::new("wrk").args(["-t1", "-c32", "-d", seconds, &url]).output().expect("wrk");
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = text.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"));
    rate.and_then(|rate| rate.trim().parse().ok()).unwrap_or(f64::NAN)
}
