//! Addresses in logs.

use std::net::IpAddr;

use tower_ratelimit::PeerIp;

/// Parses an address.
pub(super) fn parse(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

/// Returns the text of a value by which limits count: an address as the key that a layer counts by, so an IPv6 address as
/// its /64 network.
pub(super) fn counted(text: &str) -> Option<String> {
    // Most texts have no colon, and no other text is an IPv6 address.
    let address = Some(text).filter(|text| text.contains(':')).and_then(parse)?;
    Some(PeerIp::new().key_of(address).to_string())
}
