use std::net::IpAddr;

use super::{ExtractKey, Extracted};
use crate::encode::{EncodeKey, KeyWriter};

/// The key of one of two extractors: see [`Or`].
///
/// A left key never equals a right key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "`Or` has exactly two extractors")]
pub enum Either<A, B> {
    /// The first extractor's key.
    Left(A),
    /// The second extractor's key, because the first key is absent.
    Right(B),
}

impl<A: EncodeKey, B: EncodeKey> EncodeKey for Either<A, B> {
    fn encode(&self, key: &mut KeyWriter) {
        match self {
            Self::Left(left) => ("left", left).encode(key),
            Self::Right(right) => ("right", right).encode(key),
        }
    }
}

/// The first extractor's key, or the second extractor's if the first is absent.
///
/// For example the API key, otherwise the client's address. The ready-made extractors have a method `or` that creates
/// it. The second extractor runs only if the first key is *absent*, or if the server is misconfigured. The result of
/// the first extractor stands if the request is exempt, or if the key is [unusable](super::MissingKey::unusable): a
/// client cannot switch to the limit of its address by sending its API key twice. If both keys are absent, the second
/// extractor's reason is returned.
///
/// The two kinds of keys can have different limits:
///
/// ```
/// use std::net::IpAddr;
///
/// use tower_ratelimit::key::{Credential, Either, Fingerprint};
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// let limiter = Memory::per_key(|caller: &Either<Fingerprint, IpAddr>| match caller {
///     Either::Left(_) => Gcra::new(Quota::per_second(100)),
///     Either::Right(_) => Gcra::new(Quota::per_second(5)),
/// });
/// let layer = RateLimitLayer::new(Credential::api_key("x-api-key").or(PeerIp::new()), limiter);
/// ```
///
/// # Invented keys
///
/// If a client can invent the first key, it can use a new key for each request. Reject invalid API keys outside of
/// the rate limiter, or look them up before: see [`LookupLayer`](super::LookupLayer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A, B> Or<A, B> {
    /// Combines two extractors. Closures have no method `or`, so use this function for them.
    pub const fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

impl<Request, A: ExtractKey<Request>, B: ExtractKey<Request>> ExtractKey<Request> for Or<A, B> {
    type Key = Either<A::Key, B::Key>;

    fn extract(&self, request: &Request) -> Extracted<Self::Key> {
        match self.first.extract(request) {
            Extracted::Missing(missing) if !missing.is_unusable() => self.second.extract(request).map(Either::Right),
            found => found.map(Either::Left),
        }
    }

    fn proxy(&self, request: &Request) -> Option<IpAddr> {
        match self.first.extract(request) {
            Extracted::Missing(missing) if !missing.is_unusable() => self.second.proxy(request),
            _ => self.first.proxy(request),
        }
    }
}

// Inherent methods: a method of `ExtractKey<Request>` would be ambiguous in `Request`, and a method of another trait
// would need an import.
macro_rules! has_or {
    ($([$($parameter:ident),*] $extractor:ty,)+) => {
        $(
            impl<$($parameter),*> $extractor {
                /// Uses `other` if this key is absent: see [`Or`](crate::key::Or).
                pub const fn or<Other>(self, other: Other) -> Or<Self, Other> {
                    Or::new(self, other)
                }
            }
        )+
    };
}

has_or! {
    [P] super::ClientIp<P>,
    [P] super::Credential<P>,
    [T] super::FromExtension<T>,
    [] super::Header,
    [] super::Host,
    [A, B] Or<A, B>,
    [P] super::PeerIp<P>,
}
