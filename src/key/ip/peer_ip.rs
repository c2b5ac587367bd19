use std::net::IpAddr;

use super::peer::{FromExtensions, PeerAddress, missing_peer};
use super::prefix::{Prefixes, prefix_setters};
use crate::error::Error;
use crate::key::{ExtractKey, Extracted};

/// The address of the socket's other end: the client, or the proxy in front of it.
///
/// It never looks at a header: behind a proxy all clients are the proxy. There, use [`ClientIp`](crate::ClientIp). An
/// IPv4 address mapped into IPv6, or translated by a NAT64 (`64:ff9b::/96`), counts as the IPv4 address. An IPv6
/// address counts by its first 64 bits, as a client has at least all addresses that share them;
/// [`ipv6_prefix`](Self::ipv6_prefix) chooses another length.
///
/// The address is read from the request's extensions: axum's `ConnectInfo<SocketAddr>` (feature `axum`), tonic's
/// `TcpConnectInfo` (feature `tonic`), or a [`SocketAddr`](std::net::SocketAddr) that your own server put there;
/// [`peer`](Self::peer) looks elsewhere. If there
/// is none, the key is missing by the server's fault: in axum serve the router by
/// `into_make_service_with_connect_info::<SocketAddr>()`.
///
/// ```
/// use tower_ratelimit::{Gcra, Memory, PeerIp, Quota, RateLimitLayer};
///
/// let limiter = Memory::new(Gcra::new(Quota::per_second(10)));
/// let layer = RateLimitLayer::new(PeerIp::new().ipv6_prefix(56), limiter);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerIp<P = FromExtensions> {
    prefixes: Prefixes,
    peer: P,
}

impl PeerIp {
    /// Counts IPv4 by whole addresses, and IPv6 by /64.
    #[must_use]
    pub const fn new() -> Self {
        Self { prefixes: Prefixes::DEFAULT, peer: FromExtensions }
    }
}

impl<P> PeerIp<P> {
    prefix_setters!();

    /// Sets where the peer's address is found: see [`PeerAddress`].
    pub fn peer<Q>(self, peer: Q) -> PeerIp<Q> {
        PeerIp { prefixes: self.prefixes, peer }
    }

    /// What stands for an address: unmapped first, then cut to the prefix. (The other way round, all of IPv4 would be
    /// one key.)
    #[must_use]
    pub fn key_of(&self, address: IpAddr) -> IpAddr {
        self.prefixes.key_of(address)
    }
}

impl Default for PeerIp {
    fn default() -> Self {
        Self::new()
    }
}

impl<Request, P: PeerAddress<Request>> ExtractKey<Request> for PeerIp<P> {
    type Key = IpAddr;

    // An address that is handed over in memory is written in pieces and read as a whole, which takes as long as all of this.
    #[inline(always)]
    fn extract(&self, request: &Request) -> Extracted<IpAddr> {
        match self.peer.peer_address(request) {
            Some(address) => Extracted::Key(self.key_of(address)),
            None => Extracted::Missing(missing_peer()),
        }
    }
}
