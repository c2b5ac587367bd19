//! Forms of a field that are special or malformed: trusted proxies, peer, lines of the field, and the extracted client.
//! `rendered` has the well-formed ones, and `properties` what clients forge.

use http::HeaderName;
use tower_ratelimit::key::{Extracted, TrustedProxies};
use tower_ratelimit::{ClientIp, ExtractKey, PeerIp};

use super::support::{FORWARDED, REAL_IP, X_FORWARDED_FOR, extractors, ip, networks, request};

/// Proxies in `10.0.0.0/8` and `fd00::/8`, clients in the networks for documentation.
const OURS: &[&str] = &["10.0.0.0/8", "fd00::/8"];

/// A case: description, peer, lines, client.
type Case = (&'static str, &'static str, &'static [&'static str], &'static str);

const BY_NETWORK: &[Case] = &[
    // White space.
    ("no white space", "10.0.0.1", &["203.0.113.9,192.0.2.1"], "192.0.2.1"),
    ("much white space", "10.0.0.1", &["203.0.113.9 ,\t  192.0.2.1  \t"], "192.0.2.1"),
    // If a hop has no address, the last known address counts.
    ("white space", "10.0.0.1", &[" \t"], "10.0.0.1"),
    ("commas", "10.0.0.1", &[",,,"], "10.0.0.1"),
    ("an empty element in place of the client", "10.0.0.1", &["203.0.113.9, "], "10.0.0.1"),
    ("an empty element in the middle", "10.0.0.1", &["203.0.113.9,, 10.0.0.2"], "10.0.0.2"),
    ("garbage in the middle", "10.0.0.1", &["203.0.113.9, garbage, 10.0.0.3, 10.0.0.2"], "10.0.0.3"),
    ("a host's name", "10.0.0.1", &["203.0.113.9, proxy.example"], "10.0.0.1"),
    ("a Unix socket", "10.0.0.1", &["203.0.113.9, unix:"], "10.0.0.1"),
    ("similar to a trusted address: too many parts", "10.0.0.1", &["203.0.113.9, 10.0.0.1.5"], "10.0.0.1"),
    ("similar to a trusted address: a network", "10.0.0.1", &["203.0.113.9, 10.0.0.0/8"], "10.0.0.1"),
    ("similar to a trusted address: text behind it", "10.0.0.1", &["203.0.113.9, 10.0.0.2 evil"], "10.0.0.1"),
    ("similar to a trusted address: octal", "10.0.0.1", &["203.0.113.9, 012.0.0.2"], "10.0.0.1"),
    ("similar to a trusted address: one number", "10.0.0.1", &["203.0.113.9, 167772162"], "10.0.0.1"),
    ("similar to a trusted address: hexadecimal", "10.0.0.1", &["203.0.113.9, 0x0a.0.0.2"], "10.0.0.1"),
    ("similar to a trusted address: a part missing", "10.0.0.1", &["203.0.113.9, 10.0.2"], "10.0.0.1"),
    // Forms of an address.
    ("IPv6 in capitals", "10.0.0.1", &["2001:DB8:1:2::9"], "2001:db8:1:2::"),
    ("IPv6 with a zone", "10.0.0.1", &["fe80:0:0:7::1%eth0"], "fe80:0:0:7::"),
    ("IPv6 in brackets with a zone and a port", "10.0.0.1", &["[fe80:0:0:7::1%25eth0]:80"], "fe80:0:0:7::"),
    ("too high a port", "10.0.0.1", &["192.0.2.1:65536"], "10.0.0.1"),
    ("no port behind the colon", "10.0.0.1", &["192.0.2.1:"], "10.0.0.1"),
    ("an invalid port", "10.0.0.1", &["192.0.2.1:+80"], "10.0.0.1"),
    ("an open bracket", "10.0.0.1", &["[2001:db8::1"], "10.0.0.1"),
    ("text behind a bracket", "10.0.0.1", &["[2001:db8::1]80"], "10.0.0.1"),
    ("IPv4 in brackets", "10.0.0.1", &["[192.0.2.1]"], "10.0.0.1"),
    ("an empty zone", "10.0.0.1", &["fe80::1%"], "10.0.0.1"),
    ("one quote", "10.0.0.1", &["192.0.2.1\""], "10.0.0.1"),
    // One address, several spellings.
    ("a mapped proxy in hexadecimal", "10.0.0.1", &["192.0.2.1, [::ffff:a00:2]:80"], "192.0.2.1"),
    ("a NAT64 client that connects directly", "64:ff9b::c000:201", &["203.0.113.9"], "192.0.2.1"),
    ("a NAT64 address of a proxy is not trusted", "64:ff9b::10.0.0.1", &["203.0.113.9"], "10.0.0.1"),
    ("a NAT64 address of a proxy in the list", "10.0.0.1", &["203.0.113.9, 64:ff9b::10.0.0.2"], "10.0.0.2"),
    ("a client behind a local NAT64", "10.0.0.1", &["64:ff9b:1::192.0.2.1"], "192.0.2.1"),
    ("a client behind another local NAT64", "10.0.0.1", &["64:ff9b:1:fffe::192.0.2.1"], "192.0.2.1"),
    ("a local NAT64 with a /48", "10.0.0.1", &["64:ff9b:1:c000:2:100::"], "64:ff9b:1:c000:2:100::"),
    ("a local NAT64 with a /64", "10.0.0.1", &["64:ff9b:1:7:c0:2:100:0"], "64:ff9b:1:7:c0:2:100:0"),
    ("another prefix than NAT64", "10.0.0.1", &["64:ff9b:2::192.0.2.1"], "64:ff9b:2::"),
    ("a list that ends in a comma", "10.0.0.1", &["203.0.113.9, 192.0.2.1,"], "10.0.0.1"),
];

#[test]
fn x_forwarded_for_finds_the_client_by_network() {
    let extractor = ClientIp::x_forwarded_for(networks(OURS));
    check(&extractor, &X_FORWARDED_FOR, BY_NETWORK);
}

/// The number of proxies, and the case.
const BY_HOPS: &[(usize, Case)] = &[
    (0, ("no proxy is trusted", "192.0.2.1", &["203.0.113.9"], "192.0.2.1")),
    (3, ("garbage ends the walk", "10.0.0.1", &["203.0.113.9, unknown, 10.0.0.2"], "10.0.0.2")),
    (2, ("an empty element is a hop", "10.0.0.1", &["203.0.113.9,, 10.0.0.2"], "10.0.0.2")),
    (1, ("an empty element is not skipped", "10.0.0.1", &["203.0.113.9,"], "10.0.0.1")),
    (usize::MAX, ("all hops are trusted", "10.0.0.1", &["203.0.113.9, 198.51.100.1"], "203.0.113.9")),
];

#[test]
fn x_forwarded_for_finds_the_client_by_hops() {
    for (hops, case) in BY_HOPS {
        check(&ClientIp::x_forwarded_for(TrustedProxies::hops(*hops)), &X_FORWARDED_FOR, &[*case]);
    }
    assert_eq!(TrustedProxies::none(), TrustedProxies::hops(0));
}

const OF_FORWARDED: &[Case] = &[
    // The examples of RFC 7239.
    ("section 4: hidden", "10.0.0.1", &["for=\"_gazonk\""], "10.0.0.1"),
    ("section 4: quoted, in capitals", "10.0.0.1", &["For=\"[2001:db8:cafe::17]:4711\""], "2001:db8:cafe::"),
    // Elements that end the walk.
    ("X-Forwarded-For's syntax", "10.0.0.1", &["for=203.0.113.9, 192.0.2.1"], "10.0.0.1"),
    ("two `for` in one element", "10.0.0.1", &["for=203.0.113.9;for=192.0.2.1"], "10.0.0.1"),
    ("two equal `for`", "10.0.0.1", &["for=192.0.2.1;FOR=192.0.2.1"], "10.0.0.1"),
    ("no `for` in the element", "10.0.0.1", &["for=203.0.113.9, proto=https;by=10.0.0.1"], "10.0.0.1"),
    ("an empty element", "10.0.0.1", &["for=203.0.113.9, , for=10.0.0.2"], "10.0.0.2"),
    ("an empty value", "10.0.0.1", &["for=203.0.113.9, for="], "10.0.0.1"),
    ("an empty quoted value", "10.0.0.1", &["for=203.0.113.9, for=\"\""], "10.0.0.1"),
    ("no name", "10.0.0.1", &["for=203.0.113.9, =192.0.2.1"], "10.0.0.1"),
    ("white space around the =", "10.0.0.1", &["for=203.0.113.9, for = 192.0.2.1"], "10.0.0.1"),
    ("text behind a quote", "10.0.0.1", &["for=203.0.113.9, for=\"192.0.2.1\"x"], "10.0.0.1"),
    ("an escaped quote at the end", "10.0.0.1", &["for=203.0.113.9, for=\"192.0.2.1\\\""], "10.0.0.1"),
    (
        "an escaped quote at the end of another value",
        "10.0.0.1",
        &["for=203.0.113.9, for=192.0.2.1;x=\"a\\\""],
        "10.0.0.1",
    ),
    ("no ; between pairs", "10.0.0.1", &["for=203.0.113.9, for=192.0.2.1 proto=https"], "10.0.0.1"),
    ("no ; behind a quote", "10.0.0.1", &["for=203.0.113.9, for=\"192.0.2.1\"proto=https"], "10.0.0.1"),
    ("a pair without a name", "10.0.0.1", &["for=203.0.113.9, for=192.0.2.1;=https"], "10.0.0.1"),
    ("a pair without a =", "10.0.0.1", &["for=203.0.113.9, for=192.0.2.1;https"], "10.0.0.1"),
    ("garbage in the middle", "10.0.0.1", &["for=203.0.113.9, for=oops, for=10.0.0.3, for=10.0.0.2"], "10.0.0.3"),
    // Forms of an element.
    ("white space around the ;", "10.0.0.1", &["proto=https ; for=192.0.2.1 ; by=10.0.0.1 "], "192.0.2.1"),
    ("empty pairs", "10.0.0.1", &[";;for=192.0.2.1;;proto=https;"], "192.0.2.1"),
    ("with unquoted colons", "10.0.0.1", &["for=[2001:db8:1:2::9]:80;host=a.test:80"], "2001:db8:1:2::"),
];

#[test]
fn forwarded_finds_the_client_by_network() {
    check(&ClientIp::forwarded(networks(OURS)), &FORWARDED, OF_FORWARDED);
}

const OF_ONE_FIELD: &[Case] = &[
    ("the proxy's client", "10.0.0.1", &["192.0.2.1"], "192.0.2.1"),
    ("the value is not walked further", "10.0.0.1", &["10.0.0.7"], "10.0.0.7"),
    ("in brackets, with a port", "10.0.0.1", &["[2001:db8:1:2::9]:80"], "2001:db8:1:2::"),
    ("mapped", "10.0.0.1", &["::ffff:192.0.2.1"], "192.0.2.1"),
    ("quoted, with white space", "10.0.0.1", &[" \"192.0.2.1\" "], "192.0.2.1"),
    ("no field", "10.0.0.1", &[], "10.0.0.1"),
    ("empty", "10.0.0.1", &[""], "10.0.0.1"),
    ("a list", "10.0.0.1", &["203.0.113.9, 192.0.2.1"], "10.0.0.1"),
    ("garbage", "10.0.0.1", &["unknown"], "10.0.0.1"),
];

#[test]
fn single_address_field_finds_the_client_by_network() {
    check(&ClientIp::header(REAL_IP, networks(OURS)), &REAL_IP, OF_ONE_FIELD);
}

#[test]
fn single_address_field_finds_the_client_by_hops() {
    let by_hops = |hops| ClientIp::header(REAL_IP, TrustedProxies::hops(hops));
    check(&by_hops(0), &REAL_IP, &[("no proxy is trusted", "192.0.2.1", &["203.0.113.9"], "192.0.2.1")]);
    for hops in [1, 2] {
        check(&by_hops(hops), &REAL_IP, &[("the proxy's client", "192.0.2.1", &["203.0.113.9"], "203.0.113.9")]);
    }
}

/// `ClientIp::header` reads the standard list fields as lists.
#[test]
fn header_constructor_reads_list_fields_as_lists() {
    assert_eq!(ClientIp::header(X_FORWARDED_FOR, networks(OURS)), ClientIp::x_forwarded_for(networks(OURS)));
    assert_eq!(ClientIp::header(FORWARDED, networks(OURS)), ClientIp::forwarded(networks(OURS)));
}

#[track_caller]
fn check(extractor: &ClientIp, name: &HeaderName, cases: &[Case]) {
    for (description, peer, lines, client) in cases {
        let found = extractor.extract(&request(Some(ip(peer)), name, *lines));
        assert_eq!(found, Extracted::Key(ip(client)), "{description}: {lines:?} from {peer}");
    }
}

// The peer

#[test]
fn client_ip_is_missing_when_the_peer_address_is_missing() {
    for trusted in [networks(OURS), TrustedProxies::hops(0), TrustedProxies::hops(1), TrustedProxies::hops(9)] {
        for (name, extractor) in extractors(&trusted) {
            for lines in [&["192.0.2.1"][..], &["for=192.0.2.1"], &["10.0.0.1"], &[]] {
                let Extracted::Missing(missing) = extractor.extract(&request(None, &name, lines)) else {
                    panic!("{name} {lines:?} is trusted")
                };
                assert!(missing.is_server_error(), "{missing}");
                assert!(missing.reason().contains("into_make_service_with_connect_info"), "{missing}");
            }
        }
    }
}

#[test]
fn client_ip_trusts_an_absent_peer_when_configured() {
    let found = |trusted: TrustedProxies, lines: &[&str]| {
        let extractor = ClientIp::x_forwarded_for(trusted).trust_absent_peer();
        match extractor.extract(&request(None, &X_FORWARDED_FOR, lines)) {
            Extracted::Key(key) => Ok(key),
            Extracted::Missing(missing) => Err((missing.is_server_error(), missing.to_string())),
            Extracted::Exempt => panic!("exempt"),
        }
    };
    assert_eq!(found(networks(OURS), &["203.0.113.9, 192.0.2.1"]), Ok(ip("192.0.2.1")));
    assert_eq!(found(networks(OURS), &["203.0.113.9, 192.0.2.1, 10.0.0.2"]), Ok(ip("192.0.2.1")));
    assert_eq!(found(TrustedProxies::hops(1), &["203.0.113.9, 192.0.2.1"]), Ok(ip("192.0.2.1")));
    assert_eq!(found(TrustedProxies::hops(2), &["203.0.113.9, 192.0.2.1"]), Ok(ip("203.0.113.9")));
    assert_eq!(found(networks(OURS), &["203.0.113.9, garbage, 10.0.0.2"]), Ok(ip("10.0.0.2")));
    let (is_server_error, reason) = found(networks(OURS), &[]).expect_err("no client address");
    assert_eq!((is_server_error, &*reason), (false, "the header x-forwarded-for is missing"));
    for lines in [&["203.0.113.9, unknown"][..], &[""]] {
        let (is_server_error, reason) = found(networks(OURS), lines).expect_err("no client address");
        assert_eq!((is_server_error, &*reason), (false, "the header x-forwarded-for holds no address"));
    }
    let (is_server_error, _) = found(TrustedProxies::none(), &["203.0.113.9"]).expect_err("no proxy is trusted");
    assert!(is_server_error);

    // A peer with an address is trusted by its network.
    let extractor = ClientIp::x_forwarded_for(networks(OURS)).trust_absent_peer();
    let direct = request(Some(ip("192.0.2.1")), &X_FORWARDED_FOR, ["203.0.113.9"]);
    assert_eq!(extractor.extract(&direct), Extracted::Key(ip("192.0.2.1")));
}

#[test]
fn client_ip_reads_a_custom_peer_source() {
    #[derive(Clone)]
    struct Connection(&'static str);

    let extractor = ClientIp::x_forwarded_for(networks(OURS)).peer(|request: &http::Request<()>| {
        request.extensions().get::<Connection>().map(|connection| ip(connection.0))
    });
    // The default extensions are ignored then.
    let mut forged = request(Some(ip("10.0.0.1")), &X_FORWARDED_FOR, ["192.0.2.1"]);
    assert!(matches!(extractor.extract(&forged), Extracted::Missing(_)));
    forged.extensions_mut().insert(Connection("198.51.100.1"));
    assert_eq!(extractor.extract(&forged), Extracted::Key(ip("198.51.100.1")));
    forged.extensions_mut().insert(Connection("10.0.0.1"));
    assert_eq!(extractor.extract(&forged), Extracted::Key(ip("192.0.2.1")));
}

/// A custom peer source works with any request type.
#[test]
fn peer_ip_reads_a_custom_request_type() {
    struct Call {
        from: Option<std::net::IpAddr>,
    }

    let key = PeerIp::new().peer(|call: &Call| call.from).ipv6_prefix(48);
    assert_eq!(key.extract(&Call { from: Some(ip("2001:db8:1:2::3")) }), Extracted::Key(ip("2001:db8:1::")));
    assert!(matches!(key.extract(&Call { from: None }), Extracted::Missing(_)));
}

// Keys of addresses

#[test]
fn tuple_of_client_ips_has_two_prefixes() {
    let narrow = ClientIp::x_forwarded_for(networks(OURS));
    let wide = narrow.clone().ipv6_prefix(48).ipv4_prefix(24);
    let key =
        |client| (narrow.clone(), wide.clone()).extract(&request(Some(ip("10.0.0.1")), &X_FORWARDED_FOR, [client]));
    assert_eq!(key("2001:db8:1:2::3"), Extracted::Key((ip("2001:db8:1:2::"), ip("2001:db8:1::"))));
    assert_eq!(key("192.0.2.7"), Extracted::Key((ip("192.0.2.7"), ip("192.0.2.0"))));
    assert_eq!(key("::ffff:192.0.2.7"), Extracted::Key((ip("192.0.2.7"), ip("192.0.2.0"))));
    assert_eq!(key("64:ff9b::192.0.2.7"), Extracted::Key((ip("192.0.2.7"), ip("192.0.2.0"))));
}

#[test]
fn invalid_prefixes_are_errors() {
    let extractor = ClientIp::forwarded(TrustedProxies::hops(1));
    for bits in [0, 129, 255] {
        let error = extractor.clone().try_ipv6_prefix(bits).expect_err("no such prefix");
        assert!(error.is_config() && error.to_string().contains(&bits.to_string()), "{error}");
    }
    for bits in [0, 33, 255] {
        let error = extractor.clone().try_ipv4_prefix(bits).expect_err("no such prefix");
        assert!(error.is_config() && error.to_string().contains(&bits.to_string()), "{error}");
    }
    assert_eq!(extractor.clone().try_ipv6_prefix(56).expect("fits"), extractor.clone().ipv6_prefix(56));
    assert_eq!(extractor.clone().try_ipv4_prefix(1).expect("fits").key_of(ip("255.0.0.1")), ip("128.0.0.0"));
}

#[test]
fn client_of_returns_the_whole_address() {
    let extractor = ClientIp::x_forwarded_for(networks(OURS));
    let client_of =
        |client| extractor.client_of(&request(Some(ip("10.0.0.1")), &X_FORWARDED_FOR, [client])).expect("a client");
    assert_eq!(client_of("[2001:db8:1:2::3]:80"), ip("2001:db8:1:2::3"));
    assert_eq!(client_of("::ffff:192.0.2.7"), ip("192.0.2.7"));
}

// Trusted proxies

#[test]
fn invalid_trusted_proxies_are_an_error() {
    let error = |networks: &[&str]| {
        let error = TrustedProxies::parse(networks).expect_err("invalid proxies");
        assert!(error.is_config());
        error.to_string()
    };
    assert!(error(&[]).contains("TrustedProxies::none()"));
    assert!(error(&["10.0.0.0/8", "10.0.0.0/33"]).contains("invalid network \"10.0.0.0/33\""));
    assert!(error(&["proxy.example"]).contains("invalid network \"proxy.example\""));
    for all in [&["0.0.0.0/0"][..], &["::/0"], &["10.0.0.1", "0.0.0.0/1", "128.0.0.0/1"], &["::ffff:0:0/96"]] {
        assert!(error(all).contains("TrustedProxies::hops(1)"), "{all:?}");
    }
    assert!(TrustedProxies::parse([" 10.0.0.0/8 ", "::ffff:10.1.0.0/112", "2001:db8::1"].map(String::from)).is_ok());
}
