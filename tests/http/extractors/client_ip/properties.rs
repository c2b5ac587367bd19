//! Properties of the extractors for every header field.

use std::iter;
use std::net::IpAddr;

use http::{HeaderName, HeaderValue, Request};
use proptest::collection::vec;
use proptest::prelude::*;
use tower_ratelimit::key::{Extracted, TrustedProxies};
use tower_ratelimit::{ClientIp, ExtractKey};

use super::support::{FORWARDED, REAL_IP, X_FORWARDED_FOR, extractors, ip, key_of, networks, request};

/// Generates a client that is not a proxy.
fn client() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from),
        any::<[u8; 4]>().prop_map(|v4| IpAddr::V6(std::net::Ipv4Addr::from(v4).to_ipv6_mapped())),
    ]
    .prop_filter("a proxy", |address| !is_proxy(*address))
}

fn is_proxy(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.octets()[0] == 10,
        IpAddr::V6(v6) => v6.octets()[0] == 0xfd,
    }
}

fn ours() -> TrustedProxies {
    networks(&["10.0.0.0/8", "fd00::/8"])
}

fn proxy() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 3]>().prop_map(|[b, c, d]| IpAddr::from([10, b, c, d])),
        any::<[u8; 15]>().prop_map(|rest| {
            let mut bytes = [0xfd; 16];
            bytes[1..].copy_from_slice(&rest);
            IpAddr::from(bytes)
        }),
    ]
}

/// Generates a field value of parser symbols, addresses and arbitrary bytes.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => prop::sample::select(&[
            ",", ", ", ";", "=", "\"", "\\", "\\\"", "for=", "For=\"", "\", for=\"", "[", "]", ":", ":80", "%eth0", " ",
            "\t",
            "unknown", "_hidden", "by=", "proto=https", "10.0.0.1", "10.0.0.2:80", "fd00::1", "[fd00::1]:80",
            "203.0.113.9", "2001:db8::9", "::ffff:10.0.0.3", "::", "0.0.0.0", "127.0.0.1",
        ][..]).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => vec(any::<u8>().prop_filter("an invalid byte", |byte| *byte >= 32 && *byte != 127), 0..12),
    ];
    vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn lines() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec(line(), 0..5)
}

fn name() -> impl Strategy<Value = HeaderName> {
    prop::sample::select(vec![X_FORWARDED_FOR, FORWARDED, REAL_IP])
}

/// How a proxy appends the address of its peer.
#[derive(Clone, Copy, Debug)]
enum Appends {
    SameLine,
    NewLine,
}

/// Returns the lines after a proxy appended `address`.
fn appended(mut lines: Vec<Vec<u8>>, name: &HeaderName, address: IpAddr, how: Appends) -> Vec<Vec<u8>> {
    let element = match address {
        _ if *name == X_FORWARDED_FOR => address.to_string(),
        IpAddr::V4(v4) => format!("proto=https;for={v4}"),
        IpAddr::V6(v6) => format!("for=\"[{v6}]:4711\";by=_us"),
    };
    match (lines.last_mut(), how) {
        (Some(line), Appends::SameLine) => {
            line.extend_from_slice(b", ");
            line.extend_from_slice(element.as_bytes());
        }
        _ => lines.push(element.into_bytes()),
    }
    lines
}

/// Returns the lines after the first hop and then each of `proxies` appended an address.
fn forwarded(
    sent: &[Vec<u8>],
    name: &HeaderName,
    first: (IpAddr, Appends),
    proxies: &[(IpAddr, Appends)],
) -> Vec<Vec<u8>> {
    let hops = iter::once(&first).chain(proxies);
    hops.fold(sent.to_vec(), |lines, (address, how)| appended(lines, name, *address, *how))
}

fn garbage() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["unknown", "for=unknown", "10.0.0.", "", "for=\"10.0.0.2", "for=_x", "\u{e9}"][..])
}

/// Returns the extractors of lists of hops.
fn lists(trusted: &TrustedProxies) -> [(HeaderName, ClientIp); 2] {
    let [x_forwarded_for, forwarded, _] = extractors(trusted);
    [x_forwarded_for, forwarded]
}

fn appends() -> impl Strategy<Value = Appends> {
    prop::sample::select(&[Appends::SameLine, Appends::NewLine][..])
}

fn with_any(fields: &[(HeaderName, Vec<u8>)], peer: Option<IpAddr>) -> Request<()> {
    let mut request = request(peer, &X_FORWARDED_FOR, [""; 0]);
    for (name, value) in fields {
        request.headers_mut().append(name, HeaderValue::from_bytes(value).expect("a field value"));
    }
    request
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn no_field_of_an_untrusted_peer_changes_the_key(
        peer in client(),
        fields in vec((name(), line()), 0..8),
    ) {
        for trusted in [ours(), TrustedProxies::none()] {
            for (_, extractor) in extractors(&trusted) {
                let key = key_of(&extractor, &with_any(&fields, Some(peer)));
                prop_assert_eq!(key, extractor.key_of(peer));
            }
        }
    }

    /// No field exempts a request, and no field replaces a missing peer address.
    #[test]
    fn no_field_exempts_or_replaces_a_missing_peer(
        peer in prop::option::of(prop_oneof![client(), proxy()]),
        fields in vec((name(), line()), 0..8),
        hops in 0usize..4,
    ) {
        let request = with_any(&fields, peer);
        for trusted in [ours(), TrustedProxies::hops(hops)] {
            for (_, extractor) in extractors(&trusted) {
                let found = extractor.extract(&request);
                match peer {
                    Some(_) => prop_assert!(matches!(found, Extracted::Key(_)), "{:?}", found),
                    None => prop_assert!(matches!(found, Extracted::Missing(_)), "{:?}", found),
                }
                let on_a_socket = extractor.trust_absent_peer().extract(&request);
                prop_assert!(!matches!(on_a_socket, Extracted::Exempt));
                // No client causes an alert, or an exemption, on a server that is set up for its proxy.
                if let Extracted::Missing(missing) = on_a_socket
                    && trusted != TrustedProxies::none()
                {
                    prop_assert!(missing.is_unusable(), "{}", missing);
                }
            }
        }
    }

    /// The client sends any lines; proxies append the address of the client, and those of other proxies.
    #[test]
    fn nothing_left_of_the_first_untrusted_hop_changes_the_key(
        sent in lines(),
        client in client(),
        proxies in vec((proxy(), appends()), 0..4),
        peer in proxy(),
        how in appends(),
    ) {
        for (name, extractor) in lists(&ours()) {
            let lines = forwarded(&sent, &name, (client, how), &proxies);
            let key = key_of(&extractor, &request(Some(peer), &name, &lines));
            prop_assert_eq!(key, extractor.key_of(client), "{:?}", lines);
        }
    }

    #[test]
    fn nothing_left_of_the_last_counted_hop_changes_the_key(
        sent in lines(),
        client in client(),
        proxies in vec((prop_oneof![client(), proxy()], appends()), 0..4),
        peer in prop_oneof![self::client(), proxy()],
        how in appends(),
    ) {
        let trusted = TrustedProxies::hops(proxies.len() + 1);
        for (name, extractor) in lists(&trusted) {
            let lines = forwarded(&sent, &name, (client, how), &proxies);
            let key = key_of(&extractor, &request(Some(peer), &name, &lines));
            prop_assert_eq!(key, extractor.key_of(client), "{:?}", lines);
        }
    }

    /// Hops to the left of an invalid hop are not trusted.
    #[test]
    fn nothing_left_of_an_invalid_hop_changes_the_key(
        sent in lines(),
        garbage in garbage(),
        peer in proxy(),
    ) {
        for (name, extractor) in lists(&ours()) {
            let mut lines = sent.clone();
            lines.push(garbage.as_bytes().to_vec());
            let key = key_of(&extractor, &request(Some(peer), &name, &lines));
            prop_assert_eq!(key, extractor.key_of(peer));
        }
    }

    /// A line of the client beside that of the proxy does not select the key.
    #[test]
    fn repeated_single_address_field_is_ignored(
        sent in line(),
        client in client(),
        peer in proxy(),
        first in any::<bool>(),
    ) {
        let extractor = ClientIp::header(REAL_IP, ours());
        let mut lines = vec![sent, client.to_string().into_bytes()];
        if first {
            lines.reverse();
        }
        prop_assert_eq!(key_of(&extractor, &request(Some(peer), &REAL_IP, &lines)), extractor.key_of(peer));
    }

    #[test]
    fn all_spellings_of_an_address_are_one_key(client in any::<[u8; 4]>()) {
        let v4 = std::net::Ipv4Addr::from(client);
        let mapped = v4.to_ipv6_mapped();
        let extractor = ClientIp::x_forwarded_for(TrustedProxies::hops(1));
        for spelling in [
            v4.to_string(), format!("{v4}:80"), format!("\"{v4}\""), mapped.to_string(), format!("[{mapped}]:80"),
            format!("64:ff9b::{v4}"), format!("::FFFF:{v4}%eth0"),
        ] {
            let key = key_of(&extractor, &request(Some(ip("10.0.0.1")), &X_FORWARDED_FOR, [&spelling]));
            prop_assert_eq!(key, IpAddr::V4(v4), "{}", spelling);
        }
    }
}
