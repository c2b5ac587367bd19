//! The fields of requests: the client's address, keys, deadlines and content types.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, header};
use tower_ratelimit::key::{Credential, Extracted, Header, Host, InNetworks, TrustedProxies};
use tower_ratelimit::response::{Grpc, Rejection};
use tower_ratelimit::{AcquireOptions, ClientIp, ExtractKey, Gcra, Http, ManualClock, Memory, PeerIp, Quota, Respond};

const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const UNTRUSTED: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const CLIENT: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 0, 0, 0, 0));

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Panics if an invariant is violated. Each line of `sent` is a line of the field.
pub(crate) fn check(sent: &[u8]) {
    let lines: Vec<_> =
        sent.split(|byte| *byte == b'\n').filter_map(|line| HeaderValue::from_bytes(line).ok()).collect();
    addresses(&lines);
    other_extractors(&lines);
    grpc_timeouts(&lines);
    content_types(&lines);
}

/// The grammar of gRPC over HTTP/2: one to eight digits and a unit.
fn grpc_timeouts(lines: &[HeaderValue]) {
    let sent = request(&HeaderName::from_static("grpc-timeout"), lines);
    let timeout = Respond::<Request<()>, Response<Bytes>, Infallible>::client_timeout(&Grpc::new(), &sent);
    let expected = lines.first().and_then(|line| {
        let (digits, unit) = line.to_str().ok()?.split_at_checked(line.len().checked_sub(1)?)?;
        let is_number = (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
        let nanos = [("H", 3_600_000_000_000), ("M", 60_000_000_000), ("S", 1_000_000_000), ("m", 1_000_000)];
        let nanos = nanos.into_iter().chain([("u", 1_000), ("n", 1)]).find(|(name, _)| *name == unit)?.1;
        let total: u128 = digits.parse::<u128>().ok().filter(|_| is_number)? * nanos;
        Some(Duration::new(u64::try_from(total / 1_000_000_000).ok()?, u32::try_from(total % 1_000_000_000).ok()?))
    });
    assert_eq!(timeout, expected, "{lines:?}");
}

/// A rejection is a success in HTTP for gRPC calls only.
fn content_types(lines: &[HeaderValue]) {
    let limiter = Memory::builder(Gcra::new(Quota::per_second(1))).max_keys(1).clock(ManualClock::new()).build();
    let decision = limiter.expect("valid settings").check("a", AcquireOptions::cost(2));
    let mut sent = request(&header::CONTENT_TYPE, lines);
    *sent.method_mut() = Method::POST;
    let is_grpc = lines
        .first()
        .is_some_and(|line| line.as_bytes().to_ascii_lowercase().trim_ascii().starts_with(b"application/grpc"));
    let responder = Http::new().grpc(Grpc::new()).map_body();
    let response =
        Respond::<_, Response<String>, Infallible>::on_rejected(&responder, sent, Rejection::OverLimit(decision));
    let Ok(response) = response;
    assert!(response.status() == 429 || is_grpc, "{lines:?}: {}", response.status());
}

fn addresses(lines: &[HeaderValue]) {
    let networks = || TrustedProxies::parse(["10.0.0.0/8"]).expect("a network");
    for trusted in [networks(), TrustedProxies::hops(1), TrustedProxies::hops(3)] {
        let extractors = [
            (X_FORWARDED_FOR, ClientIp::x_forwarded_for(trusted.clone())),
            (header::FORWARDED, ClientIp::forwarded(trusted.clone())),
            (X_REAL_IP, ClientIp::header(X_REAL_IP, trusted.clone())),
        ];
        for (name, extractor) in extractors {
            let sent = request(&name, lines);
            assert!(matches!(extractor.extract(&from(PROXY, &sent)), Extracted::Key(_)), "the peer address is known");
            assert!(
                matches!(extractor.extract(&sent), Extracted::Missing(_)),
                "a field does not replace the peer address"
            );
            assert!(!matches!(extractor.clone().trust_absent_peer().extract(&sent), Extracted::Exempt));
            if trusted == networks() {
                let exempt = InNetworks::parse(extractor.clone(), ["10.0.0.0/8"]).expect("a network");
                assert!(!exempt.matches(&from(PROXY, &sent)), "the address of a proxy is not exempt");
                assert_eq!(
                    extractor.extract(&from(UNTRUSTED, &sent)),
                    Extracted::Key(UNTRUSTED),
                    "the field of an untrusted peer is ignored"
                );
            }
        }
    }
    let appended = [
        (X_FORWARDED_FOR, ClientIp::x_forwarded_for(networks()), "2001:db8:1:2::9, 10.0.0.2"),
        (header::FORWARDED, ClientIp::forwarded(networks()), "for=\"[2001:db8:1:2::9]:80\", for=10.0.0.2"),
    ];
    for (name, extractor, element) in appended {
        let mut beside = lines.to_vec();
        beside.push(HeaderValue::from_static(element));
        assert_eq!(
            extractor.extract(&from(PROXY, &request(&name, &beside))),
            Extracted::Key(CLIENT),
            "on its own line"
        );
        let mut joined = lines.to_vec();
        let last = joined.pop().map_or(Vec::new(), |last| last.as_bytes().to_vec());
        joined.push(HeaderValue::from_bytes(&[&last[..], b",", element.as_bytes()].concat()).expect("a field value"));
        assert_eq!(
            extractor.extract(&from(PROXY, &request(&name, &joined))),
            Extracted::Key(CLIENT),
            "on the same line"
        );
    }
    let only_peers = from(UNTRUSTED, &request(&X_FORWARDED_FOR, lines));
    assert_eq!(PeerIp::new().extract(&only_peers), Extracted::Key(UNTRUSTED));
}

fn other_extractors(lines: &[HeaderValue]) {
    let x_key = HeaderName::from_static("x-key");
    assert_ne!(Header::new(x_key.clone()).extract(&request(&x_key, lines)), Extracted::Exempt);
    assert_ne!(Credential::header(x_key.clone()).extract(&request(&x_key, lines)), Extracted::Exempt);
    assert_ne!(Credential::bearer().extract(&request(&header::AUTHORIZATION, lines)), Extracted::Exempt);
    let sent = request(&header::AUTHORIZATION, lines);
    let (user, bearer) = (Credential::basic_user().extract(&sent), Credential::bearer().extract(&sent));
    assert_ne!(user, Extracted::Exempt);
    assert!(!matches!((user, bearer), (Extracted::Key(_), Extracted::Key(_))), "one scheme");
    let cookie = Credential::cookie("session");
    assert_ne!(cookie.extract(&request(&header::COOKIE, lines)), Extracted::Exempt);

    let found = Host::new().extract(&request(&header::HOST, lines));
    assert_ne!(found, Extracted::Exempt);
    // A normalized host is unchanged; longer hosts are digests.
    if let Extracted::Key(key) = found
        && !key.as_bytes().starts_with(b"\0sha256-")
        && let Ok(normal) = HeaderValue::from_bytes(key.as_bytes())
    {
        assert_eq!(Host::new().extract(&request(&header::HOST, &[normal])), Extracted::Key(key));
    }
}

fn request(name: &HeaderName, lines: &[HeaderValue]) -> Request<()> {
    let mut request = Request::new(());
    for line in lines {
        request.headers_mut().append(name, line.clone());
    }
    request
}

fn from(peer: IpAddr, sent: &Request<()>) -> Request<()> {
    let mut request = sent.clone();
    request.extensions_mut().insert(SocketAddr::new(peer, 4711));
    request
}
