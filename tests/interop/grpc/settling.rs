//! What a call has cost is settled by its gRPC status.

use tonic::Code;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower_ratelimit::cost::{OnlyFailures, OnlyGrpcCodes, OnlySuccesses};

use super::support::{Counting, connect, listen, of, per_minute};

/// Makes calls of these services, and tells which were refused.
macro_rules! refused {
    ($layer:expr, $services:expr) => {{
        let (listener, address) = listen().await;
        let server = Server::builder().layer($layer).add_service(Counting::default().service());
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        let mut client = connect(address).await;
        let mut refused = Vec::new();
        for service in $services {
            let code = client.check(of(service)).await.err().map(|status| status.code());
            refused.push(code == Some(Code::ResourceExhausted));
        }
        refused
    }};
}

#[tokio::test]
async fn by_whether_it_failed() {
    let (layer, _clock) = per_minute(2);
    let calls = ["", "", "fail", "", "fail", "", "fail"];
    let refused = refused!(layer.settle(OnlyFailures), calls);
    assert_eq!(refused, [false, false, false, false, false, true, true], "two failures use it up");

    let (layer, _clock) = per_minute(2);
    let refused = refused!(layer.settle(OnlySuccesses), ["fail", "fail", "", "fail", "", ""]);
    assert_eq!(refused, [false, false, false, false, false, true]);
}

#[tokio::test]
async fn by_its_code() {
    let (layer, _clock) = per_minute(1);
    let refused = refused!(layer.settle(OnlyGrpcCodes::new([Code::Unauthenticated])), ["", "fail", ""]);
    assert_eq!(refused, [false, false, true]);

    let (layer, _clock) = per_minute(1);
    let refused = refused!(layer.settle(OnlyGrpcCodes::new([Code::NotFound, Code::Internal])), ["", "fail", ""]);
    assert_eq!(refused, [false; 3]);

    let (layer, _clock) = per_minute(1);
    let refused = refused!(layer.settle(OnlyGrpcCodes::new([Code::Ok])), ["fail", "", ""]);
    assert_eq!(refused, [false, false, true]);
}

/// As the documentation says: a stream that has begun is not waited for.
#[tokio::test]
async fn what_comes_in_trailers_is_not_waited_for() {
    let (layer, _clock) = per_minute(1);
    let (listener, address) = listen().await;
    let server = Server::builder().layer(layer.settle(OnlyFailures)).add_service(Counting::default().service());
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let mut client = connect(address).await;
    for _ in 0..3 {
        let mut stream = client.watch(of("break")).await.expect("it begins").into_inner();
        assert!(stream.message().await.expect("a message").is_some());
        assert_eq!(stream.message().await.expect_err("it breaks off").code(), Code::Internal);
    }
}
