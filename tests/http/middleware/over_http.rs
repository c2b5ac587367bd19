//! HTTP responses: status, header fields, problem bodies.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::algorithm::Algorithm;
use tower_ratelimit::key::{Extracted, Header};
use tower_ratelimit::limiter::{AdminOperation, DeniedCache};
use tower_ratelimit::response::{BoxError, Grpc, Headers, Rejection, ResetFormat};
use tower_ratelimit::{
    BoxLimiter, Clock as _, Decision, DecisionSource, DynLimit, FixedWindow, Gcra, Http, Limit, LimitStatus, Limiter,
    ManualClock, MissingKeyPolicy, PeerIp, Quota, RateLimitInfo, RateLimitLayer, Respond, SlidingLog, Verdict,
};

use crate::fields::{has_fields, legacy, limits, policies, retry_after};
use crate::support::{Page, PageService, StubLimiter, limit, page_layer, several};

fn request() -> Request<()> {
    Request::new(())
}

/// Answers 200. The field `handler-saw` describes the request's `RateLimitInfo`.
async fn hello(request: Request<()>) -> Result<Page, BoxError> {
    let seen = match request.extensions().get::<RateLimitInfo>() {
        None => "nothing".to_owned(),
        Some(RateLimitInfo::Exempt) => "exempt".to_owned(),
        Some(RateLimitInfo::Decided(decision)) => format!("{:?} left", decision.remaining()),
    };
    let mut response = Response::new(Full::from("hello"));
    response.headers_mut().insert("handler-saw", seen.parse().expect("a field value"));
    Ok(response)
}

/// Sends one request, and returns the response.
async fn send<R>(limiter: impl Limiter<()>, responder: R) -> Page
where
    R: Respond<Request<()>, Page, BoxError, Response = Page> + Clone,
{
    ask(page_layer(limiter).responder(responder), request()).await
}

/// Sends a request to the page behind the layer.
async fn ask<L>(layer: L, request: Request<()>) -> Page
where
    L: Layer<PageService, Service: Service<Request<()>, Response = Page, Error = BoxError>>,
{
    answer(layer.layer(PageService::new(service_fn(hello))).oneshot(request)).await
}

/// Unwraps the response: rejections are not errors.
async fn answer(response: impl Future<Output = Result<Page, BoxError>>) -> Page {
    response.await.expect("a response")
}

fn one(name: &'static str, algorithm: impl Algorithm, clock: &ManualClock) -> BoxLimiter<()> {
    several([limit(name, algorithm)], clock.clone())
}

async fn problem(response: Page) -> Value {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{body:?}: {error}"))
}

#[tokio::test]
async fn allowed_response_has_the_limit_status() {
    let responder = Http::new().headers(Headers::new().request_extension(true).response_extension(true));
    let response = send(StubLimiter::allowing(), responder).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(policies(response.headers()), [("stub".into(), 5, 60)]);
    assert_eq!(limits(response.headers()), [("stub".into(), 3, Some(12))]);
    assert_eq!(retry_after(response.headers()), None);
    assert_eq!(legacy(response.headers()), None, "off by default");
    assert_eq!(response.headers()["handler-saw"], "Some(3) left", "the request's extension");
    let admission = response.extensions().get::<RateLimitInfo>().expect("for outer layers");
    assert_eq!(admission.decision().and_then(tower_ratelimit::Decision::remaining), Some(3));
}

#[tokio::test]
async fn rejection_is_429_with_retry_after_and_a_problem_body() {
    let response = send(StubLimiter::denying(), Http::new().headers(Headers::new().response_extension(true))).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(retry_after(response.headers()), Some(2), "1.5 seconds, rounded up");
    assert_eq!(policies(response.headers()), [("stub".into(), 5, 60)]);
    assert_eq!(limits(response.headers()), [("stub".into(), 3, Some(2))], "not before `Retry-After`");
    let admission = response.extensions().get::<RateLimitInfo>().expect("for outer layers");
    assert!(!admission.decision().expect("a decision").is_allowed());
    assert_eq!(
        problem(response).await,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request quota exceeded",
            "status": 429,
            "detail": "rate limit \"stub\" exceeded, retry after 1.5s",
            "violated-policies": ["stub"],
        })
    );
}

#[tokio::test]
async fn retry_after_field_is_rounded_up_and_never_zero() {
    for (micros, seconds) in [(1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (60_000_000, 60)] {
        let wait = Duration::from_micros(micros);
        let limiter = StubLimiter(Ok(crate::support::decision(Verdict::Denied { retry_after: wait })));
        let response = send(limiter, Http::new()).await;
        assert_eq!(retry_after(response.headers()), Some(seconds), "{wait:?}");
    }
}

#[tokio::test]
async fn retry_after_field_is_absent_when_the_cost_exceeds_the_limit() {
    let response = send(StubLimiter::exceeding(), Http::new()).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(retry_after(response.headers()), None);
    assert_eq!(limits(response.headers()).len(), 1);
    let problem = problem(response).await;
    assert_eq!(problem["detail"], "rate limit \"stub\" exceeded: the cost of the request is above the limit of 5");
    assert_eq!(problem["violated-policies"], json!(["stub"]));
}

/// 429 would mean a client error.
#[tokio::test]
async fn failed_limiter_is_503() {
    let response = send(StubLimiter::failing(), Http::new()).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(limits(response.headers()), [], "no limit status is known");
    let problem = problem(response).await;
    assert_eq!(problem["status"], 503);
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    assert_eq!(problem.get("violated-policies"), None);
    assert!(!problem.to_string().contains("connection"), "the cause is not for clients: {problem}");
}

#[tokio::test]
async fn policy_decision_is_503_or_allowed_without_fields() {
    let denied = Verdict::Denied { retry_after: Duration::from_secs(7) };
    let response = send(StubLimiter::from_policy(denied), Http::new()).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(retry_after(response.headers()), Some(7));
    assert_eq!(limits(response.headers()), []);

    let response = send(
        StubLimiter::from_policy(Verdict::Allowed),
        Http::new().headers(Headers::new().legacy(ResetFormat::DeltaSeconds)),
    )
    .await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!has_fields(response.headers()));
}

#[tokio::test]
async fn denial_of_a_fallback_is_429() {
    let response = send(
        StubLimiter::from_source(DecisionSource::Fallback, Verdict::Denied { retry_after: Duration::from_secs(2) }),
        Http::new(),
    )
    .await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(limits(response.headers()).len(), 1);
}

#[tokio::test]
async fn missing_key_is_400_and_500_when_the_server_is_misconfigured() {
    let by_header = RateLimitLayer::new(Header::from_static("x-tenant"), StubLimiter::allowing());
    let response = ask(by_header, request()).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert!(!has_fields(response.headers()));
    assert_eq!(problem(response).await["detail"], "the header x-tenant is missing");

    let response = ask(RateLimitLayer::new(PeerIp::new(), StubLimiter::allowing()), request()).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let problem = problem(response).await;
    assert_eq!(problem["title"], "Internal Server Error");
    // Advice about the server is only logged.
    assert_eq!(problem["detail"], "server misconfigured");
}

#[tokio::test]
async fn missing_key_passes_when_the_policy_exempts_it() {
    let layer = RateLimitLayer::new(Header::from_static("x-tenant"), StubLimiter::denying())
        .missing_key(MissingKeyPolicy::Exempt);
    let response = ask(layer.clone(), request()).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!has_fields(response.headers()));

    let mut with_key = request();
    with_key.headers_mut().insert("x-tenant", HeaderValue::from_static("acme"));
    let response = ask(layer, with_key).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "a request with a key is limited");
}

#[tokio::test]
async fn exempt_response_has_no_fields() {
    for (responder, seen, extension) in [
        (Http::new(), "nothing", None),
        (Http::new().headers(Headers::new().request_extension(true)), "exempt", None),
        (Http::new().headers(Headers::new().response_extension(true)), "nothing", Some(&RateLimitInfo::Exempt)),
    ] {
        let layer = RateLimitLayer::new(|_: &Request<()>| Extracted::<()>::Exempt, StubLimiter::denying());
        let response = ask(layer.responder(responder), request()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!has_fields(response.headers()));
        assert_eq!(response.headers()["handler-saw"], seen);
        assert_eq!(response.extensions().get(), extension);
    }
}

#[tokio::test]
async fn minimal_responder_leaves_allowed_responses_unchanged() {
    let response = send(StubLimiter::allowing(), Http::without_headers()).await;
    assert!(!has_fields(response.headers()));
    assert!(response.extensions().is_empty());
    assert_eq!(response.headers()["handler-saw"], "nothing");

    let response = send(StubLimiter::denying(), Http::without_headers()).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(retry_after(response.headers()), Some(2));
    assert_eq!((limits(response.headers()), policies(response.headers())), (vec![], vec![]));
    assert!(response.extensions().is_empty());
    assert_eq!(problem(response).await["status"], 429);
}

#[tokio::test]
async fn http_responder_parts_are_configurable() {
    let response = send(StubLimiter::allowing(), Http::new().headers(Headers::none())).await;
    assert!(!has_fields(response.headers()));

    let response = send(StubLimiter::allowing(), Http::new()).await;
    assert_eq!(response.headers()["handler-saw"], "nothing", "the request's extension is off by default");
    for limiter in [StubLimiter::allowing(), StubLimiter::denying()] {
        let response = send(limiter, Http::new()).await;
        assert!(response.extensions().is_empty(), "the response's extension is off by default");
    }

    let response =
        send(StubLimiter::allowing(), Http::without_headers().headers(Headers::none().request_extension(true))).await;
    assert!(!has_fields(response.headers()));
    assert!(response.extensions().is_empty());
    assert_eq!(response.headers()["handler-saw"], "Some(3) left");

    let response =
        send(StubLimiter::allowing(), Http::without_headers().headers(Headers::none().response_extension(true))).await;
    assert!(!has_fields(response.headers()));
    assert!(response.extensions().get::<RateLimitInfo>().is_some());
    assert_eq!(response.headers()["handler-saw"], "nothing");

    let response =
        send(StubLimiter::allowing(), Http::without_headers().headers(Headers::none().rate_limit(true))).await;
    assert_eq!(limits(response.headers()).len(), 1);
}

#[tokio::test]
async fn legacy_fields_are_in_the_configured_reset_format() {
    let delta_seconds = Http::new().headers(Headers::new().legacy(ResetFormat::DeltaSeconds));
    let epoch_seconds = Http::without_headers().headers(Headers::none().legacy(ResetFormat::EpochSeconds));
    let start = ManualClock::START.as_micros() / 1_000_000;
    for limiter in [StubLimiter::allowing(), StubLimiter::denying()] {
        let response = send(limiter.clone(), delta_seconds).await;
        assert_eq!(legacy(response.headers()), Some([5, 3, 40]));
        assert_eq!(limits(response.headers()).len(), 1, "beside the fields of the draft");
        let response = send(limiter, epoch_seconds).await;
        assert_eq!(legacy(response.headers()), Some([5, 3, start + 40]));
        assert_eq!(limits(response.headers()), [], "instead of the fields of the draft");
    }
}

/// A reset within a second is rounded up to a whole second, at which the key is idle.
#[tokio::test]
async fn legacy_reset_is_rounded_up_to_seconds() {
    let clock = ManualClock::new();
    let limiter = one("x", FixedWindow::new(Quota::per_minute(5)), &clock);
    clock.advance(Duration::from_millis(300));
    let _ = send(limiter.clone(), Http::new()).await;
    clock.advance(Duration::from_micros(1));
    let start = ManualClock::START.as_micros() / 1_000_000;
    let response =
        send(limiter.clone(), Http::without_headers().headers(Headers::none().legacy(ResetFormat::EpochSeconds))).await;
    assert_eq!(legacy(response.headers()), Some([5, 3, start + 61]));
    let response =
        send(limiter, Http::without_headers().headers(Headers::none().legacy(ResetFormat::DeltaSeconds))).await;
    assert_eq!(legacy(response.headers()), Some([5, 2, 60]));
}

#[tokio::test]
async fn rendered_rejection_keeps_the_header_fields() {
    let render = |_: &Parts, rejection: &Rejection| {
        let mut response = Response::new(Full::from(format!("slow down: {rejection}")));
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response.headers_mut().insert("content-type", HeaderValue::from_static("text/plain"));
        response
    };
    let responder = Http::new().headers(Headers::new().legacy(ResetFormat::DeltaSeconds)).render(render);
    let response = send(StubLimiter::denying(), responder).await;
    assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
    assert_eq!(response.headers()["content-type"], "text/plain");
    assert_eq!(retry_after(response.headers()), Some(2));
    assert_eq!(limits(response.headers()).len(), 1);
    assert_eq!(legacy(response.headers()), Some([5, 3, 40]));
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(body, "slow down: rate limit \"stub\" exceeded, retry after 1.5s");

    let allowed = send(StubLimiter::allowing(), responder).await;
    assert_eq!((allowed.status(), limits(allowed.headers()).len()), (StatusCode::OK, 1));
}

/// Lists every limit in declared order, and names those that deny. The most restrictive limit determines the rest.
#[tokio::test]
async fn response_lists_all_limits_and_names_those_that_deny() {
    let clock = ManualClock::new();
    let limiter = several(
        [
            limit("smooth", Gcra::new(Quota::per_second(2))),
            limit("hourly", FixedWindow::new(Quota::per_hour(3))),
            limit("daily", FixedWindow::new(Quota::per_day(3))),
        ],
        clock.clone(),
    );
    let responder = Http::new().headers(Headers::new().legacy(ResetFormat::DeltaSeconds));

    let response = send(limiter.clone(), responder).await;
    let policy = [("smooth".into(), 2, 1), ("hourly".into(), 3, 3600), ("daily".into(), 3, 86400)];
    assert_eq!(policies(response.headers()), policy);
    let (hour, day) = (Some(3600), Some(86400));
    assert_eq!(
        limits(response.headers()),
        [("smooth".into(), 1, None), ("hourly".into(), 2, hour), ("daily".into(), 2, day)]
    );
    assert_eq!(legacy(response.headers()), Some([2, 1, 1]), "of the limit with the least remaining");

    let _ = send(limiter.clone(), responder).await;
    let response = send(limiter.clone(), responder).await;
    assert_eq!(retry_after(response.headers()), Some(1));
    assert_eq!(
        limits(response.headers()),
        [("smooth".into(), 0, None), ("hourly".into(), 1, hour), ("daily".into(), 1, day)],
        "a denial charges no limit"
    );
    assert_eq!(problem(response).await["violated-policies"], json!(["smooth"]));

    clock.advance(Duration::from_secs(1));
    let _ = send(limiter.clone(), responder).await;
    let response = send(limiter.clone(), responder).await;
    assert_eq!(retry_after(response.headers()), Some(86399), "the longest wait of the limits that deny");
    assert_eq!(legacy(response.headers()), Some([3, 0, 86399]), "of the most restrictive limit");
    assert_eq!(problem(response).await["violated-policies"], json!(["hourly", "daily"]));
}

/// A shadow limit counts and does not deny; responses do not mention it.
#[tokio::test]
async fn response_omits_a_shadow_limit() {
    let limiter = several(
        [
            limit("old", FixedWindow::new(Quota::per_minute(3))),
            DynLimit::new(Limit::new("new", FixedWindow::new(Quota::per_minute(1))).shadow()),
        ],
        ManualClock::new(),
    );
    let responder = Http::new().headers(Headers::new().legacy(ResetFormat::DeltaSeconds).response_extension(true));
    for left in [2, 1, 0] {
        let response = send(limiter.clone(), responder).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(policies(response.headers()), [("old".into(), 3, 60)]);
        assert_eq!(limits(response.headers()), [("old".into(), left, Some(60))]);
        assert_eq!(legacy(response.headers()).expect("fields")[1].cast_signed(), left);
        let admission = response.extensions().get::<RateLimitInfo>().expect("a decision");
        let shadows = admission.decision().expect("a decision").shadow_denials().map(LimitStatus::name);
        assert_eq!(shadows.collect::<Vec<_>>(), if left == 2 { vec![] } else { vec!["new"] });
    }
    let response = send(limiter, responder).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(limits(response.headers()), [("old".into(), 0, Some(60))]);
    assert_eq!(problem(response).await["violated-policies"], json!(["old"]));
}

/// The names of a custom limiter are not validated at build time. Fields and body replace the same characters.
#[tokio::test]
async fn custom_limit_names_are_equal_in_fields_and_body() {
    let name = "a \"b\\c\" d\u{e9}\u{1f600}\t\r\n\u{7f};q=1, \"x\"";
    let ascii = "a ?b?c? d??????;q=1, ?x?";
    let decision = StubLimiter::denying().0.expect("a decision");
    let denied = LimitStatus::new(name, decision.verdict(), decision.most_restrictive().expect("a limit").snapshot());
    let response = send(StubLimiter(Ok(Decision::from_limit(ManualClock::START, denied))), Http::new()).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(policies(response.headers()), [(ascii.into(), 5, 60)]);
    assert_eq!(limits(response.headers()), [(ascii.into(), 3, Some(2))]);
    let problem = problem(response).await;
    assert_eq!(problem["violated-policies"], json!([ascii]));
    assert!(problem["detail"].as_str().expect("text").contains(ascii), "{problem}");
}

/// The renderer receives the method, URI, header fields and extensions of the rejected request.
#[tokio::test]
async fn renderer_receives_the_request_parts() {
    let render = |request: &Parts, rejection: &Rejection| {
        let accept = request.headers.get("accept").and_then(|value| value.to_str().ok()).unwrap_or("*/*");
        let extension = request.extensions.get::<&str>().copied().unwrap_or("nothing");
        let text = format!("{} {} {accept} {extension}: {}", request.method, request.uri, rejection.is_over_limit());
        Response::builder().status(429).body(Full::from(text)).expect("a response")
    };
    let layer = page_layer(StubLimiter::denying()).responder(Http::new().render(render));
    let request = Request::put("/a/b?c=d").header("accept", "text/html").extension("by an outer layer");
    let response = ask(layer, request.body(()).expect("a request")).await;
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(body, "PUT /a/b?c=d text/html by an outer layer: true");
}

/// A structured-field Integer has 15 digits at most.
#[tokio::test]
async fn header_numbers_have_at_most_15_digits() {
    let vast = FixedWindow::new(Quota::new(1 << 53, Duration::from_secs(86400 * 73050)));
    let limiter = one("vast", vast, &ManualClock::new());
    let response = send(limiter, Http::new()).await;
    assert_eq!(
        policies(response.headers()),
        [("vast".into(), 999_999_999_999_999, 0)],
        "no rate that is not the limit's"
    );
    assert_eq!(limits(response.headers()), [("vast".into(), 999_999_999_999_999, Some(6_311_520_000))]);
}

/// Sends `requests` at one time, and returns the fields of the last response: `q`, `w` (0 if absent), `r` and `t`.
async fn fields_after(algorithm: impl Algorithm, requests: usize) -> (i64, i64, i64, Option<i64>) {
    let limiter = one("x", algorithm, &ManualClock::new());
    for _ in 1..requests {
        let _ = send(limiter.clone(), Http::new()).await;
    }
    let response = send(limiter, Http::new()).await;
    let ([policy], [limit]) = (&policies(response.headers())[..], &limits(response.headers())[..]) else {
        panic!("one limit: {response:?}")
    };
    (policy.1, policy.2, limit.1, limit.2)
}

/// The window is a whole second at least, and the time as well: less is left out.
#[tokio::test]
async fn fields_of_each_limit_are_as_in_the_table() {
    let millis = Duration::from_millis;
    let windows = [
        // quota, requests; q, w, r, t
        (Quota::per_second(50), 1, (50, 1, 49, Some(1))),
        (Quota::per_minute(100), 100, (100, 60, 0, Some(60))),
        (Quota::per_hour(5000), 1, (5000, 3600, 4999, Some(3600))),
        (Quota::new(4, millis(20)), 1, (4, 0, 3, None)),
        (Quota::new(4, millis(20)), 5, (4, 0, 0, None)),
        (Quota::new(4, millis(999)), 1, (4, 1, 3, None)),
        (Quota::new(4, millis(1_500)), 1, (4, 0, 3, Some(2))),
        (Quota::new(4, millis(99_500)), 4, (4, 100, 0, Some(100))),
    ];
    for (quota, requests, expected) in windows {
        assert_eq!(fields_after(FixedWindow::new(quota), requests).await, expected, "{quota:?}");
    }
    let buckets = [
        // quota, burst, requests; q, w, r, t
        (Quota::per_second(10), 20, 1, (20, 2, 19, None)),
        (Quota::per_second(10), 20, 20, (20, 2, 0, None)),
        (Quota::per_second(100), 5, 5, (5, 0, 0, None)),
        (Quota::per_second(1000), 1, 1, (1, 0, 0, None)),
        (Quota::per_second(60), 20, 21, (20, 0, 0, None)),
        (Quota::per_second(7), 20, 1, (20, 0, 19, None)),
        (Quota::per_minute(60), 3, 3, (3, 3, 0, Some(1))),
        (Quota::per_minute(50), 1, 1, (1, 0, 0, Some(2))),
        (Quota::per_hour(1), 2, 2, (2, 7200, 0, Some(3600))),
    ];
    for (quota, burst, requests, expected) in buckets {
        assert_eq!(fields_after(Gcra::new(quota).burst(burst), requests).await, expected, "{quota:?} {burst}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// `q` and `w` are the rate of the limit, exact to 1 %, or there is no `w`; `t` is absent or at least the time.
    #[test]
    fn stated_rate_is_the_rate_of_the_limit(
        limit in 1_u64..2_000, period in 1_u64..4_000_000_000, burst in 1_u64..50, used in 1_usize..4,
    ) {
        let quota = Quota::new(limit, Duration::from_micros(period));
        let Ok(gcra) = Gcra::try_new(quota).and_then(|gcra| gcra.try_burst(burst)) else { return Ok(()) };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (q, w, _, t) = runtime.block_on(fields_after(gcra, used));
        #[allow(clippy::cast_precision_loss)]
        let (window, w) = (burst as f64 * period as f64 / limit as f64, w as f64 * 1e6);
        proptest::prop_assert_eq!(q, i64::try_from(burst).unwrap());
        if w > 0.0 {
            proptest::prop_assert!((window - 1.0..=window * 1.01 + 1.0).contains(&w), "{} of {}", w, window);
        } else {
            proptest::prop_assert!((window / 1e6).ceil() * 1e6 > window * 1.009, "{} is whole", window);
        }
        // All requests are of one time, so the next unit becomes available after one interval.
        let interval = period.div_ceil(limit);
        let seconds = i64::try_from(interval.div_ceil(1_000_000)).unwrap();
        proptest::prop_assert_eq!(t, (interval >= 1_000_000).then_some(seconds));
    }
}

/// A response that a cache may store for others goes without the numbers of one client, if the setting is on.
#[tokio::test]
async fn shared_responses_go_without_the_fields() {
    let fields = Headers::new().legacy(ResetFormat::DeltaSeconds);
    for (name, value, is_shared) in [
        ("cache-control", "public, max-age=60", true),
        ("cache-control", "Public", true),
        ("cache-control", "max-age=60", true),
        ("cache-control", "no-cache, S-MaxAge = 60", true),
        ("cache-control", "private, max-age=60", false),
        ("cache-control", "public, no-store", false),
        ("cache-control", "no-cache", false),
        ("expires", "Thu, 26 Nov 2026 10:00:00 GMT", true),
        ("cdn-cache-control", "max-age=600", true),
        ("x-cache", "public", false),
    ] {
        for on in [false, true] {
            let layer = page_layer(StubLimiter::allowing()).responder(Http::new().headers(fields.skip_shared(on)));
            let handler = PageService::new(service_fn(move |_: Request<()>| {
                let response = Response::builder().header(name, value).body(Full::<Bytes>::default());
                async move { Ok(response.expect("a response")) }
            }));
            let response = answer(layer.layer(handler).oneshot(request())).await;
            let is_bare = on && is_shared;
            assert_eq!(policies(response.headers()).is_empty(), is_bare, "{name}: {value}");
            assert_eq!(legacy(response.headers()).is_none(), is_bare, "{name}: {value}");
        }
    }
    let response = send(StubLimiter::denying(), Http::new().headers(fields.skip_shared(true))).await;
    assert_eq!(limits(response.headers()).len(), 1, "a rejection is not stored");
}

/// The wait that a rejection states is never shorter than the exact one, and longer by the part, and by a minute at most.
#[tokio::test]
async fn retry_jitter_is_within_its_part_and_a_minute() {
    for (wait, percent, longest) in
        [(100, 0, 100), (100, 20, 120), (7, 50, 11), (100_000, 20, 100_060), (100, 255, 160)]
    {
        let limiter = StubLimiter::from_policy(Verdict::Denied { retry_after: Duration::from_secs(wait) });
        let mut waits = BTreeSet::new();
        for _ in 0..200 {
            let response = send(limiter.clone(), Http::new().headers(Headers::new().retry_jitter(percent))).await;
            waits.insert(retry_after(response.headers()).expect("a wait"));
        }
        assert!(waits.iter().all(|seconds| (wait..=longest).contains(seconds)), "{wait} s, {percent} %: {waits:?}");
        assert_eq!(waits.len() > 1, percent > 0, "{waits:?}");
    }
}

/// The server does not read the body of a rejected request: over HTTP/1 it closes the connection, and says so.
#[tokio::test]
async fn rejection_of_an_unread_body_closes_the_connection() {
    let versions = [(Version::HTTP_10, true), (Version::HTTP_11, true), (Version::HTTP_2, false)];
    for (version, is_http1) in versions {
        for (field, value, has_body) in [
            ("content-length", "5", true),
            ("content-length", "0", false),
            ("transfer-encoding", "chunked", true),
            ("accept", "*/*", false),
        ] {
            let request = || {
                let request = Request::post("/").version(version).header("content-type", "application/grpc-web");
                request.header(field, value).body(()).expect("a request")
            };
            let http = page_layer(StubLimiter::denying());
            let grpc = http.clone().responder(Grpc::new()).layer(PageService::new(service_fn(hello)));
            let both = http.clone().responder(Http::new().grpc(Grpc::new()));
            let fields = [
                ask(http, request()).await.into_parts().0.headers,
                grpc.oneshot(request()).await.expect("a response").into_parts().0.headers,
                ask(both, request()).await.into_parts().0.headers,
            ];
            for fields in fields {
                let closes = fields.get("connection").is_some_and(|value| value == "close");
                assert_eq!(closes, is_http1 && has_body, "{version:?} {field}: {value}");
            }
            let allowed = ask(page_layer(StubLimiter::allowing()), request()).await;
            assert!(!allowed.headers().contains_key("connection"));
        }
    }
}

/// Lists of the handler are appended to. Of the legacy fields the more restrictive ones are kept.
#[tokio::test]
async fn handler_fields_are_kept() {
    async fn handler(request: Request<()>) -> Result<Page, BoxError> {
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let headers = response.headers_mut();
        headers.insert("ratelimit", HeaderValue::from_static("\"mine\";r=1;t=9"));
        headers.insert("ratelimit-policy", HeaderValue::from_static("\"mine\";q=2;w=9"));
        headers.insert("retry-after", HeaderValue::from_static("9"));
        for (name, value) in request.headers().iter().filter(|(name, _)| name.as_str().starts_with("x-")) {
            headers.insert(name, value.clone());
        }
        Ok(response)
    }
    let responder = Http::new().headers(Headers::new().legacy(ResetFormat::DeltaSeconds));
    let layer = page_layer(StubLimiter::allowing()).responder(responder);
    let service = layer.layer(PageService::new(service_fn(handler)));
    let remaining = |remaining: &str| {
        let fields = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
        let request = fields
            .into_iter()
            .zip(["7", remaining, "70"])
            .fold(Request::get("/"), |request, (name, value)| request.header(name, value));
        answer(service.clone().oneshot(request.body(()).expect("a request")))
    };

    let response = remaining("2").await;
    assert_eq!(limits(response.headers()), [("mine".into(), 1, Some(9)), ("stub".into(), 3, Some(12))]);
    assert_eq!(policies(response.headers()), [("mine".into(), 2, 9), ("stub".into(), 5, 60)]);
    assert_eq!(retry_after(response.headers()), Some(9), "an allowed response keeps the `Retry-After` of the handler");
    assert_eq!(legacy(response.headers()), Some([7, 2, 70]), "2 is less than 3: the handler's are kept");
    assert_eq!(
        legacy(remaining("4").await.headers()),
        Some([5, 3, 40]),
        "3 is less than 4: the limiter's replace them"
    );
    let garbage = remaining("plenty").await;
    assert_eq!(legacy(garbage.headers()), Some([5, 3, 40]), "values that cannot be compared are all replaced");
}

/// Each response states its own numbers, however many other responses of the thread are in use.
#[tokio::test]
async fn ratelimit_values_of_responses_in_use_stay_unchanged() {
    let three_hundred = FixedWindow::new(Quota::per_minute(300));
    let limiters = ["a", "another"].map(|name| (name, one(name, three_hundred, &ManualClock::new())));
    let mut in_use = Vec::new();
    for sent in 1..=300 {
        for (name, limiter) in &limiters {
            let response = send(limiter.clone(), Http::new()).await;
            // Every third response is dropped while later ones are written.
            if sent % 3 > 0 {
                in_use.push((*name, 300 - sent, response));
            }
        }
    }
    for (name, remaining, response) in in_use {
        assert_eq!(limits(response.headers()), [(name.to_owned(), remaining, Some(60))]);
        assert_eq!(policies(response.headers()), [(name.to_owned(), 300, 60)]);
    }
}

// Blocked keys

/// A client of a blocked key reads that nothing remains, and for how long, whatever its usage is.
#[tokio::test]
async fn blocked_key_has_nothing_remaining() {
    async fn check(name: &str, limiter: BoxLimiter<()>, clock: &ManualClock) {
        for reset in [ResetFormat::DeltaSeconds, ResetFormat::EpochSeconds] {
            let responder = Http::new().headers(Headers::new().legacy(reset));
            for seconds in [1, 90, 86_400 * 30] {
                block(&limiter, seconds).await;
                for _ in 0..2 {
                    let response = send(limiter.clone(), responder).await;
                    let fields = response.headers();
                    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{name}");
                    assert_eq!(retry_after(fields), Some(seconds), "{name}");
                    let of_block = limits(fields).into_iter().find(|(limit, ..)| limit == "blocked").expect("listed");
                    let t = i64::try_from(seconds).expect("small");
                    assert_eq!(of_block, ("blocked".into(), 0, Some(t)), "{name}");
                    let [_, remaining, at] = legacy(fields).expect("present");
                    let now = clock.now().as_micros() / 1_000_000;
                    let ends = if reset == ResetFormat::EpochSeconds { now + seconds } else { seconds };
                    assert_eq!(remaining, 0, "{name}");
                    assert!(at >= ends, "{name}: {at} is before the end of the block, {ends}");
                }
                block(&limiter, 0).await;
                let response = send(limiter.clone(), responder).await;
                assert_eq!(response.status(), StatusCode::OK, "{name}");
                let after = limits(response.headers()).into_iter().find(|(limit, ..)| limit == "blocked");
                assert_ne!(after.expect("listed").1, 0, "{name}: the usage has not changed");
            }
        }
    }
    async fn block(limiter: &BoxLimiter<()>, seconds: u64) {
        let duration = Duration::from_secs(seconds);
        let reason = tower_ratelimit::BlockReason::Administrator;
        limiter.administer(&(), AdminOperation::Block { limit: "blocked", duration, reason }).await.expect("done");
    }
    let clock = ManualClock::new();
    let many = Quota::per_hour(100);
    let one = one("blocked", Gcra::new(many), &clock);
    check("one limit", one.clone(), &clock).await;
    check("cached", BoxLimiter::new(DeniedCache::with_clock(one, 10, clock.clone())), &clock).await;
    let limits = [
        limit("other", SlidingLog::new(many)),
        limit("blocked", FixedWindow::new(many)),
        DynLimit::new(Limit::new("shadow", FixedWindow::new(Quota::per_hour(1))).shadow()),
    ];
    check("several limits", several(limits, clock.clone()), &clock).await;
}
