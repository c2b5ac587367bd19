use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, Request};

use super::authorization::{BASIC, BEARER, user_name};
use super::cookie;
use super::fingerprint::Fingerprint;
use super::pepper::{Fingerprinter, Pepper, ProcessPepper};
use crate::error::Error;
use crate::key::canonical::Canonical;
use crate::key::request::{lower_case_name, only_value};
use crate::key::{ExtractKey, Extracted, MissingKey};

/// A token, an API key, a cookie or a user name, stored as a [fingerprint](Fingerprint).
///
/// ```
/// use tower_ratelimit::PeerIp;
/// use tower_ratelimit::key::Credential;
///
/// // The API key, otherwise the client's address.
/// let key = Credential::api_key("x-api-key").or(PeerIp::new());
/// ```
///
/// When a credential is absent or unusable, says a [table](crate::key#absent-and-unusable-keys). By default the
/// fingerprints are specific to this process. For limits that several processes share, give all processes the same
/// [`Pepper`].
///
/// # Spellings
///
/// The extractor compares bytes, after decoding a cookie or a user name. If your application accepts several spellings of
/// one credential (a UUID in upper and lower case, base64 with and without padding), each spelling has a separate limit.
/// Then count by the value that your application has parsed: an [extension](crate::key::FromExtension) or a
/// [lookup](crate::key::LookupLayer). Or convert the spellings with [`canonical`](Self::canonical).
///
/// # Invented credentials
///
/// The extractor does not check the credential. A client that invents credentials gets a separate limit for each, and a
/// client that sends another user's name uses up the limit of this user. Place the rate limiter behind the
/// authentication, or limit the address as well:
///
/// ```
/// use std::net::IpAddr;
///
/// use tower_ratelimit::key::{Credential, Fingerprint};
/// use tower_ratelimit::{Gcra, Limit, Memory, PeerIp, Quota, RateLimitLayer};
///
/// type Caller = (Fingerprint, IpAddr);
/// let limiter = Memory::new((
///     Limit::new("token", Gcra::new(Quota::per_second(10))).keyed_by(|(token, _): &Caller| *token),
///     Limit::new("address", Gcra::new(Quota::per_second(100))).keyed_by(|(_, address): &Caller| *address),
/// ));
/// let layer = RateLimitLayer::new((Credential::bearer(), PeerIp::new()), limiter);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Credential<P = ProcessPepper> {
    source: Source,
    pepper: P,
    canonical: Canonical,
}

/// Where a credential is read.
#[derive(Clone, Debug)]
enum Source {
    Header(HeaderName),
    Bearer,
    BasicUser,
    /// `kind` is the kind of the fingerprint.
    Cookie {
        name: Arc<str>,
        kind: Arc<str>,
    },
}

impl Credential {
    const fn new(source: Source) -> Self {
        Self { source, pepper: ProcessPepper, canonical: Canonical::VERBATIM }
    }

    /// Creates an extractor of the token in `Authorization: Bearer ...`.
    ///
    /// A renewed token is a new key. For short-lived tokens, use the user as the key: see
    /// [`LookupLayer`](crate::key::LookupLayer).
    pub const fn bearer() -> Self {
        Self::new(Source::Bearer)
    }

    /// Creates an extractor of the API key in the header `name`. White space around the API key is ignored.
    ///
    /// # Panics
    ///
    /// If `name` is not a header name in lower case. In a `const`, the panic is a compile error.
    pub const fn api_key(name: &'static str) -> Self {
        Self::header(lower_case_name(name))
    }

    /// Creates the same extractor as [`api_key`](Self::api_key), for a header whose name is known at run time.
    pub const fn header(name: HeaderName) -> Self {
        Self::new(Source::Header(name))
    }

    /// Creates an extractor of the user name in `Authorization: Basic ...`.
    ///
    /// The key is the same for every password, so the extractor also limits attempts to guess one. It is a fingerprint
    /// because a user name is personal data, and in some interfaces the credential itself. The credentials are decoded
    /// (RFC 7617), in both alphabets of base64 and with or without padding: all spellings of one user name have one key.
    ///
    /// ```
    /// use http::Request;
    /// use tower_ratelimit::ExtractKey;
    /// use tower_ratelimit::key::{Credential, Extracted};
    ///
    /// let key = Credential::basic_user();
    /// // alice:wonderland
    /// let request = Request::get("/").header("authorization", "Basic YWxpY2U6d29uZGVybGFuZA==").body(()).unwrap();
    /// assert_eq!(key.extract(&request), Extracted::Key(key.key_of("alice")));
    /// ```
    pub const fn basic_user() -> Self {
        Self::new(Source::BasicUser)
    }

    /// Creates an extractor of the cookie `name`.
    ///
    /// The extractor parses names and values as the crate `cookie` does (also used by axum-extra's `CookieJar` and
    /// `tower-cookies`): trimmed, then percent-decoded. Names are case-sensitive. Quotes around a decoded value are
    /// ignored. Therefore all encodings of a session have one key. A repeated cookie is unusable, because applications
    /// differ in the cookie that they use.
    ///
    /// Many servers give a new session to a client without a cookie. If a session layer knows the user, use the
    /// [extension](crate::key::FromExtension) that it inserts as the key.
    ///
    /// # Panics
    ///
    /// If the name is empty, or contains a character that RFC 6265 does not allow. [`try_cookie`](Self::try_cookie) never
    /// panics.
    #[track_caller]
    pub fn cookie(name: impl Into<Arc<str>>) -> Self {
        Self::try_cookie(name).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Creates the same extractor as [`cookie`](Self::cookie), and never panics.
    ///
    /// # Errors
    ///
    /// If the name is empty, or contains a character that RFC 6265 does not allow.
    pub fn try_cookie(name: impl Into<Arc<str>>) -> Result<Self, Error> {
        let name: Arc<str> = name.into();
        if !cookie::is_token(name.as_bytes()) {
            return Err(Error::config(format!(
                "invalid cookie name {name:?}; use letters, digits and !#$%&'*+-.^_`|~"
            )));
        }
        let kind = format!("cookie {name}").into();
        Ok(Self::new(Source::Cookie { name, kind }))
    }
}

impl<P: Fingerprinter> Credential<P> {
    /// Counts by the canonical form of the value, so that all spellings of one value have one key.
    ///
    /// `f` receives the value, and returns its canonical form: a `String`, a `Vec<u8>`, or an array of bytes. If `f`
    /// returns `None` or nothing, or if the value is not UTF-8, the key is unusable (status 400). `f` must accept every
    /// spelling that your application accepts.
    ///
    /// ```
    /// use tower_ratelimit::key::Credential;
    ///
    /// // In production, the parser of your application: `Uuid::try_parse(text).ok().map(Uuid::into_bytes)`.
    /// let parse = |text: &str| u128::from_str_radix(&text.replace('-', ""), 16).ok();
    /// let key = Credential::api_key("x-api-key").canonical(move |text| parse(text).map(u128::to_be_bytes));
    /// ```
    pub fn canonical<T: Into<Vec<u8>>>(mut self, f: impl Fn(&str) -> Option<T> + Send + Sync + 'static) -> Self {
        self.canonical = Canonical::new(f);
        self
    }

    /// Creates fingerprints that are equal in all processes with the same pepper.
    pub fn pepper(self, pepper: Pepper) -> Credential<Pepper> {
        Credential { source: self.source, pepper, canonical: self.canonical }
    }

    /// Returns the key of a credential, with [`canonical`](Self::canonical) of its canonical form: for example to block
    /// it in a limiter. A cookie is the decoded value without quotes.
    pub fn key_of(&self, credential: impl AsRef<[u8]>) -> Fingerprint<P> {
        self.pepper.fingerprint(self.source.kind(), credential.as_ref())
    }
}

impl Source {
    /// Returns the kind of the fingerprints.
    fn kind(&self) -> &str {
        match self {
            Self::Header(name) => name.as_str(),
            Self::Bearer => "authorization bearer",
            Self::BasicUser => "authorization basic",
            Self::Cookie { kind, .. } => kind,
        }
    }

    fn value<'a>(&self, headers: &'a HeaderMap) -> Result<Cow<'a, [u8]>, MissingKey> {
        match self {
            Self::Header(name) => only_value(headers, name).map(Cow::Borrowed),
            Self::Bearer => BEARER.credentials(headers).map(Cow::Borrowed),
            Self::BasicUser => user_name(BASIC.credentials(headers)?).map(Cow::Owned).ok_or_else(|| self.malformed()),
            Self::Cookie { name, .. } => cookie::value(headers, name),
        }
    }

    fn malformed(&self) -> MissingKey {
        match self {
            Self::Header(name) => MissingKey::unusable_header(name, "is malformed"),
            Self::Bearer => BEARER.malformed(),
            Self::BasicUser => BASIC.malformed(),
            Self::Cookie { name, .. } => MissingKey::unusable_cookie(name, "is malformed"),
        }
    }
}

impl<B, P: Fingerprinter> ExtractKey<Request<B>> for Credential<P> {
    type Key = Fingerprint<P>;

    fn extract(&self, request: &Request<B>) -> Extracted<Fingerprint<P>> {
        let found = self.source.value(request.headers()).and_then(|value| {
            let canonical = self.canonical.of(&value).ok_or_else(|| self.source.malformed())?;
            Ok(self.key_of(canonical))
        });
        found.map_or_else(Extracted::Missing, Extracted::Key)
    }
}
