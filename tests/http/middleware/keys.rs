//! The key extractors, missing keys, and exemptions.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
use http::{HeaderName, HeaderValue, Request};
use proptest::collection::vec;
use proptest::prelude::*;
use tower::{Layer, ServiceExt};
use tower_ratelimit::key::{
    EncodeKey, ExactPaths, Extracted, FromExtension, Global, Header, InNetworks, KeyText, KeyWriter, MissingKey,
    Predicate, Preflight,
};
use tower_ratelimit::{ExtractKey, PeerIp, RateLimitLayer};

use crate::support::{StubLimiter, page_layer, pages};

type Get = Request<()>;

fn from(address: &str) -> Get {
    let mut request = Get::default();
    request.extensions_mut().insert(ConnectInfo(socket(address)));
    request
}

fn socket(address: &str) -> SocketAddr {
    SocketAddr::new(ip(address), 4711)
}

fn ip(address: &str) -> IpAddr {
    address.parse().expect("an address")
}

fn with(fields: &[(&'static str, &[u8])]) -> Get {
    let mut request = Get::default();
    for (name, value) in fields {
        let value = HeaderValue::from_bytes(value).expect("a field value");
        request.headers_mut().append(HeaderName::from_static(name), value);
    }
    request
}

/// Returns the reason for the missing key, and whether it is a server error.
fn missing<K: std::fmt::Debug>(extracted: Extracted<K>) -> (String, bool) {
    let Extracted::Missing(missing) = extracted else { panic!("{extracted:?} is not missing") };
    assert_eq!(missing.to_string(), missing.reason());
    (missing.reason().into_owned(), missing.is_server_error())
}

// PeerIp

#[test]
fn peer_ip_ignores_the_port() {
    assert_eq!(PeerIp::new().extract(&from("192.0.2.1")), Extracted::Key(ip("192.0.2.1")));
    let mut request = from("192.0.2.1");
    request.extensions_mut().insert(ConnectInfo(SocketAddr::new(ip("192.0.2.1"), 1)));
    assert_eq!(PeerIp::default().extract(&request), Extracted::Key(ip("192.0.2.1")));
}

#[test]
fn peer_ip_ignores_header_fields() {
    let forged =
        [("x-forwarded-for", &b"203.0.113.9"[..]), ("forwarded", b"for=203.0.113.9"), ("x-real-ip", b"203.0.113.9")];
    let mut request = with(&forged);
    assert!(missing(PeerIp::new().extract(&request)).1);
    request.extensions_mut().insert(ConnectInfo(socket("192.0.2.1")));
    assert_eq!(PeerIp::new().extract(&request), Extracted::Key(ip("192.0.2.1")));
}

#[test]
fn peer_ip_reads_the_extensions_of_all_servers() {
    let mut request = Get::default();
    request.extensions_mut().insert(socket("192.0.2.1"));
    assert_eq!(PeerIp::new().extract(&request), Extracted::Key(ip("192.0.2.1")), "a custom server");
    request.extensions_mut().insert(MockConnectInfo(socket("192.0.2.2")));
    assert_eq!(PeerIp::new().extract(&request), Extracted::Key(ip("192.0.2.2")), "axum's mock");
    request.extensions_mut().insert(ConnectInfo(socket("192.0.2.3")));
    assert_eq!(PeerIp::new().extract(&request), Extracted::Key(ip("192.0.2.3")), "axum's connect info has precedence");
}

#[test]
fn peer_ip_is_a_server_error_when_the_address_is_missing() {
    let (reason, is_server_error) = missing(PeerIp::new().extract(&Get::default()));
    assert!(is_server_error);
    assert!(reason.contains("into_make_service_with_connect_info::<SocketAddr>()"), "{reason}");
}

/// The address is unmapped before the prefix is cut: otherwise all of IPv4 would be one key.
#[test]
fn peer_ip_unmaps_an_ipv4_mapped_address() {
    let mapped = PeerIp::new().extract(&from("::ffff:192.0.2.1"));
    assert_eq!(mapped, Extracted::Key(ip("192.0.2.1")));
    assert_ne!(mapped, PeerIp::new().extract(&from("::ffff:192.0.2.2")));
    for bits in [1, 96, 128] {
        assert_eq!(PeerIp::new().ipv6_prefix(bits).key_of(ip("::ffff:192.0.2.1")), ip("192.0.2.1"));
    }
}

#[test]
fn peer_ip_counts_an_ipv6_address_by_its_first_64_bits() {
    let key = |address| PeerIp::new().key_of(ip(address));
    assert_eq!(key("2001:db8:1:2:3:4:5:6"), ip("2001:db8:1:2::"));
    assert_eq!(key("2001:db8:1:2:ffff::1"), key("2001:db8:1:2:3:4:5:6"));
    assert_ne!(key("2001:db8:1:3::1"), key("2001:db8:1:2::1"));
    assert_eq!(key("192.0.2.1"), ip("192.0.2.1"), "an IPv4 address counts whole");
}

#[test]
fn peer_ip_prefix_is_configurable() {
    let address = ip("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff");
    let cut = |bits| PeerIp::new().ipv6_prefix(bits).key_of(address);
    assert_eq!(cut(128), address);
    assert_eq!(cut(127), ip("2001:db8:ffff:ffff:ffff:ffff:ffff:fffe"));
    assert_eq!(cut(56), ip("2001:db8:ffff:ff00::"));
    assert_eq!(cut(48), ip("2001:db8:ffff::"));
    assert_eq!(cut(1), ip("::"));
    for bits in [0, 129, 255] {
        let error = PeerIp::new().try_ipv6_prefix(bits).expect_err("no such prefix");
        assert!(error.is_config() && error.to_string().contains(&bits.to_string()), "{error}");
        assert!(std::panic::catch_unwind(|| PeerIp::new().ipv6_prefix(bits)).is_err());
    }
    assert_eq!(PeerIp::new().try_ipv6_prefix(56).expect("fits"), PeerIp::new().ipv6_prefix(56));
}

// Header

const TENANT: Header = Header::from_static("x-tenant");

#[test]
fn header_value_is_the_key() {
    assert_eq!(TENANT.extract(&with(&[("x-tenant", b"acme")])), Extracted::Key(KeyText::from("acme")));
    assert_eq!(
        Header::new(TENANT_NAME).extract(&with(&[("x-tenant", b"acme")])),
        Extracted::Key(KeyText::from("acme"))
    );
    let latin = TENANT.extract(&with(&[("x-tenant", b"caf\xe9")]));
    assert_eq!(latin, Extracted::Key(KeyText::new(b"caf\xe9")), "any bytes of a field value");
}

const TENANT_NAME: HeaderName = HeaderName::from_static("x-tenant");

#[test]
fn header_is_missing_when_absent_empty_or_repeated() {
    let reason = |fields: &[(&'static str, &[u8])]| {
        let (reason, is_server_error) = missing(TENANT.extract(&with(fields)));
        assert!(!is_server_error, "a client error");
        reason
    };
    assert_eq!(reason(&[("x-other", b"acme")]), "the header x-tenant is missing");
    assert_eq!(reason(&[("x-tenant", b"")]), "the header x-tenant is empty");
    let twice = "the header x-tenant is repeated";
    assert_eq!(reason(&[("x-tenant", b"acme"), ("x-tenant", b"evil")]), twice);
    assert_eq!(reason(&[("x-tenant", b"acme"), ("x-tenant", b"acme")]), twice);
    assert_eq!(reason(&[("x-tenant", b"acme"), ("x-tenant", b"")]), twice);
}

// KeyText

#[test]
fn key_text_is_a_digest_beyond_its_max_len() {
    let longest = [b'x'; KeyText::MAX_LEN];
    assert_eq!(KeyText::MAX_LEN, 63);
    assert_eq!(KeyText::new(&longest).as_bytes(), longest);
    assert_eq!(KeyText::new(b"").as_bytes(), b"");

    let digest = KeyText::new(&[b'x'; KeyText::MAX_LEN + 1]);
    // printf 'x%.0s' {1..64} | sha256sum
    let sum = &"7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c"[..54];
    assert_eq!(digest.to_string(), format!("\\x00sha256-{sum}"), "escaped for logs");
    assert_eq!(digest.as_bytes(), format!("\0sha256-{sum}").as_bytes());
    assert_ne!(digest, KeyText::new(&[b'x'; KeyText::MAX_LEN + 2]));

    let huge = vec![b'x'; 1 << 20];
    let mut other = huge.clone();
    *other.last_mut().expect("not empty") = b'y';
    assert_eq!(KeyText::new(&huge), KeyText::new(&huge));
    assert_ne!(KeyText::new(&huge), KeyText::new(&other), "the digest covers all bytes");
    assert!(size_of::<KeyText>() <= 64, "bounded");
}

proptest! {
    /// Keys are equal only if their texts are: no text equals the digest of another one.
    ///
    /// The second text is any bytes, or what the first key stores: a client that knows a key can send it as a text.
    #[test]
    fn digest_is_no_text(
        text in prop_oneof![vec(any::<u8>(), 0..140), vec(0_u8..3, 0..140), vec(Just(b'x'), 60..70)],
        other in prop::option::of(vec(any::<u8>(), 0..140)),
        cut in 0_usize..3,
    ) {
        let key = KeyText::new(&text);
        let stored = &key.as_bytes()[cut.min(key.as_bytes().len())..];
        let other = other.unwrap_or_else(|| stored.to_vec());
        prop_assert_eq!(KeyText::new(&other) == key, other == text, "{:?} and {:?}", text, other);
        let encoded = |key: KeyText| {
            let mut writer = KeyWriter::new();
            key.encode(&mut writer);
            writer.as_str().to_owned()
        };
        let of_key = encoded(key);
        prop_assert_eq!(encoded(KeyText::new(&other)) == of_key, other == text, "in Redis");
        prop_assert!(of_key.bytes().all(|byte| byte.is_ascii_graphic() && !b":{}#~".contains(&byte)), "{}", of_key);
        prop_assert!(key.to_string().bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{}", key);
    }
}

/// The length is part of the key: padding does not make keys equal.
#[test]
fn key_text_equality_compares_bytes_and_length() {
    use std::hash::BuildHasher;
    let hasher = std::hash::RandomState::new();
    assert_eq!(KeyText::from("acme"), KeyText::new(b"acme"));
    assert_eq!(hasher.hash_one(KeyText::from("acme")), hasher.hash_one(KeyText::new(b"acme")));
    assert_ne!(KeyText::new(b"acme"), KeyText::new(b"acme\0"));
    assert_ne!(hasher.hash_one(KeyText::new(b"acme")), hasher.hash_one(KeyText::new(b"acme\0")));
    assert_ne!(KeyText::from("acme"), KeyText::from("ACME"));
    assert_eq!(format!("{:?}", KeyText::new(b"a\"\n")), "KeyText(a\\\"\\n)", "escaped for logs");
}

// FromExtension, Global

#[test]
fn extension_is_the_key_and_a_server_error_when_absent() {
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct User(u64);

    let key = FromExtension::<User>::new();
    let (reason, is_server_error) = missing(key.extract(&Get::default()));
    assert!(is_server_error, "{reason}");
    let mut request = Get::default();
    request.extensions_mut().insert(User(7));
    assert_eq!(key.extract(&request), Extracted::Key(User(7)));
    assert!(format!("{key:?}").contains("User"));
}

#[test]
fn global_is_one_key_for_all_requests() {
    assert_eq!(Global.extract(&Get::default()), Extracted::Key(()));
    assert_eq!(Global.extract(&"a request of any kind"), Extracted::Key(()));
}

// Closures

#[test]
fn closure_extractor_returns_an_option_a_result_or_extracted() {
    fn extract<K>(extractor: &impl ExtractKey<u32, Key = K>, request: u32) -> Extracted<K> {
        extractor.extract(&request)
    }

    fn is_unusable<K>(extracted: &Extracted<K>) -> bool {
        matches!(extracted, Extracted::Missing(missing) if missing.is_unusable())
    }

    let odd = |number: &u32| (number % 2 == 1).then_some(*number);
    assert!(!is_unusable(&extract(&odd, 8)), "an absent key");
    assert_eq!(extract(&odd, 7), Extracted::Key(7));
    let (reason, is_server_error) = missing(extract(&odd, 8));
    assert_eq!((reason.as_str(), is_server_error), ("the request has no key", false));

    let small = |number: &u32| u8::try_from(*number);
    assert_eq!(extract(&small, 7), Extracted::Key(7));
    assert!(is_unusable(&extract(&small, 1000)), "an unusable key");
    let (reason, _) = missing(extract(&small, 1000));
    assert_eq!(reason, "the request has no key", "the error may contain a secret, so the reason omits it");

    let all = |number: &u32| match number {
        0 => Extracted::Exempt,
        1 => Extracted::Missing(MissingKey::from_server("not configured")),
        number => Extracted::Key(number.to_string()),
    };
    assert_eq!(extract(&all, 0), Extracted::Exempt);
    assert_eq!(missing(extract(&all, 1)), ("not configured".to_owned(), true));
    assert_eq!(extract(&all, 2), Extracted::Key("2".to_owned()));
}

#[test]
fn extracted_map_changes_only_a_key() {
    assert_eq!(Extracted::Key(7).map(|key| key + 1), Extracted::Key(8));
    assert_eq!(Extracted::<u8>::Exempt.map(|key| key + 1), Extracted::Exempt);
    let missing = MissingKey::from_request("gone");
    assert_eq!(Extracted::<u8>::Missing(missing.clone()).map(|key| key + 1), Extracted::Missing(missing));
}

// Tuples

/// Every pair and triple of outcomes.
#[test]
fn tuple_precedence_is_unusable_absent_exempt_key() {
    let outcomes = ["key", "exempt", "absent", "unusable"];
    let part = |position: usize| {
        move |outcomes: &[&'static str; 3]| match outcomes[position] {
            "key" => Extracted::Key(position),
            "exempt" => Extracted::Exempt,
            "absent" => Extracted::Missing(MissingKey::from_request(["first", "second", "third"][position])),
            _ => Extracted::Missing(MissingKey::unusable(["first", "second", "third"][position])),
        }
    };
    let tuple = (part(0), part(1), part(2));
    for a in outcomes {
        for b in outcomes {
            for c in outcomes {
                let request = [a, b, c];
                let first = |wanted| request.iter().position(|outcome| *outcome == wanted);
                let extracted = tuple.extract(&request);
                if let Some(position) = first("unusable").or_else(|| first("absent")) {
                    let unusable = matches!(&extracted, Extracted::Missing(missing) if missing.is_unusable());
                    assert_eq!(unusable, request.contains(&"unusable"), "{request:?}");
                    assert_eq!(missing(extracted).0, ["first", "second", "third"][position], "{request:?}");
                } else if request.contains(&"exempt") {
                    assert_eq!(extracted, Extracted::Exempt, "{request:?}");
                } else {
                    assert_eq!(extracted, Extracted::Key((0, 1, 2)));
                }
            }
        }
    }
}

#[test]
fn tuple_extractor_returns_the_tuple_of_its_keys() {
    let mut request = with(&[("x-tenant", b"acme")]);
    request.extensions_mut().insert(ConnectInfo(socket("2001:db8::1")));
    let (acme, net) = (KeyText::from("acme"), ip("2001:db8::"));
    assert_eq!((TENANT, PeerIp::new()).extract(&request), Extracted::Key((acme, net)));
    let four = (TENANT, Global, PeerIp::new(), |_: &Get| Some(4));
    assert_eq!(four.extract(&request), Extracted::Key((acme, (), net, 4)));
    let nested = ((TENANT, Global), PeerIp::new());
    assert_eq!(nested.extract(&request), Extracted::Key(((acme, ()), net)));
}

/// A client cannot avoid its limit by omitting the header, even if another part would exempt the request.
#[test]
fn tuple_is_missing_when_one_part_is_exempt_and_another_absent() {
    let exempt = |_: &Get| Extracted::<()>::Exempt;
    for extracted in
        [(exempt, TENANT).extract(&Get::default()).map(|_| ()), (TENANT, exempt).extract(&Get::default()).map(|_| ())]
    {
        assert_eq!(missing(extracted).0, "the header x-tenant is missing");
    }
}

// Exemptions

/// Whether the request passes a limiter that denies everything.
fn is_exempt(exempt: &(impl Predicate<Get> + Clone + Send + Sync + 'static), request: Get) -> bool {
    fn passes(exempt: Arc<dyn Fn(&Get) -> bool + Send + Sync>, request: Get) -> bool {
        let layer = page_layer(StubLimiter::denying()).exempt_if(move |request: &Get| exempt(request));
        let response = tokio_test::block_on(layer.layer(pages()).oneshot(request)).expect("a response");
        response.status() == 200
    }

    let exempt = exempt.clone();
    passes(Arc::new(move |request| exempt.matches(request)), request)
}

#[test]
fn preflight_predicate_matches_only_preflights() {
    let preflight = |method: &str, fields: &[(&'static str, &[u8])]| {
        let mut request = with(fields);
        *request.method_mut() = method.parse().expect("a method");
        is_exempt(&Preflight, request)
    };
    let origin = ("origin", &b"https://a.test"[..]);
    let method = ("access-control-request-method", &b"PUT"[..]);
    assert!(preflight("OPTIONS", &[origin, method]));
    assert!(!preflight("OPTIONS", &[origin]));
    assert!(!preflight("OPTIONS", &[method]));
    assert!(!preflight("OPTIONS", &[]));
    assert!(!preflight("GET", &[origin, method]));
}

#[test]
fn exact_paths_predicate_matches_whole_paths() {
    let paths = ExactPaths::new(["/health", "/ready"]);
    let exempt = |uri: &str| is_exempt(&paths, Request::get(uri).body(()).expect("a request"));
    for path in ["/health", "/ready", "/health?verbose", "http://host.test/health"] {
        assert!(exempt(path), "{path}");
    }
    for path in ["/", "/health/", "/healthy", "/api/health", "//health", "/HEALTH", "/%68ealth"] {
        assert!(!exempt(path), "{path}");
    }
}

#[test]
fn peer_networks_predicate_matches_the_peer_and_no_header() {
    let inside = InNetworks::parse(PeerIp::new(), ["10.0.0.0/8", " 2001:db8::/32", "192.0.2.7"]).expect("networks");
    for peer in ["10.0.0.1", "10.255.255.255", "::ffff:10.1.2.3", "2001:db8::1", "192.0.2.7", "::ffff:192.0.2.7"] {
        assert!(is_exempt(&inside, from(peer)), "{peer}");
    }
    for peer in ["11.0.0.1", "192.0.2.8", "2001:db9::1", "::a00:1"] {
        assert!(!is_exempt(&inside, from(peer)), "{peer}");
    }
    assert!(!is_exempt(&inside, with(&[("x-forwarded-for", b"10.0.0.1")])), "an unknown peer is in no network");

    for wrong in ["10.0.0.0/33", "10.0.0", "localhost", ""] {
        let error = InNetworks::parse(PeerIp::new(), ["::1", wrong]).expect_err("no network");
        assert!(error.is_config() && error.to_string().contains(&format!("network {wrong:?}")), "{error}");
    }
}

#[test]
fn exemptions_add_up_and_precede_the_key() {
    let layer = RateLimitLayer::new(TENANT, StubLimiter::denying())
        .exempt_if(|request: &Get| request.method() == "HEAD")
        .exempt_if(ExactPaths::new(["/health"]));
    let service = layer.layer(pages());
    let exempt = |method: &str, path: &str| {
        let request = Request::builder().method(method).uri(path).body(()).expect("a request");
        tokio_test::block_on(service.clone().oneshot(request)).expect("a response").status() == 200
    };
    assert!(exempt("HEAD", "/"));
    assert!(exempt("GET", "/health"));
    assert!(!exempt("GET", "/"));
}
