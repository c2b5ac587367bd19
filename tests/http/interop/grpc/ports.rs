//! Servers with gRPC and HTTP on one port.

use std::net::{IpAddr, SocketAddr};

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{Method, Request, Response, Version};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_types::StatusExt;
use tower_ratelimit::response::Grpc;
use tower_ratelimit::{FixedWindow, Http, Memory, PeerIp, Quota, RateLimitLayer};

use super::support::{Counting, check_request, connect, listen};
use crate::tasks::spawn;

fn layer<R>(responder: R) -> RateLimitLayer<PeerIp, Memory<IpAddr, FixedWindow>, R> {
    let limiter = Memory::new(FixedWindow::new(Quota::per_hour(2)));
    RateLimitLayer::new(PeerIp::new(), limiter).responder(responder)
}

/// Sends one request in HTTP/1.1 or HTTP/2.
async fn send(address: SocketAddr, version: Version, method: Method, content_type: Option<&str>) -> Response<Bytes> {
    let mut builder = Client::builder(TokioExecutor::new());
    if version == Version::HTTP_2 {
        // With prior knowledge: h2c.
        builder.http2_only(true);
    }
    let client = builder.build_http::<Empty<Bytes>>();
    let mut request = Request::builder().uri(format!("http://{address}/")).method(method);
    if let Some(content_type) = content_type {
        request = request.header("content-type", content_type);
    }
    let (head, body) =
        client.request(request.body(Empty::new()).expect("a request")).await.expect("an answer").into_parts();
    assert_eq!(head.version, version);
    Response::from_parts(head, body.collect().await.expect("a body").to_bytes())
}

async fn assert_each_protocol_gets_its_responses(address: SocketAddr, handler: &Counting) {
    let mut client = connect(address).await;
    client.check(check_request("")).await.expect("within the limit");
    let allowed = send(address, Version::HTTP_2, Method::GET, None).await;
    assert_eq!(allowed.headers()["ratelimit"].to_str().expect("ASCII").split(";t=").next(), Some(r#""default";r=0"#));

    let status = client.check(check_request("")).await.expect_err("one limit for both");
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    assert!(status.get_error_details().retry_info().is_some());
    assert_eq!(handler.calls(), 1);

    for version in [Version::HTTP_11, Version::HTTP_2] {
        let rejected = send(address, version, Method::GET, None).await;
        assert_eq!(rejected.status(), 429, "{version:?}");
        assert_eq!(rejected.headers()["content-type"], "application/problem+json");
        assert!(rejected.headers().contains_key("retry-after"));
        let problem: serde_json::Value = serde_json::from_slice(rejected.body()).expect("JSON");
        assert_eq!(problem["status"], 429);
    }
}

/// axum's router, with a gRPC service among its routes.
#[tokio::test]
async fn by_content_type_serves_both_protocols_in_axum() {
    let handler = Counting::default();
    let routes = tonic::service::Routes::new(handler.service()).into_axum_router();
    let app = Router::new().route("/", get(async || "hello")).merge(routes.reset_fallback());
    let app = app.layer(layer(Http::new().grpc(Grpc::new())));
    let (listener, address) = listen().await;
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    spawn(async move { axum::serve(listener, app).await });
    assert_each_protocol_gets_its_responses(address, &handler).await;
}

/// tonic's server, whose bodies can't be made from bytes.
#[tokio::test]
async fn by_content_type_serves_both_protocols_in_tonic() {
    let handler = Counting::default();
    let (listener, address) = listen().await;
    let mut server = Server::builder().accept_http1(true).layer(layer(Http::new().grpc(Grpc::new()).map_body()));
    let server = server.add_service(handler.service());
    spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    assert_each_protocol_gets_its_responses(address, &handler).await;
}

#[tokio::test]
async fn by_content_type_recognizes_grpc_content_types() {
    let app = Router::new().route("/", get(async || "hello")).layer(layer(Http::new().grpc(Grpc::new())));
    let (listener, address) = listen().await;
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    spawn(async move { axum::serve(listener, app).await });
    while send(address, Version::HTTP_11, Method::GET, None).await.status() == 200 {}

    for (content_type, answer) in [
        ("application/grpc", Some("application/grpc")),
        ("application/grpc+proto", Some("application/grpc")),
        ("Application/gRPC ; charset=utf-8", Some("application/grpc")),
        ("application/grpc-web", Some("application/grpc-web")),
        ("application/grpc-web-text+proto", Some("application/grpc-web-text")),
        ("application/grpcx", None),
        ("application/grpc-webby", None),
        ("application/json", None),
        ("ä", None),
    ] {
        let response = send(address, Version::HTTP_11, Method::POST, Some(content_type)).await;
        let expected = if answer.is_some() { 200 } else { 429 };
        assert_eq!(response.status(), expected, "{content_type}");
        assert_eq!(response.headers()["content-type"], answer.unwrap_or("application/problem+json"), "{content_type}");
        assert_eq!(response.headers().contains_key("grpc-status"), answer.is_some(), "{content_type}");
    }
}

/// A `GET` with a gRPC content type gets an HTTP rejection that is not cached.
#[tokio::test]
async fn by_content_type_answers_grpc_only_to_post() {
    let app = Router::new().route("/", get(async || "hello")).layer(layer(Http::new().grpc(Grpc::new())));
    let (listener, address) = listen().await;
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    spawn(async move { axum::serve(listener, app).await });
    while send(address, Version::HTTP_11, Method::GET, None).await.status() == 200 {}

    for version in [Version::HTTP_11, Version::HTTP_2] {
        let response = send(address, version, Method::GET, Some("application/grpc")).await;
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert_eq!(response.headers()["cache-control"], "no-store");
        assert!(!response.headers().contains_key("grpc-status") && !response.body().is_empty());
    }
    let call = send(address, Version::HTTP_2, Method::POST, Some("application/grpc")).await;
    assert_eq!((call.status().as_u16(), &call.headers()["grpc-status"]), (200, &"8".parse().expect("ASCII")));
    assert_eq!(call.headers()["cache-control"], "no-store");
}
