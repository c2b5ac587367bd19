//! Metrics are scraped over HTTP from a server with many concurrent clients, and compared with the responses, number by
//! number.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hash::Hash;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tower_ratelimit::key::{ExactPaths, Header, KeyText};
use tower_ratelimit::limiter::{DeniedCache, FailOpen, Fallback};
use tower_ratelimit::observe::Metrics;
use tower_ratelimit::response::Headers;
use tower_ratelimit::{
    BoxLimiter, DecisionSource, FixedWindow, Gcra, Http, LeakyQueue, Limit, Limiter, ManualClock, Memory, PeerIp,
    Quota, RateLimitInfo, RateLimitLayer, Verdict,
};

use crate::support::{Deferred, FailingLimiter};

/// The labels of `ratelimit_requests_total`: limiter, limit, outcome, source.
type Labels = [String; 4];

/// Adds the limit, outcome and source of the decision to the response, for the clients of the test.
async fn add_grounds(mut response: Response) -> Response {
    let grounds = match response.extensions().get::<RateLimitInfo>() {
        Some(RateLimitInfo::Exempt) => "none exempt none".to_owned(),
        Some(RateLimitInfo::Decided(decision)) => {
            let limit = decision.most_restrictive().map_or("none", |status| status.name());
            let outcome = match decision.verdict() {
                Verdict::Allowed => "allowed",
                Verdict::AllowedAfter(_) => "delayed",
                Verdict::Denied { .. } => "denied",
                Verdict::ExceedsLimit => "exceeds_limit",
            };
            let source = match decision.source() {
                DecisionSource::Store => "store",
                DecisionSource::Cache => "cache",
                DecisionSource::Fallback => "fallback",
                _ => "no_limit",
            };
            format!("{limit} {outcome} {source}")
        }
        None => match response.status().as_u16() {
            400 | 500 => "none missing_key none",
            503 => "none failed none",
            _ => return response,
        }
        .to_owned(),
    };
    response.headers_mut().insert("x-grounds", grounds.parse().expect("a field value"));
    response
}

/// Returns a limited page with its own path and name. The key is `x-tenant`, the cost `x-cost`.
fn limited(name: &str, limiter: impl Limiter<KeyText>) -> Router<PrometheusHandle> {
    let layer = RateLimitLayer::new(Header::from_static("x-tenant"), BoxLimiter::new(limiter))
        .responder(Http::new().headers(Headers::new().response_extension(true)))
        .exempt_if(ExactPaths::new([format!("/{name}/exempt")]))
        .cost(|request: &Request| {
            request.headers().get("x-cost").and_then(|cost| cost.to_str().ok()?.parse().ok()).unwrap_or(1)
        })
        .max_wait(Duration::ZERO)
        .observe(Metrics::new(name));
    let routes = Router::new().route(&format!("/{name}"), get(async || "page"));
    routes.route(&format!("/{name}/exempt"), get(async || "page")).layer(layer)
}

/// Returns a page whose layer holds `x-cost` and settles at `x-actual`.
fn settled(limiter: impl Limiter<KeyText>) -> Router<PrometheusHandle> {
    fn number(fields: &HeaderMap, name: &str) -> u64 {
        fields.get(name).and_then(|number| number.to_str().ok()?.parse().ok()).unwrap_or(1)
    }

    let layer = RateLimitLayer::new(Header::from_static("x-tenant"), BoxLimiter::new(limiter))
        .responder(Http::new().headers(Headers::new().response_extension(true)))
        .cost(|request: &Request| number(request.headers(), "x-cost"))
        .settle(|_: u64, answer: Result<&Response, &Infallible>| number(answer.expect("a page").headers(), "x-actual"))
        .observe(Metrics::new("settled"));
    let page = get(async |fields: HeaderMap| [("x-actual", fields["x-actual"].clone())]);
    Router::new().route("/settled", page).layer(layer)
}

fn window<Key: Hash>(limit: u64, clock: &ManualClock) -> Memory<Key, FixedWindow> {
    Memory::builder(FixedWindow::new(Quota::per_hour(limit))).clock(clock.clone()).build().expect("a limiter")
}

fn app() -> Router {
    // The clock stands still, so that the results do not depend on the speed of the clients.
    let clock = ManualClock::new();
    let several = (
        Limit::new("tenant", Gcra::new(Quota::per_hour(10))).keyed_by(|tenant: &KeyText| *tenant),
        Limit::new("all", FixedWindow::new(Quota::per_hour(60))).keyed_by(|_: &KeyText| ()),
    );
    let several = Memory::builder(several).clock(clock.clone()).build().expect("a limiter");
    let queue = Memory::new(LeakyQueue::new(Quota::per_second(50)).max_waiting(10));
    let (usage, gauged) = (window(1, &clock), Metrics::new("usage"));
    for key in 0..7_u8 {
        let _ = usage.check(&key, tower_ratelimit::AcquireOptions::default());
    }
    let Ok(held) = usage.hold(&7_u8, tower_ratelimit::AcquireOptions::default()).try_ready() else {
        panic!("memory answers immediately")
    };
    let held = Arc::new(held.expect("an outcome").held.expect("a guard"));
    Router::new()
        .merge(limited("several", several))
        .merge(limited("slow", Deferred(BoxLimiter::new(window(20, &clock)), 3)))
        .merge(limited("fallback", Fallback::new(FailingLimiter, window(20, &clock))))
        .merge(limited("cached", DeniedCache::with_clock(window(20, &clock), 1000, clock.clone())))
        .merge(limited("open", FailOpen::new(FailingLimiter)))
        .merge(limited("broken", FailingLimiter))
        .merge(
            Router::new().route("/peer", get(async || "page")).layer(
                // No connect info: the server is misconfigured.
                RateLimitLayer::new(PeerIp::new(), window(1, &clock))
                    .responder(Http::new().headers(Headers::new().response_extension(true)))
                    .observe(Metrics::new("peer")),
            ),
        )
        .merge(
            Router::new().route("/queue", get(async || "page")).layer(
                RateLimitLayer::new(Header::from_static("x-tenant"), BoxLimiter::new(queue))
                    .responder(Http::new().headers(Headers::new().response_extension(true)))
                    .observe(Metrics::new("queue")),
            ),
        )
        .merge(settled(window(100, &clock)))
        .layer(axum::middleware::map_response(add_grounds))
        .route(
            "/metrics",
            get(async move |State(prometheus): State<PrometheusHandle>| {
                // The handler owns the guard, so the cost stays held.
                assert_eq!(held.cost(), 1);
                usage.report_usage(&gauged);
                prometheus.render()
            }),
        )
        .with_state(PrometheusBuilder::new().install_recorder().expect("the process's only recorder"))
}

fn send(address: SocketAddr, path: &str, fields: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Returns the samples of a metric by their label text.
fn samples(page: &str, name: &str) -> BTreeMap<String, f64> {
    let lines = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.split_once("} "));
    lines.map(|(labels, value)| (labels.to_owned(), value.parse().expect("a number"))).collect()
}

fn label<'a>(labels: &'a str, name: &str) -> &'a str {
    let start = labels.find(&format!("{name}=\"")).unwrap_or_else(|| panic!("{labels} has {name}")) + name.len() + 2;
    labels[start..].split('"').next().expect("its value")
}

/// Sends requests whose actual cost is below, equal to and above the held cost. Returns their number.
fn settle_some(address: SocketAddr) -> u64 {
    let costs = [(5, 2), (5, 5), (1, 8), (20, 0)];
    for (cost, actual) in costs {
        let fields = format!("x-tenant: 0\r\nx-cost: {cost}\r\nx-actual: {actual}\r\n");
        assert!(send(address, "/settled", &fields).contains("x-grounds: default allowed store"));
    }
    costs.len() as u64
}

#[test]
fn scraped_metrics_equal_the_responses() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 12;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().expect("a runtime");
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let address = listener.local_addr().expect("its address");
    let _guard = runtime.enter();
    let serving = runtime.spawn(async { axum::serve(listener, app()).await });

    let sent = Arc::new(AtomicU64::new(0));
    let clients = (0..CLIENTS).map(|client| {
        let sent = Arc::clone(&sent);
        std::thread::spawn(move || {
            let mut responses = BTreeMap::<Labels, u64>::new();
            for round in 0..ROUNDS {
                for name in ["several", "slow", "fallback", "cached", "open", "broken", "queue", "peer"] {
                    let tenant = format!("x-tenant: customer-{}\r\n", (client + round) % 3);
                    let requests: [(&str, &str); 4] = match round % 4 {
                        0 => [("", &tenant), ("", &tenant), ("", ""), ("", &tenant)],
                        1 => [("", &tenant), ("/exempt", ""), ("", &tenant), ("", &tenant)],
                        _ => [("", &tenant), ("", &tenant), ("", &tenant), ("", &tenant)],
                    };
                    let plain = matches!(name, "queue" | "peer");
                    for (index, (below, fields)) in requests.into_iter().enumerate() {
                        let below = if plain { "" } else { below };
                        let cost = if index == 3 && round % 4 == 2 && !plain { "x-cost: 1000\r\n" } else { "" };
                        let answer = send(address, &format!("/{name}{below}"), &format!("{fields}{cost}"));
                        sent.fetch_add(1, Ordering::Relaxed);
                        let grounds = answer.lines().find_map(|line| line.strip_prefix("x-grounds: "));
                        let grounds = grounds.unwrap_or_else(|| panic!("{name}: {answer}"));
                        let [limit, outcome, source] = grounds.split(' ').collect::<Vec<_>>()[..] else {
                            panic!("{grounds}")
                        };
                        *responses.entry([name, limit, outcome, source].map(str::to_owned)).or_default() += 1;
                    }
                }
            }
            responses
        })
    });
    let mut answered = BTreeMap::<Labels, u64>::new();
    for client in clients.collect::<Vec<_>>() {
        for (labels, count) in client.join().expect("a client") {
            *answered.entry(labels).or_default() += count;
        }
    }

    let settled = settle_some(address);
    sent.fetch_add(settled, Ordering::Relaxed);
    answered.insert(["settled", "default", "allowed", "store"].map(str::to_owned), settled);

    let page = send(address, "/metrics", "");
    serving.abort();
    let mut scraped = BTreeMap::new();
    for (labels, count) in samples(&page, "ratelimit_requests_total") {
        let key = ["limiter", "limit", "outcome", "source"].map(|name| label(&labels, name).to_owned());
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let former = scraped.insert(key, count as u64);
        assert_eq!(former, None, "{labels} twice");
    }
    assert_eq!(scraped, answered);
    assert_eq!(scraped.values().sum::<u64>(), sent.load(Ordering::Relaxed));

    // Every combination of outcome and source occurred.
    for [outcome, source] in [
        ["allowed", "store"],
        ["denied", "store"],
        ["exceeds_limit", "store"],
        ["denied", "cache"],
        ["allowed", "fallback"],
        ["denied", "fallback"],
        ["allowed", "no_limit"],
        ["delayed", "store"],
        ["exempt", "none"],
        ["missing_key", "none"],
        ["failed", "none"],
    ] {
        assert!(scraped.keys().any(|labels| labels[2..] == [outcome, source]), "{outcome} by {source}: {scraped:#?}");
    }
    // Known counts: ten for each of three tenants, 60 in total; twenty for each tenant elsewhere.
    let count_of = |limiter: &str, outcome: &str| -> u64 {
        let counts = scraped.iter().filter(|(labels, _)| labels[0] == limiter && labels[2] == outcome);
        counts.map(|(_, count)| count).sum()
    };
    assert_eq!(count_of("several", "allowed"), 30);
    assert_eq!([count_of("slow", "allowed"), count_of("fallback", "allowed"), count_of("cached", "allowed")], [60; 3]);
    assert_eq!(count_of("peer", "missing_key"), (CLIENTS * ROUNDS * 4) as u64);

    // The other metrics.
    let one = |name: &str, limiter: &str| -> f64 {
        let all = samples(&page, name);
        all.iter().filter(|(labels, _)| label(labels, "limiter") == limiter).map(|(_, value)| value).sum()
    };
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    let count = |limiter: &str, outcome: &str| count_of(limiter, outcome) as f64;
    assert!((one("ratelimit_misconfigured_total", "peer") - count("peer", "missing_key")).abs() < 0.5);
    assert!((one("ratelimit_waiters", "queue")).abs() < 0.5, "no request waits");
    assert!((one("ratelimit_wait_seconds_count", "queue") - count("queue", "delayed")).abs() < 0.5);
    let pended = count("slow", "allowed") + count("slow", "denied") + count("slow", "exceeds_limit");
    assert!((one("ratelimit_decision_seconds_count", "slow") - pended).abs() < 0.5);
    for (name, expected) in [("settled", 8.0), ("released", 23.0), ("surcharged", 7.0)] {
        assert!((one(&format!("ratelimit_{name}_total"), "settled") - expected).abs() < 0.5, "{name}");
    }
    assert!(one("ratelimit_memory_capacity_keys", "usage") > 99_999.0);
    for (name, expected) in [("keys", 7.0), ("evicted_total", 0.0), ("held_keys", 1.0), ("held", 1.0)] {
        assert!((one(&format!("ratelimit_memory_{name}"), "usage") - expected).abs() < 0.5, "{name}");
    }
    assert!(!page.contains("customer-"), "the metrics contain a key");
}
