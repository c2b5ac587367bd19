use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, Request, header};
use percent_encoding::percent_decode;

use super::fingerprint::Fingerprint;
use super::pepper::{Fingerprinter, Pepper, ProcessPepper};
use crate::error::Error;
use crate::key::{ExtractKey, Extracted, MissingKey};

/// A cookie, of which only the [fingerprint](Fingerprint) is kept, as it may open a session.
///
/// Names and values are read as the crate `cookie` reads them, and with it axum-extra's `CookieJar` and
/// `tower-cookies`: without the white space around them, then percent-decoded. The case of names counts. Two quotes
/// around a decoded value do not count. So all spellings of a session have one key.
///
/// The key is absent if the request has no cookie of this name. The key is unusable, and the request refused, if the
/// cookie is empty, if its decoded value is not UTF-8, or if the cookie comes more than once: applications differ in
/// which one they use.
///
/// ```
/// use tower_ratelimit::key::{Cookie, ExtractKey, Extracted};
///
/// let key = Cookie::new("session")?;
/// let request = http::Request::get("/").header("cookie", "theme=dark; session=31d4d96e").body(()).unwrap();
/// assert_eq!(key.extract(&request), Extracted::Key(key.key_of("31d4d96e")));
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
///
/// # Made-up cookies
///
/// It is not checked that the cookie is good: who makes up cookies makes up keys, each with a limit of its own; and who
/// drops it gets a new one from many servers. Where a session layer knows whose session it is, count by what it
/// [puts into the extensions](crate::key::Extension).
#[derive(Clone, Debug)]
pub struct Cookie<P = ProcessPepper> {
    name: Arc<str>,
    kind: Arc<str>,
    pepper: P,
}

impl Cookie {
    /// Reads the cookie with this name, and makes fingerprints that only this process understands.
    ///
    /// # Errors
    ///
    /// If no cookie can have the name: it is empty, or has other characters than RFC 6265 allows.
    pub fn new(name: impl Into<Arc<str>>) -> Result<Self, Error> {
        let name: Arc<str> = name.into();
        if !is_token(name.as_bytes()) {
            return Err(Error::config(format!(
                "{name:?} is no name of a cookie: it has letters, digits and some of !#$%&'*+-.^_`|~"
            )));
        }
        let kind = format!("cookie {name}").into();
        Ok(Self { name, kind, pepper: ProcessPepper })
    }
}

impl<P: Fingerprinter> Cookie<P> {
    /// Makes fingerprints that all who have the pepper understand.
    #[must_use]
    pub fn pepper(self, pepper: Pepper) -> Cookie<Pepper> {
        Cookie { name: self.name, kind: self.kind, pepper }
    }

    /// The key of a decoded value without quotes around it: to ask a limiter about it, or to block it.
    #[must_use]
    pub fn key_of(&self, value: impl AsRef<[u8]>) -> Fingerprint<P> {
        self.pepper.fingerprint(&self.kind, value.as_ref())
    }

    fn value_key(&self, raw: &[u8]) -> Result<Fingerprint<P>, MissingKey> {
        let decoded: Cow<'_, [u8]> = percent_decode(raw).into();
        let unusable = |how| Err(MissingKey::unusable_cookie(&self.name, how));
        match unquoted(&decoded) {
            [] => unusable("is empty"),
            value if str::from_utf8(value).is_err() => unusable("is malformed"),
            value => Ok(self.key_of(value)),
        }
    }
}

impl<B, P: Fingerprinter> ExtractKey<Request<B>> for Cookie<P> {
    type Key = Fingerprint<P>;

    fn extract(&self, request: &Request<B>) -> Extracted<Fingerprint<P>> {
        let mut values = values(request.headers(), self.name.as_bytes());
        let found = match (values.next(), values.next()) {
            (Some(value), None) => self.value_key(value),
            (Some(_), Some(_)) => Err(MissingKey::unusable_cookie(&self.name, "comes more than once")),
            (None, _) => Err(MissingKey::absent_cookie(&self.name)),
        };
        found.map_or_else(Extracted::Missing, Extracted::Key)
    }
}

/// The values of all cookies of this name, still encoded. HTTP/2 may split the field into several lines (RFC 9113,
/// section 8.2.3).
fn values<'a>(headers: &'a HeaderMap, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let pairs =
        headers.get_all(header::COOKIE).into_iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let (found, value) = pair.split_at(pair.iter().position(|byte| *byte == b'=')?);
        let found = trimmed(found);
        // Not all applications decode names: one with a percent sign in it counts in both spellings.
        let is_named = found == name || percent_decode(found).eq(name.iter().copied());
        is_named.then_some(trimmed(&value[1..]))
    })
}

/// Without the white space around it, of which Unicode has more than ASCII.
fn trimmed(text: &[u8]) -> &[u8] {
    str::from_utf8(text).map_or(text.trim_ascii(), |text| text.trim().as_bytes())
}

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value)
}

/// `token` of RFC 9110.
pub(super) fn is_token(text: &[u8]) -> bool {
    let is_char = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(is_char)
}
