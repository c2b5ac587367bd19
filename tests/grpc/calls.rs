//! Calls from tonic's client to tonic's server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

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

use crate::support::{Counting, connect, listen, of, per_minute};

/// What every refusal of these limits says.
fn assert_refused(status: &Status, wait: Duration, limit: i64) {
    assert_eq!(status.code(), Code::ResourceExhausted);
    let told = format!("rate limit \"default\" exceeded, retry after {}s", wait.as_secs());
    assert_eq!(status.message(), told);
    let details = status.get_error_details();
    assert_eq!(details.retry_info().expect("RetryInfo").retry_delay, Some(wait));
    let violations = &details.quota_failure().expect("QuotaFailure").violations;
    assert_eq!(violations.len(), 1);
    assert_eq!(violations[0].subject, "limit:default");
    assert_eq!(violations[0].description, format!("at most {limit} in 60s"));
    assert_eq!((violations[0].quota_id.as_str(), violations[0].quota_value), ("default", limit));
}

#[tokio::test]
async fn a_whole_server_is_limited_by_its_peers() {
    let (layer, clock) = per_minute(3);
    let (listener, address) = listen().await;
    let handler = Counting::default();
    let server = Server::builder().layer(layer).add_service(handler.service());
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let mut client = connect(address).await;
    for _ in 0..3 {
        client.check(of("")).await.expect("within the limit");
    }
    clock.advance(Duration::from_secs(20));
    for _ in 0..3 {
        let status = client.check(of("")).await.expect_err("over the limit");
        assert_refused(&status, Duration::from_secs(40), 3);
    }
    // It counts by the peer, not by the connection.
    let status = connect(address).await.check(of("")).await.expect_err("over the limit");
    assert_refused(&status, Duration::from_secs(40), 3);
    assert_eq!(handler.calls(), 3, "no refused call reaches the handler");

    clock.advance(Duration::from_secs(40));
    client.check(of("")).await.expect("after exactly that time, on the same connection");
}

#[tokio::test]
async fn one_service_is_limited_and_its_neighbours_are_not() {
    use tonic::service::LayerExt;

    let handler = Counting::default();
    // Once by its own name, which the limited service has, once by tonic's `named_layer`.
    let (layer, _clock) = per_minute(1);
    let (listener, by_name) = listen().await;
    let server = Server::builder().add_service(layer.layer(handler.service()));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let (layer, _clock) = per_minute(1);
    let (listener, by_named_layer) = listen().await;
    let server = Server::builder().add_service(layer.named_layer(handler.service()));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let (layer, _clock) = per_minute(1);
    let (listener, by_interceptor) = listen().await;
    let intercepted = InterceptedService::new(handler.service(), Ok::<_, Status>);
    let server = Server::builder().add_service(layer.layer(intercepted));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    for address in [by_name, by_named_layer, by_interceptor] {
        let mut client = connect(address).await;
        client.check(of("")).await.expect("within the limit");
        assert_eq!(client.check(of("")).await.expect_err("over the limit").code(), Code::ResourceExhausted);
    }
    assert_eq!(handler.calls(), 3);
}

/// A call that an interceptor rejects was charged. A call over the limit reaches neither interceptor nor handler.
#[tokio::test]
async fn intercepted_service_is_limited() {
    let (layer, _clock) = per_minute(2);
    let (handler, intercepted) = (Counting::default(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&intercepted);
    let interceptor = move |call: tonic::Request<()>| {
        count.fetch_add(1, Ordering::SeqCst);
        if call.metadata().contains_key("forbidden") { Err(Status::permission_denied("forbidden")) } else { Ok(call) }
    };
    let service = HealthServer::with_interceptor(handler.clone(), interceptor);
    let (listener, address) = listen().await;
    let server = Server::builder().add_service(layer.layer(service));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let mut client = connect(address).await;
    client.check(of("")).await.expect("within the limit");
    let mut forbidden = tonic::Request::new(of(""));
    forbidden.metadata_mut().insert("forbidden", "yes".parse().expect("ASCII"));
    assert_eq!(client.check(forbidden).await.expect_err("intercepted").code(), Code::PermissionDenied);
    let status = client.check(of("")).await.expect_err("over the limit");
    assert_refused(&status, Duration::from_secs(60), 2);
    assert_eq!((handler.calls(), intercepted.load(Ordering::SeqCst)), (1, 2));
}

/// Streams are charged when they begin, whatever they bring; a refused one never begins.
#[tokio::test]
async fn a_stream_is_one_call() {
    let (layer, clock) = per_minute(2);
    let (listener, address) = listen().await;
    let handler = Counting::default();
    let server = Server::builder().layer(layer).add_service(handler.service());
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let mut client = connect(address).await;
    let mut stream = client.watch(of("")).await.expect("within the limit").into_inner();
    // It is charged before a message of it is read.
    client.check(of("")).await.expect("within the limit");
    let status = client.watch(of("")).await.expect_err("over the limit");
    assert_refused(&status, Duration::from_secs(60), 2);
    let mut messages = 0;
    while stream.message().await.expect("no refusal on the way").is_some() {
        messages += 1;
    }
    assert_eq!((messages, handler.calls()), (2, 2));

    clock.advance(Duration::from_secs(60));
    let mut stream = client.watch(of("")).await.expect("after that time").into_inner();
    assert!(stream.message().await.expect("a message").is_some());
}

#[tokio::test]
async fn over_tls_the_peer_is_known_as_well() {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (certificate, key) = (issued.cert.pem(), issued.signing_key.serialize_pem());

    let (layer, _clock) = per_minute(1);
    let (listener, address) = listen().await;
    let identity = Identity::from_pem(&certificate, key);
    let server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity)).expect("TLS");
    let server = server.layer(layer).add_service(Counting::default().service());
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let trust = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(certificate)).domain_name("localhost");
    let endpoint = Endpoint::try_from(format!("https://{address}")).expect("an address");
    let channel = endpoint.tls_config(trust).expect("TLS").connect().await.expect("the server listens");
    let mut client = HealthClient::new(channel);
    client.check(of("")).await.expect("within the limit");
    let status = client.check(of("")).await.expect_err("over the limit");
    assert_refused(&status, Duration::from_secs(60), 1);
}

/// A server that accepts TLS itself hands tonic a stream that notes its peer in another way.
#[tokio::test]
async fn over_tls_of_ones_own_the_peer_is_known_as_well() {
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
    tokio::spawn(server.serve_with_incoming(incoming));

    let trust =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(issued.cert.pem())).domain_name("localhost");
    let endpoint = Endpoint::try_from(format!("https://{address}")).expect("an address");
    let channel = endpoint.tls_config(trust).expect("TLS").connect().await.expect("the server listens");
    let mut client = HealthClient::new(channel);
    client.check(of("")).await.expect("within the limit");
    let status = client.check(of("")).await.expect_err("over the limit");
    assert_refused(&status, Duration::from_secs(60), 1);
}

/// tower's `Retry` around a call, whose messages can be cloned where its bodies can't. The wait is read, and stepped
/// over.
#[tokio::test]
async fn a_client_comes_back_when_it_is_told_to() {
    let (layer, clock) = per_minute(1);
    let (listener, address) = listen().await;
    let handler = Counting::default();
    let server = Server::builder().layer(layer).add_service(handler.service());
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

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
        client.ready().await.expect("ready").call(of("")).await.expect("let in at the second try");
    }
    assert_eq!(handler.calls(), 3);
}

/// tonic tells of no TCP peer on a pipe: refused as the server's fault, and not one bucket for all.
#[tokio::test]
async fn a_peer_without_an_address_is_the_servers_fault() {
    let (layer, _clock) = per_minute(1);
    let handler = Counting::default();
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let incoming = futures_util::stream::iter([Ok::<_, std::io::Error>(theirs)]);
    let server = Server::builder().layer(layer).add_service(handler.service());
    tokio::spawn(server.serve_with_incoming(incoming));

    let mut pipe = Some(hyper_util::rt::TokioIo::new(ours));
    let connector = tower::service_fn(move |_| std::future::ready(pipe.take().ok_or("one connection")));
    let endpoint = Endpoint::from_static("http://pipe");
    let mut client = HealthClient::new(endpoint.connect_with_connector(connector).await.expect("a connection"));
    let status = client.check(of("")).await.expect_err("no key");
    assert_eq!((status.code(), handler.calls()), (Code::Internal, 0));
}
