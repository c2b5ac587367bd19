//! The cost that the layer adds to an empty service.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::hint::black_box;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response};
use serde_json::json;
use tower::{Layer, Service};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::PeerIpKeyExtractor;
use tower_ratelimit::response::Headers;
use tower_ratelimit::{Gcra, Http, Limit, Memory, PeerIp, Quota, RateLimitLayer};

use crate::harness::{Contestant, Harness, measure_medians};

#[derive(Clone)]
struct EmptyService;

impl Service<Request<Body>> for EmptyService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        black_box(&request);
        ready(Ok(Response::new(Body::empty())))
    }
}

const TASK_VARIABLE: &str = "TOWER_RATELIMIT_BENCH_SERVICE";

pub(crate) fn run(harness: &mut Harness) {
    for (scenario, contestants) in scenarios() {
        harness.compare_processes(scenario, TASK_VARIABLE, &contestants);
    }
}

/// Measures one scenario if this process is such a child process. Returns whether it is.
pub(crate) fn run_as_child() -> bool {
    let Ok(task) = std::env::var(TASK_VARIABLE) else { return false };
    let (_, contestants) = scenarios().into_iter().find(|(scenario, _)| *scenario == task).expect("a scenario");
    println!("{}", json!(measure_medians(&contestants)));
    true
}

/// The first contestant of each scenario is what `RateLimitLayer::new` does by default.
fn scenarios() -> Vec<(&'static str, Vec<Contestant<'static>>)> {
    let plenty = Gcra::new(Quota::per_second(1_000_000)).burst(u32::MAX.into());
    let none = Gcra::new(Quota::per_day(1));
    let ours = |algorithm, responder| {
        RateLimitLayer::new(PeerIp::new(), Memory::new(algorithm)).responder(responder).layer(EmptyService)
    };
    let governor = |period, burst| {
        let mut config = GovernorConfigBuilder::default().key_extractor(PeerIpKeyExtractor);
        let config = config.period(period).burst_size(burst).finish();
        GovernorLayer::new(Arc::new(config.expect("a configuration"))).layer(EmptyService)
    };
    let governor_with_headers = {
        let mut config = GovernorConfigBuilder::default().key_extractor(PeerIpKeyExtractor).use_headers();
        let config = config.period(Duration::from_nanos(1)).burst_size(u32::MAX).finish();
        GovernorLayer::new(Arc::new(config.expect("a configuration"))).layer(EmptyService)
    };
    let two_limits = Memory::new((Limit::new("user", plenty), Limit::new("next", plenty)));
    let allowed = (
        "service allowed",
        vec![
            contestant("ours", RateLimitLayer::new(PeerIp::new(), Memory::new(plenty)).layer(EmptyService)),
            contestant("bare", EmptyService),
            contestant("tower_governor_with_headers", governor_with_headers),
            contestant("tower_governor", governor(Duration::from_nanos(1), u32::MAX)),
            contestant(
                "ours_with_request_extension",
                ours(plenty, Http::new().headers(Headers::new().request_extension(true))),
            ),
            contestant(
                "ours_with_both_extensions",
                ours(plenty, Http::new().headers(Headers::new().request_extension(true).response_extension(true))),
            ),
            contestant("ours_minimal", ours(plenty, Http::without_headers())),
            contestant("ours_with_two_limits", RateLimitLayer::new(PeerIp::new(), two_limits).layer(EmptyService)),
        ],
    );
    let minimal = (
        "service allowed, minimal",
        vec![
            contestant("ours_minimal", ours(plenty, Http::without_headers())),
            contestant("bare", EmptyService),
            contestant("tower_governor", governor(Duration::from_nanos(1), u32::MAX)),
        ],
    );
    let rejected = (
        "service rejected",
        vec![
            contestant("ours", RateLimitLayer::new(PeerIp::new(), Memory::new(none)).layer(EmptyService)),
            contestant("bare", EmptyService),
            contestant("tower_governor", governor(Duration::from_secs(86_400), 1)),
            contestant("ours_minimal", ours(none, Http::without_headers())),
        ],
    );
    vec![allowed, minimal, rejected]
}

fn contestant<'a, S>(name: &'static str, service: S) -> Contestant<'a>
where
    S: Service<Request<Body>> + Clone + Send + Sync + 'a,
    S::Error: std::fmt::Debug,
{
    Contestant::new(name, move |_| {
        let mut service = service.clone();
        let peer = SocketAddr::from(([203, 0, 113, 7], 4711));
        move |count| {
            let mut cx = Context::from_waker(Waker::noop());
            for _ in 0..count {
                let mut request = Request::new(Body::empty());
                request.extensions_mut().insert(ConnectInfo(peer));
                assert!(service.poll_ready(&mut cx).is_ready());
                let mut response = pin!(service.call(request));
                match response.as_mut().poll(&mut cx) {
                    Poll::Ready(response) => black_box(response.is_ok()),
                    Poll::Pending => panic!("the response is not ready at its first poll"),
                };
            }
        }
    })
}
