//! Tiers as in GitHub's API: 5000 requests per hour with a token, 60 without, in one limiter.
//!
//! ```text
//! cargo run --example github
//! curl -i http://127.0.0.1:3000/
//! curl -i -H 'Authorization: Bearer secret-of-alice' http://127.0.0.1:3000/
//! curl -i -H 'Authorization: Bearer secret-of-alice' -X POST http://127.0.0.1:3000/upgrade
//! ```
//!
//! The responses carry `X-RateLimit-Limit`, `-Remaining` and `-Reset` (in seconds since 1970). The limit is 60 for
//! your address, 5000 for Alice, and 15000 for Alice after the upgrade, which keeps her usage. The variable `PORT`
//! sets another port; `PORT=0` uses a free port.

use std::env;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::{Request, header};
use axum::routing::{get, post};
use tower_ratelimit::key::Extracted;
use tower_ratelimit::response::{Headers, ResetFormat};
use tower_ratelimit::{ExtractKey, FixedWindow, Http, Limit, Memory, PeerIp, Quota, RateLimitLayer, per_key};

/// The key. It contains the tier, by which `per_key` chooses the quota. It contains the user and not the token.
#[derive(Clone, Copy, Hash)]
enum Caller {
    Anonymous(IpAddr),
    User { id: u64, enterprise: bool },
}

/// The part of the key by which the limit counts: the same before and after an upgrade.
#[derive(Hash)]
enum Account {
    Address(IpAddr),
    User(u64),
}

impl Caller {
    fn account(&self) -> Account {
        match *self {
            Self::Anonymous(address) => Account::Address(address),
            Self::User { id, .. } => Account::User(id),
        }
    }

    fn quota(&self) -> FixedWindow {
        const ANONYMOUS: FixedWindow = FixedWindow::new(Quota::per_hour(60));
        const USER: FixedWindow = FixedWindow::new(Quota::per_hour(5_000));
        const ENTERPRISE: FixedWindow = FixedWindow::new(Quota::per_hour(15_000));
        match self {
            Self::Anonymous(_) => ANONYMOUS,
            Self::User { enterprise: false, .. } => USER,
            Self::User { enterprise: true, .. } => ENTERPRISE,
        }
    }
}

/// Stands for a database with one user.
#[derive(Default)]
struct Users {
    alice_has_upgraded: AtomicBool,
}

impl Users {
    fn user_of(&self, token: &str) -> Option<Caller> {
        let enterprise = self.alice_has_upgraded.load(Ordering::Relaxed);
        (token == "secret-of-alice").then_some(Caller::User { id: 1, enterprise })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let users = Arc::new(Users::default());
    let database = Arc::clone(&users);
    let caller = move |request: &Request<_>| -> Extracted<Caller> {
        let token = request.headers().get(header::AUTHORIZATION).and_then(|field| field.to_str().ok());
        let user = token.and_then(|token| database.user_of(token.strip_prefix("Bearer ")?));
        // An unknown token gains nothing: the request counts by its address.
        user.map_or_else(|| PeerIp::new().extract(request).map(Caller::Anonymous), Extracted::Key)
    };
    let limiter = Memory::new(Limit::new("core", per_key(Caller::quota)).keyed_by(Caller::account));
    let responder = Http::new().headers(Headers::none().legacy(ResetFormat::EpochSeconds));

    let upgrade = async move || users.alice_has_upgraded.store(true, Ordering::Relaxed);
    let app = Router::new()
        .route("/", get(async || "Keep it logically awesome.\n"))
        .layer(RateLimitLayer::new(caller, limiter).responder(responder))
        .route("/upgrade", post(upgrade));

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("cannot listen on port {port}: {error}; set PORT to a free port, or to 0"))?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
