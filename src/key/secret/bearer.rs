use http::{Request, header};

use super::cookie::is_token;
use super::fingerprint::Fingerprint;
use super::pepper::{Fingerprinter, Pepper, ProcessPepper};
use crate::key::{ExtractKey, Extracted, MissingKey};

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
}

impl Bearer {
    /// Creates an extractor with fingerprints that are specific to this process.
    #[must_use]
    pub const fn new() -> Self {
        Self { pepper: ProcessPepper }
    }
}

impl<P: Fingerprinter> Bearer<P> {
    /// Creates fingerprints that are equal in all processes with the same pepper.
    #[must_use]
    pub fn pepper(self, pepper: Pepper) -> Bearer<Pepper> {
        Bearer { pepper }
    }

    /// Returns the key of a token, for example to block it in a limiter.
    #[must_use]
    pub fn key_of(&self, token: impl AsRef<[u8]>) -> Fingerprint<P> {
        self.pepper.fingerprint("authorization bearer", token.as_ref())
    }
}

impl<B, P: Fingerprinter> ExtractKey<Request<B>> for Bearer<P> {
    type Key = Fingerprint<P>;

    fn extract(&self, request: &Request<B>) -> Extracted<Fingerprint<P>> {
        let mut lines = request.headers().get_all(header::AUTHORIZATION).iter();
        match (lines.next(), lines.next()) {
            (Some(line), None) => match token(line.as_bytes().trim_ascii()) {
                Ok(token) => Extracted::Key(self.key_of(token)),
                Err(missing) => Extracted::Missing(missing),
            },
            (Some(_), Some(_)) => Extracted::Missing(unusable("is repeated")),
            (None, _) => Extracted::Missing(absent("is missing: expected a bearer token")),
        }
    }
}

/// Returns the token in a trimmed header value.
///
/// The scheme is case-insensitive (RFC 9110, section 11.1). A value other than a scheme, a space and credentials is
/// malformed, and therefore unusable: an application may still find a token in it.
fn token(value: &[u8]) -> Result<&[u8], MissingKey> {
    let Some(space) = value.iter().position(|byte| *byte == b' ') else {
        return Err(unusable(if value.is_empty() { "is empty" } else { MALFORMED }));
    };
    let (scheme, token) = (&value[..space], value[space..].trim_ascii());
    if scheme.eq_ignore_ascii_case(b"Bearer") {
        if token.iter().any(u8::is_ascii_whitespace) { Err(unusable(MALFORMED)) } else { Ok(token) }
    } else if is_token(scheme) {
        Err(absent("contains no bearer token"))
    } else {
        Err(unusable(MALFORMED))
    }
}

const MALFORMED: &str = "is malformed: expected \"Bearer\", a space and the token";

fn absent(problem: &'static str) -> MissingKey {
    MissingKey::absent_header(&header::AUTHORIZATION, problem)
}

fn unusable(problem: &'static str) -> MissingKey {
    MissingKey::unusable_header(&header::AUTHORIZATION, problem)
}
