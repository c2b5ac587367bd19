//! Rejections that are not HTTP responses: errors, and responses made by a closure or a custom responder.

use std::error::Error as _;

use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::key::{Extracted, Global, MissingKey};
use tower_ratelimit::response::{BoxError, Headers, RejectWithError, Rejection};
use tower_ratelimit::{Decision, Detail, Error, RateLimitLayer, Respond, Verdict};

use crate::support::{Act, Failure, Pool, StubLimiter, TestRequest, rejecting};

/// Sends `request` to a service of one instance, with rejections as errors.
async fn send(limiter: StubLimiter, request: TestRequest) -> Result<usize, BoxError> {
    rejecting(limiter).layer(Pool::new(1).service()).oneshot(request).await
}

async fn rejected(limiter: StubLimiter, request: TestRequest) -> Rejection {
    let error = send(limiter, request).await.expect_err("a rejection");
    *error.downcast::<Rejection>().expect("the error is a `Rejection`")
}

#[tokio::test]
async fn rejection_as_an_error_states_the_cause() {
    assert_eq!(send(StubLimiter::allowing(), TestRequest::new("a")).await.expect("allowed"), 1);

    let denied = rejected(StubLimiter::denying(), TestRequest::new("a")).await;
    assert_eq!(denied.to_string(), "rate limit \"stub\" exceeded, retry after 1.5s");
    assert!(denied.is_over_limit());
    assert_eq!(denied.retry_after().map(|wait| wait.as_millis()), Some(1500));
    assert!(denied.source().is_none());

    let exceeding = rejected(StubLimiter::exceeding(), TestRequest::new("a")).await;
    assert!(exceeding.decision().expect("a decision").exceeds_limit());
    assert_eq!(exceeding.retry_after(), None, "waiting does not help");

    let missing = rejected(StubLimiter::allowing(), TestRequest::WITHOUT_KEY).await;
    assert!(matches!(&missing, Rejection::MissingKey(missing) if !missing.is_server_error()));
    assert!(!missing.is_over_limit());
    assert_eq!(missing.to_string(), "no key");
}

#[tokio::test]
async fn rejection_as_an_error_keeps_the_cause_of_a_failed_limiter() {
    let broken = rejected(StubLimiter::failing(), TestRequest::new("a")).await;
    assert!(matches!(&broken, Rejection::Unavailable(_)));
    assert!(!broken.is_over_limit());
    let cause = broken.source().and_then(|cause| cause.downcast_ref::<Error>()).expect("the limiter's error");
    assert!(cause.is_unavailable());
    assert_eq!(cause.to_string(), "connection lost");

    let policy = rejected(StubLimiter::from_policy(Verdict::ExceedsLimit), TestRequest::new("a")).await;
    assert!(!policy.is_over_limit(), "a policy is not a used-up quota");
}

/// A service returns both kinds of error, and the caller can distinguish them.
#[tokio::test]
async fn service_error_is_unchanged_when_rejections_are_errors() {
    let error = send(StubLimiter::allowing(), TestRequest::new("a").with_act(Act::Fail)).await.expect_err("a failure");
    assert!(error.downcast_ref::<Rejection>().is_none());
    assert_eq!(error.downcast_ref(), Some(&Failure));
}

/// Outer layers of tower box the error; it can still be downcast.
#[tokio::test]
async fn rejection_as_an_error_passes_through_tower_layers() {
    let service = ServiceBuilder::new()
        .load_shed()
        .concurrency_limit(5)
        .layer(rejecting(StubLimiter::denying()))
        .service(Pool::new(1).service());
    let error = service.oneshot(TestRequest::new("a")).await.expect_err("a rejection");
    assert!(error.is::<Rejection>());
}

#[tokio::test]
async fn closure_responder_receives_the_request_and_the_rejection() {
    let responder = |request: TestRequest, rejection: Rejection| format!("{:?}: {rejection}", request.key);
    let layer = rejecting(StubLimiter::denying()).responder(responder);
    let service = layer.layer(service_fn(async |_: TestRequest| Ok::<_, Failure>("hello".to_owned())));

    let answer = |request| service.clone().oneshot(request);
    assert_eq!(answer(TestRequest::new("exempt")).await, Ok("hello".to_owned()), "an exempt response is unchanged");
    let rejected = answer(TestRequest::new("a")).await;
    assert_eq!(rejected, Ok("Some(\"a\"): rate limit \"stub\" exceeded, retry after 1.5s".to_owned()));
    assert_eq!(answer(TestRequest::WITHOUT_KEY).await, Ok("None: no key".to_owned()));
}

#[tokio::test]
async fn custom_responder_passes_its_context_from_the_request_to_the_response() {
    #[derive(Clone)]
    struct Recorder;

    impl Respond<String, String, Failure> for Recorder {
        type Response = String;
        type Context = String;

        fn detail(&self) -> Detail {
            Detail::All
        }

        fn on_allowed(&self, request: &mut String, decision: Option<&Decision>) -> String {
            request.push_str(", allowed");
            format!("{:?}", decision.and_then(Decision::remaining))
        }

        fn map_response(context: String, response: String) -> String {
            format!("{response}, then mapped with {context}")
        }

        fn on_rejected(&self, request: String, rejection: Rejection) -> Result<String, Failure> {
            if rejection.is_over_limit() { Ok(format!("{request}, rejected")) } else { Err(Failure) }
        }
    }

    let key_of = |request: &String| if request == "exempt" { Extracted::Exempt } else { Extracted::Key(()) };
    let inner = service_fn(async |request: String| Ok(request));
    let send = async |limiter: StubLimiter, request: &str, settles: bool| {
        let layer = RateLimitLayer::new(key_of, limiter).responder(Recorder);
        let request = request.to_owned();
        // With settlement, the layer keeps the hold of the decision.
        if settles {
            layer.settle(|_, _: Result<&String, &Failure>| 0).layer(inner).oneshot(request).await
        } else {
            layer.layer(inner).oneshot(request).await
        }
    };
    for settles in [false, true] {
        let answer = send(StubLimiter::allowing(), "sent", settles).await;
        assert_eq!(answer.as_deref(), Ok("sent, allowed, then mapped with Some(3)"));
        let answer = send(StubLimiter::allowing(), "exempt", settles).await;
        assert_eq!(answer.as_deref(), Ok("exempt, allowed, then mapped with None"));
        assert_eq!(send(StubLimiter::denying(), "sent", settles).await.as_deref(), Ok("sent, rejected"));
        assert_eq!(send(StubLimiter::failing(), "sent", settles).await, Err(Failure), "the responder's error");
    }
}

/// Observers receive the details.
#[tokio::test]
async fn rejection_text_of_a_misconfigured_server_contains_no_details() {
    let missing = |_: &u32| Extracted::<u32>::Missing(MissingKey::from_server("add the layer that finds the user"));
    let layer = RateLimitLayer::new(missing, StubLimiter::allowing());
    let inner = service_fn(async |_: u32| Ok::<_, BoxError>(String::new()));

    let closure = layer.clone().responder(|_: u32, rejection: Rejection| rejection.to_string()).layer(inner);
    assert_eq!(closure.oneshot(1).await.expect("an answer"), "server misconfigured");
    let error = layer.responder(RejectWithError).layer(inner).oneshot(1).await.expect_err("a rejection");
    assert_eq!(error.to_string(), "server misconfigured");
}

/// A responder that returns no errors passes the inner service's error through.
#[tokio::test]
async fn service_error_skips_map_response() {
    let layer = RateLimitLayer::new(Global, StubLimiter::allowing()).responder(|_: u32, _: Rejection| 0);
    let service = layer.layer(service_fn(async |_: u32| Err::<u32, _>(Failure)));
    assert_eq!(service.oneshot(1).await, Err(Failure));
}

/// With `expose_headers` scripts of other origins can read each field of a rejection that the fetch standard hides.
#[tokio::test]
async fn exposed_fields_of_every_rejection_are_those_that_browsers_hide() {
    use bytes::Bytes;
    use http::{HeaderMap, Request, Response};
    use http_body_util::Full;
    use std::collections::BTreeSet;
    use tower_ratelimit::Http;
    use tower_ratelimit::response::{Grpc, ResetFormat};

    /// The fields that are always readable (<https://fetch.spec.whatwg.org/#cors-safelisted-response-header-name>).
    const READABLE: [&str; 3] = ["cache-control", "content-length", "content-type"];

    fn check(name: &str, fields: &HeaderMap) {
        const EXPOSE: &str = "access-control-expose-headers";
        let exposed: BTreeSet<_> =
            fields.get_all(EXPOSE).iter().flat_map(|line| line.to_str().expect("ASCII").split(", ")).collect();
        let sent = fields.keys().map(http::HeaderName::as_str);
        let hidden: BTreeSet<_> = sent.filter(|field| *field != EXPOSE && !READABLE.contains(field)).collect();
        assert_eq!(exposed, hidden, "{name}");
    }

    let http = Http::new().headers(Headers::new().legacy(ResetFormat::DeltaSeconds).expose(true));
    let grpc = Grpc::new().headers(Headers::none().rate_limit(true).expose(true));
    let rejections = || {
        let decision = |limiter: StubLimiter| Rejection::OverLimit(limiter.0.expect("a decision"));
        [
            decision(StubLimiter::denying()),
            decision(StubLimiter::exceeding()),
            Rejection::Unavailable(Error::unavailable("lost")),
            Rejection::Unavailable(Error::config("no such limit")),
            Rejection::MissingKey(MissingKey::from_request("no key")),
        ]
    };
    for content_type in ["text/plain", "application/grpc", "application/grpc-web+proto", "application/grpc-web-text"] {
        let request = || Request::post("/").header("content-type", content_type).body(()).expect("a request");
        for rejection in rejections() {
            let name = format!("{content_type}: {rejection}");
            let of_http: Result<Response<Full<Bytes>>, BoxError> = http.on_rejected(request(), rejection.clone());
            check(&name, of_http.expect("a response").headers());
            let by_type: Result<Response<Full<Bytes>>, BoxError> =
                http.grpc(grpc).on_rejected(request(), rejection.clone());
            check(&name, by_type.expect("a response").headers());
            let of_grpc = Respond::<_, Response<Full<Bytes>>, BoxError>::on_rejected(&grpc, request(), rejection);
            check(&name, of_grpc.expect("a response").headers());
        }
    }
}
