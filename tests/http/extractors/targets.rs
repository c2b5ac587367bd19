//! Keys of the request target: host, path, route, method.

use std::hash::Hash;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::middleware::{Next, from_fn};
use axum::routing::{get, post};
use http::{Request, StatusCode};
use tower::ServiceExt;
use tower_ratelimit::cost::IdempotencyKey;
use tower_ratelimit::key::{ExactPaths, Extracted, Global, Host, KeyText, MatchedPath, Method, Path};
use tower_ratelimit::{ExtractKey, Gcra, ManualClock, Memory, Quota, RateLimitLayer};

use crate::support::{Get, missing, with};

fn at(uri: &str) -> Get {
    Request::get(uri).body(()).expect("a request")
}

#[test]
fn host_is_normalized() {
    let extract = |host: &str| Host::new().extract(&with(&[("host", host)]));
    for host in ["example.org", "EXAMPLE.org", "example.org.", "example.org:80", "Example.Org.:8080", "example.org:"] {
        assert_eq!(extract(host), Extracted::Key(KeyText::from("example.org")), "{host}");
    }
    for host in ["[2001:db8::a]", "[2001:DB8::A]:80", "[2001:db8::A]:"] {
        assert_eq!(extract(host), Extracted::Key(KeyText::from("[2001:db8::a]")), "{host}");
    }
    assert_eq!(extract("192.0.2.1:80"), Extracted::Key(KeyText::from("192.0.2.1")));
    assert_ne!(extract("www.example.org"), extract("example.org"));
    let longest = format!("{}.org", "a.".repeat(124));
    assert!(matches!(extract(&longest), Extracted::Key(_)), "the maximum length of a name");
}

#[test]
fn host_is_read_from_the_uri() {
    let mut request = at("https://user:password@Example.ORG:443/path");
    assert_eq!(Host::new().extract(&request), Extracted::Key(KeyText::from("example.org")), "without the password");
    request.headers_mut().insert("host", "example.org".parse().expect("a value"));
    assert_eq!(
        Host::new().extract(&request),
        Extracted::Key(KeyText::from("example.org")),
        "the field equals the authority"
    );
}

/// Applications differ in which of the two they use.
#[test]
fn host_is_unusable_when_authority_and_field_differ() {
    let extract = |uri: &str, host: &str| {
        let mut request = with(&[("host", host)]);
        *request.uri_mut() = uri.parse().expect("a URI");
        Host::new().extract(&request)
    };
    let same = [
        ("http://a.test/", "a.test", "a.test"),
        ("http://a.test/", "A.TEST.", "a.test"),
        ("http://A.test./", "a.test:", "a.test"),
        ("http://a.test/", "a.test:80", "a.test"),
        ("https://a.test:443/", "a.test", "a.test"),
        ("https://user@a.test:8443/", "a.test:8443", "a.test"),
        ("http://[2001:DB8::1]/", "[2001:db8::1]:80", "[2001:db8::1]"),
        ("a.test:443", "a.test:443", "a.test"),
    ];
    for (uri, host, name) in same {
        assert_eq!(extract(uri, host), Extracted::Key(KeyText::from(name)), "{uri} {host}");
    }
    let different = [
        ("http://a.test/", "b.test"),
        ("http://a.test/", "www.a.test"),
        ("http://a.test/", "a.test:443"),
        ("https://a.test/", "a.test:80"),
        ("https://a.test:8443/", "a.test"),
        ("a.test:443", "a.test"),
        ("http://a.test/", "user@a.test"),
        ("http://a.test/", ""),
    ];
    for (uri, host) in different {
        let found = extract(uri, host);
        let Extracted::Missing(missing) = found else { panic!("{uri} {host}: {found:?}") };
        assert!(missing.is_unusable(), "{uri} {host}: {missing}");
    }
}

#[test]
fn invalid_host_is_missing() {
    let reason = |fields: &[(&'static str, &str)]| {
        let (reason, is_server_error) = missing(Host::new().extract(&with(fields)));
        assert!(!is_server_error);
        reason
    };
    assert_eq!(reason(&[]), "the header host is missing");
    assert_eq!(reason(&[("host", "")]), "the header host is empty");
    assert_eq!(reason(&[("host", "a.test"), ("host", "b.test")]), "the header host is repeated");
    let long = "a".repeat(400);
    for host in [
        ".",
        "..",
        "a..",
        ":80",
        "a.test:port",
        "a.test:+80",
        "a.test:65536",
        "a.test:80:80",
        "user@a.test",
        "a.test/path",
        "a test",
        "a,b test",
        "[]",
        "[2001:db8::1",
        "[2001:db8::1]x",
        "[2001:db8::1]:x",
        "2001:db8::1",
        "h\u{f6}st",
        &long,
    ] {
        assert!(reason(&[("host", host)]).contains("is malformed"), "{host}");
    }
}

#[test]
fn path_excludes_the_query() {
    assert_eq!(Path.extract(&at("/a/b?c=d")), Extracted::Key(KeyText::from("/a/b")));
    assert_eq!(Path.extract(&at("https://a.test/a/b")), Extracted::Key(KeyText::from("/a/b")));
    assert_ne!(Path.extract(&at("/a/b/")), Path.extract(&at("/a/b")), "paths are not normalized");
    let long = |last| at(&format!("/{}{last}", "x".repeat(10_000)));
    assert_ne!(Path.extract(&long('a')), Path.extract(&long('b')), "bounded, and distinct");
}

#[test]
fn method_is_case_sensitive() {
    let method = |name: &str| Method.extract(&Request::builder().method(name).body(()).expect("a request"));
    assert_eq!(method("GET"), Extracted::Key(KeyText::from("GET")));
    assert_ne!(method("get"), method("GET"));
    assert_eq!(method("BREW"), Extracted::Key(KeyText::from("BREW")));
    assert!(matches!(method(&"X".repeat(10_000)), Extracted::Key(_)), "bounded");
}

fn one_a_minute<Key: Hash + ?Sized>() -> Memory<Key, Gcra> {
    Memory::builder(Gcra::new(Quota::per_minute(1))).clock(ManualClock::new()).build().expect("settings")
}

async fn status(app: &Router, uri: &str) -> StatusCode {
    app.clone().oneshot(Request::get(uri).body(Body::empty()).expect("a request")).await.expect("infallible").status()
}

#[tokio::test]
async fn matched_path_is_one_key_for_all_paths_of_a_route() {
    let routes = || Router::new().route("/users/{id}", get(async || "user")).route("/posts/{id}", get(async || "post"));
    let app = routes().route_layer(RateLimitLayer::new(MatchedPath, one_a_minute()));
    assert_eq!(status(&app, "/users/1").await, 200);
    assert_eq!(status(&app, "/users/2").await, 429);
    assert_eq!(status(&app, "/posts/2").await, 200);
    assert_eq!(status(&app, "/nothing").await, 404, "without a route there is no layer");

    let nested = Router::new().nest("/api", routes()).layer(RateLimitLayer::new(MatchedPath, one_a_minute()));
    assert_eq!(status(&nested, "/api/users/1").await, 200);
    assert_eq!(status(&nested, "/api/users/2").await, 429);
    assert_eq!(status(&nested, "/nothing").await, 404, "the layer without a route");
    assert_eq!(status(&nested, "/other").await, 429, "requests without a route share one limit");
    assert_eq!(status(&nested, "/api/posts/1").await, 200);
}

/// A nested service has no route of the outer router: its requests share one limit.
#[tokio::test]
async fn matched_path_of_a_nested_service_is_one_key() {
    let inner = Router::new().route("/users/{id}", get(async || "user")).fallback(async || "nothing");
    let app = Router::new()
        .route("/", get(async || "home"))
        .nest_service("/api", inner)
        .layer(RateLimitLayer::new(MatchedPath, one_a_minute()));
    assert_eq!(status(&app, "/api/users/1").await, 200);
    assert_eq!(status(&app, "/api/anything").await, 429);
    assert_eq!(status(&app, "/nothing").await, 429);
    assert_eq!(status(&app, "/").await, 200, "another route");
}

#[test]
fn matched_path_without_a_route_is_one_key() {
    for uri in ["/users/1", "/", "/no route"] {
        let request = Request::get(uri.replace(' ', "%20")).body(()).expect("a request");
        assert_eq!(MatchedPath.extract(&request), Extracted::Key(KeyText::from("no route")));
    }
}

/// The law: at each depth of nested routers and services, the items that read a path read the one that the client sent.
#[tokio::test]
async fn path_in_nested_routers_is_what_the_client_sent() {
    for (depth, kinds) in (0..5).flat_map(|depth| (0..1 << depth).map(move |kinds| (depth, kinds))) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sent = (0..depth).map(|level| format!("/p{level}")).chain(["/items/7".to_owned()]).collect::<String>();
        let record = |sent: &str| {
            let (seen, exact) = (Arc::clone(&seen), ExactPaths::new([sent]));
            from_fn(move |request: axum::extract::Request, next: Next| {
                let (path, is_exact) = (Path.extract(&request), exact.matches(&request));
                seen.lock().expect("no panic").push((path, is_exact));
                next.run(request)
            })
        };
        let mut app = Router::new().route("/items/{id}", get(async || "item")).layer(record(&sent));
        for level in (0..depth).rev() {
            let prefix = format!("/p{level}");
            let outer = Router::new();
            // A router or a service, below a prefix that is text or a parameter.
            app = match kinds >> level & 1 {
                0 => outer.nest(&prefix, app),
                _ => outer.nest_service("/{prefix}", app),
            };
            app = app.layer(record(&sent));
        }
        assert_eq!(status(&app, &format!("{sent}?query=1")).await, 200, "{sent}");
        let seen = seen.lock().expect("no panic");
        assert_eq!(seen.len(), depth + 1);
        for found in &*seen {
            assert_eq!(found, &(Extracted::Key(KeyText::from(&*sent)), true), "{sent}, {kinds:b}");
        }
    }
}

/// The id of a request covers the path that the client sent: one id is no repeat below another prefix.
#[tokio::test]
async fn idempotency_key_covers_the_prefix_of_a_nested_router() {
    let limiter = one_a_minute::<()>();
    let pay = || {
        let layer = RateLimitLayer::new(Global, limiter.clone()).once(IdempotencyKey::header());
        Router::new().route("/pay", post(async || "paid")).layer(layer)
    };
    let app = Router::new().nest("/eu", pay()).nest("/us", pay());
    let send = async |uri: &str| {
        let request = Request::post(uri).header("idempotency-key", "8e03978e").body(Body::empty()).expect("a request");
        app.clone().oneshot(request).await.expect("infallible").status()
    };
    assert_eq!(send("/eu/pay").await, 200);
    assert_eq!(send("/us/pay").await, 429, "a charge of its own");
    assert_eq!(send("/eu/pay").await, 200, "a repeat");
}
