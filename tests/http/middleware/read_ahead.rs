//! `ReadAheadLayer`: what the service receives of a body, whatever the order of the polls, and what the layer buffers.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::future::{Future, pending, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::{Body as AxumBody, Bytes};
use axum::routing::post;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tonic::transport::Server;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::response::Grpc;
use tower_ratelimit::{Gcra, Quota, ReadAhead, ReadAheadBody, ReadAheadLayer, TokioClock};

use crate::support::{BoxExecutor, StubLimiter, memory, page_layer, spawn};

/// What the documentation says that a frame counts beside its length.
const OVERHEAD: usize = 320;
const MAX_FRAME: usize = 300;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Data(usize),
    Trailers,
    Error,
}

/// A frame or an error, and what the body says after it.
type Observed = (Option<Result<Vec<u8>, usize>>, bool, u64, Option<u64>);

#[derive(Debug, Default)]
struct State {
    steps: Vec<Step>,
    /// Whether the body knows its length, and that it has ended.
    knows_length: bool,
    /// The number of steps that have arrived, and that were read.
    arrived: usize,
    read: usize,
    waker: Option<Waker>,
    /// The polls with the waker of the layer's future.
    outer: Option<Waker>,
    outer_polls: usize,
    is_dropped: bool,
}

/// A body whose steps arrive when the test says so. The error is the index of its step.
#[derive(Clone, Debug)]
struct Source(Arc<Mutex<State>>);

impl Source {
    fn new(steps: &[Step], knows_length: bool) -> Self {
        Self(Arc::new(Mutex::new(State { steps: steps.to_vec(), knows_length, ..State::default() })))
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.lock().expect("no panic"))
    }

    /// Lets the next step arrive, or the end.
    fn arrive(&self) {
        let waker = self.with(|state| {
            state.arrived += 1;
            state.waker.take()
        });
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The body proper, so that the test notices its drop.
struct SourceBody(Source);

impl Drop for SourceBody {
    fn drop(&mut self) {
        self.0.with(|state| state.is_dropped = true);
    }
}

impl Body for SourceBody {
    type Data = Bytes;
    type Error = usize;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, usize>>> {
        self.0.with(|state| {
            if state.outer.as_ref().is_some_and(|outer| outer.will_wake(cx.waker())) {
                state.outer_polls += 1;
            }
            let index = state.read;
            if index >= state.arrived {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            state.read += 1;
            Poll::Ready(state.steps.get(index).map(|step| match *step {
                Step::Data(length) => Ok(Frame::data(vec![u8::try_from(index).expect("few steps"); length].into())),
                Step::Trailers => Ok(Frame::trailers(trailers(index))),
                Step::Error => Err(index),
            }))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.with(|state| state.knows_length && state.read >= state.steps.len())
    }

    fn size_hint(&self) -> SizeHint {
        self.0.with(|state| {
            let rest = state.steps.iter().skip(state.read).map(|step| match step {
                Step::Data(length) => *length as u64,
                _ => 0,
            });
            let rest = rest.sum();
            if state.knows_length {
                return SizeHint::with_exact(rest);
            }
            let mut hint = SizeHint::new();
            hint.set_lower(rest / 2);
            hint
        })
    }
}

fn trailers(index: usize) -> HeaderMap {
    HeaderMap::from_iter([("x-index".parse().expect("a name"), HeaderValue::from(index))])
}

fn observe(frame: Option<Result<Frame<Bytes>, usize>>, body: &impl Body) -> Observed {
    let frame = frame.map(|frame| {
        frame.map(|frame| match frame.into_data() {
            Ok(data) => data.to_vec(),
            Err(frame) => format!("{:?}", frame.into_trailers().expect("trailers")).into_bytes(),
        })
    });
    let hint = body.size_hint();
    (frame, body.is_end_stream(), hint.lower(), hint.upper())
}

/// What a service observes that reads the body itself.
fn without_layer(steps: &[Step], knows_length: bool) -> Vec<Observed> {
    let source = Source::new(steps, knows_length);
    source.with(|state| state.arrived = steps.len() + 1);
    let mut body = SourceBody(source);
    let mut observed = vec![observe(None, &body)];
    let mut cx = Context::from_waker(Waker::noop());
    while observed.len() == 1 || !is_last(&observed[observed.len() - 1]) {
        let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(&mut cx) else { panic!("all steps have arrived") };
        observed.push(observe(frame, &body));
    }
    observed
}

fn is_last(observed: &Observed) -> bool {
    !matches!(observed.0, Some(Ok(_)))
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type Outer = Pin<Box<dyn Future<Output = Result<Response<Full<Bytes>>, std::convert::Infallible>>>>;

/// A request in a service that waits for ever, and has the body.
struct Run {
    source: Source,
    layer: ReadAheadLayer,
    max_bytes: usize,
    outer: Option<Outer>,
    outer_wakes: Arc<Count>,
    body: Option<ReadAheadBody<SourceBody>>,
    body_wakes: Arc<Count>,
    observed: Vec<Observed>,
    /// The polls by the layer when the service began to read.
    outer_polls_at_start: Option<usize>,
    has_failed: bool,
}

impl Run {
    fn new(steps: &[Step], knows_length: bool, max_bytes: usize) -> Self {
        let source = Source::new(steps, knows_length);
        let layer = ReadAheadLayer::new().max_bytes_per_request(max_bytes);
        let received = Arc::new(Mutex::new(None));
        let receiver = Arc::clone(&received);
        let inner = service_fn(move |request: Request<ReadAheadBody<SourceBody>>| {
            *receiver.lock().expect("no panic") = Some(request.into_body());
            pending::<Result<Response<Full<Bytes>>, _>>()
        });
        let mut service = layer.clone().map_body(|body| body).layer(inner);
        let outer: Outer = Box::pin(service.call(Request::new(SourceBody(source.clone()))));
        let body = received.lock().expect("no panic").take().expect("the service was called");
        let outer_wakes = Arc::new(Count::default());
        source.with(|state| state.outer = Some(Waker::from(Arc::clone(&outer_wakes))));
        let observed = vec![observe(None, &body)];
        Self {
            source,
            layer,
            max_bytes,
            outer: Some(outer),
            outer_wakes,
            body: Some(body),
            body_wakes: Arc::new(Count::default()),
            observed,
            outer_polls_at_start: None,
            has_failed: false,
        }
    }

    fn poll_outer(&mut self) {
        let waker = Waker::from(Arc::clone(&self.outer_wakes));
        let Some(outer) = &mut self.outer else { return };
        if let Poll::Ready(result) = outer.as_mut().poll(&mut Context::from_waker(&waker)) {
            assert_eq!(result.expect("a response").status(), StatusCode::BAD_REQUEST);
            let failed = self.source.with(|state| state.steps[..state.read].contains(&Step::Error));
            assert!(failed, "a response without a body error");
            assert!(self.outer_polls_at_start.is_none(), "the service reads by itself");
            (self.has_failed, self.outer) = (true, None);
        }
        let (read, arrived, ended, unread) = self.source.with(|state| {
            let ended = state.read >= state.steps.len() || state.steps[..state.read].contains(&Step::Error);
            (state.read, state.arrived, ended, state.steps.len() - state.read.min(state.steps.len()))
        });
        let buffered = self.layer.buffered_bytes();
        assert!(buffered <= self.max_bytes + MAX_FRAME + OVERHEAD, "{buffered} bytes");
        if self.outer_polls_at_start.is_none() && self.body.is_some() {
            assert!(read >= arrived || ended || buffered >= self.max_bytes, "{unread} steps unread");
        }
    }

    /// Returns whether the body was ready.
    fn poll_body(&mut self) -> bool {
        let waker = Waker::from(Arc::clone(&self.body_wakes));
        let Some(body) =
            self.body.as_mut().filter(|_| self.observed.len() == 1 || !is_last(self.observed.last().unwrap()))
        else {
            return false;
        };
        self.outer_polls_at_start.get_or_insert(self.source.with(|state| state.outer_polls));
        let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(&mut Context::from_waker(&waker)) else {
            return false;
        };
        let observed = observe(frame, body);
        self.observed.push(observed);
        true
    }

    fn drop_body(&mut self) {
        if self.body.take().is_some() {
            assert!(self.source.with(|state| state.is_dropped), "the body is kept");
            assert_eq!(self.layer.buffered_bytes(), 0);
            self.outer_polls_at_start.get_or_insert(self.source.with(|state| state.outer_polls));
        }
    }

    fn arrive(&mut self) {
        let waits = self.source.with(|state| state.waker.is_some());
        let wakes = || self.outer_wakes.0.load(Ordering::SeqCst) + self.body_wakes.0.load(Ordering::SeqCst);
        let before = wakes();
        self.source.arrive();
        assert_eq!(wakes() - before, usize::from(waits));
    }

    /// The service reads to the end, and is woken for each step.
    fn finish(mut self, expected: &[Observed]) {
        let is_read = self.body.is_some();
        while self.body.is_some() && (self.observed.len() == 1 || !is_last(self.observed.last().unwrap())) {
            if !self.poll_body() {
                let before = self.body_wakes.0.load(Ordering::SeqCst);
                self.arrive();
                assert_eq!(self.body_wakes.0.load(Ordering::SeqCst), before + 1, "a lost wake-up");
            }
            self.poll_outer();
        }
        assert_eq!(self.observed, expected[..self.observed.len()]);
        assert!(!is_read || self.observed.len() == expected.len());
        let polls = self.source.with(|state| state.outer_polls);
        assert_eq!(polls, self.outer_polls_at_start.unwrap_or(polls), "read after the service began to read");
        self.drop_body();
        assert_eq!(self.layer.buffered_bytes(), 0);
    }
}

fn steps() -> impl Strategy<Value = (Vec<Step>, bool)> {
    let data = proptest::collection::vec((0..=MAX_FRAME).prop_map(Step::Data), 0..12);
    let end = prop_oneof![Just(None), Just(Some(Step::Trailers)), Just(Some(Step::Error))];
    (data, end, any::<bool>()).prop_map(|(mut steps, end, knows_length)| {
        steps.extend(end);
        (steps, knows_length)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Frames, trailers, errors, size hints and the end, whatever the order of arrivals, polls and drops.
    #[test]
    fn body_is_unchanged_in_every_order(
        (steps, knows_length) in steps(),
        max_bytes in prop_oneof![Just(0_usize), 1..4000_usize, Just(1 << 20)],
        actions in proptest::collection::vec(0..40_u8, 0..60),
    ) {
        let expected = without_layer(&steps, knows_length);
        // The layer leaves a body alone that has ended.
        prop_assume!(!expected[0].1);
        let mut run = Run::new(&steps, knows_length, max_bytes);
        for action in actions {
            match action {
                0..15 => run.arrive(),
                15..30 => run.poll_outer(),
                // The service begins to read late in most cases.
                30..37 => { run.poll_body(); }
                37 => run.outer = None,
                38 => { let _ = run.body.as_ref().map(|body| (body.size_hint(), body.is_end_stream())); }
                _ => run.drop_body(),
            }
        }
        run.finish(&expected);
    }
}

/// The layer reads in turns with the service, up to the bound, and a full buffer ends the reading for good.
#[test]
fn full_buffer_ends_the_reading() {
    let steps = [Step::Data(100); 10];
    let mut run = Run::new(&steps, false, 2 * (100 + OVERHEAD));
    (0..5).for_each(|_| run.arrive());
    run.poll_outer();
    assert_eq!((run.source.with(|state| state.read), run.layer.buffered_bytes()), (2, 2 * (100 + OVERHEAD)));
    run.poll_outer();
    assert_eq!(run.source.with(|state| (state.read, state.outer_polls)), (2, 2));
    run.finish(&without_layer(&steps, false));
}

/// Requests share the total bound; memory that one request frees is used by the next.
#[test]
fn total_bound_is_shared_by_all_requests() {
    let layer = ReadAheadLayer::new().max_bytes(1000);
    let received = Arc::new(Mutex::new(VecDeque::new()));
    let receiver = Arc::clone(&received);
    let inner = service_fn(move |request: Request<ReadAheadBody<SourceBody>>| {
        receiver.lock().expect("no panic").push_back(request.into_body());
        pending::<Result<Response<Full<Bytes>>, std::convert::Infallible>>()
    });
    let service = layer.clone().map_body(|body| body).layer(inner);
    let call = || {
        let source = Source::new(&[Step::Data(100); 4], false);
        source.with(|state| state.arrived = 4);
        let mut future = Box::pin(service.clone().call(Request::new(SourceBody(source.clone()))));
        let _ = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        (future, source.with(|state| state.read))
    };
    let requests: Vec<_> = (0..4).map(|_| call()).collect();
    let read: usize = requests.iter().map(|(_, read)| read).sum();
    assert_eq!((read, layer.buffered_bytes()), (3, 3 * (100 + OVERHEAD)), "at most one frame above the bound");
    drop(requests);
    assert_eq!(layer.buffered_bytes(), 3 * (100 + OVERHEAD), "the bodies are in the service's hands");
    received.lock().expect("no panic").clear();
    assert_eq!(layer.buffered_bytes(), 0);
    assert_eq!(call().1, 3);
}

/// A body error drops the future of the service, which leaves its queue.
#[test]
fn body_error_ends_the_request() {
    let dropped = Arc::new(());
    let kept = Arc::clone(&dropped);
    let inner = service_fn(move |request: Request<ReadAheadBody<SourceBody>>| {
        let kept = Arc::clone(&kept);
        async move {
            let _kept = (kept, request);
            pending::<Result<Response<Full<Bytes>>, std::convert::Infallible>>().await
        }
    });
    let source = Source::new(&[Step::Data(5), Step::Error], false);
    let mut service = ReadAheadLayer::new().map_body(|body| body).layer(inner);
    let mut future = Box::pin(service.call(Request::new(SourceBody(source.clone()))));
    let mut cx = Context::from_waker(Waker::noop());
    source.arrive();
    assert!(future.as_mut().poll(&mut cx).is_pending());
    assert_eq!(Arc::strong_count(&dropped), 3);
    source.arrive();
    let Poll::Ready(Ok(response)) = future.as_mut().poll(&mut cx) else { panic!("a response") };
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert_eq!(Arc::strong_count(&dropped), 2, "the future is dropped");
    assert!(source.with(|state| state.is_dropped));
}

/// The layer polls no body of a request with `Expect`, and none that has ended.
#[test]
fn request_with_expect_is_left_alone() {
    for (expect, steps, read) in [(true, 3, 0), (false, 3, 3), (false, 0, 0)] {
        let source = Source::new(&vec![Step::Data(1); steps], true);
        source.with(|state| state.arrived = steps);
        let inner = service_fn(|request: Request<ReadAheadBody<SourceBody>>| async move {
            let _request = request;
            pending::<Result<Response<Full<Bytes>>, std::convert::Infallible>>().await
        });
        let mut request = Request::new(SourceBody(source.clone()));
        if expect {
            request.headers_mut().insert("expect", HeaderValue::from_static("100-Continue"));
        }
        let mut service = ReadAheadLayer::new().map_body(|body| body).layer(inner);
        let mut future = Box::pin(service.call(request));
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(source.with(|state| state.read), read, "expect {expect}, {steps} steps");
    }
}

/// The layer takes axum's body and hands on axum's body, in a `Router` and in a `ServiceBuilder`.
#[tokio::test]
async fn axum_services_keep_their_body_type() {
    let limit = || page_layer(StubLimiter::allowing()).cost(|_: &axum::extract::Request| 1);
    let stack = ServiceBuilder::new().layer(ReadAheadLayer::new()).layer(limit());
    let apps: [Router; 2] = [
        Router::new().route("/", post(async |body: String| body)).layer(limit()).layer(ReadAheadLayer::new()),
        Router::new().route("/", post(async |body: String| body)).layer(stack),
    ];
    for app in apps {
        let frames = ["hello ", "world"].map(|text| Ok::<_, axum::BoxError>(Frame::data(Bytes::from(text))));
        let body = AxumBody::new(StreamBody::new(futures_util::stream::iter(frames)));
        let response = app.oneshot(Request::post("/").body(body).expect("a request")).await.expect("a response");
        assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), "hello world");
    }
}

/// The frames, trailers and errors that a service receives after a wait, with and without reading ahead.
#[tokio::test(start_paused = true)]
async fn body_of_a_waiting_request_is_unchanged() {
    let received = async |read_ahead: bool, fails: bool| {
        let limiter = memory(Gcra::new(Quota::per_second(1)).burst(1), TokioClock::new());
        let limit = page_layer(limiter).max_wait(Duration::from_secs(5));
        let limit = if read_ahead { limit } else { limit.read_ahead(0, 0) };
        let service = limit.layer(service_fn(async |request: Request<AxumBody>| {
            let (mut body, mut text) = (request.into_body(), String::new());
            loop {
                write!(text, "{:?}, {}; ", body.size_hint(), body.is_end_stream()).expect("text");
                let Some(frame) = body.frame().await else { break };
                let Ok(frame) = frame.map_err(|error| text.push_str(&error.to_string())) else { break };
                writeln!(text, "{:?} {:?}", frame.data_ref(), frame.trailers_ref()).expect("text");
            }
            Ok::<_, std::convert::Infallible>(Response::new(AxumBody::from(text)))
        }));
        let post = |body| Request::post("/").body(body).expect("a request");
        let _ = service.clone().oneshot(post(AxumBody::empty())).await.expect("a response");
        // A frame each 300 ms: three before the start after one second.
        let frames = futures_util::stream::unfold(0, move |index| async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let frame = match index {
                0..5 => Ok(Frame::data(Bytes::from(vec![b'a' + index; 3]))),
                5 if fails => Err("cut"),
                5 => Ok(Frame::trailers(trailers(5))),
                _ => return None,
            };
            Some((frame, index + 1))
        });
        let response = service.oneshot(post(AxumBody::new(StreamBody::new(frames)))).await.expect("a response");
        String::from_utf8(response.into_body().collect().await.expect("a body").to_bytes().to_vec()).expect("text")
    };
    for fails in [false, true] {
        let text = received(true, fails).await;
        assert_eq!(text, received(false, fails).await);
        assert!(text.contains("eee") && text.contains(if fails { "cut" } else { "x-index" }), "{text}");
    }
}

/// axum's extractors recognise an error behind the layer.
#[tokio::test]
async fn axum_errors_are_unchanged() {
    let service = |layered: bool| {
        let inner = service_fn(async |request: Request<AxumBody>| {
            // The layer has read nothing: the service reads at once.
            let error = request.into_body().collect().await.expect_err("too long").into_inner();
            Ok::<_, std::convert::Infallible>(Response::new(AxumBody::from(format!(
                "{}",
                error.is::<http_body_util::LengthLimitError>()
            ))))
        });
        if layered { ReadAheadLayer::new().layer(inner).boxed_clone() } else { inner.boxed_clone() }
    };
    for layered in [false, true] {
        let body = AxumBody::new(Limited::new(Full::new(Bytes::from_static(b"too long")), 3));
        let response = service(layered).oneshot(Request::new(body)).await.expect("a response");
        assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), "true", "layered: {layered}");
    }
}

/// The layer wraps tonic's server.
#[tokio::test]
async fn tonic_services_keep_their_body_type() {
    let (_reporter, health) = tonic_health::server::health_reporter();
    let limit = page_layer(StubLimiter::allowing()).responder(Grpc::new());
    let server = Server::builder().layer(ReadAheadLayer::new()).layer(limit).add_service(health);
    let (client, connection) = tokio::io::duplex(1 << 16);
    let incoming = futures_util::stream::iter([Ok::<_, std::io::Error>(connection)]);
    let incoming = futures_util::StreamExt::chain(incoming, futures_util::stream::pending());
    spawn(server.serve_with_incoming(incoming));
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(BoxExecutor, TokioIo::new(client)).await.expect("HTTP/2");
    spawn(connection);
    let request = Request::post("http://a/grpc.health.v1.Health/Check").header("content-type", "application/grpc");
    let request = request.body(Full::new(Bytes::from_static(&[0; 5]))).expect("a request");
    let response = client.send_request(request).await.expect("a response");
    let body = response.into_body().collect().await.expect("a body");
    let trailers = body.trailers().expect("trailers");
    assert_eq!(trailers["grpc-status"], "0");
}

/// A response ends the reading: the rest of the body is the service's.
#[test]
fn response_ends_the_reading() {
    let source = Source::new(&[Step::Data(5); 3], false);
    source.with(|state| state.arrived = 3);
    let kept = Arc::new(Mutex::new(None));
    let keeper = Arc::clone(&kept);
    let inner = service_fn(move |request: Request<ReadAheadBody<SourceBody>>| {
        *keeper.lock().expect("no panic") = Some(request);
        ready(Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default())))
    });
    let mut service: ReadAhead<_, _> = ReadAheadLayer::new().map_body(|body| body).layer(inner);
    let mut future = Box::pin(service.call(Request::new(SourceBody(source.clone()))));
    assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    assert_eq!(source.with(|state| state.read), 0);
}
