//! Response bodies of requests in flight: however a body ends, its request ends once.

use std::convert::Infallible;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::observe::Event;
use tower_ratelimit::response::BoxError;
use tower_ratelimit::{BoxLimiter, Http, InFlight, InFlightBody, Limiter, Memory};

use crate::support::{BoxExecutor, ByNumber, page_layer, spawn};

/// How a [`Stream`] goes on after its first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    End,
    EndWithTrailers,
    Fail,
    Panic,
    Hang,
}

impl After {
    const ALL: [Self; 5] = [Self::End, Self::EndWithTrailers, Self::Fail, Self::Panic, Self::Hang];

    fn path(self) -> String {
        format!("/{self:?}")
    }
}

/// A body of one frame of data.
#[derive(Debug)]
struct Stream {
    after: After,
    frames: usize,
}

impl Body for Stream {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.frames += 1;
        if self.frames == 1 {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"frame")))));
        }
        match self.after {
            After::EndWithTrailers if self.frames == 2 => {
                Poll::Ready(Some(Ok(Frame::trailers(http::HeaderMap::from_iter([(
                    http::HeaderName::from_static("grpc-status"),
                    http::HeaderValue::from_static("0"),
                )])))))
            }
            After::End | After::EndWithTrailers => Poll::Ready(None),
            After::Fail => Poll::Ready(Some(Err("the body fails".into()))),
            After::Panic => panic!("panic requested"),
            After::Hang => Poll::Pending,
        }
    }
}

type Page = Response<Stream>;

/// Answers with the stream that the path names.
async fn stream<B>(request: Request<B>) -> Result<Page, Infallible> {
    let after = After::ALL.into_iter().find(|after| request.uri().path() == after.path()).expect("a known path");
    Ok(Response::new(Stream { after, frames: 0 }))
}

fn is_free(limiter: &Memory<u32, InFlight>) -> bool {
    ByNumber(BoxLimiter::new(limiter.clone()))
        .peek(&(), 1.into())
        .try_ready()
        .expect("ready")
        .expect("a decision")
        .is_allowed()
}

async fn open(
    limiter: &Memory<u32, InFlight>,
    after: After,
) -> InFlightBody<impl Body<Data = Bytes, Error = BoxError>> {
    let layer =
        page_layer(ByNumber(BoxLimiter::new(limiter.clone()))).responder(Http::new().map_body()).release_on_body_end();
    let request = Request::get(after.path()).body(()).expect("a request");
    let Ok(response) = layer.layer(service_fn(stream::<()>)).oneshot(request).await;
    assert_eq!(response.status(), 200);
    response.into_body()
}

#[tokio::test]
async fn in_flight_ends_with_the_last_frame_of_the_body() {
    for after in After::ALL {
        let limiter = Memory::new(InFlight::new(1));
        let mut body = task::spawn(Box::pin(open(&limiter, after).await));
        let mut frame = || body.enter(|cx, body| body.poll_frame(cx));
        assert!(assert_ready!(frame()).expect("a frame").is_ok());
        assert!(!is_free(&limiter), "{after:?}");
        match after {
            After::Hang => {
                assert_pending!(frame());
                assert!(!is_free(&limiter));
            }
            After::Panic => {
                assert!(catch_unwind(AssertUnwindSafe(frame)).is_err());
            }
            After::EndWithTrailers => {
                assert!(assert_ready!(frame()).expect("trailers").is_ok());
                assert!(assert_ready!(frame()).is_none());
                assert!(is_free(&limiter), "{after:?}");
            }
            After::End | After::Fail => {
                assert!(!matches!(assert_ready!(frame()), Some(Ok(_))));
                assert!(is_free(&limiter), "{after:?}");
            }
        }
        drop(body);
        assert!(is_free(&limiter), "{after:?}");
    }
}

/// A server does not poll a body again that says that it has ended.
#[tokio::test]
async fn in_flight_ends_with_the_frame_after_which_the_body_says_that_it_has_ended() {
    let limiter = Memory::new(InFlight::new(1));
    let layer = page_layer(ByNumber(BoxLimiter::new(limiter.clone()))).release_on_body_end();
    let page = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello"))));
    let Ok(response) = layer.layer(page).oneshot(Request::new(())).await;
    let mut body = response.into_body();
    assert_eq!(body.size_hint().exact(), Some(5));
    assert!(!is_free(&limiter));
    assert!(body.frame().await.expect("a frame").is_ok());
    assert!(body.is_end_stream() && is_free(&limiter));
    // A body that has ended from the start may never be polled.
    let Ok(empty) = layer.layer(service_fn(empty)).oneshot(Request::new(())).await;
    assert!(is_free(&limiter));
    drop(empty);
}

async fn empty(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::default()))
}

#[test]
fn in_flight_body_is_made_from_the_bodies_of_rejections_and_defaults() {
    assert_eq!(InFlightBody::<Full<Bytes>>::from(Bytes::from_static(b"no")).size_hint().exact(), Some(2));
    assert!(InFlightBody::<Full<Bytes>>::default().is_end_stream());
}

/// The number of requests over each protocol: 100 000 with the environment variable `IN_FLIGHT_BODIES=100000`.
fn requests() -> usize {
    std::env::var("IN_FLIGHT_BODIES").ok().and_then(|count| count.parse().ok()).unwrap_or(600)
}

/// Starts a server whose limiter allows 10 requests in flight. Returns the address, the limiter, and the number of
/// requests that have ended.
async fn serve() -> (std::net::SocketAddr, Memory<u32, InFlight>, watch::Receiver<usize>) {
    let limiter = Memory::new(InFlight::new(10));
    let (count, ended) = watch::channel(0);
    let layer = page_layer(ByNumber(BoxLimiter::new(limiter.clone())))
        .responder(Http::new().map_body())
        .release_on_body_end()
        .observe(move |event: &Event<'_>| {
            if let Event::InFlightEnded { .. } = event {
                count.send_modify(|count| *count += 1);
            }
        });
    let service = layer.layer(service_fn(stream::<hyper::body::Incoming>));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.expect("a connection");
            // Otherwise a small write waits for the client's acknowledgement, which the kernel delays by 40 ms.
            socket.set_nodelay(true).expect("set");
            let service = TowerToHyperService::new(service.clone());
            spawn(async move {
                // A connection with a panicking or failing body ends with an error.
                let _ = auto::Builder::new(BoxExecutor).serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
    (address, limiter, ended)
}

/// Waits until this many requests have ended.
async fn until(ended: &mut watch::Receiver<usize>, count: usize) {
    let enough = tokio::time::timeout(Duration::from_secs(60), ended.wait_for(|ended| *ended >= count));
    enough.await.unwrap_or_else(|_| panic!("{count} requests have not ended")).expect("the server runs");
}

/// Reads one frame of a response, and then the rest, or drops it.
async fn read(body: hyper::body::Incoming, after: After, index: usize) {
    let mut body = body.into_data_stream();
    // Some responses are dropped unread.
    if index.is_multiple_of(3) {
        return;
    }
    let _ = body.next().await;
    if after != After::Hang && index % 3 == 1 {
        while let Some(Ok(_)) = body.next().await {}
    }
}

async fn request_over_http1(address: std::net::SocketAddr, after: After, index: usize) {
    let socket = TcpStream::connect(address).await.expect("a connection");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.expect("HTTP/1.1");
    let connection = spawn(connection);
    let request = Request::get(after.path()).header("host", "test").body(Full::<Bytes>::default()).expect("a request");
    if let Ok(response) = sender.send_request(request).await {
        assert_eq!(response.status(), 200, "{index}");
        read(response.into_body(), after, index).await;
    }
    // Resets the stream: the client disconnects.
    connection.abort();
}

/// Bodies that are dropped unread, streamed to the end, reset, failing, panicking.
async fn leaks_nothing<F: Future<Output = ()>>(request: impl Fn(std::net::SocketAddr, After, usize) -> F) {
    let (address, limiter, mut ended) = serve().await;
    let count = requests();
    for index in 0..count {
        request(address, After::ALL[index % After::ALL.len()], index).await;
        // At most 10 are in flight: the server has noticed the end of earlier ones.
        until(&mut ended, index.saturating_sub(5)).await;
    }
    until(&mut ended, count).await;
    assert_eq!(*ended.borrow(), count, "each request ends once");
    assert_eq!(limiter.usage()[0].held, 0);
}

#[tokio::test]
async fn in_flight_bodies_over_http1_leak_nothing() {
    leaks_nothing(request_over_http1).await;
}

#[tokio::test]
async fn in_flight_bodies_over_http2_leak_nothing() {
    let sender = tokio::sync::Mutex::new(None);
    leaks_nothing(|address, after, index| {
        let sender = &sender;
        async move {
            let mut sender = sender.lock().await;
            let connected = if let Some(connected) = sender.take() {
                connected
            } else {
                let socket = TcpStream::connect(address).await.expect("a connection");
                socket.set_nodelay(true).expect("set");
                let builder = hyper::client::conn::http2::Builder::new(BoxExecutor);
                let (sender, connection) = builder.handshake(TokioIo::new(socket)).await.expect("HTTP/2");
                spawn(connection);
                sender
            };
            let mut connected: hyper::client::conn::http2::SendRequest<Full<Bytes>> = connected;
            let uri = format!("http://test{}", after.path());
            let request = Request::get(uri).body(Full::<Bytes>::default()).expect("a request");
            if let Ok(response) = connected.send_request(request).await {
                assert_eq!(response.status(), 200, "{index}");
                read(response.into_body(), after, index).await;
            }
            // The connection ends after a panic only: a stream is reset alone.
            *sender = Some(connected).filter(|connected| !connected.is_closed());
        }
    })
    .await;
}
