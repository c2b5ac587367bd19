//! Paced bodies, in paused time: rates and bounds, the bytes that arrive, and errors.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "small numbers: times, lengths and bytes of a test"
)]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::key::{Extracted, MissingKey};
use tower_ratelimit::observe::Event;
use tower_ratelimit::pacing::PacingLayer;
use tower_ratelimit::response::BoxError;
use tower_ratelimit::{
    BoxLimiter, DynLimit, Error, FixedWindow, Gcra, Limit, Limiter, Quota, TokenBucket, TokioClock, Verdict,
};

use crate::random::Random;
use crate::support::{BoxExecutor, StubLimiter, limit, memory, several, spawn};

const SECOND: Duration = Duration::from_secs(1);

type Key = u64;

/// The key of a request: its path. `/exempt` has none, and `/missing` should have one.
#[allow(clippy::unnecessary_wraps, reason = "a key extractor")]
fn key_of<B>(request: &Request<B>) -> Extracted<Key> {
    match request.uri().path() {
        "/exempt" => Extracted::Exempt,
        "/missing" => Extracted::Missing(MissingKey::from_request("no key")),
        path => Extracted::Key(path[1..].parse().expect("a number")),
    }
}

fn request<B>(path: &str, body: B) -> Request<B> {
    Request::builder().uri(path).body(body).expect("a request")
}

/// A body of these frames, which are ready at once.
#[derive(Clone, Default)]
struct Frames(VecDeque<Part>);

#[derive(Clone, Debug)]
enum Part {
    Data(Bytes),
    Trailers(HeaderMap),
    Fails,
}

impl Body for Frames {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(self.0.pop_front().map(|part| match part {
            Part::Data(data) => Ok(Frame::data(data)),
            Part::Trailers(trailers) => Ok(Frame::trailers(trailers)),
            Part::Fails => Err("the body has failed".into()),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let bytes = self.0.iter().map(|part| if let Part::Data(data) = part { data.len() as u64 } else { 0 }).sum();
        SizeHint::with_exact(bytes)
    }
}

/// An endless body of frames of one size.
struct Endless(Bytes);

impl Body for Endless {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(Some(Ok(Frame::data(self.0.clone()))))
    }
}

/// Reads `streams` endless bodies of `keys` keys for a time. Returns the bytes of each stream, after a check that no key
/// receives more than `burst + rate * T` bytes in any time.
async fn read(rate: u64, burst: u64, streams: usize, keys: usize, frame: usize, time: Duration) -> Vec<u64> {
    let bucket = TokenBucket::new(Quota::per_second(rate)).burst(burst);
    let limiter = memory(bucket, TokioClock::new());
    let frame = Bytes::from(vec![7; frame]);
    let service = PacingLayer::downloads(key_of, limiter).layer(service_fn(move |_: Request<()>| {
        let frame = frame.clone();
        async move { Ok::<_, BoxError>(Response::new(Endless(frame))) }
    }));
    // Of each key the debt of a bucket, and its time.
    let debts = Arc::new(Mutex::new(vec![(0.0_f64, Instant::now()); keys]));
    let mut reading = Vec::new();
    for stream in 0..streams {
        let (service, debts, key) = (service.clone(), Arc::clone(&debts), stream % keys);
        reading.push(spawn(async move {
            let mut body = service.oneshot(request(&format!("/{key}"), ())).await.expect("a response").into_body();
            let mut received = 0;
            let until = sleep(time);
            tokio::pin!(until);
            loop {
                let frame = tokio::select! {
                    biased;
                    () = &mut until => return received,
                    frame = body.frame() => frame.expect("endless").expect("bytes").into_data().expect("data"),
                };
                received += frame.len() as u64;
                let mut debts = debts.lock().unwrap();
                let (debt, at) = &mut debts[key];
                *debt = (*debt - rate as f64 * at.elapsed().as_secs_f64()).max(0.0) + frame.len() as f64;
                *at = Instant::now();
                // The runtime's timer is late by up to 2 ms.
                assert!(*debt <= burst as f64 + rate as f64 * 0.002 + 1.0, "{debt} of {burst} bytes at {rate}/s");
            }
        }));
    }
    let mut received = Vec::new();
    for stream in reading {
        received.push(stream.await.expect("no panic"));
    }
    received
}

/// One stream receives at least 98 % of its rate, and several streams of one key receive equal parts of it.
#[tokio::test(start_paused = true)]
async fn streams_receive_their_rate_in_equal_parts() {
    for (rate, millis) in [(10_000, 10_000), (1_000_000, 4_000), (100_000_000, 200)] {
        for (burst_millis, streams, keys, frame) in
            [(50, 1, 1, 1 << 16), (200, 1, 1, 700), (200, 10, 1, 1 << 20), (50, 12, 3, 1 << 14)]
        {
            let burst = rate * burst_millis / 1000;
            let received = read(rate, burst, streams, keys, frame, Duration::from_millis(millis)).await;
            let (of_key, each) = (rate * millis / 1000, rate * millis / 1000 / (streams / keys) as u64);
            let all: u64 = received.iter().sum();
            let case = format!("{rate}/s, burst {burst}, {streams} streams of {keys} keys: {received:?}");
            assert!(all >= of_key * keys as u64 * 98 / 100, "{case}");
            assert!(received.iter().all(|part| part.abs_diff(each + burst / 2) <= each / 10 + burst), "{case}");
        }
    }
    let received = read(1_000_000, 200_000, 1000, 10, 1 << 16, 2 * SECOND).await;
    assert!(received.iter().sum::<u64>() >= 10 * 2_000_000 * 98 / 100);
}

fn random_body(random: &mut Random) -> Frames {
    let mut frames = VecDeque::new();
    for _ in 0..random.below(8) {
        let len = [0, 1, 100, 1_023, 1_024, 1_025, 5_000, 70_000][random.below(8) as usize];
        let mut byte = random.below(256);
        let data: Vec<_> = (0..len)
            .map(|_| {
                byte = (byte * 31 + 7) % 251;
                byte as u8
            })
            .collect();
        frames.push_back(Part::Data(data.into()));
    }
    match random.below(4) {
        0 => frames.push_back(Part::Trailers(HeaderMap::from_iter([(
            http::header::ETAG,
            http::HeaderValue::from_static("\"trailer\""),
        )]))),
        1 => frames.push_back(Part::Fails),
        _ => {}
    }
    Frames(frames)
}

/// What a reader receives: the bytes, the trailers, and whether the body has failed.
async fn collect<B: Body<Data = Bytes> + Unpin>(mut body: B) -> (Vec<u8>, Option<HeaderMap>, bool) {
    let (mut bytes, mut trailers) = (Vec::new(), None);
    while !body.is_end_stream() {
        let hint = body.size_hint();
        match body.frame().await {
            None => break,
            Some(Err(_)) => return (bytes, trailers, true),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    assert!(hint.upper().is_none_or(|upper| upper >= data.len() as u64), "{hint:?}");
                    bytes.extend_from_slice(&data);
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
        }
    }
    (bytes, trailers, false)
}

/// Random bodies arrive as they are, paced or exempt, in both directions. A stream that is dropped in the middle does not
/// hold up the others.
#[tokio::test(start_paused = true)]
async fn bodies_arrive_byte_for_byte() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let rate = [5_000, 300_000][random.below(2) as usize];
        let burst = if random.below(2) == 0 { rate / 10 } else { rate };
        let limiter = memory(Gcra::new(Quota::per_second(rate)).burst(burst), TokioClock::new());
        let body = random_body(&mut random);
        let expected = collect(body.clone()).await;
        let hint = body.size_hint().exact();
        let path = if random.below(4) == 0 { "/exempt" } else { "/7" };

        let sent = body.clone();
        let downloads = PacingLayer::downloads(key_of, limiter.clone()).max_wait(1000 * SECOND);
        let service = downloads.layer(service_fn(move |_: Request<()>| {
            let sent = sent.clone();
            async move { Ok::<_, BoxError>(Response::new(sent)) }
        }));
        if random.below(2) == 0 {
            let response = service.clone().oneshot(request("/7", ())).await.expect("a response");
            let left = timeout(Duration::from_millis(random.below(300)), collect(response.into_body())).await;
            drop(left);
        }
        let response = service.oneshot(request(path, ())).await.expect("a response").into_body();
        assert_eq!(response.size_hint().exact(), hint, "seed {seed}");
        assert_eq!(collect(response).await, expected, "seed {seed}, a download");

        let uploads = PacingLayer::uploads(key_of, limiter).max_wait(1000 * SECOND);
        let service = uploads
            .layer(service_fn(|request: Request<_>| async { Ok::<_, BoxError>(collect(request.into_body()).await) }));
        let received = service.oneshot(request(path, body)).await.expect("a response");
        assert_eq!(received, expected, "seed {seed}, an upload");
    }
}

/// Over HTTP/1 with a length and without one, and over HTTP/2: one frame that is larger than a chunk, in both directions.
#[tokio::test(start_paused = true)]
async fn paced_bodies_are_whole_over_http() {
    let bytes: Bytes = (0..300_000_u32).map(|index| (index % 251) as u8).collect();
    for (version, has_length) in [(1, true), (1, false), (2, true), (2, false)] {
        let bucket = || TokenBucket::new(Quota::per_second(100_000)).burst(20_000);
        let limiter = || memory(bucket(), TokioClock::new());
        let echo = service_fn(move |request: Request<_>| async move {
            let collected = BodyExt::collect(request.into_body()).await.expect("the whole body").to_bytes();
            let body = if has_length {
                Full::new(collected).boxed()
            } else {
                // Without a length.
                Full::new(collected).map_frame(|frame| frame).boxed()
            };
            Ok::<_, Infallible>(Response::new(body))
        });
        let service = tower::ServiceBuilder::new()
            .layer(PacingLayer::downloads(key_of, limiter()))
            .layer(PacingLayer::uploads(key_of, limiter()))
            .service(echo);
        let (client, server) = tokio::io::duplex(1 << 16);
        drop(spawn(async move {
            let (io, service) = (TokioIo::new(server), TowerToHyperService::new(service));
            let served = if version == 1 {
                hyper::server::conn::http1::Builder::new().serve_connection(io, service).await
            } else {
                hyper::server::conn::http2::Builder::new(BoxExecutor).serve_connection(io, service).await
            };
            drop(served);
        }));
        let started = Instant::now();
        let body = Full::new(bytes.clone());
        let sent = Request::post("/7").header("host", "localhost").body(body).expect("a request");
        let response = if version == 1 {
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(client)).await.expect("HTTP/1");
            drop(spawn(connection));
            sender.send_request(sent).await.expect("a response")
        } else {
            let io = TokioIo::new(client);
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(BoxExecutor, io).await.expect("HTTP/2");
            drop(spawn(connection));
            sender.send_request(sent).await.expect("a response")
        };
        let received = response.into_body().collect().await.expect("the whole body").to_bytes();
        assert!(received == bytes, "HTTP/{version}: {} of {} bytes", received.len(), bytes.len());
        let seconds = started.elapsed().as_secs_f64();
        // Up and then down: each 300 kB less a burst at 100 kB a second.
        assert!((5.6..6.1).contains(&seconds), "HTTP/{version}: {seconds} s");
    }
}

/// Unread bytes of a paced upload fill the window of their connection. If that has room for more than one stream, another
/// upload on the connection proceeds.
#[tokio::test(start_paused = true)]
async fn second_upload_on_a_connection_is_not_blocked_by_a_paced_one() {
    const STREAM: u32 = 65_535;
    for (window, proceeds) in [(4 * STREAM, true), (STREAM, false)] {
        let bucket = TokenBucket::new(Quota::per_second(10_000)).burst(10_000);
        let limiter = memory(bucket, TokioClock::new());
        let handler = service_fn(|request: Request<_>| async {
            let collected = BodyExt::collect(request.into_body()).await.expect("the whole body").to_bytes();
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(collected.len().to_string()))))
        });
        let service = PacingLayer::uploads(key_of, limiter).max_wait(1000 * SECOND).layer(handler);
        let (client, server) = tokio::io::duplex(1 << 16);
        let mut builder = hyper::server::conn::http2::Builder::new(BoxExecutor);
        builder.initial_stream_window_size(STREAM).initial_connection_window_size(window);
        drop(spawn(builder.serve_connection(TokioIo::new(server), TowerToHyperService::new(service))));
        let io = TokioIo::new(client);
        let (sender, connection) = hyper::client::conn::http2::handshake(BoxExecutor, io).await.expect("HTTP/2");
        drop(spawn(connection));
        let upload = |path: &str| {
            let body = Full::new(Bytes::from(vec![7; 400_000]));
            let request = Request::post(format!("http://localhost{path}")).body(body).expect("a request");
            let mut sender = sender.clone();
            async move {
                let response = sender.send_request(request).await.expect("a response");
                BodyExt::collect(response.into_body()).await.expect("the whole body").to_bytes()
            }
        };
        let paced = spawn(upload("/1"));
        sleep(SECOND).await;
        let other = timeout(5 * SECOND, upload("/exempt")).await;
        assert_eq!(other.is_ok(), proceeds, "a window of {window} bytes");
        assert!(!paced.is_finished());
    }
}

/// The events have all bytes and the time that they waited, and the error with which a body ends.
#[tokio::test(start_paused = true)]
async fn events_count_bytes_and_waits_by_direction_and_limit() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (downloads, uploads) = (Arc::clone(&seen), Arc::clone(&seen));
    let record = |seen: &Mutex<Vec<_>>, event: &Event<'_>| {
        let Event::Paced { direction, limit, bytes, waited, error, .. } = event else { panic!("{event:?}") };
        let limit = limit.map(str::to_owned);
        assert_eq!(event.limit(), limit.as_deref());
        seen.lock().unwrap().push((direction.name(), limit, *bytes, *waited, error.is_some()));
    };
    let limiter = || {
        let bytes = limit("bytes", TokenBucket::new(Quota::per_second(1_000)).burst(1_000));
        several([bytes], TokioClock::new())
    };
    let service = tower::ServiceBuilder::new()
        .layer(PacingLayer::downloads(key_of, limiter()).max_wait(2 * SECOND).observe(move |event: &Event<'_>| {
            record(&downloads, event);
        }))
        .layer(PacingLayer::uploads(key_of, limiter()).observe(move |event: &Event<'_>| record(&uploads, event)))
        .service(service_fn(|request: Request<_>| async { Ok::<_, BoxError>(Response::new(request.into_body())) }));
    let call = async |path: &str, bytes: usize| {
        let body = Full::new(Bytes::from(vec![1; bytes]));
        let response = service.clone().oneshot(request(path, body)).await.expect("a response");
        BodyExt::collect(response.into_body()).await.map(|body| body.to_bytes().len())
    };
    assert_eq!(call("/1", 3_000).await.expect("all bytes"), 3_000);
    let events = std::mem::take(&mut *seen.lock().unwrap());
    for direction in ["download", "upload"] {
        let of = || events.iter().filter(|(of, ..)| *of == direction);
        assert!(of().all(|(_, limit, .., is_error)| limit.as_deref() == Some("bytes") && !is_error), "{events:?}");
        assert_eq!(of().map(|(_, _, bytes, ..)| bytes).sum::<u64>(), 3_000, "{direction}");
    }
    // The upload waits for what exceeds its burst. The download's bucket fills meanwhile.
    let waited = events.iter().filter(|(of, ..)| *of == "upload").map(|(.., waited, _)| *waited).sum::<Duration>();
    assert!(waited >= 2 * SECOND && waited <= 2 * SECOND + Duration::from_millis(10), "{waited:?}");
    assert_eq!(call("/exempt", 3_000).await.expect("exempt"), 3_000);
    assert!(seen.lock().unwrap().is_empty(), "an exempt body passes unobserved");
    assert!(call("/missing", 10).await.is_err());
    assert_eq!(*seen.lock().unwrap(), [("upload", None, 0, Duration::ZERO, true)]);
}

/// A body ends with an error if the limiter fails, if there is no key, or if a chunk would wait for too long. It passes if
/// no limit applies.
#[tokio::test(start_paused = true)]
async fn body_ends_with_an_error_if_no_byte_may_pass() {
    async fn end(path: &str, limiter: impl Limiter<Key>) -> Result<usize, BoxError> {
        let limiter = BoxLimiter::new(limiter);
        let body = Frames([Part::Data(Bytes::from(vec![1; 3_000]))].into());
        let service =
            PacingLayer::downloads(key_of, limiter).max_wait(SECOND).layer(service_fn(move |_: Request<()>| {
                let body = body.clone();
                async move { Ok::<_, BoxError>(Response::new(body)) }
            }));
        let response = service.oneshot(request(path, ())).await?;
        Ok(BodyExt::collect(response.into_body()).await?.to_bytes().len())
    }

    let window = |limit| memory::<Key>(FixedWindow::new(Quota::per_hour(limit)), TokioClock::new());
    let started = Instant::now();
    assert!(end("/1", StubLimiter::failing()).await.is_err());
    assert!(end("/missing", StubLimiter::from_policy(Verdict::Allowed)).await.is_err());
    assert_eq!(end("/exempt", StubLimiter::failing()).await.expect("exempt"), 3_000);
    let error = end("/1", window(2_000)).await.expect_err("used up");
    assert!(error.source().is_some_and(<dyn std::error::Error>::is::<Error>), "{error:?}");
    assert_eq!(end("/1", window(10)).await.ok(), None, "smaller than the first chunk");
    assert_eq!(end("/1", window(3_000)).await.expect("enough"), 3_000);
    let other = Limit::new("bytes", FixedWindow::new(Quota::per_second(4_000))).keyed_by_some(|_: &u32| None::<u64>);
    assert_eq!(end("/1", several([DynLimit::new(other)], TokioClock::new())).await.expect("no limit applies"), 3_000);
    assert_eq!(started.elapsed(), Duration::ZERO, "refused by position");
}

/// Clients of axum's extractors see errors of the inner body as without the layer, and nothing of the server's causes.
#[tokio::test(start_paused = true)]
async fn extractors_answer_nothing_about_the_server() {
    async fn post<L>(path: &str, limiter: L, body: axum::body::Body) -> (u16, String)
    where
        L: tower_ratelimit::Limiter<Key> + Clone,
    {
        let echo = axum::routing::post(async |body: Bytes| body);
        let mut app = axum::Router::new().route("/{key}", echo).layer(PacingLayer::uploads(key_of, limiter));
        let request = Request::post(path).body(body).expect("a request");
        let response = app.as_service::<axum::body::Body>().oneshot(request).await.expect("a response");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    let body = || axum::body::Body::from("too long");
    let unlimited = StubLimiter::from_policy(Verdict::Allowed);
    assert_eq!(post("/1", unlimited.clone(), body()).await, (200, "too long".to_owned()));
    for (path, limiter) in [("/1", StubLimiter::failing()), ("/missing", unlimited.clone())] {
        let (status, text) = post(path, limiter, body()).await;
        assert!(status == 400 && text.ends_with(": the rate limiter let no more of the body pass"), "{text}");
    }
    let limited = axum::body::Body::new(http_body_util::Limited::new(Full::new(Bytes::from_static(b"too long")), 3));
    assert_eq!(post("/1", unlimited, limited).await.0, 413);
}

/// A hundred streams without data: no decision and no wake-up.
#[tokio::test(start_paused = true)]
async fn idle_streams_ask_for_nothing() {
    struct Idle;

    impl Body for Idle {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Poll::Pending
        }
    }

    let mut service = PacingLayer::downloads(key_of, BoxLimiter::new(StubLimiter::failing()))
        .layer(service_fn(|_: Request<()>| async { Ok::<_, BoxError>(Response::new(Idle)) }));
    let mut streams = Vec::new();
    for _ in 0..100 {
        let body = service.call(request("/1", ())).await.expect("a response").into_body();
        let mut stream = tokio_test::task::spawn(body);
        assert!(stream.enter(|cx, body| body.poll_frame(cx)).is_pending());
        streams.push(stream);
    }
    sleep(100 * SECOND).await;
    assert!(streams.iter().all(|stream| !stream.is_woken()));
}
