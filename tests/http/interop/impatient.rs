//! Clients that connect, send a request and leave: the next client is served, over HTTP and over gRPC.
//!
//! Before requests waited uncharged, every request that had left kept its start, and the next client was rejected.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tower_ratelimit::key::Global;
use tower_ratelimit::observe::Event;
use tower_ratelimit::response::Grpc;
use tower_ratelimit::{Gcra, Memory, Quota, RateLimitLayer};

use crate::grpc::support::{Counting, check_request, connect, listen, serve};
use crate::tasks::{Task, spawn};

const MAX_WAIT: Duration = Duration::from_millis(3500);
/// One start each second.
const LIMIT: Gcra = Gcra::new(Quota::per_second(1)).burst(1);

/// The numbers of waits that have started and ended.
#[derive(Clone, Default)]
struct Waits(Arc<[AtomicUsize; 2]>);

impl Waits {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::WaitStarted => self.0[0].fetch_add(1, Ordering::SeqCst),
            Event::WaitEnded { .. } => self.0[1].fetch_add(1, Ordering::SeqCst),
            _ => return,
        };
    }

    fn started(&self) -> usize {
        self.0[0].load(Ordering::SeqCst)
    }

    async fn until(&self, is_done: impl Fn(usize, usize) -> bool) {
        while !is_done(self.started(), self.0[1].load(Ordering::SeqCst)) {
            sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn send_http(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("the server listens");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.expect("sent");
    stream
}

async fn status(mut stream: TcpStream) -> String {
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("a response");
    response.lines().next().expect("a status line").to_owned()
}

#[tokio::test]
async fn http_clients_that_left_do_not_delay_the_next() {
    let waits = Waits::default();
    let observed = waits.clone();
    let layer = RateLimitLayer::new(Global, Memory::new(LIMIT)).max_wait(MAX_WAIT);
    let app: Router = Router::new()
        .route("/", get(async || "hello"))
        .layer(layer.observe(move |event: &Event<'_>| observed.observe(event)));
    let (listener, address) = listen().await;
    spawn(async move { axum::serve(listener, app).await });

    assert_eq!(status(send_http(address).await).await, "HTTP/1.1 200 OK");
    let mut leaving = Vec::new();
    for waiting in 1..=3 {
        leaving.push(send_http(address).await);
        waits.until(|started, _| started >= waiting).await;
    }
    drop(leaving);
    waits.until(|started, ended| started == ended).await;
    // Three booked starts and its own would be more than `max_wait`.
    assert_eq!(status(send_http(address).await).await, "HTTP/1.1 200 OK");
    assert_eq!(status(send_http(address).await).await, "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn grpc_calls_that_were_cancelled_do_not_delay_the_next() {
    let waits = Waits::default();
    let observed = waits.clone();
    let layer = RateLimitLayer::new(Global, Memory::new(LIMIT)).responder(Grpc::new()).max_wait(MAX_WAIT);
    let layer = layer.observe(move |event: &Event<'_>| observed.observe(event));
    let client = connect(serve(Counting::default().routes().layer(layer)).await).await;
    let call = || {
        let mut client = client.clone();
        async move { client.check(check_request("")).await }
    };

    call().await.expect("the first call");
    let mut leaving = Vec::new();
    for waiting in 1..=3 {
        leaving.push(spawn(call()));
        waits.until(|started, _| started >= waiting).await;
    }
    leaving.iter().for_each(Task::abort);
    waits.until(|started, ended| started == ended).await;
    call().await.expect("the next call");
    call().await.expect("another call");
}
