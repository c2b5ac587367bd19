use std::net::IpAddr;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::{forwarded, node};

/// Where proxies write whom they have the request from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// `X-Forwarded-For`: a list, to which each proxy appends.
    XForwardedFor,
    /// `Forwarded` (RFC 7239): likewise, with more in each element.
    Forwarded,
    /// One address, which the proxy sets.
    Single(HeaderName),
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

impl Field {
    pub(super) fn named(name: HeaderName) -> Self {
        if name == X_FORWARDED_FOR {
            Self::XForwardedFor
        } else if name == header::FORWARDED {
            Self::Forwarded
        } else {
            Self::Single(name)
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
            Self::Single(name) => name.as_str(),
        }
    }
}

/// The hops that all lines of `X-Forwarded-For` tell of, from right to left; `None` is one that tells no address.
///
/// An empty element is such a hop as well: a proxy may have written nothing for an address that it did not know, and
/// what stands left of it would be the client's own.
pub(super) fn x_forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(X_FORWARDED_FOR).into_iter().rev();
    lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b',')).map(|element| node::address(unquoted(element)))
}

/// The hops that all lines of `Forwarded` tell of, from right to left; `None` is one that tells no address.
pub(super) fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(header::FORWARDED).into_iter().rev();
    lines.flat_map(|line| forwarded::Elements::of(line.as_bytes()))
}

/// The address in the only line of a field.
pub(super) fn single(headers: &HeaderMap, name: &HeaderName) -> Option<IpAddr> {
    let mut lines = headers.get_all(name).into_iter();
    match (lines.next().map(HeaderValue::as_bytes), lines.next()) {
        (Some(line), None) => node::address(unquoted(line)),
        _ => None,
    }
}

/// Without the white space around it, and without the quotes that some proxies write.
fn unquoted(element: &[u8]) -> &[u8] {
    let element = element.trim_ascii();
    element.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(element)
}
