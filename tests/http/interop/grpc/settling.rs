//! Settling by the gRPC status of a call.

use tonic::Code;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower_ratelimit::cost::{OnlyFailures, OnlyGrpcCodes, OnlySuccesses};

use super::support::{Counting, check_request, connect, listen, per_minute};
use crate::tasks::spawn;

/// Calls these services. Returns which calls were rejected.
macro_rules! rejected {
    ($layer:expr, $services:expr) => {{
        let (listener, address) = listen().await;
        let server = Server::builder().layer($layer).add_service(Counting::default().service());
        spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        let mut client = connect(address).await;
        let mut rejected = Vec::new();
        for service in $services {
            let code = client.check(check_request(service)).await.err().map(|status| status.code());
            rejected.push(code == Some(Code::ResourceExhausted));
        }
        rejected
    }};
}

#[tokio::test]
async fn settle_by_grpc_success_or_failure() {
    let (layer, _clock) = per_minute(2);
    let calls = ["", "", "fail", "", "fail", "", "fail"];
    let rejected = rejected!(layer.settle(OnlyFailures), calls);
    assert_eq!(rejected, [false, false, false, false, false, true, true], "two failures use up the limit");

    let (layer, _clock) = per_minute(2);
    let rejected = rejected!(layer.settle(OnlySuccesses), ["fail", "fail", "", "fail", "", ""]);
    assert_eq!(rejected, [false, false, false, false, false, true]);
}

#[tokio::test]
async fn settle_by_grpc_code() {
    let (layer, _clock) = per_minute(1);
    let rejected = rejected!(layer.settle(OnlyGrpcCodes::new([Code::Unauthenticated])), ["", "fail", ""]);
    assert_eq!(rejected, [false, false, true]);

    let (layer, _clock) = per_minute(1);
    let rejected = rejected!(layer.settle(OnlyGrpcCodes::new([Code::NotFound, Code::Internal])), ["", "fail", ""]);
    assert_eq!(rejected, [false; 3]);

    let (layer, _clock) = per_minute(1);
    let rejected = rejected!(layer.settle(OnlyGrpcCodes::new([Code::Ok])), ["fail", "", ""]);
    assert_eq!(rejected, [false, false, true]);
}

/// As documented: the end of a stream is not awaited.
#[tokio::test]
async fn settle_ignores_a_status_in_trailers() {
    let (layer, _clock) = per_minute(1);
    let (listener, address) = listen().await;
    let server = Server::builder().layer(layer.settle(OnlyFailures)).add_service(Counting::default().service());
    spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let mut client = connect(address).await;
    for _ in 0..3 {
        let mut stream = client.watch(check_request("break")).await.expect("it begins").into_inner();
        assert!(stream.message().await.expect("a message").is_some());
        assert_eq!(stream.message().await.expect_err("it breaks off").code(), Code::Internal);
    }
}
