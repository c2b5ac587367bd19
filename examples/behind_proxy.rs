//! Behind a proxy: three requests in ten seconds for each client, whatever a client writes into the header.
//!
//! ```text
//! cargo run --example behind_proxy
//! curl -i -H 'X-Forwarded-For: 192.0.2.1' http://127.0.0.1:3000/
//! curl -i -H 'X-Forwarded-For: 203.0.113.9, 192.0.2.1' http://127.0.0.1:3000/
//! ```
//!
//! `curl` plays the proxy: the loopback is trusted, and the last address that it names is the client. Both commands are
//! the same client's: what stands left of its address, it has written itself. After three of them the answer is 429,
//! and another client (`192.0.2.2`) is still served. A client with an API key (`-H 'X-Api-Key: ...'`) is counted by
//! that, and may do more, up to what its address may in all.
//!
//! `TRUSTED` names the proxies: `TRUSTED=10.0.0.0/8,fd00::/8`. With that, the loopback is a client like any other, and
//! nothing in the header counts. `PORT` chooses another port; `PORT=0` lets the system choose a free one.

use std::env;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::get;
use tower_ratelimit::key::{ApiKey, Either, Fingerprint, TrustedProxies};
use tower_ratelimit::{ClientIp, FixedWindow, Limit, Memory, Quota, RateLimitLayer, per_key};

/// The API key, else the client's address; and the address in any case.
type Caller = (Either<Fingerprint, IpAddr>, IpAddr);

const fn in_ten_seconds(requests: u64) -> FixedWindow {
    FixedWindow::new(Quota::new(requests, Duration::from_secs(10)))
}

async fn hello(State(client): State<ClientIp>, request: Request) -> String {
    match client.client_of(&request) {
        Ok(address) => format!("Hello, {address}!\n"),
        Err(_) => "Hello, whoever you are!\n".to_owned(),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let trusted = env::var("TRUSTED").unwrap_or_else(|_| "127.0.0.0/8,::1".to_owned());
    let client = ClientIp::x_forwarded_for(TrustedProxies::parse(trusted.split(','))?);
    let key = (ApiKey::from_static("x-api-key").or(client.clone()), client.clone());

    let quota = |caller: &Caller| match caller.0 {
        Either::Left(_) => in_ten_seconds(6),
        Either::Right(_) => in_ten_seconds(3),
    };
    let limiter = Memory::new((
        Limit::new("caller", per_key(quota)).keyed_by(|caller: &Caller| caller.0),
        // Nobody checks the API keys here: who makes them up is held by this.
        Limit::new("address", in_ten_seconds(12)).keyed_by(|caller: &Caller| caller.1),
    ));
    let app = Router::new().route("/", get(hello)).layer(RateLimitLayer::new(key, limiter)).with_state(client);

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("can't listen on port {port} ({error}): choose another one with PORT, or PORT=0"))?;
    println!("listening on http://{}", listener.local_addr()?);
    // The connect info is where the walk begins: at the socket's other end.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
