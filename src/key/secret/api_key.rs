use http::{HeaderName, Request};

use super::fingerprint::Fingerprint;
use super::pepper::{Fingerprinter, Pepper, ProcessPepper};
use crate::key::canonical::{Canonical, canonical_setter};
use crate::key::request::{canonical_value, lower_case_name};
use crate::key::{ExtractKey, Extracted};

/// An API key in a header, stored as a [fingerprint](Fingerprint).
///
/// The key is absent if the header is missing. The key is unusable if the header is empty or repeated. White space
/// around the value is ignored.
///
/// ```
/// use tower_ratelimit::PeerIp;
/// use tower_ratelimit::key::ApiKey;
///
/// // The API key, otherwise the client's address.
/// let key = ApiKey::from_static("x-api-key").or(PeerIp::new());
/// ```
///
/// # Spellings
///
/// The extractor compares bytes. If your application accepts several spellings of one API key (a UUID in upper and lower case), each spelling
/// has a separate limit. Then count by the value that your application has parsed: an [extension](crate::key::FromExtension)
/// or a [lookup](crate::key::LookupLayer). Or convert the spellings with [`canonical`](Self::canonical).
///
/// # Invented keys
///
/// The extractor does not check the API key. A client that invents API keys gets a separate limit for each. Place the
/// rate limiter behind the authentication, or limit the address as well: see [`Bearer`](super::Bearer).
#[derive(Clone, Debug)]
pub struct ApiKey<P = ProcessPepper> {
    name: HeaderName,
    pepper: P,
    canonical: Canonical,
}

impl ApiKey {
    /// Creates an extractor that reads the header `name`, with fingerprints that are specific to this process.
    #[must_use]
    pub const fn new(name: HeaderName) -> Self {
        Self { name, pepper: ProcessPepper, canonical: Canonical::VERBATIM }
    }

    /// Creates the same extractor as [`new`](Self::new).
    ///
    /// # Panics
    ///
    /// If `name` is not a header name in lower case. In a `const`, the panic is a compile error.
    #[must_use]
    pub const fn from_static(name: &'static str) -> Self {
        Self::new(lower_case_name(name))
    }
}

impl<P: Fingerprinter> ApiKey<P> {
    canonical_setter! {
        /// ```
        /// use tower_ratelimit::key::ApiKey;
        ///
        /// // In production, the parser of your application: `Uuid::try_parse(text).ok().map(Uuid::into_bytes)`.
        /// let parse = |text: &str| u128::from_str_radix(&text.replace('-', ""), 16).ok();
        /// let key = ApiKey::from_static("x-api-key").canonical(move |text| parse(text).map(u128::to_be_bytes));
        /// ```
    }

    /// Creates fingerprints that are equal in all processes with the same pepper.
    #[must_use]
    pub fn pepper(self, pepper: Pepper) -> ApiKey<Pepper> {
        ApiKey { name: self.name, pepper, canonical: self.canonical }
    }

    /// Returns the key of an API key, with [`canonical`](Self::canonical) of its canonical form: for example to block it
    /// in a limiter.
    #[must_use]
    pub fn key_of(&self, api_key: impl AsRef<[u8]>) -> Fingerprint<P> {
        self.pepper.fingerprint(self.name.as_str(), api_key.as_ref())
    }
}

impl<B, P: Fingerprinter> ExtractKey<Request<B>> for ApiKey<P> {
    type Key = Fingerprint<P>;

    fn extract(&self, request: &Request<B>) -> Extracted<Fingerprint<P>> {
        let found = canonical_value(request.headers(), &self.name, &self.canonical).map(|value| self.key_of(value));
        found.map_or_else(Extracted::Missing, Extracted::Key)
    }
}
