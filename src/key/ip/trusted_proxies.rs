use std::net::IpAddr;

use super::network::Networks;
use crate::error::Error;

/// Which hops between the server and its clients are proxies that [`ClientIp`](crate::ClientIp) believes.
///
/// Say the proxies' own addresses whenever you know them. A number of hops is for proxies whose addresses change.
///
/// ```
/// use tower_ratelimit::key::TrustedProxies;
///
/// let ours = TrustedProxies::parse(["10.0.0.0/8", "2001:db8:7::/48", "192.0.2.1"])?;
/// let one_load_balancer = TrustedProxies::hops(1);
/// # Ok::<(), tower_ratelimit::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies(Trust);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Trust {
    Networks(Networks),
    Hops(usize),
}

impl TrustedProxies {
    /// Whoever is in one of these networks (`10.0.0.0/8`, `2001:db8::/32`, or a single address).
    ///
    /// # Errors
    ///
    /// If one of them is neither; if there is none, which is said with [`none`](Self::none); if together they hold all
    /// addresses there are: then every client would be a proxy, and could write whatever address it likes.
    pub fn parse<T: AsRef<str>>(networks: impl IntoIterator<Item = T>) -> Result<Self, Error> {
        let networks = Networks::parse(networks)?;
        if networks.is_empty() {
            return Err(Error::config(
                "there is no trusted proxy in the list: name their networks, or say TrustedProxies::none() if clients \
                 connect directly",
            ));
        }
        if networks.hold_all() {
            return Err(Error::config(
                "the trusted proxies must not be all addresses there are, or clients write their own: name the \
                 proxies' networks, or say TrustedProxies::hops(1) if nobody but a proxy can connect",
            ));
        }
        Ok(Self(Trust::Networks(networks)))
    }

    /// The last `proxies` hops, whatever their addresses are: with 1 the peer is a proxy, and the last address that it
    /// names is the client; with 2 there is one more proxy between them, and so on.
    ///
    /// # Who can go around them
    ///
    /// This holds only if every request comes through all of the proxies. Who reaches the server directly, or through
    /// fewer of them, writes the address that it counts by. If that is possible, [name their networks](Self::parse).
    #[must_use]
    pub const fn hops(proxies: usize) -> Self {
        Self(Trust::Hops(proxies))
    }

    /// Nobody: the peer is the client, and no header field is read.
    #[must_use]
    pub const fn none() -> Self {
        Self::hops(0)
    }

    /// Whether a hop is a proxy. The peer is hop 0; it may have no address, if that is how proxies connect.
    pub(super) fn include(&self, hop: usize, address: Option<IpAddr>) -> bool {
        match &self.0 {
            Trust::Networks(networks) => address.is_none_or(|address| networks.contains(address)),
            Trust::Hops(proxies) => hop < *proxies,
        }
    }
}
