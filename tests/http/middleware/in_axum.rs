//! axum's response types: closures that return tuples, and rejections as responses of handlers.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::request::Parts;
use http::{Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt;
use tower_ratelimit::response::{Grpc, Headers, Rejection, ResetFormat};
use tower_ratelimit::{
    AcquireOptions, BoxLimiter, Error, FixedWindow, Http, Limiter, ManualClock, Quota, RateLimitLayer, Verdict,
};

use crate::support::{StubLimiter, memory, page_layer};

async fn send(app: &Router) -> Response {
    app.clone().oneshot(Request::get("/").body(Body::empty()).expect("a request")).await.expect("a response")
}

async fn text(response: Response) -> String {
    String::from_utf8(to_bytes(response.into_body(), 10_000).await.expect("a body").to_vec()).expect("text")
}

#[tokio::test]
async fn render_accepts_a_status_and_tuples() {
    let app = |layer| Router::new().route("/", get(async || "hello")).layer::<RateLimitLayer<_, _, _>>(layer);
    let denying = || page_layer(StubLimiter::denying());

    let pair = app(denying().responder(Http::new().render(|request: &Parts, rejection: &Rejection| {
        (StatusCode::TOO_MANY_REQUESTS, format!("{}: {rejection}", request.uri.path()))
    })));
    let response = send(&pair).await;
    assert_eq!(
        (response.status(), &response.headers()["retry-after"]),
        (StatusCode::TOO_MANY_REQUESTS, &"2".parse().unwrap())
    );
    assert_eq!(text(response).await, "/: rate limit \"stub\" exceeded, retry after 1.5s");

    let with_headers =
        Http::new().render(|_: &Parts, _: &Rejection| (StatusCode::FORBIDDEN, [("x-reason", "limit")], "no"));
    let triple = Router::new().route("/", get(async || "hello")).layer(denying().responder(with_headers));
    let response = send(&triple).await;
    assert_eq!(
        (response.status(), &response.headers()["x-reason"]),
        (StatusCode::FORBIDDEN, &"limit".parse().unwrap())
    );

    let bare = Http::new().render(|_: &Parts, _: &Rejection| StatusCode::IM_A_TEAPOT);
    let bare = Router::new().route("/", get(async || "hello")).layer(denying().responder(bare));
    assert_eq!(send(&bare).await.status(), StatusCode::IM_A_TEAPOT);
}

#[tokio::test]
async fn closure_responder_accepts_tuples() {
    let responder = |_: axum::extract::Request, rejection: Rejection| {
        (StatusCode::SERVICE_UNAVAILABLE, axum::response::Html(rejection.to_string()))
    };
    let layer = page_layer(StubLimiter::failing()).responder(responder);
    let app = Router::new().route("/", get(async || "hello")).layer(layer);
    let response = send(&app).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(text(response).await, "rate limiter unavailable");
}

/// A handler that calls a limiter answers as the layer does.
#[tokio::test]
async fn rejection_as_a_handler_response_equals_that_of_the_layer() {
    async fn handler(State(limiter): State<BoxLimiter<()>>) -> Result<&'static str, Rejection> {
        let decision = limiter.check(&(), 1).await?;
        if decision.is_allowed() { Ok("hello") } else { Err(Rejection::OverLimit(decision)) }
    }

    let limiter = || memory::<()>(FixedWindow::new(Quota::per_hour(1)), ManualClock::new());
    let by_handler = Router::new().route("/", get(handler)).with_state(limiter());
    let by_layer = Router::new().route("/", get(async || "hello")).layer(page_layer(limiter()));
    for app in [&by_handler, &by_layer] {
        assert_eq!(send(app).await.status(), StatusCode::OK);
    }
    let (handler, layer) = (send(&by_handler).await, send(&by_layer).await);
    assert_eq!(handler.status(), StatusCode::TOO_MANY_REQUESTS);
    for name in ["retry-after", "ratelimit", "ratelimit-policy", "cache-control", "content-type"] {
        assert_eq!(handler.headers().get(name), layer.headers().get(name), "{name}");
        assert!(handler.headers().contains_key(name), "{name}");
    }
    assert_eq!(text(handler).await, text(layer).await);
}

/// A handler whose hold repeats an id answers with a conflict, to which no retry is proposed after the settlement.
#[tokio::test]
async fn repeated_reservation_id_as_a_handler_response_is_a_conflict() {
    let limiter = memory::<str>(FixedWindow::new(Quota::per_hour(10)), ManualClock::new());
    let options = AcquireOptions::cost(1).id("a");
    assert!(limiter.hold("alice", options).await.expect("a decision").decision.is_allowed());
    let open = Rejection::from(limiter.hold("alice", options).await.expect("a decision").decision);
    let other_cost = Rejection::from(limiter.hold("alice", AcquireOptions::cost(2).id("a")).await.expect_err("a cost"));
    limiter.settle("alice", "a", 1).await.expect("settled");
    let settled = Rejection::from(limiter.hold("alice", options).await.expect_err("settled"));
    for (rejection, retries) in [(open, true), (other_cost, false), (settled, false)] {
        assert_eq!(Grpc::new().status(&rejection).code(), tonic::Code::AlreadyExists);
        let response = axum::response::IntoResponse::into_response(rejection);
        assert_eq!(response.status(), StatusCode::CONFLICT);
        assert_eq!(response.headers().contains_key("retry-after"), retries);
        let body = text(response).await;
        assert!(
            body.contains("\"status\":409") && body.contains("a request with this id was admitted before"),
            "{body}"
        );
    }
}

/// "The same status, headers and body as the layer's", for each kind of rejection, method and responder.
#[tokio::test]
async fn reject_in_a_handler_answers_as_the_layer() {
    fn rejections() -> [StubLimiter; 4] {
        [StubLimiter::denying(), StubLimiter::exceeding(), StubLimiter::failing(), StubLimiter::from_policy(DENIED)]
    }

    const DENIED: Verdict = Verdict::Denied { retry_after: std::time::Duration::from_secs(2) };
    let headers = Headers::new().legacy(ResetFormat::DeltaSeconds).expose(true);
    let http = Http::new().headers(headers).render(|request: &Parts, rejection: &Rejection| {
        (StatusCode::IM_A_TEAPOT, format!("{} {rejection}", request.uri))
    });
    let responder = http.grpc(Grpc::new().headers(headers));
    for (method, content_type) in [("GET", "text/plain"), ("HEAD", "text/plain"), ("POST", "application/grpc")] {
        for limiter in rejections() {
            let handler = {
                let limiter = limiter.clone();
                async move |request: Parts| -> Response {
                    match limiter.0 {
                        Ok(denied) => responder.reject(&request, denied),
                        Err(_) => responder.reject(&request, StubLimiter::failing().0.expect_err("an error")),
                    }
                }
            };
            let by_handler = Router::new().fallback(handler);
            let layer = page_layer(limiter).responder(responder);
            let by_layer = Router::new().fallback(async || "hello").layer(layer);
            let send = async |app: Router| {
                let request = Request::builder().method(method).uri("/a").header("content-type", content_type);
                let response = app.oneshot(request.body(Body::empty()).expect("a request")).await.expect("a response");
                let (parts, body) = response.into_parts();
                (parts.status, parts.headers, text(Response::new(body)).await)
            };
            let (of_handler, of_layer) = (send(by_handler).await, send(by_layer).await);
            assert_ne!(of_layer.2, "hello");
            assert_eq!(of_handler, of_layer, "{method} {content_type}");
        }
    }
}

/// Clients receive no cause, and no advice to retry.
#[tokio::test]
async fn misconfigured_limiter_is_a_bare_500() {
    for error in [Error::config("the feature `x` is off"), Error::unsupported("hold failed")] {
        let rejection = Rejection::Unavailable(error);
        assert!(rejection.is_misconfigured());
        assert_eq!((rejection.retry_after(), rejection.retry_after_secs()), (None, None));
        let response = rejection.into_response();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!response.headers().contains_key("retry-after"));
        let body: Value = serde_json::from_str(&text(response).await).expect("JSON");
        let expected = json!({
            "type": "about:blank", "title": "Internal Server Error", "status": 500, "detail": "server misconfigured"
        });
        assert_eq!(body, expected);
    }
    let unavailable = Rejection::Unavailable(Error::unavailable("no reply"));
    assert_eq!((unavailable.is_misconfigured(), unavailable.retry_after_secs()), (false, Some(1)));
    assert_eq!(unavailable.into_response().status(), StatusCode::SERVICE_UNAVAILABLE);
}
