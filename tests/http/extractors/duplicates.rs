//! An absent key may fall back or be exempt, an unusable key may not: every extractor under every policy.

use std::convert::Infallible;

use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use proptest::collection::vec;
use proptest::prelude::*;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::key::{
    Credential, Extracted, FromExtension, Global, Header, Host, InNetworks, LookupLayer, MissingKey, Or, TrustedProxies,
};
use tower_ratelimit::{
    AcquireOptions, ClientIp, ExtractKey, FixedWindow, ManualClock, Memory, MissingKeyPolicy, PeerIp, Quota,
    RateLimitLayer,
};

use crate::support::{Get, with};

type Body = Full<bytes::Bytes>;

/// The fields of a request.
type Fields = &'static [(&'static str, &'static str)];

/// Returns a limiter whose limit is used up.
fn exhausted() -> Memory<(), FixedWindow> {
    let builder = Memory::builder(FixedWindow::new(Quota::per_hour(1))).clock(ManualClock::new()).max_keys(1);
    let limiter = builder.build().expect("settings");
    assert!(limiter.check(&(), AcquireOptions::default()).is_allowed());
    limiter
}

/// Returns the status and body of the response: 200 for an exempt request, 429 for a limited one.
fn answer(key: &dyn Fn(&Get) -> Extracted<()>, policy: MissingKeyPolicy, request: Get) -> (u16, String) {
    let layer = RateLimitLayer::new(|request: &Get| key(request), exhausted()).missing_key(policy);
    let service = layer.layer(service_fn(async |_: Get| Ok::<_, Infallible>(Response::new(Body::default()))));
    tokio_test::block_on(async {
        let Ok(response) = service.oneshot(request).await;
        let status = response.status().as_u16();
        let Ok(body) = response.into_body().collect().await;
        (status, String::from_utf8(body.to_bytes().to_vec()).expect("text"))
    })
}

/// Checks the extractor under every policy and in every combination.
fn check<K>(name: &str, key: &K, absent: &[Get], unusable: &[Get], usable: &Get)
where
    K: ExtractKey<Get, Key: std::fmt::Debug>,
{
    let key = |request: &Get| key.extract(request);
    let exempt = |_: &Get| Extracted::<()>::Exempt;
    let nothing = |_: &Get| None::<()>;
    let status = |key: &dyn Fn(&Get) -> Extracted<()>, policy, request| answer(key, policy, request).0;
    assert!(matches!(key(usable), Extracted::Key(_)), "{name}");

    for request in absent {
        let case = format!("{name}, absent: {:?} {:?}", request.uri(), request.headers());
        let Extracted::Missing(missing) = key(request) else { panic!("{case}") };
        assert!(!missing.is_unusable(), "{case}");
        let rejected = if missing.is_server_error() { 500 } else { 400 };
        assert_eq!(status(&|r| key(r).map(drop), MissingKeyPolicy::Reject, request.clone()), rejected, "{case}");
        assert_eq!(status(&|r| key(r).map(drop), MissingKeyPolicy::Exempt, request.clone()), 200, "{case}");
        assert_eq!(
            status(&|r| Or::new(key, Global).extract(r).map(drop), MissingKeyPolicy::Reject, request.clone()),
            429,
            "{case}"
        );
    }
    for request in unusable {
        let case = format!("{name}, unusable: {:?} {:?}", request.uri(), request.headers());
        let Extracted::Missing(missing) = key(request) else { panic!("{case}") };
        assert!(missing.is_unusable() && !missing.is_server_error(), "{case}");
        for policy in [MissingKeyPolicy::Reject, MissingKeyPolicy::Exempt] {
            let (status, body) = answer(&|r| key(r).map(drop), policy, request.clone());
            assert_eq!(status, 400, "{case}");
            let problem: serde_json::Value = serde_json::from_str(&body).expect("a problem");
            let detail = problem["detail"].as_str().expect("text");
            for advice in ["server", "layer", "axum", "limit", "::", "(", "`"] {
                assert!(!detail.contains(advice), "{detail}: advice about the server");
            }
            let combinations: [&dyn Fn(&Get) -> Extracted<()>; 9] = [
                &|r| Or::new(key, Global).extract(r).map(drop),
                &|r| Or::new(key, exempt).extract(r).map(drop),
                &|r| Or::new(nothing, key).extract(r).map(drop),
                &|r| Or::new(Or::new(nothing, key), exempt).extract(r).map(drop),
                &|r| (key, Global).extract(r).map(drop),
                &|r| (key, nothing).extract(r).map(drop),
                &|r| (nothing, key).extract(r).map(drop),
                &|r| (exempt, nothing, key, nothing).extract(r).map(drop),
                &|r| Or::new((nothing, key), exempt).extract(r).map(drop),
            ];
            for (number, key) in combinations.into_iter().enumerate() {
                assert_eq!(answer(key, policy, request.clone()).0, 400, "{case}, {policy:?}, combination {number}");
            }
        }
    }
    for policy in [MissingKeyPolicy::Reject, MissingKeyPolicy::Exempt] {
        assert_eq!(status(&|r| key(r).map(drop), policy, usable.clone()), 429, "{name}");
    }
}

fn all(requests: &[Fields]) -> Vec<Get> {
    requests.iter().map(|fields| with(fields)).collect()
}

#[test]
fn duplicate_credential_of_a_field_is_unusable() {
    let absent: &[Fields] = &[&[], &[("x-other", "a")]];
    let unusable: &[Fields] = &[
        &[("x-api-key", "")],
        &[("x-api-key", " \t ")],
        &[("x-api-key", "a"), ("x-api-key", "b")],
        &[("x-api-key", "a"), ("x-api-key", "a")],
        &[("x-api-key", "a"), ("x-api-key", "")],
        &[("x-api-key", ""), ("x-api-key", "a")],
    ];
    let usable = with(&[("x-api-key", "a")]);
    check("api key", &Credential::api_key("x-api-key"), &all(absent), &all(unusable), &usable);
    check("Header", &Header::from_static("x-api-key"), &all(absent), &all(unusable), &usable);
}

#[test]
fn duplicate_credential_of_authorization_is_unusable() {
    let absent: &[Fields] = &[
        &[],
        &[("x-other", "Bearer a")],
        &[("authorization", "Basic YTpi")],
        &[("authorization", "Digest username=\"a\", realm=\"b\"")],
        &[("authorization", "Bearerx a")],
    ];
    let unusable: &[Fields] = &[
        &[("authorization", "")],
        &[("authorization", " ")],
        &[("authorization", "Bearer")],
        &[("authorization", "bearer ")],
        &[("authorization", "Bearer\ta")],
        &[("authorization", "Bearer a b")],
        &[("authorization", "Bearer a, Bearer b")],
        &[("authorization", "Bearer: a")],
        &[("authorization", "BearermF_9")],
        &[("authorization", "mF_9")],
        &[("authorization", "\u{e9} Bearer a")],
        &[("authorization", "Bearer a"), ("authorization", "Bearer a")],
        &[("authorization", "Basic YTpi"), ("authorization", "Bearer a")],
        &[("authorization", "Bearer a"), ("authorization", "Basic YTpi")],
        &[("authorization", ""), ("authorization", "Bearer a")],
    ];
    let usable = with(&[("authorization", "Bearer a")]);
    check("bearer", &Credential::bearer(), &all(absent), &all(unusable), &usable);

    let absent: &[Fields] = &[&[], &[("x-other", "Basic YTpi")], &[("authorization", "Bearer a")]];
    let unusable: &[Fields] = &[
        &[("authorization", "")],
        &[("authorization", "Basic")],
        &[("authorization", "Basic\tYTpi")],
        &[("authorization", "Basic YTpi YTpi")],
        &[("authorization", "Basic YTpi, Basic YTpi")],
        &[("authorization", "Basic a:b")],
        &[("authorization", "Basic YQ==")],
        &[("authorization", "Basic OmI=")],
        &[("authorization", "Basic YTpi"), ("authorization", "Basic YTpi")],
        &[("authorization", "Bearer a"), ("authorization", "Basic YTpi")],
    ];
    let usable = with(&[("authorization", "Basic YTpi")]);
    check("basic user", &Credential::basic_user(), &all(absent), &all(unusable), &usable);
}

#[test]
fn duplicate_credential_of_a_cookie_is_unusable() {
    let absent: &[Fields] = &[
        &[],
        &[("cookie", "")],
        &[("cookie", "session")],
        &[("cookie", "Session=a; x=session=a")],
        &[("cookie", "x=a"), ("cookie", "y=b")],
    ];
    let unusable: &[Fields] = &[
        &[("cookie", "session=")],
        &[("cookie", "session=\"\"")],
        &[("cookie", "session=%ff")],
        &[("cookie", "session=a; session=b")],
        &[("cookie", "session=a; session=a")],
        &[("cookie", "session=a; %73ession=a")],
        &[("cookie", "session=a"), ("cookie", "x=y; session=b")],
    ];
    let usable = with(&[("cookie", "x=y; session=a")]);
    check("cookie", &Credential::cookie("session"), &all(absent), &all(unusable), &usable);
}

/// Builds a request for this URI with these lines of `Host`.
fn target(uri: &str, hosts: &[&str]) -> Get {
    let hosts: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
    let mut request = with(&hosts);
    *request.uri_mut() = uri.parse().expect("a URI");
    request
}

#[test]
fn duplicate_credential_of_a_host_is_unusable() {
    let unusable = [
        target("/", &[""]),
        target("/", &["a.test", "a.test"]),
        target("/", &["user@a.test"]),
        target("http://a.test/", &["b.test"]),
        target("http://a.test/", &[""]),
        target("http://a.test/", &["a.test", "a.test"]),
        target("http://a.test/", &["a.test:81"]),
        target("http://a.test/", &["a..test.."]),
        target("http://a.test:port/", &[]),
    ];
    check("Host", &Host::new(), &[target("/", &[])], &unusable, &target("/", &["a.test"]));
}

#[test]
fn duplicate_credential_of_addresses_is_unusable() {
    let from = |lines: &[&str]| {
        let fields: Vec<_> = lines.iter().map(|line| ("x-real-ip", *line)).collect();
        let mut request = with(&fields);
        request.extensions_mut().clear();
        request
    };
    let socket = ClientIp::header(HeaderName::from_static("x-real-ip"), TrustedProxies::hops(1)).trust_absent_peer();
    // A client can have a proxy remove the field: `Connection: X-Real-IP`.
    let unusable = [from(&["192.0.2.1", "192.0.2.2"]), from(&[""]), from(&["unknown"]), from(&[])];
    check("ClientIp", &socket, &[], &unusable, &from(&["192.0.2.1"]));
    let client = ClientIp::x_forwarded_for(TrustedProxies::hops(1));
    check("ClientIp", &client, &[from(&[])], &[], &with(&[]));
}

#[test]
fn duplicate_credential_of_closures_and_extensions_is_unusable() {
    let number = |request: &Get| request.headers().get("x-number").map(|value| value.to_str().unwrap_or("x").parse());
    let usable = with(&[("x-number", "7")]);
    let absent = [with(&[])];
    let unusable = [with(&[("x-number", "seven")]), with(&[("x-number", "\u{e9}")])];
    let extracted = |request: &Get| match number(request) {
        None => Extracted::Missing(MissingKey::from_request("no number")),
        Some(Ok(number)) => Extracted::<u8>::Key(number),
        Some(Err(_)) => Extracted::Missing(MissingKey::unusable("not a number")),
    };
    check("Extracted", &extracted, &absent, &unusable, &usable);
    let option = |request: &Get| number(request).and_then(Result::<u8, _>::ok);
    check("Option", &option, &absent, &[], &usable);
    let result = |request: &Get| number(request).unwrap_or_else(|| "0".parse::<u8>());
    check("Result", &result, &[], &unusable, &usable);

    let mut known = with(&[]);
    known.extensions_mut().insert(7_u8);
    check("FromExtension", &FromExtension::<u8>::new(), &absent, &[], &known);
}

/// A lookup responds to unusable input itself. A user that is not found may fall back.
#[tokio::test]
async fn duplicate_credential_of_a_lookup_is_its_response() {
    let bad_request = || {
        let mut response = Response::new(Body::default());
        *response.status_mut() = StatusCode::BAD_REQUEST;
        response
    };
    let lookup = LookupLayer::new(move |request: &Get| {
        let tokens: Vec<_> = request.headers().get_all("x-api-key").iter().cloned().collect();
        async move {
            match &tokens[..] {
                [] => Ok(None),
                [token] => Ok((token == "alice").then_some(())),
                _ => Err(bad_request()),
            }
        }
    });
    let exempt = |_: &Get| Extracted::<()>::Exempt;
    let key = move |request: &Get| Or::new(FromExtension::<()>::new(), exempt).extract(request).map(drop);
    let service = ServiceBuilder::new()
        .layer(lookup)
        .layer(RateLimitLayer::new(key, exhausted()))
        .service(service_fn(async |_: Get| Ok::<_, Infallible>(Response::new(Body::default()))));
    let status = async |fields: Fields| {
        let Ok(response) = service.clone().oneshot(with(fields)).await;
        response.status().as_u16()
    };
    assert_eq!(status(&[("x-api-key", "alice")]).await, 429);
    assert_eq!(status(&[]).await, 200);
    assert_eq!(status(&[("x-api-key", "made-up")]).await, 200);
    assert_eq!(status(&[("x-api-key", "alice"), ("x-api-key", "alice")]).await, 400);
}

/// A request that another predicate exempts stays exempt.
#[test]
fn duplicate_credential_of_an_exempt_request_is_not_read() {
    let layer = RateLimitLayer::new(Credential::bearer(), Memory::new(FixedWindow::new(Quota::per_hour(1))))
        .exempt_if(InNetworks::parse(PeerIp::new(), ["192.0.2.1"]).expect("an address"));
    let service = layer.layer(service_fn(async |_: Get| Ok::<_, Infallible>(Response::new(Body::default()))));
    let Ok(response) =
        tokio_test::block_on(service.oneshot(with(&[("authorization", "Bearer a"), ("authorization", "Bearer b")])));
    assert_eq!(response.status(), 200);
}

fn is_unusable<K>(key: &impl ExtractKey<Get, Key = K>, request: &Get) -> bool {
    matches!(key.extract(request), Extracted::Missing(missing) if missing.is_unusable())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Further lines of the field make a key unusable, and never replace it.
    #[test]
    fn duplicate_credential_of_any_further_lines_is_unusable(
        more in vec(vec(any::<u8>().prop_filter("an invalid byte", |byte| *byte >= 32 && *byte != 127), 0..8), 1..3),
        first in any::<bool>(),
    ) {
        let with_more = |name: &'static str, value: &str| {
            let mut request = with(&[]);
            let mut lines: Vec<_> = more.clone();
            lines.insert(if first { 0 } else { lines.len() }, value.as_bytes().to_vec());
            for line in lines {
                request.headers_mut().append(name, HeaderValue::from_bytes(&line).expect("a field value"));
            }
            request
        };
        prop_assert!(is_unusable(&Credential::api_key("x-api-key"), &with_more("x-api-key", "a")));
        prop_assert!(is_unusable(&Header::from_static("x-api-key"), &with_more("x-api-key", "a")));
        prop_assert!(is_unusable(&Credential::bearer(), &with_more("authorization", "Bearer a")));
        prop_assert!(is_unusable(&Host::new(), &with_more("host", "a.test")));
        let cookie = Credential::cookie("session");
        match cookie.extract(&with_more("cookie", "session=a")) {
            Extracted::Key(key) => prop_assert_eq!(key, cookie.key_of("a")),
            Extracted::Missing(missing) => prop_assert!(missing.is_unusable()),
            Extracted::Exempt => prop_assert!(false),
        }
    }
}
