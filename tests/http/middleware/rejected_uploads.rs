//! Bodies of rejected requests that the layer reads and discards: clients that send before they read see the response, and
//! a flood costs at most what the documentation says. Time is virtual.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body as AxumBody, Bytes};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::time::{Instant, Sleep, sleep};
use tower::{Layer as _, ServiceBuilder, ServiceExt as _, service_fn};
use tower_ratelimit::{AcquireOptions, Gcra, InFlight, Limiter, ManualClock, Quota, ReadAheadBody, ReadAheadLayer};

use crate::random::Random;
use crate::support::{BoxExecutor, memory, page_layer, spawn};

const SECOND: Duration = Duration::from_secs(1);

/// What the server has read of a body, and since when it has dropped the body.
#[derive(Default)]
struct Seen {
    bytes: u64,
    has_ended: bool,
    dropped: Option<Instant>,
}

/// A body whose frames arrive after pauses.
struct Upload {
    seen: Arc<Mutex<Seen>>,
    left: u64,
    frame: u64,
    pause: Duration,
    knows_length: bool,
    next: Pin<Box<Sleep>>,
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.pause.is_zero() {
            ready!(self.next.as_mut().poll(cx));
            let next = Instant::now() + self.pause;
            self.next.as_mut().reset(next);
        }
        let bytes = self.frame.min(self.left);
        self.left -= bytes;
        let mut seen = self.seen.lock().expect("no panic");
        seen.bytes += bytes;
        seen.has_ended |= self.left == 0;
        let data = vec![0; usize::try_from(bytes).expect("small")];
        Poll::Ready((bytes > 0).then(|| Ok(Frame::data(data.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        if self.knows_length { SizeHint::with_exact(self.left) } else { SizeHint::default() }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.seen.lock().expect("no panic").dropped = Some(Instant::now());
    }
}

/// How the service answers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Reject,
    RejectAfterAFrame,
    RejectWithoutClosing,
    KeepTheBody,
}

async fn answer(request: Request<ReadAheadBody<Upload>>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, mut body) = request.into_parts();
    let answer = *parts.extensions.get::<Answer>().expect("an answer");
    if answer == Answer::RejectAfterAFrame {
        drop(body.frame().await);
    }
    if answer == Answer::KeepTheBody {
        spawn(async move {
            sleep(60 * SECOND).await;
            drop(body);
        });
    }
    let response = Response::builder().status(StatusCode::TOO_MANY_REQUESTS);
    let closes = answer != Answer::RejectWithoutClosing;
    let response = if closes { response.header("connection", "close") } else { response };
    Ok(response.body(Full::default()).expect("a response"))
}

/// The law, against the bounds as the documentation states them: the length of each body, 100 at a time, 10 seconds each,
/// and since the beginning of any body at most the bytes of the seconds since then, and of one more or of the longest body.
#[tokio::test(start_paused = true)]
async fn flood_of_rejected_uploads_costs_at_most_the_bounds() {
    const MAX: u64 = 10_000;
    let (mut read, mut refused, mut full, mut timed_out) = (0, 0, 0, 0);
    for seed in 0..60 {
        let mut random = Random(seed);
        // Few bytes, or few bodies, are the narrower bound.
        let per_second: u64 = [5_000, 15_000, 100_000_000][random.index(3)];
        let at_once = per_second.max(MAX);
        let layer = ReadAheadLayer::new().max_bytes_per_request(0).map_body(|body: ReadAheadBody<Upload>| body);
        let service = layer.drain_rejected(MAX, per_second).layer(service_fn(answer));
        // Of each body that must be read: its beginning, its cost, and what is seen of it.
        let mut begun: Vec<(Instant, u64, u64, Arc<Mutex<Seen>>)> = Vec::new();
        for step in 0..400 {
            // Fast enough for a hundred open bodies, or slow enough for bytes to become free again.
            let is_pause = random.below(20) == 0;
            let longest = if per_second > 15_000 { 5_000 } else { 50_000 * if is_pause { 40 } else { 1 } };
            sleep(Duration::from_micros(random.below(longest))).await;
            let (now, seen) = (Instant::now(), Arc::<Mutex<Seen>>::default());
            let (length, frame) = (1 + random.below(MAX * 5 / 4), 1 + random.below(2_000));
            let knows_length = random.below(3) > 0;
            let pause = Duration::from_millis(
                [0, random.below(100), random.below(10_000), random.below(10_000)][random.index(4)],
            );
            let answer = [Answer::Reject, Answer::RejectAfterAFrame, Answer::RejectWithoutClosing, Answer::KeepTheBody]
                [usize::try_from(random.below(24)).map_or(0, |which| if which < 4 { which } else { 0 })];
            let next = Box::pin(sleep(pause));
            let body = Upload { seen: Arc::clone(&seen), left: length, frame, pause, knows_length, next };
            let expects = random.below(12) == 0;
            let request = Request::post("/").extension(answer);
            let request = if expects { request.header("expect", "100-continue") } else { request };
            let response = service.clone().oneshot(request.body(body).expect("a request")).await.expect("a response");
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
            let place = format!("seed {seed}, step {step}, {answer:?}");
            let now = if answer == Answer::RejectAfterAFrame { Instant::now() } else { now };
            assert_eq!(now, Instant::now(), "{place}: the response waits for no body");

            let cost = if knows_length { length } else { MAX };
            let open = begun.iter().filter(|(.., seen)| seen.lock().expect("no panic").dropped.is_none()).count();
            let mut sum = cost;
            let is_within_rate = cost <= at_once
                && begun.iter().rev().all(|(at, cost, ..)| {
                    sum += cost;
                    let since = u128::from(per_second) * (now - *at).as_micros();
                    u128::from(sum) * 1_000_000 <= u128::from(at_once) * 1_000_000 + since
                });
            let may_read = answer == Answer::Reject && !expects;
            let is_read = may_read && cost <= MAX && open < 100 && is_within_rate;
            full += u64::from(may_read && open >= 100);
            refused += u64::from(may_read && !is_read);
            let state = seen.lock().expect("no panic");
            if is_read {
                assert_eq!(state.dropped, None, "{place}");
                drop(state);
                begun.push((now, cost, length, seen));
            } else if answer != Answer::KeepTheBody {
                assert_eq!(state.dropped, Some(now), "{place}");
                assert_eq!(
                    state.bytes,
                    if answer == Answer::RejectAfterAFrame { frame.min(length) } else { 0 },
                    "{place}"
                );
            }
        }
        sleep(11 * SECOND).await;
        for (at, cost, length, seen) in begun {
            let seen = seen.lock().expect("no panic");
            let lasted = seen.dropped.expect("dropped") - at;
            assert!(lasted <= 10 * SECOND + Duration::from_millis(1), "seed {seed}: {lasted:?}");
            if lasted < 10 * SECOND {
                // One frame more shows that a body without a length is too long.
                assert!(seen.has_ended || (length > cost && seen.bytes <= cost + 2_000), "seed {seed}: {}", seen.bytes);
                read += 1;
            } else {
                timed_out += 1;
            }
        }
    }
    assert!(read > 2_000 && refused > 1_000 && full > 100 && timed_out > 100, "{read} {refused} {full} {timed_out}");
}

/// Sends a request whole before it reads, and returns the status line. `None` if the connection broke.
async fn send_first(service: impl Fn(tokio::io::DuplexStream), length: usize) -> Option<String> {
    let (mut client, server) = duplex(64 << 10);
    service(server);
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
    client.write_all(head.as_bytes()).await.ok()?;
    for piece in vec![b'a'; length].chunks(10_000) {
        // Later than the response.
        sleep(Duration::from_millis(2)).await;
        client.write_all(piece).await.ok()?;
    }
    let mut response = String::new();
    client.read_to_string(&mut response).await.ok()?;
    assert!(response.contains("connection: close") && response.contains("retry-after: "), "{response}");
    response.lines().next().map(str::to_owned)
}

/// The limiter does not read the body for itself, so the layer around it can discard the body.
#[tokio::test(start_paused = true)]
async fn upload_that_is_rejected_after_a_wait_is_discarded() {
    let limiter = memory(InFlight::new(1), ManualClock::new());
    let first = limiter.acquire(&(), AcquireOptions::default().keep_guard()).await.expect("a decision");
    let seen = Arc::<Mutex<Seen>>::default();
    let service = ServiceBuilder::new()
        .layer(ReadAheadLayer::new().drain_rejected(100_000, 100_000).map_body(AxumBody::new))
        .layer(page_layer(limiter).release_on_body_end().max_wait(SECOND))
        .service(service_fn(async |_: Request<AxumBody>| Ok::<_, Infallible>(Response::new(AxumBody::empty()))));
    let next = Box::pin(sleep(Duration::ZERO));
    let (left, frame, pause) = (90_000, 1_000, SECOND / 10);
    let body = Upload { seen: Arc::clone(&seen), left, frame, pause, knows_length: true, next };
    let request = Request::post("/").header("content-length", left).body(body).expect("a request");
    let response = service.oneshot(request).await.expect("a response");
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(first);
    sleep(20 * SECOND).await;
    assert!(seen.lock().expect("no panic").has_ended);
}

/// With hyper's server, which closes a connection behind a response whose request it has not read.
#[tokio::test(start_paused = true)]
async fn client_that_sends_first_sees_the_rejection() {
    for (drains, bytes, expected) in
        [(true, 3_000_000, true), (true, 1_000, true), (true, 5_000_000, false), (false, 3_000_000, false)]
    {
        let limiter = memory(Gcra::new(Quota::per_hour(1)), ManualClock::new());
        assert!(limiter.check(&(), 1).await.expect("a decision").is_allowed());
        let layer = ReadAheadLayer::new();
        let layer = if drains { layer.drain_rejected(4_000_000, 20_000_000) } else { layer };
        let service = ServiceBuilder::new()
            .layer(layer.map_body(|body: ReadAheadBody<Incoming>| body))
            .layer(page_layer(limiter))
            .service(service_fn(async |_: Request<ReadAheadBody<Incoming>>| {
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
            }));
        let serve = |server| {
            let service = TowerToHyperService::new(service.clone());
            let builder = auto::Builder::new(BoxExecutor);
            spawn(async move { drop(builder.serve_connection(TokioIo::new(server), service).await) });
        };
        let status = send_first(serve, bytes).await;
        assert_eq!(status.as_deref(), expected.then_some("HTTP/1.1 429 Too Many Requests"), "{drains}, {bytes}");
    }
}
