use super::{ExtractKey, Extracted};
use crate::encode::{EncodeKey, KeyWriter};

/// One key, or else another: see [`Or`].
///
/// A left key never equals a right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "of two there is no third")]
pub enum Either<A, B> {
    /// The first extractor has found its key.
    Left(A),
    /// The first extractor's key is absent, and this is the second one's.
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

/// The key that the first extractor finds, or else the second one's: "the API key, else the client's address".
///
/// The ready-made extractors have a method `or`, which makes it. The second extractor is asked only if the first key is
/// *absent* (or the server is misconfigured). The first extractor's answer stands if the request is exempt, and if the
/// key is [unusable](super::MissingKey::unusable): a client that sends its API key twice does not choose to be counted by
/// its address. If the second key is missing as well, the second extractor's reason is returned.
///
/// The two kinds of key can have limits of their own:
///
/// ```
/// use std::net::IpAddr;
///
/// use tower_ratelimit::key::{ApiKey, Either, Fingerprint};
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// let limiter = Memory::per_key(|caller: &Either<Fingerprint, IpAddr>| match caller {
///     Either::Left(_) => Gcra::new(Quota::per_second(100)),
///     Either::Right(_) => Gcra::new(Quota::per_second(5)),
/// });
/// let layer = RateLimitLayer::new(ApiKey::from_static("x-api-key").or(PeerIp::new()), limiter);
/// ```
///
/// # Whoever chooses the first key
///
/// If a client can make it up, it can have a new one for each request. Let something outside of the limiter refuse API
/// keys that do not exist, or look them up before: see [`LookupLayer`](super::LookupLayer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A, B> Or<A, B> {
    /// Asks `first`, and `second` if the first key is absent. Closures have no method `or`: join them by this.
    #[must_use]
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
}

// Methods of their own, not of a trait: `ExtractKey` does not know of which request it would be, and a trait of its own
// would have to be imported.
macro_rules! has_or {
    ($([$($parameter:ident),*] $extractor:ty,)+) => {
        $(
            impl<$($parameter),*> $extractor {
                /// This key, or the other one if this is absent: see [`Or`](crate::key::Or).
                #[must_use]
                pub const fn or<Other>(self, other: Other) -> Or<Self, Other> {
                    Or::new(self, other)
                }
            }
        )+
    };
}

has_or! {
    [P] super::ApiKey<P>,
    [P] super::Bearer<P>,
    [P] super::ClientIp<P>,
    [P] super::Cookie<P>,
    [T] super::Extension<T>,
    [] super::Header,
    [] super::Host,
    [A, B] Or<A, B>,
    [P] super::PeerIp<P>,
}
