//! What is written to logs: the right things at the right levels, no key, no secret.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::Request;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::cost::OnlyFailures;
use tower_ratelimit::key::{Bearer, Cookie, Extracted, Header, MissingKey};
use tower_ratelimit::observe::Tracing;
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{
    FixedWindow, LeakyQueue, Limiter, ManualClock, Memory, PeerIp, Quota, RateLimitLayer, Redis, RedisServer,
    TokioClock,
};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::support::Broken;

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("the log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Written {
    fn start() -> (Self, impl Drop) {
        let written = Self::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_ansi(false)
            .without_time()
            .with_writer(move || writer.clone());
        (written, subscriber.finish().set_default())
    }

    /// The crate's lines since the last call.
    fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().expect("the log"));
        let text = String::from_utf8(bytes).expect("text");
        text.lines().filter(|line| line.contains("tower_ratelimit")).map(str::to_owned).collect()
    }
}

const SECRET: &str = "hunter2secretvalue";

fn request(name: &str, value: &str) -> Request<()> {
    let mut request = Request::get("/").header(name, value).body(()).expect("a request");
    request.extensions_mut().insert(SocketAddr::from(([203, 0, 113, 77], 4711)));
    request
}

async fn send<K, A>(layer: &RateLimitLayer<K, A, RejectWithError>, request: Request<()>)
where
    K: tower_ratelimit::ExtractKey<Request<()>> + Clone,
    A: Limiter<K::Key> + Clone,
{
    let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    let _ = service.oneshot(request).await;
}

fn once() -> Memory<FixedWindow, ManualClock> {
    Memory::builder(FixedWindow::new(Quota::per_hour(1))).clock(ManualClock::new()).build().expect("a limiter")
}

fn layer<K, A>(key: K, limiter: A) -> RateLimitLayer<K, A, RejectWithError> {
    RateLimitLayer::new(key, limiter).responder(RejectWithError).observe(Tracing::new("api"))
}

fn level(line: &str) -> &str {
    line.split_whitespace().next().expect("a level")
}

/// Whatever becomes of a request, neither its key nor anything else of it is written.
#[tokio::test]
async fn no_secret_and_no_key_is_written() {
    let (written, _guard) = Written::start();
    let bearer = format!("Bearer {SECRET}");
    for _ in 0..2 {
        send(&layer(Bearer::new(), once()), request("authorization", &bearer)).await;
        send(&layer(Bearer::new(), Broken), request("authorization", &bearer)).await;
        send(&layer(Cookie::new("id").expect("a name"), once()), request("cookie", &format!("id={SECRET}"))).await;
        send(&layer(Header::from_static("x-user"), once()), request("x-user", SECRET)).await;
        send(&layer(Header::from_static("x-user"), once()), request("x-user-2", SECRET)).await;
        send(&layer(PeerIp::new(), once()), request("x-any", SECRET)).await;
    }
    let strict = layer(PeerIp::new(), once());
    for _ in 0..3 {
        send(&strict, request("x-any", SECRET)).await;
    }
    let queue = Memory::builder(LeakyQueue::new(Quota::per_second(20))).clock(TokioClock::new()).build();
    let queued = layer(Header::from_static("x-user"), queue.expect("a limiter"));
    send(&queued, request("x-user", SECRET)).await;
    send(&queued, request("x-user", SECRET)).await;

    // A closure that repeats what the client has sent.
    let telling = |request: &Request<()>| -> Extracted<u8> {
        let user = request.headers()["x-user"].to_str().expect("text");
        Extracted::Missing(MissingKey::from_request(format!("there is no user {user}")))
    };
    send(&layer(telling, once()), request("x-user", SECRET)).await;
    once().report(&Tracing::new("api"));

    // Nothing listens there, and the address holds a password.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("its address");
    let server = RedisServer::open(&format!("redis://user:{SECRET}@{free}")).expect("an address");
    let redis = Redis::<tower_ratelimit::key::KeyText>::builder(server, "api", FixedWindow::new(Quota::per_hour(1)));
    let redis = redis.observe(Tracing::new("api")).build().expect("a limiter");
    let remote = layer(Header::from_static("x-user"), redis);
    for _ in 0..6 {
        send(&remote, request("x-user", SECRET)).await;
    }

    let lines = written.take();
    for (text, what) in [
        ("request allowed", "TRACE"),
        ("request denied", "DEBUG"),
        ("request waits", "TRACE"),
        ("request without a key", "DEBUG"),
        ("limiter unavailable", "WARN"),
        ("memory", "TRACE"),
        ("circuit breaker open", "WARN"),
    ] {
        assert!(lines.iter().any(|line| line.contains(text) && level(line) == what), "{text}: {lines:#?}");
    }
    for line in &lines {
        for secret in [SECRET, "203.0.113.77", "4711"] {
            assert!(!line.contains(secret), "{line}");
        }
    }

    // Unless it is asked for.
    let asked =
        RateLimitLayer::new(telling, once()).responder(RejectWithError).observe(Tracing::new("api").log_reasons(true));
    send(&asked, request("x-user", "alice")).await;
    assert!(written.take()[0].contains("there is no user alice"));
}

/// What is wrong with the program is said loudly, once.
#[tokio::test]
async fn warnings_are_said_once() {
    let (written, _guard) = Written::start();
    let no_peer = layer(PeerIp::new(), once());
    for _ in 0..3 {
        send(&no_peer, Request::new(())).await;
    }
    let lines = written.take();
    assert_eq!(lines.iter().map(|line| level(line)).collect::<Vec<_>>(), ["WARN", "DEBUG", "DEBUG"]);
    assert!(lines[0].contains("into_make_service_with_connect_info"), "{}", lines[0]);

    let dear = RateLimitLayer::new(PeerIp::new(), once()).cost(|_: &Request<()>| 2).responder(RejectWithError);
    let dear = dear.observe(Tracing::new("api"));
    for _ in 0..3 {
        let service = dear.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
        let _ = service.oneshot(request("x-any", "x")).await;
    }
    let warnings: Vec<_> = written.take().into_iter().filter(|line| level(line) == "WARN").collect();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains("its cost exceeds the limit"), "{}", warnings[0]);
    assert!(warnings[0].contains("limit=\"default\""), "{}", warnings[0]);
}

/// An outage is a warning and its end is news, however many requests there are.
#[tokio::test]
async fn an_outage_is_said_at_its_beginning_and_its_end() {
    let (written, _guard) = Written::start();
    let tracing = Tracing::new("api");
    let broken = RateLimitLayer::new(PeerIp::new(), Broken).responder(RejectWithError).observe(tracing.clone());
    let mended = RateLimitLayer::new(PeerIp::new(), once()).responder(RejectWithError).observe(tracing);
    for _ in 0..2 {
        for _ in 0..5 {
            send(&broken, request("x-any", "x")).await;
        }
        send(&mended, request("x-any", "x")).await;
    }
    let loud: Vec<_> = written.take().into_iter().filter(|line| matches!(level(line), "WARN" | "INFO")).collect();
    assert_eq!(loud.iter().map(|line| level(line)).collect::<Vec<_>>(), ["WARN", "INFO", "WARN", "INFO"]);
}

/// Settling is told too.
#[tokio::test]
async fn what_is_settled_is_written() {
    let (written, _guard) = Written::start();
    let layer = RateLimitLayer::new(PeerIp::new(), once()).responder(RejectWithError).settle(OnlyFailures);
    let service = layer.observe(Tracing::new("api"));
    let service = service.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(http::Response::new(()))));
    let _ = service.oneshot(request("x-any", "x")).await;
    let lines = written.take();
    assert!(lines.iter().any(|line| line.contains("hold settled") && line.contains("held=1 actual=0")), "{lines:#?}");
}

/// The span around a request learns what became of it, if it has a place for that.
#[tokio::test]
async fn the_span_around_a_request_is_told() {
    use tracing::field::Empty;
    use tracing::{Instrument as _, info, info_span};

    let (written, _guard) = Written::start();
    let service = layer(PeerIp::new(), once()).layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    for outcome in ["allowed", "denied"] {
        let span = info_span!("request", ratelimit.outcome = Empty, ratelimit.limit = Empty);
        let answered = async {
            let _ = service.clone().oneshot(request("x-any", "x")).await;
            info!(target: "tower_ratelimit", "answered");
        };
        answered.instrument(span).await;
        let lines = written.take();
        let last = lines.last().expect("a line");
        let fields = format!("ratelimit.outcome=\"{outcome}\" ratelimit.limit=\"default\"");
        assert!(last.ends_with("answered") && last.contains(&fields), "{last}");
    }
}
