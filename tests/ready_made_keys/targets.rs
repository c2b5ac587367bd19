//! What a request is for.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, StatusCode};
use tower::ServiceExt;
use tower_ratelimit::key::{ExtractKey, Extracted, Global, Host, KeyText, MatchedPath, Method, Path};
use tower_ratelimit::{Gcra, ManualClock, Memory, Quota, RateLimitLayer};

use crate::support::{Get, missing, with};

fn at(uri: &str) -> Get {
    Request::get(uri).body(()).expect("a request")
}

#[test]
fn a_host_is_one_however_it_is_written() {
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
    assert!(matches!(extract(&longest), Extracted::Key(_)), "as long as a name can be");
}

#[test]
fn a_port_counts_if_that_is_said() {
    let extract = |host: &str| Host::new().with_port().extract(&with(&[("host", host)]));
    assert_eq!(extract("Example.org:8080"), Extracted::Key(KeyText::from("example.org:8080")));
    assert_eq!(extract("example.org.:08080"), Extracted::Key(KeyText::from("example.org:8080")));
    assert_eq!(extract("[2001:DB8::a]:80"), Extracted::Key(KeyText::from("[2001:db8::a]:80")));
    for host in ["example.org", "example.org:"] {
        assert_eq!(extract(host), Extracted::Key(KeyText::from("example.org")), "{host}");
    }
}

/// RFC 9112, section 3.2.2: an authority in the request's target outweighs the field.
#[test]
fn the_uris_authority_outweighs_the_field() {
    let mut request = at("https://user:password@Example.ORG:443/path");
    assert_eq!(Host::new().extract(&request), Extracted::Key(KeyText::from("example.org")), "and no password in it");
    assert_eq!(Host::new().with_port().extract(&request), Extracted::Key(KeyText::from("example.org:443")));
    request.headers_mut().insert("host", "other.test".parse().expect("a value"));
    assert_eq!(Host::new().extract(&request), Extracted::Key(KeyText::from("example.org")));
}

#[test]
fn what_is_no_host_is_missing() {
    let reason = |fields: &[(&'static str, &str)]| {
        let (reason, by_server) = missing(Host::new().extract(&with(fields)));
        assert!(!by_server);
        reason
    };
    assert_eq!(reason(&[]), "the header field host is missing");
    assert_eq!(reason(&[("host", "")]), "the header field host is empty");
    assert_eq!(reason(&[("host", "a.test"), ("host", "b.test")]), "the header field host comes more than once");
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
        assert!(reason(&[("host", host)]).contains("is no host"), "{host}");
    }
}

#[test]
fn a_path_is_without_its_query() {
    assert_eq!(Path.extract(&at("/a/b?c=d")), Extracted::Key(KeyText::from("/a/b")));
    assert_eq!(Path.extract(&at("https://a.test/a/b")), Extracted::Key(KeyText::from("/a/b")));
    assert_ne!(Path.extract(&at("/a/b/")), Path.extract(&at("/a/b")), "as it is written");
    let long = |last| at(&format!("/{}{last}", "x".repeat(10_000)));
    assert_ne!(Path.extract(&long('a')), Path.extract(&long('b')), "bounded, and told apart");
}

#[test]
fn a_method_counts_to_the_letter() {
    let method = |name: &str| Method.extract(&Request::builder().method(name).body(()).expect("a request"));
    assert_eq!(method("GET"), Extracted::Key(KeyText::from("GET")));
    assert_ne!(method("get"), method("GET"));
    assert_eq!(method("BREW"), Extracted::Key(KeyText::from("BREW")));
    assert!(matches!(method(&"X".repeat(10_000)), Extracted::Key(_)), "bounded");
}

fn one_a_minute() -> Memory<Gcra, ManualClock> {
    Memory::builder(Gcra::new(Quota::per_minute(1))).clock(ManualClock::new()).build().expect("settings")
}

async fn status(app: &Router, uri: &str) -> StatusCode {
    app.clone().oneshot(Request::get(uri).body(Body::empty()).expect("a request")).await.expect("infallible").status()
}

#[tokio::test]
async fn a_route_is_one_for_all_its_paths() {
    let routes = || Router::new().route("/users/{id}", get(async || "user")).route("/posts/{id}", get(async || "post"));
    let app = routes().route_layer(RateLimitLayer::new(MatchedPath, one_a_minute()));
    assert_eq!(status(&app, "/users/1").await, 200);
    assert_eq!(status(&app, "/users/2").await, 429);
    assert_eq!(status(&app, "/posts/2").await, 200);
    assert_eq!(status(&app, "/nothing").await, 404, "which is no route, and has no layer");

    let nested = Router::new().nest("/api", routes()).layer(RateLimitLayer::new(MatchedPath, one_a_minute()));
    assert_eq!(status(&nested, "/api/users/1").await, 200);
    assert_eq!(status(&nested, "/api/users/2").await, 429);
    assert_eq!(status(&nested, "/nothing").await, 500, "the layer is there, and no route");

    let all = routes().layer(RateLimitLayer::new(MatchedPath.or(Global), one_a_minute()));
    assert_eq!(status(&all, "/users/1").await, 200);
    assert_eq!(status(&all, "/nothing").await, 404);
    assert_eq!(status(&all, "/other").await, 429, "what has no route is under one limit, if that is said");
}

#[test]
fn without_a_route_the_server_is_at_fault() {
    let (reason, by_server) = missing(MatchedPath.extract(&at("/users/1")));
    assert!(by_server && reason.contains("route_layer"), "{reason}");
}
