use http::{HeaderValue, Request, header};

use super::fingerprint::Fingerprint;
use super::pepper::{MakeFingerprint, OwnPepper, Pepper};
use crate::key::{ExtractKey, Extracted, Missing};

/// The token in `Authorization: Bearer ...`, of which only the [fingerprint](Fingerprint) is kept.
///
/// The key is missing if the field is, if it comes more than once, or if it holds something else. A token that is
/// renewed is a new key: where tokens live shortly, count by whom they are for, which
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
///     Limit::new("token", Gcra::new(Quota::per_second(10))).by(|(token, _): &Caller| *token),
///     Limit::new("address", Gcra::new(Quota::per_second(100))).by(|(_, address): &Caller| *address),
/// ));
/// let layer = RateLimitLayer::new((Bearer::new(), PeerIp::new()), limiter);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Bearer<P = OwnPepper> {
    pepper: P,
}

impl Bearer {
    /// Reads the token, and makes fingerprints that only this process understands.
    #[must_use]
    pub const fn new() -> Self {
        Self { pepper: OwnPepper }
    }
}

impl<P: MakeFingerprint> Bearer<P> {
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

impl<B, P: MakeFingerprint> ExtractKey<Request<B>> for Bearer<P> {
    type Key = Fingerprint<P>;

    fn extract(&self, request: &Request<B>) -> Extracted<Fingerprint<P>> {
        let mut fields = request.headers().get_all(header::AUTHORIZATION).iter();
        match (fields.next(), fields.next()) {
            (Some(field), None) => match token(field) {
                Some(token) => Extracted::Key(self.key_of(token)),
                None => no_token("holds no bearer token: it should be \"Bearer\", a space, and the token"),
            },
            (Some(_), Some(_)) => no_token("comes more than once"),
            (None, _) => no_token("is missing: it should hold a bearer token"),
        }
    }
}

/// The scheme's case does not matter (RFC 9110, section 11.1). A token has no white space in it.
fn token(field: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = field.as_bytes().split_at_checked(b"Bearer ".len())?;
    let token = token.trim_ascii();
    let is_token = !token.is_empty() && !token.iter().any(u8::is_ascii_whitespace);
    (scheme.eq_ignore_ascii_case(b"Bearer ") && is_token).then_some(token)
}

fn no_token<K>(how: &'static str) -> Extracted<K> {
    Extracted::Missing(Missing::field(&header::AUTHORIZATION, how))
}
