use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address that a node (RFC 7239) tells, or what is seen in its place: `192.0.2.1`, `192.0.2.1:4711`,
/// `[2001:db8::1]`, `[2001:db8::1]:4711`, `2001:db8::1`, an IPv6 address with a `%zone`.
///
/// None if it tells no address: `unknown`, a name that hides it (`_proxy7`), and whatever else.
pub(super) fn address(node: &[u8]) -> Option<IpAddr> {
    let node = str::from_utf8(node).ok()?;
    if let Some(bracketed) = node.strip_prefix('[') {
        let (address, rest) = bracketed.split_once(']')?;
        return if rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port) { ipv6(address) } else { None };
    }
    match node.split_once(':') {
        None => ipv4(node),
        Some((_, rest)) if rest.contains(':') => ipv6(node),
        Some((address, port)) if is_port(port) => ipv4(address),
        Some(_) => None,
    }
}

fn ipv4(text: &str) -> Option<IpAddr> {
    text.parse().map(|address: Ipv4Addr| IpAddr::V4(address)).ok()
}

/// A zone is another host's name for one of its interfaces: it tells no client from another.
fn ipv6(text: &str) -> Option<IpAddr> {
    let address = match text.split_once('%') {
        Some((address, zone)) if !zone.is_empty() && zone.bytes().all(is_unreserved) => address,
        Some(_) => return None,
        None => text,
    };
    address.parse().map(|address: Ipv6Addr| IpAddr::V6(address).to_canonical()).ok()
}

/// A number, or a name that hides it: RFC 7239, section 6.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => !name.is_empty() && name.bytes().all(is_unreserved),
        None => text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok(),
    }
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}
