//! Calls of tonic's client to tonic's server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig};
use tonic::{Code, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_types::StatusExt;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::retry::{GrpcHint, RetryAfter, RetryHint};

use super::support::{Counting, Limited, check_request, connect, listen, per_minute, serve};
use crate::tasks::spawn;

/// Checks all parts of a rejection.
fn assert_rejected(status: &Status, wait: Duration, limit: i64) {
    assert_eq!(status.code(), Code::ResourceExhausted);
    let message = format!("rate limit \"default\" exceeded, retry after {}s", wait.as_secs());
    assert_eq!(status.message(), message);
    let details = status.get_error_details();
    assert_eq!(details.retry_info().expect("RetryInfo").retry_delay, Some(wait));
    let violations = &details.quota_failure().expect("QuotaFailure").violations;
    assert_eq!(violations.len(), 1);
    assert_eq!(violations[0].subject, "limit:default");
    assert_eq!(violations[0].description, format!("at most {limit} in 60s"));
    assert_eq!((violations[0].quota_id.as_str(), violations[0].quota_value), ("default", limit));
}

/// Starts tonic's server with the layer around all its services.
async fn limited_server(layer: Limited) -> (SocketAddr, Counting) {
    let (listener, address) = listen().await;
    let handler = Counting::default();
    let server = Server::builder().layer(layer).add_service(handler.service());
    spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    (address, handler)
}

#[tokio::test]
async fn tonic_server_is_limited_by_peer() {
    let (layer, clock) = per_minute(3);
    let (address, handler) = limited_server(layer).await;

    let mut client = connect(address).await;
    for _ in 0..3 {
        client.check(check_request("")).await.expect("within the limit");
    }
    clock.advance(Duration::from_secs(20));
    for _ in 0..3 {
        let status = client.check(check_request("")).await.expect_err("over the limit");
        assert_rejected(&status, Duration::from_secs(40), 3);
    }
    // The key is the peer, not the connection.
    let status = connect(address).await.check(check_request("")).await.expect_err("over the limit");
    assert_rejected(&status, Duration::from_secs(40), 3);
    assert_eq!(handler.calls(), 3, "rejected calls do not reach the handler");

    clock.advance(Duration::from_secs(40));
    client.check(check_request("")).await.expect("after exactly that time, on the same connection");
}

#[tokio::test]
async fn layer_limits_one_tonic_service() {
    use tonic::service::LayerExt;

    let handler = Counting::default();
    // The name comes from the limited service, from tonic's `named_layer`, or through an interceptor.
    let layer = || per_minute(1).0;
    let intercepted = InterceptedService::new(handler.service(), Ok::<_, Status>);
    for routes in [
        Routes::new(layer().layer(handler.service())),
        Routes::new(layer().named_layer(handler.service())),
        Routes::new(layer().layer(intercepted)),
    ] {
        let mut client = connect(serve(routes.into_axum_router()).await).await;
        client.check(check_request("")).await.expect("within the limit");
        assert_eq!(client.check(check_request("")).await.expect_err("over the limit").code(), Code::ResourceExhausted);
    }
    assert_eq!(handler.calls(), 3);
}

/// A call that an interceptor rejects was charged. A call over the limit reaches neither interceptor nor handler.
#[tokio::test]
async fn layer_limits_an_intercepted_service() {
    let (layer, _clock) = per_minute(2);
    let (handler, intercepted) = (Counting::default(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&intercepted);
    let interceptor = move |call: tonic::Request<()>| {
        count.fetch_add(1, Ordering::SeqCst);
        if call.metadata().contains_key("forbidden") { Err(Status::permission_denied("forbidden")) } else { Ok(call) }
    };
    let service = HealthServer::with_interceptor(handler.clone(), interceptor);
    let mut client = connect(serve(Routes::new(layer.layer(service)).into_axum_router()).await).await;
    client.check(check_request("")).await.expect("within the limit");
    let mut forbidden = tonic::Request::new(check_request(""));
    forbidden.metadata_mut().insert("forbidden", "yes".parse().expect("ASCII"));
    assert_eq!(client.check(forbidden).await.expect_err("intercepted").code(), Code::PermissionDenied);
    let status = client.check(check_request("")).await.expect_err("over the limit");
    assert_rejected(&status, Duration::from_secs(60), 2);
    assert_eq!((handler.calls(), intercepted.load(Ordering::SeqCst)), (1, 2));
}

/// A stream is charged when it begins, whatever its messages. A rejected stream does not begin.
#[tokio::test]
async fn stream_is_charged_as_one_call() {
    let (layer, clock) = per_minute(2);
    let (address, handler) = limited_server(layer).await;

    let mut client = connect(address).await;
    let mut stream = client.watch(check_request("")).await.expect("within the limit").into_inner();
    // The stream is charged before its first message is read.
    client.check(check_request("")).await.expect("within the limit");
    let status = client.watch(check_request("")).await.expect_err("over the limit");
    assert_rejected(&status, Duration::from_secs(60), 2);
    let mut messages = 0;
    while stream.message().await.expect("no rejection during the stream").is_some() {
        messages += 1;
    }
    assert_eq!((messages, handler.calls()), (2, 2));

    clock.advance(Duration::from_secs(60));
    let mut stream = client.watch(check_request("")).await.expect("after that time").into_inner();
    assert!(stream.message().await.expect("a message").is_some());
}

#[tokio::test]
async fn peer_ip_is_known_over_tls_of_tonic() {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (certificate, key) = (issued.cert.pem(), issued.signing_key.serialize_pem());

    let (layer, _clock) = per_minute(1);
    let (listener, address) = listen().await;
    let identity = Identity::from_pem(&certificate, key);
    let server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity)).expect("TLS");
    let server = server.layer(layer).add_service(Counting::default().service());
    spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    assert_one_call_a_minute_over_tls(address, &certificate).await;
}

/// A server that accepts TLS itself passes tonic another type of stream, which stores its peer differently.
#[tokio::test]
async fn peer_ip_is_known_over_custom_tls() {
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::crypto::ring::default_provider;
    use tokio_rustls::rustls::pki_types::PrivateKeyDer;

    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).expect("a key");
    let config = ServerConfig::builder_with_provider(default_provider().into()).with_safe_default_protocol_versions();
    let config = config.expect("TLS").with_no_client_auth();
    let mut config = config.with_single_cert(vec![issued.cert.der().clone()], key).expect("TLS");
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(std::sync::Arc::new(config));

    let (layer, _clock) = per_minute(1);
    let (listener, address) = listen().await;
    let incoming = futures_util::stream::unfold((listener, acceptor), |(listener, acceptor)| async {
        let (stream, _) = listener.accept().await.ok()?;
        Some((acceptor.accept(stream).await, (listener, acceptor)))
    });
    let server = Server::builder().layer(layer).add_service(Counting::default().service());
    spawn(server.serve_with_incoming(incoming));

    assert_one_call_a_minute_over_tls(address, &issued.cert.pem()).await;
}

/// The limit of the server counts by the peer address, so the key was found if the second call is rejected.
async fn assert_one_call_a_minute_over_tls(address: SocketAddr, certificate: &str) {
    let trust = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(certificate)).domain_name("localhost");
    let endpoint = Endpoint::try_from(format!("https://{address}")).expect("an address");
    let channel = endpoint.tls_config(trust).expect("TLS").connect().await.expect("the server listens");
    let mut client = HealthClient::new(channel);
    client.check(check_request("")).await.expect("within the limit");
    let status = client.check(check_request("")).await.expect_err("over the limit");
    assert_rejected(&status, Duration::from_secs(60), 1);
}

/// tower's `Retry` around a call, because messages can be cloned and bodies cannot. The test advances the clock instead
/// of waiting.
#[tokio::test]
async fn grpc_client_retries_after_the_hint() {
    let (layer, clock) = per_minute(1);
    let (address, handler) = limited_server(layer).await;

    let read = move |_: &HealthCheckRequest, answer: Result<&_, &Status>| match answer {
        Ok::<&tonic::Response<HealthCheckResponse>, _>(_) => RetryHint::None,
        Err(status) => {
            assert_eq!(GrpcHint.read(status), RetryHint::After(Duration::from_secs(60)));
            clock.advance(Duration::from_secs(60));
            RetryHint::After(Duration::ZERO)
        }
    };
    let client = connect(address).await;
    let call = service_fn(move |request: HealthCheckRequest| {
        let mut client = client.clone();
        async move { client.check(request).await }
    });
    let policy = RetryAfter::new().jitter(Duration::ZERO).with_reader(read);
    let mut client = ServiceBuilder::new().retry(policy).service(call);
    for _ in 0..3 {
        client.ready().await.expect("ready").call(check_request("")).await.expect("allowed at the retry");
    }
    assert_eq!(handler.calls(), 3);
}

/// tonic has no TCP peer on a pipe: the call is rejected as a server error, and not limited by a shared key.
#[tokio::test]
async fn missing_peer_address_is_internal() {
    let (layer, _clock) = per_minute(1);
    let handler = Counting::default();
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let incoming = futures_util::stream::iter([Ok::<_, std::io::Error>(theirs)]);
    let server = Server::builder().layer(layer).add_service(handler.service());
    spawn(server.serve_with_incoming(incoming));

    let mut pipe = Some(hyper_util::rt::TokioIo::new(ours));
    let connector = tower::service_fn(move |_| std::future::ready(pipe.take().ok_or("one connection")));
    let endpoint = Endpoint::from_static("http://pipe");
    let mut client = HealthClient::new(endpoint.connect_with_connector(connector).await.expect("a connection"));
    let status = client.check(check_request("")).await.expect_err("no key");
    assert_eq!((status.code(), handler.calls()), (Code::Internal, 0));
}
