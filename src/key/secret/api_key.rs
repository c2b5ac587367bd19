use http::{HeaderName, Request};

use super::fingerprint::Fingerprint;
use super::pepper::{Fingerprinter, Pepper, ProcessPepper};
use crate::key::request::only_value;
use crate::key::{ExtractKey, Extracted};

/// An API key in a header field of its own, of which only the [fingerprint](Fingerprint) is kept.
///
/// The key is absent if the field is. The key is unusable, and the request refused, if the field is empty or comes more
/// than once. White space around the value does not count.
///
/// ```
/// use tower_ratelimit::PeerIp;
/// use tower_ratelimit::key::ApiKey;
///
/// // The API key; the address of those who have none.
/// let key = ApiKey::from_static("x-api-key").or(PeerIp::new());
/// ```
///
/// # Made-up keys
///
/// It is not checked that the API key is good: who makes up API keys makes up keys, each with a limit of its own. Count
/// behind what checks them, or by the address as well: [`Bearer`](super::Bearer) shows how.
#[derive(Clone, Debug)]
pub struct ApiKey<P = ProcessPepper> {
    name: HeaderName,
    pepper: P,
}

impl ApiKey {
    /// Reads the field with this name, and makes fingerprints that only this process understands.
    #[must_use]
    pub const fn new(name: HeaderName) -> Self {
        Self { name, pepper: ProcessPepper }
    }

    /// Reads the field with this name.
    ///
    /// # Panics
    ///
    /// If the name is not a field name in lower case. In a `const` the compiler shows the panic.
    #[must_use]
    pub const fn from_static(name: &'static str) -> Self {
        Self::new(HeaderName::from_static(name))
    }
}

impl<P: Fingerprinter> ApiKey<P> {
    /// Makes fingerprints that all who have the pepper understand.
    #[must_use]
    pub fn pepper(self, pepper: Pepper) -> ApiKey<Pepper> {
        ApiKey { name: self.name, pepper }
    }

    /// What stands for an API key: to ask a limiter about it, or to block it.
    #[must_use]
    pub fn key_of(&self, api_key: impl AsRef<[u8]>) -> Fingerprint<P> {
        self.pepper.fingerprint(self.name.as_str(), api_key.as_ref())
    }
}

impl<B, P: Fingerprinter> ExtractKey<Request<B>> for ApiKey<P> {
    type Key = Fingerprint<P>;

    fn extract(&self, request: &Request<B>) -> Extracted<Fingerprint<P>> {
        match only_value(request.headers(), &self.name) {
            Ok(value) => Extracted::Key(self.key_of(value)),
            Err(missing) => Extracted::Missing(missing),
        }
    }
}
