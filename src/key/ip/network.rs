use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::error::Error;

/// Networks of addresses. A network of IPv4-mapped IPv6 addresses is stored as an IPv4 network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::key) struct Networks(Arc<[IpNet]>);

impl Networks {
    /// Parses networks such as `10.0.0.0/8` or `2001:db8::/32`, or single addresses.
    pub(in crate::key) fn parse<T: AsRef<str>>(networks: impl IntoIterator<Item = T>) -> Result<Self, Error> {
        let networks = networks.into_iter().map(|text| network(text.as_ref()));
        Ok(Self(networks.collect::<Result<_, _>>()?))
    }

    pub(in crate::key) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the networks together cover all IPv4 or all IPv6 addresses.
    pub(in crate::key) fn covers_all(&self) -> bool {
        IpNet::aggregate(&self.0.to_vec()).iter().any(|network| network.prefix_len() == 0)
    }

    #[inline]
    pub(in crate::key) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }
}

fn network(text: &str) -> Result<IpNet, Error> {
    let text = text.trim();
    let address = || IpAddr::from_str(text).ok().map(IpNet::from);
    IpNet::from_str(text).ok().or_else(address).map(canonical).ok_or_else(|| {
        Error::config(format!(
            "invalid network {text:?}; use a form such as 10.0.0.0/8 or 2001:db8::/32, or one address"
        ))
    })
}

/// Converts a network of IPv4-mapped IPv6 addresses to IPv4, as `contains` converts addresses.
fn canonical(network: IpNet) -> IpNet {
    let prefix = network.prefix_len().checked_sub(96);
    match (network.addr().to_canonical(), prefix) {
        (v4 @ IpAddr::V4(_), Some(prefix)) if network.addr().is_ipv6() => IpNet::new(v4, prefix).unwrap_or(network),
        _ => network,
    }
}
