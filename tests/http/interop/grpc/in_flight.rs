//! Limits on streams in flight: a stream ends with its trailers, a reset, an error or a panic.

use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::watch;
use tonic::Code;
use tower_ratelimit::observe::Event;
use tower_ratelimit::response::Grpc;
use tower_ratelimit::{BoxLimiter, InFlight, Limit, Memory, PeerIp, RateLimitLayer};

use super::support::{Counting, check_request, connect};

type Limiter = Memory<IpAddr, Limit<InFlight>>;

/// Starts a server of at most `max` calls in flight. Returns the address, the limiter, and the numbers of calls that
/// have started and ended.
async fn serve(max: u64) -> (std::net::SocketAddr, Limiter, watch::Receiver<[usize; 2]>) {
    let limiter: Limiter = Memory::new(Limit::new("streams", InFlight::new(max)));
    let (count, calls) = watch::channel([0; 2]);
    let layer = RateLimitLayer::new(PeerIp::new(), BoxLimiter::new(limiter.clone()))
        .responder(Grpc::new())
        .release_on_body_end()
        .observe(move |event: &Event<'_>| match event {
            Event::InFlightStarted { .. } => count.send_modify(|calls| calls[0] += 1),
            Event::InFlightEnded { .. } => count.send_modify(|calls| calls[1] += 1),
            _ => {}
        });
    (super::support::serve(Counting::default().routes().layer(layer)).await, limiter, calls)
}

async fn until_all_have_ended(calls: &mut watch::Receiver<[usize; 2]>) {
    let ended = tokio::time::timeout(Duration::from_secs(60), calls.wait_for(|[started, ended]| started == ended));
    ended.await.expect("all calls end").expect("the server runs");
}

#[tokio::test]
async fn in_flight_stream_takes_a_place_until_its_client_leaves() {
    let (address, _limiter, mut calls) = serve(1).await;
    let mut client = connect(address).await;
    let mut stream = client.watch(check_request("hang")).await.expect("the first stream").into_inner();
    assert!(stream.message().await.expect("a message").is_some());
    let status = client.watch(check_request("")).await.expect_err("the second stream");
    assert_eq!(status.code(), Code::ResourceExhausted);
    let details = tonic_types::StatusExt::get_error_details(&status);
    assert_eq!(details.retry_info().expect("RetryInfo").retry_delay, Some(Duration::from_secs(1)));
    assert_eq!(details.quota_failure().expect("QuotaFailure").violations[0].description, "at most 1 in flight");
    drop(stream);
    until_all_have_ended(&mut calls).await;
    client.check(check_request("")).await.expect("the place is free");
}

/// 100 000 calls with the environment variable `IN_FLIGHT_BODIES=100000`.
#[tokio::test]
async fn in_flight_calls_over_grpc_leak_nothing() {
    let count = std::env::var("IN_FLIGHT_BODIES").ok().and_then(|count| count.parse().ok()).unwrap_or(600);
    let (address, limiter, mut calls) = serve(10).await;
    let mut client = connect(address).await;
    for index in 0..count {
        let service = ["", "break", "hang", "panic", "fail"][index % 5];
        // The connection of a stream that panics ends, and the client connects again.
        if service == "fail" {
            drop(client.check(check_request(service)).await);
        } else if let Ok(stream) = client.watch(check_request(service)).await {
            let mut stream = stream.into_inner();
            // Dropped unread, after one message, or read to the end.
            let messages = if service == "hang" { index % 2 } else { index % 3 * 2 };
            for _ in 0..messages {
                if !matches!(stream.message().await, Ok(Some(_))) {
                    break;
                }
            }
        }
        if index % 5 == 4 {
            until_all_have_ended(&mut calls).await;
        }
    }
    until_all_have_ended(&mut calls).await;
    let [started, _] = *calls.borrow();
    assert!(started > count / 2, "{started} calls have reached the server");
    assert_eq!(limiter.usage()[0].held, 0);
}
