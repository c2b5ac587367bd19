//! Requests over sockets to axum and to hyper.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, service_fn};
use tower_ratelimit::key::TrustedProxies;
use tower_ratelimit::{ClientIp, Gcra, ManualClock, Memory, Quota, RateLimitLayer};

use super::support::networks;
use crate::tasks::spawn;

/// Creates a layer that allows one request for each client; the clock stands still.
fn layer(trusted: TrustedProxies) -> RateLimitLayer<ClientIp, Memory<IpAddr, Gcra>> {
    let limiter = Memory::builder(Gcra::new(Quota::per_minute(1))).clock(ManualClock::new()).build().expect("settings");
    RateLimitLayer::new(ClientIp::x_forwarded_for(trusted), limiter)
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// Sends one request with these lines of `X-Forwarded-For` on a new connection. Returns the status.
async fn status(server: SocketAddr, lines: &[&str]) -> u16 {
    let mut stream = TcpStream::connect(server).await.expect("it listens");
    let fields = lines.iter().fold(String::new(), |fields, line| fields + "X-Forwarded-For: " + line + "\r\n");
    let request = format!("GET / HTTP/1.1\r\nHost: {server}\r\n{fields}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}

/// The loopback network is a proxy: clients are distinguished, and do not choose their key.
async fn assert_clients_are_distinguished(server: SocketAddr) {
    assert_eq!(status(server, &["192.0.2.1"]).await, 200);
    assert_eq!(status(server, &["192.0.2.1"]).await, 429);
    assert_eq!(status(server, &["203.0.113.9, 192.0.2.1"]).await, 429, "the address that the proxy appended");
    assert_eq!(status(server, &["203.0.113.8", "192.0.2.1"]).await, 429, "the last line is the proxy's");
    assert_eq!(status(server, &["192.0.2.2"]).await, 200, "another client");
    assert_eq!(status(server, &["2001:db8::1"]).await, 200);
    assert_eq!(status(server, &["\"[2001:db8::ffff]:80\""]).await, 429, "of the same /64");
    assert_eq!(status(server, &[]).await, 200, "the proxy itself");
    assert_eq!(status(server, &["203.0.113.7, unknown"]).await, 429, "an unknown client counts as the proxy");
}

/// The loopback network is a client: no field gives it a further request.
async fn assert_fields_are_ignored(server: SocketAddr) {
    assert_eq!(status(server, &["192.0.2.1"]).await, 200);
    for lines in [&["192.0.2.2"][..], &[], &["127.0.0.1"], &["10.0.0.1"], &["x"], &["192.0.2.3", "10.0.0.1"]] {
        assert_eq!(status(server, lines).await, 429, "{lines:?}");
    }
}

async fn with_axum(trusted: TrustedProxies) -> SocketAddr {
    let app = Router::new().route("/", get(async || "hello")).layer(layer(trusted));
    let (listener, address) = listener().await;
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    spawn(async { axum::serve(listener, service).await });
    address
}

#[tokio::test]
async fn axum_behind_a_proxy_limits_each_client() {
    assert_clients_are_distinguished(with_axum(networks(&["127.0.0.0/8"])).await).await;
}

#[tokio::test]
async fn axum_without_a_proxy_ignores_fields() {
    assert_fields_are_ignored(with_axum(networks(&["10.0.0.0/8"])).await).await;
}

/// A server without connect info is misconfigured.
#[tokio::test]
async fn axum_without_connect_info_is_a_server_error() {
    let app: Router = Router::new().route("/", get(async || "hello")).layer(layer(TrustedProxies::hops(1)));
    let (listener, address) = listener().await;
    spawn(async { axum::serve(listener, app).await });
    assert_eq!(status(address, &["192.0.2.1"]).await, 500);
}

async fn with_hyper(trusted: TrustedProxies) -> SocketAddr {
    let service = layer(trusted).layer(service_fn(async |request: Request<Incoming>| {
        let _ = request.into_body().collect().await;
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello"))))
    }));
    let (listener, address) = listener().await;
    spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let service = service.clone();
            // The server inserts the peer's address into every request of the connection.
            let service = tower::util::MapRequest::new(service, move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(peer);
                request
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
            spawn(connection);
        }
    });
    address
}

#[tokio::test]
async fn hyper_behind_a_proxy_limits_each_client() {
    assert_clients_are_distinguished(with_hyper(networks(&["127.0.0.1"])).await).await;
}

#[tokio::test]
async fn hyper_without_a_proxy_ignores_fields() {
    assert_fields_are_ignored(with_hyper(networks(&["10.0.0.0/8"])).await).await;
}

/// Peers of a Unix socket have no address: the field of the proxy counts, if configured.
#[cfg(unix)]
#[tokio::test]
async fn axum_on_a_unix_socket_limits_by_the_field_of_the_proxy() {
    use tokio::net::{UnixListener, UnixStream};

    let extractor = ClientIp::x_forwarded_for(networks(&["10.0.0.0/8"])).trust_absent_peer();
    let limiter = Memory::builder(Gcra::new(Quota::per_minute(1))).clock(ManualClock::new()).build().expect("settings");
    let app = Router::new().route("/", get(async || "hello")).layer(RateLimitLayer::new(extractor, limiter));
    let path = std::env::temp_dir().join(format!("tower-ratelimit-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).expect("a socket");
    spawn(async { axum::serve(listener, app).await });

    let status = async |fields: &str| {
        let mut stream = UnixStream::connect(&path).await.expect("it listens");
        let request = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer[9..12].parse::<u16>().expect("a status")
    };
    assert_eq!(status("X-Forwarded-For: 192.0.2.1\r\n").await, 200);
    assert_eq!(status("X-Forwarded-For: 203.0.113.9, 192.0.2.1\r\n").await, 429);
    assert_eq!(status("X-Forwarded-For: 192.0.2.2\r\n").await, 200);
    assert_eq!(status("").await, 400, "a missing client address does not bypass the limit");
    let _ = std::fs::remove_file(&path);
}
