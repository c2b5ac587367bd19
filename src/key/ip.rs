use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::{Extensions, Request};

use super::seam::{ExtractKey, Extracted, Missing};
use crate::error::Error;

/// The address of the socket's other end: the client, or the proxy in front of it.
///
/// It never looks at a header: behind a proxy all clients are the proxy. An IPv4 address mapped into IPv6 counts as the
/// IPv4 address. An IPv6 address counts by its first 64 bits, as a client has at least all addresses that share them;
/// [`ipv6_prefix`](Self::ipv6_prefix) chooses another length.
///
/// The address is read from the request's extensions: axum's `ConnectInfo<SocketAddr>` (feature `axum`), or a
/// [`SocketAddr`] that your own server put there. If there is none, the key is missing by the server's fault: in axum serve
/// the router by `into_make_service_with_connect_info::<SocketAddr>()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerIp {
    ipv6_prefix: u8,
}

impl PeerIp {
    /// Counts IPv6 by /64.
    #[must_use]
    pub const fn new() -> Self {
        Self { ipv6_prefix: 64 }
    }

    /// Counts IPv6 addresses by their first `bits` bits.
    ///
    /// # Panics
    ///
    /// If `bits` is not in 1 to 128. In a `const` the compiler shows the panic.
    #[must_use]
    #[track_caller]
    pub const fn ipv6_prefix(self, bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 128, "an IPv6 prefix has 1 to 128 bits");
        Self { ipv6_prefix: bits }
    }

    /// As [`ipv6_prefix`](Self::ipv6_prefix), never panicking.
    ///
    /// # Errors
    ///
    /// If `bits` is not in 1 to 128.
    pub fn try_ipv6_prefix(self, bits: u8) -> Result<Self, Error> {
        if (1..=128).contains(&bits) {
            Ok(Self { ipv6_prefix: bits })
        } else {
            Err(Error::config(format!("an IPv6 prefix has 1 to 128 bits, not {bits}")))
        }
    }

    /// What stands for an address: unmapped first, then cut to the prefix. (The other way round, all of IPv4 would be one
    /// key.)
    #[must_use]
    pub fn key_of(self, address: IpAddr) -> IpAddr {
        match address.to_canonical() {
            v4 @ IpAddr::V4(_) => v4,
            IpAddr::V6(v6) => {
                let mask = u128::MAX << (128 - u32::from(self.ipv6_prefix));
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        }
    }
}

impl Default for PeerIp {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> ExtractKey<Request<B>> for PeerIp {
    type Key = IpAddr;

    fn extract(&self, request: &Request<B>) -> Extracted<IpAddr> {
        match peer_address(request.extensions()) {
            Some(address) => Extracted::Key(self.key_of(address.ip())),
            None => Extracted::Missing(Missing::from_server(
                "the server is put together wrongly: the rate limiter counts by the peer's address, and the request does \
                 not carry it (in axum, serve the router by into_make_service_with_connect_info::<SocketAddr>())",
            )),
        }
    }
}

pub(super) fn peer_address(extensions: &Extensions) -> Option<SocketAddr> {
    axum_peer(extensions).or_else(|| extensions.get::<SocketAddr>().copied())
}

#[cfg(feature = "axum")]
fn axum_peer(extensions: &Extensions) -> Option<SocketAddr> {
    use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};

    let connected = extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
    connected.or_else(|| extensions.get::<MockConnectInfo<SocketAddr>>().map(|info| info.0))
}

#[cfg(not(feature = "axum"))]
fn axum_peer(_: &Extensions) -> Option<SocketAddr> {
    None
}
