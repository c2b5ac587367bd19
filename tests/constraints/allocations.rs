//! What a decision costs in allocations, counted by a global allocator from `Service::call` to the response: what is
//! let through costs none, a refusal a few small ones, or none if the responder needs none.
//!
//! Counted on the calling thread only, in Rust's debug build as in the release build. The inner service allocates
//! nothing, the request is made beforehand, and the response is dropped afterwards.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::hash::Hash;
use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use allocation_counter::{AllocationInfo, measure};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use tower::{Layer, Service, service_fn};
use tower_ratelimit::cost::OnlyFailures;
use tower_ratelimit::key::{
    ApiKey, Bearer, Cookie, ExtractKey, Global, Header, Host, KeyText, Method, Path, Pepper, TrustedProxies,
};
use tower_ratelimit::limiter::{BoxLimiter, Limiter};
use tower_ratelimit::observe::Event;
use tower_ratelimit::response::{Http, RejectWithError, Rejection, Respond};
use tower_ratelimit::store::{DefaultHashBuilder, MemoryLimitsFor};
use tower_ratelimit::{
    AcquireOptions, ClientIp, DynLimit, FixedWindow, Gcra, Limit, ManualClock, Memory, PeerIp, Quota, RateLimitLayer,
    SlidingWindow, TokenBucket,
};

type Page = Response<Full<Bytes>>;

fn page(_: Request<()>) -> Ready<Result<Page, Infallible>> {
    ready(Ok(Response::new(Full::default())))
}

/// Counts what is allocated from `call` to the response, which must have this status.
fn count<S>(service: &mut S, request: Request<()>, status: StatusCode) -> AllocationInfo
where
    S: Service<Request<()>, Response = Page, Error = Infallible>,
{
    let (answer, count) = count_any(service, request);
    let Ok(response) = answer;
    assert_eq!(response.status(), status);
    count
}

fn count_any<R, S: Service<R>>(service: &mut S, request: R) -> (Result<S::Response, S::Error>, AllocationInfo) {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
    let mut answer = None;
    let count = measure(|| {
        let mut future = pin!(service.call(request));
        if let Poll::Ready(response) = future.as_mut().poll(&mut cx) {
            answer = Some(response);
        }
    });
    (answer.expect("an answer at once"), count)
}

/// What a thousand allowed requests of a hundred keys allocate: each is new, and then known.
fn count_allowed<S>(service: &mut S, request: impl Fn(u8) -> Request<()>) -> u64
where
    S: Service<Request<()>, Response = Page, Error = Infallible>,
{
    let requests = (0..1000).map(|number: u32| request((number % 100) as u8));
    requests.map(|request| count(service, request, StatusCode::OK).count_total).sum()
}

fn from(last: u8) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(SocketAddr::new(IpAddr::from([192, 0, 2, last]), 4711));
    request
}

const TENANT: Header = Header::from_static("x-tenant");

fn of_tenant(number: u8) -> Request<()> {
    let value = HeaderValue::try_from(format!("tenant number {number}")).expect("a field value");
    Request::get("/").header("x-tenant", value).body(()).expect("a request")
}

/// Longer than is kept as it is: its digest stands for it.
fn of_long_name(number: u8) -> Request<()> {
    let name = format!("{number}{}", "x".repeat(KeyText::MAX_LEN));
    Request::get("/").header("x-tenant", name).body(()).expect("a request")
}

fn bare<K: Clone, A: Clone>(key: K, limiter: A) -> tower_ratelimit::RateLimit<PageService, K, A> {
    RateLimitLayer::new(key, limiter).responder(Http::minimal()).layer(service_fn(page as PageFn))
}

type PageFn = fn(Request<()>) -> Ready<Result<Page, Infallible>>;
type PageService = tower::util::ServiceFn<PageFn>;

fn one_limit() -> Memory<Gcra> {
    Memory::new(Gcra::new(Quota::per_second(1_000_000)))
}

fn three_limits() -> Memory<(Limit<Gcra>, Limit<FixedWindow>, Limit<TokenBucket>)> {
    Memory::new((
        Limit::new("smooth", Gcra::new(Quota::per_second(1_000_000))),
        Limit::new("hourly", FixedWindow::new(Quota::per_hour(1_000_000))),
        Limit::new("daily".to_owned(), TokenBucket::new(Quota::per_day(1_000_000))),
    ))
}

/// The counter counts: else all that follows would prove nothing.
#[test]
fn allocations_are_counted() {
    assert_eq!(measure(|| drop(black_box(Box::new(7)))).count_total, 1);
    assert_eq!(measure(|| drop(black_box(vec![0_u8; 100]))).count_total, 1, "zeroed");
    let mut text = String::from("a");
    assert!(measure(|| text.push_str(black_box("and on it grows"))).count_total >= 1, "reallocated");

    let mut allocating =
        RateLimitLayer::new(Global, one_limit()).responder(Http::minimal()).layer(service_fn(|_: Request<()>| {
            ready(Ok::<_, Infallible>(Response::new(Full::from(black_box(vec![1_u8; 100])))))
        }));
    assert!(count(&mut allocating, from(1), StatusCode::OK).count_total >= 1, "inside of the service too");
}

#[test]
fn what_is_let_through_allocates_nothing() {
    assert_eq!(count_allowed(&mut bare(PeerIp::new(), one_limit()), from), 0, "by the peer's address");
    assert_eq!(count_allowed(&mut bare(TENANT, one_limit()), of_tenant), 0, "by a header");
    assert_eq!(count_allowed(&mut bare(TENANT, one_limit()), of_long_name), 0, "by a long header");
    assert_eq!(count_allowed(&mut bare(Global, one_limit()), from), 0, "by nothing");
    assert_eq!(count_allowed(&mut bare((PeerIp::new(), Global), one_limit()), from), 0, "by a tuple");
}

/// Whoever the request is found to be: behind proxies, by a secret, by what it is for.
#[test]
fn ready_made_keys_allocate_nothing() {
    fn check<K>(what: &str, key: K, fields: &[(&'static str, &str)])
    where
        K: ExtractKey<Request<()>, Key: Hash + Eq> + Clone,
    {
        let request = |number| {
            let mut request = from(1);
            for (name, value) in fields {
                let value = value.replace('#', &format!("{number}"));
                request.headers_mut().append(*name, HeaderValue::try_from(value).expect("a field value"));
            }
            request
        };
        assert_eq!(count_allowed(&mut bare(key, one_limit()), request), 0, "{what}");
    }

    let proxies = || TrustedProxies::parse(["192.0.2.0/24", "10.0.0.0/8"]).expect("networks");
    check("one line", ClientIp::x_forwarded_for(proxies()), &[("x-forwarded-for", "198.51.100.#, 10.0.0.1")]);
    let lines = [("x-forwarded-for", "garbage, \"[2001:db8:#::1]:80\""), ("x-forwarded-for", "10.0.0.#")];
    check("several lines", ClientIp::x_forwarded_for(proxies()), &lines);
    let forwarded = [("forwarded", "for=198.51.100.9, proto=https;for=\"\\[2001:db8:#::1]:80\", for=10.0.0.#")];
    check("Forwarded", ClientIp::forwarded(proxies()), &forwarded);
    let real_ip = ClientIp::header(HeaderName::from_static("x-real-ip"), proxies());
    check("one field", real_ip, &[("x-real-ip", "198.51.100.#")]);

    // The process's pepper is drawn once, which may allocate.
    let _ = Bearer::new().key_of("any");
    let given = Pepper::new(&[7; 32]).expect("long enough");
    check("a token", Bearer::new(), &[("authorization", "Bearer token-#")]);
    check("an API key", ApiKey::from_static("x-api-key").pepper(given), &[("x-api-key", "key-#")]);
    check("a cookie", Cookie::new("id").expect("a name"), &[("cookie", "a=b; id=\"session-#\"; c=d")]);
    check("one or the other", ApiKey::from_static("x-api-key").or(PeerIp::new()), &[("x-api-key", "key-#")]);
    let anyone = ApiKey::from_static("x-api-key").or(Bearer::new()).or(Cookie::new("id").expect("a name"));
    check("the last of many", anyone.or(Host::new()), &[("host", "host-#")]);
    check("what it is for", (Host::new().with_port(), Method, Path), &[("host", "Host-#.Example.:80")]);
}

/// As many limits as a tuple or a list of limits may have, allowed and denied.
#[test]
fn decisions_of_four_to_eight_limits_allocate_nothing() {
    fn check<L>(what: &str, limits: impl Fn(u64) -> L)
    where
        L: MemoryLimitsFor<IpAddr, DefaultHashBuilder>,
    {
        let clock = || ManualClock::new();
        let enough = Memory::builder(limits(1_000_000)).clock(clock()).build().expect("a limiter");
        assert_eq!(count_allowed(&mut bare(PeerIp::new(), enough), from), 0, "{what}, allowed");
        let strict = Memory::builder(limits(1)).clock(clock()).build().expect("a limiter");
        let key = IpAddr::from([192, 0, 2, 1]);
        assert!(strict.check(&key, AcquireOptions::default()).is_allowed());
        let denied = measure(|| assert!(!strict.check(&key, AcquireOptions::default()).is_allowed()));
        assert_eq!(denied.count_total, 0, "{what}, denied");
        let peeked = measure(|| assert!(strict.peek(&key, AcquireOptions::default()).try_ready().is_ok()));
        assert_eq!(peeked.count_total, 0, "{what}, peeked at");
    }
    fn bucket(name: &'static str, limit: u64) -> Limit<Gcra> {
        Limit::new(name, Gcra::new(Quota::per_hour(limit)))
    }
    fn window(name: &'static str, limit: u64) -> Limit<SlidingWindow> {
        Limit::new(name, SlidingWindow::new(Quota::per_hour(limit)))
    }
    check("four limits", |limit| (bucket("a", limit), window("b", limit), bucket("c", limit), window("d", limit)));
    check("five limits", |limit| {
        (bucket("a", limit), bucket("b", limit), window("c", limit), bucket("d", limit), bucket("e", limit))
    });
    check("eight limits", |limit| {
        let first = (bucket("a", limit), window("b", limit), bucket("c", limit), bucket("d", limit));
        (
            first.0,
            first.1,
            first.2,
            first.3,
            bucket("e", limit),
            window("f", limit),
            bucket("g", limit),
            bucket("h", limit),
        )
    });
    for count in [1, 4, 5, 8] {
        check(&format!("{count} limits in a list"), |limit| -> Vec<DynLimit<IpAddr>> {
            let of = |index: usize| Limit::new(format!("limit {index}"), Gcra::new(Quota::per_hour(limit)));
            (0..count).map(|index| DynLimit::new(of(index))).collect()
        });
    }
}

#[test]
fn three_limits_allocate_nothing_either() {
    assert_eq!(count_allowed(&mut bare(PeerIp::new(), three_limits()), from), 0, "by the peer's address");
    assert_eq!(count_allowed(&mut bare(TENANT, three_limits()), of_tenant), 0, "by a header");

    let by_parts = Memory::new((
        Limit::new("both", Gcra::new(Quota::per_second(1_000_000))),
        Limit::new("tenant", SlidingWindow::new(Quota::per_hour(1_000_000)))
            .keyed_by_ref(|(tenant, _): &(KeyText, IpAddr)| tenant),
        Limit::new("network", FixedWindow::new(Quota::per_day(1_000_000)))
            .keyed_by(|(_, peer): &(KeyText, IpAddr)| peer.is_ipv4()),
    ));
    let both = |number| {
        let mut request = of_tenant(number);
        request.extensions_mut().extend(from(number).extensions().clone());
        request
    };
    assert_eq!(count_allowed(&mut bare((TENANT, PeerIp::new()), by_parts), both), 0, "by parts of the key");
}

/// Neither do most of the options: a boxed limiter, a shared one, a cost, exemptions.
#[test]
fn options_allocate_nothing() {
    let boxed: BoxLimiter<IpAddr> = BoxLimiter::new(one_limit());
    assert_eq!(count_allowed(&mut bare(PeerIp::new(), boxed), from), 0, "boxed");
    let shared = std::sync::Arc::new(three_limits());
    assert_eq!(count_allowed(&mut bare(PeerIp::new(), shared), from), 0, "shared");

    let layer = || RateLimitLayer::new(PeerIp::new(), one_limit()).responder(Http::minimal());
    let mut dear = layer().cost(|_: &Request<()>| 3).layer(service_fn(page as PageFn));
    assert_eq!(count_allowed(&mut dear, from), 0, "of a cost");
    let mut exempt = layer().exempt_if(|_: &Request<()>| true).layer(service_fn(page as PageFn));
    assert_eq!(count_allowed(&mut exempt, from), 0, "exempt");
}

/// An observer costs what it does itself: the layer allocates nothing to tell it.
#[test]
fn observers_are_told_for_nothing() {
    let layer = || RateLimitLayer::new(PeerIp::new(), one_limit()).responder(Http::minimal());
    let seen = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&seen);
    let mut observed = layer()
        .observe(move |event: &Event<'_>| {
            counted.fetch_add(usize::from(event.outcome() == Some("allowed")), std::sync::atomic::Ordering::Relaxed);
        })
        .observe(|_: &Event<'_>| ())
        .layer(service_fn(page as PageFn));
    assert_eq!(count_allowed(&mut observed, from), 0, "by closures");
    assert_eq!(seen.load(std::sync::atomic::Ordering::Relaxed), 1000);
}

/// The ready-made ones allocate as a series or a place in the program is seen first, and then no more.
#[test]
fn ready_made_observers_allocate_nothing_after_the_first_request() {
    let layer = || RateLimitLayer::new(PeerIp::new(), one_limit()).responder(Http::minimal());
    let prometheus = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder();
    let prometheus = prometheus.expect("the process's only recorder");
    let metrics = tower_ratelimit::observe::Metrics::new("api");
    let mut counted = layer().observe(metrics).layer(service_fn(page as PageFn));
    count_allowed(&mut counted, from);
    assert_eq!(count_allowed(&mut counted, from), 0, "metrics");
    assert!(prometheus.render().contains("outcome=\"allowed\",source=\"store\"} 2000\n"), "they were counted");
    let mut logged = layer().observe(tower_ratelimit::observe::Tracing::new("api")).layer(service_fn(page as PageFn));
    count_allowed(&mut logged, from);
    assert_eq!(count_allowed(&mut logged, from), 0, "tracing, to which nobody listens");
}

/// A request whose cost is held takes three small allocations until it is settled: the list of limits, the guard, and what the
/// layer keeps of both.
#[test]
fn request_that_is_settled_allocates_three_times() {
    let layer = RateLimitLayer::new(PeerIp::new(), one_limit()).responder(Http::minimal()).settle(OnlyFailures);
    let mut service = layer.layer(service_fn(page as PageFn));
    // The map of held keys allocates as it grows.
    count_allowed(&mut service, from);
    let count = count_allowed(&mut service, from);
    assert!(count <= 3000, "{count} for a thousand requests");
}

/// Other ways to tell of a decision: none of them allocates for what is let through, unless it has something to tell.
#[test]
fn other_responders_allocate_nothing_for_what_is_let_through() {
    let mut map_body = RateLimitLayer::new(PeerIp::new(), one_limit())
        .responder(Http::minimal().map_body())
        .layer(service_fn(page as PageFn));
    let mut as_error =
        RateLimitLayer::new(PeerIp::new(), one_limit()).responder(RejectWithError).layer(service_fn(page as PageFn));
    let mut by_closure = RateLimitLayer::new(PeerIp::new(), one_limit())
        .responder(|_: Request<()>, _: Rejection| Page::default())
        .layer(service_fn(page as PageFn));
    for _ in 0..3 {
        assert_eq!(count_any(&mut map_body, from(1)).1.count_total, 0, "any body");
        assert_eq!(count_any(&mut as_error, from(1)).1.count_total, 0, "errors");
        assert_eq!(count_any(&mut by_closure, from(1)).1.count_total, 0, "a closure");
    }
}

/// A service that allows the first request of each key, with the limiter's clock standing still.
fn once<A, R>(limiter: A, responder: R) -> impl Service<Request<()>, Response = R::Response, Error = R::Error>
where
    A: Limiter<IpAddr> + Clone,
    R: Respond<Request<()>, Page, Infallible> + Clone,
{
    RateLimitLayer::new(PeerIp::new(), limiter).responder(responder).layer(service_fn(page as PageFn))
}

fn one_strict_limit() -> Memory<FixedWindow, ManualClock> {
    Memory::builder(FixedWindow::new(Quota::per_hour(1))).clock(ManualClock::new()).build().expect("a limiter")
}

/// Refusing is what an attacker buys. A responder that needs nothing costs nothing: it is all the limiter's own.
#[test]
fn to_refuse_allocates_nothing_by_itself() {
    fn check<A: Limiter<IpAddr> + Clone>(limiter: A, what: &str) {
        let refuse = |_: Request<()>, _: Rejection| {
            let mut response = Page::default();
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            response
        };
        let mut service = once(limiter, refuse);
        assert_eq!(count(&mut service, from(1), StatusCode::OK).count_total, 0);
        for _ in 0..100 {
            assert_eq!(count(&mut service, from(1), StatusCode::TOO_MANY_REQUESTS).count_total, 0, "{what}");
        }
    }
    check(one_strict_limit(), "one limit");
    let three = (
        Limit::new("smooth", Gcra::new(Quota::per_hour(1))),
        Limit::new("hourly", FixedWindow::new(Quota::per_hour(1))),
        Limit::new("daily".to_owned(), TokenBucket::new(Quota::per_day(9))),
    );
    check(Memory::builder(three).clock(ManualClock::new()).build().expect("a limiter"), "three limits");
}

/// What the ready-made answers cost: 1, 7 and 13 allocations, and 9 to tell all of what is let through, when this was
/// written. The bounds leave some room for what other crates may change in their containers.
#[test]
fn a_ready_made_answer_allocates_little() {
    /// Of the first request, which is let through, and of the second, which is not.
    fn counts<R>(responder: R) -> [AllocationInfo; 2]
    where
        R: Respond<Request<()>, Page, Infallible> + Clone,
    {
        let mut service = once(one_strict_limit(), responder);
        [(); 2].map(|()| count_any(&mut service, from(1)).1)
    }
    // What a thread renders first, it keeps.
    let _ = counts(Http::new());
    let [allowed, telling] = counts(Http::new());
    for (what, count, most) in [
        ("a refusal as an error", counts(RejectWithError)[1], 1),
        ("a bare 429", counts(Http::minimal())[1], 9),
        ("a 429 that tells all", telling, 16),
        ("an allowed answer that tells all", allowed, 12),
    ] {
        println!("{what}: {} allocations, {} bytes in all", count.count_total, count.bytes_total);
        assert!(count.count_total >= 1, "{what}: it is made anew");
        assert!(count.count_total <= most, "{what}: {} allocations", count.count_total);
        assert!(count.bytes_total <= 4096, "{what}: {} bytes", count.bytes_total);
    }
}
