use http::Request;

use super::authorization::Scheme;
use super::fingerprint::Fingerprint;
use super::pepper::{Fingerprinter, Pepper, ProcessPepper};
use crate::key::canonical::{Canonical, canonical_setter};
use crate::key::{ExtractKey, Extracted};

/// The token in `Authorization: Bearer ...`, stored as a [fingerprint](Fingerprint).
///
/// The key is absent if there is no `Authorization` header, or if the header contains credentials of another scheme
/// (`Basic`). The key is unusable if the header is empty, malformed (`Bearer` without a token, a token with white
/// space, a token without a scheme) or repeated.
///
/// A renewed token is a new key. For short-lived tokens, use the user as the key: see
/// [`LookupLayer`](crate::key::LookupLayer).
///
/// By default the fingerprints are specific to this process. For limits that several processes share, give all
/// processes the same [`Pepper`].
///
/// # Spellings
///
/// The extractor compares bytes. If your application accepts several spellings of one token (base64 with and without padding), each spelling
/// has a separate limit. Then count by the value that your application has parsed: an [extension](crate::key::FromExtension)
/// or a [lookup](crate::key::LookupLayer). Or convert the spellings with [`canonical`](Self::canonical).
///
/// # Invented tokens
///
/// The extractor does not check the token. A client that invents tokens gets a separate limit for each. Place the
/// rate limiter behind the authentication, or limit the address as well:
///
/// ```
/// use std::net::IpAddr;
///
/// use tower_ratelimit::key::{Bearer, Fingerprint};
/// use tower_ratelimit::{Gcra, Limit, Memory, PeerIp, Quota, RateLimitLayer};
///
/// type Caller = (Fingerprint, IpAddr);
/// let limiter = Memory::new((
///     Limit::new("token", Gcra::new(Quota::per_second(10))).keyed_by(|(token, _): &Caller| *token),
///     Limit::new("address", Gcra::new(Quota::per_second(100))).keyed_by(|(_, address): &Caller| *address),
/// ));
/// let layer = RateLimitLayer::new((Bearer::new(), PeerIp::new()), limiter);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Bearer<P = ProcessPepper> {
    pepper: P,
    canonical: Canonical,
}

impl Bearer {
    /// Creates an extractor with fingerprints that are specific to this process.
    #[must_use]
    pub const fn new() -> Self {
        Self { pepper: ProcessPepper, canonical: Canonical::VERBATIM }
    }
}

impl<P: Fingerprinter> Bearer<P> {
    canonical_setter! {
        /// ```
        /// use tower_ratelimit::key::Bearer;
        ///
        /// // If your application ignores the padding of a token in base64.
        /// let key = Bearer::new().canonical(|token| Some(token.trim_end_matches('=').to_owned()));
        /// ```
    }

    /// Creates fingerprints that are equal in all processes with the same pepper.
    #[must_use]
    pub fn pepper(self, pepper: Pepper) -> Bearer<Pepper> {
        Bearer { pepper, canonical: self.canonical }
    }

    /// Returns the key of a token, with [`canonical`](Self::canonical) of its canonical form: for example to block it in
    /// a limiter.
    #[must_use]
    pub fn key_of(&self, token: impl AsRef<[u8]>) -> Fingerprint<P> {
        self.pepper.fingerprint("authorization bearer", token.as_ref())
    }
}

impl<B, P: Fingerprinter> ExtractKey<Request<B>> for Bearer<P> {
    type Key = Fingerprint<P>;

    fn extract(&self, request: &Request<B>) -> Extracted<Fingerprint<P>> {
        let found = BEARER
            .credentials(request.headers())
            .and_then(|token| Ok(self.key_of(self.canonical.of(token).ok_or_else(|| BEARER.malformed())?)));
        found.map_or_else(Extracted::Missing, Extracted::Key)
    }
}

const BEARER: Scheme = Scheme {
    name: "Bearer",
    missing: "is missing: expected a bearer token",
    other: "contains no bearer token",
    malformed: "is malformed: expected \"Bearer\", a space and the token",
};
