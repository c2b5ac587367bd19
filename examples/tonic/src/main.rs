//! A rate limited gRPC server in tonic, and a client that honours `RetryInfo`.
//!
//! ```text
//! cargo run -p example-tonic
//! cargo run -p example-tonic -- serve
//! ```
//!
//! The first command makes eight calls to a server that allows five per second. The server rejects the sixth call
//! with `RESOURCE_EXHAUSTED`, and the client retries the call after the delay in `google.rpc.RetryInfo`. The second
//! command runs only the server, for any gRPC client: the standard health service (`grpc.health.v1.Health`) with five
//! calls in ten seconds for each peer. The variable `PORT` sets another port; `PORT=0` uses a free port.

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
    let server_only = env::args().nth(1).is_some_and(|argument| argument == "serve");
    let port = if server_only { env::var("PORT").unwrap_or("3000".to_owned()) } else { "0".to_owned() };
    let port: u16 = port.parse().map_err(|_| "PORT must be 0 to 65535")?;
    let listener = TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("cannot listen on port {port}: {error}; set PORT to a free port, or to 0"))?;
    let address = listener.local_addr()?;

    if server_only {
        println!("listening on http://{address}");
        println!("try: grpcurl -plaintext {address} grpc.health.v1.Health/Check");
        return serve(listener, Duration::from_secs(10)).await;
    }
    tokio::spawn(async move { serve(listener, Duration::from_secs(1)).await.expect("a server") });
    call(address).await
}

async fn serve(listener: TcpListener, period: Duration) -> Result<(), Box<dyn Error>> {
    // `PeerIp` reads the peer address from the connect info of tonic's server.
    let limiter = Memory::new(FixedWindow::new(Quota::new(5, period)));
    let layer = RateLimitLayer::new(PeerIp::new(), limiter).responder(Grpc::new());

    let (_, health) = tonic_health::server::health_reporter();
    Server::builder().layer(layer).add_service(health).serve_with_incoming(TcpIncoming::from(listener)).await?;
    Ok(())
}

async fn call(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let mut client = HealthClient::new(Endpoint::try_from(format!("http://{address}"))?.connect().await?);
    for number in 1..=8 {
        // Bounds the number of retries and their total time, whatever delay the server sends.
        let mut policy = RetryAfter::new().with_reader(GrpcHint).max_retries(5);
        loop {
            let status = match client.check(HealthCheckRequest::default()).await {
                Ok(response) => {
                    println!("call {number}: {:?}", response.into_inner().status());
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
