//! The near-limit signal in events, metrics, response extensions and header fields.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit::key::Global;
use tower_ratelimit::observe::Metrics;
use tower_ratelimit::response::Headers;
use tower_ratelimit::{FixedWindow, Http, Limit, Limiter, ManualClock, Memory, Quota, RateLimitInfo, RateLimitLayer};

use crate::support::RecordedEvents;

async fn page(_: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::default()))
}

#[tokio::test(flavor = "current_thread")]
async fn crossing_is_an_event_after_the_decision_a_count_and_changes_no_header_field() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let events = RecordedEvents::default();
    let small = || Limit::new("small", FixedWindow::new(Quota::per_hour(5)));
    let large = || Limit::new("large", FixedWindow::new(Quota::per_hour(10)));
    let memory = Memory::builder((small(), large().warn_at(0.3))).clock(ManualClock::new()).build().expect("limits");
    let unmarked = Memory::builder((small(), large())).clock(ManualClock::new()).build().expect("limits");
    let unmarked = RateLimitLayer::new(Global, unmarked).layer(service_fn(page));
    let service = RateLimitLayer::new(Global, memory.clone())
        .responder(Http::new().headers(Headers::new().response_extension(true)))
        .observe(events.clone())
        .observe(Metrics::new("api"))
        .layer(service_fn(page));
    let mut near = Vec::new();
    for _ in 0..4 {
        let response = service.clone().oneshot(Request::new(())).await.expect("within the limit");
        let without_mark = unmarked.clone().oneshot(Request::new(())).await.expect("within the limit");
        assert_eq!(response.headers(), without_mark.headers());
        near.push(response.extensions().get::<RateLimitInfo>().is_some_and(RateLimitInfo::is_near_limit));
    }
    assert_eq!(near, [false, false, true, true]);
    let decided = "allowed by small in store";
    assert_eq!(events.take(), [decided, decided, decided, "NearLimit { limit: \"large\" }", decided]);
    // A second crossing within the minute is no event, and is counted.
    memory.reset(&()).await.expect("done");
    for _ in 0..3 {
        service.clone().oneshot(Request::new(())).await.expect("within the limit");
    }
    assert_eq!(events.take(), [decided; 3]);
    let scraped = recorder.handle().render();
    assert!(scraped.contains("ratelimit_near_limit_total{limiter=\"api\",limit=\"large\"} 2"), "{scraped}");
    assert!(!RateLimitInfo::Exempt.is_near_limit());
}
