use std::net::IpAddr;

use super::network::Networks;
use crate::error::Error;

/// The proxies whose headers [`ClientIp`](crate::ClientIp) trusts.
///
/// Configure the proxies' addresses if you know them. A number of hops is for proxies whose addresses change.
///
/// ```
/// use tower_ratelimit::key::TrustedProxies;
///
/// let ours = TrustedProxies::parse(["10.0.0.0/8", "2001:db8:7::/48", "192.0.2.1"])?;
/// let one_load_balancer = TrustedProxies::hops(1);
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies(TrustKind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum TrustKind {
    Networks(Networks),
    Hops(usize),
}

impl TrustedProxies {
    /// Trusts the proxies in some networks (`10.0.0.0/8`, `2001:db8::/32`, or a single address).
    ///
    /// # Errors
    ///
    /// - If an item is neither a network nor an address.
    /// - If there is no item. Use [`none`](Self::none) if there is no proxy.
    /// - If the networks cover all addresses, because every client would be a trusted proxy and could forge its
    ///   address.
    pub fn parse<T: AsRef<str>>(networks: impl IntoIterator<Item = T>) -> Result<Self, Error> {
        let networks = Networks::parse(networks)?;
        if networks.is_empty() {
            return Err(Error::config(
                "no trusted proxy: the list is empty; add the proxies' networks, or use TrustedProxies::none() if \
                 clients connect directly",
            ));
        }
        if networks.covers_all() {
            return Err(Error::config(
                "invalid trusted proxies: the networks cover all addresses, so that clients could forge theirs; use \
                 the proxies' networks, or TrustedProxies::hops(1) if only a proxy can connect",
            ));
        }
        Ok(Self(TrustKind::Networks(networks)))
    }

    /// Trusts the last `proxies` hops, whatever their addresses.
    ///
    /// With 1, the peer is a proxy, and the last address in the header is the client's. With 2, there is one more proxy
    /// between them.
    ///
    /// # Security
    ///
    /// Every request must pass through all of the proxies. A client that reaches the server through fewer of them can
    /// forge its address. If that is possible, use [the proxies' networks](Self::parse).
    pub const fn hops(proxies: usize) -> Self {
        Self(TrustKind::Hops(proxies))
    }

    /// Trusts no proxy: the peer is the client, and no header is read.
    pub const fn none() -> Self {
        Self::hops(0)
    }

    /// Whether a hop is a trusted proxy. The peer is hop 0, and has no address on a Unix socket.
    pub(super) fn trusts(&self, hop: usize, address: Option<IpAddr>) -> bool {
        match &self.0 {
            TrustKind::Networks(networks) => address.is_none_or(|address| networks.contains(address)),
            TrustKind::Hops(proxies) => hop < *proxies,
        }
    }
}
