use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, Request, header};
use percent_encoding::percent_decode;

use super::fingerprint::Fingerprint;
use super::pepper::{Fingerprinter, Pepper, ProcessPepper};
use crate::error::Error;
use crate::key::canonical::{Canonical, canonical_setter};
use crate::key::{ExtractKey, Extracted, MissingKey};

/// A cookie, stored as a [fingerprint](Fingerprint).
///
/// The extractor parses names and values as the crate `cookie` does (also used by axum-extra's `CookieJar` and
/// `tower-cookies`): trimmed, then percent-decoded. Names are case-sensitive. Quotes around a decoded value are
/// ignored. Therefore all encodings of a session have one key. If your application accepts several spellings of the
/// decoded value, convert them with [`canonical`](Self::canonical).
///
/// The key is absent if the request has no cookie of this name. The key is unusable if the cookie is empty, if the
/// decoded value is not UTF-8, or if the cookie is repeated, because applications differ in the cookie that they use.
///
/// ```
/// use tower_ratelimit::ExtractKey;
/// use tower_ratelimit::key::{Cookie, Extracted};
///
/// let key = Cookie::new("session");
/// let request = http::Request::get("/").header("cookie", "theme=dark; session=31d4d96e").body(()).unwrap();
/// assert_eq!(key.extract(&request), Extracted::Key(key.key_of("31d4d96e")));
/// ```
///
/// # Invented cookies
///
/// The extractor does not check the cookie. A client that invents cookies gets a separate limit for each, and many
/// servers give a new session to a client without a cookie. If a session layer knows the user, use the
/// [extension](crate::key::FromExtension) that it inserts as the key.
#[derive(Clone, Debug)]
pub struct Cookie<P = ProcessPepper> {
    name: Arc<str>,
    kind: Arc<str>,
    pepper: P,
    canonical: Canonical,
}

impl Cookie {
    /// Creates an extractor that reads the cookie `name`, with fingerprints that are specific to this process.
    ///
    /// # Panics
    ///
    /// If the name is empty, or contains a character that RFC 6265 does not allow. [`try_new`](Self::try_new) never panics.
    #[must_use]
    #[track_caller]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self::try_new(name).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Creates the same extractor as [`new`](Self::new), and never panics.
    ///
    /// # Errors
    ///
    /// If the name is empty, or contains a character that RFC 6265 does not allow.
    pub fn try_new(name: impl Into<Arc<str>>) -> Result<Self, Error> {
        let name: Arc<str> = name.into();
        if !is_token(name.as_bytes()) {
            return Err(Error::config(format!(
                "invalid cookie name {name:?}; use letters, digits and !#$%&'*+-.^_`|~"
            )));
        }
        let kind = format!("cookie {name}").into();
        Ok(Self { name, kind, pepper: ProcessPepper, canonical: Canonical::VERBATIM })
    }
}

impl<P: Fingerprinter> Cookie<P> {
    canonical_setter! {
        /// ```
        /// use tower_ratelimit::key::Cookie;
        ///
        /// // If your application reads the session as a number.
        /// let key = Cookie::new("session").canonical(|text| text.parse::<u64>().ok().map(u64::to_be_bytes));
        /// ```
    }

    /// Creates fingerprints that are equal in all processes with the same pepper.
    #[must_use]
    pub fn pepper(self, pepper: Pepper) -> Cookie<Pepper> {
        Cookie { name: self.name, kind: self.kind, pepper, canonical: self.canonical }
    }

    /// Returns the key of a decoded value without quotes, with [`canonical`](Self::canonical) of its canonical form: for
    /// example to block it in a limiter.
    #[must_use]
    pub fn key_of(&self, value: impl AsRef<[u8]>) -> Fingerprint<P> {
        self.pepper.fingerprint(&self.kind, value.as_ref())
    }

    fn value_key(&self, raw: &[u8]) -> Result<Fingerprint<P>, MissingKey> {
        let decoded: Cow<'_, [u8]> = percent_decode(raw).into();
        let unusable = |problem| Err(MissingKey::unusable_cookie(&self.name, problem));
        match trim_quotes(&decoded) {
            [] => unusable("is empty"),
            value if str::from_utf8(value).is_err() => unusable("is malformed"),
            value => match self.canonical.of(value) {
                Some(value) => Ok(self.key_of(value)),
                None => unusable("is malformed"),
            },
        }
    }
}

impl<B, P: Fingerprinter> ExtractKey<Request<B>> for Cookie<P> {
    type Key = Fingerprint<P>;

    fn extract(&self, request: &Request<B>) -> Extracted<Fingerprint<P>> {
        let mut values = values(request.headers(), self.name.as_bytes());
        let found = match (values.next(), values.next()) {
            (Some(value), None) => self.value_key(value),
            (Some(_), Some(_)) => Err(MissingKey::unusable_cookie(&self.name, "is repeated")),
            (None, _) => Err(MissingKey::absent_cookie(&self.name)),
        };
        found.map_or_else(Extracted::Missing, Extracted::Key)
    }
}

/// Returns the encoded values of all cookies of this name.
///
/// HTTP/2 may split the header into several lines (RFC 9113, section 8.2.3).
fn values<'a>(headers: &'a HeaderMap, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let pairs =
        headers.get_all(header::COOKIE).into_iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let (found, value) = pair.split_at(pair.iter().position(|byte| *byte == b'=')?);
        let found = trimmed(found);
        // Not all applications decode names, so an encoded name matches in both spellings.
        let is_named = found == name || percent_decode(found).eq(name.iter().copied());
        is_named.then_some(trimmed(&value[1..]))
    })
}

/// Trims Unicode white space, or ASCII white space if the text is not UTF-8.
fn trimmed(text: &[u8]) -> &[u8] {
    str::from_utf8(text).map_or(text.trim_ascii(), |text| text.trim().as_bytes())
}

fn trim_quotes(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value)
}

/// `token` of RFC 9110.
pub(super) fn is_token(text: &[u8]) -> bool {
    let is_char = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_char)
}
