//! A limited gRPC server in tonic, and a client that backs off as it is told.
//!
//! ```text
//! cargo run --example tonic
//! cargo run --example tonic -- serve
//! ```
//!
//! The first makes eight calls, of which five pass in each second: the sixth is refused with
//! `RESOURCE_EXHAUSTED`, and the client reads off `google.rpc.RetryInfo` when to come back, and does. The second runs
//! the server alone, with the standard health service (`grpc.health.v1.Health`) behind five calls in ten seconds for
//! each peer, for any gRPC client to try. `PORT` chooses another port; `PORT=0` lets the system choose a free one.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower_ratelimit::response::Grpc;
use tower_ratelimit::retry::{GrpcHint, RetryAfter};
use tower_ratelimit::{FixedWindow, Memory, PeerIp, Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let serves_only = env::args().nth(1).is_some_and(|argument| argument == "serve");
    let port = if serves_only { env::var("PORT").unwrap_or("3000".to_owned()) } else { "0".to_owned() };
    let port: u16 = port.parse().map_err(|_| "PORT must be 0 to 65535")?;
    let listener = TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("can't listen on port {port} ({error}): choose another one with PORT, or PORT=0"))?;
    let address = listener.local_addr()?;

    if serves_only {
        println!("listening on http://{address}");
        println!("try: grpcurl -plaintext {address} grpc.health.v1.Health/Check");
        return serve(listener, Duration::from_secs(10)).await;
    }
    tokio::spawn(async move { serve(listener, Duration::from_secs(1)).await.expect("a server") });
    call(address).await
}

async fn serve(listener: TcpListener, period: Duration) -> Result<(), Box<dyn Error>> {
    // tonic's server notes the address of its peer, where `PeerIp` finds it.
    let limiter = Memory::new(FixedWindow::new(Quota::new(5, period)));
    let layer = RateLimitLayer::new(PeerIp::new(), limiter).responder(Grpc::new());

    let (_, health) = tonic_health::server::health_reporter();
    Server::builder().layer(layer).add_service(health).serve_with_incoming(TcpIncoming::from(listener)).await?;
    Ok(())
}

async fn call(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let mut client = HealthClient::new(Endpoint::try_from(format!("http://{address}"))?.connect().await?);
    for number in 1..=8 {
        // Bounds how often and for how long one call is tried, whatever the server says.
        let mut policy = RetryAfter::new().with_reader(GrpcHint).max_retries(5);
        loop {
            let status = match client.check(HealthCheckRequest::default()).await {
                Ok(answer) => {
                    println!("call {number}: {:?}", answer.into_inner().status());
                    break;
                }
                Err(status) => status,
            };
            println!("call {number}: {:?}, {}", status.code(), status.message());
            let Some(wait) = policy.next_delay(GrpcHint.read(&status)) else { return Err(status.into()) };
            tokio::time::sleep(wait).await;
        }
    }
    Ok(())
}
