//! Rejected requests of the method `HEAD`, over HTTP/1 and HTTP/2, outside of axum's router.
//!
//! A real server of hyper and a real client are connected by a stream in memory. The model is RFC 9110, section 9.3.2:
//! the answer to `HEAD` has the status and the fields of the answer to `GET`, and no content. Its `content-length`, if
//! there is one, is the length of the content that `GET` would have received (section 8.6).

use std::convert::Infallible;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body, Incoming};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::key::{Extracted, MissingKey};
use tower_ratelimit::response::{BoxError, Grpc, Headers, Rejection, ResetFormat};
use tower_ratelimit::{Error, Http, RateLimitLayer, Respond, Verdict};

use crate::support::{BoxExecutor, StubLimiter, spawn};

type Page = Response<Full<Bytes>>;
type KeyFn = fn(&Request<Incoming>) -> Extracted<()>;

/// The answers to requests on one connection.
type Answers = Vec<Result<(StatusCode, HeaderMap, Bytes), String>>;

/// A service with any body in its responses: the compiler generates the code of hyper's server once.
type Service = BoxCloneSyncService<Request<Incoming>, Response<axum::body::Body>, Infallible>;

/// Sends one request of each method on one connection, and returns the answers.
async fn answers(version: Version, service: Service, methods: &[Method]) -> Answers {
    let service = TowerToHyperService::new(service);
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (ours, theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
    let request = |method: &Method| {
        let request = Request::builder().method(method).uri("http://a.test/").header("host", "a.test");
        request.body(Empty::<Bytes>::new()).expect("a request")
    };
    let mut answers = Vec::new();
    let read = async |response: Result<Response<Incoming>, hyper::Error>| {
        let (mut head, body) = response.map_err(|error| format!("no answer: {error:?}"))?.into_parts();
        // hyper writes the time, which may be another second in the next answer.
        head.headers.remove("date");
        let body = body.collect().await.map_err(|error| format!("no body: {error:?}"))?;
        Ok((head.status, head.headers, body.to_bytes()))
    };
    if version == Version::HTTP_2 {
        let server = hyper::server::conn::http2::Builder::new(BoxExecutor);
        spawn(server.serve_connection(theirs, service));
        let client = hyper::client::conn::http2::handshake(BoxExecutor, ours).await.expect("HTTP/2");
        spawn(client.1);
        let mut sender = client.0;
        for method in methods {
            answers.push(read(sender.send_request(request(method)).await).await);
        }
    } else {
        spawn(hyper::server::conn::http1::Builder::new().serve_connection(theirs, service));
        let client = hyper::client::conn::http1::handshake(ours).await.expect("HTTP/1.1");
        spawn(client.1);
        let mut sender = client.0;
        for method in methods {
            sender.ready().await.expect("the connection is kept alive");
            answers.push(read(sender.send_request(request(method)).await).await);
        }
    }
    answers
}

/// Every kind of rejection, with the status that it has in HTTP.
fn rejections() -> [(KeyFn, StubLimiter, u16); 7] {
    let key: KeyFn = |_| Extracted::Key(());
    [
        (key, StubLimiter::denying(), 429),
        (key, StubLimiter::exceeding(), 429),
        (key, StubLimiter::failing(), 503),
        (key, StubLimiter::from_policy(Verdict::Denied { retry_after: std::time::Duration::from_secs(2) }), 503),
        (key, StubLimiter(Err(Error::config("no such limit"))), 500),
        (|_| Extracted::Missing(MissingKey::from_request("no key")), StubLimiter::allowing(), 400),
        (|_| Extracted::Missing(MissingKey::from_server("no layer")), StubLimiter::allowing(), 500),
    ]
}

/// Checks the answers of a responder to every kind of rejection, with both versions of HTTP.
async fn check<R, B>(name: &str, responder: R)
where
    R: Respond<Request<Incoming>, Page, Infallible, Response = Response<B>> + Clone + Send + Sync + 'static,
    R::Context: Send,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let methods = [Method::GET, Method::HEAD, Method::HEAD, Method::GET];
    for version in [Version::HTTP_11, Version::HTTP_2] {
        for (key, limiter, status) in rejections() {
            let case = format!("{name}, {version:?}, {status}");
            let page = service_fn(async |_: Request<Incoming>| Ok(Page::new(Full::from("hello"))));
            let limited = RateLimitLayer::new(key, limiter).responder(responder.clone()).layer(page);
            let service = Service::new(limited.map_response(|response| response.map(axum::body::Body::new)));
            let answers = answers(version, service, &methods).await;
            let (first, mut rest) = (answers[0].clone().expect(&case), answers[1..].to_vec());
            assert_eq!(first.0, status, "{case}");
            assert_eq!(rest.pop(), Some(Ok(first.clone())), "{case}: the connection is usable");
            for answer in rest {
                let (status, mut fields, body) = answer.unwrap_or_else(|error| panic!("{case}: {error}"));
                assert_eq!((status, body.len()), (first.0, 0), "{case}");
                if let Some(length) = fields.remove("content-length") {
                    assert_eq!(length, first.2.len().to_string(), "{case}");
                }
                let mut of_get = first.1.clone();
                of_get.remove("content-length");
                assert_eq!(fields, of_get, "{case}");
            }
        }
    }
}

#[tokio::test]
async fn refused_head_has_no_body() {
    check("Http", Http::new()).await;
    check("minimal", Http::without_headers().headers(Headers::none().legacy(ResetFormat::DeltaSeconds))).await;
    check("map_body", Http::new().map_body()).await;
    check("Http, Grpc", Http::new().grpc(Grpc::new())).await;
    check("Http, Grpc, map_body", Http::new().grpc(Grpc::new()).map_body()).await;
    check("Grpc", Grpc::new()).await;
}

/// The body of a closure of `render` is left out as well, and its length is stated.
#[tokio::test]
async fn refused_head_of_rendered_rejections_has_no_body() {
    fn status(rejection: &Rejection) -> StatusCode {
        match rejection {
            _ if rejection.is_misconfigured() => StatusCode::INTERNAL_SERVER_ERROR,
            Rejection::MissingKey(_) => StatusCode::BAD_REQUEST,
            _ if rejection.is_over_limit() => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
    let full = |_: &Parts, rejection: &Rejection| {
        let mut response = Response::new(Full::from(Bytes::from(rejection.to_string())));
        *response.status_mut() = status(rejection);
        response
    };
    let bytes = |_: &Parts, rejection: &Rejection| {
        let mut response = Response::new(Bytes::from(rejection.to_string()));
        *response.status_mut() = status(rejection);
        response
    };
    check("render", Http::new().render(full)).await;
    check("render, map_body", Http::new().render(bytes).map_body()).await;
    check("render, by content type", Http::new().render(full).grpc(Grpc::new())).await;
}
