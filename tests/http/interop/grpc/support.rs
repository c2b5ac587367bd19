use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tower_ratelimit::response::Grpc;
use tower_ratelimit::{BoxLimiter, FixedWindow, ManualClock, Memory, PeerIp, Quota, RateLimitLayer};

use crate::tasks::spawn;

pub(crate) type Limited = RateLimitLayer<PeerIp, BoxLimiter<IpAddr>, Grpc>;

/// Creates a layer of `limit` a minute for each peer, and its clock.
pub(crate) fn per_minute(limit: u64) -> (Limited, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Memory::builder(FixedWindow::new(Quota::per_minute(limit))).clock(clock.clone());
    let limiter = BoxLimiter::new(limiter.build().expect("a limiter"));
    (RateLimitLayer::new(PeerIp::new(), limiter).responder(Grpc::new()), clock)
}

/// A health service that counts its calls. It fails for the service `fail`. After the first message of a stream it fails
/// for the service `break`, panics for `panic`, and sends nothing more for `hang`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counting(Arc<AtomicUsize>);

impl Counting {
    pub(crate) fn service(&self) -> HealthServer<Self> {
        HealthServer::new(self.clone())
    }

    /// The service as axum's router, whose layers have one type when they are added: the compiler generates the code of
    /// tonic's server once.
    pub(crate) fn routes(&self) -> axum::Router {
        Routes::new(self.service()).into_axum_router()
    }

    pub(crate) fn calls(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

#[tonic::async_trait]
impl Health for Counting {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        self.0.fetch_add(1, Ordering::SeqCst);
        match request.get_ref().service.as_str() {
            "fail" => Err(Status::unauthenticated("unauthenticated")),
            _ => Ok(Response::new(serving())),
        }
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let first = stream::iter([Ok(serving())]);
        Ok(Response::new(match request.get_ref().service.as_str() {
            "break" => Box::pin(first.chain(stream::iter([Err(Status::internal("broken off"))]))),
            "hang" => Box::pin(first.chain(stream::pending())),
            "panic" => Box::pin(first.chain(stream::poll_fn(|_| panic!("panic requested")))),
            _ => Box::pin(first.chain(stream::iter([Ok(serving())]))),
        }))
    }
}

fn serving() -> HealthCheckResponse {
    HealthCheckResponse { status: ServingStatus::Serving.into() }
}

pub(crate) fn check_request(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

pub(crate) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// Serves the routes by tonic's server.
pub(crate) async fn serve(routes: axum::Router) -> SocketAddr {
    let (listener, address) = listen().await;
    spawn(Server::builder().add_routes(routes.into()).serve_with_incoming(TcpIncoming::from(listener)));
    address
}

pub(crate) async fn connect(address: SocketAddr) -> HealthClient<Channel> {
    let endpoint =
        Endpoint::try_from(format!("http://{address}")).expect("an address").timeout(Duration::from_secs(20));
    HealthClient::new(endpoint.connect().await.expect("the server listens"))
}
