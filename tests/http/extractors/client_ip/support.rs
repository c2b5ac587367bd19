//! Requests with forwarding fields, and the keys that are extracted from them.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderName, HeaderValue, Request};
use tower_ratelimit::key::{Extracted, TrustedProxies};
use tower_ratelimit::{ClientIp, ExtractKey};

/// The field with a single address in these tests.
pub(crate) const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(crate) const FORWARDED: HeaderName = HeaderName::from_static("forwarded");

pub(crate) fn ip(address: &str) -> IpAddr {
    address.parse().unwrap_or_else(|_| panic!("{address:?} is not an address"))
}

/// Builds a request from this peer (`None`: without an address) with lines of this field.
pub(crate) fn request<L: AsRef<[u8]>>(
    peer: Option<IpAddr>,
    name: &HeaderName,
    lines: impl IntoIterator<Item = L>,
) -> Request<()> {
    let mut request = Request::new(());
    if let Some(peer) = peer {
        request.extensions_mut().insert(SocketAddr::new(peer, 4711));
    }
    for line in lines {
        let value = HeaderValue::from_bytes(line.as_ref()).expect("a field value");
        request.headers_mut().append(name, value);
    }
    request
}

pub(crate) fn networks(networks: &[&str]) -> TrustedProxies {
    TrustedProxies::parse(networks).expect("networks")
}

/// Returns an extractor for each of the three fields.
pub(crate) fn extractors(trusted: &TrustedProxies) -> [(HeaderName, ClientIp); 3] {
    [
        (X_FORWARDED_FOR, ClientIp::x_forwarded_for(trusted.clone())),
        (FORWARDED, ClientIp::forwarded(trusted.clone())),
        (REAL_IP, ClientIp::header(REAL_IP, trusted.clone())),
    ]
}

/// Extracts the key, and panics if it is missing.
pub(crate) fn key_of(extractor: &ClientIp, request: &Request<()>) -> IpAddr {
    match extractor.extract(request) {
        Extracted::Key(key) => key,
        other => panic!("{other:?} for {:?}", request.headers()),
    }
}
