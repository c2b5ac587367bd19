//! Settling by the gRPC status of a call.

use axum::Router;
use tonic::Code;
use tower_ratelimit::cost::{OnlyFailures, OnlyGrpcCodes, OnlySuccesses};

use super::support::{Counting, check_request, connect, per_minute, serve};

/// Calls these services. Returns which calls were rejected.
async fn rejected(routes: Router, services: &[&str]) -> Vec<bool> {
    let mut client = connect(serve(routes).await).await;
    let mut rejected = Vec::new();
    for service in services {
        let code = client.check(check_request(service)).await.err().map(|status| status.code());
        rejected.push(code == Some(Code::ResourceExhausted));
    }
    rejected
}

#[tokio::test]
async fn settle_by_grpc_success_or_failure() {
    let routes = || Counting::default().routes();
    let failures = routes().layer(per_minute(2).0.settle(OnlyFailures));
    let found = rejected(failures, &["", "", "fail", "", "fail", "", "fail"]).await;
    assert_eq!(found, [false, false, false, false, false, true, true], "two failures use up the limit");
    let successes = routes().layer(per_minute(2).0.settle(OnlySuccesses));
    let found = rejected(successes, &["fail", "fail", "", "fail", "", ""]).await;
    assert_eq!(found, [false, false, false, false, false, true]);
}

#[tokio::test]
async fn settle_by_grpc_code() {
    for (codes, calls, expected) in [
        (vec![Code::Unauthenticated], ["", "fail", ""], [false, false, true]),
        (vec![Code::NotFound, Code::Internal], ["", "fail", ""], [false; 3]),
        (vec![Code::Ok], ["fail", "", ""], [false, false, true]),
    ] {
        let layer = per_minute(1).0.settle(OnlyGrpcCodes::new(codes.clone()));
        assert_eq!(rejected(Counting::default().routes().layer(layer), &calls).await, expected, "{codes:?}");
    }
}

/// As documented: the end of a stream is not awaited.
#[tokio::test]
async fn settle_ignores_a_status_in_trailers() {
    let (layer, _clock) = per_minute(1);
    let mut client = connect(serve(Counting::default().routes().layer(layer.settle(OnlyFailures))).await).await;
    for _ in 0..3 {
        let mut stream = client.watch(check_request("break")).await.expect("it begins").into_inner();
        assert!(stream.message().await.expect("a message").is_some());
        assert_eq!(stream.message().await.expect_err("it breaks off").code(), Code::Internal);
    }
}
