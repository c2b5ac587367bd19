//! Properties of every rejection, for all requests, responders and causes.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use tower_ratelimit::key::MissingKey;
use tower_ratelimit::response::{Grpc, Rejection};
use tower_ratelimit::{Decision, DecisionSource, Error, Http, LimitSnapshot, LimitStatus, Respond, Timestamp, Verdict};

const METHODS: [&str; 12] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PURGE", "post", "QUERY"];

/// Content types, and whether a `POST` with this type is a gRPC call.
const CONTENT_TYPES: [(&str, bool); 16] = [
    ("application/grpc", true),
    ("application/grpc+proto", true),
    ("application/grpc;charset=utf-8", true),
    ("Application/gRPC ; charset=utf-8", true),
    ("application/grpc-web", true),
    ("application/grpc-web-text+proto", true),
    ("application/grpcx", false),
    ("application/grpc-webby", false),
    ("application/grpc, text/html", false),
    ("application/grpc/x", false),
    ("text/html; a=application/grpc", false),
    ("application/json", false),
    ("text/html", false),
    ("grpc", false),
    ("", false),
    ("\u{e4}", false),
];

fn rejections() -> Vec<Rejection> {
    let now = Timestamp::from_micros(0);
    let wait = Duration::from_secs(3);
    let snapshot = LimitSnapshot::new(5, wait).with_remaining(0).with_reset(wait).with_next_token_after(wait);
    let decided = |verdict| Decision::from_limit(now, LimitStatus::new("default", verdict, snapshot));
    let denied = Verdict::Denied { retry_after: Duration::from_secs(3) };
    vec![
        Rejection::OverLimit(decided(denied)),
        Rejection::OverLimit(decided(Verdict::ExceedsLimit)),
        Rejection::OverLimit(Decision::without_limit(now, denied).with_source(DecisionSource::NoLimit)),
        Rejection::MissingKey(MissingKey::from_request("no tenant")),
        Rejection::MissingKey(MissingKey::from_server("no login")),
        Rejection::Unavailable(Error::unavailable("connection lost")),
    ]
}

fn check<R, B>(responder_name: &str, responder: &R)
where
    R: Respond<Request<()>, Response<Full<Bytes>>, Infallible, Response = Response<B>>,
{
    let types = CONTENT_TYPES.iter().map(|&(text, is_grpc)| (Some(text), is_grpc)).chain([(None, false)]);
    for (content_type, is_grpc_type) in types {
        for method in METHODS {
            for rejection in rejections() {
                let method = Method::from_bytes(method.as_bytes()).expect("a method");
                let is_call = is_grpc_type && method == Method::POST;
                let case = format!("{responder_name}: {method}, {content_type:?}, {rejection}");
                let mut request = Request::builder().method(method);
                if let Some(content_type) = content_type {
                    request = request.header("content-type", content_type.as_bytes());
                }
                let Ok(response) = responder.on_rejected(request.body(()).expect("a request"), rejection);
                let status = response.status().as_u16();
                if status < 400 {
                    assert!(is_call && status == 200 && response.headers().contains_key("grpc-status"), "{case}");
                }
                let stored: Vec<_> = response.headers().get_all("cache-control").iter().collect();
                assert_eq!(stored, ["no-store"], "{case}");
            }
        }
    }
}

#[test]
fn every_rejection_is_an_error_status_with_no_store() {
    let cacheable = |_: &Parts, _: &Rejection| {
        let response = Response::builder().status(StatusCode::TOO_MANY_REQUESTS);
        let response = response.header("cache-control", "max-age=60").header("cache-control", "public");
        response.body(Full::<Bytes>::default()).expect("a response")
    };
    check("HTTP", &Http::new());
    check("minimal HTTP", &Http::without_headers());
    check("rendered", &Http::new().render(cacheable));
    check("any body", &Http::new().map_body());
    check("gRPC", &Grpc::new());
    check("gRPC with details off", &Grpc::new().details(false));
    check("by content type", &Http::new().grpc(Grpc::new()));
    check("by content type, rendered", &Http::without_headers().render(cacheable).grpc(Grpc::new()));
    check("by content type, any body", &Http::new().grpc(Grpc::new()).map_body());
}
