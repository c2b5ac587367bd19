//! The series of paced bodies.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_ratelimit::key::Global;
use tower_ratelimit::observe::Metrics;
use tower_ratelimit::pacing::PacingLayer;
use tower_ratelimit::{Limit, Memory, Quota, TokenBucket, TokioClock};

#[tokio::test(start_paused = true)]
async fn paced_bytes_waits_and_errors_are_series_of_the_direction() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let limit = Limit::new("bytes", TokenBucket::new(Quota::per_second(1_000)));
    let limiter = Memory::<(), _>::builder(limit).clock(TokioClock::new()).build().expect("a limit");
    let download = async |length: usize, max_wait: u64| {
        let page = service_fn(move |_: Request<()>| async move {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![7; length]))))
        });
        let pacing = PacingLayer::downloads(Global, limiter.clone()).max_wait(Duration::from_secs(max_wait));
        let response = pacing.observe(Metrics::new("files")).layer(page).oneshot(Request::new(())).await;
        response.expect("a response").into_body().collect().await.is_ok()
    };
    assert!(download(3_000, 60).await);
    // Nothing remains of the burst, and the next chunk waits for longer than it may.
    assert!(!download(1_000, 0).await);
    let scraped = recorder.handle().render();
    let of_limit = "limiter=\"files\",limit=\"bytes\",direction=\"download\"";
    for line in [
        format!("ratelimit_paced_bytes_total{{{of_limit}}} 3000"),
        format!("ratelimit_paced_wait_seconds_sum{{{of_limit}}} 2"),
        "ratelimit_paced_errors_total{limiter=\"files\",direction=\"download\"} 1".to_owned(),
        // In the words of docs/metrics.md.
        "# HELP ratelimit_paced_bytes_total bytes of paced bodies that passed".to_owned(),
        "# HELP ratelimit_paced_wait_seconds time that chunks of paced bodies waited, if they did".to_owned(),
    ] {
        assert!(scraped.contains(&line), "{line} is not in\n{scraped}");
    }
}
