use std::net::IpAddr;

use http::{Method, Request, header};

use super::ip::{KnownAddress, Networks};
use super::{ExtractKey, Extracted, path_of};
use crate::error::Error;

/// An extractor that exempts some requests: see [`RateLimitLayer::exempt_if`](crate::RateLimitLayer::exempt_if).
#[derive(Clone, Copy, Debug)]
pub struct ExemptIf<K, P> {
    key: K,
    exempt: P,
}

impl<K, P> ExemptIf<K, P> {
    /// Exempts requests that `exempt` matches, and extracts the key of all others with `key`.
    pub const fn new(key: K, exempt: P) -> Self {
        Self { key, exempt }
    }
}

impl<Request, K, P> ExtractKey<Request> for ExemptIf<K, P>
where
    K: ExtractKey<Request>,
    P: Predicate<Request>,
{
    type Key = K::Key;

    fn extract(&self, request: &Request) -> Extracted<K::Key> {
        if self.exempt.matches(request) { Extracted::Exempt } else { self.key.extract(request) }
    }

    fn proxy(&self, request: &Request) -> Option<IpAddr> {
        self.key.proxy(request)
    }
}

/// A condition on requests.
///
/// [`Preflight`], [`ExactPaths`] and [`InNetworks`] are predicates, and so is a closure
/// `Fn(&Request) -> bool`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a predicate on `{Request}`",
    note = "a predicate is `Preflight`, `ExactPaths::new([\"/health\"])`, `InNetworks` or a closure \
            `|request: &{Request}| -> bool`"
)]
pub trait Predicate<Request> {
    /// Whether the predicate matches `request`.
    fn matches(&self, request: &Request) -> bool;
}

impl<Request, F: Fn(&Request) -> bool> Predicate<Request> for F {
    fn matches(&self, request: &Request) -> bool {
        self(request)
    }
}

/// Matches CORS preflight requests: `OPTIONS` with `Origin` and `Access-Control-Request-Method`.
///
/// Every client can send such requests. Exempt them only if the inner service answers them cheaply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preflight;

impl Preflight {
    /// Whether `request` is a CORS preflight request, for closures that combine conditions.
    pub fn matches<B>(&self, request: &Request<B>) -> bool {
        request.method() == Method::OPTIONS
            && request.headers().contains_key(header::ORIGIN)
            && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    }
}

impl<B> Predicate<Request<B>> for Preflight {
    fn matches(&self, request: &Request<B>) -> bool {
        self.matches(request)
    }
}

/// Matches requests for exactly one of some paths, such as health checks.
///
/// The path is what the client sent, also in a nested router of axum: see [`Path`](crate::key::Path).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExactPaths(Vec<String>);

impl ExactPaths {
    /// Creates the predicate from paths with a leading slash.
    pub fn new(paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(paths.into_iter().map(Into::into).collect())
    }
}

impl ExactPaths {
    /// Whether the request's path is one of the paths, for closures that combine conditions.
    pub fn matches<B>(&self, request: &Request<B>) -> bool {
        let path = path_of(request);
        self.0.iter().any(|exact| exact == path)
    }
}

impl<B> Predicate<Request<B>> for ExactPaths {
    fn matches(&self, request: &Request<B>) -> bool {
        self.matches(request)
    }
}

/// Matches requests whose address is in one of some networks: the address of the peer ([`PeerIp`](crate::PeerIp)), or of
/// the client behind proxies ([`ClientIp`](crate::ClientIp)).
///
/// The predicate compares the whole address, not the prefix that the extractor uses as a key. With `ClientIp` it does not
/// match if the client is unknown, because the last known hop is a trusted proxy. Therefore the address of a trusted proxy
/// is never exempt. To exempt callers in your own network, trust the addresses of the proxies, not the whole network.
///
/// # Behind a proxy
///
/// With `PeerIp` **the peer is the proxy.** If a proxy is in one of the networks, every request through this proxy matches.
/// Behind proxies, use `ClientIp`.
///
/// ```
/// use tower_ratelimit::key::{InNetworks, TrustedProxies};
/// use tower_ratelimit::{ClientIp, Gcra, Memory, Quota, RateLimitLayer};
///
/// let client = ClientIp::x_forwarded_for(TrustedProxies::parse(["10.0.0.0/24"])?);
/// let inside = InNetworks::parse(client.clone(), ["10.0.0.0/8", "fd00::/8"])?;
///
/// let limiter = Memory::<std::net::IpAddr, _>::new(Gcra::new(Quota::per_second(10)));
/// let layer = RateLimitLayer::new(client, limiter).exempt_if(inside);
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InNetworks<S> {
    source: S,
    networks: Networks,
}

impl<S> InNetworks<S> {
    /// Parses networks such as `10.0.0.0/8` or `2001:db8::/32`, or single addresses. `source` is `PeerIp` or `ClientIp`.
    ///
    /// # Errors
    ///
    /// If an item is neither a network nor an address.
    pub fn parse<'a>(source: S, networks: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        Ok(Self { source, networks: Networks::parse(networks)? })
    }

    /// Whether `address` is in one of the networks.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.networks.contains(address)
    }

    /// Whether the request's address is known and in one of the networks, for closures that combine conditions.
    pub fn matches<Request>(&self, request: &Request) -> bool
    where
        S: KnownAddress<Request>,
    {
        self.source.known_address(request).is_some_and(|address| self.contains(address))
    }
}

impl<Request, S: KnownAddress<Request>> Predicate<Request> for InNetworks<S> {
    fn matches(&self, request: &Request) -> bool {
        self.matches(request)
    }
}
