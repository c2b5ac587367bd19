use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderMap, HeaderName, Request};

use super::CostPolicy;
use crate::decision::{CallId, Costs, ReservationId};
use crate::key::path_of;

/// Reads the id by which [`RateLimitLayer::once`](crate::RateLimitLayer::once) recognises a request that is sent again.
///
/// The id covers the request's method and [path](crate::key::Path) as the client sent it, and counts within the key of the limit. The header is
/// `Idempotency-Key` of the IETF draft "The Idempotency-Key HTTP Header Field". Both forms that clients use name the same
/// id: the string of the draft (`"8e03978e"`), and the bare text (`8e03978e`). In gRPC the metadata `idempotency-key` is
/// this header, and the path is the method.
///
/// | Header | The request is charged |
/// |---|---|
/// | absent | whole |
/// | one value of 1 to 255 visible ASCII characters; as a string also with spaces | once |
/// | several values, or one with a comma | whole |
/// | empty, longer than 255 characters, not ASCII | whole |
/// | a string that does not end, has a wrong escape, or has parameters | whole |
///
/// The layer rejects none of these: a service that needs the header must check it.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::cost::IdempotencyKey;
///
/// let key = IdempotencyKey::header().repeats(2).remember(Duration::from_secs(600));
/// ```
#[derive(Clone, Debug)]
#[must_use = "pass it to `RateLimitLayer::once`"]
pub struct IdempotencyKey {
    header: HeaderName,
    repeats: u16,
    remember: Duration,
}

impl IdempotencyKey {
    /// The maximum length of an id.
    const MAX_LEN: usize = 255;

    /// Reads the header `Idempotency-Key`.
    pub fn header() -> Self {
        Self::header_named(HeaderName::from_static("idempotency-key"))
    }

    /// Reads another header with the same syntax, such as `x-request-id`.
    pub const fn header_named(header: HeaderName) -> Self {
        Self { header, repeats: 1, remember: Duration::from_secs(60) }
    }

    /// Sets how many repeats of a request pass without a charge. The default is 1. With 0 each request is charged.
    pub const fn repeats(mut self, repeats: u16) -> Self {
        self.repeats = repeats;
        self
    }

    /// Sets for how long an id is remembered after its request was charged. The default is 1 minute.
    ///
    /// From 1 ms to 24 hours: a shorter or longer time counts as these.
    pub fn remember(mut self, remember: Duration) -> Self {
        self.remember = remember.clamp(CallId::MIN, CallId::MAX);
        self
    }

    fn of_request<B>(&self, request: &Request<B>) -> Option<CallId> {
        let id = self.value(request.headers()).filter(|_| self.repeats > 0)?;
        let parts = [request.method().as_str().as_bytes(), path_of(request).as_bytes(), &id];
        Some(CallId::request(ReservationId::of_parts(parts), self.repeats, self.remember))
    }

    /// Returns the only value of the header, if it is an id.
    fn value<'a>(&self, headers: &'a HeaderMap) -> Option<Cow<'a, [u8]>> {
        let mut values = headers.get_all(&self.header).iter();
        let value = values.next().filter(|_| values.next().is_none())?.as_bytes().trim_ascii();
        let id = match value.strip_prefix(b"\"") {
            None if value.iter().all(|byte| byte.is_ascii_graphic() && !b"\",;\\".contains(byte)) => {
                Cow::Borrowed(value)
            }
            None => return None,
            Some(string) => unquote(string)?,
        };
        (1..=Self::MAX_LEN).contains(&id.len()).then_some(id)
    }
}

/// Returns the content of a string (RFC 9651, section 4.2.5) behind its first quotation mark. Nothing may follow it.
fn unquote(string: &[u8]) -> Option<Cow<'_, [u8]>> {
    let content = string.strip_suffix(b"\"")?;
    let is_visible = |byte: u8| matches!(byte, b' '..=b'~');
    if content.iter().all(|byte| is_visible(*byte) && !b"\"\\".contains(byte)) {
        return Some(Cow::Borrowed(content));
    }
    let (mut id, mut bytes) = (Vec::with_capacity(content.len()), content.iter().copied());
    while let Some(byte) = bytes.next() {
        id.push(match byte {
            b'\\' => bytes.next().filter(|escaped| matches!(escaped, b'"' | b'\\'))?,
            b'"' => return None,
            byte if is_visible(byte) => byte,
            _ => return None,
        });
    }
    Some(Cow::Owned(id))
}

/// A cost policy whose requests are charged once for an id.
#[derive(Clone)]
#[doc(hidden)]
pub struct Once<T> {
    pub(crate) key: IdempotencyKey,
    pub(crate) inner_policy: T,
}

impl<B, Response, Error, T> CostPolicy<Request<B>, Response, Error> for Once<T>
where
    T: CostPolicy<Request<B>, Response, Error>,
{
    const NEEDS_HOLD: bool = T::NEEDS_HOLD;

    type Cost = T::Cost;

    #[inline]
    fn cost(&self, request: &Request<B>) -> T::Cost {
        self.inner_policy.cost(request)
    }

    #[inline]
    fn once(&self, request: &Request<B>) -> Option<CallId> {
        self.key.of_request(request)
    }

    fn settle(&self, held: Costs, result: Result<&Response, &Error>) -> Costs {
        self.inner_policy.settle(held, result)
    }
}

impl_debug!([T] Once<T> { key });

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn id(values: &[&[u8]]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("idempotency-key", HeaderValue::from_bytes(value).expect("a header value"));
        }
        let id = IdempotencyKey::header().value(&headers)?;
        Some(String::from_utf8(id.into_owned()).expect("ASCII"))
    }

    #[test]
    fn idempotency_key_is_a_string_or_a_bare_text() {
        for (value, expected) in [
            (&b"8e03978e-40d5"[..], "8e03978e-40d5"),
            (b"\"8e03978e-40d5\"", "8e03978e-40d5"),
            (b"  a/b:c=d  ", "a/b:c=d"),
            (b"\"two words, and ;\"", "two words, and ;"),
            (b"\"a\\\"b\\\\c\"", "a\"b\\c"),
        ] {
            assert_eq!(id(&[value]).as_deref(), Some(expected), "{}", value.escape_ascii());
        }
        assert_eq!(id(&[&[b'x'; 255]]).map(|id| id.len()), Some(255));
    }

    #[test]
    fn idempotency_key_that_is_malformed_or_sent_twice_is_none() {
        let long = [b'x'; 256];
        let malformed: [&[&[u8]]; 14] = [
            &[],
            &[b""],
            &[b"\"\""],
            &[b"\"open"],
            &[b"\""],
            &[b"\"a\";b=1"],
            &[b"\"a\\n\""],
            &[b"\"a\\\""],
            &[b"a b"],
            &[b"a, b"],
            &[b"a;b=1"],
            &[b"\xc3\xa4"],
            &[b"a", b"a"],
            &[&long],
        ];
        for values in malformed {
            assert_eq!(id(values), None, "{values:?}");
        }
    }
}
