//! A server behind a proxy that allows three requests in ten seconds for each client, and resists forged header fields.
//!
//! ```text
//! cargo run --example behind_proxy
//! curl -i -H 'X-Forwarded-For: 192.0.2.1' http://127.0.0.1:3000/
//! curl -i -H 'X-Forwarded-For: 203.0.113.9, 192.0.2.1' http://127.0.0.1:3000/
//! ```
//!
//! Here `curl` acts as the proxy: the loopback network is trusted, and the last address in the header field is the
//! client. Both commands are requests of the client 192.0.2.1, because a client can forge the addresses left of its
//! own. The fourth request gets status 429; requests of 192.0.2.2 are still allowed. A client with an API key (`-H
//! 'X-Api-Key: ...'`) has a higher limit, up to the limit of its address.
//!
//! The variable `TRUSTED` sets the proxies: `TRUSTED=10.0.0.0/8,fd00::/8`. The loopback address is then a client, and
//! its header fields do not count. The variable `PORT` sets another port; `PORT=0` uses a free port.

use std::env;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::get;
use tower_ratelimit::key::{Credential, Either, Fingerprint, TrustedProxies};
use tower_ratelimit::{ClientIp, FixedWindow, Limit, Memory, Quota, RateLimitLayer, per_key};

/// The API key, or the client's address if there is no API key; and the client's address.
type Caller = (Either<Fingerprint, IpAddr>, IpAddr);

const fn per_ten_seconds(requests: u64) -> FixedWindow {
    FixedWindow::new(Quota::new(requests, Duration::from_secs(10)))
}

async fn hello(State(client): State<ClientIp>, request: Request) -> String {
    match client.client_of(&request) {
        Ok(address) => format!("Hello, {address}!\n"),
        Err(_) => "Hello, unknown address!\n".to_owned(),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let trusted = env::var("TRUSTED").unwrap_or_else(|_| "127.0.0.0/8,::1".to_owned());
    let client = ClientIp::x_forwarded_for(TrustedProxies::parse(trusted.split(','))?);
    let key = (Credential::api_key("x-api-key").or(client.clone()), client.clone());

    let quota = |caller: &Caller| match caller.0 {
        Either::Left(_) => per_ten_seconds(6),
        Either::Right(_) => per_ten_seconds(3),
    };
    let limiter = Memory::new((
        Limit::new("caller", per_key(quota)).keyed_by(|caller: &Caller| caller.0),
        // This example does not check API keys: the limit per address also limits clients that invent API keys.
        Limit::new("address", per_ten_seconds(12)).keyed_by(|caller: &Caller| caller.1),
    ));
    let app = Router::new().route("/", get(hello)).layer(RateLimitLayer::new(key, limiter)).with_state(client);

    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("cannot listen on port {port}: {error}; set PORT to a free port, or to 0"))?;
    println!("listening on http://{}", listener.local_addr()?);
    // `ClientIp` reads the address of the socket's other end from the connect info.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
