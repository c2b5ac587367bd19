use std::net::IpAddr;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::{forwarded, node};

/// The header in which proxies write the address of the previous hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// `X-Forwarded-For`: a list, to which each proxy appends.
    XForwardedFor,
    /// `Forwarded` (RFC 7239): a list like `X-Forwarded-For`, with several parameters in each element.
    Forwarded,
    /// A header with one address, which the proxy overwrites.
    Single(HeaderName),
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

impl Field {
    pub(super) fn from_header_name(name: HeaderName) -> Self {
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

/// Returns the hops in all lines of `X-Forwarded-For`, from right to left. `None` is a hop without an address.
///
/// An empty element, also at the end of the list, is a hop without an address: a proxy may write nothing for an unknown
/// address. RFC 9110 (section 5.6.1) lets a recipient skip it, which would trust the element to its left: the client may
/// have written that one.
pub(super) fn x_forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(X_FORWARDED_FOR).into_iter().rev();
    lines
        .flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','))
        .map(|element| node::address(trim_quotes(element)))
}

/// Returns the hops in all lines of `Forwarded`, from right to left. `None` is a hop without an address.
pub(super) fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(header::FORWARDED).into_iter().rev();
    lines.flat_map(|line| forwarded::ForwardedElements::new(line.as_bytes()))
}

/// Returns the address in a header that is not repeated.
pub(super) fn single(headers: &HeaderMap, name: &HeaderName) -> Option<IpAddr> {
    let mut lines = headers.get_all(name).into_iter();
    match (lines.next().map(HeaderValue::as_bytes), lines.next()) {
        (Some(line), None) => node::address(trim_quotes(line)),
        _ => None,
    }
}

/// Trims white space, and the quotes that some proxies write.
fn trim_quotes(element: &[u8]) -> &[u8] {
    let element = element.trim_ascii();
    element.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(element)
}
