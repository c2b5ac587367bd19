//! Log lines: levels and contents, without keys and secrets.

use std::hash::Hash;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::cost::OnlyFailures;
use tower_ratelimit::key::{Credential, Extracted, Header, MissingKey};
use tower_ratelimit::limiter::{LimiterFuture, Observed, Outcome};
use tower_ratelimit::observe::{Metrics, Tracing};
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Costs, Decision, ExtractKey, FixedWindow, LeakyQueue, Limit, Limiter, ManualClock,
    Memory, PeerIp, Quota, RateLimitLayer, Redis, RedisServer, ReservationId, Timestamp, TokioClock, Verdict,
};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::support::{FailingLimiter, RecordedEvents};

#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("the log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl CapturedLog {
    fn start() -> (Self, impl Drop) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_ansi(false)
            .without_time()
            .with_writer(move || writer.clone());
        (log, subscriber.finish().set_default())
    }

    /// Removes and returns the lines of this crate since the last call.
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

async fn send<K>(layer: &RateLimitLayer<K, BoxLimiter<K::Key>, RejectWithError>, request: Request<()>)
where
    K: ExtractKey<Request<()>, Key: Hash + Send + Sync + 'static> + Clone,
{
    let _ = layer.layer(page()).oneshot(request).await;
}

fn page() -> BoxCloneSyncService<Request<()>, Response<()>, BoxError> {
    BoxCloneSyncService::new(service_fn(async |_: Request<()>| Ok(Response::new(()))))
}

fn once<Key: Hash + 'static>() -> BoxLimiter<Key> {
    BoxLimiter::new(memory())
}

fn memory<Key: Hash>() -> Memory<Key, FixedWindow> {
    Memory::builder(FixedWindow::new(Quota::per_hour(1))).clock(ManualClock::new()).build().expect("a limiter")
}

fn layer<K, Key: 'static>(key: K, limiter: impl Limiter<Key>) -> RateLimitLayer<K, BoxLimiter<Key>, RejectWithError> {
    unobserved(key, limiter).observe(Tracing::new("api"))
}

fn unobserved<K, Key: 'static>(
    key: K,
    limiter: impl Limiter<Key>,
) -> RateLimitLayer<K, BoxLimiter<Key>, RejectWithError> {
    RateLimitLayer::new(key, BoxLimiter::new(limiter)).responder(RejectWithError)
}

fn level(line: &str) -> &str {
    line.split_whitespace().next().expect("a level")
}

/// For every outcome of a request, the log contains neither its key nor its other values.
#[tokio::test]
async fn log_contains_no_secret_and_no_key() {
    let (log, _guard) = CapturedLog::start();
    let bearer = format!("Bearer {SECRET}");
    for _ in 0..2 {
        send(&layer(Credential::bearer(), once()), request("authorization", &bearer)).await;
        send(&layer(Credential::bearer(), FailingLimiter), request("authorization", &bearer)).await;
        send(&layer(Credential::cookie("id"), once()), request("cookie", &format!("id={SECRET}"))).await;
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

    // A closure whose reason repeats a value from the client.
    let with_reason = |request: &Request<()>| -> Extracted<u8> {
        let user = request.headers()["x-user"].to_str().expect("text");
        Extracted::Missing(MissingKey::from_request(format!("there is no user {user}")))
    };
    send(&layer(with_reason, once()), request("x-user", SECRET)).await;
    memory::<u8>().report_usage(&Tracing::new("api"));

    // No server listens there, and the address contains a password.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("its address");
    let server = RedisServer::open(&format!("redis://user:{SECRET}@{free}")).expect("an address");
    let redis = Redis::<tower_ratelimit::key::KeyText>::builder(server, "api", FixedWindow::new(Quota::per_hour(1)));
    let redis = redis.observe(Tracing::new("api")).build().expect("a limiter");
    let remote = layer(Header::from_static("x-user"), redis);
    for _ in 0..6 {
        send(&remote, request("x-user", SECRET)).await;
    }

    let lines = log.take();
    for (text, expected) in [
        ("request allowed", "TRACE"),
        ("request denied", "DEBUG"),
        ("request waits", "TRACE"),
        ("request without a key", "DEBUG"),
        ("limiter unavailable", "WARN"),
        ("memory", "TRACE"),
        ("circuit breaker open", "WARN"),
    ] {
        assert!(lines.iter().any(|line| line.contains(text) && level(line) == expected), "{text}: {lines:#?}");
    }
    for line in &lines {
        for secret in [SECRET, "203.0.113.77", "4711"] {
            assert!(!line.contains(secret), "{line}");
        }
    }

    // The reason is logged if configured.
    let reasons = Tracing::new("api").log_reasons(true);
    let reasons = unobserved(with_reason, once()).observe(reasons);
    send(&reasons, request("x-user", "alice")).await;
    assert!(log.take()[0].contains("there is no user alice"));
}

/// A misconfiguration is logged as a warning once.
#[tokio::test]
async fn warnings_are_logged_once() {
    let (log, _guard) = CapturedLog::start();
    let no_peer = layer(PeerIp::new(), once());
    for _ in 0..3 {
        send(&no_peer, Request::new(())).await;
    }
    let lines = log.take();
    assert_eq!(lines.iter().map(|line| level(line)).collect::<Vec<_>>(), ["WARN", "DEBUG", "DEBUG"]);
    assert!(lines[0].contains("into_make_service_with_connect_info"), "{}", lines[0]);

    let too_costly = layer(PeerIp::new(), once()).cost(|_: &Request<()>| 2).layer(page());
    for _ in 0..3 {
        let _ = too_costly.clone().oneshot(request("x-any", "x")).await;
    }
    let warnings: Vec<_> = log.take().into_iter().filter(|line| level(line) == "WARN").collect();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains("its cost exceeds the limit"), "{}", warnings[0]);
    assert!(warnings[0].contains("limit=\"default\""), "{}", warnings[0]);

    // A plan without units.
    let none = Memory::builder(FixedWindow::new(Quota::per_day(0))).clock(ManualClock::new()).build();
    send(&layer(PeerIp::new(), none.expect("a limiter")), request("x-any", "x")).await;
    let lines = log.take();
    assert!(lines.iter().all(|line| level(line) == "DEBUG") && !lines.is_empty(), "{lines:#?}");
}

/// The beginning of an outage is one warning and its end one info line, however many requests fail.
#[tokio::test]
async fn outage_is_logged_at_its_beginning_and_its_end() {
    let (log, _guard) = CapturedLog::start();
    let tracing = Tracing::new("api");
    let broken = unobserved(PeerIp::new(), FailingLimiter).observe(tracing.clone());
    let mended = unobserved(PeerIp::new(), once()).observe(tracing);
    for _ in 0..2 {
        for _ in 0..5 {
            send(&broken, request("x-any", "x")).await;
        }
        send(&mended, request("x-any", "x")).await;
    }
    let loud_lines: Vec<_> = log.take().into_iter().filter(|line| matches!(level(line), "WARN" | "INFO")).collect();
    assert_eq!(loud_lines.iter().map(|line| level(line)).collect::<Vec<_>>(), ["WARN", "INFO", "WARN", "INFO"]);
}

/// A limiter that decides each call in the same way.
struct Deciding(fn() -> Outcome);

impl<Key: ?Sized> Limiter<Key> for Deciding {
    fn acquire(&self, _key: &Key, _options: AcquireOptions) -> LimiterFuture<Outcome> {
        LimiterFuture::ready(Ok((self.0)()))
    }
}

fn without_limit(verdict: Verdict) -> Outcome {
    Outcome::new(Decision::without_limit(Timestamp::EPOCH, verdict), None)
}

/// A full table that denies new keys is no outage: clients could flood the log.
#[tokio::test]
async fn denial_without_a_limit_is_no_outage() {
    let (log, _guard) = CapturedLog::start();
    let tracing = Tracing::new("api");
    let loud_lines = async |decide: fn() -> Outcome| {
        for _ in 0..3 {
            send(&unobserved(PeerIp::new(), Deciding(decide)).observe(tracing.clone()), request("x-any", "x")).await;
            send(&unobserved(PeerIp::new(), once()).observe(tracing.clone()), request("x-any", "x")).await;
        }
        log.take().into_iter().filter(|line| matches!(level(line), "WARN" | "INFO")).count()
    };
    assert_eq!(loud_lines(|| without_limit(Verdict::Denied { retry_after: Duration::from_secs(1) })).await, 0);
    assert_eq!(loud_lines(|| without_limit(Verdict::Allowed)).await, 6, "as by `FailOpen`");
}

/// Clients choose how often a cost in an unknown unit occurs. It hides no outage.
#[tokio::test]
async fn misconfiguration_is_logged_once_and_is_no_outage() {
    let (log, _guard) = CapturedLog::start();
    let (recorder, events) = (PrometheusBuilder::new().build_recorder(), RecordedEvents::default());
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let limits = Limit::new("requests", FixedWindow::new(Quota::per_hour(1))).cost_of("requests");
    let limiter = Memory::<str, _>::builder(limits).clock(ManualClock::new()).build().expect("a limiter");
    let tracing = Tracing::new("api");
    let observed = Observed::new(limiter, tracing.clone()).observe(Metrics::new("api")).observe(events.clone());
    for _ in 0..3 {
        let unknown = Costs::new().add("tokens", 1);
        assert!(observed.check("alice", unknown).await.is_err_and(|error| error.is_config()));
        let _decided = observed.check("alice", Costs::new().add("requests", 1)).await.expect("a decision");
    }
    assert_eq!(events.take().iter().filter(|event| *event == "failed").count(), 3);
    assert!(recorder.handle().render().contains("ratelimit_misconfigured_total{limiter=\"api\"} 3"));
    let loud_lines =
        || log.take().into_iter().filter(|line| matches!(level(line), "WARN" | "INFO")).collect::<Vec<_>>();
    let lines = loud_lines();
    assert!(lines.len() == 1 && lines[0].contains("misconfigured"), "{lines:#?}");

    send(&unobserved(PeerIp::new(), FailingLimiter).observe(tracing), request("x-any", "x")).await;
    let lines = loud_lines();
    assert!(lines.len() == 1 && lines[0].contains("limiter unavailable"), "{lines:#?}");
}

/// A limiter whose holds have ids: a repeat of one, also with another cost or after the settlement, concerns one request.
#[tokio::test]
async fn conflict_of_a_reservation_id_is_no_outage() {
    let (log, _guard) = CapturedLog::start();
    let limiter = Memory::<str, _>::builder(FixedWindow::new(Quota::per_hour(9))).clock(ManualClock::new());
    let events = RecordedEvents::default();
    let limiter = limiter.build().expect("a limiter");
    let limiter = Observed::new(limiter, Tracing::new("api")).observe(events.clone());
    let id = ReservationId::new("one");
    let hold = |cost| limiter.hold("alice", AcquireOptions::cost(cost).id(id));
    let _first = hold(1).await.expect("a hold");
    assert!(hold(1).await.is_ok_and(|repeat| repeat.decision.is_repeat() && !repeat.decision.is_allowed()));
    assert!(hold(2).await.is_err_and(|error| error.is_id_conflict()));
    limiter.settle("alice", id, 1).await.expect("settled");
    assert!(hold(1).await.is_err_and(|error| error.is_already_settled()));
    let count = |lines: &[String], text: &str| lines.iter().filter(|line| line.starts_with(text)).count();
    let lines: Vec<_> = log.take().iter().map(|line| line.trim_start().to_owned()).collect();
    assert_eq!(["WARN", "INFO", "DEBUG"].map(|level| count(&lines, level)), [0, 0, 3], "{lines:#?}");
    let events = events.take();
    let outcomes = ["failed", "denied", "conflict"];
    assert_eq!(outcomes.map(|outcome| count(&events, outcome)), [0, 0, 3], "{events:#?}");
}

#[tokio::test]
async fn settlement_is_logged() {
    let (log, _guard) = CapturedLog::start();
    let service = layer(PeerIp::new(), once()).settle(OnlyFailures).layer(page());
    let _ = service.oneshot(request("x-any", "x")).await;
    let lines = log.take();
    assert!(lines.iter().any(|line| line.contains("hold settled") && line.contains("held=1 actual=0")), "{lines:#?}");
}

/// The span around a request records the outcome, if it declares the fields.
#[tokio::test]
async fn span_records_the_outcome() {
    use tracing::field::Empty;
    use tracing::{Instrument as _, info, info_span};

    let (log, _guard) = CapturedLog::start();
    let service = layer(PeerIp::new(), once()).layer(page());
    for outcome in ["allowed", "denied"] {
        let span = info_span!("request", ratelimit.outcome = Empty, ratelimit.limit = Empty);
        let answered = async {
            let _ = service.clone().oneshot(request("x-any", "x")).await;
            info!(target: "tower_ratelimit", "answered");
        };
        answered.instrument(span).await;
        let lines = log.take();
        let last = lines.last().expect("a line");
        let fields = format!("ratelimit.outcome=\"{outcome}\" ratelimit.limit=\"default\"");
        assert!(last.ends_with("answered") && last.contains(&fields), "{last}");
    }
}
