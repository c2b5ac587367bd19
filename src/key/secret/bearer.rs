use http::{Request, header};

use super::cookie::is_token;
use super::fingerprint::Fingerprint;
use super::pepper::{Fingerprinter, Pepper, ProcessPepper};
use crate::key::{ExtractKey, Extracted, MissingKey};

/// The token in `Authorization: Bearer ...`, of which only the [fingerprint](Fingerprint) is kept.
///
/// The key is absent if there is no field `Authorization`, or if the field holds credentials of another scheme
/// (`Basic`). The key is unusable, and the request refused, if the field is empty, is malformed (`Bearer` without a token,
/// a token with white space in it, a token without a scheme), or comes more than once.
///
/// A token that is renewed is a new key. If tokens live for a short time only, count by their user, which
/// [`LookupLayer`](crate::key::LookupLayer) finds.
///
/// By default only this process understands the fingerprints. For limits that several processes share, give all of them
/// one [`Pepper`], or each has limits of its own.
///
/// # Made-up tokens
///
/// It is not checked that the token is good: who makes up tokens makes up keys, each with a limit of its own. Count
/// behind what checks them, or by the address as well:
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
    /// Reads the token, and makes fingerprints that only this process understands.
    #[must_use]
    pub const fn new() -> Self {
        Self { pepper: ProcessPepper }
    }
}

impl<P: Fingerprinter> Bearer<P> {
    /// Makes fingerprints that all who have the pepper understand.
    #[must_use]
    pub fn pepper(self, pepper: Pepper) -> Bearer<Pepper> {
        Bearer { pepper }
    }

    /// What stands for a token: to ask a limiter about it, or to block it.
    #[must_use]
    pub fn key_of(&self, token: impl AsRef<[u8]>) -> Fingerprint<P> {
        self.pepper.fingerprint("authorization bearer", token.as_ref())
    }
}

impl<B, P: Fingerprinter> ExtractKey<Request<B>> for Bearer<P> {
    type Key = Fingerprint<P>;

    fn extract(&self, request: &Request<B>) -> Extracted<Fingerprint<P>> {
        let mut fields = request.headers().get_all(header::AUTHORIZATION).iter();
        match (fields.next(), fields.next()) {
            (Some(field), None) => match token(field.as_bytes().trim_ascii()) {
                Ok(token) => Extracted::Key(self.key_of(token)),
                Err(missing) => Extracted::Missing(missing),
            },
            (Some(_), Some(_)) => Extracted::Missing(unusable("comes more than once")),
            (None, _) => Extracted::Missing(absent("is missing: it should hold a bearer token")),
        }
    }
}

/// The token of a field's value that has no white space around it.
///
/// The scheme's case does not matter (RFC 9110, section 11.1). A field that is not a scheme, a space and credentials is
/// malformed: an application may still find a token in it.
fn token(field: &[u8]) -> Result<&[u8], MissingKey> {
    let Some(space) = field.iter().position(|byte| *byte == b' ') else {
        return Err(unusable(if field.is_empty() { "is empty" } else { MALFORMED }));
    };
    let (scheme, token) = (&field[..space], field[space..].trim_ascii());
    if scheme.eq_ignore_ascii_case(b"Bearer") {
        if token.iter().any(u8::is_ascii_whitespace) { Err(unusable(MALFORMED)) } else { Ok(token) }
    } else if is_token(scheme) {
        Err(absent("holds no bearer token"))
    } else {
        Err(unusable(MALFORMED))
    }
}

const MALFORMED: &str = "is malformed: it should be \"Bearer\", a space, and the token";

fn absent(how: &'static str) -> MissingKey {
    MissingKey::absent_field(&header::AUTHORIZATION, how)
}

fn unusable(how: &'static str) -> MissingKey {
    MissingKey::unusable_field(&header::AUTHORIZATION, how)
}
