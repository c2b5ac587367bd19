use std::sync::Arc;

use http::{HeaderMap, Request, header};

use super::fingerprint::Fingerprint;
use super::pepper::{MakeFingerprint, OwnPepper, Pepper};
use crate::error::Error;
use crate::key::{ExtractKey, Extracted, Missing};

/// A cookie, of which only the [fingerprint](Fingerprint) is kept, as it may open a session.
///
/// The key is missing if the cookie is, if it is empty, or if it comes more than once. Its name counts to the letter.
/// The value counts as it is written, but for white space and quotes around it.
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
pub struct Cookie<P = OwnPepper> {
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
        Ok(Self { name, kind, pepper: OwnPepper })
    }
}

impl<P: MakeFingerprint> Cookie<P> {
    /// Makes fingerprints that all who have the pepper understand.
    #[must_use]
    pub fn pepper(self, pepper: Pepper) -> Cookie<Pepper> {
        Cookie { name: self.name, kind: self.kind, pepper }
    }

    /// What stands for the cookie's value: to ask a limiter about it, or to block it.
    #[must_use]
    pub fn key_of(&self, value: impl AsRef<[u8]>) -> Fingerprint<P> {
        self.pepper.fingerprint(&self.kind, value.as_ref())
    }

    fn missing(&self, how: &'static str) -> Extracted<Fingerprint<P>> {
        Extracted::Missing(Missing::cookie(&self.name, how))
    }
}

impl<B, P: MakeFingerprint> ExtractKey<Request<B>> for Cookie<P> {
    type Key = Fingerprint<P>;

    fn extract(&self, request: &Request<B>) -> Extracted<Fingerprint<P>> {
        let mut values = values(request.headers(), self.name.as_bytes());
        match (values.next(), values.next()) {
            (Some(value), None) if !value.is_empty() => Extracted::Key(self.key_of(value)),
            (Some(_), None) => self.missing("is empty"),
            (Some(_), Some(_)) => self.missing("comes more than once"),
            (None, _) => self.missing("is missing"),
        }
    }
}

/// HTTP/2 may split the field into several lines (RFC 9113, section 8.2.3).
fn values<'a>(headers: &'a HeaderMap, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let pairs =
        headers.get_all(header::COOKIE).into_iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| {
        let (found, value) = pair.split_at(pair.iter().position(|byte| *byte == b'=')?);
        let value = value[1..].trim_ascii();
        let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
        (found.trim_ascii() == name).then_some(unquoted.unwrap_or(value))
    })
}

fn is_token(name: &[u8]) -> bool {
    let is_char = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !name.is_empty() && name.iter().all(is_char)
}
