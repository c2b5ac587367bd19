use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use http::{Method, Request, header};
use ipnet::IpNet;

use super::ip::peer_address;
use super::seam::{ExtractKey, Extracted};
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

/// Says whether something holds of a request: [`Preflight`], [`Paths`], [`PeerIn`], or a closure `Fn(&Request) -> bool`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no predicate on `{Request}`",
    note = "a predicate is `Preflight`, `Paths`, `PeerIn` or a closure `|request: &{Request}| -> bool`"
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
pub struct Paths(Vec<String>);

impl Paths {
    /// These paths, each with its leading slash.
    pub fn new(paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(paths.into_iter().map(Into::into).collect())
    }
}

impl<B> Predicate<Request<B>> for Paths {
    fn holds(&self, request: &Request<B>) -> bool {
        self.0.iter().any(|path| path == request.uri().path())
    }
}

/// Holds of requests whose peer, the socket's other end, is in one of these networks. No header counts.
///
/// ```
/// use tower_ratelimit::key::PeerIn;
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
/// let layer = RateLimitLayer::new(PeerIp::new(), limiter).exempt_if(PeerIn::parse(["10.0.0.0/8", "::1"])?);
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerIn(Vec<IpNet>);

impl PeerIn {
    /// Networks as `10.0.0.0/8` or `2001:db8::/32`, or single addresses.
    ///
    /// # Errors
    ///
    /// If one of them is neither.
    pub fn parse<'a>(networks: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let parse = |text: &str| {
            let text = text.trim();
            let address = || IpAddr::from_str(text).ok().map(IpNet::from);
            IpNet::from_str(text).ok().or_else(address).map(canonical).ok_or_else(|| {
                Error::config(format!("{text:?} is no network: give it as 10.0.0.0/8, 2001:db8::/32 or one address"))
            })
        };
        Ok(Self(networks.into_iter().map(parse).collect::<Result<_, _>>()?))
    }

    fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// A network of IPv4 addresses mapped into IPv6, as one of IPv4: peers' addresses are unmapped as well.
fn canonical(network: IpNet) -> IpNet {
    let prefix = network.prefix_len().checked_sub(96);
    match (network.addr().to_canonical(), prefix) {
        (v4 @ IpAddr::V4(_), Some(prefix)) if network.addr().is_ipv6() => IpNet::new(v4, prefix).unwrap_or(network),
        _ => network,
    }
}

impl<B> Predicate<Request<B>> for PeerIn {
    fn holds(&self, request: &Request<B>) -> bool {
        peer_address(request.extensions()).map(|peer: SocketAddr| peer.ip()).is_some_and(|peer| self.contains(peer))
    }
}
