//! `Http::map_body`: services whose response body cannot be made from bytes.

use std::convert::Infallible;
use std::pin::pin;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tokio_test::{assert_ready, task};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::response::{Headers, Rejection, ResponseBody};
use tower_ratelimit::{Http, RateLimitInfo};

use crate::fields::{limits, retry_after};
use crate::support::{StubLimiter, page_layer};

/// A body type without `From<Bytes>`.
type Opaque = BoxBody<Bytes, Infallible>;

/// Sends a request to a service that answers with `body`.
async fn page(body: Opaque, limiter: StubLimiter) -> Response<ResponseBody<Opaque>> {
    let layer = page_layer(limiter).responder(Http::new().headers(Headers::new().response_extension(true)).map_body());
    let body = std::sync::Mutex::new(Some(body));
    let service = layer.layer(service_fn(|_: Request<()>| {
        let body = body.lock().expect("not poisoned").take().expect("called once");
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    }));
    let Ok(response) = service.oneshot(Request::new(())).await;
    response
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([("checksum".parse().expect("a name"), HeaderValue::from_static("77"))])
}

/// Returns a body of two data frames and trailers.
fn in_frames() -> Opaque {
    let frames = [
        Frame::data(Bytes::from_static(b"one ")),
        Frame::data(Bytes::from_static(b"two")),
        Frame::trailers(trailers()),
    ];
    BodyExt::boxed(StreamBody::new(Frames(frames.into_iter())))
}

struct Frames(std::array::IntoIter<Frame<Bytes>, 3>);

impl futures_core::Stream for Frames {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.next().map(Ok))
    }
}

#[tokio::test]
async fn mapped_body_passes_data_and_trailers_through() {
    let response = page(in_frames(), StubLimiter::allowing()).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(limits(response.headers()).len(), 1);
    assert!(response.extensions().get::<RateLimitInfo>().is_some());
    let collected = response.into_body().collect().await.expect("a body");
    assert_eq!(collected.trailers(), Some(&trailers()));
    assert_eq!(collected.to_bytes(), "one two");
}

#[tokio::test]
async fn mapped_body_passes_frames_through_one_by_one() {
    let body = page(in_frames(), StubLimiter::allowing()).await.into_body();
    let mut body = task::spawn(body);
    let mut frame = || body.enter(|cx, body| body.poll_frame(cx));
    let mut data = || assert_ready!(frame()).expect("a frame").expect("no error").into_data().ok();
    assert_eq!(data().as_deref(), Some(&b"one "[..]));
    assert_eq!(data().as_deref(), Some(&b"two"[..]));
    assert_eq!(data(), None, "trailers");
    assert!(assert_ready!(frame()).is_none());
}

#[tokio::test]
async fn mapped_body_passes_size_hint_and_end_of_stream_through() {
    let known = page(Full::from("hello").boxed(), StubLimiter::allowing()).await.into_body();
    assert_eq!(known.size_hint().exact(), Some(5));
    assert!(!known.is_end_stream());

    let empty = page(Empty::new().boxed(), StubLimiter::allowing()).await.into_body();
    assert_eq!(empty.size_hint().exact(), Some(0));
    assert!(empty.is_end_stream(), "a server then sends no body");

    let unknown = page(in_frames(), StubLimiter::allowing()).await.into_body();
    assert_eq!((unknown.size_hint().lower(), unknown.size_hint().upper()), (0, None));
    assert!(!unknown.is_end_stream());
}

#[tokio::test]
async fn rejection_body_has_a_known_size_and_ends() {
    let response = page(Empty::new().boxed(), StubLimiter::denying()).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(retry_after(response.headers()), Some(2));
    assert_eq!(limits(response.headers()).len(), 1);
    assert_eq!(response.headers()["content-type"], "application/problem+json");

    let mut body = pin!(response.into_body());
    let size = body.size_hint().exact().expect("a known size");
    assert!(!body.is_end_stream());
    let bytes = body.frame().await.expect("a frame").expect("no error").into_data().expect("data");
    assert_eq!(bytes.len() as u64, size);
    let problem: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
    assert_eq!(problem["status"], 429);
    assert!(body.is_end_stream(), "after its one frame");
    assert_eq!(body.size_hint().exact(), Some(0));
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn empty_rendered_rejection_body_is_at_its_end() {
    let render = |_: &http::request::Parts, _: &Rejection| Response::new(Bytes::new());
    let layer = page_layer(StubLimiter::denying()).responder(Http::new().render(render).map_body());
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(in_frames())));
    let Ok(response) = layer.layer(inner).oneshot(Request::new(())).await;
    assert_eq!(retry_after(response.headers()), Some(2), "fields are added to a rendered response");
    let mut body = response.into_body();
    assert!(body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(0));
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn default_body_is_the_default_of_the_inner_body() {
    let body = ResponseBody::<Full<Bytes>>::default();
    assert!(body.is_end_stream());
    assert_eq!(body.collect().await.expect("a body").to_bytes(), "");
}

/// Body types of servers: hyper's body has neither `From<Bytes>` nor `Default`.
#[test]
fn mapped_body_accepts_the_bodies_of_servers() {
    fn fits<B: http_body::Body<Data = Bytes>>() {
        fn assert_body<B: http_body::Body<Data = Bytes>>() {}
        assert_body::<ResponseBody<B>>();
    }
    fits::<hyper::body::Incoming>();
    fits::<axum::body::Body>();
    fits::<http_body_util::combinators::UnsyncBoxBody<Bytes, axum::BoxError>>();
}
