//! A rate limit service for Envoy: the method `ShouldRateLimit` of `envoy.service.ratelimit.v3.RateLimitService`.
//!
//! ```text
//! cargo run -p envoy_rls
//! cargo run -p envoy_rls -- my-limits.toml
//! REDIS_URL=redis://127.0.0.1 cargo run -p envoy_rls    # any number of processes, with one limit
//! ```
//!
//! Without an argument the limits are those of `examples/envoy_rls/limits.toml`. Envoy sends the descriptors of each
//! request. One decision charges all limits that apply to them, or none. The answer tells Envoy the exact time after which
//! a denied request succeeds, and the fields of the response: `RateLimit`, `RateLimit-Policy` and `Retry-After`.
//!
//! The guide's page on gateways contains the configuration of Envoy. The variable `PORT` sets another port; `PORT=0` uses
//! a free port.

mod limits;
mod service;

use std::env;
use std::path::{Path, PathBuf};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::limits::{AnyError, Limits};
use crate::service::Service;

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("limits.toml");
    let path = env::args_os().nth(1).map_or_else(default, PathBuf::from);
    let limits = Limits::read(&path).unwrap_or_else(|error| {
        eprintln!("{}: {error}", path.display());
        std::process::exit(1);
    });
    let service = Service::new(limits, env::var("REDIS_URL").ok().as_deref())?;

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("cannot listen on port {port}: {error}; set PORT to a free port, or to 0"))?;
    println!("listening on http://{}", listener.local_addr()?);
    let service = RateLimitServiceServer::new(service);
    Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)).await?;
    Ok(())
}
