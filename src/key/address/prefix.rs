use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::Error;

/// By how many of its bits an address counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::key) struct Prefixes {
    ipv4: u8,
    ipv6: u8,
}

impl Prefixes {
    /// IPv4 whole, and IPv6 by /64: a client has at least all addresses that share those.
    pub(in crate::key) const DEFAULT: Self = Self { ipv4: 32, ipv6: 64 };

    #[track_caller]
    pub(in crate::key) const fn ipv4(self, bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 32, "an IPv4 prefix has 1 to 32 bits");
        Self { ipv4: bits, ..self }
    }

    #[track_caller]
    pub(in crate::key) const fn ipv6(self, bits: u8) -> Self {
        assert!(bits >= 1 && bits <= 128, "an IPv6 prefix has 1 to 128 bits");
        Self { ipv6: bits, ..self }
    }

    pub(in crate::key) fn try_ipv4(self, bits: u8) -> Result<Self, Error> {
        if (1..=32).contains(&bits) {
            Ok(Self { ipv4: bits, ..self })
        } else {
            Err(Error::config(format!("an IPv4 prefix has 1 to 32 bits, not {bits}")))
        }
    }

    pub(in crate::key) fn try_ipv6(self, bits: u8) -> Result<Self, Error> {
        if (1..=128).contains(&bits) {
            Ok(Self { ipv6: bits, ..self })
        } else {
            Err(Error::config(format!("an IPv6 prefix has 1 to 128 bits, not {bits}")))
        }
    }

    /// What stands for an address. First it becomes the IPv4 address that it may stand for, and then it is cut: the
    /// other way round all of IPv4 would be one key.
    pub(in crate::key) fn key_of(self, address: IpAddr) -> IpAddr {
        match translated(address.to_canonical()) {
            IpAddr::V4(v4) => {
                let mask = u32::MAX << (32 - u32::from(self.ipv4));
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX << (128 - u32::from(self.ipv6));
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        }
    }
}

/// An IPv4 client as a NAT64 shows it: in the last 32 bits of `64:ff9b::/96` (RFC 6052).
fn translated(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => match v6.segments() {
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
            }
            _ => address,
        },
        IpAddr::V4(_) => address,
    }
}
