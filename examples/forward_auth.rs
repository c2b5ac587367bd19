//! Limits requests for a proxy: the endpoint of forward authentication in nginx, Caddy and Traefik.
//!
//! ```text
//! cargo run --example forward_auth
//! curl -i -H 'X-Forwarded-For: 192.0.2.1' http://127.0.0.1:3000/auth
//! ```
//!
//! Here `curl` acts as the proxy, which sends a request to `/auth` before it forwards each request of a client. Three
//! requests in ten seconds get status 200, the fourth one 429 with `Retry-After` and a body. Caddy and Traefik send this
//! response to the client. nginx accepts only 401 and 403 from an authentication server, and answers its client with
//! 500 after any other status. So `/auth/nginx` returns 403 instead of 429, and nginx makes it a 429 again.
//!
//! The guide's page on gateways contains the configuration of the proxies. The variable `TRUSTED` sets the networks of
//! the proxies, `TRUSTED=10.0.0.0/8,fd00::/8`; requests from elsewhere are limited by the address of the connection.
//! The variable `PORT` sets another port; `PORT=0` uses a free port.

use std::env;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::any;
use tower_ratelimit::key::TrustedProxies;
use tower_ratelimit::{ClientIp, FixedWindow, Memory, Quota, RateLimitLayer};

/// Returns 403 instead of 429, with the same fields.
async fn forbidden_for_nginx(mut response: Response) -> Response {
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        *response.status_mut() = StatusCode::FORBIDDEN;
    }
    response
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let trusted = env::var("TRUSTED").unwrap_or_else(|_| "127.0.0.0/8,::1".to_owned());
    let client = ClientIp::x_forwarded_for(TrustedProxies::parse(trusted.split(','))?);
    let limiter = Memory::new(FixedWindow::new(Quota::new(3, Duration::from_secs(10))));

    // Both routes share the limit. A proxy sends the method of its client's request, or GET.
    let layer = RateLimitLayer::new(client, limiter);
    let endpoint = any(StatusCode::OK).layer(layer);
    let for_nginx = endpoint.clone().layer(map_response(forbidden_for_nginx));
    let app = Router::new().route("/auth", endpoint).route("/auth/nginx", for_nginx);
    let port: u16 = env::var("PORT").map_or(Ok(3000), |port| port.parse()).map_err(|_| "PORT must be 0 to 65535")?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("cannot listen on port {port}: {error}; set PORT to a free port, or to 0"))?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
