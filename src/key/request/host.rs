use http::uri::Scheme;
use http::{Request, header};

use super::header::only_value;
use crate::key::{ExtractKey, Extracted, KeyText, MissingKey};

/// The requested host: the URI's authority if present (HTTP/2, proxies), otherwise the `Host` header.
///
/// The key is in lower case, without a trailing dot and without the port.
///
/// The key is absent if the request has neither. The key is unusable if `Host` is empty, malformed, repeated, or
/// differs from the URI's authority, because the application could use the other host. A missing port equals the
/// default port of the scheme.
///
/// A client can invent hosts, and so keys, unless your proxy or server rejects unknown hosts.
///
/// ```
/// use tower_ratelimit::ExtractKey;
/// use tower_ratelimit::key::{Extracted, Host, KeyText};
///
/// let request = http::Request::get("/").header("host", "Example.ORG:8080").body(()).unwrap();
/// assert_eq!(Host::new().extract(&request), Extracted::Key(KeyText::from("example.org")));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct Host;

impl Host {
    /// Creates an extractor of the host's name.
    pub const fn new() -> Self {
        Self
    }

    /// Returns whether a text can be the name of a host as the key has it, but for upper case.
    #[cfg(feature = "serde")]
    pub(crate) fn is_name(text: &str) -> bool {
        split_port(text.as_bytes()).is_some_and(|(name, _)| name.len() == text.len())
    }
}

fn normalised(name: &[u8]) -> Option<KeyText> {
    let mut text = [0; MAX_LEN];
    let text = text.get_mut(..name.len())?;
    text.copy_from_slice(name);
    text.make_ascii_lowercase();
    Some(KeyText::new(text))
}

/// More than the longest domain name.
const MAX_LEN: usize = 300;

impl<B> ExtractKey<Request<B>> for Host {
    type Key = KeyText;

    fn extract(&self, request: &Request<B>) -> Extracted<KeyText> {
        let found = host(request).and_then(|(name, _)| normalised(name).ok_or_else(malformed));
        found.map_or_else(Extracted::Missing, Extracted::Key)
    }
}

/// Returns the name and the port of the requested host.
fn host<B>(request: &Request<B>) -> Result<(&[u8], Option<u16>), MissingKey> {
    let parsed = |authority| split_port(authority).ok_or_else(malformed);
    let field = only_value(request.headers(), &header::HOST);
    let Some(authority) = request.uri().authority() else { return parsed(field?) };
    // Skip the user name and password.
    let host = parsed(authority.as_str().rsplit('@').next().unwrap_or_default().as_bytes())?;
    match field {
        Ok(field) if is_same(host, parsed(field)?, request.uri().scheme()) => Ok(host),
        Ok(_) => Err(MissingKey::unusable("the URI and the header host contain different hosts")),
        Err(missing) if missing.is_unusable() => Err(missing),
        Err(_) => Ok(host),
    }
}

/// Whether two hosts are equal. A missing port equals the default port of the scheme.
fn is_same(one: (&[u8], Option<u16>), other: (&[u8], Option<u16>), scheme: Option<&Scheme>) -> bool {
    let default_port = scheme.and_then(|scheme| match scheme.as_str() {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    });
    one.0.eq_ignore_ascii_case(other.0) && one.1.or(default_port) == other.1.or(default_port)
}

#[cold]
fn malformed() -> MissingKey {
    MissingKey::unusable("the requested host is malformed: expected a form such as example.org:8080")
}

/// Returns the name without a trailing dot, and the port.
fn split_port(authority: &[u8]) -> Option<(&[u8], Option<u16>)> {
    let is_literal = authority.starts_with(b"[");
    let end = if is_literal { authority.iter().position(|byte| *byte == b']')? + 1 } else { 0 };
    let colon = authority[end..].iter().position(|byte| *byte == b':').map(|position| end + position);
    let (name, port) = authority.split_at(colon.unwrap_or(authority.len()));
    // An empty port is allowed (RFC 3986, section 3.2.3).
    let port = match port {
        [] | [b':'] => None,
        [_, digits @ ..] => Some(port_of(digits)?),
    };
    let is_whole =
        if is_literal { name.len() == end && is_address(name) } else { name.iter().copied().all(is_in_name) };
    let name = name.strip_suffix(b".").unwrap_or(name);
    (is_whole && !name.is_empty() && !name.ends_with(b".")).then_some((name, port))
}

fn port_of(digits: &[u8]) -> Option<u16> {
    let digits = str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok()
}

/// Whether the text in brackets may be an IPv6 address, or an `IPvFuture` (RFC 3986, section 3.2.2).
fn is_address(literal: &[u8]) -> bool {
    let inside = &literal[1..literal.len() - 1];
    !inside.is_empty() && inside.iter().all(|byte| *byte == b':' || is_in_name(*byte))
}

/// `reg-name` of RFC 3986.
fn is_in_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(&byte)
}
