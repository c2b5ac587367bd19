//! What a decision looks like in HTTP.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::key::{Extracted, Global, Header, PeerIp};
use tower_ratelimit::limiter::Limiter;
use tower_ratelimit::response::{Http, RateLimitInfo, Rejection, ResetFormat, Respond};
use tower_ratelimit::{
    Decision, DecisionSource, FixedWindow, Gcra, Limit, LimitStatus, ManualClock, Memory, MissingKeyPolicy, Quota,
    RateLimitLayer, Verdict,
};

use crate::fields::{legacy, limits, policies, retry_after};
use crate::support::{Says, per_minute};

type Page = Response<Full<Bytes>>;

fn request() -> Request<()> {
    Request::new(())
}

/// Answers 200, and tells in a field of its own what the limiter has told it.
async fn hello(request: Request<()>) -> Result<Page, Infallible> {
    let told = match request.extensions().get::<RateLimitInfo>() {
        None => "nothing".to_owned(),
        Some(RateLimitInfo::Exempt) => "exempt".to_owned(),
        Some(RateLimitInfo::Decided(decision)) => format!("{:?} left", decision.remaining()),
    };
    let mut response = Response::new(Full::from("hello"));
    response.headers_mut().insert("told", told.parse().expect("a field value"));
    Ok(response)
}

/// One answer to one request.
async fn ask<A, R>(limiter: A, responder: R) -> Page
where
    A: Limiter<()> + Clone,
    R: Respond<Request<()>, Page, Infallible, Response = Page, Error = Infallible> + Clone,
{
    let layer = RateLimitLayer::new(Global, limiter).responder(responder);
    answer(layer.layer(service_fn(hello)).oneshot(request())).await
}

/// Refusals are answers, not errors.
async fn answer(response: impl Future<Output = Result<Page, Infallible>>) -> Page {
    let Ok(response) = response.await;
    response
}

async fn problem(response: Page) -> Value {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{body:?}: {error}"))
}

/// The fields that a limiter may add.
fn has_fields(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().contains("ratelimit") || name == "retry-after")
}

#[tokio::test]
async fn an_allowed_answer_tells_how_the_key_stands() {
    let response = ask(Says::yes(), Http::new()).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(policies(response.headers()), [("told".into(), 5, 60)]);
    assert_eq!(limits(response.headers()), [("told".into(), 3, Some(12))]);
    assert_eq!(retry_after(response.headers()), None);
    assert_eq!(legacy(response.headers()), None, "only if asked for");
    assert_eq!(response.headers()["told"], "Some(3) left", "the handler is told as well");
    let admission = response.extensions().get::<RateLimitInfo>().expect("for outer layers");
    assert_eq!(admission.decision().and_then(tower_ratelimit::Decision::remaining), Some(3));
}

#[tokio::test]
async fn a_refusal_is_429_with_the_time_to_wait_and_a_problem() {
    let response = ask(Says::no(), Http::new()).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(retry_after(response.headers()), Some(2), "1.5 seconds, rounded up");
    assert_eq!(policies(response.headers()), [("told".into(), 5, 60)]);
    assert_eq!(limits(response.headers()), [("told".into(), 3, Some(2))], "no later than `Retry-After`");
    let admission = response.extensions().get::<RateLimitInfo>().expect("for outer layers");
    assert!(!admission.decision().expect("a decision").is_allowed());
    assert_eq!(
        problem(response).await,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request quota exceeded",
            "status": 429,
            "detail": "rate limit \"told\" exceeded, retry after 1.5s",
            "violated-policies": ["told"],
        })
    );
}

#[tokio::test]
async fn retry_after_is_never_zero_and_never_too_early() {
    for (micros, seconds) in [(1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (60_000_000, 60)] {
        let retry_after_is = Duration::from_micros(micros);
        let limiter = Says(Ok(crate::support::decision(Verdict::Denied { retry_after: retry_after_is })));
        let response = ask(limiter, Http::new()).await;
        assert_eq!(retry_after(response.headers()), Some(seconds), "{retry_after_is:?}");
    }
}

#[tokio::test]
async fn what_never_fits_has_no_retry_after() {
    let response = ask(Says::never(), Http::new()).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(retry_after(response.headers()), None);
    assert_eq!(limits(response.headers()).len(), 1);
    let problem = problem(response).await;
    assert_eq!(problem["detail"], "rate limit \"told\" exceeded: the cost of the request is above the limit of 5");
    assert_eq!(problem["violated-policies"], json!(["told"]));
}

#[tokio::test]
async fn a_cost_over_what_a_limit_can_hold_never_fits() {
    let layer = RateLimitLayer::new(Global, per_minute(5).0).cost(|request: &Request<()>| {
        request.headers().get("cost").map_or(1, |cost| cost.to_str().unwrap().parse().unwrap())
    });
    let service = layer.layer(service_fn(hello));
    let cost = |cost: &str| {
        let mut request = request();
        request.headers_mut().insert("cost", HeaderValue::from_str(cost).expect("a number"));
        answer(service.clone().oneshot(request))
    };
    let never = cost("6").await;
    assert_eq!(never.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(retry_after(never.headers()), None);
    assert_eq!(limits(never.headers()), [("default".into(), 5, None)], "and charges nothing");

    assert_eq!(limits(cost("5").await.headers()), [("default".into(), 0, Some(60))]);
    let denied = cost("1").await;
    assert_eq!((denied.status(), retry_after(denied.headers())), (StatusCode::TOO_MANY_REQUESTS, Some(60)));
}

/// 429 would blame the client.
#[tokio::test]
async fn a_limiter_that_can_not_decide_is_503() {
    let response = ask(Says::broken(), Http::new()).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(limits(response.headers()), [], "there is nothing to tell");
    let problem = problem(response).await;
    assert_eq!(problem["status"], 503);
    assert_eq!(problem["type"], "about:blank");
    assert_eq!(problem.get("violated-policies"), None);
    assert!(!problem.to_string().contains("wire"), "what is wrong inside is not for the client: {problem}");
}

#[tokio::test]
async fn a_policy_in_a_stores_place_is_503_or_lets_through_without_fields() {
    let denied = Verdict::Denied { retry_after: Duration::from_secs(7) };
    let response = ask(Says::by_policy(denied), Http::new()).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(retry_after(response.headers()), Some(7));
    assert_eq!(limits(response.headers()), []);

    let response = ask(Says::by_policy(Verdict::Allowed), Http::new().legacy_headers(ResetFormat::DeltaSeconds)).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!has_fields(response.headers()));
}

#[tokio::test]
async fn a_fallbacks_refusal_is_the_clients_as_well() {
    let response =
        ask(Says::by(DecisionSource::Fallback, Verdict::Denied { retry_after: Duration::from_secs(2) }), Http::new())
            .await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(limits(response.headers()).len(), 1);
}

#[tokio::test]
async fn a_missing_key_is_400_or_where_the_server_is_at_fault_500() {
    let by_header = RateLimitLayer::new(Header::from_static("x-tenant"), Says::yes()).layer(service_fn(hello));
    let response = answer(by_header.oneshot(request())).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert!(!has_fields(response.headers()));
    assert_eq!(problem(response).await["detail"], "the header x-tenant is missing");

    let by_peer = RateLimitLayer::new(PeerIp::new(), Says::yes()).layer(service_fn(hello));
    let response = answer(by_peer.oneshot(request())).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let problem = problem(response).await;
    assert_eq!(problem["title"], "Internal Server Error");
    // How to mend it is for the log.
    assert_eq!(problem["detail"], "server misconfigured");
}

#[tokio::test]
async fn a_missing_key_can_be_let_through_under_no_limit() {
    let layer = RateLimitLayer::new(Header::from_static("x-tenant"), Says::no()).missing_key(MissingKeyPolicy::Exempt);
    let response = answer(layer.layer(service_fn(hello)).oneshot(request())).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!has_fields(response.headers()));
    assert_eq!(response.headers()["told"], "exempt");

    let mut with_key = request();
    with_key.headers_mut().insert("x-tenant", HeaderValue::from_static("acme"));
    let response = answer(layer.layer(service_fn(hello)).oneshot(with_key)).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "who has a key is held to it");
}

#[tokio::test]
async fn the_exempt_pass_without_fields() {
    let layer = RateLimitLayer::new(|_: &Request<()>| Extracted::<()>::Exempt, Says::no());
    let response = answer(layer.layer(service_fn(hello)).oneshot(request())).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(!has_fields(response.headers()));
    assert_eq!(response.headers()["told"], "exempt");
    assert_eq!(response.extensions().get(), Some(&RateLimitInfo::Exempt));
}

#[tokio::test]
async fn bare_leaves_what_is_let_through_as_it_is() {
    let response = ask(Says::yes(), Http::minimal()).await;
    assert!(!has_fields(response.headers()));
    assert!(response.extensions().is_empty());
    assert_eq!(response.headers()["told"], "nothing");

    let response = ask(Says::no(), Http::minimal()).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(retry_after(response.headers()), Some(2));
    assert_eq!((limits(response.headers()), policies(response.headers())), (vec![], vec![]));
    assert!(response.extensions().is_empty());
    assert_eq!(problem(response).await["status"], 429);
}

#[tokio::test]
async fn each_part_can_be_turned_on_and_off() {
    let response = ask(Says::yes(), Http::new().rate_limit_headers(false)).await;
    assert!(!has_fields(response.headers()));
    assert!(response.extensions().get::<RateLimitInfo>().is_some());

    let response = ask(Says::yes(), Http::new().extensions(false)).await;
    assert_eq!(limits(response.headers()).len(), 1);
    assert!(response.extensions().is_empty());
    assert_eq!(response.headers()["told"], "nothing");

    let response = ask(Says::yes(), Http::minimal().rate_limit_headers(true)).await;
    assert_eq!(limits(response.headers()).len(), 1);
}

#[tokio::test]
async fn the_legacy_fields_come_in_both_dialects() {
    let like_kong = Http::new().legacy_headers(ResetFormat::DeltaSeconds);
    let like_github = Http::minimal().legacy_headers(ResetFormat::EpochSeconds);
    let start = ManualClock::START.as_micros() / 1_000_000;
    for says in [Says::yes(), Says::no()] {
        let response = ask(says.clone(), like_kong).await;
        assert_eq!(legacy(response.headers()), Some([5, 3, 40]));
        assert_eq!(limits(response.headers()).len(), 1, "beside the draft's");
        let response = ask(says, like_github).await;
        assert_eq!(legacy(response.headers()), Some([5, 3, start + 40]));
        assert_eq!(limits(response.headers()), [], "instead of the draft's");
    }
}

/// A moment within a second is told as the next whole one: not before the key is as good as new.
#[tokio::test]
async fn the_legacy_reset_is_rounded_up() {
    let clock = ManualClock::new();
    let limiter = Memory::builder(FixedWindow::new(Quota::per_minute(5))).clock(clock.clone()).build().unwrap();
    clock.advance(Duration::from_millis(300));
    let _ = ask(limiter.clone(), Http::new()).await;
    clock.advance(Duration::from_micros(1));
    let start = ManualClock::START.as_micros() / 1_000_000;
    let response = ask(limiter.clone(), Http::minimal().legacy_headers(ResetFormat::EpochSeconds)).await;
    assert_eq!(legacy(response.headers()), Some([5, 3, start + 61]));
    let response = ask(limiter, Http::minimal().legacy_headers(ResetFormat::DeltaSeconds)).await;
    assert_eq!(legacy(response.headers()), Some([5, 2, 60]));
}

#[tokio::test]
async fn a_rendered_refusal_keeps_the_header_fields() {
    let render = |_: &Parts, refusal: &Rejection| {
        let mut response = Response::new(Full::from(format!("slow down: {refusal}")));
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        response.headers_mut().insert("content-type", HeaderValue::from_static("text/plain"));
        response
    };
    let responder = Http::new().legacy_headers(ResetFormat::DeltaSeconds).render(render);
    let response = ask(Says::no(), responder).await;
    assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
    assert_eq!(response.headers()["content-type"], "text/plain");
    assert_eq!(retry_after(response.headers()), Some(2));
    assert_eq!(limits(response.headers()).len(), 1);
    assert_eq!(legacy(response.headers()), Some([5, 3, 40]));
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(body, "slow down: rate limit \"told\" exceeded, retry after 1.5s");

    let allowed = ask(Says::yes(), responder).await;
    assert_eq!((allowed.status(), limits(allowed.headers()).len()), (StatusCode::OK, 1));
}

/// Which limits refused, and how each stands: all of them, in their declared order, the strictest decides the rest.
#[tokio::test]
async fn several_limits_are_listed_and_those_that_refuse_are_named() {
    let clock = ManualClock::new();
    let limiter = Memory::builder((
        Limit::new("smooth", Gcra::new(Quota::per_second(2))),
        Limit::new("hourly", FixedWindow::new(Quota::per_hour(3))),
        Limit::new("daily", FixedWindow::new(Quota::per_day(3))),
    ));
    let limiter = limiter.clock(clock.clone()).build().expect("a limiter");
    let responder = Http::new().legacy_headers(ResetFormat::DeltaSeconds);

    let response = ask(limiter.clone(), responder).await;
    let policy = [("smooth".into(), 2, 1), ("hourly".into(), 3, 3600), ("daily".into(), 3, 86400)];
    assert_eq!(policies(response.headers()), policy);
    let (hour, day) = (Some(3600), Some(86400));
    assert_eq!(
        limits(response.headers()),
        [("smooth".into(), 1, Some(1)), ("hourly".into(), 2, hour), ("daily".into(), 2, day)]
    );
    assert_eq!(legacy(response.headers()), Some([2, 1, 1]), "the least that remains");

    let _ = ask(limiter.clone(), responder).await;
    let response = ask(limiter.clone(), responder).await;
    assert_eq!(retry_after(response.headers()), Some(1));
    assert_eq!(
        limits(response.headers()),
        [("smooth".into(), 0, Some(1)), ("hourly".into(), 1, hour), ("daily".into(), 1, day)],
        "a refusal charges nobody"
    );
    assert_eq!(problem(response).await["violated-policies"], json!(["smooth"]));

    clock.advance(Duration::from_secs(1));
    let _ = ask(limiter.clone(), responder).await;
    let response = ask(limiter.clone(), responder).await;
    assert_eq!(retry_after(response.headers()), Some(86399), "the longest wait of all that refuse");
    assert_eq!(legacy(response.headers()), Some([3, 0, 86399]), "of the limit that speaks");
    assert_eq!(problem(response).await["violated-policies"], json!(["hourly", "daily"]));
}

/// A limit on trial counts and refuses nothing; clients are not told of it.
#[tokio::test]
async fn a_shadow_is_not_told() {
    let limiter = Memory::builder((
        Limit::new("old", FixedWindow::new(Quota::per_minute(3))),
        Limit::new("new", FixedWindow::new(Quota::per_minute(1))).shadow(),
    ));
    let limiter = limiter.clock(ManualClock::new()).build().expect("a limiter");
    let responder = Http::new().legacy_headers(ResetFormat::DeltaSeconds);
    for left in [2, 1, 0] {
        let response = ask(limiter.clone(), responder).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(policies(response.headers()), [("old".into(), 3, 60)]);
        assert_eq!(limits(response.headers()), [("old".into(), left, Some(60))]);
        assert_eq!(legacy(response.headers()).expect("fields")[1].cast_signed(), left);
        let admission = response.extensions().get::<RateLimitInfo>().expect("a decision");
        let shadows = admission.decision().expect("a decision").shadow_refusals().map(LimitStatus::name);
        assert_eq!(shadows.collect::<Vec<_>>(), if left == 2 { vec![] } else { vec!["new"] });
    }
    let response = ask(limiter, responder).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(limits(response.headers()), [("old".into(), 0, Some(60))]);
    assert_eq!(problem(response).await["violated-policies"], json!(["old"]));
}

/// A custom limiter's names are not checked when the limiter is built: the fields and the body spell the names alike.
#[tokio::test]
async fn custom_limit_names_are_spelled_alike_in_fields_and_body() {
    let name = "a \"b\\c\" d\u{e9}\u{1f600}\t\r\n\u{7f};q=1, \"x\"";
    let ascii = "a ?b?c? d??????;q=1, ?x?";
    let decision = Says::no().0.expect("a decision");
    let denied = LimitStatus::new(name, decision.verdict(), decision.most_restrictive().expect("a limit").figures());
    let response = ask(Says(Ok(Decision::from_limit(ManualClock::START, denied))), Http::new()).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(policies(response.headers()), [(ascii.into(), 5, 60)]);
    assert_eq!(limits(response.headers()), [(ascii.into(), 3, Some(2))]);
    let problem = problem(response).await;
    assert_eq!(problem["violated-policies"], json!([ascii]));
    assert!(problem["detail"].as_str().expect("text").contains(ascii), "{problem}");
}

/// The renderer sees the refused request: its method, its URI, its header fields, its extensions.
#[tokio::test]
async fn render_sees_request_parts() {
    let render = |request: &Parts, refusal: &Rejection| {
        let accept = request.headers.get("accept").and_then(|value| value.to_str().ok()).unwrap_or("*/*");
        let told = request.extensions.get::<&str>().copied().unwrap_or("nothing");
        let text = format!("{} {} {accept} {told}: {}", request.method, request.uri, refusal.is_over_limit());
        Response::builder().status(429).body(Full::from(text)).expect("a response")
    };
    let layer = RateLimitLayer::new(Global, Says::no()).responder(Http::new().render(render));
    let request = Request::put("/a/b?c=d").header("accept", "text/html").extension("by an outer layer");
    let service = layer.layer(service_fn(hello));
    let response = answer(service.oneshot(request.body(()).expect("a request"))).await;
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(body, "PUT /a/b?c=d text/html by an outer layer: true");
}

/// A structured-field Integer has 15 digits at most.
#[tokio::test]
async fn numbers_stay_within_what_a_field_can_hold() {
    let limiter =
        Memory::new(Limit::new("vast", FixedWindow::new(Quota::new(1 << 53, Duration::from_secs(86400 * 73050)))));
    let response = ask(limiter, Http::new()).await;
    assert_eq!(policies(response.headers()), [("vast".into(), 999_999_999_999_999, 6_311_520_000)]);
    assert_eq!(limits(response.headers()), [("vast".into(), 999_999_999_999_999, Some(6_311_520_000))]);
}

/// A window of less than a second: the draft knows only whole ones above zero.
#[tokio::test]
async fn a_short_window_is_a_second() {
    let limiter = Memory::new(FixedWindow::new(Quota::new(4, Duration::from_millis(20))));
    let response = ask(limiter, Http::new()).await;
    assert_eq!(policies(response.headers()), [("default".into(), 4, 1)]);
    assert_eq!(limits(response.headers()), [("default".into(), 3, Some(1))]);
}

/// What a handler has set stays: lists are appended to, of the legacy fields the more restrictive ones remain.
#[tokio::test]
async fn what_the_handler_has_set_stays() {
    async fn handler(request: Request<()>) -> Result<Page, Infallible> {
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
    let layer =
        RateLimitLayer::new(Global, Says::yes()).responder(Http::new().legacy_headers(ResetFormat::DeltaSeconds));
    let service = layer.layer(service_fn(handler));
    let remaining = |remaining: &str| {
        let fields = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
        let request = fields
            .into_iter()
            .zip(["7", remaining, "70"])
            .fold(Request::get("/"), |request, (name, value)| request.header(name, value));
        answer(service.clone().oneshot(request.body(()).expect("a request")))
    };

    let response = remaining("2").await;
    assert_eq!(limits(response.headers()), [("mine".into(), 1, Some(9)), ("told".into(), 3, Some(12))]);
    assert_eq!(policies(response.headers()), [("mine".into(), 2, 9), ("told".into(), 5, 60)]);
    assert_eq!(
        retry_after(response.headers()),
        Some(9),
        "the answer was let through: its `Retry-After` is the handler's"
    );
    assert_eq!(legacy(response.headers()), Some([7, 2, 70]), "2 is less than 3: the handler's");
    assert_eq!(legacy(remaining("4").await.headers()), Some([5, 3, 40]), "3 is less than 4: the limiter's");
    let garbage = remaining("plenty").await;
    assert_eq!(legacy(garbage.headers()), Some([5, 3, 40]), "what can't be compared is replaced as a whole");
}
