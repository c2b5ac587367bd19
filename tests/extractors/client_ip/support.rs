//! Requests that never were, and what is found of them.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderName, HeaderValue, Request};
use tower_ratelimit::ClientIp;
use tower_ratelimit::key::{ExtractKey, Extracted, TrustedProxies};

/// The field of one address in these tests.
pub(crate) const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(crate) const FORWARDED: HeaderName = HeaderName::from_static("forwarded");

pub(crate) fn ip(address: &str) -> IpAddr {
    address.parse().unwrap_or_else(|_| panic!("{address:?} is no address"))
}

/// A request from this peer, if it has an address, with lines of this field.
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

/// Reads each of the three kinds of field.
pub(crate) fn readers(trusted: &TrustedProxies) -> [(HeaderName, ClientIp); 3] {
    [
        (X_FORWARDED_FOR, ClientIp::x_forwarded_for(trusted.clone())),
        (FORWARDED, ClientIp::forwarded(trusted.clone())),
        (REAL_IP, ClientIp::header(REAL_IP, trusted.clone())),
    ]
}

/// The key, which must be there.
pub(crate) fn key_of(reader: &ClientIp, request: &Request<()>) -> IpAddr {
    match reader.extract(request) {
        Extracted::Key(key) => key,
        other => panic!("{other:?} for {:?}", request.headers()),
    }
}
