//! Exemptions by the client's address apply only to known clients, whichever proxies are trusted.

use std::net::IpAddr;

use http::{HeaderName, Request};
use proptest::collection::vec;
use proptest::prelude::*;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::key::{Global, InNetworks, Predicate, TrustedProxies};
use tower_ratelimit::response::{BoxError, RejectWithError};
use tower_ratelimit::{AcquireOptions, ClientIp, FixedWindow, ManualClock, Memory, PeerIp, Quota, RateLimitLayer};

use super::support::{FORWARDED, REAL_IP, X_FORWARDED_FOR, extractors, ip, networks, request};

/// The networks of our proxies and internal clients.
const INSIDE: &[&str] = &["10.0.0.0/8", "fd00::/8"];

/// The networks of our proxies.
const PROXIES: &[&str] = &["10.0.0.0/24", "fd00::/64"];

const PROXY: &str = "10.0.0.1";

fn inside(client: ClientIp) -> InNetworks<ClientIp> {
    InNetworks::parse(client, INSIDE.iter().copied()).expect("networks")
}

/// Whether a request passes a layer whose limit is used up.
fn is_exempt(predicate: impl Predicate<Request<()>> + Clone, request: Request<()>) -> bool {
    let builder = Memory::builder(FixedWindow::new(Quota::per_hour(1))).clock(ManualClock::new()).max_keys(1);
    let limiter = builder.build().expect("settings");
    assert!(limiter.check(&(), AcquireOptions::default()).is_allowed());
    let layer = RateLimitLayer::new(Global, limiter).exempt_if(predicate).responder(RejectWithError);
    let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, BoxError>(())));
    tokio_test::block_on(service.oneshot(request)).is_ok()
}

fn through_proxy(field: &HeaderName, line: &str) -> Request<()> {
    request(Some(ip(PROXY)), field, [line])
}

/// The peer of every request is the proxy: an exemption by the peer's network would exempt all clients.
#[test]
fn client_behind_a_proxy_in_the_exempt_network_is_limited() {
    let client = ClientIp::x_forwarded_for(networks(PROXIES));
    let peer = InNetworks::parse(PeerIp::new(), INSIDE.iter().copied()).expect("networks");
    for line in ["192.0.2.1", "10.9.9.9, 192.0.2.1", "192.0.2.1, 10.0.0.2", "10.9.9.9, 2001:db8::1"] {
        let request = through_proxy(&X_FORWARDED_FOR, line);
        assert!(is_exempt(peer.clone(), request.clone()), "{line}: the peer is a proxy");
        assert!(!is_exempt(inside(client.clone()), request), "{line}");
    }
    for line in ["10.9.9.9", "192.0.2.1, 10.9.9.9", "10.9.9.9, 10.0.0.2", "::ffff:10.9.9.9", "[fd00:1::1]:80"] {
        assert!(is_exempt(inside(client.clone()), through_proxy(&X_FORWARDED_FOR, line)), "{line}: an internal client");
    }
    let direct = |peer| request(Some(ip(peer)), &X_FORWARDED_FOR, ["10.9.9.9"]);
    assert!(is_exempt(inside(client.clone()), direct("10.9.9.9")));
    assert!(!is_exempt(inside(client), direct("192.0.2.1")), "the field of an untrusted peer is ignored");
}

/// If the proxy does not report the client, the key is the proxy's address, which must not be exempt.
#[test]
fn client_that_is_unknown_is_limited() {
    let silent = [
        (X_FORWARDED_FOR, &["", "unknown", "10.9.9.9, unknown", "10.9.9.9,", "10.9.9.9, x", "10.0.0.2"][..]),
        (FORWARDED, &["", "for=unknown", "for=10.9.9.9, for=_hidden", "for=10.9.9.9, by=10.0.0.1", "for=10.0.0.2"]),
        (REAL_IP, &["", "unknown", "10.9.9.9, 10.9.9.9", "10.0.0.2"]),
    ];
    let extractors = extractors(&networks(PROXIES));
    for ((field, lines), (name, extractor)) in silent.into_iter().zip(extractors) {
        assert_eq!(field, name);
        for line in lines {
            assert!(!is_exempt(inside(extractor.clone()), through_proxy(&field, line)), "{field}: {line:?}");
        }
        assert!(!is_exempt(inside(extractor.clone()), request(Some(ip(PROXY)), &field, [""; 0])), "no {field}");
        let twice = request(Some(ip(PROXY)), &REAL_IP, ["10.9.9.9", "10.9.9.9"]);
        assert!(!is_exempt(inside(extractor.clone()), twice), "{field}");
        assert!(!is_exempt(inside(extractor.clone()), request(None, &field, ["10.9.9.9"])), "no peer address");
        assert!(!is_exempt(inside(extractor.trust_absent_peer()), request(None, &field, [""])), "a Unix socket");
    }
    let named = through_proxy(&REAL_IP, "10.9.9.9");
    assert!(is_exempt(inside(ClientIp::header(REAL_IP, networks(PROXIES))), named.clone()));
    assert!(is_exempt(inside(ClientIp::header(REAL_IP, TrustedProxies::hops(2))), named));
    let socket = ClientIp::header(REAL_IP, networks(PROXIES)).trust_absent_peer();
    assert!(is_exempt(inside(socket), request(None, &REAL_IP, ["10.9.9.9"])));
}

#[test]
fn client_behind_counted_hops_is_exempt_only_behind_all_of_them() {
    let two = || inside(ClientIp::x_forwarded_for(TrustedProxies::hops(2)));
    assert!(is_exempt(two(), through_proxy(&X_FORWARDED_FOR, "10.9.9.9, 192.0.2.1")));
    assert!(!is_exempt(two(), through_proxy(&X_FORWARDED_FOR, "192.0.2.1, 10.9.9.9")));
    assert!(!is_exempt(two(), through_proxy(&X_FORWARDED_FOR, "10.9.9.9")), "the second proxy reports no client");
    let none = || inside(ClientIp::x_forwarded_for(TrustedProxies::none()));
    assert!(
        is_exempt(none(), through_proxy(&X_FORWARDED_FOR, "192.0.2.1")),
        "without trusted proxies the peer is the client"
    );
}

#[test]
fn invalid_networks_are_an_error() {
    let client = ClientIp::x_forwarded_for(TrustedProxies::hops(1));
    let error = InNetworks::parse(client, ["10.0.0.0/8", "10.0.0.0/33"]).expect_err("no network");
    assert!(error.is_config() && error.to_string().contains("\"10.0.0.0/33\""), "{error}");
}

proptest! {
    /// Proxies append the address of their peer. No line of a client exempts it, and the address of a trusted proxy is
    /// not exempt.
    #[test]
    fn client_outside_is_limited_whatever_it_sends(
        sent in vec(vec(any::<u8>().prop_filter("an invalid byte", |byte| *byte >= 32 && *byte != 127), 0..20), 0..3),
        likely in vec(prop::sample::select(&["10.9.9.9", "10.0.0.2", "unknown", "fd00:1::1", ""][..]), 0..3),
        client in any::<[u8; 4]>().prop_map(IpAddr::from).prop_filter("inside", |client| !inside_holds(*client)),
    ) {
        let last = [likely.join(","), client.to_string()].join(",");
        let lines = || sent.iter().map(Vec::as_slice).chain([last.as_bytes()]);
        for trusted in [networks(PROXIES), networks(INSIDE), TrustedProxies::hops(1)] {
            let forwarded = request(Some(ip(PROXY)), &X_FORWARDED_FOR, lines());
            prop_assert!(!inside(ClientIp::x_forwarded_for(trusted)).matches(&forwarded));
        }
        for (name, extractor) in extractors(&networks(INSIDE)) {
            prop_assert!(!inside(extractor).matches(&request(Some(ip(PROXY)), &name, &sent)), "a proxy is not exempt");
        }
    }
}

fn inside_holds(client: IpAddr) -> bool {
    let request = request(Some(client), &X_FORWARDED_FOR, [""; 0]);
    InNetworks::parse(PeerIp::new(), INSIDE.iter().copied()).expect("networks").matches(&request)
}
