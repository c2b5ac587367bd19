//! Paced streams on sockets: server-sent events of axum, and calls of tonic. No rate is measured: the time is real.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::response::sse::{Event as SseEvent, Sse};
use axum::routing::get;
use futures_util::stream;
use tokio::sync::mpsc;
use tower_ratelimit::observe::{Direction, Event};
use tower_ratelimit::pacing::PacingLayer;
use tower_ratelimit::{FixedWindow, Memory, PeerIp, Quota, TokenBucket};

use crate::grpc::support::{Counting, check_request, connect, listen, serve};
use crate::tasks::spawn;

type Events = Arc<Mutex<mpsc::UnboundedReceiver<String>>>;

/// Each event is sent when the client has received the one before, so no event is kept. What exceeds the burst waits.
#[tokio::test]
async fn server_sent_events_pass_one_by_one_at_the_rate() {
    let (send, receive) = mpsc::unbounded_channel::<String>();
    let events: Events = Arc::new(Mutex::new(receive));
    let handler = async |State(events): State<Events>| {
        Sse::new(stream::poll_fn(move |cx| {
            let next = events.lock().expect("no panic").poll_recv(cx);
            next.map(|data| data.map(|data| Ok::<_, Infallible>(SseEvent::default().data(data))))
        }))
    };
    let limiter = Memory::new(TokenBucket::new(Quota::per_second(20_000)).burst(4_000));
    let layer = PacingLayer::downloads(PeerIp::new(), limiter).max_wait(Duration::from_secs(600));
    let app = Router::new().route("/", get(handler)).layer(layer).with_state(events);
    let (listener, address) = listen().await;
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = spawn(async move { axum::serve(listener, service).await });

    let started = Instant::now();
    let mut response = reqwest::get(format!("http://{address}/")).await.expect("a response");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut bytes = 0;
    for (index, length) in [1, 10, 3_000, 9_000, 5].into_iter().enumerate() {
        let data = format!("{index}{}", "x".repeat(length));
        send.send(data.clone()).expect("the server runs");
        let mut event = Vec::new();
        while !event.ends_with(b"\n\n") {
            event.extend(response.chunk().await.expect("a chunk").expect("not the end"));
        }
        assert_eq!(String::from_utf8(event).expect("text"), format!("data: {data}\n\n"));
        bytes += data.len() + 8;
    }
    drop(send);
    assert_eq!(response.chunk().await.expect("no error"), None, "the stream ends");
    let least = Duration::from_secs(1) * u32::try_from(bytes - 4_000).expect("few") / 20_000;
    assert!(started.elapsed() >= least, "{:?} of {least:?}", started.elapsed());
    server.abort();
}

/// Messages that are split into chunks arrive whole, with their trailers. At the end of a quota the call ends with a status.
#[tokio::test]
async fn grpc_messages_are_whole_and_a_quota_ends_a_call_with_a_status() {
    let bytes: Arc<Mutex<[u64; 2]>> = Arc::default();
    let counted = Arc::clone(&bytes);
    let observer = move |event: &Event<'_>| {
        if let Event::Paced { direction, bytes, .. } = event {
            counted.lock().expect("no panic")[usize::from(*direction == Direction::Upload)] += bytes;
        }
    };
    let rate = || Memory::new(TokenBucket::new(Quota::per_second(1_000)).burst(10));
    let downloads = PacingLayer::downloads(PeerIp::new(), rate()).observe(observer.clone());
    let uploads = PacingLayer::uploads(PeerIp::new(), rate()).observe(observer);
    let mut client = connect(serve(Counting::default().routes().layer(uploads).layer(downloads)).await).await;
    let mut stream = client.watch(check_request("a name of 23 characters")).await.expect("a stream").into_inner();
    for _ in 0..2 {
        assert!(stream.message().await.expect("a message").is_some());
    }
    assert!(stream.message().await.expect("the status is OK").is_none());
    // A message has five bytes before it, and a field two: the status has one byte, the name 23.
    assert_eq!(*bytes.lock().expect("no panic"), [2 * (5 + 2), 5 + 2 + 23]);

    let quota = Memory::new(FixedWindow::new(Quota::per_hour(8)));
    let layer = PacingLayer::downloads(PeerIp::new(), quota).max_wait(Duration::from_secs(1));
    let address = serve(Counting::default().routes().layer(layer)).await;
    let mut stream = connect(address).await.watch(check_request("")).await.expect("a stream").into_inner();
    assert!(stream.message().await.expect("seven of eight bytes").is_some());
    let status = stream.message().await.expect_err("one byte is left");
    assert_ne!(status.code(), tonic::Code::Ok);
}
