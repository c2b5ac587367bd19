use std::net::IpAddr;

use super::peer::{FromExtensions, KnownAddress, PeerAddress, missing_peer};
use super::prefix::{Prefixes, prefix_setters};
use crate::error::Error;
use crate::key::{ExtractKey, Extracted};

/// The address of the connection's peer: the client, or the proxy in front of the server.
///
/// The key depends on no header, so behind a proxy all clients share one key: use [`ClientIp`](crate::ClientIp)
/// there. The layer emits a [warning](crate::observe::Event::Warning) if its first requests suggest a proxy. An IPv4-mapped IPv6 address, and a NAT64 address (`64:ff9b::/96`, and a /96 in
/// `64:ff9b:1::/48`), has the key of the IPv4 address. The key
/// of an IPv6 address is its first 64 bits, because one client has at least a /64; [`ipv6_prefix`](Self::ipv6_prefix)
/// sets another length.
///
/// The extractor reads the address from the request's extensions: axum's `ConnectInfo<SocketAddr>` (feature `axum`),
/// tonic's `TcpConnectInfo` (feature `tonic`), or a [`SocketAddr`](std::net::SocketAddr) that a custom server
/// inserts. [`peer`](Self::peer) sets another source. Without an address, the server is
/// [misconfigured](crate::key::MissingKey::from_server): in axum, serve the router with
/// `into_make_service_with_connect_info::<SocketAddr>()`.
///
/// ```
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// let limiter = Memory::<std::net::IpAddr, _>::new(Gcra::new(Quota::per_second(10)));
/// let layer = RateLimitLayer::new(PeerIp::new().ipv6_prefix(56), limiter);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct PeerIp<P = FromExtensions> {
    prefixes: Prefixes,
    peer_source: P,
}

impl PeerIp {
    /// Creates an extractor with IPv4 addresses and IPv6 /64 prefixes as keys.
    pub const fn new() -> Self {
        Self { prefixes: Prefixes::DEFAULT, peer_source: FromExtensions }
    }
}

impl<P> PeerIp<P> {
    prefix_setters!();

    /// Sets the source of the peer's address: a closure `Fn(&Request) -> Option<IpAddr>`.
    ///
    /// Do not read the address from a header: the client writes the headers.
    ///
    /// ```
    /// use std::net::IpAddr;
    ///
    /// use http::Request;
    /// use tower_ratelimit::key::Extracted;
    /// use tower_ratelimit::{ExtractKey, PeerIp};
    ///
    /// /// The connection info of a custom server.
    /// #[derive(Clone)]
    /// struct Connection {
    ///     from: IpAddr,
    /// }
    ///
    /// let key = PeerIp::new().peer(|request: &Request<()>| Some(request.extensions().get::<Connection>()?.from));
    ///
    /// let mut request = Request::new(());
    /// request.extensions_mut().insert(Connection { from: IpAddr::from([192, 0, 2, 1]) });
    /// assert_eq!(key.extract(&request), Extracted::Key(IpAddr::from([192, 0, 2, 1])));
    /// ```
    pub fn peer<Q>(self, source: Q) -> PeerIp<Q> {
        PeerIp { prefixes: self.prefixes, peer_source: source }
    }

    /// Returns the key of an address: converted to IPv4 if possible, then cut to the prefix.
    pub fn key_of(&self, address: IpAddr) -> IpAddr {
        self.prefixes.key_of(address)
    }
}

impl_default!(PeerIp);

impl<Request, P: PeerAddress<Request>> ExtractKey<Request> for PeerIp<P> {
    type Key = IpAddr;

    #[inline]
    fn extract(&self, request: &Request) -> Extracted<IpAddr> {
        match self.peer_source.peer_address(request) {
            Some(address) => Extracted::Key(self.key_of(address)),
            None => Extracted::Missing(missing_peer()),
        }
    }

    fn proxy(&self, request: &Request) -> Option<IpAddr> {
        let is_local = |address: &IpAddr| match address.to_canonical() {
            IpAddr::V4(address) => address.is_loopback() || address.is_private() || address.is_link_local(),
            IpAddr::V6(address) => {
                address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
            }
        };
        let source = &self.peer_source;
        let proxy = if source.is_forwarded(request) { source.peer_address(request).filter(is_local) } else { None };
        proxy.map(|address| self.key_of(address))
    }
}

impl<Request, P: PeerAddress<Request>> KnownAddress<Request> for PeerIp<P> {
    fn known_address(&self, request: &Request) -> Option<IpAddr> {
        self.peer_source.peer_address(request)
    }
}
