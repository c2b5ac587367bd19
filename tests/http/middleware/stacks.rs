//! The layer in stacks: axum's routers, tower's `ServiceBuilder`, and nested limiters.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::connect_info::MockConnectInfo;
use axum::routing::get;
use http::{HeaderMap, Request, Response, StatusCode};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::key::{Extracted, Global};
use tower_ratelimit::response::{Headers, RejectWithError, Rejection, ResetFormat};
use tower_ratelimit::{BoxLimiter, Http, PeerIp, RateLimitInfo, RateLimitLayer};

use crate::fields::{legacy, limits, policies, retry_after};
use crate::support::{Pool, TestRequest, named, page_layer, per_minute, rejecting};

fn by_all(name: &'static str, limit: u64) -> RateLimitLayer<Global, BoxLimiter<()>> {
    page_layer(named(name, limit))
}

/// Sends one request to a router.
async fn send(app: &Router, path: &str) -> Response<Body> {
    let request = Request::get(path).body(Body::empty()).expect("a request");
    let Ok(response) = app.clone().oneshot(request).await;
    response
}

async fn status(app: &Router, path: &str) -> u16 {
    send(app, path).await.status().as_u16()
}

/// Returns the names of the limits in a response.
fn limit_names(headers: &HeaderMap) -> Vec<String> {
    let (limits, policies) = (limits(headers), policies(headers));
    let names: Vec<_> = limits.into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, policies.into_iter().map(|(name, ..)| name).collect::<Vec<_>>());
    names
}

/// axum builds a service from the layer for every route and method. All services share the limit.
#[tokio::test]
async fn router_layer_shares_the_limit_over_routes_and_methods() {
    let app = Router::new()
        .route("/a", get(async || "a").post(async || "posted"))
        .route("/b", get(async || "b"))
        .layer(by_all("app", 3));
    assert_eq!(status(&app, "/a").await, 200);
    assert_eq!(status(&app, "/b").await, 200);
    let post = Request::post("/a").body(Body::empty()).expect("a request");
    assert_eq!(app.clone().oneshot(post).await.expect("infallible").status(), StatusCode::OK);
    assert_eq!(status(&app, "/a").await, 429);
    assert_eq!(status(&app, "/b").await, 429);
}

#[tokio::test]
async fn routes_added_after_the_layer_are_not_limited() {
    let app = Router::new().route("/", get(async || "hello")).layer(by_all("app", 1));
    let app = app.route("/health", get(async || "ok"));
    assert_eq!(status(&app, "/").await, 200);
    assert_eq!(status(&app, "/").await, 429);
    for _ in 0..3 {
        let health = send(&app, "/health").await;
        assert_eq!(health.status(), StatusCode::OK);
        assert_eq!(limit_names(health.headers()), [""; 0]);
    }
}

/// A request without a route is charged by `layer`, and not by `route_layer`.
#[tokio::test]
async fn route_layer_limits_only_matched_routes() {
    let router = || Router::new().route("/", get(async || "hello"));

    let app = router().route_layer(by_all("app", 1));
    for _ in 0..3 {
        assert_eq!(status(&app, "/unknown").await, 404);
    }
    assert_eq!(status(&app, "/").await, 200);
    assert_eq!(status(&app, "/").await, 429);

    let app = router().layer(by_all("app", 1));
    assert_eq!(status(&app, "/unknown").await, 404);
    assert_eq!(status(&app, "/unknown").await, 429);
    assert_eq!(status(&app, "/").await, 429);
}

#[tokio::test]
async fn method_layer_limits_only_that_method() {
    let app = Router::new().route("/", get(async || "hello").layer(by_all("get", 1)).post(async || "posted"));
    assert_eq!(status(&app, "/").await, 200);
    assert_eq!(status(&app, "/").await, 429);
    let post = Request::post("/").body(Body::empty()).expect("a request");
    assert_eq!(app.oneshot(post).await.expect("infallible").status(), StatusCode::OK);
}

/// A nested router has its own limit and the outer limit. Responses have both.
#[tokio::test]
async fn nested_routers_are_under_both_limits() {
    let api = Router::new().route("/", get(async || "api")).layer(by_all("api", 2));
    let app = Router::new().route("/", get(async || "site")).nest("/api", api).layer(by_all("app", 4));

    let response = send(&app, "/api").await;
    assert_eq!(limit_names(response.headers()), ["api", "app"], "the inner limit is added first");
    assert_eq!(status(&app, "/api").await, 200);
    let rejected = send(&app, "/api").await;
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(limit_names(rejected.headers()), ["api", "app"], "the outer limit allowed and charged it");

    let response = send(&app, "/").await;
    assert_eq!((response.status(), limit_names(response.headers())), (StatusCode::OK, vec!["app".to_owned()]));
    let rejected = send(&app, "/").await;
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        limit_names(send(&app, "/api").await.headers()),
        ["app"],
        "the outer layer rejects before the inner limiter is called"
    );
}

#[tokio::test]
async fn merged_routers_share_a_cloned_layer() {
    let shared = by_all("shared", 2);
    let one = Router::new().route("/one", get(async || "one")).layer(shared.clone());
    let two = Router::new().route("/two", get(async || "two")).layer(shared);
    let own = Router::new().route("/own", get(async || "own")).layer(by_all("own", 1));
    let app = one.merge(two).merge(own);
    assert_eq!(status(&app, "/one").await, 200);
    assert_eq!(status(&app, "/two").await, 200);
    assert_eq!(status(&app, "/one").await, 429);
    assert_eq!(status(&app, "/own").await, 200);
}

/// axum's documentation recommends this for tests without a socket.
#[tokio::test]
async fn peer_ip_reads_a_mocked_address() {
    let client = |address: &str| {
        let address: SocketAddr = address.parse().expect("an address");
        let limited = Router::new().route("/", get(async || "hello"));
        move |layer: RateLimitLayer<PeerIp, BoxLimiter<_>>| limited.layer(layer).layer(MockConnectInfo(address))
    };
    let layer = RateLimitLayer::new(PeerIp::new(), named("peer", 1));
    let one = client("192.0.2.1:1")(layer.clone());
    let same = client("[::ffff:192.0.2.1]:2")(layer.clone());
    let other = client("192.0.2.2:1")(layer.clone());
    let unknown = Router::new().route("/", get(async || "hello")).layer(layer);
    assert_eq!(status(&one, "/").await, 200);
    assert_eq!(status(&same, "/").await, 429);
    assert_eq!(status(&other, "/").await, 200);
    assert_eq!(status(&unknown, "/").await, 500);
}

/// A login layer outside the limiter inserts the user.
#[tokio::test]
async fn extension_of_an_outer_layer_is_the_key() {
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct User(String);

    async fn login(mut request: axum::extract::Request, next: axum::middleware::Next) -> axum::response::Response {
        let user = request.headers().get("authorization").and_then(|value| value.to_str().ok()).map(str::to_owned);
        if let Some(user) = user {
            request.extensions_mut().insert(User(user));
        }
        next.run(request).await
    }

    let limiter = named("user", 1);
    let app = Router::new()
        .route("/", get(async || "hello"))
        .layer(RateLimitLayer::new(tower_ratelimit::key::FromExtension::<User>::new(), limiter))
        .layer(axum::middleware::from_fn(login));
    let as_user = |user: &str| Request::get("/").header("authorization", user).body(Body::empty()).expect("a request");
    for (user, expected) in [("ada", 200), ("ada", 429), ("bob", 200)] {
        assert_eq!(app.clone().oneshot(as_user(user)).await.expect("infallible").status(), expected, "{user}");
    }
    assert_eq!(status(&app, "/").await, 500, "a request without a login is a server error");
}

/// Outer layers see the most restrictive decision, handlers that of the innermost limiter.
#[tokio::test]
async fn stacked_limiters_add_both_limits_to_the_response() {
    async fn handler(request: axum::extract::Request) -> String {
        let admission = request.extensions().get::<RateLimitInfo>().expect("a decision");
        let status = admission.decision().and_then(tower_ratelimit::Decision::most_restrictive).expect("a limit");
        status.name().to_owned()
    }
    let delta_seconds = || {
        Http::new()
            .headers(Headers::new().legacy(ResetFormat::DeltaSeconds).request_extension(true).response_extension(true))
    };
    for ((inner, outer), strictest) in [((2, 5), "inner"), ((5, 2), "outer")] {
        let app = Router::new().route("/", get(handler)).layer(
            ServiceBuilder::new()
                .layer(by_all("outer", outer).responder(delta_seconds()))
                .layer(by_all("inner", inner).responder(delta_seconds())),
        );
        let response = send(&app, "/").await;
        let remaining =
            [("inner", inner), ("outer", outer)].map(|(name, limit)| (name.into(), limit.cast_signed() - 1, Some(60)));
        assert_eq!(limits(response.headers()), remaining);
        assert_eq!(policies(response.headers()).len(), 2);
        assert_eq!(legacy(response.headers()), Some([2, 1, 60]), "of the limit with the least remaining");
        let name = |response: &Response<Body>| {
            let admission = response.extensions().get::<RateLimitInfo>().expect("a decision").clone();
            admission
                .decision()
                .and_then(|decision| Some(decision.most_restrictive()?.name().to_owned()))
                .expect("a limit")
        };
        assert_eq!(name(&response), strictest);
        let body = axum::body::to_bytes(response.into_body(), 99).await.expect("a body");
        assert_eq!(body, "inner", "the handler sees the innermost limiter");

        let _ = send(&app, "/").await;
        let rejected = send(&app, "/").await;
        assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(name(&rejected), strictest, "a denial is more restrictive than any allowed decision");
        assert_eq!((legacy(rejected.headers()), retry_after(rejected.headers())), (Some([2, 0, 60]), Some(60)));
        let both = ["inner".to_owned(), "outer".to_owned()];
        assert_eq!(
            limit_names(rejected.headers()),
            if strictest == "inner" { both.to_vec() } else { both[1..].to_vec() }
        );
    }
}

/// A decision replaces an exemption, whichever layer is outside.
#[tokio::test]
async fn decision_replaces_an_exemption_in_stacked_layers() {
    let exempt = RateLimitLayer::new(|_: &axum::extract::Request| Extracted::<()>::Exempt, named("exempt", 1));
    let exempt = || exempt.clone().responder(Http::new().headers(Headers::new().response_extension(true)));
    let limited = || by_all("app", 9).responder(Http::new().headers(Headers::new().response_extension(true)));
    for app in [
        Router::new().route("/", get(async || "hello")).layer(exempt()).layer(limited()),
        Router::new().route("/", get(async || "hello")).layer(limited()).layer(exempt()),
    ] {
        let response = send(&app, "/").await;
        assert_eq!(limit_names(response.headers()), ["app"]);
        assert!(response.extensions().get::<RateLimitInfo>().expect("a `RateLimitInfo`").decision().is_some());
    }
}

#[tokio::test]
async fn map_body_works_in_axum() {
    let responder = Http::new().map_body();
    let app = Router::new().route("/", get(async || "hello")).layer(by_all("app", 1).responder(responder));
    let response = send(&app, "/").await;
    assert_eq!(axum::body::to_bytes(response.into_body(), 99).await.expect("a body"), "hello");
    let rejected = send(&app, "/").await;
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    let body = axum::body::to_bytes(rejected.into_body(), 999).await.expect("a body");
    assert!(body.starts_with(b"{\"type\":"));
}

/// Load shedding and a buffer outside the layer, a concurrency limit inside.
#[tokio::test]
async fn layer_works_between_tower_layers() {
    let (limiter, _clock) = per_minute(2);
    let service = ServiceBuilder::new()
        .load_shed()
        .buffer(4)
        .layer(rejecting(limiter))
        .concurrency_limit(1)
        .service(Pool::new(9).service());
    let call = || service.clone().oneshot(TestRequest::new("a"));
    for _ in 0..2 {
        assert!(call().await.is_ok());
    }
    for _ in 0..9 {
        let error = call().await.expect_err("a rejection");
        assert!(error.is::<Rejection>(), "no permit is lost: {error}");
    }
}

/// The layer limits the requests of a client.
#[tokio::test]
async fn layer_limits_a_boxed_client_service() {
    let client = tower::util::BoxCloneService::new(service_fn(async |_: Request<String>| {
        Ok::<_, BoxError>(Response::new("pong".to_owned()))
    }));
    let by_host = |request: &Request<String>| request.uri().host().map(str::to_owned);
    let layer = RateLimitLayer::new(by_host, named("host", 1)).responder(RejectWithError);
    let mut client = layer.layer(client);
    let to = |host: &str| Request::get(format!("http://{host}/")).body(String::new()).expect("a request");
    for (host, passes) in [("a.test", true), ("a.test", false), ("b.test", true)] {
        let answer = client.ready().await.expect("ready").call(to(host)).await;
        assert_eq!(answer.is_ok(), passes, "{host}");
    }
}

/// Layers and services are `Clone`, `Send` and `Sync`, as servers require.
#[test]
fn layers_and_services_are_clone_send_and_sync() {
    struct NotClone;
    fn is_layer<L: Clone + Send + Sync + 'static>(_: &L) {}
    fn is_service<R, S: Service<R, Future: Send + 'static> + Clone + Send + Sync + 'static>(_: &S) {}

    let layer = RateLimitLayer::new(PeerIp::new(), named("app", 1));
    is_layer(&layer);
    let router: Router = Router::new();
    is_service::<Request<Body>, _>(&layer.layer(router));
    // Requests and responses need not be `Clone`.
    let layer = RateLimitLayer::new(|_: &NotClone| Some("key"), per_minute(1).0).responder(RejectWithError);
    is_layer(&layer);
    is_service::<NotClone, _>(&layer.layer(service_fn(async |request: NotClone| Ok::<_, BoxError>(request))));
}
