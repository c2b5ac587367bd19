use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Parses the address of a node (RFC 7239), or of a form that proxies write instead.
///
/// The forms are `192.0.2.1`, `192.0.2.1:4711`, `[2001:db8::1]`, `[2001:db8::1]:4711`, `2001:db8::1`, and an IPv6
/// address with a `%zone`. Everything else is `None`, such as `unknown` or an obfuscated name (`_proxy7`).
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

/// Ignores the zone, which names an interface of the proxy and does not identify the client.
fn ipv6(text: &str) -> Option<IpAddr> {
    let address = match text.split_once('%') {
        Some((address, zone)) if !zone.is_empty() && zone.bytes().all(is_unreserved) => address,
        Some(_) => return None,
        None => text,
    };
    address.parse().map(|address: Ipv6Addr| IpAddr::V6(address).to_canonical()).ok()
}

/// A number, or an obfuscated name (RFC 7239, section 6).
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => !name.is_empty() && name.bytes().all(is_unreserved),
        None => text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok(),
    }
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}
