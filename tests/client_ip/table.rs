//! The spoofing table: the peer, the trusted proxies, the lines of the field, and the client.

use http::HeaderName;
use tower_ratelimit::key::{ExtractKey, Extracted, TrustedProxies};
use tower_ratelimit::{ClientIp, PeerIp};

use crate::support::{FORWARDED, REAL_IP, X_FORWARDED_FOR, ip, networks, readers, request};

/// Proxies in `10.0.0.0/8` and `fd00::/8`, clients in the networks for documentation.
const OURS: &[&str] = &["10.0.0.0/8", "fd00::/8"];

/// What it shows, the peer, the lines, the client.
type Row = (&'static str, &'static str, &'static [&'static str], &'static str);

const BY_NETWORK: &[Row] = &[
    // Who connects directly.
    ("no field", "192.0.2.1", &[], "192.0.2.1"),
    ("a client that names another", "192.0.2.1", &["203.0.113.9"], "192.0.2.1"),
    ("a client that names itself", "192.0.2.1", &["192.0.2.1"], "192.0.2.1"),
    ("a client that names a proxy", "192.0.2.1", &["10.0.0.1"], "192.0.2.1"),
    ("a client that plays a chain of proxies", "192.0.2.1", &["203.0.113.9, 10.0.0.2, 10.0.0.1"], "192.0.2.1"),
    ("a client that names the loopback", "192.0.2.1", &["127.0.0.1"], "192.0.2.1"),
    ("a client that sends garbage", "192.0.2.1", &["<script>"], "192.0.2.1"),
    ("a neighbour of the proxies", "11.0.0.1", &["203.0.113.9"], "11.0.0.1"),
    // One proxy.
    ("a proxy's client", "10.0.0.1", &["192.0.2.1"], "192.0.2.1"),
    ("the leftmost is the client's own: the oldest forgery", "10.0.0.1", &["203.0.113.9, 192.0.2.1"], "192.0.2.1"),
    ("so are many", "10.0.0.1", &["1.1.1.1, 2.2.2.2, 3.3.3.3, 192.0.2.1"], "192.0.2.1"),
    ("proxies left of the client are made up", "10.0.0.1", &["203.0.113.9, 10.0.0.2, 192.0.2.1"], "192.0.2.1"),
    ("all proxies but the client", "10.0.0.1", &["10.0.0.9, 10.0.0.8, 192.0.2.1"], "192.0.2.1"),
    ("garbage left of the client is not looked at", "10.0.0.1", &["%$\"(,;=, 192.0.2.1"], "192.0.2.1"),
    ("an open quote left of the client", "10.0.0.1", &["\"203.0.113.9, 192.0.2.1"], "192.0.2.1"),
    ("no white space", "10.0.0.1", &["203.0.113.9,192.0.2.1"], "192.0.2.1"),
    ("much white space", "10.0.0.1", &["203.0.113.9 ,\t  192.0.2.1  \t"], "192.0.2.1"),
    // Several proxies.
    ("two proxies", "10.0.0.1", &["192.0.2.1, 10.0.0.2"], "192.0.2.1"),
    ("three, and a made-up one", "10.0.0.1", &["203.0.113.9, 192.0.2.1, 10.0.0.3, 10.0.0.2"], "192.0.2.1"),
    ("a proxy of IPv6", "fd00::1", &["192.0.2.1, fd00::2"], "192.0.2.1"),
    ("a proxy that others run is a client", "10.0.0.1", &["192.0.2.1, 198.51.100.7, 10.0.0.2"], "198.51.100.7"),
    ("a request from within", "10.0.0.1", &["10.0.0.7, 10.0.0.2"], "10.0.0.7"),
    ("a proxy's own request", "10.0.0.1", &[], "10.0.0.1"),
    // Several lines are one list.
    ("the last line is the proxy's", "10.0.0.1", &["203.0.113.9", "192.0.2.1"], "192.0.2.1"),
    ("the first line would be the client's", "10.0.0.1", &["192.0.2.1", "10.0.0.2"], "192.0.2.1"),
    ("three lines", "10.0.0.1", &["203.0.113.9, 203.0.113.8", "192.0.2.1", "10.0.0.3, 10.0.0.2"], "192.0.2.1"),
    ("an empty line of the client's", "10.0.0.1", &["", "192.0.2.1"], "192.0.2.1"),
    ("an empty line of a proxy's", "10.0.0.1", &["203.0.113.9", ""], "10.0.0.1"),
    // Where a hop tells no address, the last known one counts.
    ("an empty field", "10.0.0.1", &[""], "10.0.0.1"),
    ("white space", "10.0.0.1", &[" \t"], "10.0.0.1"),
    ("commas", "10.0.0.1", &[",,,"], "10.0.0.1"),
    ("an empty element in place of the client", "10.0.0.1", &["203.0.113.9, "], "10.0.0.1"),
    ("an empty element in the middle", "10.0.0.1", &["203.0.113.9,, 10.0.0.2"], "10.0.0.2"),
    ("unknown", "10.0.0.1", &["203.0.113.9, unknown"], "10.0.0.1"),
    ("a hidden name", "10.0.0.1", &["203.0.113.9, _proxy7, 10.0.0.2"], "10.0.0.2"),
    ("garbage in the middle", "10.0.0.1", &["203.0.113.9, garbage, 10.0.0.3, 10.0.0.2"], "10.0.0.3"),
    ("a host's name", "10.0.0.1", &["203.0.113.9, proxy.example"], "10.0.0.1"),
    ("a Unix socket", "10.0.0.1", &["203.0.113.9, unix:"], "10.0.0.1"),
    ("what only looks trusted: too many parts", "10.0.0.1", &["203.0.113.9, 10.0.0.1.5"], "10.0.0.1"),
    ("what only looks trusted: a network", "10.0.0.1", &["203.0.113.9, 10.0.0.0/8"], "10.0.0.1"),
    ("what only looks trusted: text behind it", "10.0.0.1", &["203.0.113.9, 10.0.0.2 evil"], "10.0.0.1"),
    ("what only looks trusted: octal", "10.0.0.1", &["203.0.113.9, 012.0.0.2"], "10.0.0.1"),
    ("what only looks trusted: one number", "10.0.0.1", &["203.0.113.9, 167772162"], "10.0.0.1"),
    ("what only looks trusted: hexadecimal", "10.0.0.1", &["203.0.113.9, 0x0a.0.0.2"], "10.0.0.1"),
    ("what only looks trusted: a part missing", "10.0.0.1", &["203.0.113.9, 10.0.2"], "10.0.0.1"),
    // How an address is written.
    ("a port", "10.0.0.1", &["192.0.2.1:4711"], "192.0.2.1"),
    ("the ports of proxies", "10.0.0.1", &["192.0.2.1:1, 10.0.0.2:65535"], "192.0.2.1"),
    ("a hidden port", "10.0.0.1", &["192.0.2.1:_p"], "192.0.2.1"),
    ("IPv6", "10.0.0.1", &["2001:db8:1:2:3:4:5:6"], "2001:db8:1:2::"),
    ("IPv6 in brackets", "10.0.0.1", &["[2001:db8:1:2::9]"], "2001:db8:1:2::"),
    ("IPv6 with a port", "10.0.0.1", &["[2001:db8:1:2::9]:80"], "2001:db8:1:2::"),
    ("IPv6 in capitals", "10.0.0.1", &["2001:DB8:1:2::9"], "2001:db8:1:2::"),
    ("IPv6 with a zone", "10.0.0.1", &["fe80:0:0:7::1%eth0"], "fe80:0:0:7::"),
    ("IPv6 in brackets with a zone and a port", "10.0.0.1", &["[fe80:0:0:7::1%25eth0]:80"], "fe80:0:0:7::"),
    ("quotes", "10.0.0.1", &["\"192.0.2.1\""], "192.0.2.1"),
    ("quotes around a port", "10.0.0.1", &["\"[2001:db8:1:2::9]:80\""], "2001:db8:1:2::"),
    ("too high a port", "10.0.0.1", &["192.0.2.1:65536"], "10.0.0.1"),
    ("no port behind the colon", "10.0.0.1", &["192.0.2.1:"], "10.0.0.1"),
    ("a port that is none", "10.0.0.1", &["192.0.2.1:+80"], "10.0.0.1"),
    ("an open bracket", "10.0.0.1", &["[2001:db8::1"], "10.0.0.1"),
    ("text behind a bracket", "10.0.0.1", &["[2001:db8::1]80"], "10.0.0.1"),
    ("IPv4 in brackets", "10.0.0.1", &["[192.0.2.1]"], "10.0.0.1"),
    ("an empty zone", "10.0.0.1", &["fe80::1%"], "10.0.0.1"),
    ("one quote", "10.0.0.1", &["192.0.2.1\""], "10.0.0.1"),
    // One address, several spellings.
    ("a mapped peer is the proxy", "::ffff:10.0.0.1", &["192.0.2.1"], "192.0.2.1"),
    ("a mapped proxy is trusted", "10.0.0.1", &["192.0.2.1, ::ffff:10.0.0.2"], "192.0.2.1"),
    ("in hexadecimal as well", "10.0.0.1", &["192.0.2.1, [::ffff:a00:2]:80"], "192.0.2.1"),
    (
        "a mapped client is of IPv4 (CVE-2026-30827: masked first, all were one)",
        "10.0.0.1",
        &["::ffff:192.0.2.1"],
        "192.0.2.1",
    ),
    ("and not its neighbour", "10.0.0.1", &["::ffff:192.0.2.2"], "192.0.2.2"),
    ("a mapped client that connects directly", "::ffff:192.0.2.1", &["203.0.113.9"], "192.0.2.1"),
    ("a client behind a NAT64", "10.0.0.1", &["64:ff9b::192.0.2.1"], "192.0.2.1"),
    ("one that connects directly", "64:ff9b::c000:201", &["203.0.113.9"], "192.0.2.1"),
    ("no NAT64 makes a proxy", "64:ff9b::10.0.0.1", &["203.0.113.9"], "10.0.0.1"),
    ("nor in the list", "10.0.0.1", &["203.0.113.9, 64:ff9b::10.0.0.2"], "10.0.0.2"),
    ("another prefix is not the NAT64's", "10.0.0.1", &["64:ff9b:1::192.0.2.1"], "64:ff9b:1::"),
];

#[test]
fn x_forwarded_for_by_network() {
    let reader = ClientIp::x_forwarded_for(networks(OURS));
    check(&reader, &X_FORWARDED_FOR, BY_NETWORK);
}

/// Their number of proxies, then as above.
const BY_HOPS: &[(usize, Row)] = &[
    (0, ("nobody is trusted", "192.0.2.1", &["203.0.113.9"], "192.0.2.1")),
    (1, ("the last one is the peer's word", "192.0.2.1", &["203.0.113.9, 198.51.100.1"], "198.51.100.1")),
    (1, ("whatever network it is in", "10.0.0.1", &["203.0.113.9, 10.0.0.2"], "10.0.0.2")),
    (1, ("several lines are one list", "10.0.0.1", &["203.0.113.9", "198.51.100.1"], "198.51.100.1")),
    (2, ("two proxies", "10.0.0.1", &["203.0.113.9, 198.51.100.1, 10.0.0.2"], "198.51.100.1")),
    (2, ("of different lines", "10.0.0.1", &["203.0.113.9", "198.51.100.1", "10.0.0.2"], "198.51.100.1")),
    (2, ("fewer hops than there should be", "10.0.0.1", &["198.51.100.1"], "198.51.100.1")),
    (2, ("no hops at all", "10.0.0.1", &[], "10.0.0.1")),
    (3, ("garbage hides what is left of it", "10.0.0.1", &["203.0.113.9, unknown, 10.0.0.2"], "10.0.0.2")),
    (2, ("an empty element is a hop", "10.0.0.1", &["203.0.113.9,, 10.0.0.2"], "10.0.0.2")),
    (1, ("an empty element is not skipped", "10.0.0.1", &["203.0.113.9,"], "10.0.0.1")),
    (usize::MAX, ("all of them", "10.0.0.1", &["203.0.113.9, 198.51.100.1"], "203.0.113.9")),
];

#[test]
fn x_forwarded_for_by_hops() {
    for (hops, row) in BY_HOPS {
        check(&ClientIp::x_forwarded_for(TrustedProxies::hops(*hops)), &X_FORWARDED_FOR, &[*row]);
    }
    assert_eq!(TrustedProxies::none(), TrustedProxies::hops(0));
}

const OF_FORWARDED: &[Row] = &[
    // The examples of RFC 7239.
    ("section 4: hidden", "10.0.0.1", &["for=\"_gazonk\""], "10.0.0.1"),
    ("section 4: quoted, in capitals", "10.0.0.1", &["For=\"[2001:db8:cafe::17]:4711\""], "2001:db8:cafe::"),
    ("section 4: with more", "10.0.0.1", &["for=192.0.2.60;proto=http;by=203.0.113.43"], "192.0.2.60"),
    ("section 4: two elements", "10.0.0.1", &["for=192.0.2.43, for=198.51.100.17"], "198.51.100.17"),
    ("section 6.3: a hidden proxy", "10.0.0.1", &["for=_hidden, for=_SEVKISEK"], "10.0.0.1"),
    (
        "section 7.1: several lines",
        "10.0.0.1",
        &["for=192.0.2.43", "for=\"[2001:db8:cafe::17]\", for=10.0.0.2"],
        "2001:db8:cafe::",
    ),
    (
        "section 7.1: without white space",
        "10.0.0.1",
        &["for=192.0.2.43,for=\"[2001:db8:cafe::17]\",for=10.0.0.9"],
        "2001:db8:cafe::",
    ),
    ("section 7.4: unknown", "10.0.0.1", &["for=192.0.2.43, for=unknown"], "10.0.0.1"),
    (
        "section 7.5: a request through two proxies",
        "10.0.0.1",
        &["for=192.0.2.43, for=10.0.0.2;by=203.0.113.60;proto=http;host=example.com"],
        "192.0.2.43",
    ),
    // The client writes what it likes, left of what proxies write.
    ("a client that names another", "192.0.2.1", &["for=203.0.113.9"], "192.0.2.1"),
    ("the leftmost is the client's own", "10.0.0.1", &["for=203.0.113.9, for=192.0.2.1"], "192.0.2.1"),
    ("an open quote swallows nothing", "10.0.0.1", &["for=\"203.0.113.9, for=192.0.2.1"], "192.0.2.1"),
    ("nor before a quoted address", "10.0.0.1", &["for=\", for=\"[2001:db8:1:2::9]\""], "2001:db8:1:2::"),
    ("nor with a backslash before it", "10.0.0.1", &["for=\"\\, for=\"[2001:db8:1:2::9]\""], "2001:db8:1:2::"),
    ("nor does a line", "10.0.0.1", &["for=\"203.0.113.9", "for=192.0.2.1"], "192.0.2.1"),
    (
        "a quoted comma is no end",
        "10.0.0.1",
        &["for=203.0.113.9, x=\", for=203.0.113.8, \";for=192.0.2.1"],
        "192.0.2.1",
    ),
    ("a quoted quote is no end", "10.0.0.1", &["for=192.0.2.1;x=\"a\\\", for=203.0.113.8;y=\\\"\""], "192.0.2.1"),
    ("garbage left of the client", "10.0.0.1", &["for=;;==,, for=192.0.2.1"], "192.0.2.1"),
    ("X-Forwarded-For's syntax left of the client", "10.0.0.1", &["203.0.113.9, for=192.0.2.1"], "192.0.2.1"),
    // What ends the walk.
    ("X-Forwarded-For's syntax", "10.0.0.1", &["for=203.0.113.9, 192.0.2.1"], "10.0.0.1"),
    ("two in one element", "10.0.0.1", &["for=203.0.113.9;for=192.0.2.1"], "10.0.0.1"),
    ("two that are the same", "10.0.0.1", &["for=192.0.2.1;FOR=192.0.2.1"], "10.0.0.1"),
    ("none in the element", "10.0.0.1", &["for=203.0.113.9, proto=https;by=10.0.0.1"], "10.0.0.1"),
    ("an empty element", "10.0.0.1", &["for=203.0.113.9, , for=10.0.0.2"], "10.0.0.2"),
    ("an empty value", "10.0.0.1", &["for=203.0.113.9, for="], "10.0.0.1"),
    ("an empty quoted value", "10.0.0.1", &["for=203.0.113.9, for=\"\""], "10.0.0.1"),
    ("no name", "10.0.0.1", &["for=203.0.113.9, =192.0.2.1"], "10.0.0.1"),
    ("white space around the =", "10.0.0.1", &["for=203.0.113.9, for = 192.0.2.1"], "10.0.0.1"),
    ("text behind a quote", "10.0.0.1", &["for=203.0.113.9, for=\"192.0.2.1\"x"], "10.0.0.1"),
    ("an escaped quote at the end", "10.0.0.1", &["for=203.0.113.9, for=\"192.0.2.1\\\""], "10.0.0.1"),
    ("one at the end of another value", "10.0.0.1", &["for=203.0.113.9, for=192.0.2.1;x=\"a\\\""], "10.0.0.1"),
    ("no ; between pairs", "10.0.0.1", &["for=203.0.113.9, for=192.0.2.1 proto=https"], "10.0.0.1"),
    ("nor behind a quote", "10.0.0.1", &["for=203.0.113.9, for=\"192.0.2.1\"proto=https"], "10.0.0.1"),
    ("a pair without a name", "10.0.0.1", &["for=203.0.113.9, for=192.0.2.1;=https"], "10.0.0.1"),
    ("a pair without a =", "10.0.0.1", &["for=203.0.113.9, for=192.0.2.1;https"], "10.0.0.1"),
    ("garbage in the middle", "10.0.0.1", &["for=203.0.113.9, for=oops, for=10.0.0.3, for=10.0.0.2"], "10.0.0.3"),
    ("no field", "10.0.0.1", &[], "10.0.0.1"),
    // How an element is written.
    ("white space around the ;", "10.0.0.1", &["proto=https ; for=192.0.2.1 ; by=10.0.0.1 "], "192.0.2.1"),
    ("empty pairs", "10.0.0.1", &[";;for=192.0.2.1;;proto=https;"], "192.0.2.1"),
    ("quoted", "10.0.0.1", &["for=\"192.0.2.1\";proto=\"https\""], "192.0.2.1"),
    ("quoted, with a port", "10.0.0.1", &["for=\"192.0.2.1:4711\""], "192.0.2.1"),
    ("with colons that should be quoted", "10.0.0.1", &["for=[2001:db8:1:2::9]:80;host=a.test:80"], "2001:db8:1:2::"),
    ("with backslashes that need not be", "10.0.0.1", &["for=\"\\1\\92.0.2\\.1\""], "192.0.2.1"),
    ("with extensions", "10.0.0.1", &["secret=\"a;b,c=\\\"d\\\"\";for=192.0.2.1;x-y=z"], "192.0.2.1"),
    ("mapped", "10.0.0.1", &["for=192.0.2.1, for=\"[::ffff:10.0.0.2]\""], "192.0.2.1"),
];

#[test]
fn forwarded_by_network() {
    check(&ClientIp::forwarded(networks(OURS)), &FORWARDED, OF_FORWARDED);
}

const OF_ONE_FIELD: &[Row] = &[
    ("a client that names another", "192.0.2.1", &["203.0.113.9"], "192.0.2.1"),
    ("the proxy's client", "10.0.0.1", &["192.0.2.1"], "192.0.2.1"),
    ("it is not walked on from", "10.0.0.1", &["10.0.0.7"], "10.0.0.7"),
    ("in brackets, with a port", "10.0.0.1", &["[2001:db8:1:2::9]:80"], "2001:db8:1:2::"),
    ("mapped", "10.0.0.1", &["::ffff:192.0.2.1"], "192.0.2.1"),
    ("quoted, with white space", "10.0.0.1", &[" \"192.0.2.1\" "], "192.0.2.1"),
    ("no field", "10.0.0.1", &[], "10.0.0.1"),
    ("empty", "10.0.0.1", &[""], "10.0.0.1"),
    ("the client's line before the proxy's", "10.0.0.1", &["203.0.113.9", "192.0.2.1"], "10.0.0.1"),
    ("the same twice", "10.0.0.1", &["192.0.2.1", "192.0.2.1"], "10.0.0.1"),
    ("an empty line beside it", "10.0.0.1", &["", "192.0.2.1"], "10.0.0.1"),
    ("a list", "10.0.0.1", &["203.0.113.9, 192.0.2.1"], "10.0.0.1"),
    ("garbage", "10.0.0.1", &["unknown"], "10.0.0.1"),
];

#[test]
fn one_field_by_network() {
    check(&ClientIp::header(REAL_IP, networks(OURS)), &REAL_IP, OF_ONE_FIELD);
}

#[test]
fn one_field_by_hops() {
    let by_hops = |hops| ClientIp::header(REAL_IP, TrustedProxies::hops(hops));
    check(&by_hops(0), &REAL_IP, &[("nobody is trusted", "192.0.2.1", &["203.0.113.9"], "192.0.2.1")]);
    for hops in [1, 2] {
        check(&by_hops(hops), &REAL_IP, &[("the proxy's client", "192.0.2.1", &["203.0.113.9"], "203.0.113.9")]);
    }
}

/// A list is read as one, however it is asked for.
#[test]
fn a_list_is_no_field_of_one_address() {
    assert_eq!(ClientIp::header(X_FORWARDED_FOR, networks(OURS)), ClientIp::x_forwarded_for(networks(OURS)));
    assert_eq!(ClientIp::header(FORWARDED, networks(OURS)), ClientIp::forwarded(networks(OURS)));
}

#[track_caller]
fn check(reader: &ClientIp, name: &HeaderName, rows: &[Row]) {
    for (what, peer, lines, client) in rows {
        let found = reader.extract(&request(Some(ip(peer)), name, *lines));
        assert_eq!(found, Extracted::Key(ip(client)), "{what}: {lines:?} from {peer}");
    }
}

#[test]
fn the_table_is_long_enough_to_be_worth_its_name() {
    let rows = BY_NETWORK.len() + BY_HOPS.len() + OF_FORWARDED.len() + OF_ONE_FIELD.len();
    assert!(rows >= 120, "{rows}");
}

// The peer

#[test]
fn without_a_peers_address_the_key_is_missing_whatever_the_fields_say() {
    for trusted in [networks(OURS), TrustedProxies::hops(0), TrustedProxies::hops(1), TrustedProxies::hops(9)] {
        for (name, reader) in readers(&trusted) {
            for lines in [&["192.0.2.1"][..], &["for=192.0.2.1"], &["10.0.0.1"], &[]] {
                let Extracted::Missing(missing) = reader.extract(&request(None, &name, lines)) else {
                    panic!("{name} {lines:?} is believed")
                };
                assert!(missing.is_server_error(), "{missing}");
                assert!(missing.reason().contains("into_make_service_with_connect_info"), "{missing}");
            }
        }
    }
}

#[test]
fn behind_a_unix_socket_an_absent_peer_is_a_proxy_if_that_is_said() {
    let found = |trusted: TrustedProxies, lines: &[&str]| {
        let reader = ClientIp::x_forwarded_for(trusted).trust_absent_peer();
        match reader.extract(&request(None, &X_FORWARDED_FOR, lines)) {
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
    let (by_server, reason) = found(networks(OURS), &[]).expect_err("nobody is known");
    assert!(by_server && reason.contains("x-forwarded-for"), "{reason}");
    for lines in [&["203.0.113.9, unknown"][..], &[""]] {
        let (by_server, reason) = found(networks(OURS), lines).expect_err("nobody is known");
        assert_eq!((by_server, &*reason), (false, "the header x-forwarded-for holds no address"));
    }
    let (by_server, _) = found(TrustedProxies::none(), &["203.0.113.9"]).expect_err("nobody is trusted");
    assert!(by_server);

    // A peer that has an address is trusted as ever.
    let reader = ClientIp::x_forwarded_for(networks(OURS)).trust_absent_peer();
    let direct = request(Some(ip("192.0.2.1")), &X_FORWARDED_FOR, ["203.0.113.9"]);
    assert_eq!(reader.extract(&direct), Extracted::Key(ip("192.0.2.1")));
}

#[test]
fn the_peers_address_may_be_kept_anywhere() {
    #[derive(Clone)]
    struct Connection(&'static str);

    let reader = ClientIp::x_forwarded_for(networks(OURS)).peer(|request: &http::Request<()>| {
        request.extensions().get::<Connection>().map(|connection| ip(connection.0))
    });
    // Where others put it does not count then.
    let mut forged = request(Some(ip("10.0.0.1")), &X_FORWARDED_FOR, ["192.0.2.1"]);
    assert!(matches!(reader.extract(&forged), Extracted::Missing(_)));
    forged.extensions_mut().insert(Connection("198.51.100.1"));
    assert_eq!(reader.extract(&forged), Extracted::Key(ip("198.51.100.1")));
    forged.extensions_mut().insert(Connection("10.0.0.1"));
    assert_eq!(reader.extract(&forged), Extracted::Key(ip("192.0.2.1")));
}

/// A request need not be HTTP, if it is said where the peer is.
#[test]
fn peers_of_a_protocol_of_ones_own_are_counted() {
    struct Call {
        from: Option<std::net::IpAddr>,
    }

    let key = PeerIp::new().peer(|call: &Call| call.from).ipv6_prefix(48);
    assert_eq!(key.extract(&Call { from: Some(ip("2001:db8:1:2::3")) }), Extracted::Key(ip("2001:db8:1::")));
    assert!(matches!(key.extract(&Call { from: None }), Extracted::Missing(_)));
}

// What stands for an address

#[test]
fn a_second_wider_tier_is_a_tuple() {
    let near = ClientIp::x_forwarded_for(networks(OURS));
    let wide = near.clone().ipv6_prefix(48).ipv4_prefix(24);
    let key = |client| (near.clone(), wide.clone()).extract(&request(Some(ip("10.0.0.1")), &X_FORWARDED_FOR, [client]));
    assert_eq!(key("2001:db8:1:2::3"), Extracted::Key((ip("2001:db8:1:2::"), ip("2001:db8:1::"))));
    assert_eq!(key("192.0.2.7"), Extracted::Key((ip("192.0.2.7"), ip("192.0.2.0"))));
    assert_eq!(key("::ffff:192.0.2.7"), Extracted::Key((ip("192.0.2.7"), ip("192.0.2.0"))));
    assert_eq!(key("64:ff9b::192.0.2.7"), Extracted::Key((ip("192.0.2.7"), ip("192.0.2.0"))));
}

#[test]
fn prefixes_that_can_not_be_are_errors() {
    let reader = ClientIp::forwarded(TrustedProxies::hops(1));
    for bits in [0, 129, 255] {
        let error = reader.clone().try_ipv6_prefix(bits).expect_err("no such prefix");
        assert!(error.is_config() && error.to_string().contains(&bits.to_string()), "{error}");
    }
    for bits in [0, 33, 255] {
        let error = reader.clone().try_ipv4_prefix(bits).expect_err("no such prefix");
        assert!(error.is_config() && error.to_string().contains(&bits.to_string()), "{error}");
    }
    assert_eq!(reader.clone().try_ipv6_prefix(56).expect("fits"), reader.clone().ipv6_prefix(56));
    assert_eq!(reader.clone().try_ipv4_prefix(1).expect("fits").key_of(ip("255.0.0.1")), ip("128.0.0.0"));
}

#[test]
fn the_whole_address_is_told_as_well() {
    let reader = ClientIp::x_forwarded_for(networks(OURS));
    let told = |client| reader.client_of(&request(Some(ip("10.0.0.1")), &X_FORWARDED_FOR, [client])).expect("a client");
    assert_eq!(told("[2001:db8:1:2::3]:80"), ip("2001:db8:1:2::3"));
    assert_eq!(told("::ffff:192.0.2.7"), ip("192.0.2.7"));
}

// Trusted proxies

#[test]
fn a_list_of_proxies_that_can_not_be_meant_is_an_error() {
    let error = |networks: &[&str]| {
        let error = TrustedProxies::parse(networks).expect_err("not meant");
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
