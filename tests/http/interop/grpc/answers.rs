//! gRPC rejections, field by field.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use tonic::{Code, Status};
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::key::{Extracted, Global, Header};
use tower_ratelimit::limiter::{LimiterFuture, Outcome};
use tower_ratelimit::response::{Grpc, Headers, ResponseBody};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Decision, DecisionSource, Error, FixedWindow, Gcra, Limit, Limiter, ManualClock,
    Memory, Quota, RateLimitInfo, RateLimitLayer, Timestamp, Verdict,
};

type Page = Response<ResponseBody<Full<Bytes>>>;

/// The body says whether the request has a `RateLimitInfo`.
async fn ok(request: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    let seen = request.extensions().get::<RateLimitInfo>().map_or("nothing", |_| "info");
    Ok(Response::new(Full::from(seen)))
}

/// A limiter that always returns the same outcome.
#[derive(Clone)]
struct StubLimiter(Result<Verdict, Error>);

impl Limiter<()> for StubLimiter {
    fn acquire(&self, (): &(), _: AcquireOptions) -> LimiterFuture<Outcome> {
        let decision =
            |verdict| Decision::without_limit(Timestamp::from_micros(0), verdict).with_source(DecisionSource::NoLimit);
        LimiterFuture::ready(self.0.clone().map(|verdict| Outcome::from(decision(verdict))))
    }
}

async fn send(limiter: impl Limiter<()>, responder: Grpc) -> Page {
    let service = RateLimitLayer::new(Global, BoxLimiter::new(limiter)).responder(responder).layer(service_fn(ok));
    service.oneshot(call()).await.unwrap_or_else(|never| match never {})
}

fn call() -> Request<()> {
    Request::post("/a.B/C").header("content-type", "application/grpc").body(()).expect("a request")
}

/// Returns a limiter whose limit is used up.
fn used_up(quota: FixedWindow) -> Memory<(), FixedWindow> {
    let limiter = Memory::builder(quota).clock(ManualClock::new()).build().expect("a limiter");
    while limiter.check(&(), AcquireOptions::default()).is_allowed() {}
    limiter
}

fn status(headers: &HeaderMap) -> Status {
    Status::from_header_map(headers).expect("a status")
}

#[tokio::test]
async fn grpc_rejection_is_trailers_only() {
    let limiter = used_up(FixedWindow::new(Quota::per_minute(2)));
    let response = send(limiter, Grpc::new().headers(Headers::none().response_extension(true))).await;
    assert_eq!(response.status(), 200);
    let headers = response.headers();
    let mut names: Vec<_> = headers.keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    let expected = ["cache-control", "content-type", "grpc-message", "grpc-retry-pushback-ms", "grpc-status"];
    assert_eq!(names[..5], expected);
    assert_eq!(names[5..], ["grpc-status-details-bin"]);
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(headers["content-type"], "application/grpc");
    assert_eq!(headers["grpc-status"], "8");
    assert_eq!(headers["grpc-message"], "rate%20limit%20%22default%22%20exceeded,%20retry%20after%2060s");
    let details = headers["grpc-status-details-bin"].to_str().expect("ASCII");
    assert!(!details.ends_with('='), "base64 without padding: {details}");
    assert!(response.extensions().get::<RateLimitInfo>().is_some_and(|admission| admission.decision().is_some()));
    assert!(response.into_body().collect().await.expect("a body").to_bytes().is_empty());
}

#[tokio::test]
async fn grpc_message_percent_encodes_limit_names() {
    let limit = Limit::new("size 100%", FixedWindow::new(Quota::per_minute(1)));
    let limiter = Memory::builder(limit).clock(ManualClock::new()).build().expect("a limiter");
    assert!(limiter.check(&(), AcquireOptions::default()).is_allowed());
    let response = send(limiter, Grpc::new()).await;
    let message = response.headers()["grpc-message"].to_str().expect("ASCII").to_owned();
    assert!(message.contains("size%20100%25"), "{message}");
    let status = status(response.headers());
    assert!(status.message().contains("\"size 100%\""), "{status:?}");
    let details = status.get_error_details();
    assert_eq!(details.quota_failure().expect("QuotaFailure").violations[0].quota_id, "size 100%");
}

#[tokio::test]
async fn grpc_rejection_forbids_retries_when_the_cost_exceeds_the_limit() {
    let limiter = Memory::new(Gcra::new(Quota::per_second(2)));
    let layer = RateLimitLayer::new(Global, limiter).responder(Grpc::new());
    let service = layer.cost(|_: &Request<()>| 3).layer(service_fn(ok));
    let Ok(response) = service.oneshot(call()).await;
    let status = status(response.headers());
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.get_error_details().retry_info().is_none());
    assert!(status.get_error_details().quota_failure().is_some());
    assert_eq!(response.headers()["grpc-retry-pushback-ms"], "-1");
}

#[tokio::test]
async fn grpc_rejection_names_all_limits_that_deny() {
    let limits = (
        Limit::new("smooth", Gcra::new(Quota::per_second(1))),
        Limit::new("minute", FixedWindow::new(Quota::per_minute(1))),
        Limit::new("day", FixedWindow::new(Quota::per_day(100))),
        Limit::new("trial", FixedWindow::new(Quota::per_day(1))).shadow(),
    );
    let limiter = Memory::builder(limits).clock(ManualClock::new()).build().expect("a limiter");
    assert!(limiter.check(&(), AcquireOptions::default()).is_allowed());
    let details = status(send(limiter, Grpc::new()).await.headers()).get_error_details();
    let violations = &details.quota_failure().expect("QuotaFailure").violations;
    assert_eq!(
        violations.iter().map(|violation| violation.quota_id.as_str()).collect::<Vec<_>>(),
        ["smooth", "minute"]
    );
    assert_eq!(
        details.retry_info().expect("RetryInfo").retry_delay,
        Some(Duration::from_secs(60)),
        "the combined wait"
    );
}

/// A block can be told from a denial, and a block by escalation from one by an operator.
#[tokio::test]
async fn grpc_rejection_of_a_block_by_escalation_has_its_reason() {
    use tower_ratelimit::BlockReason;
    use tower_ratelimit::limiter::AdminOperation;

    for (reason, expected) in
        [(BlockReason::Escalation, "ABNORMAL_USAGE_DETECTED"), (BlockReason::Administrator, "BLOCKED")]
    {
        let limiter: Memory<(), _> = Memory::new(FixedWindow::new(Quota::per_hour(1)));
        let denied = [(); 2].map(|()| limiter.check(&(), 1))[1].clone();
        let info = Grpc::new().status(&denied.into()).get_error_details().error_info().cloned();
        assert!(info.is_none(), "{info:?}");
        let block = AdminOperation::Block { limit: "default", duration: Duration::from_secs(9_000), reason };
        limiter.administer(&(), block).await.expect("done");
        let status = Grpc::new().status(&limiter.check(&(), 1).into());
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert_eq!(status.get_error_details().error_info().expect("ErrorInfo").reason, expected);
    }
}

#[tokio::test]
async fn failed_limiter_is_unavailable() {
    let denied = Verdict::Denied { retry_after: Duration::from_secs(3) };
    for (outcome, wait) in [(Err(Error::unavailable("connection lost")), 1), (Ok(denied), 3)] {
        let response = send(StubLimiter(outcome), Grpc::new()).await;
        let status = status(response.headers());
        assert_eq!(status.code(), Code::Unavailable);
        assert!(!status.message().contains("connection lost"), "the cause is not for clients");
        let details = status.get_error_details();
        assert_eq!(details.retry_info().expect("RetryInfo").retry_delay, Some(Duration::from_secs(wait)));
        assert!(details.quota_failure().is_none());
        assert_eq!(response.headers()["grpc-retry-pushback-ms"], (wait * 1_000).to_string().as_str());
    }
}

#[tokio::test]
async fn missing_key_is_invalid_argument_or_internal() {
    let limiter = Memory::new(Gcra::new(Quota::per_second(2)));
    let layer = RateLimitLayer::new(Header::from_static("x-tenant"), limiter.clone()).responder(Grpc::new());
    let Ok(response) = layer.layer(service_fn(ok)).oneshot(call()).await;
    let missing_key = status(response.headers());
    assert_eq!((missing_key.code(), missing_key.message()), (Code::InvalidArgument, "the header x-tenant is missing"));
    assert!(missing_key.details().is_empty());

    let missing =
        |_: &Request<()>| Extracted::<String>::Missing(tower_ratelimit::key::MissingKey::from_server("no login"));
    let layer = RateLimitLayer::new(missing, Memory::new(Gcra::new(Quota::per_second(2)))).responder(Grpc::new());
    let Ok(response) = layer.layer(service_fn(ok)).oneshot(call()).await;
    let misconfigured = status(response.headers());
    assert_eq!(
        (misconfigured.code(), misconfigured.message()),
        (Code::Internal, "server misconfigured"),
        "the details are for the log"
    );
    assert!(misconfigured.details().is_empty());
}

#[tokio::test]
async fn pushback_is_not_before_retry_after_and_fits_32_bits() {
    let pushback = |response: &Page| -> i64 {
        response.headers()["grpc-retry-pushback-ms"].to_str().expect("ASCII").parse().expect("a number")
    };
    let minute = used_up(FixedWindow::new(Quota::per_minute(2)));
    assert_eq!(pushback(&send(minute.clone(), Grpc::new()).await), 60_000);
    let mut delays = Vec::new();
    for _ in 0..200 {
        let response = send(minute.clone(), Grpc::new().headers(Headers::none().retry_jitter(5))).await;
        let info = status(response.headers()).get_error_details().retry_info().expect("RetryInfo").retry_delay;
        let millis = info.expect("a wait").as_nanos().div_ceil(1_000_000);
        assert_eq!(pushback(&response), i64::try_from(millis).expect("a wait"), "one wait in both");
        delays.push(pushback(&response));
    }
    assert!(delays.iter().all(|millis| (60_000..=63_000).contains(millis)), "{delays:?}");
    assert!(delays.iter().max() > delays.iter().min(), "jitter");

    let years = used_up(FixedWindow::new(Quota::new(1, Duration::from_secs(100 * 366 * 86_400))));
    let response = send(years, Grpc::new().headers(Headers::none().retry_jitter(u8::MAX))).await;
    assert_eq!(pushback(&response), i64::from(i32::MAX));
}

#[tokio::test]
async fn grpc_responder_parts_are_configurable() {
    let limiter = used_up(FixedWindow::new(Quota::per_minute(2)));
    let response = send(limiter, Grpc::new().details(false).headers(Headers::none().rate_limit(true))).await;
    assert!(!response.headers().contains_key("grpc-status-details-bin"));
    assert!(response.extensions().get::<RateLimitInfo>().is_none());
    assert_eq!(response.headers()["ratelimit"], r#""default";r=0;t=60"#);
    assert_eq!(response.headers()["ratelimit-policy"], r#""default";q=2;w=60"#);

    for (responder, expected) in
        [(Grpc::new(), "nothing"), (Grpc::new().headers(Headers::none().request_extension(true)), "info")]
    {
        let response = send(StubLimiter(Ok(Verdict::Allowed)), responder).await;
        assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), expected);
    }
}
