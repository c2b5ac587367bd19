//! Limits of all routes in one file, which is reloaded while the server runs: in memory, or in Redis for several processes.
//!
//! ```text
//! cargo run -p example-routes
//! cargo run -p example-routes -- my-routes.toml
//! REDIS_URL=redis://127.0.0.1 cargo run -p example-routes    # any number of processes, with one limit
//! curl -i -u alice:secret -X POST http://127.0.0.1:3000/login      # 5 a minute by address, and by account
//! curl -i -H 'x-user: alice' -X POST http://127.0.0.1:3000/orders  # 10 a second by user; 400 without a user
//! curl -i http://127.0.0.1:3000/orders                             # 100 a second by address, like each GET
//! curl -i http://127.0.0.1:3000/downloads/a                        # two at once by address
//! curl -i -X POST http://127.0.0.1:3000/webhooks/shop              # no limit
//! ```
//!
//! Without an argument the file is `examples/routes/routes.toml`. Edit and save the file: each process applies the new limits
//! within a second, and each client keeps its usage. If the file has an error, the server prints the error with its
//! place, and keeps the earlier limits. The variable `PORT` sets another port; `PORT=0` uses a free port.

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use futures_util::{StreamExt as _, stream};
use tower_ratelimit::key::Pepper;
use tower_ratelimit::routes::{RequestParts, RouteFile};
use tower_ratelimit::{Memory, PeerIp, Redis, RedisServer};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// The user that the login layer has found.
#[derive(Clone)]
struct User(String);

/// Stands for a layer that checks a session or a token. It is outside of the limits, which count by its user.
async fn sign_in(mut request: Request, next: Next) -> Response {
    let user = request.headers().get("x-user").and_then(|user| user.to_str().ok());
    if let Some(user) = user.map(|user| User(user.to_owned())) {
        request.extensions_mut().insert(user);
    }
    next.run(request).await
}

/// Adds the limits of the file to the routes.
fn limited(app: Router, path: PathBuf) -> Result<Router, AnyError> {
    let (mut file, report) = (RouteFile::new(path, |text| toml::from_str(text)), |event| println!("{event}"));
    let policies = file.read()?;
    let parts = RequestParts::new(PeerIp::new())
        .user(|request: &Request| request.extensions().get::<User>().map(|user| user.0.clone()));
    let Ok(url) = env::var("REDIS_URL") else {
        let limits = parts.in_memory(&policies, |limits| Memory::builder(limits).build())?;
        let app = app.layer(limits.layer());
        tokio::spawn(limits.watch(file, report));
        return Ok(app);
    };
    // In production: random bytes that all processes read from their configuration.
    let parts = parts.pepper(Pepper::new(b"a secret of at least 16 bytes")?);
    let server = RedisServer::open(&url)?;
    let limits = parts.in_redis(&policies, |limits| Redis::builder(server, "routes", limits).build())?;
    let app = app.layer(limits.layer());
    tokio::spawn(limits.watch(file, report));
    Ok(app)
}

/// Ten parts in ten seconds.
async fn download() -> Body {
    let parts = stream::iter(0..10).then(async |part| {
        tokio::time::sleep(Duration::from_secs(u64::from(part > 0))).await;
        Ok::<_, AnyError>(Bytes::from(format!("part {part}\n")))
    });
    Body::from_stream(parts)
}

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let routes = Router::new()
        .route("/login", post(async || "Welcome!\n"))
        .route("/orders", get(async || "no orders\n").post(async || "created\n"))
        .route("/downloads/{file}", get(download))
        .route("/webhooks/{source}", post(async || "thanks\n"));

    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("routes.toml");
    let path = env::args_os().nth(1).map_or_else(default, PathBuf::from);
    let limited = limited(routes, path).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1);
    });
    let app = limited.layer(from_fn(sign_in));

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
