//! Allocations of a decision, counted by a global allocator from `Service::call` to the response.
//!
//! An allowed request allocates nothing. A denied one allocates a few times for its response, or never with a responder
//! that needs none. Only the calling thread is counted. The inner service allocates nothing, the request is built
//! before, and the response is dropped afterwards. The counts are equal in debug and release builds.

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
use tower_ratelimit::key::{Credential, Global, Header, Host, KeyText, Method, Path, Pepper, TrustedProxies};
use tower_ratelimit::observe::Event;
use tower_ratelimit::response::{BoxError, RejectWithError, Rejection};
use tower_ratelimit::store::MemoryLimits;
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, ClientIp, Costs, Detail, DynLimit, ExtractKey, FixedWindow, Gcra, Http, InFlight,
    Limit, Limiter, ManualClock, Memory, PeerIp, Quota, RateLimitLayer, Respond, SlidingWindow, TokenBucket,
};

type Page = Response<Full<Bytes>>;

fn page(_: Request<()>) -> Ready<Result<Page, BoxError>> {
    ready(Ok(Response::new(Full::default())))
}

/// Counts the allocations from `call` to the response and checks its status.
fn count<S>(service: &mut S, request: Request<()>, status: StatusCode) -> AllocationInfo
where
    S: Service<Request<()>, Response = Page, Error = BoxError>,
{
    let (result, count) = count_any(service, request);
    let Ok(response) = result else { panic!("a response") };
    assert_eq!(response.status(), status);
    count
}

fn count_any<R, S: Service<R>>(service: &mut S, request: R) -> (Result<S::Response, S::Error>, AllocationInfo) {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
    let mut result = None;
    let count = measure(|| {
        let mut future = pin!(service.call(request));
        if let Poll::Ready(response) = future.as_mut().poll(&mut cx) {
            result = Some(response);
        }
    });
    (result.expect("a ready response"), count)
}

/// Counts the allocations of a thousand allowed requests of a hundred keys that have a slot. A table that grows for new keys
/// allocates.
fn count_allowed<S>(service: &mut S, request: impl Fn(u8) -> Request<()>) -> u64
where
    S: Service<Request<()>, Response = Page, Error = BoxError>,
{
    for number in 0..100 {
        count(service, request(number), StatusCode::OK);
    }
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

/// A header value above the inline length, which the extractor replaces by a digest.
fn of_long_name(number: u8) -> Request<()> {
    let name = format!("{number}{}", "x".repeat(KeyText::MAX_LEN));
    Request::get("/").header("x-tenant", name).body(()).expect("a request")
}

fn minimal<K: Clone, A: Clone>(key: K, limiter: A) -> tower_ratelimit::RateLimit<PageService, K, A> {
    RateLimitLayer::new(key, limiter).responder(Http::without_headers()).layer(service_fn(page as PageFn))
}

type PageFn = fn(Request<()>) -> Ready<Result<Page, BoxError>>;
type PageService = tower::util::ServiceFn<PageFn>;

fn one_limit<Key: Hash + ?Sized>() -> Memory<Key, Gcra> {
    Memory::new(Gcra::new(Quota::per_second(1_000_000)))
}

fn three_limits<Key: Hash + ?Sized>() -> Memory<Key, (Limit<Gcra>, Limit<FixedWindow>, Limit<TokenBucket>)> {
    Memory::new((
        Limit::new("smooth", Gcra::new(Quota::per_second(1_000_000))),
        Limit::new("hourly", FixedWindow::new(Quota::per_hour(1_000_000))),
        Limit::new("daily".to_owned(), TokenBucket::new(Quota::per_day(1_000_000))),
    ))
}

/// Checks that the allocator counts, because otherwise the other tests would prove nothing.
#[test]
fn allocations_are_counted() {
    assert_eq!(measure(|| drop(black_box(Box::new(7)))).count_total, 1);
    assert_eq!(measure(|| drop(black_box(vec![0_u8; 100]))).count_total, 1, "zeroed");
    let mut text = String::from("a");
    assert!(measure(|| text.push_str(black_box("and more text"))).count_total >= 1, "reallocated");

    let mut allocating = RateLimitLayer::new(Global, one_limit()).responder(Http::without_headers()).layer(service_fn(
        |_: Request<()>| ready(Ok::<_, BoxError>(Response::new(Full::from(black_box(vec![1_u8; 100]))))),
    ));
    assert!(count(&mut allocating, from(1), StatusCode::OK).count_total >= 1, "allocations inside the service count");
}

#[test]
fn allowed_request_allocates_nothing() {
    assert_eq!(count_allowed(&mut minimal(PeerIp::new(), one_limit()), from), 0, "by the peer's address");
    assert_eq!(count_allowed(&mut minimal(TENANT, one_limit()), of_tenant), 0, "by a header");
    assert_eq!(count_allowed(&mut minimal(TENANT, one_limit()), of_long_name), 0, "by a long header");
    assert_eq!(count_allowed(&mut minimal(Global, one_limit()), from), 0, "by no key");
    assert_eq!(count_allowed(&mut minimal((PeerIp::new(), Global), one_limit()), from), 0, "by a tuple");
}

/// Key extractors for addresses behind proxies, secrets and request targets.
#[test]
fn key_extractors_allocate_nothing() {
    fn check<K>(description: &str, key: K, fields: &[(&'static str, &str)])
    where
        K: ExtractKey<Request<()>, Key: Hash + Eq + Send + Sync + 'static> + Clone,
    {
        let request = |number| {
            let mut request = from(1);
            for (name, value) in fields {
                let value = value.replace('#', &format!("{number}"));
                request.headers_mut().append(*name, HeaderValue::try_from(value).expect("a field value"));
            }
            request
        };
        assert_eq!(count_allowed(&mut minimal(key, one_limit()), request), 0, "{description}");
    }

    let proxies = || TrustedProxies::parse(["192.0.2.0/24", "10.0.0.0/8"]).expect("networks");
    check("one line", ClientIp::x_forwarded_for(proxies()), &[("x-forwarded-for", "198.51.100.#, 10.0.0.1")]);
    let lines = [("x-forwarded-for", "garbage, \"[2001:db8:#::1]:80\""), ("x-forwarded-for", "10.0.0.#")];
    check("several lines", ClientIp::x_forwarded_for(proxies()), &lines);
    let forwarded = [("forwarded", "for=198.51.100.9, proto=https;for=\"\\[2001:db8:#::1]:80\", for=10.0.0.#")];
    check("Forwarded", ClientIp::forwarded(proxies()), &forwarded);
    let real_ip = ClientIp::header(HeaderName::from_static("x-real-ip"), proxies());
    check("one field", real_ip, &[("x-real-ip", "198.51.100.#")]);

    // The process secret is generated once, which may allocate.
    let _ = Credential::bearer().key_of("any");
    let given = Pepper::new(&[7; 32]).expect("long enough");
    check("a token", Credential::bearer(), &[("authorization", "Bearer token-#")]);
    check("an API key", Credential::api_key("x-api-key").pepper(given), &[("x-api-key", "key-#")]);
    check("a cookie", Credential::cookie("id"), &[("cookie", "a=b; id=\"session-#\"; c=d")]);
    check("a key or another one", Credential::api_key("x-api-key").or(PeerIp::new()), &[("x-api-key", "key-#")]);
    let anyone = Credential::api_key("x-api-key").or(Credential::bearer()).or(Credential::cookie("id"));
    check("the last of many", anyone.or(Host::new()), &[("host", "host-#")]);
    check("the request target", (Host::new(), Method, Path), &[("host", "Host-#.Example.:80")]);
}

/// Up to the maximum number of limits in tuples and lists, allowed and denied.
#[test]
fn decisions_of_four_to_eight_limits_allocate_nothing() {
    fn check<L>(description: &str, limits: impl Fn(u64) -> L)
    where
        L: MemoryLimits<IpAddr> + 'static,
    {
        let clock = || ManualClock::new();
        let enough = Memory::builder(limits(1_000_000)).clock(clock()).build().expect("a limiter");
        // The first reading of a list of limits allocates the thread's record in `arc-swap`, unless a thread that has ended
        // has left one.
        assert!(enough.peek(&IpAddr::from([192, 0, 2, 0]), AcquireOptions::default()).try_ready().is_ok());
        assert_eq!(count_allowed(&mut minimal(PeerIp::new(), enough), from), 0, "{description}, allowed");
        let strict = Memory::builder(limits(1)).clock(clock()).build().expect("a limiter");
        let key = IpAddr::from([192, 0, 2, 1]);
        assert!(strict.check(&key, AcquireOptions::default()).is_allowed());
        let denied = measure(|| assert!(!strict.check(&key, AcquireOptions::default()).is_allowed()));
        assert_eq!(denied.count_total, 0, "{description}, denied");
        let peeked = measure(|| assert!(strict.peek(&key, AcquireOptions::default()).try_ready().is_ok()));
        assert_eq!(peeked.count_total, 0, "{description}, peeked");
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
    check("a limit that applies, and one that does not", |limit| {
        let is_v6 = |address: &IpAddr| address.is_ipv6();
        (
            bucket("a", limit).keyed_by(|address: &IpAddr| *address),
            bucket("b", limit).keyed_by(|_: &IpAddr| ()).only_if(is_v6),
            window("c", limit).keyed_by_some(|address: &IpAddr| address.is_ipv4().then_some(*address)),
        )
    });
    for count in [1, 4, 5, 8] {
        check(&format!("{count} limits in a list"), |limit| -> Vec<DynLimit<IpAddr>> {
            let of = |index: usize| Limit::new(format!("limit {index}"), Gcra::new(Quota::per_hour(limit)));
            (0..count).map(|index| DynLimit::new(of(index))).collect()
        });
    }
}

/// A decision that lists limits takes the list of an earlier decision of the thread.
#[test]
fn decisions_beside_shadows_and_of_all_limits_allocate_nothing() {
    let limit = |name: &'static str| Limit::new(name, Gcra::new(Quota::per_hour(3000)));
    let limits = || (limit("enforced"), limit("shadow").shadow());
    let tuple = Memory::<u64, _>::new(limits());
    let list: Memory<u64> = Memory::new(vec![DynLimit::new(limits().0), DynLimit::new(limits().1)]);
    for detail in [Detail::MostRestrictive, Detail::All] {
        let options = AcquireOptions::default().detail(detail);
        let decide = || {
            for _ in 0..1000 {
                assert_eq!(tuple.check(&7, options).limits().len(), 2);
                assert_eq!(list.check(&7, options).limits().len(), 2);
            }
        };
        // The first decision of the thread allocates the list, and the last ones are denied.
        decide();
        assert_eq!(measure(decide).count_total, 0, "{detail:?}");
    }
}

#[test]
fn three_limits_allocate_nothing() {
    assert_eq!(count_allowed(&mut minimal(PeerIp::new(), three_limits()), from), 0, "by the peer's address");
    assert_eq!(count_allowed(&mut minimal(TENANT, three_limits()), of_tenant), 0, "by a header");

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
    assert_eq!(count_allowed(&mut minimal((TENANT, PeerIp::new()), by_parts), both), 0, "by parts of the key");
}

/// Options: a boxed limiter, a shared limiter, a cost, exemptions.
#[test]
fn limiter_and_layer_options_allocate_nothing() {
    let boxed: BoxLimiter<IpAddr> = BoxLimiter::new(one_limit());
    assert_eq!(count_allowed(&mut minimal(PeerIp::new(), boxed), from), 0, "boxed");
    let shared = std::sync::Arc::new(three_limits());
    assert_eq!(count_allowed(&mut minimal(PeerIp::new(), shared), from), 0, "shared");

    let layer = || RateLimitLayer::new(PeerIp::new(), one_limit()).responder(Http::without_headers());
    let mut costly = layer().cost(|_: &Request<()>| 3).layer(service_fn(page as PageFn));
    assert_eq!(count_allowed(&mut costly, from), 0, "of a cost");
    let mut exempt = layer().exempt_if(|_: &Request<()>| true).layer(service_fn(page as PageFn));
    assert_eq!(count_allowed(&mut exempt, from), 0, "exempt");
}

/// The layer allocates nothing to emit events.
#[test]
fn custom_observers_allocate_nothing_in_the_layer() {
    let layer = || RateLimitLayer::new(PeerIp::new(), one_limit()).responder(Http::without_headers());
    let seen = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&seen);
    let mut observed = layer()
        .observe(move |event: &Event<'_>| {
            counted.fetch_add(usize::from(event.outcome() == Some("allowed")), std::sync::atomic::Ordering::Relaxed);
        })
        .observe(|_: &Event<'_>| ())
        .layer(service_fn(page as PageFn));
    assert_eq!(count_allowed(&mut observed, from), 0, "by closures");
    assert_eq!(seen.load(std::sync::atomic::Ordering::Relaxed), 1100);
}

/// The built-in observers allocate only when a series or a call site is used for the first time.
#[test]
fn built_in_observers_allocate_nothing_after_the_first_request() {
    let layer = || RateLimitLayer::new(PeerIp::new(), one_limit()).responder(Http::without_headers());
    let prometheus = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder();
    let prometheus = prometheus.expect("the process's only recorder");
    let metrics = tower_ratelimit::observe::Metrics::new("api");
    let mut counted = layer().observe(metrics).layer(service_fn(page as PageFn));
    count_allowed(&mut counted, from);
    assert_eq!(count_allowed(&mut counted, from), 0, "metrics");
    assert!(prometheus.render().contains("outcome=\"allowed\",source=\"store\"} 2200\n"), "the metrics are recorded");
    let mut logged = layer().observe(tower_ratelimit::observe::Tracing::new("api")).layer(service_fn(page as PageFn));
    count_allowed(&mut logged, from);
    assert_eq!(count_allowed(&mut logged, from), 0, "tracing without a subscriber");
}

/// A request with a held cost allocates the layer's state until it is settled. Its guard takes the allocation of an earlier
/// one.
#[test]
fn held_and_settled_request_allocates_once() {
    let layer = RateLimitLayer::new(PeerIp::new(), one_limit()).responder(Http::without_headers()).settle(OnlyFailures);
    let mut service = layer.layer(service_fn(page as PageFn));
    // The map of held keys allocates when it grows.
    count_allowed(&mut service, from);
    assert_eq!(count_allowed(&mut service, from), 1000);
}

/// Holds, requests in flight, and costs in units, of one limit and of several, in tuples and lists.
#[test]
fn holds_and_units_allocate_nothing() {
    fn check<L: MemoryLimits<u64> + 'static>(description: &str, units: bool, limits: L) {
        let limiter = Memory::new(limits);
        let costs = || {
            if units { Costs::from(3).add("tokens", 7) } else { Costs::from(3) }
        };
        let hold = || {
            let Ok(Ok(outcome)) = limiter.hold(&7, AcquireOptions::from(costs())).try_ready() else {
                panic!("memory decides immediately")
            };
            let held = outcome.held.expect("an allowed request");
            assert!(held.settle(costs()).try_ready().is_ok_and(|settled| settled.is_ok()), "{description}");
            let options = AcquireOptions::from(costs()).keep_guard();
            let Ok(Ok(outcome)) = limiter.acquire(&7, options).try_ready() else {
                panic!("memory decides immediately")
            };
            assert!(outcome.decision.is_allowed(), "{description}");
            drop(outcome.held);
        };
        // The first hold inserts the key, and the map of held keys allocates.
        hold();
        assert_eq!(measure(|| (0..1000).for_each(|_| hold())).count_total, 0, "{description}");
    }
    let bucket = |name: &'static str| Limit::new(name, TokenBucket::new(Quota::per_hour(1_000_000)));
    let flights = || Limit::new("flights", InFlight::new(30));
    check("a bucket", false, bucket("a"));
    check("requests in flight", false, (flights(),));
    check("requests in flight beside a bucket", false, (flights(), bucket("a")));
    check("two buckets", false, (bucket("a"), bucket("b")));
    check("a list", false, vec![DynLimit::new(bucket("a")), DynLimit::new(flights()), DynLimit::new(bucket("b"))]);
    check("units", true, (bucket("a"), bucket("b").cost_of("tokens")));
    let units = Memory::<u64, _>::new((bucket("a"), bucket("b").cost_of("tokens")));
    let decide = || assert!(units.check(&7, AcquireOptions::from(Costs::from(3).add("tokens", 7))).is_allowed());
    decide();
    assert_eq!(measure(|| (0..1000).for_each(|_| decide())).count_total, 0, "units that are charged");
}

/// Other responders allocate nothing for an allowed request if they add nothing to its response.
#[test]
fn other_responders_allocate_nothing_for_an_allowed_request() {
    let mut map_body = RateLimitLayer::new(PeerIp::new(), one_limit())
        .responder(Http::without_headers().map_body())
        .layer(service_fn(page as PageFn));
    let mut as_error =
        RateLimitLayer::new(PeerIp::new(), one_limit()).responder(RejectWithError).layer(service_fn(page as PageFn));
    let mut by_closure = RateLimitLayer::new(PeerIp::new(), one_limit())
        .responder(|_: Request<()>, _: Rejection| Page::default())
        .layer(service_fn(page as PageFn));
    assert!(count_any(&mut map_body, from(1)).0.is_ok());
    assert!(count_any(&mut as_error, from(1)).0.is_ok());
    assert!(count_any(&mut by_closure, from(1)).0.is_ok());
    for _ in 0..3 {
        assert_eq!(count_any(&mut map_body, from(1)).1.count_total, 0, "a mapped body");
        assert_eq!(count_any(&mut as_error, from(1)).1.count_total, 0, "errors");
        assert_eq!(count_any(&mut by_closure, from(1)).1.count_total, 0, "a closure");
    }
}

/// A service that allows the first request of each key, on a stopped clock.
fn allow_once<A, R>(limiter: A, responder: R) -> impl Service<Request<()>, Response = R::Response, Error = BoxError>
where
    A: Limiter<IpAddr> + Clone,
    R: Respond<Request<()>, Page, BoxError> + Clone,
{
    RateLimitLayer::new(PeerIp::new(), limiter).responder(responder).layer(service_fn(page as PageFn))
}

fn one_strict_limit<Key: Hash + ?Sized>() -> Memory<Key, FixedWindow> {
    Memory::builder(FixedWindow::new(Quota::per_hour(1))).clock(ManualClock::new()).build().expect("a limiter")
}

/// A denial allocates nothing in the limiter. An attacker can cause any number of denials.
#[test]
fn denial_allocates_nothing_in_the_limiter() {
    fn check<A: Limiter<IpAddr> + Clone + Send + Sync + 'static>(limiter: A, description: &str) {
        let reject = |_: Request<()>, _: Rejection| {
            let mut response = Page::default();
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
            response
        };
        let mut service = allow_once(limiter, reject);
        // The first request gets a slot for its key, for which the table allocates.
        count(&mut service, from(1), StatusCode::OK);
        for _ in 0..100 {
            assert_eq!(count(&mut service, from(1), StatusCode::TOO_MANY_REQUESTS).count_total, 0, "{description}");
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

/// Built-in responses allocate 1, 7 and 13 times, and headers on an allowed response 9 times.
///
/// The bounds are higher, because containers of other crates may change.
#[test]
fn built_in_response_allocates_at_most_its_bound() {
    /// The counts of the first request, which is allowed, and of the second, which is denied.
    fn counts<R>(responder: R) -> [AllocationInfo; 2]
    where
        R: Respond<Request<()>, Page, BoxError> + Clone,
    {
        let mut service = allow_once(one_strict_limit(), responder);
        [(); 2].map(|()| count_any(&mut service, from(1)).1)
    }
    // A thread caches what it renders first.
    let _ = counts(Http::new());
    let [allowed, denied_with_headers] = counts(Http::new());
    for (description, count, max) in [
        ("a rejection as an error", counts(RejectWithError)[1], 1),
        ("a minimal 429", counts(Http::without_headers())[1], 9),
        ("a 429 with all headers", denied_with_headers, 16),
        ("an allowed response with all headers", allowed, 12),
    ] {
        println!("{description}: {} allocations, {} bytes", count.count_total, count.bytes_total);
        assert!(count.count_total >= 1, "{description}: the response is built for each request");
        assert!(count.count_total <= max, "{description}: {} allocations", count.count_total);
        assert!(count.bytes_total <= 4096, "{description}: {} bytes", count.bytes_total);
    }
}

/// One decision does a bounded part of the work for overdue requests, of one key or of many, and `usage` counts their
/// memory.
#[test]
fn overdue_requests_end_in_bounded_steps() {
    const REQUESTS: u64 = 100_000;
    /// A request is at least two words of a deadline, its cost and its key.
    const MIN_BYTES: u64 = 32;
    for keys in [1, 100, REQUESTS] {
        let clock = ManualClock::new();
        let in_flight = InFlight::new(REQUESTS).max_duration(std::time::Duration::from_secs(60));
        let limiter =
            Memory::<u64, _>::builder(in_flight).max_keys(120_000).clock(clock.clone()).build().expect("a limit");
        let bytes = || limiter.usage()[0].bytes as u64;
        let before = bytes();
        let allocated = measure(|| {
            for request in 0..REQUESTS {
                let acquired = limiter.acquire(&(request % keys), AcquireOptions::default().keep_guard());
                let Ok(Ok(outcome)) = acquired.try_ready() else { panic!("a decision") };
                // The request never ends.
                std::mem::forget(outcome.held.expect("allowed"));
            }
        });
        let counted = bytes() - before;
        assert!(counted >= MIN_BYTES * REQUESTS, "{keys} keys: {counted} bytes");
        assert!(counted <= allocated.bytes_current.unsigned_abs(), "{keys} keys: {counted} bytes");
        clock.advance(std::time::Duration::from_secs(60));
        for key in [0, REQUESTS] {
            let work = measure(|| assert_eq!(limiter.check(&key, 1).remaining(), Some(REQUESTS), "{keys} keys, {key}"));
            let freed = work.count_total.cast_signed() - work.count_current;
            assert!(freed <= 400 && work.count_total <= 400, "{keys} keys: {freed} freed");
        }
        assert_eq!(limiter.usage()[0].held, 0, "{keys} keys");
    }
}
