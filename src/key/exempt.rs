use std::net::IpAddr;

use http::{Method, Request, header};

use super::ip::ClientIp;
use super::ip::{FromExtensions, Networks, PeerAddress};
use super::{ExtractKey, Extracted};
use crate::error::Error;

/// An extractor that lets some requests pass under no limit: see
/// [`RateLimitLayer::exempt_if`](crate::RateLimitLayer::exempt_if).
#[derive(Clone, Copy, Debug)]
pub struct ExemptIf<K, P> {
    key: K,
    exempt: P,
}

impl<K, P> ExemptIf<K, P> {
    /// Exempts requests of which `exempt` holds, and asks `key` for all others.
    #[must_use]
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
        if self.exempt.holds(request) { Extracted::Exempt } else { self.key.extract(request) }
    }
}

/// Says whether something holds of a request: [`Preflight`], [`ExactPaths`], [`ClientNetworks`], [`PeerNetworks`], or a closure
/// `Fn(&Request) -> bool`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no predicate on `{Request}`",
    note = "a predicate is `Preflight`, `ExactPaths`, `ClientNetworks`, `PeerNetworks` or a closure `|request: &{Request}| -> bool`"
)]
pub trait Predicate<Request> {
    /// Whether it holds.
    fn holds(&self, request: &Request) -> bool;
}

impl<Request, F: Fn(&Request) -> bool> Predicate<Request> for F {
    fn holds(&self, request: &Request) -> bool {
        self(request)
    }
}

/// Holds of CORS preflight requests: `OPTIONS` with `Origin` and `Access-Control-Request-Method`.
///
/// Anybody can send those. Exempt them only where an outer CORS layer answers them, or the inner service does so cheaply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preflight;

impl<B> Predicate<Request<B>> for Preflight {
    fn holds(&self, request: &Request<B>) -> bool {
        request.method() == Method::OPTIONS
            && request.headers().contains_key(header::ORIGIN)
            && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    }
}

/// Holds of requests for one of these paths, exactly: health checks, for instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExactPaths(Vec<String>);

impl ExactPaths {
    /// These paths, each with its leading slash.
    pub fn new(paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(paths.into_iter().map(Into::into).collect())
    }
}

impl<B> Predicate<Request<B>> for ExactPaths {
    fn holds(&self, request: &Request<B>) -> bool {
        self.0.iter().any(|path| path == request.uri().path())
    }
}

/// Holds of requests whose peer, the socket's other end, is in one of these networks. No header counts.
///
/// # Behind a proxy
///
/// **The peer is the proxy.** If a proxy is in one of the networks, every request through this proxy is exempt, and so
/// are all clients. Behind proxies use [`ClientNetworks`].
///
/// ```
/// use tower_ratelimit::key::PeerNetworks;
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
/// let layer = RateLimitLayer::new(PeerIp::new(), limiter).exempt_if(PeerNetworks::parse(["192.168.1.0/24", "::1"])?);
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerNetworks(Networks);

impl PeerNetworks {
    /// Networks as `10.0.0.0/8` or `2001:db8::/32`, or single addresses.
    ///
    /// # Errors
    ///
    /// If one of them is neither.
    pub fn parse<'a>(networks: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        Networks::parse(networks).map(Self)
    }

    /// Whether an address is in one of them.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(address)
    }
}

impl<B> Predicate<Request<B>> for PeerNetworks {
    fn holds(&self, request: &Request<B>) -> bool {
        FromExtensions.peer_address(request).is_some_and(|peer| self.contains(peer))
    }
}

/// Holds of requests whose client, as [`ClientIp`] finds it behind proxies, is in one of these networks.
///
/// It does not hold if the client is unknown, because the last hop that is known is a trusted proxy. So an address that
/// is trusted as a proxy is never exempt. If callers in your own network are to be exempt, trust your proxies'
/// addresses, not the whole network.
///
/// ```
/// use tower_ratelimit::key::{ClientNetworks, TrustedProxies};
/// use tower_ratelimit::{ClientIp, Gcra, Memory, Quota, RateLimitLayer};
///
/// let client = ClientIp::x_forwarded_for(TrustedProxies::parse(["10.0.0.0/24"])?);
/// let inside = ClientNetworks::parse(client.clone(), ["10.0.0.0/8", "fd00::/8"])?;
///
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
/// let layer = RateLimitLayer::new(client, limiter).exempt_if(inside);
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientNetworks<P = FromExtensions> {
    client: ClientIp<P>,
    networks: Networks,
}

impl<P> ClientNetworks<P> {
    /// The client that `client` finds, in networks as `10.0.0.0/8` or `2001:db8::/32`, or single addresses.
    ///
    /// The whole address counts, not the prefix that `client` uses as a key.
    ///
    /// # Errors
    ///
    /// If one of the networks is neither.
    pub fn parse<'a>(client: ClientIp<P>, networks: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        Ok(Self { client, networks: Networks::parse(networks)? })
    }
}

impl<B, P: PeerAddress<Request<B>>> Predicate<Request<B>> for ClientNetworks<P> {
    fn holds(&self, request: &Request<B>) -> bool {
        self.client.known_client(request).is_some_and(|client| self.networks.contains(client))
    }
}
